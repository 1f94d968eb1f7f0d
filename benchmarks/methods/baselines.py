"""The usual rivals: CMA-ES and random search."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmopt.search.cma import CMA


class RandomSearch:
    """Uniform draws from the box."""

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


__all__ = ["CMA", "RandomSearch"]
