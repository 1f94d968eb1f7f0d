"""Reading a growing history trial by trial, and the order of its trials."""

from __future__ import annotations

import math

from llmopt.history import History, Trial

FAILED = (math.inf, math.inf)
_LARGEST = 1e300  # so that worse ones still have finite numbers


def rank_of(trial: Trial, sign: float) -> tuple[float, float]:
    """Return what orders trials, best first: violation, then loss.

    Args:
        trial: A trial with one objective.
        sign: 1 where the reward is to be minimized, -1 where it is to be maximized.
    """
    if trial.state != "complete" or trial.rewards is None:
        return FAILED
    loss = sign * trial.rewards[0]
    return trial.constraint_violation, min(max(loss, -_LARGEST), _LARGEST)


def failure_gap(worst: float) -> float:
    """Return how far behind the worst known value a failed point is put.

    It is small, since an optimizer that models the values would be led astray by a huge one.
    """
    return max(1.0, abs(worst))


class Follower:
    """A function of the history that reads each trial once.

    Whoever derives from it has `_take`, which learns from one trial, and may extend `_forget`.
    A history that is not the continuation of the one before is read from its beginning.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._read = 0
        self._last: Trial | None = None

    def _take(self, trial: Trial, sign: float) -> None:
        raise NotImplementedError

    def _follow(self, history: History) -> None:
        trials = history.trials
        known = self._read == 0 or (
            self._read <= len(trials) and trials[self._read - 1] is self._last
        )
        if not known:
            self._forget()
        sign = 1.0 if history.directions[0] == "minimize" else -1.0
        try:
            for trial in trials[self._read :]:
                self._take(trial, sign)
                self._last = trial
                self._read += 1
        except BaseException:  # an interrupt, say: half a trial may be known
            self._forget()
            raise
