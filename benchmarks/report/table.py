"""The one table of the benchmarks: as plain text, as Markdown, and as values that a page sorts."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from llmopt.util.text import clean


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    numeric: bool = True  # whether it is sorted by numbers
    hint: str = ""


@dataclass(frozen=True)
class Table:
    """A table."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]  # one text for each column

    @classmethod
    def of(cls, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
        """Make a table from the names of its columns; the first one holds no numbers."""
        return cls([Column(name, place > 0) for place, name in enumerate(head)], rows)

    def cells(self) -> list[list[str]]:
        """Return all texts, the heads first."""
        return [[c.name for c in self.columns], *(list(row) for row in self.rows)]

    def key(self, column: int, text: str) -> float | str:
        """Return what a page sorts a text by: its first number, what has none last."""
        if not self.columns[column].numeric:
            return text.lower()
        if text.startswith(("−∞", "∞")):
            return -1e300 if text[0] == "−" else 1e300
        found = re.search(r"-?\d[\d,]*(\.\d+)?(e[+-]?\d+)?", text.replace("−", "-"))
        return float(found[0].replace(",", "")) if found else 0.0 if text == "free" else 1e300

    def markdown(self) -> list[str]:
        """Return the lines of a Markdown table."""
        head, *rows = (
            f"| {' | '.join(c.replace('|', chr(92) + '|') for c in row)} |" for row in self.cells()
        )
        return [head, "|" + " --- |" * len(self.columns), *rows]

    def text(self) -> list[str]:
        """Return the lines of a table in plain text: the first column to the left, a rule."""
        cells = [[clean(c) for c in row] for row in self.cells()]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(
                c.rjust(w) if i else c.ljust(w)
                for i, (c, w) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in cells
        ]
        return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def plain_number(value: float) -> str:
    """Return a number for an axis or a table, as short as it can be read."""
    if not math.isfinite(value):
        return "∞" if value > 0 else "−∞" if value < 0 else "–"
    size = abs(value)
    decimals = 0 if size >= 1000 else 1 if size >= 100 else 2
    text = f"{value:,.{decimals}f}"
    if decimals:
        text = text.rstrip("0").rstrip(".")
    return (text if float(text.replace(",", "")) else "0").replace("-", "−")


def short_number(value: float) -> str:
    """Return a number with about three digits, which is what a narrow table holds."""
    size = abs(value)
    if not math.isfinite(value) or size < 10:
        return plain_number(value)
    return f"{value:,.{0 if size >= 99.95 else 1}f}".replace("-", "−")
