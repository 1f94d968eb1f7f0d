"""What a storage holds, as text and numbers; and warnings at the line of the user's code."""

from __future__ import annotations

import json
import math
import sys
import warnings
from typing import Any

from llmopt.errors import FallbackWarning
from llmopt.text import clean, cut

MOST_TEXT = 20_000  # characters of one text out of a storage
_LIBRARIES = ("llmopt", "optuna", "nevergrad", "threading", "concurrent", "contextlib")


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
