"""A scheduler: the next points go to the model and its partner, more to whoever helps more.

With a number of `requests` the model is paid for where it helps: it proposes first, and again
whenever the partner, which costs nothing, no longer gains. A design takes several answers, so the
first half of the requests is spent in a row.
"""

from __future__ import annotations

import copy
import math
from bisect import insort
from collections.abc import Hashable, Set
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from llmopt.arguments import whole_number
from llmopt.history import Direction, History, Proposal, Trial
from llmopt.search.cma import CMAEmitter
from llmopt.search.emitter import Emitter, ModelEmitter, draw_fallbacks, keys_of
from llmopt.search.follow import FAILED, Follower, rank_of
from llmopt.search.refine import RefineEmitter
from llmopt.space import Space

Partner = Literal["cma"]

# Of `Bandit`: points that are called the best; what is kept of a count with each point; good
# points that each arm is given beforehand; the power of the rates.
_BEST, _MEMORY, _PRIOR, _POWER = 10, 0.97, 0.5, 3
_LEAST, _MOST = 0.15, 0.9  # bounds of the partner's share
# Which arm a point of each source counts for.
_ARMS = {
    "llm": "model",
    "drawn": "model",
    "fallback": "model",
    "cma": "partner",
    "refine": "partner",
}
# Of `Turns`.
_EARLY = 0.5  # share of the requests that are spent first, in a row
_MISSES = 2  # points without a gain after which the model's turn ends
_QUIET, _MOST_QUIET = 8, 64  # the same for the partner: at first, and at most
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
    where there are fewer than twenty). Older ones count less, by 3 % with each point of either
    arm. Each arm's share is proportional to the cube of its rate of good points, but the model
    gets at least a tenth and the partner at least 15 %, since the points of CMA-ES also adapt
    its distribution, which pays only later.
    """

    def __init__(self) -> None:
        self._top: list[tuple[float, float]] = []  # ranks of the best points, ascending
        self._told = 0
        self._good = {"model": 0.0, "partner": 0.0}
        self._given = {"model": 0.0, "partner": 0.0}

    def take(self, arm: str | None, rank: tuple[float, float]) -> None:
        """Count one point.

        Args:
            arm: ``"model"``, ``"partner"``, or ``None`` for a point of neither.
            rank: See `rank_of`; infinite for a failed point.
        """
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
    def share(self) -> float:
        """Share of the next points that the partner is to give."""
        model, partner = (
            ((self._good[arm] + _PRIOR) / (self._given[arm] + 4 * _PRIOR)) ** _POWER
            for arm in ("model", "partner")
        )
        return min(max(partner / (model + partner), _LEAST), _MOST)


class Turns:
    """Whose turn it is, where requests are counted and points of the partner cost nothing.

    The model's turn ends after two points in a row without a gain; that of the partner, after
    eight. This number doubles with each turn of the model that brought no gain, and is eight
    again after one that did: so requests are spent where they gain. A gain is a new best by more
    than a hundredth of the distance from the best ten points' median to the best. Where it is
    known how many points there will be, the partner's turn is short enough for all requests.
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
            if arm == "model":  # asked out of turn, by `due`: the partner's turn begins anew
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
        """Whether the model is to be asked.

        Args:
            pace: Points left for each request left: where the turn of the partner has brought as
                many without a gain, its turn is over, so that no request stays unspent.
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
    """The model and a partner as one emitter, with a `Bandit` over them.

    Each learns from the points of the other, which stand in the history. The shares are a
    function of the history, too.

    Args:
        partner: Gives its share first; fewer points, where it finds no new ones.
        model: Gives the others.
        requests: How many requests the model may take. Then the two take `Turns` instead, and
            once they are spent the partner gives all points.
    """

    def __init__(self, partner: Emitter, model: ModelEmitter, requests: int | None = None) -> None:
        self.partner = partner
        self.model = model
        self.requests = requests
        super().__init__()

    def __getstate__(self) -> dict[str, Any]:
        partner, model = copy.copy(self.partner), copy.copy(self.model)
        return {"partner": partner, "model": model, "requests": self.requests}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def _forget(self) -> None:
        super()._forget()
        self._bandit = Bandit()
        self._turns = Turns()

    def _pace(self, history: History, spent: int) -> float:
        """Return how many points there are left for each request that is left."""
        if self.model.total is None or self.requests is None:
            return math.inf
        told = len(history.trials) + len(history.pending)
        return max(0, self.model.total - told) / max(1, self.requests - spent)

    def _take(self, trial: Trial, direction: Direction) -> None:
        arm, rank = _ARMS.get(trial.source), rank_of(trial, direction)
        self._bandit.take(arm, rank)
        self._turns.take(arm, rank)

    def propose(
        self,
        space: Space,
        history: History,
        rng: np.random.Generator,
        n: int = 1,
        *,
        taken: Set[Hashable] | None = None,
        notes: tuple[str, ...] = (),
    ) -> list[Proposal]:
        """Return `n` new points: see `Emitter.propose`.

        Raises:
            LLMOptError: As the emitters do.
        """
        self._follow(history)
        taken = keys_of(space, history) if taken is None else taken
        wanted, paid = math.floor(n * self._bandit.share + rng.random()), True
        most: int | None = None
        if self.requests is not None:
            usage = self.model.usage
            # A reply that was paid for and not used yet is no further request.
            spent = usage.requests - len(self.model.meter.paid)
            most = self.requests - spent
            paid = most > 0
            early = math.floor(_EARLY * self.requests)
            wanted = (
                0 if paid and (spent < early or self._turns.due(self._pace(history, spent))) else n
            )
            asked = usage.proposals.get("llm", 0) + usage.proposals.get("fallback", 0)
            left = max(1, self.requests - asked)
            notes = (*notes, _NOTE.format(left=left, early=early, requests=self.requests))
        found: list[Proposal] = []
        with self.model.meter.asking():
            if wanted:
                found = self.partner.propose(space, history, rng, wanted, taken=taken)
                for proposal in found:
                    self.model.meter.count_proposal(proposal.source)
            if len(found) < n and not paid:
                seen = {*taken, *(space.key(p.values) for p in found)}
                drawn = draw_fallbacks(space, seen, rng, n - len(found))
                for proposal in drawn:
                    self.model.meter.count_proposal(proposal.source)
                found += drawn
            elif len(found) < n:
                points = tuple(p.values for p in found)
                history = replace(history, pending=history.pending + points)
                taken = {*taken, *map(space.key, points)}
                found += self.model.propose(
                    space,
                    history,
                    rng,
                    n - len(found),
                    taken=taken,
                    notes=notes,
                    most_requests=most,
                )
        return found


def make_scheduler(
    partner: Partner | None, model: ModelEmitter, seed: int | None, requests: int | None = None
) -> ModelEmitter | Scheduler:
    """Return the emitter of an optimizer: the model, or the model and its partner.

    Args:
        partner: ``"cma"`` or ``None``.
        model: Asks the model.
        seed: Seed of the partner; see `CMAEmitter`.
        requests: See `Scheduler`; without a `partner`, that is a `RefineEmitter`.

    Raises:
        ValueError: There is no such partner, or `requests` is no whole number above 0.
        LLMOptError: Its package is not installed.
    """
    if requests is not None:
        requests = whole_number("requests", requests, 1)
    if partner is None:
        return model if requests is None else Scheduler(RefineEmitter(), model, requests)
    if partner != "cma":
        raise ValueError(f"partner={partner!r}: expected 'cma' or None")
    return Scheduler(CMAEmitter(seed), model, requests)
