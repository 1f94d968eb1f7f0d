"""Reading a growing history trial by trial, and the order of its trials."""

from __future__ import annotations

import math
from typing import Any

from llmopt.history import Direction, History, Trial, rank

FAILED = (math.inf, math.inf)
_LARGEST = 1e300  # so that worse ones still have finite numbers


def rank_of(trial: Trial, direction: Direction) -> tuple[float, float]:
    """Return `llmopt.history.rank` with finite losses of complete trials."""
    found = rank(trial, direction)
    return (found[0], min(max(found[1], -_LARGEST), _LARGEST)) if found < FAILED else FAILED


def failure_gap(worst: float) -> float:
    """Return how far behind the worst known value a failed point is put.

    It is small, since an optimizer that models the values would be led astray by a huge one.
    """
    return max(1.0, abs(worst))


class Follower:
    """A function of the history that reads each trial once.

    Whoever derives from it has `_take`, which learns from one trial, and may extend `_forget`.
    A history that is not the continuation of the one before is read from its beginning, as it is
    by a copy, whose state are the arguments of the class.
    """

    def __init__(self) -> None:
        self._forget()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def _forget(self) -> None:
        self._read = 0
        self._last: Trial | None = None

    def _take(self, trial: Trial, direction: Direction) -> None:
        raise NotImplementedError

    def _follow(self, history: History) -> None:
        trials = history.trials
        known = self._read == 0 or (
            self._read <= len(trials) and trials[self._read - 1] is self._last
        )
        if not known:
            self._forget()
        try:
            for trial in trials[self._read :]:
                self._take(trial, history.directions[0])
                self._last = trial
                self._read += 1
        except BaseException:  # an interrupt, say: half a trial may be known
            self._forget()
            raise
