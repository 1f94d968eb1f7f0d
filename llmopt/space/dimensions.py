"""Dimensions of a search space: the values of a single parameter.

A `Float`, an `Int` or a `Categorical` checks its arguments when it is created, and is immutable.
Dimensions do all arithmetic with single values; a `Space` loops over them, and `bound` gives each
its name:

- ``check`` and ``clip`` return a value in exact form. A value that does not belong to the
  dimension is refused by ``check``; ``clip`` moves a number.
- ``format`` shows a value as text, and ``parse`` reads that.
- ``draw`` turns a random number into a value, ``decode`` a point of [0, 1].
- ``count`` is the number of values, and ``value(k)`` the one at place k.
- ``key`` identifies a value. ``code`` encodes it as a number, ``restore`` decodes it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np

from llmopt.errors import ParameterError, SpaceError, did_you_mean
from llmopt.space.numeric import BaseDimension, Float, Int, freeze
from llmopt.space.values import (
    Value,
    as_number,
    choice_from_json,
    choice_to_json,
    fold,
    identity,
    read_number,
    stable_repr,
)
from llmopt.space.when import When, read_when
from llmopt.util.text import a_type

__all__ = [
    "Categorical",
    "Dimension",
    "Float",
    "Int",
    "dimension_from_dict",
    "dimension_to_dict",
]

# Text that is read as a string without quotes, and as nothing else.
_PLAIN_WORD = re.compile(r"[^\W\d][\w.+/-]*(?: [\w.+/-]+)*")
_RESERVED = {"none", "null", "true", "false", "nan", "inf", "infinity"}


@dataclass(frozen=True, repr=False, eq=False)
class Categorical(BaseDimension):
    """One of several unordered choices.

    Choices may be any hashable values, ``None`` included. ``1``, ``1.0`` and ``True`` are
    three different choices. NumPy scalars become the Python scalars they hold.

    Args:
        choices: The choices, all different, in a reproducible order.
        when: As for `Float`.

    Raises:
        SpaceError: There are no choices, two are equal, one is not hashable, or their order is not
            fixed (a set).
    """

    choices: tuple[Hashable, ...]

    when: Any

    def __init__(
        self, choices: Iterable[Hashable] = (), *others: Hashable, when: Any = None
    ) -> None:
        if others:
            raise SpaceError(
                f"Categorical({choices!r}, {', '.join(map(repr, others))}): got "
                f"{1 + len(others)} arguments; give the choices as one list: "
                f"Categorical({[choices, *others]!r})"
            )
        if isinstance(choices, str | bytes | Set) or not isinstance(choices, Iterable):
            raise SpaceError(
                f"Categorical({choices!r}): the choices are {a_type(choices)}; "
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
                    "hashable value (a tuple for a list, say) or a name in its place."
                ) from None
            if first != position:
                raise SpaceError(
                    f"Categorical: choices[{first}] and choices[{position}] are the same, "
                    f"{choice!r}; leave one out."
                )
        freeze(self, choices=items, when=read_when(when))
        self._prepare("value", None, None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Categorical):
            return NotImplemented
        return identity(self.choices) == identity(other.choices) and self.when == other.when

    def __hash__(self) -> int:
        return hash(identity(self.choices))

    def __repr__(self) -> str:
        when = "" if self.when is None else f", when={self.when!r}"
        return f"Categorical({list(self.choices)!r}{when})"

    def _prepare(self, name: str, dtype: str | None, decimals: int | None) -> None:
        freeze(
            self,
            _name=name,
            _index={identity(c): i for i, c in enumerate(self.choices)},
            labels=_labels(self.choices),
            count=len(self.choices),
            log=False,
            offset=0.0,
            span=float(len(self.choices) - 1),
            decimals=None,
            narrow=None,
        )

    def code(self, value: Value) -> int:
        """Return the index of a choice, or raise `ParameterError`."""
        try:
            index = self._index.get(identity(value))
        except TypeError:
            index = None
        if index is not None:
            return index
        near = [i for i, choice in enumerate(self.choices) if _stands_for(value, choice)]
        if len(near) != 1:
            label = value if isinstance(value, str) else stable_repr(value)
            if label in self.labels and (choice := self.choices[self.labels.index(label)]) != value:
                raise ParameterError(
                    f"`{self._name}`={value!r} is {a_type(value)}; expected the choice "
                    f"{choice!r}, {a_type(choice)}: write it without quotes"
                )
            raise ParameterError(
                f"`{self._name}`={value!r} is not one of its choices; "
                f"{did_you_mean(label, self.labels)}"
            )
        return near[0]

    key = place = code

    def restore(self, code: object) -> Hashable:
        """Return the choice of an index, or raise `ParameterError`."""
        if type(code) is not int or not 0 <= code < self.count:
            raise ParameterError(
                f"`{self._name}`: stored choice {code!r}; expected an index from 0 to "
                f"{len(self.choices) - 1}."
            )
        return self.choices[code]

    def check(self, value: Value) -> Hashable:
        """Return a choice in exact form, or raise `ParameterError`."""
        return self.choices[self.code(value)]

    clip = check

    def value(self, k: int) -> Hashable:
        """Return choice number `k`."""
        return self.choices[k]

    def draw(self, u: float) -> Hashable:
        """Return the choice of a uniform number in [0, 1)."""
        return self.choices[int(u * self.count)]

    def decode(self, u: float) -> Hashable:
        """Return the choice nearest to a place in [0, 1]."""
        return self.choices[math.floor(u * self.span + 0.5)]

    def format(self, value: Value) -> str:
        """Return the text of a choice."""
        return self.labels[self.code(value)]

    def parse(self, text: str) -> Hashable:
        """Read the text of a choice, whatever its case, quotes and spaces."""
        text = text.strip()
        if text in self.labels:
            return self.choices[self.labels.index(text)]
        if text in self.choices:
            return self.check(text)
        folded = fold(text)
        near = [i for i, label in enumerate(self.labels) if fold(label) == folded]
        if not near:
            number = read_number(text)
            near = [
                i
                for i, choice in enumerate(self.choices)
                if (choice is None and folded == "null")
                or (number is not None and as_number(choice) == number)
            ]
        if len(near) != 1:
            expected = f"one of its choices; {did_you_mean(text, self.labels)}"
            raise self._unreadable(text, expected)
        return self.choices[near[0]]


Dimension: TypeAlias = Float | Int | Categorical


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


# JSON ---------------------------------------------------------------------------------


def dimension_to_dict(name: str, dimension: Dimension) -> dict[str, Any]:
    """A named dimension as JSON; `dimension_from_dict` reads it back."""
    data: dict[str, Any] = {"name": name, "type": type(dimension).__name__.lower()}
    if isinstance(dimension, Categorical):
        data["choices"] = [choice_to_json(choice) for choice in dimension.choices]
    else:
        data.update(low=dimension.low, high=dimension.high, log=dimension.log, step=dimension.step)
    # Left out where there is none, as in files of versions that knew of none.
    return data if dimension.when is None else {**data, "when": dimension.when.to_json()}


def dimension_from_dict(data: Mapping[str, Any]) -> Dimension:
    """The dimension that `dimension_to_dict` wrote, or a `SpaceError` where the data is damaged."""
    kind = data["type"]
    when = When.from_json(data["when"]) if "when" in data else None
    if kind == "categorical":
        return Categorical([choice_from_json(choice) for choice in data["choices"]], when=when)
    if kind in ("float", "int"):
        number = Float if kind == "float" else Int
        return number(data["low"], data["high"], log=data["log"], step=data["step"], when=when)
    raise SpaceError(f"unknown dimension type {kind!r}; expected float, int or categorical.")
