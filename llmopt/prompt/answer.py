"""A model's answer, read: its parts, its points, and the one check of their values.

`parse_parameters` reads the first point of a text. The prompt `words` asks for a lesson, an
analysis, and then for one point or several: a hypothesis, the point to start from and the values
of each. `AnswerReader` reads them in four steps: `split` makes an `Answer` of each point, out of
text or JSON (`Form.read` in `llmopt.prompt.structured`), `resolve` looks up the point that it
starts from, `complete` adds the values of that point, and `check` compares all values with the
space. `notes_of` finds the parts again in the explanation that is kept with a trial.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from llmopt.errors import ParseError
from llmopt.prompt.describe import MAX_NOTE
from llmopt.prompt.values_in_text import (
    OutOfRange,
    Reader,
    Reading,
    expected_values,
    into_range,
    missing_values,
    no_values,
    strip_thinking,
    unknown_names,
)
from llmopt.space import Float, Space, Value
from llmopt.space.values import ABSENT
from llmopt.util.text import cut, cut_sentences

if TYPE_CHECKING:
    from llmopt.prompt.kept import Kept
    from llmopt.prompt.structured import Form

MAX_EXPLANATION = 4000  # characters: one rambling answer must not bloat every later file
_MAX_BLOCKS = 20  # the point is in one of the last; more would only cost time
_SAID = 8  # points that a complaint lists

_BEFORE = r"^[ \t>#*_`\-]{0,12}(?:\d{1,2}[.)][ \t]{0,3})?[*_`]{0,3}"  # marks of a heading
_AFTER = r"[ \t*_`]{0,6}"
MARKER = re.compile(
    rf"(?:{_BEFORE}"
    r"(?:(?:new|next|final|my|the|proposed|updated|revised|chosen)[ ]){0,3}"
    r"(?:proposal|proposed point|parameters?|params|answer|point|policy)"
    rf"(?:[ ]\(?(?:#?\w{{1,12}}(?:[ ]|(?!\w))){{0,4}}\)?)?{_AFTER}(?::|$)"
    rf"|(?<=[.!?][ ])proposal:){_AFTER}",
    re.IGNORECASE | re.MULTILINE,
)
_NUMBERS = r"#?\d{1,7}(?:[ ]?(?:,|and|&)[ ]?#?\d{1,7}){0,9}"
WITHDRAWN = re.compile(rf"\blessons?[ ]({_NUMBERS})[ ](?:is[ ]|are[ ])?withdrawn", re.IGNORECASE)
"""What strikes earlier lessons; the group holds their numbers."""

_PART = re.compile(
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
_STOP = re.compile(r"^[\s*_`\"'.]*(?:stop|converged)[\s*_`\"'.!]*$", re.IGNORECASE)
_AGAIN = re.compile(
    r"^[\s*_`\"'.(]*(?:no changes?|unchanged|the same(?: point)?|same|again|none|nothing)?"
    r"[\s*_`\"'.)]*$",
    re.IGNORECASE,
)
_NAMED = re.compile(
    r"(?:^|[,;])[ \t>*_`-]{0,8}([^\s:=,;][^:=,;\n]{0,80}?)[ \t*_`\"']{0,6}[:=][ \t]*[-+]?[\d.]",
    re.MULTILINE,
)
_BLOCK_END = re.compile(r"\n[ \t]*\n|^[ \t]{0,8}```[^\n`]*$", re.MULTILINE)
_SCORED = re.compile(r"(?<!\w)f[ ]?=")  # a line of the history, quoted
_OPEN_FENCE = re.compile(r"```\w{0,20}[ \t]*$")
_NOTHING = ("none", "n/a", "nothing", "-", "(none)", "no")

Point = tuple[Value, ...]
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
            lines.append(analysis if _PART.match(analysis) else f"Analysis: {analysis}")
        lines += [f"Hypothesis: {hypothesis}"] if hypothesis else []
        lines += [f"Start from: {start}"] if start else []
        return "\n".join([*lines, f"Left out: {dropped}"] if dropped else lines)


@lru_cache(maxsize=4096)
def notes_of(text: str) -> Answer:
    """Return the parts of an explanation, or of what precedes the point of an answer."""
    lessons: list[str] = []
    hypothesis = dropped = ""
    start: Start = None
    found = list(_PART.finditer(text))
    rest = [text[: found[0].start()] if found else text]
    ends = [*(part.start() for part in found[1:]), len(text)]
    for part, last in zip(found, ends, strict=False):
        said = text[part.end() : last].lstrip("\n")
        if part["start"]:
            start = start_in(said)
            continue
        if part["left"]:
            dropped = " ".join(said.split())
            continue
        name = (part["name"] or "").lower()
        if not name.startswith(("lesson", "hypothes")):
            heading = part["other"] and part[0].strip()
            rest.append(f"{heading} {said}" if heading else said)
            continue
        end = said.find("\n") if name == "lesson" else _end(said)
        note = " ".join((said[:end] if end >= 0 else said).split()).strip("*_` ")
        if end >= 0:
            rest.append(said[end:])
        struck = WITHDRAWN.search(part[0])  # "Lesson 3 withdrawn: …" in place of the heading
        if struck:
            note = f"{struck[0]}: {note}" if note else struck[0]
        if name == "lesson" and not is_nothing(note):
            lessons.append(note)
        elif name != "lesson":
            hypothesis = note
    analysis = "\n".join(said.strip() for said in rest if said.strip())
    lesson = " ".join(dict.fromkeys(lessons))
    return Answer(lesson, analysis, hypothesis, start, dropped=dropped)


def is_proposal(mark: re.Match[str]) -> bool:
    """Whether a match of `MARKER` says that it is a proposal."""
    return "propos" in mark[0].lower()


def _end(said: str) -> int:
    """Return where a note of some lines ends: at an empty line, a heading, a fence; or -1."""
    found = _END.search(said)
    return found.start() if found and found.start() else -1


def is_nothing(note: str) -> bool:
    """Whether a note says that there is none."""
    return note.rstrip(".").lower() in ("", *_NOTHING)


def start_in(said: str) -> Start:
    """Return the start that an answer names: ``"#7, the best"``, ``"point 7"``, ``"zero"``.

    Anything else is ``"new"``, also ``"new, since #2 gave nothing"``.
    """
    found = _START.match(said.strip().lstrip("*_`\"'([ "))
    if found is None:
        return "new"
    return int(found["number"]) if found["number"] else "zero"


@dataclass(frozen=True)
class AnswerReader:
    """Reads a reply as a point of a space; see `Question.read`."""

    space: Space  # the search space
    labels: tuple[str, ...]  # what the prompt calls the parameters
    out_of_range: OutOfRange = "clip"  # see `parse_parameters`
    # the form of a structured answer; one that is plain text all the same is read as text
    form: Form | None = None
    last: bool = False  # whether the point stands last, behind the reasons
    changes: bool = False  # whether an answer may name an earlier point and what differs from it
    # flat values of the points that an answer may start from, in their order
    points: Sequence[Point] = ()
    # whether an answer may end the search; its reading has `stop=True` and the values of the point
    # that it starts from, or of the first one
    may_stop: bool = False
    most: int = 1  # the most points in one answer
    first: int = 1  # number of the first point that is asked for, from 1
    kept: Kept | None = None  # variables of a model's Python that an answer may name, if any

    def __call__(self, text: str) -> Reading:
        """Return the points of a reply in its order; the bad ones among them are dropped.

        Raises:
            ParseError: There is no point in it that can be used: it names a parameter or a point
                that does not exist, or a value is refused.
        """
        said = strip_thinking(text)
        if not said.strip():
            reason = (
                "the reasoning was not followed by an answer" if text.strip() else "it is empty"
            )
            raise ParseError(f"{reason}; {self._expected}", text)
        good: dict[int, Reading] = {}  # by their numbers
        troubles: list[str] = []
        dropped: list[str] = []  # the same with the place of each point
        for number, answer in enumerate(self.split(said), self.first):
            try:
                reading = self._point(answer, good)
                if len(good) == self.most and not reading.stop:
                    raise ParseError(f"at most {self.most} points are taken from one answer", "")
            except ParseError as error:
                troubles.append(error.reason)
                dropped.append(f"point {number - self.first + 1} of the answer: {error.reason}")
                continue
            good[number] = reading
            if reading.stop:
                break
        if not good:
            raise ParseError("; ".join(troubles if len(troubles) == 1 else dropped[:_SAID]), text)
        reading, *more = good.values()
        return replace(reading, more=tuple(more), dropped=tuple(dropped))

    # -- the points of an answer ----------------------------------------------------------

    def split(self, text: str) -> list[Answer]:
        """Return what an answer says of each of its points; an unreadable one has `trouble`."""
        found = None if self.form is None else self.form.read(text)
        if found is not None:
            return found
        answers = []
        for block in self._blocks(text):
            try:
                answers.append(self._last(block) if self.last else self._first(block))
            except ParseError as error:
                answers.append(Answer(trouble=error.reason))
        return answers

    def _blocks(self, text: str) -> list[str]:
        """Return the parts of a text that give a point each: one, or one for each proposal.

        A proposal without a hypothesis or a start takes over that of the proposal before it. A
        stop behind points takes over the analysis of the answer.
        """
        marks = list(filter(is_proposal, MARKER.finditer(text)))[: max(_MAX_BLOCKS, self.most)]
        if self.most == 1 or len(marks) < 2:
            return [text]
        blocks: list[str] = []
        begin, before = 0, Answer()
        for mark, end in zip(marks, [*(m.start() for m in marks[1:]), len(text)], strict=True):
            parts = _PART.finditer(text, mark.end(), end if end < len(text) else mark.end())
            end = next((part.start() for part in parts), end)
            notes = notes_of(text[begin : mark.start()].strip())
            stop = _STOP.match(text[mark.end() : end]) is not None
            whole = replace(
                notes,
                analysis=notes.analysis or (before.analysis if stop else ""),
                hypothesis=notes.hypothesis or ("" if stop else before.hypothesis),
                start=notes.start or before.start,
            )
            head = text[begin : mark.start()] if whole == notes else f"{whole.explanation}\n"
            blocks.append(head + text[mark.start() : end])
            begin, before = end, replace(whole, analysis=whole.analysis or before.analysis)
        return blocks

    @property
    def _expected(self) -> str:
        """Say where the values are expected, and in which form."""
        names = [self.labels[i] for i in self.space.asked]
        where = "the line after `Proposal:`" if self.last else "the first line"
        whole = not any(map(self.space.condition, self.space.asked))
        return expected_values(names, where, whole)

    def _first(self, text: str) -> Answer:
        reader = Reader(text, self.space, self.labels)
        found = reader.first()
        if found is None:
            reason = f"{missing_values(reader)}; {self._expected}"
            raise ParseError(reason, text)
        return Answer(analysis=found.rest, values=found.values)

    def _last(self, text: str) -> Answer:
        """Read an answer that gives its reasons first and its point last.

        The point is looked for behind the last heading such as ``Proposal:``, then in the last
        paragraphs or code blocks that name the parameters. Without such a heading it may also
        be a paragraph of nothing but numbers, or stand anywhere, as in `parse_parameters`.
        """
        marks = list(MARKER.finditer(text))
        if self.most > 1:  # where there may be several points, "Point 2" is no heading
            marks = list(filter(is_proposal, marks)) or marks
        if (answer := self._of_variable(text, marks)) is not None:
            return answer
        if self.changes and marks:
            block = text[marks[-1].end() :]
            notes = notes_of(text[: marks[-1].start()].strip())
            if _STOP.match(block):
                return replace(notes, stop=True)
            if notes.start not in (None, "new"):
                return replace(notes, values=self._changes(block, notes.start))
        trouble = ""
        for start, block in self._candidates(text, marks):
            reader = Reader(block, self.space, self.labels)
            found = reader.first()
            if found is not None:
                before = _OPEN_FENCE.sub("", text[:start].rstrip()).strip()
                notes = notes_of(f"{before}\n\n{found.rest}".strip())
                return replace(notes, values=found.values)
            trouble = trouble or self._missing(reader)
        if not (marks and trouble):  # behind a heading nothing else is meant
            reader = Reader(text, self.space, self.labels)
            found = reader.first()
            if found is not None:
                return replace(notes_of(found.rest), values=found.values)
            trouble = self._missing(reader)
        reason = f"{trouble}; {self._expected}"
        if self.changes and self.points:
            reason += ', or name the point that it changes as "Start from: #number"'
        raise ParseError(reason, text)

    def _of_variable(self, text: str, marks: Sequence[re.Match[str]]) -> Answer | None:
        """Return an answer that names a variable, with the values that stand beside it."""
        start, end = (marks[-1].start(), marks[-1].end()) if marks else (0, 0)
        named = None if self.kept is None else self.kept.named(text[end:])
        if self.kept is None or named is None:
            return None
        name, rest = named
        if not marks:
            if name not in self.kept.values:
                return None  # a word of the analysis
            return replace(notes_of(rest), values=self.kept.point(name))
        reader = Reader(rest, self.space, self.labels)
        if reader.assignments and self.kept.is_remark(name):
            return None
        if unknown := _unknown(reader):
            raise ParseError(unknown_names(unknown, self.labels), rest)
        values = {**self.kept.point(name), **{c.index: c.value for c in reader.assignments}}
        return replace(notes_of(text[:start].strip()), values=values)

    def _missing(self, reader: Reader) -> str:
        """Say why a text holds no whole point, and which names in it are unknown."""
        unknown = _unknown(reader) if reader.assignments else []
        said = [missing_values(reader), *([unknown_names(unknown, self.labels)] if unknown else [])]
        return ", and ".join(said)

    def _candidates(self, text: str, marks: Sequence[re.Match[str]]) -> Iterator[tuple[int, str]]:
        """Yield where the point may stand, the likeliest first: position and text."""
        for mark in reversed(marks[-4:]):
            yield mark.start(), text[mark.end() :]
        starts = [0, *(m.end() for m in _BLOCK_END.finditer(text))]
        ends = [*(m.start() for m in _BLOCK_END.finditer(text)), len(text)]
        for start, end in list(zip(starts, ends, strict=True))[: -_MAX_BLOCKS - 1 : -1]:
            block = text[start:end]
            if _SCORED.search(block):
                continue
            bare = re.sub(r"[\s\\]", "", block)
            needed = self.space.missing({}) or [*self.space.asked]
            ends_named = (self.labels[needed[0]], self.labels[needed[-1]])
            named = all(re.sub(r"[\s\\]", "", name) in bare for name in ends_named)
            if named or (not marks and bare and sum(map(str.isalpha, bare)) <= 12):
                yield start, block

    def _changes(self, block: str, start: Start) -> Mapping[int, Value]:
        """Return the values that a block names; all of them, where it lists all."""
        reader = Reader(block, self.space, self.labels)
        changed = {c.index: c.value for c in reader.assignments}
        unknown = _unknown(reader)
        unreadable = [i for i in reader.unreadable if i not in changed]
        whole = None if changed or unknown or unreadable else reader.first()
        # A choice that no point had may have its own parameters.
        novel = any(changed.get(i) in new for i, new in self.space.unseen.items())
        if unknown and not novel:
            trouble = unknown_names(unknown, self.labels)
        elif unreadable:
            got = reader.unreadable[unreadable[0]]
            trouble = f"`{self.labels[unreadable[0]]}` has no readable value (got {got!r})"
        elif changed or _AGAIN.match(block):
            return changed
        elif whole is not None:
            return whole.values
        else:
            trouble = "no parameter values were found"
        base = "zero" if start == "zero" else f"#{start}"
        raise ParseError(
            f'{trouble}; after "Start from: {base}" the line after `Proposal:` gives only the '
            f'values that differ from it, such as `{self.labels[0]}: <value>`, or "no change"',
            block,
        )

    # -- from an answer to a point --------------------------------------------------------

    def _point(self, answer: Answer, others: Mapping[int, Reading]) -> Reading:
        """Return the point of an answer; `others` are those before it in the same reply."""
        if answer.trouble:
            raise ParseError(answer.trouble, "")
        answer, base = self.resolve(answer, others)
        known = [*self.points, *(other.values for other in others.values())]
        if answer.stop and self.may_stop and known:
            start = answer.start if base and isinstance(answer.start, int) else None
            return Reading(base or known[0], answer.explanation, False, True, start)
        return self.check(answer, self.complete(answer, base))

    def resolve(self, answer: Answer, others: Mapping[int, Reading]) -> tuple[Answer, Point | None]:
        """Return an answer whose start has the number that prompts show, and that point, if any."""
        start, points = answer.start, self.points
        if not isinstance(start, int):
            return answer, None
        if 1 <= start <= len(points):
            return answer, points[start - 1]
        if (other := others.get(start)) is None:
            return answer, None
        # The other point has no number yet while further points are being evaluated: this one is
        # then shown as made from the start of the other.
        alone = self.first == len(points) + 1
        number = self.first + list(others.values()).index(other) if alone else other.start
        return replace(answer, start=number or "new"), other.values

    def complete(self, answer: Answer, base: Point | None) -> Mapping[int, Value]:
        """Return all values of a point by their places: those of `base` where it gives none."""
        given = {} if answer.stop else dict(answer.values)
        if len(given) >= len(self.space.asked):
            return given
        if answer.start == "zero":
            base = zero_point(self.space)
        if isinstance(answer.start, int) and base is None:
            raise ParseError(
                f"there is no point #{answer.start} to start from; expected a number from 1 to "
                f'{len(self.points)}, or "new" and all values',
                "",
            )
        if base is not None and not answer.stop:
            given = {**dict(enumerate(base)), **given}
        missing = self.space.missing(given)
        if missing or not given:
            reason = "no parameter values were found"
            reason = no_values(missing, self.labels) if given else reason
            if answer.stop:
                reason += ", and this search takes no stop: propose the point that tells most"
            raise ParseError(f"{reason}; {self._expected}", "")
        return given

    def check(self, answer: Answer, values: Mapping[int, Value]) -> Reading:
        """Return a point of the space, or raise an error if a value is not in its range."""
        labels = self.labels
        flat = [values.get(i, ABSENT) for i in range(len(labels))]
        point, clipped = into_range(flat, self.space, labels, self.out_of_range, "")
        ignored = [i for i in answer.values if point[i] is ABSENT]
        reasons = [f"{labels[i]}, which a point has {self.space.condition(i)}" for i in ignored]
        explanation = with_dropped(answer.explanation, reasons) if reasons else answer.explanation
        start = answer.start if isinstance(answer.start, int) else None
        return Reading(point, explanation, clipped, start=start)


def parse_parameters(
    text: str,
    space: Space,
    *,
    labels: Sequence[str] | None = None,
    out_of_range: OutOfRange = "clip",
) -> Reading:
    """Read a model's answer as one point of a space.

    For any text, it returns a valid point or raises `ParseError`, never another exception, in time
    linear in the text's length. `llmopt.prompt.values_in_text` documents the accepted forms.

    Args:
        text: The answer.
        space: The search space.
        labels: The prompt's names for the dimensions, in order. Default: the space's names, which
            are always understood, too.
        out_of_range: ``"clip"`` moves a number outside its range to the nearer bound,
            ``"reject"`` raises. NaN and infinity are always rejected. Numbers inside the range are
            kept, except that they are rounded to the dimension's step.

    Returns:
        A valid point and its explanation: the text after the values.

    Raises:
        ParseError: The text contains no point; ``reason`` can be sent to the model.
        ValueError: The number of `labels` is wrong, or `out_of_range` is unknown.
    """
    if out_of_range not in ("clip", "reject"):
        raise ValueError(f"out_of_range={out_of_range!r}: expected 'clip' or 'reject'")
    names = tuple(labels) if labels is not None else space.names
    if len(names) != len(space):
        raise ValueError(f"got {len(names)} labels, expected one for each of {len(space)} values")
    return AnswerReader(space, names, out_of_range)(text)


def _unknown(reader: Reader) -> list[str]:
    """Return the names that get a number in a text and are none of the parameters."""
    ends = [0, *(c.end for c in reader.assignments)]  # a label may hold a comma
    starts = [*(c.start for c in reader.assignments), len(reader.text)]
    rest = " ".join(reader.text[a:b] for a, b in zip(ends, starts, strict=True))
    return [m[1].strip("*_`\"' ") for m in _NAMED.finditer(rest)]


def zero_point(space: Space) -> Point | None:
    """Return the point with 0 for every value, where there is one and the values are numbers."""
    if all(
        isinstance(d, Float) and d.step is None and d.low <= 0 <= d.high for d in space.dimensions
    ):
        return (0.0,) * len(space)
    return None


def start_of(explanation: str) -> int | None:
    """Return the number of the point that an answer starts from, if it names one."""
    start = notes_of(explanation).start
    return start if isinstance(start, int) else None


def with_dropped(explanation: str, reasons: Sequence[str]) -> str:
    """Return an explanation that tells what of its answer was left out, and why."""
    notes = notes_of(explanation)
    reasons = [notes.dropped, *reasons] if notes.dropped else reasons
    return replace(notes, dropped="; ".join(reasons)).explanation


def with_start(explanation: str, number: int | None) -> str:
    """Return an explanation that starts from another number, or from none."""
    notes = notes_of(explanation)
    return replace(notes, start=number or "new").explanation if notes.start else explanation
