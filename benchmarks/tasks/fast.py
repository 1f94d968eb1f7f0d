"""Rollouts near the limit of the machine, with the returns that `Evaluator` gives.

Three engines, chosen by task: NumPy batches for the classic control tasks
(`fast_control`), batches around ``mj_step`` for MuJoCo's (`fast_mujoco`), and Gymnasium for
everything else, the latter two in several processes. Whatever goes wrong in an episode (a
reward that is not finite, say) is run again by the plain `Evaluator`, so that failures read
the same, too.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from llmopt.benchmarks.tasks.fast_control import CONTROL, ControlEngine, Wrapped
from llmopt.benchmarks.tasks.fast_mujoco import PHYSICS, MujocoEngine
from llmopt.benchmarks.tasks.table import Task
from llmopt.errors import ParameterError
from llmopt.policies.episode import Watcher
from llmopt.policies.rollout import Evaluation, Evaluator, Recorder

_FEW = 3  # episodes below which Gymnasium itself is as fast as a NumPy batch
_PARTS = 2  # pieces of work for each process, so that none waits long for the last


class _Engine(Protocol):
    name: str
    lanes: int  # episodes at a time that make the most of it

    def run(self, params: np.ndarray, seeds: Sequence[int]) -> tuple[np.ndarray, np.ndarray]: ...


class FastEvaluator:
    """Runs many policies over many starts; a faster `Evaluator`.

    Args:
        task: What to run.
        workers: Processes; as many as this process may use cores if not given. Classic control
            needs none. With more than one, a script has to guard its own start with
            ``if __name__ == "__main__":``, as for everything in `multiprocessing`.

    Attributes:
        task: What is run.
        policy: The policy whose parameters are evaluated.
        step_cap: Environment steps after which an episode ends.
        engine: What runs the episodes, in words.

    Raises:
        LLMOptError: The environment cannot be made.
        SpaceError: A linear policy cannot serve its spaces.
        ValueError: `workers` is less than 1.
    """

    def __init__(self, task: Task, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers={workers}: expected at least 1, or nothing for all cores")
        self.task = task
        self._plain = Evaluator(task)
        self.policy = self._plain.policy
        self.step_cap = self._plain.step_cap
        self._env = task.make_env()
        self._engine = self._choose(workers or _cores())
        self.engine = self._engine.name

    def _choose(self, workers: int) -> _Engine:
        env_id, env = self.task.env_id, self._env
        known = env_id in CONTROL or env_id in PHYSICS  # others may live in a module of the user's
        usual = known and gym.spec(env_id).kwargs == {} and Wrapped.can_batch(env)
        if usual and env_id in CONTROL:
            return ControlEngine(env_id, env, self.policy, self.step_cap)
        engine: _Engine = _Serial(self._plain)
        if usual and env_id in PHYSICS:
            engine = MujocoEngine(env_id, env, self.policy, self.step_cap)
        return engine if workers == 1 else _Processes(self.task, engine, workers)

    def __enter__(self) -> FastEvaluator:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the environments, and end the processes."""
        if isinstance(self._engine, _Processes):
            self._engine.close()
        self._env.close()
        self._plain.close()

    def evaluate(
        self,
        params: Any,
        seeds: Sequence[int],
        record: Recorder | None = None,
        *,
        watch: Watcher | None = None,
    ) -> Evaluation:
        """Run one policy from each start; see `Evaluator.evaluate`.

        Steps that are recorded or watched are Gymnasium's own.
        """
        if record is not None or watch is not None or isinstance(self._engine, _Serial):
            return self._plain.evaluate(params, seeds, record, watch=watch)
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
        if not len(table):
            return []
        if not seeds:
            return [Evaluation((), ()) for _ in table]
        started = time.perf_counter()
        few = len(table) * len(seeds) < _FEW and isinstance(self._engine, ControlEngine)
        engine = _Serial(self._plain) if few else self._engine
        returns, lengths = engine.run(table, seeds)
        sound = np.isfinite(returns).all(axis=1)
        again = {i: self._plain.evaluate(table[i], seeds) for i in np.flatnonzero(~sound)}
        seconds = (time.perf_counter() - started) / len(table)
        evaluations: list[Evaluation] = []
        for i, (row, steps) in enumerate(zip(returns.tolist(), lengths.tolist(), strict=True)):
            if i in again:
                plain = again[i]
                evaluations.append(Evaluation(plain.returns, plain.lengths, plain.failure, seconds))
            else:
                evaluations.append(Evaluation(tuple(row), tuple(steps), "", seconds))
        return evaluations


class _Serial:
    """Gymnasium in this process."""

    name = "Gymnasium"
    lanes = 1

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator

    def run(self, params: np.ndarray, seeds: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        return _rows([self._evaluator.evaluate(p, seeds) for p in params], len(seeds))


class _Processes:
    """Another engine in several processes, each with an environment that it keeps."""

    def __init__(self, task: Task, engine: _Engine, workers: int) -> None:
        self.name = f"{engine.name} in {workers} processes"
        self.lanes = engine.lanes * workers
        self._task = task
        self._engine = engine
        self._workers = workers
        # A fresh process each: a fork would copy the threads of a model that is loaded.
        self._pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def run(self, params: np.ndarray, seeds: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        n, k = len(params), len(seeds)
        if n * k == 1:
            return self._engine.run(params, seeds)
        # Whole policies where there are enough of them, and else parts of their starts.
        parts = max(self._workers, min(self._workers * _PARTS, n * k // self._engine.lanes))
        rows = np.array_split(np.arange(n), min(n, parts))
        columns = np.array_split(np.arange(k), min(k, -(-parts // len(rows))))
        jobs = {
            self._pool.submit(_run_part, self._task, params[i], [seeds[c] for c in j]): (i, j)
            for i in rows
            for j in columns
        }
        returns, lengths = np.empty((n, k)), np.empty((n, k), dtype=int)
        for job, (i, j) in jobs.items():
            returns[np.ix_(i, j)], lengths[np.ix_(i, j)] = job.result()
        return returns, lengths


_evaluators: dict[Task, FastEvaluator] = {}


def _run_part(
    task: Task, params: np.ndarray, seeds: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Run some policies from some starts in a worker process."""
    if task not in _evaluators:
        _evaluators[task] = FastEvaluator(task, workers=1)
    return _evaluators[task]._engine.run(params, seeds)


def _rows(evaluations: Sequence[Evaluation], k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return returns and lengths as ``(n, k)`` arrays, NaN and 0 where there are none."""
    returns = np.full((len(evaluations), k), np.nan)
    lengths = np.zeros((len(evaluations), k), dtype=int)
    for i, evaluation in enumerate(evaluations):
        returns[i, : len(evaluation.returns)] = evaluation.returns
        lengths[i, : len(evaluation.lengths)] = evaluation.lengths
    return returns, lengths


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
