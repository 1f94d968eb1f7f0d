"""Partners of the model: Optuna's samplers, and such as search numbers alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Set
from dataclasses import dataclass, replace
from typing import Any

from numpy.random import Generator
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from llmopt.adapters.optuna.space import StudySpace
from llmopt.history import History, Proposal, Source
from llmopt.partners import partners_of
from llmopt.space import Categorical, Space
from llmopt.space.values import ABSENT, Value
from llmopt.turns import Partner

_TRIES = 3  # samples beyond the wanted ones


def read_partners(partner: Any) -> tuple[Partner, ...]:
    """Return partners that can search a space with choices and branches.

    Raises:
        ValueError: A partner is unknown, or is named twice.
    """
    several = isinstance(partner, Iterable) and not isinstance(partner, str)
    given = () if partner is None else tuple(partner) if several else (partner,)
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
    taken), the sampler's values for them are dropped.

    Attributes:
        sampler: The sampler.
        trial: The trial that the next points are for, with its study and its parameters.
    """

    sampler: BaseSampler
    trial: tuple[Study, FrozenTrial, StudySpace] | None = None
    source: Source = "sampler"

    def propose(
        self, space: Space, history: History, rng: Generator, n: int, seen: set[Hashable]
    ) -> list[Proposal]:
        """Return at most `n` new points with source ``"sampler"``: see `Partner.propose`."""
        seen, proposals = set(seen), list[Proposal]()
        for _ in range(n + _TRIES):
            if len(proposals) == n or (point := self._draw()) is None:
                continue
            values = space.conform(point)
            if _usable(space, values, seen):
                seen.add(space.key(values))
                proposals.append(Proposal(values, self.source))
        return proposals

    def _draw(self) -> tuple[Value, ...] | None:
        """Return a point with a value for every parameter; ``None`` where one is out of range."""
        assert self.trial is not None
        (study, trial, known), sampler = self.trial, self.sampler
        shared = sampler.infer_relative_search_space(study, trial)
        point = sampler.sample_relative(study, trial, shared)
        for name, distribution in known.distributions.items():
            if name not in point:
                point[name] = sampler.sample_independent(study, trial, name, distribution)
        return known.flatten({n: v for n, v in point.items() if n in known.distributions})


def _usable(space: Space, values: tuple[Value, ...], seen: Set[Hashable]) -> bool:
    """Whether a point is new, keeps the constraints, and lacks nothing that its branch needs."""
    lacking = space.missing({i: v for i, v in enumerate(values) if v is not ABSENT})
    return space.key(values) not in seen and space.admits(values) and not lacking


def _same(values: tuple[object, ...], base: tuple[object, ...], free: tuple[int, ...]) -> bool:
    """Whether a point has all free parameters, and equals another one in the rest."""
    return all((v is not ABSENT) if i in free else v == base[i] for i, v in enumerate(values))
