"""Teacher for MountainCar: words made from what happened and from the returns.

There is no expert here. A move is judged by physics where that is plain (pushing with the
motion gains energy), and an episode by what happens in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from llmopt.code.language import LanguageFeedback, Teacher, Verdict
from llmopt.errors import LLMOptError

FLAG = 0.45
"""Position of the flag in MountainCarContinuous-v0; it is 0.5 in MountainCar-v0."""

_SPEED_SEEN = 1e-3


def _return(rewards: Sequence[float]) -> str:
    return f"The return was {math.fsum(rewards):.2f} in {len(rewards)} steps."


class MountainCarTeacher:
    """Teaches the car in the valley; discrete actions are 0 (left), 1 (none) and 2 (right)."""

    def __init__(self, discrete: bool = False) -> None:
        self._discrete = discrete
        self._flag = 0.5 if discrete else FLAG

    def instruction(self) -> str:
        """Return the task in words."""
        force = (
            "push left (0), not at all (1) or right (2)"
            if self._discrete
            else "set a force between -1 (left) and 1 (right)"
        )
        return (
            f"A car stands in a valley between two hills. In each step {force}. The engine is "
            f"too weak to climb the right hill directly. Reach the flag at position {self._flag}."
        )

    def describe(self, observation: Any) -> str:
        """Return position and velocity in words."""
        position, velocity = (float(v) for v in observation)
        way = "right" if velocity > 0 else "left"
        return f"The car is at {position:.3f} and moves {way} at {abs(velocity):.4f} a step."

    def judge(self, before: Any, action: Any, after: Any) -> Verdict:
        """Call a push good that goes with the motion, and bad one against it."""
        velocity = float(before[1])
        force = float(np.ravel(action)[0]) - self._discrete
        if abs(velocity) < _SPEED_SEEN or force == 0:
            return Verdict()
        if force * velocity > 0:
            return Verdict(True)
        return Verdict(False, ("The push went against the motion and took energy away.",))

    def conclude(
        self, observations: Sequence[Any], rewards: Sequence[float], info: Mapping[str, Any]
    ) -> str:
        """Say how far the car came."""
        seen = np.array(observations, dtype=float)
        highest, lowest, speed = seen[:, 0].max(), seen[:, 0].min(), np.abs(seen[:, 1]).max()
        reached = highest >= self._flag
        words = "The car reached the flag." if reached else "The car did NOT reach the flag."
        words += (
            f" It was between positions {lowest:.3f} and {highest:.3f} (flag: {self._flag}); its "
            f"largest speed was {speed:.4f}. {_return(rewards)}"
        )
        if not reached and speed < 0.02:
            words += " It gathered almost no speed."
        elif not reached:
            words += " It swung, but did not gather enough speed."
        return words


_TEACHERS: dict[str, Callable[[], Teacher]] = {
    "MountainCarContinuous-v0": MountainCarTeacher,
    "MountainCar-v0": lambda: MountainCarTeacher(discrete=True),
}
TAUGHT = tuple(_TEACHERS)
"""Ids of the environments that have a teacher."""


def make_env(env_id: str) -> LanguageFeedback:
    """Make one of `TAUGHT` with language feedback."""
    if env_id not in _TEACHERS:
        raise LLMOptError(f"no teacher for {env_id!r}. Valid: {', '.join(_TEACHERS)}")
    return LanguageFeedback(gym.make(env_id), _TEACHERS[env_id]())
