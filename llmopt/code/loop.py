"""The loop of a search over code: ask, score, tell, until the tries are spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from llmopt.code.candidate import Candidate
from llmopt.code.code_optimizer import CodeOptimizer
from llmopt.errors import FailureWatch
from llmopt.sandbox.failure import NoCandidateError


@dataclass(frozen=True)
class Outcome:
    """What came of a candidate: its score, and feedback; without a score the reason.

    Attributes:
        ties: As `CodeOptimizer.tell` takes them, and `samples`.
        broken: Whether the environment failed, and not the code.
        made: What was measured, for whoever watches.
    """

    reward: float | None
    words: str
    ties: Sequence[float] = ()
    samples: Sequence[float] = ()
    broken: bool = False
    made: Any = None


def search(
    optimizer: CodeOptimizer,
    env: gym.Env[Any, Any],
    steps: int,
    score: Callable[[Candidate], Outcome],
    on_step: Callable[[int, Any, str], None] | None,
    done: Callable[[Outcome], bool],
) -> bool:
    """Search until `steps` candidates of the model were tried; return whether one is `done`.

    `on_step` gets a candidate's number (-1 where there was none), ``Outcome.made`` and words.

    Raises:
        CandidateError: The code to begin from does not pass the checks.
        BrokenTaskError: The environment failed under each of the first five candidates.
    """
    optimizer.steps = steps
    name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    failures = FailureWatch(name, any(t.reward is not None for t in optimizer.trials))
    candidate = optimizer.ask_initial()
    while candidate is not None or optimizer.tried < steps:
        number, outcome = -1, None
        try:
            candidate = candidate or optimizer.ask()
        except NoCandidateError as error:
            words = str(error)
        else:
            number, outcome = candidate.number, score(candidate)
            words = outcome.words
            if outcome.reward is None:
                optimizer.tell_failure(candidate, words)
            else:
                optimizer.tell(
                    candidate, outcome.reward, words, ties=outcome.ties, samples=outcome.samples
                )
        if on_step is not None:
            on_step(number, outcome and outcome.made, words)
        if outcome is not None and (outcome.reward is not None or outcome.broken):
            failures.see(words if outcome.broken else "")
        if outcome is not None and outcome.reward is not None and done(outcome):
            return True
        candidate = None
    return False
