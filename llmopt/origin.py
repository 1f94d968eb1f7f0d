"""Which trial of which search a trial is, and how often it was changed there and elsewhere.

A trial keeps its origin in every search that imports it. Its revisions are the number of
corrections, withdrawals and restorations by the identifier of the search in which they were made,
so that it is known which of two copies is the later one, or that neither is.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

_ORIGIN = r"[a-z]{10}:\d+:[0-9a-f]{8}"
_TEXT = re.compile(rf"({_ORIGIN})((?:;[a-z]*=\d+)*)", re.ASCII)


def new_identifier() -> str:
    """Return the identifier of a new search: letters alone, which no table reads as a number."""
    return "".join(secrets.choice(string.ascii_lowercase) for _ in range(10))


def digest(values: Sequence[Any], rewards: Sequence[float] | None) -> str:
    """Return the digest of a point, as JSON, with its rewards."""
    numbers = None if rewards is None else [*map(float, rewards)]
    return f"{crc32(json.dumps([*values, numbers]).encode()):08x}"


def origin_of(
    search: str, number: int, values: Sequence[Any], rewards: Sequence[float] | None
) -> str:
    """Return the origin of a trial that a search records first.

    It ends in the digest of the result: a copy of a storage file continues under the same
    identifier with other trials.

    Args:
        search: The identifier; empty for a search without one.
        number: The trial's number, from 0.
        values: Its point, as JSON.
        rewards: Its rewards, if it did not fail.
    """
    return f"{search}:{number + 1}:{digest(values, rewards)}" if search else ""


def as_text(origin: str, revisions: Mapping[str, int]) -> str:
    """Return the origin and the revisions of a trial as a cell of a table."""
    return origin and ";".join([origin, *(f"{name}={n}" for name, n in revisions.items())])


def from_text(cell: Any) -> tuple[str, dict[str, int]] | None:
    """Return what `as_text` wrote, or ``None`` if a cell holds something else."""
    match = _TEXT.fullmatch(cell) if isinstance(cell, str) else None
    if match is None:
        return None
    pairs = (each.split("=") for each in match[2].split(";")[1:])
    return match[1], {name: int(n) for name, n in pairs}


def is_origin(text: str) -> bool:
    """Return whether a text is an origin."""
    return re.fullmatch(_ORIGIN, text, re.ASCII) is not None


def is_newer(revisions: Mapping[str, int], than: Mapping[str, int]) -> bool:
    """Return whether a copy has all changes of another copy, and further ones."""
    return revisions != than and all(revisions.get(name, 0) >= n for name, n in than.items())


def merged(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Return the revisions of a copy that has the changes of two copies."""
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}
