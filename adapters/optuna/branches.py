"""Spaces that grow with their points: which parameters a point may lack is learned from others."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmopt.space.dimensions import Categorical, Dimension
from llmopt.space.space import Space
from llmopt.space.values import ABSENT, Value
from llmopt.space.when import Shown
from llmopt.util.text import cut

_MOST_COUNTED = 10_000  # values of a parameter that may tell when another one is there
_SURE = 5  # points from which on a whole number may tell when a parameter is there
_MOST_CHOICES = 12  # that no trial has had and that are named
_CHOICE_LENGTH = 80  # characters
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
        """Return whether the parameter is active beside a value; ``None`` if unknown."""
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

    def active(self, value_of: Callable[[str], Value]) -> bool | None:
        """Say whether the parameter is there, by the values of others; ``None`` if unknown."""
        return self.holds(value_of(self.on))

    def said(self, shown: Shown) -> str:
        """Return the condition in words."""
        if (least := self.least) is not None:
            return f"only with {self.on} = {shown(self.on, least)} or more"
        texts = sorted(shown(self.on, v) for v in self.present if v is not ABSENT)
        more = ", …" if len(texts) > _MOST_NAMED else ""
        return f"only with {self.on} = {' or '.join(texts[:_MOST_NAMED])}{more}"


class BranchedSpace(Space):
    """A space whose points may lack some parameters, and in which some may be set already.

    The value of a parameter that a point lacks is `ABSENT`.

    Args:
        dimensions: As for `Space`.
        optional: The parameters that a point may lack, each with its condition, or ``None`` where
            nothing tells when it is there. A condition's own parameter comes first. A dimension's
            own condition (`when`) takes precedence.
        given: Values that every point has.
        unseen: Choices that no point has had. The other parameters of such a point are not
            known yet, so it needs none.

    Raises:
        SpaceError: See `Space`.
    """

    def __init__(
        self,
        dimensions: Mapping[str, Dimension],
        optional: Mapping[str, Any] | None = None,
        given: Mapping[str, Value] | None = None,
        unseen: Mapping[str, Iterable[Value]] | None = None,
    ) -> None:
        self._fixed: dict[int, Value] = {}
        self._loose: frozenset[int] = frozenset()
        super().__init__(dimensions)
        learned = {self.place[name]: rule for name, rule in (optional or {}).items()}
        self._fixed = {self.place[name]: value for name, value in (given or {}).items()}
        self._loose = frozenset(learned)
        self._rules |= {i: r for i, r in learned.items() if r is not None and i not in self._rules}
        self._order = (*(i for i in range(len(self)) if i not in self._rules), *self._rules)
        self.unseen = {
            self.place[name]: frozenset(values)
            for name, values in (unseen or {}).items()
            if values and self.place[name] not in self._fixed
        }
        self.cardinality = self._count()

    @property
    def _identity(self) -> tuple[object, ...]:
        learned = tuple(self._rules.items()), self._loose, tuple(self._fixed.items())
        return (*super()._identity, *learned)

    @property
    def not_tried(self) -> tuple[str, ...]:
        """Which choices no trial has had, in words: what else belongs to them is not known yet."""
        choices = [
            f"{self.names[i]} = {text}"
            for i, values in sorted(self.unseen.items())
            for text in sorted(self.format(i, value) for value in values)
        ]
        if not choices:
            return ()
        shown = [cut(text, _CHOICE_LENGTH) for text in choices[:_MOST_CHOICES]]
        if more := len(choices) - len(shown):
            shown.append(f"{more} other choices")
        return (
            f"no trial has had {' or '.join(shown)} yet. With such a choice parameters that are "
            "listed may not apply (leave them out), and others may come that are not listed: their "
            "first values are random",
        )

    @property
    def conditional(self) -> bool:
        """Whether a point may lack a parameter."""
        return bool(self._rules or self._loose)

    @property
    def asked(self) -> Sequence[int]:
        """Positions of the parameters that an answer may give."""
        return [i for i in range(len(self)) if i not in self._fixed]

    def condition(self, index: int) -> str:
        """Say in words when a parameter is active; nothing if it always is."""
        return super().condition(index) or ("not in every point" if index in self._loose else "")

    def active(self, index: int, values: Sequence[Value]) -> bool | None:
        """Whether the values of others make a parameter active; ``None`` if unknown."""
        if index in self._fixed:
            return self._fixed[index] is not ABSENT
        return None if index in self._loose - self._rules.keys() else super().active(index, values)

    def missing(self, point: Mapping[int, Value]) -> list[int]:
        """Return the positions of the values that a point still needs."""
        if any({**point, **self._fixed}.get(i, ABSENT) in new for i, new in self.unseen.items()):
            return []
        return [i for i in super().missing(point) if i not in self._fixed]

    def _settle(
        self, values: Sequence[Value], exact: Callable[[Dimension, Value], Value] | None = None
    ) -> list[Value]:
        return super()._settle([self._fixed.get(i, v) for i, v in enumerate(values)], exact)

    def _axis(self, index: int, point: Sequence[Value]) -> Iterable[Value]:
        fixed = index in self._fixed
        return (self._fixed[index],) if fixed else super()._axis(index, point)

    def keys_within(self, keys: Iterable[Any]) -> set[Hashable]:
        """Return the keys that points with the given values can have."""
        fixed = self._fixed
        own = self.key([fixed.get(i, ABSENT) for i in range(len(self))])
        return {key for key in keys if all(key[i] == own[i] for i in fixed)}


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
