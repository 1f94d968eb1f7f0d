"""The values of a point in an answer: ``name: value`` pairs of a text, or JSON.

A value is read exactly, or the answer is refused with a complaint that names it.
"""

from __future__ import annotations

import difflib
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from llmopt.errors import ParseError
from llmopt.space import Categorical, Int, Space, Value
from llmopt.space.values import ABSENT
from llmopt.util.numbers import PLAIN, read_number
from llmopt.util.text import clean, cut

_MOST_LISTED = 8  # names in a complaint
_MOST_SHOWN = 40  # characters of a value in a complaint
_MARKS = " \t*_`"
_ECHO = re.compile(r"(?<!\w)(?:f[ ]{0,3}(?:\([^()\n]{0,60}\)[ ]{0,3})?[:=]|failed\b|pruned\b)")
BETWEEN = re.compile(r"[\s,;|>*_`#(\"'•\-]*(?:\d{1,3}[.)][\s*_`\"']*|(?:and|&)\s[\s*_`]*)?", re.I)
_BEFORE_NAME = re.compile(r"[\s,;|*_`]*(?:(?<![^\s,;])(?:and|&)\s+)?[*_`(\s]*\Z", re.IGNORECASE)
_NAMED = re.compile(
    r"(?:^|[,;])[ \t>*_`-]{0,8}([^\s:=,;][^:=,;\n]{0,80}?)[ \t*_`\"']{0,6}[:=][ \t]*[-+]?[\d.]",
    re.MULTILINE,
)
_NOTHING = ("", "-", "—", "none", "null", "n/a", "absent")
_MISSING: Any = object()


def folded(name: str) -> str:
    """Return a name as names are compared: without blanks, escapes, and forms of a character."""
    return re.sub(r"[\s\\]+", "", unicodedata.normalize("NFC", name).translate(PLAIN))


class ValueReader:
    """Reads the values of one parameter."""

    def __init__(self, space: Space, index: int) -> None:
        dimension = space.dimensions[index]
        self.whole = isinstance(dimension, Int)
        self.unit = "" if isinstance(dimension, Categorical) else dimension.unit
        self.choices = dimension.choices if isinstance(dimension, Categorical) else None
        self._spelled: dict[str, Any] = {}
        for spell in (dimension.format, _as_json, repr, str, '"{}"'.format):
            for choice in self.choices or ():  # the prompt's own form first: two may look alike
                self._spelled.setdefault(unicodedata.normalize("NFC", spell(choice)), choice)
        self._spelled.pop("", None)
        texts = sorted(self._spelled, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, texts)) or r"(?!)", re.IGNORECASE)

    def read(self, text: str) -> Any:
        """Return the value that a whole text is, or a mark that it is none."""
        each = (read_number(t, whole=self.whole, unit=self.unit) for t in (text, _bare(text)))
        number = next((n for n in each if n is not None), None)
        if self.choices is None:
            return _MISSING if number is None else number
        for spelled in (text.strip(), _bare(text)):
            if spelled in self._spelled:
                return self._spelled[spelled]
            alike = [c for k, c in self._spelled.items() if k.casefold() == spelled.casefold()]
            if len(set(map(id, alike))) == 1:
                return alike[0]
        equal = [c for c in self.choices if _is_number(c) and c == number]
        return equal[0] if len(equal) == 1 else _MISSING

    def end_of_choice(self, text: str, start: int) -> int:
        """Return where a choice that begins at a place of a text, or behind marks, ends."""
        near = text[start : start + 20]
        places = (start + len(near) - len(near.lstrip(marks)) for marks in (" \t", _MARKS))
        ends = (m.end() for place in places if (m := self._pattern.match(text, place)))
        return max(ends, default=start)

    def from_json(self, value: Any) -> Any:
        """Return the value of decoded JSON, or a mark that it is none."""
        if self.choices is None:
            if self.unit and isinstance(value, str):
                return self.read(value)
            if not _is_number(value) or not abs(value) < 1e300:
                return _MISSING
            return int(value) if self.whole and float(value).is_integer() else value
        for choice in self.choices:
            if type(choice) is type(value) and choice == value:
                return choice
        return self.read(value if isinstance(value, str) else json.dumps(value))


