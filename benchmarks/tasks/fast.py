"""Rollouts of MountainCarContinuous in NumPy, with the returns that `Evaluator` gives.

An evaluation of this task has twenty episodes of up to 999 steps, most of the cost of a baseline.
All episodes run at the same time, each in its own lane. A step repeats Gymnasium's own
arithmetic, its order and its precision included: what is float32 there for one car is float32 here
for all of them. Python numbers stay Python numbers, which NumPy rounds to the precision of what
they meet.

All other tasks run over Gymnasium. Whatever goes wrong in an episode (a reward that is not finite,
say) is run again by the plain `Evaluator`, so that failures read the same, too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import wrappers

from llmopt.benchmarks.tasks.table import Task
from llmopt.policies.episode import Watcher
from llmopt.policies.evaluation import Evaluation
from llmopt.policies.scaling import done_through, seen_through, stack
from llmopt.util.closing import Closing

_FEW = 3  # episodes below which Gymnasium itself is as fast as a NumPy batch
_BATCHED = "MountainCarContinuous-v0"

State = tuple[np.ndarray, ...]
"""One ``(n_lanes,)`` array for each number of the state, which is the observation."""


class FastEvaluator(Closing):
    """Runs a policy over many starts; a faster `Evaluator`."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._plain = task.evaluator()
        self.policy = self._plain.policy
        self.step_cap = self._plain.step_cap  # environment steps after which an episode ends
        self._env: Any = task.make_env()
        self._starts: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.batched = task.env_id == _BATCHED and _row_by_row(self._env)

    def close(self) -> None:
        """Close the environments."""
        self._env.close()
        self._plain.close()

    def evaluate(
        self, params: Any, seeds: Sequence[int], watch: Watcher | None = None
    ) -> Evaluation:
        """Run a policy from each start; see `Evaluator.evaluate`.

        Steps that are watched are Gymnasium's own.
        """
        if watch is not None or not self.batched or len(seeds) < _FEW:
            return self._plain.evaluate(params, seeds, watch)
        started = time.perf_counter()
        with np.errstate(all="ignore"):
            returns, lengths = self._episodes(params, seeds)
        if not np.isfinite(returns).all():
            return self._plain.evaluate(params, seeds)
        seconds = time.perf_counter() - started
        return Evaluation(tuple(returns.tolist()), tuple(lengths.tolist()), "", seconds)

    def _episodes(self, params: Any, seeds: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the return and the length of the episode of each start."""
        starts = [self._start(seed) for seed in seeds]
        state: State = tuple(np.array([s for s, _ in starts]).T)
        observed = np.array([o for _, o in starts])
        weights, bias = self.policy.unpack(params)
        totals, lengths = np.zeros(len(seeds)), np.full(len(seeds), self.step_cap)
        lanes, sums = np.arange(len(seeds)), totals.copy()
        for step in range(1, self.step_cap + 1):
            # One vector-matrix product for each lane, which BLAS rounds as it does a single one.
            outputs = (observed.astype(np.float64)[:, None] @ weights)[:, 0] + bias
            actions = done_through(self._env, outputs.astype(np.float32))[:, 0]
            state, rewards, ended = _step(state, actions)
            sums += rewards
            if ended.any():
                over, going = lanes[ended], ~ended
                totals[over], lengths[over] = sums[ended], step
                lanes, sums = lanes[going], sums[going]
                state = tuple(s[going] for s in state)
                if not lanes.size:
                    break
            observed = seen_through(self._env, np.stack(state, axis=1).astype(np.float32))
        totals[lanes] = sums
        return totals, lengths

    def _start(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        if seed not in self._starts:
            if len(self._starts) >= 4096:
                self._starts.clear()
            observation, _ = self._env.reset(seed=seed)
            self._starts[seed] = np.array(self._env.unwrapped.state), np.array(observation)
        return self._starts[seed]


_ROW_BY_ROW = (
    wrappers.RescaleObservation, wrappers.NormalizeObservation, wrappers.RescaleAction,
    wrappers.ClipAction, wrappers.TimeLimit, wrappers.OrderEnforcing, wrappers.PassiveEnvChecker,
)  # fmt: skip


def _row_by_row(env: Any) -> bool:
    """Whether all wrappers do with each row of a batch what they do with a single one."""
    layers = stack(env)
    frozen = all(not getattr(layer, "update_running_mean", False) for layer in layers)
    return frozen and all(type(layer) in _ROW_BY_ROW for layer in layers)


def _between(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Clip as `np.clip` does, at a third of its cost for a small batch."""
    return np.asarray(np.minimum(np.maximum(values, low), high))


def _step(state: State, actions: np.ndarray) -> tuple[State, np.ndarray, np.ndarray]:
    """Return from states and actions the next states, rewards and whether each episode ended."""
    position, velocity = state
    real = velocity.dtype
    gravity = 0.0025 * np.cos((3 * position).astype(np.float64, copy=False))
    # Gymnasium's force is a float32 number inside the bounds and a Python number at them,
    # which makes the sum double.
    single = actions * np.float32(0.0015) - gravity.astype(np.float32)
    double = np.copysign(0.0015, actions, dtype=np.float64) - gravity
    push = np.where(
        np.abs(actions) > 1, double.astype(real, copy=False), single.astype(real, copy=False)
    )
    velocity = _between(velocity + push, -0.07, 0.07)
    position = _between(position + velocity, -1.2, 0.6)
    velocity[(position == real.type(-1.2)) & (velocity < 0)] = 0
    reached = (position >= real.type(0.45)) & (velocity >= 0)
    rewards = np.square(actions, dtype=np.float64) * -0.1
    if reached.any():
        rewards[reached] += 100.0
    if real == np.float64:
        # The first step is double, for Gymnasium's start is; from then on its state is float32.
        position, velocity = position.astype(np.float32), velocity.astype(np.float32)
    return (position, velocity), rewards, reached
