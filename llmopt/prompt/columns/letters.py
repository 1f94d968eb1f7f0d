"""Rows of letters: how `ColumnsPrompt` writes points, and how an answer in letters is read.

A row has one letter for each dimension, `` k h q``: with its space a letter is one token in
the usual vocabularies. A `Frame` maps them to values.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase

import numpy as np

from llmopt.errors import ParseError
from llmopt.prompt.columns.frame import Cells, Frame, Levels, whole_cells
from llmopt.prompt.reading import Reading
from llmopt.prompt.thoughts import cut_thoughts

LETTERS = len(ascii_lowercase)

WHOLE = whole_cells(0, LETTERS - 1)
"""Cells of a continuous dimension over its whole range."""

WINDOW = (0, LETTERS - 1)
"""Lowest and highest integer of cells over a part of the range."""

# Letters that stand by themselves, one after the other on a line: no word is part of a row.
_ROW = re.compile(r"(?<![\w'])[A-Za-z](?:[^\w\n']{1,4}[A-Za-z])*(?![\w'])")
_LETTER = re.compile(r"[A-Za-z]")
_WORD = re.compile(r"[^\W\d_]{2}")


def write_row(row: Sequence[int]) -> str:
    """Return a row of integers from 0 to 25 as text, without a line break."""
    return "".join(f" {ascii_lowercase[k]}" for k in row)


def read_row(text: str, n: int) -> list[int]:
    """Return the first row of `n` letters that stand by themselves, as integers.

    Raises:
        ParseError: There is no such row.
    """
    runs = [_LETTER.findall(run) for run in _ROW.findall(text)]
    lines = [line for line in text.splitlines() if not _WORD.search(line)]
    joined = [letter for line in lines for letter in _LETTER.findall(line)]
    letters = next((run for run in [*runs, joined] if len(run) == n), None)
    if letters is None:
        given = max([*map(len, runs), len(joined)])
        raise ParseError(
            f"found {given} letters, expected one line of {n}, separated by spaces", text
        )
    return [ascii_lowercase.index(letter.lower()) for letter in letters]


def row_grammar(parts: Sequence[Levels | Cells]) -> str:
    """Return the GBNF grammar of one row in these ranges, and its line break."""
    rules: dict[tuple[int, int], str] = {}
    for part in parts:
        rules.setdefault((part.first, part.last), f"i{len(rules)}")
    row = " ".join(f'" " {rules[part.first, part.last]}' for part in parts)
    ranges = [
        f"{name} ::= [{ascii_lowercase[first]}-{ascii_lowercase[last]}]"
        for (first, last), name in rules.items()
    ]
    return "\n".join([rf'root ::= {row} "\n"', *ranges])


def row_tokens(parts: Sequence[Levels | Cells]) -> int:
    """Return the tokens of a row where every character is one, with room."""
    return 8 + 2 * len(parts)


@dataclass(frozen=True)
class RowReader:
    """Reads one row as a point; see `Question.read`.

    A batch of samples holds the same row now and then. With `dither` it is placed elsewhere in
    its cells each time, so that all of these points can be used. With `reject` a letter beyond
    the last one is an error.
    """

    frame: Frame
    seed: int
    dither: bool
    reject: bool

    def __call__(self, text: str, index: int = 0, earlier: Sequence[str] = ()) -> Reading:
        """Return the point of a row, or raise `ParseError`."""
        return self.read(text, earlier, self.frame)

    def read(self, text: str, earlier: Sequence[str], frame: Frame) -> Reading:
        """Return the point of a row in a frame of the same parts; see `__call__`."""
        integers, clipped = self._integers(text)
        within = np.full(len(integers), 0.5)
        if self.dither:
            again = sum(t == text or self._holds(t, integers) for t in earlier)
            digest = zlib.crc32(",".join(map(str, integers)).encode())
            within = np.random.default_rng([self.seed, digest, again]).random(len(integers))
        values, inside = (frame.values(integers, within, reflect=r) for r in (False, True))
        return Reading(values, "", clipped, otherwise=inside if inside != values else None)

    def _holds(self, text: str, integers: list[int]) -> bool:
        try:
            return self._integers(text)[0] == integers
        except ParseError:
            return False

    def _integers(self, text: str) -> tuple[list[int], bool]:
        """Return the integers of a row, moved into their ranges, and whether one was moved."""
        integers = read_row(cut_thoughts(text), len(self.frame.parts))
        clipped = False
        for i, part in enumerate(self.frame.parts):
            inside = min(max(integers[i], part.first), part.last)
            if part.first == part.last:  # a fixed dimension: any answer means its one value
                integers[i] = inside
            if self.reject and inside != integers[i] and isinstance(part, Levels):
                got, top = ascii_lowercase[integers[i]], ascii_lowercase[part.last]
                raise ParseError(f"place {i + 1} is {got}, expected at most {top}", text)
            clipped |= inside != integers[i]
            integers[i] = inside
        return integers, clipped