@dataclass(frozen=True)
class Pair:
    """A parameter's name in a text, and what follows it."""

    place: int  # of the parameter
    value: Any
    raw: str  # the text of the value
    start: int
    value_start: int
    end: int
    lead: str  # what precedes the name on its line, behind the pair before
    echo: bool  # whether a value of f follows, as in a row of the history

    @property
    def readable(self) -> bool:
        """Whether the text is a value."""
        return self.value is not _MISSING

    @property
    def clean(self) -> bool:
        """Whether nothing but marks and separators precedes the name."""
        return BETWEEN.fullmatch(self.lead) is not None


class PairReader:
    """Finds the ``name: value`` pairs of a text."""

    def __init__(self, space: Space, labels: tuple[str, ...]) -> None:
        self.space, self.labels = space, labels
        self.values = [ValueReader(space, i) for i in range(len(labels))]
        self._exact: dict[str, int] = {}
        keys = [folded(label) for label in self.labels]
        for i, key in [*enumerate(keys), *enumerate(map(folded, space.names))]:
            self._exact.setdefault(key, i)
        self._any_case: dict[str, int | None] = {}
        for key, i in self._exact.items():
            case = key.casefold()
            self._any_case[case] = i if self._any_case.get(case, i) == i else None
        single = sorted((k for k in self._exact if k and keys.count(k) < 2), key=len, reverse=True)
        spelled = "|".join(r"[ \\]{0,2}".join(map(re.escape, key)) for key in single)
        self._scan = re.compile(
            rf"(?<![\w.\]])(?<!<-)({spelled or '(?!)'})[*_`\"' \t]{{0,6}}(?::=|[:=](?!=))", re.I
        )

    def place(self, name: str) -> int | None:
        """Return the place of the parameter of a name."""
        key = folded(name)
        return self._exact.get(key, self._any_case.get(key.casefold()))

    def pairs(self, text: str) -> Iterator[Pair]:
        """Yield the pairs of a text in NFC, from its start to its end."""
        plain = text.translate(PLAIN)
        end, match = 0, self._scan.search(plain)
        while match is not None:
            place, start = self.place(match[1]), match.end()
            lead = text[max(end, plain.rfind("\n", end, match.start()) + 1) : match.start()]
            after = start
            if place is not None and self.values[place].choices is not None:
                after = self.values[place].end_of_choice(text, start)
            following = self._scan.search(plain, after)
            stop = text.find("\n", after)
            stop = len(text) if stop < 0 else stop
            end = min(stop, following.start()) if following else stop
            if place is not None:
                raw = text[start:end]
                if end < stop:  # the next name follows
                    raw = raw[: after - start] + _BEFORE_NAME.sub("", raw[after - start :])
                echo = _ECHO.search(raw, after - start)
                raw = (raw[: echo.start()] if echo else raw).rstrip(" \t,;|")
                shown = cut(raw.strip(), _MOST_SHOWN)
                value = self._value(place, raw)
                last = start + len(raw)
                yield Pair(place, value, shown, match.start(), start, last, lead, echo is not None)
            match = following

    def _value(self, place: int, raw: str) -> Any:
        reader = self.values[place]
        steps = re.split(r"[ \t]*(?:->|→)[ \t]*", raw)  # "1 -> 2", as the log says a change
        if len(steps) == 2 and reader.read(steps[0]) is not _MISSING:
            raw = steps[1]
        value = reader.read(raw)
        if value is _MISSING and self.space.condition(place):
            return ABSENT if _bare(raw).translate(PLAIN).casefold() in _NOTHING else value
        return value

    # -- complaints -----------------------------------------------------------------------

    def unreadable(self, place: int, raw: str) -> str:
        """Say that a value cannot be read."""
        reason = f"`{self.labels[place]}` has no readable value (got {raw!r})"
        choices = self.values[place].choices
        if choices is None:
            unit = self.values[place].unit
            return f"{reason}, expected a plain number" + f", or one in {unit}" * bool(unit)
        expected = cut(self.space.format(place, choices[0]), _MOST_SHOWN)
        return f"{reason}; expected a choice as it is written, such as {expected}, not its place"

    def unknown(self, text: str, pairs: Iterable[Pair]) -> list[str]:
        """Return the names that get a number in a text and are none of the parameters."""
        rest, at = "", 0
        for pair in pairs:
            rest += text[at : pair.start] + " "
            at = pair.end if pair.readable else pair.value_start
        return [m[1].strip("*_`\"' ") for m in _NAMED.finditer(rest + text[at:])]


