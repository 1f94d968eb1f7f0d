"""Conditions as a user declares them: ``when={"optimizer": "sgd", "layers": (">", 2)}``.

A condition is a list of alternatives, each of them a list of tests that must all hold. A test
compares one parameter with a list of values or with a number, so that a condition can be stored and
stated in words. A test on an inactive parameter does not hold.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

from llmopt.errors import SpaceError
from llmopt.space.values import (
    ABSENT,
    Value,
    as_number,
    choice_from_json,
    choice_to_json,
    identity,
    stable_repr,
)
from llmopt.util.text import short

_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SETS = {"in": "in", "not in": "not in", "==": "in", "!=": "not in"}
RELATIONS = (*_SIGNS, *_SETS)
_MOST = 1000  # alternatives, tests of one alternative, and values of one test
_EXAMPLE = (
    'expected a dict such as {"optimizer": "sgd"}, {"optimizer": ["sgd", "rmsprop"]} or '
    '{"layers": (">", 2)}, or a list of such dicts, one of which must hold'
)

Shown = Callable[[str, Value], str]
"""Returns the text of a value of a parameter, by the parameter's name."""


class Rule(Protocol):
    """When a parameter is part of a point: declared (`When`), or learned from points."""

    def active(self, value_of: Callable[[str], Value]) -> bool | None:
        """Whether the values of others make the parameter active; ``None`` if unknown."""

    def said(self, shown: Shown) -> str:
        """Return the condition in words."""


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

    def holds(self, value: Value) -> bool:
        """Whether an exact value meets the test."""
        if value is ABSENT:
            return False
        if self.ordered:
            return _SIGNS[self.relation](value, self.operand)
        return (identity(value) in map(identity, self.operand)) == (self.relation == "in")

    def words(self, shown: Shown) -> str:
        """Return the test in words."""
        if self.ordered:
            return f"{self.name} {self.relation} {self.operand:.10g}"
        texts = [shown(self.name, value) for value in self.operand]
        sign = "=" if self.relation == "in" else "other than"
        return f"{self.name} {sign} {' or '.join(texts)}"

    def given(self) -> tuple[Any, ...]:
        """Return relation and operand as a user writes them."""
        return self.relation, self.operand if self.ordered else list(self.operand)


