"""Points as structured answers: the JSON schema of an answer, and how it is read.

A provider that holds a model to a schema gives answers that can always be read. The reasons stand
before the values, so that a model which does not think unseen still thinks first; every field is
required, since some providers put optional ones last. The schema depends on the space alone: it
is the same through a search, as the providers' caches of schemas and prompts want it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from llmopt.errors import ParseError
from llmopt.prompt.answer_parts import Answer, is_nothing, start_in
from llmopt.prompt.kept_variables import Kept
from llmopt.prompt.python_block import bare
from llmopt.prompt.values import PairReader, from_json, no_values, pair_reader
from llmopt.space import Categorical, Int, Space, Value

MOST_PARAMETERS = 200
"""With more of them an answer is asked as text: providers limit what a schema may hold."""

_MOST_CHOICES = 100
_MOST_BRACES = 50  # of a text that are tried as the start of an object
_MOST_LEVELS = 50  # of lists and objects in one another
_LONGEST = 600  # characters of one reason, where the model can be held to that
_KEY = re.compile(r"[\w.-]{1,64}", re.ASCII)
_POINT, _CHANGES, _STOP = "point", "changes", "converged"
_POINTS, _PYTHON, _KEPT = "proposals", "python", "kept"
_START = "Start from"
_WRAPPING = ("result", "response", "text", "content")  # of programs and APIs, the whole text first
_OWN = ("Hypothesis", _START)  # reasons that each of several points has


class Form:
    """The structured form of a prompt's answers.

    Args:
        space: The search space.
        labels: What the prompt calls its parameters.
        reasons: The texts that an answer begins with, as the prompt calls them:
            ``("Critique", "Hypothesis")``.
        last: Whether an answer as text gives its reasons before the values.
        changes: Whether an answer may name an earlier point and what differs from it.
        may_stop: Whether an answer may end the search.
        most: The most points in one answer, where `changes` is true.
        compute: Whether an answer may hold Python in place of points.
        kept: The variables that a point may name in place of values, where `changes` is true.
    """

    def __init__(
        self,
        space: Space,
        labels: Sequence[str],
        reasons: Sequence[str],
        *,
        last: bool = False,
        changes: bool = False,
        may_stop: bool = False,
        most: int = 1,
        compute: bool = False,
        kept: Kept | None = None,
    ) -> None:
        self.last, self.changes, self.several = last, changes, most > 1 and changes
        self.may_stop, self.compute = may_stop and changes, compute
        self.kept = kept if changes else None
        self.reasons = {reason.lower().replace(" ", "_"): reason for reason in reasons}
        # The reasons that each of several points has, and those of the whole answer.
        self._own = [k for k, name in self.reasons.items() if self.several and name in _OWN]
        self._shared = [k for k in self.reasons if k not in self._own]
        self._space, self._labels, self._keys = space, tuple(labels), _keys(labels)
        self._pairs = pair_reader(space, tuple(labels))

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of an answer."""
        reason = {"type": "string", "maxLength": _LONGEST}
        fields: dict[str, Any] = dict.fromkeys(self._shared, reason)
        if self.compute:
            fields[_PYTHON] = {"type": "string"}
        if self.changes:
            choices = any(isinstance(d, Categorical) for d in self._space.dimensions)
            value = {"type": "number"}
            item = {
                "parameter": {"type": "string", "enum": list(self._labels)},
                "value": {"anyOf": [value, {"type": "string"}]} if choices else value,
            }
            point = dict.fromkeys(self._own, reason)
            point |= {} if self.kept is None else {_KEPT: {"type": "string"}}
            point[_CHANGES] = {"type": "array", "items": _object(item)}
            points = {_POINTS: {"type": "array", "items": _object(point)}}
            fields |= points if self.several else point
        else:
            asked = self._space.asked
            fields[_POINT] = _object({self._keys[i]: self._value(i) for i in asked})
        return _object(fields | ({_STOP: {"type": "boolean"}} if self.may_stop else {}))

    def _value(self, index: int) -> dict[str, Any]:
        dimension = self._space.dimensions[index]
        value: dict[str, Any] = {"type": "integer" if isinstance(dimension, Int) else "number"}
        if isinstance(dimension, Categorical):
            value = {"type": "string"}
            if len(dimension.choices) <= _MOST_CHOICES:
                value["enum"] = [self._space.format(index, choice) for choice in dimension.choices]
        return {"anyOf": [value, {"type": "null"}]} if self._space.condition(index) else value

    @property
    def note(self) -> str:
        """What the model reads: not every provider shows it the schema."""
        fields = [f'"{key}": "…"' for key in self._shared]
        if self.compute:
            fields.append(f'"{_PYTHON}": "<a block of Python and no point, or empty>"')
        if self.changes:
            point = [f'"{key}": "…"' for key in self._own]
            point += [] if self.kept is None else [f'"{_KEPT}": "<NAME alone, or empty>"']
            point.append(f'"{_CHANGES}": [{{"parameter": "<name>", "value": <value>}}, …]')
            several = [f'"{_POINTS}": [{{{", ".join(point)}}}, …]']
            fields += several if self.several else point
        else:
            asked = [f'"{self._keys[i]}": <value>' for i in self._space.asked]
            fields.append(f'"{_POINT}": {{{", ".join([*asked[:3], *["…"] * (len(asked) > 3)])}}}')
        if self.may_stop:
            fields.append(f'"{_STOP}": <true in place of "Proposal: stop", else false>')
        return (
            "Write the answer, with all that is said above of its content, as one JSON object: "
            f"{{{', '.join(fields)}}}"
        )

    def answers(self, data: Mapping[str, Any]) -> list[Answer]:
        """Return what a JSON object says of each point; nothing if it gives none."""
        points = data.get(_POINTS) if self.several else None
        items: list[Any] = points if isinstance(points, list) else [data]  # one point all the same
        key, kind = (_CHANGES, list) if self.changes else (_POINT, dict)
        items = [
            i if isinstance(i.get(key), kind) else {**i, key: []}
            for i in items
            if isinstance(i, dict) and (isinstance(i.get(key), kind) or self._named(i))
        ]
        stop = self.may_stop and data.get(_STOP) is True
        if stop and (not items or items[-1][key] or self._named(items[-1])):
            items.append({key: []})  # the end behind points, without its own start
        answers, shared = [], {name: data.get(name, "") for name in self._shared}
        for k, item in enumerate(items):
            ends = stop and k == len(items) - 1
            answers.append(self._answer({**(shared if ends or k == 0 else {}), **item}, ends))
        return answers

    def _named(self, item: Mapping[str, Any]) -> str:
        """Return the variable that a point names in place of values, if any."""
        name = item.get(_KEPT) if self.kept is not None else ""
        name = " ".join(name.split()) if isinstance(name, str) else ""
        names = {} if self.kept is None else self.kept.values
        return "" if is_nothing(name) and name not in names else name

    def code(self, text: str) -> str:
        """Return the Python of a JSON object that gives no point; else nothing."""
        data = next(iter(json_objects(text)[0]), {})
        points = data.get(_POINTS) or data.get(_CHANGES) or data.get(_STOP) or self._named(data)
        code = data.get(_PYTHON)
        return bare(code) if isinstance(code, str) and not points else ""

    def _answer(self, data: Mapping[str, Any], stop: bool) -> Answer:
        given = data[_CHANGES if self.changes else _POINT]
        pairs = (
            given.items()
            if isinstance(given, dict)
            else [(i.get("parameter"), i.get("value")) for i in given if isinstance(i, dict)]
        )
        trouble, values = "", dict[int, Value]()
        try:
            if self.kept is not None and (name := self._named(data)):
                values = self.kept.point(name)
            values |= from_json(pairs, self._pairs, self._keys)
        except ParseError as error:
            trouble = error.reason
        notes = {
            name: " ".join(str(data.get(key, "")).split()) for key, name in self.reasons.items()
        }
        if not self.last:
            return Answer(analysis="\n".join(notes.values()), values=values, trouble=trouble)
        lesson, analysis, hypothesis, start = (
            notes.pop(n, "") for n in ("Lesson", "Analysis", *_OWN)
        )
        rest = [analysis, *(f"{name}: {why}" for name, why in notes.items() if why)]
        return Answer(
            "" if is_nothing(lesson) else lesson,
            "\n".join(text for text in rest if text),
            hypothesis,
            start_in(start) if start else None,
            values,
            stop,
            trouble,
        )