@lru_cache(maxsize=32)
def pair_reader(space: Space, labels: tuple[str, ...]) -> PairReader:
    """Return the reader of a space's pairs; each question reads with the same one."""
    return PairReader(space, labels)


def from_json(
    pairs: Iterable[tuple[Any, Any]], reader: PairReader, others: Sequence[str] = ()
) -> dict[int, Value]:
    """Return decoded values by the places of the parameters.

    Args:
        pairs: The name and the value of each.
        reader: Knows the names.
        others: Further names of the parameters.

    Raises:
        ParseError: A value is not readable or differs from an earlier one, or a name is unknown
            while a parameter is missing.
    """
    more = {folded(name): i for i, name in enumerate(others)}
    space, exact = reader.space, {name: i for i, name in enumerate(reader.labels)}
    point: dict[int, Value] = {}
    unknown: list[str] = []
    for name, value in pairs:
        place = exact.get(str(name), reader.place(str(name)))
        place = more.get(folded(str(name))) if place is None else place
        if place is None:
            unknown.append(str(name))
            continue
        choices = reader.values[place].choices or ()
        if value is None and None not in choices and space.condition(place):
            continue
        read = reader.values[place].from_json(value)
        if read is _MISSING:
            raise ParseError(reader.unreadable(place, cut(_as_json(value), _MOST_SHOWN)), "")
        if point.setdefault(place, read) != read:
            raise ParseError(f"`{reader.labels[place]}` has two values", "")
    if unknown and space.missing(point):
        raise ParseError(unknown_names(unknown, reader.labels), "")
    return point


def no_values(missing: Sequence[int], names: Sequence[str]) -> str:
    """Say which parameters have no value."""
    listed = ", ".join(f"`{names[i]}`" for i in missing[:_MOST_LISTED])
    more = len(missing) - _MOST_LISTED
    return f"there is no value for {listed}" + (f" and {more} more" if more > 0 else "")


def unknown_names(names: Sequence[str], labels: Sequence[str]) -> str:
    """Say which names are none of the parameters, and which are the nearest."""
    reasons = []
    for name in dict.fromkeys(names[:_MOST_LISTED]):
        near = difflib.get_close_matches(name, labels, n=1, cutoff=0.5)
        reasons.append(f"{name!r} is none of the parameters")
        reasons[-1] += f" (did you mean {near[0]!r}?)" if near else ""
    return ", ".join(reasons)


def expected_values(names: Sequence[str], where: str, whole: bool) -> str:
    """Say where the values are expected, and in which form; `whole` says that all are."""
    shown = names if len(names) <= 4 else (*names[:2], "…", names[-1])
    form = ", ".join(n if n == "…" else f"{n}: <value>" for n in shown)
    count = f"all {len(names)} values" if whole else "the values that the point has"
    return f"{where} must give {count} as `{form}`"


def _bare(text: str) -> str:
    """Return the text of a value without marks around it, and without the end of a sentence."""
    text = text.strip(_MARKS)
    if text.endswith(".") or (text.endswith(")") and "(" not in text):
        text = text[:-1].rstrip(_MARKS + ".")
    return text


def _as_json(choice: Any) -> str:
    try:
        return clean(json.dumps(choice, ensure_ascii=False))
    except (TypeError, ValueError):
        return ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
