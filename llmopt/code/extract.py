"""From a model's answer to the code in it: JSON, fenced blocks, or bare code, read tolerantly.

Nothing is parsed as Python here and no word of the code is changed: that it holds a type
hint, the word ``python`` or backticks in a string does no harm. Time grows linearly with
the text's length, but for a bounded number of tries to read JSON.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llmopt.errors import ParseError

MAX_SOURCE = 100_000
"""Characters of the longest code that is taken."""
MAX_ANSWER = 1_000_000
"""Characters of the longest answer that is read."""
_MAX_EXPLANATION = 4000
_THINK = re.compile(r"<(think|thinking|thought|reasoning)>.*?(</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[ \t]*([\w+-]*)[^\n]*$", re.MULTILINE)
_LANGUAGE_LINE = re.compile(r"\A\s*(python3?|py)\s*\n", re.IGNORECASE)
# A line at the left edge that can belong to a program; prose seldom looks like one.
_PROGRAM_LINE = re.compile(
    r"(?:(?:def|class|import|from|if|elif|for|while|with|return|async)[ \t]+\S"
    r"|(?:else|try|finally)[ \t]*:|except\b|pass$|[@#)\]}]|\"\"\"|'''"
    r"|[A-Za-z_][\w.]*[ \t]*(?:\[[^\]\n]*\][ \t]*)?(?::[^=\n]+)?[-+*/]?=[^=])"
)
_START = re.compile(
    r"^([ \t]*)(?:(?:async[ \t]+)?def[ \t]+\w+[ \t]*\(|class[ \t]+\w+[(:]|import[ \t]+\w[\w., \t]*$"
    r"|from[ \t]+[\w.]+[ \t]+import\b|@\w|[A-Z][A-Z_0-9]*[ \t]*=)",
    re.MULTILINE,
)
_ANY_DEF = re.compile(r"^[ \t]*(?:async[ \t]+)?def[ \t]+(\w+)[ \t]*\(", re.MULTILINE)
_DEF = re.compile(r"^(?:async[ \t]+)?def[ \t]+\w+[ \t]*\(", re.MULTILINE)


@dataclass(frozen=True)
class CodeAnswer:
    """What was read.

    Attributes:
        source: Python source.
        explanation: What the model said about it.
        values: Numbers and choices beside the code, by name; empty if there are none.
    """

    source: str
    explanation: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


def read_answer(text: str, names: Sequence[str]) -> CodeAnswer:
    """Read a model's answer.

    JSON with a ``"code"`` entry counts first, then the fenced block that defines all of
    `names` (the last such one, for models that correct themselves), then all fenced blocks
    with a definition in them together, then bare code.

    Args:
        text: The answer.
        names: Functions that were asked for.

    Raises:
        ParseError: There is no code in it, or it is too long.
    """
    if len(text) > MAX_ANSWER:
        raise ParseError(
            f"the answer has {len(text)} characters; {MAX_ANSWER} is the most", text[:MAX_ANSWER]
        )
    body = re.sub("\r\n?", "\n", _THINK.sub("", text)).replace("\ufeff", "")
    answer = _from_json(body, names) or _from_text(body, names)
    if answer is None:
        wanted = " and ".join(f"`def {n}(...)`" for n in names)
        raise ParseError(
            'the answer holds no code: expected a JSON object with the key "code", or one '
            f"block fenced with ```python, that defines {wanted}",
            text,
        )
    if len(answer.source) > MAX_SOURCE:
        raise ParseError(
            f"the code has {len(answer.source)} characters; {MAX_SOURCE} is the most", text
        )
    return replace(
        answer, source=encodable(answer.source), explanation=encodable(answer.explanation)
    )


def encodable(text: str) -> str:
    """Return a text with half surrogate pairs, which no file and no server takes, spelt out.

    JSON lets a model write them. In a string literal the code means the same as before.
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _from_json(text: str, names: Sequence[str]) -> CodeAnswer | None:
    decoder = json.JSONDecoder(strict=False)  # models put raw line ends into strings
    answer = None
    tried = 0
    at = text.find("{")
    while at >= 0 and tried < 50:
        tried += 1
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at = text.find("{", at + 1)
            continue
        if isinstance(value, dict):
            answer = _from_mapping(value, names) or answer
        at = text.find("{", end)
    return answer


