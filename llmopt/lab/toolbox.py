"""Ready-made functions that a block finds: `cma` and `fit`.

Only NumPy (and SciPy where it is installed) is imported, and nothing of llmopt that is not
beside this file.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from llmopt.lab import pool

_FAST = 1e-3  # seconds of one population below which sending it to workers does not pay

pmap: Callable[..., list[Any]] = lambda function, items: [function(item) for item in items]  # noqa: E731
"""How `cma` computes a population: the pool's `pmap` in the main worker."""


def cma(
    f: Callable[[Any], float],
    x0: Any,
    sigma: Any,
    seconds: float = 60.0,
    *,
    low: Any = None,
    high: Any = None,
    population: int | None = None,
    target: float = -math.inf,
    seed: int = 0,
) -> tuple[Any, float]:
    """Minimize `f` by CMA-ES for at most `seconds`, and return the best point and its value.

    It restarts with a double population from `x0` where it has converged. A population is computed
    by `pmap` if that pays. In a job it reports ``(x, f)`` on its way.

    Args:
        f: The function; it gets an array. nan counts as the worst value.
        x0: Where it starts.
        sigma: Standard deviation of its first steps, a number or one for each parameter.
        seconds: When it ends.
        low: Bounds, to which points are moved.
        high: As `low`.
        population: Points of a generation.
        target: A value at which it ends.
        seed: Of its generator.
    """
    start = np.array(x0, dtype=float)
    scale = np.broadcast_to(np.asarray(sigma, dtype=float), start.shape)
    low = -np.inf if low is None else np.asarray(low, dtype=float)
    high = np.inf if high is None else np.asarray(high, dtype=float)
    rng, ends = np.random.default_rng(seed), time.monotonic() + seconds
    size = population or 4 + int(3 * math.log(start.size))
    best_x = np.clip(start, low, high)
    began = time.monotonic()
    best_f = _value(f, best_x)
    fast = (time.monotonic() - began) * size < _FAST

    def evaluate(points: list[Any]) -> np.ndarray:
        nonlocal best_x, best_f
        pool.check_cancelled()
        found = [_value(f, x) for x in points] if fast else pmap(partial(_value, f), points)
        k = int(np.argmin(found))
        if found[k] < best_f:
            best_x, best_f = points[k], found[k]
            pool.report((best_x, best_f))
        return np.array(found)

    while time.monotonic() < ends and best_f > target:
        centre = start if best_f == math.inf or size == population else best_x
        _run(evaluate, centre, scale, size, (low, high), rng, ends, lambda: best_f <= target)
        size *= 2
    return best_x, best_f


def _value(f: Callable[[Any], float], x: Any) -> float:
    value = float(f(x.copy()))
    return value if value == value else math.inf


