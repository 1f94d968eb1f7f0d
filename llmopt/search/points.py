"""Points of a search: those to begin with, as prompts show them, random ones, and the finalists."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from llmopt.errors import ParameterError
from llmopt.history import Follower, History, Proposal, Trial
from llmopt.prompt.describe import describe_params
from llmopt.space import Float, Space, Value
from llmopt.util.arguments import whole_number
from llmopt.util.text import short

if TYPE_CHECKING:
    from llmopt.search.results import Results

_FALLBACK_DRAWS = 100
_MOST_LEFT = 40  # untried points of a finite space that are listed for the model
_MOST_SAID = 20  # points whose words are shown
_LONGEST_WORDS = 300  # characters of them
_MOST_COUNTED = 10_000  # points of a space that are gone through to find them
_SHOWN_DIGITS = range(4, 10)
"""Significant digits with which prompts of words show a value."""


class ShownPoints(Follower):
    """The points of a history as prompts show them: with the decimals of the space, or rounded.

    A model that repeats one of these points copies a row of its prompt, whose digits are fewer than
    those of the point that was evaluated.
    """

    def __init__(self) -> None:
        self._space: Any = None
        super().__init__()

    def _reset(self) -> None:
        super()._reset()
        self._points: set[tuple[Hashable, ...]] = set()

    def read(self, space: Space, history: History) -> None:
        """Take in the trials that are new."""
        known = space.names, space.dimensions
        if self._space != known:
            self._reset()
            self._space = known
        self._update(history)

    def _add(self, trial: Trial, history: History) -> None:
        names, dimensions = self._space
        self._points.update(_rounded(trial.values, digits) for digits in _SHOWN_DIGITS)
        if len(trial.values) == len(names):
            shown = [
                float(d.format(v)) if isinstance(v, float) and isinstance(d, Float) else v
                for d, v in zip(dimensions, trial.values, strict=True)
            ]
            self._points.add(_rounded(shown, _SHOWN_DIGITS[-1]))

    def holds(self, values: Sequence[Value]) -> bool:
        """Whether a point is one of them, up to the last digit shown."""
        return _rounded(values, _SHOWN_DIGITS[-1]) in self._points


def _rounded(values: Sequence[Value], digits: int) -> tuple[Hashable, ...]:
    return tuple(float(f"{v:.{digits}g}") if isinstance(v, float) else (type(v), v) for v in values)


def what_is_known(space: Space, history: History, labels: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the prompt's notes on constraints, and on points queued with words."""
    labels, notes = labels or space.names, []
    if space.constraints:
        texts = "\n".join(f"- {text}" for text in space.constraints)
        notes.append(f"Every point must keep these limits:\n{texts}")
        if tuple(labels) != space.names:
            pairs = zip(labels, space.names, strict=True)
            notes.append("There " + ", ".join(f"{name} is {label}" for label, name in pairs) + ".")
    told = [
        t for t in history.trials if t.explanation and t.source == "user" and t.explanation.strip()
    ]
    for trial in told[-_MOST_SAID:]:
        words = " ".join(trial.explanation.split())[:_LONGEST_WORDS].rstrip(".")
        notes.append(f"The point {describe_params(trial.values, space, labels)} is {words}.")
    return tuple(notes)


def point_to_ask(space: Space, params: Any, where: str = "") -> tuple[Value, ...]:
    """Return a point that the user wants evaluated, flat."""
    try:
        values = space.flatten(params)
    except ParameterError as error:
        raise ParameterError(f"{where}{error}") from error
    if broken := space.broken(values):
        texts = ", ".join(f"{text} (by {amount:.3g})" for text, amount in broken.items())
        raise ParameterError(f"{where}the point {short(params)} breaks {texts}")
    return values


def warmup_points(space: Space, warmup: Any) -> tuple[tuple[Value, ...], ...] | None:
    """Return the points that were given as ``warmup=``; ``None`` for a number of them."""
    if isinstance(warmup, str) or not isinstance(warmup, Iterable):
        return None
    return tuple([point_to_ask(space, p, f"warmup[{i}]: ") for i, p in enumerate(warmup)])


class StoredPoints(list[tuple[str, list[Any]]]):
    """Points to start with as a file has them: words, which may repeat, and stored values."""


def start_points(space: Space, start: Any) -> list[tuple[str, tuple[Value, ...]]]:
    """Return the points that were given as ``start=``, each with its words."""
    if isinstance(start, StoredPoints):
        return [(words, space.from_json_values(v)) for words, v in start]
    if isinstance(start, Mapping) and start and set(start) <= set(space.names):
        raise ValueError(
            f"start={short(start)}: got one point; expected a list of points: "
            f"start=[{short(start)}]"
        )
    if isinstance(start, Mapping):
        pairs = list(start.items())
    elif isinstance(start, Iterable) and not isinstance(start, str):
        pairs = [("", params) for params in start]
    else:
        pairs = [(start, None)]
    if not all(isinstance(words, str) for words, _ in pairs) or isinstance(start, str):
        raise ValueError(
            f"start={short(start)}: expected a list of points, or a mapping from words to "
            'points, such as {"the current setting": {...}}'
        )
    return [
        (words, point_to_ask(space, p, f"start[{words or i!r}]: "))
        for i, (words, p) in enumerate(pairs)
    ]


