"""Loads numba before the confinement: it imports much of itself when it first compiles."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np


def warm_up() -> None:
    """Import numba and compile what makes it load its parts, which takes some seconds.

    Afterwards functions over scalars, arrays, `np.linalg` and `np.random` compile without a file.
    """
    njit: Any = importlib.import_module("numba").njit
    Dispatcher: Any = importlib.import_module("numba.core.dispatcher").Dispatcher
    Dispatcher.enable_caching = lambda self: None  # there is no folder for ``cache=True``
    initialize = Dispatcher.__init__

    def initialize_serial(
        self: Any, py_func: Any, locals: Any = None, given: Any = None, *more: Any, **rest: Any
    ) -> None:
        # Threads cannot be started: ``parallel=True`` is ignored, and prange is range.
        given = rest.pop("targetoptions", given) or {}
        initialize(self, py_func, locals, {**given, "parallel": False}, *more, **rest)

    Dispatcher.__init__ = initialize_serial
    states_of = Dispatcher._reduce_states

    def reduce_states(self: Any) -> dict[str, Any]:
        states: dict[str, Any] = states_of(self)
        if states["can_compile"]:
            states["sigs"] = []  # compiled again when it is used, not when it is unpickled
        return states

    Dispatcher._reduce_states = reduce_states

    def loads_linear_algebra(a: Any, b: Any) -> Any:
        x = np.linalg.solve(a, b)
        return x @ a + np.dot(a, x) * np.linalg.norm(x)

    def loads_arrays(n: Any) -> Any:
        np.random.seed(0)
        y = np.zeros((n, 3))
        for i in range(n):
            y[i] = np.random.randn(3) + np.sin(i)
        return np.maximum(y, 0.0).sum(axis=0), (y * y.T[:, :1]).mean()

    njit(loads_linear_algebra)(np.eye(3), np.zeros(3))
    njit(loads_arrays)(3)
