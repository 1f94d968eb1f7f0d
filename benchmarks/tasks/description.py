"""A task in words, for the prompt that is told names, evidence and feedback (``words``)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from llmopt.benchmarks.tasks.table import Task
from llmopt.policies.goal import describe_task
from llmopt.policies.linear import LinearPolicy
from llmopt.policies.statistics import MAX_FEEDBACK, EpisodeStatistics
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
        policy, cap = task.policy(env), task.step_cap(env)
    finally:
        env.close()
    told = describe_task(
        task.make_env,
        policy,
        seeds,
        cap,
        description=task.description,
        observations=task.observes,
        actions=task.acts,
    )
    names = policy.names(told.inputs, told.outputs)
    return TaskWords(names, told.inputs, told.outputs, told.text)


def episode_statistics(policy: LinearPolicy, words: TaskWords | None) -> EpisodeStatistics:
    """Return what watches an evaluation and says what the policy did.

    Args:
        policy: The policy that acts.
        words: The task's names, for the prompt that is told them; else observations are ``o0,
            o1, ...`` and actions ``a0, a1, ...``.
    """
    if words is None:
        return EpisodeStatistics(policy, max_chars=SHORT_FEEDBACK_CHARS)
    return EpisodeStatistics(policy, words.observations, words.actions, max_chars=MAX_FEEDBACK)
