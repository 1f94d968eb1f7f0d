"""What was changed in a search: the results of trials, and which points are allowed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from llmopt.events import Corrected, Event, Started, Withdrawn
from llmopt.history import Proposal, Trial, each_error
from llmopt.space.fixed import Fixed
from llmopt.state import State
from llmopt.util.text import counted

NONE = "none"
"""The text of what a trial does not have."""

_WITHDRAWN = "withdrawn"
_MOST_NAMED = 5  # constraints
_KINDS = ("reward", "parameter", "part", "other", "feedback")  # in the order of showing
_FEEDBACK = ("feedback", "feedback")


class Field(NamedTuple):
    """What a trial had and has under a name; `kind` tells a part from a parameter of its name."""

    kind: str
    name: str
    old: str
    new: str


@dataclass(frozen=True)
class Change:
    """A change of a trial or of the allowed points, or a point that was withdrawn.

    Attributes:
        of: Number of the trial, from 0; the point, such as ``"p2"``; or ``"candidates"`` or
            ``"constraints"``.
        fields: What differs.
        words: The reason of a withdrawal; what was removed, or followed.
    """

    of: int | str
    fields: tuple[Field, ...] = ()
    words: str = ""


def changes_of(steps: Iterable[tuple[State, Event, State]]) -> Iterator[Change]:
    """Yield the changes in the steps of a journal, in their order."""
    for before, event, after in steps:
        number = event.trial if isinstance(event, Withdrawn) else None
        number = event.number if isinstance(event, Corrected) else number
        if number is not None:
            old, new = (_facts(state, state.trials[number]) for state in (before, after))
            keys = sorted({**old, **new}, key=_place)
            pairs = ((key, old.get(key, NONE), new.get(key, NONE)) for key in keys)
            fields = tuple(Field(*key, had, has) for key, had, has in pairs if had != has)
            yield Change(number, fields, event.feedback if isinstance(event, Withdrawn) else "")
        elif isinstance(event, Withdrawn) and not event.queued:
            yield from _dropped(before, after, event.feedback)
        elif isinstance(event, Started) and before.started is not None:
            yield from _allowed(before, before.started, after, event)


def chains_of(changes: Sequence[Change]) -> tuple[str, list[str]]:
    """Return what the corrections of one trial replaced: in a line, and its former feedback."""
    rows: dict[tuple[str, str], list[str]] = {}
    for kind, name, *pair in (field for change in changes for field in change.fields):
        had, has = ([] if kind == "reward" and t == _WITHDRAWN else [t] for t in pair)
        rows.setdefault((kind, name), had).extend(has)
    chains = {key: [t for t, _ in groupby(rows[key])] for key in sorted(rows, key=_place)}
    former = [text for text in chains.pop(_FEEDBACK, [])[:-1] if text != NONE]
    shown = ((name, " → ".join(texts)) for (_, name), texts in chains.items() if len(texts) > 1)
    return ", ".join(f"{name} {text}".lstrip() for name, text in shown), former


def _dropped(before: State, after: State, why: str) -> Iterator[Change]:
    """Yield the points that were withdrawn before they had a result."""
    space: Any = after.space
    left = {id(point) for point in (*after.pending, *after.queue, *after.partial)}
    said = "withdrawn before it had a result" + (f": {why}" if why else "")
    points: tuple[Proposal | Fixed, ...] = (*before.pending, *before.queue, *before.partial)
    for point in points:
        asked = 0 if isinstance(point, Fixed) else point.asked
        if id(point) in left or not (asked or why):
            continue
        named = point.named() if isinstance(point, Fixed) else space.named(point.values)
        text = ", ".join(f"{n} = {space.format(space.place[n], v)}" for n, v in named.items())
        yield Change(f"p{asked}" if asked else text, (), said)


def _place(key: tuple[str, str]) -> int:
    return _KINDS.index(key[0])


def _facts(state: State, trial: Trial[Any]) -> Mapping[tuple[str, str], str]:
    """Return what is recorded of a trial as texts, by kind and name."""
    space: Any = state.space
    told, several = trial.was or trial, len(state.directions) > 1
    numbers = [f"{v:.6g}" for v in told.rewards or ()] or ["failed"] * len(state.directions)
    if trial.was:
        numbers = [_WITHDRAWN] * len(numbers)
    names = state.metrics or [f"objective {i}" * several for i in range(1, len(numbers) + 1)]
    facts = {("reward", name): text for name, text in zip(names, numbers, strict=True)}
    point = space.named(trial.values)
    facts |= {("parameter", n): space.format(space.place[n], value) for n, value in point.items()}
    facts |= {("part", name): f"{value:.6g}" for name, value in told.parts.items()}
    for name, error in zip(names, each_error(told.stderr, len(numbers)), strict=True):
        if error is not None:
            facts["other", "standard error" + f" of {name}" * several] = f"{error:.3g}"
    if told.measured_violation:
        facts["other", "violation"] = f"{told.measured_violation:.3g}"
    return {**facts, **({_FEEDBACK: told.feedback} if told.feedback else {})}


def _allowed(before: State, there: Started, after: State, now: Started) -> Iterator[Change]:
    """Yield the changes of candidates and constraints."""
    tables = [e.identity.get("space", {}).get("candidates") for e in (there, now)]
    if tables[0] != tables[1]:
        old, new = (NONE if t is None else f"{t['size']:,} allowed rows" for t in tables)
        other = "other allowed rows" * (old == new)
        yield Change("candidates", () if other else (Field("", "", old, new),), other)
    texts = [dict.fromkeys(limit.text for limit in state.limits) for state in (before, after)]
    if texts[0] == texts[1]:
        return
    lost, won = ([t for t in texts[i] if t not in texts[1 - i]] for i in (0, 1))
    words = [
        f"{verb}: {_listed(some)}" for verb, some in (("removed", lost), ("added", won)) if some
    ]
    broken = [{t.number for t in s.trials if t.constraint_violation > 0} for s in (before, after)]
    for numbers, state in (
        (broken[1] - broken[0], "infeasible"),
        (broken[0] - broken[1], "feasible"),
    ):
        words += [f"{counted(len(numbers), 'trial')} became {state}"] if numbers else []
    yield Change("constraints", (), "; ".join(words))


def _listed(texts: Sequence[str]) -> str:
    return ", ".join(texts) if len(texts) <= _MOST_NAMED else f"{len(texts):,}"
