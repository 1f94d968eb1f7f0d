"""Repeated measurements of a point, averaged to one trial."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from llmopt.data import NO_DATA
from llmopt.history import Follower, History, Trial, joined, proposed
from llmopt.space import Value

_MOST_WORDS = 280  # characters of the feedback on a point, if there is more than the latest


class Merged(Follower):
    """Histories with repeated measurements of a point as one trial each.

    Such a trial has the mean of the rewards, its `History.errors`, the numbers of the measurements,
    the mean of each part over those that have it, and their feedback. Failed and pruned trials
    stay as they are. Trials are renumbered in the order of their first measurement, or as
    `History.places` says. Of a growing history only the new trials are read.

    Args:
        key: Tells which points are the same: `Space.key`.
    """

    def __init__(self, key: Callable[[tuple[Value, ...]], Hashable]) -> None:
        self._key, self._places = key, History().places
        super().__init__()

    def __getstate__(self) -> dict[str, Any]:
        return {"key": self._key}

    def _reset(self) -> None:
        super()._reset()
        self._trials: list[Trial] = []
        self._shown: tuple[Trial, ...] = ()  # these with their errors from all repeats
        self._groups: dict[Hashable, tuple[int, list[Trial]]] = {}  # by key, each with its place
        self._grown: dict[Hashable, None] = {}  # keys of groups that are not merged yet

    def of(self, history: History) -> History:
        """Return the merged history."""
        if history.places != self._places:
            self._reset()
        self._places = history.places
        self._update(history)
        if self._grown:  # merge each once for all new trials
            for key in self._grown:
                place, group = self._groups[key]
                numbers = tuple([t.number for t in group])
                self._trials[place] = replace(_merge(group), number=place, measurements=numbers)
            own = replace(history, trials=tuple(self._trials), measured=history.trials)
            self._shown = tuple(
                [t if t.evaluations < 2 else replace(t, stderr=joined(own.errors(t))) for t in own]
            )
            self._grown.clear()
        shown, every = self._shown, history.trials
        return replace(history, trials=shown, noisy=True, places=(), measured=every)

    def _add(self, trial: Trial, history: History) -> None:
        alone = trial.state != "complete"
        key = ("", trial.number) if alone else self._key(trial.values)
        kept = history.places[trial.number : trial.number + 1]
        place, *left = kept[0] if kept else [len(self._trials)]
        place, group = self._groups.setdefault(key, (place, []))
        group.append(trial)
        self._grown[key] = None
        self._trials += [trial] * (max([place, *left]) + 1 - len(self._trials))  # others follow
        why = f"it counts as a measurement of #{place + 1}"
        for other in left:
            self._trials[other] = Trial(
                number=other,
                params=trial.params,
                rewards=None,
                state="withdrawn",
                feedback=why,
                evaluations=0,
                **proposed(trial),
            )


def _merge(trials: Sequence[Trial]) -> Trial:
    """Return one trial for several measurements of a point."""
    if len(trials) == 1:
        return trials[0]
    rewards = np.array([t.rewards for t in trials], dtype=np.float64)
    told = zip(*[t.errors for t in trials], strict=True)
    stderr = joined([_error(each, some) for each, some in zip(rewards.T, told, strict=True)])
    names = dict.fromkeys(name for t in trials for name in t.parts)
    having = {name: [t for t in trials if name in t.parts] for name in names}
    means = {name: float(np.mean([t.parts[name] for t in some])) for name, some in having.items()}
    counts = {name: sum(t.evaluations for t in some) for name, some in having.items()}
    evaluations = sum(t.evaluations for t in trials)
    violations = np.array([(t.constraint_violation, t.measured_violation) for t in trials])
    # The mean of equal ones is exact.
    total, measured = (violations[0] + (violations - violations[0]).mean(axis=0)).tolist()
    return replace(
        trials[0],
        rewards=tuple(float(x) for x in rewards.mean(axis=0)),
        constraint_violation=total,
        measured_violation=measured,
        stderr=stderr,
        evaluations=evaluations,
        feedback=_feedback(trials),
        data=next((t.data for t in reversed(trials) if t.data), NO_DATA),
        parts=means,
        part_counts={name: n for name, n in counts.items() if n < evaluations},
        seed=None,
        origin="",
    )


def _error(rewards: np.ndarray, told: Sequence[float | None]) -> float | None:
    """Return the standard error of the mean of some rewards: from recorded errors, or the spread.

    Equal rewards say nothing of it.
    """
    known = [error for error in told if error is not None]
    if len(known) == len(told):
        return math.sqrt(sum(e * e for e in known)) / len(known)
    return float(rewards.std(ddof=1)) / math.sqrt(len(told)) if np.ptp(rewards) else None


def _feedback(trials: Sequence[Trial]) -> str:
    """Return what was said of the measurements of a point: the latest words, and short ones."""
    said = [(k, t.feedback) for k, t in enumerate(trials, start=1) if t.feedback]
    if len(said) == len(trials) and len({words for _, words in said}) == 1:
        return said[0][1]
    room, lines = _MOST_WORDS, list[str]()
    for k, words in reversed(said):
        room -= len(words)
        if lines and room < 0:
            break
        lines.insert(0, f"measurement {k}: {words}")
    return "\n".join(lines)
