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
from llmopt.space import Categorical, Dimension, Float, Int, Space, Value
from llmopt.space.constraints import Constraint, Limit
from llmopt.space.foreign import is_configspace, read_dimension
from llmopt.space.forms import check_names
from llmopt.space.values import ABSENT
from llmopt.space.when import When, exact, settled

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
        when: The conditions that were declared, by name.
        constraints: The constraints of a `Space`.
        names: All names, also of parameters that no point has.
        named: The choices that have names, by the parameter's name.
    """

    distributions: Distributions
    when: Mapping[str, When]
    constraints: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()
    named: Mapping[str, Categorical] = field(default_factory=dict)


def read_space(space: Any) -> Known:
    """Return the parameters that a user names beforehand, in any form that a space has."""
    constraints: tuple[Any, ...] = ()
    if isinstance(space, Space) or is_configspace(space):
        whole = Space.of(space)
        constraints = whole.limits
        space = dict(zip(whole.names, whole.dimensions, strict=True))
    if not isinstance(space, Mapping):
        raise SpaceError(
            f"space={space!r}: expected a mapping of names to distributions, such as "
            '{"lr": FloatDistribution(1e-5, 0.1, log=True)}'
        )
    found = _distributions(space)
    own = {
        name: one if isinstance(one, Dimension) else dimension(found[name])
        for name, one in space.items()
    }
    # What has a single value is in no request.
    fixed = {n: d.value(0) for n, d in own.items() if d.count == 1 and d.when is None}
    when = {n: _beside(w, fixed) for n, w in settled(own).items()}
    left = {n: d for n, d in found.items() if (w := when.get(n)) is None or w.alternatives}
    rules = {n: w for n, w in when.items() if w is not None and n in left}
    named = {n: d.under(None) for n, d in own.items() if isinstance(d, Categorical) and d.named}
    return Known(left, rules, constraints, tuple(found), named)


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


def _distributions(space: Mapping[str, Any]) -> Distributions:
    found: Distributions = {}
    for name, one in space.items():
        if isinstance(one, Categorical):
            found[name] = CategoricalDistribution(one.choices)  # type: ignore[arg-type]
        elif isinstance(one, Float):
            found[name] = FloatDistribution(one.low, one.high, log=one.log, step=one.step)
        elif isinstance(one, Int):
            found[name] = IntDistribution(one.low, one.high, log=one.log, step=one.step or 1)
        elif isinstance(one, BaseDistribution):
            found[name] = one
        else:
            raise SpaceError(
                f"space[{name!r}]={one!r}: expected Float(0, 1), Int(0, 10) or Categorical([...]) "
                "of llmopt, or a distribution of Optuna's"
            )
        if trouble := trouble_with(name, found[name]):
            raise SpaceError(f"space[{name!r}]: {trouble}")
    return found


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
        trials: Complete and pruned trials, by number.
        known: Parameters that are known beforehand.

    Attributes:
        distributions: Each parameter's distribution in the latest trial that has it, by name.
        base: Names of the parameters that every trial has.
        space: The space; none of its parameters counts as missing where a point lacks it.
    """

    def __init__(self, trials: Sequence[FrozenTrial], known: Known | None = None) -> None:
        latest = dict(known.distributions if known else {})
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
        self._dimensions = {n: dimension(d) for n, d in self.distributions.items()}
        for name, named in (known.named if known else {}).items():
            one = self._dimensions.get(name)
            if isinstance(one, Categorical) and one.choices == named.choices:
                self._dimensions[name] = named
        self._declared = bool(known and known.when)
        for name, when in (known.when if known else {}).items():
            # A trial may have had the parameter that it depends on with other choices.
            with contextlib.suppress(SpaceError, KeyError):
                own = exact(name, when, self._dimensions)
                self._dimensions[name] = self._dimensions[name].under(own)
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
    def optional(self) -> Mapping[str, Condition | None]:
        """When a parameter is there, by name: see `BranchedSpace`."""
        if len(self.base) == len(self.distributions):
            return {}
        return find_conditions(self._points, self._dimensions)

    @cached_property
    def _unseen(self) -> Mapping[str, set[Value]]:
        """The choices that no trial has had, where there are trials."""
        found = {}
        # With declared conditions no choice adds unlisted parameters.
        for name, own in self._dimensions.items() if self._trials and not self._declared else ():
            if isinstance(own, Categorical):
                seen = {point[name] for point in self._points if name in point}
                if left := set(own.choices) - seen:
                    found[name] = left
        return found

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
        """Return the space of the points that go on from what a trial already has; see `Begun`."""
        optional = {n: c for n, c in self.optional.items() if n != needed}
        # What is set to a value out of range is not asked for, either.
        fixed = dict.fromkeys((*left_out, *(given.keys() & self._dimensions.keys())), ABSENT)
        fixed |= self._values(given)
        # A choice without trials is asked for alone: the parameters that it needs are unknown.
        own = self._dimensions
        if needed:
            own = {**own, needed: own[needed].under(None)}
        space = BranchedSpace(own, optional, fixed, {} if needed else self._unseen)
        return cast(BranchedSpace, constrained(space, constraints, given))

    def params(self, values: Sequence[Value]) -> dict[str, Any]:
        """Return a flat point as parameters in Optuna's form."""
        params = {}
        for (name, found), own, value in zip(
            self.distributions.items(), self.space.dimensions, values, strict=True
        ):
            if value is not ABSENT:
                code = own.code(value)
                choice = isinstance(found, CategoricalDistribution)
                params[name] = found.to_external_repr(code) if choice else code
        return params


def constrained(space: Space, constraints: Sequence[Limit], given: Mapping[str, Any]) -> Space:
    """Return a space with its constraints, reduced by the parameters already set.

    Raises:
        SpaceError: No point was found that keeps them, or one is over a choice.
    """
    own = [c for c in constraints if c.names & (set(space.names) - given.keys())]
    own = [c for c in own if c.names <= {*space.names, *given}]
    try:
        return space.constrained([_reduced(c, given) for c in own])
    except SpaceError as error:
        if not any(c.names & given.keys() for c in own):
            raise
        logger.warning(f"What the trial already has breaks a constraint: {error}.")
        return space


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
