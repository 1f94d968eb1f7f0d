"""Conditions as a user declares them: ``when={"optimizer": "sgd", "layers": (">", 2)}``.

A condition is a list of alternatives, each of them a list of tests that must all hold. A test
compares one parameter with a list of values or with a number, so that a condition can be stored and
stated in words. A test on an inactive parameter does not hold.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

from llmopt.errors import ParameterError, SpaceError, did_you_mean
from llmopt.space.values import (
    ABSENT,
    Value,
    as_number,
    choice_from_json,
    choice_to_json,
    identity,
    stable_repr,
)
from llmopt.util.text import nfc, short

_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SETS = {"in": "in", "not in": "not in", "==": "in", "!=": "not in"}
RELATIONS = (*_SIGNS, *_SETS)

Shown = Callable[[str, Value], str]
"""Returns the text of a value of a parameter, by the parameter's name."""


@dataclass(frozen=True)
class Test:
    """A test of the value of one parameter.

    Attributes:
        name: The parameter.
        relation: ``"in"``, ``"not in"``, ``"<"``, ``"<="``, ``">"`` or ``">="``.
        operand: A tuple of values after ``"in"`` and ``"not in"``, else a number.
    """

    __test__ = False  # no test of pytest's

    name: str
    relation: str
    operand: Any

    @property
    def ordered(self) -> bool:
        """Whether the relation is one of numbers."""
        return self.relation in _SIGNS

    @property
    def values(self) -> tuple[Value, ...]:
        """The values that it names."""
        return (self.operand,) if self.ordered else self.operand

    def holds(self, value: Value) -> bool:
        """Whether an exact value meets the test."""
        if value is ABSENT:
            return False
        if self.ordered:
            return _SIGNS[self.relation](value, self.operand)
        return (identity(value) in map(identity, self.operand)) == (self.relation == "in")

    def words(self, shown: Shown = lambda name, value: repr(value)) -> str:
        """Return the test in words."""
        if self.ordered:
            return f"{self.name} {self.relation} {self.operand:.10g}"
        sign = "=" if self.relation == "in" else "other than"
        return f"{self.name} {sign} {' or '.join(shown(self.name, v) for v in self.operand)}"


