"""Checks of what a caller passed: got, expected."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from typing import Any

from llmopt.errors import did_you_mean
from llmopt.text import short


def whole_number(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return an argument's value as an ``int``.

    Raises:
        ValueError: It is not a whole number of at least `least`, and at most `most`.
    """
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        span = f"of at least {least}" if most is None else f"from {least} to {most:,}"
        raise ValueError(f"{name}={short(value)}: expected a whole number {span}")
    return int(value)


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
