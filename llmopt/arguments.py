"""Checks of what a caller passed: got, expected."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any


def whole_number(name: str, value: Any, least: int) -> int:
    """Return an argument's value as an ``int``.

    Raises:
        ValueError: It is not a whole number of at least `least`.
    """
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or value < least:
        raise ValueError(f"{name}={value!r}: expected a whole number of at least {least}")
    return int(value)


def one_of(name: str, value: Any, valid: Sequence[Any]) -> None:
    """Raise unless an argument has one of the values that it may have.

    Raises:
        ValueError: It has another one.
    """
    if value not in valid:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(map(repr, valid))}")
