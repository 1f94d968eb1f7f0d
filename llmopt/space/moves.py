"""Moving points of a space: to where its constraints are kept, and by one step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from llmopt.errors import SpaceError
from llmopt.space.constraints import Constraint
from llmopt.space.dimensions import Categorical
from llmopt.space.values import ABSENT, Value

if TYPE_CHECKING:
    from llmopt.space.space import Space

DRAWS = 1000
"""Draws of a point that keeps the constraints, before one is moved."""
_PULLS = 64  # steps in which a moved point is drawn towards one that keeps them


def find_anchor(space: Space) -> tuple[Value, ...]:
    """Return a point that keeps the constraints, in their midst if possible."""
    rng = np.random.default_rng(0)
    drawn = [space.draw(rng) for _ in range(DRAWS)]
    kept = [values for values in drawn if space.admits(values)]
    if kept:
        units = np.array([space.encode(values) for values in kept])
        middle = np.linalg.norm(units - units.mean(axis=0), axis=1)
        return kept[int(middle.argmin())]
    for values in drawn:
        moved = _projected(space, values)
        if space.admits(moved):
            return moved
    raise SpaceError(
        f"no point of the space was found that keeps the constraints "
        f"({'; '.join(space.constraints)}): widen the ranges, or leave a constraint out"
    )


def mended(space: Space, values: tuple[Value, ...]) -> tuple[Value, ...]:
    """Move a point of a space to one that keeps its constraints: see `Space.mend`."""
    if space.admits(values):
        return values
    moved = _projected(space, values)
    if space.admits(moved):
        return moved
    here, there = space.encode(moved), space.encode(space._anchor)
    named = {name for c in space._constraints for name, _ in c.factors}
    fixed = [name not in named for name in space.names]
    for step in range(1, _PULLS):
        pulled = space.decode(here + (there - here) * step / _PULLS)
        pulled = tuple(
            [a if stays else b for a, b, stays in zip(values, pulled, fixed, strict=True)]
        )
        if space.admits(pulled):
            return pulled
    pairs = zip(values, space._anchor, fixed, strict=True)
    return tuple([a if stays else b for a, b, stays in pairs])


def _projected(space: Space, values: tuple[Value, ...]) -> tuple[Value, ...]:
    """Project a point onto one broken constraint after the other, in shares of the ranges."""
    point = list(values)
    for _ in range(DRAWS):
        worst = None
        for constraint in space._constraints:
            amount = constraint.amount(dict(zip(space.names, point, strict=True)))
            if amount:
                worst = constraint
                _step_inside(space, point, constraint, amount)
        if worst is None:
            break
    return space.clip(point)


def _step_inside(space: Space, point: list[Any], constraint: Constraint, amount: float) -> None:
    scales = []
    for name, factor in constraint.factors:
        dimension: Any = space.dimensions[space._place[name]]
        value = point[space._place[name]]
        # On a logarithmic scale a share of the range is in proportion to the value.
        extent = value if dimension.log else 1.0
        scales.append((space._place[name], dimension, factor * (dimension.span * extent) ** 2))
    length = sum(f * s[2] for (_, f), s in zip(constraint.factors, scales, strict=True))
    if not length:
        return
    for place, dimension, slope in scales:
        moved = float(point[place]) - 1.000001 * amount * slope / length
        point[place] = min(max(moved, dimension.low), dimension.high)


def step_lengths(space: Space, values: tuple[Value, ...]) -> np.ndarray:
    """Return ``(n,)`` how far the farther neighbour of each value is, in encoded coordinates.

    It is 0 for a continuous or fixed dimension and for a categorical one, which has no steps.
    """
    here = space.encode(values)
    gaps = np.zeros(len(space))
    for sign in (-1, 1):
        moved = [
            v if v is ABSENT or isinstance(d, Categorical) or d.step is None else v + sign * d.step
            for v, d in zip(values, space.dimensions, strict=True)
        ]
        there = space.encode(space.clip(moved))
        gaps = np.maximum(gaps, np.abs(there - here))
    return gaps
