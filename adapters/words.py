"""What adapters tell the model of the user's objective, and the user of the model's failures."""

from __future__ import annotations

import functools
import inspect
import json
import math
import sys
import textwrap
import warnings
from collections.abc import Callable
from typing import Any

from llmopt.errors import FallbackWarning
from llmopt.text import clean, cut

MOST_TEXT = 20_000  # characters of one text out of a storage, or of a function's source
_LIBRARIES = ("llmopt", "optuna", "nevergrad", "threading", "concurrent", "contextlib")


def describe(description: str | Callable[..., Any]) -> str:
    """Return a description in words: the text itself, or the source of a function.

    Args:
        description: The task in words; or the objective, whose source (with its docstring)
            the model is then shown. A lambda, a ``functools.partial``, a method or an object
            with ``__call__`` may be given. Of bound arguments the names are shown, never
            the values.

    Raises:
        ValueError: It is neither, or its source cannot be had.
    """
    if isinstance(description, str):
        return description
    if not callable(description):
        raise ValueError(
            f"description is a {type(description).__name__}: expected a text, or the objective "
            "function, whose source the model is then shown"
        )
    function: Any = description
    bound: list[str] = []
    while isinstance(function, functools.partial):
        positional = list(_parameter_names(function.func))[: len(function.args)]
        bound = [*positional, *function.keywords, *bound]
        function = function.func
    if not (inspect.isroutine(function) or inspect.isclass(function)):
        function = type(function)  # an object with __call__: all of its class
    try:
        source = textwrap.dedent(inspect.getsource(function)).strip()
    except (OSError, TypeError, SyntaxError) as error:
        name = getattr(function, "__qualname__", type(function).__name__)
        raise ValueError(
            f"description={name}: its source cannot be read ({error}). Describe the task in "
            "words, or define the function in a file"
        ) from error
    if len(source) > MOST_TEXT:
        raise ValueError(
            f"description={function.__qualname__}: its source has {len(source)} characters, "
            f"expected at most {MOST_TEXT}. Describe the task in words"
        )
    given = f"\n(given beforehand: {', '.join(dict.fromkeys(bound))})" if bound else ""
    return f"f is computed by this Python code:\n\n{source}{given}"


def _parameter_names(function: Any) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()


def text_of(value: Any, most: int = MOST_TEXT) -> str:
    """Return what a storage holds as text, at most `most` characters of it; ``""`` for nothing.

    A storage may hold anything; what has no JSON form counts as nothing, and what fits into no
    prompt or file is written out.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        try:
            value = json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            return ""
    return cut(clean(value), most)


def number_of(value: Any) -> float | None:
    """Return what a storage holds as a finite number, or ``None`` if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def amount_of(value: Any) -> float:
    """Return what a storage holds as a finite number of at least 0; else 0."""
    return max(number_of(value) or 0.0, 0.0)


def warn(text: str) -> None:
    """Warn of a fallback at the line of the user's code that is being run."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _is_library(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, FallbackWarning, stacklevel=level)


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES
