"""The tasks of ``llmopt code`` and ``llmopt reward``, as a table of data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from llmopt.code.policy import PolicyScore
from llmopt.code.tasks import classic
from llmopt.errors import LLMOptError

_CAR = (
    "obs: array of 2 numbers: position (the valley's bottom is at -0.52) and velocity (between "
    "-0.07 and 0.07 a step)."
)
_SWIMMER = (
    "obs: array of 8 numbers: angle of the tip, angles of the two joints, velocity of the tip "
    "to the right and up, angular velocities of the tip and the two joints."
)


@dataclass(frozen=True)
class CodeTask:
    """What a policy or a reward is written for.

    Attributes:
        name: As on the command line.
        env_id: Gymnasium id; for Meta-World the task's name.
        objective: The task in words.
        doc: What the observation holds.
        make: Makes the environment; the argument says whether for held-out starts.
        cap: Largest number of steps of an episode.
        measure: ``"return"`` or ``"success"``: what a candidate's score is.
        success: Judges success from the return and the last info, where the environment
            does not say.
    """

    name: str
    env_id: str
    objective: str
    doc: str
    make: Callable[[bool], gym.Env[Any, Any]]
    cap: int = 1000
    measure: Literal["return", "success"] = "return"
    success: Callable[[float, dict[str, Any]], bool] | None = None

    def score(self, score: PolicyScore) -> float:
        """Return the number that the search maximizes.

        A success counts 1. The mean reward of a step breaks ties, at a weight that no success
        is lost to; not the return, which is less for an episode that was done sooner.
        """
        rate = score.success_rate
        if self.measure == "return" or rate is None:
            return score.mean_return
        mean = score.mean_reward
        return rate + 0.1 / len(score.episodes) * mean / (1 + abs(mean))


def find_task(name: str, seed: int = 0) -> CodeTask:
    """Return the task of a name.

    Args:
        name: ``"mountaincar"``, ``"mountaincar-discrete"``, ``"swimmer"``; a Meta-World task
            as ``"metaworld:pick-place-v3"``; or any Gymnasium id.
        seed: Seed of the wording, and of Meta-World's goals.

    Raises:
        ImportError: A package is missing; the message says which extra has it.
        LLMOptError: There is no such task.
    """
    if name.startswith("metaworld:"):
        return _metaworld_task(name, seed)
    env_id = {
        "mountaincar": "MountainCarContinuous-v0",
        "mountaincar-discrete": "MountainCar-v0",
        "swimmer": "Swimmer-v5",
    }.get(name, name)
    taught = env_id in ("MountainCarContinuous-v0", "MountainCar-v0", "Swimmer-v5")

    def make(held_out: bool) -> gym.Env[Any, Any]:
        return classic.make_env(env_id, paraphrase_seed=seed) if taught else gym.make(env_id)

    success: Callable[[float, dict[str, Any]], bool] | None
    if env_id == "Swimmer-v5":
        objective, doc = classic.SwimmerTeacher().instruction(), _SWIMMER
        success = None
    elif taught:
        discrete = env_id == "MountainCar-v0"
        objective, doc = classic.MountainCarTeacher(discrete).instruction(), _CAR
        # Without the flag the return is at most 0, and exactly -200 with discrete actions.
        worst = -200.0 if discrete else 0.0

        def success(total: float, info: dict[str, Any]) -> bool:
            return total > worst

    else:
        try:
            env = gym.make(env_id)
        except gym.error.Error as error:
            raise LLMOptError(
                f"unknown task {name!r} ({error}). Valid: mountaincar, mountaincar-discrete, "
                "swimmer, metaworld:TASK-v3, or a Gymnasium id"
            ) from error
        objective = f"Get the largest return in the Gymnasium environment {env_id}."
        doc = f"obs: {env.observation_space}."
        success = None
        env.close()
    return CodeTask(name, env_id, objective, doc, make, success=success)


def _metaworld_task(name: str, seed: int) -> CodeTask:
    from llmopt.code.tasks import metaworld

    task = name.partition(":")[2]
    if task not in metaworld.task_names():
        metaworld.TargetPose(task)  # its error names the tasks nearest to it
    parts = metaworld.Expert(task).parse(np.arange(39.0))
    lines = []
    for part, where in parts.items():
        at = np.atleast_1d(where).astype(int)
        if "unused" not in part and "extra_info" not in part and part != "_prev_obs":
            index = f"obs[{at[0]}:{at[-1] + 1}]" if len(at) > 1 else f"obs[{at[0]}]"
            lines.append(f"{part} = {index}")
    doc = (
        f"obs: array of 39 numbers: {', '.join(lines)}. Positions are in metres; the gripper is "
        "between 0 (closed) and 1 (open).\n"
    )

    def make(held_out: bool) -> gym.Env[Any, Any]:
        return metaworld.make_env(task, seed, held_out, paraphrase_seed=seed)

    env = make(False)
    objective = env.reset(seed=0)[1]["language"]["instruction"]
    space: Any = env.action_space
    low, high = space.low, space.high
    doc += "Return x, y, z and the effort: " + "; ".join(
        f"{axis} from {a:.3g} to {b:.3g}"
        for axis, a, b in zip(("x", "y", "z", "effort"), low, high, strict=True)
    )
    env.close()
    return CodeTask(name, task, objective, doc + ".", make, 50, "success")
