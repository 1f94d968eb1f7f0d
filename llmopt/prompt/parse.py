"""Reading a model's answer as parameters.

`parse_parameters` takes whatever came back and returns a valid point or raises
`ParseError`; it never raises anything else on any text, and its time grows linearly with
the text's length.

What is read, in this order:

1. Reasoning in ``<think>`` tags is dropped. A tag that was never closed means that the
   answer was cut off, so the rest is not read.
2. The first line that names every parameter once (``a: 1, b: 2`` or ``a = 1; b = 2``), or
   the first JSON object that does, also nested under a key such as ``"params"``.
3. The first run of lines that together name every parameter.
4. The first list of the right length: a line of nothing but values, separated by commas,
   semicolons or spaces, or anything in brackets.
5. The last line that names every parameter and looks like an entry of the history.
6. As a last resort, for two parameters, a pair in brackets that is a parameter's range.

A line that goes on with ``f = …``, ``failed`` or ``pruned`` is taken for such an echo of
the history and skipped by steps 2 to 4.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from llmopt.errors import LLMOptError, ParseError
from llmopt.prompt.values import BEFORE_VALUE, NUMBER, ValueMatcher, end_of
from llmopt.space import Float, Int, Space, Value

OutOfRange = Literal["clip", "reject"]

MAX_EXPLANATION = 4000  # characters: one rambling answer must not bloat every later file
_THINK = re.compile(r"<(/?)(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_FENCE = re.compile(r"^[ \t]{0,8}```[^\n`]*$", re.MULTILINE)
_SPACE = re.compile(r"\s{0,8}")
_BETWEEN = re.compile(r"[*_`$\"']{0,4}\s{0,8}[,;|]?\s{0,8}")  # leaves the next value's quotes
_ECHO = re.compile(
    r"(?:(?<!\w)f[ ]{0,3}(?:\([^()\n]{0,60}\))?[ ]{0,3}[:=]|(?<!\w)(?:failed|pruned)(?!\w))",
    re.IGNORECASE,
)
_BRACKETS = re.compile(r"(?<![\w\]])[\[({]([^\[\](){}]*)[\])}]")
_NOT_AN_ANSWER = re.compile(
    r"(?:(?<!\w)f[ ]{0,3}(?:\([^()\n]{0,60}\))?[ ]{0,3}[:=]"
    r"|(?<!\w)(?:ranges?|bounds?|intervals?|within|between)(?:[ ](?:of|is|are|in))?[ :=]{0,3})"
    r"(?:\\\(|[$`*(]){0,4}[ ]{0,3}$",
    re.IGNORECASE,
)
_LINE_PREFIX = re.compile(
    r"[ \t>]{0,8}(?:[-*•][ \t]{1,3})?[*_`]{0,3}"
    r"(?:(?:\w{1,20}[ ]){0,3}(?:params?|parameters?|values?|answer|proposal|point|input|solution"
    r"|next|guess|suggestion|candidate|vector|x|line[ ]?1)[*_`]{0,3}[ ]?(?::=|[:=])[*_`]{0,3})?"
    r"[ \t]{0,8}",
    re.IGNORECASE,
)
_SPACES = re.compile(r"[\s\\]+")


@dataclass(frozen=True)
class Reading:
    """What was read from one answer.

    Attributes:
        values: A valid point of the space: flat, one value for each dimension.
        explanation: What followed the values, at most 4,000 characters.
        clipped: Whether a number outside its range was moved to the bound.
        stop: Whether the answer ends the search; the values are then those of a known point.
    """

    values: tuple[Value, ...]
    explanation: str
    clipped: bool
    stop: bool = False


def parse_parameters(
    text: str,
    space: Space,
    *,
    labels: Sequence[str] | None = None,
    out_of_range: OutOfRange = "clip",
) -> Reading:
    """Read a model's answer as one point of a space.

    Args:
        text: The answer.
        space: The search space.
        labels: What the prompt called the dimensions, in their order; the space's names
            if not given, which are understood in any case.
        out_of_range: ``"clip"`` moves a number outside its range to the nearer bound,
            ``"reject"`` raises. NaN and infinity are always rejected. Numbers inside the
            range are kept as they are, but for the dimension's own step.

    Returns:
        A valid point and its explanation.

    Raises:
        ParseError: There is no point in the text; ``reason`` can be sent to the model.
        ValueError: `labels` are not one for each dimension, or `out_of_range` is unknown.
    """
    if out_of_range not in ("clip", "reject"):
        raise ValueError(f"out_of_range={out_of_range!r}: expected 'clip' or 'reject'")
    names = tuple(labels) if labels is not None else space.names
    if len(names) != len(space):
        raise ValueError(f"got {len(names)} labels, expected one for each of {len(space)} values")
    answer = strip_thinking(text)
    if not answer.strip():
        cut = "the reasoning was not followed by an answer" if text.strip() else "it is empty"
        raise ParseError(f"{cut}; {_expected(names)}", text)
    reader = Reader(_FENCE.sub("", answer), space, names)
    first = reader.first()
    if first is None:
        _fail(reader, text)
    values, end, explanation = first
    point, clipped = settle(values, space, names, out_of_range, text)
    if explanation is None:
        explanation = reader.text[end:]
    explanation = explanation.strip().lstrip(".,;:|*)]}`\"' \n\t").strip()
    return Reading(point, explanation[:MAX_EXPLANATION], clipped)


def strip_thinking(text: str) -> str:
    """Return the text without the parts in ``<think>`` tags.

    An opening tag without its end hides all that follows; an end without its opening tag
    (chat templates may open it in the prompt) hides all that comes before.
    """
    kept: list[str] = []
    start, depth = 0, 0
    for tag in _THINK.finditer(text):
        if tag[1]:
            if depth == 0:
                kept.clear()
            depth = max(depth - 1, 0)
        else:
            if depth == 0:
                kept.append(text[start : tag.start()])
            depth += 1
        start = tag.end()
    if depth == 0:
        kept.append(text[start:])
    return "".join(kept)


Found = tuple[list[Value], int, "str | None"]  # values, end of them, explanation if known


@dataclass
class _Assignment:
    index: int
    value: Value
    start: int
    end: int
    line: int


class Reader:
    """One answer, read in every way that is known."""

    def __init__(self, text: str, space: Space, labels: tuple[str, ...]) -> None:
        self.text = text
        self.space = space
        self.labels = labels
        self.n = len(labels)
        self.matchers = [ValueMatcher(space, i) for i in range(self.n)]
        self.unreadable: dict[int, str] = {}
        self.lengths: list[int] = []
        self.range: Found | None = None
        self.line_ends = [m.start() for m in re.finditer("\n", text)]
        self.assignments = list(self._assignments())

    def first(self) -> Found | None:
        """Return the first complete answer, by the order in this module's docstring."""
        by_line: dict[int, list[_Assignment]] = {}
        for item in self.assignments:
            by_line.setdefault(item.line, []).append(item)
        in_lines = [s for items in by_line.values() for s in self._complete_sets(items)]
        echoes = [s for s in in_lines if self._is_echo(s)]
        answers = [s for s in in_lines if not self._is_echo(s)]
        as_json = self._json_object()
        if as_json and not (answers and answers[0][0].start < as_json[0]):
            return as_json[1]
        if answers:
            return _from_set(answers[0])
        for run in self._complete_sets(self.assignments):
            if not self._is_echo(run):
                return _from_set(run)
        listed = self._list()
        if listed:
            return listed
        return _from_set(echoes[-1]) if echoes else self.range

    def _line_end(self, position: int) -> int:
        after = bisect_right(self.line_ends, position - 1)
        return self.line_ends[after] if after < len(self.line_ends) else len(self.text)

    # Named values

    def _assignments(self) -> Iterator[_Assignment]:
        known: dict[str, int] = {}
        ambiguous: set[str] = set()
        for names in (self.labels, self.space.names):
            for index, name in enumerate(names):
                key = _label_key(name)
                if key and known.setdefault(key, index) != index and names is self.labels:
                    ambiguous.add(key)
        folded: dict[str, int | None] = {}
        for key, index in known.items():
            fold = key.casefold()
            folded[fold] = index if folded.get(fold, index) == index else None
        patterns = sorted((_label_pattern(k) for k in known if k not in ambiguous), key=len)
        if not patterns:
            return
        scan = re.compile(
            rf"(?<![\w.\]])({'|'.join(reversed(patterns))})[*_`\"' \t]{{0,6}}(?::=|[:=]|->|→)",
            re.IGNORECASE,
        )
        for match in scan.finditer(self.text):
            key = _label_key(match[1])
            place = known.get(key, folded.get(key.casefold()))
            if place is None:
                continue
            start = end_of(BEFORE_VALUE, self.text, match.end())
            read = self.matchers[place].match(self.text, match.end(), start)
            if read is None:
                rest = self.text[match.end() : match.end() + 40]
                self.unreadable[place] = re.split(r"[,;\n]", rest, maxsplit=1)[0].strip()
                continue
            line = bisect_right(self.line_ends, match.start())
            yield _Assignment(place, read[0], match.start(), read[1], line)

    def _complete_sets(self, items: Sequence[_Assignment]) -> Iterator[list[_Assignment]]:
        current: dict[int, _Assignment] = {}
        for item in items:
            if item.index in current:
                current = {}
            current[item.index] = item
            if len(current) == self.n:
                yield list(current.values())
                current = {}

    def _is_echo(self, items: list[_Assignment]) -> bool:
        end = max(item.end for item in items)
        tail = self.text[end : min(self._line_end(end), end + 200)]
        return _ECHO.search(tail) is not None

    # JSON objects

    def _json_object(self) -> tuple[int, Found] | None:
        decoder = json.JSONDecoder()
        start = self.text.find("{")
        for _ in range(8):  # an object that holds the answer is among the first
            if start < 0:
                return None
            try:
                data, end = decoder.raw_decode(self.text, start)
            except (ValueError, RecursionError):
                start = self.text.find("{", start + 1)
                continue
            values = self._from_json(data)
            if values is not None:
                return start, (values, end, _json_explanation(data))
            start = self.text.find("{", end)
        return None

    def _from_json(self, data: Any) -> list[Value] | None:
        nodes = [data]
        if isinstance(data, dict):
            nodes += [v for v in data.values() if isinstance(v, dict)]
        for node in nodes:
            leaves = {_label_key(k).casefold(): v for k, v in _leaves(node)}
            for names in (self.labels, self.space.names):
                keys = [_label_key(name).casefold() for name in names]
                if len(set(keys)) == self.n and all(k in leaves for k in keys):
                    read = [
                        m.from_json(leaves[k]) for m, k in zip(self.matchers, keys, strict=True)
                    ]
                    bad = [i for i, value in enumerate(read) if value is None]
                    if not bad:
                        return [value[0] for value in read if value is not None]
                    self.unreadable.update({i: str(leaves[keys[i]])[:40] for i in bad})
        return None

    # Lists

    def _list(self) -> Found | None:
        best: Found | None = None
        start = 0
        for end in [*self.line_ends, len(self.text)]:
            first = end_of(_LINE_PREFIX, self.text, start)
            if first < end:
                listed = self._values_between(first, end)
                if listed is None and first > start:  # "- 1, 2" may be a bullet or a minus
                    listed = self._values_between(start, end)
                if listed:
                    best = listed
                    break
            start = end + 1
        for bracket in _BRACKETS.finditer(self.text):
            if best is not None and bracket.start() >= best[1]:
                break
            listed = self._values_between(bracket.start(1), bracket.end(1))
            if listed is None:  # looked at first: a hostile answer has a bracket at every byte
                continue
            before = self.text[max(0, bracket.start() - 90) : bracket.start()]
            tail = self.text[bracket.end() : min(self._line_end(bracket.end()), bracket.end() + 80)]
            if _NOT_AN_ANSWER.search(before) or _ECHO.search(tail):
                continue
            if self._is_range(listed[0]):
                self.range = self.range or (listed[0], bracket.end(), None)
            else:
                return listed[0], bracket.end(), None
        return best

    def _is_range(self, values: Sequence[Value]) -> bool:
        """Whether two values are some parameter's lowest and highest, quoted from the prompt."""
        return self.n == 2 and any(
            isinstance(d, (Float, Int)) and tuple(values) == (d.low, d.high)
            for d in self.space.dimensions
        )

    def _values_between(self, start: int, end: int) -> Found | None:
        """Read exactly one value for each dimension, and nothing else."""
        values: list[Value] = []
        position = end_of(_SPACE, self.text, start)
        for matcher in self.matchers:
            read = matcher.match(self.text, position, end_of(BEFORE_VALUE, self.text, position))
            if read is None or read[1] > end:
                if values:
                    self.lengths.append(len(values))
                return None
            values.append(read[0])
            position = end_of(_BETWEEN, self.text, read[1])
            if position == read[1] and len(values) < self.n:
                self.lengths.append(len(values))
                return None
        if position >= end or not self.text[position:end].strip(" \t.;,*_`\"'|])}\r\n"):
            return values, min(position, end), None
        if self.n > 1 and NUMBER.match(self.text, position):
            self.lengths.append(len(values) + len(self.text[position:end].split(",")))
        return None


