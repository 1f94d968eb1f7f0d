"""Rows of letters, `` k h q``: how an answer to `ColumnsPrompt` is read.

A row has one letter for each dimension; with its space a letter is one token in the usual
vocabularies.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from string import ascii_lowercase

import numpy as np

from llmopt.errors import ParseError
from llmopt.prompt.answer_parts import Reading
from llmopt.prompt.columns.frame import Frame


def row_grammar(varying: np.ndarray) -> str:
    """Return the GBNF grammar of one row, and its line break; a fixed dimension has an ``a``."""
    rules = {kind: f"i{k}" for k, kind in enumerate(dict.fromkeys(map(bool, varying)))}
    row = " ".join(f'" " {rules[bool(kind)]}' for kind in varying)
    ranges = [f"{name} ::= [a-{'z' if kind else 'a'}]" for kind, name in rules.items()]
    return "\n".join([rf'root ::= {row} "\n"', *ranges])


@dataclass(frozen=True)
class RowReader:
    """Reads one row as a point; see `Question.read`.

    With `dither` a row is placed elsewhere in its cells for each seed, so that a repeated row is
    another point.
    """

    frame: Frame
    seed: int
    dither: bool

    def __call__(self, text: str) -> Reading:
        """Return the point of a row.

        Raises:
            ParseError: The text holds something else than one letter for each dimension.
        """
        levels = self._levels(text)
        if levels is None:
            n = len(self.frame.space)
            raise ParseError(f"expected one line of {n} letters, separated by spaces", text)
        within = np.full(len(levels), 0.5)
        if self.dither:
            digest = zlib.crc32(",".join(map(str, levels)).encode())
            within = np.random.default_rng([self.seed, digest, 0]).random(len(levels))
        values, inside = (
            self.frame.point(np.array(levels), within, reflect=r) for r in (False, True)
        )
        return Reading(values, "", clipped=False, otherwise=inside if inside != values else None)

    def _levels(self, text: str) -> list[int] | None:
        varying = self.frame.varying
        if not re.fullmatch(
            rf"\s*[a-z](?:[ ,]+[a-z]){{{len(varying) - 1}}}\s*", text, re.IGNORECASE
        ):
            return None
        letters = re.findall("[a-z]", text.lower())
        # A fixed dimension: any answer means its one value.
        return [
            ascii_lowercase.index(c) if several else 0
            for c, several in zip(letters, varying, strict=True)
        ]
