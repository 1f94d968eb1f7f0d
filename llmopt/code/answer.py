"""Read a model's answer in a search over code: fenced blocks, as the prompt asks.

Nothing is guessed: an answer in another form is sent back with a complaint. The code is not
changed and not parsed here.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from llmopt.errors import ParseError
from llmopt.prompt.python_block import MOST_CODE
from llmopt.prompt.thoughts import cut_thoughts
from llmopt.util.text import clean

MAX_SOURCE = 100_000
"""Maximum characters of code."""
MAX_ANSWER = 1_000_000
"""Maximum characters of an answer."""
_MAX_EXPLANATION = 4000
_OPEN = re.compile(r"^[ \t]*(```+|~~~+)[ \t]*([^\n`]*)$", re.MULTILINE)
_PYTHON = ("", "python", "python3", "py")
_RUN = re.compile(r"(?:(?:python3?|py)\s+)?run", re.IGNORECASE)
_DEF = re.compile(r"^(?:async[ \t]+)?def[ \t]+\w+[ \t]*\(", re.MULTILINE)
_LANGUAGE_LINE = re.compile(r"\A\s*(?:python3?|py)\s*\n", re.IGNORECASE)
_STOP = re.compile(r"^[\s*_#>-]*proposal[\s*_]*:[\s*_`\"']*stop\b", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True)
class CodeAnswer:
    """What an answer holds: code, a block of Python to run, or the end of the search.

    Attributes:
        source: The code; empty for a block and for the end.
        explanation: The model's words.
        run: The block to run.
        stop: Whether the model ends the search.
        unterminated: Whether the block of the code has no end.
    """

    source: str = ""
    explanation: str = ""
    run: str = ""
    stop: bool = False
    unterminated: bool = False


def read_answer(text: str, *, computes: bool = False, may_stop: bool = False) -> CodeAnswer:
    """Read an answer without its thoughts (`cut_thoughts`).

    The code is the last block of Python that defines a function: an earlier one is a draft. An
    answer with code and a block to run is the code. With `computes` an answer may be a block to
    run, with `may_stop` the end of the search.

    Raises:
        ParseError: The answer holds none of these, or is too long.
    """
    if len(text) > MAX_ANSWER:
        raise ParseError(
            f"the answer has {len(text)} characters; {MAX_ANSWER} is the most", text[:MAX_ANSWER]
        )
    plain = re.sub("\r\n?", "\n", cut_thoughts(text)).replace("\ufeff", "").strip()
    answer = _from_blocks(plain, computes)
    if answer.source:
        if len(answer.source) > MAX_SOURCE:
            raise ParseError(
                f"the code has {len(answer.source)} characters; {MAX_SOURCE} is the most", text
            )
        return answer
    if answer.run or (answer.stop and may_stop):
        return answer
    raise ParseError(
        "the answer holds no code: expected one block between ```python and ``` that defines "
        "every function",
        text,
    )


def encodable(text: str) -> str:
    """Escape lone surrogates in a text: no file and no server accepts them.

    The escape keeps the meaning inside a string literal.
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _from_blocks(text: str, computes: bool) -> CodeAnswer:
    blocks, prose, unterminated = _blocks(text)
    runs = [code for language, code in blocks if computes and _RUN.fullmatch(language)]
    code = [
        (number, block)
        for number, (language, block) in enumerate(blocks)
        if (language.partition(" ")[0].lower() in _PYTHON or (not computes and language == "run"))
        and not (computes and _RUN.fullmatch(language))
        and _DEF.search(_tidy(block))
    ]
    number, source = code[-1] if code else (-1, "")
    return CodeAnswer(
        encodable(_tidy(source)) if code else "",
        encodable(prose)[:_MAX_EXPLANATION],
        "" if code else _to_run("\n".join(_tidy(run).rstrip() for run in runs)),
        not blocks and _STOP.search(prose) is not None,
        unterminated and number == len(blocks) - 1,
    )


def _blocks(text: str) -> tuple[list[tuple[str, str]], str, bool]:
    """Return the fenced blocks with their languages, the words around, and whether one is open."""
    blocks: list[tuple[str, str]] = []
    prose: list[str] = []
    at, opening = 0, None
    for mark in _OPEN.finditer(text):
        if opening is None:
            prose.append(text[at : mark.start()].strip())
            opening, at = mark, mark.end() + 1
        elif mark[1].startswith(opening[1]) and not mark[2].strip():
            blocks.append((opening[2].strip(), text[at : mark.start()]))
            opening, at = None, mark.end() + 1
    if opening is not None:
        blocks.append((opening[2].strip(), text[at:]))
    else:
        prose.append(text[at:].strip())
    return blocks, "\n".join(part for part in prose if part), opening is not None


def _to_run(code: str) -> str:
    return clean(encodable(code)).strip()[:MOST_CODE]


def _tidy(source: str) -> str:
    return textwrap.dedent(_LANGUAGE_LINE.sub("", source)).strip() + "\n"
