"""The values of a point in a text.

What is read, in this order:

1. The first line that names every parameter once (``a: 1, b: 2`` or ``a = 1; b = 2``), or
   the first JSON object that does, also nested under a key such as ``"params"``.
2. The first run of lines that together name every parameter.
3. The first list of the right length: a line of nothing but values, separated by commas,
   semicolons or spaces, or anything in brackets.
4. The last line that names every parameter and looks like an entry of the history.
5. As a last resort, for two parameters, a pair in brackets that is a parameter's range.

A line that continues with ``f = …``, ``failed`` or ``pruned`` is taken for such an echo of
the history and skipped by steps 1 to 3.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from llmopt.errors import LLMOptError, ParseError
from llmopt.space import Categorical, Float, Int, Space, Value
from llmopt.space.values import ABSENT
from llmopt.util.text import nfc

OutOfRange = Literal["clip", "reject"]

_MOST_SAID = 8  # unknown names that a complaint lists

_MINUS = "\u2212\u2013\ufe63\uff0d-"  # the plain one last: it is used in character sets
_ASCII_MINUS = str.maketrans(dict.fromkeys(_MINUS, "-"))
# Every repeat is bounded or unambiguous, so that no text makes matching quadratic.
NUMBER = re.compile(
    rf"(?P<base>[+{_MINUS}]?(?:[0-9]{{1,60}}(?:\.[0-9]{{0,60}})?|\.[0-9]{{1,60}}))"
    rf"(?:[eE](?P<exp>[+{_MINUS}]?[0-9]{{1,6}})"
    rf"|[ ]?[x×·*][ ]?10(?:\^|\*\*)[ ]?[{{(]?(?P<power>[+{_MINUS}]?[0-9]{{1,6}})[)}}]?)?"
    r"(?![\w%]|\.[0-9]|[ ]?/[ ]?[0-9])"
)
_NOT_FINITE = re.compile(rf"[+{_MINUS}]?(?:nan|inf(?:inity)?)(?!\w)", re.IGNORECASE)
BEFORE_VALUE = re.compile(r"[ \t*_`~≈$\"']{0,8}")
_BLANK = re.compile(r"[ \t]{0,8}")

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
_ARROW = re.compile(r"[ \t]{0,4}(?:->|→)")
_SPACES = re.compile(r"[\s\\]+")


@dataclass(frozen=True)
class Reading:
    """What was read from one answer: its first point, and the points behind it."""

    values: tuple[Value, ...]  # a valid point of the space: flat, one value for each dimension
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
    otherwise: tuple[Value, ...] | None = None
    # whether the text ends with the values: if it was cut there, digits or values may be missing
    unterminated: bool = False

    @property
    def each(self) -> tuple[Reading, ...]:
        """All points of the answer, in its order."""
        return (self, *self.more)

    def moved(self, move: Callable[[tuple[Value, ...]], tuple[Value, ...]]) -> Reading:
        """Return the reading with its point, and the one to take instead, moved."""
        otherwise = None if self.otherwise is None else move(self.otherwise)
        return replace(self, values=move(self.values), otherwise=otherwise)


@dataclass(frozen=True)
class ToolCall:
    """An answer that is a block of Python in place of a point."""

    code: str


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


@dataclass(frozen=True)
class Found:
    """A whole point in a text."""

    values: dict[int, Value]  # its values by the place of the parameter
    end: int  # where they end
    rest: str  # what follows them, or the explanation that stands beside them


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
        self.text = nfc(_FENCE.sub("", text))
        self.space = space
        self.labels = labels
        self.n = len(labels)
        self.needed = set(space.missing({}))
        self.whole = len(self.needed) == self.n and not space.unseen
        self.matchers = [ValueMatcher(space, i) for i in range(self.n)]
        self.unreadable: dict[int, str] = {}
        self.lengths: list[int] = []
        self.range: Found | None = None
        self.line_ends = [m.start() for m in re.finditer("\n", self.text)]
        self.assignments = list(self._assignments())

    def first(self) -> Found | None:
        """Return the first complete answer, by the order in this module's docstring."""
        by_line: dict[int, list[_Assignment]] = {}
        line = -2
        for item in self.assignments:
            if not self.whole and item.line == line + 1:  # no line tells that it is the last one
                by_line[item.line] = by_line.pop(line)
            line = item.line
            by_line.setdefault(line, []).append(item)
        in_lines = [s for items in by_line.values() for s in self._complete_sets(items)]
        echoes = [s for s in in_lines if self._is_echo(s)]
        answers = [s for s in in_lines if not self._is_echo(s)]
        as_json = self._json_object()
        if as_json and not (answers and answers[0][0].start < as_json[0]):
            return as_json[1]
        if answers:
            return self._from_set(answers[0])
        for run in self._complete_sets(self.assignments):
            if not self._is_echo(run):
                return self._from_set(run)
        listed = self._list()
        if listed:
            return listed
        return self._from_set(echoes[-1]) if echoes else self.range

    def _found(self, values: Sequence[Value], end: int, said: str | None = None) -> Found:
        rest = (self.text[end:] if said is None else said).strip()
        return Found(dict(enumerate(values)), end, rest.lstrip(".,;:|*)]}`\"' \n\t").strip())

    def _from_set(self, items: list[_Assignment]) -> Found:
        by_index = {item.index: item.value for item in items}
        found = self._found((), max(i.end for i in items))
        return replace(found, values=dict(sorted(by_index.items())))

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
        # A label may have spaces or backslashes (Markdown's escapes) put into it.
        spelled = (r"[ \\]{0,2}".join(map(re.escape, k)) for k in known if k not in ambiguous)
        patterns = sorted(spelled, key=len)
        if not patterns:
            return
        scan = re.compile(
            rf"(?<![\w.\]])({'|'.join(reversed(patterns))})[*_`\"' \t]{{0,6}}(?::=|[:=]|->|→)",
            re.IGNORECASE,
        )
        last = 0
        for match in scan.finditer(self.text):
            if match.start() < last:  # a choice may hold what looks like another value
                continue
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
            arrow = _ARROW.match(self.text, read[1])  # "gain: 1 -> 2", as the log says it
            if arrow:
                start = end_of(BEFORE_VALUE, self.text, arrow.end())
                read = self.matchers[place].match(self.text, arrow.end(), start) or read
            line, last = bisect_right(self.line_ends, match.start()), read[1]
            yield _Assignment(place, read[0], match.start(), read[1], line)

    def _complete_sets(self, items: Sequence[_Assignment]) -> Iterator[list[_Assignment]]:
        current: dict[int, _Assignment] = {}
        for item in items:
            if item.index in current:
                if self._done(current):
                    yield list(current.values())
                current = {}
            current[item.index] = item
            if len(current) == self.n:
                yield list(current.values())
                current = {}
        if current and self._done(current):
            yield list(current.values())

    def _done(self, items: Mapping[int, _Assignment]) -> bool:
        """Whether these values are a point."""
        if self.whole:
            return len(items) == self.n
        return not self.space.missing({i: item.value for i, item in items.items()})

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
                found = self._found((), end, _json_explanation(data))
                return start, replace(found, values=values)
            start = self.text.find("{", end)
        return None

    def _from_json(self, data: Any) -> dict[int, Value] | None:
        nodes = [data]
        if isinstance(data, dict):
            nodes += [v for v in data.values() if isinstance(v, dict)]
        for node in nodes:
            leaves = {_label_key(k).casefold(): v for k, v in _leaves(node)}
            for names in (self.labels, self.space.names):
                keys = [_label_key(name).casefold() for name in names]
                given = {i: leaves[k] for i, k in enumerate(keys) if k in leaves}
                if (
                    len(set(keys)) == self.n
                    and given
                    and (self.needed <= given.keys() or not self.whole)
                ):
                    read = {i: self.matchers[i].from_json(v) for i, v in given.items()}
                    bad = [i for i, v in read.items() if v is None]
                    bad = [i for i in bad if i in self.needed or given[i] is not None]
                    found = {i: value[0] for i, value in read.items() if value is not None}
                    if not bad and not self.space.missing(found):
                        return found
                    self.unreadable.update({i: str(given[i])[:40] for i in bad})
        return None

    # Lists

    def _list(self) -> Found | None:
        best: tuple[list[Value], int] | None = None
        if len(self.needed) < self.n:
            return None  # nothing tells whose the values are
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
                self.range = self.range or self._found(listed[0], bracket.end())
            else:
                return self._found(listed[0], bracket.end())
        return self._found(*best) if best else None

    def _is_range(self, values: Sequence[Value]) -> bool:
        """Whether two values are some parameter's lowest and highest, quoted from the prompt."""
        return self.n == 2 and any(
            isinstance(d, (Float, Int)) and tuple(values) == (d.low, d.high)
            for d in self.space.dimensions
        )

    def _values_between(self, start: int, end: int) -> tuple[list[Value], int] | None:
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
            return values, min(position, end)
        if self.n > 1 and NUMBER.match(self.text, position):
            self.lengths.append(len(values) + len(self.text[position:end].split(",")))
        return None


