"""The usual rivals: CMA-ES and random search."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from llmopt.errors import LLMOptError


class RandomSearch:
    """Uniform draws from the box.

    Args:
        low: Lower bound of every parameter.
        high: Upper bound of every parameter.
        n: Number of parameters.
        seed: Source of all randomness.
    """

    def __init__(
        self, low: float, high: float, n: int, seed: int | np.random.SeedSequence = 0
    ) -> None:
        self._low, self._high, self._n = low, high, n
        self._rng = np.random.default_rng(seed)

    def ask(self) -> np.ndarray:
        """Return a fresh ``(n,)`` point."""
        return self._rng.uniform(self._low, self._high, self._n)

    def tell(self, params: Any, reward: float) -> None:
        """Learn nothing."""

    def tell_failure(self, params: Any, reason: str) -> None:
        """Learn nothing."""


class CMA:
    """CMA-ES of the `cma` package, told the opposite of the reward.

    The first mean is the best warm-up point, the first standard deviation a sixth of the
    box's width (2 for the published box), the population size the package's default. Where
    the package says that it has converged, it starts again from a uniform point of the box
    with a fresh step size, so that it can use its whole budget. A point without a reward
    counts as worse than all others of its generation.

    Args:
        low: Lower bound of every parameter.
        high: Upper bound of every parameter.
        n: Number of parameters.
        seed: Source of all randomness; the global generator of NumPy is left alone.
        start: ``(n,)`` first mean; the box's middle if not given.

    Raises:
        LLMOptError: The package is not installed.
    """

    def __init__(
        self,
        low: float,
        high: float,
        n: int,
        seed: int | np.random.SeedSequence = 0,
        start: Sequence[float] | np.ndarray | None = None,
    ) -> None:
        if find_spec("cma") is None:
            raise LLMOptError(
                'CMA-ES needs the package `cma`: pip install "llmopt[bench]", or leave the '
                "method out"
            )
        self._low, self._high, self._n = low, high, n
        # The package fails on a single dimension: a second one goes along, to no effect.
        self._dimensions = max(n, 2)
        self._rng = np.random.default_rng(seed)
        self._mean = np.full(self._dimensions, (low + high) / 2)
        if start is not None:
            self._mean[:n] = np.clip(start, low, high)
        self._generation: list[np.ndarray] = []
        self._rewards: list[float | None] = []
        self._strategy = self._begin()

    def _begin(self, sigma: float | None = None, popsize: int | None = None) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of plotting packages that it misses on import
            import cma

        return cma.CMAEvolutionStrategy(
            self._mean,
            (self._high - self._low) / 6 if sigma is None else sigma,
            {
                **({} if popsize is None else {"popsize": popsize}),
                "bounds": [[self._low] * self._dimensions, [self._high] * self._dimensions],
                # NaN keeps it from seeding NumPy's global generator, whose draws it replaces.
                "seed": math.nan,
                "randn": lambda *shape: self._rng.standard_normal(shape),
                "verbose": -9,
                "verb_log": 0,
            },
        )

    def ask(self) -> np.ndarray:
        """Return the next ``(n,)`` point of the generation."""
        if not self._generation:
            self._generation = [np.array(x) for x in self._strategy.ask()]
            self._rewards = []
        point: np.ndarray = self._generation[len(self._rewards)][: self._n].copy()
        return point

    def tell(self, params: Any, reward: float) -> None:
        """Report the reward; a full generation updates the distribution."""
        self._take(reward)

    def tell_failure(self, params: Any, reason: str) -> None:
        """Report that there is no reward."""
        self._take(None)

    def _take(self, reward: float | None) -> None:
        if not self._generation:
            raise LLMOptError("tell without a point asked: call ask first, then tell its reward")
        self._rewards.append(reward)
        if len(self._rewards) < len(self._generation):
            return
        known = [r for r in self._rewards if r is not None]
        worst = min(known, default=0.0)
        floor = worst - max(1.0, abs(worst))
        losses = [-(floor if r is None else r) for r in self._rewards]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a flat fitness is no news in policy search
            self._strategy.tell(self._generation, losses)
            converged = bool(self._strategy.stop())
        self._generation = []
        if converged:
            self._mean = self._rng.uniform(self._low, self._high, self._dimensions)
            self._strategy = self._restart(self._strategy)

    def _restart(self, ended: Any) -> Any:
        """Return the strategy that follows one that has converged."""
        return self._begin()
