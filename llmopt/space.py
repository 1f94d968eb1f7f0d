"""Search spaces: what may be proposed, in which form, and how it is shown.

A `Space` is an ordered list of named scalar dimensions (`Float`, `Int`, `Categorical`)
together with the form in which the user wants parameters back: a plain dict, or whatever
a Gymnasium space holds (an array, an integer, nested dicts and tuples). Inside the library
a point is always *flat*: a tuple with one Python scalar for each dimension, in order.

    >>> space = Space({"lr": Float(1e-5, 0.1, log=True), "layers": Int(1, 4)})
    >>> space.flatten({"layers": 2, "lr": 0.01})
    (0.01, 2)
    >>> space.unflatten((0.01, 2))
    {'lr': 0.01, 'layers': 2}
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np

from llmopt.errors import ParameterError, SpaceError, did_you_mean

# One scalar of one dimension: a float, an int, or a choice, which may be any hashable.
Value: TypeAlias = Any

# Integers are encoded as floats and stored as NumPy integers; this covers int64 and uint64.
_INT_LIMIT = 2**64
# With more steps, float64 could not tell rounding errors from the steps themselves.
_STEP_LIMIT = 10**12
# Values that went through float32 (a tensor, say) are still taken as what they stood for.
_FLOAT32_EPS = float(np.finfo(np.float32).eps)
# Prompts show at least this many significant digits where they do not show fixed decimals.
_MIN_DIGITS = 3
# 17 significant digits tell any two float64 apart.
_MAX_DIGITS = 17
_MAX_DECIMALS = 15
# Within these magnitudes fixed decimals are the shorter way to write a number.
_FIXED_BELOW = 1e7
_FIXED_ABOVE = 1e-4


# --------------------------------------------------------------------------------------
# Dimensions
# --------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Float:
    """A real number in a closed interval.

    Args:
        low: Smallest value.
        high: Largest value; equal to `low` for a fixed dimension. With a step, the largest
            value that is a whole number of steps above `low` takes its place.
        log: Whether the scale is logarithmic; needs ``low > 0``.
        step: Distance between neighbouring values, counted from `low`; ``None`` for a
            continuous dimension. Not together with `log`.

    Raises:
        SpaceError: A bound is not finite, they are in the wrong order, or `log` and `step`
            do not fit them.
    """

    low: float
    high: float
    log: bool = field(default=False, kw_only=True)
    step: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        low = _finite("Float", "low", self.low)
        high = _finite("Float", "high", self.high)
        _check_order("Float", low, high, self.log)
        if not math.isfinite(high - low):
            raise SpaceError(
                f"Float({low!r}, {high!r}): high - low is too large for a float; "
                "give bounds that are closer together."
            )
        step = self.step
        if step is not None:
            step = _finite("Float", "step", step)
            _check_step("Float", step, self.log)
            if (high - low) / step > _STEP_LIMIT:
                raise SpaceError(
                    f"Float({low!r}, {high!r}): step={step!r} is too small to tell its values "
                    "apart; leave the step out for a continuous dimension."
                )
            high = _grid_value(low, high, step, _steps(low, high, step))
        _freeze(self, low=low, high=high, log=bool(self.log), step=step)

    def __repr__(self) -> str:
        return _describe(self, self.step)


@dataclass(frozen=True, repr=False)
class Int:
    """An integer in a closed interval.

    Args:
        low: Smallest value.
        high: Largest value; equal to `low` for a fixed dimension. The largest value that is
            a whole number of steps above `low` takes its place.
        log: Whether the scale is logarithmic; needs ``low >= 1``.
        step: Distance between neighbouring values, counted from `low`; 1 if not given.
            Not together with `log`.

    Raises:
        SpaceError: A bound is not an integer, they are in the wrong order, or `log` and
            `step` do not fit them.
    """

    low: int
    high: int
    log: bool = field(default=False, kw_only=True)
    step: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        low = _integer("low", self.low)
        high = _integer("high", self.high)
        step = 1 if self.step is None else _integer("step", self.step)
        _check_order("Int", low, high, self.log)
        _check_step("Int", step, self.log and step != 1)
        high = low + (high - low) // step * step
        _freeze(self, low=low, high=high, log=bool(self.log), step=step)

    def __repr__(self) -> str:
        return _describe(self, None if self.step == 1 else self.step)


@dataclass(frozen=True, repr=False, eq=False)
class Categorical:
    """One of several choices, in no order.

    Choices may be any hashable values, ``None`` included. ``1``, ``1.0`` and ``True`` are
    three different choices. NumPy scalars become the Python scalars they hold.

    Args:
        choices: The choices, all different, in an order that is the same in every run.

    Raises:
        SpaceError: There are no choices, two are the same, one cannot be hashed, or their
            order is not fixed (a set).
    """

    choices: tuple[Hashable, ...]

    def __init__(self, choices: Iterable[Hashable]) -> None:
        if isinstance(choices, str | bytes | Set) or not isinstance(choices, Iterable):
            raise SpaceError(
                f"Categorical({choices!r}): the choices are a {type(choices).__name__}; "
                "give them as a list or a tuple, so that they have an order."
            )
        items = tuple(cast(Hashable, c.item()) if isinstance(c, np.generic) else c for c in choices)
        if not items:
            raise SpaceError("Categorical([]): there are no choices; give at least one.")
        seen: dict[Hashable, int] = {}
        for position, choice in enumerate(items):
            try:
                first = seen.setdefault(_identity(choice), position)
            except TypeError:
                raise SpaceError(
                    f"Categorical: choices[{position}]={choice!r} cannot be hashed; use a "
                    "hashable value (a tuple for a list, say) or a name that stands for it."
                ) from None
            if first != position:
                raise SpaceError(
                    f"Categorical: choices[{first}] and choices[{position}] are the same, "
                    f"{choice!r}; leave one out."
                )
        _freeze(self, choices=items)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Categorical):
            return NotImplemented
        return _identity(self.choices) == _identity(other.choices)

    def __hash__(self) -> int:
        return hash(_identity(self.choices))

    def __repr__(self) -> str:
        return f"Categorical({list(self.choices)!r})"


Dimension: TypeAlias = Float | Int | Categorical


def _freeze(dimension: Dimension, **fields: object) -> None:
    for name, value in fields.items():
        object.__setattr__(dimension, name, value)


def _describe(dimension: Float | Int, step: float | None) -> str:
    log = ", log=True" if dimension.log else ""
    by = "" if step is None else f", step={step!r}"
    return f"{type(dimension).__name__}({dimension.low!r}, {dimension.high!r}{log}{by})"


def _finite(kind: str, name: str, value: object) -> float:
    number = _number(value)
    try:
        if number is not None and math.isfinite(number):
            return float(number) + 0.0  # no negative zero
    except OverflowError:
        pass
    raise SpaceError(f"{kind}: {name}={value!r} is not a finite number; give one.")


def _integer(name: str, value: object) -> int:
    number = _number(value)
    if number is None or (isinstance(number, float) and not number.is_integer()):
        raise SpaceError(
            f"Int: {name}={value!r} is not an integer; give one, or use Float for real numbers."
        )
    if abs(number) > _INT_LIMIT:
        raise SpaceError(f"Int: {name}={value!r} is beyond 2**64; use a smaller range, or Float.")
    return int(number)


def _check_order(kind: str, low: float, high: float, log: bool) -> None:
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


def _places(number: float) -> int:
    """Decimals that the shortest exact notation of `number` has."""
    exponent = Decimal(repr(number)).normalize().as_tuple().exponent
    return max(0, -int(exponent))


def _steps(low: float, high: float, step: float) -> int:
    """Whole steps from `low` to `high`, forgiving rounding errors of the three."""
    return math.floor((high - low) / step * (1 + 1e-15) + 1e-9)


def _grid_value(low: float, high: float, step: float, k: int) -> float:
    """The value `k` steps above `low`, without the noise of float sums (0.3, not 0.30…04)."""
    return min(round(low + k * step, max(_places(low), _places(step))), high) + 0.0


# --------------------------------------------------------------------------------------
# Scalars
# --------------------------------------------------------------------------------------


def _number(value: object) -> float | int | None:
    """Return a Python number for a real number of any type, ``None`` for anything else."""
    if type(value) is float or type(value) is int:
        return value
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, bool | np.bool_):
        return None
    if isinstance(value, float | np.floating):
        return float(value)
    if isinstance(value, int | np.integer):
        return int(value)
    return None


def _identity(value: Any) -> Hashable:
    """Return a key that keeps 1, 1.0 and True apart and finds NaN again.

    Raises:
        TypeError: The value cannot be hashed.
    """
    kind = type(value)
    if kind is str:
        return (kind, value)
    if isinstance(value, np.generic):
        value = value.item()
        kind = type(value)
    if kind is tuple:
        return (kind, tuple([_identity(v) for v in value]))
    if kind is float and value != value:
        return (kind, "nan")
    hash(value)
    return (kind, value)


def _parse_number(text: str) -> float | int | None:
    """Read a finite number, ``None`` if the text is not one. Integers stay exact."""
    plain = text.strip().replace("\N{MINUS SIGN}", "-")
    if "_" in plain:
        return None
    try:
        return int(plain)
    except ValueError:
        pass
    try:
        number = float(plain)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _unreadable(name: str, text: str, expected: str) -> ParameterError:
    return ParameterError(f"`{name}`: cannot read {text.strip()[:80]!r}; expected {expected}.")


def _anonymous(value: object) -> str:
    """`repr` without what differs from run to run: memory addresses, the order of a set."""
    if isinstance(value, frozenset):
        return f"frozenset({{{', '.join(sorted(map(_anonymous, value)))}}})"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


# --------------------------------------------------------------------------------------
# What one dimension of a space can do. `Space` loops over these.
# --------------------------------------------------------------------------------------


class _Real:
    """A `Float` in a space: its name, the type of the array it goes into, its decimals."""

    def __init__(self, name: str, dimension: Float, dtype: str | None, decimals: int | None):
        self.name = name
        self.low, self.high = dimension.low, dimension.high
        self.log, self.step = dimension.log, dimension.step
        kind = None if dtype is None else np.dtype(dtype)
        # Narrow floats: what is proposed must be what the array can hold, or a point that
        # comes back from the user would not be recognized.
        self.narrow = kind if kind is not None and kind.itemsize < 8 else None
        eps = _FLOAT32_EPS if self.narrow is None else float(np.finfo(self.narrow).eps)
        span = self.high - self.low
        reach = max(abs(self.low), abs(self.high))
        slack = min(eps * reach, 0.01 * span) if span > 0 else eps * reach
        # On a log scale `low` may be far below the rounding error of `high`.
        self.least = self.low - (min(slack, eps * self.low) if self.log else slack)
        self.most = self.high + slack
        self.count: float = math.inf
        self.places = 0
        if span == 0:
            self.count = 1
            self.step = None
        elif self.step is not None:
            self.count = _steps(self.low, self.high, self.step) + 1
            self.places = max(_places(self.low), _places(self.step))
            self.off = min(eps * reach, 0.01 * self.step)
        self.offset = math.log(self.low) if self.log else self.low
        self.span = (math.log(self.high) if self.log else self.high) - self.offset
        self.decimals, self.digits = _resolution(dimension, decimals)

    def expected(self) -> str:
        return f"a number in [{self.low!r}, {self.high!r}]"

    def cast(self, value: float) -> float:
        return float(value if self.narrow is None else self.narrow.type(value)) + 0.0

    def grid(self, k: int, step: float) -> float:
        return min(round(self.low + k * step, self.places), self.high) + 0.0

    def number(self, value: Value) -> float | int:
        number = _number(value)
        if number is None:
            raise ParameterError(
                f"`{self.name}`={value!r} is of type {type(value).__name__}; "
                f"expected {self.expected()}."
            )
        if number != number:
            raise ParameterError(f"`{self.name}`=nan; expected {self.expected()}.")
        return number

    def check(self, value: Value) -> float:
        number = self.number(value)
        if not self.least <= number <= self.most:
            raise ParameterError(
                f"`{self.name}`={number!r} is outside [{self.low!r}, {self.high!r}]"
            )
        nearest = self.clip(number)
        if self.step is not None and abs(nearest - number) > self.off:
            raise ParameterError(
                f"`{self.name}`={number!r} is not a whole number of steps of {self.step!r} "
                f"above {self.low!r}; the nearest valid value is {nearest!r}."
            )
        return nearest

    def clip(self, value: Value) -> float:
        number = self.number(value)
        if number <= self.low:
            return self.low
        if number >= self.high:
            return self.high
        if self.step is not None:
            return self.grid(round((number - self.low) / self.step), self.step)
        return self.cast(number)

    def round(self, value: Value) -> float:
        inside = self.clip(value)
        if self.step is not None or self.low == self.high:
            return inside
        shown = self.shown(inside)
        if not self.least <= shown <= self.most:
            # The nearest number that can be shown lies beyond a bound: take its neighbour.
            if self.decimals is None:
                unit = 10.0 ** (math.floor(math.log10(abs(inside))) - self.digits + 1)
            else:
                unit = 10.0**-self.decimals
            shown = self.shown(shown + (unit if shown < self.low else -unit))
            if not self.least <= shown <= self.most:
                return inside
        return self.clip(shown)

    def shown(self, value: float) -> float:
        if self.decimals is None:
            return float(f"{value:.{self.digits}g}")
        return round(value, self.decimals)

    def draw(self, u: float) -> float:
        if self.step is not None:
            return self.grid(min(int(u * self.count), int(self.count) - 1), self.step)
        return self.decode(u)

    def decode(self, u: float) -> float:
        if u >= 1.0:
            return self.high
        if self.step is not None:
            return self.grid(math.floor(u * (self.count - 1) + 0.5), self.step)
        value = self.offset + u * self.span
        return self.clip(math.exp(value) if self.log else value)

    def code(self, value: Value) -> float:
        return float(value)

    def key(self, value: Value) -> float:
        return cast(float, value) if self.narrow is None else self.cast(value)

    def format(self, value: Value) -> str:
        if self.decimals is not None:
            text = f"{value:.{self.decimals}f}"
        else:
            text = f"{value:.{self.digits}g}"
            if "e" in text and 1 <= abs(value) < _FIXED_BELOW:
                text = f"{float(text):.0f}"
        return text[1:] if text[0] == "-" and float(text) == 0 else text

    def parse(self, text: str) -> float:
        number = _parse_number(text)
        try:
            if number is not None:
                return float(number)
        except OverflowError:
            pass
        raise _unreadable(self.name, text, self.expected())


def _resolution(dimension: Float, decimals: int | None) -> tuple[int | None, int]:
    """Decimals to show, or ``None`` and the significant digits to show in their place."""
    low, high, step = dimension.low, dimension.high, dimension.step
    span = high - low
    reach = max(abs(low), abs(high))
    if span == 0:
        if dimension.log or not (reach == 0 or _FIXED_ABOVE <= reach < _FIXED_BELOW):
            return None, _MIN_DIGITS
        return max(min(_places(low), 6), decimals or 0), 0
    # A hundredth of the range, or of a step, must be visible.
    unit = math.log10(span if step is None else step) - 2
    digits = math.ceil(math.log10(reach) - unit - 1e-6) + 1
    digits = min(max(_MIN_DIGITS, digits), _MAX_DIGITS)
    needed = max(0, math.ceil(-unit - 1e-6))
    if dimension.log:
        ratio = math.expm1((math.log(high) - math.log(low)) / 100)
        digits = _MAX_DIGITS if ratio <= 0 else math.ceil(-math.log10(ratio)) + 1
        return None, min(max(_MIN_DIGITS, digits), _MAX_DIGITS)
    if step is not None:
        # 0.25 is shown with two decimals; 1/3 with as many as tell the values apart.
        needed = min(needed, max(_places(low), _places(step)))
        if needed > _MAX_DECIMALS or reach >= 10**_MAX_DECIMALS:
            return None, digits
        return max(needed, decimals or 0), 0
    if decimals is None:
        return (needed, 0) if _FIXED_ABOVE <= reach < _FIXED_BELOW else (None, digits)
    if reach >= 10**_MAX_DECIMALS:
        return None, digits  # a float that large has no decimals
    # With fewer than two numbers to show, nothing could be searched.
    shown = decimals
    while shown <= _MAX_DECIMALS and (
        math.floor(high * 10.0**shown + 1e-9) - math.ceil(low * 10.0**shown - 1e-9) < 1
    ):
        shown += 1
    return (shown, 0) if shown <= _MAX_DECIMALS else (None, digits)


class _Whole:
    """An `Int` in a space."""

    decimals = None
    narrow = None

    def __init__(self, name: str, dimension: Int):
        self.name = name
        self.low, self.high, self.log = dimension.low, dimension.high, dimension.log
        self.step = 1 if dimension.step is None else dimension.step
        self.count = (self.high - self.low) // self.step + 1
        self.offset = math.log(self.low) if self.log else float(self.low)
        self.span = math.log(self.high) - self.offset if self.log else float(self.high - self.low)

    def expected(self) -> str:
        return f"an integer in [{self.low}, {self.high}]"

    def number(self, value: Value) -> float | int:
        number = _number(value)
        if number is None:
            raise ParameterError(
                f"`{self.name}`={value!r} is of type {type(value).__name__}; "
                f"expected {self.expected()}."
            )
        if number != number:
            raise ParameterError(f"`{self.name}`=nan; expected {self.expected()}.")
        return number

    def check(self, value: Value) -> int:
        number = self.number(value)
        if not self.low <= number <= self.high:
            raise ParameterError(f"`{self.name}`={number!r} is outside [{self.low}, {self.high}]")
        whole = int(number)
        if whole != number:
            raise ParameterError(f"`{self.name}`={number!r} is not an integer.")
        if (whole - self.low) % self.step:
            raise ParameterError(
                f"`{self.name}`={whole} is not a whole number of steps of {self.step} above "
                f"{self.low}; the nearest valid value is {self.clip(whole)}."
            )
        return whole

    def clip(self, value: Value) -> int:
        number = self.number(value)
        if number <= self.low:
            return self.low
        if number >= self.high:
            return self.high
        if isinstance(number, float):
            if self.step == 1:
                return round(number)
            return min(self.low + round((number - self.low) / self.step) * self.step, self.high)
        below, rest = divmod(number - self.low, self.step)
        return self.low + (below + (2 * rest >= self.step)) * self.step

    def round(self, value: Value) -> int:
        return self.clip(value)

    def draw(self, u: float) -> int:
        if self.log:
            # Each integer owns the interval of half a unit around it.
            bottom, top = math.log(self.low - 0.5), math.log(self.high + 0.5)
            return self.clip(math.exp(bottom + u * (top - bottom)))
        return self.low + min(int(u * self.count), self.count - 1) * self.step

    def decode(self, u: float) -> int:
        if u >= 1.0:
            return self.high
        if self.log:
            return self.clip(math.exp(self.offset + u * self.span))
        return self.low + min(math.floor(u * (self.count - 1) + 0.5), self.count - 1) * self.step

    def code(self, value: Value) -> float:
        return float(value)

    def key(self, value: Value) -> int:
        return cast(int, value)

    def format(self, value: Value) -> str:
        return str(int(value))

    def parse(self, text: str) -> float | int:
        number = _parse_number(text)
        if number is None:
            raise _unreadable(self.name, text, self.expected())
        return int(number) if number == int(number) else number


# Text that stands for a string without quotes, and that is nothing else.
_PLAIN_WORD = re.compile(r"[^\W\d][\w.+/-]*(?: [\w.+/-]+)*")
_RESERVED = {"none", "null", "true", "false", "nan", "inf", "infinity"}


def _fold(text: str) -> str:
    """Text without case, quotes and white space, for a forgiving comparison."""
    return re.sub(r"[\s'\"`]+", "", text).casefold()


class _Choice:
    """A `Categorical` in a space."""

    decimals = None
    narrow = None
    log = False
    offset = 0.0

    def __init__(self, name: str, dimension: Categorical):
        self.name = name
        self.choices = dimension.choices
        self.count = len(self.choices)
        self.span = float(self.count - 1)
        self.index = {_identity(c): i for i, c in enumerate(self.choices)}
        self.labels = _labels(self.choices)

    def find(self, value: Value) -> int:
        try:
            found = self.index.get(_identity(value))
        except TypeError:
            found = None
        if found is None:
            near = [i for i, choice in enumerate(self.choices) if _stands_for(value, choice)]
            if len(near) != 1:
                label = value if isinstance(value, str) else _anonymous(value)
                raise ParameterError(
                    f"`{self.name}`={value!r} is not one of its choices; "
                    f"{did_you_mean(label, self.labels)}"
                )
            found = near[0]
        return found

    def check(self, value: Value) -> Hashable:
        return self.choices[self.find(value)]

    clip = check
    round = check

    def draw(self, u: float) -> Hashable:
        return self.choices[min(int(u * self.count), self.count - 1)]

    def decode(self, u: float) -> Hashable:
        return self.choices[math.floor(u * self.span + 0.5)]

    def code(self, value: Value) -> float:
        return float(self.find(value))

    def key(self, value: Value) -> int:
        try:
            # The identity of all but tuples and NaN, without the call.
            found = self.index.get((type(value), value))
        except TypeError:
            found = None
        return self.find(value) if found is None else found

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
            number = _parse_number(text)
            near = [
                i
                for i, choice in enumerate(self.choices)
                if (choice is None and folded == "null")
                or (number is not None and _number(choice) == number)
            ]
        if len(near) != 1:
            raise _unreadable(
                self.name, text, f"one of its choices; {did_you_mean(text, self.labels)}"
            )
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
        else _anonymous(choice)
        for choice in choices
    ]
    if len(set(labels)) < len(labels):
        labels = [_anonymous(choice) for choice in choices]
    taken: set[str] = set()
    for i, label in enumerate(labels):
        unique, n = label, 1
        while unique in taken:
            n += 1
            unique = f"{label}#{n}"
        taken.add(unique)
        labels[i] = unique
    return tuple(labels)


_Scalar: TypeAlias = _Real | _Whole | _Choice


# --------------------------------------------------------------------------------------
# Layout: the form in which the user gives and gets parameters
# --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Leaf:
    """One value: a Python scalar, or a NumPy scalar where there is a `dtype`."""

    dtype: str | None
    kind: ClassVar[str] = "value"

    def dtypes(self) -> list[str | None]:
        return [self.dtype]

    def read(self, params: Any, path: str, out: list[Value]) -> None:
        # Gymnasium takes True for the 1 of a Discrete; a plain Int does not.
        is_bool = self.dtype is not None and isinstance(params, bool | np.bool_)
        out.append(int(params) if is_bool else params)

    def build(self, values: Iterator[Value]) -> Any:
        value = next(values)
        return value if self.dtype is None else np.dtype(self.dtype).type(value)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "dtype": self.dtype}


@dataclass(frozen=True)
class _Array:
    """An array of values, in C order."""

    dtype: str
    shape: tuple[int, ...]
    kind: ClassVar[str] = "array"

    def dtypes(self) -> list[str | None]:
        return [self.dtype] * math.prod(self.shape)

    def read(self, params: Any, path: str, out: list[Value]) -> None:
        try:
            array = np.asarray(params)
        except (TypeError, ValueError):
            raise ParameterError(
                f"`{path}` is not an array; expected one of shape {self.shape}."
            ) from None
        if array.shape != self.shape:
            got = f"shape {array.shape}"
            if array.dtype == object:
                got = f"{type(params).__name__} of {got}"
            raise ParameterError(f"`{path}` has {got}; expected an array of shape {self.shape}.")
        if array.dtype == bool:
            if np.dtype(self.dtype).kind == "f":
                raise ParameterError(
                    f"`{path}` is an array of bool; expected numbers of type {self.dtype}."
                )
            array = array.astype(np.int8)
        out.extend(array.ravel().tolist())

    def build(self, values: Iterator[Value]) -> np.ndarray:
        size = math.prod(self.shape)
        flat = [next(values) for _ in range(size)]
        return np.array(flat, dtype=self.dtype).reshape(self.shape)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "dtype": self.dtype, "shape": list(self.shape)}


@dataclass(frozen=True)
class _Dict:
    """Named parts."""

    keys: tuple[Hashable, ...]
    parts: tuple[_Node, ...]
    kind: ClassVar[str] = "dict"

    def dtypes(self) -> list[str | None]:
        return [d for part in self.parts for d in part.dtypes()]

    def read(self, params: Any, path: str, out: list[Value]) -> None:
        if not isinstance(params, Mapping):
            raise ParameterError(
                f"{_at(path)}got a {type(params).__name__}; expected a dict with the keys "
                f"{list(self.keys)}."
            )
        if len(params) != len(self.keys) or not all(key in params for key in self.keys):
            raise ParameterError(self._mismatch(params, path))
        for key, part in zip(self.keys, self.parts, strict=True):
            part.read(params[key], f"{path}.{key}" if path else str(key), out)

    def _mismatch(self, params: Mapping[Any, Any], path: str) -> str:
        unknown = [key for key in params if key not in self.keys]
        if unknown:
            hint = did_you_mean(str(unknown[0]), map(str, self.keys))
            return f"{_at(path)}unknown parameter {unknown[0]!r}; {hint}"
        missing = ", ".join(repr(key) for key in self.keys if key not in params)
        return f"{_at(path)}missing {missing}; give a value for each parameter."

    def build(self, values: Iterator[Value]) -> dict[Hashable, Any]:
        return {key: part.build(values) for key, part in zip(self.keys, self.parts, strict=True)}

    def to_dict(self) -> dict[str, Any]:
        parts = [
            [_choice_to_json(key), part.to_dict()]
            for key, part in zip(self.keys, self.parts, strict=True)
        ]
        return {"kind": self.kind, "parts": parts}


@dataclass(frozen=True)
class _Tuple:
    """Parts in order."""

    parts: tuple[_Node, ...]
    kind: ClassVar[str] = "tuple"

    def dtypes(self) -> list[str | None]:
        return [d for part in self.parts for d in part.dtypes()]

    def read(self, params: Any, path: str, out: list[Value]) -> None:
        if not isinstance(params, tuple | list | np.ndarray) or (
            isinstance(params, np.ndarray) and params.ndim == 0
        ):
            raise ParameterError(
                f"{_at(path)}got a {type(params).__name__}; expected a tuple of "
                f"{len(self.parts)} parts."
            )
        if len(params) != len(self.parts):
            raise ParameterError(
                f"{_at(path)}got {len(params)} parts; expected a tuple of {len(self.parts)}."
            )
        for i, (part, item) in enumerate(zip(self.parts, params, strict=True)):
            part.read(item, f"{path}[{i}]", out)

    def build(self, values: Iterator[Value]) -> tuple[Any, ...]:
        return tuple([part.build(values) for part in self.parts])

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "parts": [part.to_dict() for part in self.parts]}


_Node: TypeAlias = _Leaf | _Array | _Dict | _Tuple


def _at(path: str) -> str:
    return f"`{path}`: " if path else ""


def _node_from_dict(data: Mapping[str, Any]) -> _Node:
    kind = data["kind"]
    if kind == _Leaf.kind:
        return _Leaf(data["dtype"])
    if kind == _Array.kind:
        return _Array(data["dtype"], tuple(data["shape"]))
    if kind == _Dict.kind:
        keys = tuple(_choice_from_json(key) for key, _ in data["parts"])
        return _Dict(keys, tuple(_node_from_dict(part) for _, part in data["parts"]))
    if kind == _Tuple.kind:
        return _Tuple(tuple(_node_from_dict(part) for part in data["parts"]))
    raise SpaceError(f"unknown layout {kind!r}; expected 'value', 'array', 'dict' or 'tuple'.")


def _choice_to_json(choice: Hashable) -> Any:
    """A choice as JSON; one that JSON cannot hold is only identified, by its `repr`."""
    kind = type(choice)
    if choice is None or kind is bool or kind is int or kind is str:
        return choice
    if isinstance(choice, float) and kind is float:
        return choice if math.isfinite(choice) else {"float": repr(choice)}
    if isinstance(choice, tuple) and kind is tuple:
        return {"tuple": [_choice_to_json(item) for item in choice]}
    return {"repr": _anonymous(choice)}


def _choice_from_json(data: Any) -> Hashable:
    if not isinstance(data, Mapping):
        return cast(Hashable, data)
    if "float" in data:
        return float(data["float"])
    if "tuple" in data:
        return tuple(_choice_from_json(item) for item in data["tuple"])
    raise SpaceError(
        f"the choice {data.get('repr')} cannot be rebuilt from JSON; "
        "make the space in code, as in the run that wrote it."
    )


def _dimension_to_dict(name: str, dimension: Dimension) -> dict[str, Any]:
    data: dict[str, Any] = {"name": name, "type": type(dimension).__name__.lower()}
    if isinstance(dimension, Categorical):
        data["choices"] = [_choice_to_json(choice) for choice in dimension.choices]
    else:
        data.update(low=dimension.low, high=dimension.high, log=dimension.log, step=dimension.step)
    return data


def _dimension_from_dict(data: Mapping[str, Any]) -> Dimension:
    kind = data["type"]
    if kind == "categorical":
        return Categorical([_choice_from_json(choice) for choice in data["choices"]])
    if kind == "float":
        return Float(data["low"], data["high"], log=data["log"], step=data["step"])
    if kind == "int":
        return Int(data["low"], data["high"], log=data["log"], step=data["step"])
    raise SpaceError(f"unknown dimension type {kind!r}; expected float, int or categorical.")


# --------------------------------------------------------------------------------------
# Gymnasium
# --------------------------------------------------------------------------------------


def _is_gymnasium(obj: object) -> bool:
    # An object of a module that was never imported cannot exist, so nothing is imported here.
    gymnasium = sys.modules.get("gymnasium")
    kind = getattr(gymnasium, "Space", None)
    return kind is not None and isinstance(obj, kind)


def _indexed(path: str, shape: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], str]]:
    """Each index of an array and the name of the value there."""
    for index in np.ndindex(*shape):
        yield index, f"{path}[{','.join(map(str, index))}]" if index else path


def _read_gymnasium(space: Any, path: str, out: list[tuple[str, Dimension]]) -> _Node:
    """Append the dimensions of a Gymnasium space to `out` and return its layout."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        parts = tuple(
            _read_gymnasium(part, f"{path}.{key}" if path else str(key), out)
            for key, part in space.spaces.items()
        )
        return _Dict(tuple(space.spaces), parts)
    if isinstance(space, spaces.Tuple):
        return _Tuple(
            tuple(_read_gymnasium(part, f"{path}[{i}]", out) for i, part in enumerate(space.spaces))
        )
    path = path or "params"
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        out.append((path, Int(start, start + int(space.n) - 1)))
        return _Leaf(np.dtype(space.dtype).name)
    if isinstance(space, spaces.MultiDiscrete):
        for index, name in _indexed(path, space.shape):
            start = int(space.start[index])
            out.append((name, Int(start, start + int(space.nvec[index]) - 1)))
    elif isinstance(space, spaces.MultiBinary):
        out.extend((name, Int(0, 1)) for _, name in _indexed(path, space.shape))
    elif isinstance(space, spaces.Box):
        out.extend(_read_box(space, path))
    else:
        raise SpaceError(
            f"{_at(path)}a {type(space).__name__} space cannot be searched; use Box, Discrete, "
            "MultiDiscrete, MultiBinary, or Dict and Tuple of these."
        )
    return _Array(np.dtype(space.dtype).name, tuple(space.shape))


