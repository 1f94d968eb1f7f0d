"""Small random changes of the best point: they cost nothing, and find what a model does not.

A (1+1) evolution strategy (Rechenberg 1973) as a function of the history. It changes some of
the values of the best point, whoever proposed it, by normal draws, in steps that grow where they
help and shrink where they do not, so that one in five helps. Beside a few points of a model that
knows the task it gains from the first evaluations on; CMA-ES needs generations.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Set

import numpy as np

from llmopt.history import Direction, History, Proposal, Trial
from llmopt.search.emitter import keys_of
from llmopt.search.follow import FAILED, Follower, rank_of
from llmopt.space import Space, Value
from llmopt.space.dimensions import Categorical

_CHANGED = 0.3  # of the values, at least one
_OF_VALUE = 0.1  # a first step as a share of a value
_OF_SPREAD = 0.3  # and of the standard deviation of the best points that were proposed
_LEAST = 0.003  # of the range, for a value that is 0 in all of them
_TOP = 5
_GROW, _SHRINK = 1.5, 1.5**-0.25
_SMALLEST, _LARGEST = 0.05, 10.0
_TRIES = 100


class RefineEmitter(Follower):
    """Draws around the best point, for any space with one objective."""

    def _forget(self) -> None:
        super()._forget()
        self._best: tuple[tuple[float, float], tuple[Value, ...]] | None = None
        # Rank, number and values of the best points that nobody drew or gave.
        self._top: list[tuple[tuple[float, float], int, tuple[Value, ...]]] = []
        self._size = 1.0

    def _take(self, trial: Trial, direction: Direction) -> None:
        rank = rank_of(trial, direction)
        best = rank < (self._best[0] if self._best else FAILED)
        if best:
            self._best = rank, trial.values
        if trial.source == "refine":
            self._size = min(max(self._size * (_GROW if best else _SHRINK), _SMALLEST), _LARGEST)
        elif best:
            self._size = 1.0
        if rank < FAILED and trial.source in ("llm", "cma", "refine"):
            insort(self._top, (rank, self._read, trial.values))
            del self._top[_TOP:]

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
        """Return at most `n` new points with source ``"refine"``: see `Emitter.propose`.

        There are fewer where nothing was measured yet, or where few new points are near.
        """
        self._follow(history)
        if self._best is None:
            return []
        start = space.encode(self._best[1])
        units = np.stack([space.encode(values) for *_, values in self._top] or [start])
        zero = np.array([_zero(d) for d in space.dimensions])
        steps = np.maximum(_OF_VALUE * np.abs(start - zero), _OF_SPREAD * units.std(axis=0))
        steps[steps == 0] = _LEAST
        seen = keys_of(space, history) if taken is None else set(taken)
        found: list[Proposal] = []
        size = self._size
        for _ in range(n + _TRIES):
            if len(found) == n:
                break
            changed = rng.random(len(space)) < _CHANGED
            changed[rng.integers(len(space))] = True
            draws = size * steps * rng.standard_normal(len(space))
            fresh = space.encode(space.sample(rng))
            for i, dimension in enumerate(space.dimensions):
                if isinstance(dimension, Categorical):
                    draws[i] = fresh[i] - start[i]  # choices have no neighbours
            point = space.decode(np.clip(start + np.where(changed, draws, 0.0), 0.0, 1.0))
            key = space.key(point)
            if key in seen:
                size *= _GROW  # a coarse grid, or a corner
                continue
            seen.add(key)
            found.append(Proposal(point, "refine"))
        return found


def _zero(dimension: object) -> float:
    """Return where 0 lies on a dimension's scale, or its middle where 0 is no value of it."""
    low, high = getattr(dimension, "low", 1.0), getattr(dimension, "high", 1.0)
    if getattr(dimension, "log", False) or not low <= 0 <= high or low == high:
        return 0.5
    return float(-low / (high - low))
