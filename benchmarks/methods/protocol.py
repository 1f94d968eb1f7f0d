"""What a method of the benchmark is, and what it is to solve."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from llmopt.policies.episode_seeds import stream
from llmopt.space import Space


class Method(Protocol):
    """A search: ``ask``, ``tell`` (or ``tell_failure``), ``ask``, and so on.

    Everything random comes from the seed, so that telling the same rewards again leads to
    the same points (a model has to answer the same again for that).
    """

    def ask(self) -> Any:
        """Return the next point: an ``(n,)`` array where a `Problem` is solved."""
        ...

    def tell(self, params: Any, reward: float) -> Any:
        """Report the reward (larger is better) of the point asked last."""
        ...

    def tell_failure(self, params: Any, reason: str) -> Any:
        """Report that the point asked last has no reward."""
        ...


@dataclass(frozen=True)
class Problem:
    """What a method is to solve."""

    low: float  # bounds of every parameter
    high: float
    n: int
    evaluations: int  # points that will be asked for
    # points evaluated beforehand, each with its reward; `None` for a failed one
    warmup: tuple[tuple[tuple[float, ...], float | None], ...] = ()
    description: str = ""
    notes: tuple[str, ...] = ()  # feedback on each warm-up point, or why it failed
    names: tuple[str, ...] = ()  # one for each parameter; empty for numbers
    errors: tuple[float | None, ...] = ()  # standard error of each warm-up reward
    # what is searched in place of the box; points are then dicts, and there is no warm-up
    space: Space | None = None

    @property
    def start(self) -> tuple[float, ...] | None:
        """The best warm-up point, or ``None``."""
        scored = [(reward, params) for params, reward in self.warmup if reward is not None]
        return max(scored, key=lambda pair: pair[0])[1] if scored else None

    @property
    def rewards(self) -> list[float]:
        """The warm-up rewards that there are."""
        return [reward for _, reward in self.warmup if reward is not None]


def method_seed(seed: int, name: str) -> np.random.SeedSequence:
    """Return the source of all that a method draws in a run, whatever runs beside it."""
    digest = hashlib.sha256(name.encode()).digest()
    words = (int.from_bytes(digest[i : i + 4], "big") for i in range(0, 16, 4))
    return stream(seed, "method", *words)
