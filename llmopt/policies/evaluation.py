"""Evaluate a policy on seeded initial states, the same for every method."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from llmopt.policies.episode import Watcher, episode, mean_or_none, standard_error
from llmopt.policies.linear import LinearPolicy
from llmopt.util.closing import Closing
from llmopt.util.text import first_line


@dataclass(frozen=True)
class Evaluation:
    """Outcome of the episodes of one policy."""

    returns: tuple[float, ...]  # sum of rewards of each finished episode
    lengths: tuple[int, ...]  # environment steps of each episode
    failure: str = ""  # why the policy has no score; empty if no episode failed
    seconds: float = 0.0  # wall-clock seconds

    @property
    def mean(self) -> float | None:
        """Mean return, or ``None`` for a failed evaluation."""
        return None if self.failure else mean_or_none(self.returns)

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean return, or ``None`` for fewer than two episodes."""
        return None if self.failure else standard_error(self.returns)

    def __str__(self) -> str:
        """Return mean, standard error, range and number of the returns, or the failure."""
        if self.mean is None:
            done = f" after {len(self.returns)} episodes" if self.returns else ""
            return f"no return{done}: {self.failure or 'no episode was run'}"
        error = self.standard_error
        if error is None:
            return f"return {self.mean:.5g} (one episode)"
        return (
            f"mean return {self.mean:.5g} ± {error:.3g} (standard error), from "
            f"{min(self.returns):.5g} to {max(self.returns):.5g}, n = {len(self.returns)}"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}>"


class Evaluator(Closing):
    """Runs episodes of policies, reusing one environment."""

    def __init__(
        self,
        make_env: Callable[[], gym.Env[Any, Any]],
        policy: LinearPolicy,
        step_cap: int,
        env: gym.Env[Any, Any] | None = None,
    ) -> None:
        self._make_env = make_env
        self.policy = policy
        self.step_cap = step_cap
        self._env = env

    def close(self) -> None:
        """Close the environment; the next evaluation makes a new one."""
        env, self._env = self._env, None
        if env is not None:
            with suppress(Exception):  # it is discarded, often because it is broken
                env.close()

    def evaluate(
        self, params: Any, seeds: Sequence[int], watch: Watcher | None = None
    ) -> Evaluation:
        """Run one episode from each initial state.

        An exception inside the environment or a reward that is not a finite number fails the
        policy, not the run: `Evaluation.failure` reports it.
        """
        bound = self.policy.bind(params)
        started = time.perf_counter()
        returns: list[float] = []
        lengths: list[int] = []
        failure = ""
        for number, seed in enumerate(seeds):
            if self._env is None:
                try:
                    self._env = self._make_env()
                except Exception as error:
                    failure = f"episode {number}: {first_line(error) or type(error).__name__}"
                    break
            made = episode(self._env, bound, seed, self.step_cap, watch, number=number)
            if made.total is None:
                failure = f"episode {number}: {made.failure}"
                if made.error is not None:
                    self.close()  # after an exception the environment may be in any state
                break
            returns.append(made.total)
            lengths.append(made.length)
        return Evaluation(tuple(returns), tuple(lengths), failure, time.perf_counter() - started)
