"""Warnings at the line of the user's code."""

from __future__ import annotations

import sys
import warnings

from llmopt.errors import FallbackWarning

_LIBRARIES = ("llmopt", "optuna", "nevergrad", "threading", "concurrent", "contextlib")


def warn(text: str) -> None:
    """Warn of a fallback at the line of the user's code that is being run."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _is_library(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, FallbackWarning, stacklevel=level)


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES
