"""Lines of the report on episodes: number formats, and fitting lines into a character budget."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Topic(NamedTuple):
    """A subject of the report: a head, and items; `fit` may drop the last ones."""

    head: str
    items: Sequence[str]
    shorter: Sequence[Topic] = ()  # shorter forms, for less room


def fit(lines: Iterable[Topic], most: float) -> str:
    """Join lines, the most important first; drop a line's last items if room is short.

    Uses a line's first form that leaves room for all later lines, or takes a third of the room.
    """
    text, left = "", list(lines)
    while left:
        given, *left = left
        room = most - len(text) - bool(text)
        allowed = max(room * 2 / 3, room - sum(map(_length, left)))
        forms = (given, *given.shorter)
        head, items, _ = next((f for f in forms if _length(f) <= allowed), forms[-1])
        line, shown = head, 0
        for item in items:
            more = f"{'; ' if shown else ' ' if head else ''}{item}"
            reserve = 1 if shown + 1 == len(items) else 4
            if len(line) + len(more) + reserve > room:
                break
            line, shown = line + more, shown + 1
        if shown:
            line += "." if shown == len(items) else "; …"
            text += ("\n" if text else "") + line
    return text


def _length(line: Topic) -> int:
    return len(line.head) + sum(len(item) + 2 for item in line.items) + 1


def short(number: Any) -> str:
    """Return a number with three significant digits."""
    value = float(number)
    if abs(value) < 1e-6:
        return "0"
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def scaled(number: Any, scale: float, *, near: bool = False) -> str:
    """Return a number with the decimals that `scale` needs; with `near`, at least two digits."""
    value = float(number)
    if not 1e-9 < scale < 1e3 or not math.isfinite(value):
        return short(number)
    if abs(value) < 1e-3 * scale:
        return "0"
    places = 2 - math.floor(math.log10(scale))
    own = 1 - math.floor(math.log10(abs(value))) if near else 0
    text = f"{value:.{max(0, places, own)}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "") else text


def figure(number: Any) -> str:
    """Return an episode's return with five digits: the best ones differ late."""
    value = float(number)
    return "0" if abs(value) < 1e-9 else f"{value:.5g}"


def span(values: Sequence[float]) -> str:
    """Return the minimum and the maximum of sorted values."""
    low, high = short(values[0]), short(values[-1])
    return low if low == high else f"{low} to {high}"


def digits(values: Sequence[float]) -> list[str]:
    """Return numbers with four digits, or five if they lie close together."""
    close = len(values) > 0 and np.ptp(values) < 0.01 * np.abs(values).max()
    return [figure(v) if close else ("0" if abs(v) < 1e-9 else f"{v:.4g}") for v in values]


def alike(values: np.ndarray) -> list[str]:
    """Return numbers with equally many decimals: three significant digits of the largest."""
    scale = float(np.abs(values).max())
    return [f"{v:.0f}" if scale >= 100 else scaled(v, scale) for v in values]


def counted(number: int, noun: str) -> str:
    """Return a count with its noun: "1 step", "2 steps"."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
