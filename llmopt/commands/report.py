"""``llmopt report``: the page of a search."""

from __future__ import annotations

import argparse
from pathlib import Path

from llmopt.reports import report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt report``."""
    add = parser.add_argument
    add(
        "search",
        metavar="SEARCH",
        help="a storage file, the description of a search, or a run folder",
    )
    add(
        "--out",
        type=Path,
        metavar="FILE",
        help="the page (default: SEARCH with the ending .html; report.html in a run folder)",
    )
    add("--title", default="", help="title of the page")
    add(
        "--reference",
        nargs="+",
        type=float,
        metavar="X",
        help="reference point of the hypervolume of several objectives, a number for each",
    )


def main(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    print(report(args.search, args.out, title=args.title, reference=args.reference))
    return 0