def into_range(
    values: list[Value], space: Space, names: tuple[str, ...], out_of_range: str, raw: str
) -> tuple[tuple[Value, ...], bool]:
    """Bring the values into the space, or say why they are not in it."""
    outside = []
    for index, value in enumerate(space.conform(values)):
        dimension = space.dimensions[index]
        if value is ABSENT or not isinstance(dimension, Float | Int):
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


def missing_values(reader: Reader) -> str:
    """Say why a text holds no whole point."""
    names = reader.labels
    seen = {item.index: item.value for item in reader.assignments}
    unreadable = {i: t for i, t in reader.unreadable.items() if i not in seen}
    missing = [i for i in reader.space.missing(seen) if i not in unreadable]
    if unreadable:
        index, got = min(unreadable.items())
        reason = f"`{names[index]}` has no readable value (got {got!r})"
        if isinstance(reader.space.dimensions[index], Float | Int):
            reason += ", expected a plain number"
        return reason
    if seen and missing:
        return no_values(missing, names)
    if reader.lengths:
        return f"found {max(reader.lengths)} values, expected {reader.n}"
    return "no parameter values were found"


def no_values(missing: Sequence[int], names: Sequence[str]) -> str:
    """Say which parameters have no value."""
    listed = ", ".join(f"`{names[i]}`" for i in missing[:8])
    more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
    return f"there is no value for {listed}{more}"


