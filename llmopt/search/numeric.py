"""The numeric view of a search, in a line that a model which reads words may use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from llmopt.history import History
from llmopt.prompt.describe import describe_params
from llmopt.space import Categorical, Space, Value
from llmopt.space.values import ABSENT

if TYPE_CHECKING:
    from llmopt.search.emitter import PartnerEmitter

_FEWEST = 8  # points that a fit needs
_LEAST = 0.1  # share of the variation of points left out that it has to explain
_SHOWN = 5  # parameters whose importance is named
_RIDGE = 0.1  # of the fit, with terms of unit variance
_WORST = 10.0  # losses are cut at so many times the distance from the best to the median
_GRID = 101
_NAMES = {
    "cma": "CMA-ES",
    "refine": "A small random change of the best point",
    "network": "A small network",
    "sampler": "The sampler beside you",
}


def fitted(space: Space, history: History, labels: Sequence[str]) -> str:
    """Say what a fit tells of each parameter, and where it is best.

    The fit is a sum of one quadratic for each number and one value for each choice. Its error is
    that of points left out.
    """
    trials = [t for t in history.complete if t.constraint_violation <= 0]
    if len(trials) < _FEWEST or len(history.directions) > 1:
        return ""
    told = np.array([t.rewards[0] for t in trials if t.rewards], dtype=float)
    sign = -1.0 if history.directions[0] == "maximize" else 1.0
    unit = max(float(np.abs(told).max()), 1e-300)  # so that no square is too large
    losses = sign * told / unit
    best, median = losses.min(), float(np.median(losses))
    losses = losses.clip(max=median + _WORST * (median - best))
    scale = losses.std()
    if not 0 < scale < np.inf:
        return ""
    blocks = [_terms(space, i, [t.values[i] for t in trials]) for i in range(len(space))]
    widths = [block.shape[1] for block, _ in blocks]
    terms = np.hstack([block for block, _ in blocks])
    if not terms.size:
        return ""
    center, spread = terms.mean(axis=0), np.maximum(terms.std(axis=0), 1e-9)
    scaled = (terms - center) / spread
    inner = scaled.T @ scaled + _RIDGE * np.eye(len(spread))
    slopes = np.linalg.solve(inner, scaled.T @ (losses - losses.mean()))
    leverage = np.einsum("ij,ji->i", scaled, np.linalg.solve(inner, scaled.T)) + 1 / len(losses)
    residuals = losses - losses.mean() - scaled @ slopes
    left_out = residuals / np.maximum(1 - leverage, 0.05)
    explained = 1 - (left_out**2).mean() / scale**2
    if explained < _LEAST:
        return ""
    parts: list[float] = []
    values: list[Value] = []
    loss = losses.mean()
    for (_, options), end in zip(blocks, np.cumsum(widths), strict=True):
        own = slice(end - widths[len(parts)], end)
        parts.append((scaled[:, own] @ slopes[own]).var())
        effects = [((row - center[own]) / spread[own]) @ slopes[own] for _, row in options]
        place = int(np.argmin(effects))
        values.append(options[place][0])
        loss += effects[place]
    shares = np.array(parts) / max(sum(parts), 1e-300)
    order = np.argsort(-shares, kind="stable")[:_SHOWN]
    shown = ", ".join(f"{labels[i]} {shares[i]:.0%}" for i in order if shares[i] >= 0.01)
    point = describe_params(space.clip(space.conform(values)), space, labels)
    error = np.sqrt((left_out**2).mean())
    return (
        f"A fit by a quadratic for each parameter explains {explained:.0%} of the variation of f: "
        f"{shown}. By it the best point is {point}, with f = {sign * loss * unit:.4g} ± "
        f"{error * unit:.2g}."
    )


def _terms(
    space: Space, index: int, told: Sequence[Value]
) -> tuple[np.ndarray, list[tuple[Value, np.ndarray]]]:
    """Return the terms of one parameter, a row for each trial; and values to choose from, alike."""
    dimension = space.dimensions[index]
    known = [v for v in told if v is not ABSENT]
    if isinstance(dimension, Categorical) or not known:
        choices = list({dimension.key(v): v for v in known}.values()) or [ABSENT]
        code = {dimension.key(v): k for k, v in enumerate(choices)} if known else {}
        rows = np.zeros((len(told), len(choices)))
        for row, value in zip(rows, told, strict=True):
            if value is not ABSENT:
                row[code[dimension.key(value)]] = 1.0
        rows = rows if len(choices) > 1 else rows[:, :0]
        return rows, [(v, np.eye(len(choices))[k][: rows.shape[1]]) for k, v in enumerate(choices)]
    # As in `Space.encode`, by each value alone.
    one = space.part([index])
    units = np.array([one.encode([v])[0] for v in known])
    middle = units.mean()
    there = np.array([v is not ABSENT for v in told])
    all_units = np.full(len(told), middle)
    all_units[there] = units
    grid = np.unique(np.append(np.linspace(units.min(), units.max(), _GRID), middle))
    options = {one.decode([u])[0]: np.array([u - middle, (u - middle) ** 2]) for u in grid}
    centered = all_units - middle
    return np.stack([centered, centered**2], axis=1), list(options.items())


def next_points(
    partners: Sequence[PartnerEmitter], space: Space, history: History, labels: Sequence[str]
) -> list[str]:
    """Say what each partner would try next; its state is a function of the history."""
    said = []
    for partner in partners:
        rng = np.random.default_rng(len(history.trials))
        for proposal in partner.propose(space, history, rng):
            name = _NAMES.get(partner.source, partner.source)
            said.append(f"{name} would try {describe_params(proposal.values, space, labels)}.")
    return said
