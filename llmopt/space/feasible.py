"""Points that keep the constraints of a space, also if random points rarely do.

Then a random one is projected onto the violated half-spaces in turn (Agmon 1954), in shares of the
ranges; its stepped numbers are rounded one by one, and the others are projected again. From there
hit-and-run (Smith 1984) moves the continuous numbers, in the null space of the equations. If
rounding finds no point, the combinations of the stepped numbers are enumerated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from llmopt.errors import SpaceError
from llmopt.space.constraints import Constraint
from llmopt.space.dimensions import Int
from llmopt.space.values import ABSENT, Value
from llmopt.util.text import cut

if TYPE_CHECKING:
    from llmopt.space.space import Space

MOST_COUNTED = 10_000  # maximum size of a space whose feasible points are counted
_DRAWS = 1000  # random points in a row that may break the constraints
_TRIES = 10  # projected points in a row that may
_SWEEPS = 200  # over all constraints, between two looks at what they gained
_GAIN = 0.95  # a projection ends if the violation stays above this share of the last one
_BEYOND = 1.000001  # a projection ends a little inside of the half-space
_CLOSE = 1e-11  # violation that counts as none, as a share of the ranges
_STRICT = 1e-7  # distance from the bound of a strict inequality, as a share of the ranges
_MARGINS = 0.1, 0.03, 0.01, 0.001, 1e-5  # distances from the constraints, largest first
_STEPS = 10  # of hit-and-run, for each continuous number
_LISTED = 100_000  # combinations of some stepped numbers; of more, a random sample
_SLACK = 1e-6  # of the constraints, for combinations that are checked later
_COMPLETED = 300  # combinations whose continuous numbers are projected


class Feasible:
    """Samples points of a space that keep its constraints: the linear ``rows @ share <= bounds``.

    Raises:
        SpaceError: No feasible point was found.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        linear = [c for c in space.limits if isinstance(c, Constraint)]
        self._low = np.array([getattr(d, "low", 0) for d in space.dimensions], dtype=float)
        self._span = np.array([getattr(d, "high", 0) for d in space.dimensions]) - self._low
        rows, bounds = np.zeros((len(linear), len(space))), np.zeros(len(linear))
        strict = np.zeros(len(linear), dtype=bool)
        for row, constraint in enumerate(linear):
            for name, factor in constraint.factors:
                rows[row, space.place[name]] = factor
            bounds[row] = -constraint.constant - rows[row] @ self._low
            whole = all(isinstance(space.dimensions[space.place[n]], Int) for n in constraint.names)
            strict[row] = constraint.relation == "<"
            if strict[row] and whole and not (rows[row] % 1).any():  # of integers
                bounds[row], strict[row] = math.ceil(bounds[row]) - 1, False
        rows *= self._span
        sizes = np.linalg.norm(rows, axis=1)
        sizes[sizes == 0] = 1.0
        rows, bounds = rows / sizes[:, None], bounds / sizes
        self._equal = np.array([c.relation == "==" for c in linear], dtype=bool)
        for i in range(len(linear)):  # so are a <= b and a >= b together
            opposite = np.abs(rows + rows[i]).sum(axis=1) + np.abs(bounds + bounds[i]) < 1e-9
            self._equal[i] |= bool(opposite.any())
        self._rows = rows
        self._bounds = bounds - _STRICT * strict
        self._middle: np.ndarray | None = None
        self._used = (rows != 0).any(axis=0)
        self._stepped = np.array([d.count < np.inf for d in space.dimensions])
        rng = np.random.default_rng(0)
        self._rare = not any(space.admits(space.draw(rng)) for _ in range(_DRAWS))
        self._anchor = self._first(rng) if self._rare else None

    def sample(self, rng: np.random.Generator) -> tuple[Value, ...]:
        """Return a random point that keeps the constraints."""
        for _ in range(0 if self._rare else _DRAWS):
            if self._space.admits(values := self._space.draw(rng)):
                return values
        walks = (self._walk(rng) for _ in range(_TRIES))
        found = next((values for values in walks if values is not None), None)
        return found or next(self._enumerated(rng), self._anchor) or self._first(rng)

    def _first(self, rng: np.random.Generator) -> tuple[Value, ...]:
        """Return a feasible point where random ones are not, or raise `SpaceError`."""
        if self._space.cardinality <= MOST_COUNTED:
            points = iter(self._space.points())
        else:
            near = (self._near(self._space.draw(rng), rng) for _ in range(_TRIES))
            rounded = (values for values in near if values is not None)
            points = itertools.chain(rounded, self._enumerated(rng))
        for values in points:
            return values
        raise SpaceError(
            f"no point of the space was found that keeps the constraints "
            f"({cut('; '.join(self._space.constraints), 1000)}): widen the ranges, or drop a "
            "constraint"
        )

    def _near(
        self, values: tuple[Value, ...], rng: np.random.Generator
    ) -> tuple[Value, ...] | None:
        """Return a point near another one that keeps the constraints, if there is one."""
        there = np.array([value is not ABSENT for value in values])
        free, share = self._used & there, self._shares(values)
        kept = self._kept(there)
        projected = self._projected(share, free, kept)
        for i in rng.permutation(np.flatnonzero(free & self._stepped)).tolist():
            if projected is None:
                return None
            share = projected
            share[i] = self._shares(self._point(values, share, free))[i]
            free[i] = False
            projected = self._projected(share, free, kept)
        if projected is None:
            return None
        share = projected
        point = self._point(values, share, self._used & there)
        return point if self._space.admits(point) else None

    def _enumerated(self, rng: np.random.Generator) -> Iterator[tuple[Value, ...]]:
        """Yield feasible points in random order, one for each combination of stepped numbers."""
        for _ in range(_TRIES if self._space.conditional else 1):
            values = self._space.draw(rng)
            there = np.array([value is not ABSENT for value in values])
            free, kept, start = self._used & there, self._kept(there), self._shares(values)
            shares = self._combinations(free, kept, rng)
            for row in rng.permutation(len(shares))[:_COMPLETED]:
                share = np.where(free & self._stepped, shares[row], start)
                projected = self._projected(share, free & ~self._stepped, kept)
                if projected is not None:
                    point = self._point(values, projected, free)
                    if self._space.admits(point):
                        yield point

    def _combinations(
        self, free: np.ndarray, kept: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Return ``(n, len(space))`` shares of the stepped numbers that the ranges of others allow.

        These are all combinations if there are no more than `_LISTED` at a time.
        """
        rows, bounds, equal = self._rows[kept] * free, self._bounds[kept], self._equal[kept]
        left, sizes, _ = np.linalg.svd(rows[equal][:, free & ~self._stepped])
        pure = left[:, int((sizes > 1e-9).sum()) :].T  # sums of equations without a real number
        same = np.vstack([rows[equal], pure @ rows[equal]])
        level = np.concatenate([bounds[equal], pure @ bounds[equal]])
        rows = np.vstack([rows, same, -same])
        bounds = np.concatenate([bounds, level, -level]) + _SLACK
        rest = np.minimum(rows, 0.0).sum(axis=1)  # minimum of what is not chosen yet
        shares, sums = np.zeros((1, len(free))), np.zeros((1, len(rows)))
        steps = np.array([d.count - 1 for d in self._space.dimensions])
        for i in sorted(np.flatnonzero(free & self._stepped), key=steps.__getitem__):
            rest = rest - np.minimum(rows[:, i], 0.0)
            room, ahead, back = bounds - sums - rest, rows[:, i] > _CLOSE, rows[:, i] < -_CLOSE
            most = (room[:, ahead] / rows[ahead, i]).min(axis=1, initial=1.0)
            least = (room[:, back] / rows[back, i]).max(axis=1, initial=0.0)
            first = np.ceil(least * steps[i])
            counts = (np.floor(most * steps[i]) - first + 1).clip(0)
            ends = np.cumsum(counts)
            total = ends[-1] if len(ends) else 0.0
            picked = np.arange(min(total, _LISTED))
            if total > _LISTED:
                picked = np.floor(rng.random(_LISTED) * total)
            parent = np.searchsorted(ends, picked, side="right")
            shares, sums = shares[parent], sums[parent]
            place = first[parent] + picked - (ends - counts)[parent]
            shares[:, i] = place / max(steps[i], 1)
            sums += shares[:, i, None] * rows[:, i]
        return shares

    def _walk(self, rng: np.random.Generator) -> tuple[Value, ...] | None:
        """Return a random point that keeps the constraints, if hit-and-run finds one."""
        drawn = self._space.draw(rng)
        values = drawn if self._middle is not None else self._near(drawn, rng)
        if values is None:
            return None
        there = np.array([value is not ABSENT for value in values])
        free, share, kept = (
            self._used & there & ~self._stepped,
            self._shares(values),
            self._kept(there),
        )
        _, sizes, axes = np.linalg.svd(self._rows[kept & self._equal][:, free])
        null = axes[int((sizes > 1e-9).sum()) :].T
        if not null.size:
            return values
        share = self._centre(share, free, kept)
        rows, bounds = self._rows[kept & ~self._equal], self._bounds[kept & ~self._equal]
        for _ in range(_STEPS * len(null)):
            way = null @ rng.standard_normal(null.shape[1])
            speed = np.concatenate([rows[:, free] @ way, way, -way])
            room = np.concatenate([bounds - rows @ share, 1.0 - share[free], share[free]])
            ahead, back = speed > _CLOSE, speed < -_CLOSE
            most = (room[ahead].clip(0) / speed[ahead]).min(initial=1e9)
            least = (room[back].clip(0) / speed[back]).max(initial=-1e9)
            share[free] += rng.uniform(least, most) * way
        point = self._point(values, share, free)
        return point if self._space.admits(point) else None

    def _centre(self, share: np.ndarray, free: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """Return a point at a distance from the constraints, where hit-and-run can begin."""
        if self._middle is not None:
            return np.where(free, self._middle, share)
        margins = (self._projected(share, free, kept, margin) for margin in _MARGINS)
        centre = next((centre for centre in margins if centre is not None), share)
        if not (self._space.conditional or (self._used & self._stepped).any()):
            self._middle = centre  # of all points
        return centre

    def _kept(self, there: np.ndarray) -> np.ndarray:
        """Return ``(n_constraints,)`` whether each applies to a point with these parameters."""
        kept: np.ndarray = ~(self._rows != 0)[:, ~there].any(axis=1)
        return kept

    def _projected(
        self, share: np.ndarray, free: np.ndarray, kept: np.ndarray, margin: float = 0.0
    ) -> np.ndarray | None:
        """Return shares of the ranges, the `free` ones moved so that they keep the constraints."""
        rows, equal = self._rows[kept], self._equal[kept].tolist()
        bounds = self._bounds[kept] - margin * ~self._equal[kept]
        parts = rows * free
        lengths = (parts**2).sum(axis=1)
        share, before = share.copy(), math.inf
        for sweep in itertools.count(1):
            worst = 0.0
            for i, same in enumerate(equal):
                excess = float(rows[i] @ share - bounds[i])
                if lengths[i] and (abs(excess) if same else excess) > _CLOSE:
                    share -= (1.0 if same else _BEYOND) * excess / lengths[i] * parts[i]
                    worst = max(worst, abs(excess))
            inside = share[free].clip(margin, 1.0 - margin)
            worst = max(worst, float(np.abs(inside - share[free]).max(initial=0.0)))
            share[free] = inside
            if worst <= _CLOSE:
                return share
            if sweep % _SWEEPS == 0:
                if worst > _GAIN * before:
                    return None
                before = worst
        return None

    def _shares(self, values: tuple[Value, ...]) -> np.ndarray:
        """Return the place of each constrained number in its range, from 0 to 1."""
        numbers = [
            v if u and v is not ABSENT else 0.0 for u, v in zip(self._used, values, strict=True)
        ]
        shares: np.ndarray = (np.array(numbers, dtype=float) - self._low) / np.where(
            self._span > 0, self._span, 1.0
        )
        return shares

    def _point(
        self, values: tuple[Value, ...], share: np.ndarray, free: np.ndarray
    ) -> tuple[Value, ...]:
        """Return a point with the numbers that are `free` at their shares of the ranges."""
        numbers = (self._low + share * self._span).tolist()
        chosen = zip(self._space.dimensions, values, numbers, free, strict=True)
        return self._space.conform([d.clip(number) if f else v for d, v, number, f in chosen])
