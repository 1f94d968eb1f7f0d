"""``llmopt enqueue FILE``: queue points, given as JSON, for the next `ask`."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging

from llmopt.errors import LLMOptError
from llmopt.service.ask import add_file_arguments
from llmopt.service.search_file import enqueue, open_file, status
from llmopt.util.files import read_json

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt enqueue``."""
    add_points(parser)
    parser.add_argument(
        "--words", default="", metavar="TEXT", help="what the points are, for the model"
    )


def add_points(parser: argparse.ArgumentParser, count: str = "+") -> None:
    """Add the arguments of a command on points."""
    add_file_arguments(parser)
    parser.add_argument(
        "point",
        metavar="JSON",
        nargs=count,
        help='parameters by name, all or some of them, such as {"temperature": 80}',
    )


def points_of(args: argparse.Namespace) -> list[object]:
    """Return the points of the command line."""
    points = []
    for text in args.point:
        try:
            points.append(read_json(text))
        except ValueError as error:
            raise LLMOptError(f"{text[:80]!r} is not valid JSON ({error})") from error
    return points


def main(args: argparse.Namespace) -> int:
    """Queue the points, and print where the search stands."""
    points = points_of(args)
    with contextlib.closing(open_file(args.file, wait=args.wait, asks=False)) as optimizer:
        for point in points:
            if warning := enqueue(optimizer, point, args.words):
                logger.warning("%s", warning)
        print(json.dumps(status(optimizer), indent=2))
    return 0
