"""The log of a search: what a prompt shows of each trial, and where the search stands.

Templates get a `Log` as ``evidence``. It is made for models that can weigh measurements: values
come with their standard errors (if all points are measured on the same initial states, that of the
difference from the best), a point with its difference from the point that it was made from, and a
hypothesis with the change that it brought.

A trial's entry in the log is written once. It depends on the trials before it alone, so that the
next prompt begins with the same text and prefix caches hit. If the log exceeds its budget, much of
it is cut at once: the best and the latest trials keep all that was seen, the others a row and one
line.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from operator import attrgetter, ne
from typing import Any

import numpy as np

from llmopt.history import RANDOM_SOURCES, Follower, History, Trial
from llmopt.prompt.answer import WITHDRAWN, Answer, notes_of, zero_point
from llmopt.prompt.budget import LogBudget
from llmopt.prompt.describe import (
    FEEDBACK_CHARS,
    MAX_NOTE,
    SOURCES,
    brief,
    by_action,
    gain,
    in_one_line,
    names_of,
    number,
    paired_error,
    rough,
    sentences,
    telling,
    whole_lines,
    within_noise,
)
from llmopt.space import Categorical, Float, Space
from llmopt.space.values import ABSENT
from llmopt.util.text import estimate_tokens

_MAX_CHANGES = 6  # changed parameters that are listed by name
_COLUMNS = 16  # parameters that get a column each
_LISTED = 24  # values in one cell that are listed by name
_MAX_LESSON = 300
_MAX_HYPOTHESIS = 240
_FEW_MOVES = 3  # tiny changes that estimate f's roughness
_TINY = 0.01  # a change of each parameter by less than this part of its range
_RECALLED = 200  # latest trials that a point may have been made from, if its answer does not say
_BRIEF = 330  # characters of feedback on a point that no model proposed, unless it was the best
_SHOWN = 2  # best points whose values are shown again at the end, if the log has no columns
_ANSWERS, _POINTS = 3, 5  # latest answers, and points in them, that show whether it still gains
_MOST_ENTRIES = 5_000  # cached texts; further ones are made again when needed


@dataclass(eq=False, slots=True)
class _Seen:
    """What a trial is beside those before it."""

    said: Answer  # what the model said about it
    best: int | None  # number of the best trial before it; a check is no rival of the others
    nearest: float | None  # the nearest other value of f before it
    run: int  # which run of points it is in: a model's point, and the others until the next one


class Log(Follower):
    """What the trials show, in words.

    `read` takes in the trials that are new since the last prompt, and `show` says which of them the
    log lists and how long it may be. What is known of a trial, and its entry, are kept.

    Attributes:
        history: All trials.
        labels: What the parameters are called.
        count: Counts the tokens of a text.
        has_errors: Whether any trial has a standard error.
        paired: Number of initial states on which points are compared in pairs; 1 if it differs
            between points, 0 if points are not compared so.
        drawn: How many trials there are before the first that a model proposed.
        last_answer: The trials of the model's last answer that has results.
    """

    def _reset(self) -> None:
        super()._reset()
        self._facts: tuple[Any, ...] = ()
        self._seen: list[_Seen] = []
        self.has_errors = False
        self.paired = self.drawn = 0
        # Rank and number of the complete trials, but for checks, best first.
        self._ranks: list[tuple[tuple[float, float], int]] = []
        self._values: list[float] = []  # of f, in their order
        self._leaders: list[int] = []  # number of the best trial up to the end of each run
        self._answers: list[list[int]] = []  # numbers of the model's points, by answer
        self._with_lesson: list[int] = []  # numbers of the trials whose answer drew a lesson
        self._withdrawn: set[int] = set()  # numbers of those whose lesson a later answer withdrew
        # Numbers of the random points before the model's first design, whose rows are enough. The
        # best of them keeps its notes if that design is worse.
        self._done_with: frozenset[int] = frozenset()
        self._parents: dict[int, int | None] = {}  # as far as they were asked for
        self._moves: dict[int, float | None] = {}
        self._entries: dict[tuple[int, bool], tuple[str, int]] = {}  # with their tokens
        self._budgets: dict[int, LogBudget] = {}

    def read(
        self,
        history: History,
        space: Space,
        labels: tuple[str, ...],
        *,
        feedback_limit: int = FEEDBACK_CHARS,
        count: Callable[[str], int] = estimate_tokens,
    ) -> Log:
        """Take in the trials that are new, and show all of them; return itself.

        Args:
            history: All trials. Those read before are not read again, unless the history does not
                begin with them or another argument has changed.
            space: The search space.
            labels: What the parameters are called.
            feedback_limit: Characters of feedback shown for one trial.
            count: Counts the tokens of a text.
        """
        noise = history.noisy and history.deviation
        facts = space, labels, feedback_limit, count, history.directions, noise
        if self._facts != facts:
            self._reset()
        self._update(history)
        self._facts = facts
        self.history, self.space, self.labels = history, space, labels
        self.count, self._feedback_limit = count, feedback_limit
        if len(self._entries) > _MOST_ENTRIES:
            self._drop()  # budgets, too: later withdrawals are looked up among the entries
        last = self._answers[-1] if self._answers else []
        self.last_answer = [history.trials[place] for place in last]
        # Without an answer that is still measured in part.
        self._judged = self._answers[: -1 if history.pending else None]
        return self.show(history.trials)

    def show(self, trials: Sequence[Trial], budget: int | None = None) -> Log:
        """Choose the trials of the log; return itself.

        Args:
            trials: The trials that may be shown, in any order.
            budget: Tokens of the log; ``None`` for no limit.
        """
        self._chosen, self._budget = trials, budget
        self._kept: list[tuple[Trial, bool]] | None = None
        return self

    def _add(self, trial: Trial, history: History) -> None:
        place, rank = len(self._known), history.rank(trial)
        complete, asked = trial.state == "complete", trial.source == "llm"
        best = self._ranks[0][1] if self._ranks else None
        top = place if best is None or (complete and rank < self._ranks[0][0]) else best
        if asked or not self._leaders:
            self._leaders.append(top)
        elif top != self._leaders[-1]:
            self._drop(self._leaders[-1])  # its feedback is cut now
            self._leaders[-1] = top
        nearest = self._nearest(trial.rewards[0]) if complete and trial.rewards else None
        said = notes_of(trial.explanation) if asked else Answer()
        self._seen.append(_Seen(said, best, nearest, len(self._leaders) - 1))
        if complete:
            insort(self._ranks, (rank, place))
        self.has_errors |= trial.stderr is not None
        if (count := len(trial.samples)) > 1 and not history.noisy:
            self.paired = count if self.paired in (0, count) else 1
        if asked and self.drawn == place:
            drawn = {i for i, t in enumerate(self._known) if t.source in RANDOM_SOURCES}
            self._done_with = frozenset(drawn - {top})
            self._drop()
        self.drawn += not asked and self.drawn == place
        if asked:
            self._note_answer(trial, place, said)

    def _nearest(self, value: float) -> float | None:
        """Return the known value of f that is nearest to a new one, and not the same."""
        seen = self._values
        low, high = bisect_left(seen, value), bisect_right(seen, value)
        around = (*seen[max(0, low - 1) : low], *seen[high : high + 1])
        if low == high:
            seen.insert(low, value)
        return min([(abs(v - value), v) for v in around], default=(0.0, None))[1]

    def _note_answer(self, trial: Trial, place: int, said: Answer) -> None:
        if said.lesson:
            self._with_lesson.append(place)
        # A point is of the answer before it if it has a hypothesis alone, and the same cost: its
        # share of the request.
        alone = said.hypothesis and not (said.lesson or said.analysis)
        last = self._known[self._answers[-1][-1]] if self._answers else trial
        cost = attrgetter("prompt_tokens", "completion_tokens", "seconds")
        if self._answers and alone and cost(last) == cost(trial):
            self._answers[-1].append(place)
        else:
            self._answers.append([place])
        if "withdrawn" in trial.explanation.casefold():  # far quicker than the search
            for found in WITHDRAWN.finditer(trial.explanation):
                struck = {int(n) - 1 for n in re.findall(r"\d+", found[1])}
                for withdrawn in struck - self._withdrawn:
                    if withdrawn < place:
                        self._withdrawn.add(withdrawn)
                        self._drop(withdrawn)

    def _drop(self, place: int | None = None) -> None:
        """Drop the text of a trial with all its notes, or all entries."""
        if place is None:
            self._entries.clear()
            self._budgets.clear()
        elif self._entries.pop((place, True), None):
            self._budgets.clear()

    # -- the log --------------------------------------------------------------------------

    @property
    def header(self) -> str:
        """The log's one header row."""
        f = names_of(self.history.directions, self.history.metrics)
        if len(self.labels) <= _COLUMNS:
            return " | ".join(["#", *f, *self.labels, "made from"])
        rest = "; those not named are 0" if zero_point(self.space) else ""
        return " | ".join(
            ["#", *f, f"made from, and what was changed (of a new one all values{rest})"]
        )

    @property
    def log(self) -> list[str]:
        """The entries of the log, oldest first: a row, and what was thought and seen."""
        return [self._entry(t, full)[0] for t, full in self._laid_out()]

    @property
    def dropped(self) -> int:
        """How many of all trials are not in the log."""
        return len(self.history.trials) - len(self._laid_out())

    def _laid_out(self) -> list[tuple[Trial, bool]]:
        """Return the trials of the log in order of time, and whether each has its notes.

        The choice depends on the trials recorded until the log was last shortened, so that the
        next proposal only adds entries at the end.
        """
        if self._kept is not None:
            return self._kept
        trials, budget = sorted(self._chosen, key=attrgetter("number")), self._budget
        if budget is None:
            self._kept = [(t, True) for t in trials]
            return self._kept
        fitted = self._budgets.get(budget)
        if fitted is None or not fitted.precedes(trials):
            fitted = self._budgets[budget] = LogBudget(trials, budget, self.history)
        fitted.extend(trials, self.history, lambda trial, full: self._entry(trial, full)[1])
        self._kept = [*fitted.kept]
        answer = self._judged[-1] if self._judged else []
        fresh = [t for t in trials if t.number in answer]
        if sum(self._entry(t, True)[1] for t in fresh) <= budget:
            # What the latest answer brought is seen in full once at least.
            older = [one for one in self._kept if one[0].number not in answer]
            whole = [(t, True) for t in fresh]
            self._kept = sorted([*older, *whole], key=lambda one: one[0].number)
        return self._kept

    def _entry(self, trial: Trial, full: bool) -> tuple[str, int]:
        """Return a trial's row with its notes, or with one line of them, and its tokens."""
        made = self._entries.get((trial.number, full))
        if made is None:
            cells = [f"#{trial.number + 1}", *self.score(trial, self._before(trial))]
            if len(self.labels) <= _COLUMNS:
                cells += [self.value(trial, i) for i in range(len(self.labels))]
            moved = " (not as you gave it: moved into the ranges)" if trial.clipped else ""
            text = " | ".join([*cells, self._difference(trial) + moved])
            if trial.number not in self._done_with:
                notes = self._notes(trial) if full else brief(trial.feedback)
                text += ("\n" + notes + "\n" * full) if notes else ""
            made = self._entries[trial.number, full] = text, self.count(text) + 1
        return made

    # -- one trial ------------------------------------------------------------------------

    def score(self, trial: Trial, best: Trial | None, digits: int = 0) -> list[str]:
        """Return one cell for each objective: the value with its standard error.

        Points measured on the same initial states have none: `ranking` and the hypotheses show the
        error of a difference. The first value has at least `digits` digits, by default enough to
        distinguish it from earlier values and from that of `best`.
        """
        objectives = len(self.history.directions)
        if trial.rewards is None or trial.state == "failed":
            return ["failed"] * objectives
        cells = [number(r) for r in trial.rewards]
        digits = digits or telling(trial.rewards[0], self._seen[trial.number].nearest, 6)
        if best is not None and best.rewards is not None:
            digits = telling(trial.rewards[0], best.rewards[0], digits)
        cells[0] = number(trial.rewards[0], digits)
        error = trial.stderr
        if error is not None and not (self.paired and len(trial.samples) > 1):
            cells[0] += f" ± {rough(error)}"
        if trial.evaluations > 1:
            cells[0] += f" ({trial.evaluations} times)"
        if trial.state == "pruned":
            cells[0] += " (stopped early)"
        if trial.constraint_violation > 0:
            cells[0] += f" (violates the constraints by {trial.constraint_violation:.3g})"
        return cells

    def value(self, trial: Trial, index: int) -> str:
        """Return one value as it is shown.

        It is shown in full. A small change of a known point, and without columns a random point,
        has four digits, or enough to distinguish it from the best point before.
        """
        dimension, value = self.space.dimensions[index], trial.values[index]
        if value is ABSENT or not isinstance(dimension, Float) or dimension.step is not None:
            return self.space.format(index, value)
        digits = 9
        if trial.source == "cma" or (trial.source != "llm" and len(self.labels) > _COLUMNS):
            best = self._before(trial)
            other = value if best is None else best.values[index]
            other = value if other is ABSENT else other
            digits = min(telling(float(value), float(other), 4), 9)
        return number(float(value), digits)

    def values(self, trial: Trial) -> str:
        """Return all values of a point by action: those that are not 0, or all in their order."""
        n = len(self.labels)
        hidden = (ABSENT, 0) if zero_point(self.space) else (ABSENT,)
        named = {i for i in range(n) if trial.values[i] not in hidden}
        if not named:
            return "all 0"
        parts = []
        for action, places in by_action(self.labels).items():
            if len(named) <= max(_LISTED, n // 3):
                text = ", ".join(f"{o} {self.value(trial, i)}" for o, i in places if i in named)
            else:
                text = "in their order " + ", ".join(self.value(trial, i) for _, i in places)
            if text:
                parts.append(f"{action}: {text}" if action else text)
        return "; ".join(parts)

    def _notes(self, trial: Trial) -> str:
        seen, lines = self._seen[trial.number], []
        said = seen.said
        if said.lesson and trial.number not in self._withdrawn:
            lines.append(f"lesson from the rows above: {sentences(said.lesson, _MAX_LESSON)}")
        if said.hypothesis:
            hypothesis = sentences(said.hypothesis, _MAX_HYPOTHESIS)
            lines.append(f'hypothesis: "{hypothesis}"{self._outcome(trial)}')
        elif said.explanation and self._outcome(trial):
            lines.append(f"outcome{self._outcome(trial)}")
        if said.dropped:
            lines.append(f"left out of that answer: {in_one_line(said.dropped, MAX_NOTE)}")
        leads = self._leaders[seen.run] == trial.number
        brief_one = trial.source != "llm" and not leads
        limit = min(self._feedback_limit, _BRIEF) if brief_one else self._feedback_limit
        feedback = whole_lines(trial.feedback, limit)
        return "\n".join([*lines, *([feedback] if feedback else [])])

    def _outcome(self, trial: Trial) -> str:
        """Say what a hypothesis has brought."""
        if trial.state != "complete" or trial.rewards is None:
            return f" -> {trial.state}"
        if len(trial.rewards) > 1:
            return ""
        notes = []
        parent = self.parent(trial)
        if parent is not None and parent.rewards is not None:
            notes.append(f"{gain(trial, parent)} against #{parent.number + 1}, its start")
        before = self._before(trial)
        if before is not None and before is not parent:
            notes.append(f"{gain(trial, before)} against #{before.number + 1}, the best until then")
        return f" -> {'; '.join(notes)}" if notes else ""

    # -- where a point came from ----------------------------------------------------------

    def _before(self, trial: Trial) -> Trial | None:
        """Return the best trial before another one."""
        best = self._seen[trial.number].best
        return None if best is None else self.history.trials[best]

    def parent(self, trial: Trial) -> Trial | None:
        """Return the earlier trial that a trial was made from.

        That is the one its answer names, and none if it says that the point is new. Else it is
        the one that differs in the fewest parameters, the better of equals, unless it differs in
        more than half of them. For a point that the user re-evaluated it is the first
        measurement.
        """
        trials, place = self.history.trials, trial.number
        if place not in self._parents:
            named = self._seen[place].said.start
            recent = trials[max(0, place - _RECALLED) : place]
            parent = None
            if isinstance(named, int) and 1 <= named <= place:
                parent = named - 1
            elif trial.source == "user":
                parent = next((t.number for t in recent if t.values == trial.values), None)
            elif trial.source == "llm" and recent and named not in ("new", "zero"):
                changes = [sum(map(ne, t.values, trial.values)) for t in recent]
                fewest = min(changes)
                nearest = (t for t, n in zip(recent, changes, strict=True) if n == fewest)
                if 2 * fewest <= len(self.labels):
                    parent = min(nearest, key=self.history.rank).number
            self._parents[place] = parent
        number = self._parents[place]
        return None if number is None else trials[number]

    def _difference(self, trial: Trial) -> str:
        """Return what a trial changed, and from which point; else who proposed it."""
        wide = len(self.labels) > _COLUMNS
        parent = self.parent(trial)
        if parent is None:
            text = SOURCES.get(trial.source, "new")
            if trial.source == "user" and trial.explanation.strip():
                text = in_one_line(trial.explanation, _MAX_LESSON).replace("|", "/")
            elif trial.source == "user":
                text = "given" if self.drawn < trial.number else "warm-up"
            # The values of many random parameters carry no information.
            shown = wide and trial.source in ("llm", "user")
            return f"{text}: {self.values(trial)}" if shown else text
        changed = [i for i, value in enumerate(trial.values) if value != parent.values[i]]
        if not changed:
            return f"#{parent.number + 1} again"
        if wide and len(changed) > max(_LISTED, len(self.labels) // 3):
            return f"#{parent.number + 1}, {len(changed)} changed, now {self.values(trial)}"
        most = len(changed) if wide else _MAX_CHANGES
        steps = {i: f"{self.value(parent, i)} -> {self.value(trial, i)}" for i in changed[:most]}
        if wide:
            text = "; ".join(
                (f"{action}: " if action else "")
                + ", ".join(f"{o} {steps[i]}" for o, i in places if i in steps)
                for action, places in by_action(self.labels).items()
                if any(i in steps for _, i in places)
            )
            return f"#{parent.number + 1}, changed {text}"
        more = f", and {len(changed) - most} more" if len(changed) > most else ""
        words = (f"{self.labels[i]} {step}" for i, step in steps.items())
        return f"#{parent.number + 1}: {', '.join(words)}{more}"

    # -- where the search stands ----------------------------------------------------------

    def _ranked(self, n: int) -> list[Trial]:
        """Return the best trials, best first, but for checks."""
        if len(self.history.directions) == 1:
            return [self.history.trials[number] for _, number in self._ranks[:n]]
        return list(self.history.ranked[:n])

    def ranking(self, n: int = 8) -> str:
        """Return the best trials by number with their values of f, best first.

        Equal ones are joined by "=", the others have their paired difference from the best.
        """
        best = self._ranked(n)
        values = [t.rewards[0] for t in best if t.rewards]
        digits = max((telling(a, b, 6) for a, b in pairwise(values)), default=6)
        scores = (self.score(t, best[0], digits) for t in best)
        shown = [f"#{t.number + 1} ({', '.join(s)})" for t, s in zip(best, scores, strict=True)]
        if len(self.history.directions) > 1:
            front = self.history.pareto_front
            first = min(len(front), len(best))
            more = f" and {len(front) - first} more" if len(front) > first else ""
            behind = f"; behind them {', '.join(shown[first:])}" if shown[first:] else ""
            return f"{', '.join(shown[:first]) or 'none'}{more}{behind}"
        text = ""
        for place, (trial, entry) in enumerate(zip(best, shown, strict=True)):
            if place:
                tie = trial.rewards == best[place - 1].rewards and not self.history.noisy
                text += " = " if tie else ", "
            error = paired_error(trial, best[0]) if place and self.paired else None
            difference = gain(trial, best[0]) if error is not None else ""
            text += f"{entry[:-1]}: {difference})" if "±" in difference else entry
        return text

    def latest(self) -> str:
        """Say which trial is the latest, and how it compares with its start and the best."""
        trial = self.history.trials[-1]
        cells = self.score(trial, self._before(trial))
        said = self._outcome(trial)
        return f"#{trial.number + 1} ({', '.join(cells)}){said}"

    def noise(self) -> str:
        """Say how far measurements of one point lie apart, where it is known."""
        told = sorted(t.stderr for t in self.history.complete if t.stderr and t.evaluations == 1)
        if deviation := self.history.deviation:
            return f"One measurement has a standard deviation of about {rough(deviation)}."
        if told:
            return f"The median standard error of a point is {rough(told[len(told) // 2])}."
        return "How large the noise is cannot be said yet: no point was measured twice."

    def roughness(self) -> str:
        """Say how far tiny changes of a point moved f, once three of them were measured."""
        recent = self.history.trials[-_RECALLED:]
        for trial in recent:
            if trial.number not in self._moves:
                self._moves[trial.number] = self._move(trial)
        moves = [move for t in recent if (move := self._moves[t.number]) is not None]
        if len(moves) < _FEW_MOVES or len(self.history.directions) > 1:
            return ""
        middle = sorted(moves)[len(moves) // 2]
        return (
            f"{len(moves)} changes of less than {_TINY:.0%} of a range moved f by {middle:.2g} in "
            "the median: a smaller gain may be chance."
        )

    def _move(self, trial: Trial) -> float | None:
        """Return by how much a tiny change of a point moved f; ``None`` for any other trial."""
        parent = self.parent(trial) if trial.state == "complete" else None
        if parent is None or parent.rewards is None or trial.rewards is None:
            return None
        changed = [i for i, value in enumerate(trial.values) if value != parent.values[i]]
        for i in changed:
            choice = isinstance(self.space.dimensions[i], Categorical)
            if choice or ABSENT in (parent.values[i], trial.values[i]):
                return None
        steps = self.space.encode(parent.values) - self.space.encode(trial.values)
        tiny = changed and np.abs(steps).max() < _TINY
        return abs(trial.rewards[0] - parent.rewards[0]) if tiny else None

    def standstill(self) -> str:
        """Say so where the model's latest answers lie within the noise, or gain next to nothing.

        An answer is judged as a whole: a scan is not over at its first point.
        """
        best = next(iter(self._ranked(1)), None)
        count = _ANSWERS
        while sum(map(len, self._judged[-count:])) < _POINTS and count < len(self._judged):
            count += 1
        latest = [self.history.trials[i] for answer in self._judged[-count:] for i in answer]
        few = len(self._judged) < count or len(latest) < _POINTS
        if few or best is None or len(self.history.directions) > 1:
            return ""
        said = "Your latest {} answers ({} experiments)"

        def quiet(answer: list[int]) -> bool:
            trials = (self.history.trials[i] for i in answer)
            return all(t is best or within_noise(t, best) for t in trials)

        if all(map(quiet, self._judged[-count:])):
            same = list(takewhile(quiet, reversed(self._judged)))
            return (
                f"{said.format(len(same), sum(map(len, same)))} lie within the noise: none "
                "differs from the best by two standard errors."
            )
        before = self._before(latest[0])
        start = self._before(self.history.trials[self.drawn]) or self.history.complete[0]
        if before is None or start.rewards is None or before.rewards is None or not best.rewards:
            return ""
        if before is best:
            later = bisect_right(self._judged, best.number, key=lambda answer: answer[0])
            same = self._judged[later:]
            return f"{said.format(len(same), sum(map(len, same)))} gained nothing."
        gained = abs(best.rewards[0] - before.rewards[0])
        total = abs(best.rewards[0] - start.rewards[0])
        feasible = start.constraint_violation == before.constraint_violation
        if not feasible or gained * 1000 > total:
            return ""
        return (
            f"{said.format(count, len(latest))} gained {gained:.2g}, less than a thousandth of all "
            f"that was gained since #{start.number + 1} ({total:.4g})."
        )

    def failed(self) -> str:
        """Return the numbers of the experiments that failed, the latest eight."""
        return ", ".join(f"#{t.number + 1}" for t in self.history.failed[-8:])

    def shown_again(self) -> list[str]:
        """Return the values of the best points and the latest, where the log has no columns."""
        if len(self.labels) <= _COLUMNS:
            return []
        ranked, latest = self._ranked(_SHOWN), self.history.trials[-1:]
        best = [*ranked[:1], *(t for t in ranked[1:] if t.source not in RANDOM_SOURCES)]
        chosen: list[Trial] = []
        for trial in (*best, *(t for t in latest if t.source == "llm")):
            if all(trial.values != t.values for t in chosen):
                chosen.append(trial)
        return [f"#{t.number + 1}: {self.values(t)}" for t in chosen]

    def lessons(self, n: int = 7) -> list[str]:
        """Return the latest `n` lessons of experiments whose notes are dropped, oldest first."""
        passed = {t.number for t, full in self._laid_out() if full} | self._withdrawn
        kept: dict[str, int] = {}
        oldest = len(self.history.trials) - _RECALLED
        for place in reversed(self._with_lesson):
            if len(kept) == n or place < oldest:
                break
            if place not in passed:
                text = sentences(self._seen[place].said.lesson, _MAX_LESSON)
                if text:
                    kept.setdefault(text, place + 1)  # it may have been said before
        return [f"{number}: {text}" for text, number in reversed(kept.items())]
