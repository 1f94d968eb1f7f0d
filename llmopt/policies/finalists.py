"""Which policy of a search to keep: what fresh starts say of the best ones.

The starts of a search are the same for every policy, so that policies differ by what they do. What
is gained on these very starts alone shows on others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from llmopt.history import Kind, Trial
from llmopt.optimizer import LLMOptimizer
from llmopt.policies.episode_seeds import MAX_STARTS, start_seeds
from llmopt.policies.evaluation import Evaluation, Evaluator
from llmopt.policies.parameters import PolicySpace
from llmopt.search.partners.refine import Finish
from llmopt.util.arguments import whole_number

CHECKED = 5
"""Fresh starts, for each of an evaluation, on which a point is tried where the model would stop."""

_MUCH = 0.05  # of the mean return, by which a fresh start is worse than all others

Point = Trial[dict[str, Any]]


class FreshStarts:
    """The part of `PolicySearch` that tries its best points on fresh starts."""

    optimizer: LLMOptimizer[dict[str, Any]]
    seed: int
    starts: Sequence[int]
    _parameters: PolicySpace
    _evaluator: Evaluator
    _finishing: Literal["auto", "off"] | None
    # In a check that was passed: the point, its starts, what came of it.
    _passed: tuple[tuple[Any, ...], int, Evaluation, str] | None = None
    _chosen: tuple[int, Point | None] = (0, None)

    def measure(self, params: Any, seeds: Sequence[int] | None = None) -> tuple[Evaluation, str]:
        """Evaluate a point on the selection starts, and say in words what its policy did."""
        raise NotImplementedError

    def _record(self, params: Any, outcome: Evaluation, text: str, kind: Kind) -> Point:
        raise NotImplementedError

    def _spent(self) -> int:
        """Return the evaluations so far; one on more starts counts as several."""
        return sum(self._size(t) for t in self.optimizer.trials if t.kind != "imported")

    def _size(self, trial: Point) -> int:
        if trial.kind == "check" and trial.state == "failed":
            return CHECKED
        return max(1, len(trial.samples) // len(self.starts))

    def _recommended(self, point: int | None) -> Point | None:
        """Return the point that a model recommends, if it is as good as the best, else the best."""
        # As the model sees them: with `noisy` a point that was measured twice has one number.
        best, trials = self._best_of_all(), self.optimizer.history.trials
        if best is None or not best.rewards or point is None or not 0 < point <= len(trials):
            return best
        named = trials[point - 1]
        if not named.rewards or named.state != "complete" or named.values in self._checks():
            return best
        as_good = named.rewards[0] >= best.rewards[0] - _MUCH * abs(best.rewards[0])
        return named if as_good else best

    def _best_of_all(self) -> Point | None:
        """Return the best trial; of a point that failed on fresh starts, these count, too.

        What a finish found counts only if it is better than where it began on the fresh starts.
        """
        history, checks = self.optimizer.history, self._checks()
        before, after = self._around_finish()
        if before is not None:
            better = after is not None and mean_of(after) > mean_of(before)
            kept = after if better and after is not None else before
            return next(t for t in history.complete if t.values == kept.values)
        if not checks or history.best is None:
            return None if history.best is None else self.optimizer.best

        def mean(trial: Point) -> float:
            more = checks.get(trial.values)
            if more is None:
                return trial.rewards[0] if trial.rewards else -math.inf
            samples = (*trial.samples, *more.samples)
            return math.fsum(samples) / len(samples) if more.samples else -math.inf

        tried = (t for t in history.complete if t.kind != "check")
        return max(tried, key=mean, default=history.best)

    def _checks(self) -> dict[tuple[Any, ...], Point]:
        """Return the trials in which a point was tried on fresh starts, by its values."""
        return {t.values: t for t in self.optimizer.trials if t.kind == "check"}

    def _failed_elsewhere(self, best: Point, left: int) -> Point | None:
        """Try a point on fresh starts, and tell the model if it does much worse on one.

        A point that failed there and is recommended all the same is not tried again.
        """
        most = self.optimizer._options.requests
        asked = most is not None and self.optimizer.usage.requests >= most
        if asked or left < 2 or not best.samples or best.values in self._checks():
            return None
        size = min(CHECKED, left) * len(self.starts)
        if self._passed is not None and self._passed[:2] == (best.values, size):
            return None
        outcome, text = self.measure(best.params, start_seeds(self.seed, "check", size))
        if outcome.mean is not None and not fails_elsewhere(best.samples, outcome.returns):
            self._passed = (best.values, size, outcome, text)
            return None
        seen = (
            f"#{best.number + 1} again, on {size} fresh starts, as you would stop: on some it does "
            "much worse than on any start before"
        )
        if outcome.mean is not None:
            least, before = min(outcome.returns), min(best.samples)
            seen += f" (least return {least:.5g}, on the starts before {before:.5g})"
        text = f"{seen}. {text}".strip()
        return self._record(best.params, outcome, text, "check")

    # -- the finish -----------------------------------------------------------------------

    @property
    def finish(self) -> Finish | None:
        """What small changes of the best point brought after the model had ended the search."""
        found = self.optimizer.finish
        before, after = self._around_finish()
        if found is None or before is None or after is None:
            return found
        return replace(found, fresh=mean_of(after) - mean_of(before))

    def _around_finish(self) -> tuple[Point | None, Point | None]:
        """Return what the fresh starts said of the point where a finish began, and of its best."""
        before: Point | None = None
        after: Point | None = None
        begun = False
        for trial in self.optimizer.trials:
            begun = begun or trial.source == "finish"
            if trial.kind == "check" and begun:
                after = trial
            elif trial.kind == "check":
                before = trial
        return (before, after) if begun else (None, None)

    def _best_change(self) -> Point | None:
        changes = [t for t in self.optimizer.trials if t.source == "finish" and t.rewards]
        return max(changes, key=_value, default=None)

    def _begin_finish(self, point: Point | None, left: int) -> bool:
        """Let small changes go on from a point, after its check; return whether they begin.

        They take what is left but for two checks: that of the point, which is recorded now, and
        that of the best change.
        """
        if self._finishing != "auto" or point is None or not point.samples:
            return False
        known = [t for t in self.optimizer.trials if t.kind == "check"][-1:]
        again = bool(known) and known[0].values == point.values
        made = self._passed if self._passed and self._passed[0] == point.values else None
        size = min(CHECKED, max(1, left // 4))
        size = self._size(known[0]) if again else made[1] // len(self.starts) if made else size
        if size * (1 if again else 2) >= left or not self.optimizer._finish():
            return False
        if not again:
            seeds = start_seeds(self.seed, "check", size * len(self.starts))
            outcome, text = made[2:] if made else self.measure(point.params, seeds)
            self._record(point.params, outcome, text, "check")
        return True

    def _go_on_with_finish(self) -> None:
        """Let a finish go on that had begun when the search was cut off."""
        points = [t.source for t in self.optimizer.trials]
        points += [p.source for p in self.optimizer.pending_proposals]
        if self._finishing == "auto" and "finish" in points:
            self.optimizer._finish()

    def _kept_back(self) -> int:
        """Return the evaluations that the check at the end of a finish takes."""
        before, after = self._around_finish()
        return 0 if before is None or after is not None else self._size(before)

    def _end_finish(self) -> None:
        """Try the best change on the fresh starts, if it is better on the selection starts."""
        (before, _), best = self._around_finish(), self._best_change()
        if before is None or best is None or best.values in self._checks():
            return
        first = next(t for t in self.optimizer.trials if t.values == before.values)
        if _value(best) > _value(first):
            seeds = start_seeds(self.seed, "check", self._size(before) * len(self.starts))
            self._record(best.params, *self.measure(best.params, seeds), "check")

    def choose(self, finalists: int = 5, starts: int | None = None) -> Point:
        """Choose the policy to keep on fresh starts: the best of many on a few was lucky on them.

        From then on `best_policy`, `evaluate`, `save` and `gif` are of the chosen one, until the
        search goes on.
        """
        finalists = whole_number("finalists", finalists, 1)
        starts = 2 * len(self.starts) if starts is None else starts
        fresh = start_seeds(self.seed, "final", whole_number("starts", starts, 1, MAX_STARTS))
        size, checks = len(self.starts), self._checks()
        trials = [t for t in self.optimizer.history.complete if t.kind != "check"]
        points = [self._parameters.flat(t.params) for t in trials]

        def evaluate(place: int) -> Evaluation:
            more = checks.get(trials[place].values)
            if more is not None and not more.samples:
                return Evaluation((), (), "it failed on fresh starts")
            outcome = self._evaluator.evaluate(points[place], fresh)
            returns = (*outcome.returns, *(more.samples if more else ()))
            return replace(outcome, returns=returns)

        known = [Evaluation((float(t.rewards[0]),) * size if t.rewards else (), ()) for t in trials]
        place, finals = choose(points, known, finalists, evaluate)
        sound = place is not None and any(final.mean is not None for final in finals)
        chosen = trials[place or 0] if sound else self._best_of_all() or self.optimizer.best
        self._chosen = (len(self.optimizer.trials), chosen)
        return chosen


def mean_of(trial: Point) -> float:
    """Return the mean of a trial's samples; of a failed one minus infinity."""
    return math.fsum(trial.samples) / len(trial.samples) if trial.samples else -math.inf


