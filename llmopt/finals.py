"""The last evaluations of a noisy search, which measure its best few points again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from llmopt.history import History, Trial
from llmopt.repeats import Merged
from llmopt.results import Results
from llmopt.util.arguments import whole_number

_REPEATS = 2  # re-evaluations of a finalist
_MOST_FINALISTS, _TRIALS_OF_FINALIST = 3, 10  # maximum, and trials for each finalist


class Finals:
    """Plans the re-evaluations.

    The best of many single measurements is a lucky one. With each repeat the noise is known
    better, and `History.rank` takes the point whose mean is good beyond it.
    """

    def __init__(self, finalists: int | Literal["auto"] | None, n_trials: int) -> None:
        self.asked_for = finalists != "auto"
        if finalists == "auto":
            self._count = min(_MOST_FINALISTS, n_trials // _TRIALS_OF_FINALIST)
            self._count = self._count if self._count > 1 else 0
            return
        self._count = whole_number("finalists", 0 if finalists is None else finalists, 0)
        if 2 * _REPEATS * self._count > n_trials:
            raise ValueError(
                f"finalists={finalists}: measured {_REPEATS} times more each, they take more than "
                f"half of {n_trials} evaluations. Expected at most {n_trials // (2 * _REPEATS)}"
            )

    @property
    def most(self) -> int:
        """Evaluations that they take."""
        return _REPEATS * self._count

    def due(self, optimizer: Results[Any], left: int, over: bool) -> bool:
        """Return whether the best points are to be re-evaluated now.

        `left` counts evaluations; `over` says whether the search itself has ended before.
        """
        since = self._since(optimizer.trials)
        if since >= self.most or (since == 0 and left > self.most and not over):
            return False
        return bool(since) or self.asked_for or _is_noisy(optimizer)

    def plan(self, optimizer: Results[Any]) -> list[Trial[Any]]:
        """Return the points to measure again, in order; those done before an interrupt are not."""
        trials = optimizer.trials
        since = self._since(trials)
        before = History(tuple(trials[: len(trials) - since]), (), optimizer.directions)
        ranked = Merged(optimizer.space.key).of(before).ranked
        space = optimizer.space
        wrong = space.deviation, space.outside, space.broken
        best = [t for t in ranked if not any(of(t.values) for of in wrong)][: self._count]
        return [best[i % len(best)] for i in range(since, self.most)] if best else []

    def _since(self, trials: Sequence[Trial[Any]]) -> int:
        """Count the last trials that measured a point again."""
        kinds = enumerate(trial.kind for trial in reversed(trials))
        return next((i for i, kind in kinds if kind != "finalist"), len(trials))


def _is_noisy(optimizer: Results[Any]) -> bool:
    """Whether repeated evaluations of a point are known to give different rewards."""
    history = optimizer.history
    return history.noisy or any(any(t.errors) for t in history.complete)
