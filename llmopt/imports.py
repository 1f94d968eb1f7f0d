"""The import of another search: what to record of each of its trials, and the report of it.

A reward belongs to the point at which it was measured, so a row whose point is not in the space is
refused. A row with the origin of a trial that is here is a copy of that trial: the later one of
both counts, see `llmopt.origin`.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from llmopt.errors import LLMOptError, ParameterError
from llmopt.evaluations import Result
from llmopt.events import Withdrawn
from llmopt.from_optuna import violation_of
from llmopt.history import Trial
from llmopt.origin import digest, is_newer, merged
from llmopt.other_search import PARTS, OtherSearch, Row
from llmopt.space import Categorical, Space, Value
from llmopt.space.values import ABSENT
from llmopt.state import State
from llmopt.util.caller import CALLER
from llmopt.util.numbers import spellings
from llmopt.util.text import clean, short

Outcome = Literal[
    "taken",
    "known",  # it is here already
    "completed",  # it was here without some of its parts
    "corrected",  # its source has corrected it since
    "withdrawn here",  # its source has withdrawn it since
    "restored",  # it was withdrawn here with its source, which has given it a result again
    "withdrawn",  # it is not here, or stays here
    "open",  # it has no reward yet
    "refused",
]
_EXPORT = "export the trials (`llmopt status FILE --csv`, or `trials_dataframe()`)"
_OPEN = " (no reward yet; if one failed, write failed in a column `state`)"
_SHOWN = 20
_REMARKS = ("remark", "note", "comment")  # columns that may hold feedback
_OTHERS = (
    *("number", "trial", "state", "source", "explanation", "total_violation"),
    *("prompt_tokens", "completion_tokens"),
)


@dataclass(frozen=True)
class ImportedRow:
    """The outcome of one row."""

    number: int  # from 1
    outcome: Outcome
    reason: str = ""  # why it was refused or is in doubt, or which trial it changed


@dataclass(frozen=True)
class ImportReport:
    """The outcome of the rows of a source."""

    source: str  # its name
    rows: tuple[ImportedRow, ...]
    notes: tuple[str, ...] = ()  # what holds for all rows

    @property
    def counts(self) -> dict[str, int]:
        """The number of rows with each outcome."""
        return dict(Counter(row.outcome for row in self.rows))

    @property
    def taken(self) -> int:
        """The number of trials that were imported."""
        return sum(row.outcome == "taken" for row in self.rows)

    @property
    def all_refused(self) -> bool:
        """Whether there are rows beside withdrawn and open ones, and none could be taken."""
        return {row.outcome for row in self.rows} - {"withdrawn", "open"} == {"refused"}

    def __str__(self) -> str:
        out = {"withdrawn": " (not imported)", "open": _OPEN}
        each = (f"{n} {outcome}{out.get(outcome, '')}" for outcome, n in self.counts.items())
        counts = ", ".join(each) or "none"
        told = [row for row in self.rows if row.reason]
        lines = [f"row {row.number} {row.outcome}: {row.reason}" for row in told[:_SHOWN]]
        if len(told) > _SHOWN:
            lines.append(f"and {len(told) - _SHOWN} more")
        return "\n".join([f"trials of {self.source}: {counts}", *self.notes, *lines])


def read_rows(
    space: Space,
    source: OtherSearch,
    state: State,
    check: Callable[..., Result],
    named: Callable[[int], str],
) -> tuple[list[Result | Withdrawn], tuple[ImportedRow, ...]]:
    """Return what to record, with results checked as by `tell`, and the outcome of each row.

    `named` returns what messages call a trial.

    Raises:
        ParameterError: A parameter has another unit there.
    """
    for name, (there, here) in _other_units(space, source).items():
        if there and here:
            raise ParameterError(
                f"the unit of {name!r} is {there!r} in {source.title}, and {here!r} here, and no "
                f"number is converted: {_EXPORT}, convert them, and import the table"
            )
    rows = _Rows(space, source, state, check, named)
    read = tuple(itertools.starmap(rows.read, enumerate(source.rows, 1)))
    return rows.found, read


def _other_units(space: Space, source: OtherSearch) -> dict[str, tuple[str, str]]:
    """Return the units that differ: those of the source and of the space, by parameter."""
    there, here = (
        {name: getattr(d, "unit", "") for name, d in zip(s.names, s.dimensions, strict=True)}
        for s in (source.space or space, space)
    )
    both = {n: (there[n], here[n]) for n in here if n in there}
    return {n: pair for n, pair in both.items() if len(set(map(spellings, pair))) > 1}


class _Rows:
    """The rows of a source, each of which is a copy of one trial here at most.

    Attributes:
        found: What to record.
    """

    def __init__(
        self,
        space: Space,
        source: OtherSearch,
        state: State,
        check: Callable[..., Result],
        named: Callable[[int], str],
    ) -> None:
        self._space, self._table, self._check, self._named = space, source.table, check, named
        self._own = state.id
        self._same = _same_constraints(space, source)
        self._known = {trial.origin: trial for trial in state.trials if trial.origin}
        self._latest: dict[str, int] = {}  # the number of the row to read, by origin
        self._there = defaultdict[Any, list[Trial]](list)  # by point, those that count
        self._first = defaultdict[str, list[Trial]](list)  # by the digest of their first result
        self._copies: set[int] = set()  # numbers of the trials that are copies of earlier rows
        for number, row in enumerate(source.rows, 1):
            there = self._latest.setdefault(row.origin, number)
            if row.origin and is_newer(row.revisions, source.rows[there - 1].revisions):
                self._latest[row.origin] = number
        for trial in state.trials:
            if trial.state != "withdrawn":
                self._there[space.key(trial.values)].append(trial)
            self._first[trial.origin.rpartition(":")[2]].append(trial)
        self.found: list[Result | Withdrawn] = []

    def read(self, number: int, row: Row) -> ImportedRow:
        """Add what to record of a row, and return its outcome."""
        if row.reward == "" and not row.trouble:
            return ImportedRow(number, "open")
        if row.origin and (latest := self._latest[row.origin]) != number:
            return ImportedRow(number, "known", f"row {latest} is of the same trial")
        trial = self._known.get(row.origin)
        newer = trial is not None and self._is_newer(row, trial)
        if row.withdrawn:
            if trial is not None and newer:
                return self._withdraw(number, row, trial)
            gone = trial is None or trial.state == "withdrawn"
            return ImportedRow(number, "withdrawn" if gone else "known", self._kept(trial, row))
        if trial is not None and not newer:
            return ImportedRow(number, "known", self._kept(trial, row))
        try:
            one = self._result(row)
        except (LLMOptError, TypeError) as error:
            return ImportedRow(number, "refused", str(error))
        if trial is not None:
            return self._follow(number, one, trial)
        trial = next(self._equal(row, one), None)
        if trial is None:
            return self._take(number, row, one)
        self._copies.add(trial.number)
        if trial.state == "withdrawn" or trial.rewards != one.rewards:
            return ImportedRow(number, "known", self._changed(trial))
        if one.rewards is None or one.parts.keys() <= trial.parts.keys():
            return ImportedRow(number, "known")
        point, words = self._space.unflatten(trial.values), {"parts": {**one.parts, **trial.parts}}
        self.found.append(self._check(point, row.reward, **words, replaces=trial.number))
        return ImportedRow(number, "completed")

    def _is_newer(self, row: Row, trial: Trial) -> bool:
        """Return whether a row has further changes, and its trial none that it does not have.

        A trial that was changed here and changed back has none.
        """
        if is_newer(row.revisions, trial.revisions):
            return True
        if trial.base and not _unchanged(trial, trial.base):
            return False
        there, here = ({**each, self._own: 0} for each in (row.revisions, trial.revisions))
        return is_newer(there, here)

    def _result(self, row: Row) -> Result:
        """Return what a row says."""
        if row.trouble:
            raise ParameterError(row.trouble)
        space = self._space
        values = _values_of(space, row, self._table)
        parts = row.words.get("parts", {}).items()
        taken = space.place if self._table else ()  # a parameter may have such a name
        words = {**row.words, "parts": {n: v for n, v in parts if PARTS + n not in taken}}
        if others := {n: v for n, v in row.violated.items() if n not in self._same}:
            words["constraint_violation"] = violation_of(others)
        one = self._check(space.unflatten(values), row.reward, **words)
        if row.origin and row.reward is None:  # without a reason, too
            one = replace(one, feedback=clean(words.get("feedback", "")))
        asked = _asked_of(space, row, one.values)
        return replace(one, instead_of=asked, origin=row.origin, revisions=row.revisions)

    def _equal(self, row: Row, one: Result) -> Iterator[Trial]:
        """Yield the trials that a row may be a copy of, as it says no origin, or they have none.

        They have its point and its rewards, or had them when they were recorded. Those with the
        same parts and words come first.
        """
        there = [t for t in self._there[self._space.key(one.values)] if t.rewards == one.rewards]
        parts = one.parts.keys()
        there.sort(key=lambda t: (len(parts ^ t.parts.keys()), t.feedback != one.feedback))
        first = self._first[digest(self._space.to_json_values(one.values), one.rewards)]
        for trial in (*there, *first):
            if trial.number not in self._copies and (not row.origin or self._came_alone(trial)):
                yield trial

    def _came_alone(self, trial: Trial) -> bool:
        """Return whether a trial was imported without an origin, and has one of this search."""
        return trial.kind == "imported" and trial.origin.partition(":")[0] in ("", self._own)

    def _follow(self, number: int, one: Result, trial: Trial) -> ImportedRow:
        """Make a trial what its source says of it now."""
        had, name = trial.was or trial, self._named(trial.number)
        kept: dict[str, Any] = {"revisions": merged(one.revisions, trial.revisions)}
        kept |= {"data": had.data, "seed": had.seed}  # no source has them, and
        if had.rewards == one.rewards and not one.samples:  # no table has these
            kept["samples"] = had.samples
        self.found.append(replace(one, replaces=trial.number, **kept))
        if trial.was:
            return ImportedRow(number, "restored", name)
        before = trial.values, trial.rewards, trial.feedback, trial.stderr, trial.instead_of
        now = one.values, one.rewards, one.feedback, one.stderr, one.instead_of
        same = before == now and trial.constraint_violation == one.violation
        if same and trial.parts == one.parts:
            return ImportedRow(number, "known")
        if same and trial.parts.items() <= one.parts.items():
            return ImportedRow(number, "completed")
        was = ", ".join(f"{what} {old or 'none'}" for what, _, old in self._unlike(one, trial))
        if trial.rewards != one.rewards or trial.values != one.values:
            was = _shown(trial.rewards)
        if trial.values != one.values:
            was += f" at {short(self._space.labelled(trial.values))}"
        return ImportedRow(number, "corrected", f"{name} had {was}" if was else name)

    def _withdraw(self, number: int, row: Row, trial: Trial) -> ImportedRow:
        """Withdraw a trial that its source has withdrawn."""
        values = trial.values
        with contextlib.suppress(ParameterError):  # of a wider space
            values = _values_of(self._space, row, self._table)
        point = () if values == trial.values else self._space.to_json_values(values)
        about: dict[str, Any] = {"kind": "imported", "values": point}
        about |= {"feedback": clean(str(row.words.get("feedback", "")))}
        about |= {"trial": trial.number, "revisions": merged(row.revisions, trial.revisions)}
        self.found.append(Withdrawn(queued=False, **about))
        return ImportedRow(number, "withdrawn here", self._named(trial.number))

    def _take(self, number: int, row: Row, one: Result) -> ImportedRow:
        """Import a row as a new trial."""
        doubt = doubt_of(self._space, one.values, moved=bool(row.words.get("beyond")))
        there = self._there[self._space.key(one.values)]
        same = any(t.rewards == one.rewards or self._came_alone(t) for t in there)
        if there and (same or not row.origin):  # it may be no further trial
            n, before = there[-1].number, _shown(there[-1].rewards)
            again = f"{self._named(n)} has its point (reward: {before}): this is another "
            again += "measurement. If it corrects that trial, withdraw the new one, and tell it "
            again += f"with {CALLER.get().trial('replaces', n)}"
            doubt = "; ".join(filter(None, [doubt, again]))
        self.found.append(one)
        return ImportedRow(number, "taken", doubt)

    def _changed(self, trial: Trial) -> str:
        done = "withdrawn" if trial.was else "corrected"
        return f"it is {self._named(trial.number)}, which was {done}"

    def _kept(self, trial: Trial | None, row: Row) -> str:
        """Say how a row differs from its trial, which does not follow it."""
        if trial is None or (row.withdrawn and trial.was):
            return ""
        caller, same = CALLER.get(), trial.revisions == row.revisions
        since = not same and is_newer(trial.revisions, row.revisions)
        said = f"{self._changed(trial)} {'since' if since else 'here'}"
        if row.withdrawn:
            wrong = f": if it is wrong, withdraw {caller.trial('trial', trial.number)}"
            said = f"{self._named(trial.number)} still counts here" if same else said
            return said if since else said + wrong
        try:
            unlike = self._unlike(self._result(row), trial)
        except (LLMOptError, TypeError) as error:
            return str(error) if same else said
        each = [  # what a table has no column for is not other there
            f"{what} {there or 'none'} there, {here or 'none'} here"
            for what, there, here in unlike
            if there or what in row.blank or not self._table
        ]
        if same and each:
            said, take = self._named(trial.number), caller.trial("replaces", trial.number)
            return f"{said} differs: {'; '.join(each)}. To take it over, tell it with {take}"
        return "" if same else ": ".join(filter(None, [said, "; ".join(each)]))

    def _unlike(self, one: Result, trial: Trial) -> list[tuple[str, str, str]]:
        """Return the names of what differs, and its texts in a row and in its trial."""
        outcome = ("reward", _shown(one.rewards), _shown(trial.rewards))
        if trial.was:
            return [(*outcome[:2], "withdrawn")]
        names = dict.fromkeys((*trial.parts, *one.parts))
        there, here = (" ".join(clean(each.feedback).split()) for each in (one, trial))
        pairs: list[tuple[str, Any, Any]] = [
            *zip(self._space.names, one.values, trial.values, strict=True),
            ("feedback", there, here),
            *((PARTS + name, one.parts.get(name), trial.parts.get(name)) for name in names),
        ]
        unlike = [(n, _text(a), _text(b)) for n, a, b in pairs if not _alike(a, b)]
        return unlike if _alike(one.rewards, trial.rewards) else [outcome, *unlike]


def _unchanged(trial: Trial, base: Trial) -> bool:
    """Return whether all that an import takes over is equal."""
    said = ("state", "values", "rewards", "feedback", "stderr", "samples", "parts", "instead_of")
    same = all(getattr(trial, name) == getattr(base, name) for name in said)
    return same and _alike(trial.measured_violation, base.measured_violation)


def _shown(rewards: tuple[float, ...] | None) -> str:
    return "failed" if rewards is None else str(rewards[0] if len(rewards) == 1 else rewards)


def _text(value: Any) -> str:
    return "" if value in (None, "") else short(value)


def _alike(one: Any, other: Any) -> bool:
    """Return whether values are equal, but for the digits that a spreadsheet drops."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return all(map(_alike, one, other))
    both = all(isinstance(each, (int, float)) for each in (one, other))
    return math.isclose(one, other, rel_tol=1e-9) if both else bool(one == other)


