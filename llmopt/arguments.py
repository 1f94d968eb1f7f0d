"""Checks of what a caller passed: got, expected."""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from llmopt.errors import did_you_mean
from llmopt.text import short

MOST_AT_ONCE = 1000
"""Points, answers or repairs of one call: with more it would go on for hours."""

MOST_POINTS = 100_000
"""Points of one call that draws them without a model."""

MOST_SEED = 2**128 - 1
MOST_COUNT = 2**63 - 1
"""So that it fits into a machine's integer."""


def whole_number(name: str, value: Any, least: int, most: int = MOST_COUNT) -> int:
    """Return an argument's value as an ``int``.

    Raises:
        ValueError: It is not a whole number of at least `least`, and at most `most`.
    """
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or not least <= value <= most:
        span = f"of at least {least}" if most >= MOST_COUNT else f"from {least} to {most:,}"
        raise ValueError(f"{name}={short(value)}: expected a whole number {span}")
    return int(value)


def number(name: str, value: Any, least: float = -math.inf) -> float:
    """Return a value, of a file say, as a finite ``float``.

    Raises:
        ValueError: It is none, or less than `least`.
    """
    real = isinstance(value, (int, float, np.floating)) and not isinstance(value, bool)
    if not real or not max(least, -sys.float_info.max) <= value <= sys.float_info.max:
        span = f" of at least {least:g}" if math.isfinite(least) else ""
        raise ValueError(f"{name}={short(value)}: expected a finite number{span}")
    return float(value)


def one_of(name: str, value: Any, valid: Sequence[Any]) -> None:
    """Raise unless an argument has one of the values that it may have.

    Raises:
        ValueError: It has another one.
    """
    if value not in valid:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(map(repr, valid))}")


def check_names(call: str, given: Iterable[str], valid: Iterable[str]) -> None:
    """Raise if a call was given an argument by a name that it does not have.

    Args:
        call: The function's name, for the message.
        given: The names that the caller used.
        valid: The names that exist.

    Raises:
        TypeError: A name is unknown; the message says which ones are near.
    """
    names = list(valid)
    for name in given:
        if name not in names:
            raise TypeError(f"{call}() has no argument {name!r}; {did_you_mean(name, names)}")
