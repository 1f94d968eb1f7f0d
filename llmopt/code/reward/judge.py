"""What a policy is worth by the environment's own measure, in a process of its own.

The process gets the numbers of a policy and nothing else: no reward function, no code of a
model's, no environment that training used.
"""

from __future__ import annotations

import importlib
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
from llmopt.policies.episode import STEP_CAP, TERMINATED, Episode, episode
from llmopt.policies.linear import LinearPolicy

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
        returns: Sum of the environment's rewards in each episode; ``None`` for a failed one.
        successes: Whether each was a success: what the environment says; reaching the goal
            for `GOAL_TASKS`; else a return of at least the task's registered threshold.
        lengths: Steps of each.
        failure: Why an episode failed; empty where none did.
    """

    returns: tuple[float | None, ...]
    successes: tuple[bool, ...]
    lengths: tuple[int, ...]
    failure: str = ""

    @property
    def episodes(self) -> int:
        """How many episodes there were."""
        return len(self.returns)

    @property
    def mean_return(self) -> float | None:
        """Mean of the returns; ``None`` where an episode failed."""
        sound = [value for value in self.returns if value is not None]
        return math.fsum(sound) / len(sound) if len(sound) == len(self.returns) else None

    @property
    def rank(self) -> float:
        """The mean return, for sorting; least where an episode failed."""
        return -math.inf if self.mean_return is None else self.mean_return

    @property
    def success_rate(self) -> float:
        """Share of successes."""
        return sum(self.successes) / len(self.successes)

    def account(self) -> str:
        """Say return, steps and success of each episode."""
        each = zip(self.returns, self.lengths, self.successes, strict=True)
        return "; ".join(
            f"{'failed' if total is None else f'{total:.4g}'} in {steps} steps"
            f"{'' if won else ' (no success)'}"
            for total, steps, won in each
        )


def mean_of(judgements: Sequence[Judgement]) -> float | None:
    """Return the mean return over policies; ``None`` where an episode of one failed."""
    means = [j.mean_return for j in judgements]
    sound = [mean for mean in means if mean is not None]
    return math.fsum(sound) / len(sound) if len(sound) == len(means) else None


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
    returns, successes, lengths = (tuple(answer[n]) for n in ("returns", "successes", "lengths"))
    return Judgement(returns, successes, lengths, str(answer["failure"]))


def actor(env: gym.Env[Any, Any], params: Any) -> Callable[[Any], Any]:
    """Return a linear policy with a bias that acts within the action space."""
    act = LinearPolicy.for_env(env).bind(params)
    space = env.action_space
    if not isinstance(space, gym.spaces.Box):
        return act
    # Some environments charge for what they clip.
    return lambda observation: np.clip(act(observation), space.low, space.high)


def plain_action(action: Any) -> Any:
    """Return an action as a reward sees it: an int, or a copy of the array."""
    return np.asarray(action).item() if np.ndim(action) == 0 else np.array(action)


def _load(file: Path) -> Callable[[Any], Any]:
    """Return the policy in a file of `llmopt.code.reward.sb3.train_sb3`, which is unpickled."""
    kind = getattr(importlib.import_module("stable_baselines3"), file.name.partition("-")[0])
    model = kind.load(file, device="cpu")
    return lambda observation: plain_action(model.predict(observation, deterministic=True)[0])


def run(
    env_id: str, policy: Sequence[float] | str, seeds: Sequence[int], cap: int = STEP_CAP
) -> Judgement:
    """Run a policy in this process; see `judge`."""
    env = gym.make(env_id)
    try:
        act = _load(Path(policy)) if isinstance(policy, str) else actor(env, policy)
        made = [episode(env, act, seed, cap) for seed in seeds]
        wins = tuple(_success(env, each) for each in made)
    finally:
        env.close()
    failure = next((each.failure for each in made if each.failure), "")
    return Judgement(tuple(e.total for e in made), wins, tuple(e.length for e in made), failure)


def _success(env: gym.Env[Any, Any], made: Episode) -> bool:
    if made.total is None:
        return False
    for name in ("success", "is_success"):
        if name in made.info:
            return bool(np.all(made.info[name]))
    if env.spec is not None and env.spec.id in GOAL_TASKS:
        return made.end == TERMINATED
    threshold = env.spec.reward_threshold if env.spec is not None else None
    return threshold is not None and made.total >= threshold


def serve() -> None:
    """Read one order from the standard input and print the judgement as JSON."""
    print(json.dumps(asdict(run(**json.load(sys.stdin)))))