def _same_constraints(space: Space, source: OtherSearch) -> dict[str, str]:
    """Return the constraints of a study that are constraints of the space, with their texts.

    They have the same violation at each trial, which is not to be counted twice.
    """
    if not space.limits or not any(row.violated for row in source.rows):
        return {}
    there, here = list[Mapping[str, float]](), list[Mapping[str, float]]()
    for row in source.rows:
        with contextlib.suppress(ParameterError):
            here.append(space.broken(_values_of(space, row, source.table)))
            there.append(row.violated)
    amounts = {text: [each.get(text, 0.0) for each in here] for each in here for text in each}
    same = {}
    for name in {name: None for each in there for name in each}:
        values = [each.get(name, 0.0) for each in there]
        for text, own in amounts.items():
            if all(
                math.isclose(*pair, rel_tol=1e-9, abs_tol=1e-9)
                for pair in zip(values, own, strict=True)
            ):
                same[name] = text
    return same


def _asked_of(space: Space, row: Row, measured: tuple[Value, ...]) -> tuple[Value, ...] | None:
    """Return the point that a row was measured in place of, if it is another one of the space."""
    if row.asked is None:
        return None
    whole = Row({**row.params, **row.asked}, None, blank=row.blank)
    try:
        asked = space.check(_values_of(space, whole, table=True))
    except ParameterError:
        return None  # of a wider space
    return None if asked == measured else asked