def json_objects(text: str) -> tuple[list[dict[str, Any]], str]:
    """Return the JSON objects of a text, else why there is none; empty without any brace.

    A brace that opens no object is skipped; a string may hold raw line breaks.
    """
    objects: list[dict[str, Any]] = []
    trouble, start = "", text.find("{")
    for _ in range(_MOST_BRACES):
        if start < 0:
            break
        try:
            data, end = _DECODER.raw_decode(text, start)
            _check_depth(data)
            objects += [data] if data else []
        except (ValueError, RecursionError) as error:
            trouble, end = trouble or str(error), start + 1
        start = text.find("{", end)
    return objects, "" if objects else trouble


def _check_depth(data: Any) -> None:
    """Raise `ValueError` for nested values that a complaint might be unable to write again."""
    level = [data]
    for _ in range(_MOST_LEVELS):
        parts = [v for node in level for v in (node.values() if isinstance(node, dict) else node)]
        level = [part for part in parts if isinstance(part, dict | list)]
        if not level:
            return
    raise ValueError("it is nested too deeply")


def wrapped_in(text: str, pairs: PairReader) -> str:
    """Return the field of JSON, or of lines of JSON, in which a program wraps an answer.

    It is empty if the text is more than JSON, or if a field has the name of a parameter.
    """
    nodes: list[Any] = []
    fields: set[str] = set()
    at, text = 0, text.strip()
    try:
        while at < len(text):
            if text[at] not in "{[":
                return ""
            data, end = _DECODER.raw_decode(text, at)
            _check_depth(data)
            nodes.append(data)
            at = len(text) - len(text[end:].lstrip())
    except (ValueError, RecursionError):
        return ""
    for node in nodes:  # which grows
        if isinstance(node, dict):
            if any(pairs.place(name) is not None for name in node):
                return ""
            fields |= {name for name, value in node.items() if isinstance(value, str)}
            nodes += node.values()
        elif isinstance(node, list):
            nodes += node
    return next((name for name in _WRAPPING if name in fields), "")


