"""Trials of an earlier search, read from a storage file, an Optuna study or a table.

The report has the outcome of each row. A reward belongs to the point at which it was measured, so a
row whose point is not in the space is refused.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from llmopt.errors import LLMOptError, ParameterError, StorageError
from llmopt.evaluations import Result
from llmopt.events import Corrected, Event, Withdrawn
from llmopt.from_optuna import (
    note_of,
    parts_of,
    stderr_of,
    text_of,
    told_of,
    violated,
    violation_of,
)
from llmopt.history import Direction, Trial
from llmopt.resume_check import stored_state
from llmopt.space import Categorical, Space, Value
from llmopt.space.values import ABSENT, as_number
from llmopt.util.arguments import finite
from llmopt.util.caller import CALLER
from llmopt.util.files import read_json, read_table
from llmopt.util.text import a_type, clean, short

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
_PREFIX = "params_"  # of a parameter's column in tables of `trials_dataframe`
_PARTS = "parts_"  # of a column of a part of the reward
_WORDS = ("feedback", "stderr", "constraint_violation", "samples")
_STATES = ("complete", "failed", "pruned", "withdrawn")
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


@dataclass
class Row:
    """One trial of a source: its parameters by name, and the arguments of `tell`."""

    params: dict[str, Any]  # texts where the source is a text
    reward: Any  # a number, a tuple of them, or ``None`` for a failed trial
    words: dict[str, Any] = field(default_factory=dict)  # further arguments of `tell`
    trouble: str = ""  # why it is no trial, if it is none
    blank: frozenset[str] = frozenset()  # columns whose cell is missing in this row
    withdrawn: bool = False  # it never happened
    former: tuple[Any, ...] = ()  # see `_former`; of a withdrawn trial with those that it had last
    asked: Mapping[str, Any] | None = None  # parameters of the point that it was instead of
    said: str = ""  # the feedback of a withdrawn trial, whose `words` say why it was withdrawn


@dataclass
class OtherSearch:
    """Trials to import."""

    title: str  # for messages
    rows: list[Row]
    directions: tuple[str, ...] | None = None  # of the search that they are of, if it says so
    task: Mapping[str, Any] | None = None  # what their rewards are of, if it says so
    table: bool = False  # whether columns that are no parameters may be skipped
    totals: bool = True  # whether violations include those of the space, which `tell` adds


def read_source(
    source: Any, directions: tuple[Direction, ...], names: Sequence[str] = ()
) -> OtherSearch:
    """Read trials of the same direction."""
    found = _read_source(source, names or [str(i) for i in range(len(directions))])
    if found.directions is not None and found.directions != directions:
        raise ParameterError(
            f"{found.title} is of a search with direction {found.directions}, and this one "
            f"has {directions}: their rewards do not compare"
        )
    return found


def _read_source(source: Any, objectives: Sequence[str]) -> OtherSearch:
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if path.suffix == ".csv":
            columns = read_table(path)
            rows = zip(*columns.values(), strict=True)
            cells = [dict(zip(columns, row, strict=True)) for row in rows]
            return _of_table(str(path), cells, objectives)
        if "://" in str(source):
            raise StorageError(
                "got the address of a database: expected a storage file of llmopt. For an Optuna "
                "study, load it: "
                "import_trials(optuna.load_study(study_name=NAME, storage=ADDRESS)), with "
                "ADDRESS such as 'sqlite:///study.db'"
            )
        return _of_storage(path)
    if hasattr(source, "trials") and hasattr(source, "directions"):
        return _of_study(source)
    if hasattr(source, "to_dict") and hasattr(source, "columns"):
        source = source.to_dict("records")
    if isinstance(source, Iterable) and not isinstance(source, Mapping):
        table = list(source)
        if all(isinstance(row, Mapping) for row in table):
            return _of_table("the table", table, objectives)
    raise TypeError(
        f"got {a_type(source)}: expected the path of a storage file or a CSV file, an "
        "Optuna study, a DataFrame, or a list of dictionaries such as "
        '{"x": 0.5, "reward": 1.0}'
    )


def _of_storage(path: Path) -> OtherSearch:
    state = stored_state(path)
    assert isinstance(state.space, Space)
    rows = [_of_trial(trial, state.space) for trial in state.trials]
    options = state.started.identity["options"] if state.started else {}
    return OtherSearch(str(path), rows, state.directions, options.get("task"), totals=False)


def _of_trial(trial: Trial, space: Space) -> Row:
    words: dict[str, Any] = {"feedback": trial.feedback, "stderr": trial.stderr}
    words |= {"samples": trial.samples, "parts": trial.parts}
    words["constraint_violation"] = trial.measured_violation  # `tell` adds that of the space
    moved = trial.instead_of is not None  # or corrected, or imported from where it was
    words["beyond"] = moved or bool(space.deviation(trial.values, steps=False))
    asked = space.named(trial.instead_of) if trial.instead_of else None
    was = trial.was
    return Row(
        space.named(trial.values),
        trial.reward,
        words,
        former=_results(trial) if was else _former(trial),
        asked=asked,
        withdrawn=trial.state == "withdrawn",
        said=was.feedback if was else "",
    )


def _former(trial: Trial) -> tuple[Any, ...]:
    """Return the rewards of a trial before corrections, latest first; ``None`` where it failed."""
    return tuple(rewards or None for rewards in trial.old_rewards[::-1])


def _results(trial: Trial) -> tuple[Any, ...]:
    """Return the rewards that a trial has or had, latest first; ``None`` where it failed."""
    last = trial.was or trial
    return (last.rewards, *_former(last))


def _of_study(study: Any) -> OtherSearch:
    rows = []
    for trial in study.trials:
        state = trial.state.name
        if state in ("COMPLETE", "FAIL", "PRUNED"):
            values: Any = tuple(trial.values) if state == "COMPLETE" else None
            gone = bool(note_of(trial.user_attrs, "withdrawn"))
            said = "" if values or gone else f"{state.lower()} in the study"
            words = _words_of(trial.user_attrs, said)
            words["constraint_violation"] = violation_of(violated(trial))
            words["parts"] = parts_of(trial.user_attrs)
            asked = note_of(trial.user_attrs, "instead_of")
            words["beyond"] = (asked or note_of(trial.user_attrs, "deviation")) is not None
            reward = values[0] if values and len(values) == 1 else values
            asked = asked if isinstance(asked, Mapping) else None
            old = _old_of(trial.user_attrs)
            old = ((values,) if values else old or (None,)) if gone else old
            row = Row(dict(trial.params), reward, words, withdrawn=gone, former=old, asked=asked)
            rows.append(replace(row, said=text_of(note_of(trial.user_attrs, "old_feedback"))))
    directions = tuple(direction.name.lower() for direction in study.directions)
    return OtherSearch(f"the study {study.study_name!r}", rows, directions)


def _old_of(attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the rewards before corrections of a trial that `to_optuna` wrote, latest first."""
    if note_of(attributes, "evaluations"):
        return ()  # they are of one measurement, and its reward is the mean of several
    try:
        old = [tuple(map(float, each)) for each in note_of(attributes, "old_values") or ()]
    except (TypeError, ValueError):
        return ()
    return tuple(rewards or None for rewards in old[::-1])


