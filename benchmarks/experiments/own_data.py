"""Hyper-parameters on data sets made for this, which no model can know.

Published tables of hyper-parameters stand in a model's memory: asked about one, it named the best
known point at its first answer. Here the data are drawn by functions of this file, and
support vector regression of scikit-learn is tuned on them. `DataSearch` has the interface of
`llmopt.policies.PolicySearch`, so that `llmopt.benchmarks.experiments.words` runs the same arms.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmopt.history import Trial
from llmopt.optimizer import LLMOptimizer
from llmopt.policies import PolicySearch
from llmopt.policies.environment import EnvMaker
from llmopt.policies.rollout import Evaluation, held_out_seeds, selection_seeds
from llmopt.space import Categorical, Float, Int, Space

_FRESH = 20  # data sets on which the best point is judged

Draw = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class DataSet:
    """Where the data come from.

    Attributes:
        draw: ``draw(rng, n)`` gives ``(n, features)`` inputs and ``(n,)`` targets.
        rows: Rows to learn from; four times as many are predicted.
        about: A true description.
    """

    draw: Draw
    rows: int
    about: str


def _spills(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(size=(n, 20))
    y = 2 * np.tanh(x[:, 0] + x[:, 1]) + 0.5 * x[:, 2] + np.where(x[:, 3] > 0, x[:, 4], 0.0)
    noise = 0.5 * rng.standard_normal(n)
    wild = rng.random(n) < 0.15
    return x, y + np.where(wild, 12 * rng.standard_t(2, n), noise)


def _switches(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    x = rng.uniform(-1, 1, (n, 8))
    bits = (x[:, :5] > np.array([0.0, 0.3, -0.2, 0.1, -0.4])).astype(int)
    parity = bits[:, 0] ^ bits[:, 1] ^ bits[:, 2]
    y = 3.0 * parity + 1.5 * (bits[:, 3] & bits[:, 4]) + x[:, 5] * parity
    return x, y + 0.05 * rng.standard_normal(n)


DATA: dict[str, DataSet] = {
    "spills": DataSet(
        _spills,
        250,
        "250 rows, 20 features, of which 5 matter: a smooth saturating sum of two, a small linear "
        "one, and one that counts only where another is positive. In 15 % of the rows, those "
        "learned from included, the target has an error that is some twenty times larger than "
        "the rest of the noise, with heavy tails. The predictions are judged without such rows.",
    ),
    "switches": DataSet(
        _switches,
        500,
        "500 rows, 8 features, uniform. The target is a sum of steps: three features that are "
        "switched at thresholds act only by their parity, two more by both being on; one feature "
        "adds a slope where the parity is odd. There is almost no noise.",
    ),
}

SPACE: dict[str, Any] = {
    "C": Float(1e-3, 1e4, log=True),
    "epsilon": Float(1e-4, 10.0, log=True),
    "gamma": Float(1e-4, 1e2, log=True),
    "kernel": Categorical(["rbf", "poly", "linear"]),
    "degree": Int(1, 6),
    "coef0": Float(0.0, 4.0),
}
_PLACE = list(SPACE).index("kernel")
_HIDDEN = {"a": "rbf", "b": "poly", "c": "linear"}  # choices where names are hidden
_STEPS = 20_000  # of the solver: a point that has not converged by then is judged as it is

_GOAL = (
    "The hyper-parameters of scikit-learn's SVR (support vector regression, max_iter=20000) are "
    "wanted; the inputs are taken as they are. The value of a point is the share of the mean "
    "absolute error of a constant prediction (the median) that the learner removes on new rows, "
    "in percent: 100 is perfect, 0 is no better than the constant; larger is better. It is the "
    "mean over the same {starts} data sets each time, and the best point is judged in the end on "
    "fresh ones. The data: {about}"
)


class DataSearch(PolicySearch):
    """A search for hyper-parameters with the interface of `PolicySearch`."""

    def __init__(  # it makes no policy
        self,
        env: str,
        client: Any,
        prompt: Any,
        *,
        seed: int,
        starts: int,
        warmup: int,
        words: str,
        feedback: bool,
        **options: Any,
    ) -> None:
        self.data, self._make = DATA[env], EnvMaker(env)
        self.seed, self.stopped, self._feedback = seed, "", feedback
        self._chosen, self._finishing = (0, None), "off"
        self._requests, self._total = options.get("requests"), None
        self.starts = selection_seeds(seed, starts)
        names = [f"x{i}" for i in range(len(SPACE))] if words == "none" else list(SPACE)
        space = dict(zip(names, SPACE.values(), strict=True))
        if words == "none":
            space[f"x{_PLACE}"] = Categorical(list(_HIDDEN))
        about = _GOAL.format(starts=starts, about=self.data.about) if words == "all" else ""
        self.optimizer = LLMOptimizer(
            Space(space),
            client,
            prompt,
            seed=seed,
            warmup=warmup,
            description=about,
            may_stop=True,
            **options,
        )

    def measure(self, params: Any, seeds: Sequence[int] | None = None) -> tuple[Evaluation, str]:
        """Evaluate a point on the selection data, or other; see `PolicySearch.measure`."""
        return self._measure(params, seeds or self.starts)

    def _measure(self, params: Any, seeds: Sequence[int]) -> tuple[Evaluation, str]:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.svm import SVR

        values = list(self.optimizer.space.flatten(params))
        values[_PLACE] = _HIDDEN.get(values[_PLACE], values[_PLACE])
        scores, learned, support, cut = [], [], [], 0
        for seed in seeds:
            rng = np.random.default_rng(seed)
            x, y = self.data.draw(rng, self.data.rows)
            new_x, new_y = _clean(self.data, rng)
            model = SVR(**dict(zip(SPACE, values, strict=True)), max_iter=_STEPS)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                model.fit(x, y)
            scores.append(_score(new_y, model.predict(new_x), y))
            learned.append(_score(y, model.predict(x), y))
            support.append(len(model.support_) / len(y))
            cut += int(model.fit_status_ != 0)
        text = ""
        if self._feedback:
            listed = ", ".join(f"{s:.4g}" for s in scores)
            text = (
                f"On new rows {np.mean(scores):.4g} % of the error removed, each data set: "
                f"{listed}.\nOn the rows learned from {np.mean(learned):.4g} %. Support vectors: "
                f"{np.mean(support):.0%} of the rows."
                + (f" Not converged on {cut} of {len(seeds)}." if cut else "")
            )
        return Evaluation(tuple(scores), (1,) * len(scores)), text

    def evaluate(self, starts: int = 100, params: Any = None) -> Evaluation:
        """Evaluate a point on fresh data sets, twenty at most; see `PolicySearch.evaluate`."""
        chosen = self.best.params if params is None else params
        return self._measure(chosen, held_out_seeds(self.seed, min(starts, _FRESH)))[0]

    def _tell(self, params: Any) -> Trial:
        outcome, text = self.measure(params)
        return self.optimizer.tell(params, outcome.mean, feedback=text, samples=outcome.returns)

    def close(self) -> None:
        """Close the storage file, if there is one."""
        self.optimizer.close()


def _clean(data: DataSet, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows to predict, without those whose error is far out."""
    x, y = data.draw(rng, 4 * data.rows)
    kept = np.abs(y - np.median(y)) < 6.0
    return x[kept], y[kept]


def _score(truth: np.ndarray, predicted: np.ndarray, learned: np.ndarray) -> float:
    constant = np.abs(truth - np.median(learned)).mean()
    return float(100 * (1 - np.abs(truth - predicted).mean() / constant))
