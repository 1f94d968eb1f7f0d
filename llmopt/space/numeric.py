"""Numeric dimensions: `Float` and `Int`, and the base class of all dimensions."""

from __future__ import annotations

import copy
import math
import sys
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeVar

import numpy as np

from llmopt.errors import ParameterError, SpaceError, warn_user
from llmopt.space.values import Value, as_number, decimal_places
from llmopt.space.when import read_when
from llmopt.util.numbers import read_number, without_unit
from llmopt.util.text import nfc, short, written

_INT_LIMIT = 2**64  # integers are encoded as floats and stored as NumPy integers
_STEP_LIMIT = 10**12  # with more steps, float64 cannot tell rounding errors from steps
MAX_DECIMALS = 15  # more say nothing about a float64
_MIN_DIGITS, _MAX_DIGITS = 3, 17  # significant digits shown; 17 tell any two float64 apart
_FIXED = 1e-4, 1e7  # magnitudes for which fixed decimals are the shorter way to write a number
_LONGEST_UNIT = 40  # characters
_ON_GRID = 0.01  # share of a step, or of the range, that a rounding error may have at most

_Bound = TypeVar("_Bound", bound="BaseDimension")


def freeze(dimension: object, **fields: object) -> None:
    """Set the attributes of an immutable dimension."""
    for name, value in fields.items():
        object.__setattr__(dimension, name, value)


class BaseDimension:
    """A dimension under its name in a space.

    Attributes:
        count: Number of values; infinite for a continuous dimension.
        log: Whether the scale is logarithmic.
        offset: Its lower end on that scale.
        span: Its extent on that scale.
        decimals: Decimals shown; ``None`` for none, or for significant digits instead.
        when: The condition (`When`) under which a point has the parameter; ``None`` for always.
    """

    count: float
    log: bool
    offset: float
    span: float
    decimals: int | None
    when: Any
    _name: str

    def bound(self: _Bound, name: str, dtype: str | None, decimals: int | None) -> _Bound:
        """Return this dimension under a name, its values of a type, with decimals to show."""
        made = copy.copy(self)
        freeze(made, _name=name)
        made._fit(dtype, decimals)
        return made

    def under(self: _Bound, when: Any) -> _Bound:
        """Return this dimension with another condition; ``None`` for none."""
        made = copy.copy(self)
        freeze(made, when=when)
        return made

    def _fit(self, dtype: str | None, decimals: int | None) -> None:
        """Set what depends on the type and on the decimals."""

    def _unreadable(self, text: str, expected: str) -> ParameterError:
        got = repr(text.strip()[:80])
        return ParameterError(f"`{self._name}`: cannot read {got}; expected {expected}.")


