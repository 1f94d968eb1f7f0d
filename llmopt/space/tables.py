"""Tables of points: reading them, and the dimensions and values of their columns."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from llmopt.errors import LLMOptError, ParameterError, SpaceError, did_you_mean
from llmopt.space.dimensions import Categorical, Dimension, Float, Int
from llmopt.space.values import ABSENT
from llmopt.util.files import read_table as read_columns
from llmopt.util.text import a_type, clean, short

if TYPE_CHECKING:
    from llmopt.space.space import Space

Columns: TypeAlias = dict[str, list[Any]]

_DECADES = 1000  # ratio of the ends of a column that gets a logarithmic scale


def dimensions_of(columns: Columns, names: Iterable[str]) -> dict[str, Dimension]:
    """Return dimensions that follow from the values of columns.

    Whole numbers give an `Int`, other numbers a `Float`, all else a `Categorical`.
    """
    check_columns(columns, names)
    return {name: _dimension(name, columns[name]) for name in names}


def check_columns(columns: Columns, names: Iterable[str]) -> None:
    """Raise `SpaceError` unless a table has rows, and a column of each name."""
    if not any(columns.values()):
        raise SpaceError("candidates: the table is empty; give it at least one row")
    for name in names:
        if name not in columns:
            expected = did_you_mean(name, columns)
            raise SpaceError(f"candidates: there is no column `{name}`; {expected}")


def read_table(table: Any) -> Columns:
    """Return the columns of a table, all of the same length, or raise `SpaceError`."""
    if isinstance(table, str | os.PathLike):
        return _csv(Path(table).expanduser())
    if hasattr(table, "columns") and hasattr(table, "to_dict"):
        table = table.to_dict("list")
    if isinstance(table, Mapping):
        columns = {clean(str(name)): list(cells) for name, cells in table.items()}
        if len(set(map(len, columns.values()))) > 1:
            sizes = {name: len(cells) for name, cells in columns.items()}
            raise SpaceError(f"candidates: got columns of different lengths, {short(sizes)}")
        return columns
    rows: list[Any] = list(table) if isinstance(table, Iterable) else [None]
    if not all(isinstance(row, Mapping) for row in rows):
        raise SpaceError(
            f"candidates={short(table)}, {a_type(table)}: expected a list of dicts such as "
            '[{"ligand": "XPhos", "temperature": 60}], a DataFrame, or the path of a CSV file'
        )
    names = dict.fromkeys(name for row in rows for name in row)
    return {clean(str(name)): [row.get(name) for row in rows] for name in names}


def _csv(path: Path) -> Columns:
    if path.suffix.lower() != ".csv":
        raise SpaceError(f"candidates={str(path)!r}: expected the path of a CSV file, NAME.csv")
    return dict(read_columns(path, links=False))


def _blank(cell: Any) -> bool:
    return cell is None or cell != cell or (isinstance(cell, str) and not cell.strip())


def numbers_of(cells: Sequence[Any]) -> np.ndarray | None:
    """Return a column as finite numbers; ``None`` if a cell is another value."""
    if any(type(cell) is bool or cell is None for cell in cells):
        return None
    try:
        numbers = np.array(cells, dtype=float)
    except (TypeError, ValueError, OverflowError):
        return None
    return numbers if numbers.ndim == 1 and np.isfinite(numbers).all() else None


def _dimension(name: str, cells: Sequence[Any]) -> Dimension:
    """Return the dimension of a column: a range of numbers, or a list of choices."""
    for row, cell in enumerate(cells, start=1):
        if _blank(cell):
            raise SpaceError(f"candidates, row {row}: there is no `{name}`; give it a value")
    numbers = numbers_of(cells)
    if not cells or numbers is None:
        return Categorical(list(dict.fromkeys(cells)))
    low, high = float(numbers.min()), float(numbers.max())
    if (numbers == np.rint(numbers)).all() and max(abs(low), abs(high)) < 2**53:
        return Int(int(low), int(high))
    return Float(low, high, log=low > 0 and high / low >= _DECADES)


def check_partial(space: Space, columns: Columns) -> None:
    """Raise `SpaceError` unless the columns of a table can be of some parameters alone."""
    for name in set(space.names) - columns.keys():
        expected = did_you_mean(name, columns.keys() - set(space.names), 0.75)
        if expected.startswith("did you mean"):
            raise SpaceError(f"candidates: there is no column `{name}`; {expected}")
    for i, name in enumerate(space.names):
        if name in columns and space.condition(i):
            raise SpaceError(
                f"candidates: the table lacks some parameters, so `{name}` may have no condition; "
                "give a column for each parameter"
            )


def keys_of(name: str, dimension: Dimension, cells: Sequence[Any]) -> list[Any]:
    """Return `Space.key`'s entries of a column."""
    numbers = None if isinstance(dimension, Categorical) else numbers_of(cells)
    if numbers is not None and not isinstance(dimension, Categorical):
        whole = isinstance(dimension, Int)
        plain = dimension.low <= numbers.min() and numbers.max() <= dimension.high
        plain &= dimension.step == (1 if whole else None) and not (whole and (numbers % 1).any())
        if plain and dimension.narrow is None:
            exact: list[Any] = (numbers.astype(int) if whole else numbers + 0.0).tolist()
            return exact
    keys: dict[Any, Any] = {}
    for row, cell in enumerate(cells, start=1):
        if (identity := (type(cell), cell)) not in keys:
            try:
                keys[identity] = _key(name, dimension, cell)
            except LLMOptError as error:
                said = f"candidates, row {row}: {error}"
                if isinstance(dimension, Categorical) and not _blank(cell):
                    said = f"{said.rstrip('.')}. " + (
                        f"If it is right, add it to the choices of `{name}` in `space`; a search "
                        "that has begun keeps its space: make a new one, and import its trials"
                    )
                raise SpaceError(said) from None
    return [keys[type(cell), cell] for cell in cells]


def _key(name: str, dimension: Dimension, cell: Any) -> Any:
    if _blank(cell) and not (isinstance(dimension, Categorical) and cell in dimension.choices):
        if dimension.when is not None:
            return ABSENT
        raise SpaceError(f"there is no `{name}`; give it a value")
    if isinstance(cell, str):
        with contextlib.suppress(ParameterError):
            return dimension.key(dimension.check(cell))
        cell = dimension.parse(cell)
    return dimension.key(dimension.check(cell))
