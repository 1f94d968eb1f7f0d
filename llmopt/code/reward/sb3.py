"""Train with a model's reward by stable-baselines3, instead of linear policies.

Needs the extra `sb3`. Each step sends one message to the reward's worker.
"""

from __future__ import annotations

import importlib
import inspect
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym

from llmopt.code.candidate import Candidate
from llmopt.code.checks import component_means
from llmopt.code.reward.reward import (
    Training,
    seen_by_a_reward,
    start_seed,
    summarise,
    training_broke,
)
from llmopt.errors import LLMOptError, needs
from llmopt.sandbox.failure import CandidateError
from llmopt.util.text import first_line

_ACTIONS = {"PPO": "any", "A2C": "any", "SAC": "Box", "TD3": "Box", "DQN": "Discrete"}
ALGORITHMS = tuple(_ACTIONS)


def _algorithm(name: str) -> Any:
    if name not in ALGORITHMS:
        raise LLMOptError(f"algorithm {name!r}: expected one of {', '.join(ALGORITHMS)}")
    linear = ", or train a linear policy (--trainer linear)"
    with needs("this trainer", "stable-baselines3", extra="sb3", otherwise=linear):
        return getattr(importlib.import_module("stable_baselines3"), name)


def require_sb3(algorithm: str, env: gym.Env[Any, Any]) -> None:
    """Raise `ImportError` or `LLMOptError` if `train_sb3` does not support an environment."""
    _algorithm(algorithm)
    if not isinstance(env.observation_space, gym.spaces.Box | gym.spaces.Discrete):
        raise LLMOptError(
            f"the environment's observations are {env.observation_space}: supported are Box and "
            "Discrete; wrap it (gymnasium.wrappers has FlattenObservation)"
        )
    actions = type(env.action_space).__name__
    if _ACTIONS[algorithm] not in ("any", actions):
        fitting = [name for name, kind in _ACTIONS.items() if kind in ("any", actions)]
        raise LLMOptError(
            f"{algorithm} takes {_ACTIONS[algorithm]} actions and the environment has {actions} "
            f"ones: take one of {', '.join(fitting)}"
        )


def sb3_words(algorithm: str, episodes: int, cap: int) -> str:
    """Describe for the model what `train_sb3` trains, with the algorithm's defaults."""
    gamma = inspect.signature(_algorithm(algorithm)).parameters["gamma"].default
    return (
        f"The policy is a network (MlpPolicy of stable-baselines3), trained by {algorithm} with "
        f"its default settings for {episodes * cap} environment steps, in episodes of at most "
        f"{cap}. What counts is the sum of your reward, discounted by {gamma:g} a step; keep "
        "rewards near 1 in size."
    )


class CandidateReward(gym.Wrapper[Any, Any, Any, Any]):
    """Gives a candidate's reward in place of the environment's.

    `log` has for each finished episode the mean per step of each component, the environment's own
    return, and the length.
    """

    def __init__(self, env: gym.Env[Any, Any], candidate: Candidate, cap: int) -> None:
        super().__init__(env)
        self._candidate, self._cap = candidate, cap
        self._before: Any = None
        self._rewards: list[tuple[float, dict[str, float]]] = []
        self._true_return = 0.0
        self._names: set[str] = set()  # of the components
        self.log: list[tuple[dict[str, float], float, int]] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        self._before, info = self.env.reset(seed=seed, options=options)
        self._rewards, self._true_return = [], 0.0
        return self._before, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Make one step with the candidate's reward."""
        try:
            after, true_return, terminated, truncated, info = self.env.step(action)
        except Exception as error:
            reason = f"the environment raised {type(error).__name__}: {first_line(error)}"
            raise training_broke(reason) from error
        reward, parts = self._candidate(*seen_by_a_reward(self._before, action, after, info))
        self._before = after
        self._true_return += float(true_return)
        self._rewards.append((reward, parts))
        truncated = truncated or len(self._rewards) >= self._cap
        if terminated or truncated:
            means = component_means(self._rewards, self._names)
            self.log.append((means, self._true_return, len(self._rewards)))
        return after, reward, terminated, truncated, info


def train_sb3(
    candidate: Candidate,
    env: gym.Env[Any, Any],
    *,
    episodes: int = 200,
    seed: int = 0,
    cap: int = 1000,
    algorithm: str = "PPO",
    folder: str | Path | None = None,
    **options: Any,
) -> Training:
    """Train by stable-baselines3 for ``episodes * cap`` steps; called as `train_linear`.

    Args:
        candidate: The reward.
        env: The environment; training never uses its own reward.
        episodes: Episodes, of at most `cap` steps.
        seed: Seed of the training.
        cap: Maximum steps of an episode.
        algorithm: One of `ALGORITHMS`; `options` are for its class.
        folder: Where the trained policy is saved; a new temporary folder by default.
        **options: See `algorithm`.

    Raises:
        ImportError: stable-baselines3 is not installed.
        CandidateError: The reward failed.
        LLMOptError: The algorithm does not exist or fit, or no episode ended.
    """
    require_sb3(algorithm, env)
    wrapped = CandidateReward(env, candidate, cap)
    model = _algorithm(algorithm)(
        "MlpPolicy", wrapped, seed=start_seed(seed), device="cpu", verbose=0, **options
    )
    try:
        model.learn(total_timesteps=episodes * cap)
    except ValueError as error:  # torch raises it if extreme rewards broke the network
        reason = f"{first_line(error)}: keep rewards near 1 in size"
        raise CandidateError(f"training broke down: {reason}") from error
    if not wrapped.log:
        raise LLMOptError(f"no episode ended in {episodes * cap} steps; train for longer")
    home = Path(folder) if folder is not None else Path(tempfile.mkdtemp(prefix="llmopt-sb3-"))
    file = home / f"{algorithm}-{candidate.number:03d}-{seed}.zip"
    model.save(file)
    return summarise(file, wrapped.log)
