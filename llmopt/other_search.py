"""The trials of another search, read from a storage file, an Optuna study or a table."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmopt.errors import ParameterError, StorageError
from llmopt.evaluations import expected_by_name
from llmopt.from_optuna import (
    note_of,
    number_of,
    parts_of,
    stderr_of,
    text_of,
    told_of,
    violated,
)
from llmopt.history import Direction, Trial, each_error
from llmopt.origin import from_text
from llmopt.resume_check import stored_state
from llmopt.space import Space
from llmopt.util.files import read_json, read_table
from llmopt.util.text import a_type, short, written

PARTS = "parts_"
"""Begins the column of a part of the reward."""

_PREFIX = "params_"  # of a parameter's column in tables of `trials_dataframe`
_WORDS = ("feedback", "stderr", "constraint_violation", "samples")
_STATES = ("complete", "failed", "pruned", "withdrawn")


@dataclass
class Row:
    """One trial of a source: its parameters by name, and the arguments of `tell`."""

    params: dict[str, Any]  # texts where the source is a text
    reward: Any  # a number, a tuple of them, ``None`` for a failed trial, ``""`` if it is open
    words: dict[str, Any] = field(default_factory=dict)  # further arguments of `tell`
    trouble: str = ""  # why it is no trial, if it is none
    blank: frozenset[str] = frozenset()  # columns whose cell is missing in this row
    withdrawn: bool = False  # it never happened
    asked: Mapping[str, Any] | None = None  # parameters of the point that it was instead of
    origin: str = ""  # see `Trial`
    revisions: Mapping[str, int] = field(default_factory=dict)
    violated: Mapping[str, float] = field(default_factory=dict)  # constraints of a foreign study


@dataclass
class OtherSearch:
    """Trials to import."""

    title: str  # for messages
    rows: list[Row]
    directions: tuple[str, ...] | None = None  # of the search that they are of, if it says so
    task: Mapping[str, Any] | None = None  # what their rewards are of, if it says so
    table: bool = False  # whether columns that are no parameters may be skipped
    space: Space | None = None  # that they are of, if it says so
    metrics: tuple[str, ...] = ()  # names of the objectives, if it says them


def read_source(
    source: Any, directions: tuple[Direction, ...], names: Sequence[str] = ()
) -> OtherSearch:
    """Read trials of the same direction."""
    found = _read_source(source, names or [str(i) for i in range(len(directions))])
    if names and found.metrics:
        _arrange(found, names)
    if found.directions is not None and found.directions != directions:
        raise ParameterError(
            f"{found.title} is of a search with direction {found.directions}, and this one "
            f"has {directions}: their rewards do not compare"
        )
    return found


def _arrange(found: OtherSearch, names: Sequence[str]) -> None:
    """Bring the rewards of a source into the order of the names of the objectives here."""
    if set(found.metrics) != set(names):
        raise ParameterError(
            f"the objectives of {found.title} are {', '.join(map(repr, found.metrics))}, and "
            f"here {', '.join(map(repr, names))}: if they are the same "
            "numbers, export them as a table, rename the columns of the rewards, and import it"
        )
    order = [found.metrics.index(name) for name in names]
    found.directions = found.directions and tuple(found.directions[i] for i in order)
    for row in found.rows:
        if isinstance(row.reward, tuple):
            row.reward = tuple(row.reward[i] for i in order)
        if errors := row.words.get("stderr"):
            errors = each_error(errors, len(order))
            row.words["stderr"] = [errors[i] for i in order]
        if order[0]:  # of the first objective there
            row.words.pop("samples", None)


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
        if not source.columns.is_unique:
            twice = source.columns[source.columns.duplicated()][0]
            raise ParameterError(f"got two columns {short(twice)}: expected different names")
        source = source.astype(object).where(source.notna(), "").to_dict("records")  # as in a file
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
    task, metrics = options.get("task"), state.metrics
    return OtherSearch(str(path), rows, state.directions, task, space=state.space, metrics=metrics)


def _of_trial(trial: Trial, space: Space) -> Row:
    words: dict[str, Any] = {"feedback": trial.feedback, "stderr": trial.stderr}
    words |= {"samples": trial.samples, "parts": trial.parts}
    words["constraint_violation"] = trial.measured_violation  # `tell` adds that of the space
    moved = trial.instead_of is not None  # or corrected, or imported from where it was
    words["beyond"] = moved or bool(space.deviation(trial.values, steps=False))
    return Row(
        space.named(trial.values),
        trial.reward,
        words,
        asked=space.named(trial.instead_of) if trial.instead_of else None,
        withdrawn=trial.state == "withdrawn",
        origin=trial.origin,
        revisions=trial.revisions,
    )


def _of_study(study: Any) -> OtherSearch:
    rows = []
    for trial in study.trials:
        state = trial.state.name
        if state in ("COMPLETE", "FAIL", "PRUNED"):
            values: Any = tuple(trial.values) if state == "COMPLETE" else None
            origin, revisions = from_text(note_of(trial.user_attrs, "origin")) or ("", {})
            said = "" if values or origin else f"{state.lower()} in the study"
            words = _words_of(trial.user_attrs, said, len(study.directions))
            violation = number_of(note_of(trial.user_attrs, "violation"))
            broken = violated(trial) if violation is None else {}
            words |= {"constraint_violation": violation or 0.0, "parts": parts_of(trial.user_attrs)}
            asked = note_of(trial.user_attrs, "instead_of")
            words["beyond"] = (asked or note_of(trial.user_attrs, "deviation")) is not None
            rows.append(
                Row(
                    dict(trial.params),
                    values[0] if values and len(values) == 1 else values,
                    words,
                    withdrawn=bool(note_of(trial.user_attrs, "withdrawn")),
                    asked=asked if isinstance(asked, Mapping) else None,
                    origin=origin,
                    revisions=revisions,
                    violated=broken,
                )
            )
    directions = tuple(direction.name.lower() for direction in study.directions)
    metrics = tuple(getattr(study, "metric_names", None) or ())
    return OtherSearch(f"the study {study.study_name!r}", rows, directions, metrics=metrics)


def _words_of(attributes: Mapping[str, Any], state: str, objectives: int) -> dict[str, Any]:
    """Return what the objective left about an Optuna trial, as arguments of `tell`."""
    remarks = [state, *map(text_of, told_of(attributes, "feedback"))]
    stderr = stderr_of(attributes, objectives)
    words = {"feedback": "; ".join(filter(None, remarks)), "stderr": stderr}
    return {name: value for name, value in words.items() if value not in ("", None)}


def _of_table(
    title: str, table: Sequence[Mapping[Any, Any]], objectives: Sequence[str]
) -> OtherSearch:
    return OtherSearch(title, [_of_row(row, objectives) for row in table], table=True)


def _of_row(row: Mapping[Any, Any], objectives: Sequence[str]) -> Row:
    """Read a row of a table, whose columns are those of `trials_dataframe`, or plain names."""
    row = {str(name): value for name, value in row.items()}
    cells = {name: value for name, value in row.items() if not _is_missing(value)}
    state = str(cells.get("state", "complete")).strip().lower()
    reward, trouble = _reward_of(row, cells, state, objectives)
    words: dict[str, Any] = {name: cells.pop(name) for name in _WORDS if name in cells}
    for names in (objectives, range(len(objectives))) if len(objectives) > 1 else ():
        columns = [f"stderr_{name}" for name in names]
        if any(name in cells for name in columns):
            words["stderr"] = [_as_number(cells.pop(name, None)) for name in columns]
    origin, revisions = from_text(cells.get("origin")) or ("", {})
    if origin:  # else it is a column of the user
        del cells["origin"]
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
    columns = [name for name in cells if name.startswith(PARTS)]
    numbers = {name.removeprefix(PARTS): _as_number(cells[name]) for name in columns}
    words["parts"] = {**parts, **numbers}
    blank = frozenset(name.removeprefix(start) for name, cell in row.items() if _is_missing(cell))
    point, withdrawn = prefixed if start else cells, state == "withdrawn" and not trouble
    asked = asked if isinstance(asked, Mapping) else None
    number = _as_number(reward)
    return Row(point, number, words, trouble, blank, withdrawn, asked, origin, revisions)


def _reward_of(
    row: Mapping[str, Any], cells: dict[str, Any], state: str, objectives: Sequence[str]
) -> tuple[Any, str]:
    """Remove the reward of a row from its cells, and return it, and why it is no trial."""
    reward: Any = None
    trouble = ""
    named = len(objectives) == 1 and objectives[0] in row
    by_name = named and "reward" not in row
    columns = list(objectives) if by_name else ["reward"]
    if len(objectives) > 1:  # the form of which the row has most
        forms = [[f"reward_{n}" for n in names] for names in (objectives, range(len(objectives)))]
        forms += [list(objectives)] if objectives[0] != "0" else []
        columns = max(forms, key=lambda form: sum(name in row for name in form))
    found = [_as_number(cells.pop(name, None)) for name in columns]
    empty = any(_is_empty(row.get(name)) for name in columns)
    if empty and "state" not in cells:
        reward = ""
    elif state == "complete" and not any(value is None for value in found):
        reward = found[0] if len(found) == 1 else tuple(found)
    texts = [value for value in found if reward and isinstance(value, str)]
    if texts:
        trouble = (
            f"reward={short(texts[0])}: expected a number, not a text{written(texts[0])}; if the "
            "evaluation failed, write failed in a column `state`; if there is none yet, leave the "
            "reward empty"
        )
    if named and not by_name and objectives[0] not in ("0", "reward"):
        trouble = f"got columns {objectives[0]!r} and 'reward': keep one of them"
    given = {name: n for name, n in zip(columns, found, strict=True) if not _is_missing(n)}
    numbers = [n for n in given.values() if not isinstance(n, str)]
    says = {"complete": empty, "pruned": False}  # a pruned trial has what it reported last
    if "state" in cells and says.get(state, bool(numbers)):
        one = short(numbers[0]) if numbers else "empty"
        trouble = f"its state is {state}, and its reward {one}: change one of them"
    if state not in _STATES:
        trouble = f"its state is {short(cells['state'])}: expected one of {', '.join(_STATES)}"
    elif state == "complete" and (missing := [name for name in columns if name not in row]):
        names = [objectives[0]] if len(objectives) == 1 and objectives[0] != "0" else []
        wanted = " or ".join(map(repr, [missing[0], *names]))
        trouble = f"no reward found; rename its column to {wanted}"
        if len(missing) < len(columns):
            there = next(name for name in columns if name in row)
            trouble = f"there is a column {there!r}, and none for {missing[0]!r}: add it"
    elif state == "complete" and given and len(given) < len(columns):
        trouble = expected_by_name(given, columns)
    return reward, trouble


def _is_missing(value: Any) -> bool:
    return value is None or _is_empty(value) or (isinstance(value, float) and value != value)


def _is_empty(cell: Any) -> bool:
    return isinstance(cell, str) and not cell.strip()


def _as_number(value: Any) -> Any:
    """Return a text as the number that it is, and all else as it is."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
