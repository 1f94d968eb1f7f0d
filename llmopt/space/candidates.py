"""Candidates: a table of the points that exist, if a space is not the product of its values."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Mapping, Sequence, Set
from functools import cached_property
from itertools import count, product
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from llmopt.errors import ParameterError, SpaceError
from llmopt.space.dimensions import Categorical, Float
from llmopt.space.tables import (
    Columns,
    check_columns,
    check_partial,
    keys_of,
    numbers_of,
    read_table,
)
from llmopt.space.values import ABSENT, Value
from llmopt.util.text import short

if TYPE_CHECKING:
    from llmopt.space.space import Space

Point: TypeAlias = tuple[Value, ...]

_CLOSE = 0.02  # share of the range within which two numbers can look alike in a prompt
_MOST_ALIKE = 200  # rows that are compared by their texts
_MOST_ROWS = 40  # that a prompt lists
_MOST_VALUES = 20  # of a column that a prompt lists
_MOST_MISSING = 12  # combinations that a prompt lists as missing
_MOST_DESCRIBED = 2_000  # characters of descriptors in a prompt
_MOST_PRODUCT = 150_000  # combinations that are gone through to find them
_SOURCE = '''
def candidates(column=None):
    """Return a column of the table of candidates, or all columns by name."""
    table = dict(zip(column_names, columns))
    return table if column is None else table[column]
'''


class Candidates:
    """The rows of a table, which are the only valid points of a space.

    Parameters without a column are free: a point has one of the rows, and any values of them.
    A table that a file describes has its size and digest alone: anything else raises `SpaceError`.

    Args:
        space: The space, without candidates.
        columns: The cells of each column, of one parameter at least. Texts are read as values.
        row: What messages call a row.

    Attributes:
        columns: The cells of each column.
        places: Positions of the parameters that have a column.
        free: Whether others have none.
        digest: Identifies the points, in their order, to a search that resumes.
        loaded: Whether the rows are there.

    Raises:
        SpaceError: The table is empty, lacks a value, has a value that is not in the space, or a
            row twice; or one of its parameters is conditional, and others are free.
    """

    free = False
    loaded = True
    row = "candidate"

    def __init__(self, space: Space, columns: Columns, row: str = row) -> None:
        self.row = row
        self._whole, self.places = space, [i for i, n in enumerate(space.names) if n in columns]
        if 0 < len(self.places) < len(space):
            check_partial(space, columns)
            self.free, space = True, space.part(self.places)
        self._space = space
        check_columns(columns, space.names)
        named = zip(space.names, space.dimensions, strict=True)
        keys = [keys_of(name, dimension, columns[name]) for name, dimension in named]
        rows: list[tuple[Any, ...]] = list(zip(*keys, strict=True))
        if space.conditional:
            rows = [space.key(space.check(self._values(row))) for row in rows]
        if len(set(rows)) < len(rows):
            first: dict[Any, int] = {}
            i, key = next((i, r) for i, r in enumerate(rows) if first.setdefault(r, i) != i)
            point = short(space.labelled(self._values(key)))
            text = f"candidates: row {i + 1} repeats row {first[key] + 1}, {point}"
            raise SpaceError(f"{text}; keep one row for each point")
        self._fill(rows, columns)

    def _fill(self, rows: list[tuple[Any, ...]], columns: Columns) -> None:
        self._keys, self._rows = rows, {row: i for i, row in enumerate(rows)}
        self.columns = columns
        numbers = [[math.nan if k is ABSENT else k for k in row] for row in rows]
        self._codes = np.array(numbers, dtype=float)
        dimensions = self._space.dimensions
        self._choice = np.array([isinstance(d, Categorical) for d in dimensions])
        self._log = np.array([d.log for d in dimensions])
        self._units = self._scaled(self._codes)
        self._counts = [np.unique(column, return_counts=True) for column in self._codes.T]
        self.size, names = len(rows), repr(self._space.names).encode()
        self.digest = hashlib.sha256(names + self._codes.tobytes()).hexdigest()

    def admitted(self, space: Space) -> Candidates:
        """Return the rows that keep the constraints of a space, or raise `SpaceError`.

        Where parameters are free, no row breaks a constraint by itself.
        """
        if self.free or not space.limits:
            return self
        return self._only([i for i in range(self.size) if space.admits(self[i])])

    def having(self, values: Mapping[int, Value]) -> Candidates:
        """Return the rows that have values, by position, or raise `SpaceError`."""
        mask = np.ones(self.size, dtype=bool)
        for column, place in enumerate(self.places):
            if place in values:
                key = self._space.dimensions[column].key(values[place])
                mask &= self._codes[:, column] == key
        return self._only(np.flatnonzero(mask).tolist())

    def _only(self, kept: list[int]) -> Candidates:
        if not kept:
            raise SpaceError("candidates: no row keeps the constraints or values; drop one of them")
        made = type(self).__new__(type(self))
        made._space, made._whole = self._space, self._whole
        made.places, made.free, made.row = self.places, self.free, self.row
        columns = {n: [cells[i] for i in kept] for n, cells in self.columns.items()}
        made._fill([self._keys[i] for i in kept], columns)
        return made

    def lost(self, file: Any, points: Sequence[Point]) -> list[Point]:
        """Return the points that have no row in a file of candidates as it is now."""
        now = Candidates(self._whole, read_table(file), self.row)
        return [point for point in points if not now.has(point)]

    @classmethod
    def stored(cls, data: Mapping[str, Any]) -> Candidates:
        """Return what `to_dict` wrote, without the table."""
        made = cls.__new__(cls)
        made.size, made.digest, made.loaded = int(data["size"]), str(data["digest"]), False
        return made

    def to_dict(self) -> dict[str, Any]:
        """Return size and digest as JSON; `stored` reads it."""
        return {"size": self.size, "digest": self.digest}

    def check_loaded(self, what: str) -> None:
        """Raise if the rows are not there, so that `what` cannot be compared with them."""
        if not self.loaded:
            raise ParameterError(
                f"{what} cannot be compared with the candidates, whose table is not loaded. If an "
                "`llmopt ask` waits for its model, wait for its points; else mend the table, or "
                "give it again, as candidates="
            )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "size" not in vars(self):
            raise AttributeError(name)
        raise SpaceError(
            f"the search proposes rows of a table of {self.size:,} points, which its file does not "
            "hold; give the table again, as candidates="
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Candidates):
            return NotImplemented
        return self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __getitem__(self, row: int) -> Point:
        return self._values(self._keys[row])

    def _values(self, key: Sequence[Any]) -> Point:
        return tuple([self._value(i, code) for i, code in enumerate(key)])

    def _value(self, index: int, code: Any) -> Value:
        dimension = self._space.dimensions[index]
        if code is ABSENT or code != code:
            return ABSENT
        return dimension.restore(code if isinstance(dimension, Float) else int(code))

    # Parameters without a column ----------------------------------------------------------

    def part(self, values: Sequence[Value]) -> Point:
        """Return the values of a point that a row has."""
        return tuple([values[i] for i in self.places] if self.free else values)

    def put(self, row: int, values: Sequence[Value]) -> list[Value]:
        """Return a row with the free values of a point, as they are."""
        values_of_row = dict(zip(self.places, self[row], strict=True))
        return [values_of_row.get(i, value) for i, value in enumerate(values)]

    def joined(self, row: int, values: Point) -> Point:
        """Return a row with the free values of a point.

        A parameter that only the row makes active gets the middle of its range.
        """
        if not self.free:
            return self[row]
        whole = self._whole
        point = whole.conform(self.put(row, values))
        while lacking := whole.missing(dict(enumerate(point))):
            middle = {i: whole.dimensions[i].decode(0.5) for i in lacking}
            point = whole.conform([middle.get(i, value) for i, value in enumerate(point)])
        return point

    def has(self, values: Sequence[Value]) -> bool:
        """Whether a point has a row's values, exactly."""
        return self._space.key(self.part(values)) in self._rows

    def __contains__(self, key: Any) -> bool:
        """Whether the key of a point (see `Space.key`) is that of a row."""
        return self.part(key) in self._rows

    # Choosing rows ----------------------------------------------------------------------

    def sample(self, rng: np.random.Generator, seen: Set[Hashable] = frozenset()) -> Point:
        """Return a random row that is not `seen` (keys of points), or any row if all are."""
        for _ in range(100):
            row = int(rng.integers(self.size))
            if self._keys[row] not in seen:
                return self[row]
        left = np.flatnonzero(~self._mask(seen))
        return self[int(rng.choice(left))] if left.size else self[row]

    def left(self, seen: Set[Hashable]) -> int:
        """Return how many rows are not `seen`."""
        return self.size - int(self._mask(seen).sum())

    def match(self, values: Point, seen: Set[Hashable] = frozenset()) -> Point | None:
        """Return the row that a point equals to the digits that prompts show, if there is one.

        If several do, it is the nearest one that is not `seen`.
        """
        part = self.part(values)
        row = self._rows.get(self._space.key(part))
        if row is not None:
            return self.joined(row, values)
        gaps = self._gaps(part)
        near = np.flatnonzero((gaps <= _CLOSE).all(axis=1))
        near = near[np.argsort(gaps[near].sum(axis=1), kind="stable")][:_MOST_ALIKE]
        text = self._lines([part], self._space.names)
        alike = [i for i in near.tolist() if self._lines([self[i]], self._space.names) == text]
        new = [i for i in alike if self._keys[i] not in seen]
        return self.joined((new or alike)[0], values) if alike else None

    def nearest(
        self,
        values: Point,
        seen: Set[Hashable] = frozenset(),
        *,
        equal_first: bool = True,
        ties: float = 0.0,
    ) -> Point:
        """Return the row nearest to a point, of those that are not `seen` if there are any.

        The distance is the sum of the differences as shares of the ranges, and 1 for a different
        choice. With `equal_first` the number of equal columns comes before it. Of rows that are as
        near, one with equal first columns is nearer by at most `ties`.
        """
        gaps = self._gaps(self.part(values))
        score = gaps.sum(axis=1)
        if equal_first:
            score -= (gaps < 1e-9).sum(axis=1) * (gaps.shape[1] + 1.0)
        score -= (gaps < 1e-9) @ (ties * 0.5 ** np.arange(1, gaps.shape[1] + 1))
        mask = self._mask(seen)
        if not mask.all():
            score[mask] = np.inf
        if not self.free:
            return self[int(score.argmin())]
        whole = self._whole
        points = [self.joined(i, values) for i in score.argsort(kind="stable")[:_MOST_ALIKE]]
        new = (p for p in points if whole.key(p) not in seen and whole.admits(p))
        return next(new, points[0])

    def complaint(self, values: Point) -> str:
        """Say that a point is no row, and which is nearest; nothing without the table."""
        if "columns" not in vars(self) or self.match(values) == values:
            return ""
        pair = map(self.part, (values, self.nearest(values, ties=1e-6)))
        point, near = map(self._space.labelled, pair)
        return f"{short(point)} is no {self.row}; nearest: {short(near)}"

    def _mask(self, seen: Set[Hashable]) -> np.ndarray:
        mask = np.zeros(self.size, dtype=bool)
        mask[[row for key in seen if (row := self._rows.get(key)) is not None]] = True  # type: ignore[call-overload]
        return mask

    def _scaled(self, codes: np.ndarray) -> np.ndarray:
        scaled = codes.copy()
        scaled[..., self._log] = np.log(scaled[..., self._log])
        span = np.array([d.span or 1.0 for d in self._space.dimensions])
        units: np.ndarray = scaled / span
        return units

    def _gaps(self, values: Point) -> np.ndarray:
        """Return ``(size, n)`` distances from a point in each dimension, from 0 to 1."""
        key = [math.nan if k is ABSENT else float(k) for k in self._space.key(values)]  # type: ignore[arg-type]
        point = self._scaled(np.array(key))
        gaps: np.ndarray = np.abs(self._units - point)
        gaps[:, self._choice] = gaps[:, self._choice] != 0
        if self._space.conditional:
            absent, lacking = np.isnan(self._units), np.isnan(point)
            gaps = np.where(absent | lacking, absent != lacking, gaps)
        return gaps

    # For the model ----------------------------------------------------------------------

    def words(self, labels: Sequence[str]) -> str:
        """Return in words which points exist, for a prompt that calls the parameters `labels`."""
        labels = [labels[i] for i in self.places]
        cells = len(self._groups) * (len(labels) - 1) + self.size if self.free else 0
        if self.free and cells <= _MOST_ROWS * len(labels):
            many = f"{', '.join(labels)}: one of these combinations"
            text = many if labels[1:] else f"{labels[0]}: one of these values"
            return f"{text}: {', '.join(self._groups)}"
        if self.size <= _MOST_ROWS:
            points = [self[row] for row in range(self.size)]
            return "\n".join(
                [f"Only these {self.size} points exist:", *self._lines(points, labels)]
            )
        combinations, gone = math.prod(len(codes) for codes, _ in self._counts), self._gone
        text = "Only the combinations of these values exist:"
        if gone is None:
            share = f", {self.size / combinations:.0%} of the combinations of its values"
            what = f"combinations of {', '.join(labels)}" if self.free else "points"
            text = f"Only {self.size:,} {what} exist, the rows of a table"
            text += share * (combinations <= 100 * self.size)
            text += ". Its columns, with the number of rows of each value:"
        for i, (label, (codes, numbers)) in enumerate(zip(labels, self._counts, strict=True)):
            shown = f"{len(codes):,} values"
            if len(codes) <= _MOST_VALUES:
                values = [self._space.format(i, self._value(i, code)) for code in codes.tolist()]
                sizes = [f" ({n:,})" * (gone is None) for n in numbers.tolist()]
                shown = ", ".join(map("".join, zip(values, sizes, strict=True)))
            text += f"\n- {label}: {shown}"
        if gone:
            text += "\n".join([f"\nBut not these {len(gone)}:", *self._lines(gone, labels)])
        return text + "\nA point that does not exist is answered with the nearest one that does."

    def descriptors(self, labels: Sequence[str]) -> str:
        """Return in words the other columns that follow from one choice, as far as they are short.

        A column with one value, or one that differs between rows of a choice, is not shown.
        """
        return "\n".join(
            f"Descriptors of {labels[self.places[i]]}: "
            + ", ".join(f"{name} ({', '.join(texts)})" for name, texts in choices.items())
            for i, choices in self._descriptors.items()
        )

    @cached_property
    def _descriptors(self) -> dict[int, dict[str, list[str]]]:
        """What the table says of choices: by column, by the choice's name."""
        found: dict[int, dict[str, list[str]]] = {}
        room = _MOST_DESCRIBED
        for column, cells in self.columns.items():
            if column in self._space.names:
                continue
            texts = list(map(_shown, cells))
            for i in np.flatnonzero(self._choice).tolist():
                of: dict[Any, str] = {}
                if any(of.setdefault(k[i], t) != t for k, t in zip(self._keys, texts, strict=True)):
                    continue
                shown = {k: f"{column} {t}" for k, t in of.items() if t and k is not ABSENT}
                size = sum(map(len, shown.values()))
                if len(set(of.values())) > 1 and size <= room:
                    room -= size
                    for code, text in shown.items():
                        name = self._space.format(i, self._value(i, code))
                        found.setdefault(i, {}).setdefault(name, []).append(text)
                break
        return found

    @cached_property
    def _groups(self) -> list[str]:
        """Return the rows in words, those that differ in their last value alone as one."""
        last: dict[tuple[str, ...], list[str]] = {}
        for row in range(self.size):
            *begin, end = [self._space.format(i, v) for i, v in enumerate(self[row])]
            last.setdefault(tuple(begin), []).append(end)
        if () in last:
            return last[()]
        return [f"({', '.join([*begin, ' or '.join(ends)])})" for begin, ends in last.items()]

    def _lines(self, points: Sequence[Point], labels: Sequence[str]) -> list[str]:
        rows = [zip(labels, map(self._space.format, count(), p), p, strict=False) for p in points]
        return ["- " + ", ".join(f"{n}: {t}" for n, t, v in r if v is not ABSENT) for r in rows]

    @cached_property
    def _gone(self) -> list[Point] | None:
        """The combinations of the columns' values that do not exist, if they are few."""
        combinations = math.prod(len(codes) for codes, _ in self._counts)
        if combinations > min(_MOST_PRODUCT, self.size + _MOST_MISSING):
            return None
        axes = [codes.tolist() for codes, _ in self._counts]
        keys = (tuple([ABSENT if c != c else c for c in key]) for key in product(*axes))
        return [self._values(key) for key in keys if key not in self._rows]

    def equipment(self) -> tuple[str, dict[str, Any], str]:
        """Return for a model's Python: source, its constants, and a line on the function."""
        columns, notes = dict(zip(self._space.names, self._codes.T, strict=True)), []
        for name, dimension in zip(self._space.names, self._space.dimensions, strict=True):
            notes.append(name + " (index of the choice)" * isinstance(dimension, Categorical))
        for name, cells in self.columns.items():
            if name in columns:
                continue
            numbers = numbers_of(cells)
            columns[name] = [str(cell) for cell in cells] if numbers is None else numbers
            notes.append(f"{name} (a descriptor, no parameter)")
        line = (
            f"candidates(column): an entry for each of the {self.size:,} "
            f"{'rows of the table' if self.free else 'points'} that exist, by "
            f"columns: {', '.join(notes)}; candidates() returns all columns by name"
        )
        names = {"column_names": list(columns), "columns": list(columns.values())}
        return _SOURCE, names, line


def _shown(cell: Any) -> str:
    """Return a cell of a descriptor as a prompt shows it; nothing for an array, say."""
    if isinstance(cell, float | np.floating):
        return f"{cell:.6g}" * bool(cell == cell)
    return " ".join(str(cell).split()) if isinstance(cell, str | int | np.integer) else ""
