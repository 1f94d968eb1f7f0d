"""Six functions without a name: numbered parameters, no description, shifted and rotated by a seed.

A model sees ``x1, x2, ...`` between -5 and 5, and values: nothing says where the optimum lies, how
large it is, or what the function is made of. The optimum lies between -3 and 3, its value between 5
and 50.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from llmopt.space import Float


@dataclass(frozen=True)
class Shape:
    """What a function is, about its optimum, where it is 0."""

    dimension: int
    value: Callable[[np.ndarray], float]  # its value at a `(dimension,)` point in its frame
    noise: float = 0.0  # standard deviation of the noise in each returned value


def _quadratic(z: np.ndarray) -> float:
    return float(np.logspace(0, 4, len(z)) @ z**2)


def _valley(z: np.ndarray) -> float:
    y = z / 2 + 1  # Rosenbrock's optimum is at ones
    return float(100 * ((y[1:] - y[:-1] ** 2) ** 2).sum() + ((1 - y[:-1]) ** 2).sum())


def _ripples(z: np.ndarray) -> float:
    return float(z @ z + 5 * (1 - np.cos(2 * math.pi * z / 1.5)).sum())


def _ridge(z: np.ndarray) -> float:
    return float(z[0] ** 2 + 30 * np.linalg.norm(z[1:]))


def _steps(z: np.ndarray) -> float:
    height = np.logspace(0, 2, len(z)) @ np.round(z) ** 2
    return float(max(height, 0.01 * abs(z[0])))


def _noisy(z: np.ndarray) -> float:
    return float(np.logspace(0, 1, len(z)) @ z**2)


SHAPES = {
    "quadratic": Shape(6, _quadratic),
    "valley": Shape(5, _valley),
    "ripples": Shape(6, _ripples),
    "ridge": Shape(8, _ridge),
    "steps": Shape(4, _steps),
    "noisy": Shape(5, _noisy, 3.0),
}


class Function:
    """A function to minimize: ``f(point)`` is the noisy value, `true` the one without noise."""

    def __init__(self, name: str, seed: int) -> None:
        self.shape = SHAPES[name]
        rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
        n = self.shape.dimension
        self.best = float(rng.uniform(5, 50))
        self._optimum = rng.uniform(-3, 3, n)
        self._rotation = np.linalg.qr(rng.normal(size=(n, n)))[0]
        self._noise = rng
        self.space = {f"x{i}": Float(-5.0, 5.0) for i in range(1, n + 1)}

    def true(self, point: dict[str, float]) -> float:
        """Return the value of a point without noise."""
        x = np.array([point[name] for name in self.space])
        return self.best + self.shape.value(self._rotation @ (x - self._optimum))

    def __call__(self, point: dict[str, float]) -> float:
        return self.true(point) + self.shape.noise * float(self._noise.standard_normal())
