"""The ask/tell loop of all methods, and the choice among a method's best points."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llmopt.benchmarks.methods.model import ModelMethod
from llmopt.benchmarks.methods.protocol import Method
from llmopt.callbacks import Callbacks
from llmopt.errors import SearchStopped
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
    proposal: Proposal | None  # what a model said with it; `None` for a method without one
    cpu_seconds: float  # processor seconds of proposing it


@dataclass(frozen=True)
class Result:
    """The result of a point, as a method receives it."""

    reward: float | None  # mean return, or `None` for a failed evaluation
    note: str = ""  # why it failed; of a sound evaluation the feedback that a model is shown
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
    known: int = 0,
) -> str:
    """Ask a method for its points one by one, and tell it what each one scored.

    The first `known` points are of before the run went on: callbacks know them. Returns why the
    model ended the search; empty where it did not.
    """
    model = method if isinstance(method, ModelMethod) else None
    if callbacks is not None and model is not None:
        model.observe(callbacks)
    best: Trial | None = None
    for index in range(count):
        started = time.process_time()
        try:
            params = method.ask()
        except SearchStopped as end:
            if callbacks is not None:
                callbacks.reason = str(end)
            return str(end)
        proposal = model.last if model is not None else None
        if callbacks is not None:
            point = proposal or Proposal(tuple(map(float, params)), "user")
            if index >= known:
                callbacks.notify("asked", point)
        outcome = evaluate(Proposed(index, params, proposal, time.process_time() - started))
        if outcome.reward is None:
            method.tell_failure(params, outcome.note)
        elif model is not None:
            model.tell(params, outcome.reward, outcome.note, outcome.stderr)
        else:
            method.tell(params, outcome.reward)
        if callbacks is not None:
            trial = _trial(index, point, outcome)
            best = max(filter(None, [best, trial]), key=lambda t: t.rewards or (-math.inf,))
            if index >= known:
                usage = Usage() if model is None else model.usage
                callbacks.notify("told", trial, best if best.rewards else None, usage)
    return ""


def _trial(index: int, point: Proposal, outcome: Result) -> Trial:
    return Trial(
        number=index,
        params=point.values,
        rewards=None if outcome.reward is None else (outcome.reward,),
        state="failed" if outcome.reward is None else "complete",
        feedback=outcome.note,
        stderr=outcome.stderr,
        **vars(point),
    )
