"""Partners of the model: Optuna's samplers, and such as search numbers alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Set
from dataclasses import replace
from typing import Any

from numpy.random import Generator
from optuna.samplers import BaseSampler, BruteForceSampler, GridSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from llmopt.adapters.optuna.space import StudySpace
from llmopt.history import History, Proposal, Source, Trial
from llmopt.partners import Partner
from llmopt.space import Categorical, Space
from llmopt.space.values import ABSENT, Value

_TRIES = 3  # samples beyond the wanted ones


class BestBranch:
    """Lets an emitter search the numbers of the best trial's branch: its choices stay as they are.

    The emitter learns from the trials that share these choices. Where there are none, and no
    parameter is absent, it searches the whole space.
    """

    def __init__(self, numbers: Partner) -> None:
        self.numbers, self.source = numbers, numbers.source
        self._known: tuple[tuple[int, ...], dict[int, tuple[Trial, Trial]]] = (), {}

    def __getstate__(self) -> dict[str, Partner]:
        return {"numbers": self.numbers}

    def __setstate__(self, state: dict[str, Partner]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def propose(
        self, space: Space, history: History, rng: Generator, n: int, seen: set[Hashable]
    ) -> list[Proposal]:
        """Return at most `n` new points: see `Partner.propose`."""
        best = history.best
        if best is None:
            return []
        asked = set(space.asked)
        free = tuple(
            i
            for i, (value, d) in enumerate(zip(best.values, space.dimensions, strict=True))
            if value is not ABSENT and not isinstance(d, Categorical) and i in asked
        )
        if len(free) == len(space) and not space.conditional:
            return self.numbers.propose(space, history, rng, n, seen)
        if not free:
            return []
        base = space.conform(best.values)
        names = {space.names[i] for i in free}
        part = space.part(free).constrained([c for c in space.limits if c.names <= names])
        trials = tuple(self._part(t, free) for t in history.trials if _same(t.values, base, free))
        pending = tuple(tuple(p[i] for i in free) for p in history.pending if _same(p, base, free))
        known = replace(history, trials=trials, pending=pending)
        found = []
        tried: set[Hashable] = {
            part.key(values) for values in (*(t.values for t in trials), *pending)
        }
        for proposal in self.numbers.propose(part, known, rng, n, tried):
            values = list(base)
            for i, value in zip(free, proposal.values, strict=True):
                values[i] = value
            whole = space.conform(values)
            if _usable(space, whole, seen):
                found.append(replace(proposal, values=whole))
        return found

    def _part(self, trial: Trial, free: tuple[int, ...]) -> Trial:
        """Return a trial of some of its values, the same object at every call."""
        if self._known[0] != free:
            self._known = free, {}
        known = self._known[1]
        if trial.number not in known or known[trial.number][0] is not trial:
            values = tuple(trial.values[i] for i in free)
            known[trial.number] = trial, replace(trial, values=values)
        return known[trial.number][1]


def with_samplers(partner: Any) -> list[Any]:
    """Return partners, Optuna's samplers among them as emitters.

    Raises:
        ValueError: A sampler goes through the points of a grid, and takes no other's for one.
    """
    several = isinstance(partner, Iterable) and not isinstance(partner, str)
    partners = () if partner is None else tuple(partner) if several else (partner,)
    for one in partners:
        if isinstance(one, GridSampler | BruteForceSampler):
            raise ValueError(
                f"partner={type(one).__name__}: it goes through a grid point by point, and would "
                "take the model's points for its own. Take another sampler, such as TPESampler()"
            )
    return [SamplerPartner(p) if isinstance(p, BaseSampler) else p for p in partners]


def for_choices(partner: Partner) -> Partner:
    """Return a partner that can search a space with choices and branches."""
    return BestBranch(partner) if hasattr(partner, "check") else partner


class SamplerPartner:
    """A sampler of Optuna's that proposes beside the model, from the same study.

    It sees every trial of every source. If a trial lacks some parameters (a branch that was not
    taken), the sampler's values for them are dropped.
    """

    source: Source = "sampler"

    def __init__(self, sampler: BaseSampler) -> None:
        self.sampler = sampler
        self._now: tuple[Study, FrozenTrial, StudySpace] | None = None

    def __getstate__(self) -> dict[str, BaseSampler]:
        return {"sampler": self.sampler}

    def __setstate__(self, state: dict[str, BaseSampler]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def attend(self, study: Study, trial: FrozenTrial, space: StudySpace) -> None:
        """Say which trial the next points are for."""
        self._now = study, trial, space

    def propose(
        self, space: Space, history: History, rng: Generator, n: int, seen: set[Hashable]
    ) -> list[Proposal]:
        """Return at most `n` new points with source ``"sampler"``: see `Partner.propose`."""
        assert self._now is not None
        seen = set(seen)
        found: list[Proposal] = []
        for _ in range(n + _TRIES):
            drawn = self._draw(*self._now)
            if drawn is None:
                continue
            values = space.conform(drawn)
            if _usable(space, values, seen):
                seen.add(space.key(values))
                found.append(Proposal(values, self.source))
            if len(found) == n:
                break
        return found

    def _draw(
        self, study: Study, trial: FrozenTrial, known: StudySpace
    ) -> tuple[Value, ...] | None:
        """Return a point with a value for every parameter; ``None`` where one is out of range."""
        sampler = self.sampler
        shared = sampler.infer_relative_search_space(study, trial)
        drawn = sampler.sample_relative(study, trial, shared)
        for name, distribution in known.distributions.items():
            if name not in drawn:
                drawn[name] = sampler.sample_independent(study, trial, name, distribution)
        return known.flatten({n: v for n, v in drawn.items() if n in known.distributions})


def _usable(space: Space, values: tuple[Value, ...], seen: Set[Hashable]) -> bool:
    """Whether a point is new, keeps the constraints, and lacks nothing that its branch needs."""
    lacking = space.missing({i: v for i, v in enumerate(values) if v is not ABSENT})
    return space.key(values) not in seen and space.admits(values) and not lacking


def _same(values: tuple[object, ...], base: tuple[object, ...], free: tuple[int, ...]) -> bool:
    """Whether a point has all free parameters, and equals another one in the rest."""
    fixed = all(v == base[i] for i, v in enumerate(values) if i not in free)
    return fixed and all(values[i] is not ABSENT for i in free)
