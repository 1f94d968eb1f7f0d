"""What a policy is worth by the environment's own measure, in a process of its own.

The process gets the numbers of a policy and nothing else: no reward function, no code of a
model's, no environment that training used.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from llmopt.code.policy import CodeEpisode, PolicyScore
from llmopt.code.sandbox.worker_process import import_path
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


def mean_of(judged: Sequence[PolicyScore]) -> float | None:
    """Return the mean return over policies; ``None`` where an episode of one failed."""
    means = [score.mean_return for score in judged]
    sound = [mean for mean in means if mean is not None]
    return math.fsum(sound) / len(sound) if len(sound) == len(means) else None


def judge(
    env_id: str, policy: Sequence[float] | Path, seeds: Sequence[int], cap: int = STEP_CAP
) -> PolicyScore:
    """Run a policy in a fresh process, with an episode from each seed.

    It is flat parameters, as `llmopt.policies.linear.LinearPolicy` orders them, with a bias; or a
    file that `llmopt.code.reward.sb3.train_sb3` saved.

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
        made = json.loads(done.stdout.splitlines()[-1])
        return PolicyScore(tuple(CodeEpisode(**each) for each in made), cap)
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()[-1:] or ["no message"]
        raise LLMOptError(f"the policy could not be judged on {env_id}: {last[0]}") from error
    except (subprocess.TimeoutExpired, OSError, ValueError, IndexError, TypeError) as error:
        raise LLMOptError(f"the policy could not be judged on {env_id}: {error}") from error


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
) -> PolicyScore:
    """Run a policy in this process; see `judge`."""
    with contextlib.closing(gym.make(env_id)) as env:
        act = _load(Path(policy)) if isinstance(policy, str) else actor(env, policy)
        made = [episode(env, act, seed, cap) for seed in seeds]
        each = [
            CodeEpisode(e.seed, e.total, e.length, e.end, e.failure, success=_success(env, e))
            for e in made
        ]
    return PolicyScore(tuple(each), cap)


def _success(env: gym.Env[Any, Any], made: Episode) -> bool:
    """Whether the environment says so, its goal was reached, or its threshold."""
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
    """Read one order from the standard input and print the episodes as JSON."""
    names = ("seed", "total", "length", "end", "failure", "success")
    made = run(**json.load(sys.stdin)).episodes
    print(json.dumps([{name: getattr(each, name) for name in names} for each in made]))
