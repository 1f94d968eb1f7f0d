"""Spaces in which a parameter may be absent: `momentum`, say, where the optimizer is not sgd."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmopt.space.constraints import Constraint
from llmopt.space.dimensions import Categorical, Dimension
from llmopt.space.space import Space
from llmopt.space.values import ABSENT, Value

_MOST_COUNTED = 10_000  # points of a space that are gone through to count those that differ
_SURE = 5  # points from which on a whole number may tell when a parameter is there
_MOST_NAMED = 6  # values that the words of a condition name


@dataclass(frozen=True)
class Condition:
    """When a parameter is part of a point, by the value of another one.

    Attributes:
        on: The other parameter.
        present: Values of it with which the parameter was seen.
        absent: Values of it with which points lacked the parameter; ``ABSENT`` may be one.
    """

    on: str
    present: frozenset[Hashable]
    absent: frozenset[Hashable]

    def holds(self, value: Value) -> bool | None:
        """Say whether the parameter is there beside a value; ``None`` where nobody knows."""
        if value in self.present:
            return True
        if value is ABSENT or value in self.absent:
            return False
        least = self.least
        if least is None or not isinstance(value, int):
            return None
        known = [v for v in self.absent if isinstance(v, int)]
        return True if value >= least else False if known and value <= max(known) else None

    @property
    def least(self) -> int | None:
        """The least whole number with which it is there, if it is there from a number on."""
        present = [v for v in self.present if type(v) is int]
        absent = [v for v in self.absent if type(v) is int]
        if len(present) < len(self.present) or not present:
            return None
        return min(present) if absent and min(present) > max(absent) else None

    def words(self, shown: Callable[[Value], str]) -> str:
        """Return the condition in words; `shown` gives the text of a value."""
        if (least := self.least) is not None:
            return f"only with {self.on} = {shown(least)} or more"
        texts = sorted(shown(v) for v in self.present if v is not ABSENT)
        more = ", …" if len(texts) > _MOST_NAMED else ""
        return f"only with {self.on} = {' or '.join(texts[:_MOST_NAMED])}{more}"


class BranchedSpace(Space):
    """A space whose points may lack some parameters, and in which some may be set already.

    The value of a parameter that a point lacks is `ABSENT`.

    Args:
        dimensions: As for `Space`.
        optional: The parameters that a point may lack, each with its condition, or ``None`` where
            nothing tells when it is there. A condition's own parameter comes first.
        given: Values that every point has.
        unseen: Choices that no point has had. Nobody knows yet what else a point with one of them
            has, so that it needs nothing else.

    Raises:
        SpaceError: See `Space`.
    """

    def __init__(
        self,
        dimensions: Mapping[str, Dimension],
        optional: Mapping[str, Condition | None] | None = None,
        given: Mapping[str, Value] | None = None,
        unseen: Mapping[str, Iterable[Value]] | None = None,
    ) -> None:
        super().__init__(dimensions)
        self._uniform = False
        places = {name: i for i, name in enumerate(self.names)}
        self._fixed = {places[name]: value for name, value in (given or {}).items()}
        self._optional = {places[n]: c for n, c in (optional or {}).items()}
        self.unseen = {
            i: frozenset(values)
            for i, values in ((places[n], v) for n, v in (unseen or {}).items())
            if i not in self._fixed
        }
        self._on = {i: places[c.on] for i, c in self._optional.items() if c is not None}
        if self._fixed or self._optional:
            self.cardinality = self._count()

    def _count(self) -> float:
        sizes = [1.0 if i in self._fixed else float(d.count) for i, d in enumerate(self.dimensions)]
        count = float(np.prod(sizes))
        return float(len(self.points())) if count <= _MOST_COUNTED else count

    def points(self) -> list[tuple[Value, ...]]:
        """Return all points of a finite space, each once."""
        axes = [
            [self._fixed[i]] if i in self._fixed else [d.value(k) for k in range(int(d.count))]
            for i, d in enumerate(self.dimensions)
        ]
        found = {self.key(values): self.conform(values) for values in itertools.product(*axes)}
        return [values for values in found.values() if self.admits(values)]

    @property
    def _identity(self) -> tuple[object, ...]:
        return (*super()._identity, tuple(self._optional.items()), tuple(self._fixed.items()))

    @property
    def asked(self) -> tuple[int, ...]:
        """Positions of the parameters that an answer may give."""
        return tuple(i for i in range(len(self)) if i not in self._fixed)

    def missing(self, point: Mapping[int, Value]) -> list[int]:
        """Return the positions of the values that a point still needs."""
        values = {**point, **self._fixed}
        if any(values.get(i, ABSENT) in new for i, new in self.unseen.items()):
            return []
        found = []
        for i in self.asked:
            needed = i not in self._optional
            if i in self._on:
                needed = self._holds(i, values.get(self._on[i], ABSENT)) is True
            if needed and values.get(i, ABSENT) is ABSENT:
                found.append(i)
        return found

    def condition(self, index: int) -> str:
        """Say in words when a parameter is there; nothing where it always is."""
        if index not in self._optional:
            return ""
        condition = self._optional[index]
        if condition is None:
            return "not in every point"
        on = self._on[index]
        return condition.words(lambda value: self.format(on, value))

    def _holds(self, index: int, value: Value) -> bool | None:
        condition = self._optional[index]
        return None if condition is None else condition.holds(value)

    def conform(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Return a flat point with what is given, and without what it cannot have."""
        point = list(values)
        for i, value in self._fixed.items():
            point[i] = value
        for i, on in self._on.items():
            if i not in self._fixed and self._holds(i, point[on]) is False:
                point[i] = ABSENT
        return tuple(point)

    # Each method of `Space` that loops over the dimensions, with values that are absent --------

    def check(self, values: Sequence[Value]) -> tuple[Value, ...]:  # noqa: D102
        return tuple([v if v is ABSENT else d.check(v) for d, v in self._pairs(values)])

    def clip(self, values: Sequence[Value]) -> tuple[Value, ...]:  # noqa: D102
        pairs = self._pairs(self.conform(values))
        return tuple([v if v is ABSENT else d.clip(v) for d, v in pairs])

    def draw(self, rng: np.random.Generator) -> tuple[Value, ...]:  # noqa: D102
        return self.conform(super().draw(rng))

    def decode(self, unit: Sequence[float] | np.ndarray) -> tuple[Value, ...]:  # noqa: D102
        return self.conform(super().decode(unit))

    def encode(self, values: Sequence[Value]) -> np.ndarray:
        """Return a flat point as numbers in [0, 1]: see `Space.encode`. What is absent is 0.5."""
        lacking = [i for i, value in enumerate(values) if value is ABSENT]
        if not lacking:
            return super().encode(values)
        whole = [d.decode(0.5) if v is ABSENT else v for d, v in self._pairs(values)]
        units = super().encode(whole)
        units[lacking] = 0.5
        return units

    def key(self, values: Sequence[Value]) -> tuple[Hashable, ...]:  # noqa: D102
        pairs = self._pairs(self.conform(values))
        return tuple([v if v is ABSENT else d.key(v) for d, v in pairs])

    def keys_within(self, keys: Iterable[Any]) -> set[Hashable]:
        """Return those keys that points with what is given can have."""
        fixed = self.key([self._fixed.get(i, ABSENT) for i in range(len(self))])
        return {key for key in keys if all(key[i] == fixed[i] for i in self._fixed)}

    def format(self, index: int, value: Value) -> str:  # noqa: D102
        return repr(value) if value is ABSENT else super().format(index, value)

    def _constrain(self, constraints: str | Iterable[str | Constraint]) -> None:
        super()._constrain(constraints)
        if self._constraints and self._optional:
            self.cardinality = self._count()


