"""Variables of a model's Python in place of values: ``kept: NAME`` in an answer.

After each block its worker sends the plain values of the variables that can be a point
(`llmopt.lab.laboratory`). They are stored with the block (`Computed.values`), so that an answer
is read without the worker: in a replay or a resumed search a name means the same point.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from llmopt.errors import ParseError
from llmopt.prompt.values import PairReader, from_json
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


def plain_values(found: Any) -> dict[str, Plain]:
    """Check the values of variables that a worker or a file gives, and return them.

    Raises:
        TypeError: They have another form.
    """
    if not isinstance(found, dict) or not all(isinstance(v, list | dict) for v in found.values()):
        raise TypeError("the values of a block's variables are no lists or mappings by name")
    texts = [k for v in (found, *found.values()) if isinstance(v, dict) for k in v]
    items = [i for v in found.values() for i in (v.values() if isinstance(v, dict) else v)]
    if len(items) > MOST_VALUES:
        raise TypeError(f"{len(items)} values of variables; expected at most {MOST_VALUES}")
    texts += [item for item in items if isinstance(item, str)]
    if any(len(text) > _LONGEST for text in texts if isinstance(text, str)):
        raise TypeError(f"a value has a text of more than {_LONGEST} characters")
    plain = all(item is None or isinstance(item, str | bool | int | float) for item in items)
    if not plain or not all(isinstance(text, str) for text in texts):
        raise TypeError("a value of a variable is no number, text or bool")
    if any(isinstance(item, float) and not math.isfinite(item) for item in items):
        raise TypeError('a value is nan or infinite; expected it as a text such as "nan"')
    return found


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
        cls,
        space: Space,
        labels: Sequence[str],
        values: Mapping[str, Plain],
        variables: Sequence[str],
    ) -> Kept | None:
        """Return what an answer may name; ``None`` if a parameter has the name ``kept``."""
        taken = any(name.casefold() == "kept" for name in (*labels, *space.names))
        return None if taken else cls(space, labels, values, variables)

    @staticmethod
    def named(block: str) -> tuple[str, str] | None:
        """Return the variable that the text of a point names, and the rest; else nothing."""
        found = _LINE.search(block)
        if found is None:
            return None
        name = found["name"].strip(" \t*`\"'").rstrip(".")
        return name, block[: found.start()] + block[found.end() :]

    def is_remark(self, name: str) -> bool:
        """Whether a name is prose, as in "Kept: all other gains", and no variable."""
        first, *more = name.split() or [""]
        known = {known.casefold() for known in self._known}
        return bool(more) and first.casefold() not in known and bool(_WORDS.fullmatch(name))

    def point(self, name: str) -> dict[int, Value]:
        """Return the values of a variable by the places of the parameters.

        Raises:
            ParseError: There is no such variable, or it is no point.
        """
        n = len(self.labels)
        values = self.values.get(name)
        if isinstance(values, dict):
            return from_json(values.items(), PairReader(self.space, self.labels))
        if values is not None and len(values) == n:
            absent = [v == "nan" and bool(self.space.condition(i)) for i, v in enumerate(values)]
            given = (None if left else v for v, left in zip(values, absent, strict=True))
            pairs = zip(self.labels, given, strict=True)
            return from_json(pairs, PairReader(self.space, self.labels))
        raise ParseError(
            f"{self._trouble(name)}; expected `kept: NAME` with the name alone of a list or 1-D "
            f"array of {n} plain values in the order of `names`, or of a dict by parameter name: "
            "make one in a block, or write the values",
            "",
        )

    @property
    def _known(self) -> set[str]:
        return {*self.values, *(variable.partition(" ")[0] for variable in self.variables)}

    def _trouble(self, name: str) -> str:
        if not name.isidentifier():
            return f"{cut(name, 60)!r} is no name of a variable" if name else "`kept:` has no name"
        for variable in self.variables:
            known, _, kind = variable.partition(" ")
            if known == name:
                return f"the variable `{name}` {cut(kind, 60)} has no values of a point on record"
        listed = cut(", ".join(self.variables), _MOST_SHOWN) or "none"
        return f"no variable `{cut(name, 60)}` was kept by an earlier block; there are: {listed}"
