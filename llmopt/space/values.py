"""Single values: numbers of any type, identity, and choices as JSON."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Hashable, Mapping
from decimal import Decimal
from typing import Any, TypeAlias, cast

import numpy as np

from llmopt.errors import SpaceError
from llmopt.util.text import nfc

Value: TypeAlias = Any
"""One scalar of one dimension: a float, an int, or a choice, which may be any hashable."""


class _Absent:
    """The value of an inactive parameter; a singleton, also after a copy or a pickle."""

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
    """Return a key that distinguishes 1, 1.0 and True, and is equal for two NaN."""
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
    """`repr` without what differs from run to run: addresses, the order of a set."""
    if isinstance(value, frozenset):
        return f"frozenset({{{', '.join(sorted(map(stable_repr, value)))}}})"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def decimal_places(number: float) -> int:
    """Return the decimals of the shortest exact notation of a number."""
    return max(0, -int(Decimal(repr(number)).normalize().as_tuple().exponent))


def fold(text: str) -> str:
    """Return text without case, quotes and white space, for a tolerant comparison."""
    return re.sub(r"[\s'\"`]+", "", nfc(text)).casefold()


def choice_to_json(choice: Hashable) -> Any:
    """Return a choice as JSON; what JSON cannot hold is only identified, by its `repr`."""
    if choice is None or type(choice) in (bool, int, str):
        return choice
    if type(choice) is float:
        return choice if math.isfinite(choice) else {"float": repr(choice)}
    if type(choice) is tuple:
        return {"tuple": [choice_to_json(item) for item in choice]}
    return {"repr": stable_repr(choice)}


def choice_from_json(data: Any) -> Hashable:
    """Return the choice that `choice_to_json` wrote, or raise `SpaceError`."""
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
