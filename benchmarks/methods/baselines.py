"""Methods that need no library: random search, CMA-ES with restarts, augmented random search.

Plain CMA-ES is that of the library, `CMA`.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from llmopt.benchmarks.methods.protocol import Problem
from llmopt.client.base import Completion, Reply, Request
from llmopt.client.local.network import draw_row
from llmopt.partners.cma import CMA

__all__ = ["ARS", "CMA", "BipopCMA", "GaussianGrammarClient", "RandomSearch"]


class RandomSearch:
    """Uniform draws from the box or the space."""

    def __init__(self, problem: Problem, seed: np.random.SeedSequence) -> None:
        self._box, self._space = (problem.low, problem.high, problem.n), problem.space
        self._rng = np.random.default_rng(seed)

    def ask(self) -> Any:
        """Return a fresh point."""
        if self._space is not None:
            return self._space.unflatten(self._space.sample(self._rng))
        return self._rng.uniform(*self._box)

    def tell(self, params: Any, reward: float) -> None:
        """Learn nothing."""

    def tell_failure(self, params: Any, reason: str) -> None:
        """Learn nothing."""


class BipopCMA(CMA):
    """CMA-ES with BIPOP restarts (Hansen 2009, GECCO workshop on BBOB, section 2).

    Where a run has converged, the next one has either the doubled population of the last
    large run, or a small population with a small step size: whichever has used up fewer
    evaluations so far.
    """

    def __init__(self, *options: Any, **more: Any) -> None:
        self._spent = {"large": 0, "small": 0}
        self._regime: Literal["large", "small"] = "large"
        super().__init__(*options, **more)
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

    DIRECTIONS, TOP = 4, 2  # of one step, each evaluated both ways; the best, which make the step
    STEP = NOISE = 0.1  # the step size α and the exploration ν, as shares of the box's width

    def __init__(self, problem: Problem, seed: np.random.SeedSequence) -> None:
        width = problem.high - problem.low
        self._low, self._high = problem.low, problem.high
        self._step, self._noise = self.STEP * width, self.NOISE * width
        self._rng = np.random.default_rng(seed)
        middle = np.full(problem.n, (problem.low + problem.high) / 2)
        self._mean = middle if problem.start is None else np.array(problem.start)
        self._begin()

    def _begin(self) -> None:
        self._deltas = self._rng.standard_normal((self.DIRECTIONS, len(self._mean)))
        self._rewards: list[float | None] = []

    def ask(self) -> np.ndarray:
        """Return the next point: each direction forwards, then backwards."""
        number, backwards = divmod(len(self._rewards), 2)
        sign = -1 if backwards else 1
        point: np.ndarray = self._mean + sign * self._noise * self._deltas[number]
        return point.clip(self._low, self._high)

    def tell_failure(self, params: Any, reason: str) -> None:
        """Report that there is no reward: the direction is skipped."""
        self.tell(params, None)

    def tell(self, params: Any, reward: float | None) -> None:
        """Report the reward; a full set of directions makes the step."""
        self._rewards.append(reward)
        if len(self._rewards) < 2 * self.DIRECTIONS:
            return
        pairs = zip(self._rewards[::2], self._rewards[1::2], self._deltas, strict=True)
        sound = [(f, b, d) for f, b, d in pairs if f is not None and b is not None]
        used = sorted(sound, key=lambda pair: max(pair[0], pair[1]), reverse=True)[: self.TOP]
        deviation = float(np.std([r for f, b, _ in used for r in (f, b)])) if used else 0.0
        if deviation > 0:
            gradient = sum((f - b) * delta for f, b, delta in used)
            self._mean = self._mean + self._step / (len(used) * deviation) * gradient
            self._mean = self._mean.clip(self._low, self._high)
        self._begin()


class GaussianGrammarClient:
    """A sampler in a model's place: it answers the prompt `columns` with no model.

    It is a plain estimation-of-distribution algorithm with the elites' covariance (`draw_row`).
    What a search with it finds is what the prompt's frame and the selection of elites find by
    themselves; what a model adds is what it finds beyond that.
    """

    name = "gaussian-grammar"
    default_prompt = "columns"
    style = "completion"
    columns = True

    def complete(self, request: Request) -> Reply:
        """Answer one request."""
        row = draw_row(np.random.default_rng(request.seed), request)
        return Reply((Completion(row),), type(self).__name__, 0, 0, 0, cost=0.0)
