"""Parse an environment's docstring: its sections, and its lists of observations and actions.

Gymnasium's environments have Markdown docstrings: tables or lists of observations and actions, and
sections on the reward, the initial state and the end of an episode.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym


@dataclass(frozen=True)
class Section:
    """A heading with the text below it."""

    title: str
    body: str


def docstring_of(env: gym.Env[Any, Any]) -> str:
    """Return the docstring of the environment's class, or of the nearest base that has one.

    A base class's docstring is used only if it has an Observation or Action heading.
    """
    kind = type(env.unwrapped)
    own = vars(kind).get("__doc__")
    if own and isinstance(own, str):
        return inspect.cleandoc(own)
    for base in kind.__mro__[1:]:
        text = vars(base).get("__doc__") or ""
        if base is not gym.Env and re.search(r"^\s*#+ *(Observation|Action)", text, re.MULTILINE):
            return inspect.cleandoc(text)
    return ""


_FENCED = re.compile(
    r"^[ \t]*```.*?^[ \t]*```[ \t]*$|^[ \t]*<!--.*?-->[ \t]*$", re.MULTILINE | re.DOTALL
)
_HEADING = re.compile(
    r"^[ \t]*(#{1,6})[ \t]+(.+?)[ \t:]*#*$|^([A-Z][A-Za-z]*(?: [A-Za-z]+)?):[ \t]*$"
)


def sections_of(doc: str) -> list[Section]:
    """Split a docstring at its headings; deeper ones stay in the text of their section."""
    found: list[tuple[str, list[str]]] = [("", [])]
    for line in without_code(doc).splitlines():
        heading = _HEADING.match(line)
        if heading is None:
            found[-1][1].append(line)
        elif len(heading[1] or "") > 2:
            found[-1][1].append(f"{heading[2]}:")
        else:
            found.append(((heading[2] or heading[3]).strip(), []))
    return [Section(title, "\n".join(lines).strip()) for title, lines in found]


def without_code(text: str) -> str:
    """Remove fenced code and comments, and the words that announce them, from a text."""
    *before, last = _FENCED.split(text)
    return "".join([*map(_announced, before), last])


def _announced(text: str) -> str:
    """Drop the last sentence of a text if it ends with a colon: it announces removed text."""
    whole = text.rstrip()
    if not whole.endswith(":") or whole.rpartition("\n")[2].lstrip().startswith("#"):
        return text
    ends = [m.end() for m in re.finditer(r"[.!?](?=\s)|\n\s*\n|:\n", whole)]
    return whole[: ends[-1]] if ends else ""


def find(sections: Sequence[Section], *starts: str) -> str:
    """Return the text of all sections whose title begins with one of `starts`."""
    return "\n\n".join(s.body for s in sections if s.body and s.title.lower().startswith(starts))


_NUMBER_HEADS = {"num", "num.", "number", "index", "idx", "no", "no.", "#", "id", ""}
_ITEM = re.compile(r"^\s*[-*]\s+`?(\d+)`?\s*[:=]\s*(.+?)\s*$")
_NAMED_ITEM = re.compile(r"^\s*(?:[-*]\s+)?`?([A-Za-z_]\w*)`?(?:\s*\([^)]*\))?:\s+(.+?)\s*$")


def numbered(text: str) -> tuple[dict[int, str], list[str]]:
    """Return the meanings in a section's first numbered table or list."""
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
            units = [c for c, h in zip(cells, head, strict=False) if "unit" in h]
            unit = units[0] if units else ""
            inside = re.search(r"\(([^()]+)\)", unit)
            meaning = plain(cells[1]) + (f" ({inside[1]})" if inside else "")
            if cells[0].isdigit():
                rows.setdefault(int(cells[0]), meaning)
            elif cells[0].lower() == "excluded":
                excluded.append(meaning)
    if not rows:
        for line in text.splitlines():
            item = _ITEM.match(line)
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
    if len(named) == count:
        return [f"{m[1]}: {plain(m[2])}" for m in named]
    return []


