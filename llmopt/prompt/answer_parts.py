"""An answer: the parts of its text, and the points or the Python that were read from it.

The parts are lesson, analysis, hypothesis, the point to start from, and the proposal. `notes_of`
finds them in what precedes the values of an answer, and again in the explanation that is kept with
a trial.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, TypeAlias

from llmopt.prompt.describe import MAX_NOTE
from llmopt.space import Float, Space, Value
from llmopt.util.text import cut, cut_sentences

OutOfRange = Literal["auto", "clip", "reject"]
"""``"clip"`` moves a number outside its range to the nearer bound, ``"reject"`` sends it back to
the model, ``"auto"`` rejects it if the prompt lets an answer say what differs from a point."""

Point: TypeAlias = tuple[Value, ...]


@dataclass(frozen=True)
class Reading:
    """What was read from one answer: its first point, and the points behind it."""

    values: Point  # a valid point of the space: flat, one value for each dimension
    explanation: str  # the reasons, at most 4,000 characters
    clipped: bool  # whether a number outside its range was moved to the bound
    # whether the answer ends the search; the values are then those of a known point
    stop: bool = False
    start: int | None = None  # number of the point that the answer names as its start, from 1
    # the further points of the answer in its order; the last one may be a stop
    more: tuple[Reading, ...] = ()
    # why other points of the answer cannot be used, one reason for each
    dropped: tuple[str, ...] = ()
    # the point to take instead if `values`, which were moved to a bound, are an evaluated point
    otherwise: Point | None = None
    # whether the text ends with the values: if it was cut there, digits or values may be missing
    unterminated: bool = False

    @property
    def each(self) -> tuple[Reading, ...]:
        """All points of the answer, in its order."""
        return (self, *self.more)

    def moved(self, move: Callable[[Point], Point]) -> Reading:
        """Return the reading with its point, and the one to take instead, moved."""
        otherwise = None if self.otherwise is None else move(self.otherwise)
        return replace(self, values=move(self.values), otherwise=otherwise)


@dataclass(frozen=True)
class ToolCall:
    """An answer that is a block of Python in place of a point."""

    code: str


MAX_EXPLANATION = 4000  # characters: one rambling answer must not bloat every later file

_BEFORE = r"^[ \t>#*_`\-]{0,12}(?:\d{1,2}[.)][ \t]{0,3})?[*_`]{0,3}"  # marks of a heading
_AFTER = r"[ \t*_`]{0,6}"
PROPOSAL = re.compile(
    rf"(?:{_BEFORE}"
    r"(?:(?:new|next|final|my|the|updated|revised|chosen)[ ]){0,3}(?:proposal|proposed point)"
    rf"(?:[ ]\(?(?:#?\w{{1,12}}(?:[ ]|(?!\w))){{0,4}}\)?)?{_AFTER}(?::|$)"
    rf"|(?<=[.!?][ ])proposal:){_AFTER}",
    re.IGNORECASE | re.MULTILINE,
)
"""The heading of a point."""

_NUMBERS = r"#?\d{1,7}(?:[ ]?(?:,|and|&)[ ]?#?\d{1,7}){0,9}"
WITHDRAWN = re.compile(rf"\blessons?[ ]({_NUMBERS})[ ](?:is[ ]|are[ ])?withdrawn", re.IGNORECASE)
"""What strikes earlier lessons; the group holds their numbers."""

PART = re.compile(
    rf"(?:{_BEFORE}(?:(?:new|my|the|working|current|next)[ ]){{0,2}}|(?<=[.!?][ ]))"
    rf"(?:(?P<name>lesson|analysis|hypothes[ei]s)"
    rf"(?:s?[ ]{_NUMBERS}[ ]withdrawn|(?:[ ]\w{{1,12}}){{0,3}})"
    rf"{_AFTER}(?::|[–—-](?=[ ])|$)"
    rf"|(?P<start>start(?:ing)?[ ]from){_AFTER}(?::|(?=#?\d{{1,7}}[ \t.*_`]*$))"
    rf"|(?P<left>left[ ]out){_AFTER}:"
    rf"|(?P<other>critique|plan|rationale|expected|next steps?|proposal){_AFTER}:){_AFTER}",
    re.IGNORECASE | re.MULTILINE,
)
_END = re.compile(r"\n[ \t]*\n|^[ \t]{0,3}(?:#{1,6}[ ]|```)", re.MULTILINE)
_START = re.compile(
    r"(?:(?:the|point|trial|experiment|number|no|row)[ .]*){0,3}"
    r"#?[ ]?(?P<number>\d{1,7})(?![\d.]*\d)"
    r"|(?P<zero>(?:all[ ])?zeros?\b)",
    re.IGNORECASE,
)
_NOTHING = ("none", "n/a", "nothing", "-", "(none)", "no")

Start = int | Literal["zero", "new"] | None


@dataclass(frozen=True)
class Answer:
    """What a model answered for one point, its values not yet checked."""

    lesson: str = ""  # what it learned from the latest results; empty if it says nothing
    analysis: str = ""  # what it thinks of the results, and all else that precedes its point
    hypothesis: str = ""  # what it changes, and what it expects of it; empty if it names none
    start: Start = None  # number of the point that it changes, from 1; `None` if it does not say
    # the values that it gives, by the place of the parameter
    values: Mapping[int, Value] = field(default_factory=dict)
    stop: bool = False  # whether it ends the search
    trouble: str = ""  # why its values cannot be read; empty if they can
    dropped: str = ""  # which values or other points of the answer were dropped, and why
    unterminated: bool = False  # whether the text ends with the values

    @property
    def explanation(self) -> str:
        """All but the values as text, at most 4,000 characters; `notes_of` reads it."""
        lesson = cut_sentences(self.lesson, MAX_NOTE, MAX_NOTE)
        hypothesis = cut(self.hypothesis, MAX_NOTE)
        start = f"#{self.start}" if isinstance(self.start, int) else self.start or ""
        dropped = cut(self.dropped, MAX_NOTE)
        if not (lesson or hypothesis or start or dropped):
            return cut(self.analysis, MAX_EXPLANATION)
        most = MAX_EXPLANATION - len(lesson) - len(hypothesis) - len(dropped) - 90
        analysis = cut(self.analysis, most)
        lines = [f"Lesson: {lesson}"] if lesson else []
        if analysis:
            lines.append(analysis if PART.match(analysis) else f"Analysis: {analysis}")
        lines += [f"Hypothesis: {hypothesis}"] if hypothesis else []
        lines += [f"Start from: {start}"] if start else []
        return "\n".join([*lines, f"Left out: {dropped}"] if dropped else lines)


@lru_cache(maxsize=4096)
def notes_of(text: str) -> Answer:
    """Return the parts of an explanation, or of what precedes the point of an answer."""
    lessons: list[str] = []
    hypothesis = dropped = ""
    start: Start = None
    parts = list(PART.finditer(text))
    rest = [text[: parts[0].start()] if parts else text]
    ends = [*(part.start() for part in parts[1:]), len(text)]
    for part, last in zip(parts, ends, strict=False):
        body = text[part.end() : last].lstrip("\n")
        if part["start"]:
            start = start_in(body)
            continue
        if part["left"]:
            dropped = " ".join(body.split())
            continue
        name = (part["name"] or "").lower()
        if not name.startswith(("lesson", "hypothes")):
            heading = part["other"] and part[0].strip()
            rest.append(f"{heading} {body}" if heading else body)
            continue
        end = body.find("\n") if name == "lesson" else _end(body)
        note = " ".join((body[:end] if end >= 0 else body).split()).strip("*_` ")
        if end >= 0:
            rest.append(body[end:])
        struck = WITHDRAWN.search(part[0])  # "Lesson 3 withdrawn: …" in place of the heading
        if struck:
            note = f"{struck[0]}: {note}" if note else struck[0]
        if name == "lesson" and not is_nothing(note):
            lessons.append(note)
        elif name != "lesson":
            hypothesis = note
    analysis = "\n".join(body.strip() for body in rest if body.strip())
    lesson = " ".join(dict.fromkeys(lessons))
    return Answer(lesson, analysis, hypothesis, start, dropped=dropped)


def _end(body: str) -> int:
    """Return where a note of some lines ends: at an empty line, a heading, a fence; or -1."""
    end = _END.search(body)
    return end.start() if end and end.start() else -1


def is_nothing(note: str) -> bool:
    """Whether a note says that there is none."""
    return note.rstrip(".").lower() in ("", *_NOTHING)


def start_in(text: str) -> Start:
    """Return the start that an answer names: ``"#7, the best"``, ``"point 7"``, ``"zero"``.

    Anything else is ``"new"``, also ``"new, since #2 gave nothing"``.
    """
    match = _START.match(text.strip().lstrip("*_`\"'([ "))
    if match is None:
        return "new"
    return int(match["number"]) if match["number"] else "zero"


def zero_point(space: Space) -> Point | None:
    """Return the point with 0 for every value, where there is one and the values are numbers."""
    for d in space.dimensions:
        if not isinstance(d, Float) or d.step is not None or not d.low <= 0 <= d.high:
            return None
    return (0.0,) * len(space)


def start_of(explanation: str) -> int | None:
    """Return the number of the point that an answer starts from, if it names one."""
    start = notes_of(explanation).start
    return start if isinstance(start, int) else None


def with_dropped(explanation: str, reasons: Sequence[str]) -> str:
    """Return an explanation that names what of its answer was left out, and why."""
    notes = notes_of(explanation)
    dropped = "; ".join([notes.dropped, *reasons] if notes.dropped else reasons)
    return replace(notes, dropped=dropped).explanation


def with_start(explanation: str, number: int | None) -> str:
    """Return an explanation that starts from another number, or from none."""
    notes = notes_of(explanation)
    return replace(notes, start=number or "new").explanation if notes.start else explanation