def _value(trial: Point) -> float:
    return trial.rewards[0] if trial.rewards else -math.inf


def fails_elsewhere(here: Sequence[float], there: Sequence[float]) -> bool:
    """Whether returns on fresh starts hold one far below each return on the selection starts."""
    spread = max(max(here) - min(here), _MUCH * abs(math.fsum(here) / len(here)))
    return min(there) < min(here) - spread


def _best_index(means: Sequence[float | None]) -> int | None:
    """Return the place of the largest mean, the first of equals; ``None`` if all failed."""
    sound = [i for i, mean in enumerate(means) if mean is not None]
    return max(sound, key=lambda i: (means[i], -i), default=None)


@dataclass(frozen=True)
class Final:
    """The last round of a search: one of its best few policies on fresh starts."""

    index: int  # place among the search's points, warm-up first
    returns: tuple[float, ...]
    mean: float | None  # of these and the selection starts; ``None`` if an episode failed


def choose(
    points: Sequence[Any],
    outcomes: Sequence[Evaluation],
    count: int,
    evaluate: Callable[[int], Evaluation],
) -> tuple[int | None, list[Final]]:
    """Choose a search's policy: of the best few, the best on fresh starts, too.

    What was the best of many on a few starts was lucky on them. The finalists are evaluated
    on further starts, and the mean over all of a finalist's starts decides. Without finalists the
    best on the selection starts is chosen. Returns its place, ``None`` where no evaluation was
    sound, and the finalists, the best on the selection starts first.
    """
    means = [outcome.mean for outcome in outcomes]
    finals: list[Final] = []
    sound = [i for i, mean in enumerate(means) if mean is not None]
    order = sorted(sound, key=lambda i: (-(means[i] or 0.0), i))
    first: dict[tuple[float, ...], int] = {}
    for i in order:
        first.setdefault(tuple(map(float, points[i])), i)
    for index in list(first.values())[:count]:
        fresh = evaluate(index)
        both = (*outcomes[index].returns, *fresh.returns)
        finals.append(
            Final(index, fresh.returns, None if fresh.failure else math.fsum(both) / len(both))
        )
    best = _best_index([final.mean for final in finals])
    return (_best_index(means) if best is None else finals[best].index), finals
