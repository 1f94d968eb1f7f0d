"""Axes: the range that shows a search, and the numbers along it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from llmopt.history import Direction

SIZE = 1000
"""Width and height of a drawing, in its own units; the page stretches it."""

_LARGEST = 1e300
_FENCE = 5.0  # times the quartiles' distance, beyond which a bad value is an outlier
_LEAST_CORE = 5
_WORTH = 2.0  # how much longer outliers must make an axis to be moved to its edge
_DECADES = 3.0  # ratio of positive values from which an axis is logarithmic
_KEPT_RATIO = 100.0  # of the ends of a Pareto front, above which its axis is logarithmic
_MOST_TICKS = 40
_FACTORS = ((1, 3), (1, 2, 5), (1, 2, 3, 5, 7))  # of powers of ten, on a short logarithmic axis


def number_text(value: float, digits: int = 5) -> str:
    """Return a number as short as it can be read."""
    text = f"{value:.{digits}g}"
    if "e" in text:
        mantissa, exponent = text.split("e")
        text = f"{mantissa}e{int(exponent)}"
    return text.replace("-", "−")


@dataclass(frozen=True)
class Scale:
    """A range of numbers, mapped to `SIZE` units."""

    low: float
    high: float
    log: bool = False
    whole: bool = False  # whether only whole numbers have a text
    choices: tuple[str, ...] = ()  # texts at 0, 1, ... in place of numbers

    @cached_property
    def _ends(self) -> tuple[float, float]:
        if self.choices:
            return -0.5, len(self.choices) - 0.5
        return (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)

    def share(self, value: float) -> float:
        """Return where a value is, from 0 to 1; a value beyond an end is moved to it."""
        low, high = self._ends
        if self.log:
            value = math.log(value) if value > 0 else low
        inside = min(max(value, low), high)
        return (inside / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5

    def held(self, value: float) -> float:
        """Return a value, or the end of the axis that it lies beyond."""
        return min(max(value, self.low), self.high)

    def side(self, value: float) -> int:
        """Return -1 or 1 for a value beyond the lower or the upper end of the axis, else 0."""
        return (value > self.high) - (value < self.low)

    def place(self, value: float) -> int:
        """Return where a value is, in units of the drawing."""
        return round(self.share(value) * SIZE)

    def ticks(self, count: int = 5) -> list[tuple[float, str]]:
        """Return the shares of the axis that have a text, and the texts."""
        if self.choices:
            step = -(-len(self.choices) // 12)
            shown = range(0, len(self.choices), step)
            return [(self.share(i), self.choices[i]) for i in shown]
        if self.low == self.high:
            return [(0.5, number_text(self.low))]
        return [(self.share(v), number_text(v)) for v in self.tick_values(count)]

    def tick_values(self, count: int = 5) -> list[float]:
        """Return the round numbers that have a text: about `count`, and at least 3 if there are."""
        values = self._log_ticks(count) if self.log else []
        return values or _linear_ticks(self.low, self.high, count, 1.0 if self.whole else 0.0)

    def _log_ticks(self, count: int) -> list[float]:
        """Return powers of ten, or their multiples if they are fewer than 3; else nothing."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        most = max(1, -(-(last - first) // count))
        choices = [self._powers(range(first, last + 1, step), (1,)) for step in range(most, 0, -1)]
        choices += [self._powers(range(first, last + 1), factors) for factors in _FACTORS]
        return next((found for found in choices if len(found) > 2), [])

    def _powers(self, exponents: Iterable[int], factors: Sequence[int]) -> list[float]:
        """Return the powers of ten, and their multiples, that are on the axis."""
        found = [float(f"{m}e{e}") for e in exponents if abs(e) < 300 for m in factors]
        return [v for v in found if self.low * (1 - 1e-9) <= v <= self.high * (1 + 1e-9)]


def beyond(x: Scale | None, across: float, y: Scale, up: float) -> str:
    """Return the edge of a chart that a result lies beyond: up, down, left, right or ``""``.

    Results are never beyond an axis of trials or parameters: `x` is ``None`` there.
    """
    edge = ("", "up", "down")[y.side(up)]
    return edge or ("", "right", "left")[x.side(across) if x is not None else 0]


def _linear_ticks(low: float, high: float, count: int, least: float = 0.0) -> list[float]:
    """Return round numbers of an axis, at least `least` apart."""
    raw = (high / 2 - low / 2) / count * 2
    if not (math.isfinite(raw) and raw > 0):
        return [low, high]
    size = 10.0 ** math.floor(math.log10(raw))
    step = next((m * size for m in (1, 2, 5, 10) if 0.75 * raw <= m * size), raw)
    step = max(step, least)
    first = math.ceil(low / step - 1e-9)
    found = [(first + i) * step for i in range(_MOST_TICKS)]
    found = [0.0 if abs(v) < step * 1e-9 else v for v in found if v <= high + step * 1e-9]
    return found or [low, high]


def finite(values: Iterable[float | None]) -> np.ndarray:
    """Return the numbers among some values, moved into the range that an axis can show."""
    found = np.array([v for v in values if v is not None], dtype=float)
    inside: np.ndarray = np.clip(found[~np.isnan(found)], -_LARGEST, _LARGEST)
    return inside


def robust_scale(
    values: Sequence[float | None],
    direction: Direction,
    core: Sequence[float | None] = (),
    padding: float = 0.06,
    kept: Sequence[float | None] = (),
) -> Scale:
    """Return an axis for the results of a search, which a few bad ones do not flatten.

    Good results are all inside. A bad one is outside if it lies more than five times the
    distance of the quartiles beyond them and makes the axis more than twice as long. Positive
    results that are to be small and spread over three decades are on a logarithmic axis.

    Args:
        values: All results.
        direction: Which of them are good.
        core: The results whose quartiles count, such as those behind the warm-up; fewer than five
            count for nothing, and all results do.
        padding: Room at both ends, as a share of the axis.
        kept: Results that are inside in any case. If they are positive and spread over two decades,
            the axis is logarithmic.
    """
    found = finite(values)
    if not found.size:
        return Scale(0.0, 1.0)
    inner = finite(core)
    inner = inner if inner.size >= _LEAST_CORE else found
    if direction == "minimize" and found.min() > 0:
        low, middle = float(found.min()), float(np.quantile(found, 0.75))
        if math.log10(middle / low) >= _DECADES:
            room = (float(found.max()) / low) ** padding
            return Scale(low / room, min(float(found.max()) * room, 1e305), log=True)
    inside = finite(kept)
    if inside.size and found.min() > 0 and inside.max() >= _KEPT_RATIO * inside.min():
        room = float(found.max() / found.min()) ** padding
        return Scale(float(found.min()) / room, min(float(found.max()) * room, 1e305), log=True)
    low, high = _without_outliers(found, inner, direction)
    low, high = min([low, *inside.tolist()]), max([high, *inside.tolist()])
    room = (high / 2 - low / 2) * 2 * padding or max(abs(high) * 0.1, 0.5)
    return Scale(low - room, high + room)


def _without_outliers(
    values: np.ndarray, core: np.ndarray, direction: Direction
) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    first, third = (float(q) for q in np.quantile(core, [0.25, 0.75]))
    if first == third:
        first, third = (float(q) for q in np.quantile(np.unique(core), [0.25, 0.75]))
    reach = _FENCE * (third - first)
    if direction == "maximize":
        inside = values[values >= first - reach]
    else:
        inside = values[values <= third + reach]
    near, far = float(inside.min()), float(inside.max())
    worth = far > near and (high / 2 - low / 2) > _WORTH * (far / 2 - near / 2)
    return (near, far) if worth else (low, high)