def _read_box(box: Any, path: str) -> list[tuple[str, Dimension]]:
    bounded = box.bounded_below & box.bounded_above & np.isfinite(box.low) & np.isfinite(box.high)
    if not bounded.all():
        # An integer Box replaces infinity by the limits of its type: show what was asked for.
        lows = np.where(box.bounded_below, box.low, -np.inf)
        highs = np.where(box.bounded_above, box.high, np.inf)
        open_ = [
            f"`{name}` in [{lows[index]}, {highs[index]}]"
            for index, name in _indexed(path, box.shape)
            if not bounded[index]
        ]
        more = f" and {len(open_) - 3} more" if len(open_) > 3 else ""
        raise SpaceError(
            f"the Box has no finite bounds for {', '.join(open_[:3])}{more}; a search needs a "
            "finite range: give the Box finite low and high, "
            f"as in Box(low=-1.0, high=1.0, shape={box.shape})."
        )
    found: list[tuple[str, Dimension]] = []
    for index, name in _indexed(path, box.shape):
        if box.dtype.kind != "f":
            found.append((name, Int(int(box.low[index]), int(box.high[index]))))
            continue
        low, high = float(box.low[index]), float(box.high[index])
        # A long double that no float64 holds: the next float64 inside the bounds.
        if low < box.low[index]:
            low = math.nextafter(low, math.inf)
        if high > box.high[index]:
            high = math.nextafter(high, -math.inf)
        try:
            found.append((name, Float(low, high)))
        except SpaceError as error:
            raise SpaceError(f"`{name}`: {error}") from None
    return found


