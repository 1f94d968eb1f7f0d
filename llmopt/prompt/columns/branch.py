"""Points where a branch's good points lie denser than its others.

The ratio of two densities of the tree-structured Parzen estimator (Bergstra et al. 2011, section 4)
over all numbers of a branch at once. It needs few points, and continues across a plateau.
"""

from __future__ import annotations

import math

import numpy as np

from llmopt.history import History
from llmopt.space import Space, Value

GOOD = 0.2
"""Share of a branch's complete trials, at least two, that are called good."""

CANDIDATES = 24
"""Points that are drawn from the density of the good ones, and compared."""

WIDTH = 0.2
"""Standard deviation of a kernel around a single point, as a share of a range."""


def draw_denser(
    space: Space, history: History, rng: np.random.Generator
) -> tuple[Value, ...] | None:
    """Return a new point of a space of numbers alone; ``None`` where all candidates were tried.

    Points without a value, which failed or are being evaluated, are among the others.
    """
    ranked = [trial.values for trial in history.ranked]
    count = min(max(2, math.ceil(GOOD * len(ranked))), len(ranked) - 1)
    unknown = [t.values for t in history.trials if t.state == "failed"] + [*history.pending]
    good = np.array([space.encode(values) for values in ranked[:count]])
    others = np.array([space.encode(values) for values in ranked[count:] + unknown])
    # One more kernel, as wide as the space, keeps all of it in reach.
    near = rng.integers(count + 1, size=CANDIDATES)
    drawn = rng.normal(good[near % count], _width(good))
    even = (near == count)[:, None] | (drawn < 0) | (drawn > 1)
    candidates = np.where(even, rng.random(drawn.shape), drawn)
    tried = {space.key(values) for values in (*ranked, *unknown)}
    for k in np.argsort(_log_density(candidates, others) - _log_density(candidates, good)):
        point = space.decode(candidates[k])
        if space.key(point) not in tried:
            return point
    return None


def _width(points: np.ndarray) -> float:
    """Return the kernels' standard deviation, by Scott's rule."""
    count, n = points.shape
    return float(WIDTH * count ** (-1 / (n + 4)))


def _log_density(x: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the logarithm of the density of ``(count, n)`` points at ``(m, n)`` places."""
    width = _width(points)
    scaled = (x[:, None] - points) / width
    kernels = np.exp(-0.5 * (scaled**2).sum(-1)) / (width * math.sqrt(2 * math.pi)) ** x.shape[1]
    density: np.ndarray = np.log((kernels.sum(1) + 1) / (len(points) + 1))
    return density