def loose_answer(data: Mapping[str, Any], pairs: PairReader, expected: str) -> Answer | None:
    """Return what a JSON object of no given form says: names with values, and an explanation."""
    try:
        values = values_in(data, pairs)
        if values is None:
            return None
        if missing := pairs.space.missing(values):
            raise ParseError(no_values(missing, pairs.labels), "")
    except ParseError as error:
        return Answer(trouble=f"{error.reason}; {expected}")
    reasons = (data.get(key) for key in ("explanation", "reason", "reasoning", "rationale"))
    return Answer(analysis=next((r for r in reasons if isinstance(r, str)), ""), values=values)


def values_in(data: Mapping[str, Any], pairs: PairReader) -> dict[int, Value] | None:
    """Return the values that a JSON object gives by name, itself or one object in it, if any."""
    nodes = [data, *(v for v in data.values() if isinstance(v, dict))]
    given = [
        [(name, value) for name, value in node.items() if pairs.place(name) is not None]
        for node in nodes
    ]
    most = max(given, key=len)
    return from_json(most, pairs) if most else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("a name is given twice")
    return data


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no finite number")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_number, strict=False)


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _keys(labels: Sequence[str]) -> list[str]:
    """Return names of fields that every provider takes, one for each label."""
    keys = [
        label
        if _KEY.fullmatch(label)
        else re.sub(r"[^\w.-]+", "_", label, flags=re.ASCII).strip("_")
        for label in labels
    ]
    sound = len(set(keys)) == len(keys) and all(map(_KEY.fullmatch, keys))
    return keys if sound else [f"p{i + 1}" for i in range(len(keys))]
