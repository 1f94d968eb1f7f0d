"""A model as a method of the benchmark, given the warm-up results."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from llmopt.benchmarks.methods.protocol import Problem
from llmopt.client.base import Client, Reply, Request, Wrapper, client_name
from llmopt.errors import LLMOptError, StorageError
from llmopt.history import Proposal, Trial, Usage
from llmopt.optimizer import LLMOptimizer
from llmopt.prompt import Prompt
from llmopt.space import Float, Space


def shown_decimals(low: float, high: float) -> int:
    """Decimals shown to a model: one for the published box, more for a narrower one."""
    return max(1, 2 - math.floor(math.log10(high - low)))


def parameter_space(low: float, high: float, n: int, names: Sequence[str] = ()) -> Space:
    """Return the space that a model searches: `n` numbers, shown with few decimals."""
    if names:
        return Space({name: Float(low, high) for name in names})
    box = spaces.Box(low, high, (n,), dtype=np.float64)
    return Space.of(box, decimals=shown_decimals(low, high))


class UnsentRequest(LLMOptError):
    """A request was made and not sent."""


class Unsent(Wrapper):
    """A client that sends nothing: its first request raises `UnsentRequest`.

    The end of the search that checks the first request is no end of the run.
    """

    inform = conclude = None

    def complete(self, request: Request) -> Reply:
        """Raise `UnsentRequest`."""
        raise UnsentRequest


class ModelMethod:
    """`LLMOptimizer` as a method.

    With a storage file it resumes a killed search: it returns the points of
    the file again, and takes their rewards without telling them twice.
    """

    def __init__(
        self,
        problem: Problem,
        client: Client,
        prompt: str | Prompt,
        seed: np.random.SeedSequence,
        batch_size: int = 1,
        **options: Any,
    ) -> None:
        points = [np.array(params) for params, _ in problem.warmup]
        self._names, self._space = problem.names, problem.space
        box = problem.low, problem.high, problem.n, problem.names
        # A run has all its evaluations, unless a program never says anything that can be read.
        program = client_name(client).startswith("command:")
        fallbacks = problem.evaluations or None if program else None
        self._optimizer = LLMOptimizer(
            problem.space or parameter_space(*box),
            client,
            prompt,
            seed=int(seed.generate_state(1)[0]),
            warmup=0 if problem.space is None else "auto",
            total=len(points) + problem.evaluations or None,
            description=problem.description,
            batch_size=batch_size,
            **{"max_fallbacks": fallbacks, **options},
        )
        self.last: Proposal | None = None  # with source, explanation and costs
        self._again: Trial | None = None
        stored = deque(self._optimizer.trials)
        try:
            notes = problem.notes or ("",) * len(points)
            errors = problem.errors or (None,) * len(points)
            for (params, reward), note, error in zip(problem.warmup, notes, errors, strict=True):
                if stored:
                    if stored.popleft().values != params:
                        raise StorageError(
                            "the model's storage was begun with other warm-up points: restore "
                            "the files of the run, or start a new one"
                        )
                    continue
                if reward is None:
                    self.tell_failure(np.array(params), note)
                else:
                    self.tell(np.array(params), reward, note, error)
        except BaseException:
            self.close()
            raise
        self._stored = stored

    @property
    def usage(self) -> Usage:
        """What the model has cost so far."""
        return self._optimizer.usage

    def ask(self) -> Any:
        """Return the next point; one model request for each batch."""
        if self._stored:
            trial = self._again = self._stored.popleft()
            self.last = Proposal(
                trial.values,
                trial.source,
                trial.explanation,
                trial.prompt_tokens,
                trial.completion_tokens,
                trial.seconds,
            )
        else:
            if not self._optimizer.pending_proposals:  # else a kill cut its evaluation off
                self._optimizer.ask()
            self.last = self._optimizer.pending_proposals[0]
        if self._space is not None:
            return self._space.unflatten(self.last.values)
        return np.array(self.last.values, dtype=np.float64)

    def tell(
        self, params: Any, reward: float, feedback: str = "", stderr: float | None = None
    ) -> None:
        """Report the reward, with words and its standard error for prompts that show them."""
        if self._again is None:
            known = stderr if self._names else None  # other prompts do not show it
            self._optimizer.tell(self._point(params), reward, feedback=feedback, stderr=known)
        self._again = None

    def tell_failure(self, params: Any, reason: str) -> None:
        """Report that there is no reward."""
        if self._again is None:
            self._optimizer.tell_failure(self._point(params), reason)
        self._again = None

    def _point(self, params: Any) -> Any:
        """Return a point in the form of the optimizer's space."""
        if self._space is not None:
            return params
        values = np.asarray(params).tolist()
        return dict(zip(self._names, values, strict=True)) if self._names else params

    def close(self) -> None:
        """Close the storage."""
        self._optimizer.close()
