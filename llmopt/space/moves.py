"""Moving points of a space: to where its constraints are kept, and by one step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from llmopt.errors import SpaceError, did_you_mean
from llmopt.space.activity import exact
from llmopt.space.constraints import Constraint, Forbidden, Limit
from llmopt.space.dimensions import Categorical, Dimension
from llmopt.space.values import ABSENT, Value
from llmopt.space.when import Test, When
from llmopt.util.text import cut

if TYPE_CHECKING:
    from llmopt.space.space import Space

DRAWS = 1000
"""Draws of a point that keeps the constraints, before one is moved."""
_ON_BOUND = 1e-3  # distance from an end, as a share of the range, that counts as on it
_SHOWN_ENDS = 4
_MOST_STEPS = 50_000  # constraints that are looked at while points are projected
_CONTRADICTS = 1e-7  # overlap of the constraints below 0, as a share of the ranges
_HALVINGS = 24  # until the distance from the constraints is known well enough
_ROUNDING = 1e-10  # changes of a bound below it are none, as a share of the range
_PULLS = 64  # steps in which a moved point is pulled towards a feasible one


def find_anchor(space: Space) -> tuple[Value, ...]:
    """Return a point that keeps the constraints, in their midst if possible."""
    for limit in space.limits:
        for name, _ in limit.factors:
            if isinstance(space.dimensions[space.place[name]], Categorical):
                raise SpaceError(
                    f"constraint {limit.text!r}: `{name}` is a choice; only numbers can be "
                    "constrained"
                )
    rng = np.random.default_rng(0)
    drawn = [space.draw(rng) for _ in range(DRAWS)]
    kept = [values for values in drawn if space.admits(values)]
    if kept:
        units = np.array([space.encode(values) for values in kept])
        middle = np.linalg.norm(units - units.mean(axis=0), axis=1)
        return kept[int(middle.argmin())]
    centre = _centre(space)
    if centre is not None:
        drawn.insert(0, centre)
    left = _MOST_STEPS  # of all points together
    for values in drawn if centre is None or centre else ():
        moved, steps = _projected(space, values, left)
        if space.admits(moved):
            return moved
        left -= steps
        if left <= 0:
            break
    raise SpaceError(
        f"no point of the space was found that keeps the constraints "
        f"({cut('; '.join(space.constraints), 1000)}): widen the ranges, or drop a constraint"
        + (
            ""
            if centre == () or find_spec("scipy")
            else "; if there is one, `pip install scipy` finds it"
        )
    )


def _centre(space: Space) -> tuple[Value, ...] | None:
    """Return the point that is farthest from all linear constraints, in shares of the ranges.

    It is empty if no point keeps them. ``None`` if it is not known, or a parameter may be absent,
    which a constraint does not bind then. Without SciPy it is known if bounds alone give it, as
    for ordered parameters.
    """
    own = [c for c in space.limits if isinstance(c, Constraint) and c.factors]
    if space.conditional or not own:
        return None
    pairs = zip(space.names, space.dimensions, strict=True)
    named = {name: d for name, d in pairs if not isinstance(d, Categorical)}
    numbers, places = list(named.values()), {name: k for k, name in enumerate(named)}
    low = np.array([d.low for d in numbers], dtype=float)
    span = np.array([d.high - d.low for d in numbers], dtype=float)
    rows = np.zeros((len(own), len(numbers) + 1))
    bounds = np.zeros(len(own))
    for row, constraint in enumerate(own):
        for name, factor in constraint.factors:
            rows[row, places[name]] = factor
        bounds[row] = -constraint.constant - rows[row, :-1] @ low
        rows[row, :-1] *= span
        size = np.linalg.norm(rows[row, :-1])
        if size:
            rows[row, :-1] /= size
            bounds[row] /= size
        rows[row, -1] = 1.0 if size else 0.0
    unit = _solved(rows, bounds)
    if not unit:
        return unit
    values = iter((low + np.array(unit) * span).tolist())
    return space.clip(
        [d.choices[0] if isinstance(d, Categorical) else next(values) for d in space.dimensions]
    )


def _solved(rows: np.ndarray, bounds: np.ndarray) -> tuple[float, ...] | None:
    """Return the centre of ``rows @ (x, radius) <= bounds`` in the unit cube; see `_centre`."""
    n = rows.shape[1] - 1
    if find_spec("scipy") is None:
        return _between_bounds(rows[:, :n], bounds)
    from scipy.optimize import linprog

    aim = np.zeros(n + 1)
    aim[-1] = -1.0
    # A radius below 0 measures by how much the constraints contradict each other.
    found = linprog(aim, A_ub=rows, b_ub=bounds, bounds=[(0.0, 1.0)] * n + [(None, 1.0)])
    if found.status != 0:
        return None
    return () if found.x[-1] < -_CONTRADICTS else tuple(found.x[:-1].tolist())


def _between_bounds(rows: np.ndarray, bounds: np.ndarray) -> tuple[float, ...] | None:
    """Return a point of the unit cube with ``rows @ x <= bounds``, by tightening its bounds.

    If each row has one positive and one negative factor, the lowest values that the rows allow
    are a solution, and so are the highest: the point is in the middle of them, at the largest
    distance from the rows for which there are any. Other rows make it a guess.
    """
    factors = [[(i, float(row[i])) for i in np.flatnonzero(row).tolist()] for row in rows]
    ordered = list(zip(factors, bounds.tolist(), strict=True))
    left = _MOST_STEPS * 4

    def tightened(distance: float) -> tuple[float, ...] | None:
        nonlocal left
        low, high = [0.0] * rows.shape[1], [1.0] * rows.shape[1]
        changed = True
        while changed and left > 0:
            changed = False
            ordered.reverse()  # a chain is tightened along its order and back
            for row, bound in ordered:
                left -= len(row)
                least = sum(f * (low[i] if f > 0 else high[i]) for i, f in row)
                room = bound - distance - least
                if room < -_CONTRADICTS:
                    return ()
                for i, f in row:
                    end = (low[i] if f > 0 else high[i]) + room / f
                    if f > 0 and end < high[i] - _ROUNDING:
                        high[i], changed = max(end, low[i]), True
                    elif f < 0 and end > low[i] + _ROUNDING:
                        low[i], changed = min(end, high[i]), True
        return None if changed else tuple((a + b) / 2 for a, b in zip(low, high, strict=True))

    best = tightened(0.0)
    near, far = 0.0, 1.0
    for _ in range(_HALVINGS if best else 0):
        middle = (near + far) / 2
        if found := tightened(middle):
            best, near = found, middle
        else:
            far = middle
    return best


def mended(space: Space, values: tuple[Value, ...]) -> tuple[Value, ...]:
    """Move a point of a space to one that keeps its constraints: see `Space.mend`."""
    values = _completed(space, values)
    if space.admits(values):
        return values
    moved = _completed(space, _projected(space, values, _MOST_STEPS)[0])
    if space.admits(moved):
        return moved
    aside = _aside(space, moved)
    if aside is not None:
        return aside
    here, there = space.encode(moved), space.encode(space.anchor)
    named = {name for c in space.limits for name in c.names}
    fixed = [name not in named for name in space.names]
    for step in range(1, _PULLS):
        pulled = space.decode(here + (there - here) * step / _PULLS)
        pulled = tuple(
            [a if stays else b for a, b, stays in zip(values, pulled, fixed, strict=True)]
        )
        pulled = _completed(space, space.conform(pulled))
        if space.admits(pulled):
            return pulled
    if space.conditional:  # which of its parameters a point has, depends on the others
        return space.anchor
    pairs = zip(values, space.anchor, fixed, strict=True)
    return tuple([a if stays else b for a, b, stays in pairs])


def _completed(space: Space, values: tuple[Value, ...]) -> tuple[Value, ...]:
    """Return a point with the middle of the range for what it lacks and needs."""
    while space.conditional and (lacking := space.missing(dict(enumerate(values)))):
        point = list(values)
        for i in lacking:
            point[i] = space.dimensions[i].decode(0.5)
        values = space.conform(point)
    return values


def _aside(space: Space, values: tuple[Value, ...]) -> tuple[Value, ...] | None:
    """Return a point without a forbidden combination that differs in one value, if there is one."""
    point = dict(zip(space.names, values, strict=True))
    broken = [c for c in space.limits if isinstance(c, Forbidden) and c.amount(point)]
    for name in dict.fromkeys(t.name for c in broken for t in reversed(c.tests)):
        i = space.place[name]
        for value in _others(space.dimensions[i], values[i], [t for c in broken for t in c.tests]):
            other = _completed(space, space.conform((*values[:i], value, *values[i + 1 :])))
            if space.admits(other):
                return other
    return None


def _others(dimension: Dimension, value: Value, tests: Sequence[Test]) -> list[Value]:
    """Return other values of a dimension, the nearest first."""
    if isinstance(dimension, Categorical):
        return [choice for choice in dimension.choices if choice != value]
    ends = [t.operand for t in tests if t.ordered] + [value]
    step = dimension.step or 1e-6 * (dimension.high - dimension.low)
    near = {dimension.clip(end + sign * step) for end in ends for sign in (-1, 0, 1)}
    return sorted(near - {value}, key=lambda other: abs(other - value))


def _projected(space: Space, values: tuple[Value, ...], most: int) -> tuple[tuple[Value, ...], int]:
    """Project a point onto one broken constraint after the other, in shares of the ranges.

    Returns:
        The point, and how many constraints were looked at, at most `most` and those of a round.
    """
    point = dict(zip(space.names, values, strict=True))
    looked = 0
    for _ in range(DRAWS):
        before = dict(point)
        for constraint in space.limits:
            if amount := constraint.amount(point):
                _step_inside(space, point, constraint, amount)
        looked += len(space.limits)
        if point == before or looked >= most:
            break
    return space.clip(tuple(point.values())), looked


def _step_inside(space: Space, point: dict[str, Any], constraint: Limit, amount: float) -> None:
    scales = []
    for name, factor in constraint.factors:
        dimension: Any = space.dimensions[space.place[name]]
        # On a logarithmic scale a share of the range is in proportion to the value.
        extent = point[name] if dimension.log else 1.0
        scales.append((name, dimension, factor * (dimension.span * extent) ** 2))
    length = sum(f * s[2] for (_, f), s in zip(constraint.factors, scales, strict=True))
    if not length:
        return
    for name, dimension, slope in scales:
        moved = float(point[name]) - 1.000001 * amount * slope / length
        point[name] = min(max(moved, dimension.low), dimension.high)


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


def ends_of(space: Space, values: Sequence[Value]) -> tuple[str, ...]:
    """Return which numbers of a point lie on an end of their range: see `Space.on_bounds`."""
    found = []
    for i, (unit, dimension) in enumerate(zip(space.encode(values), space.dimensions, strict=True)):
        end = "lowest" if unit < _ON_BOUND else "highest" if unit > 1 - _ON_BOUND else ""
        if end and not isinstance(dimension, Categorical) and dimension.count >= 5:
            found.append(
                f"{space.names[i]} = {space.format(i, values[i])}, the {end} value allowed"
            )
    more = len(found) - _SHOWN_ENDS
    return (*found[:_SHOWN_ENDS], *([f"and {more} more"] if more > 0 else []))


def read_forbidden(combinations: Iterable[tuple[Test, ...]], space: Space) -> list[Forbidden]:
    """Return combinations of values that no point of a space may have, in exact form."""
    found, own = [], dict(zip(space.names, space.dimensions, strict=True))
    for tests in combinations:
        unknown = [test.name for test in tests if test.name not in own]
        if unknown:
            raise SpaceError(
                f"forbidden: unknown parameter {unknown[0]!r}; "
                f"{did_you_mean(unknown[0], space.names)}"
            )
        (tests,) = exact("forbidden:", When((tests,)), own).alternatives
        texts = [t.words(lambda n, v: space.format(space.place[n], v)) for t in tests]
        text = f"never {' and '.join(texts)}" + " together" * (len(texts) > 1)
        found.append(Forbidden(text, tests))
    return found
