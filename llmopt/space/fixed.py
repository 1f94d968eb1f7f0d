"""Values that the next points keep, as an experiment or a user fixes them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from llmopt.errors import ParameterError, SpaceError, did_you_mean
from llmopt.space.space import Space
from llmopt.space.values import ABSENT, Value
from llmopt.util.caller import CALLER
from llmopt.util.text import cut, short


@dataclass(frozen=True)
class _Present:
    """A limit of a space: each point has a parameter."""

    name: str
    text: str
    factors: ClassVar[tuple[tuple[str, float], ...]] = ()

    def amount(self, point: Mapping[str, Any]) -> float:
        return float(point[self.name] is ABSENT)


@dataclass(frozen=True)
class Fixed:
    """Values of some parameters of a space, by position.

    Attributes:
        space: The whole space.
        values: The values.
        words: What the user said of them.
    """

    space: Space
    values: Mapping[int, Value] = field(hash=False)
    words: str = ""

    @classmethod
    def of(cls, space: Space, given: Any, words: str = "") -> Fixed:
        """Check values by the names of parameters.

        Raises:
            ParameterError: A name or a value does not belong to the space, or no point has them.
        """
        if not isinstance(given, Mapping) or not given:
            raise ParameterError(
                f"fixed={short(given)}: expected values by the names of parameters, such as "
                f"{{{space.names[0]!r}: ...}}"
            )
        for name in given:
            if name not in space.place:
                given_as = CALLER.get().argument("fixed", repr(name))
                raise ParameterError(f"{given_as}: {did_you_mean(str(name), space.names)}")
        places = {space.place[name]: value for name, value in given.items()}
        fixed = cls(space, {i: space.dimensions[i].check(v) for i, v in places.items()}, words)
        if space.candidates is not None:
            space.candidates.check_loaded(str(fixed))
        _ = fixed.inside
        return fixed

    @classmethod
    def some(cls, space: Space, given: Any) -> bool:
        """Whether something gives some parameters of a space, and not all of a point."""
        if not isinstance(given, Mapping) or not given or not given.keys() < set(space.names):
            return False
        try:
            space.flatten(given)
        except ParameterError:
            return True
        return False

    @classmethod
    def read(cls, space: Space, line: Mapping[str, Any], words: str = "") -> Fixed:
        """Return what `to_json` wrote."""
        values = {
            space.place[n]: d.check(d.restore(v))
            for n, v in line.items()
            for d in (space.dimensions[space.place[n]],)
        }
        return cls(space, values, words)

    def to_json(self) -> dict[str, Any]:
        """Return the values by name, as a file holds them."""
        space = self.space
        return {space.names[i]: space.dimensions[i].code(v) for i, v in self.values.items()}

    def named(self) -> dict[str, Value]:
        """Return the values by name."""
        return {self.space.names[i]: value for i, value in self.values.items()}

    def __str__(self) -> str:
        return self._shown(self.space.names, " = ")

    def _shown(self, labels: Sequence[str], mark: str) -> str:
        def text(i: int, value: Any) -> str:  # a number in full
            exact = isinstance(value, float)
            return f"{value:.9g}" if exact else self.space.format(i, value)

        return ", ".join(f"{labels[i]}{mark}{text(i, v)}" for i, v in self.values.items())

    def note(self, labels: Sequence[str]) -> str:
        """Return the line of a prompt that asks for these values."""
        why = f" ({self.words.strip()})" if self.words.strip() else ""
        shown = self._shown(labels, ": ")
        return (
            f"The next experiment{why} has {shown}. Give these values in it, and choose the others."
        )

    @cached_property
    def inside(self) -> Space:
        """The part of the space that has the values.

        Raises:
            ParameterError: It is empty.
        """
        given = self.named()
        for limit in self.space.limits:
            if limit.names <= given.keys() and (amount := limit.amount(given)):
                by = f" by {amount:.3g}" if limit.factors else ""  # a combination has no amount
                raise ParameterError(f"{self} breaks {limit.text}{by}")
        names = [self.space.names[i] for i in self.values if self.space.condition(i)]
        try:
            return self.space.pinned(self.values, [_Present(n, f"a {n}") for n in names])
        except SpaceError as error:
            add = "" if self.space.candidates is None else "add one, or "
            raise ParameterError(f"{self.missing}: {add}give other values") from error

    @property
    def missing(self) -> str:
        """What to say if no point has the values."""
        table, limits = self.space.candidates, cut("; ".join(self.space.constraints), 1000)
        within = f" within the constraints ({limits})" if limits else ""
        return f"no {'point' if table is None else table.row} has {self}{within}"

    def keeps(self, values: Sequence[Value]) -> bool:
        """Whether a flat point has the values."""
        return all(values[i] is not ABSENT and values[i] == v for i, v in self.values.items())

    def contradiction(self, values: Sequence[Value]) -> str:
        """Return the values of a flat point that differ from these as a prompt shows them."""
        text = self.space.format
        other = {
            i: values[i]
            for i, v in self.values.items()
            if values[i] is not ABSENT and values[i] != v and text(i, values[i]) != text(i, v)
        }
        return str(Fixed(self.space, other)) if other else ""

    def apply(self, values: Sequence[Value]) -> tuple[Value, ...] | None:
        """Return a flat point with the values; ``None`` if it then lacks others."""
        point = self.space.conform([self.values.get(i, v) for i, v in enumerate(values)])
        whole = self.keeps(point) and not self.space.missing(dict(enumerate(point)))
        return point if whole else None

    def seen(self, keys: set[Hashable]) -> set[Hashable]:
        """Return the keys of points that have the values."""
        mine: Any = self.space.key(self.inside.sample(np.random.default_rng(0)))
        return {k for k in keys if all(k[i] == mine[i] for i in self.values)}  # type: ignore[index]
