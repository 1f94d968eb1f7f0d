"""Extract the code from a model's answer: JSON, fenced blocks, or bare code, read tolerantly.

Nothing is parsed as Python here, and the code is not changed, so that it may contain type hints,
the word ``python`` or backticks in strings. Time is linear in the text's length, except for a
bounded number of attempts to read JSON.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llmopt.errors import ParseError
from llmopt.prompt.python_block import MOST_CODE
from llmopt.prompt.thoughts import cut_thoughts
from llmopt.util.text import clean

MAX_SOURCE = 100_000
"""Maximum characters of code."""
MAX_ANSWER = 1_000_000
"""Maximum characters of an answer."""
_MAX_EXPLANATION = 4000
_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[ \t]*([\w+-]*)[^\n]*$", re.MULTILINE)
_RUN = re.compile(r"(?:(?:python3?|py)\s+)?run", re.IGNORECASE)  # after the fence
_LANGUAGE_LINE = re.compile(r"\A\s*(python3?|py)\s*\n", re.IGNORECASE)
# An unindented line that can belong to a program; prose rarely looks like one.
_PROGRAM_LINE = re.compile(
    r"(?:(?:def|class|import|from|if|elif|for|while|with|return|async)[ \t]+\S"
    r"|(?:else|try|finally)[ \t]*:|except\b|pass$|[@#)\]}]|\"\"\"|'''"
    r"|[A-Za-z_][\w.]*[ \t]*(?:\[[^\]\n]*\][ \t]*)?(?::[^=\n]+)?[-+*/]?=[^=])"
)
# What ends a passage of prose: a fence, a JSON object, a program.
_MARK = re.compile(
    r"^[ \t]*(?P<fence>```+|~~~+)[^\n]*$"
    r"|(?P<json>\{)"
    r"|^(?P<bare>[ \t]*)(?:(?:async[ \t]+)?def[ \t]+\w+[ \t]*\(|class[ \t]+\w+[(:]"
    r"|import[ \t]+\w[\w., \t]*$|from[ \t]+[\w.]+[ \t]+import\b|@\w|[A-Z][A-Z_0-9]*[ \t]*=)",
    re.MULTILINE,
)
_ANY_DEF = re.compile(r"^[ \t]*(?:async[ \t]+)?def[ \t]+(\w+)[ \t]*\(", re.MULTILINE)
_DEF = re.compile(r"^(?:async[ \t]+)?def[ \t]+\w+[ \t]*\(", re.MULTILINE)
_MOST_JSON = 50  # maximum attempts to read JSON in one answer
_DECODER = json.JSONDecoder(strict=False)  # models put raw line breaks into strings


@dataclass(frozen=True)
class CodeAnswer:
    """The code in an answer, the model's explanation, and `params` values by name."""

    source: str
    explanation: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


def block_to_run(text: str, names: Sequence[str]) -> str:
    """Return the Python that a model wants to run; nothing if its answer defines all of `names`.

    The Python is in fenced blocks marked ``run`` or in the JSON entry ``"run"``. Other blocks are
    proposals, which are never run here.
    """
    if len(text) > MAX_ANSWER:
        return ""
    parts = _parts(_plain(cut_thoughts(text)), computes=True)
    blocks = list(parts.runs)
    for entry in (value.get("run") for value in parts.objects):
        if isinstance(entry, str):
            inner = _parts(entry, computes=True)
            blocks += inner.runs or inner.blocks or [entry]
    code = clean("\n".join(_tidy(block).rstrip() for block in blocks)).strip()[:MOST_CODE]
    try:
        proposed = _defined(read_answer(text, names, computes=True).source) if code else set()
    except ParseError:
        proposed = set()
    return "" if proposed >= set(names) else code


def read_answer(text: str, names: Sequence[str], *, computes: bool = False) -> CodeAnswer:
    """Read a model's answer that should define functions of these names.

    Prefers code that defines all of `names`; then JSON with a ``"code"`` entry, all fenced blocks
    with a definition except those replaced by later ones (models correct themselves), and bare
    code, in this order. Thoughts are skipped (`cut_thoughts`). JSON and tags inside a program
    belong to the program. With `computes` blocks to run are skipped (see `block_to_run`).

    Raises:
        ParseError: The answer contains no code, or is too long.
    """
    if len(text) > MAX_ANSWER:
        raise ParseError(
            f"the answer has {len(text)} characters; {MAX_ANSWER} is the most", text[:MAX_ANSWER]
        )
    parts = _parts(_plain(cut_thoughts(text)), computes)
    read = [a for a in map(_from_mapping, parts.objects) if a is not None]
    answers = [read[-1] if read else None, _from_blocks(parts)]
    found = [a for a in answers if a is not None]
    whole = [a for a in found if _defined(a.source) >= set(names)]
    answer = next(iter(whole or found), None)
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


def _plain(text: str) -> str:
    return re.sub("\r\n?", "\n", text).replace("\ufeff", "")


