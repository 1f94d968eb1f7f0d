"""A scheduler: the next points go to the model and its partner, more to whoever helps more."""

from __future__ import annotations

import copy
import math
from bisect import insort
from collections.abc import Hashable, Set
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from llmopt.history import History, Proposal, Trial
from llmopt.search.cma import CMAEmitter
from llmopt.search.emitter import Emitter, ModelEmitter, keys_of
from llmopt.search.follow import FAILED, Follower, rank_of
from llmopt.space import Space

Partner = Literal["cma"]

_BEST, _MEMORY, _PRIOR, _POWER = 10, 0.97, 0.5, 3
_LEAST, _MOST = 0.15, 0.9  # of the shares of the partner
_ARMS = {"llm": "llm", "fallback": "llm", "cma": "cma"}


class Bandit:
    """How often the points of each arm were good of late.

    A point is good if it enters the best ten of all points told before it (the better half,
    where there are fewer than twenty). Older ones count less, by 3 % with each point of either
    arm. Each arm's share is proportional to the cube of its rate of good points, but the model
    gets at least a tenth and CMA-ES at least 15 %, since its points also adapt its distribution,
    which pays only later.
    """

    def __init__(self) -> None:
        self._top: list[tuple[float, float]] = []  # ranks of the best points, ascending
        self._told = 0
        self._good = {"llm": 0.0, "cma": 0.0}
        self._given = {"llm": 0.0, "cma": 0.0}

    def take(self, arm: str | None, rank: tuple[float, float]) -> None:
        """Count one point.

        Args:
            arm: ``"llm"``, ``"cma"``, or ``None`` for a point of neither.
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
        """Share of the next points that CMA-ES is to give."""
        model, cma = (
            ((self._good[arm] + _PRIOR) / (self._given[arm] + 4 * _PRIOR)) ** _POWER
            for arm in ("llm", "cma")
        )
        return min(max(cma / (model + cma), _LEAST), _MOST)


class Scheduler(Follower):
    """The model and a partner as one emitter, with a `Bandit` over them.

    Each learns from the points of the other, which stand in the history. The shares are a
    function of the history, too.

    Args:
        partner: Gives its share first; fewer points, where it finds no new ones.
        model: Gives the others.
    """

    def __init__(self, partner: Emitter, model: ModelEmitter) -> None:
        self.partner = partner
        self.model = model
        super().__init__()

    def __getstate__(self) -> dict[str, Any]:
        return {"partner": copy.copy(self.partner), "model": copy.copy(self.model)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def _forget(self) -> None:
        super()._forget()
        self._bandit = Bandit()

    def _take(self, trial: Trial, sign: float) -> None:
        self._bandit.take(_ARMS.get(trial.source), rank_of(trial, sign))

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
        wanted = math.floor(n * self._bandit.share + rng.random())
        found: list[Proposal] = []
        with self.model.meter.asking():
            if wanted:
                found = self.partner.propose(space, history, rng, wanted, taken=taken)
                for proposal in found:
                    self.model.meter.count_proposal(proposal.source)
            if len(found) < n:
                points = tuple(p.values for p in found)
                history = replace(history, pending=history.pending + points)
                taken = {*taken, *map(space.key, points)}
                found += self.model.propose(
                    space, history, rng, n - len(found), taken=taken, notes=notes
                )
        return found


def make_scheduler(
    partner: Partner | None, model: ModelEmitter, seed: int | None
) -> ModelEmitter | Scheduler:
    """Return the emitter of an optimizer: the model, or the model and its partner.

    Args:
        partner: ``"cma"`` or ``None``.
        model: Asks the model.
        seed: Seed of the partner; see `CMAEmitter`.

    Raises:
        ValueError: There is no such partner.
        LLMOptError: Its package is not installed.
    """
    if partner is None:
        return model
    if partner != "cma":
        raise ValueError(f"partner={partner!r}: expected 'cma' or None")
    return Scheduler(CMAEmitter(seed), model)