def _run(
    evaluate: Callable[[list[Any]], np.ndarray],
    centre: Any,
    scale: Any,
    size: int,
    bounds: tuple[Any, Any],
    rng: np.random.Generator,
    ends: float,
    done: Callable[[], bool],
) -> None:
    """Run CMA-ES (Hansen 2016, arXiv 1604.00772, table 1) once, in units of `scale`."""
    n = centre.size
    weights = math.log((size + 1) / 2) - np.log(np.arange(1, size // 2 + 1))
    weights /= weights.sum()
    mu = 1 / (weights**2).sum()
    c_sigma = (mu + 2) / (n + mu + 5)
    damping = 1 + 2 * max(0.0, math.sqrt((mu - 1) / (n + 1)) - 1) + c_sigma
    c_c = (4 + mu / n) / (n + 4 + 2 * mu / n)
    c_1 = 2 / ((n + 1.3) ** 2 + mu)
    c_mu = min(1 - c_1, 2 * (mu - 2 + 1 / mu) / ((n + 2) ** 2 + mu))
    expected = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))
    mean, sigma, path_s, path_c = np.zeros(n), 1.0, np.zeros(n), np.zeros(n)
    basis, axes, covariance = np.eye(n), np.ones(n), np.eye(n)
    history: list[float] = []
    for generation in range(1, 100 * n * n + 10_000):
        steps = (rng.standard_normal((size, n)) * axes) @ basis.T
        points = [np.clip(centre + scale * (mean + sigma * y), *bounds) for y in steps]
        values = evaluate(points)
        order = np.argsort(values, kind="stable")
        history.append(float(values[order[0]]))
        chosen = steps[order[: len(weights)]]
        step = weights @ chosen
        mean = mean + sigma * step
        whitened = basis @ ((basis.T @ step) / axes)
        path_s = (1 - c_sigma) * path_s + math.sqrt(c_sigma * (2 - c_sigma) * mu) * whitened
        length = float(np.linalg.norm(path_s))
        h = (
            length / math.sqrt(1 - (1 - c_sigma) ** (2 * generation))
            < (1.4 + 2 / (n + 1)) * expected
        )
        path_c = (1 - c_c) * path_c + h * math.sqrt(c_c * (2 - c_c) * mu) * step
        covariance = (
            (1 - c_1 - c_mu + (not h) * c_1 * c_c * (2 - c_c)) * covariance
            + c_1 * np.outer(path_c, path_c)
            + c_mu * (chosen.T * weights) @ chosen
        )
        sigma *= math.exp(min(1.0, (c_sigma / damping) * (length / expected - 1)))
        if generation % max(1, int(0.5 / (n * (c_1 + c_mu)))) == 0:
            covariance = (covariance + covariance.T) / 2
            with contextlib.suppress(np.linalg.LinAlgError):
                eigen, basis = np.linalg.eigh(covariance)
                axes = np.sqrt(np.maximum(eigen, 1e-20))
        recent = history[-(10 + 30 * n // size) :]
        flat = len(recent) > 10 and max(recent) - min(recent) <= 1e-12 * (1 + abs(recent[-1]))
        small = sigma * axes.max() < 1e-11
        if flat or small or axes.max() > 1e7 * axes.min() or time.monotonic() > ends or done():
            return


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
        low: Bounds of the parameters.
        high: As `low`.
        seconds: When it ends, with the best that it has.
    """
    x, y = data
    wanted = np.asarray(y, dtype=float).ravel()
    ends = time.monotonic() + seconds

    def errors(p: Any) -> np.ndarray:
        found = np.asarray(model(x, p), dtype=float).ravel() - wanted
        finite: np.ndarray = np.nan_to_num(found, nan=1e10, posinf=1e10, neginf=-1e10)
        return finite

    p = np.clip(np.array(p0, dtype=float), low, high)
    now, damping = errors(p), 1e-3
    slopes = _slopes(errors, p, now)
    for _ in range(200):
        if time.monotonic() > ends:
            break
        square = slopes.T @ slopes
        ridge = damping * np.diag(np.maximum(np.diag(square), 1e-12))
        step = np.linalg.lstsq(square + ridge, slopes.T @ now, rcond=None)[0]
        trial = np.clip(p - step, low, high)
        then = errors(trial)
        if then @ then < now @ now:
            gain = 1 - (then @ then) / (now @ now)
            p, now, damping = trial, then, max(damping / 5, 1e-12)
            if gain < 1e-12 or not now.any():
                break
            slopes = _slopes(errors, p, now)
        else:
            damping *= 4
            if damping > 1e12:
                break
    free = max(1, now.size - p.size)
    spread = np.linalg.pinv(slopes.T @ slopes) * float(now @ now) / free
    return p, np.sqrt(np.maximum(np.diag(spread), 0)), math.sqrt(float(now @ now) / now.size)


def _slopes(errors: Callable[[Any], np.ndarray], p: Any, now: np.ndarray) -> np.ndarray:
    """Return the derivatives of the errors by each parameter, by finite differences."""
    columns = []
    for k in range(p.size):
        step = np.zeros(p.size)
        step[k] = 1e-7 * max(1.0, abs(p[k]))
        columns.append((errors(p + step) - now) / step[k])
    slopes: np.ndarray = np.stack(columns, axis=1)
    return slopes
