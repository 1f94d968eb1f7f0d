"""What is known of earlier trials and kept from one prompt to the next: facts, and the log."""

from __future__ import annotations

import heapq
import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from llmopt.history import Follower, History, Trial
from llmopt.prompt.answer import WITHDRAWN, Answer, notes_of

_MOST_ENTRIES = 5_000  # cached texts; further ones are made again when needed
RANDOM = ("warmup", "fallback")


class Past(Follower):
    """The trials of a history, each with what it is beside those before it.

    It grows with the history.

    Attributes:
        ranks: The rank of each.
        bests: Number of the best trial before each; a check is no rival of the others.
        nearest: For each the nearest other value of f before it.
        ranked: Rank and number of the complete trials, but for checks, best first.
        answers: Numbers of the model's points, by answer.
        withdrawn: Numbers, from 0, of the trials whose lessons a later answer withdrew.
        drawn: Number of trials before the first that a model proposed.
        done_with: Numbers of the random points before the model's first design: their rows are
            enough. The best of them keeps its notes if that design is worse.
        with_lesson: Numbers of the trials whose answer drew a lesson.
        has_errors: Whether any trial has a standard error.
        parents: Number of the trial that each was made from, as far as it was asked for.
        paired: Whether points are measured on the same initial states, and compared in pairs.
        rows: What the log says of a trial in its row.
        entries: The row with the trial's notes, or with a line of them, and its tokens.
        moves: By how much each trial moved f, if it changed its parent by next to nothing.
        drafts: Logs of these entries, by their budgets. What later trials change is dropped.
    """

    def _reset(self) -> None:
        super()._reset()
        self._facts: tuple[Any, ...] = ()
        self.ranks: list[tuple[float, float]] = []
        self.bests: list[int | None] = []
        self.nearest: list[float | None] = []
        self.ranked: list[tuple[tuple[float, float], int]] = []
        self.answers: list[list[int]] = []
        self.withdrawn: set[int] = set()
        self.drawn = 0
        self.done_with: frozenset[int] = frozenset()
        self.with_lesson: list[int] = []
        self.has_errors = False
        self.parents: dict[int, int | None] = {}
        self.paired = False
        self.rows: dict[int, str] = {}
        self.entries: dict[tuple[int, bool], tuple[str, int]] = {}
        self.drafts: dict[int, Any] = {}
        self.moves: dict[int, float | None] = {}
        self._values: list[float] = []  # of f, in their order
        self._runs: list[int] = []  # the run of each trial, by the place of its best one
        self._best_of_runs: list[int] = []

    def read(self, history: History, *facts: Any) -> Past:
        """Take in the trials that are new; return itself.

        The texts of a trial depend on `facts`, too. If they differ from the earlier ones, all is
        read again.
        """
        if self._facts != facts:
            self._reset()
        self._update(history)
        self._facts = facts
        if len(self.entries) > _MOST_ENTRIES:
            self.rows.clear()
            self._drop()  # drafts, too: later withdrawals are looked up among the entries
        return self

    def leads_run(self, trial: Trial) -> bool:
        """Whether a trial is the best one until the end of its run of points not from a model."""
        return self._best_of_runs[self._runs[trial.number]] == trial.number

    def _add(self, trial: Trial, history: History) -> None:
        number, rank = len(self._known), history.rank(trial)
        complete, asked = trial.state == "complete", trial.source == "llm"
        best = self.ranked[0][1] if self.ranked else None
        top = number if best is None or (complete and rank < self.ranks[best]) else best
        self.ranks.append(rank)
        self.bests.append(best)
        self.nearest.append(self._near(trial) if complete else None)
        if complete and trial.kind != "check":
            insort(self.ranked, (rank, number))
        self._note_run(top, asked)
        if asked and self.drawn == number:
            drawn = {t.number for t in self._known if t.source in RANDOM}
            self.done_with = frozenset(drawn - {top})
            self._drop()
        elif self.drawn == number:
            self.drawn += 1
        self.has_errors |= trial.stderr is not None
        self.paired |= len(trial.samples) > 1 and not history.noisy
        if asked:
            self._note_answer(trial)

    def _near(self, trial: Trial) -> float | None:
        """Return the value of f before a trial's that is nearest to it, and not the same."""
        if trial.rewards is None:
            return None
        value, seen = trial.rewards[0], self._values
        low, high = bisect_left(seen, value), bisect_right(seen, value)
        around = (*seen[max(0, low - 1) : low], *seen[high : high + 1])
        if low == high:
            seen.insert(low, value)
        return min([(abs(v - value), v) for v in around], default=(0.0, None))[1]

    def _note_run(self, best: int, asked: bool) -> None:
        """Note the best trial up to the latest one, whose run begins with it if it was `asked`."""
        if asked or not self._runs:
            self._best_of_runs.append(best)
        elif best != self._best_of_runs[-1]:
            self._drop(self._best_of_runs[-1])  # its feedback is cut now
            self._best_of_runs[-1] = best
        self._runs.append(len(self._best_of_runs) - 1)

    def _note_answer(self, trial: Trial) -> None:
        said = thought(trial)
        if said.lesson:
            self.with_lesson.append(trial.number)
        alone = said.hypothesis and not (said.lesson or said.analysis)
        # A point is of the answer before it where it has a hypothesis alone, and cost the same.
        if self.answers and alone and _costs(self._known[self.answers[-1][-1]]) == _costs(trial):
            self.answers[-1].append(trial.number)
        else:
            self.answers.append([trial.number])
        if "withdrawn" in trial.explanation.casefold():  # far quicker than the search
            for found in WITHDRAWN.finditer(trial.explanation):
                struck = {int(n) - 1 for n in re.findall(r"\d+", found[1])}
                for number in struck - self.withdrawn:
                    if number < trial.number:
                        self.withdrawn.add(number)
                        self._drop(number)

    def _drop(self, number: int | None = None) -> None:
        """Forget what was written of a trial with all its notes, or all entries."""
        if number is None:
            self.entries.clear()
            self.drafts.clear()
        elif self.entries.pop((number, True), None):
            self.drafts.clear()


def thought(trial: Trial) -> Answer:
    """Return what a model said about a trial."""
    return notes_of(trial.explanation) if trial.source == "llm" else Answer()


def _costs(trial: Trial) -> tuple[float, ...]:
    """Return the share of its request that a point has: the same for all of an answer."""
    return trial.prompt_tokens, trial.completion_tokens, trial.seconds


_STEP = 128  # minimum number of trials between two layouts of the log
_BEST, _BEST_FULL, _LATEST = 12, 4, 3  # experiments that stay when others are dropped
_RECENT = 48  # latest experiments whose rows stay, where there is room

Size = Callable[[Trial, bool], int]
"""Returns the tokens of a trial's entry, with its notes or with one line of them."""


class Layout:
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
