"""Numeric dimensions: `Float` and `Int`, and the base class of all dimensions."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np

from llmopt.errors import ParameterError, SpaceError, warn_user
from llmopt.space.values import Value, as_number, decimal_places, read_float, read_number
from llmopt.space.when import read_when

# Integers are encoded as floats and stored as NumPy integers; this covers int64 and uint64.
_INT_LIMIT = 2**64
# With more steps, float64 could not tell rounding errors from the steps themselves.
_STEP_LIMIT = 10**12
# More decimals than these say nothing about a float64.
MAX_DECIMALS = 15
# Prompts show at least this many significant digits where they do not show fixed decimals.
_MIN_DIGITS = 3
# 17 significant digits tell any two float64 apart.
_MAX_DIGITS = 17
# Within these magnitudes fixed decimals are the shorter way to write a number.
_FIXED_BELOW = 1e7
_FIXED_ABOVE = 1e-4

_Bound = TypeVar("_Bound", bound="BaseDimension")


class BaseDimension(ABC):
    """A dimension under its name in a space.

    Attributes:
        count: Number of values; infinite for a continuous dimension.
        log: Whether the scale is logarithmic.
        offset: Its lower end on that scale.
        span: Its extent on that scale.
        decimals: Decimals shown; ``None`` for none, or for significant digits instead.
        narrow: Type of the array that the values go into, if it is narrower than float64.
        when: The condition (`When`) under which a point has the parameter; ``None`` for always.
    """

    count: float
    log: bool
    offset: float
    span: float
    decimals: int | None
    narrow: np.dtype[Any] | None
    when: Any
    _name: str
    # Only a `Categorical` has these. It is a dataclass: annotated there, they were arguments.
    labels: tuple[str, ...]
    _index: dict[Hashable, int]

    def bound(self: _Bound, name: str, dtype: str | None, decimals: int | None) -> _Bound:
        """Return this dimension as a part of a space.

        Args:
            name: The name, for error messages.
            dtype: Type of the array that its values go into, if any.
            decimals: Decimals to show for a linear `Float`; ``None`` for as many as it needs.
        """
        made = copy.copy(self)
        made._prepare(name, dtype, decimals)
        return made

    def under(self: _Bound, when: Any) -> _Bound:
        """Return this dimension with another condition; ``None`` for none."""
        made = copy.copy(self)
        freeze(made, when=when)
        return made

    @abstractmethod
    def _prepare(self, name: str, dtype: str | None, decimals: int | None) -> None:
        """Work out the attributes."""

    def _unreadable(self, text: str, expected: str) -> ParameterError:
        got = repr(text.strip()[:80])
        return ParameterError(f"`{self._name}`: cannot read {got}; expected {expected}.")


class _Number(BaseDimension):
    """Bounds, a scale, and a grid where there are steps."""

    low: float
    high: float
    step: float | None
    _step: Any  # 0 for none
    _stepped: bool
    _noun: ClassVar[str]
    # Only a `Float` has these. It is a dataclass: annotated there, they were arguments.
    _digits: int
    _places: int
    _least: float
    _most: float
    _off: float

    def _prepare(self, name: str, dtype: str | None, decimals: int | None) -> None:
        offset = math.log(self.low) if self.log else float(self.low)
        freeze(
            self,
            _name=name,
            _step=self.step or 0,
            decimals=None,
            narrow=None,
            offset=offset,
            span=math.log(self.high) - offset if self.log else float(self.high - self.low),
            _stepped=bool(self.step) and not self.log,
        )

    def _expected(self) -> str:
        return f"{self._noun} in [{self.low!r}, {self.high!r}]"

    def _outside(self, number: float) -> ParameterError:
        return ParameterError(
            f"`{self._name}`={number!r} is outside [{self.low!r}, {self.high!r}]; the nearest "
            f"valid value is {self.clip(number)!r}"
        )

    def _off_grid(self, number: float, nearest: float) -> ParameterError:
        return ParameterError(
            f"`{self._name}`={number!r} is not a whole number of steps of {self.step!r} above "
            f"{self.low!r}; the nearest valid value is {nearest!r}."
        )

    def _number(self, value: Value) -> float | int:
        number = as_number(value)
        if number is None:
            raise ParameterError(
                f"`{self._name}`={value!r} is of type {type(value).__name__}; "
                f"expected {self._expected()}."
            )
        if number != number:
            raise ParameterError(f"`{self._name}`=nan; expected {self._expected()}.")
        return number

    def clip(self, value: Value) -> Value:
        """Return the valid value nearest to a number."""
        number = self._number(value)
        if number <= self.low:
            return self.low
        if number >= self.high:
            return self.high
        return self._nearest(number)

    @abstractmethod
    def _nearest(self, number: float | int) -> Value:
        """Return the valid value nearest to a number between the bounds."""

    @abstractmethod
    def value(self, k: int) -> Value:
        """Return the value `k` steps above `low`."""

    def place(self, value: Value) -> int:
        """Return how many steps above `low` a value is; `value` is the way back."""
        steps: float = (value - self.low) / (self._step or 1)
        return round(steps)

    def draw(self, u: float) -> Value:
        """Return the value of a uniform number in [0, 1)."""
        return self.value(int(u * self.count)) if self._stepped else self.decode(u)

    def decode(self, u: float) -> Value:
        """Return the value nearest to a place in [0, 1]."""
        if u >= 1.0:
            return self.high
        if self._stepped:
            return self.value(math.floor(u * (self.count - 1) + 0.5))
        at = self.offset + u * self.span
        return self.clip(math.exp(at) if self.log else at)

    def code(self, value: Value) -> Value:
        """Return the numeric code of a value."""
        return value

    key = code


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

    Raises:
        SpaceError: A bound is not finite, `low` is above `high`, or `log` or `step` does not fit
            the bounds.
    """

    low: float
    high: float
    log: bool = field(default=False, kw_only=True)
    step: float | None = field(default=None, kw_only=True)
    when: Any = field(default=None, kw_only=True)
    _noun = "a number"

    def __post_init__(self) -> None:
        low, high = _finite("low", self.low), _finite("high", self.high)
        _check_order("Float", low, high, self.log)
        if not math.isfinite(high - low):
            raise SpaceError(
                f"Float({low!r}, {high!r}): high - low is too large for a float; "
                "give bounds that are closer together."
            )
        step = self.step
        freeze(self, low=low, high=high, log=bool(self.log), when=read_when(self.when))
        freeze(self, count=math.inf if high > low else 1)
        if step is not None:
            step = _finite("step", step)
            _check_step("Float", step, self.log)
            if (high - low) / step > _STEP_LIMIT:
                raise SpaceError(
                    f"Float({low!r}, {high!r}): step={step!r} is too small to tell its values "
                    "apart; leave the step out for a continuous dimension."
                )
            places = max(decimal_places(low), decimal_places(step))
            freeze(self, step=step, _step=step, _places=places)
            freeze(self, high=self.value(_count_steps(low, high, step)))
            _say_rounded(self, high)
            freeze(self, count=_count_steps(low, self.high, step) + 1)
        self._prepare("value", None, None)

    def __repr__(self) -> str:
        return _describe(self, self.step)

    def _prepare(self, name: str, dtype: str | None, decimals: int | None) -> None:
        super()._prepare(name, dtype, decimals)
        kind = None if dtype is None else np.dtype(dtype)
        # Narrow floats: a proposal must be one that the array can hold, or a point that
        # comes back from the user would not be recognized.
        narrow = kind if kind is not None and kind.itemsize < 8 else None
        # Values that went through float32 (a tensor, say) are still taken for the original ones.
        eps = float(np.finfo(np.float32 if narrow is None else narrow).eps)
        span = self.high - self.low
        reach = max(abs(self.low), abs(self.high))
        slack = min(eps * reach, 0.01 * span) if span > 0 else eps * reach
        shown, digits = _resolution(self, decimals)
        freeze(
            self,
            narrow=narrow,
            decimals=shown,
            _digits=digits,
            # On a log scale `low` may be far below the rounding error of `high`.
            _least=self.low - (min(slack, eps * self.low) if self.log else slack),
            _most=self.high + slack,
            _off=min(eps * reach, 0.01 * self._step) if self._step and span > 0 else math.inf,
        )

    def check(self, value: Value) -> float:
        """Return a value in exact form, or raise `ParameterError`."""
        number = self._number(value)
        if not self._least <= number <= self._most:
            raise self._outside(number)
        nearest: float = self.clip(number)
        if abs(nearest - number) > self._off:
            raise self._off_grid(number, nearest)
        return nearest

    restore = check

    def _nearest(self, number: float | int) -> float:
        if self._step:
            return self.value(round((number - self.low) / self._step))
        held: float = self.key(number)
        return held + 0.0  # no negative zero

    def value(self, k: int) -> float:
        """Return the value `k` steps above `low`, without the noise of sums (0.3, not 0.30…04)."""
        if not self._step:
            return self.low
        on_grid: float = round(self.low + k * self._step, self._places)
        return min(on_grid, self.high) + 0.0

    def key(self, value: Value) -> Value:
        """Return the value in the type of its array."""
        return value if self.narrow is None else float(self.narrow.type(value))

    def format(self, value: Value) -> str:
        """Return the text of a value."""
        if self.decimals is not None:
            text = f"{value:.{self.decimals}f}"
        else:
            text = f"{value:.{self._digits}g}"
            if "e" in text and 1 <= abs(value) < _FIXED_BELOW:
                text = f"{float(text):.0f}"
        return text[1:] if text[0] == "-" and float(text) == 0 else text

    def parse(self, text: str) -> float:
        """Read the text of a finite number."""
        number = read_float(text)
        if number is None:
            raise self._unreadable(text, self._expected())
        return number


