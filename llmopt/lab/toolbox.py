"""Ready-made functions that a block finds: `cma` over the package cma, `fit` over SciPy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from llmopt.lab import pool

_FAST = 1e-3  # seconds of one population below which sending it to workers does not pay
_QUIET = {"verbose": -10, "verb_log": 0, "verb_disp": 0, "signals_filename": "", "seed": math.nan}

pmap: Callable[..., list[Any]] = lambda function, items: [function(item) for item in items]  # noqa: E731
"""How `cma` computes a population: the pool's `pmap` in the main worker."""


def cma(
    f: Callable[[Any], Any],
    x0: Any,
    sigma: Any,
    seconds: float = 60.0,
    *,
    low: Any = None,
    high: Any = None,
    population: int | None = None,
    target: float = -math.inf,
    seed: int = 0,
    batch: bool = False,
) -> tuple[Any, float]:
    """Minimize `f` by CMA-ES for at most `seconds`, and return the best point and its value.

    It restarts with a double population where it has converged. In a job it reports ``(x, f)`` on
    its way.

    Args:
        f: The function; it gets a ``(n,)`` array, or with `batch` the population as a
            ``(population, n)`` array, of which it returns ``(population,)`` values. nan counts as
            the worst value.
        x0: Where it starts.
        sigma: Standard deviation of its first steps, a number or one for each parameter.
        seconds: When it ends.
        low: Lower bounds of points.
        high: Upper bounds of points.
        population: Points of a generation.
        target: A value at which it ends.
        seed: Of its generator.
        batch: Whether `f` evaluates a whole population at once, as a vectorized or compiled
            function does. Otherwise `pmap` computes a population if that pays.
    """
    try:
        from cma import CMAEvolutionStrategy
    except ImportError:
        raise _missing("cma", "cma") from None
    start = np.atleast_1d(np.array(x0, dtype=float))
    scale = np.broadcast_to(np.asarray(sigma, dtype=float), start.shape)
    low = np.broadcast_to(-np.inf if low is None else np.asarray(low, float), start.shape)
    high = np.broadcast_to(np.inf if high is None else np.asarray(high, float), start.shape)
    rng, ends = np.random.default_rng(seed), time.monotonic() + seconds
    size = population or 4 + int(3 * math.log(start.size))
    best_x, best_f = np.clip(start, low, high), math.inf
    one = partial(_value, f)
    parallel = False

    def evaluate(points: np.ndarray) -> np.ndarray:
        nonlocal best_x, best_f
        pool.check_cancelled()
        if batch:
            given = np.asarray(f(points.copy()), dtype=float).reshape(len(points))
            values = np.where(np.isnan(given), math.inf, given)
        else:
            computed = (pmap if parallel else map)(one, list(points))
            values = np.array([math.inf if v is None else v for v in computed])
        k = int(np.argmin(values))
        if values[k] < best_f:
            best_x, best_f = points[k], float(values[k])
            pool.report((best_x, best_f))
        return values

    began = time.monotonic()
    evaluate(best_x[None])
    parallel = (time.monotonic() - began) * size >= _FAST
    options = {
        **_QUIET, "bounds": [_bounds(low), _bounds(high)], "CMA_stds": scale,
        "randn": lambda *shape: rng.standard_normal(shape),
    }  # fmt: skip
    while time.monotonic() < ends and best_f > target:
        centre = start if best_f == math.inf else best_x
        search = CMAEvolutionStrategy(np.clip(centre, low, high), 1.0, {**options, "popsize": size})
        while not search.stop() and time.monotonic() < ends and best_f > target:
            points = search.ask()
            search.tell(points, evaluate(np.array(points)).tolist())
        size *= 2
    return best_x, best_f


def _bounds(values: np.ndarray) -> list[float | None]:
    return [float(v) if math.isfinite(v) else None for v in values]


def _value(f: Callable[[Any], float], x: Any) -> float:
    value = float(f(x.copy()))
    return value if value == value else math.inf


def fit(
    model: Callable[[Any, Any], Any],
    data: tuple[Any, Any],
    p0: Sequence[float] | Any,
    *,
    low: Any = -np.inf,
    high: Any = np.inf,
    seconds: float = 60.0,
) -> tuple[Any, Any, float]:
    """Return parameters, their standard errors and the rms error of a least-squares fit.

    Args:
        model: ``model(x, p)`` gives what `data` should be at the parameters `p`.
        data: ``(x, y)``: what the model gets, whatever it is, and an array.
        p0: First parameters.
        low: Lower bounds of the parameters.
        high: Upper bounds of the parameters.
        seconds: When it ends, with the best that it has.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise _missing("fit", "SciPy") from None
    x, y = data
    wanted, ends = np.asarray(y, dtype=float).ravel(), time.monotonic() + seconds
    best_p, best = np.clip(np.array(p0, dtype=float), low, high), math.inf

    def errors(p: Any) -> np.ndarray:
        nonlocal best_p, best
        gap = np.asarray(model(x, p), dtype=float).ravel() - wanted
        finite: np.ndarray = np.nan_to_num(gap, nan=1e10, posinf=1e10, neginf=-1e10)
        if finite @ finite < best:
            best_p, best = np.array(p), float(finite @ finite)
        if time.monotonic() > ends:
            raise TimeoutError
        return finite

    try:
        fitted = least_squares(errors, best_p, bounds=(low, high), x_scale="jac")
    except TimeoutError:
        return best_p, np.full(best_p.shape, math.nan), math.sqrt(best / wanted.size)
    free = max(1, wanted.size - best_p.size)
    # σ² (JᵀJ)⁻¹ with σ² = |r|² / (N − n); least_squares' cost is |r|² / 2
    covariance = np.linalg.pinv(fitted.jac.T @ fitted.jac) * (2 * fitted.cost / free)
    errors_of_p = np.sqrt(np.maximum(np.diag(covariance), 0))
    return fitted.x, errors_of_p, math.sqrt(2 * fitted.cost / wanted.size)


def _missing(function: str, package: str) -> ImportError:
    return ImportError(
        f"{function} needs the package {package}, which is not installed here: write it in NumPy"
    )
