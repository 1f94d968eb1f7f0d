"""A task in words, for the prompt that is told names, evidence and feedback (``words``)."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from llmopt.benchmarks.tasks.table import Task
from llmopt.policies.goal import TaskWords, describe_task
from llmopt.policies.linear import LinearPolicy
from llmopt.policies.statistics import MAX_FEEDBACK, EpisodeStatistics
from llmopt.prompt.describe import SHORT_FEEDBACK_CHARS


def task_words(task: Task, seeds: Sequence[int]) -> TaskWords:
    """Describe a task: the table's words first, then what the environment says of itself."""
    return _task_words(task, tuple(seeds))


@functools.lru_cache(maxsize=8)
def _task_words(task: Task, seeds: tuple[int, ...]) -> TaskWords:
    env = task.make_env()
    try:
        policy, cap = task.policy(env), task.step_cap(env)
    finally:
        env.close()
    return describe_task(
        task.make_env,
        policy,
        seeds,
        cap,
        description=task.description,
        observations=task.observes,
        actions=task.acts,
    )


def episode_statistics(policy: LinearPolicy, words: TaskWords | None) -> EpisodeStatistics:
    """Return what watches an evaluation and says what the policy did."""
    if words is None:
        return EpisodeStatistics(policy, max_chars=SHORT_FEEDBACK_CHARS)
    return EpisodeStatistics(policy, words.inputs, words.outputs, max_chars=MAX_FEEDBACK)
