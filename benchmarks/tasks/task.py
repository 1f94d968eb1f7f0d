"""One policy search problem, and its environment."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym

from llmopt.policies.environment import make_gymnasium, measure_normal
from llmopt.policies.episode import STEP_CAP, step_cap
from llmopt.policies.evaluation import Evaluator
from llmopt.policies.linear import BoundPolicy, LinearPolicy
from llmopt.policies.scaling import Normal, Scaling, normalizes, scale
from llmopt.policies.words.describe import describe_environment
from llmopt.policies.words.task_words import describe_parameters

PUBLISHED_BOX = (-6.0, 6.0)
"""Bounds of every parameter in the published ProPS experiments (arXiv 2511.21928)."""

SCALED_BOX = (-2.0, 2.0)
"""Bounds of every parameter if observations are scaled to a size of about 1."""


@dataclass(frozen=True)
class Task:
    """One policy search problem: find the parameters of the largest mean return."""

    id: str  # versioned name. A change of anything below that changes a return changes it
    env_id: str  # Gymnasium id
    alias: str = ""  # short name for the command line; empty for none
    bias: bool = True  # whether the linear policy has a bias
    box: tuple[float, float] = PUBLISHED_BOX  # low and high bound of every parameter
    max_steps: int | None = None  # `None` for the environment's own limit
    episodes: int = 5  # starts of one evaluation, where nobody gives a number
    description: str = ""  # the task in words, for prompts that carry a description
    observes: tuple[str, ...] = ()  # each number; of a table, its states
    acts: tuple[str, ...] = ()  # what each action is
    camera: str = ""  # MuJoCo camera for pictures; empty for the environment's own view
    scaled: bool = False  # whether observations and actions are scaled
    normal: Normal | None = None  # mean and variance of observations; `None` to measure them

    def make_env(self, **kwargs: Any) -> gym.Env[Any, Any]:
        """Make the environment, scaled or not; keyword arguments go to ``gymnasium.make``."""
        env = make_gymnasium(self.env_id, **kwargs)
        if not self.scaled:
            return env
        try:
            return scale(env, self._measured(env))
        except BaseException:
            env.close()
            raise

    def policy(self, env: gym.Env[Any, Any]) -> LinearPolicy:
        """Return the policy whose parameters are searched."""
        return LinearPolicy.for_env(env, self.bias)

    def _measured(self, env: gym.Env[Any, Any]) -> Normal | None:
        """Return mean and variance of observations, if the scaling needs them."""
        if self.normal is not None or not normalizes(env):
            return self.normal
        return _normal(self.env_id, self.max_steps)

    def bind(self, params: Sequence[float]) -> BoundPolicy:
        """Return a policy that acts on the environment's own observations."""
        with closing(make_gymnasium(self.env_id)) as own, closing(self.make_env()) as env:
            words = describe_environment(env, observations=self.observes, actions=self.acts)
            table = isinstance(env.observation_space, gym.spaces.Discrete)
            spaces = own.observation_space, own.action_space
            return replace(
                self.policy(env).bind(params),
                inputs=() if table else tuple(q.name for q in words.observations),
                outputs=tuple(q.name for q in words.actions),
                scaling=Scaling(*spaces, self._measured(own)) if self.scaled else None,
            )

    def ranges(self, policy: LinearPolicy) -> str:
        """Return one line with the parameters and their range."""
        low, high = self.box
        units = "and actions, scaled" if self.scaled else "in their own units"
        return (
            f"{policy.n_parameters} weights, each from {low:g} to {high:g}, of observations {units}"
        )

    def words(self, policy: LinearPolicy) -> str:
        """Return the task and what the policy's parameters mean, in words."""
        lines = [self.description, ""] if self.description else []
        table = isinstance(policy.observation_space, gym.spaces.Discrete)
        for head, letter, names in (("Observed", "o", self.observes), ("Actions", "a", self.acts)):
            if names and table and letter == "o":
                lines.append(f"The states s0, s1, ...: {names[0]}.")
            elif names:
                listed = "; ".join(f"{letter}{i} = {name}" for i, name in enumerate(names))
                lines.append(f"{head}: {listed}.")
        lines.append(describe_parameters(policy))
        order = "state by state" if table else "observed number by observed number"
        last = ", and the constants last" if policy.bias else ""
        lines.append(f"The parameters come {order}, each with all actions{last}.")
        return "\n".join(lines)

    def step_cap(self, env: gym.Env[Any, Any]) -> int:
        """Environment steps after which an episode ends."""
        return step_cap(env, self.max_steps)

    def evaluator(self) -> Evaluator:
        """Return what runs episodes of this task."""
        env = self.make_env()
        try:
            return Evaluator(self.make_env, self.policy(env), self.step_cap(env), env)
        except BaseException:
            env.close()
            raise


@functools.lru_cache(maxsize=64)
def _normal(env_id: str, cap: int | None) -> Normal:
    return measure_normal(lambda: scale(make_gymnasium(env_id)), cap or STEP_CAP)
