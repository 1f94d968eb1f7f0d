"""``llmopt withdraw FILE``: drop points that will not be evaluated, or a trial told by mistake."""

from __future__ import annotations

import argparse
import contextlib
import json
import re

from llmopt.commands.enqueue import add_points, check_quoted, point_of
from llmopt.errors import LLMOptError
from llmopt.service.search_file import open_file
from llmopt.service.search_json import withdraw


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt withdraw``."""
    add_points(parser, "*")
    parser.add_argument(
        "--trial",
        type=lambda text: int(text) if re.fullmatch(r"-?\d+", text) else text,
        metavar="N",
        help="number of a trial that never happened, or that failed and is to be run again; or the "
        "name of its point, such as p12",
    )
    parser.add_argument(
        "--feedback", metavar="TEXT", default="", help="why it is withdrawn, for the model"
    )


def main(args: argparse.Namespace) -> int:
    """Drop all points, or none where one is wrong, or a trial, and print them as JSON."""
    check_quoted(args.point, {"--feedback": args.feedback})
    points = [point_of(text) for text in args.point]
    if args.trial is None and not points:
        raise LLMOptError("expected a point, such as p4, or --trial N")
    with contextlib.closing(open_file(args.file, wait=args.wait, asks=False)) as optimizer:
        for line in withdraw(optimizer, points, args.trial, args.feedback):
            print(json.dumps(line), flush=True)
    return 0
