"""The loop of a search over code: ask, score, tell, until all candidates were tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym

from llmopt.code.candidate import Candidate
from llmopt.code.code_optimizer import CodeOptimizer
from llmopt.errors import SearchStopped
from llmopt.evaluation_loop import INTERRUPTED, drive
from llmopt.progress import waiting
from llmopt.sandbox.failure import NoCandidateError


@dataclass(frozen=True)
class Score:
    """A candidate's score with its feedback; without a score, the reason.

    Attributes:
        ties: See `CodeOptimizer.tell`, also for `samples`.
        broken: Whether the environment, not the code, failed.
        made: The measurements, for `on_step`.
        data: What blocks of Python find of it; see `CodeOptimizer.tell`.
    """

    reward: float | None
    words: str
    ties: Sequence[float] = ()
    samples: Sequence[float] = ()
    broken: bool = False
    made: Any = None
    data: Mapping[str, Any] = field(default_factory=dict)


def search(
    optimizer: CodeOptimizer,
    env: gym.Env[Any, Any],
    steps: int,
    score: Callable[[Candidate], Score],
    on_step: Callable[[int, Any, str], None] | None,
    done: Callable[[Score], bool],
) -> bool:
    """Search until `steps` candidates of the model were tried; return whether one is `done`.

    The search also ends if the model ends it.

    `on_step` gets a candidate's number (-1 if there was none), ``Score.made`` and words.

    Raises:
        CandidateError: The initial code does not pass the checks.
        BrokenTaskError: The environment failed under each of the first five candidates.
    """
    optimizer.steps = steps
    found: list[Score] = []  # the one that is done

    def say(number: int, made: Any, words: str) -> None:
        if on_step is not None:
            on_step(number, made, words)

    def ask(free: int, running: int) -> list[Candidate]:
        candidate = None if found else optimizer.ask_initial()
        while candidate is None and not found and optimizer.tried < steps:
            try:
                with waiting():
                    candidate = optimizer.ask()
            except NoCandidateError as error:
                say(-1, None, str(error))
            except SearchStopped:  # `CodeOptimizer.stop_reason` says why
                break
        return [] if candidate is None else [candidate]

    def tell(
        candidate: Candidate, outcome: Score, error: Exception | None
    ) -> tuple[str, str] | None:
        if error is not None:
            error.add_note(f"llmopt: raised while candidate {candidate.number} was evaluated")
            raise error
        reward, words = outcome.reward, outcome.words
        if reward is None:
            optimizer.tell_failure(candidate, words)
        else:
            optimizer.tell(
                candidate,
                reward,
                words,
                ties=outcome.ties,
                samples=outcome.samples,
                data=outcome.data,
            )
        say(candidate.number, outcome.made, words)
        if reward is not None and done(outcome):
            found.append(outcome)
        return None if reward is None and not outcome.broken else (words * outcome.broken, "")

    name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    sound = any(t.reward is not None for t in optimizer.trials)
    if drive(ask, lambda candidate: (score, candidate), tell, what=name, sound=sound):
        raise KeyboardInterrupt(INTERRUPTED)
    return bool(found)
