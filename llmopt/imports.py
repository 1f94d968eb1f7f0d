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
from typing import Any, Literal

from llmopt.errors import LLMOptError, ParameterError, StorageError
from llmopt.evaluations import Result
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
from llmopt.space.values import ABSENT
from llmopt.util.caller import CALLER
from llmopt.util.files import read_json, read_table
from llmopt.util.text import a_type, short

Outcome = Literal["taken", "known", "completed", "corrected", "withdrawn", "refused"]
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
    outcome: Outcome  # "known" if here already, "completed" if without some of its parts,
    # "corrected" if with the reward that its source had before a correction
    reason: str = ""  # why it was refused, or is in doubt


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
    former: tuple[Any, ...] = ()  # see `_former`
    asked: Mapping[str, Any] | None = None  # parameters of the point that it was instead of


@dataclass
class OtherSearch:
    """Trials to import."""

    title: str  # for messages
    rows: list[Row]
    directions: tuple[str, ...] | None = None  # of the search that they are of, if it says so
    task: Mapping[str, Any] | None = None  # what their rewards are of, if it says so
    table: bool = False  # whether columns that are no parameters may be skipped


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
    return OtherSearch(str(path), rows, state.directions, options.get("task"))


def _of_trial(trial: Trial, space: Space) -> Row:
    words: dict[str, Any] = {"feedback": trial.feedback, "stderr": trial.stderr}
    words |= {"samples": trial.samples, "parts": trial.parts}
    broken = sum(space.broken(trial.values).values())  # `tell` adds that of the space
    words["constraint_violation"] = max(0.0, trial.constraint_violation - broken)
    moved = trial.instead_of is not None  # or corrected, or imported from where it was
    words["beyond"] = moved or bool(space.deviation(trial.values, steps=False))
    asked = space.named(trial.instead_of) if trial.instead_of else None
    return Row(
        space.named(trial.values),
        trial.reward,
        words,
        former=_former(trial),
        asked=asked,
        withdrawn=trial.state == "withdrawn",
    )


def _former(trial: Trial) -> tuple[Any, ...]:
    """Return the rewards of a trial before corrections, latest first; ``None`` where it failed."""
    return (*trial.old_rewards[::-1], *[None] * (trial.corrected > len(trial.old_rewards)))


def _of_study(study: Any) -> OtherSearch:
    rows = []
    for trial in study.trials:
        state = trial.state.name
        if state in ("COMPLETE", "FAIL", "PRUNED"):
            values: Any = tuple(trial.values) if state == "COMPLETE" else None
            words = _words_of(trial.user_attrs, "" if values else f"{state.lower()} in the study")
            words["constraint_violation"] = violation_of(violated(trial))
            words["parts"] = parts_of(trial.user_attrs)
            asked = note_of(trial.user_attrs, "instead_of")
            words["beyond"] = (asked or note_of(trial.user_attrs, "deviation")) is not None
            reward = values[0] if values and len(values) == 1 else values
            asked = asked if isinstance(asked, Mapping) else None
            gone = bool(note_of(trial.user_attrs, "withdrawn"))
            rows.append(Row(dict(trial.params), reward, words, withdrawn=gone, asked=asked))
    directions = tuple(direction.name.lower() for direction in study.directions)
    return OtherSearch(f"the study {study.study_name!r}", rows, directions)


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
    return Row(point, _as_number(reward), words, trouble, blank, withdrawn, asked=asked)


def _is_missing(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and value != value)


def _as_number(value: Any) -> Any:
    """Return a text as the number that it is, and all else as it is."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def read_rows(
    space: Space, source: OtherSearch, trials: Sequence[Trial], check: Callable[..., Result]
) -> tuple[list[Result], tuple[ImportedRow, ...]]:
    """Return the results to record, checked as by `tell`, and the outcome of each row.

    Each existing trial marks one equal row as known, or gets the parts that it lacks. One that has
    a reward from before a correction in the source is corrected; one that was corrected here itself
    is known.
    """
    known = defaultdict[Any, list[Trial]](list)
    for earlier in trials:
        known[space.key(earlier.values)].append(earlier)
    results: dict[int, Result] = {}
    rows: dict[int, ImportedRow] = {}
    # Corrected rows come last: an equal trial of another row is no earlier result of theirs.
    for number, row in sorted(enumerate(source.rows, 1), key=lambda pair: bool(pair[1].former)):
        if row.withdrawn:
            rows[number] = ImportedRow(number, "withdrawn", _imported_before(space, row, known))
            continue
        try:
            if row.trouble:
                raise ParameterError(row.trouble)
            values = _values_of(space, row, source.table)
            parts = row.words.get("parts", {}).items()
            taken = space.place if source.table else ()  # a parameter may have such a name
            parts = {n: v for n, v in parts if _PARTS + n not in taken}
            words = {**row.words, "parts": parts}
            one = check(space.unflatten(values), row.reward, **words)
            one = replace(one, instead_of=_asked_of(space, row, one.values))
        except (LLMOptError, TypeError) as error:
            rows[number] = ImportedRow(number, "refused", str(error))
            continue
        there = known[space.key(one.values)]
        equal = [t for t in there if t.rewards == one.rewards]
        wrong = [t for rewards in row.former for t in there if t.rewards == rewards]
        mended = [t for t in there if one.rewards in _former(t)]
        nearest = min(equal, key=lambda t: len(one.parts.keys() ^ t.parts.keys()), default=None)
        if trial := nearest or next(iter(wrong or mended), None):
            there.remove(trial)
            merged = {**one.parts, **trial.parts}
            point, n = space.unflatten(trial.values), trial.number
            if equal and one.rewards is not None and len(merged) > len(trial.parts):
                rows[number] = ImportedRow(number, "completed")
                results[number] = check(point, row.reward, replaces=n, parts=merged)
            elif wrong and not equal:
                was = "failed" if trial.rewards is None else f"had {trial.reward}"
                rows[number] = ImportedRow(number, "corrected", f"trial #{n + 1} {was}")
                words["parts"] = {**trial.parts, **parts}
                results[number] = check(point, row.reward, replaces=n, **words)
            else:
                was = "" if equal else f"trial #{n + 1} had this result before a correction here"
                rows[number] = ImportedRow(number, "known", was)
            continue
        doubt = doubt_of(space, one.values, moved=bool(words.get("beyond")))
        if there and source.table:  # it may be a correction
            n, before = there[-1].number, there[-1].reward
            again = f"trial #{n + 1} has its point with reward {before}: this is another "
            again += "measurement. If it corrects that trial, withdraw the new one, and tell it "
            again += f"with {CALLER.get().trial('replaces', n)}"
            doubt = "; ".join(filter(None, [doubt, again]))
        rows[number] = ImportedRow(number, "taken", doubt)
        results[number] = one
    return [results[n] for n in sorted(results)], tuple(rows[n] for n in sorted(rows))


def _imported_before(space: Space, row: Row, known: Mapping[Any, list[Trial]]) -> str:
    """Say which trial has the result of a withdrawn one, if one was imported before."""
    if not row.former or row.former[0] is None:
        return ""
    try:
        there = known[space.key(_values_of(space, row, table=False))]
    except ParameterError:
        return ""
    same = next((trial for trial in there if trial.rewards == row.former[0]), None)
    if same is None:
        return ""
    there.remove(same)
    return f"trial #{same.number + 1} has its result: withdraw that, too, if it is wrong"


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
