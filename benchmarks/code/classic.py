"""Teachers for MountainCar and Swimmer: words made from what happened and from the returns.

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
_DRIFT = 0.02


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


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a - a.mean(), b - b.mean()
    size = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / size if size > 0 else 0.0


class SwimmerTeacher:
    """Teaches the swimmer, by how it moves."""

    def instruction(self) -> str:
        """Return the task in words."""
        return (
            "A swimmer of three links lies in a viscous fluid. In each step set the torques of "
            "its two joints, each between -1 and 1. Swim to the right as fast as you can."
        )

    def describe(self, observation: Any) -> str:
        """Return angles and velocities in words."""
        o = [float(v) for v in observation]
        return (
            f"The tip's angle is {o[0]:.2f}, the joints' angles are {o[1]:.2f} and {o[2]:.2f} rad; "
            f"it moves at {o[3]:.2f} to the right and {o[4]:.2f} up; angular velocities are "
            f"{o[5]:.2f}, {o[6]:.2f}, {o[7]:.2f}."
        )

    def judge(self, before: Any, action: Any, after: Any) -> Verdict:
        """Say nothing of single steps: strokes go back and forth."""
        return Verdict()

    def conclude(
        self, observations: Sequence[Any], rewards: Sequence[float], info: Mapping[str, Any]
    ) -> str:
        """Say how it moved."""
        seen = np.array(observations, dtype=float)
        bends = np.abs(seen[:, 1:3]).max(axis=0)
        speed = float(seen[:, 3].mean())
        words = f"Its mean speed to the right was {speed:.3f}. "
        words += f"Its joints bent by up to {bends[0]:.2f} and {bends[1]:.2f} rad. "
        crossings = int((np.diff(np.sign(seen[:, 1])) != 0).sum())
        words += f"The first joint changed sides {crossings} times. {_return(rewards)}"
        if bends.max() < 0.3:
            words += " It hardly moved: larger, alternating torques would bend it."
        elif crossings < 4:
            words += " It did not undulate: a wave through both joints pushes it forward."
        else:
            together = _correlation(seen[:, 1], seen[:, 2])
            if abs(together) > 0.7:
                how = "together" if together > 0 else "against one another"
                words += f" Its joints bent {how}: in a wave one follows the other."
            if speed < -_DRIFT:
                words += " It swam to the LEFT: let the wave run the other way."
        return words


_TEACHERS: dict[str, Callable[[], Teacher]] = {
    "MountainCarContinuous-v0": MountainCarTeacher,
    "MountainCar-v0": lambda: MountainCarTeacher(discrete=True),
    "Swimmer-v5": SwimmerTeacher,
}
TAUGHT = tuple(_TEACHERS)
"""Ids of the environments that have a teacher."""


def make_env(env_id: str, **options: Any) -> LanguageFeedback:
    """Make one of `TAUGHT` with language feedback, whose options are `LanguageFeedback`'s."""
    if env_id not in _TEACHERS:
        raise LLMOptError(f"no teacher for {env_id!r}. Valid: {', '.join(_TEACHERS)}")
    return LanguageFeedback(gym.make(env_id), _TEACHERS[env_id](), **options)
