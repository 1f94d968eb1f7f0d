"""What a method of a policy task is asked with: the problem, its words, the model's settings."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence

import numpy as np

from llmopt.benchmarks.engine.search import Result
from llmopt.benchmarks.methods.model import parameter_space, shown_decimals
from llmopt.benchmarks.methods.protocol import Problem
from llmopt.benchmarks.methods.table import MethodSpec
from llmopt.benchmarks.tasks.table import Task
from llmopt.client.base import Client, Reply, Request, Wrapper
from llmopt.client.local.local import LocalClient
from llmopt.history import History
from llmopt.policies.episode_seeds import stream
from llmopt.policies.linear import LinearPolicy
from llmopt.policies.report.statistics import MAX_FEEDBACK, EpisodeStatistics
from llmopt.policies.words.task_words import TaskWords, describe_task
from llmopt.prompt import Prompt, Situation, get_prompt
from llmopt.prompt.columns.columns import ColumnsPrompt
from llmopt.prompt.describe import SHORT_FEEDBACK_CHARS

WORDS = "words"
"""The prompt that shows names, standard errors and reports of the policies."""

FEEDBACK_PROMPTS = (WORDS,)
"""Prompts that show reports of the policies by default."""

# Prompts that search numbers, whatever these mean, or show no description; "auto" is one.
_NUMERIC = ("auto", "props", "props-ab", "opro", "columns")


def draw_warmup(box: tuple[float, float], n: int, count: int, seed: int) -> np.ndarray:
    """Draw the warm-up points of a run.

    They are normal with half the box's half-width as standard deviation, so N(0, 3) for the
    published box, clipped to it and rounded to the decimals that a prompt shows.
    """
    low, high = box
    rng = np.random.default_rng(stream(seed, "warmup"))
    drawn = rng.normal((low + high) / 2, (high - low) / 4, (count, n))
    return np.asarray(np.clip(drawn.round(shown_decimals(low, high)), low, high))


def task_words(task: Task, seeds: Sequence[int]) -> TaskWords:
    """Describe a task: the table's words first, then what the environment says of itself."""
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
        cap_given=task.max_steps is not None,
        description=task.description,
        observations=task.observes,
        actions=task.acts,
    )


def episode_statistics(
    task: Task, policy: LinearPolicy, seeds: Sequence[int], *, named: bool
) -> EpisodeStatistics:
    """Return what watches an evaluation and says what the policy did, with the task's names."""
    if not named:
        return EpisodeStatistics(policy, max_chars=SHORT_FEEDBACK_CHARS)
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
    """Return what a method of a task is to solve."""
    low, high = task.box
    words = task_words(task, seeds) if prompt_name(prompt) == WORDS else None
    return Problem(
        low,
        high,
        policy.n_parameters,
        evaluations,
        tuple((tuple(map(float, params)), outcome.reward) for params, outcome in warmup),
        prompt_description(task, policy, prompt) if words is None else words.text,
        tuple(outcome.note for _, outcome in warmup),
        () if words is None else policy.names(words.inputs, words.outputs),
        tuple(outcome.stderr for _, outcome in warmup),
    )


def prompt_name(prompt: str | Prompt | None) -> str:
    """Return a prompt's name; empty for a method without one."""
    return (prompt if isinstance(prompt, str) else getattr(prompt, "name", "")) or ""


def prompt_description(task: Task, policy: LinearPolicy, prompt: str | Prompt | None) -> str:
    """Return the task in words, for prompts that make use of it with the parameters' meaning.

    The prompts `_NUMERIC` do without the meaning, as published ProPS does.
    """
    name = prompt_name(prompt)
    if not name or name in _NUMERIC or (name == "props-plus" and not task.description):
        return task.description
    return task.words(policy)


def usual_batch(prompt: str | Prompt | None) -> int:
    """Return how many points a model is asked for in one request under a prompt."""
    numbers = prompt is not None and isinstance(get_prompt(prompt), ColumnsPrompt)
    return 4 if numbers else 1


def check_prompt(
    spec: MethodSpec, task: Task, policy: LinearPolicy, evaluations: int, seeds: Sequence[int]
) -> None:
    """Make a method's first question, so that what no prompt can show is known before it costs."""
    if not spec.asks_model or spec.prompt is None:
        return
    problem = make_problem(task, policy, evaluations, (), spec.prompt, seeds)
    situation = Situation(
        parameter_space(problem.low, problem.high, problem.n, problem.names),
        History(),
        1,
        total=max(evaluations, 1),
        description=problem.description,
    )
    get_prompt(spec.prompt).prepare(situation)


def repeatable(client: Client, prompt: str | Prompt | None) -> Client:
    """Make a local model answer the same request in the same way every time.

    What is left in its cache changes llama.cpp's rounding, so that a resumed run would part
    from a whole one. The prompt `columns` changes near its beginning with every new elite:
    for it the cache would serve next to nothing, and is turned off.
    """
    if isinstance(client, LocalClient):
        if prompt is not None and isinstance(get_prompt(prompt), ColumnsPrompt):
            client.sampling.update(cache_prompt=False, id_slot=0)
        else:
            for name in ("cache_prompt", "id_slot"):
                client.sampling.pop(name, None)
    return client


class Announced(Wrapper):
    """A client that says of each request its number before it is sent, and 0 after it."""

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