def numbering(text: str) -> str:
    """Return the sentences on the numbering of the states."""
    prose = clean_markdown(text)
    sentences = re.split(r"(?<=[.:])\s+(?=[A-Z`(])", prose.replace("\n", " "))
    said = " ".join(s for s in sentences if re.search(r"\w\s*[*+]\s*\w|position", s))
    return said[:400].rstrip(".")


_SKIPPED = ("version", "reference", "credit", "citation", "vectorized", "rendering", "information",
            "installation", "attributes", "methods")  # fmt: skip
_OF_LISTS, _OF_ARGUMENTS = 4, 9
# Beginnings of section titles with ranks: a lower rank is kept sooner.
_RANKS = (("argument", _OF_ARGUMENTS), ("observation|action", _OF_LISTS), ("reward", 1),
          (r"(.*\s)?end(\s|$)|termin|trunc|episode", 2), ("description$", 3), (".*dynamics", 5),
          ("start", 6))  # fmt: skip


def chosen(
    sections: list[Section], doc: str, kwargs: dict[str, Any], *, discrete: bool | None = None
) -> list[tuple[str, str, int]]:
    """Return titles, texts and ranks (a lower rank is kept sooner) of sections to show.

    `discrete` is whether actions are discrete; text on the other variant is dropped.
    """
    other = {True: "continuous", False: "discrete"}.get(discrete, "")  # type: ignore[arg-type]
    chosen: list[tuple[str, str, int]] = []
    if len(sections) == 1:  # no headings: the whole text is the description
        return [("Description", clean_markdown(sections[0].body), 0)] if doc else []
    for section in sections:
        title = section.title.lower()
        if not title:
            title, section = "description", replace(section, title="Description")
        text = clean_markdown(section.body)
        if not text or title.startswith(_SKIPPED):
            continue
        rank = next((rank for start, rank in _RANKS if re.match(start, title)), 7)
        if rank == _OF_ARGUMENTS:
            text = _arguments(section.body, kwargs, other)
        elif rank == _OF_LISTS:
            text = _notes(text)
        text = _announced(_without_variant(text, other) if rank != _OF_ARGUMENTS else text)
        if text and chosen and chosen[-1][0] == section.title:
            chosen[-1] = (section.title, f"{chosen[-1][1]}\n{text}", rank)
        elif text:
            chosen.append((section.title, text, rank))
    return chosen


def _without_variant(text: str, other: str) -> str:
    """Drop sentences on the kind of actions that the environment does not have."""
    if not other:
        return text
    used = "discrete" if other == "continuous" else "continuous"
    lines = []
    for line in text.splitlines():
        sentences = re.split(r"(?<=[.:])\s+(?=[A-Z`])", line)
        about = re.compile(rf"\b{other}\b[^.]*\bactions?\b", re.IGNORECASE)
        kept = [s for s in sentences if used in s.lower() or not about.search(s)]
        lines += [" ".join(kept)] if kept else []
    return "\n".join(lines)


def _notes(text: str) -> str:
    """Drop advice, and facts that the list of names repeats, from the text around a table."""
    kept: list[str] = []
    for line in text.splitlines():
        if line.startswith("- ") and re.match(r"- (?:`?\d+`?\s*[:=]|\w+ \(\d+ elements?)", line):
            if kept and kept[-1].endswith(":"):
                kept[-1] = _announced(kept[-1])
            continue
        sentences = re.split(r"(?<=[.:])\s+(?=[A-Z`])", line)
        useful = [
            s
            for s in sentences
            if not re.search(
                r"ndarray|elements? (?:are|correspond)|following parts|by default\b|during "
                r"construction|(?:is|be) an? `?Box|shape is|regardless of|returned as an|"
                r"discrete determ",
                s,
                re.IGNORECASE,
            )
        ]
        if useful:
            kept.append(" ".join(useful))
    return "\n".join(filter(None, kept))


