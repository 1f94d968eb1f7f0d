"""``llmopt status FILE``: the best point of a search, open points, and what was spent, as JSON."""

from __future__ import annotations

import argparse
import contextlib
import json

from llmopt.commands.ask import add_file_argument
from llmopt.service.search_file import of_trial, open_file, status


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
        if args.csv:
            table = optimizer.trials_dataframe().drop(columns="number", errors="ignore")
            table.index += 1  # as all commands count
            print(table.to_csv(index_label="trial"), end="")
        elif args.trials:
            for trial in optimizer.trials:
                print(json.dumps(of_trial(optimizer, trial)))
        else:
            print(json.dumps(status(optimizer), indent=2))
    return 0