@dataclass(frozen=True)
class When:
    """When a parameter is part of a point: with any of the alternatives, whose tests all hold."""

    alternatives: tuple[tuple[Test, ...], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that it depends on."""
        return tuple(dict.fromkeys(test.name for tests in self.alternatives for test in tests))

    def active(self, value_of: Callable[[str], Value]) -> bool | None:
        """Whether the exact values of others make the parameter active."""
        return any(all(t.holds(value_of(t.name)) for t in tests) for tests in self.alternatives)

    def said(self, shown: Shown) -> str:
        """Return the condition in words."""
        alternatives = [" and ".join(t.words(shown) for t in tests) for tests in self.alternatives]
        return f"only with {'; or with '.join(alternatives)}"

    def __repr__(self) -> str:
        dicts = []
        for tests in self.alternatives:
            parts: dict[str, Any] = {}
            for test in tests:
                operand = test.operand if test.ordered else list(test.operand)
                parts[test.name] = (*parts.get(test.name, ()), test.relation, operand)
            dicts.append(parts)
        return repr(dicts[0] if len(dicts) == 1 else dicts)

    def to_json(self) -> list[Any]:
        """Return a JSON form; `from_json` reads it."""

        def operand(test: Test) -> Any:
            return test.operand if test.ordered else [choice_to_json(v) for v in test.operand]

        return [[[t.name, t.relation, operand(t)] for t in tests] for tests in self.alternatives]

    @classmethod
    def from_json(cls, data: Sequence[Sequence[Sequence[Any]]]) -> When:
        """Return the condition that `to_json` wrote."""

        def test(name: Any, relation: str, operand: Any) -> Test:
            values = operand if relation in _SIGNS else tuple(map(choice_from_json, operand))
            return Test(str(name), relation, values)

        return cls(tuple(tuple(test(*one) for one in tests) for tests in data))


# Reading ------------------------------------------------------------------------------


def read_when(given: Any) -> When | None:
    """Return a condition as a user writes it; ``None`` for none.

    Raises:
        SpaceError: It has another form, or a comparison with something other than a number.
    """
    if given is None or isinstance(given, When):
        return given
    alternatives = given if isinstance(given, list | tuple) and given else [given]
    return When(tuple(map(read_tests, alternatives)))


def read_tests(given: Any) -> tuple[Test, ...]:
    """Return the tests of one dict, which must all hold; see `read_when`."""
    if not isinstance(given, Mapping) or not given or not all(isinstance(n, str) for n in given):
        raise SpaceError(
            f'when={short(given)}: expected a dict such as {{"optimizer": "sgd"}}, '
            '{"optimizer": ["sgd", "rmsprop"]} or {"layers": {">": 2}}, or a list of such dicts, '
            "one of which must hold"
        )
    return tuple(test for name, operand in given.items() for test in _tests(name, operand))


def _tests(name: str, given: Any) -> list[Test]:
    pairs: Iterable[tuple[Any, Any]] = [
        ("in", given if isinstance(given, list | Set | range) else [given])
    ]
    tests = []
    try:
        if isinstance(given, Mapping):
            pairs = given.items()
        elif isinstance(given, tuple) and given and given[0] in RELATIONS:
            pairs = zip(given[::2], given[1::2], strict=True)
        for relation, operand in pairs:
            if relation in _SIGNS:
                number = as_number(operand)
                if number is None or number != number:
                    raise ValueError
                tests.append(Test(name, relation, number))
                continue
            if relation in ("==", "!="):
                operand = [operand]
            elif isinstance(operand, Set):
                operand = sorted(operand, key=stable_repr)
            values = {} if isinstance(operand, str) else {identity(v): v for v in operand}
            if not values:
                raise ValueError
            tests.append(Test(name, _SETS[relation], tuple(values.values())))
        if not tests:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise SpaceError(
            f"when: {name}={short(given)}: expected a value of {name}, a list of values, or a "
            f'comparison such as {{">": 2}} or {{">=": 2, "<": 5}}, with {", ".join(RELATIONS)}'
        ) from None
    return tests


# In a space ---------------------------------------------------------------------------


def settled(dimensions: Mapping[str, Any]) -> dict[str, When]:
    """Return the conditions of dimensions in exact form, in an order in which they can be applied.

    Raises:
        SpaceError: A parameter that a condition names does not exist or cannot have the value
            named, or conditions go round in a circle.
    """
    conditions = {
        name: exact(f"`{name}`: when", dimension.when, dimensions)
        for name, dimension in dimensions.items()
        if dimension.when is not None
    }
    try:
        order = TopologicalSorter({n: w.names for n, w in conditions.items()}).static_order()
        return {name: conditions[name] for name in order if name in conditions}
    except CycleError as error:
        circle = " depends on ".join(f"`{name}`" for name in reversed(error.args[1]))
        raise SpaceError(
            f"the conditions go round in a circle: {circle}; leave `when` out of one of them"
        ) from None


def exact(where: str, when: When, dimensions: Mapping[str, Any]) -> When:
    """Return a condition with the names and values of its parameters in exact form."""
    names = {nfc(name): name for name in dimensions}

    def bound(test: Test) -> Test:
        if (name := names.get(nfc(test.name))) is None:
            raise SpaceError(
                f"{where} names {test.name!r}, which is no parameter of the space; "
                f"{did_you_mean(test.name, dimensions)}"
            )
        if not test.ordered:
            try:
                return Test(name, test.relation, tuple(map(dimensions[name].check, test.operand)))
            except ParameterError as error:
                raise SpaceError(
                    f'{where}: {error} (a comparison is {{">=": 2}}, in TOML {{ ">=" = 2 }})'
                ) from None
        if choices := getattr(dimensions[name], "choices", ()):
            raise SpaceError(
                f"{where} {test.words()}: `{name}` is a choice, which has no order; "
                f"list the choices, such as [{choices[0]!r}]"
            )
        return replace(test, name=name)

    alternatives = [tuple(map(bound, tests)) for tests in when.alternatives]
    return When(tuple(alternatives))
