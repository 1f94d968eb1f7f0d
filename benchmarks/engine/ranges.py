"""The ranges of what a benchmark is asked for: more would fill memory, or never end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from llmopt.arguments import MOST_AT_ONCE, MOST_COUNT, whole_number

MOST_POINTS = 10_000_000
RANGES: Mapping[str, tuple[int, int]] = {
    "iterations": (0, MOST_POINTS),
    "episodes": (1, 100_000),
    "seed": (0, MOST_COUNT),
    "heldout": (1, 100_000),
    "batch": (1, MOST_AT_ONCE),
    "finalists": (0, 1000),
    "requests": (1, MOST_COUNT),
}
"""Least and most of each option that is a whole number."""


def check_ranges(config: Any, ranges: Mapping[str, tuple[int, int]], kind: type[Exception]) -> None:
    """Raise an error if a field of a dataclass is no whole number within its range.

    ``None`` is allowed where it is the default.
    """
    optional = {f.name for f in fields(config) if f.default is None}
    for name, (least, most) in ranges.items():
        value = getattr(config, name)
        if value is None and name in optional:
            continue
        try:
            whole_number(name, value, least, most)
        except ValueError as error:
            raise kind(str(error)) from None
