"""A scheduler: the next points go to the model and its partners, more to whoever helps more.

With a number of `requests` the model is paid for where it helps: it proposes first, and again
whenever the partners, which cost nothing, no longer gain. A design takes several answers, so the
first half of the requests is spent in a row.
"""

from __future__ import annotations

import copy
import math
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np

from llmopt.history import FAILED, Follower, History, Proposal, Trial, rank_of
from llmopt.search.emitter import ModelEmitter, PartnerEmitter, Taken, draw_fallbacks, keys_of
from llmopt.search.meter import Draft
from llmopt.search.numeric import next_points
from llmopt.search.partners.cma import CMAEmitter
from llmopt.search.partners.network import NetworkEmitter
from llmopt.search.partners.refine import RefineEmitter
from llmopt.space import Space
from llmopt.util.arguments import whole_number

Partner = Literal["cma", "refine", "network"]
"""A partner by name; `llmopt.adapters.optuna` takes samplers, too."""

Partners = Partner | Sequence[Partner] | None
"""What ``partner=`` may be."""

# Of `Bandit`: points that are called the best; what is kept of a count with each point; good
# points that each arm is given beforehand; the power of the rates.
_BEST, _MEMORY, _PRIOR, _POWER = 10, 0.97, 0.5, 3
# Least share of the model, of a single partner, and of each of several.
_LEAST_MODEL, _LEAST, _LEAST_OF_SEVERAL = 0.1, 0.15, 0.1
_MODEL = ("llm", "drawn", "fallback")  # sources of the model's points
# Of `Turns`.
_EARLY = 0.5  # share of the requests that are spent first, in a row
_MISSES = 2  # points without a gain after which the model's turn ends
_QUIET, _MOST_QUIET = 8, 64  # the same for the partners: at first, and at most
_GAIN = 0.01  # least gain, as a share of the distance from the best points' median to the best

_NOTE = (
    "You are asked about {left} more times, this one included. The first {early} of {requests} "
    "answers are asked for in a row, to design. From then on small random changes of the best "
    "point are tried between your answers, without you: propose what these cannot find, and stop "
    "only where they cannot gain either."
)


