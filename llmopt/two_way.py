"""The effects of seeds that several points share."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

_MOST_SEEDS = 64  # a fit of more takes too long for a tell
_RATIOS = 10.0 ** np.array([*np.arange(-1, 5, 0.5), 6, 8])  # of variances to the noise's


def two_way(
    measured: Sequence[tuple[int, Hashable, float]],
) -> tuple[dict[Hashable, float], float | None]:
    """Fit ``reward = mean + point + seed + noise``, an unbalanced two-way layout.

    All but the mean are random effects (Henderson 1975): with fixed ones, a point that was measured
    again because it was lucky would make its first seed look easy. The two ratios of variances are
    averaged over a grid, weighted by their restricted likelihood.

    Args:
        measured: Point, seed and reward of each measurement. Those without a seed count as of one
            more seed.

    Returns:
        The effect of each seed, and the standard deviation of the noise. No effects and ``None``
        for fewer than two seeds or more than 64, or if all repeats of each point are equal.
    """
    names = list(dict.fromkeys(seed for _, seed, _ in measured))
    if not 1 < len(names) <= _MOST_SEEDS:
        return {}, None
    places = {seed: i for i, seed in enumerate(names)}
    points, first, point = np.unique(
        [p for p, _, _ in measured], return_index=True, return_inverse=True
    )
    seed = np.array([places[s] for _, s, _ in measured])
    y = np.array([y for _, _, y in measured])
    y = y / (scale := float(np.abs(y).max()) or 1.0)  # no square overflows
    if not (y - y[first][point]).any():
        return {}, None
    y = y - y.mean()
    counts = np.zeros((len(points), len(names)))
    np.add.at(counts, (point, seed), 1.0)
    n, free = counts.sum(axis=1), len(y) - 1
    means = np.bincount(point, y) / n
    within = float(np.sum((y - means[point]) ** 2))
    rest, rates = np.bincount(seed, y - means[point]), np.array([0.0, *_RATIOS])
    found, likelihood = [], []
    for ratio in _RATIOS:  # of points
        # Products with the inverse covariance of points and noise, then of all (Woodbury).
        left = 1 / (1 + ratio * n)
        size, vector = np.linalg.eigh(
            np.diag(counts.sum(axis=0)) - counts.T @ (counts * (ratio * left)[:, None])
        )
        ones = vector.T @ (counts.T @ left)
        sums = vector.T @ (rest + counts.T @ (left * means))
        shrunk = rates[:, None] / (1 + rates[:, None] * np.maximum(size, 0))  # a row for each rate
        total = np.maximum(np.sum(n * left) - shrunk @ ones**2, 1e-12 * np.sum(n * left))
        mean = (np.sum(n * left * means) - shrunk @ (ones * sums)) / total
        square = within + np.sum(n * left * means**2) - shrunk @ sums**2 - total * mean**2
        square = np.maximum(square, 1e-32)
        logs = np.log1p(rates[:, None] * np.maximum(size, 0)).sum(axis=1) - np.log(left).sum()
        likelihood.append(-(free * np.log(square) + logs + np.log(total)) / 2)
        effects = (shrunk * (sums - mean[:, None] * ones)) @ vector.T
        found.append(np.column_stack([effects, square / free]))
    weight = np.concatenate(likelihood)
    weight = np.exp(weight - weight.max())
    *each, noise = (weight @ np.concatenate(found) / weight.sum()).tolist()
    noise = min(noise, within / (len(y) - len(points)))  # an outlier among points may blur it
    return {s: scale * e for s, e in zip(names, each, strict=True)}, scale * math.sqrt(noise)
