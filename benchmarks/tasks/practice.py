"""Tuning tasks on which options of the samplers are chosen: none of them is in a table of results.

They are of the kind of `llmopt.benchmarks.tasks.studies`, on other data, and take milliseconds a
trial, so that many seeds can be compared.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np

from llmopt.benchmarks.tasks.studies import StudyTask
from llmopt.benchmarks.tasks.trained import (
    Judged,
    Split,
    absolute_error,
    boosted,
    error_rate,
    log_loss_of,
)


@functools.cache
def _made(name: str, seed: int, rows: tuple[int, int], **options: Any) -> Split:
    """Return data of one of scikit-learn's generators."""
    from sklearn import datasets

    x, y = getattr(datasets, f"make_{name}")(random_state=seed, **options)
    return Split.of(x, y, seed, rows)


def moons(trial: Any, seed: int) -> Judged:
    """Two half moons: neighbours, support vectors or a forest, each with its own parameters."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.svm import SVC

    split = _made("moons", seed, (150, 250), n_samples=1200, noise=0.35)
    kind = trial.suggest_categorical("kind", ["neighbours", "svc", "forest"])
    if kind == "neighbours":
        model: Any = KNeighborsClassifier(
            trial.suggest_int("neighbours", 1, 100, log=True),
            weights=trial.suggest_categorical("weights", ["uniform", "distance"]),
        )
    elif kind == "svc":
        model = SVC(
            C=trial.suggest_float("svc_C", 1e-3, 1e3, log=True),
            gamma=trial.suggest_float("svc_gamma", 1e-4, 1e3, log=True),
        )
    else:
        model = RandomForestClassifier(
            10,
            max_depth=trial.suggest_int("depth", 1, 12),
            min_samples_leaf=trial.suggest_int("leaf", 1, 50, log=True),
            random_state=seed,
        )
    return split.judge(error_rate(model.fit(*split.train)))


def friedman(trial: Any, seed: int) -> Judged:
    """Friedman's function: polynomials with ridge, kernels or boosted trees."""
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures

    split = _made("friedman1", seed, (100, 150), n_samples=800, noise=1.5)
    kind = trial.suggest_categorical("kind", ["polynomial", "kernel", "trees"])
    if kind == "polynomial":
        degree = trial.suggest_int("degree", 1, 3)
        strength = trial.suggest_float("ridge_alpha", 1e-4, 1e3, log=True)
        model: Any = make_pipeline(PolynomialFeatures(degree), Ridge(strength))
    elif kind == "kernel":
        model = KernelRidge(
            alpha=trial.suggest_float("kernel_alpha", 1e-4, 10.0, log=True),
            kernel=trial.suggest_categorical("kernel", ["rbf", "laplacian"]),
            gamma=trial.suggest_float("kernel_gamma", 1e-3, 10.0, log=True),
        )
    else:
        model = boosted(
            seed,
            regression=True,
            n_estimators=trial.suggest_int("rounds", 5, 60, log=True),
            learning_rate=trial.suggest_float("tree_rate", 1e-2, 1.0, log=True),
            min_child_samples=trial.suggest_int("leaf", 1, 50, log=True),
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(*split.train)
    return split.judge(absolute_error(model))


def hastie(trial: Any, seed: int) -> Judged:
    """Boosted trees on the sum of ten squares, without conditions."""
    split = _made("hastie_10_2", seed, (250, 200), n_samples=1000)
    model = boosted(
        seed,
        n_estimators=trial.suggest_int("rounds", 5, 60, log=True),
        learning_rate=trial.suggest_float("learning_rate", 1e-3, 1.0, log=True),
        num_leaves=trial.suggest_int("leaves", 2, 31, log=True),
        min_child_samples=trial.suggest_int("least_rows_of_a_leaf", 1, 100, log=True),
        reg_lambda=trial.suggest_float("l2", 1e-4, 100.0, log=True),
        colsample_bytree=trial.suggest_float("columns_of_a_tree", 0.1, 1.0),
    )
    return split.judge(log_loss_of(model.fit(*split.train)))


def sparse(trial: Any, seed: int) -> Judged:
    """Few rows and many inputs: components or sparse weights, scaled or not."""
    from sklearn.decomposition import PCA
    from sklearn.linear_model import ElasticNet, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    split = _made(
        "regression", seed, (60, 60), n_samples=300, n_features=120, n_informative=8, noise=40.0
    )
    steps: list[Any] = []
    if trial.suggest_categorical("scaling", ["none", "standard"]) == "standard":
        steps.append(StandardScaler())
    if trial.suggest_categorical("model", ["net", "components"]) == "net":
        strength = trial.suggest_float("net_alpha", 1e-2, 1e3, log=True)
        share = trial.suggest_float("net_l1_share", 0.0, 1.0)
        steps.append(ElasticNet(alpha=strength, l1_ratio=share, max_iter=100))
    else:
        steps.append(PCA(trial.suggest_int("components", 1, 55, log=True), random_state=0))
        steps.append(Ridge(trial.suggest_float("ridge_alpha", 1e-2, 1e5, log=True)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make_pipeline(*steps).fit(*split.train)
    return split.judge(absolute_error(model))


def clusters(trial: Any, seed: int) -> Judged:
    """A softmax regression with random features, trained by steps that may diverge."""
    split = _made(
        "classification", seed, (200, 200), n_samples=1000, n_features=8, n_informative=5,
        n_classes=3, flip_y=0.05,
    )  # fmt: skip
    rng = np.random.default_rng(seed)
    width = trial.suggest_int("features", 4, 256, log=True)
    spread = trial.suggest_float("feature_spread", 1e-2, 10.0, log=True)
    rate = trial.suggest_float("rate", 1e-3, 30.0, log=True)
    decay = trial.suggest_float("decay", 1e-6, 1.0, log=True)
    momentum = 0.0
    if trial.suggest_categorical("optimizer", ["plain", "momentum"]) == "momentum":
        momentum = trial.suggest_float("momentum", 0.0, 0.99)
    turn, shift = rng.normal(0, 1, (8, width)), rng.uniform(0, 6.3, width)

    def features(x: Any) -> Any:
        return np.cos(x @ turn * spread + shift) * np.sqrt(2 / width)

    x, y = features(split.train[0]), np.eye(3)[split.train[1]]
    weights, step = np.zeros((width, 3)), np.zeros((width, 3))
    for _ in range(60):
        logits = x @ weights
        chance = np.exp(logits - logits.max(axis=1, keepdims=True))
        chance /= chance.sum(axis=1, keepdims=True)
        step = momentum * step - rate * (x.T @ (chance - y) / len(y) + decay * weights)
        weights = weights + step
        if not np.abs(weights).max() < 1e3:
            raise FloatingPointError("the weights became large: the training diverged")
    return split.judge(lambda x, y: float(np.mean((features(x) @ weights).argmax(axis=1) != y)))


PRACTICE = {
    "moons": StudyTask(moons, "", {}),
    "friedman": StudyTask(friedman, "", {}, needs=("lightgbm",)),
    "hastie": StudyTask(hastie, "", {}, needs=("lightgbm",)),
    "sparse": StudyTask(sparse, "", {}),
    "clusters": StudyTask(clusters, "", {}),
}
"""By name. A model that reads words has no words for them, and there is no textbook's setting."""
