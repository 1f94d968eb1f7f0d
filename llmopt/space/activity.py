"""Which parameters a point of a space has: conditions are checked, ordered and applied here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from llmopt.errors import ParameterError, SpaceError, did_you_mean
from llmopt.space.dimensions import Categorical, Dimension
from llmopt.space.values import ABSENT, Value
from llmopt.space.when import RELATIONS, Rule, Test, When


def settled(dimensions: Mapping[str, Dimension]) -> dict[str, When]:
    """Return the conditions of dimensions, their values in exact form.

    Returns:
        A condition for each name that has one. Each comes after those of the parameters that
        it depends on.

    Raises:
        SpaceError: A parameter that a condition names does not exist or cannot have the value
            named, no value at all meets a condition, or conditions go round in a circle.
    """
    given = {name: d.when for name, d in dimensions.items() if d.when is not None}
    for name, when in given.items():
        unknown = [other for other in when.names if other not in dimensions]
        if unknown:
            others = [other for other in dimensions if other != name]
            raise SpaceError(
                f"`{name}`: when names {unknown[0]!r}, which is no parameter of the space; "
                f"{did_you_mean(unknown[0], others)}"
            )
    try:
        order = list(TopologicalSorter({n: w.names for n, w in given.items()}).static_order())
    except CycleError as error:
        circle = " depends on ".join(f"`{name}`" for name in reversed(error.args[1]))
        raise SpaceError(
            f"the conditions go round in a circle: {circle}; leave `when` out of one of them"
        ) from None
    return {n: exact(f"`{n}`: when", given[n], dimensions) for n in order if n in given}


def exact(where: str, when: When, dimensions: Mapping[str, Dimension]) -> When:
    """Return a condition with the values of its parameters in exact form; see `settled`."""
    found = []
    for tests in when.alternatives:
        bound = tuple(_bound(where, test, dimensions[test.name]) for test in tests)
        for name in dict.fromkeys(test.name for test in bound):
            own = [test for test in bound if test.name == name]
            if not any(all(t.holds(v) for t in own) for v in _tried(dimensions[name], own)):
                raise SpaceError(
                    f"{where} {' and '.join(t.words(_plain) for t in own)} never holds: `{name}` "
                    f"is {dimensions[name]!r}; leave it out, or name values that `{name}` can have"
                )
        found.append(bound)
    return When(tuple(found))


def _plain(name: str, value: Value) -> str:
    return repr(value)


def _bound(where: str, test: Test, dimension: Dimension) -> Test:
    if test.ordered:
        if isinstance(dimension, Categorical):
            raise SpaceError(
                f"{where} {test.words(_plain)}: `{test.name}` is a choice, which has no order; "
                f"list the choices, such as [{dimension.choices[0]!r}]"
            )
        return test
    values = []
    for value in test.operand:
        try:
            values.append(dimension.check(value))
        except ParameterError as error:
            if callable(value):
                raise SpaceError(
                    f"{where} {test.name}={value!r} is a function, which can neither be stored "
                    'nor shown to a model; write a comparison such as (">", 2) or a list of values'
                ) from None
            comparison = value[0] if isinstance(value, tuple) and value else value
            if isinstance(comparison, str) and re.match(r"\s*[<>=!]", comparison):
                raise SpaceError(
                    f"{where}: {error} A comparison is a pair of a relation and a number, such as "
                    f'{{{test.name!r}: (">=", 2)}}, with one of {", ".join(RELATIONS)}'
                ) from None
            raise SpaceError(f"{where}: {error}") from None
    return replace(test, operand=tuple(values))


def _tried(dimension: Dimension, tests: Iterable[Test]) -> Sequence[Value]:
    """Return values of a dimension that include one that meets the tests, if any value does."""
    if isinstance(dimension, Categorical):
        return dimension.choices
    low, high = dimension.low, dimension.high
    ends = {low, high}
    for test in tests:
        operands = [test.operand] if test.ordered else test.operand
        ends.update(min(max(float(v), low), high) for v in operands)
    ordered = sorted(ends)
    step = dimension.step or 0
    near: list[Any] = [v + d for v in ordered for d in (0, -step, step)]
    between = [(a + b) / 2 for a, b in pairwise(ordered)]
    return [dimension.clip(v) for v in (*near, *between)]


class Activity:
    """Which parameters a point has, by its other values.

    Args:
        places: The position of each parameter, by name.
        dimensions: Their dimensions.
        rules: The conditions by position; those of parameters that others depend on come first.
        fixed: Values that every point has, by position; `ABSENT` for what none has.
        loose: Positions of what a point may lack whatever its other values.
        open_: Whether a point may lack a value that it needs, since it is known in part.

    Attributes:
        optional: Positions of all that a point may lack.
        settles: Whether `settled` may change a point: not all points have all parameters, or a
            value is fixed or open.
    """

    settles = True  # what earlier versions pickled lacks it

    def __init__(
        self,
        places: Mapping[str, int],
        dimensions: Sequence[Dimension],
        rules: Mapping[int, Rule],
        fixed: Mapping[int, Value] = MappingProxyType({}),
        loose: Iterable[int] = (),
        open_: bool = False,
    ) -> None:
        self._places, self._dimensions = places, dimensions
        self.rules, self.fixed = dict(rules), dict(fixed)
        self.optional = frozenset((*rules, *loose))
        self.settles = bool(self.optional or self.fixed or open_)
        self._order = (*(i for i in range(len(dimensions)) if i not in rules), *rules)

    def _says(self, index: int, point: Sequence[Value]) -> bool | None:
        """Say whether a point has a parameter; ``None`` where nothing tells."""
        rule = self.rules.get(index)
        if rule is None:
            return None if index in self.optional else True
        return rule.active(lambda name: point[self._places[name]])

    def settled(
        self,
        values: Sequence[Value],
        exact: Callable[[Dimension, Value], Value] = lambda dimension, value: value,
    ) -> list[Value]:
        """Return values in exact form, and `ABSENT` for what the point cannot have."""
        point = list(values)
        for i in self._order:
            if i in self.fixed:
                point[i] = self.fixed[i]
            elif self._says(i, point) is False:
                point[i] = ABSENT
            elif point[i] is not ABSENT:
                point[i] = exact(self._dimensions[i], point[i])
        return point

    def missing(self, given: Mapping[int, Value]) -> list[int]:
        """Return the positions of the values that a point still needs."""
        point = [given.get(i, ABSENT) for i in range(len(self._dimensions))]
        if self.rules:
            point = self.settled(point, _tame)
        lacking = [i for i, v in enumerate(point) if v is ABSENT and i not in self.fixed]
        return [i for i in lacking if self._says(i, point)]

    def points(self) -> Iterator[tuple[Value, ...]]:
        """Yield all points of finite dimensions, each once."""
        point: list[Value] = [ABSENT] * len(self._dimensions)
        axes: list[Iterator[Value]] = []
        while True:
            if len(axes) == len(point):
                yield tuple(point)
            else:
                axes.append(self._axis(self._order[len(axes)], point))
            while (value := next(axes[-1], axes)) is axes:
                axes.pop()
                if not axes:
                    return
            point[self._order[len(axes) - 1]] = value

    def _axis(self, index: int, point: Sequence[Value]) -> Iterator[Value]:
        """Return the values of a parameter beside those of the ones before it."""
        if index in self.fixed:
            return iter((self.fixed[index],))
        if self._says(index, point) is False:
            return iter((ABSENT,))
        dimension = self._dimensions[index]
        return (dimension.value(k) for k in range(int(dimension.count)))


def _tame(dimension: Dimension, value: Value) -> Value:
    """Return a value that may be out of range in exact form, or as it is if it has none."""
    try:
        return dimension.clip(value)
    except (ParameterError, OverflowError):
        return value
