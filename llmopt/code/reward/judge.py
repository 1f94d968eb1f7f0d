"""What a policy is worth by the environment's own measure, in an environment of its own.

It is judged by its numbers alone: no reward function and no code of a model's takes part.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from llmopt.code.policy import CodeEpisode, PolicyScore
from llmopt.policies.environment import make_gymnasium
from llmopt.policies.episode import STEP_CAP, TERMINATED, Episode, episode
from llmopt.policies.linear import LinearPolicy

GOAL_TASKS = ("MountainCarContinuous-v0", "MountainCar-v0")
"""Tasks that end early only at their goal: there ``terminated`` is success."""


def mean_of(judged: Sequence[PolicyScore]) -> float | None:
    """Return the mean return over policies; ``None`` where an episode of one failed."""
    means = [score.mean_return for score in judged]
    sound = [mean for mean in means if mean is not None]
    return math.fsum(sound) / len(sound) if len(sound) == len(means) else None


def judge(
    env_id: str, policy: Sequence[float] | Path, seeds: Sequence[int], cap: int = STEP_CAP
) -> PolicyScore:
    """Run a policy in a fresh environment, with an episode from each seed.

    It is flat parameters, as `llmopt.policies.linear.LinearPolicy` orders them, with a bias; or a
    file that `llmopt.code.reward.sb3.train_sb3` saved, which is unpickled.

    Raises:
        LLMOptError: The environment cannot be made.
    """
    with contextlib.closing(make_gymnasium(env_id)) as env:
        act: Callable[[Any], Any]
        if isinstance(policy, Path):
            act = _load(policy)
        else:  # within the action space: some environments charge for what they clip
            act = LinearPolicy.for_env(env, clip=True).bind(policy)
        made = [episode(env, act, seed, cap) for seed in seeds]
        each = tuple(CodeEpisode(**{**vars(e), "success": _success(env, e)}) for e in made)
    return PolicyScore(each, cap)


def plain_action(action: Any) -> Any:
    """Return an action as a reward sees it: an int, or a copy of the array."""
    return np.asarray(action).item() if np.ndim(action) == 0 else np.array(action)


def _load(file: Path) -> Callable[[Any], Any]:
    kind = getattr(importlib.import_module("stable_baselines3"), file.name.partition("-")[0])
    model = kind.load(file, device="cpu")
    return lambda observation: plain_action(model.predict(observation, deterministic=True)[0])


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
