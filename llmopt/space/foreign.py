"""Spaces of other packages: ConfigSpace's, and Optuna's distributions.

Neither package is imported: an object of a module that was never imported cannot exist.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

from llmopt.errors import SpaceError
from llmopt.space.dimensions import Categorical, Dimension, Float, Int
from llmopt.space.when import Test, When

_MOST = 200  # alternatives of a condition, and values that a forbidden relation is written out for
_KINDS = ("Uniform", "Normal", "Beta")
_SIGNS = {"Less": "<", "Greater": ">"}
_FORBIDDEN_SIGNS = {
    "LessThanClause": "<",
    "LessThanEqualsClause": "<=",
    "GreaterThanClause": ">",
    "GreaterThanEqualsClause": ">=",
}
_KEPT = {  # the inequality that a forbidden relation leaves
    "LessThanRelation": ">=",
    "LessThanEqualsRelation": ">",
    "GreaterThanRelation": "<=",
    "GreaterThanEqualsRelation": "<",
}


def _is(obj: object, module: str, kind: str) -> bool:
    found = getattr(sys.modules.get(module), kind, None)
    return isinstance(found, type) and isinstance(obj, found)


# Optuna -------------------------------------------------------------------------------


def is_distribution(obj: object) -> bool:
    """Whether `obj` is a distribution of Optuna's."""
    return _is(obj, "optuna.distributions", "BaseDistribution")


def read_distribution(distribution: Any) -> Dimension:
    """Return a distribution of Optuna's as a dimension.

    Raises:
        SpaceError: It is of another kind than float, int and categorical, or has a choice that
            cannot be hashed.
    """
    kind = type(distribution).__name__
    if kind == "CategoricalDistribution":
        return Categorical(distribution.choices)
    if kind in ("FloatDistribution", "IntDistribution"):
        number = Float if kind == "FloatDistribution" else Int
        low, high = distribution.low, distribution.high
        return number(low, high, log=distribution.log, step=distribution.step)
    raise SpaceError(
        f"{kind} is not known; expected a FloatDistribution, IntDistribution or "
        "CategoricalDistribution"
    )


# ConfigSpace --------------------------------------------------------------------------


def is_configspace(obj: object) -> bool:
    """Whether `obj` is a ``ConfigSpace.ConfigurationSpace``."""
    return _is(obj, "ConfigSpace", "ConfigurationSpace")


def read_configspace(
    space: Any,
) -> tuple[dict[str, Dimension], list[str], list[tuple[Test, ...]]]:
    """Return the dimensions of a ConfigSpace, its constraints, and forbidden combinations.

    Priors (weights of choices, the shape of normal and beta distributions) are ignored: all
    values of a range are as likely. An ordinal becomes a list of choices, a constant a single one.

    Raises:
        SpaceError: A part has no counterpart here; it is named.
    """
    parts = dict(space.items())
    dimensions = {name: _dimension(name, part) for name, part in parts.items()}
    when: dict[str, list[tuple[Test, ...]]] = {}
    conditional = {condition.child.name for condition in space.conditions}
    for condition in space.conditions:
        name = condition.child.name
        found = _alternatives(condition, conditional)
        when[name] = _joined(condition, when[name], found) if name in when else found
    for name, alternatives in when.items():
        dimensions[name] = dimensions[name].under(When(tuple(alternatives)))
    constraints: list[str] = []
    forbidden: list[tuple[Test, ...]] = []
    for clause in space.forbidden_clauses:
        kind = type(clause).__name__.removeprefix("Forbidden")
        if kind in _KEPT and not any(
            isinstance(dimensions[part.name], Categorical) for part in (clause.left, clause.right)
        ):
            constraints.append(f"{clause.left.name} {_KEPT[kind]} {clause.right.name}")
        else:
            forbidden += _combinations(clause, dimensions)
    return dimensions, constraints, forbidden


def _dimension(name: str, part: Any) -> Dimension:
    kind = type(part).__name__.removesuffix("Hyperparameter")
    try:
        if kind == "Constant":
            return Categorical([part.value])
        if kind in ("Categorical", "Ordinal"):
            return Categorical(list(part.choices if kind == "Categorical" else part.sequence))
        if kind.startswith(_KINDS) and kind.endswith(("Float", "Integer")):
            low, high = part.lower, part.upper
            if low is None or high is None or not math.isfinite(high - low):
                raise SpaceError(f"it has no finite bounds [{low}, {high}]; give it some")
            step = getattr(part, "q", None)  # ConfigSpace before 1.0
            number = Float if kind.endswith("Float") else Int
            return number(low, high, log=bool(part.log), step=step)
    except SpaceError as error:
        raise SpaceError(f"ConfigSpace, `{name}`: {error}") from None
    raise SpaceError(
        f"ConfigSpace, `{name}`: a {kind} has no counterpart; use a float, an integer, an "
        "ordinal, a constant or a list of choices with bounds"
    )


