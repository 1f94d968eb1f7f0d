"""The log of a search: what a prompt shows of each trial, and where the search stands.

Templates get a `Log` as ``evidence``. Values have their standard errors (that of the difference
from the best, if all points are measured on the same initial states), a point its difference from
the point that it was made from, a hypothesis the change that it brought. A trial's entry depends on
the trials before it alone and is written once, so that prefix caches hit. If the log exceeds its
budget, much of it is cut at once: the best and the latest trials keep all that was seen, the others
a row and one line.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter, itemgetter, ne
from typing import Any

from llmopt.history import RANDOM_SOURCES, Follower, History, Trial
from llmopt.prompt.answer_parts import WITHDRAWN, Answer, notes_of, zero_point
from llmopt.prompt.describe import (
    FEEDBACK_CHARS,
    MAX_NOTE,
    SMALL_STEPS,
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
)
from llmopt.prompt.shown_trials import LogBudget
from llmopt.space import Categorical, Dimension, Float, Space
from llmopt.space.values import ABSENT
from llmopt.util.text import estimate_tokens

_COLUMNS = 16  # parameters that get a column each
_LISTED = 8  # values in one cell that are always listed by name
_LONG_CHOICE = 24  # characters of a choice beyond which parameters get no columns
_MAX_LESSON = 300
_MAX_HYPOTHESIS = 240
_RECALLED = 200  # latest trials that a point may have been made from, if its answer does not say
_BRIEF = 330  # characters of feedback on a point that no model proposed, unless it was the best
_FEW = 4  # complete trials before choices are summed up
_MOST_CHOICES, _MOST_STEPS = 40, 12  # choices, and values of a grid, that are summed up
_MOST_LINES = 12  # parameters that are summed up
_MOST_UNTRIED = 200  # characters of the untried choices of one parameter
_MOST_ENTRIES = 5_000  # cached texts; further ones are made again when needed


@dataclass(eq=False, slots=True)
class _Facts:
    """What a trial is beside those before it."""

    answer: Answer  # of the model
    best: int | None  # number of the best trial before it; a check is no rival of the others
    nearest: float | None  # the nearest other value of f before it
    run: int  # which run of points it is in: a model's point, and the others until the next one


def _is_long(dimension: Dimension) -> bool:
    """Whether a column of a parameter would repeat long choices."""
    return isinstance(dimension, Categorical) and max(map(len, dimension.labels)) > _LONG_CHOICE


class Log(Follower):
    """What the trials show, in words. `read` takes in new trials, `show` chooses those to list.

    Attributes:
        history: All trials.
        has_errors: Whether any trial has a standard error.
        paired: Number of initial states on which points are compared in pairs; 1 if it differs
            between points, 0 if points are not compared so.
        drawn: How many trials there are before the first that a model proposed.
        last_answer: The trials of the model's last answer that has results.
    """

    def _reset(self) -> None:
        super()._reset()
        self._setting: tuple[Any, ...] = ()
        self._facts: list[_Facts] = []  # of each trial
        self.has_errors = False
        self.paired = self.drawn = 0
        # Rank and number of the complete trials, but for checks, best first.
        self._ranks: list[tuple[tuple[float, float], int]] = []
        self._values: list[float] = []  # of f, in their order
        self._leaders: list[int] = []  # number of the best trial up to the end of each run
        self._answers: list[list[int]] = []  # numbers of the model's points, by answer
        self._with_lesson: list[int] = []  # numbers of the trials whose answer has a lesson
        self._withdrawn: set[int] = set()  # numbers of those whose lesson a later answer withdrew
        # Numbers of the random points before the model's first design, whose rows are enough. The
        # best of them keeps its notes if that design is worse.
        self._done_with: frozenset[int] = frozenset()
        self._parents: dict[int, int | None] = {}  # as far as they were asked for
        self._entries: dict[tuple[int, bool], tuple[str, int]] = {}  # with their tokens
        self._budgets: dict[int, LogBudget] = {}

    def read(self, history: History, space: Space, labels: tuple[str, ...]) -> Log:
        """Take in the trials that are new, and show all of them; return itself.

        Args:
            history: All trials. Those read before are not read again, unless the history does not
                begin with them or another argument has changed.
            space: The search space.
            labels: What the parameters are called.
        """
        noise = history.noisy and (history.deviations, history.seed_effects)
        setting = space, labels, history.directions, noise
        if self._setting != setting:
            self._reset()
        self._update(history)
        self._setting = setting
        self.history, self.space, self.labels = history, space, labels
        self._wide = len(labels) > _COLUMNS or any(map(_is_long, space.dimensions))
        if len(self._entries) > _MOST_ENTRIES:
            self._drop()  # budgets, too: later withdrawals are looked up among the entries
        self.last_answer = [history.trials[i] for i in (self._answers or [[]])[-1]]
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
        answer = notes_of(trial.explanation) if asked else Answer()
        self._facts.append(_Facts(answer, best, nearest, len(self._leaders) - 1))
        if complete:
            insort(self._ranks, (rank, place))
        self.has_errors |= trial.stderr is not None
        if (count := len(trial.samples)) > 1 and not history.noisy:
            self.paired = count if self.paired in (0, count) else 1
        if not asked:
            self.drawn += self.drawn == place
            return
        if self.drawn == place:
            drawn = {i for i, t in enumerate(self._known) if t.source in RANDOM_SOURCES}
            self._done_with = frozenset(drawn - {top})
            self._drop()
        if answer.lesson:
            self._with_lesson.append(place)
        # A point is of the answer before it if it has a hypothesis alone, and the same cost: its
        # share of the request.
        alone = answer.hypothesis and not (answer.lesson or answer.analysis)
        last = self._known[self._answers[-1][-1]] if self._answers else trial
        cost = attrgetter("prompt_tokens", "completion_tokens", "seconds")
        if self._answers and alone and cost(last) == cost(trial):
            self._answers[-1].append(place)
        else:
            self._answers.append([place])
        if "withdrawn" in trial.explanation.casefold():  # far quicker than the search
            numbers = "".join(m[1] + " " for m in WITHDRAWN.finditer(trial.explanation))
            struck = {int(n) - 1 for n in re.findall(r"\d+", numbers)} - self._withdrawn
            for withdrawn in (n for n in struck if n < place):
                self._withdrawn.add(withdrawn)
                self._drop(withdrawn)

    def _nearest(self, value: float) -> float | None:
        """Return the value of f that is nearest to a new one, and not the same."""
        seen = self._values
        low, high = bisect_left(seen, value), bisect_right(seen, value)
        around = (*seen[max(0, low - 1) : low], *seen[high : high + 1])
        if low == high:
            seen.insert(low, value)
        return min(around, key=lambda other: (abs(other - value), other), default=None)

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
        if not self._wide:
            return " | ".join(["#", *f, *self.labels, "from"])
        rest = "; those not named are 0" if zero_point(self.space) else ""
        return " | ".join(["#", *f, f"from, and what was changed (of a new one all values{rest})"])

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
        self._kept = [(t, True) for t in trials]
        if budget is None:
            return self._kept
        fitted = self._budgets.get(budget)
        if fitted is None or not fitted.precedes(trials):
            fitted = self._budgets[budget] = LogBudget(trials, budget, self.history)
        fitted.extend(trials, self.history, lambda trial, full: self._entry(trial, full)[1])
        chosen = {t.number: (t, full) for t, full in fitted.kept}
        # The latest answer of which no point is being measured.
        answer = next(iter(self._answers[: -1 if self.history.pending else None][-1:]), [])
        latest = {t.number: (t, True) for t in trials if t.number in answer}
        if sum(self._entry(t, True)[1] for t, _ in latest.values()) <= budget:
            chosen |= latest  # what the latest answer brought is seen in full once at least
        self._kept = [chosen[number] for number in sorted(chosen)]
        return self._kept

    def _entry(self, trial: Trial, full: bool) -> tuple[str, int]:
        """Return a trial's row with its notes, or with one line of them, and its tokens."""
        entry = self._entries.get((trial.number, full))
        if entry is None:
            cells = [f"#{trial.number + 1}", *self.score(trial, self._before(trial))]
            some = {k: f" ({n} of {trial.evaluations})" for k, n in trial.part_counts.items()}
            parts = (f"{k} {number(v)}{some.get(k, '')}" for k, v in trial.parts.items())
            if trial.parts:
                cells[-1] += f" ({', '.join(parts)})".replace("|", "/")
            if not self._wide:
                cells += [self.value(trial, i) for i in range(len(self.labels))]
            moved = " (not as you gave it: moved into the ranges)" if trial.clipped else ""
            yours = trial.instead_of is not None and trial.kind != "imported"
            moved += " (measured in place of your point)" if yours else ""
            moved += " (its first result was wrong)" if trial.revised else ""
            text = " | ".join([*cells, self._difference(trial) + moved])
            failed = trial.state == "failed"  # why is worth a line for ever
            if failed or trial.number not in self._done_with:
                full = full and trial.number not in self._done_with
                notes = self._notes(trial) if full else brief(trial.feedback)
                text += ("\n" + notes + "\n" * full) if notes else ""
            entry = text, estimate_tokens(text) + 1
            self._entries[trial.number, full] = entry
        return entry

    # -- one trial ------------------------------------------------------------------------

    def score(self, trial: Trial, best: Trial | None, digits: int = 0) -> list[str]:
        """Return one cell for each objective: the value with its standard error.

        Points measured on the same initial states have none: `ranking` and the hypotheses show the
        error of a difference. The first value has at least `digits` digits, by default enough to
        distinguish it from earlier values and from that of `best`.
        """
        objectives = len(self.history.directions)
        if trial.rewards is None or trial.state == "failed":
            return ["withdrawn" if trial.state == "withdrawn" else "failed"] * objectives
        cells = [number(r) for r in trial.rewards]
        digits = digits or telling(trial.rewards[0], self._facts[trial.number].nearest, 6)
        if best is not None and best.rewards is not None:
            digits = telling(trial.rewards[0], best.rewards[0], digits)
        cells[0] = number(trial.rewards[0], digits)
        for i, error in enumerate(trial.errors):
            if error is not None and (i or not (self.paired and len(trial.samples) > 1)):
                cells[i] += f" ± {rough(error)}"
        if trial.evaluations > 1:
            cells[0] += f" ({trial.evaluations} times)"
        if trial.state == "pruned":
            cells[0] += " (stopped early)"
        if violation := self.space.violation(trial):
            cells[0] += f" ({violation})"
        return cells

    def value(self, trial: Trial, index: int) -> str:
        """Return one value as it is shown.

        It has nine digits, or up to 15 to distinguish it from the point that it was made from. A
        random point without columns, and one of CMA-ES, has four, or enough to distinguish it from
        the best point before.
        """
        dimension, value = self.space.dimensions[index], trial.values[index]
        if value is ABSENT or not isinstance(dimension, Float) or dimension.step is not None:
            return self.space.format(index, value)
        parent = self.parent(trial)
        near = value if parent is None else parent.values[index]
        digits = telling(float(value), float(value if near is ABSENT else near), 9)
        if trial.source in SMALL_STEPS or (trial.source != "llm" and len(self.labels) > _COLUMNS):
            best = self._before(trial)
            other = value if best is None else best.values[index]
            other = value if other is ABSENT else other
            digits = min(telling(float(value), float(other), 4), 9)
        return number(float(value), digits)

    def values(self, trial: Trial) -> str:
        """Return all values of a point by action: those that are not 0, or all in their order."""
        n = len(self.labels)
        hidden = (ABSENT, 0) if zero_point(self.space) else (ABSENT,)
        named = {i: self.value(trial, i) for i, v in enumerate(trial.values) if v not in hidden}
        if len(named) <= max(_LISTED, n // 3):
            return self._by_action(named) or "all 0"
        parts = []
        for action, places in by_action(self.labels).items():
            text = "in their order " + ", ".join(self.value(trial, i) for _, i in places)
            parts.append(f"{action}: {text}" if action else text)
        return "; ".join(parts)

    def _by_action(self, texts: Mapping[int, str]) -> str:
        """Return texts on some parameters behind their names, by action."""
        parts = []
        for action, places in by_action(self.labels).items():
            text = ", ".join(f"{name} {texts[i]}" for name, i in places if i in texts)
            parts += [f"{action}: {text}" if action else text] if text else []
        return "; ".join(parts)

    def _notes(self, trial: Trial) -> str:
        facts, lines, outcome = self._facts[trial.number], [], self._outcome(trial)
        answer = facts.answer
        if answer.lesson and trial.number not in self._withdrawn:
            lines.append(f"lesson: {sentences(answer.lesson, _MAX_LESSON)}")
        if answer.hypothesis:
            lines.append(f'hypothesis: "{sentences(answer.hypothesis, _MAX_HYPOTHESIS)}"{outcome}')
        elif answer.explanation and outcome:
            lines.append(f"outcome{outcome}")
        if answer.dropped:
            lines.append(f"left out of that answer: {in_one_line(answer.dropped, MAX_NOTE)}")
        limit = FEEDBACK_CHARS
        if trial.source != "llm" and self._leaders[facts.run] != trial.number:
            limit = min(limit, _BRIEF)
        feedback = whole_lines(trial.feedback, limit)
        return "\n".join([*lines, *([feedback] if feedback else [])])

    def _outcome(self, trial: Trial) -> str:
        """Say what a hypothesis has brought."""
        if trial.state != "complete" or trial.rewards is None:
            return f" -> {trial.state}"
        if len(trial.rewards) > 1:
            return ""
        parent, before, notes = self.parent(trial), self._before(trial), []
        if parent is not None and parent.rewards is not None:
            notes.append(f"{self._gain(trial, parent)} against #{parent.number + 1}")
        if before is not None and before is not parent:
            notes.append(f"{self._gain(trial, before)} against the best, #{before.number + 1}")
        return f" -> {'; '.join(notes)}" if notes else ""

    def _gain(self, trial: Trial, other: Trial) -> str:
        effect = self.history.seed_effect
        return gain(trial, other, effect(trial) - effect(other))

    # -- where a point came from ----------------------------------------------------------

    def _before(self, trial: Trial) -> Trial | None:
        """Return the best trial before another one."""
        best = self._facts[trial.number].best
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
            start, recent = (
                self._facts[place].answer.start,
                trials[max(0, place - _RECALLED) : place],
            )
            parent = None
            if isinstance(start, int) and 1 <= start <= place:
                parent = start - 1
            elif trial.source == "user":
                parent = next((t.number for t in recent if t.values == trial.values), None)
            elif trial.source == "llm" and recent and start not in ("new", "zero"):
                changes = [sum(map(ne, t.values, trial.values)) for t in recent]
                nearest = [t for t, n in zip(recent, changes, strict=True) if n == min(changes)]
                if 2 * min(changes) <= len(self.labels):
                    parent = min(nearest, key=self.history.rank).number
            self._parents[place] = parent
        number = self._parents[place]
        return None if number is None else trials[number]

    def _difference(self, trial: Trial) -> str:
        """Return what a trial changed, and from which point; else who proposed it."""
        parent = self.parent(trial)
        if parent is None:
            text = "new" if trial.source == "llm" else SOURCES.get(trial.source, trial.source)
            if trial.source == "user" and trial.explanation.strip():
                text = in_one_line(trial.explanation, _MAX_LESSON).replace("|", "/")
            elif trial.source == "user":
                text = "given" if self.drawn < trial.number else "warm-up"
                text = "imported" if trial.kind == "imported" else text
            return f"{text}: {self.values(trial)}" if self._lists_all(trial) else text
        changed = [i for i, value in enumerate(trial.values) if value != parent.values[i]]
        start = f"#{parent.number + 1}"
        if not changed or not self._wide:
            return start if changed else f"{start} again"
        if len(changed) > max(_LISTED, len(self.labels) // 3):
            return f"{start}, {len(changed)} changed, now {self.values(trial)}"
        steps = {i: self.value(trial, i) for i in changed}
        for i in changed:
            if not isinstance(self.space.dimensions[i], Categorical):  # choices may be long
                steps[i] = f"{self.value(parent, i)} -> {steps[i]}"
        return f"{start}: {self._by_action(steps)}"

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
        trial = self.history.latest
        if trial is None:
            return "none"
        cells = self.score(trial, self._before(trial))
        compared = self._outcome(trial) if trial.state == "complete" else ""
        return f"#{trial.number + 1} ({', '.join(cells)}){compared}"

    def noise(self) -> str:
        """Say how far measurements of one point lie apart, where it is known."""
        if any(self.history.deviations):
            seeds = " Means are of a point's own seeds; ranks and gains allow for what these add."
            known = self._by_objective(self.history.deviations)
            text = f"One measurement has a standard deviation of about {known}."
            return text + seeds * bool(self.history.seed_effects)
        each = [t.errors for t in self.history.complete if t.evaluations == 1]
        single = [sorted(filter(None, some)) for some in zip(*each, strict=True)]
        if any(single):
            medians = [some[len(some) // 2] if some else None for some in single]
            return f"The median standard error of a point is {self._by_objective(medians)}."
        if any(t.evaluations > 1 for t in self.history.complete):
            return "How large the noise is cannot be said yet: all repeats of a point were equal."
        return "How large the noise is cannot be said yet: no point was measured twice."

    def _by_objective(self, errors: Sequence[float | None]) -> str:
        """Return the known errors, of several objectives with their names."""
        names = names_of(self.history.directions, self.history.metrics)
        several = len(names) > 1
        known = [(rough(e), n) for e, n in zip(errors, names, strict=True) if e]
        return ", ".join(f"{error} in {name}" if several else error for error, name in known)

    def choices(self) -> list[str]:
        """Return how often each value of the discrete parameters was tried, its best and mean f."""
        trials, lines = self.history.trials, list[str]()
        if len(self.history.directions) > 1 or len(self._ranks) < _FEW:
            return []
        best_of = max if self.history.directions == ("maximize",) else min
        for i, dimension in enumerate(self.space.dimensions):
            most = _MOST_CHOICES if isinstance(dimension, Categorical) else _MOST_STEPS
            if not 2 <= dimension.count <= most or len(lines) == _MOST_LINES:
                continue
            tried: dict[str, list[float | str]] = {}
            for trial in trials:
                if trial.values[i] is not ABSENT and trial.state != "withdrawn":
                    of = tried.setdefault(self.space.format(i, trial.values[i]), [])
                    complete = trial.state == "complete" and trial.rewards
                    f = complete[0] if complete else "failed"
                    of.append("infeasible" if complete and trial.constraint_violation > 0 else f)
            cells = []
            for text, values in tried.items():
                fs = [value for value in values if not isinstance(value, str)]
                best = best_of(fs, default=-math.inf if best_of is max else math.inf)
                shown = number(best, 4) if fs else str(max(values))
                shown += f" ({number(sum(fs) / len(fs), 4)})" if len(fs) > 1 else ""
                cells.append((best, f"{text} {len(values)}x: {shown}"))
            cells.sort(key=itemgetter(0), reverse=best_of is max)
            every = (self.space.format(i, dimension.value(k)) for k in range(int(dimension.count)))
            never = [text for text in every if text not in tried]
            listed = ", ".join(never)
            if len(listed) > _MOST_UNTRIED:
                listed = f"the other {len(never)}"
            texts = [text for _, text in cells] + [f"never {listed}"] * bool(never)
            lines.append(f"{self.labels[i]}: {'; '.join(texts)}")
        return lines

    def best_values(self) -> str:
        """Return all values of the best point, if no row of the log shows them."""
        best = next(iter(self._ranked(1)), None)
        if best is None or not self._wide or self._whole(best):
            return ""
        return f"All values of #{best.number + 1}: {self.values(best)}"

    def _whole(self, trial: Trial) -> bool:
        """Whether the row of a trial shows all its values, and the log has it."""
        listed = self._lists_all(trial) and any(t is trial for t, _ in self._laid_out())
        return listed and self.parent(trial) is None

    def _lists_all(self, trial: Trial) -> bool:
        """Whether the row of a trial without a parent names its values, as there is no column.

        The values of many random parameters carry no information.
        """
        few = len(self.labels) <= _COLUMNS
        return self._wide and (few or trial.source in ("llm", "user"))

    def lessons(self, n: int = 7) -> list[str]:
        """Return the latest `n` lessons of experiments whose notes are dropped, oldest first."""
        shown = {t.number for t, full in self._laid_out() if full} | self._withdrawn
        lessons: dict[str, int] = {}
        oldest = len(self.history.trials) - _RECALLED
        for place in reversed(self._with_lesson):
            if len(lessons) == n or place < oldest:
                break
            text = sentences(self._facts[place].answer.lesson, _MAX_LESSON)
            if text and place not in shown:
                lessons.setdefault(text, place + 1)  # an earlier one may be the same
        return [f"{number}: {text}" for text, number in reversed(lessons.items())]