@dataclass(frozen=True)
class When:
    """When a parameter is part of a point: with any of the alternatives, whose tests all hold."""

    alternatives: tuple[tuple[Test, ...], ...]

    @property
    def tests(self) -> tuple[Test, ...]:
        """All tests."""
        return tuple(test for tests in self.alternatives for test in tests)

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that it depends on."""
        return tuple(dict.fromkeys(test.name for test in self.tests))

    def active(self, value_of: Callable[[str], Value]) -> bool | None:
        """Whether the exact values of others make the parameter active."""
        return any(all(t.holds(value_of(t.name)) for t in tests) for tests in self.alternatives)

    def said(self, shown: Shown) -> str:
        """Return the condition in words."""
        alternatives = [" and ".join(t.words(shown) for t in tests) for tests in self.alternatives]
        return f"only with {'; or with '.join(alternatives)}"

    def beside(self, values: Mapping[str, Value]) -> When | None:
        """Return the rest of the condition if some values are known; ``None`` if it is met.

        Without alternatives, the condition cannot hold.
        """
        left = [
            tuple(test for test in tests if test.name not in values)
            for tests in self.alternatives
            if all(test.holds(values[test.name]) for test in tests if test.name in values)
        ]
        return When(tuple(left)) if all(left) else None

    def __repr__(self) -> str:
        dicts = []
        for tests in self.alternatives:
            parts: dict[str, tuple[Any, ...]] = {}
            for test in tests:
                parts[test.name] = parts.get(test.name, ()) + test.given()
            dicts.append({name: _plain(part) for name, part in parts.items()})
        return repr(dicts[0] if len(dicts) == 1 else dicts)

    def to_json(self) -> list[Any]:
        """Return a JSON form; `from_json` reads it back."""
        return [
            [
                [
                    test.name,
                    test.relation,
                    test.operand if test.ordered else [choice_to_json(v) for v in test.operand],
                ]
                for test in tests
            ]
            for tests in self.alternatives
        ]

    @classmethod
    def from_json(cls, data: Sequence[Sequence[Sequence[Any]]]) -> When:
        """Return the condition that `to_json` wrote."""
        return cls(
            tuple(
                tuple(
                    Test(
                        str(name),
                        relation,
                        operand
                        if relation in _SIGNS
                        else tuple(choice_from_json(value) for value in operand),
                    )
                    for name, relation, operand in tests
                )
                for tests in data
            )
        )


def _plain(part: tuple[Any, ...]) -> Any:
    """Return a relation with its operand in the shortest form that reads as the same."""
    if len(part) == 2 and part[0] == "in":
        values = part[1]
        plain = len(values) == 1 and not isinstance(values[0], tuple)
        return values[0] if plain else values
    return part


def read_when(given: Any) -> When | None:
    """Return a condition as a user writes it; ``None`` for none.

    Raises:
        SpaceError: It has another form, or a comparison with something other than a number.
    """
    if given is None or isinstance(given, When):
        return given
    alternatives = [given] if isinstance(given, Mapping) else given
    if not isinstance(alternatives, list | tuple) or not _few(alternatives):
        raise SpaceError(f"when={short(given)}: {_EXAMPLE}")
    return When(tuple(_alternative(one) for one in alternatives))


def read_tests(given: Any) -> tuple[Test, ...]:
    """Return the tests of one dict, which must all hold; see `read_when`."""
    return _alternative(given)


def _few(items: Collection[Any]) -> bool:
    return 0 < len(items) <= _MOST


def _alternative(given: Any) -> tuple[Test, ...]:
    if not isinstance(given, Mapping) or not _few(given):
        raise SpaceError(f"when={short(given)}: {_EXAMPLE}")
    tests: list[Test] = []
    for name, operand in given.items():
        if not isinstance(name, str):
            raise SpaceError(f"when: {name!r} is no name of a parameter; {_EXAMPLE}")
        tests += [_test(name, *pair) for pair in _pairs(name, operand)]
    return tuple(tests)


def _pairs(name: str, given: Any) -> Iterable[tuple[str, Any]]:
    """Return each relation of a parameter with its operand."""
    if isinstance(given, Mapping):
        pairs = list(given.items())
    elif isinstance(given, tuple) and given and given[0] in RELATIONS:
        if len(given) % 2:
            raise SpaceError(
                f"when: {name}={given!r} is not pairs of a relation and a value; expected "
                'something like (">", 2) or (">=", 2, "<", 5)'
            )
        pairs = list(zip(given[::2], given[1::2], strict=True))
    elif isinstance(given, list | Set | range):
        pairs = [("in", given)]
    else:
        pairs = [("in", [given])]
    unknown = [relation for relation, _ in pairs if relation not in RELATIONS]
    if unknown or not pairs:
        raise SpaceError(
            f"when: {name}={short(given)} compares by {short((*unknown, None)[0])}; "
            f"expected one of {', '.join(RELATIONS)}"
        )
    return pairs


def _test(name: str, relation: str, operand: Any) -> Test:
    if relation in _SIGNS:
        number = as_number(operand)
        if number is None or number != number:
            raise SpaceError(
                f"when: {name} {relation} {short(operand)} compares with no number; give a "
                "number, or a list of values"
            )
        return Test(name, relation, number)
    if relation in ("==", "!="):
        operand = [operand]
    if isinstance(operand, Set):
        operand = sorted(operand, key=stable_repr)
    if not isinstance(operand, list | tuple | range) or not _few(operand):
        raise SpaceError(
            f"when: {name} {relation} {short(operand)} names no values; give a list of 1 to "
            f"{_MOST} values"
        )
    values: dict[Hashable, Value] = {}
    for value in operand:
        try:
            values.setdefault(identity(value), value)
        except TypeError:
            raise SpaceError(
                f"when: {name}={short(value)} cannot be hashed; give a value of {name}, a "
                'list of values, or a comparison such as (">", 2)'
            ) from None
    return Test(name, _SETS[relation], tuple(values.values()))
