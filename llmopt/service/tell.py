"""``llmopt tell FILE``: record what points scored, given as JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator

from llmopt.errors import LLMOptError
from llmopt.service.ask import add_file_arguments
from llmopt.service.search_file import of_trial, open_file, tell
from llmopt.util.files import read_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt tell``."""
    add_file_arguments(parser)
    parser.add_argument(
        "result",
        metavar="JSON",
        nargs="*",
        help='{"params": {...}, "reward": 0.5, "feedback": "..."} or {"params": {...}, "failed": '
        '"why"}; one a line from standard input if not given',
    )


def main(args: argparse.Namespace) -> int:
    """Record all results, or none where one is wrong, and print their trials as JSON."""
    # Read before the search is opened: nobody is kept waiting meanwhile.
    results = list(_results(args.result or [line for line in sys.stdin if line.strip()]))
    if not results:
        raise LLMOptError(
            "no result was given: expected one JSON object a line on standard input, or as an "
            f'argument: llmopt tell {args.file} \'{{"params": {{...}}, "reward": 0.5}}\''
        )
    optimizer = open_file(args.file, wait=args.wait, asks=False)
    with contextlib.closing(optimizer):
        for trial in tell(optimizer, results):
            print(json.dumps(of_trial(optimizer, trial)), flush=True)
    return 0


def _results(lines: list[str]) -> Iterator[object]:
    for number, line in enumerate(lines, start=1):
        try:
            yield read_json(line)
        except ValueError as error:
            raise LLMOptError(
                f"result {number} is not valid JSON ({error}): nothing was recorded"
            ) from error
