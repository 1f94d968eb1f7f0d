"""Spaces of other packages: ConfigSpace's, and Optuna's distributions.

Neither package is imported: an object of a module that was never imported cannot exist.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import product
from typing import Any

from llmopt.errors import SpaceError
from llmopt.space.dimensions import Categorical, Dimension, Float, Int
from llmopt.space.forms import is_gymnasium
from llmopt.space.values import as_number
from llmopt.space.when import Test, When

_MOST = 200  # alternatives of a condition
_CONJUNCTIONS = ("OrConjunction", "AndConjunction")
_SIGNS = {"LessThan": "<", "LessThanEquals": "<=", "GreaterThan": ">", "GreaterThanEquals": ">="}

Tests = tuple[Test, ...]


def _is(obj: object, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(obj, kind)


def read_dimension(name: str, given: Any) -> Dimension:
    """Return what a dict has under a name as a dimension, also a distribution of Optuna's.

    Raises:
        SpaceError: It is neither; the message names the dimension that the user probably meant.
    """
    if isinstance(given, Dimension):
        return given
    if _is(given, "optuna.distributions", "CategoricalDistribution"):
        return Categorical(given.choices)
    for kind, number in (("FloatDistribution", Float), ("IntDistribution", Int)):
        if _is(given, "optuna.distributions", kind):
            return number(given.low, given.high, log=given.log, step=given.step)
    meant = "expected Float(low, high), Int(low, high) or Categorical(choices)."
    if is_gymnasium(given):
        meant = "put all of them in a gymnasium.spaces.Dict and pass that."
    elif isinstance(given, tuple | list) and given:
        meant = f"for choices write Categorical({list(given)!r})"
        if len(given) == 2 and all(as_number(end) is not None for end in given):
            ends = f"({given[0]!r}, {given[1]!r})"
            meant = f"for a range write Float{ends}, or Int{ends} for whole numbers"
    raise SpaceError(f"Space: `{name}`={given!r} is not a dimension; {meant}")


def is_configspace(obj: object) -> bool:
    """Whether `obj` is a ``ConfigSpace.ConfigurationSpace``."""
    return _is(obj, "ConfigSpace", "ConfigurationSpace")


def read_configspace(space: Any) -> tuple[dict[str, Dimension], list[Tests]]:
    """Return the dimensions of a ConfigSpace, and its forbidden combinations of values.

    Priors (weights of choices, the shape of normal and beta distributions) are ignored: all
    values of a range are as likely. An ordinal becomes a list of choices, a constant a single one.

    Raises:
        SpaceError: A part has no counterpart here; it is named.
    """
    dimensions = {name: _dimension(name, part) for name, part in dict(space.items()).items()}
    children = {condition.child.name for condition in space.conditions}
    when: dict[str, list[Tests]] = {}
    for condition in space.conditions:
        name, more = condition.child.name, _alternatives(condition, children)
        when[name] = _joined(condition, when[name], more) if name in when else more
    for name, alternatives in when.items():
        dimensions[name] = dimensions[name].under(When(tuple(alternatives)))
    return dimensions, [t for clause in space.forbidden_clauses for t in _combinations(clause)]


def _kind(part: Any) -> str:
    return type(part).__name__.removeprefix("Forbidden").removesuffix("Clause")


def _dimension(name: str, part: Any) -> Dimension:
    kind = type(part).__name__.removesuffix("Hyperparameter")
    trouble = f"a {kind} has no counterpart; use a float, an integer, an ordinal, a constant or a "
    trouble += "list of choices"
    try:
        if kind == "Constant":
            return Categorical([part.value])
        if kind in ("Categorical", "Ordinal"):
            return Categorical(list(part.choices if kind == "Categorical" else part.sequence))
        if kind.endswith(("Float", "Integer")):
            low, high = part.lower, part.upper
            if low is not None and high is not None and math.isfinite(high - low):
                return (Float if kind.endswith("Float") else Int)(low, high, log=bool(part.log))
            trouble = f"it has no finite bounds [{low}, {high}]; give it some"
    except SpaceError as error:
        trouble = str(error)
    raise SpaceError(f"ConfigSpace, `{name}`: {trouble}")


def _compared(part: Any, sign: str, value: Any) -> Test:
    """Return a comparison; an ordinal's as the list of the values that meet it."""
    sequence = getattr(part, "sequence", None)
    if sequence is None:
        return Test(part.name, sign, value)
    meets = Test(part.name, sign, sequence.index(value))
    return Test(part.name, "in", tuple(c for k, c in enumerate(sequence) if meets.holds(k)))


def _joined(about: Any, left: list[Tests], right: list[Tests]) -> list[Tests]:
    if len(left) * len(right) > _MOST:
        raise SpaceError(
            f"ConfigSpace, {str(about)[:200]}: it has more than {_MOST} alternatives; write it "
            "with fewer"
        )
    return [(*a, *b) for a, b in product(left, right)]


def _conjunction(kind: str, whole: Any, parts: Sequence[list[Tests]]) -> list[Tests]:
    """Return the alternatives of an "or" or an "and" of parts."""
    if kind == "OrConjunction":
        return [tests for part in parts for tests in part]
    joined: list[Tests] = [()]
    for part in parts:
        joined = _joined(whole, joined, part)
    return joined


def _alternatives(condition: Any, children: set[str]) -> list[Tests]:
    """Return a condition as alternatives of tests."""
    kind = type(condition).__name__.removesuffix("Condition")
    if kind in _CONJUNCTIONS:
        parts = [_alternatives(component, children) for component in condition.components]
        return _conjunction(kind, condition, parts)
    parent = condition.parent
    if kind == "NotEquals" and parent.name in children:
        raise SpaceError(
            f"ConfigSpace, condition {condition}: ConfigSpace takes `{condition.child.name}` for "
            f"active where `{parent.name}` is not; name the values in an InCondition"
        )
    if kind in ("Equals", "NotEquals"):
        return [(Test(parent.name, "in" if kind == "Equals" else "not in", (condition.value,)),)]
    if kind == "In":
        return [(Test(parent.name, "in", tuple(condition.values)),)]
    return [(_compared(parent, _SIGNS[kind], condition.value),)]


def _combinations(clause: Any) -> list[Tests]:
    """Return the combinations of values that a clause forbids."""
    kind = _kind(clause)
    if kind in _CONJUNCTIONS:
        parts = [_combinations(component) for component in clause.components]
        return _conjunction(kind, clause, parts)
    if kind in ("Equals", "In"):
        values = (clause.value,) if kind == "Equals" else tuple(clause.values)
        return [(Test(clause.hyperparameter.name, "in", values),)]
    if kind in _SIGNS:
        return [(_compared(clause.hyperparameter, _SIGNS[kind], clause.value),)]
    raise SpaceError(
        f"ConfigSpace, {clause}: a relation of two parameters has no counterpart; leave the clause "
        'out, and give constraints=["a <= b"] if both are numbers'
    )
