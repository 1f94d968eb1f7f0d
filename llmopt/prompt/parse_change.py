"""Reading answers that give a point as the change of an earlier one, or end the search."""

from __future__ import annotations

import re
from collections.abc import Sequence

from llmopt.errors import ParseError
from llmopt.prompt.evidence import start_of, zero_point
from llmopt.prompt.parse import (
    MAX_EXPLANATION,
    OutOfRange,
    Reader,
    Reading,
    settle,
    strip_thinking,
)
from llmopt.prompt.parse_last import MARKER, parse_last
from llmopt.space import Space, Value

_STOP = re.compile(r"^[\s*_`\"'.]*(?:stop|converged)[\s*_`\"'.!]*$", re.IGNORECASE)
_ZERO = re.compile(r"start(?:ing)?\s+from[^\w#]{0,8}zero\b", re.IGNORECASE)
_AGAIN = re.compile(
    r"^[\s*_`\"'.(]*(?:no changes?|unchanged|the same(?: point)?|same|again|none|nothing)?"
    r"[\s*_`\"'.)]*$",
    re.IGNORECASE,
)
_NAMED = re.compile(
    r"(?m)^[ \t>*_`-]{0,8}([^\s:=,][^:=,\n]{0,80}?)[ \t*_`\"']{0,6}[:=][ \t]*[-+]?[\d.]"
)


def parse_change(
    text: str,
    space: Space,
    *,
    points: Sequence[tuple[Value, ...]],
    labels: Sequence[str] | None = None,
    out_of_range: OutOfRange = "clip",
    may_stop: bool = False,
) -> Reading:
    """Read the last point of an answer that may name only what differs from an earlier point.

    Args:
        text: The answer. ``Start from: #k`` names the point that it changes, counted from 1,
            ``Start from: zero`` the point with 0 for every value.
        space: The search space.
        points: Flat values of the points that an answer may start from, in their order.
        labels: As for `parse_parameters`.
        out_of_range: As for `parse_parameters`.
        may_stop: Whether ``Proposal: stop`` is an answer; its reading has ``stop=True`` and
            the values of the point that it starts from, or of the first one.

    Returns:
        The point; its ``explanation`` is what precedes it.

    Raises:
        ParseError: There is no point in the text, or it names a parameter or a point that
            does not exist.
    """
    answer = strip_thinking(text)
    names = tuple(labels) if labels is not None else space.names
    marks = list(MARKER.finditer(answer))
    start = start_of(answer)
    base = None if start is not None or not _ZERO.search(answer) else zero_point(space)
    block = answer[marks[-1].end() :] if marks else ""
    before = answer[: marks[-1].start()].strip()[:MAX_EXPLANATION] if marks else ""
    if may_stop and marks and points and _STOP.match(block):
        values = points[start - 1] if start and start <= len(points) else points[0]
        return Reading(values, before, False, stop=True)
    if (start is None and base is None) or not marks:
        return parse_last(text, space, labels=labels, out_of_range=out_of_range)
    changes = Reader(block, space, names).assignments
    if not changes and not _AGAIN.match(block):
        return parse_last(text, space, labels=labels, out_of_range=out_of_range)
    if len({c.index for c in changes}) == len(names):
        return parse_last(text, space, labels=labels, out_of_range=out_of_range)
    if start is not None and not 1 <= start <= len(points):
        raise ParseError(
            f"there is no point #{start} to start from; expected a number from 1 to {len(points)}, "
            'or "new" and all values',
            text,
        )
    known = {" ".join(n.casefold().split()) for n in (*names, *space.names)}
    for found in _NAMED.finditer(block):
        if " ".join(found[1].strip("*_`\"' ").casefold().split()) not in known:
            raise ParseError(f"{found[1]!r} is none of the parameters", text)
    changed = list(base if start is None and base is not None else points[(start or 1) - 1])
    for change in changes:
        changed[change.index] = change.value
    point, clipped = settle(changed, space, names, out_of_range, text)
    return Reading(point, before, clipped)