def _values_of(space: Space, row: Row, table: bool) -> tuple[Value, ...]:
    """Return a row's point."""
    others = [name for name in row.params if name not in space.names]
    if others and not table:
        raise ParameterError(
            f"{others[0]!r} is no parameter of the space: import a table without it if the "
            "reward does not depend on it"
        )
    values: list[Value] = []
    troubles: dict[int, ParameterError] = {}
    for index, (name, dimension) in enumerate(zip(space.names, space.dimensions, strict=True)):
        choices = dimension.choices if isinstance(dimension, Categorical) else ()
        if name not in row.params:
            if name in row.blank and None in choices:
                values.append(None)
                continue
            if not space.condition(index):
                add = "add it to" if table else f"{_EXPORT}, add it as a column, and import"
                raise ParameterError(f"no value for {name!r}: {add} the table")
            values.append(ABSENT)  # `check` says where it is needed
            continue
        value = row.params[name]
        own: Any = ABSENT
        try:
            if isinstance(value, str) and value not in choices:
                value = dimension.parse(value)
            own = dimension.check(value, measured=True)
            fits = isinstance(dimension, Categorical) or dimension.low <= own <= dimension.high
            value = dimension.check(own, measured=fits or bool(row.words.get("beyond")))
        except ParameterError as error:
            troubles[index] = error
            if table and own is not ABSENT:  # it may have been measured there
                troubles[index] = ParameterError(
                    f"{str(error).partition('; the nearest')[0]}. If it was measured there, give "
                    "the row a column `instead_of` with the point that was meant, or any text"
                )
        values.append(value)
    there = space.conform(values)
    for index, trouble in troubles.items():
        if there[index] is not ABSENT:  # what the point does not have is not looked at
            raise trouble
    return there


