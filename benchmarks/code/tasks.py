"""The tasks of ``llmopt code`` and ``llmopt reward``, as a table of data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from llmopt.benchmarks.code import classic
from llmopt.benchmarks.tasks import TASKS
from llmopt.benchmarks.tasks.table import UnknownTaskError, get_task
from llmopt.code.policy import PolicyScore
from llmopt.errors import LLMOptError, SpaceError
from llmopt.policies.environment import EnvMaker, make_gymnasium
from llmopt.policies.linear import LinearPolicy
from llmopt.policies.picture import choose_renderer, follow
from llmopt.policies.report import EpisodeStatistics
from llmopt.policies.words.describe import describe_environment
from llmopt.policies.words.task_words import check_seeding, render_text

ALIASES = tuple(task.alias for task in TASKS if not task.alias.endswith("-published"))
"""Short names of environments, the same as those of ``llmopt run``."""

_HIGHEST = {"CartPole-v1": 500.0, "InvertedPendulum-v5": 1000.0}
"""Highest mean returns that there can be, where they are known and can be reached."""

_NO_SUCCESS = {"MountainCarContinuous-v0": 0.0, "MountainCar-v0": -200.0}
"""The highest return of an episode that did not reach the flag."""

_STATISTICS = 2500  # characters


@dataclass(frozen=True)
class CodeTask:
    """What a policy or a reward is written for."""

    name: str  # as on the command line
    env_id: str  # Gymnasium id; for Meta-World the task's name
    objective: str  # the task in words
    doc: str  # what the observation holds
    make: Callable[[bool], gym.Env[Any, Any]]  # whether for held-out starts -> the environment
    cap: int = 1000  # largest number of steps of an episode
    measure: Literal["return", "success"] = "return"  # what a candidate's score is
    # judges success from the return and the last info, where the environment does not say
    success: Callable[[float, dict[str, Any]], bool] | None = None
    highest: float | None = None  # the highest possible score; `None` if unknown
    notes: str = ""  # the environment in words: limits, times, rewards, ends of an episode
    # makes what watches the episodes of one candidate, where that suits
    statistics: Callable[[], EpisodeStatistics] | None = None
    draw: Callable[[], gym.Env[Any, Any]] | None = None  # makes one that renders held-out starts
    numbered: bool = False  # whether a start is a goal's number, which every observation shows

    def score(self, score: PolicyScore) -> tuple[float, ...]:
        """Return the number that the search maximizes, and those that break ties.

        Of a success rate these are the mean return, and then fewer steps; an episode that ended
        in success counts as if it had gone on at its last reward.
        """
        mean, held = score.mean_return, score.held_return
        if mean is None or held is None:
            raise ValueError(f"a policy that failed has no score: {score.failure}")
        rate = score.success_rate
        if self.measure == "return" or rate is None:
            return mean, -score.mean_length
        return rate, held, -score.mean_length

    def samples(self, score: PolicyScore) -> list[float]:
        """Return what the score is the mean of."""
        if self.measure == "return" or score.success_rate is None:
            return score.returns
        return [float(bool(e.success)) for e in score.episodes]

    def solved(self, score: float | None) -> bool:
        """Whether a score is the highest there can be."""
        return score is not None and self.highest is not None and score >= self.highest

    def scoring(self, starts: int) -> str:
        """State what a score over that many initial states is and is not."""
        over = f"the same {starts} random starts each time" if starts > 1 else "one random start"
        if self.measure == "success":
            words = (
                f"The score is the share of successes over {over}. Ties are broken by the mean "
                "return (an episode that ended in success counts as if it had gone on at its last "
                "reward), then by fewer steps."
            )
        else:
            words = (
                f"The score is the mean return (the sum of an episode's rewards) over {over}; ties "
                "are broken by fewer steps."
            )
        return (
            f"{words}{self.ceiling()} The best code is judged in the end on fresh starts: what "
            "fits these starts alone is worth nothing."
        )

    def ceiling(self) -> str:
        """Say what the highest score is."""
        if self.highest is None:
            return " No highest score is known."
        return f" The highest possible score is {self.highest:g}; the search ends with it."


def _words_and_statistics(
    env: gym.Env[Any, Any], env_id: str, step_cap: int | None
) -> tuple[str, Callable[[], EpisodeStatistics] | None]:
    """Return an environment in words, and what makes reports of its episodes; or nothing."""
    try:
        policy, picture = LinearPolicy.for_env(env), render_text(EnvMaker(env_id), 0)
        words = describe_environment(env, step_cap=step_cap, more=[picture])
        check_seeding(env, 0)
    except SpaceError:  # such as pictures in a dict: code can do with them what it likes
        return "", None
    discrete = isinstance(env.observation_space, gym.spaces.Discrete)
    seen = () if discrete else [q.name for q in words.observations]
    done = [q.name for q in words.actions]
    return words.text, partial(EpisodeStatistics, policy, seen, done, max_chars=_STATISTICS)


def find_task(name: str, seed: int = 0) -> CodeTask:
    """Return the task of a name.

    It is one of `ALIASES`; a Meta-World task as ``"metaworld:pick-place-v3"``; or any Gymnasium id
    (``"module:Id-v0"`` imports the module first). `seed` is that of Meta-World's
    goals.

    Raises:
        ImportError: A package is missing; the message says which extra has it.
        LLMOptError: There is no such task.
    """
    if name.startswith("metaworld:"):
        return _metaworld_task(name, seed)
    try:
        known = get_task(name)  # of its form for linear policies nothing is taken
    except UnknownTaskError as error:
        raise LLMOptError(f"{error}, or metaworld:TASK-v3") from error
    env_id = known.env_id
    taught = env_id in classic.TAUGHT
    env = make_gymnasium(env_id)
    cap = known.step_cap(env)
    limit = env.spec.max_episode_steps if env.spec is not None else None

    def make(held_out: bool) -> gym.Env[Any, Any]:
        if taught:
            return classic.make_env(env_id)
        return make_gymnasium(env_id)

    try:
        notes, statistics = _words_and_statistics(env, env_id, None if limit else cap)
    finally:
        env.close()
    objective = f"Get the largest mean return in the Gymnasium environment {env_id}."
    if taught:
        objective = make(False).reset(seed=0)[1]["language"]["instruction"]
    success = None
    if env_id in _NO_SUCCESS:
        worst = _NO_SUCCESS[env_id]

        def success(total: float, info: dict[str, Any]) -> bool:
            return total > worst

    def draw() -> gym.Env[Any, Any]:
        choose_renderer()
        drawn = make_gymnasium(env_id, render_mode="rgb_array")
        follow(drawn)
        return drawn

    doc = f"obs: {env.observation_space}."
    if notes:
        discrete = isinstance(env.observation_space, gym.spaces.Discrete)
        doc = "obs: the number of the state." if discrete else (
            "obs: the observed numbers in the order listed below."
        )  # fmt: skip
        if isinstance(env.action_space, gym.spaces.Discrete):
            first = int(env.action_space.start)
            doc += f"\nActions are numbered in the order listed below, from {first} on."
    return CodeTask(
        name,
        env_id,
        objective,
        doc,
        make,
        cap,
        success=success,
        highest=_HIGHEST.get(env_id),
        notes=notes,
        statistics=statistics,
        draw=draw,
    )


def _metaworld_task(name: str, seed: int) -> CodeTask:
    from llmopt.benchmarks.code import metaworld

    task = name.partition(":")[2]
    if task not in metaworld.task_names():
        metaworld.TargetPose(task)  # its error names the tasks nearest to it
    parts = metaworld.Expert(task).parse(np.arange(39.0))
    lines = []
    for part, where in parts.items():
        at = np.atleast_1d(where).astype(int)
        index = f"obs[{at[0]}:{at[-1] + 1}]" if len(at) > 1 else f"obs[{at[0]}]"
        lines.append(f"{part} = {index}")
    if not any(line.endswith("obs[3]") for line in lines):
        lines.append("gripper = obs[3]")
    if not any("goal" in line for line in lines):
        lines.append("goal = obs[36:39]")
    doc = (
        f"obs: array of 39 numbers: {', '.join(lines)}. Positions are in metres; the tips of the "
        "gripper's fingers are 0.045 m below hand_pos. obs[3], the gripper, is 1 when open, and "
        "about 0.3 when closed on nothing.\n"
    )

    def make(held_out: bool) -> gym.Env[Any, Any]:
        return metaworld.make_env(task, seed, held_out)

    def draw() -> gym.Env[Any, Any]:
        choose_renderer()
        return metaworld.TargetPose(task, seed, True, render_mode="rgb_array")

    env = make(False)
    objective = env.reset(seed=0)[1]["language"]["instruction"]
    space: Any = env.action_space
    low, high = space.low, space.high
    doc += "Return x, y, z and the effort: " + "; ".join(
        f"{axis} from {a:.3g} to {b:.3g}"
        for axis, a, b in zip(("x", "y", "z", "effort"), low, high, strict=True)
    )
    notes = env.get_wrapper_attr("words")()
    env.close()
    return CodeTask(
        name,
        task,
        objective,
        doc + ".",
        make,
        metaworld.MAX_TARGETS,
        "success",
        highest=1.0,
        notes=notes,
        draw=draw,
        numbered=True,
    )
