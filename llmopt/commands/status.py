"""``llmopt status FILE``: the best point of a search, open points, and what was spent, as JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmopt.commands.ask import add_file_argument
from llmopt.service.search_file import open_file
from llmopt.service.search_json import numbered, status
from llmopt.space import Categorical

if TYPE_CHECKING:
    import pandas

    from llmopt.optimizer import LLMOptimizer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt status``."""
    add_file_argument(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--trials", action="store_true", help="print every trial, one a line")
    form.add_argument(
        "--csv",
        action="store_true",
        help="print every trial as a table, which `tell --import` reads",
    )


def main(args: argparse.Namespace) -> int:
    """Print one JSON object; with ``--trials`` one for each trial, with ``--csv`` a table."""
    optimizer = open_file(args.file, asks=False, reads=True)
    with contextlib.closing(optimizer):
        if not args.csv and not args.trials:
            print(json.dumps(status(optimizer), indent=2))
            return 0
        trials = numbered(optimizer, optimizer.trials)
        if args.csv:
            print(_table(optimizer, trials).to_csv(index_label="trial"), end="")
            return 0
        for trial in trials:
            print(json.dumps(trial))
    return 0


def _table(optimizer: LLMOptimizer[Any], trials: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Return the trials, which are also given as JSON, in the form that the shell shows."""
    table = optimizer.trials_dataframe().drop(columns="number", errors="ignore")
    table.index += 1  # as all commands count
    for name, dimension in zip(optimizer.space.names, optimizer.space.dimensions, strict=True):
        if isinstance(dimension, Categorical) and dimension.named and f"params_{name}" in table:
            table[f"params_{name}"] = [trial["params"].get(name) for trial in trials]
    if "instead_of" in table:
        cells = zip(table["instead_of"], trials, strict=True)
        asked = [json.dumps(t["instead_of"]) if "instead_of" in t else cell for cell, t in cells]
        table["instead_of"] = asked
    for name in ("old_parts", "old_feedback", "point", "label"):  # as in `--trials`
        if any(name in trial for trial in trials):
            given = [trial.get(name) for trial in trials]
            table.insert(0, name, [json.dumps(c) if isinstance(c, dict) else c for c in given])
    return table
