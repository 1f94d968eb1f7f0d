"""Checks of what a caller passed: got, expected."""

from __future__ import annotations

import difflib
import inspect
import math
import numbers
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np

from llmopt.errors import did_you_mean
from llmopt.util.text import function_name, short

MOST_AT_ONCE = 1000
"""Points, answers or repairs of one call: with more it would go on for hours."""

MOST_POINTS = 100_000
"""Points of one call that draws them without a model."""

_TIME = re.compile("second|minute|hour|time|duration|deadline")
MOST_SEED = 2**128 - 1
MOST_COUNT = 2**63 - 1
"""So that it fits into a machine's integer."""


def check_function(f: Any, seeded: bool) -> None:
    """Raise unless `f` can be called with one point, and with ``seed=`` where it is `seeded`."""
    if not callable(f):
        raise TypeError(
            f"f={short(f)}: expected a function of a point; the function comes first, then the "
            "space: minimize(f, space, n_trials)"
        )
    name = function_name(f, "the objective")
    if inspect.iscoroutinefunction(f) or inspect.iscoroutinefunction(type(f).__call__):
        raise TypeError(
            f"{name} is an async function: give a plain one, such as "
            "lambda point: asyncio.run(f(point)), or await it in your own loop with "
            "LLMOptimizer.aask() and atell()"
        )
    try:
        signature = inspect.signature(f)
    except (TypeError, ValueError):  # written in C
        return
    try:
        signature.bind(None, **({"seed": 0} if seeded else {}))
    except TypeError:
        wanted = (
            "a point and a seed, such as f(point, seed), since seeded=True" if seeded else
            'one argument, a point such as {"x": 1.0}. For f(x, y) give lambda point: f(**point)'
        )  # fmt: skip
        raise TypeError(f"{name}{signature}: expected a function of {wanted}") from None


def whole_number(name: str, value: Any, least: int, most: int = MOST_COUNT) -> int:
    """Return an argument's value as an ``int``."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or not least <= value <= most:
        bounded = most < MOST_COUNT or (whole and value > most)
        span = f"from {least} to {most:,}" if bounded else f"of at least {least}"
        raise ValueError(f"{name}={short(value)}: expected a whole number {span}")
    return int(value)


def seed_or_fresh(seed: Any) -> int:
    """Return a caller's seed, or a fresh one for ``None``."""
    if seed is not None:
        return whole_number("seed", seed, 0, MOST_SEED)
    return int(np.random.SeedSequence().entropy)  # type: ignore[arg-type]


def whole_or_auto(
    name: str, value: Any, least: int, most: int = MOST_COUNT
) -> int | Literal["auto"]:
    """Return a whole number as an ``int``, or ``"auto"``."""
    if isinstance(value, str) and value == "auto":
        return "auto"
    try:
        return whole_number(name, value, least, most)
    except ValueError as error:
        raise ValueError(f"{error}, or 'auto'") from None


def number(name: str, value: Any, least: float = -math.inf, unit: str = "") -> float:
    """Return a value, of a file say, as a finite ``float``; `unit` is for the message."""
    real = isinstance(value, (int, float, np.floating)) and not isinstance(value, bool)
    if not real or not max(least, -sys.float_info.max) <= value <= sys.float_info.max:
        span = f" of at least {least:g}" if math.isfinite(least) else ""
        of = f" of {unit}" if unit else ""
        raise ValueError(f"{name}={short(value)}: expected a finite number{of}{span}")
    return float(value)


def finite(value: Any) -> float | None:
    """Return a finite number as a float; ``None`` for whatever else there is."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.ravel()[0]
    if isinstance(value, np.complexfloating) or not isinstance(
        value, bool | int | float | np.number | np.bool_
    ):
        return None
    try:
        number = float(value)
    except (OverflowError, TypeError, ValueError):  # a whole number of 400 digits, a duration
        return None
    return number if math.isfinite(number) else None


def one_of(name: str, value: Any, valid: Sequence[Any]) -> None:
    """Raise unless an argument has one of the values that it may have."""
    if value not in valid:
        raise ValueError(f"{name}={short(value)}: expected one of {', '.join(map(repr, valid))}")


def check_names(call: str, given: Iterable[str], valid: Iterable[str]) -> None:
    """Raise a `TypeError` if a call was given an argument by a name that it does not have."""
    names = list(valid)
    for name in given:
        if name not in names:
            call = call if call.endswith(")") else f"{call}()"
            near = difflib.get_close_matches(name, names, cutoff=0.75)
            meant = "timeout" if _TIME.search(name) and not near and "timeout" in names else name
            raise TypeError(f"{call} has no argument {name!r}; {did_you_mean(meant, names)}")


def describe(description: str | Callable[..., Any] | None) -> str:
    """Return a description in words: the text itself, or the source of a function.

    Args:
        description: The task in words; or the objective, whose source (with its docstring) the
            model is then shown. ``None`` for no description.

    Raises:
        ValueError: It is neither, or its source cannot be had.
    """
    if description is None or isinstance(description, str):
        return description or ""
    if not callable(description):
        raise ValueError(
            f"description={short(description)}: expected a string, or the objective function, "
            "whose source the model is then shown"
        )
    try:
        source = textwrap.dedent(inspect.getsource(description)).strip()
    except (OSError, TypeError, SyntaxError) as error:
        raise ValueError(
            f"description={function_name(description, 'a lambda')}: its source cannot be read "
            f"({error}). Describe the task in words, or define the function in a file"
        ) from error
    return f"f is computed by this Python code:\n\n{source}"


def numbers_in(value: Any) -> int:
    """Return how many numbers a tuple, a list or an array with one axis has; 0 for others."""
    items = value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(items, (tuple, list)):
        return 0
    return len(items) if all(finite(item) is not None for item in items) else 0
