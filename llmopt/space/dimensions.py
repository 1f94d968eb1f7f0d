"""Dimensions of a search space: what a single parameter may be.

A `Float`, an `Int` or a `Categorical` checks what it is given once, when it is made, and is
immutable from then on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeAlias, cast

import numpy as np

from llmopt.errors import SpaceError

# One scalar of one dimension: a float, an int, or a choice, which may be any hashable.
Value: TypeAlias = Any

# Integers are encoded as floats and stored as NumPy integers; this covers int64 and uint64.
_INT_LIMIT = 2**64
# With more steps, float64 could not tell rounding errors from the steps themselves.
_STEP_LIMIT = 10**12


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
        low, high = _finite("low", self.low), _finite("high", self.high)
        _check_order("Float", low, high, self.log)
        if not math.isfinite(high - low):
            raise SpaceError(
                f"Float({low!r}, {high!r}): high - low is too large for a float; "
                "give bounds that are closer together."
            )
        step = self.step
        if step is not None:
            step = _finite("step", step)
            _check_step("Float", step, self.log)
            if (high - low) / step > _STEP_LIMIT:
                raise SpaceError(
                    f"Float({low!r}, {high!r}): step={step!r} is too small to tell its values "
                    "apart; leave the step out for a continuous dimension."
                )
            places = max(decimal_places(low), decimal_places(step))
            high = grid_value(low, high, step, places, count_steps(low, high, step))
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
        low, high = _integer("low", self.low), _integer("high", self.high)
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
                first = seen.setdefault(identity(choice), position)
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
        return identity(self.choices) == identity(other.choices)

    def __hash__(self) -> int:
        return hash(identity(self.choices))

    def __repr__(self) -> str:
        return f"Categorical({list(self.choices)!r})"


Dimension: TypeAlias = Float | Int | Categorical


# Checks -------------------------------------------------------------------------------


def _freeze(dimension: Dimension, **fields: object) -> None:
    for name, value in fields.items():
        object.__setattr__(dimension, name, value)


def _describe(dimension: Float | Int, step: float | None) -> str:
    log = ", log=True" if dimension.log else ""
    by = "" if step is None else f", step={step!r}"
    return f"{type(dimension).__name__}({dimension.low!r}, {dimension.high!r}{log}{by})"


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


# Values -------------------------------------------------------------------------------


def decimal_places(number: float) -> int:
    """Decimals that the shortest exact notation of `number` has."""
    exponent = Decimal(repr(number)).normalize().as_tuple().exponent
    return max(0, -int(exponent))


def count_steps(low: float, high: float, step: float) -> int:
    """Whole steps from `low` to `high`, forgiving rounding errors of the three."""
    return math.floor((high - low) / step * (1 + 1e-15) + 1e-9)


def grid_value(low: float, high: float, step: float, places: int, k: int) -> float:
    """The value `k` steps above `low`, without the noise of float sums (0.3, not 0.30…04)."""
    return min(round(low + k * step, places), high) + 0.0


def level_count(dimension: Dimension) -> float:
    """How many values a dimension has; infinity for a continuous one."""
    if isinstance(dimension, Categorical):
        return len(dimension.choices)
    if dimension.low == dimension.high:
        return 1
    if dimension.step is None:
        return math.inf
    return round((dimension.high - dimension.low) / dimension.step) + 1


def as_number(value: object) -> float | int | None:
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


def identity(value: Any) -> Hashable:
    """Return a key that keeps 1, 1.0 and True apart and finds NaN again.

    Raises:
        TypeError: The value cannot be hashed.
    """
    if isinstance(value, np.generic):
        value = value.item()
    kind = type(value)
    if kind is tuple:
        return (kind, tuple([identity(v) for v in value]))
    if kind is float and value != value:
        return (kind, "nan")
    hash(value)
    return (kind, value)


def stable_repr(value: object) -> str:
    """`repr` without what differs from run to run: memory addresses, the order of a set."""
    if isinstance(value, frozenset):
        return f"frozenset({{{', '.join(sorted(map(stable_repr, value)))}}})"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


# JSON ---------------------------------------------------------------------------------


def dimension_to_dict(name: str, dimension: Dimension) -> dict[str, Any]:
    """A named dimension as JSON; `dimension_from_dict` reads it back."""
    data: dict[str, Any] = {"name": name, "type": type(dimension).__name__.lower()}
    if isinstance(dimension, Categorical):
        data["choices"] = [choice_to_json(choice) for choice in dimension.choices]
    else:
        data.update(low=dimension.low, high=dimension.high, log=dimension.log, step=dimension.step)
    return data


def dimension_from_dict(data: Mapping[str, Any]) -> Dimension:
    """The dimension that `dimension_to_dict` wrote.

    Raises:
        SpaceError: The data is damaged, or holds a choice that JSON cannot rebuild.
    """
    kind = data["type"]
    if kind == "categorical":
        return Categorical([choice_from_json(choice) for choice in data["choices"]])
    if kind in ("float", "int"):
        number = Float if kind == "float" else Int
        return number(data["low"], data["high"], log=data["log"], step=data["step"])
    raise SpaceError(f"unknown dimension type {kind!r}; expected float, int or categorical.")


def choice_to_json(choice: Hashable) -> Any:
    """A choice as JSON; one that JSON cannot hold is only identified, by its `repr`."""
    if choice is None or type(choice) in (bool, int, str):
        return choice
    if type(choice) is float:
        return choice if math.isfinite(choice) else {"float": repr(choice)}
    if type(choice) is tuple:
        return {"tuple": [choice_to_json(item) for item in choice]}
    return {"repr": stable_repr(choice)}


def choice_from_json(data: Any) -> Hashable:
    """The choice that `choice_to_json` wrote.

    Raises:
        SpaceError: The choice was only identified.
    """
    if not isinstance(data, Mapping):
        return cast(Hashable, data)
    if "float" in data:
        return float(data["float"])
    if "tuple" in data:
        return tuple(choice_from_json(item) for item in data["tuple"])
    raise SpaceError(
        f"the choice {data.get('repr')} cannot be rebuilt from JSON; "
        "make the space in code, as in the run that wrote it."
    )
