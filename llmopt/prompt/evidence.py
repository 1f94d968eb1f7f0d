"""The history as evidence: a table of points, feedback on some, hypotheses and lessons.

Templates get an `Evidence` as ``evidence``. It is made for models that can weigh measurements:
values come with their standard errors, a point with its difference from the point that it was
made from, and a hypothesis with the change that it brought.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property

from llmopt.history import History, Trial
from llmopt.prompt.parse_last import hypothesis_of
from llmopt.space import Float, Space, Value

_MAX_CHANGES = 8  # changed parameters that are listed by name
_WIDE = 48  # parameters beyond which only the best points are shown in full
_FULL_ROWS = 3  # points in full in such a space
_MAX_LESSON = 300
_RECALLED = 200  # latest trials whose reasons, and points to be made from, are looked through
_START = re.compile(r"^[\s>*_`#-]{0,8}start(?:ing)?\s+from[*_`]{0,3}\s*:?[*_`\s]*#?\s*(\d{1,7})",
                    re.IGNORECASE | re.MULTILINE)  # fmt: skip
_LESSON = re.compile(
    r"^[\s>*_`-]{0,8}lesson[*_`]{0,3}\s*:[*_`\s]*(.+)$", re.IGNORECASE | re.MULTILINE
)
_NOTHING = ("none", "n/a", "nothing", "-", "(none)", "no")


def start_of(text: str) -> int | None:
    """Return the number that an answer starts from (``Start from: #7``), counted from 1."""
    found = list(_START.finditer(text))
    return int(found[-1][1]) if found else None


@dataclass(frozen=True)
class Evidence:
    """What the trials show, in words.

    Attributes:
        history: All trials.
        space: The search space.
        labels: What the parameters are called.
        shown: The trials that there is room for.
        feedback_limit: Characters of feedback shown for one trial.
    """

    history: History
    space: Space
    labels: tuple[str, ...]
    shown: tuple[Trial, ...]
    feedback_limit: int = 1600

    # -- points ---------------------------------------------------------------------------

    @cached_property
    def best(self) -> Trial | None:
        """The best trial, if one is complete."""
        return self.history.best

    @cached_property
    def _rank(self) -> dict[int, int]:
        """The place of each complete trial, by its number."""
        return {t.number: i for i, t in enumerate(self.history.ranked)}

    @cached_property
    def _asked(self) -> list[Trial]:
        """The trials that the model gave reasons for, oldest first; the latest few hundred."""
        latest = self.history.trials[-_RECALLED:]
        return [t for t in latest if t.source == "llm" and t.explanation.strip()]

    @cached_property
    def has_errors(self) -> bool:
        """Whether any trial was told with a standard error."""
        return any(t.stderr is not None for t in self.history.trials)

    @cached_property
    def header(self) -> str:
        """The table's one header row."""
        objectives = len(self.history.directions)
        f = ["f"] if objectives == 1 else [f"f{i + 1}" for i in range(objectives)]
        return " | ".join(["#", *f, *self.labels, "made from"])

    @cached_property
    def rows(self) -> list[str]:
        """The points shown, best first, then failed ones; the best is marked with ``*``."""
        last = len(self._rank)
        order = sorted(self.shown, key=lambda t: (self._rank.get(t.number, last), t.number))
        wide = len(self.labels) > _WIDE
        return [self._row(t, not wide or i < _FULL_ROWS) for i, t in enumerate(order)]

    def _row(self, trial: Trial, full: bool) -> str:
        mark = "*" if trial is self.best else ""
        cells = [f"{mark}{trial.number + 1}", *self.score(trial)]
        if full:
            cells += [self.value(i, v) for i, v in enumerate(trial.values)]
        cells.append(self.difference(trial))
        return " | ".join(cells)

    def score(self, trial: Trial) -> list[str]:
        """Return one cell for each objective: the value with its standard error."""
        objectives = len(self.history.directions)
        if trial.rewards is None or trial.state == "failed":
            return ["failed"] * objectives
        cells = [number(r) for r in trial.rewards]
        if trial.stderr is not None:
            cells[0] += f" ± {trial.stderr:.2g}"
        if trial.evaluations > 1:
            cells[0] += f" ({trial.evaluations} times)"
        if trial.state == "pruned":
            cells[0] += " (stopped early)"
        if trial.constraint_violation > 0:
            cells[0] += f" (violates the constraints by {trial.constraint_violation:.3g})"
        return cells

    @cached_property
    def _digits(self) -> tuple[int, ...]:
        """Significant digits of each parameter: three, and more once the best lie close."""
        top = self.history.ranked[:10]
        digits = []
        for i, dimension in enumerate(self.space.dimensions):
            needed = 3
            if isinstance(dimension, Float) and len(top) > 1:
                values = [float(t.values[i]) for t in top]
                spread, size = max(values) - min(values), max(map(abs, values))
                if spread > 0 and size > 0:
                    needed = math.ceil(math.log10(size / spread)) + 2
            digits.append(min(max(needed, 3), 9))
        return tuple(digits)

    def value(self, index: int, value: Value) -> str:
        """Return one value as it is shown: three significant digits or more."""
        dimension = self.space.dimensions[index]
        if isinstance(dimension, Float) and dimension.step is None:
            return number(float(value), self._digits[index])
        return self.space.format(index, value)

    def point(self, trial: Trial) -> str:
        """Return all values of a trial with their names."""
        return ", ".join(
            f"{label}: {self.value(i, v)}"
            for i, (label, v) in enumerate(zip(self.labels, trial.values, strict=True))
        )

    # -- where a point came from ----------------------------------------------------------

    def parent(self, trial: Trial) -> Trial | None:
        """Return the earlier trial that a trial was made from.

        That is the one its answer names; else the one that differs in the fewest parameters,
        the better of equals, unless it differs in more than half of them.
        """
        named = start_of(trial.explanation)
        if named is not None and 1 <= named <= trial.number:
            return self.history.trials[named - 1]
        if trial.source != "llm":
            return None
        last = len(self._rank)
        nearest = min(
            self.history.trials[max(0, trial.number - _RECALLED) : trial.number],
            key=lambda t: (len(self._changed(t, trial)), self._rank.get(t.number, last)),
            default=None,
        )
        if nearest is None or 2 * len(self._changed(nearest, trial)) > len(self.labels):
            return None
        return nearest

    def _changed(self, before: Trial, after: Trial) -> list[int]:
        pairs = zip(before.values, after.values, strict=True)
        return [i for i, (a, b) in enumerate(pairs) if a != b]

    def difference(self, trial: Trial) -> str:
        """Return what a trial changed, and from which point; ``""`` if from none."""
        parent = self.parent(trial)
        if parent is None:
            return "" if trial.source == "llm" else trial.source
        changed = self._changed(parent, trial)
        if not changed:
            return f"#{parent.number + 1} again"
        pairs = ((i, parent.values[i], trial.values[i]) for i in changed[:_MAX_CHANGES])
        words = [f"{self.labels[i]} {self.value(i, a)} -> {self.value(i, b)}" for i, a, b in pairs]
        more = f", and {len(changed) - _MAX_CHANGES} more" if len(changed) > _MAX_CHANGES else ""
        return f"#{parent.number + 1}: {', '.join(words)}{more}"

    # -- reasons --------------------------------------------------------------------------

    def hypotheses(self, n: int = 8) -> list[str]:
        """Return the latest `n` hypotheses with the change that each brought, oldest first."""
        return [self._hypothesis(t) for t in self._asked[-n:]] if n else []

    def _hypothesis(self, trial: Trial) -> str:
        text = f'#{trial.number + 1}: "{hypothesis_of(trial.explanation)}" -> '
        text += "f = " + ", ".join(self.score(trial)) if trial.rewards else trial.state
        if trial.state != "complete" or trial.rewards is None or len(trial.rewards) > 1:
            return text
        notes = []
        parent = self.parent(trial)
        if parent is not None and parent.rewards is not None:
            notes.append(f"{gain(trial, parent)} against #{parent.number + 1}, its start")
        before = next((t for t in self.history.ranked if t.number < trial.number), None)
        if before is not None and before is not parent and before.rewards is not None:
            notes.append(f"{gain(trial, before)} against #{before.number + 1}, the best until then")
        return text + (f" ({'; '.join(notes)})" if notes else "")

    def lessons(self, n: int = 12) -> list[str]:
        """Return the latest `n` different lessons that the model wrote down, oldest first."""
        kept: dict[str, None] = {}
        for trial in self._asked:
            for found in _LESSON.finditer(trial.explanation):
                text = " ".join(found[1].split()).strip("*_` ")[:_MAX_LESSON]
                if text and text.rstrip(".").lower() not in _NOTHING:
                    kept.pop(text, None)
                    kept[text] = None
        return list(kept)[-n:] if n else []

    # -- feedback -------------------------------------------------------------------------

    def closeups(self, best: int = 3, last: int = 3) -> list[tuple[str, str]]:
        """Return title and feedback of the best and of the latest trials that have any.

        Args:
            best: How many of the best.
            last: How many of the latest that are not among them.
        """
        allowed = {id(t) for t in self.shown}
        top = [t for t in self.history.ranked if t.feedback.strip() and id(t) in allowed][:best]
        late = [t for t in self.history.trials if t.feedback.strip() and id(t) in allowed]
        late = [t for t in late if t not in top][-last:] if last else []
        titles = []
        for trial in (*top, *late):
            place = "the best" if trial is self.best else "one of the best"
            place = place if trial in top else "one of the latest"
            score = f"f = {', '.join(self.score(trial))}" if trial.rewards else trial.state
            title = f"#{trial.number + 1}, {place}, {score}"
            titles.append((title, self._feedback(trial)))
        return titles

    def _feedback(self, trial: Trial) -> str:
        lines = (
            " ".join(line.split()) for line in trial.feedback.replace("\x00", " ").splitlines()
        )
        text = "\n".join(line for line in lines if line)
        if len(text) <= self.feedback_limit:
            return text
        cut = text[: self.feedback_limit]
        # A line is shown whole or not at all.
        return (cut.rpartition("\n")[0] or cut) + "\n…"


def number(value: float, digits: int = 6) -> str:
    """Return a number with so many significant digits, never ``-0``."""
    return f"{value + 0.0:.{digits}g}"


def gain(trial: Trial, other: Trial) -> str:
    """Return how much better a trial's reward is, with the error of the paired difference.

    Where both were measured on the same starts, the difference is known better than either.
    """
    if trial.rewards is None or other.rewards is None:
        return "no comparison"
    text = signed(trial.rewards[0] - other.rewards[0])
    n = len(trial.samples)
    if n > 1 and n == len(other.samples):
        pairs = [a - b for a, b in zip(trial.samples, other.samples, strict=True)]
        mean = sum(pairs) / n
        error = math.sqrt(sum((p - mean) ** 2 for p in pairs) / (n - 1) / n)
        text += f" ± {error:.2g} start by start"
    return text


def signed(value: float) -> str:
    """Return a difference with its sign."""
    return "no change" if value == 0 else f"{value:+.4g}"
