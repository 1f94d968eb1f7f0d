"""The import of another search: what to record of each of its trials, and the report of it.

A reward belongs to the point at which it was measured, so a row whose point is not in the space is
refused.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from llmopt.errors import LLMOptError, ParameterError
from llmopt.evaluations import Result
from llmopt.events import Corrected, Event, Withdrawn
from llmopt.history import Trial
from llmopt.other_search import PARTS, OtherSearch, Row, former, results_of
from llmopt.space import Categorical, Space, Value
from llmopt.space.values import ABSENT, as_number
from llmopt.util.caller import CALLER
from llmopt.util.text import clean, short

Outcome = Literal[
    "taken",
    "known",  # it is here already
    "completed",  # it was here without some of its parts
    "corrected",  # its source had the reward that is here before a correction
    "withdrawn here",  # its source withdrew it after it was imported
    "restored",  # so it did, and gave it a result again
    "withdrawn",  # it is not here
    "refused",
]
_Likeness = Literal[  # of a trial here to a row; the best one decides
    "equal",
    "wrong",  # it has a reward from before a correction in the source
    "void",  # so it had, and was withdrawn with its source
    "changed",  # one of both has or had a reward that the other had
    "gone",  # so they have, and it was withdrawn
]
_SHOWN = 20
_REMARKS = ("remark", "note", "comment")  # columns that may hold feedback
_OTHERS = (
    *("number", "trial", "state", "source", "explanation"),
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
        """Whether there are rows beside withdrawn ones, and none could be taken."""
        return {row.outcome for row in self.rows} - {"withdrawn"} == {"refused"}

    def __str__(self) -> str:
        out = {"withdrawn": " (not imported)"}
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
    trials: Sequence[Trial],
    check: Callable[..., Result],
    named: Callable[[int], str],
    changed: Collection[int],
) -> tuple[list[Result | Withdrawn], tuple[ImportedRow, ...]]:
    """Return what to record, with results checked as by `tell`, and the outcome of each row.

    `named` returns what messages call a trial. The trials with the numbers `changed` were corrected
    or withdrawn here.
    """
    copies, left = _Copies(space, source, trials, check, named, changed), []
    for number, row in enumerate(source.rows, 1):
        if row.withdrawn:
            copies.leave(number, row)
            continue
        try:
            left.append((number, row, *copies.read(row)))
        except (LLMOptError, TypeError) as error:
            copies.rows[number] = ImportedRow(number, "refused", str(error))
    left.sort(
        key=lambda each: bool(each[1].former)
    )  # a trial that is equal to two is the older one
    for likeness in get_args(_Likeness):
        left = [each for each in left if not copies.match(likeness, *each)]
    for number, _, one, words in left:
        copies.take(number, one, bool(words.get("beyond")))
    copies.withdraw()
    found, rows = copies.found, copies.rows
    return [found[n] for n in sorted(found)], tuple(rows[n] for n in sorted(rows))


class _Copies:
    """The trials that are here, each of which is the copy of one row at most.

    Attributes:
        rows: The outcome of each row by its number.
        found: What to record of a row.
    """

    def __init__(
        self,
        space: Space,
        source: OtherSearch,
        trials: Sequence[Trial],
        check: Callable[..., Result],
        named: Callable[[int], str],
        changed: Collection[int],
    ) -> None:
        self._space, self._source, self._check, self._changed = space, source, check, changed
        self._named = named
        self._here = defaultdict[Any, list[Trial]](list)
        self._gone = defaultdict[Any, list[Trial]](list)  # withdrawn
        for trial in trials:
            (self._gone if trial.was else self._here)[space.key(trial.values)].append(trial)
        self._void: dict[int, tuple[Row, list[Trial]]] = {}  # rows to withdraw, if they are here
        self.rows: dict[int, ImportedRow] = {}
        self.found: dict[int, Result | Withdrawn] = {}

    def leave(self, number: int, row: Row) -> None:
        """Omit a withdrawn row, and see whether its copy is withdrawn."""
        self.rows[number] = ImportedRow(number, "withdrawn")
        try:
            key = self._space.key(_values_of(self._space, row, self._source.table))
        except ParameterError:
            return  # its point is of a wider space
        gone = self._gone[key]
        if copy := next((t for t in gone if self._shares(t, row.former)), None):
            gone.remove(copy)
        else:
            self._void[number] = row, self._here[key]

    def read(self, row: Row) -> tuple[Result, dict[str, Any]]:
        """Return a row's result, and the arguments of `tell` that it is of."""
        if row.trouble:
            raise ParameterError(row.trouble)
        space, table = self._space, self._source.table
        values = _values_of(space, row, table)
        parts = row.words.get("parts", {}).items()
        taken = space.place if table else ()  # a parameter may have such a name
        words = {**row.words, "parts": {n: v for n, v in parts if PARTS + n not in taken}}
        total, broken = as_number(words.get("constraint_violation")), space.broken(values).values()
        if self._source.totals and broken and total is not None and total >= 0:
            words["constraint_violation"] = max(0.0, total - sum(broken))
        one = self._check(space.unflatten(values), row.reward, **words)
        return replace(one, instead_of=_asked_of(space, row, one.values)), words

    def _like(self, likeness: _Likeness, row: Row, one: Result) -> list[Trial]:
        """Return the trials with a likeness to a row, best first."""
        key, own = self._space.key(one.values), self._changed
        there, gone = self._here[key], self._gone[key]
        match likeness:
            case "equal":
                old = {rewards for rewards in row.former if rewards and one.rewards is None}
                if any(t.rewards in old for t in there):
                    return []  # a former reward says more than that both have failed
                equal = [t for t in there if t.rewards == one.rewards]
                parts = one.parts.keys()
                equal.sort(key=lambda t: (len(parts ^ t.parts.keys()), t.feedback != one.feedback))
                return equal
            case "wrong":  # unless this search undid what the source did
                wrong = [t for rewards in row.former for t in there if t.rewards == rewards]
                return [t for t in wrong if t.number not in own or one.rewards not in former(t)]
            case "void":
                return [t for t in gone if t.number not in own and results_of(t)[0] in row.former]
            case _:
                results = {one.rewards, *row.former}
                some = there if likeness == "changed" else gone
                return [t for t in some if self._shares(t, results)]

    def _shares(self, trial: Trial, results: Collection[Any]) -> bool:
        """Return whether a trial has or had one of some results; a failure counts of changed ones.

        Of all others, it may be another failure at the same point.
        """
        known = trial.number in self._changed
        return any(one in results for one in results_of(trial) if known or one is not None)

    def match(
        self, likeness: _Likeness, number: int, row: Row, one: Result, words: Mapping[str, Any]
    ) -> bool:
        """Return whether a trial with a likeness is the copy of a row, and have it follow the row.

        An equal trial makes the row known, or gets the parts that it lacks. One with a reward from
        before a correction in the source is corrected, and one that was withdrawn there restored.
        """
        trial = next(iter(self._like(likeness, row, one)), None)
        if trial is None:
            return False
        (self._gone if trial.was else self._here)[self._space.key(one.values)].remove(trial)
        had, n = (trial.was or trial).parts, trial.number
        merged = {**one.parts, **had}
        outcome: Outcome = "known"
        reason = ""
        if likeness == "equal" and one.rewards is not None and len(merged) > len(had):
            outcome, words = "completed", {"parts": merged}
        elif likeness == "wrong":
            was = "failed" if trial.rewards is None else f"had {trial.reward}"
            outcome, reason = "corrected", f"{self._named(n)} {was}"
        elif likeness == "void":
            outcome, reason = "restored", self._named(n)
        elif likeness != "equal":
            changed = "withdrawn" if trial.was else "corrected"
            reason = f"it is {self._named(n)}, which was {changed}"
        self.rows[number] = ImportedRow(number, outcome, reason)
        if outcome != "known":
            words = {**words, "parts": {**had, **words["parts"]}, "replaces": n}
            point = self._space.unflatten(trial.values)
            self.found[number] = self._check(point, row.reward, **words)
        return True

    def take(self, number: int, one: Result, moved: bool) -> None:
        """Import a row as a new trial."""
        doubt = doubt_of(self._space, one.values, moved=moved)
        there = self._here[self._space.key(one.values)]
        if there and self._source.table:  # it may be a correction
            n, before = there[-1].number, there[-1].reward
            again = f"{self._named(n)} has its point with reward {before}: this is another "
            again += "measurement. If it corrects that trial, withdraw the new one, and tell it "
            again += f"with {CALLER.get().trial('replaces', n)}"
            doubt = "; ".join(filter(None, [doubt, again]))
        self.rows[number] = ImportedRow(number, "taken", doubt)
        self.found[number] = one

    def withdraw(self) -> None:
        """Withdraw the imported trials that are copies of withdrawn rows alone."""
        for number, (row, there) in self._void.items():
            same = [t for t in there if _is_like(t, row)]
            former = [t for rewards in row.former for t in same if t.rewards == rewards]
            copies = [t for t in former if t.kind == "imported"]
            followed = [t for t in copies if t.number not in self._changed]
            trial = next(iter(followed or copies or same), None)
            if trial is None:
                continue
            there.remove(trial)
            n, label = trial.number, self._named(trial.number)
            if followed:
                why = clean(str(row.words.get("feedback", "")))
                self.found[number] = Withdrawn((), False, trial=n, feedback=why, kind="imported")
                self.rows[number] = ImportedRow(number, "withdrawn here", label)
            else:
                change = "changed" if n in self._changed else "recorded"
                reason = f"{label} has its result, or had it, and was {change} here: if it is "
                reason += f"wrong, withdraw {CALLER.get().trial('trial', n)}"
                self.rows[number] = ImportedRow(number, "withdrawn", reason)


