"""One search of one method, the same for ``llmopt run`` and ``llmopt bench``.

All methods of a task and seed meet the same warm-up points (`draw_warmup`), the same starts
and the same problem (`make_problem`), and are asked and told by one loop (`search`). A method
draws from a stream of its own (`method_seed`), so that it finds the same points whichever
command runs it, and whatever runs beside it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from llmopt.benchmarks.methods.model import ModelMethod, parameter_space, shown_decimals
from llmopt.benchmarks.methods.protocol import Method, Problem
from llmopt.benchmarks.methods.table import MethodSpec
from llmopt.benchmarks.tasks.table import Task
from llmopt.benchmarks.tasks.words import task_words
from llmopt.client.base import Client
from llmopt.client.local import LocalClient
from llmopt.errors import SearchStopped
from llmopt.history import History, Proposal, Trial, Usage
from llmopt.policies.linear import LinearPolicy
from llmopt.policies.rollout import Evaluation, finalists, stream
from llmopt.prompt import Prompt, Situation, get_prompt
from llmopt.prompt.columns import ColumnsPrompt
from llmopt.trackers.base import Bell

FINALISTS = 5
"""The best few policies of a search, of which the best on fresh starts is chosen."""

FINAL_ROUNDS = 2
"""Fresh starts of a finalist, for each start of an evaluation."""

WORDS = "words"
"""The prompt that is told names, standard errors and what each policy did."""

FEEDBACK_PROMPTS = (WORDS,)
"""Prompts that are told what each policy did without being asked."""

# Prompts that search numbers, whatever these mean, or show no description; "auto" is one.
_NUMERIC = ("auto", "props", "props-ab", "opro", "columns")


@dataclass(frozen=True)
class Asked:
    """A point that a method proposes.

    Attributes:
        index: Position among the method's own points, from 0.
        params: ``(n,)`` point.
        proposal: What a model said with it; ``None`` for a method without one.
        cpu_seconds: Processor seconds of proposing it.
    """

    index: int
    params: np.ndarray
    proposal: Proposal | None
    cpu_seconds: float


@dataclass(frozen=True)
class Outcome:
    """What a method is told about a point.

    Attributes:
        reward: Mean return, or ``None`` for a failed evaluation.
        note: Why it failed; of a sound evaluation the feedback that a model is shown.
        stderr: Standard error of the reward, for a prompt that shows it.
    """

    reward: float | None
    note: str = ""
    stderr: float | None = None

    @classmethod
    def of(cls, evaluation: Evaluation, feedback: str = "") -> Outcome:
        """Return what is told of an evaluation, with words on what the policy did."""
        note = ". ".join(filter(None, [evaluation.failure, feedback]))
        return cls(evaluation.mean, note, evaluation.standard_error)


def search(
    method: Method,
    count: int,
    evaluate: Callable[[Asked], Outcome],
    bell: Bell | None = None,
    known: int = 0,
) -> str:
    """Ask a method for its points one by one, and tell it what each one scored.

    Args:
        method: What searches.
        count: Points wanted.
        evaluate: Evaluates a point, or looks it up where a run goes on.
        bell: Whom to tell what happens.
        known: Points of before the run went on, which are no news.

    Returns:
        Why the model ended the search before; empty where it did not.
    """
    model = method if isinstance(method, ModelMethod) else None
    if bell is not None and model is not None:
        model.observe(bell)
    best: Trial | None = None
    for index in range(count):
        started = time.process_time()
        try:
            params = method.ask()
        except SearchStopped as end:
            if bell is not None:
                bell.reason = str(end)
            return str(end)
        proposal = model.last if model is not None else None
        point = proposal or Proposal(tuple(map(float, params)), "user")
        if bell is not None and index >= known:
            bell.ring("asked", point)
        outcome = evaluate(Asked(index, params, proposal, time.process_time() - started))
        if outcome.reward is None:
            method.tell_failure(params, outcome.note)
        elif model is not None:
            model.tell(params, outcome.reward, outcome.note, outcome.stderr)
        else:
            method.tell(params, outcome.reward)
        if bell is not None:
            trial = _trial(index, point, outcome)
            best = max(filter(None, [best, trial]), key=lambda t: t.rewards or (-math.inf,))
            if index >= known:
                usage = Usage() if model is None else model.usage
                bell.ring("told", trial, best if best.rewards else None, usage)
    return ""


def _trial(index: int, point: Proposal, outcome: Outcome) -> Trial:
    return Trial(
        index,
        point.values,
        point.values,
        None if outcome.reward is None else (outcome.reward,),
        "failed" if outcome.reward is None else "complete",
        outcome.note,
        point.source,
        point.explanation,
        stderr=outcome.stderr,
    )


def draw_warmup(box: tuple[float, float], n: int, count: int, seed: int) -> np.ndarray:
    """Draw the warm-up points of a run.

    They are normal with half the box's half-width as standard deviation, so N(0, 3) for the
    published box, clipped to it and rounded to the decimals that a prompt shows.

    Args:
        box: Low and high bound of every parameter.
        n: Number of parameters.
        count: Points wanted.
        seed: The run's seed.

    Returns:
        ``(count, n)`` array.
    """
    low, high = box
    rng = np.random.default_rng(stream(seed, "warmup"))
    drawn = rng.normal((low + high) / 2, (high - low) / 4, (count, n))
    points: np.ndarray = np.clip(drawn.round(shown_decimals(low, high)), low, high)
    return points


def make_problem(
    task: Task,
    policy: LinearPolicy,
    evaluations: int,
    warmup: Sequence[tuple[Sequence[float], Outcome]],
    prompt: str | Prompt | None = None,
    seeds: Sequence[int] = (),
) -> Problem:
    """Return what a method of a task is to solve.

    Args:
        task: What is searched.
        policy: Whose parameters are searched.
        evaluations: Points that the method will be asked for.
        warmup: The shared points, each with its outcome.
        prompt: The prompt of a method that has one.
        seeds: Seeds of the starts of one evaluation.
    """
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
        () if words is None else words.parameters,
        tuple(outcome.stderr for _, outcome in warmup),
    )


def prompt_name(prompt: str | Prompt | None) -> str:
    """Return a prompt's name; empty for a method without one."""
    return (prompt if isinstance(prompt, str) else getattr(prompt, "name", "")) or ""


