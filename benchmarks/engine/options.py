"""Options that `llmopt run` and `llmopt bench` share, and the ranges of whole numbers.

More than these ranges hold would fill memory, or never end.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from llmopt.benchmarks.engine.search import FINAL_ROUNDS, FINALISTS
from llmopt.util.arguments import MOST_AT_ONCE, MOST_COUNT, whole_number

MOST_POINTS = 10_000_000
RANGES: Mapping[str, tuple[int, int]] = {
    "iterations": (0, MOST_POINTS),
    "episodes": (1, 100_000),
    "seed": (0, MOST_COUNT),
    "heldout": (1, 100_000),
    "batch": (1, MOST_AT_ONCE),
    "finalists": (0, 1000),
}
"""Least and most of each option that is a whole number."""


def check_ranges(
    values: Mapping[str, Any], ranges: Mapping[str, tuple[int, int]], kind: type[Exception]
) -> None:
    """Raise an error of some kind if a value is no whole number within its range."""
    for name, (least, most) in ranges.items():
        try:
            whole_number(name, values[name], least, most)
        except ValueError as error:
            raise kind(str(error)) from None


def add_numbers(parser: argparse.ArgumentParser, options: Mapping[str, str]) -> None:
    """Add options that are whole numbers, each with its help."""
    for flag, words in options.items():
        parser.add_argument(flag, type=int, metavar="N", help=words)


def add_search_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which policies are searched, and how they are judged."""
    add = parser.add_argument
    add("--model", metavar="M", help="model to ask (default: smollm2, the embedded one)")
    numbers = {
        "--episodes": "episodes of one evaluation (default: the task's own, 20 for mountaincar, "
        "mostly 5)",
        "--finalists": "number of each method's best policies that are compared on new "
        f"initial states (default: {FINALISTS}, each in {FINAL_ROUNDS} times --episodes; 0: none)",
        "--heldout": "held-out initial states of the final score (default: 100)",
    }
    add_numbers(parser, numbers)
    add(
        "--bias",
        action=argparse.BooleanOptionalAction,
        help="policy with or without a bias (default: the task's)",
    )
    add(
        "--box",
        type=float,
        nargs=2,
        metavar=("LOW", "HIGH"),
        help="bounds of every parameter (default: -2 2 for scaled observations, else -6 6)",
    )
    add(
        "--raw",
        dest="wrappers",
        action="store_const",
        const=(),
        help="no scaling: the published form, raw observations and parameters in [-6, 6]",
    )
