"""Partners of the model: Optuna's samplers, and such as search numbers alone."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from numpy.random import Generator
from optuna.distributions import BaseDistribution
from optuna.samplers import (
    BaseSampler,
    BruteForceSampler,
    GridSampler,
    PartialFixedSampler,
)
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from llmopt.adapters.optuna.space import StudySpace
from llmopt.history import History, Proposal, Source
from llmopt.partners import partners_of
from llmopt.space import Categorical, Space
from llmopt.space.values import ABSENT, Value
from llmopt.turns import Partner

_MOST_BAD = 24  # samples that cannot be used, before the model's fallback takes over


def read_partners(partner: Any) -> tuple[Partner, ...]:
    """Return partners that can search a space with choices and branches.

    Raises:
        ValueError: A partner is unknown, is named twice, or goes through a list of its own.
    """
    several = isinstance(partner, Iterable) and not isinstance(partner, str)
    given = () if partner is None else tuple(partner) if several else (partner,)
    for inner in given:
        while isinstance(inner, PartialFixedSampler):
            inner = inner._base_sampler
        if isinstance(inner, GridSampler | BruteForceSampler):
            raise ValueError(
                f"partner={type(inner).__name__}(): it visits each point of a list in its own "
                "trials, and cannot take turns with a model; expected another sampler, such as "
                f"TPESampler(). To use {type(inner).__name__}, give it a study of its own"
            )
    listed = [SamplerPartner(p) if isinstance(p, BaseSampler) else p for p in given]
    partners = partners_of(listed, None)
    return tuple(BestBranch(p) if hasattr(p, "check") else p for p in partners)


class BestBranch:
    """Lets a partner search the numbers of the best trial's branch: its choices stay as they are.

    The partner learns from the trials that share these choices. Where there are none, and no
    parameter is absent, it searches the whole space.
    """

    def __init__(self, numbers: Partner) -> None:
        self.numbers, self.source = numbers, numbers.source

    def propose(
        self, space: Space, history: History, rng: Generator, n: int, seen: set[Hashable]
    ) -> list[Proposal]:
        """Return at most `n` new points: see `Partner.propose`."""
        best = history.best
        if best is None:
            return []
        pairs = list(zip(best.values, space.dimensions, strict=True))
        numbers = [i for i, (v, d) in enumerate(pairs) if not isinstance(d, Categorical)]
        free = tuple(i for i in numbers if best.values[i] is not ABSENT and i in set(space.asked))
        if len(free) == len(space) and not space.conditional:
            return self.numbers.propose(space, history, rng, n, seen)
        if not free:
            return []
        base = space.conform(best.values)
        names = {space.names[i] for i in free}
        part = space.part(free).constrained([c for c in space.limits if c.names <= names])

        def of(values: tuple[Value, ...]) -> tuple[Value, ...]:
            return tuple(values[i] for i in free)

        there = [t for t in history.trials if _same(t.values, base, free)]
        trials = tuple(replace(t, values=of(t.values)) for t in there)
        pending = tuple(of(p) for p in history.pending if _same(p, base, free))
        branch = replace(history, trials=trials, pending=pending)
        tried: set[Hashable] = {part.key(v) for v in (*(t.values for t in trials), *pending)}
        proposals = []
        for proposal in self.numbers.propose(part, branch, rng, n, tried):
            own = dict(zip(free, proposal.values, strict=True))
            whole = space.conform([own.get(i, v) for i, v in enumerate(base)])
            if _usable(space, whole, seen):
                proposals.append(replace(proposal, values=whole))
        return proposals


@dataclass(frozen=True)
class SamplerPartner:
    """A sampler of Optuna's that proposes beside the model, from the same study.

    It sees every trial of every source. If a trial lacks some parameters (a branch that was not
    taken), the sampler's values for them are dropped. While it proposes, it also sees each sample
    that cannot be used, such as a repeat, as a pruned trial without a value: a bad point, from
    which it moves on.

    Attributes:
        sampler: The sampler.
        trial: The trial that the next points are for, with its study and its parameters.
        repeats: Whether a tried point may be proposed again, as in a noisy study.
    """

    sampler: BaseSampler
    trial: tuple[Study, FrozenTrial, StudySpace] | None = None
    repeats: bool = False
    source: Source = "sampler"

    def propose(
        self, space: Space, history: History, rng: Generator, n: int, seen: set[Hashable]
    ) -> list[Proposal]:
        """Return at most `n` new points with source ``"sampler"``: see `Partner.propose`."""
        assert self.trial is not None
        study, trial, known = self.trial
        seen, proposals = set() if self.repeats else set(seen), list[Proposal]()
        if len(seen) >= space.cardinality <= space.tried(seen):
            return []
        storage, bad = _Beside(study._storage), 0
        while len(proposals) < n and bad < _MOST_BAD:
            params = self._draw(study, trial, known)
            values = known.flatten(params)
            if values is None:  # a range has changed, and no trial can say so
                bad += 1
                continue
            values = space.conform(values)
            if _usable(space, values, seen):
                seen.add(space.key(values))
                proposals.append(Proposal(values, self.source))
            else:
                bad += 1
            storage.add(trial, known.params(values), known.distributions)
            study = Study(study.study_name, storage, study.sampler, study.pruner)  # type: ignore[arg-type]
        return proposals

    def _draw(self, study: Study, trial: FrozenTrial, known: StudySpace) -> dict[str, Any]:
        """Return a value for every parameter."""
        sampler = self.sampler
        shared = sampler.infer_relative_search_space(study, trial)
        point = sampler.sample_relative(study, trial, shared)
        for name, distribution in known.distributions.items():
            if name not in point:
                point[name] = sampler.sample_independent(study, trial, name, distribution)
        return {n: v for n, v in point.items() if n in known.distributions}


class _Beside:
    """A study's storage, with trials beside its own that are stored nowhere."""

    def __init__(self, storage: BaseStorage) -> None:
        self._storage, self._trials = storage, list[FrozenTrial]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def add(
        self, now: FrozenTrial, params: dict[str, Any], known: Mapping[str, BaseDistribution]
    ) -> None:
        """Add a pruned trial without a value, after the trial `now`."""
        number = now.number + 1 + len(self._trials)
        own = {name: known[name] for name in params}
        trial = create_trial(state=TrialState.PRUNED, params=params, distributions=own)
        trial.number, trial._trial_id = number, -number
        self._trials.append(trial)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return the trials of the study, and the ones beside them."""
        beside = [t for t in self._trials if states is None or t.state in states]
        return [*self._storage.get_all_trials(study_id, deepcopy, states), *beside]


def _usable(space: Space, values: tuple[Value, ...], seen: Set[Hashable]) -> bool:
    """Whether a point is new, keeps the constraints, and lacks nothing that its branch needs."""
    lacking = space.missing({i: v for i, v in enumerate(values) if v is not ABSENT})
    return space.key(values) not in seen and space.admits(values) and not lacking


def _same(values: tuple[object, ...], base: tuple[object, ...], free: tuple[int, ...]) -> bool:
    """Whether a point has all free parameters, and equals another one in the rest."""
    return all((v is not ABSENT) if i in free else v == base[i] for i, v in enumerate(values))
