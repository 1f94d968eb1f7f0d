"""Small random changes of the best point: they cost nothing, and find what a model does not.

A (1+1) evolution strategy (Rechenberg 1973) as a function of the history. It changes some of
the values of the best point, whoever proposed it, by normal draws, in steps that grow where they
help and shrink where they do not, so that one in five helps. Beside a few points of a model that
knows the task it gains from the first evaluations on; CMA-ES needs generations.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from llmopt.errors import SearchStopped
from llmopt.history import FAILED, Direction, Follower, History, Proposal, Source, Trial, rank_of
from llmopt.search.emitter import Taken, keys_of
from llmopt.space import Space, Value
from llmopt.space.dimensions import Categorical

_CHANGED = 0.3  # of the values, at least one
_OF_VALUE = 0.1  # a first step as a share of a value
_OF_SPREAD = 0.3  # and of the standard deviation of the best points that were proposed
_LEAST = 0.003  # of the range, for a value that is 0 in all of them
_TOP = 5
_GROW, _SHRINK = 1.5, 1.5**-0.25
_SMALLEST, _LARGEST = 0.05, 10.0
_NOTHING = 0.01  # steps of that size end a search that they finish
_TRIES = 100
_PROPOSED = ("llm", "cma", "refine", "finish", "network", "sampler")


class RefineEmitter(Follower):
    """Draws around the best point, for any space with one objective.

    One that `ends` finishes a search: its points have the source ``"finish"``, and it ends the
    search once its steps have shrunk to nothing.
    """

    def __init__(self, *, ends: bool = False) -> None:
        self.ends = ends
        self.source: Source = "finish" if ends else "refine"
        self._smallest = _NOTHING if ends else _SMALLEST
        super().__init__()

    def __getstate__(self) -> dict[str, Any]:
        return {"ends": self.ends}  # what was read from the history is read again

    def _forget(self) -> None:
        super()._forget()
        self._best: tuple[tuple[float, float], tuple[Value, ...]] | None = None
        # Rank, number and values of the best points that nobody drew or gave.
        self._top: list[tuple[tuple[float, float], int, tuple[Value, ...]]] = []
        self._size = 1.0

    def _take(self, trial: Trial, history: History) -> None:
        if trial.kind == "check":
            return  # measured on other starts
        rank = rank_of(trial, history.directions[0])
        best = rank < (self._best[0] if self._best else FAILED)
        if best:
            self._best = rank, trial.values
        if trial.source in ("refine", "finish"):
            size = self._size * (_GROW if best else _SHRINK)
            self._size = min(max(size, self._smallest), _LARGEST)
        elif best:
            self._size = 1.0
        if rank < FAILED and trial.source in _PROPOSED:
            insort(self._top, (rank, len(self._known), trial.values))
            del self._top[_TOP:]

    def propose(
        self, space: Space, history: History, rng: Generator, n: int = 1, *, taken: Taken = None
    ) -> list[Proposal]:
        """Return at most `n` new points with its source: see `PartnerEmitter.propose`.

        There are fewer where nothing was measured yet, or where few new points are near.
        """
        self._follow(history)
        if self._best is None:
            return []
        if self.ends and self._size <= _NOTHING:
            raise SearchStopped("small changes of the best point no longer gain")
        # A lucky value is no place to start from: `History.best` heeds the noise.
        lasting = history.best if history.noisy else None
        start = space.encode(self._best[1] if lasting is None else lasting.values)
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
            point = point if space.admits(point) else space.mend(point)
            key = space.key(point)
            if key in seen:
                size *= _GROW  # a coarse grid, or a corner
                continue
            seen.add(key)
            found.append(Proposal(point, self.source))
        if self.ends and not found:
            raise SearchStopped("no new point is near the best one")
        return found


def _zero(dimension: object) -> float:
    """Return where 0 lies on a dimension's scale, or its middle where 0 is no value of it."""
    low, high = getattr(dimension, "low", 1.0), getattr(dimension, "high", 1.0)
    if getattr(dimension, "log", False) or not low <= 0 <= high or low == high:
        return 0.5
    return float(-low / (high - low))


@dataclass(frozen=True)
class Finish:
    """What small random changes of the best point brought, once the model had ended the search."""

    evaluations: int  # changes that were evaluated
    gain: float  # by how much the best reward got better; 0 where it did not
    # the same on fresh starts (`PolicySearch`), which decides whether it is kept; ``None``
    # where it was not measured
    fresh: float | None = None

    def __str__(self) -> str:
        gained = f"gained {self.gain:.4g}" if self.gain else "gained nothing"
        if self.fresh is not None:
            kept = "kept" if self.fresh > 0 else "not kept"
            gained += f", and {self.fresh:+.4g} on fresh starts: {kept}"
        return f"{self.evaluations} small changes of the best point {gained}"


FINISHES = ("auto", "off", None)
"""What ``finish=`` may be; ``None`` means ``"off"``."""


def finish_of(trials: Sequence[Trial], direction: Direction) -> Finish | None:
    """Return what the finish of a search brought, or ``None`` if there was none."""
    changes = [t for t in trials if t.source == "finish"]
    others = [t for t in trials if t.source != "finish" and t.kind != "check"]
    if not changes:
        return None
    best, before = (
        min((rank_of(t, direction) for t in ts), default=FAILED) for ts in (changes, others)
    )
    return Finish(len(changes), before[1] - best[1] if best < before else 0.0)


def can_finish(space: Space, history: History) -> bool:
    """Whether small changes can go on where a model has ended a search.

    They need one objective without noise, a measured point that keeps all limits, and a number to
    change.
    """
    best = history.best
    if best is None or best.constraint_violation or len(history.directions) > 1 or history.noisy:
        return False
    return any(not isinstance(d, Categorical) and d.count > 1 for d in space.dimensions)