def settle(
    values: list[Value], space: Space, names: tuple[str, ...], out_of_range: str, raw: str
) -> tuple[tuple[Value, ...], bool]:
    """Bring the values into the space, or say why they are not in it."""
    outside = []
    for index, value in enumerate(values):
        dimension = space.dimensions[index]
        if not isinstance(dimension, Float | Int):
            continue
        if not math.isfinite(value):
            raise ParseError(f"`{names[index]}` must be a finite number", raw)
        if not dimension.low <= value <= dimension.high:
            low, high = space.format(index, dimension.low), space.format(index, dimension.high)
            if space.format(index, value) in (low, high):
                continue  # the prompt rounded the bound
            outside.append(f"`{names[index]}` = {value:g} is outside [{low}, {high}]")
    if outside and out_of_range == "reject":
        more = f" (and {len(outside) - 5} more)" if len(outside) > 5 else ""
        raise ParseError("; ".join(outside[:5]) + more, raw)
    try:
        return space.clip(values), bool(outside)
    except LLMOptError as error:
        raise ParseError(str(error), raw) from error


def _fail(reader: Reader, raw: str) -> NoReturn:
    names = reader.labels
    seen = {item.index for item in reader.assignments}
    unreadable = {i: t for i, t in reader.unreadable.items() if i not in seen}
    missing = [i for i in range(len(names)) if i not in seen and i not in unreadable]
    if unreadable:
        index, got = min(unreadable.items())
        reason = f"`{names[index]}` has no readable value (got {got!r})"
        if isinstance(reader.space.dimensions[index], Float | Int):
            reason += ", expected a plain number"
    elif seen and missing:
        listed = ", ".join(f"`{names[i]}`" for i in missing[:8])
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        reason = f"there is no value for {listed}{more}"
    elif reader.lengths:
        reason = f"found {max(reader.lengths)} values, expected {reader.n}"
    else:
        reason = "no parameter values were found"
    raise ParseError(f"{reason}; {_expected(names)}", raw)


