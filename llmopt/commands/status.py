"""``llmopt status FILE``: the best point of a search, open points, and what was spent, as JSON."""

from __future__ import annotations

import argparse
import contextlib
import json

from llmopt.commands.ask import add_file_argument
from llmopt.service.search_file import numbered, open_file, status


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
        trials = [numbered(optimizer, trial) for trial in optimizer.trials]
        if args.csv:
            table = optimizer.trials_dataframe().drop(columns="number", errors="ignore")
            table.index += 1  # as all commands count
            table.insert(0, "label", [t.get("label", f"#{t['number']}") for t in trials])
            for name in ("point", "old_feedback", "old_parts", "old_reward"):  # as in `--trials`
                if any(name in trial for trial in trials):
                    cells = [trial.get(name) for trial in trials]
                    cells = [json.dumps(c) if isinstance(c, dict) else c for c in cells]
                    table.insert(1, name, cells)
            print(table.to_csv(index_label="trial"), end="")
            return 0
        for trial in trials:
            print(json.dumps(trial))
    return 0
