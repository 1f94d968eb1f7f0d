"""Recognizing one value of one dimension inside a text."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from llmopt.space import Categorical, Int, Space, Value

_MINUS = "\u2212\u2013\ufe63\uff0d-"  # the plain one last: it stands in character sets
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
        spellings = (lambda c: space.format(index, c), _json_text, repr, str, _double_quoted)
        for spell in spellings:  # the prompt's own form wins where two choices look alike
            for choice in self.choices:
                self.by_text.setdefault(spell(choice), choice)
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
        text = value if isinstance(value, str) else json.dumps(value)
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


def _double_quoted(choice: Any) -> str:
    return f'"{choice}"'


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def end_of(pattern: re.Pattern[str], text: str, position: int) -> int:
    """Return where a match that begins at `position` ends; `position` if there is none."""
    match = pattern.match(text, position)
    return match.end() if match else position
