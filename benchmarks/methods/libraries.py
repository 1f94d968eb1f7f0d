"""Samplers of Optuna as methods of the benchmark."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from llmopt.benchmarks.methods.protocol import Problem


class StudyMethod:
    """A study of Optuna as a method."""

    def __init__(self, study: Any, space: Mapping[str, Any]) -> None:
        self._study, self._space = study, dict(space)

    def ask(self) -> Any:
        """Return the next point by name."""
        with _quietly():
            self._trial = self._study.ask(self._space)
        return self._trial.params

    def tell(self, params: Any, reward: float) -> None:
        """Report the value."""
        with _quietly():
            self._study.tell(self._trial, reward)

    def tell_failure(self, params: Any, reason: str) -> None:
        """Report that there is no value."""
        from optuna.trial import TrialState

        with _quietly():
            self._study.tell(self._trial, state=TrialState.FAIL)


class Optuna(StudyMethod):
    """One of Optuna's samplers, its study begun with all warm-up points."""

    def __init__(self, sampler: str, problem: Problem, seed: np.random.SeedSequence) -> None:
        import optuna
        from optuna.trial import TrialState, create_trial

        names = [f"p{i}" for i in range(problem.n)]
        one = optuna.distributions.FloatDistribution(problem.low, problem.high)
        space: dict[str, Any] = dict.fromkeys(names, one)
        kind = optuna.samplers.TPESampler if sampler == "TPE" else optuna.samplers.GPSampler
        with _quietly():
            made: Any = kind(seed=int(seed.generate_state(1)[0]))
            study = optuna.create_study(direction="maximize", sampler=made)
            for params, reward in problem.warmup:
                state = TrialState.FAIL if reward is None else TrialState.COMPLETE
                values = dict(zip(names, params, strict=True))
                study.add_trial(
                    create_trial(state=state, params=values, distributions=space, value=reward)
                )
        super().__init__(study, space)

    def ask(self) -> np.ndarray:
        """Return the next point."""
        return np.array(list(super().ask().values()))


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(before)
