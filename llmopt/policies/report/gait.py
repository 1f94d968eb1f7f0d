"""Stances and flights of a body: the hops of a gait."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

_FLICKER = 0.1  # share of the typical phase; shorter contacts and gaps are ignored


class Stance(NamedTuple):
    """One phase of a body on the ground."""

    down: int | None  # step of the touchdown; ``None`` if on the ground from the start
    up: int | None  # step of the lift-off; ``None`` if on the ground until the end


def stances(touching: Sequence[bool]) -> list[Stance]:
    """Return the stances, from whether a body touches the ground after each step.

    A body that lands or rolls off flickers: ignore contacts and gaps much shorter than the phase of
    the median step. The first and the last phase are incomplete, and kept.
    """
    on = np.asarray(touching, dtype=bool)
    edges = [0, *(np.flatnonzero(np.diff(on)) + 1).tolist(), len(on)]
    while len(edges) > 3:
        inner = np.diff(edges)[1:-1]
        ordered = np.sort(inner)
        typical = ordered[np.searchsorted(ordered.cumsum(), ordered.sum() / 2)]
        shortest = int((inner + 0.5 * on[edges[1:-2]]).argmin())  # a gap if equal
        if inner[shortest] >= _FLICKER * typical:
            break
        del edges[shortest + 1 : shortest + 3]
    first = 0 if len(on) and on[0] else 1
    ends = [None, *edges[1:-1], None]
    return [Stance(*ends[i : i + 2]) for i in range(first, len(edges) - 1, 2)]


def chosen(found: Sequence[Stance], count: int) -> list[Stance]:
    """Return `count` stances: the typical, the last, the first, the one after the typical one.

    The typical one has the median time from touchdown to touchdown.
    """
    if len(found) <= count:
        return list(found)
    inner = list(range(1, len(found) - 1)) or [0]
    inner.sort(key=lambda i: (found[i + 1].down or 0) - (found[i].down or 0))
    typical = inner[(len(inner) - 1) // 2]
    wanted = list(dict.fromkeys([typical, len(found) - 1, 0, typical + 1]))
    return [found[i] for i in sorted(wanted[:count])]


def lengths(found: Sequence[Stance]) -> tuple[float, float]:
    """Return the median steps of a stance and of a flight; needs two touchdowns."""
    down = [s.up - s.down for s in found if s.up is not None and s.down is not None]
    off = [
        after.down - s.up
        for s, after in pairwise(found)
        if s.up is not None and after.down is not None
    ]
    return float(np.median(down)), float(np.median(off))
