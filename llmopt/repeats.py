"""Repeated measurements of a point, averaged to one trial."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from llmopt.data import NO_DATA
from llmopt.history import Follower, History, Trial
from llmopt.space import Value


class Merged(Follower):
    """Histories with repeated measurements of a point as one trial each.

    Such a trial has the mean of the rewards, its standard error from these measurements alone, as
    prompts show it (`History.stderr` estimates it from the repeats of all points), the numbers of
    the measurements, and the latest feedback. Failed and pruned trials stay as they are. Trials are
    renumbered in the order of their first measurement, or as `History.places` says. Of a growing
    history only the new trials are read.

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
        self._groups: dict[Hashable, tuple[int, list[Trial]]] = {}  # by key, each with its place
        self._grown: dict[Hashable, None] = {}  # keys of groups that are not merged yet

    def of(self, history: History) -> History:
        """Return the merged history."""
        if history.places != self._places:
            self._reset()
        self._places = history.places
        self._update(history)
        for key in self._grown:  # once for all new trials
            place, group = self._groups[key]
            numbers = tuple([t.number for t in group])
            self._trials[place] = replace(_merge(group), number=place, measurements=numbers)
        self._grown.clear()
        return replace(history, trials=tuple(self._trials), noisy=True, places=())

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
            self._trials[other] = replace(
                trial, number=other, state="withdrawn", rewards=None, feedback=why
            )


def _merge(trials: Sequence[Trial]) -> Trial:
    """Return one trial for several measurements of a point."""
    if len(trials) == 1:
        return trials[0]
    rewards = np.array([t.rewards for t in trials], dtype=np.float64)
    known = [t.stderr for t in trials if t.stderr is not None]
    if len(known) == len(trials):
        stderr = math.sqrt(sum(e * e for e in known)) / len(known)
    elif np.ptp(rewards[:, 0]):
        stderr = float(rewards[:, 0].std(ddof=1)) / math.sqrt(len(trials))
    else:
        stderr = None  # equal values say nothing of the error
    feedback = next((t.feedback for t in reversed(trials) if t.feedback), "")
    parts = [name for name in trials[0].parts if all(name in t.parts for t in trials)]
    return replace(
        trials[0],
        rewards=tuple(float(x) for x in rewards.mean(axis=0)),
        stderr=stderr,
        evaluations=sum(t.evaluations for t in trials),
        feedback=feedback,
        data=next((t.data for t in reversed(trials) if t.data), NO_DATA),
        parts={name: float(np.mean([t.parts[name] for t in trials])) for name in parts},
        seed=None,
    )
