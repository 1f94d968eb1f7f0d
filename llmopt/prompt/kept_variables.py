"""Variables of a model's Python in place of values: ``kept: NAME`` in an answer.

After each block its worker sends the plain values of the variables that can be a point
(`llmopt.lab.laboratory`). They are stored with the block (`Computed.values`), so that an answer
is read without the worker: in a replay or a resumed search a name means the same point.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from llmopt.errors import ParseError
from llmopt.prompt.values import from_json, pair_reader
from llmopt.space import Space, Value
from llmopt.util.text import cut

MOST_VALUES = 10_000
"""Values of all variables together that are stored with a block; a text counts as more."""

Plain: TypeAlias = "list[Any] | dict[str, Any]"
"""Bools, whole numbers, finite floats, texts (``"nan"`` among them) and ``None``."""

_LONGEST = 200  # characters of a text or of a key
_MOST_SHOWN = 300  # characters of the names of variables in a complaint
_WORDS = re.compile(r"[^\W\d_]+(?:[ \t]{1,4}[#\w'’-]+){1,30}")
_LINE = re.compile(
    r"^[ \t>*_`-]{0,8}kept[ \t*_`]{0,6}[:=][ \t*`\"']{0,6}"
    r"(?P<name>(?:(?![ \t]\()[^\n,;]){0,120})(?:[ \t]{1,4}\([^()\n]{0,400}\))?",
    re.IGNORECASE | re.MULTILINE,
)


def plain_values(variables: Any) -> dict[str, Plain]:
    """Check the values of variables that a worker or a file gives, and return them.

    Raises:
        TypeError: They have another form.
    """
    if not isinstance(variables, dict):
        raise TypeError("the values of a block's variables are no mapping by name")
    texts: list[Any] = list(variables)
    items: list[Any] = []
    for value in variables.values():
        if not isinstance(value, list | dict):
            raise TypeError("the values of a variable are no list or mapping by name")
        texts += value if isinstance(value, dict) else []
        items += value.values() if isinstance(value, dict) else value
    if len(items) > MOST_VALUES:
        raise TypeError(f"{len(items)} values of variables; expected at most {MOST_VALUES}")
    texts += [item for item in items if isinstance(item, str)]
    if not all(isinstance(text, str) and len(text) <= _LONGEST for text in texts):
        raise TypeError(f"a value has a name or text that is none, or has over {_LONGEST} letters")
    for item in items:
        if item is not None and not isinstance(item, str | int | float):
            raise TypeError("a value of a variable is no number, text or bool")
        if isinstance(item, float) and not math.isfinite(item):
            raise TypeError('a value is nan or infinite; expected it as a text such as "nan"')
    return variables


@dataclass(frozen=True)
class Kept:
    """The variables that an answer may name.

    Attributes:
        space: The search space.
        labels: What the prompt calls its parameters.
        values: The values of the variables that can be a point.
        variables: All variables with their kinds, as prompts list them.
    """

    space: Space
    labels: Sequence[str]
    values: Mapping[str, Plain] = field(default_factory=dict)
    variables: Sequence[str] = ()

    @classmethod
    def of(
        cls, space: Space, labels: Sequence[str], values: Mapping[str, Plain], names: Sequence[str]
    ) -> Kept | None:
        """Return what an answer may name; ``None`` if a parameter has the name ``kept``."""
        taken = any(name.casefold() == "kept" for name in (*labels, *space.names))
        return None if taken else cls(space, labels, values, names)

    @staticmethod
    def named(block: str) -> tuple[str, str] | None:
        """Return the variable that the text of a point names, and the rest; else nothing."""
        match = _LINE.search(block)
        if match is None:
            return None
        name = match["name"].strip(" \t*`\"'").rstrip(".")
        return name, block[: match.start()] + block[match.end() :]

    def is_remark(self, name: str) -> bool:
        """Whether a name is prose, as in "Kept: all other gains", and no variable."""
        names = (*self.values, *(variable.partition(" ")[0] for variable in self.variables))
        first, *more = name.split() or [""]
        variable = first.casefold() in map(str.casefold, names)
        return bool(more) and not variable and bool(_WORDS.fullmatch(name))

    def point(self, name: str, beside: Collection[int] = ()) -> dict[int, Value]:
        """Return the values of a variable by the places of the parameters, without those `beside`.

        Raises:
            ParseError: There is no such variable, or it is no point.
        """
        n, values = len(self.labels), self.values.get(name)
        if isinstance(values, list) and len(values) == n:
            given = (
                None if v == "nan" and self.space.condition(i) else v for i, v in enumerate(values)
            )
            values = dict(zip(self.labels, given, strict=True))
        if isinstance(values, dict):
            replaced = {self.labels[i] for i in beside}
            values = {label: v for label, v in values.items() if label not in replaced}
            return from_json(values.items(), pair_reader(self.space, tuple(self.labels)))
        kind = next((v for v in self.variables if v.partition(" ")[0] == name), None)
        if not name.isidentifier():
            trouble = f"{cut(name, 60)!r} is no name of a variable" if name else ""
            trouble = trouble or "`kept:` has no name"
        elif kind is not None:
            kind = cut(kind.partition(" ")[2], 60)
            trouble = f"the variable `{name}` {kind} has no values of a point on record"
        else:
            names = cut(", ".join(self.variables), _MOST_SHOWN) or "none"
            trouble = f"no variable `{cut(name, 60)}` was kept by an earlier block; there are: "
            trouble += names
        raise ParseError(
            f"{trouble}; expected `kept: NAME` with the name alone of a list or 1-D "
            f"array of {n} plain values in the order of `names`, or of a dict by parameter name: "
            "make one in a block, or write the values",
            "",
        )
