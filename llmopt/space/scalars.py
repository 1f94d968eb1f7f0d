"""What one dimension of a space does with a single value. A space loops over its dimensions.

`scalar_for` gives each named dimension a `Scalar`, with these methods:

- ``check`` and ``clip`` return a value in exact form; what does not belong to the dimension
  is refused by one and, if a number, moved by the other. ``round`` also moves it onto what
  ``format`` can show, and ``parse`` reads that text.
- ``draw`` and ``normal`` turn random numbers into values, ``decode`` a point of [0, 1].
- ``key`` identifies a value. ``code`` is the number that stands for it, ``restore`` reads it.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any, ClassVar, TypeAlias

import numpy as np

from llmopt.errors import ParameterError, did_you_mean
from llmopt.space.dimensions import (
    Categorical,
    Dimension,
    Float,
    Int,
    Value,
    as_number,
    count_steps,
    decimal_places,
    grid_value,
    identity,
    stable_repr,
)

# More decimals than these say nothing about a float64.
MAX_DECIMALS = 15
# Prompts show at least this many significant digits where they do not show fixed decimals.
_MIN_DIGITS = 3
# 17 significant digits tell any two float64 apart.
_MAX_DIGITS = 17
# Within these magnitudes fixed decimals are the shorter way to write a number.
_FIXED_BELOW = 1e7
_FIXED_ABOVE = 1e-4
# Text that stands for a string without quotes, and that is nothing else.
_PLAIN_WORD = re.compile(r"[^\W\d][\w.+/-]*(?: [\w.+/-]+)*")
_RESERVED = {"none", "null", "true", "false", "nan", "inf", "infinity"}


def _fold(text: str) -> str:
    """Text without case, quotes and white space, for a forgiving comparison."""
    return re.sub(r"[\s'\"`]+", "", text).casefold()


def _plain(text: str) -> str:
    """Text as Python writes numbers; nothing where only Python would take it for one."""
    return "" if "_" in text else text.strip().replace("\N{MINUS SIGN}", "-")


def _read_float(text: str) -> float | None:
    """Read a finite number, ``None`` if the text is not one."""
    try:
        number = float(_plain(text))
    except ValueError:
        return None
    return number + 0.0 if math.isfinite(number) else None  # no negative zero


def _read_number(text: str) -> float | int | None:
    """Read a finite number as `_read_float` does. Integers stay exact, ``3.0`` becomes one."""
    try:
        return int(_plain(text))
    except ValueError:
        number = _read_float(text)
        return int(number) if number is not None and number.is_integer() else number


def _unreadable(name: str, text: str, expected: str) -> ParameterError:
    return ParameterError(f"`{name}`: cannot read {text.strip()[:80]!r}; expected {expected}.")


class _Number(ABC):
    """What `_Real` and `_Whole` share: bounds, a scale, and a grid where there are steps."""

    numeric = True
    noun: ClassVar[str]
    exact: ClassVar[bool]  # whether values are Python integers, of any size
    count: float
    decimals: int | None = None
    narrow: np.dtype[Any] | None = None

    def __init__(self, name: str, dimension: Float | Int) -> None:
        self.name = name
        self.low, self.high, self.log = dimension.low, dimension.high, dimension.log
        self.step = dimension.step or 0
        self.stepped = bool(self.step) and not self.log
        self.offset = math.log(self.low) if self.log else float(self.low)
        self.span = math.log(self.high) - self.offset if self.log else float(self.high - self.low)

    def expected(self) -> str:
        return f"{self.noun} in [{self.low!r}, {self.high!r}]"

    def outside(self, number: float) -> ParameterError:
        return ParameterError(f"`{self.name}`={number!r} is outside [{self.low!r}, {self.high!r}]")

    def off_grid(self, number: float, nearest: float) -> ParameterError:
        return ParameterError(
            f"`{self.name}`={number!r} is not a whole number of steps of {self.step!r} above "
            f"{self.low!r}; the nearest valid value is {nearest!r}."
        )

    def number(self, value: Value) -> float | int:
        number = as_number(value)
        if number is None:
            raise ParameterError(
                f"`{self.name}`={value!r} is of type {type(value).__name__}; "
                f"expected {self.expected()}."
            )
        if number != number:
            raise ParameterError(f"`{self.name}`=nan; expected {self.expected()}.")
        return number

    def clip(self, value: Value) -> Value:
        number = self.number(value)
        if number <= self.low:
            return self.low
        if number >= self.high:
            return self.high
        return self.nearest(number)

    round = clip

    @abstractmethod
    def nearest(self, number: float | int) -> Value:
        """The valid value nearest to a number between the bounds."""

    @abstractmethod
    def grid(self, k: int) -> Value:
        """The value `k` steps above `low`."""

    def draw(self, u: float) -> Value:
        return self.grid(int(u * self.count)) if self.stepped else self.decode(u)

    def decode(self, u: float) -> Value:
        if u >= 1.0:
            return self.high
        if self.stepped:
            return self.grid(math.floor(u * (self.count - 1) + 0.5))
        value = self.offset + u * self.span
        return self.clip(math.exp(value) if self.log else value)

    def normal(self, u: float, z: float) -> Value:
        return self.clip(z) if self.low <= 0 <= self.high else self.draw(u)

    def code(self, value: Value) -> Value:
        return value

    key = code

    def parse(self, text: str) -> float | int:
        number = _read_number(text) if self.exact else _read_float(text)
        if number is None:
            raise _unreadable(self.name, text, self.expected())
        return number


class _Real(_Number):
    """A `Float` in a space: its name, the type of the array it goes into, its decimals."""

    noun = "a number"
    exact = False

    def __init__(
        self, name: str, dimension: Float, dtype: str | None, decimals: int | None
    ) -> None:
        super().__init__(name, dimension)
        kind = None if dtype is None else np.dtype(dtype)
        # Narrow floats: what is proposed must be what the array can hold, or a point that
        # comes back from the user would not be recognized.
        self.narrow = kind if kind is not None and kind.itemsize < 8 else None
        # Values that went through float32 (a tensor, say) are still taken as what they stood for.
        eps = float(np.finfo(np.float32 if self.narrow is None else self.narrow).eps)
        span = self.high - self.low
        reach = max(abs(self.low), abs(self.high))
        slack = min(eps * reach, 0.01 * span) if span > 0 else eps * reach
        # On a log scale `low` may be far below the rounding error of `high`.
        self.least = self.low - (min(slack, eps * self.low) if self.log else slack)
        self.most = self.high + slack
        self.count = math.inf if span > 0 else 1
        self.off = math.inf
        if self.step:
            self.count = count_steps(self.low, self.high, self.step) + 1
            self.places = max(decimal_places(self.low), decimal_places(self.step))
            if span > 0:
                self.off = min(eps * reach, 0.01 * self.step)
        self.decimals, self.digits = _resolution(dimension, decimals)

    def check(self, value: Value) -> float:
        number = self.number(value)
        if not self.least <= number <= self.most:
            raise self.outside(number)
        nearest: float = self.clip(number)
        if abs(nearest - number) > self.off:
            raise self.off_grid(number, nearest)
        return nearest

    restore = check

    def nearest(self, number: float | int) -> float:
        if self.step:
            return self.grid(round((number - self.low) / self.step))
        held: float = self.key(number)
        return held + 0.0  # no negative zero

    def grid(self, k: int) -> float:
        return grid_value(self.low, self.high, self.step, self.places, k)

    def round(self, value: Value) -> Value:
        inside = self.clip(value)
        if self.step or self.low == self.high:
            return inside
        shown = float(self.format(inside))
        if not self.least <= shown <= self.most:
            # The nearest number that can be shown lies beyond a bound: take its neighbour.
            if self.decimals is None:
                unit = 10.0 ** (math.floor(math.log10(abs(inside))) - self.digits + 1)
            else:
                unit = 10.0**-self.decimals
            shown = float(self.format(shown + (unit if shown < self.low else -unit)))
            if not self.least <= shown <= self.most:
                return inside
        return self.clip(shown)

    def key(self, value: Value) -> Value:
        return value if self.narrow is None else float(self.narrow.type(value))

    def format(self, value: Value) -> str:
        if self.decimals is not None:
            text = f"{value:.{self.decimals}f}"
        else:
            text = f"{value:.{self.digits}g}"
            if "e" in text and 1 <= abs(value) < _FIXED_BELOW:
                text = f"{float(text):.0f}"
        return text[1:] if text[0] == "-" and float(text) == 0 else text


def _resolution(dimension: Float, decimals: int | None) -> tuple[int | None, int]:
    """Decimals to show, or ``None`` and the significant digits to show in their place."""
    low, high, step = dimension.low, dimension.high, dimension.step
    span = high - low
    reach = max(abs(low), abs(high))
    compact = _FIXED_ABOVE <= reach < _FIXED_BELOW
    if span == 0:
        if dimension.log or not (compact or reach == 0):
            return None, _MIN_DIGITS
        return max(min(decimal_places(low), 6), decimals or 0), 0
    # A hundredth of the range, or of a step, must be visible.
    if dimension.log:
        ratio = math.expm1((math.log(high) - math.log(low)) / 100)
        digits = math.ceil(-math.log10(ratio)) + 1 if ratio > 0 else _MAX_DIGITS
        return None, min(max(_MIN_DIGITS, digits), _MAX_DIGITS)
    unit = math.log10(span if step is None else step) - 2
    digits = math.ceil(math.log10(reach) - unit - 1e-6) + 1
    digits = min(max(_MIN_DIGITS, digits), _MAX_DIGITS)
    if reach >= 10**MAX_DECIMALS:
        return None, digits  # a float that large has no decimals
    needed = max(0, math.ceil(-unit - 1e-6))
    if step is not None:
        # 0.25 is shown with two decimals; 1/3 with as many as tell the values apart.
        needed = min(needed, max(decimal_places(low), decimal_places(step)))
        return (max(needed, decimals or 0), 0) if needed <= MAX_DECIMALS else (None, digits)
    if decimals is None:
        return (needed, 0) if compact else (None, digits)
    # With fewer than two numbers to show, nothing could be searched.
    for shown in range(decimals, MAX_DECIMALS + 1):
        scale = 10.0**shown
        if math.floor(high * scale + 1e-9) - math.ceil(low * scale - 1e-9) >= 1:
            return shown, 0
    return None, digits


class _Whole(_Number):
    """An `Int` in a space."""

    noun = "an integer"
    exact = True
    low: int
    high: int
    step: int

    def __init__(self, name: str, dimension: Int) -> None:
        super().__init__(name, dimension)
        self.count = (self.high - self.low) // self.step + 1

    def check(self, value: Value) -> int:
        number = self.number(value)
        if not self.low <= number <= self.high:
            raise self.outside(number)
        whole = int(number)
        if whole != number:
            raise ParameterError(f"`{self.name}`={number!r} is not an integer.")
        if (whole - self.low) % self.step:
            raise self.off_grid(whole, self.clip(whole))
        return whole

    restore = check

    def nearest(self, number: float | int) -> int:
        if isinstance(number, int):
            below, rest = divmod(number - self.low, self.step)
            return self.grid(below + (2 * rest >= self.step))
        if self.step == 1:
            return round(number)
        return self.grid(round((number - self.low) / self.step))

    def grid(self, k: int) -> int:
        return min(self.low + k * self.step, self.high)

    def draw(self, u: float) -> Value:
        if not self.log:
            return super().draw(u)
        # Each integer owns the interval of half a unit around it.
        bottom, top = math.log(self.low - 0.5), math.log(self.high + 0.5)
        return self.clip(math.exp(bottom + u * (top - bottom)))

    def format(self, value: Value) -> str:
        return str(int(value))


class _Choice:
    """A `Categorical` in a space."""

    numeric = False
    decimals = None
    narrow = None
    log = False
    offset = 0.0

    def __init__(self, name: str, dimension: Categorical) -> None:
        self.name = name
        self.choices = dimension.choices
        self.count = len(self.choices)
        self.span = float(self.count - 1)
        self.index = {identity(c): i for i, c in enumerate(self.choices)}
        self.labels = _labels(self.choices)

    def find(self, value: Value) -> int:
        """The index of a choice."""
        try:
            found = self.index.get(identity(value))
        except TypeError:
            found = None
        if found is not None:
            return found
        near = [i for i, choice in enumerate(self.choices) if _stands_for(value, choice)]
        if len(near) != 1:
            label = value if isinstance(value, str) else stable_repr(value)
            raise ParameterError(
                f"`{self.name}`={value!r} is not one of its choices; "
                f"{did_you_mean(label, self.labels)}"
            )
        return near[0]

    key = code = find

    def restore(self, code: object) -> Hashable:
        if type(code) is not int or not 0 <= code < self.count:
            raise ParameterError(
                f"`{self.name}`: stored choice {code!r}; expected an index from 0 to "
                f"{self.count - 1}."
            )
        return self.choices[code]

    def check(self, value: Value) -> Hashable:
        return self.choices[self.find(value)]

    clip = check
    round = check

    def draw(self, u: float) -> Hashable:
        return self.choices[int(u * self.count)]

    def normal(self, u: float, z: float) -> Hashable:
        return self.draw(u)

    def decode(self, u: float) -> Hashable:
        return self.choices[math.floor(u * self.span + 0.5)]

    def format(self, value: Value) -> str:
        return self.labels[self.find(value)]

    def parse(self, text: str) -> Hashable:
        text = text.strip()
        if text in self.labels:
            return self.choices[self.labels.index(text)]
        if text in self.choices:
            return self.check(text)
        folded = _fold(text)
        near = [i for i, label in enumerate(self.labels) if _fold(label) == folded]
        if not near:
            number = _read_number(text)
            near = [
                i
                for i, choice in enumerate(self.choices)
                if (choice is None and folded == "null")
                or (number is not None and as_number(choice) == number)
            ]
        if len(near) != 1:
            expected = f"one of its choices; {did_you_mean(text, self.labels)}"
            raise _unreadable(self.name, text, expected)
        return self.choices[near[0]]


def _stands_for(value: Value, choice: Hashable) -> bool:
    """Whether a value of another type means this choice: 1 for 1.0, a float32 0.1 for 0.1."""
    if isinstance(value, bool | np.bool_) or isinstance(choice, bool):
        return False
    if isinstance(value, np.floating) and isinstance(choice, float):
        return bool(value == type(value)(choice))
    try:
        return bool(choice == value)
    except (TypeError, ValueError):
        return False


def _labels(choices: tuple[Hashable, ...]) -> tuple[str, ...]:
    """Text for each choice, all different: words as they are, everything else by `repr`."""
    labels = [
        choice
        if type(choice) is str
        and _PLAIN_WORD.fullmatch(choice)
        and choice.casefold() not in _RESERVED
        else stable_repr(choice)
        for choice in choices
    ]
    if len(set(labels)) < len(labels):
        labels = [stable_repr(choice) for choice in choices]
    taken: set[str] = set()
    for i, label in enumerate(labels):
        n = 1
        while labels[i] in taken:
            n += 1
            labels[i] = f"{label}#{n}"
        taken.add(labels[i])
    return tuple(labels)


Scalar: TypeAlias = _Real | _Whole | _Choice


def scalar_for(name: str, dimension: Dimension, dtype: str | None, decimals: int | None) -> Scalar:
    """What a dimension can do under its name.

    Args:
        name: Name of the dimension, for error messages.
        dimension: The dimension.
        dtype: Type of the array that its values go into, if any.
        decimals: Decimals to show for a linear `Float`; ``None`` for as many as it needs.
    """
    if isinstance(dimension, Float):
        return _Real(name, dimension, dtype, decimals)
    if isinstance(dimension, Int):
        return _Whole(name, dimension)
    return _Choice(name, dimension)