class Bandit:
    """How often the points of each arm were good of late.

    A point is good if it enters the best ten of all points told before it (the better half,
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


class Turns:
    """Whose turn it is, where requests are counted and points of the partners cost nothing.

    The model's turn ends after two points in a row without a gain; that of the partners, after
    eight. This number doubles with each turn of the model that brought no gain, and is eight
    again after one that did: so requests are spent where they gain. A gain is a new best by more
    than a hundredth of the distance from the best ten points' median to the best. Where it is
    known how many points there will be, the partners' turn is short enough for all requests.
    """

    def __init__(self) -> None:
        self._losses: list[float] = []  # of feasible points, ascending
        self._best = FAILED
        self._since = 0  # points of this turn since the last gain
        self._helped = True  # whether the model's turn has brought a gain
        self._quiet = _QUIET
        self.model = True

    def take(self, arm: str | None, rank: tuple[float, float]) -> None:
        """Count one point; the arguments are those of `Bandit.take`."""
        gained = self._gains(rank)
        self._best = min(self._best, rank)
        if rank[0] == 0:
            insort(self._losses, rank[1])
        if arm is None or (arm == "model") != self.model:
            if arm == "model":  # asked out of turn, by `due`: the partners' turn begins anew
                self._since = 0
            return
        self._since = 0 if gained else self._since + 1
        if self.model:
            self._helped = self._helped or gained
            if self._since >= _MISSES:
                self._quiet = _QUIET if self._helped else min(2 * self._quiet, _MOST_QUIET)
                self.model, self._since = False, 0
        elif self._since >= self._quiet:
            self.model, self._since, self._helped = True, 0, False

    def due(self, pace: float) -> bool:
        """Whether the model is to be asked, with so many points left for each request left.

        Where the turn of the partners has brought as many without a gain, it is over, so that no
        request stays unspent.
        """
        return self.model or self._since + 1 >= pace

    def _gains(self, rank: tuple[float, float]) -> bool:
        if rank >= self._best or rank == FAILED:
            return False
        if not self._losses or rank[0] != self._best[0]:
            return True
        top = self._losses[:_BEST]
        median = top[len(top) // 2]
        return self._best[1] - rank[1] > _GAIN * (median - self._best[1])


class Scheduler(Follower):
    """The model and its partners as one emitter, with a `Bandit` over them.

    Each learns from the points of the others, which stand in the history. The shares are a
    function of the history, too. Partners give theirs first, in their order; fewer points, where
    they find no new ones. With `requests`, which the model may take, they take `Turns` instead.
    """

    def __init__(
        self, partners: Sequence[PartnerEmitter], model: ModelEmitter, requests: int | None = None
    ) -> None:
        self.partners = tuple(partners)
        self.model = model
        self.requests = requests
        super().__init__()

    def __getstate__(self) -> dict[str, Any]:
        partners = [copy.copy(partner) for partner in self.partners]
        return {"partners": partners, "model": copy.copy(self.model), "requests": self.requests}

    def _forget(self) -> None:
        super()._forget()
        self._arms = dict.fromkeys(_MODEL, "model") | {p.source: p.source for p in self.partners}
        self._bandit = Bandit([partner.source for partner in self.partners])
        self._turns = Turns()

    def _pace(self, history: History, spent: int) -> float:
        """Return how many points there are left for each request that is left."""
        if self.model.total is None or self.requests is None:
            return math.inf
        told = len(history.trials) + len(history.pending)
        return max(0, self.model.total - told) / max(1, self.requests - spent)

    def _take(self, trial: Trial, history: History) -> None:
        arm, rank = self._arms.get(trial.source), rank_of(trial, history.directions[0])
        self._bandit.take(arm, rank)
        self._turns.take(arm, rank)

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
        self._follow(history)
        seen = keys_of(space, history) if taken is None else set(taken)
        place, paid = rng.random(), True
        most: int | None = None
        if self.requests is None:
            wanted = self._wanted(n, place, alone=False)
        else:
            usage = self.model.usage
            # A reply that was paid for and not used yet is no further request.
            spent = usage.requests - len(self.model.meter.paid)
            most = self.requests - spent
            paid = most > 0
            early = math.floor(_EARLY * self.requests)
            asks = paid and (spent < early or self._turns.due(self._pace(history, spent)))
            wanted = [] if asks else self._wanted(n, place, alone=True)
            asked = usage.proposals.get("llm", 0) + usage.proposals.get("fallback", 0)
            left = max(1, self.requests - asked)
            notes = (*notes, _NOTE.format(left=left, early=early, requests=self.requests))
        if self.model.options.numeric:
            labels = self.model.labels(space)
            notes = (*notes, *next_points(self.partners, space, history, labels))

        def ask(_: Draft) -> list[Proposal]:
            nonlocal history, seen
            found: list[Proposal] = []
            for partner, count in zip(self.partners, wanted, strict=False):
                if count:
                    new = partner.propose(space, history, rng, count, taken=seen)
                    points = tuple(p.values for p in new)
                    history = replace(history, pending=history.pending + points)
                    seen |= set(map(space.key, points))
                    found += new
            missing = n - len(found)
            if missing > 0 and not paid:
                found += draw_fallbacks(space, seen, rng, missing)
            for proposal in found:
                self.model.meter.count_proposal(proposal.source)
            if missing > 0 and paid:
                found += self.model.propose(
                    space, history, rng, missing, taken=seen, notes=notes, most_requests=most
                )
            return found

        return self.model.meter.asking(ask)


def make_scheduler(
    partner: Any,
    model: ModelEmitter,
    seed: int | None,
    requests: int | None = None,
    space: Space | None = None,
) -> ModelEmitter | Scheduler:
    """Return the model, or with its partners a scheduler (`requests` alone: `RefineEmitter`)."""
    if requests is not None:
        requests = whole_number("requests", requests, 1)
    given = partners_of(partner)
    if not given and requests is None:
        return model
    partners = [_emitter(one, seed) for one in given or ("refine",)]
    if len({p.source for p in partners}) < len(partners):
        raise ValueError(f"partner={partner!r}: expected each partner once")
    for one in partners:
        if space is not None and isinstance(one, CMAEmitter):
            one.check(space)
    return Scheduler(partners, model, requests)


def partners_of(partner: Any) -> tuple[Any, ...]:
    """Return what was given as ``partner=`` as a tuple."""
    if partner is None:
        return ()
    several = isinstance(partner, Iterable) and not isinstance(partner, str)
    return tuple(partner) if several else (partner,)


def checked_partners(partner: Any) -> Any:
    """Return names of partners as a file keeps them: a list where there are several."""
    names = partners_of(partner)
    for name in names:
        if name not in get_args(Partner):
            raise _unknown(name)
    return list(names) if len(names) > 1 else names[0] if names else None


def _unknown(partner: Any) -> ValueError:
    return ValueError(
        f"partner={partner!r}: expected 'cma', 'refine', 'network', a list of them, or None"
    )


def _emitter(partner: Any, seed: int | None) -> PartnerEmitter:
    if partner == "cma":
        return CMAEmitter(seed)
    if partner == "refine":
        return RefineEmitter()
    if partner == "network":
        return NetworkEmitter()
    if not callable(getattr(partner, "propose", None)):
        raise _unknown(partner)
    emitter: PartnerEmitter = partner
    return emitter