@dataclass(frozen=True, repr=False)
class Int(_Number):
    """An integer in a closed interval.

    Args:
        low: Smallest value.
        high: Largest value; equal to `low` for a fixed dimension. It is rounded down to a whole
            number of steps above `low`.
        log: Whether the scale is logarithmic; needs ``low >= 1``.
        step: Distance between neighbouring values, counted from `low`; 1 by default. Not allowed
            with `log`.
        when: As for `Float`.

    Raises:
        SpaceError: A bound is not an integer, `low` is above `high`, or `log` or `step` does not
            fit the bounds.
    """

    low: int
    high: int
    log: bool = field(default=False, kw_only=True)
    step: int | None = field(default=None, kw_only=True)
    when: Any = field(default=None, kw_only=True)
    _noun = "an integer"

    def __post_init__(self) -> None:
        low, high = _integer("low", self.low), _integer("high", self.high)
        step = 1 if self.step is None else _integer("step", self.step)
        _check_order("Int", low, high, self.log)
        _check_step("Int", step, self.log and step != 1)
        count, wanted = (high - low) // step + 1, high
        high = low + (count - 1) * step
        freeze(self, low=low, high=high, log=bool(self.log), step=step, count=count)
        freeze(self, when=read_when(self.when))
        _say_rounded(self, wanted)
        self._prepare("value", None, None)

    def __repr__(self) -> str:
        return _describe(self, None if self.step == 1 else self.step)

    def check(self, value: Value) -> int:
        """Return a value in exact form, or raise `ParameterError`."""
        number = self._number(value)
        if not self.low <= number <= self.high:
            raise self._outside(number)
        whole = int(number)
        if whole != number:
            raise ParameterError(
                f"`{self._name}`={number!r} is not an integer; the nearest valid value is "
                f"{self.clip(number)!r}"
            )
        if (whole - self.low) % self._step:
            raise self._off_grid(whole, self.clip(whole))
        return whole

    restore = check

    def _nearest(self, number: float | int) -> int:
        if isinstance(number, int):
            below, rest = divmod(number - self.low, self._step)
            return self.value(below + (2 * rest >= self._step))
        if self._step == 1:
            return round(number)
        return self.value(round((number - self.low) / self._step))

    def value(self, k: int) -> int:
        """Return the value `k` steps above `low`."""
        return min(self.low + k * int(self._step), self.high)

    def draw(self, u: float) -> Value:
        """Return the value of a uniform number in [0, 1)."""
        if not self.log:
            return super().draw(u)
        # Each integer owns the interval of half a unit around it.
        bottom, top = math.log(self.low - 0.5), math.log(self.high + 0.5)
        return self.clip(math.exp(bottom + u * (top - bottom)))

    def format(self, value: Value) -> str:
        """Return the text of a value."""
        return str(int(value))

    def parse(self, text: str) -> float | int:
        """Read the text of a finite number."""
        number = read_number(text)
        if number is None:
            raise self._unreadable(text, self._expected())
        return number


