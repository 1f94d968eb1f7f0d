"""Single values: numbers of any type, text of numbers, identity, and choices as JSON."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Hashable, Mapping
from decimal import Decimal
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np

from llmopt.errors import SpaceError
from llmopt.util.text import nfc

# One scalar of one dimension: a float, an int, or a choice, which may be any hashable.
Value: TypeAlias = Any


class _Absent:
    """The value of an inactive parameter; a singleton."""

    _only: ClassVar[_Absent | None] = None

    def __new__(cls) -> _Absent:
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only

    def __repr__(self) -> str:
        return "–"

    def __reduce__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()


def as_number(value: object) -> float | int | None:
    """Return a Python number for a real number of any type, ``None`` for anything else."""
    if type(value) is float or type(value) is int:
        return value
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, bool | np.bool_ | np.timedelta64):
        return None
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else None


def identity(value: Any) -> Hashable:
    """Return a key that keeps 1, 1.0 and True apart and finds NaN again."""
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
    """`repr` without the parts that differ from run to run: addresses, the order of a set."""
    if isinstance(value, frozenset):
        return f"frozenset({{{', '.join(sorted(map(stable_repr, value)))}}})"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


# Text ---------------------------------------------------------------------------------


def decimal_places(number: float) -> int:
    """Decimals that the shortest exact notation of `number` has."""
    exponent = Decimal(repr(number)).normalize().as_tuple().exponent
    return max(0, -int(exponent))


def fold(text: str) -> str:
    """Text without case, quotes and white space, for a forgiving comparison."""
    return re.sub(r"[\s'\"`]+", "", nfc(text)).casefold()


def _plain(text: str) -> str:
    """Text as Python writes numbers; nothing where only Python would take it for one."""
    return "" if "_" in text else text.strip().replace("\N{MINUS SIGN}", "-")


def read_float(text: str) -> float | None:
    """Read a finite number, ``None`` if the text is not one."""
    try:
        number = float(_plain(text))
    except ValueError:
        return None
    return number + 0.0 if math.isfinite(number) else None  # no negative zero


def read_number(text: str) -> float | int | None:
    """Read a finite number as `read_float` does. Integers stay exact, ``3.0`` becomes one."""
    try:
        return int(_plain(text))
    except ValueError:
        number = read_float(text)
        return int(number) if number is not None and number.is_integer() else number


# JSON ---------------------------------------------------------------------------------


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
    """The choice that `choice_to_json` wrote."""
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
