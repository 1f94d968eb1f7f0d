"""Points of a search that no model proposes: those to begin with, random ones, the untried ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from llmopt.errors import LLMOptError, ParameterError
from llmopt.events import Queued
from llmopt.history import History, Proposal
from llmopt.prompt.answer_parts import notes_of
from llmopt.prompt.describe import MAX_NOTE, describe_params, in_one_line
from llmopt.space import Space, Value
from llmopt.space.fixed import Fixed
from llmopt.state import State
from llmopt.util.caller import CALLER
from llmopt.util.text import ended, short

_FALLBACK_DRAWS = 100
_MOST_LEFT = 40  # untried points of a finite space that are listed for the model
_MOST_SAID = 20  # points whose words are shown
_LONGEST_WORDS = 300  # characters of them
_MOST_COUNTED = 10_000  # points of a space that are gone through to find them


def what_is_known(space: Space, history: History, labels: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the prompt's notes on constraints, and on points queued or withdrawn with words."""
    labels, notes = labels or space.names, []
    if space.candidates is not None:
        notes.append(space.candidates.words(labels))
    if space.constraints:
        texts = "\n".join(f"- {text}" for text in space.constraints)
        notes.append(f"Every point must keep these limits:\n{texts}")
        if tuple(labels) != space.names:
            pairs = zip(labels, space.names, strict=True)
            notes.append("There " + ", ".join(f"{name} is {label}" for label, name in pairs) + ".")
    described = [t for t in history.trials if t.source == "user" and t.explanation.strip()]
    for trial in described[-_MOST_SAID:]:
        words = " ".join(trial.explanation.split())[:_LONGEST_WORDS].rstrip(".")
        notes.append(f"The point {describe_params(trial.values, space, labels)} is {words}.")
    for values, why in history.dropped[-_MOST_SAID:]:
        words = f"was withdrawn before it had a result: {in_one_line(why, _LONGEST_WORDS)}"
        notes.append(f"The point {describe_params(values, space, labels)} {ended(words)}")
    return tuple(notes)


def left_out(proposals: Iterable[Proposal]) -> tuple[str, ...]:
    """Return the prompt's note on points of answers that were left out, while others wait."""
    texts = [notes_of(p.explanation).dropped for p in proposals if p.source == "llm"]
    said = "; ".join(in_one_line(text, MAX_NOTE) for text in texts if text)
    return (f"Left out of your last answer: {said}",) if said else ()


def point_to_ask(space: Space, params: Any, where: str = "") -> tuple[Value, ...]:
    """Return a point that the user wants evaluated, flat."""
    try:
        values = space.flatten(params)
    except ParameterError as error:
        raise ParameterError(f"{where}{error}") from error
    if broken := space.breach(values):
        raise ParameterError(f"{where}the point {short(params)} breaks {broken}")
    if space.candidates is not None:
        space.candidates.check_loaded(f"{where}the point {short(params)}")
        if space.candidates.match(values) != values:
            raise ParameterError(f"{where}{space.candidates.complaint(values)}")
    return values


def warmup_points(space: Space, warmup: Any) -> tuple[tuple[Value, ...], ...] | None:
    """Return the points that were given as ``warmup=``; ``None`` for a number of them."""
    if isinstance(warmup, str) or not isinstance(warmup, Iterable):
        return None
    if isinstance(warmup, StoredPoints):
        return tuple([space.from_json_values(values) for _, values in warmup])
    return tuple([point_to_ask(space, p, f"warmup[{i}]: ") for i, p in enumerate(warmup)])


class StoredPoints(list[tuple[str, list[Any]]]):
    """Points as a file has them: words, which may repeat, and stored values.

    They were candidates when the search began, and need not be any more.
    """


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


def sample_new(
    space: Space, seen: set[Hashable], rng: np.random.Generator, fixed: Fixed | None = None
) -> tuple[Value, ...]:
    """Sample a point that is not in `seen` (if there is one) and has the fixed values; add it."""
    inside, tried = (space, seen) if fixed is None else (fixed.inside, fixed.seen(seen))
    values = _sample_new(inside, tried, rng)
    seen.add(space.key(values))
    return values


def sample_fallbacks(
    space: Space,
    seen: set[Hashable],
    rng: np.random.Generator,
    n: int,
    fixed: Fixed | None = None,
) -> list[Proposal]:
    """Sample `n` points in the model's place, and add them to `seen`."""
    return [Proposal(sample_new(space, seen, rng, fixed), "fallback") for _ in range(n)]


def _sample_new(space: Space, seen: Set[Hashable], rng: np.random.Generator) -> tuple[Value, ...]:
    if space.rows is not None:
        return space.rows.sample(rng, seen)
    for _ in range(_FALLBACK_DRAWS + 1):
        if space.key(values := space.sample(rng)) not in seen:
            return values
    if space.cardinality < math.inf and space.tried(seen) < space.cardinality:
        return _next_new(space, seen, rng)
    return values


def _next_new(space: Space, seen: Set[Hashable], rng: np.random.Generator) -> tuple[Value, ...]:
    """Count up from a random point of a finite space to one that is not in `seen`.

    Takes at most ``len(seen) + 1`` steps; there must be such a point. Under constraints it may
    be far, and after many steps a point that was seen comes back.
    """
    counts = [int(dimension.count) for dimension in space.dimensions]
    at = [int(rng.integers(count)) for count in counts]
    limited = space.constraints or space.candidates is not None
    for _ in range(len(seen) + _MOST_COUNTED) if limited else itertools.count():
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


def lost_rows(space: Space, file: Any, proposals: Sequence[Proposal]) -> list[str]:
    """Name the points whose rows left a file of candidates while the model was asked."""
    table = space.candidates
    assert table is not None
    try:
        lost = table.lost(file, [p.values for p in proposals])
    except LLMOptError as error:
        return [cannot_be_used(file, error)]
    why = f"is no {table.row} any more"
    return [not_allowed(space, p, why) for p in proposals if p.values in lost]


def not_allowed(space: Space, proposal: Proposal, why: str) -> str:
    """Say that a point became impossible while the model was asked."""
    point = short(space.labelled(proposal.values))
    return f"p{proposal.asked}, {point}, {why}: withdraw it, and ask again"


def cannot_be_used(file: Any, error: Exception) -> str:
    """Say that points cannot be compared with a file that was changed."""
    return f"{file} changed while the model was asked, and cannot be used: {error}"


def place_of(state: State, event: Queued) -> str:
    """Say where a point that is to be queued is already; empty if it is new."""
    if event.fixed:
        return "is queued already" * any(p.to_json() == event.fixed for p in state.partial)
    key = state.space.key
    point = key(state.space.from_json_values(event.values))
    there = [
        f"is trial {CALLER.get().number(t.number)}"
        for t in state.trials
        if t.state == "complete" and key(t.values) == point
    ]
    for place, proposals in (("pending", state.pending), ("queued", state.queue)):
        there += [f"is {place} already" for p in proposals if key(p.values) == point]
    return there[-1] if there else ""