# Checks -------------------------------------------------------------------------------


def freeze(dimension: object, **fields: object) -> None:
    """Set the attributes of an immutable dimension."""
    for name, value in fields.items():
        object.__setattr__(dimension, name, value)


def _describe(dimension: Float | Int, step: float | None) -> str:
    log = ", log=True" if dimension.log else ""
    by = "" if step is None else f", step={step!r}"
    when = "" if dimension.when is None else f", when={dimension.when!r}"
    return f"{type(dimension).__name__}({dimension.low!r}, {dimension.high!r}{log}{by}{when})"


def _finite(name: str, value: object) -> float:
    number = as_number(value)
    try:
        if number is not None and math.isfinite(number):
            return float(number) + 0.0  # no negative zero
    except OverflowError:
        pass
    raise SpaceError(f"Float: {name}={value!r} is not a finite number; give one.")


def _integer(name: str, value: object) -> int:
    number = as_number(value)
    if number is None or (isinstance(number, float) and not number.is_integer()):
        raise SpaceError(
            f"Int: {name}={value!r} is not an integer; give one, or use Float for real numbers."
        )
    if abs(number) > _INT_LIMIT:
        raise SpaceError(f"Int: {name}={value!r} is beyond 2**64; use a smaller range, or Float.")
    return int(number)


