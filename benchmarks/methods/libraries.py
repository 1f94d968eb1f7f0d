"""The optimizers of Nevergrad and Optuna as methods of the benchmark."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from llmopt.benchmarks.methods.protocol import Problem
from llmopt.search.follow import failure_gap


class _Floor:
    """A reward for points that have none: below the worst one seen."""

    def __init__(self, rewards: Sequence[float]) -> None:
        self._worst = min(rewards, default=0.0)

    def see(self, reward: float) -> None:
        self._worst = min(self._worst, reward)

    @property
    def value(self) -> float:
        return self._worst - failure_gap(self._worst)


@contextlib.contextmanager
def _own_global_state(state: list[Any]) -> Iterator[None]:
    """Give a block its own state of NumPy's global generator, and leave others theirs."""
    outside = np.random.get_state()
    np.random.set_state(state[0])
    try:
        yield
    finally:
        state[0] = np.random.get_state()
        np.random.set_state(outside)


class Nevergrad:
    """One of Nevergrad's optimizers, told all warm-up points.

    Args:
        optimizer: Its name in Nevergrad's registry.
        problem: What to solve.
        seed: Source of all randomness.
    """

    def __init__(self, optimizer: str, problem: Problem, seed: np.random.SeedSequence) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of optional packages that it misses on import
            import nevergrad as ng

        own, shared = (int(s) for s in seed.generate_state(2))
        # Some of Nevergrad's optimizers draw from NumPy's global generator as well.
        self._state = [np.random.RandomState(shared).get_state()]
        middle = np.full(problem.n, (problem.low + problem.high) / 2)
        start = middle if problem.start is None else np.array(problem.start)
        self._floor = _Floor(problem.rewards)
        self._asked: Any = None
        with self._quietly():
            space = ng.p.Array(init=start, lower=problem.low, upper=problem.high)
            space.random_state = np.random.RandomState(own)
            self._optimizer = ng.optimizers.registry[optimizer](space, budget=problem.evaluations)
            for params, reward in problem.warmup:
                point = space.spawn_child(new_value=np.array(params))
                with contextlib.suppress(ng.errors.TellNotAskedNotSupportedError):
                    loss = -(self._floor.value if reward is None else reward)
                    self._optimizer.tell(point, loss)

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        with _own_global_state(self._state), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield

    def ask(self) -> np.ndarray:
        """Return the next point."""
        with self._quietly():
            self._asked = self._optimizer.ask()
        return np.array(self._asked.value, dtype=np.float64)

    def tell(self, params: Any, reward: float) -> None:
        """Report the reward."""
        self._floor.see(reward)
        with self._quietly():
            self._optimizer.tell(self._asked, -reward)

    def tell_failure(self, params: Any, reason: str) -> None:
        """Report that there is no reward."""
        with self._quietly():
            self._optimizer.tell(self._asked, -self._floor.value)


class Optuna:
    """One of Optuna's samplers, its study begun with all warm-up points.

    Args:
        sampler: ``"TPE"``, ``"CmaEs"`` or ``"GP"``.
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
            elif sampler == "GP":
                self._made = optuna.samplers.GPSampler(seed=number)
            else:
                start = problem.start
                self._made = optuna.samplers.CmaEsSampler(
                    x0=None if start is None else dict(zip(self._names, start, strict=True)),
                    sigma0=(problem.high - problem.low) / 6,
                    seed=number,
                    warn_independent_sampling=False,
                )
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
