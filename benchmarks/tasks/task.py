"""One policy search problem, and its environment in wrappers."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from llmopt.policies.environment import make_gymnasium, measure_normal
from llmopt.policies.episode import STEP_CAP, step_cap
from llmopt.policies.evaluation import Evaluator
from llmopt.policies.linear import LinearPolicy
from llmopt.policies.words.task_words import describe_parameters
from llmopt.policies.wrapping import NORMALIZE, Normal, usual_wrappers, wrap

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
    target: float | None = None  # mean return on the selection starts that counts as solved
    description: str = ""  # the task in words, for prompts that carry a description
    observes: tuple[str, ...] = ()  # each number; of a table, its states
    acts: tuple[str, ...] = ()  # what each action is
    camera: str = ""  # MuJoCo camera for pictures; empty for the environment's own view
    wrappers: tuple[str, ...] | None = ()  # innermost first; `None` for the usual ones
    normal: Normal | None = None  # of a `NormalizeObservation`; `None` to measure it

    def make_env(self, **kwargs: Any) -> gym.Env[Any, Any]:
        """Make the environment in its wrappers; keyword arguments go to ``gymnasium.make``."""
        env = make_gymnasium(self.env_id, **kwargs)
        try:
            wrappers = usual_wrappers(env) if self.wrappers is None else self.wrappers
            normal = self.normal
            if normal is None and NORMALIZE in wrappers:
                normal = _normal(self.env_id, wrappers, self.max_steps)
            return wrap(env, wrappers, normal)
        except BaseException:
            env.close()
            raise

    def policy(self, env: gym.Env[Any, Any]) -> LinearPolicy:
        """Return the policy whose parameters are searched."""
        return LinearPolicy.for_env(env, self.bias)

    def ranges(self, policy: LinearPolicy) -> str:
        """Return one line with the parameters and their range."""
        low, high = self.box
        wrapped = "the usual wrappers" if self.wrappers is None else ", ".join(self.wrappers)
        return f"{policy.n_parameters} weights, each from {low:g} to {high:g}, of observations " + (
            f"and actions through {wrapped}" if wrapped else "in their own units"
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
def _normal(env_id: str, wrappers: tuple[str, ...], cap: int | None) -> Normal:
    return measure_normal(lambda: wrap(make_gymnasium(env_id), wrappers), cap or STEP_CAP)
