"""The history as evidence: a log that only grows, and where the search stands.

Templates get an `Evidence` as ``evidence``. It is made for models that can weigh measurements:
values come with their standard errors (where all points are measured on the same starts, that of
the difference from the best), a point with its difference from the point that it was made from,
and a hypothesis with the change that it brought.

An experiment's entry in the log is written once. It depends on the experiments before it alone,
so that the next prompt begins with the same text and prefix caches hit. Where the log grows
beyond its budget, much of it is cut at once: the best and the latest experiments keep all that was
seen, the others a row and one line.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from operator import attrgetter, ne

import numpy as np

from llmopt.history import OLD_SOURCES, History, Trial
from llmopt.prompt.answer import MAX_NOTE, zero_point
from llmopt.prompt.describe import (
    FEEDBACK_CHARS,
    gain,
    names_of,
    number,
    paired_error,
    quoted,
    rough,
    telling,
    within_noise,
)
from llmopt.prompt.past import RANDOM, Layout, Past, thought
from llmopt.space import Categorical, Float, Space
from llmopt.space.values import ABSENT
from llmopt.util.text import cut, cut_sentences, estimate_tokens

_MAX_CHANGES = 6  # changed parameters that are listed by name
_COLUMNS = 16  # parameters that get a column each
_LISTED = 24  # values in one cell that are listed by name
_MAX_LESSON = 300
_MAX_HYPOTHESIS = 240
_MAX_BRIEF = 140  # characters of the one line that stays of a point's notes
_BRIEF_START = 50  # how many of them come from its beginning, if it is longer
_FEW_MOVES = 3  # tiny changes that estimate f's roughness
_TINY = 0.01  # a change of each parameter by less than this part of its range
_RECALLED = 200  # latest trials that a point may have been made from, if its answer does not say
_BRIEF = 330  # characters of feedback on a point that no model proposed, unless it was the best
_SHOWN = 2  # best points whose values are shown again at the end, where the log has no columns
_ANSWERS, _POINTS = 3, 5  # latest answers, and points in them, that tell whether it still gets on
_TELLING = re.compile(r"\b(?:ended early|fail\w*|violat\w*|error)\b", re.IGNORECASE)
_TUNED = ("cma", *OLD_SOURCES)
_SOURCES = {
    "warmup": "warm-up",
    "drawn": "drawn from the best",
    "cma": "found by CMA-ES",
    "network": "drawn by a small network",
    "sampler": "found by a sampler",
    "fallback": "drawn at random",
    **dict.fromkeys(OLD_SOURCES, "a small random change of the best"),
}


@dataclass(frozen=True)
class Evidence:
    """What the trials show, in words."""

    history: History  # all trials
    space: Space  # the search space
    labels: tuple[str, ...]  # what the parameters are called
    shown: tuple[Trial, ...]  # the trials that may be shown, in any order
    feedback_limit: int = FEEDBACK_CHARS  # characters of feedback shown for one trial
    budget: int | None = None  # tokens of the log; `None` for no limit
    count: Callable[[str], int] = estimate_tokens  # counts the tokens of a text
    past: Past = field(default_factory=Past, compare=False)  # facts about an earlier prompt

    @cached_property
    def _past(self) -> Past:
        """What each trial is beside those before it."""
        history = self.history
        noise = history.noisy and history.deviation
        facts = self.space, self.labels, self.feedback_limit, self.count, history.directions, noise
        return self.past.read(history, history.noisy, *facts)

    # -- the log --------------------------------------------------------------------------

    @property
    def header(self) -> str:
        """The log's one header row."""
        f = names_of(self.history.directions, self.history.metrics)
        if len(self.labels) <= _COLUMNS:
            return " | ".join(["#", *f, *self.labels, "made from"])
        rest = "; those not named are 0" if self._sparse else ""
        return " | ".join(
            ["#", *f, f"made from, and what was changed (of a new one all values{rest})"]
        )

    @cached_property
    def log(self) -> list[str]:
        """The entries of the log, oldest first: a row, and what was thought and seen."""
        return [self._entry(t, full)[0] for t, full in self._laid_out]

    @cached_property
    def dropped(self) -> int:
        """How many of all trials are not in the log."""
        return len(self.history.trials) - len(self._laid_out)

    @cached_property
    def _laid_out(self) -> list[tuple[Trial, bool]]:
        """The trials of the log in order of time, and whether each has its notes.

        The choice depends on the trials recorded until the log was last shortened, so that the
        next proposal only adds entries at the end.
        """
        trials = sorted(self.shown, key=attrgetter("number"))
        if self.budget is None:
            return [(t, True) for t in trials]
        past, history, budget = self._past, self.history, self.budget
        draft = past.drafts.get(budget)
        if draft is None or not draft.precedes(trials):
            draft = past.drafts[budget] = Layout(trials, budget, past.ranks)
        draft.extend(trials, history, past.ranks, lambda trial, full: self._entry(trial, full)[1])
        kept = draft.kept
        answer = self._answers[-1] if self._answers else []
        fresh = [t for t in trials if t.number in answer]
        if sum(self._entry(t, True)[1] for t in fresh) > budget:
            return [*kept]
        # What the latest answer brought is seen in full once at least.
        older = [one for one in kept if one[0].number not in answer]
        return sorted([*older, *((t, True) for t in fresh)], key=lambda one: one[0].number)

    def _entry(self, trial: Trial, full: bool) -> tuple[str, int]:
        """Return a trial's row with its notes, or with one line of them, and its tokens."""
        made = self._past.entries.get((trial.number, full))
        if made is None:
            notes = ""
            if trial.number not in self._past.done_with:
                notes = self._notes(trial) if full else self._brief(trial)
            text = "\n".join([self._row(trial), *([notes] if notes else [])])
            text += "\n" if notes and full else ""
            made = self._past.entries[trial.number, full] = text, self.count(text) + 1
        return made

    # -- one experiment -------------------------------------------------------------------

    def _row(self, trial: Trial) -> str:
        rows = self._past.rows
        if trial.number not in rows:  # an entry with its notes, and one without, share it
            head = [f"#{trial.number + 1}", *self.score(trial, self._before(trial))]
            if len(self.labels) <= _COLUMNS:
                head += [self.value(trial, i) for i in range(len(self.labels))]
            moved = " (not as you gave it: moved into the ranges)" if trial.clipped else ""
            rows[trial.number] = " | ".join([*head, self.difference(trial) + moved])
        return rows[trial.number]

    def score(self, trial: Trial, best: Trial | None, digits: int = 0) -> list[str]:
        """Return one cell for each objective: the value with its standard error.

        Points measured on the same initial states have none: the error of a difference is in
        `ranking` and beside the hypotheses. The first value has at least `digits` digits, by
        default enough to distinguish it from earlier values and from that of `best`.
        """
        objectives = len(self.history.directions)
        if trial.rewards is None or trial.state == "failed":
            return ["failed"] * objectives
        cells = [number(r) for r in trial.rewards]
        digits = digits or telling(trial.rewards[0], self._past.nearest[trial.number], 6)
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
        if trial.source in _TUNED or (trial.source != "llm" and len(self.labels) > _COLUMNS):
            best = self._before(trial)
            other = value if best is None else best.values[index]
            other = value if other is ABSENT else other
            digits = min(telling(float(value), float(other), 4), 9)
        return number(float(value), digits)

    @cached_property
    def _sparse(self) -> bool:
        """Whether a weight of 0 is possible everywhere, so that it can be left out."""
        return zero_point(self.space) is not None

    @cached_property
    def _grouped(self) -> dict[str, list[tuple[str, int]]]:
        """Names and places of the parameters by action, where they are ``action<-observation``."""
        groups: dict[str, list[tuple[str, int]]] = {}
        for i, label in enumerate(self.labels):
            action, arrow, observation = label.partition("<-")
            groups.setdefault(action if arrow else "", []).append((observation or label, i))
        return groups

    def values(self, trial: Trial) -> str:
        """Return all values of a point by action: those that are not 0, or all in their order."""
        n = len(self.labels)
        hidden = (ABSENT, 0) if self._sparse else (ABSENT,)
        named = {i for i in range(n) if trial.values[i] not in hidden}
        if not named:
            return "all 0"
        parts = []
        for action, places in self._grouped.items():
            if len(named) <= max(_LISTED, n // 3):
                text = ", ".join(f"{o} {self.value(trial, i)}" for o, i in places if i in named)
            else:
                text = "in their order " + ", ".join(self.value(trial, i) for _, i in places)
            if text:
                parts.append(f"{action}: {text}" if action else text)
        return "; ".join(parts)

    def _notes(self, trial: Trial) -> str:
        lines = []
        said = thought(trial)
        if said.lesson and trial.number not in self._past.withdrawn:
            lines.append(f"lesson from the rows above: {_sentences(said.lesson, _MAX_LESSON)}")
        if said.hypothesis:
            hypothesis = _sentences(said.hypothesis, _MAX_HYPOTHESIS)
            lines.append(f'hypothesis: "{hypothesis}"{self._outcome(trial)}')
        elif said.explanation and self._outcome(trial):
            lines.append(f"outcome{self._outcome(trial)}")
        if said.dropped:
            lines.append(f"left out of that answer: {_quoted(said.dropped, MAX_NOTE)}")
        feedback = self._feedback(trial)
        return "\n".join([*lines, *([feedback] if feedback else [])])

    def _brief(self, trial: Trial) -> str:
        """Return the line of feedback that tells most: of an end or a failure, or the first one."""
        lines = [" ".join(line.split()) for line in trial.feedback.strip().splitlines()]
        ends = (line for line in lines if _TELLING.search(line[:60]))
        line = next(ends, lines[0] if lines else "")
        if len(line) > _MAX_BRIEF:  # the end of a line holds the last value of a curve, say
            line = (
                f"{line[:_BRIEF_START].rstrip()} … {line[_BRIEF_START + 3 - _MAX_BRIEF :].lstrip()}"
            )
        return quoted(line)

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

    def _feedback(self, trial: Trial) -> str:
        lines = (" ".join(line.split()) for line in trial.feedback.splitlines())
        text = "\n".join(line for line in lines if line)
        limit = self.feedback_limit
        long = len(text) > _BRIEF and trial.source != "llm"
        if long and not self._past.leads_run(trial):
            limit = min(limit, _BRIEF)
        if len(text) <= limit:
            return quoted(text)
        shown = text[:limit]
        # A line is shown whole or not at all, but for the first one.
        return quoted((shown.rpartition("\n")[0] or shown.rpartition(" ")[0] or shown) + "\n…")

    # -- where a point came from ----------------------------------------------------------

    def _before(self, trial: Trial) -> Trial | None:
        """Return the best trial before another one."""
        best = self._past.bests[trial.number]
        return None if best is None else self.history.trials[best]

    def parent(self, trial: Trial) -> Trial | None:
        """Return the earlier trial that a trial was made from.

        That is the one its answer names, and none if it says that the point is new. Else it is
        the one that differs in the fewest parameters, the better of equals, unless it differs in
        more than half of them. For a point that the user re-evaluated it is the first
        measurement.
        """
        parents = self._past.parents
        if trial.number not in parents:
            parents[trial.number] = self._parent(trial)
        number = parents[trial.number]
        return None if number is None else self.history.trials[number]

    def _parent(self, trial: Trial) -> int | None:
        named = thought(trial).start
        if isinstance(named, int) and 1 <= named <= trial.number:
            return named - 1
        if named in ("new", "zero"):
            return None
        recent = self.history.trials[max(0, trial.number - _RECALLED) : trial.number]
        if trial.source == "user":
            return next((t.number for t in recent if t.values == trial.values), None)
        if trial.source != "llm" or not recent:
            return None
        values = trial.values
        changes = [sum(map(ne, t.values, values)) for t in recent]
        fewest = min(changes)
        if 2 * fewest > len(self.labels):
            return None
        nearest = (t for t, count in zip(recent, changes, strict=True) if count == fewest)
        return min(nearest, key=self.history.rank).number

    def _changed(self, before: Trial, after: Trial) -> list[int]:
        pairs = zip(before.values, after.values, strict=True)
        return [i for i, (a, b) in enumerate(pairs) if a != b]

    def difference(self, trial: Trial) -> str:
        """Return what a trial changed, and from which point; else who proposed it."""
        wide = len(self.labels) > _COLUMNS
        parent = self.parent(trial)
        if parent is None:
            text = _SOURCES.get(trial.source, "new")
            if trial.source == "user" and trial.explanation.strip():
                text = _quoted(trial.explanation, _MAX_LESSON).replace("|", "/")
            elif trial.source == "user":
                text = "given" if self.drawn < trial.number else "warm-up"
            # The values of many random parameters carry no information.
            shown = wide and trial.source in ("llm", "user")
            return f"{text}: {self.values(trial)}" if shown else text
        changed = self._changed(parent, trial)
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
                for action, places in self._grouped.items()
                if any(i in steps for _, i in places)
            )
            return f"#{parent.number + 1}, changed {text}"
        more = f", and {len(changed) - most} more" if len(changed) > most else ""
        words = (f"{self.labels[i]} {step}" for i, step in steps.items())
        return f"#{parent.number + 1}: {', '.join(words)}{more}"

    # -- where the search stands ----------------------------------------------------------

    @property
    def has_errors(self) -> bool:
        """Whether any trial was told with a standard error."""
        return self._past.has_errors

    @property
    def paired(self) -> bool:
        """Whether points are measured on the same starts, and compared start by start."""
        return self._past.paired

    def _ranked(self, n: int) -> list[Trial]:
        """Return the best trials, best first, but for checks."""
        if len(self.history.directions) == 1:
            return [self.history.trials[number] for _, number in self._past.ranked[:n]]
        return [t for t in self.history.ranked if t.kind != "check"][:n]

    def ranking(self, n: int = 8) -> str:
        """Return the best trials by number with their values of f, best first."""
        best = self._ranked(n)
        values = [t.rewards[0] for t in best if t.rewards]
        digits = max((telling(a, b, 6) for a, b in pairwise(values)), default=6)
        scores = (self.score(t, best[0], digits) for t in best)
        shown = [f"#{t.number + 1} ({', '.join(s)})" for t, s in zip(best, scores, strict=True)]
        if len(self.history.directions) == 1:
            return self._with_ties(best, shown)
        front = self.history.pareto_front
        first = min(len(front), len(best))
        more = f" and {len(front) - first} more" if len(front) > first else ""
        behind = f"; behind them {', '.join(shown[first:])}" if shown[first:] else ""
        return f"{', '.join(shown[:first]) or 'none'}{more}{behind}"

    def _with_ties(self, best: list[Trial], shown: list[str]) -> str:
        """Join the ranking's entries: equal ones by "=", others with their paired difference."""
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
        said = " on fresh starts" if trial.kind == "check" else self._outcome(trial)
        return f"#{trial.number + 1} ({', '.join(cells)}){said}"

    def result(self, trial: Trial) -> str:
        """Return a trial's number with its values of f, or that it failed."""
        return f"#{trial.number + 1} ({', '.join(self.score(trial, None))})"

    @property
    def last_answer(self) -> list[Trial]:
        """The trials of the model's last answer that has results."""
        numbers = self._past.answers[-1] if self._past.answers else []
        return [self.history.trials[number] for number in numbers]

    @property
    def _answers(self) -> list[list[int]]:
        """Numbers of the model's points by answer, but of one that is still measured in part."""
        return self._past.answers[: -1 if self.history.pending else None]

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
        known = self._past.moves
        for trial in self.history.trials[-_RECALLED:]:
            if trial.number not in known:
                known[trial.number] = self._move(trial)
        recent = range(len(self.history.trials) - _RECALLED, len(self.history.trials))
        moves = [move for number in recent if (move := known.get(number)) is not None]
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
        changed = self._changed(parent, trial)
        kinds = [self.space.dimensions[i] for i in changed]
        absent = any(t.values[i] is ABSENT for t in (parent, trial) for i in changed)
        if not changed or absent or any(isinstance(kind, Categorical) for kind in kinds):
            return None
        steps = self.space.encode(parent.values) - self.space.encode(trial.values)
        tiny = np.abs(steps).max() < _TINY
        return abs(trial.rewards[0] - parent.rewards[0]) if tiny else None

    def standstill(self) -> str:
        """Say so where the model's latest answers lie within the noise, or gain next to nothing.

        An answer is judged as a whole: a scan is not over at its first point.
        """
        best = next(iter(self._ranked(1)), None)
        count = _ANSWERS
        while sum(map(len, self._answers[-count:])) < _POINTS and count < len(self._answers):
            count += 1
        latest = [self.history.trials[i] for answer in self._answers[-count:] for i in answer]
        few = len(self._answers) < count or len(latest) < _POINTS
        if few or best is None or len(self.history.directions) > 1:
            return ""
        said = "Your latest {} answers ({} experiments)"
        if all(t is best or within_noise(t, best) for t in latest):
            quiet = self._within_noise(best)
            return (
                f"{said.format(len(quiet), sum(map(len, quiet)))} lie within the noise: none "
                "differs from the best by two standard errors."
            )
        before = self._before(latest[0])
        start = self._before(self.history.trials[self.drawn]) or self.history.complete[0]
        if before is None or start.rewards is None or before.rewards is None or not best.rewards:
            return ""
        if before is best:
            later = bisect_right(self._answers, best.number, key=lambda answer: answer[0])
            quiet = self._answers[later:]
            return f"{said.format(len(quiet), sum(map(len, quiet)))} gained nothing."
        gained = abs(best.rewards[0] - before.rewards[0])
        total = abs(best.rewards[0] - start.rewards[0])
        feasible = start.constraint_violation == before.constraint_violation
        if not feasible or gained * 1000 > total:
            return ""
        return (
            f"{said.format(count, len(latest))} gained {gained:.2g}, less than a thousandth of all "
            f"that was gained since #{start.number + 1} ({total:.4g})."
        )

    def _within_noise(self, best: Trial) -> list[list[int]]:
        """Return the latest answers in a row whose trials all lie within the noise of the best."""
        trials, answers = self.history.trials, self._answers
        for place in reversed(range(len(answers))):
            found = (trials[i] for i in answers[place])
            if not all(t is best or within_noise(t, best) for t in found):
                return answers[place + 1 :]
        return answers

    def failed(self) -> str:
        """Return the numbers of the experiments that failed, the latest eight."""
        return ", ".join(f"#{t.number + 1}" for t in self.history.failed[-8:])

    def shown_again(self) -> list[str]:
        """Return the values of the best points and the latest, where the log has no columns."""
        if len(self.labels) <= _COLUMNS:
            return []
        ranked, latest = self._ranked(_SHOWN), self.history.trials[-1:]
        best = [*ranked[:1], *(t for t in ranked[1:] if t.source not in RANDOM)]
        chosen: list[Trial] = []
        for trial in (*best, *(t for t in latest if t.source == "llm")):
            if all(trial.values != t.values for t in chosen):
                chosen.append(trial)
        return [f"#{t.number + 1}: {self.values(t)}" for t in chosen]

    @property
    def drawn(self) -> int:
        """How many trials there are before the first that a model proposed."""
        return self._past.drawn

    def lessons(self, n: int = 7) -> list[str]:
        """Return the latest `n` lessons of experiments whose notes are dropped, oldest first."""
        passed = {t.number for t, full in self._laid_out if full} | self._past.withdrawn
        kept: dict[str, int] = {}
        oldest = len(self.history.trials) - _RECALLED
        for place in reversed(self._past.with_lesson):
            if len(kept) == n or place < oldest:
                break
            if place not in passed:
                text = _sentences(thought(self.history.trials[place]).lesson, _MAX_LESSON)
                if text:
                    kept.setdefault(text, place + 1)  # it may have been said before
        return [f"{number}: {text}" for text, number in reversed(kept.items())]


_QUOTES = str.maketrans({'"': "'", "“": "'", "”": "'"})


def _quoted(note: str, most: int) -> str:
    """Return a model's words as they are shown again: one short line without double quotes."""
    # Marks of chat templates must not come back as such through a server that reads them.
    text = note.replace("<|", "< |").replace("**", "").translate(_QUOTES)
    return cut(" ".join(text.split()), most)


@lru_cache(maxsize=1024)
def _sentences(text: str, most: int) -> str:
    """Return a note as it is shown again, in whole sentences."""
    return cut_sentences(_quoted(text, MAX_NOTE), most, MAX_NOTE)
