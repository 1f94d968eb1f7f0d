"""The problem that a method of a policy task solves: its box, its words, its warm-up."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence

import numpy as np

from llmopt.benchmarks.engine.search import Result
from llmopt.benchmarks.methods.model import shown_decimals
from llmopt.benchmarks.methods.protocol import Problem
from llmopt.benchmarks.tasks.table import Task
from llmopt.client.base import Client, Reply, Request, Wrapper
from llmopt.client.local.local import LocalClient
from llmopt.policies.episode_seeds import stream
from llmopt.policies.linear import LinearPolicy
from llmopt.policies.report import MAX_FEEDBACK, EpisodeStatistics
from llmopt.policies.words.task_words import TaskWords, describe_task
from llmopt.prompt import ColumnsPrompt, Prompt, get_prompt

WORDS = "words"
"""The prompt that shows names, standard errors and reports of the policies."""

# Prompts that search numbers, whatever these mean, or show no description; "auto" is one.
_NUMERIC = ("auto", "props", "props-ab", "opro", "columns")


def sample_warmup(box: tuple[float, float], n: int, count: int, seed: int) -> np.ndarray:
    """Return `count` warm-up points of a run, as a ``(count, n)`` array.

    They are normal with a quarter of the box's width as standard deviation, so N(0, 3) for the
    published box, clipped to it and rounded to the decimals that a prompt shows.
    """
    low, high = box
    rng = np.random.default_rng(stream(seed, "warmup"))
    points = rng.normal((low + high) / 2, (high - low) / 4, (count, n))
    return np.asarray(np.clip(points.round(shown_decimals(low, high)), low, high))


def task_words(task: Task, seeds: Sequence[int]) -> TaskWords:
    """Describe a task: the table's words first, then the environment's own description."""
    return _task_words(task, tuple(seeds))


@functools.lru_cache(maxsize=8)
def _task_words(task: Task, seeds: tuple[int, ...]) -> TaskWords:
    with contextlib.closing(task.make_env()) as env:
        policy, cap = task.policy(env), task.step_cap(env)
    return describe_task(
        task.make_env,
        policy,
        seeds,
        cap,
        description=task.description,
        observations=task.observes,
        actions=task.acts,
    )


def episode_statistics(task: Task, policy: LinearPolicy, seeds: Sequence[int]) -> EpisodeStatistics:
    """Return a watcher of an evaluation that reports what the policy did, with names."""
    words = task_words(task, seeds)
    return EpisodeStatistics(policy, words.inputs, words.outputs, max_chars=MAX_FEEDBACK)


def make_problem(
    task: Task,
    policy: LinearPolicy,
    evaluations: int,
    warmup: Sequence[tuple[Sequence[float], Result]],
    prompt: str | Prompt | None = None,
    seeds: Sequence[int] = (),
) -> Problem:
    """Return the problem that a method of a task solves."""
    low, high = task.box
    words = task_words(task, seeds) if prompt_name(prompt) == WORDS else None
    return Problem(
        low,
        high,
        policy.n_parameters,
        evaluations,
        tuple((tuple(map(float, params)), result.reward) for params, result in warmup),
        prompt_description(task, policy, prompt) if words is None else words.text,
        tuple(result.note for _, result in warmup),
        () if words is None else policy.names(words.inputs, words.outputs),
        tuple(result.stderr for _, result in warmup),
    )


def prompt_name(prompt: str | Prompt | None) -> str:
    """Return a prompt's name; empty for a method without one."""
    return (prompt if isinstance(prompt, str) else getattr(prompt, "name", "")) or ""


def prompt_description(task: Task, policy: LinearPolicy, prompt: str | Prompt | None) -> str:
    """Return the task in words, with the parameters' meaning for prompts that use it.

    The prompts `_NUMERIC` do without the meaning, as published ProPS does.
    """
    name = prompt_name(prompt)
    if not name or name in _NUMERIC or (name == "props-plus" and not task.description):
        return task.description
    return task.words(policy)


def usual_batch(prompt: str | Prompt | None) -> int:
    """Return the number of points in one request to a model under a prompt."""
    return 4 if _is_columns(prompt) else 1


def repeatable(client: Client, prompt: str | Prompt | None) -> Client:
    """Make a local model answer the same request in the same way every time.

    The content of its cache changes llama.cpp's rounding, so a resumed run would differ from an
    uninterrupted one. The prompt `columns` changes near its beginning with every new elite: for it
    the cache is of little use, and is turned off.
    """
    if isinstance(client, LocalClient):
        if _is_columns(prompt):
            client.sampling.update(cache_prompt=False, id_slot=0)
        else:
            for name in ("cache_prompt", "id_slot"):
                client.sampling.pop(name, None)
    return client


class Announced(Wrapper):
    """A client that calls `say` with each request's number before it, and with 0 after it."""

    def __init__(self, client: Client, say: Callable[[int, Request], None]) -> None:
        super().__init__(client)
        self._say, self._sent = say, 0

    def complete(self, request: Request) -> Reply:
        """Send a request."""
        self._sent += 1
        self._say(self._sent, request)
        try:
            return self.client.complete(request)
        finally:
            self._say(0, request)


def _is_columns(prompt: str | Prompt | None) -> bool:
    return prompt is not None and isinstance(get_prompt(prompt), ColumnsPrompt)
