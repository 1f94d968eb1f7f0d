"""Samplers of Optuna, and BayBE, as methods of the benchmark."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from llmopt.benchmarks.methods.protocol import Problem
from llmopt.errors import LLMOptError
from llmopt.space import Categorical, Space


class Optuna:
    """One of Optuna's samplers, its study begun with all warm-up points."""

    def __init__(self, sampler: str, problem: Problem, seed: np.random.SeedSequence) -> None:
        import optuna
        from optuna.trial import TrialState, create_trial

        names = [f"p{i}" for i in range(problem.n)]
        one = optuna.distributions.FloatDistribution(problem.low, problem.high)
        self._space: dict[str, Any] = dict.fromkeys(names, one)
        self._named = problem.space is not None
        if problem.space is not None:
            self._space = {
                name: optuna.distributions.CategoricalDistribution(choices)
                for name, choices in choices_of(problem.space).items()
            }
        kind = optuna.samplers.GPSampler if sampler == "GP" else optuna.samplers.TPESampler
        # Five start-up trials: the warm-up points are more than that.
        tuned: dict[str, Any] = {"n_startup_trials": 5, "multivariate": True, "group": True}
        options: dict[str, Any] = tuned if sampler == "TPE, tuned" else {}
        with quietly():
            made: Any = kind(seed=int(seed.generate_state(1)[0]), **options)
            self._study = optuna.create_study(direction="maximize", sampler=made)
            for params, reward in problem.warmup:
                state = TrialState.FAIL if reward is None else TrialState.COMPLETE
                values = dict(zip(names, params, strict=True))
                given: Any = {"params": values, "distributions": self._space, "value": reward}
                self._study.add_trial(create_trial(state=state, **given))

    def ask(self) -> Any:
        """Return the next point."""
        with quietly():
            self._trial = self._study.ask(self._space)
        if self._named:
            return dict(self._trial.params)
        return np.array(list(self._trial.params.values()))

    def tell(self, params: Any, reward: float) -> None:
        """Report the value."""
        with quietly():
            self._study.tell(self._trial, reward)

    def tell_failure(self, params: Any, reason: str) -> None:
        """Report that there is no value."""
        from optuna.trial import TrialState

        with quietly():
            self._study.tell(self._trial, state=TrialState.FAIL)


def choices_of(space: Space) -> dict[str, tuple[Any, ...]]:
    """Return the choices of each parameter of a space that has no others."""
    pairs = zip(space.names, space.dimensions, strict=True)
    return {name: d.choices for name, d in pairs if isinstance(d, Categorical)}


class BayBE:
    """BayBE with its defaults over choices, one-hot: first random, then a Gaussian process."""

    def __init__(self, problem: Problem, seed: np.random.SeedSequence) -> None:
        if problem.space is None:
            raise LLMOptError("the method 'baybe' searches choices only: omit it for this task")
        from baybe import Campaign
        from baybe.parameters import CategoricalParameter
        from baybe.searchspace import SearchSpace
        from baybe.settings import Settings
        from baybe.targets import NumericalTarget

        Settings(random_seed=int(seed.generate_state(1)[0])).activate()
        choices = choices_of(problem.space)
        self._choice = {name: {str(c): c for c in own} for name, own in choices.items()}
        parameters = [CategoricalParameter(name, list(own)) for name, own in self._choice.items()]
        self._campaign = Campaign(
            SearchSpace.from_product(parameters), NumericalTarget("f").to_objective()
        )

    def ask(self) -> dict[str, Any]:
        """Return the next point."""
        with quietly():
            self._row = self._campaign.recommend(batch_size=1)
        return {name: own[self._row.iloc[0][name]] for name, own in self._choice.items()}

    def tell(self, params: Any, reward: float) -> None:
        """Report the value."""
        with quietly():
            self._campaign.add_measurements(self._row.assign(f=reward))

    def tell_failure(self, params: Any, reason: str) -> None:
        """Learn nothing: BayBE recommends no point twice."""


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Keep each trial's line of Optuna, notes of llmopt, and warnings off the terminal."""
    loggers = [logging.getLogger("llmopt"), logging.getLogger("optuna")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
