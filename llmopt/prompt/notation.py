"""How a `PatternPrompt` writes a row of integers, and reads one back."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from string import ascii_lowercase

from llmopt.errors import ParseError
from llmopt.prompt.frame import Cells, Levels, whole_cells

_INTEGER = re.compile(r"(?<![\w.])-?[0-9]{1,9}(?:\.[0-9]{1,9})?(?![\w.]?[0-9])")
# Letters that stand by themselves, one after the other on a line: no word is part of a row.
_LETTERS = re.compile(r"(?<![\w'])[A-Za-z](?:[^\w\n']{1,4}[A-Za-z])*(?![\w'])")
_LETTER = re.compile(r"[A-Za-z]")
_WORD = re.compile(r"[^\W\d_]{2}")


class Notation(ABC):
    """A way to write rows.

    Attributes:
        exact: With at most this many values a dimension is shown by their index.
        whole: Cells of a continuous dimension over its whole range.
        window: Lowest and highest integer of cells over a part of the range.
        words: A row in words, for a chat; ``{n}`` stands for its length.
    """

    exact: int
    whole: Cells
    window: tuple[int, int]
    words: str
    _before: str  # stands before each item
    _between: str  # stands between two items

    @abstractmethod
    def numbers(self, text: str, n: int) -> list[int]:
        """Read a row of `n` integers from an answer.

        Raises:
            ParseError: There are fewer.
        """

    @abstractmethod
    def _item(self, integer: int) -> str:
        """Return an integer as text."""

    @abstractmethod
    def _range(self, first: int, last: int) -> str:
        """Return the grammar of the items in a range."""

    def line(self, row: Sequence[int]) -> str:
        """Return a row as text, without a line break."""
        return self._between.join([self._before + self._item(k) for k in row])

    def grammar(self, parts: Sequence[Levels | Cells]) -> str:
        """Return the GBNF grammar of one line in these ranges, and its line break."""
        rules: dict[tuple[int, int], str] = {}
        for part in parts:
            rules.setdefault((part.first, part.last), f"i{len(rules)}")
        before = f'"{self._before}" ' if self._before else ""
        between = f' "{self._between}" ' if self._between else " "
        line = between.join(before + rules[part.first, part.last] for part in parts)
        body = [f"{name} ::= {self._range(*bounds)}" for bounds, name in rules.items()]
        return "\n".join([rf'root ::= {line} "\n"', *body])

    def tokens(self, parts: Sequence[Levels | Cells]) -> int:
        """Return the tokens of the longest line where every character is one, with room."""
        return 8 + sum(len(self._item(part.last)) + 1 + len(self._between) for part in parts)


class Integers(Notation):
    """``53,41,70``: about three tokens a number."""

    exact = 100
    # 0 stands for the lower bound and 99 for the upper one, each in the middle of its cell.
    whole = whole_cells(0, 99)
    window = (10, 99)
    words = "{n} integers, separated by commas"
    _before, _between = "", ","

    def numbers(self, text: str, n: int) -> list[int]:
        """Read the first line of `n` integers, or the first `n` of all."""
        lines = [_INTEGER.findall(line) for line in text.splitlines()]
        exact = next((line for line in lines if len(line) == n), None)
        longer = next((line for line in lines if len(line) > n), None)
        numbers = exact or longer or [match for line in lines for match in line]
        if len(numbers) < n:
            raise ParseError(
                f"found {len(numbers)} integers, expected one line of {n}, separated by commas",
                text,
            )
        return [round(float(number)) for number in numbers[:n]]

    def _item(self, integer: int) -> str:
        return str(integer)

    def _range(self, first: int, last: int) -> str:
        return integer_range(first, last)


class Letters(Notation):
    """`` k h q``: one token for a letter with its space in the usual vocabularies."""

    exact = len(ascii_lowercase)
    whole = whole_cells(0, exact - 1)
    window = (0, exact - 1)
    words = "{n} letters, separated by spaces, each a level from a, the lowest, to z, the highest"
    _before, _between = " ", ""

    def numbers(self, text: str, n: int) -> list[int]:
        """Read the first row of `n` letters that stand by themselves."""
        runs = [_LETTER.findall(run) for run in _LETTERS.findall(text)]
        lines = [line for line in text.splitlines() if not _WORD.search(line)]
        joined = [letter for line in lines for letter in _LETTER.findall(line)]
        letters = next((run for run in [*runs, joined] if len(run) == n), None)
        if letters is None:
            given = max([*map(len, runs), len(joined)])
            raise ParseError(
                f"found {given} letters, expected one line of {n}, separated by spaces", text
            )
        return [ascii_lowercase.index(letter.lower()) for letter in letters]

    def _item(self, integer: int) -> str:
        return ascii_lowercase[integer]

    def _range(self, first: int, last: int) -> str:
        return f"[{ascii_lowercase[first]}-{ascii_lowercase[last]}]"


def integer_range(first: int, last: int) -> str:
    """Return a GBNF expression for the integers from `first` to `last`, without leading zeros."""
    options: list[str] = []
    for length in range(len(str(first)), len(str(last)) + 1):
        least = 0 if length == 1 else 10 ** (length - 1)
        low, high = max(first, least), min(last, 10**length - 1)
        options += _same_length(str(low), str(high))
    return " | ".join(options)


def _same_length(low: str, high: str) -> list[str]:
    if len(low) == 1:
        return [f"[{low}-{high}]"]
    rest = len(low) - 1
    if low[0] == high[0]:
        return [f'"{low[0]}" {option}' for option in _same_length(low[1:], high[1:])]
    first, last = int(low[0]), int(high[0])
    below: list[str] = []
    above: list[str] = []
    if low[1:] != "0" * rest:
        below = [f'"{first}" {option}' for option in _same_length(low[1:], "9" * rest)]
        first += 1
    if high[1:] != "9" * rest:
        above = [f'"{last}" {option}' for option in _same_length("0" * rest, high[1:])]
        last -= 1
    middle = [f"[{first}-{last}]" + " [0-9]" * rest] if first <= last else []
    return below + middle + above