def filled(space: Space, values: Sequence[Value], rng: np.random.Generator) -> tuple[Value, ...]:
    """Return a flat point with a random value for each that it lacks.

    Whoever computes with numbers takes these for the values: they tell nothing, and keep a range
    wide whose parameter few points have.
    """
    if ABSENT not in values:
        return tuple(values)
    pairs = zip(space.dimensions, values, rng.random(len(values)).tolist(), strict=True)
    return tuple([d.draw(u) if v is ABSENT else v for d, v, u in pairs])


def find_conditions(
    points: Sequence[Mapping[str, Value]], dimensions: Mapping[str, Dimension]
) -> dict[str, Condition | None]:
    """Find out from points which parameters may be absent, and what tells when they are.

    A parameter that every point has had since the first one with it counts as new, not as
    optional, unless the value of another parameter tells when it is there.

    Args:
        points: The parameters of each point by name, in order of time.
        dimensions: The dimension of each parameter.

    Returns:
        Their conditions by name, so that a condition's own parameter comes before it; ``None``
        where the values of no single parameter tell.
    """
    having = {name: tuple([name in point for point in points]) for name in dimensions}
    gates = {
        name: [point.get(name, ABSENT) for point in points]
        for name, dimension in dimensions.items()
        if dimension.count <= _MOST_COUNTED
    }
    found: dict[str, Condition | None] = {}
    told: dict[tuple[bool, ...], Condition | None] = {}  # many parameters come together
    # A parameter is there only where the one that tells so is: that one comes first.
    for name in sorted(dimensions, key=lambda n: -sum(having[n])):
        there = having[name]
        if all(there):
            continue
        if there not in told:
            known = [
                _condition(values, there, on, dimensions[on])
                for on, values in gates.items()
                if having[on] != there
            ]
            told[there] = min(
                filter(None, known), key=lambda c: _doubt(c, dimensions[c.on]), default=None
            )
        first = there.index(True) if any(there) else 0
        if told[there] is not None or not all(there[first:]):
            found[name] = told[there]
    return found


def _condition(
    values: Sequence[Value], there: Sequence[bool], on: str, dimension: Dimension
) -> Condition | None:
    """Return the condition on a parameter that tells points with another one from those without.

    `values` are those of the parameter `on` in each point.
    """
    sides: tuple[set[Value], set[Value]] = set(), set()
    for value, has in zip(values, there, strict=True):
        if value in sides[not has] or (has and value is ABSENT):
            return None
        sides[has].add(value)
    condition = Condition(on, frozenset(sides[True]), frozenset(sides[False]))
    if not sides[True]:
        return None
    if isinstance(dimension, Categorical):
        return condition
    # Any number tells a few points apart by chance.
    sure = len(values) >= _SURE and condition.least is not None
    return condition if sure else None


def _doubt(condition: Condition, dimension: Dimension) -> tuple[bool, bool, int]:
    """Order conditions that say the same of all points: the likeliest first."""
    numbers = not isinstance(dimension, Categorical)
    return numbers, ABSENT in condition.absent, len(condition.present | condition.absent)