def _check_order(kind: str, low: float, high: float, log: bool) -> None:
    if log not in (True, False):
        raise SpaceError(f"{kind}: log={log!r}; expected True or False.")
    if low > high:
        raise SpaceError(f"{kind}: low={low!r} is above high={high!r}; swap them.")
    if log and low <= 0:
        raise SpaceError(
            f"{kind}: log=True needs low > 0, got low={low!r}; raise it, or leave log out."
        )


def _check_step(kind: str, step: float, log: bool) -> None:
    if step <= 0:
        raise SpaceError(f"{kind}: step={step!r} is not positive; give a step above 0.")
    if log:
        raise SpaceError(
            f"{kind}: log=True and step={step!r} do not go together; leave one of them out."
        )


def _say_rounded(dimension: Float | Int, high: float) -> None:
    """Warn if whole steps do not reach the bound that was given."""
    if high - dimension.high > 1e-9 * abs(high):
        warn_user(
            f"{type(dimension).__name__}({dimension.low!r}, {high!r}, step={dimension.step!r}): "
            f"high is rounded down to {dimension.high!r}, a whole number of steps above low",
            UserWarning,
        )


def _count_steps(low: float, high: float, step: float) -> int:
    """Whole steps from `low` to `high`, forgiving rounding errors of the three."""
    return math.floor((high - low) / step * (1 + 1e-15) + 1e-9)


# Text ---------------------------------------------------------------------------------


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


def read_decimals(decimals: Any) -> int | None:
    """Return the decimals of a space as a Python integer, or ``None`` for automatic ones."""
    if decimals is None:
        return None
    integer = isinstance(decimals, int | np.integer) and not isinstance(decimals, bool)
    if not integer or not 0 <= decimals <= MAX_DECIMALS:
        raise SpaceError(
            f"decimals={decimals!r}; expected an integer from 0 to {MAX_DECIMALS}, or None for "
            "automatic ones."
        )
    return int(decimals)
