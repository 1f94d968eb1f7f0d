"""The experiments of a prompt's log: added until the log is full, which is then cut."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import replace

from llmopt.history import History, Trial
from llmopt.prompt.past import RANDOM

_STEP = 128  # minimum number of trials between two layouts of the log
_BEST, _BEST_FULL, _LATEST = 12, 4, 3  # experiments that stay when others are dropped
_RECENT = 48  # latest experiments whose rows stay, where there is room

Size = Callable[[Trial, bool], int]
"""Returns the tokens of a trial's entry, with its notes or with one line of them."""


class Draft:
    """A log that grows with the trials from one prompt to the next.

    Attributes:
        kept: The trials of the log in order of time, and whether each has its notes.
    """

    def __init__(
        self, trials: Sequence[Trial], budget: int, ranks: Sequence[tuple[float, float]]
    ) -> None:
        self._budget = budget
        self._first = _first_of(trials)
        self._trials = list(trials[: self._first])  # trials seen so far
        ranked = ((ranks[t.number], t.number) for t in self._trials)
        self._top = heapq.nsmallest(_BEST, ranked)
        self.kept: list[tuple[Trial, bool]] = []
        self._used = budget + 1 if self._trials else 0  # tokens

    def precedes(self, trials: Sequence[Trial]) -> bool:
        """Whether this is the log of some of the trials, to which the others can be added."""
        seen = self._trials
        return self._first == _first_of(trials) and seen == trials[: len(seen)]

    def extend(
        self,
        trials: Sequence[Trial],
        history: History,
        ranks: Sequence[tuple[float, float]],
        size: Size,
    ) -> None:
        """Add the trials that are new; cut the log whenever it exceeds its budget."""
        if self._used > self._budget:
            self._shorten(history, size)
        for trial in trials[len(self._trials) :]:
            self._trials.append(trial)
            insort(self._top, (ranks[trial.number], trial.number))
            del self._top[_BEST:]
            self.kept.append((trial, True))
            self._used += size(trial, True)
            if self._used > self._budget:
                self._shorten(history, size)

    def _shorten(self, history: History, size: Size) -> None:
        """Cut the log to about two thirds of its budget."""
        trials, budget = self._trials, self._budget
        if len(history.directions) > 1:
            top = list(replace(history, trials=tuple(trials)).ranked[:_BEST])
        else:
            top = [history.trials[number] for _, number in self._top]
        top = [t for t in top if t.state == "complete"]
        latest = trials[: -_LATEST - 1 : -1]
        turns = [t for i in range(_BEST_FULL) for t in (*latest[i : i + 1], *top[i : i + 1])]
        chosen: dict[int, tuple[Trial, bool]] = {}
        used = 0
        rows = [*turns, *top, *trials[: -_RECENT - 1 : -1]]
        best = [t for t in top[:1] if t.source not in RANDOM]
        room = sum(size(t, True) for t in best)
        for notes, wanted, most in (
            (True, best, budget * 0.3),  # all later points start from it
            (False, rows, budget * 0.45 + room),
            (True, turns, budget * 0.58),
        ):
            for trial in wanted:
                known = chosen.get(trial.number)
                more = size(trial, notes) - (size(*known) if known else 0)
                if (notes or not known) and used + more <= most:
                    chosen[trial.number] = (trial, notes)
                    used += more
        self.kept, self._used = [chosen[number] for number in sorted(chosen)], used


def _first_of(trials: Sequence[Trial]) -> int:
    """Return how many trials a log of these begins with, cut at once."""
    return max(0, len(trials) // _STEP - 1) * _STEP