def changed_here(events: Iterable[Event]) -> set[int]:
    """Return the numbers of the trials whose last correction or withdrawal is of no import."""
    last = dict[int | None, str]()
    for event in events:
        if isinstance(event, Corrected):
            last[event.number] = event.kind
        elif isinstance(event, Withdrawn):
            last[event.trial] = event.kind
    return {n for n, kind in last.items() if n is not None and kind == "search"}


def _is_like(trial: Trial, row: Row) -> bool:
    """Return whether a trial has or had the result of a withdrawn row; failures differ by words."""
    if trial.rewards is None and not any(trial.old_rewards):
        return None in row.former and trial.feedback.endswith(row.said or "no reward")
    return any(rewards in row.former for rewards in (trial.rewards, *trial.old_rewards) if rewards)


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
                raise ParameterError(f"no value for {name!r}: add it to the table")
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
    if source.table:
        names = dict.fromkeys(name for row in source.rows for name in row.params)
        mine = (*space.names, *_OTHERS)
        left = [n for n in names if n not in mine and not n.startswith(PARTS)]
        if left:
            said = f"columns that are no parameters: {', '.join(left[:_SHOWN])}"
            notes.append(f"{said} (a part of the reward is named {PARTS}NAME)")
        if remarks := [n for n in left if n.lower().rstrip("s") in _REMARKS]:
            notes.append(f"column {short(remarks[0])}: name it feedback to keep its text")
        there = {*names, *(name for row in source.rows for name in row.blank)}
        lacking = [
            n for i, n in enumerate(space.names) if n not in there and not space.condition(i)
        ]
        if lacking and source.rows:
            notes.append(f"parameters without a column: {', '.join(lacking[:_SHOWN])}")
    return tuple(notes)
