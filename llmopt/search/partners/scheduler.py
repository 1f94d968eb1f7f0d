"""A scheduler: it divides the next points among the model and its partners by success."""

from __future__ import annotations

import copy
import math
from bisect import insort
from collections.abc import Sequence
from typing import Any

import numpy as np

from llmopt.history import FAILED, Follower, History, Proposal, Trial, rank_of
from llmopt.search.emitter import ModelEmitter, PartnerEmitter
from llmopt.search.meter import Draft
from llmopt.search.model_ask import Batch, Taken, Wanted
from llmopt.search.options import partners_of, unknown_partner
from llmopt.search.partners.cma import CMAEmitter
from llmopt.search.partners.network import NetworkEmitter
from llmopt.space import Space

# Of `Bandit`: points that are called the best; what is kept of a count with each point; good
# points that each arm is given beforehand; the power of the rates.
_BEST, _MEMORY, _PRIOR, _POWER = 10, 0.97, 0.5, 3
# Least share of the model, of a single partner, and of each of several.
_LEAST_MODEL, _LEAST, _LEAST_OF_SEVERAL = 0.1, 0.15, 0.1
_MODEL = ("llm", "drawn", "fallback")  # sources of the model's points


class Bandit:
    """How often the points of each arm were good of late.

    A point is good if it enters the best ten of all points recorded before it (the better half,
    where there are fewer than twenty). Older ones count less, by 3 % with each point of any
    arm. Each arm's share is proportional to the cube of its rate of good points, but the model
    gets at least a tenth and a single partner at least 15 %, since the points of CMA-ES also adapt
    its distribution, which pays only later. Several partners get at least a tenth each.
    """

    def __init__(self, partners: Sequence[str] = ("partner",)) -> None:
        self._top: list[tuple[float, float]] = []  # ranks of the best points, ascending
        self._told = 0
        self._good = dict.fromkeys(("model", *partners), 0.0)
        self._given = dict(self._good)
        least = _LEAST if len(partners) == 1 else _LEAST_OF_SEVERAL
        self._least = {arm: least for arm in partners} | {"model": _LEAST_MODEL}

    def take(self, arm: str | None, rank: tuple[float, float]) -> None:
        """Count one point, of the model, a partner, or nobody here; its `rank_of`."""
        place = min(_BEST, self._told // 2)
        good = place > 0 and rank < self._top[place - 1]
        if rank < FAILED:
            insort(self._top, rank)
            del self._top[_BEST:]
            self._told += 1
        if arm is None:
            return
        for counts in (self._good, self._given):
            for name in counts:
                counts[name] *= _MEMORY
        self._good[arm] += good
        self._given[arm] += 1

    @property
    def has_model(self) -> bool:
        """Whether a point of the model was counted."""
        return self._given["model"] > 0

    @property
    def shares(self) -> dict[str, float]:
        """Share of the next points that each arm is to give."""
        rates = {
            arm: ((self._good[arm] + _PRIOR) / (self._given[arm] + 4 * _PRIOR)) ** _POWER
            for arm in self._good
        }
        shares: dict[str, float] = {}
        while rates:
            room, total = 1 - sum(shares.values()), sum(rates.values())
            low = [arm for arm, rate in rates.items() if room * rate / total < self._least[arm]]
            for arm in low or list(rates):
                shares[arm] = self._least[arm] if low else room * rates[arm] / total
                if low:
                    del rates[arm]
            if not low:
                break
        return shares


class Scheduler(Follower):
    """The model and its partners as one emitter, with a `Bandit` over them.

    Each learns from the points of the others, which are in the history. The shares are a
    function of the history, too. Partners give theirs first, in their order; fewer points, where
    they find no new ones. With a cap on requests the model proposes first, and once the cap is
    reached the partners propose all points.
    """

    def __init__(self, partners: Sequence[PartnerEmitter], model: ModelEmitter) -> None:
        self.partners = tuple(partners)
        self.model = model
        super().__init__()

    def __getstate__(self) -> dict[str, Any]:
        partners = [copy.copy(partner) for partner in self.partners]
        return {"partners": partners, "model": copy.copy(self.model)}

    def _reset(self) -> None:
        super()._reset()
        self._arms = dict.fromkeys(_MODEL, "model") | {p.source: p.source for p in self.partners}
        self._bandit = Bandit([partner.source for partner in self.partners])

    def _add(self, trial: Trial, history: History) -> None:
        rank = rank_of(trial, history.directions[0])
        self._bandit.take(self._arms.get(trial.source), rank)

    @property
    def _has_asked(self) -> bool:
        counts = self.model.meter.usage.proposals
        return self._bandit.has_model or any(counts.get(source) for source in _MODEL)

    def _wanted(self, n: int, place: float, alone: bool) -> list[int]:
        """Return how many of `n` points each partner is to give: all of them, if `alone`."""
        shares = [self._bandit.shares[partner.source] for partner in self.partners]
        whole = sum(shares) if alone else 1.0
        bounds = [sum(shares[: k + 1]) / whole for k in range(len(shares))]
        ends = [math.floor(n * min(bound, 1.0) + place) for bound in bounds]
        return [end - start for start, end in zip([0, *ends], ends, strict=False)]

    def propose(
        self,
        space: Space,
        history: History,
        rng: np.random.Generator,
        n: int = 1,
        *,
        taken: Taken = None,
        notes: tuple[str, ...] = (),
    ) -> list[Proposal]:
        """Return `n` new points: see `PartnerEmitter.propose`."""
        self._update(history)
        batch = Batch(Wanted(space, history, rng, n, taken, notes))
        return self.model.meter.asking(lambda draft: self._fill(batch, draft))[0]

    def _fill(self, batch: Batch, draft: Draft) -> list[Proposal]:
        place, left = batch.rng.random(), self.model.requests_left
        if left is None or (left and self._has_asked):
            self._let_partners(batch, self._wanted(batch.n, place, alone=False))
        if batch.missing and left != 0:
            new = self.model.propose(
                batch.space, batch.known, batch.rng, batch.missing,
                taken=batch.seen, notes=batch.notes, most_requests=left,
            )  # fmt: skip
            batch.add(new)
        if batch.missing:  # only where no further request can be sent
            self._let_partners(batch, self._wanted(batch.missing, place, alone=True))
        batch.draw_missing()
        draft.points = batch.found
        return batch.found

    def _let_partners(self, batch: Batch, counts: Sequence[int]) -> None:
        """Add a number of points of each partner."""
        for partner, count in zip(self.partners, counts, strict=True):
            if count:
                new = partner.propose(batch.space, batch.known, batch.rng, count, taken=batch.seen)
                batch.add(new)


def make_scheduler(
    partner: Any, model: ModelEmitter, seed: int | None, space: Space | None = None
) -> ModelEmitter | Scheduler:
    """Return the model, or with its partners a scheduler."""
    given = partners_of(partner)
    if not given:
        return model
    partners = [_emitter(one, seed) for one in given]
    if len({p.source for p in partners}) < len(partners):
        raise ValueError(f"partner={partner!r}: expected each partner once")
    for one in partners:
        if space is not None and isinstance(one, CMAEmitter):
            one.check(space)
    return Scheduler(partners, model)


def _emitter(partner: Any, seed: int | None) -> PartnerEmitter:
    if partner == "cma":
        return CMAEmitter(seed)
    if partner == "network":
        return NetworkEmitter()
    if not callable(getattr(partner, "propose", None)):
        raise unknown_partner(partner)
    emitter: PartnerEmitter = partner
    return emitter
