"""The ask/tell loop of all methods."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llmopt.benchmarks.methods.model import ModelMethod
from llmopt.benchmarks.methods.protocol import Method
from llmopt.callbacks import Callbacks
from llmopt.errors import BudgetExceededError, SearchStopped
from llmopt.history import Proposal, Trial, Usage
from llmopt.policies.evaluation import Evaluation

FINALISTS = 5
"""Number of best policies of a search that are compared on held-out initial states."""

FINAL_ROUNDS = 2
"""Held-out initial states of a finalist for each initial state of an evaluation."""


@dataclass(frozen=True)
class Proposed:
    """A point that a method proposes."""

    index: int  # position among the method's own points, from 0
    params: Any  # `(n,)` point, or one in the form of the method's own space
    proposal: Proposal | None  # with a model's words; `None` for a method without one
    cpu_seconds: float  # processor seconds of proposing it


@dataclass(frozen=True)
class Result:
    """The result of a point, as a method receives it."""

    reward: float | None  # mean return, or `None` for a failed evaluation
    note: str = ""  # why it failed; of a sound evaluation the feedback for a model
    stderr: float | None = None  # standard error of the reward, for a prompt that shows it

    @classmethod
    def of(cls, evaluation: Evaluation, feedback: str = "") -> Result:
        """Return the result of an evaluation, with the report of the policy."""
        note = ". ".join(filter(None, [evaluation.failure, feedback]))
        return cls(evaluation.mean, note, evaluation.standard_error)


def search(
    method: Method,
    count: int,
    evaluate: Callable[[Proposed], Result],
    callbacks: Callbacks | None = None,
    earlier: int = 0,
) -> str:
    """Ask a method for `count` points one by one, and report the result of each.

    Callbacks are not called for the first `earlier` points, which were evaluated before a resume.
    Returns why the model ended the search, or an empty string.
    """
    model = method if isinstance(method, ModelMethod) else None
    best: Trial | None = None
    for index in range(count):
        started = time.process_time()
        try:
            params = method.ask()
        except (SearchStopped, BudgetExceededError) as end:
            if callbacks is not None:
                callbacks.reason = str(end)
            if isinstance(end, BudgetExceededError):
                raise
            return str(end)
        proposal = model.last if model is not None else None
        seconds = time.process_time() - started
        if callbacks is not None:
            point = proposal or Proposal(tuple(map(float, params)), "user")
            if index >= earlier:
                callbacks.notify("asked", point)
        result = evaluate(Proposed(index, params, proposal, seconds))
        if result.reward is None:
            method.tell_failure(params, result.note)
        elif model is not None:
            model.tell(params, result.reward, result.note, result.stderr)
        else:
            method.tell(params, result.reward)
        if callbacks is not None:
            trial = _trial(index, point, result)
            best = max(filter(None, [best, trial]), key=lambda t: t.rewards or (-math.inf,))
            if index >= earlier:
                usage = Usage() if model is None else model.usage
                callbacks.notify("told", trial, best if best.rewards else None, usage)
    return ""


def _trial(index: int, point: Proposal, result: Result) -> Trial:
    return Trial(
        number=index,
        params=point.values,
        rewards=None if result.reward is None else (result.reward,),
        state="failed" if result.reward is None else "complete",
        feedback=result.note,
        stderr=result.stderr,
        **vars(point),
    )