def encodable(text: str) -> str:
    """Escape lone surrogates in a text: no file and no server accepts them.

    JSON lets a model write them. The escape keeps the meaning inside a string literal.
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@dataclass
class _Parts:
    """The parts of an answer; `before` counts the prose before the first bare code."""

    prose: list[str] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)  # blocks to run
    objects: list[Mapping[str, Any]] = field(default_factory=list)
    bare: list[str] = field(default_factory=list)
    before: int = 0


def _parts(text: str, computes: bool = False) -> _Parts:
    """Split an answer into its parts, from start to end."""
    found, at, prose_from, tries = _Parts(), 0, 0, 0
    while (mark := _MARK.search(text, at)) is not None:
        at = mark.end()
        if mark["json"] and (tries := tries + 1) > _MOST_JSON:
            continue
        value = None
        if mark["json"]:
            value, end = _json_at(text, mark.start())
            if value is None:
                continue
        found.prose.append(text[prose_from : mark.start()].strip())
        if value is not None:
            found.objects.append(value)
            at = end
        elif mark["fence"]:
            at = _read_block(text, mark, found, computes)
        else:
            found.before = found.before or len(found.prose)
            source, end = _bare(text, mark.start(), mark["bare"])
            found.bare.append(source)
            at = max(at, end)
        prose_from = at
    found.prose.append(text[prose_from:].strip())
    return found


def _json_at(text: str, start: int) -> tuple[Mapping[str, Any] | None, int]:
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None, start
    return (value, end) if isinstance(value, dict) else (None, start)


def _read_block(text: str, opening: re.Match[str], found: _Parts, computes: bool) -> int:
    """Read a fenced block (JSON in it may contain fences); return its end."""
    start = opening.end()
    to_run = computes and _RUN.fullmatch(opening[0].strip("`~ \t")) is not None
    blocks = found.runs if to_run else found.blocks
    brace = re.compile(r"\s*(?=\{)").match(text, start)
    if brace is not None and not to_run:
        value, end = _json_at(text, brace.end())
        closing = re.compile(r"\s*(?:[`~]{3,}|\Z)").match(text, end)
        if value is not None and closing is not None:
            found.objects.append(value)
            return closing.end()
    for mark in _FENCE.finditer(text, start):
        if mark[1].startswith(opening["fence"]) and not mark[2]:
            blocks.append(text[start : mark.start()])
            return mark.end()
    blocks.append(text[start:])
    return len(text)


def _from_mapping(value: Mapping[str, Any]) -> CodeAnswer | None:
    lowered = {str(k).lower(): v for k, v in value.items()}
    code = lowered.get("code", lowered.get("suggestion"))
    if isinstance(code, Mapping):  # one entry for each function
        code = "\n\n".join(str(c) for c in code.values())
    elif isinstance(code, list):  # one entry for each line
        code = "\n".join(str(c) for c in code)
    if not isinstance(code, str) or not code.strip():
        return None
    inner = _from_blocks(_parts(code)) if "```" in code else None
    source = inner.source if inner is not None else _tidy(code)
    explanation = lowered.get("reasoning", lowered.get("explanation", lowered.get("answer", "")))
    values = lowered.get("values", lowered.get("params", lowered.get("parameters")))
    return CodeAnswer(
        source,
        str(explanation)[:_MAX_EXPLANATION],
        dict(values) if isinstance(values, Mapping) else {},
    )


def _from_blocks(parts: _Parts) -> CodeAnswer | None:
    programs = [b for b in parts.blocks if _ANY_DEF.search(b)]
    # A block is an earlier version if later blocks redefine everything in it.
    kept = [b for k, b in enumerate(programs) if not _defined(b) <= _defined(*programs[k + 1 :])]
    bare, prose = [b for b in parts.bare if _DEF.search(b)], parts.prose
    if kept:
        source = "\n\n".join(_tidy(b) for b in kept)
    elif bare:
        source, prose = bare[0], prose[: parts.before]
    else:
        return None
    explanation = "\n".join(part for part in prose if part)
    return CodeAnswer(_tidy(source), explanation[:_MAX_EXPLANATION], _values(parts.objects))


def _defined(*blocks: str) -> set[str]:
    return {name for block in blocks for name in _ANY_DEF.findall(block)}


def _bare(text: str, start: int, margin: str) -> tuple[str, int]:
    """Return the unfenced code that begins at `start`, and its end."""
    kept, at = [], start
    while at < len(text):
        end = text.find("\n", at) + 1 or len(text)
        line = text[at:end]
        if line.strip() and not line.startswith(margin):
            break
        line = line[len(margin) :]
        if line[:1] not in ("", "\n", " ", "\t") and not _PROGRAM_LINE.match(line):
            break
        kept.append(line)
        at = end
    return "".join(kept), at


def _values(objects: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Read the `params` values from separate JSON."""
    for value in objects:
        inner = value.get("values", value.get("params", value))
        if isinstance(inner, dict):
            return inner
    return {}


def _tidy(source: str) -> str:
    source = _LANGUAGE_LINE.sub("", source)
    return textwrap.dedent(source).strip() + "\n"