def _arguments(body: str, kwargs: dict[str, Any], other: str) -> str:
    """Return the text on arguments: a complete list, or a table's rows on the given arguments.

    Only the first sentence is kept on an argument named after the `other` variant.
    """
    rows = []
    for line in body.splitlines():
        if line.lstrip().startswith("|"):
            cells = [c.strip().strip("`") for c in line.strip().strip("|").split("|")]
            if cells[0] in kwargs:
                rows.append(f"- {cells[0]}: {plain(cells[-1])}")
    if rows:
        return "\n".join(rows)
    items = re.split(r"^\s*\*\s+", body, flags=re.MULTILINE)[1:]
    texts = (clean_markdown(item).replace("\n", " ") for item in items)
    return "\n".join(
        f"- {t.partition('. ')[0].rstrip('.')}." if other and t.startswith(other) else f"- {t}"
        for t in texts
    )


_MARKUP: tuple[tuple[str, str], ...] = (
    (r"!\[[^\]]*\]\([^)]*\)", ""),
    (r"\[([^\]\[]+)\]\([^)\s]*\)", r"\1"),
    (r"<sub>(.*?)</sub>", r"_\1"),
    (r"<sup>(.*?)</sup>", r"^\1"),
    (r"</?\w+/?>", ""),
    (r"\*\*\*|\*\*", ""),
    (r"(?<![\w*])\*(?=\S)(.+?)(?<=\S)\*(?![\w*])", r"\1"),
    (r"\(`?(observation\[[^\]]*\])`?\s+if\s+`?exclude[^)]*\)", r"(\1)"),
    (r"\s*\(if\s+`exclude_[^)]*\)", ""),
    (r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"\1/\2"),
    (r"\\times", "*"),
    (r"\\infty", "inf"),
    (r"\\\|", "|"),
    (r"\\(?:mathcal|text|textit|mathrm)\{([^{}]*)\}", r"\1"),
    (r"\\_", "_"),
    (r"\$+", ""),
    (r"([_^])\{([^{}]*)\}", r"\1\2"),
    (r"`", ""),
    (r"[ \t]+", " "),
)


# History, credits and advertising in descriptions.
_SENTENCE = re.compile(
    r"(?:^|(?<=[.:] ))(?=[A-Z]|info )[^.]*?(?:described in|described by|"
    r"based on the (?:work|environment)|"
    r"independent state and control variables|MDP first appeared|two (?:environment )?versions\b|"
    r"of the mountain car domain|This version is|[Pp]ixel art|"
    r"contains the individual reward terms|reward threshold|possible to pass a custom)"
    r"(?:[^.]|\.(?=\S))*(?:\. |$)"
)


def plain(text: str) -> str:
    """Convert Markdown to plain text."""
    for pattern, replacement in _MARKUP:
        text = re.sub(pattern, replacement, text)
    return text.strip()


def clean_markdown(text: str) -> str:
    """Convert a section to plain text without tables and code, a line per paragraph or item."""
    lines: list[str] = []
    fresh = True
    for raw in without_code(text).splitlines():
        line = raw.strip().removeprefix("> ")
        if not line or line.startswith(("|", ":name:", ">>>")):
            fresh = True
            continue
        item = re.match(r"(?:[-*]|\d+\.)\s", line)
        if lines and not fresh and not item:
            lines[-1] += f" {line}"
        else:
            lines.append(re.sub(r"^\*\s", "- ", line))
        fresh = False
    said: list[str] = []
    listed = True  # whether the sentence that announces a list was kept
    for line in map(plain, lines):
        listing = line.startswith("- ")
        text = _SENTENCE.sub("", f"{line} ").strip()
        listed = listed if listing else text.endswith(":") or not line.endswith(":")
        said += [text] if text and (listed or not listing) else []
    return "\n".join(said)