@dataclass(frozen=True, repr=False)
class _Number(BaseDimension):
    """Bounds, a scale, and a grid if there are steps."""

    low: Any
    high: Any
    _: KW_ONLY
    log: bool = False
    step: Any = None
    when: Any = None
    unit: str = ""
    _places: int = field(default=0, init=False, compare=False)  # decimals of its steps
    _digits: int = field(default=0, init=False, compare=False)  # significant digits shown
    narrow: Any = field(default=None, init=False, compare=False)  # dtype, if below float64
    _range: Any = field(default=None, init=False, compare=False)  # minimum, maximum of its type

    def __post_init__(self) -> None:
        kind, low, high = type(self).__name__, self._read("low"), self._read("high")
        step = None if self.step is None else self._read("step")
        trouble = ""
        if self.log not in (True, False):
            trouble = f"log={self.log!r}; expected True or False."
        elif low > high:
            trouble = f"low={low!r} is above high={high!r}; swap them."
        elif self.log and low <= 0:
            trouble = f"log=True needs low > 0, got low={low!r}; raise it, or leave log out."
        elif step is not None and (step <= 0 or 0 < high - low < step):
            trouble = f"step={step!r}: give a step above 0, and no larger than the range."
        elif self.log and step is not None and not (isinstance(self, Int) and step == 1):
            trouble = f"log=True and step={step!r} do not go together; leave one of them out."
        elif isinstance(self, Float) and not math.isfinite(high - low):
            trouble = "high - low is too large for a float; give bounds that are closer together."
        elif isinstance(self, Float) and step and (high - low) / step > _STEP_LIMIT:
            trouble = f"step={step!r} is too small to tell its values apart; leave the step out."
        if trouble:
            raise SpaceError(f"{kind}({low!r}, {high!r}): {trouble}")
        step = 1 if step is None and isinstance(self, Int) else step
        freeze(self, low=low, high=high, log=bool(self.log), step=step, when=read_when(self.when))
        freeze(self, unit=_read_unit(self.unit))
        count: float = math.inf if high > low else 1
        if step:
            if isinstance(self, Float):
                freeze(self, _places=max(decimal_places(low), decimal_places(step)))
                count = 1 + math.floor((high - low) / step * (1 + 1e-15) + 1e-9)
            else:
                count = 1 + (high - low) // step
            freeze(self, high=self.value(int(count) - 1))
            if high - self.high > 1e-9 * abs(high):
                warn_user(
                    f"{kind}({low!r}, {high!r}, step={step!r}): high is rounded down to "
                    f"{self.high!r}, a whole number of steps above low",
                    UserWarning,
                )
        offset = math.log(low) if self.log else float(low)
        span = math.log(self.high) - offset if self.log else float(self.high - low)
        freeze(self, _name="value", count=count, offset=offset, span=span, decimals=None)
        self._fit(None, None)

    def _read(self, argument: str) -> Any:
        """Return a bound, or the step, as a number of the dimension's type."""
        value, whole = getattr(self, argument), isinstance(self, Int)
        number = as_number(value)
        most = _INT_LIMIT if whole else sys.float_info.max
        if number is None or not -most <= number <= most or (whole and number % 1):
            noun = "an integer of at most 2**64; give one, or use Float"
            noun = noun if whole else "a finite number; give one"
            raise SpaceError(f"{type(self).__name__}: {argument}={short(value)} is not {noun}.")
        return int(number) if whole else float(number) + 0.0  # no negative zero

    def __repr__(self) -> str:
        log = ", log=True" if self.log else ""
        default = 1 if isinstance(self, Int) else None
        step = "" if self.step == default else f", step={self.step!r}"
        when = "" if self.when is None else f", when={self.when!r}"
        unit = f", unit={self.unit!r}" if self.unit else ""
        return f"{type(self).__name__}({self.low!r}, {self.high!r}{log}{step}{when}{unit})"

    def _expected(self) -> str:
        noun = "an integer" if isinstance(self, Int) else "a number"
        return f"{noun} in [{self.low!r}, {self.high!r}]" + f" {self.unit}" * bool(self.unit)

    def _number(self, value: Value) -> float | int | None:
        """Return a value as a number, also of a text if there is a unit; ``None`` for none."""
        return self.parse(value) if self.unit and isinstance(value, str) else as_number(value)

    def check(self, value: Value, measured: bool = False) -> Any:
        """Return a value in exact form, or raise `ParameterError`.

        A value that misses a bound or a step by a rounding error of float32 is moved onto it. One
        that was `measured` may lie between two steps and beyond a bound.
        """
        nearest, number = self.clip(value), self._number(value) or 0
        inside = self.low <= number <= self.high
        if nearest == number or (inside and self.step is None):
            return nearest
        # On a log scale `low` may be far below the rounding error of `high`.
        size = abs(nearest) if self.log else max(abs(self.low), abs(self.high))
        error = float(np.finfo(self.narrow or np.float32).eps) * size
        if room := self.step or self.high - self.low:
            error = min(error, _ON_GRID * room)
        if isinstance(self, Float) and nearest - error <= number <= nearest + error:
            return nearest
        fits = self._range[0] <= number <= self._range[1] and not (self.log and number <= 0)
        if measured and fits and not (isinstance(self, Int) and number % 1):
            return self._held(number)
        what = f"is not a whole number of steps of {self.step!r} above {self.low!r}"
        if not inside:
            what = f"is outside [{self.low!r}, {self.high!r}]"
        elif isinstance(self, Int) and number != int(number):
            what = "is not an integer"
        got = repr(number).removesuffix(".0")
        raise ParameterError(f"`{self._name}`={got} {what}; the nearest valid value is {nearest!r}")

    def restore(self, code: Any) -> Any:
        """Return the number of a code, unchecked."""
        return code

    def clip(self, value: Value) -> Any:
        """Return the valid value nearest to a number."""
        number = self._number(value)
        if number is None or number != number:
            got = "nan" if number is not None else f"{value!r} is of type {type(value).__name__}"
            remedy = written(value) or "."
            raise ParameterError(f"`{self._name}`={got}; expected {self._expected()}{remedy}")
        if number <= self.low:
            return self.low
        return self.high if number >= self.high else self._nearest(number)

    def _held(self, number: float | int) -> Any:
        """Return a number as its type holds it."""
        if isinstance(self, Int):
            return int(number)
        held = number if self.narrow is None else self.narrow.type(number)
        return float(held) + 0.0  # no negative zero

    def _nearest(self, number: float | int) -> Any:
        """Return the valid value nearest to a number between the bounds."""
        if not self.step:
            return self._held(number)
        if isinstance(self, Int) and isinstance(number, int):  # exact beyond 2**53
            return self.value((2 * (number - self.low) + self.step) // (2 * self.step))
        if self.step == 1 and isinstance(self, Int):
            return round(number)
        return self.value(round((number - self.low) / self.step))

    def value(self, k: int) -> Any:
        """Return the value `k` steps above `low`, without the noise of sums (0.3, not 0.30…04)."""
        if isinstance(self, Int):
            return min(self.low + k * self.step, self.high)
        return min(round(self.low + k * (self.step or 0), self._places), self.high) + 0.0

    def place(self, value: Value) -> int:
        """Return how many steps above `low` a value is: the inverse of `value`."""
        steps: float = (value - self.low) / (self.step or 1)
        return round(steps)

    def draw(self, u: float) -> Any:
        """Return the value of a uniform number in [0, 1)."""
        if self.step and not self.log:
            return self.value(int(u * self.count))
        if isinstance(self, Float):
            return self.decode(u)
        # Each integer owns the interval of half a unit around it.
        bottom, top = math.log(self.low - 0.5), math.log(self.high + 0.5)
        return self.clip(math.exp(bottom + u * (top - bottom)))

    def decode(self, u: float) -> Any:
        """Return the value nearest to a place in [0, 1]."""
        if u >= 1.0:
            return self.high
        if self.step and not self.log:
            return self.value(math.floor(u * (self.count - 1) + 0.5))
        at = self.offset + u * self.span
        return self.clip(math.exp(at) if self.log else at)

    def code(self, value: Value) -> Value:
        """Return the numeric code of a value."""
        return value

    key = code

    def format(self, value: Value) -> str:
        """Return the text of a value."""
        if isinstance(self, Int):
            return str(int(value))
        if (self.step or not self.span) and self.clip(value) != value:
            text = f"{value:.9g}"
        elif self.decimals is not None:
            text = f"{value:.{self.decimals}f}"
        else:
            text = f"{value:.{self._digits}g}"
            if "e" in text and 1 <= abs(value) < _FIXED[1]:
                text = f"{float(text):.0f}"
        return text[1:] if text[0] == "-" and float(text) == 0 else text

    def parse(self, text: str) -> Any:
        """Read the text of a finite number, alone or with the unit."""
        number = read_number(text, whole=isinstance(self, Int), unit=self.unit)
        if number is None:
            value = without_unit(text, self.unit)
            raise self._unreadable(text, self._expected() + written(value) * ("," in value))
        return number


@dataclass(frozen=True, repr=False)
class Float(_Number):
    """A real number in a closed interval.

    Args:
        low: Smallest value.
        high: Largest value; equal to `low` for a fixed dimension. With a step, it is rounded down
            to a whole number of steps above `low`.
        log: Whether the scale is logarithmic; needs ``low > 0``.
        step: Distance between neighbouring values, counted from `low`; ``None`` for a continuous
            dimension. Not allowed with `log`.
        when: Condition under which a point has this parameter: ``{"optimizer": "sgd"}``. See
            `llmopt.space.when`.
        unit: Unit of the values, such as ``"°C"``, for prompts and reports. Texts with this
            unit, such as ``"80 °C"``, are read as numbers; spaces in it are ignored.

    Raises:
        SpaceError: A bound is not finite, `low` is above `high`, `log` or `step` does not fit the
            bounds, or `unit` is no short text or begins like a number.
    """

    low: float
    high: float

    def _fit(self, dtype: str | None, decimals: int | None) -> None:
        kind = None if dtype is None else np.dtype(dtype)
        # A proposal must be a number that the array can hold, or it would not be recognized later.
        narrow = kind if kind is not None and kind.itemsize < 8 else None
        decimals, digits = _resolution(self, decimals)
        most = float(np.finfo(narrow or np.float64).max)
        freeze(self, narrow=narrow, decimals=decimals, _digits=digits, _range=(-most, most))


@dataclass(frozen=True, repr=False)
class Int(_Number):
    """An integer in a closed interval; the arguments are those of `Float`, `step` is 1 by default.

    Raises:
        SpaceError: As for `Float`, or a bound is not an integer.
    """

    low: int
    high: int

    def _fit(self, dtype: str | None, decimals: int | None) -> None:
        ends = (-_INT_LIMIT, _INT_LIMIT)
        if dtype is not None and np.dtype(dtype).kind in "iu":
            ends = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        freeze(self, _range=ends)


def _read_unit(unit: Any) -> str:
    """Return a unit, or raise `SpaceError` if a number could be read otherwise with it."""
    if isinstance(unit, str) and unit == unit.strip()[:_LONGEST_UNIT] and unit.isprintable():
        plain = "".join(unit.split())
        exact = all(read_number(f"{n}{plain}", unit=unit) == n for n in (1, 10))
        if exact and not unit[:1].isdigit():
            return nfc(unit)
    raise SpaceError(
        f"unit={short(unit)}: expected a text of at most {_LONGEST_UNIT} characters, such as '°C', "
        "that does not begin like a number"
    )


def _resolution(dimension: Float, decimals: int | None) -> tuple[int | None, int]:
    """Return the decimals to show, or ``None`` and the significant digits to show instead.

    A hundredth of the range, or of a step, must be visible.
    """
    low, high, step = dimension.low, dimension.high, dimension.step
    span, reach = high - low, max(abs(low), abs(high))
    compact = _FIXED[0] <= reach < _FIXED[1]
    if span == 0:
        if dimension.log or not (compact or reach == 0):
            return None, _MIN_DIGITS
        return max(min(decimal_places(low), 6), decimals or 0), 0
    if dimension.log:
        ratio = math.expm1((math.log(high) - math.log(low)) / 100)
        digits = math.ceil(-math.log10(ratio)) + 1 if ratio > 0 else _MAX_DIGITS
        return None, min(max(_MIN_DIGITS, digits), _MAX_DIGITS)
    unit = math.log10(step or span) - 2
    digits = math.ceil(math.log10(reach) - unit - 1e-6) + 1
    digits = min(max(_MIN_DIGITS, digits), _MAX_DIGITS)
    needed = max(0, math.ceil(-unit - 1e-6))
    if reach >= 10**MAX_DECIMALS:
        return None, digits  # a float that large has no decimals
    if step is not None:  # 0.25 has two decimals; 1/3 as many as tell the values apart
        needed = min(needed, max(decimal_places(low), decimal_places(step)))
        return (max(needed, decimals or 0), 0) if needed <= MAX_DECIMALS else (None, digits)
    if decimals is None:
        return (needed, 0) if compact else (None, digits)
    for shown in range(decimals, MAX_DECIMALS + 1):
        scale = 10.0**shown  # with fewer than two numbers to show, nothing could be searched
        if math.floor(high * scale + 1e-9) - math.ceil(low * scale - 1e-9) >= 1:
            return shown, 0
    return None, digits