def _from_mapping(value: Mapping[str, Any], names: Sequence[str]) -> CodeAnswer | None:
    lowered = {str(k).lower(): v for k, v in value.items()}
    code = lowered.get("code", lowered.get("suggestion"))
    if isinstance(code, Mapping):  # one entry for each function
        code = "\n\n".join(str(c) for c in code.values())
    elif isinstance(code, list):  # one entry for each line
        code = "\n".join(str(c) for c in code)
    if not isinstance(code, str) or not code.strip():
        return None
    inner = _from_text(code, names) if "```" in code else None
    source = inner.source if inner is not None else _tidy(code)
    explanation = lowered.get("reasoning", lowered.get("explanation", lowered.get("answer", "")))
    values = lowered.get("values", lowered.get("params", lowered.get("parameters")))
    return CodeAnswer(
        source,
        str(explanation)[:_MAX_EXPLANATION],
        dict(values) if isinstance(values, Mapping) else {},
    )


def _from_text(text: str, names: Sequence[str]) -> CodeAnswer | None:
    blocks, prose = _blocks(text)
    programs = [b for b in blocks if _ANY_DEF.search(b)]
    whole = [b for b in programs if all(_defines(b, n) for n in names)]
    if whole:
        source = _with_helpers(whole[-1], programs, names)
    elif programs:
        source = "\n\n".join(_tidy(b) for b in programs)
    else:
        bare, prose = _bare(text)
        if bare is None:
            return None
        source = bare
    return CodeAnswer(_tidy(source), prose.strip()[:_MAX_EXPLANATION], _values(blocks))


def _with_helpers(chosen: str, programs: Sequence[str], names: Sequence[str]) -> str:
    """Put the blocks in front that define other functions and none that was asked for."""
    have = set(_ANY_DEF.findall(chosen)) | set(names)
    parts = []
    for block in programs:
        if block is chosen:
            break
        if not have & set(_ANY_DEF.findall(block)):
            parts.append(_tidy(block))
    return "\n\n".join((*parts, _tidy(chosen)))


def _defines(block: str, name: str) -> bool:
    return name in _ANY_DEF.findall(block)


def _blocks(text: str) -> tuple[list[str], str]:
    """Return the fenced blocks, one that was never closed included, and the rest."""
    blocks, rest = [], []
    at, opened, fence = 0, None, ""
    for mark in _FENCE.finditer(text):
        if opened is None:
            rest.append(text[at : mark.start()])
            opened, fence = mark.end(), mark[1]
        elif mark[1].startswith(fence) and not mark[2]:
            blocks.append(text[opened : mark.start()])
            at, opened = mark.end(), None
    if opened is None:
        rest.append(text[at:])
    else:
        blocks.append(text[opened:])
    return blocks, "\n".join(part.strip() for part in rest if part.strip())


def _bare(text: str) -> tuple[str | None, str]:
    """Return code that stands in the text with no fence, and the prose before it."""
    first = _START.search(text)
    if first is None:
        return None, ""
    start, margin, kept = first.start(), first[1], []
    for line in text[start:].splitlines():
        if line.strip() and not line.startswith(margin):
            break
        line = line[len(margin) :]
        if line[:1] not in ("", " ", "\t") and not _PROGRAM_LINE.match(line):
            break
        kept.append(line)
    source = "\n".join(kept)
    return (source, text[:start]) if _DEF.search(source) else (None, "")


def _values(blocks: Sequence[str]) -> dict[str, Any]:
    """Read the values that stand in a JSON block of their own."""
    for block in blocks:
        try:
            value = json.loads(block)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            inner = value.get("values", value.get("params", value))
            if isinstance(inner, dict):
                return inner
    return {}


def _tidy(source: str) -> str:
    source = _LANGUAGE_LINE.sub("", source)
    return textwrap.dedent(source).strip() + "\n"
