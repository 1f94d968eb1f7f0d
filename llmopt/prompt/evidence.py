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

import heapq
import math
import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from llmopt.history import History, Trial
from llmopt.prompt.answer import MAX_NOTE, WITHDRAWN, Answer, notes_of, zero_point
from llmopt.prompt.describe import FEEDBACK_CHARS, names_of, quoted
from llmopt.prompt.differences import (
    gain,
    number,
    paired_error,
    rough,
    telling,
    within_noise,
)
from llmopt.space import Float, Space
from llmopt.space.values import ABSENT
from llmopt.text import cut, cut_sentences, estimate_tokens

_MAX_CHANGES = 6  # changed parameters that are listed by name
_COLUMNS = 16  # parameters that get a column each
_LISTED = 24  # values in one cell that are listed by name
_MAX_LESSON = 300
_MAX_HYPOTHESIS = 240
_MAX_BRIEF = 100  # characters of the one line that stays of a point's notes
_RECALLED = 200  # latest trials that a point may have been made from, if its answer does not say
_BRIEF = 330  # characters of feedback on a point that no model proposed, unless it was the best
_STEP = 128  # the log is laid out anew after so many trials at least
_BEST, _BEST_FULL, _LATEST = 12, 4, 3  # experiments that stay when others are dropped
_RECENT = 48  # latest experiments whose rows stay, where there is room
_SHOWN = 2  # best points whose values are shown again at the end, where the log has no columns
_ANSWERS, _POINTS = 3, 5  # latest answers, and points in them, that tell whether it still gets on
_RANDOM = ("warmup", "fallback")
_TELLING = re.compile(r"\b(?:ended early|fail\w*|violat\w*|error)\b", re.IGNORECASE)
_TUNED = ("cma", "refine", "finish")
_SOURCES = {
    "warmup": "warm-up",
    "drawn": "drawn from the best",
    "cma": "found by CMA-ES",
    "refine": "a small random change of the best",
    "finish": "a small random change of the best",
    "network": "drawn by a small network",
    "sampler": "found by a sampler",
    "fallback": "drawn at random",
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
    _made: dict[tuple[int, bool], tuple[str, int]] = field(default_factory=dict, compare=False)
    _rows: dict[int, str] = field(default_factory=dict, compare=False)

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

        The choice depends on the trials told until the log was last shortened, so that from
        one proposal to the next entries are added at the end only.
        """
        trials = sorted(self.shown, key=lambda t: t.number)
        if self.budget is None:
            return [(t, True) for t in trials]
        first = max(0, len(trials) // _STEP - 1) * _STEP
        kept: list[tuple[Trial, bool]] = []
        top = heapq.nsmallest(_BEST, ((self.history.rank(t), t.number, t) for t in trials[:first]))
        used = 0
        if first:
            kept, used = self._shortened(trials[:first], [t for *_, t in top])
        for i in range(first, len(trials)):
            insort(top, (self.history.rank(trials[i]), trials[i].number, trials[i]))
            del top[_BEST:]
            kept.append((trials[i], True))
            used += self._entry(trials[i], True)[1]
            if used > self.budget:
                kept, used = self._shortened(trials[: i + 1], [t for *_, t in top])
        answers = {t.number for t in self._answers[-1]} if self._answers else set()
        fresh = [t for t in trials if t.number in answers]
        if sum(self._entry(t, True)[1] for t in fresh) > self.budget:
            return kept
        # What the latest answer brought is seen in full once at least.
        older = [one for one in kept if one[0].number not in answers]
        return sorted([*older, *((t, True) for t in fresh)], key=lambda one: one[0].number)

    def _shortened(
        self, trials: list[Trial], top: list[Trial]
    ) -> tuple[list[tuple[Trial, bool]], int]:
        """Return what stays of the log, about two thirds of the budget, and its size."""
        budget = self.budget or 0
        if len(self.history.directions) > 1:
            top = list(replace(self.history, trials=tuple(trials)).ranked[:_BEST])
        top = [t for t in top if t.state == "complete"]
        latest = trials[: -_LATEST - 1 : -1]
        turns = [t for i in range(_BEST_FULL) for t in (*latest[i : i + 1], *top[i : i + 1])]
        chosen: dict[int, tuple[Trial, bool]] = {}
        used = 0
        rows = [*turns, *top, *trials[: -_RECENT - 1 : -1]]
        for notes, wanted, most in ((False, rows, budget * 0.45), (True, turns, budget * 0.58)):
            for trial in wanted:
                known = chosen.get(trial.number)
                size = self._entry(trial, notes)[1]
                size -= self._entry(*known)[1] if known else 0
                if (notes or not known) and used + size <= most:
                    chosen[trial.number] = (trial, notes)
                    used += size
        return [chosen[number] for number in sorted(chosen)], used

    def _entry(self, trial: Trial, full: bool) -> tuple[str, int]:
        """Return a trial's row with its notes, or with one line of them, and its tokens."""
        if trial.number in self._done_with:
            row = self._row(trial)
            return row, self.count(row) + 1
        made = self._made.get((trial.number, full))
        if made is None:
            notes = self._notes(trial) if full else self._brief(trial)
            text = "\n".join([self._row(trial), *([notes] if notes else [])])
            text += "\n" if notes and full else ""
            made = self._made[trial.number, full] = text, self.count(text) + 1
        return made

    @cached_property
    def _done_with(self) -> frozenset[int]:
        """Numbers of the points drawn before the model's first design: their rows are enough.

        The best of them keeps its notes where that design is worse.
        """
        if self.drawn == len(self.history.trials):
            return frozenset()
        drawn = {t.number for t in self.history.trials[: self.drawn] if t.source in _RANDOM}
        best = self._bests[self.drawn]
        if best is not None and not self.history.better(self.history.trials[self.drawn], best):
            drawn.discard(best.number)
        return frozenset(drawn)

    # -- one experiment -------------------------------------------------------------------

    def _row(self, trial: Trial) -> str:
        if trial.number not in self._rows:  # an entry with its notes, and one without, share it
            self._rows[trial.number] = self._made_row(trial)
        return self._rows[trial.number]

    def _made_row(self, trial: Trial) -> str:
        head = [f"#{trial.number + 1}", *self.score(trial, self._bests[trial.number])]
        if len(self.labels) <= _COLUMNS:
            head += [self.value(trial, i) for i in range(len(self.labels))]
        moved = " (not as you gave it: moved into the ranges)" if trial.clipped else ""
        return " | ".join([*head, self.difference(trial) + moved])

    def score(self, trial: Trial, best: Trial | None, digits: int = 0) -> list[str]:
        """Return one cell for each objective: the value with its standard error.

        Where both were measured on the same starts, it is that of the difference from `best`.
        The first value has so many digits at least, by default those that tell it from the values
        before it, and as many as tell it from that of `best`.
        """
        objectives = len(self.history.directions)
        if trial.rewards is None or trial.state == "failed":
            return ["failed"] * objectives
        cells = [number(r) for r in trial.rewards]
        digits = digits or telling(trial.rewards[0], self._nearest[trial.number], 6)
        if best is not None and best.rewards is not None:
            digits = telling(trial.rewards[0], best.rewards[0], digits)
        cells[0] = number(trial.rewards[0], digits)
        error = trial.stderr
        if self.paired and len(trial.samples) > 1:
            error = None if best is None or best is trial else paired_error(trial, best)
        if error is not None:
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

        It is shown in full. A small change of a known point, and where there are no columns a
        point that was drawn, has four digits, or as many as tell it from the best point before.
        """
        dimension, value = self.space.dimensions[index], trial.values[index]
        if value is ABSENT or not isinstance(dimension, Float) or dimension.step is not None:
            return self.space.format(index, value)
        digits = 9
        if trial.source in _TUNED or (trial.source != "llm" and len(self.labels) > _COLUMNS):
            best = self._bests[trial.number]
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
        said = _thought(trial)
        if said.lesson and trial.number + 1 not in self._withdrawn:
            lines.append(f"lesson: {_sentences(said.lesson, _MAX_LESSON)}")
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
        return quoted(cut(next(ends, lines[0] if lines else ""), _MAX_BRIEF))

    @cached_property
    def _withdrawn(self) -> frozenset[int]:
        """Numbers of the experiments whose lessons a later answer has withdrawn."""
        asked = (t for t in self.history.trials if t.source == "llm")
        struck = (
            (int(n), trial.number + 1)
            for trial in asked
            if "withdrawn" in trial.explanation.casefold()  # far quicker than the search
            for found in WITHDRAWN.finditer(trial.explanation)
            for n in re.findall(r"\d+", found[1])
        )
        return frozenset(n for n, by in struck if n < by)

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
        before = self._bests[trial.number]
        if before is not None and before is not parent:
            notes.append(f"{gain(trial, before)} against #{before.number + 1}, the best until then")
        return f" -> {'; '.join(notes)}" if notes else ""

    def _feedback(self, trial: Trial) -> str:
        lines = (" ".join(line.split()) for line in trial.feedback.splitlines())
        text = "\n".join(line for line in lines if line)
        limit = self.feedback_limit
        long = len(text) > _BRIEF and trial.source != "llm"
        if long and self._bests_of_runs[trial.number] is not trial:
            limit = min(limit, _BRIEF)
        if len(text) <= limit:
            return quoted(text)
        shown = text[:limit]
        # A line is shown whole or not at all, but for the first one.
        return quoted((shown.rpartition("\n")[0] or shown.rpartition(" ")[0] or shown) + "\n…")

    # -- where a point came from ----------------------------------------------------------

    @cached_property
    def _bests(self) -> list[Trial | None]:
        """The best trial before each trial, in their order; a check is no rival of the others."""
        best: Trial | None = None
        least = math.inf, math.inf
        found = []
        for trial in self.history.trials:
            found.append(best)
            rank = self.history.rank(trial)
            if rank < least and trial.kind != "check":
                best, least = trial, rank
        return found

    @cached_property
    def _nearest(self) -> list[float | None]:
        """For each trial the nearest other value of f before it."""
        seen: list[float] = []
        found = []
        for trial in self.history.trials:
            near: float | None = None
            if trial.rewards is not None and trial.state == "complete":
                value = trial.rewards[0]
                at = bisect_left(seen, value), bisect_right(seen, value)
                around = (*seen[max(0, at[0] - 1) : at[0]], *seen[at[1] : at[1] + 1])
                near = min([(abs(v - value), v) for v in around], default=(0.0, None))[1]
                if at[0] == at[1]:
                    seen.insert(at[0], value)
            found.append(near)
        return found

    @cached_property
    def _bests_of_runs(self) -> list[Trial]:
        """For each trial the best one up to the end of its run of points not from a model."""
        found: list[Trial] = []
        pairs = zip(self.history.trials, self._bests, strict=True)
        for trial, before in reversed(list(pairs)):
            if not found or self.history.trials[trial.number + 1].source == "llm":
                worse = before is not None and not self.history.better(trial, before)
                best = before if before is not None and worse else trial
            found.append(best)
        return found[::-1]

    def parent(self, trial: Trial) -> Trial | None:
        """Return the earlier trial that a trial was made from.

        That is the one its answer names, and none if it says that the point is new. Else it is
        the one that differs in the fewest parameters, the better of equals, unless it differs in
        more than half of them. Of a point that the user measured again it is the first
        measurement.
        """
        named = _thought(trial).start
        if isinstance(named, int) and 1 <= named <= trial.number:
            return self.history.trials[named - 1]
        if named in ("new", "zero"):
            return None
        recent = self.history.trials[max(0, trial.number - _RECALLED) : trial.number]
        if trial.source == "user":
            return next((t for t in recent if t.values == trial.values), None)
        if trial.source != "llm":
            return None
        nearest = min(
            recent, key=lambda t: (len(self._changed(t, trial)), self.history.rank(t)), default=None
        )
        if nearest is None or 2 * len(self._changed(nearest, trial)) > len(self.labels):
            return None
        return nearest

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
            # The values of many parameters that were drawn at random tell nothing.
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

    @cached_property
    def has_errors(self) -> bool:
        """Whether any trial was told with a standard error."""
        return any(t.stderr is not None for t in self.history.trials)

    @cached_property
    def paired(self) -> bool:
        """Whether points are measured on the same starts, and compared start by start."""
        return not self.history.noisy and any(len(t.samples) > 1 for t in self.history.trials)

    @cached_property
    def _ranked(self) -> tuple[Trial, ...]:
        return tuple(t for t in self.history.ranked if t.kind != "check")

    def ranking(self, n: int = 8) -> str:
        """Return the best trials by number with their values of f, best first."""
        best = self._ranked[:n]
        values = [t.rewards[0] for t in best if t.rewards]
        digits = max((telling(a, b, 6) for a, b in pairwise(values)), default=6)
        scores = (self.score(t, best[0], digits) for t in best)
        shown = [f"#{t.number + 1} ({', '.join(s)})" for t, s in zip(best, scores, strict=True)]
        if len(self.history.directions) == 1:
            return ", ".join(shown)
        front = self.history.pareto_front
        first = min(len(front), len(best))
        more = f" and {len(front) - first} more" if len(front) > first else ""
        behind = f"; behind them {', '.join(shown[first:])}" if shown[first:] else ""
        return f"{', '.join(shown[:first]) or 'none'}{more}{behind}"

    def latest(self) -> str:
        """Say which trial is the latest, and how it compares with its start and the best."""
        trial = self.history.trials[-1]
        cells = self.score(trial, self._bests[trial.number])
        said = " on fresh starts" if trial.kind == "check" else self._outcome(trial)
        return f"#{trial.number + 1} ({', '.join(cells)}){said}"

    @cached_property
    def _answers(self) -> list[list[Trial]]:
        """The model's points by answer, but for an answer of which some are still measured.

        A point is of the answer before it where it has a hypothesis alone, and cost the same.
        """
        found: list[list[Trial]] = []
        for trial in self.history.trials:
            if trial.source != "llm":
                continue
            said = _thought(trial)
            alone = said.hypothesis and not (said.lesson or said.analysis)
            if found and alone and _costs(found[-1][-1]) == _costs(trial):
                found[-1].append(trial)
            else:
                found.append([trial])
        return found[:-1] if self.history.pending else found

    def noise(self) -> str:
        """Say how far measurements of one point lie apart, where it is known."""
        told = sorted(t.stderr for t in self.history.complete if t.stderr and t.evaluations == 1)
        if deviation := self.history.deviation:
            return f"One measurement has a standard deviation of about {rough(deviation)}."
        if told:
            return f"The median standard error of a point is {rough(told[len(told) // 2])}."
        return "How large the noise is cannot be said yet: no point was measured twice."

    def standstill(self) -> str:
        """Say so where the model's latest answers lie within the noise, or gain next to nothing.

        An answer is judged as a whole: a scan is not over at its first point.
        """
        best = next(iter(self._ranked), None)
        count = _ANSWERS
        while sum(map(len, self._answers[-count:])) < _POINTS and count < len(self._answers):
            count += 1
        latest = [t for answer in self._answers[-count:] for t in answer]
        few = len(self._answers) < count or len(latest) < _POINTS
        if few or best is None or len(self.history.directions) > 1:
            return ""
        said = f"Your latest {count} answers ({len(latest)} experiments)"
        if all(t is best or within_noise(t, best) for t in latest):
            return (
                f"{said} lie within the noise: none differs from the best by two standard errors."
            )
        before = self._bests[latest[0].number]
        start = self._bests[self.drawn] or self.history.complete[0]
        if before is None or start.rewards is None or before.rewards is None or not best.rewards:
            return ""
        if before is best:
            return f"{said} gained nothing."
        gained = abs(best.rewards[0] - before.rewards[0])
        total = abs(best.rewards[0] - start.rewards[0])
        feasible = start.constraint_violation == before.constraint_violation
        if not feasible or gained * 1000 > total:
            return ""
        return (
            f"{said} gained {gained:.2g}, less than a thousandth of all that was gained since "
            f"#{start.number + 1} ({total:.4g})."
        )

    def failed(self) -> str:
        """Return the numbers of the experiments that failed, the latest eight."""
        return ", ".join(f"#{t.number + 1}" for t in self.history.failed[-8:])

    def shown_again(self) -> list[str]:
        """Return the values of the best points and the latest, where the log has no columns."""
        if len(self.labels) <= _COLUMNS:
            return []
        ranked, latest = self._ranked, self.history.trials[-1:]
        best = [*ranked[:1], *(t for t in ranked[1:_SHOWN] if t.source not in _RANDOM)]
        chosen: list[Trial] = []
        for trial in (*best, *(t for t in latest if t.source == "llm")):
            if all(trial.values != t.values for t in chosen):
                chosen.append(trial)
        return [f"#{t.number + 1}: {self.values(t)}" for t in chosen]

    @cached_property
    def drawn(self) -> int:
        """How many trials there are before the first that a model proposed."""
        trials = self.history.trials
        return next((t.number for t in trials if t.source == "llm"), len(trials))

    def lessons(self, n: int = 7) -> list[str]:
        """Return the latest `n` lessons of experiments whose notes are dropped, oldest first."""
        noted = {t.number for t, full in self._laid_out if full}
        passed = noted | {number - 1 for number in self._withdrawn}
        kept: dict[str, int] = {}
        for trial in self.history.trials[-_RECALLED:]:
            text = _sentences(_thought(trial).lesson, _MAX_LESSON)
            if text and trial.number not in passed:
                kept.pop(text, None)  # it is said again
                kept[text] = trial.number + 1
        return [f"{number}: {text}" for text, number in kept.items()][-n:] if n else []


_QUOTES = str.maketrans({'"': "'", "“": "'", "”": "'"})


def _thought(trial: Trial) -> Answer:
    """Return what a model said about a trial."""
    return notes_of(trial.explanation) if trial.source == "llm" else Answer()


def _quoted(note: str, most: int) -> str:
    """Return a model's words as they are shown again: one short line without double quotes."""
    # Marks of chat templates must not come back as such through a server that reads them.
    text = note.replace("<|", "< |").replace("**", "").translate(_QUOTES)
    return cut(" ".join(text.split()), most)


def _sentences(text: str, most: int) -> str:
    """Return a note as it is shown again, in whole sentences."""
    return cut_sentences(_quoted(text, MAX_NOTE), most, MAX_NOTE)


def _costs(trial: Trial) -> tuple[float, ...]:
    """Return the share of its request that a point has: the same for all of an answer."""
    return trial.prompt_tokens, trial.completion_tokens, trial.seconds
