"""Read an environment's docstring: its lists of observations and actions, and its text.

Gymnasium's environments have Markdown docstrings with tables or lists of observations and actions,
which name the signals. The model reads the rest itself.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium as gym


class Section(NamedTuple):
    """A heading with the text below it."""

    title: str  # as written; empty before the first heading
    body: str


def docstring_of(env: gym.Env[Any, Any]) -> str:
    """Return the docstring of the environment's class, or of the nearest base that has one.

    A base class's docstring is used only if it has an Observation or Action heading.
    """
    kind = type(env.unwrapped)
    text = vars(kind).get("__doc__")
    if text and isinstance(text, str):
        return inspect.cleandoc(text)
    for base in kind.__mro__[1:]:
        text = vars(base).get("__doc__") or ""
        if base is not gym.Env and re.search(r"^\s*#+ *(Observation|Action)", text, re.MULTILINE):
            return inspect.cleandoc(text)
    return ""


_FENCED = re.compile(
    r"^[ \t]*```.*?^[ \t]*```[ \t]*$|^[ \t]*<!--.*?-->[ \t]*$", re.MULTILINE | re.DOTALL
)
_HEADING = re.compile(
    r"^[ \t]*#{1,2}[ \t]+(.+?)[ \t:]*#*$|^([A-Z][A-Za-z]*(?: [A-Za-z]+)?):[ \t]*$"
)


def sections_of(doc: str) -> list[Section]:
    """Split a docstring at its headings; deeper ones stay in the text of their section."""
    parts: list[tuple[str, list[str]]] = [("", [])]
    for line in _FENCED.sub("", doc).splitlines():
        heading = _HEADING.match(line)
        if heading is None:
            parts[-1][1].append(line)
        else:
            parts.append((heading[1] or heading[2], []))
    return [Section(title.strip(), "\n".join(lines).strip("\n")) for title, lines in parts]


def find(sections: Sequence[Section], start: str) -> str:
    """Return the text of all sections whose title begins with `start`."""
    return "\n\n".join(s.body for s in sections if s.body and s.title.lower().startswith(start))


_NUMBER_HEADS = {"num", "num.", "number", "index", "idx", "no", "no.", "#", "id", ""}
_ITEM = re.compile(r"^\s*[-*]\s+`?(\d+)`?\s*[:=]\s*(.+?)\s*$")
_NAMED_ITEM = re.compile(
    r"^\s*(?:[-*]\s+)?`?([A-Za-z_]\w*(?: \w+){0,2})`?(?:\s*\([^)]*\))?:\s+(.+?)\s*$"
)


def numbered(text: str) -> tuple[dict[int, str], list[str]]:
    """Return the meanings in a section's first numbered table or list, and of "excluded" rows."""
    rows: dict[int, str] = {}
    excluded: list[str] = []
    head: list[str] = []
    for line in text.splitlines():
        if not line.lstrip().startswith("|"):
            if rows:
                break
            head = []
            continue
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if not head:
            head = [c.lower() for c in cells]
        elif head[0] in _NUMBER_HEADS and len(cells) > 1 and len(head) > 1:
            # "Type (Unit)" has "angle (rad)", "Unit" has "rad"
            units = [
                f"({c})" if h in ("unit", "units") and c.strip("-–—") and "(" not in c else c
                for c, h in zip(cells, head, strict=False)
                if "unit" in h
            ]
            unit = re.search(r"\(([^()]+)\)", units[0] if units else "")
            meaning = plain(cells[1]) + (f" ({unit[1]})" if unit else "")
            if cells[0].isdigit():
                rows.setdefault(int(cells[0]), meaning)
            elif cells[0].lower() == "excluded":
                excluded.append(meaning)
    for item in () if rows else map(_ITEM.match, text.splitlines()):
        if item is not None:
            if int(item[1]) in rows:
                break  # a second list is about something else
            rows[int(item[1])] = plain(item[2])
    return rows, excluded


def meanings(text: str, count: int) -> list[str]:
    """Return a section's meanings of `count` quantities, one for each, or none."""
    rows, excluded = numbered(text)
    if rows and sorted(rows) == list(range(len(rows))):
        listed = [rows[i] for i in range(len(rows))]
        if len(listed) == count:
            return listed
        if excluded and len(excluded) + len(listed) == count:
            return excluded + listed
    if count == 1:
        said = re.search(r"\brepresent(?:s|ing)\s+(?:the\s+)?([^.|]+)", text)
        if said is not None:
            return [" ".join(plain(said[1]).split())]
    named = [m for m in map(_NAMED_ITEM.match, text.splitlines()) if m]
    return [f"{m[1]}: {plain(m[2])}" for m in named] if len(named) == count else []


_MARKUP: tuple[tuple[str, str], ...] = (
    (r"!\[[^\]]*\]\([^)]*\)", ""),
    (r"\[([^\]\[]+)\]\([^)\s]*\)", r"\1"),
    (r"<sub>(.*?)</sub>", r"_\1"),
    (r"<sup>(.*?)</sup>", r"^\1"),
    (r"</?\w+[^>]*>", ""),
    (r"\*\*\*|\*\*", ""),
)
_OF_TABLES: tuple[tuple[str, str], ...] = (
    (r"(?<![\w*])\*(?=\S)(.+?)(?<=\S)\*(?![\w*])", r"\1"),
    (r"\\_", "_"),
    (r"\\infty", "inf"),
    (r"[`$]+", ""),
    (r"[ \t]+", " "),
)


def plain(text: str) -> str:
    """Convert the Markdown of a table's cell to plain text."""
    for pattern, replacement in (*_MARKUP, *_OF_TABLES):
        text = re.sub(pattern, replacement, text)
    return text.strip()


_SKIPPED = ("version", "reference", "credit", "citation", "vectorized", "rendering", "information",
            "installation", "attributes", "methods")  # fmt: skip


def quote(sections: Sequence[Section], most: int, *, tables: bool, arguments: bool) -> str:
    """Return the text of a docstring, in at most `most` characters.

    Code, history, references and links are dropped; `tables` and the section on `arguments` on
    request. A text that is cut says so.
    """
    lines: list[str] = []
    skipped = _SKIPPED if arguments else (*_SKIPPED, "argument")
    for title, body in sections:
        rows = body.splitlines() if not title.lower().startswith(skipped) else []
        dropped = ("```",) if tables else ("```", "|")
        rows = [row for row in rows if not row.lstrip().startswith(dropped)]
        if any(row.strip() for row in rows):
            lines += ["", f"{title}:" if title else "", *rows]
    text = "\n".join(line.rstrip() for line in lines)
    for pattern, replacement in _MARKUP:
        text = re.sub(pattern, replacement, text)
    text = re.sub(r"\n\s*\n+", "\n", text).strip("\n")
    if len(text) <= most:
        return text
    end = " … (cut)"
    kept = text[: max(most - len(end), 0)].rpartition("\n")[0]
    return kept + end if kept else ""
