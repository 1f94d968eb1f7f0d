"""Samplers of Optuna as methods of the benchmark."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from llmopt.benchmarks.methods.protocol import Problem


class Optuna:
    """One of Optuna's samplers, its study begun with all warm-up points.

    Args:
        sampler: ``"TPE"`` or ``"GP"``.
        problem: What to solve.
        seed: Source of all randomness.
    """

    def __init__(self, sampler: str, problem: Problem, seed: np.random.SeedSequence) -> None:
        import optuna

        self._names = [f"p{i}" for i in range(problem.n)]
        one = optuna.distributions.FloatDistribution(problem.low, problem.high)
        self._space: dict[str, Any] = dict.fromkeys(self._names, one)
        number = int(seed.generate_state(1)[0])
        self._made: Any
        with self._quietly():
            if sampler == "TPE":
                self._made = optuna.samplers.TPESampler(seed=number)
            else:
                self._made = optuna.samplers.GPSampler(seed=number)
            self._study = optuna.create_study(direction="maximize", sampler=self._made)
            for params, reward in problem.warmup:
                state = optuna.trial.TrialState
                self._study.add_trial(
                    optuna.trial.create_trial(
                        state=state.FAIL if reward is None else state.COMPLETE,
                        params=dict(zip(self._names, params, strict=True)),
                        distributions=self._space,
                        value=reward,
                    )
                )
        self._failed = optuna.trial.TrialState.FAIL
        self._trial: Any = None

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        import optuna

        before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            optuna.logging.set_verbosity(before)

    def ask(self) -> np.ndarray:
        """Return the next point."""
        with self._quietly():
            self._trial = self._study.ask(self._space)
        return np.array([self._trial.params[name] for name in self._names])

    def tell(self, params: Any, reward: float) -> None:
        """Report the reward."""
        with self._quietly():
            self._study.tell(self._trial, reward)

    def tell_failure(self, params: Any, reason: str) -> None:
        """Report that there is no reward."""
        with self._quietly():
            self._study.tell(self._trial, state=self._failed)
