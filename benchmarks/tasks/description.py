"""A task in words, for the prompt that is told names, evidence and feedback (``words``)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from gymnasium import spaces

from llmopt.benchmarks.tasks.table import Task
from llmopt.policies.environment import EnvMaker
from llmopt.policies.goal import describe_goal, describe_parameters, describe_starts
from llmopt.policies.linear import LinearPolicy
from llmopt.policies.statistics import MAX_FEEDBACK, EpisodeStatistics
from llmopt.policies.words import describe_environment
from llmopt.policies.wrapping import acting_space, scaling
from llmopt.prompt.words import SHORT_FEEDBACK_CHARS


@dataclass(frozen=True)
class TaskWords:
    """What a model is told of a task.

    Attributes:
        parameters: A name for each parameter of the policy, ``"force<-car_vel"``.
        observations: A name for each observed number; empty for a table.
        actions: A name for each action or choice.
        text: What f is, the environment, and what the parameters mean.
    """

    parameters: tuple[str, ...]
    observations: tuple[str, ...]
    actions: tuple[str, ...]
    text: str


def task_words(task: Task, seeds: Sequence[int]) -> TaskWords:
    """Describe a task: the table's words first, then what the environment says of itself.

    Args:
        task: The task.
        seeds: Seeds of the starts of one evaluation.

    Raises:
        LLMOptError: The environment cannot be made.
    """
    return _task_words(task, tuple(seeds))


@functools.lru_cache(maxsize=8)
def _task_words(task: Task, seeds: tuple[int, ...]) -> TaskWords:
    env = task.make_env()
    try:
        policy = task.policy(env)
        words = describe_environment(
            env,
            words=task.description,
            observations=task.observes,
            actions=task.acts,
            step_cap=task.step_cap(env),
            picture=EnvMaker(task.env_id).picture(seeds[0]),
            probe=task.make_env,
        )
        scaled = scaling(env) is not None
        clipped = acting_space(env) is not env.action_space
        seen = [env.reset(seed=seed)[0] for seed in seeds]
    finally:
        env.close()
    table = isinstance(policy.observation_space, spaces.Discrete)
    inputs = () if table else tuple(q.name for q in words.observations)
    outputs = tuple(q.name for q in words.actions)
    meaning = describe_parameters(policy, scaled=scaled, clipped=clipped)
    parts = [describe_goal(len(seeds)), words.text, meaning]
    if inputs:
        parts.append(describe_starts(seen, inputs, policy.observation_space))
    text = "\n\n".join(part for part in parts if part)
    return TaskWords(policy.names(inputs, outputs), inputs, outputs, text)


def episode_statistics(policy: LinearPolicy, words: TaskWords | None) -> EpisodeStatistics:
    """Return what watches an evaluation and says what the policy did.

    Args:
        policy: The policy that acts.
        words: The task's names, for the prompt that is told them; else observations are ``o0,
            o1, ...`` and actions ``a0, a1, ...``, as in `LinearPolicy.describe`.
    """
    if words is None:
        return EpisodeStatistics(policy, max_chars=SHORT_FEEDBACK_CHARS)
    return EpisodeStatistics(policy, words.observations, words.actions, max_chars=MAX_FEEDBACK)
