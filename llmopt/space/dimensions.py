"""Dimensions of a search space: `Float`, `Int` and `Categorical`, and their JSON.

A dimension is immutable and does all arithmetic with single values; `bound` gives it its name.
``check`` refuses a value that ``clip`` would move. ``format`` and ``parse`` are its text, ``draw``
takes a random number and ``decode`` a point of [0, 1], ``value`` and ``place`` count its values,
``key`` identifies one, and ``code`` and ``restore`` are for JSON. An experiment may have had what
cannot be proposed: ``check`` takes it if it was ``measured``.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Hashable, Iterable, Mapping, Set
from dataclasses import dataclass, field
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
    stable_repr,
)
from llmopt.space.when import When, read_when
from llmopt.util.numbers import read_number
from llmopt.util.text import a_type, nfc

__all__ = [
    "Categorical",
    "Dimension",
    "Float",
    "Int",
    "dimension_from_dict",
    "dimension_to_dict",
    "only",
]

# Text that is read as a string without quotes, and as nothing else.
_PLAIN_WORD = re.compile(r"(?:\d+-)?[^\W\d][\w.+/()#-]*(?: [\w.+/()#-]+)*")
_RESERVED = {"none", "null", "true", "false", "nan", "inf", "infinity"}


@dataclass(frozen=True, repr=False, eq=False, init=False)
class Categorical(BaseDimension):
    """One of several unordered choices.

    Choices may be any hashable values, ``None`` included. ``1``, ``1.0`` and ``True`` are
    three different choices. NumPy scalars become the Python scalars they hold.

    Args:
        choices: The choices, all different, in a reproducible order; or a mapping from short names
            to them: ``{"PPh3": "P(C1=CC=CC=C1)(C2=CC=CC=C2)C3=CC=CC=C3"}``. Prompts explain a name
            once and use it from then on. `ask` returns the value; `tell` takes value or name.
        when: As for `Float`.

    Attributes:
        labels: Text of each choice in prompts, all different: its name, if it has one.
        named: Whether the choices have names.

    Raises:
        SpaceError: There are no choices, two are equal, one is not hashable, their order is not
            fixed (a set), or a name is empty or another choice.
    """

    choices: tuple[Hashable, ...]
    when: Any
    labels: tuple[str, ...] = field(init=False)
    named: bool = field(init=False)
    _index: dict[Hashable, int] = field(init=False)

    def __init__(
        self,
        choices: Iterable[Hashable] | Mapping[str, Hashable] = (),
        *others: Hashable,
        when: Any = None,
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
        names = tuple(choices) if isinstance(choices, Mapping) else ()
        given = choices.values() if isinstance(choices, Mapping) else choices
        items = tuple(cast(Hashable, c.item()) if isinstance(c, np.generic) else c for c in given)
        if not items:
            raise SpaceError("Categorical([]): there are no choices; give at least one.")
        index: dict[Hashable, int] = {}
        for position, choice in enumerate(items):
            try:
                first = index.setdefault(identity(choice), position)
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
        count = len(items)
        labels = _names(names, index) if names else _labels(items)
        freeze(self, choices=items, labels=labels, named=bool(names), _index=index)
        freeze(self, when=read_when(when))
        freeze(self, _name="value", count=count, log=False, decimals=None)
        freeze(self, offset=0.0, span=float(count - 1))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Categorical):
            return NotImplemented
        same = identity(self.choices) == identity(other.choices) and self.labels == other.labels
        return same and self.when == other.when

    def __hash__(self) -> int:
        return hash(identity(self.choices))

    def __repr__(self) -> str:
        when = "" if self.when is None else f", when={self.when!r}"
        pairs = zip(self.labels, self.choices, strict=True)
        return f"Categorical({dict(pairs) if self.named else list(self.choices)!r}{when})"

    def code(self, value: Value) -> int:
        """Return the index of a choice, or raise `ParameterError`."""
        try:
            index = self._index.get(identity(value))
        except TypeError:
            index = None
        if index is not None:
            return index
        if self.named and value in self.labels:
            return self.labels.index(cast(str, value))
        near = [i for i, choice in enumerate(self.choices) if _stands_for(value, choice)]
        if len(near) == 1:
            return near[0]
        label = value if isinstance(value, str) else stable_repr(value)
        if isinstance(value, str) and label in self.labels:
            choice = self.choices[self.labels.index(label)]
            raise ParameterError(
                f"`{self._name}`={value!r} is {a_type(value)}; expected the choice "
                f"{choice!r}, {a_type(choice)}: write it without quotes"
            )
        texts = [c for c in self.choices if isinstance(c, str)]  # as they are to be given
        as_given = isinstance(value, str) and not self.named and len(texts) == len(self.choices)
        expected = did_you_mean(value, texts) if as_given else did_you_mean(label, self.labels)
        raise ParameterError(f"`{self._name}`={value!r} is not one of its choices; {expected}")

    key = place = code

    def restore(self, code: object) -> Hashable:
        """Return the choice of an index, or raise `ParameterError`."""
        if type(code) is not int or not 0 <= code < self.count:
            raise ParameterError(
                f"`{self._name}`: stored choice {code!r}; expected an index from 0 to "
                f"{len(self.choices) - 1}."
            )
        return self.choices[code]

    def check(self, value: Value, measured: bool = False) -> Hashable:
        """Return a choice in exact form, or raise `ParameterError`; also of one `measured`."""
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
        if not near and (number := read_number(text)) is not None:
            near = [i for i, choice in enumerate(self.choices) if as_number(choice) == number]
        if not near and folded == "null" and None in self.choices:
            near = [self.choices.index(None)]
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


def _names(names: tuple[Any, ...], index: Mapping[Hashable, int]) -> tuple[str, ...]:
    """Return the names of choices, or raise `SpaceError`; `index` has the choices by identity."""
    for position, name in enumerate(names):
        if not isinstance(name, str) or name != name.strip() or not (name and name.isprintable()):
            raise SpaceError(
                f"Categorical: the name {name!r} is no text without white space around it; give "
                "each choice a short name, as in {'PPh3': 'P(C1=CC=CC=C1)...'}"
            )
        if index.get(identity(name), position) != position:
            raise SpaceError(
                f"Categorical: {name!r} is the name of a choice, and another choice; rename it"
            )
    return tuple(map(nfc, names))


def _labels(choices: tuple[Hashable, ...]) -> tuple[str, ...]:
    """Return a different text for each choice: words as they are, else by `repr`."""
    plain = [
        type(c) is str and bool(_PLAIN_WORD.fullmatch(c)) and c.casefold() not in _RESERVED
        for c in choices
    ]
    texts = all(plain[i] for i, c in enumerate(choices) if type(c) is str)  # quoted all or none
    labels = [str(c) if type(c) is str and texts else stable_repr(c) for c in choices]
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


def only(dimension: Dimension, value: Value) -> Dimension:
    """Return a dimension with a single value, whose code and key stay as they are."""
    made = copy.copy(dimension)
    freeze(made, count=1, draw=lambda u: value, decode=lambda u: value, value=lambda k: value)
    if not isinstance(made, Categorical):
        freeze(made, low=value, high=value)
    return made


# JSON ---------------------------------------------------------------------------------


def dimension_to_dict(name: str, dimension: Dimension) -> dict[str, Any]:
    """Return a named dimension as JSON; `dimension_from_dict` reads it."""
    data: dict[str, Any] = {"name": name, "type": type(dimension).__name__.lower()}
    if isinstance(dimension, Categorical):
        data["choices"] = [choice_to_json(choice) for choice in dimension.choices]
        data.update({"names": list(dimension.labels)} if dimension.named else {})
    else:
        data.update(low=dimension.low, high=dimension.high, log=dimension.log, step=dimension.step)
        data.update({"unit": dimension.unit} if dimension.unit else {})
    return data if dimension.when is None else {**data, "when": dimension.when.to_json()}


def dimension_from_dict(data: Mapping[str, Any]) -> Dimension:
    """Return the dimension that `dimension_to_dict` wrote, or raise `SpaceError`."""
    kind = data["type"]
    when = When.from_json(data["when"]) if "when" in data else None
    if kind == "categorical":
        choices = [choice_from_json(choice) for choice in data["choices"]]
        if "names" in data:
            return Categorical(dict(zip(data["names"], choices, strict=True)), when=when)
        return Categorical(choices, when=when)
    if kind in ("float", "int"):
        number = Float if kind == "float" else Int
        ways = {name: data[name] for name in ("log", "step", "unit") if name in data}
        return number(data["low"], data["high"], when=when, **ways)
    raise SpaceError(f"unknown dimension type {kind!r}; expected float, int or categorical.")