def _words_of(attributes: Mapping[str, Any], state: str = "") -> dict[str, Any]:
    """Return what the objective left about an Optuna trial, as arguments of `tell`."""
    remarks = [state, *map(text_of, told_of(attributes, "feedback"))]
    words = {"feedback": "; ".join(filter(None, remarks)), "stderr": stderr_of(attributes)}
    return {name: value for name, value in words.items() if value not in ("", None)}


def _of_table(
    title: str, table: Sequence[Mapping[Any, Any]], objectives: Sequence[str]
) -> OtherSearch:
    return OtherSearch(title, [_of_row(row, objectives) for row in table], table=True)


def _of_row(row: Mapping[Any, Any], objectives: Sequence[str]) -> Row:
    """Read a row of a table, whose columns are those of `trials_dataframe`, or plain names."""
    row = {str(name): value for name, value in row.items()}
    cells = {name: value for name, value in row.items() if not _is_missing(value)}
    reward, trouble = None, ""
    state = str(cells.get("state", "complete")).lower()
    named = len(objectives) == 1 and objectives[0] in row
    by_name = named and "reward" not in row
    columns = list(objectives) if by_name else ["reward"]
    if len(objectives) > 1:  # the form of which the row has most
        forms = [[f"reward_{n}" for n in names] for names in (objectives, range(len(objectives)))]
        forms += [list(objectives)] if objectives[0] != "0" else []
        columns = max(forms, key=lambda form: sum(name in row for name in form))
    found = [cells.pop(name, None) for name in columns]
    old = [finite(_as_number(cells.get(f"old_{name}"))) for name in columns]
    if state == "withdrawn" and None not in found:
        old = [finite(_as_number(value)) for value in found]
    if state == "complete" and not any(value is None for value in found):
        reward = found[0] if len(found) == 1 else tuple(map(_as_number, found))
    if named and not by_name and objectives[0] not in ("0", "reward"):
        trouble = f"got columns {objectives[0]!r} and 'reward': keep one of them"
    if state not in _STATES:
        trouble = f"its state is {short(cells['state'])}: expected one of {', '.join(_STATES)}"
    elif state == "complete" and (missing := [name for name in columns if name not in row]):
        names = [objectives[0]] if len(objectives) == 1 and objectives[0] != "0" else []
        wanted = " or ".join(map(repr, [missing[0], *names]))
        trouble = f"no reward found; rename its column to {wanted}"
        if len(missing) < len(columns):
            there = next(name for name in columns if name in row)
            trouble = f"there is a column {there!r}, and none for {missing[0]!r}: add it"
    words: dict[str, Any] = {name: cells.pop(name) for name in _WORDS if name in cells}
    asked = cells.pop("instead_of", None)
    words["beyond"] = asked is not None
    with contextlib.suppress(ValueError):  # any text says that it was measured there
        asked = read_json(asked) if isinstance(asked, str) else asked
    for name in ("stderr", "constraint_violation"):
        if name in words:
            words[name] = _as_number(words[name])
    prefixed = {k.removeprefix(_PREFIX): v for k, v in cells.items() if k.startswith(_PREFIX)}
    start = _PREFIX if any(name.startswith(_PREFIX) for name in row) else ""
    parts: Mapping[str, Any] = cells.pop("parts") if isinstance(cells.get("parts"), Mapping) else {}
    columns = [name for name in cells if name.startswith(_PARTS)]
    numbers = {name.removeprefix(_PARTS): _as_number(cells[name]) for name in columns}
    words["parts"] = {**parts, **numbers}
    blank = frozenset(name.removeprefix(start) for name, cell in row.items() if _is_missing(cell))
    point, withdrawn = prefixed if start else cells, state == "withdrawn"
    asked = asked if isinstance(asked, Mapping) else None
    former = () if None in old else (tuple(old),)
    return Row(point, _as_number(reward), words, trouble, blank, withdrawn, former, asked)