def doubt_of(
    space: Space, values: tuple[Value, ...], moved: bool, former: Collection[Any] = ()
) -> str:
    """Say why an evaluated point could not have been proposed; else nothing.

    Of one that was `moved` away from a proposed point, only numbers beyond a bound are named. For
    `former` see `State.former`.
    """
    wrong = "" if moved else space.outside(values, former)
    return wrong or space.deviation(values, steps=not moved)


def notes_on(source: OtherSearch, task: Mapping[str, Any] | None, space: Space) -> tuple[str, ...]:
    """Return notes that apply to all rows of a source."""
    notes = []
    if source.task is not None and source.task != (task or {}):
        notes.append(
            f"their rewards are of another task ({short(source.task)}, here {short(task or {})}): "
            "whether they can be compared is for you to say"
        )
    same = _same_constraints(space, source)
    for name, text in same.items():
        notes.append(f"constraint {name!r} of the study is {text!r} here, and counts once")
    stored = {name for row in source.rows for name in row.violated}
    if space.limits and (others := sorted(stored - same.keys())):
        notes.append(
            f"constraints of the study count beside those of this space: {', '.join(others)}"
        )
    for name, units in _other_units(space, source).items():
        one, other = (repr(unit) if unit else "none" for unit in units)
        notes.append(f"the unit of {name!r} is {one} there, {other} here: numbers stay as they are")
    if source.table:
        names = dict.fromkeys(name for row in source.rows for name in row.params)
        mine = (*space.names, *_OTHERS)
        left = [n for n in names if n not in mine and not n.startswith(PARTS)]
        if left:
            said = f"columns that are no parameters: {', '.join(left[:_SHOWN])}"
            notes.append(f"{said} (a part of the reward is named {PARTS}NAME)")
        usual = {n.lower(): n for n in (*space.names, "reward", "state", "feedback", "origin")}
        for one, name in [
            (n, usual[n.strip().lower()]) for n in left if n.strip().lower() in usual
        ]:
            notes.append(f"column {short(one)}: name it {name}")
        if remarks := [n for n in left if n.lower().rstrip("s") in _REMARKS]:
            notes.append(f"column {short(remarks[0])}: name it feedback to keep its text")
        there = {*names, *(name for row in source.rows for name in row.blank)}
        lacking = [
            n for i, n in enumerate(space.names) if n not in there and not space.condition(i)
        ]
        if lacking and source.rows:
            notes.append(f"parameters without a column: {', '.join(lacking[:_SHOWN])}")
    return tuple(notes)
