"""Trials, spaces, goals and differences in the words and digits that prompts use."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from llmopt.history import Direction, Follower, History, Trial
from llmopt.space import Categorical, Dimension, Float, Space, Value
from llmopt.space.values import ABSENT
from llmopt.util.text import cut, cut_sentences

FEEDBACK_CHARS = 2600
"""Characters of the feedback on one trial that the prompt `words` shows."""

SHORT_FEEDBACK_CHARS = 480
"""The same of the other prompts, which show it in one line."""

MAX_NOTE = 600
"""Characters of a lesson or a hypothesis that are kept."""

SOURCES = {
    "warmup": "warm-up",
    "drawn": "drawn from the best",
    "cma": "found by CMA-ES",
    "network": "drawn by a small network",
    "sampler": "found by a sampler",
    "fallback": "drawn at random",
}
"""Who proposed a point, in words, if it was not the model."""

SMALL_STEPS = ("cma",)
"""Who proposes small changes of the best points, in digits that no model could have meant."""

_MAX_BRIEF = 140  # characters of the one line that stays of a point's notes
_BRIEF_START = 50  # how many of them come from its beginning, if it is longer
_TELLING = re.compile(r"\b(?:ended early|fail\w*|violat\w*|error)\b", re.IGNORECASE)
_QUOTES = str.maketrans({'"': "'", "“": "'", "”": "'"})
_HEADING = r"^(?=[ \t]*(?:#|--? try \d))"
_MOST_CHOICE = 200  # characters of a choice beside its name
_MAX_CHOICES = 100  # choices of one dimension that are listed


@dataclass(frozen=True)
class Entry:
    """One trial as a template sees it."""

    number: int  # position in the history, from 0
    params: str  # the parameters in words: `"a: 1.0, b: 2.5"`
    f: str  # the reward in words; `""` for a failed trial
    rewards: tuple[float, ...] | None  # the numbers behind `f`, or `None`
    state: str  # `"complete"`, `"failed"`, `"pruned"` or `"withdrawn"`
    feedback: str  # words that came with the reward, or the reason of a failure, in one line
    violation: float  # by how much constraints were violated; 0 if they were not
    line: str  # all of it in one line, as the shipped templates show it


def describe_params(values: tuple[Value, ...], space: Space, labels: Sequence[str]) -> str:
    """Return flat values as ``"a: 1.0, b: 2.5"``."""
    shown = ((i, v) for i, v in enumerate(values) if v is not ABSENT)
    return ", ".join(f"{labels[i]}: {space.format(i, v)}" for i, v in shown)


def describe_trial(trial: Trial, space: Space, labels: tuple[str, ...]) -> Entry:
    """Return a trial in words."""
    params, f = describe_params(trial.values, space, labels), ""
    if trial.rewards is not None and trial.state != "failed":
        numbers = [number(r) for r in trial.rewards]
        f = numbers[0] if len(numbers) == 1 else f"({', '.join(numbers)})"
    feedback = cut(" ".join(trial.feedback.split()), SHORT_FEEDBACK_CHARS)
    violation = trial.constraint_violation
    if trial.state in ("failed", "withdrawn"):
        line = f"{params}; {trial.state}" + (f": {feedback}" if feedback else "")
    else:
        line = f"{params}; f = {f}"
        if trial.state == "pruned":
            line = f"{params}; pruned (stopped early)" + (f" at f = {f}" if f else "")
        line += f"; {space.violation(trial)}" if violation > 0 else ""
        line += f"; feedback: {feedback}" if feedback else ""
    return Entry(trial.number, params, f, trial.rewards, trial.state, feedback, violation, line)


class Entries(Follower):
    """The trials of a growing history in words: each is described once."""

    def read(self, history: History, space: Space, labels: tuple[str, ...]) -> dict[int, Entry]:
        """Return the entry of each trial by the trial's identity."""
        if getattr(self, "_names", None) != (space, labels):
            self._reset()
            self._names = space, labels
        self._update(history)
        return dict(zip(map(id, history.trials), self._entries, strict=True))

    def _reset(self) -> None:
        super()._reset()
        self._entries: list[Entry] = []

    def _add(self, trial: Trial, history: History) -> None:
        self._entries.append(describe_trial(trial, *self._names))