def _expected(names: tuple[str, ...]) -> str:
    shown = names if len(names) <= 4 else (*names[:2], "…", names[-1])
    form = ", ".join(n if n == "…" else f"{n}: <value>" for n in shown)
    return f"the first line must give all {len(names)} values as `{form}`"


def _from_set(items: list[_Assignment]) -> Found:
    by_index = {item.index: item.value for item in items}
    return [by_index[i] for i in range(len(items))], max(item.end for item in items), None


def _label_key(label: str) -> str:
    return _SPACES.sub("", label)


def _label_pattern(key: str) -> str:
    """Match a label with spaces or backslashes (Markdown's escapes) put into it."""
    return r"[ \\]{0,2}".join(re.escape(c) for c in key)


def _leaves(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield the scalars of nested JSON as a space names them: ``key.sub``, ``key[0,1]``."""
    stack: list[tuple[str, tuple[int, ...], Any]] = [("", (), node)]
    while stack:
        path, indices, value = stack.pop()
        if isinstance(value, dict):
            base = path + (f"[{','.join(map(str, indices))}]" if indices else "")
            stack += [(f"{base}.{k}" if base else str(k), (), v) for k, v in value.items()]
        elif isinstance(value, list):
            stack += [(path, (*indices, i), v) for i, v in enumerate(value)]
        else:
            yield path + (f"[{','.join(map(str, indices))}]" if indices else ""), value


def _json_explanation(data: Any) -> str | None:
    for key in ("explanation", "reason", "reasoning", "rationale"):
        if isinstance(data, dict) and isinstance(data.get(key), str):
            return str(data[key])
    return None