def draw_new(space: Space, seen: set[Hashable], rng: np.random.Generator) -> tuple[Value, ...]:
    """Draw a point that is not in `seen` (if there is one), and add it there."""
    values = space.sample(rng)
    for _ in range(_FALLBACK_DRAWS):
        if space.key(values) not in seen:
            break
        values = space.sample(rng)
    else:
        if len(seen) < space.cardinality < math.inf:
            values = _next_new(space, seen, rng)
    seen.add(space.key(values))
    return values


def draw_fallbacks(
    space: Space, seen: set[Hashable], rng: np.random.Generator, n: int
) -> list[Proposal]:
    """Draw `n` points in the model's place, add them to `seen`, and leave the counting."""
    return [Proposal(draw_new(space, seen, rng), "fallback") for _ in range(n)]


def _next_new(space: Space, seen: set[Hashable], rng: np.random.Generator) -> tuple[Value, ...]:
    """Count up from a random point of a finite space to one that is not in `seen`.

    Takes at most ``len(seen) + 1`` steps; there must be such a point. Under constraints it may
    be far, and after many steps a point that was seen comes back.
    """
    counts = [int(dimension.count) for dimension in space.dimensions]
    at = [int(rng.integers(count)) for count in counts]
    for _ in itertools.count() if not space.constraints else range(len(seen) + _MOST_COUNTED):
        drawn = [d.value(k) for d, k in zip(space.dimensions, at, strict=True)]
        values = space.conform(drawn)
        if space.key(values) not in seen and space.admits(values):
            return values
        for place, count in enumerate(counts):
            at[place] = (at[place] + 1) % count
            if at[place]:
                break
    return space.sample(rng)


def untried(space: Space, seen: Set[Hashable]) -> tuple[tuple[Value, ...], ...]:
    """Return the points of a finite space that are not `seen`, once few are left; else none.

    Few are at most 40, and half of the space. None in a space of at most 40 points, where a
    repeated answer costs few requests.
    """
    count = space.cardinality
    if not _MOST_LEFT < count <= _MOST_COUNTED or count - len(seen) > min(_MOST_LEFT, count / 2):
        return ()
    left = tuple(values for values in space.points() if space.key(values) not in seen)
    return left if len(left) <= _MOST_LEFT else ()


def list_of(space: Space, points: Sequence[tuple[Value, ...]]) -> str:
    """Return the points that are left, for the model to choose one."""
    lines = [describe_params(values, space, space.names) for values in points]
    return "All other points were tried. Choose one of these:\n" + "\n".join(lines)


_REPEATS = 2  # re-evaluations of a finalist
_MOST_FINALISTS, _TRIALS_OF_FINALIST = 3, 10  # maximum, and trials for each finalist


class Finals:
    """The last evaluations of a noisy search, which measure its best few points again.

    The best of many single measurements is a lucky one. With each repeat the noise is known
    better, and `History.rank` takes the point whose mean is good beyond it.
    """

    def __init__(self, finalists: int | Literal["auto"] | None, n_trials: int) -> None:
        self.asked_for = finalists != "auto"
        if finalists == "auto":
            self._count = min(_MOST_FINALISTS, n_trials // _TRIALS_OF_FINALIST)
            self._count = self._count if self._count > 1 else 0
            return
        self._count = whole_number("finalists", 0 if finalists is None else finalists, 0)
        if 2 * _REPEATS * self._count > n_trials:
            raise ValueError(
                f"finalists={finalists}: measured {_REPEATS} times more each, they take more than "
                f"half of {n_trials} evaluations. Expected at most {n_trials // (2 * _REPEATS)}"
            )

    @property
    def most(self) -> int:
        """Evaluations that they take."""
        return _REPEATS * self._count

    def due(self, optimizer: Results[Any], left: int, over: bool) -> bool:
        """Return whether the best points are to be re-evaluated now.

        `left` counts evaluations; `over` says whether the search itself has ended before.
        """
        since = self._since(optimizer.trials)
        if since >= self.most or (since == 0 and left > self.most and not over):
            return False
        return bool(since) or self.asked_for or _is_noisy(optimizer)

    def plan(self, optimizer: Results[Any]) -> list[Trial[Any]]:
        """Return the points to measure again, in order; those done before an interrupt are not."""
        trials = optimizer.trials
        since = self._since(trials)
        before = History(tuple(trials[: len(trials) - since]), (), optimizer.directions)
        best = before.merged(optimizer.space.key).ranked[: self._count]
        return [best[i % len(best)] for i in range(since, self.most)] if best else []

    def _since(self, trials: Sequence[Trial[Any]]) -> int:
        """Count the last trials that measured a point again."""
        kinds = enumerate(trial.kind for trial in reversed(trials))
        return next((i for i, kind in kinds if kind != "finalist"), len(trials))


def _is_noisy(optimizer: Results[Any]) -> bool:
    """Whether repeated evaluations of a point are known to give different rewards."""
    history = optimizer.history
    return history.noisy or any(t.stderr for t in history.complete)
