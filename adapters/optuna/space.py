"""Optuna's distributions as an llmopt space, and what tells when a parameter is part of a trial."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial

from llmopt.adapters.optuna.branches import BranchedSpace, Condition, find_conditions
from llmopt.errors import SpaceError
from llmopt.space import Categorical, Dimension, Float, Space, Value
from llmopt.space.constraints import Constraint, Limit
from llmopt.space.foreign import is_configspace, read_dimension
from llmopt.space.forms import check_names
from llmopt.space.values import ABSENT
from llmopt.space.when import When, exact

# Below Optuna's own logger, so that its handler and `optuna.logging.set_verbosity` apply.
logger = optuna.logging.get_logger("optuna.llmopt")

Distributions = dict[str, BaseDistribution]


def dimension(distribution: BaseDistribution) -> Dimension:
    """Return the llmopt dimension of a distribution; it raises what `trouble_with` says."""
    if isinstance(distribution, CategoricalDistribution):
        return Categorical(tuple(_hashable(c) for c in distribution.choices))
    return read_dimension("", distribution)


def _hashable(choice: Any) -> Any:
    """Return the choice, or its text if it cannot be hashed."""
    try:
        hash(choice)
    except TypeError:
        return repr(choice)
    return choice


@dataclass(frozen=True)
class Known:
    """Parameters that a user names beforehand.

    Attributes:
        distributions: Their distributions, by name.
        dimensions: The same as dimensions, with their conditions.
        constraints: The constraints of a `Space`.
        names: All names, also of parameters that no point has.
    """

    distributions: Distributions
    dimensions: Mapping[str, Dimension] = field(default_factory=dict)
    constraints: tuple[Limit, ...] = ()
    names: tuple[str, ...] = ()

    def unlike(self, there: Mapping[str, BaseDistribution]) -> str:
        """Say which parameters a complete trial lacks, or has with another range; else nothing.

        A trial may lack a parameter with a condition, and may have parameters of its own.
        """
        each = self.distributions.items()
        lacks = [n for n, d in each if n not in there and self.dimensions[n].when is None]
        said = [f"it has no {', '.join(f'`{n}`' for n in lacks)}"] if lacks else []
        said += [f"`{n}` is {there[n]}, not {d}" for n, d in each if n in there and there[n] != d]
        return "; ".join(said)


def read_space(space: Any) -> Known:
    """Return the parameters that a user names beforehand, in any form that a space has."""
    given: Distributions = {}
    if isinstance(space, Mapping) and not is_configspace(space):
        given = {n: d for n, d in space.items() if isinstance(d, BaseDistribution)}
        space = {**space, **{n: dimension(d) for n, d in given.items()}}
    whole = Space.of(space)
    own = dict(zip(whole.names, whole.dimensions, strict=True))
    # What has a single value is in no request.
    fixed = {n: d.value(0) for n, d in own.items() if d.count == 1 and d.when is None}
    left = {n: d if d.when is None else d.under(_beside(d.when, fixed)) for n, d in own.items()}
    left = {n: d for n, d in left.items() if d.when is None or d.when.alternatives}
    distributions = {n: given.get(n) or _distribution(d) for n, d in left.items()}
    return Known(distributions, left, whole.limits, whole.names)


def _beside(when: When, values: Mapping[str, Value]) -> When | None:
    """Return the rest of a condition if some values are known; ``None`` if it is met.

    Without alternatives, the condition cannot hold.
    """
    left = [
        tuple(test for test in tests if test.name not in values)
        for tests in when.alternatives
        if all(test.holds(values[test.name]) for test in tests if test.name in values)
    ]
    return When(tuple(left)) if all(left) else None


def _distribution(one: Any) -> BaseDistribution:
    if isinstance(one, Categorical):
        return CategoricalDistribution(one.choices)  # type: ignore[arg-type]
    if isinstance(one, Float):
        return FloatDistribution(one.low, one.high, log=one.log, step=one.step)
    return IntDistribution(one.low, one.high, log=one.log, step=one.step or 1)


def trouble_with(name: str, distribution: BaseDistribution) -> str:
    """Return why a model cannot be asked for this parameter; empty if it can."""
    try:
        check_names([name])
        dimension(distribution)
    except SpaceError as error:
        return str(error)
    return ""


class StudySpace:
    """The parameters that a study's trials have had, as one space.

    A trial need not have all: what it lacks is `ABSENT`. Parameters with a single value, and such
    as a model cannot propose, are skipped.

    Args:
        trials: The trials to learn from, by number.
        known: Parameters that are known beforehand.

    Attributes:
        distributions: Each parameter's distribution in the latest trial that has it, by name.
        base: Names of the parameters that every trial has.
        space: The space; none of its parameters counts as missing where a point lacks it.
    """

    def __init__(self, trials: Sequence[FrozenTrial], known: Known) -> None:
        latest = dict(known.distributions)
        for trial in trials:
            latest.update(trial.distributions)
        # Sorted, since the gRPC proxy does not keep the order of a trial's parameters.
        self.distributions: Distributions = {
            n: latest[n]
            for n in sorted(latest)
            if not latest[n].single() and not trouble_with(n, latest[n])
        }
        self._trials = trials
        known_by_all = set(self.distributions).intersection(*(t.distributions for t in trials))
        self.base = [n for n in self.distributions if n in known_by_all]
        named = known.dimensions
        own = self._dimensions = {
            n: named[n].under(None) if n in named and known.distributions[n] == d else dimension(d)
            for n, d in self.distributions.items()
        }
        rules = {n: d.when for n, d in named.items() if n in own and d.when is not None}
        self._declared = bool(rules)
        for name, when in rules.items():
            # A trial may have had the parameter that it depends on with other choices.
            with contextlib.suppress(SpaceError):
                own[name] = own[name].under(exact(name, when, own))
        if self:
            self.space = BranchedSpace(self._dimensions, dict.fromkeys(self._dimensions))

    @cached_property
    def _points(self) -> list[dict[str, Value]]:
        """The trials' parameters by name; a removed choice is kept as it is."""
        own = self._dimensions
        choices = {n for n, d in own.items() if isinstance(d, Categorical)}
        points = []
        for trial in self._trials:
            point = {n: _hashable(v) for n, v in trial.params.items() if n in own}
            point.update(self._values({n: trial.params[n] for n in point.keys() & choices}))
            points.append(point)
        return points

    @cached_property
    def _unseen(self) -> Mapping[str, set[Value]]:
        """The choices that none of the trials has had, if there are trials."""
        if self._declared or not self._trials:  # then no choice adds unlisted parameters
            return {}
        return {
            name: set(own.choices) - {point[name] for point in self._points if name in point}
            for name, own in self._dimensions.items()
            if isinstance(own, Categorical)
        }

    def _values(self, params: Mapping[str, Any]) -> dict[str, Value]:
        """Return the parameters that belong to the space, in its form."""
        values: dict[str, Value] = {}
        for name in params.keys() & self.distributions.keys():
            own, value = self._dimensions[name], params[name]
            with contextlib.suppress(ValueError, TypeError, OverflowError):
                if isinstance(own, Categorical):
                    value = own.choices[int(self.distributions[name].to_internal_repr(value))]
                values[name] = own.check(value)
        return values

    def __bool__(self) -> bool:
        return bool(self.distributions)

    def flatten(self, params: Mapping[str, Any]) -> tuple[Value, ...] | None:
        """Return a trial's parameters as a flat point; ``None`` if one is not in its range now."""
        values = self._values(params)
        if not values or len(values) < len(params.keys() & self.distributions.keys()):
            return None
        return tuple(values.get(name, ABSENT) for name in self.distributions)

    def is_open(self, values: Sequence[Value]) -> bool:
        """Whether a point has a choice whose other parameters are not known yet."""
        pairs = zip(self.distributions, values, strict=True)
        return any(value in self._unseen.get(name, ()) for name, value in pairs)

    def key(self, params: Mapping[str, Any]) -> Hashable | None:
        """Return the `Space.key` of parameters in Optuna's form; ``None`` outside the space."""
        values = self.flatten(params)
        return None if values is None else self.space.key(values)

    def with_given(
        self,
        given: Mapping[str, Any],
        needed: str = "",
        constraints: Sequence[Limit] = (),
        left_out: Iterable[str] = (),
    ) -> BranchedSpace:
        """Return the space of the points that go on from what a trial already has.

        Args:
            given: The parameters that it has.
            needed: A parameter that it needs, whatever the others.
            constraints: Linear inequalities over the parameters.
            left_out: Parameters that are not asked for.
        """
        optional: dict[str, Condition | None] = {}
        if len(self.base) < len(self.distributions):
            optional = find_conditions(self._points, self._dimensions)
            optional.pop(needed, None)
        # What is set to a value out of range is not asked for, either.
        fixed = dict.fromkeys((*left_out, *(given.keys() & self._dimensions.keys())), ABSENT)
        fixed |= self._values(given)
        # A choice without trials is asked for alone: the parameters that it needs are unknown.
        own = self._dimensions
        if needed:
            own = {**own, needed: own[needed].under(None)}
        space = BranchedSpace(own, optional, fixed, {} if needed else self._unseen)
        limits = [c for c in constraints if c.names & (own.keys() - given.keys())]
        limits = [c for c in limits if c.names <= {*own, *given}]
        try:
            return cast(BranchedSpace, space.constrained([_reduced(c, given) for c in limits]))
        except SpaceError as error:
            if not any(c.names & given.keys() for c in limits):
                raise
            logger.warning(f"What the trial already has breaks a constraint: {error}.")
            return space

    def codes(self, params: Mapping[str, Any]) -> dict[str, float]:
        """Return parameters in Optuna's form in its internal representation."""
        return {n: self.distributions[n].to_internal_repr(v) for n, v in params.items()}

    def params(self, values: Sequence[Value]) -> dict[str, Any]:
        """Return a flat point as parameters in Optuna's form."""
        triples = zip(self.distributions.items(), self.space.dimensions, values, strict=True)
        return {n: d.to_external_repr(own.code(v)) for (n, d), own, v in triples if v is not ABSENT}


def _reduced(limit: Limit, given: Mapping[str, Any]) -> Limit:
    """Return what a limit says of the other parameters if some are given."""
    if isinstance(limit, Constraint):
        known = [(n, f) for n, f in limit.factors if n in given]
        if not known:
            return limit
        shown = ", ".join(f"{n} = {given[n]:.6g}" for n, _ in known)
        return replace(
            limit,
            text=f"{limit.text} (with {shown})",
            factors=tuple((n, f) for n, f in limit.factors if n not in given),
            constant=limit.constant + math.fsum(f * given[n] for n, f in known),
        )
    if not all(t.holds(given[t.name]) for t in limit.tests if t.name in given):
        return replace(limit, tests=())
    return replace(limit, tests=tuple(t for t in limit.tests if t.name not in given))
