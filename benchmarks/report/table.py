"""The one table of the benchmarks: as plain text, and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmopt.util.text import clean


@dataclass(frozen=True)
class Table:
    """A table."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]  # one text for each column

    @classmethod
    def of(cls, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
        """Make a table from the names of its columns and its rows."""
        return cls(head, rows)

    def markdown(self) -> list[str]:
        """Return the lines of a Markdown table."""
        head, *rows = (
            f"| {' | '.join(c.replace('|', chr(92) + '|') for c in row)} |"
            for row in (self.head, *self.rows)
        )
        return [head, "|" + " --- |" * len(self.head), *rows]

    def text(self) -> list[str]:
        """Return the lines of a table in plain text: the first column to the left, a rule."""
        cells = [[clean(c) for c in row] for row in (self.head, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(
                c.rjust(w) if i else c.ljust(w)
                for i, (c, w) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in cells
        ]
        return [lines[0], "-" * max(map(len, lines)), *lines[1:]]
