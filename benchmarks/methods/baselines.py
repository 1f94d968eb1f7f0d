"""The rivals, with the same ask/tell interface as `LLMOptimizer`: CMA-ES and random search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from llmopt.errors import LLMOptError
from llmopt.search.cma import CMA


class Baseline(Protocol):
    """A method that proposes parameter vectors and learns from their rewards.

    The call sequence is ``ask``, ``tell`` (or `tell_failure`), ``ask``, and so on: one point
    at a time. Everything random comes from the seed, and nothing from the clock, so that
    telling the same rewards again leads to the same points.
    """

    def ask(self) -> np.ndarray:
        """Return the next ``(n,)`` point."""
        ...

    def tell(self, params: Any, reward: float) -> None:
        """Report the reward (larger is better) of the point asked last."""
        ...

    def tell_failure(self, params: Any, reason: str) -> None:
        """Report that the point asked last has no reward."""
        ...


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


BASELINES = ("cma", "random")


def make_baseline(
    name: str,
    low: float,
    high: float,
    n: int,
    seed: int | np.random.SeedSequence,
    start: Sequence[float] | np.ndarray | None = None,
) -> Baseline:
    """Make a baseline by name.

    Args:
        name: One of `BASELINES`.
        low: Lower bound of every parameter.
        high: Upper bound of every parameter.
        n: Number of parameters.
        seed: Source of all randomness.
        start: Best known point, for methods that start somewhere.

    Raises:
        LLMOptError: There is no such method, or its package is not installed.
    """
    if name == "cma":
        return CMA(low, high, n, seed, start)
    if name == "random":
        return RandomSearch(low, high, n, seed)
    raise LLMOptError(f"unknown baseline {name!r}. Valid: {', '.join(map(repr, BASELINES))}")
