"""The one reader of answers: text or JSON, into points of the space.

`AnswerReader` reads in four steps: `split` makes an `Answer` of each point of an answer, `resolve`
looks up the point that it starts from, `complete` adds the values of that point, and `check`
compares all values with the space.

The values of a point are ``name: value`` or ``name = value``, several on a line between commas or
semicolons, or one on each line; or one JSON object. A prompt that asks for reasons first has them
under the heading ``Proposal:``; else the first lines that name all parameters count. A value that
is not exactly readable is a complaint (`llmopt.util.numbers` lists the numbers that are read).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from llmopt.errors import LLMOptError, ParseError
from llmopt.history import History, Trial
from llmopt.prompt.answer_parts import (
    PART,
    PROPOSAL,
    Answer,
    OutOfRange,
    Point,
    Reading,
    Start,
    ToolCall,
    notes_of,
    with_dropped,
    zero_point,
)
from llmopt.prompt.kept_variables import Kept
from llmopt.prompt.log import Log
from llmopt.prompt.python_block import code_in
from llmopt.prompt.structured import Form, json_objects, loose_answer, values_in, wrapped_in
from llmopt.prompt.thoughts import cut_thoughts
from llmopt.prompt.values import (
    BETWEEN,
    Pair,
    PairReader,
    expected_values,
    no_values,
    pair_reader,
    unknown_names,
)
from llmopt.space import Float, Int, Space, Value
from llmopt.space.values import ABSENT
from llmopt.util.arguments import one_of

_MOST_COMPLAINTS = 8  # points that a complaint lists
_MOST_PROPOSALS = 20  # headings of one answer that are read
_STOP = re.compile(r"[\s*_`\"'.]*(?:stop|converged)[ \t*_`\"'.!]*(?:\n|\Z)", re.IGNORECASE)
_AGAIN = re.compile(
    r"^[\s*_`\"'.(]*(?:no changes?|unchanged|the same(?: point)?|same|again|none|nothing)?"
    r"[\s*_`\"'.)]*$",
    re.IGNORECASE,
)
_FENCE = re.compile(r"^[ \t]{0,8}(?:```|~~~)[^\n`]*$", re.MULTILINE)
_HEADING = re.compile(r"[\s>*_#`\-]{0,8}(?:[\w ()#]{1,40}[*_`]{0,3}:)?[\s*_`]{0,8}")
_NEAR = 1e-9  # of a range: rounding of a computed value that lies on a bound


@dataclass(frozen=True)
class AnswerReader:
    """Reads an answer as points of a space; see `Question.read`."""

    space: Space  # the search space
    labels: tuple[str, ...]  # what the prompt calls the parameters
    out_of_range: OutOfRange = "clip"  # "clip" or "reject"
    form: Form | None = None  # of JSON, if the answer was asked for in that form
    last: bool = False  # whether the values stand last, behind the reasons
    changes: bool = False  # whether an answer may name an earlier point and what differs from it
    # flat values of the points that an answer may start from, in their order
    points: Sequence[Point] = ()
    # whether an answer may end the search; its reading has `stop=True` and the values of the point
    # that it starts from, or of the first one
    may_stop: bool = False
    most: int = 1  # the most points in one answer
    first: int = 1  # number of the first point that is asked for, from 1
    kept: Kept | None = None  # variables of a model's Python that an answer may name, if any
    computes: bool = False  # whether an answer may be a block of Python
    # returns the evaluated point that a written one is a copy of, or the written one
    original: Originals | None = None

    @cached_property
    def _pairs(self) -> PairReader:
        return pair_reader(self.space, self.labels)

    def __call__(self, text: str) -> Reading | ToolCall:
        """Return the points of an answer, or its Python; see `Question.read`."""
        code = ""
        if self.computes:
            code = code_in(text) if self.form is None else self.form.code(text) or code_in(text)
        return ToolCall(code) if code else self.read(text)

    def read(self, text: str) -> Reading:
        """Return the points of an answer in its order; the bad ones among them are dropped.

        Raises:
            ParseError: There is no point in it that can be used: it names a parameter or a point
                that does not exist, or a value is refused.
        """
        answer_text = unicodedata.normalize("NFC", cut_thoughts(text))
        if not answer_text.strip():
            empty = not text.strip()
            reason = "it is empty" if empty else "the reasoning was not followed by an answer"
            raise ParseError(f"{reason}; {self._expected}", text)
        good: dict[int, Reading] = {}  # by their numbers
        troubles: list[str] = []
        dropped: list[str] = []  # the same with the place of each point
        for place, answer in enumerate(self.split(answer_text)):
            try:
                reading = self._point(answer, good)
                if self.most == 1 and any(r.values == reading.values for r in good.values()):
                    continue
                if len(good) == self.most and not reading.stop:
                    raise ParseError(
                        f"at most {self.most} points are taken from one answer"
                        if self.most > 1
                        else "the answer gives several points, and one was asked for: write one "
                        "proposal",
                        "",
                    )
            except ParseError as error:
                troubles.append(error.reason)
                dropped.append(f"point {place + 1} of the answer: {error.reason}")
                continue
            good[self.first + place] = reading
            if reading.stop:
                break
        if not good or (self.most == 1 and len(good) + len(troubles) > 1):
            reasons = troubles if len(troubles) == 1 else dropped[:_MOST_COMPLAINTS]
            raise ParseError("; ".join(reasons), text, troubles)
        reading, *more = good.values()
        unterminated = (more or [reading])[-1].unterminated
        return replace(reading, more=tuple(more), dropped=tuple(dropped), unterminated=unterminated)

    # -- the points of an answer ----------------------------------------------------------

    def split(self, text: str) -> list[Answer]:
        """Return what an answer says of each of its points; an unreadable one has `trouble`."""
        marks = list(PROPOSAL.finditer(text))[:_MOST_PROPOSALS] if self.last else []
        if self.form is not None or not marks:
            objects, trouble = json_objects(text)
            answers = self._of_json(objects)
            # Values in the text before the first object come first.
            if answers and not any(True for _ in self._pairs.pairs(text[: text.find("{")])):
                return answers
            if trouble and text.lstrip("`json \n\t").startswith("{"):
                return [Answer(trouble=f"the JSON cannot be read: {trouble}")]
        if field := wrapped_in(text, self._pairs):
            trouble = f"the answer is JSON: print the text of its field `{field}` alone"
            return [Answer(trouble=f"{trouble}; {self._expected}")]
        try:
            return list(self._proposals(text, marks)) if marks else [self._whole(text)]
        except ParseError as error:
            return [Answer(trouble=error.reason)]

    def _of_json(self, objects: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """Return what JSON objects say of each point; nothing if none of them gives a point."""
        different: list[list[Answer]] = []
        for data in objects:
            answers = self.form.answers(data) if self.form is not None else []
            if not answers:
                loose = loose_answer(data, self._pairs, self._expected)
                answers = [loose] if loose else []
            different += [answers] if answers and answers not in different else []
        if len(different) > 1:
            return [Answer(trouble=f"the answer holds several JSON objects; {self._expected}")]
        return different[0] if different else []

    @property
    def _expected(self) -> str:
        """Say where the values are expected, and in which form."""
        names = [self.labels[i] for i in self.space.asked]
        where = "the line after `Proposal:`" if self.last else "the first line"
        whole = not any(map(self.space.condition, self.space.asked))
        return expected_values(names, where, whole)

    def _whole(self, text: str) -> Answer:
        """Read an answer without headings: the first lines that name all parameters.

        If other lines give another point, the first ones count only if nothing precedes them.
        """
        text = _FENCE.sub(lambda fence: " " * len(fence[0]), text)
        named = self.kept.named(text) if self.kept is not None else None
        if self.kept is not None and named and named[0] in self.kept.values:
            return replace(notes_of(named[1]), values=self.kept.point(named[0]))
        pairs = list(self._pairs.pairs(text))
        groups = [g for g in self._groups(pairs, text) if not any(p.echo for p in g)]
        whole = [g for g in groups if not self.space.missing(_given(g))]
        if not whole:
            raise ParseError(f"{self._missing(text, pairs)}; {self._expected}", "")
        first, values = whole[0], _given(whole[0])
        if not (first[0].clean or _HEADING.fullmatch(first[0].lead)):
            raise ParseError(f"the values stand in a sentence; {self._expected}", "")
        for pair in first:
            if not pair.readable:
                raise ParseError(self._pairs.unreadable(pair.place, pair.raw), "")
        begins = _HEADING.fullmatch(text[: first[0].start]) is not None
        if not begins and any(_given(g) != values for g in whole):
            raise ParseError(f"the answer gives several points; {self._expected}", "")
        rest = text[first[-1].end :]
        reasons = rest.strip().lstrip(".,;:|*)]}`\"' \n\t").strip()
        notes = Answer(analysis=reasons)
        if self.last:
            before = notes_of(text[: first[0].start].strip()).explanation
            notes = notes_of(f"{before}\n\n{reasons}".strip())
        return replace(notes, values=dict(sorted(values.items())), unterminated="\n" not in rest)

    def _groups(self, pairs: Sequence[Pair], text: str) -> Iterator[list[Pair]]:
        """Yield the runs of pairs with nothing between them, each name once."""
        group: list[Pair] = []
        for pair in pairs:
            apart = group and not BETWEEN.fullmatch(text[group[-1].end : pair.start])
            if apart or any(p.place == pair.place for p in group):
                yield group
                group = []
            group.append(pair)
        if group:
            yield group

    def _proposals(self, text: str, marks: Sequence[re.Match[str]]) -> Iterator[Answer]:
        """Yield what a text says of each point: one for each heading.

        A proposal without a hypothesis or a start takes over that of the proposal before it. A
        stop behind points takes over the analysis of the answer.
        """
        begin, before = 0, Answer()
        for mark, end in zip(marks, [*(m.start() for m in marks[1:]), len(text)], strict=True):
            parts = PART.finditer(text, mark.end(), end)
            end = next((part.start() for part in parts), end)
            block = text[mark.end() : end]
            notes = notes_of(text[begin : mark.start()].strip())
            stop = _STOP.match(block) is not None
            notes = replace(
                notes,
                analysis=notes.analysis or (before.analysis if stop else ""),
                hypothesis=notes.hypothesis or ("" if stop else before.hypothesis),
                start=before.start if notes.start is None else notes.start,
            )
            begin, before = end, replace(notes, analysis=notes.analysis or before.analysis)
            if stop:
                yield replace(notes, stop=True)
                continue
            open_end = end == len(text) and not re.search(r"\S[ \t]*\n\s*\n\s*\S", block)
            try:
                values = self._block(block, notes.start)
                yield replace(notes, values=values, unterminated=open_end)
            except ParseError as error:
                yield replace(notes, trouble=error.reason)

    def _block(self, block: str, start: Start) -> Mapping[int, Value]:
        """Return the values behind a heading ``Proposal:``."""
        fences = list(_FENCE.finditer(block))
        if fences and not block[: fences[0].start()].strip():
            del fences[0]  # it opens the values
        rest = block[fences[0].end() :] if fences else ""
        after = list(self._pairs.pairs(rest))
        if fences and not (any(p.clean for p in after) or self._pairs.unknown(rest, after)):
            block = block[: fences[0].start()]  # a sentence that follows may name a value
        block = _FENCE.sub(lambda fence: " " * len(fence[0]), block)
        if block.lstrip().startswith("{"):
            objects, trouble = json_objects(block)
            given = values_in(objects[0], self._pairs) if len(objects) == 1 else None
            if given is None:
                reason = trouble or "it is not one object with values by name"
                raise ParseError(f"the JSON cannot be read: {reason}", "")
            return given
        based = self.changes and start not in (None, "new")
        kept: dict[int, Value] = {}
        pairs: list[Pair] | None = None
        if self.kept is not None and (named := self.kept.named(block)):
            name, rest = named
            beside = list(self._pairs.pairs(rest))
            if not (self.kept.is_remark(name) and beside):
                places = {p.place for p in beside if p.value is not ABSENT}
                kept, block, pairs = self.kept.point(name, places), rest, beside
        if pairs is None:
            pairs = list(self._pairs.pairs(block))
        values = {p.place: p.value for p in pairs}
        unknown = self._pairs.unknown(block, pairs)
        unknown = unknown or [
            f"{p.lead.strip()} {self.labels[p.place]}" for p in pairs if not p.clean
        ]
        # A choice that no point had may have its own parameters.
        novel = any(values.get(i) in new for i, new in self.space.unseen.items())
        unreadable = [p for p in pairs if not p.readable]
        twice = [p for p in pairs if p.readable and values[p.place] != p.value]
        if unknown and not novel:
            complete = not self.space.missing(_given(pairs))  # then it is a count of tokens, say
            trouble = unknown_names(unknown, self.labels)
            trouble += ", and each of these has a value: leave it out" * complete
        elif unreadable:
            trouble = self._pairs.unreadable(unreadable[0].place, unreadable[0].raw)
        elif twice:
            trouble = f"`{self.labels[twice[0].place]}` has two values"
        elif pairs or kept or (based and _AGAIN.match(block)):
            return {**kept, **{i: v for i, v in values.items() if v is not ABSENT}}
        else:
            trouble = "no parameter values were found"
        raise ParseError(f"{trouble}; {self._expected_of(start, based)}", "")

    def _expected_of(self, start: Start, based: bool) -> str:
        if based:
            base = "zero" if start == "zero" else f"#{start}"
            return (
                f'after "Start from: {base}" the line after `Proposal:` gives only the values that '
                f'differ from it, such as `{self.labels[0]}: <value>`, or "no change"'
            )
        point = ', or name the point that it changes as "Start from: #number"'
        return self._expected + point * bool(self.changes and self.points)

    def _missing(self, text: str, pairs: Sequence[Pair]) -> str:
        """Say why a text holds no whole point, and which names in it are unknown."""
        readable = {p.place: p.value for p in pairs if p.readable}
        for pair in pairs:
            if pair.place not in readable:
                return self._pairs.unreadable(pair.place, pair.raw)
        missing = self.space.missing(readable)
        if not readable or not missing:
            return "no parameter values were found"
        unknown = self._pairs.unknown(text, pairs)
        names = f", and {unknown_names(unknown, self.labels)}" if unknown else ""
        return no_values(missing, self.labels) + names

    # -- from an answer to a point --------------------------------------------------------

    def _point(self, answer: Answer, others: Mapping[int, Reading]) -> Reading:
        """Return the point of an answer; `others` are those before it in the same reply."""
        if answer.trouble:
            raise ParseError(answer.trouble, "")
        answer, base = self.resolve(answer, others)
        points = [*self.points, *(other.values for other in others.values())]
        if answer.stop and self.may_stop and points:
            start = answer.start if base and isinstance(answer.start, int) else None
            return Reading(base or points[0], answer.explanation, False, True, start)
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
        if given.keys() >= set(self.space.asked):
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
            given = {**dict(enumerate(self.space.clip(base))), **given}  # it may be measured
        missing = self.space.missing(given)
        if missing or not given:
            reason = "no parameter values were found"
            reason = no_values(missing, self.labels) if given else reason
            if answer.stop:
                reason += ", and this search takes no stop: propose the point that tells most"
            raise ParseError(f"{reason}; {self._expected_of(None, False)}", "")
        return given

    def check(self, answer: Answer, values: Mapping[int, Value]) -> Reading:
        """Return a point of the space, or raise an error if a value is not in its range."""
        flat = [values.get(i, ABSENT) for i in range(len(self.labels))]
        outside = [reason for i, v in enumerate(flat) if (reason := self._outside(i, v))]
        if outside and self.out_of_range == "reject":
            more = f" (and {len(outside) - 5} more)" if len(outside) > 5 else ""
            raise ParseError("; ".join(outside[:5]) + more, "")
        try:
            point = self.space.clip(flat)
        except LLMOptError as error:
            raise ParseError(str(error), "") from error
        # What is set to be absent is not said to be wrong
        ignored = [i for i in answer.values if point[i] is ABSENT and self.space.condition(i)]
        reasons = [
            f"{self.labels[i]}, which a point has {self.space.condition(i)}" for i in ignored
        ]
        explanation = with_dropped(answer.explanation, reasons) if reasons else answer.explanation
        if self.original is not None:
            point = self.original(point)
        start = answer.start if isinstance(answer.start, int) else None
        return Reading(
            point, explanation, bool(outside), start=start, unterminated=answer.unterminated
        )

    def _outside(self, index: int, value: Value) -> str:
        """Say that a value lies out of its range; nothing if it does not."""
        dimension = self.space.dimensions[index]
        if value is ABSENT or not isinstance(dimension, Float | Int):
            return ""
        near = _NEAR * (dimension.high - dimension.low)
        if dimension.low - near <= value <= dimension.high + near:
            return ""
        bounds = [self.space.format(index, bound) for bound in (dimension.low, dimension.high)]
        if value in map(float, bounds):  # the prompt rounded the bound
            return ""
        return f"`{self.labels[index]}` = {value:.10g} is outside [{', '.join(bounds)}]"


@dataclass(frozen=True)
class Originals:
    """Returns the evaluated point that a written one equals to the digits that a prompt shows."""

    space: Space
    history: History
    lines: bool  # whether the prompt shows values as `Space.format` does
    log: Log | None  # which shows them otherwise, if the prompt has it

    def __call__(self, point: Point) -> Point:
        """Return the evaluated or pending point, or the written one if it is a new one."""
        # The log may have gone on to a later prompt.
        log = self.log if vars(self.log or self).get("history") is self.history else None

        def equal(values: Point, lines: bool, trial: Trial | None = None) -> bool:
            for i, (a, b) in enumerate(zip(point, values, strict=True)):
                if a == b:
                    continue
                if not (isinstance(a, float) and isinstance(b, float)):
                    return False
                shown = [self.space.format(i, b)] if lines else []
                shown += [log.value(trial, i)] if log is not None and trial is not None else []
                if a not in map(float, shown):
                    return False
            return True

        for trial in self.history.trials[::-1]:
            if equal(trial.values, self.lines, trial) and not self.space.deviation(trial.values):
                return tuple(trial.values)
        return tuple(next((p for p in self.history.pending if equal(p, True)), point))


def _given(pairs: Sequence[Pair]) -> dict[int, Value]:
    return {p.place: p.value for p in pairs if p.value is not ABSENT}


def parse_parameters(
    text: str,
    space: Space,
    *,
    labels: Sequence[str] | None = None,
    out_of_range: OutOfRange = "clip",
) -> Reading:
    """Read a model's answer as one point of a space, in time linear in its length.

    Args:
        text: The answer. `llmopt.prompt.answer_reader` documents the accepted forms.
        space: The search space.
        labels: The prompt's names for the dimensions, in order. Default: the space's names, which
            are always understood, too.
        out_of_range: ``"clip"`` (or ``"auto"``) moves a number outside its range to the nearer
            bound, ``"reject"`` raises. Numbers inside the range are rounded to the dimension's
            step, if it has one.

    Returns:
        A valid point and its explanation: the text after the values.

    Raises:
        ParseError: The text contains no point; ``reason`` can be sent to the model.
        ValueError: The number of `labels` is wrong, or `out_of_range` is unknown.
    """
    one_of("out_of_range", out_of_range, ("auto", "clip", "reject"))
    names = tuple(labels) if labels is not None else space.names
    if len(names) != len(space):
        raise ValueError(f"got {len(names)} labels, expected one for each of {len(space)} values")
    return AnswerReader(space, names, out_of_range).read(text)