# --------------------------------------------------------------------------------------
# Space
# --------------------------------------------------------------------------------------


class Space:
    """Named dimensions, and the form in which parameters are given and returned.

    Immutable. Methods that take ``values`` want a flat point: one scalar for each
    dimension, in the order of `names`.

    Decimals belong to the space. A linear `Float` is shown with the fewest decimals whose
    last digit is at most a hundredth of its range (one decimal for [-6, 6]), with a step
    by those that the step needs. A log `Float`, and a linear one of very large or very
    small magnitude, is shown with three or more significant digits.

    Args:
        dimensions: A dimension for each name, in order. Parameters are plain dicts of
            Python scalars under the same names. For Gymnasium spaces see
            `from_gymnasium`.
        decimals: Decimals for every linear `Float` in place of the automatic ones, 0 to
            15. A dimension gets more where its step needs more, or where its range would
            otherwise hold fewer than two numbers. Log dimensions, and ranges beyond
            1e15, keep their significant digits.

    Attributes:
        names: Name of each dimension, all different.
        dimensions: The dimensions, in the same order.
        decimals: Decimals with which each dimension is shown; ``None`` for `Int` and
            `Categorical`, and where significant digits are shown instead.
        cardinality: Number of different points; infinite with a continuous `Float`.

    Raises:
        SpaceError: There is no dimension, a name is not usable, or something is not a
            dimension.
    """

    names: tuple[str, ...]
    dimensions: tuple[Dimension, ...]
    decimals: tuple[int | None, ...]
    cardinality: float

    def __init__(self, dimensions: Mapping[str, Dimension], *, decimals: int | None = None) -> None:
        if not isinstance(dimensions, Mapping):
            raise SpaceError(
                f"Space: got a {type(dimensions).__name__}; expected a dict such as "
                '{"lr": Float(1e-5, 0.1, log=True)}. '
                "For a Gymnasium space call Space.from_gymnasium(space)."
            )
        for name, dimension in dimensions.items():
            if not isinstance(name, str):
                raise SpaceError(f"Space: the name {name!r} is not a string; use str({name!r}).")
            if _is_gymnasium(dimension):
                raise SpaceError(
                    f"Space: `{name}` is a Gymnasium space among plain dimensions; put them all "
                    "in a gymnasium.spaces.Dict and pass that."
                )
            if not isinstance(dimension, Float | Int | Categorical):
                raise SpaceError(
                    f"Space: `{name}`={dimension!r} is not a dimension; expected "
                    "Float(low, high), Int(low, high) or Categorical(choices)."
                )
        layout = _Dict(tuple(dimensions), (_Leaf(None),) * len(dimensions))
        self._set_up(list(dimensions.items()), layout, decimals)

    @classmethod
    def from_gymnasium(cls, space: Any, *, decimals: int | None = None) -> Space:
        """Make a space from a Gymnasium space; parameters keep its form.

        `unflatten` returns what ``space.contains`` accepts: for a `Box` an array of its
        shape and dtype, for a `Discrete` a NumPy integer, and so on. Dimensions are named
        ``params[0]``, ``params[0,1]`` (arrays), ``key``, ``key[0]``, ``key.sub`` (`Dict`)
        and ``[0]`` (`Tuple`). The Gymnasium space itself is not kept.

        Args:
            space: A `Box` with finite bounds, `Discrete`, `MultiDiscrete`, `MultiBinary`,
                or `Dict` and `Tuple` of these, nested at will.
            decimals: See `Space`.

        Raises:
            SpaceError: The space is of another type, not bounded, or empty.
        """
        if not _is_gymnasium(space):
            raise SpaceError(
                f"got {_anonymous(space)}, a {type(space).__name__}; expected a space of "
                "gymnasium.spaces, such as Box(low=-1.0, high=1.0, shape=(3,))."
            )
        named: list[tuple[str, Dimension]] = []
        layout = _read_gymnasium(space, "", named)
        made = cls.__new__(cls)
        made._set_up(named, layout, decimals)
        return made

    @classmethod
    def of(cls, obj: Any) -> Space:
        """Return `obj` as a space.

        Args:
            obj: A `Space` (returned as it is), a dict of dimensions, or a Gymnasium space.

        Raises:
            SpaceError: It is none of these, or cannot be searched.
        """
        if isinstance(obj, Space):
            return obj
        if _is_gymnasium(obj):
            return cls.from_gymnasium(obj)
        if isinstance(obj, Mapping):
            return cls(obj)
        raise SpaceError(
            f"got {_anonymous(obj)}, a {type(obj).__name__}; expected a Space, a dict such as "
            '{"lr": Float(1e-5, 0.1, log=True)}, or a gymnasium.spaces space.'
        )

    def _set_up(
        self, named: Sequence[tuple[str, Dimension]], layout: _Node, decimals: int | None
    ) -> None:
        if not named:
            raise SpaceError("the space is empty; give it at least one dimension.")
        if decimals is not None and (
            isinstance(decimals, bool)
            or not isinstance(decimals, int | np.integer)
            or not 0 <= decimals <= _MAX_DECIMALS
        ):
            raise SpaceError(
                f"decimals={decimals!r}; expected an integer from 0 to {_MAX_DECIMALS}, "
                "or None for automatic ones."
            )
        seen: set[str] = set()
        for name, _ in named:
            if not name or name != name.strip() or not name.isprintable():
                raise SpaceError(
                    f"the name {name!r} is empty or holds white space that a prompt cannot "
                    "show; rename it."
                )
            if name in seen:
                raise SpaceError(f"two dimensions are named `{name}`; rename one of their keys.")
            seen.add(name)
        self._layout = layout
        self._asked_decimals = None if decimals is None else int(decimals)
        self.names = tuple(name for name, _ in named)
        self.dimensions = tuple(dimension for _, dimension in named)
        scalars: list[_Scalar] = []
        for (name, dimension), dtype in zip(named, layout.dtypes(), strict=True):
            if isinstance(dimension, Float):
                scalars.append(_Real(name, dimension, dtype, self._asked_decimals))
            elif isinstance(dimension, Int):
                scalars.append(_Whole(name, dimension))
            else:
                scalars.append(_Choice(name, dimension))
        self._scalars = tuple(scalars)
        self.decimals = tuple(s.decimals for s in scalars)
        self.cardinality = math.prod(float(s.count) for s in scalars)
        self._choice_at = [i for i, s in enumerate(scalars) if isinstance(s, _Choice)]
        self._log_at = np.array([i for i, s in enumerate(scalars) if s.log], dtype=int)
        self._offset = np.array([s.offset for s in scalars], dtype=float)
        # A fixed dimension has no extent: dividing by infinity encodes it as 0.
        self._span = np.array([s.span or math.inf for s in scalars], dtype=float)
        # `key` needs no look at each value where all are plain numbers of one type.
        narrow = {s.narrow for s in scalars}
        self._uniform = not self._choice_at and len(narrow) == 1
        self._narrow = narrow.pop() if self._uniform else None

    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Space):
            return NotImplemented
        return self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[object, ...]:
        return self.names, self.dimensions, self._layout, self._asked_decimals

    def __copy__(self) -> Space:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Space:
        # Immutable; and copied choices might no longer equal the caller's.
        return self

    def __repr__(self) -> str:
        shown = [f"{n!r}: {d!r}" for n, d in zip(self.names, self.dimensions, strict=True)]
        if len(shown) > 6:
            shown[4:-1] = [f"... {len(shown) - 5} more ..."]
        extra = "" if self._asked_decimals is None else f", decimals={self._asked_decimals}"
        return f"Space({{{', '.join(shown)}}}{extra})"

    # Form ---------------------------------------------------------------------------

    def flatten(self, params: Any) -> tuple[Value, ...]:
        """Check parameters in the user's form and return them flat.

        NumPy scalars are taken for Python ones, lists for arrays, integers for floats and
        whole floats for integers. A value that misses a bound or a step by no more than
        rounding (a few units of float32) is moved onto it. The result shares nothing with
        `params`.

        Args:
            params: Parameters in the form the space was given in.

        Returns:
            One Python scalar for each dimension.

        Raises:
            ParameterError: A value, a shape, a type or a name does not belong to the space.
        """
        values: list[Value] = []
        self._layout.read(params, "params" if self._is_bare else "", values)
        return self.check(values)

    def unflatten(self, values: Sequence[Value]) -> Any:
        """Return a flat point in the user's form, made anew at each call.

        Args:
            values: One valid scalar for each dimension.

        Raises:
            ParameterError: A value does not belong to the space.
        """
        return self._layout.build(iter(self.check(values)))

    def validate(self, params: Any) -> Any:
        """Check parameters and return a copy of them in their exact form.

        Args:
            params: Parameters in the form the space was given in.

        Raises:
            ParameterError: See `flatten`.
        """
        return self._layout.build(iter(self.flatten(params)))

    def check(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Check a flat point as `flatten` checks parameters, and return it in exact form.

        Args:
            values: One scalar for each dimension.

        Raises:
            ParameterError: See `flatten`.
        """
        self._check_length(values)
        return tuple([s.check(v) for s, v in zip(self._scalars, values, strict=True)])

    @property
    def _is_bare(self) -> bool:
        return isinstance(self._layout, _Leaf | _Array)

    def _check_length(self, values: Sequence[Value]) -> None:
        if len(values) != len(self.names):
            names = ", ".join(self.names[:6]) + (", ..." if len(self.names) > 6 else "")
            raise ParameterError(
                f"got {len(values)} values; expected {len(self.names)}, one for each of {names}."
            )

    # Sampling -----------------------------------------------------------------------

    def sample(self, rng: np.random.Generator) -> tuple[Value, ...]:
        """Draw a flat point: uniform, log-uniform on a log scale, on the steps.

        Args:
            rng: Source of randomness; advanced by as many numbers as there are dimensions.
        """
        units = rng.random(len(self.names)).tolist()
        return tuple([s.draw(u) for s, u in zip(self._scalars, units, strict=True)])

    def normal(self, rng: np.random.Generator, scale: float = 3.0) -> tuple[Value, ...]:
        """Draw a flat point from N(0, `scale`²), moved to the nearest valid one.

        The published warm-up draws N(0, 3) (ProPS, arXiv 2511.21928). Choices, and numbers
        whose range leaves out 0 (log scales do), are drawn as in `sample`: a normal
        distribution around 0 says nothing about them.

        Args:
            rng: Source of randomness; advanced by the same amount at every call.
            scale: Standard deviation, in the units of the parameters.
        """
        units = rng.random(len(self.names)).tolist()
        normals = (scale * rng.standard_normal(len(self.names))).tolist()
        return tuple(
            [
                s.draw(u) if isinstance(s, _Choice) or not s.low <= 0 <= s.high else s.clip(z)
                for s, u, z in zip(self._scalars, units, normals, strict=True)
            ]
        )

    # Moving onto valid or shown values ------------------------------------------------

    def clip(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Move each number to the nearest valid value.

        Args:
            values: One scalar for each dimension; numbers may be out of range.

        Raises:
            ParameterError: A number is NaN or not a number, or a choice is unknown.
        """
        self._check_length(values)
        return tuple([s.clip(v) for s, v in zip(self._scalars, values, strict=True)])

    def round(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Move each number to the nearest valid value that a prompt can show.

        Where the nearest such value lies beyond a bound, the next one inside is taken.

        Args:
            values: One scalar for each dimension; numbers may be out of range.

        Raises:
            ParameterError: See `clip`.
        """
        self._check_length(values)
        return tuple([s.round(v) for s, v in zip(self._scalars, values, strict=True)])

    # Text ---------------------------------------------------------------------------

    def format(self, index: int, value: Value) -> str:
        """Return the text that shows one value in a prompt.

        For the values that `round` returns, reading the text with `parse_value` and then
        `clip` gives the value again. A choice that is a plain word is shown as it is, any
        other by its `repr`.

        Args:
            index: Position of the dimension.
            value: A valid value of that dimension.
        """
        return self._scalars[index].format(value)

    def parse_value(self, index: int, text: str) -> Value:
        """Read the text of one value: a finite number, or a choice.

        Bounds and steps are not checked; see `clip` and `check`. Choices are recognized
        whatever their case, quotes and spaces, as long as only one fits.

        Args:
            index: Position of the dimension.
            text: The text of this value alone.

        Raises:
            ParameterError: The text is not a finite number, or not one of the choices.
        """
        return self._scalars[index].parse(text)

    # Numbers ------------------------------------------------------------------------

    def encode(self, values: Sequence[Value]) -> np.ndarray:
        """Return a flat point as numbers in [0, 1].

        Numbers are scaled by their bounds, in log scale on a log dimension; a choice is
        its index over the last index. A dimension with a single value gives 0.

        Args:
            values: One valid scalar for each dimension.

        Returns:
            ``(len(self),)`` float64 array.

        Raises:
            ParameterError: The number of values is wrong, or a choice is unknown.
        """
        self._check_length(values)
        if self._choice_at:
            values = list(values)
            for i in self._choice_at:
                values[i] = self._scalars[i].code(values[i])
        numbers = np.array(values, dtype=float)
        if self._log_at.size:
            numbers[self._log_at] = np.log(numbers[self._log_at])
        numbers -= self._offset
        numbers /= self._span
        return numbers.clip(0.0, 1.0, out=numbers)

    def decode(self, unit: Sequence[float] | np.ndarray) -> tuple[Value, ...]:
        """Return the valid flat point nearest to a point of the unit cube.

        Args:
            unit: ``(len(self),)`` numbers; those outside [0, 1] are moved to its ends.

        Raises:
            ParameterError: The shape is wrong, or a number is NaN.
        """
        units = np.asarray(unit, dtype=float)
        if units.shape != (len(self.names),) or np.isnan(units).any():
            raise ParameterError(
                f"got {units.tolist()!r}; expected {len(self.names)} numbers in [0, 1]."
            )
        inside = units.clip(0.0, 1.0).tolist()
        return tuple([s.decode(u) for s, u in zip(self._scalars, inside, strict=True)])

    def key(self, values: Sequence[Value]) -> tuple[Hashable, ...]:
        """Return a hashable identity of a flat point, equal for equal points only.

        Choices are told apart by type (``1`` is not ``True``); numbers are compared in the
        type of the array they go into.

        Args:
            values: One valid scalar for each dimension.

        Raises:
            ParameterError: The number of values is wrong, or a choice is unknown.
        """
        self._check_length(values)
        if not self._uniform:
            return tuple([s.key(v) for s, v in zip(self._scalars, values, strict=True)])
        if self._narrow is None:
            return tuple(values)
        return tuple(np.array(values, dtype=self._narrow).tolist())

    # Storage ------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serializable form; `from_dict` reads it back.

        Choices that JSON cannot hold (anything but ``None``, bool, int, float, str and
        tuples of these) are written by their `repr`, without memory addresses. That is
        enough to compare two spaces, but `from_dict` cannot rebuild such a choice.
        """
        return {
            "dimensions": [
                _dimension_to_dict(name, dimension)
                for name, dimension in zip(self.names, self.dimensions, strict=True)
            ],
            "layout": self._layout.to_dict(),
            "decimals": self._asked_decimals,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Space:
        """Rebuild a space from `to_dict`'s result, after a trip through JSON or not.

        Args:
            data: What `to_dict` returned.

        Raises:
            SpaceError: The data is damaged, or holds a choice that JSON cannot rebuild.
        """
        try:
            named = [(str(d["name"]), _dimension_from_dict(d)) for d in data["dimensions"]]
            layout = _node_from_dict(data["layout"])
            decimals = data["decimals"]
            made = cls.__new__(cls)
            if len(layout.dtypes()) != len(named):
                raise SpaceError("the stored space is damaged: layout and dimensions differ.")
            made._set_up(named, layout, decimals)
        except (KeyError, TypeError, AttributeError) as error:
            raise SpaceError(
                f"the stored space is damaged ({type(error).__name__}: {error}); "
                "expected what Space.to_dict returns."
            ) from error
        return made

    def to_json_values(self, values: Sequence[Value]) -> list[float | int]:
        """Return a flat point as JSON numbers: choices by their index.

        Args:
            values: One valid scalar for each dimension.

        Raises:
            ParameterError: A value does not belong to the space.
        """
        return [
            s.find(v) if isinstance(s, _Choice) else v
            for s, v in zip(self._scalars, self.check(values), strict=True)
        ]

    def from_json_values(self, values: Sequence[float | int]) -> tuple[Value, ...]:
        """Return the flat point that `to_json_values` wrote.

        Args:
            values: One number for each dimension.

        Raises:
            ParameterError: A number does not belong to the space.
        """
        self._check_length(values)
        flat: list[Value] = []
        for scalar, value in zip(self._scalars, values, strict=True):
            if isinstance(scalar, _Choice):
                if type(value) is not int or not 0 <= value < scalar.count:
                    raise ParameterError(
                        f"`{scalar.name}`: stored choice {value!r}; expected an index from 0 to "
                        f"{scalar.count - 1}."
                    )
                flat.append(scalar.choices[value])
            else:
                flat.append(scalar.check(value))
        return tuple(flat)