def prompt_description(task: Task, policy: LinearPolicy, prompt: str | Prompt | None) -> str:
    """Return the task in words, for prompts that make use of it with the parameters' meaning.

    The prompts `_NUMERIC` do without the meaning, as published ProPS does.

    Args:
        task: What is searched.
        policy: Whose parameters are searched.
        prompt: The prompt, its name or its template; ``None`` for a method without one.
    """
    name = prompt_name(prompt)
    if not name or name in _NUMERIC or (name == "props-plus" and not task.description):
        return task.description
    return task.words(policy)


def best_index(means: Sequence[float | None]) -> int | None:
    """Return the place of the largest mean, the first of equals; ``None`` if all failed."""
    sound = [i for i, mean in enumerate(means) if mean is not None]
    return max(sound, key=lambda i: (means[i], -i), default=None)


def usual_batch(prompt: str | Prompt | None) -> int:
    """Return how many points a model is asked for in one request under a prompt."""
    numbers = prompt is not None and isinstance(get_prompt(prompt), ColumnsPrompt)
    return 4 if numbers else 1


def check_prompt(
    spec: MethodSpec, task: Task, policy: LinearPolicy, evaluations: int, seeds: Sequence[int]
) -> None:
    """Make a method's first question, so that what no prompt can show is known before it costs.

    Raises:
        LLMOptError: The prompt needs words that the task lacks, or cannot hold its parameters.
    """
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


@dataclass(frozen=True)
class Final:
    """The last round of a search: one of its best few policies on fresh starts.

    Attributes:
        index: Place among the search's points, warm-up first.
        returns: Of the fresh starts.
        mean: Mean return over these and the selection starts; ``None`` if an episode failed.
    """

    index: int
    returns: tuple[float, ...]
    mean: float | None


def choose(
    points: Sequence[Sequence[float]],
    outcomes: Sequence[Evaluation],
    count: int,
    evaluate: Callable[[int], Evaluation],
) -> tuple[int | None, list[Final]]:
    """Choose a search's policy: of the best few, the best on fresh starts, too.

    What was the best of many on a few starts was lucky on them. The finalists are evaluated
    on further starts, and the mean over all of a finalist's starts decides.

    Args:
        points: Parameters of every point.
        outcomes: What came of each on the selection starts.
        count: Finalists; 0 for none, and the best on the selection starts is chosen.
        evaluate: Evaluates the point of a place on the fresh starts.

    Returns:
        The chosen place, ``None`` where no evaluation was sound, and the finalists, the best on
        the selection starts first.
    """
    means = [outcome.mean for outcome in outcomes]
    if not count:
        return best_index(means), []
    finals: list[Final] = []
    for index in finalists(points, means, count):
        fresh = evaluate(index)
        both = (*outcomes[index].returns, *fresh.returns)
        finals.append(
            Final(index, fresh.returns, None if fresh.failure else math.fsum(both) / len(both))
        )
    best = best_index([final.mean for final in finals])
    return (best_index(means) if best is None else finals[best].index), finals


def repeatable(client: Client, prompt: str | Prompt | None) -> Client:
    """Have a local model answer one and the same request always alike.

    What is left in its cache changes llama.cpp's rounding, so that a resumed run would part
    from a whole one. The prompt `columns` changes near its beginning with every new elite:
    for it the cache would serve next to nothing, and is turned off.

    Args:
        client: The model, whose settings are changed.
        prompt: The prompt that it will be asked with.

    Returns:
        The client.
    """
    if isinstance(client, LocalClient):
        if prompt is not None and isinstance(get_prompt(prompt), ColumnsPrompt):
            client.sampling.update(cache_prompt=False, id_slot=0)
        else:
            for name in ("cache_prompt", "id_slot"):
                client.sampling.pop(name, None)
    return client