def _is_missing(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and value != value)


def _as_number(value: Any) -> Any:
    """Return a text as the number that it is, and all else as it is."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


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
        words = {**row.words, "parts": {n: v for n, v in parts if _PARTS + n not in taken}}
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
                return [t for t in wrong if t.number not in own or one.rewards not in _former(t)]
            case "void":
                return [t for t in gone if t.number not in own and _results(t)[0] in row.former]
            case _:
                results = {one.rewards, *row.former}
                some = there if likeness == "changed" else gone
                return [t for t in some if self._shares(t, results)]

    def _shares(self, trial: Trial, results: Collection[Any]) -> bool:
        """Return whether a trial has or had one of some results; a failure counts of changed ones.

        Of all others, it may be another failure at the same point.
        """
        known = trial.number in self._changed
        return any(one in results for one in _results(trial) if known or one is not None)

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
        left = [n for n in names if n not in mine and not n.startswith(_PARTS)]
        if left:
            said = f"columns that are no parameters: {', '.join(left[:_SHOWN])}"
            notes.append(f"{said} (a part of the reward is named {_PARTS}NAME)")
        if remarks := [n for n in left if n.lower().rstrip("s") in _REMARKS]:
            notes.append(f"column {short(remarks[0])}: name it feedback to keep its text")
        there = {*names, *(name for row in source.rows for name in row.blank)}
        lacking = [
            n for i, n in enumerate(space.names) if n not in there and not space.condition(i)
        ]
        if lacking and source.rows:
            notes.append(f"parameters without a column: {', '.join(lacking[:_SHOWN])}")
    return tuple(notes)