def _alternatives(condition: Any, conditional: set[str]) -> list[tuple[Test, ...]]:
    """Return a condition as alternatives of tests."""
    kind = type(condition).__name__
    if kind == "OrConjunction":
        return [tests for c in condition.components for tests in _alternatives(c, conditional)]
    if kind == "AndConjunction":
        found: list[tuple[Test, ...]] = [()]
        for component in condition.components:
            found = _joined(condition, found, _alternatives(component, conditional))
        return found
    parent = condition.parent
    if kind == "NotEqualsCondition" and parent.name in conditional:
        raise SpaceError(
            f"ConfigSpace, condition {condition}: ConfigSpace takes `{condition.child.name}` for "
            f"active where `{parent.name}` is not; name the values in an InCondition"
        )
    if kind in ("EqualsCondition", "NotEqualsCondition"):
        relation = "in" if kind == "EqualsCondition" else "not in"
        return [(Test(parent.name, relation, (condition.value,)),)]
    if kind == "InCondition":
        return [(Test(parent.name, "in", tuple(condition.values)),)]
    sign = _SIGNS.get(kind.removesuffix("ThanCondition"))
    if sign is None:
        raise SpaceError(f"ConfigSpace: the condition {condition} is of no known kind, {kind}")
    return [(_compared(parent, sign, condition.value),)]


def _compared(part: Any, sign: str, value: Any) -> Test:
    """Return a comparison; an ordinal's as the list of the values that meet it."""
    sequence = getattr(part, "sequence", None)
    if sequence is None:
        return Test(part.name, sign, value)
    ranks = {choice: k for k, choice in enumerate(sequence)}
    meets = Test(part.name, sign, ranks[value])
    return Test(part.name, "in", tuple(c for c in sequence if meets.holds(ranks[c])))


def _joined(
    condition: Any, left: list[tuple[Test, ...]], right: list[tuple[Test, ...]]
) -> list[tuple[Test, ...]]:
    if len(left) * len(right) > _MOST:
        raise SpaceError(
            f"ConfigSpace, condition {str(condition)[:200]}: it has more than {_MOST} "
            "alternatives; write it with fewer"
        )
    return [(*a, *b) for a, b in product(left, right)]


def _combinations(clause: Any, dimensions: Mapping[str, Dimension]) -> list[tuple[Test, ...]]:
    """Return the combinations of values that a clause forbids."""
    kind = type(clause).__name__.removeprefix("Forbidden")
    if kind == "OrConjunction":
        return [tests for c in clause.components for tests in _combinations(c, dimensions)]
    if kind == "AndConjunction":
        found: list[tuple[Test, ...]] = [()]
        for component in clause.components:
            found = _joined(clause, found, _combinations(component, dimensions))
        return found
    if kind == "EqualsClause":
        return [(Test(clause.hyperparameter.name, "in", (clause.value,)),)]
    if kind == "InClause":
        return [(Test(clause.hyperparameter.name, "in", tuple(clause.values)),)]
    if kind in _FORBIDDEN_SIGNS:
        return [(_compared(clause.hyperparameter, _FORBIDDEN_SIGNS[kind], clause.value),)]
    if kind.endswith("Relation"):
        return _related(clause, clause.is_forbidden_value, dimensions)
    raise SpaceError(f"ConfigSpace: the clause {clause} is of no known kind, {kind}")


def _related(
    clause: Any, forbids: Callable[[dict[str, Any]], bool], dimensions: Mapping[str, Dimension]
) -> list[tuple[Test, ...]]:
    """Return the pairs of values that a relation of two parameters forbids, if they are few."""
    left, right = (dimensions[part.name] for part in (clause.left, clause.right))
    names = clause.left.name, clause.right.name
    if left.count * right.count > _MOST**2:
        raise SpaceError(
            f"ConfigSpace, {clause}: only an inequality of two numbers, or a relation of few "
            "values, can be taken over; leave the clause out, or give constraints="
        )
    found: list[tuple[Test, ...]] = []
    for a in map(left.value, range(int(left.count))):
        values = [right.value(k) for k in range(int(right.count))]
        bad = tuple(b for b in values if forbids({names[0]: a, names[1]: b}))
        if bad:
            found.append((Test(names[0], "in", (a,)), Test(names[1], "in", bad)))
    return found