def describe_space(space: Space, labels: tuple[str, ...], *, decimals: bool = True) -> list[str]:
    """Return the ranges in words, equal neighbours together; their decimals, if wanted."""
    texts = [_describe_dimension(space, i, d, decimals) for i, d in enumerate(space.dimensions)]
    texts = [f"{t}, {c}" if (c := space.condition(i)) else t for i, t in enumerate(texts)]
    if not decimals and (line := _describe_weights(labels, texts)):
        return [line]
    lines = []
    for text, group in groupby(range(len(texts)), key=texts.__getitem__):
        names = [labels[i] for i in group]
        one = len({name.partition("[")[0] for name in names}) == 1
        listed = f"{names[0]} to {names[-1]}" if one else ", ".join(joined(names))
        lines.append(f"{listed}: each {text}" if len(names) > 1 else f"{names[0]}: {text}")
    return lines


def joined(names: Sequence[str]) -> list[str]:
    """Return names with runs such as ``x0``, ``x1``, ``x2`` as ``x0..x2``."""
    keys = []
    for k, name in enumerate(names):
        stem = name.rstrip("0123456789")
        end = name[len(stem) :]
        plain = end and str(int(end)) == end
        keys.append((stem, int(end) - k) if plain else (name, -1 - k))
    texts = []
    for _, group in groupby(range(len(names)), key=keys.__getitem__):
        run = [names[i] for i in group]
        texts += [f"{run[0]}..{run[-1]}"] if len(run) > 2 else run
    return texts


def _describe_weights(labels: Sequence[str], texts: Sequence[str]) -> str:
    """Return many weights `action<-observation` in a line; empty for other parameters.

    The weights of one observation must have one range.
    """
    ranges = {(label.partition("<-")[2], text) for label, text in zip(labels, texts, strict=True)}
    pairs = [label.partition("<-") for label in labels]
    actions = list(dict.fromkeys(pair[0] for pair in pairs))
    seen = list(dict.fromkeys(pair[2] for pair in pairs))
    product = {f"{a}<-{o}" for a in actions for o in seen} == set(labels)
    of = {observation: text for observation, text in ranges}
    alike = len(set(texts)) == 1
    if not product or len(ranges) > len(of) or len(labels) <= (24 if alike else 6):
        return ""
    line = f"`action<-observation` for each action of {', '.join(actions)} and each observation of "
    if alike:
        return f"{line}{', '.join(seen)}: each {texts[0]}"
    shown = {o: re.sub(r"^a number from -(\S+) to \1$", r"±\1", text) for o, text in of.items()}
    return line + "; ".join(f"{o} ({shown[o].removeprefix('a number ')})" for o in seen)


@lru_cache(maxsize=16)
def by_action(labels: tuple[str, ...]) -> dict[str, list[tuple[str, int]]]:
    """Return names and places of the parameters by action, if they are ``action<-observation``."""
    groups: dict[str, list[tuple[str, int]]] = {}
    for i, label in enumerate(labels):
        action, arrow, observation = label.partition("<-")
        groups.setdefault(action if arrow else "", []).append((observation or label, i))
    return groups


def _describe_dimension(space: Space, index: int, dimension: Dimension, named: bool) -> str:
    if isinstance(dimension, Categorical):
        texts = dimension.labels[:_MAX_CHOICES]
        if dimension.named:
            pairs = zip(texts, dimension.choices, strict=False)
            texts = tuple([f"{name} ({cut(str(choice), _MOST_CHOICE)})" for name, choice in pairs])
        shown = ", ".join(texts)
        more = len(dimension.choices) - _MAX_CHOICES
        return f"one of {shown}" + (f" and {more} more" if more > 0 else "")
    kind = "a number" if isinstance(dimension, Float) else "an integer"
    unit = f" {dimension.unit}" * bool(dimension.unit)
    if not named:  # "from -6.0 to 6.0" would hint at one decimal
        text = f"{kind} from {dimension.low:.10g} to {dimension.high:.10g}{unit}"
    else:
        low, high = (space.format(index, bound) for bound in (dimension.low, dimension.high))
        text, decimals = f"{kind} from {low} to {high}{unit}", space.decimals[index]
        if decimals is not None and dimension.step is None:
            text += f" with {decimals} decimal{'' if decimals == 1 else 's'}"
    if dimension.step is not None and not (isinstance(dimension.step, int) and dimension.step == 1):
        text += f" in steps of {dimension.step:.6g}"
    return text + (" (logarithmic scale)" if dimension.log else "")


def quoted(text: str, *, headings_alone: bool = False) -> str:
    """Return text from outside, marked so that no line of it reads as a row or a heading.

    With `headings_alone` the lines are marked that begin with ``#``, or as a row of the code
    search does (``- try 3``).
    """
    marked = re.compile(_HEADING if headings_alone else r"^", re.MULTILINE)
    return marked.sub("> ", text) if text else ""