def unknown_names(names: Sequence[str], labels: Sequence[str]) -> str:
    """Say which names are none of the parameters, and which are the nearest."""
    said = []
    for name in dict.fromkeys(names[:_MOST_SAID]):
        near = difflib.get_close_matches(name, labels, n=1, cutoff=0.5)
        said.append(f"{name!r} is none of the parameters")
        said[-1] += f" (did you mean {near[0]!r}?)" if near else ""
    return ", ".join(said)


def expected_values(names: Sequence[str], where: str, whole: bool = True) -> str:
    """Say where the values are expected, and in which form; `whole` says that all are."""
    shown = names if len(names) <= 4 else (*names[:2], "…", names[-1])
    form = ", ".join(n if n == "…" else f"{n}: <value>" for n in shown)
    count = f"all {len(names)} values" if whole else "the values that the point has"
    return f"{where} must give {count} as `{form}`"


def _label_key(label: str) -> str:
    return _SPACES.sub("", nfc(label))


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


class ValueMatcher:
    """Reads one value of one dimension at a position of a text."""

    def __init__(self, space: Space, index: int) -> None:
        dimension = space.dimensions[index]
        self.choices: tuple[Any, ...] | None = None
        self.integral = isinstance(dimension, Int)
        if not isinstance(dimension, Categorical):
            return
        self.choices = tuple(dimension.choices)
        self.by_text: dict[str, Any] = {}
        spellings = (dimension.format, _json_text, repr, str, '"{}"'.format)
        for spell in spellings:  # the prompt's own form wins where two choices look alike
            for choice in self.choices:
                self.by_text.setdefault(nfc(spell(choice)), choice)
        self.by_text.pop("", None)
        self.by_fold: dict[str, Any] = {}
        for text, choice in self.by_text.items():
            self.by_fold.setdefault(text.casefold(), choice)
        ordered = sorted(self.by_text, key=len, reverse=True)
        pattern = "|".join(
            re.escape(t) + (r"(?!\w|\.[0-9])" if re.match(r"\w", t[-1]) else "") for t in ordered
        )
        self.pattern = re.compile(pattern or r"(?!)", re.IGNORECASE)

    def match(self, text: str, plain: int, start: int) -> tuple[Value, int] | None:
        """Read the value at `start`, or at `plain`, where its own quotes still stand."""
        if self.choices is None:
            return _number_at(text, start, self.integral)
        spaces = end_of(_BLANK, text, plain)
        for position in (spaces, start):
            match = self.pattern.match(text, position)
            if match:
                folded = self.by_fold.get(match[0].casefold(), _MISSING)
                value = self.by_text.get(match[0], folded)
                if value is not _MISSING:  # the pattern also takes a dotless i for an i
                    return value, match.end()
        number = _number_at(text, start, integral=False)
        if number:
            for choice in self.choices:
                if _is_number(choice) and choice == number[0]:
                    return choice, number[1]
        return None

    def from_json(self, value: Any) -> tuple[Value] | None:
        """Read a decoded JSON value; a tuple of one, as ``None`` may be a choice."""
        if self.choices is not None:
            for choice in self.choices:
                if type(choice) is type(value) and choice == value:
                    return (choice,)
        if self.choices is None and _is_number(value):
            return (value if abs(value) < 1e300 else math.inf,)
        if isinstance(value, dict | list):
            return None
        text = nfc(value) if isinstance(value, str) else json.dumps(value)
        read = self.match(text, 0, end_of(BEFORE_VALUE, text, 0)) if text else None
        return (read[0],) if read and not text[read[1] :].strip() else None


_MISSING = object()


def _number_at(text: str, start: int, integral: bool) -> tuple[Value, int] | None:
    match = NUMBER.match(text, start)
    if match is None:
        odd = _NOT_FINITE.match(text, start)
        return (math.nan, odd.end()) if odd else None
    base = match["base"].translate(_ASCII_MINUS)
    exponent = (match["exp"] or match["power"] or "").translate(_ASCII_MINUS)
    if integral and not exponent and base.lstrip("+-").isdigit():
        return int(base), match.end()
    number = float(f"{base}e{exponent}" if exponent else base)
    if integral and math.isfinite(number) and number.is_integer():
        return int(number), match.end()
    return number, match.end()


def _json_text(choice: Any) -> str:
    try:
        return json.dumps(choice, ensure_ascii=False)
    except (TypeError, ValueError):
        return ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def end_of(pattern: re.Pattern[str], text: str, position: int) -> int:
    """Return where a match that begins at `position` ends; `position` if there is none."""
    match = pattern.match(text, position)
    return match.end() if match else position
