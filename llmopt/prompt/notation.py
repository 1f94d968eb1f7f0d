"""How a `PatternPrompt` writes a row of integers, and reads one back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import ascii_lowercase
from typing import Protocol

from llmopt.errors import ParseError
from llmopt.prompt.frame import Cells, Levels, whole_cells

_INTEGER = re.compile(r"(?<![\w.])-?[0-9]{1,9}(?:\.[0-9]{1,9})?(?![\w.]?[0-9])")
# Letters that stand by themselves, one after the other on a line: no word is part of a row.
_LETTERS = re.compile(r"(?<![\w'])[A-Za-z](?:[^\w\n']{1,4}[A-Za-z])*(?![\w'])")
_LETTER = re.compile(r"[A-Za-z]")
_WORD = re.compile(r"[^\W\d_]{2}")


class Notation(Protocol):
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

    def line(self, row: Sequence[int]) -> str:
        """Return a row as text, without a line break."""
        ...

    def numbers(self, text: str, n: int) -> list[int]:
        """Read a row of `n` integers from an answer.

        Raises:
            ParseError: There are fewer.
        """
        ...

    def grammar(self, parts: Sequence[Levels | Cells]) -> str:
        """Return the GBNF grammar of one line in these ranges."""
        ...

    def tokens(self, parts: Sequence[Levels | Cells]) -> int:
        """Return the tokens of the longest line where every character is one, with room."""
        ...


class Integers:
    """``53,41,70``: about three tokens a number."""

    exact = 100
    # 0 stands for the lower bound and 99 for the upper one, each in the middle of its cell.
    whole = whole_cells(0, 99)
    window = (10, 99)
    words = "{n} integers, separated by commas"

    def line(self, row: Sequence[int]) -> str:
        """Return a row as text, without a line break."""
        return ",".join(map(str, row))

    def numbers(self, text: str, n: int) -> list[int]:
        """Read a row of `n` integers from an answer.

        Raises:
            ParseError: There are fewer.
        """
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

    def grammar(self, parts: Sequence[Levels | Cells]) -> str:
        """Return the GBNF grammar of one line: integers, commas, line break."""
        rules: dict[tuple[int, int], str] = {}
        for part in parts:
            rules.setdefault((part.first, part.last), f"i{len(rules)}")
        line = ' "," '.join(rules[part.first, part.last] for part in parts)
        body = [f"{name} ::= {integer_range(*bounds)}" for bounds, name in rules.items()]
        return "\n".join([rf'root ::= {line} "\n"', *body])

    def tokens(self, parts: Sequence[Levels | Cells]) -> int:
        """Return the tokens of the longest line where every character is one, with room."""
        return 8 + sum(len(str(part.last)) + 2 for part in parts)


class Letters:
    """`` k h q``: one token for a letter with its space in the usual vocabularies."""

    exact = len(ascii_lowercase)
    whole = whole_cells(0, exact - 1)
    window = (0, exact - 1)
    words = "{n} letters, separated by spaces, each a level from a, the lowest, to z, the highest"

    def line(self, row: Sequence[int]) -> str:
        """Return a row as text, without a line break."""
        return "".join(f" {ascii_lowercase[k]}" for k in row)

    def numbers(self, text: str, n: int) -> list[int]:
        """Read a row of `n` integers from an answer.

        Raises:
            ParseError: There are fewer.
        """
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

    def grammar(self, parts: Sequence[Levels | Cells]) -> str:
        """Return the GBNF grammar of one line: a space before each letter, a line break."""
        rules: dict[tuple[int, int], str] = {}
        for part in parts:
            rules.setdefault((part.first, part.last), f"i{len(rules)}")
        line = " ".join(f'" " {rules[part.first, part.last]}' for part in parts)
        body = [
            f"{name} ::= [{ascii_lowercase[first]}-{ascii_lowercase[last]}]"
            for (first, last), name in rules.items()
        ]
        return "\n".join([rf'root ::= {line} "\n"', *body])

    def tokens(self, parts: Sequence[Levels | Cells]) -> int:
        """Return the tokens of the longest line where every character is one, with room."""
        return 8 + 2 * len(parts)


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