def brief(feedback: str) -> str:
    """Return the line of feedback that tells most: of an end or a failure, or the first one."""
    lines = [" ".join(line.split()) for line in feedback.strip().splitlines()]
    ends = (line for line in lines if _TELLING.search(line[:60]))
    line = next(ends, lines[0] if lines else "")
    if len(line) > _MAX_BRIEF:  # the end of a line holds the last value of a curve, say
        start, end = line[:_BRIEF_START].rstrip(), line[_BRIEF_START + 3 - _MAX_BRIEF :].lstrip()
        line = f"{start} … {end}"
    return quoted(line)


def whole_lines(feedback: str, most: int) -> str:
    """Return feedback of at most `most` characters: whole lines, but for the first one."""
    lines = (" ".join(line.split()) for line in feedback.splitlines())
    text = "\n".join(line for line in lines if line)
    if len(text) > most:
        shown = text[:most]
        text = (shown.rpartition("\n")[0] or shown.rpartition(" ")[0] or shown) + "\n…"
    return quoted(text)


def in_one_line(note: str, most: int) -> str:
    """Return a model's words as they are shown again: one short line without double quotes."""
    # Marks of chat templates must not come back as such through a server that reads them.
    text = note.replace("<|", "< |").replace("**", "").translate(_QUOTES)
    return cut(" ".join(text.split()), most)


@lru_cache(maxsize=1024)
def sentences(note: str, most: int) -> str:
    """Return a model's words as they are shown again, in whole sentences."""
    return cut_sentences(in_one_line(note, MAX_NOTE), most, MAX_NOTE)


def names_of(directions: tuple[Direction, ...], metrics: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return what the objectives are called: by their names, or ``f``, or ``f1`` and so on."""
    if len(directions) == 1:
        return ("f",)
    names = metrics or tuple(f"f{i + 1}" for i in range(len(directions)))
    return tuple(name.replace("|", "/") for name in names)


def describe_goal(directions: tuple[Direction, ...], metrics: tuple[str, ...] = ()) -> str:
    """Return the goal in words, to follow "find"."""
    if len(directions) == 1:
        extreme = "maximum" if directions[0] == "maximize" else "minimum"
        return f"the global {extreme} of an unknown function f"
    names = names_of(directions, metrics)
    wanted = ", ".join(f"{d} {name}" for d, name in zip(directions, names, strict=True))
    return f"the best trade-offs of an unknown function f = ({', '.join(names)}) ({wanted})"


def describe_step(space: Space) -> str:
    """Return a search step in words."""
    plain = [d for d in space.dimensions if isinstance(d, Float) and not d.log]
    ranges = {d.high - d.low for d in plain}
    if len(plain) == len(space) and len(ranges) == 1:
        return f"{ranges.pop() / 10:.3g}"
    return "a tenth of each range"


_CERTAIN = 10.0  # standard errors beyond which the error of a difference tells nothing


def number(value: float, digits: int = 6) -> str:
    """Return a number with `digits` significant digits, never ``-0``."""
    return f"{value + 0.0:.{digits}g}"


def rough(error: float) -> str:
    """Return a standard error with two significant digits, or as a whole number."""
    return f"{error:.0f}" if 100 <= error < 1e6 else f"{error:.2g}"


def gain(trial: Trial, other: Trial, seeds: float = 0.0) -> str:
    """Return how much better a trial's reward is, with the error of the paired difference.

    The part of the difference that is due to their `seeds` is left out.

    If both were measured on the same initial states, the difference is more precise than either.
    A difference of more than ten standard errors is shown without its error.
    """
    if trial.rewards is None or other.rewards is None:
        return "no comparison"
    change = trial.rewards[0] - other.rewards[0] - seeds
    text = "no change" if change == 0 else f"{change:+.4g}"
    error = paired_error(trial, other)
    certain = error is None or abs(change) > _CERTAIN * error
    return text if certain else f"{text} ± {rough(error or 0.0)}"


def paired_error(trial: Trial, other: Trial) -> float | None:
    """Return the standard error of a difference of two means, start by start.

    ``None`` where they were not measured once each on the same starts.
    """
    n = len(trial.samples)
    if n < 2 or n != len(other.samples) or trial.evaluations + other.evaluations > 2:
        return None
    if "check" in (trial.kind, other.kind):  # on other initial states
        return None
    pairs = [a - b for a, b in zip(trial.samples, other.samples, strict=True)]
    mean = sum(pairs) / n
    return math.sqrt(sum((p - mean) ** 2 for p in pairs) / (n - 1) / n)


def telling(value: float, other: float | None, least: int) -> int:
    """Return how many digits, at least `least` and at most 15, tell a value from another one."""
    gap = 0.0 if other is None else abs(value - other)
    if not 0 < gap < abs(value) < math.inf:
        return least
    return min(max(math.ceil(math.log10(abs(value) / gap)) + 2, least), 15)
