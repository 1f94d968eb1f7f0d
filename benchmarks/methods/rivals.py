"""Rivals written here: CMA-ES with BIPOP restarts, and augmented random search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from llmopt.benchmarks.methods.baselines import CMA
from llmopt.benchmarks.methods.protocol import Problem


class BipopCMA(CMA):
    """CMA-ES with BIPOP restarts (Hansen 2009, GECCO workshop on BBOB, section 2).

    Where a run has converged, the next one has either the doubled population of the last
    large run, or a small population with a small step size: whichever has used up fewer
    evaluations so far.
    """

    def __init__(
        self,
        low: float,
        high: float,
        n: int,
        seed: int | np.random.SeedSequence = 0,
        start: Sequence[float] | np.ndarray | None = None,
    ) -> None:
        self._spent = {"large": 0, "small": 0}
        self._regime: Literal["large", "small"] = "large"
        super().__init__(low, high, n, seed, start)
        self._default = self._largest = int(self._strategy.popsize)

    def _restart(self, ended: Any) -> Any:
        self._spent[self._regime] += int(ended.countevals)
        sigma = (self._high - self._low) / 6
        if self._spent["large"] <= self._spent["small"]:
            self._regime = "large"
            self._largest *= 2
            return self._begin(sigma, self._largest)
        self._regime = "small"
        ratio = self._largest / self._default / 2
        popsize = math.floor(self._default * max(ratio, 1.0) ** (self._rng.random() ** 2))
        return self._begin(sigma * 10 ** (-2 * self._rng.random()), popsize)


class ARS:
    """Augmented random search (Mania et al. 2018, arXiv 1803.07055, Algorithm 1, V1-t).

    The step sizes are shares of the box's width. Observations are not normalized (V2): a
    black box does not show them.
    """

    def __init__(
        self,
        problem: Problem,
        seed: np.random.SeedSequence,
        directions: int = 4,
        top: int = 2,
        step: float = 0.1,
        noise: float = 0.1,
    ) -> None:
        width = problem.high - problem.low
        self._low, self._high = problem.low, problem.high
        self._directions, self._top = directions, top
        self._step, self._noise = step * width, noise * width
        self._rng = np.random.default_rng(seed)
        middle = np.full(problem.n, (problem.low + problem.high) / 2)
        self._mean = middle if problem.start is None else np.array(problem.start)
        self._begin()

    def _begin(self) -> None:
        self._deltas = self._rng.standard_normal((self._directions, len(self._mean)))
        self._rewards: list[float | None] = []

    def ask(self) -> np.ndarray:
        """Return the next point: each direction forwards, then backwards."""
        number, backwards = divmod(len(self._rewards), 2)
        sign = -1 if backwards else 1
        point: np.ndarray = self._mean + sign * self._noise * self._deltas[number]
        return point.clip(self._low, self._high)

    def tell(self, params: Any, reward: float) -> None:
        """Report the reward; a full set of directions makes the step."""
        self._take(reward)

    def tell_failure(self, params: Any, reason: str) -> None:
        """Report that there is no reward: the direction is left out."""
        self._take(None)

    def _take(self, reward: float | None) -> None:
        self._rewards.append(reward)
        if len(self._rewards) < 2 * self._directions:
            return
        pairs = zip(self._rewards[::2], self._rewards[1::2], self._deltas, strict=True)
        sound = [(f, b, d) for f, b, d in pairs if f is not None and b is not None]
        used = sorted(sound, key=lambda pair: max(pair[0], pair[1]), reverse=True)[: self._top]
        deviation = float(np.std([r for f, b, _ in used for r in (f, b)])) if used else 0.0
        if deviation > 0:
            gradient = sum((f - b) * delta for f, b, delta in used)
            self._mean = self._mean + self._step / (len(used) * deviation) * gradient
            self._mean = self._mean.clip(self._low, self._high)
        self._begin()
