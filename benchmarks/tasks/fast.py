"""Rollouts of the classic control tasks in NumPy, with the returns that `Evaluator` gives.

All other tasks run over Gymnasium. Whatever goes wrong in an episode (a reward that is not finite,
say) is run again by the plain `Evaluator`, so that failures read the same, too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from llmopt.benchmarks.tasks.fast_control import CONTROL, ControlEngine, Wrapped
from llmopt.benchmarks.tasks.table import Task
from llmopt.errors import ParameterError
from llmopt.policies.episode import Watcher
from llmopt.policies.rollout import Evaluation

_FEW = 3  # episodes below which Gymnasium itself is as fast as a NumPy batch


class FastEvaluator:
    """Runs many policies over many starts; a faster `Evaluator`.

    Args:
        task: What to run.

    Attributes:
        task: What is run.
        policy: The policy whose parameters are evaluated.
        step_cap: Environment steps after which an episode ends.
        batched: Whether episodes run in NumPy, all at a time.

    Raises:
        LLMOptError: The environment cannot be made.
        SpaceError: A linear policy cannot serve its spaces.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self._plain = task.evaluator()
        self.policy = self._plain.policy
        self.step_cap = self._plain.step_cap
        self._env = task.make_env()
        # Others may live in a module of the user's, or have arguments of their own.
        self.batched = (
            task.env_id in CONTROL
            and gym.spec(task.env_id).kwargs == {}
            and Wrapped.can_batch(self._env)
        )
        if self.batched:
            self._engine = ControlEngine(task.env_id, self._env, self.policy, self.step_cap)

    def __enter__(self) -> FastEvaluator:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the environments."""
        self._env.close()
        self._plain.close()

    def evaluate(
        self,
        params: Any,
        seeds: Sequence[int],
        watch: Watcher | None = None,
    ) -> Evaluation:
        """Run one policy from each start; see `Evaluator.evaluate`.

        Steps that are watched are Gymnasium's own.
        """
        if watch is not None:
            return self._plain.evaluate(params, seeds, watch)
        return self.evaluate_batch(np.asarray(params, dtype=np.float64)[None], seeds)[0]

    def evaluate_batch(self, params: Any, seeds: Sequence[int]) -> list[Evaluation]:
        """Run every policy from every start.

        Args:
            params: ``(n, n_parameters)`` array-like.
            seeds: Seeds of `k` starts, the same for every policy.

        Returns:
            `n` evaluations. Their seconds are equal shares of the time taken.

        Raises:
            ParameterError: The number of parameters is wrong.
        """
        table = np.array(params, dtype=np.float64)
        if table.ndim != 2 or table.shape[1] != self.policy.n_parameters:
            raise ParameterError(
                f"got parameters of shape {table.shape}, expected (n, {self.policy.n_parameters})"
            )
        if not self.batched or len(table) * len(seeds) < _FEW:
            return [self._plain.evaluate(row, seeds) for row in table]
        started = time.perf_counter()
        returns, lengths = self._engine.run(table, seeds)
        seconds = (time.perf_counter() - started) / len(table)
        return [
            Evaluation(tuple(row), tuple(steps), "", seconds)
            if np.isfinite(row).all()
            else self._plain.evaluate(table[i], seeds)
            for i, (row, steps) in enumerate(zip(returns.tolist(), lengths.tolist(), strict=True))
        ]
