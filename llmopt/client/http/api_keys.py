"""API keys: where they come from, and how they are kept out of every text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

from llmopt.errors import MissingKeyError
from llmopt.util.text import a_type

# Patterns of keys, in case a response echoes another key or a partly masked one.
_KEY_SHAPES = re.compile(
    r"\b(?:sk|gsk|xai|pk|rk)-[\w*.…-]{6,}|\bAIza[\w*-]{10,}|\bAQ\.[\w*.-]{10,}"
    r"|(?i:\bbearer\s+)[\w*.~+/=-]{6,}|(?<=[?&]key=)[^&\s\"']+"
)


class Secret:
    """A key that ``repr`` hides; pickling drops it, a deep copy keeps it."""

    __slots__ = ("reveal",)

    def __init__(self, value: str | None = None) -> None:
        if not (value is None or isinstance(value, str)):  # it may be a key: never shown
            raise TypeError(
                f"api_key is {a_type(value)}: expected a string, or None for the one in "
                "the environment"
            )
        self.reveal = value

    def __repr__(self) -> str:
        return "Secret(***)" if self.reveal else "Secret(None)"

    def __bool__(self) -> bool:
        return bool(self.reveal)

    @property
    def sendable(self) -> bool:
        """Whether it can be sent in a header."""
        value = self.reveal or ""
        return value.isascii() and value.isprintable() and " " not in value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.reveal == other.reveal

    __hash__ = None  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        return self

    def __reduce__(self) -> tuple[type[Secret], tuple[()]]:
        return Secret, ()


def find_key(given: Secret, variables: Sequence[str], *, name: str, required: bool) -> Secret:
    """Return the given API key, or else the first one that is set in the environment."""
    # No local variable has the bare key, because tracebacks may show local variables.
    key = given or Secret(next(filter(None, map(os.environ.get, variables)), None))
    key = Secret((key.reveal or "").strip() or None)  # one read from a file often ends in a newline
    remedy = (
        f"set the environment variable {' or '.join(variables)}, or in Python give "
        f"llmopt.get_client({name!r}, api_key=...) as the client"
    )
    if not key and required:
        raise MissingKeyError(f"{name} needs an API key and there is none: {remedy}", requests=0)
    if not key.sendable:
        raise MissingKeyError(
            f"the API key for {name} contains characters that no key has (a space, a line break or "
            f"a non-ASCII letter): {remedy}",
            requests=0,
        )
    return key


def hide(text: str, secrets: Iterable[Secret | str | None]) -> str:
    """Return `text` with known keys, bare or URL-quoted, replaced by ``***``."""
    for secret in (s if isinstance(s, Secret) else Secret(s) for s in secrets):
        if secret:
            text = text.replace(secret.reveal or "", "***")
            text = text.replace(quote(secret.reveal or "", safe=""), "***")
    return text


def redact(text: str, secrets: Iterable[Secret | str | None] = ()) -> str:
    """Return `text` with known keys, and everything that looks like a key, replaced by ``***``."""
    return _KEY_SHAPES.sub("***", hide(text, secrets))
