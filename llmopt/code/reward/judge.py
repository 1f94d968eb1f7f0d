"""What a policy is worth by the environment's own measure, in a process of its own.

The process gets the numbers of a policy and nothing else: no reward function, no code of a
model's, no environment that training used.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from llmopt.code.sandbox.channel import import_path
from llmopt.errors import LLMOptError
from llmopt.policies.linear import LinearPolicy

STEP_CAP = 1000
GOAL_TASKS = ("MountainCarContinuous-v0", "MountainCar-v0")
"""Tasks that end early only at their goal: there ``terminated`` is success."""

_RUN = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from llmopt.code.sandbox.confine import die_with; die_with(int(sys.argv[2])); "
    "from llmopt.code.reward.judge import serve; serve()"
)
_SECONDS = 600


@dataclass(frozen=True)
class Judgement:
    """The environment's own measures over several episodes.

    Attributes:
        returns: Sum of the environment's rewards in each episode.
        successes: Whether each was a success: what the environment says; reaching the goal
            for `GOAL_TASKS`; else a return of at least the task's registered threshold.
        lengths: Steps of each.
    """

    returns: tuple[float, ...]
    successes: tuple[bool, ...]
    lengths: tuple[int, ...]

    @property
    def mean_return(self) -> float:
        """Mean of the returns."""
        return math.fsum(self.returns) / len(self.returns)

    @property
    def success_rate(self) -> float:
        """Share of successes."""
        return sum(self.successes) / len(self.successes)

    def words(self) -> str:
        """Say both measures."""
        return (
            f"a mean return of {self.mean_return:.3f} and success in {self.success_rate:.0%} "
            f"of {len(self.returns)} episodes"
        )

    def account(self) -> str:
        """Say return, steps and success of each episode."""
        each = zip(self.returns, self.lengths, self.successes, strict=True)
        return "; ".join(
            f"{total:.4g} in {steps} steps{'' if won else ' (no success)'}"
            for total, steps, won in each
        )


def judge(
    env_id: str, policy: Sequence[float] | Path, seeds: Sequence[int], cap: int = STEP_CAP
) -> Judgement:
    """Run a policy in a fresh process.

    Args:
        env_id: Gymnasium id.
        policy: Flat parameters, as `llmopt.policies.linear.LinearPolicy` orders them,
            with a bias; or a file that `llmopt.code.reward.sb3.train_sb3` saved.
        seeds: Seed of each episode's start.
        cap: Largest number of steps of an episode.

    Raises:
        LLMOptError: The process failed.
    """
    plain = str(policy) if isinstance(policy, Path) else [float(p) for p in policy]
    order = {"env_id": env_id, "policy": plain, "seeds": list(seeds), "cap": cap}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _RUN, json.dumps(import_path()), str(os.getpid())],
            input=json.dumps(order),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
        answer = json.loads(done.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()[-1:] or ["no message"]
        raise LLMOptError(f"the policy could not be judged on {env_id}: {last[0]}") from error
    except (subprocess.TimeoutExpired, OSError, ValueError, IndexError) as error:
        raise LLMOptError(f"the policy could not be judged on {env_id}: {error}") from error
    return Judgement(*(tuple(answer[name]) for name in ("returns", "successes", "lengths")))


def actor(env: gym.Env[Any, Any], params: Any) -> Callable[[Any], Any]:
    """Return a linear policy with a bias that acts within the action space.

    Args:
        env: The environment it is for.
        params: Flat parameters.
    """
    act = LinearPolicy.for_env(env).bind(params)
    space = env.action_space
    if not isinstance(space, gym.spaces.Box):
        return act
    # Some environments charge for what they clip.
    return lambda observation: np.clip(act(observation), space.low, space.high)


def run(
    env_id: str, policy: Sequence[float] | str, seeds: Sequence[int], cap: int = STEP_CAP
) -> Judgement:
    """Run a policy in this process; see `judge`."""
    env = gym.make(env_id)
    try:
        if isinstance(policy, str):
            from llmopt.code.reward.sb3 import load

            act = load(Path(policy))
        else:
            act = actor(env, policy)
        results = [_episode(env, act, seed, cap) for seed in seeds]
    finally:
        env.close()
    returns, successes, lengths = zip(*results, strict=True)
    return Judgement(returns, successes, lengths)


def _episode(env: gym.Env[Any, Any], act: Any, seed: int, cap: int) -> tuple[float, bool, int]:
    observation, info = env.reset(seed=seed)
    total, terminated, length = 0.0, False, 0
    for length in range(1, cap + 1):  # noqa: B007
        observation, reward, terminated, truncated, info = env.step(act(observation))
        total += float(reward)
        if terminated or truncated:
            break
    return total, bool(_success(env, total, terminated, info)), length


def _success(env: gym.Env[Any, Any], total: float, terminated: bool, info: Any) -> Any:
    for name in ("success", "is_success"):
        if name in info:
            return np.all(info[name])
    if env.spec is not None and env.spec.id in GOAL_TASKS:
        return terminated
    threshold = env.spec.reward_threshold if env.spec is not None else None
    return threshold is not None and total >= threshold


def serve() -> None:
    """Read one order from the standard input and print the judgement as JSON."""
    print(json.dumps(asdict(run(**json.load(sys.stdin)))))
