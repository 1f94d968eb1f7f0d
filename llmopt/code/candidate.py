"""A candidate: source code, and a handle that runs it in its own worker."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from llmopt.code.checks import Function, check
from llmopt.data import NO_DATA, TrialData
from llmopt.sandbox.sandbox import Sandbox
from llmopt.util.closing import Closing
from llmopt.util.text import clean

Origin = Literal["llm", "user"]
_LEFT_OVER = 16 << 20  # bytes of an earlier episode that may stay in a worker


@dataclass(frozen=True)
class FirstCall:
    """What the first call after the source was loaded took: `seconds`, and `memory` in bytes."""

    seconds: float
    memory: int | None

    def words(self) -> str:
        """Return a sentence for the model, rounded so that equal runs read the same."""
        took = "less than 0.1 s" if self.seconds < 0.1 else f"about {self.seconds:.1g} s"
        held = (self.memory or 0) / (1 << 20)
        memory = f" and {round(held, -1):.0f} MB of memory" if held >= 10 else ""
        return f"The first call of an episode took {took}{memory}."


@dataclass(repr=False, eq=False)
class Candidate(Closing):
    """Source that a model wrote, callable as if it were a function.

    A call runs the first requested function; `function` returns the others. The worker starts
    at the first call, and is killed by `close`, at the end of a ``with`` block, or by `tell`.
    Results are checked against the function's `Output`.

    Args:
        source: Python source.
        functions: The functions that it defines.
        sandbox: Makes a worker that is not started yet.
        number: Its number in the search, from 1; 0 is the code to begin from.
        explanation: The model's explanation of the code.
        parent: Number of the candidate that it should improve, if any.
        fingerprint: See `llmopt.sandbox.analysis.analyse`.
        origin: Author of the source: ``"llm"``, the model of this search, or ``"user"``.
    """

    source: str
    functions: Sequence[Function]
    sandbox: Callable[[], Sandbox] = Sandbox
    _: KW_ONLY
    number: int = 0
    explanation: str = ""
    parent: int | None = None
    fingerprint: str = ""
    origin: Origin = "llm"

    def __post_init__(self) -> None:
        self.functions = tuple(self.functions)
        self._sandbox: Sandbox | None = None
        self._loaded = False
        self.first_call: FirstCall | None = None

    def __repr__(self) -> str:
        names = ", ".join(f.name for f in self.functions)
        return f"<Candidate {self.number}: {names}, {len(self.source.splitlines())} lines>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sandbox": None, "_loaded": False}

    @property
    def printed(self) -> str:
        """Output that the code printed since its worker started, truncated."""
        return self._sandbox.printed if self._sandbox is not None else ""

    def check(self) -> None:
        """Run every check of `llmopt.code.checks.check`; the code can then be called.

        Raises:
            CandidateError: A check failed; the message is for the model.
        """
        self.fingerprint = check(self._worker(), self.source, self.functions)
        self._loaded = True

    def reset(self) -> None:
        """Reload the source, which clears its global names.

        A new worker takes over if the code left more than 16 MB in use (on Linux; elsewhere only
        `close` frees it). Only `close` clears state that code hides, such as in a module.

        Raises:
            CandidateError: It cannot be loaded.
        """
        worker = self._worker()
        if (worker.memory_bytes or 0) > _LEFT_OVER:
            worker.close()
        worker.load(self.source)
        self._loaded, self.first_call = True, None

    def close(self) -> None:
        """Kill the worker; the next call starts a new one."""
        self._loaded = False
        if self._sandbox is not None:
            self._sandbox.close()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the first function.

        Raises:
            CandidateError: The function failed, or its result is not as specified.
        """
        return self.call(self.functions[0].name, *args, **kwargs)

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a function by name and check its result; raises as `__call__`."""
        function = self._function(name)
        worker = self._ready()
        if self.first_call is not None:
            return function.output.read(worker.call(name, *args, **kwargs))
        begun = time.monotonic()
        value = worker.call(name, *args, **kwargs)
        self.first_call = FirstCall(time.monotonic() - begun, worker.memory_bytes)
        return function.output.read(value)

    def call_columns(self, name: str, columns: Sequence[Any]) -> list[Any]:
        """Call a function once for each row of columns (see `Sandbox.call_columns`)."""
        read = self._function(name).output.read
        return [read(value) for value in self._ready().call_columns(name, columns)]

    def function(self, name: str) -> Callable[..., Any]:
        """Return one of the functions as a plain callable."""
        self._function(name)
        return lambda *args, **kwargs: self.call(name, *args, **kwargs)

    def _function(self, name: str) -> Function:
        for function in self.functions:
            if function.name == name:
                return function
        names = ", ".join(f.name for f in self.functions)
        raise KeyError(f"no function {name!r}; there are: {names}")

    def _worker(self) -> Sandbox:
        if self._sandbox is None:
            self._sandbox = self.sandbox()
        return self._sandbox

    def _ready(self) -> Sandbox:
        worker = self._worker()
        if not self._loaded or not worker.running:
            self.reset()
        return worker


@dataclass(frozen=True)
class CodeTrial:
    """A candidate that was scored, or that failed.

    Attributes:
        number: The candidate's number.
        source: Its source.
        reward: The score; ``None`` for a failure.
        feedback: Feedback on the score; for a failure, the reason.
        explanation: The model's explanation of the code.
        parent: Number of the candidate that it should improve, if any.
        fingerprint: See `llmopt.sandbox.analysis.analyse`.
        origin: ``"llm"``, or ``"user"`` for source not written by this search's model.
        ties: Numbers that break ties between equal scores, the first one first; larger is better.
        samples: The numbers whose mean is the score, if any.
        data: Named arrays of the evaluation; see `CodeOptimizer.tell`.
    """

    number: int
    source: str
    reward: float | None
    feedback: str = ""
    explanation: str = ""
    parent: int | None = None
    fingerprint: str = ""
    origin: Origin = "llm"
    ties: tuple[float, ...] = ()
    samples: tuple[float, ...] = ()
    data: TrialData = NO_DATA

    def __post_init__(self) -> None:
        for name in ("feedback", "explanation"):
            object.__setattr__(self, name, clean(getattr(self, name)))


def rank(trials: Sequence[CodeTrial], direction: str) -> list[CodeTrial]:
    """Return the scored trials, best first; the earliest first if score and ties are equal."""
    sign = -1.0 if direction == "maximize" else 1.0
    return sorted(
        (t for t in trials if t.reward is not None),
        key=lambda t: (
            sign * (t.reward if t.reward is not None else math.inf),
            *(-tie for tie in t.ties),
        ),
    )


def parent_of(trials: Sequence[CodeTrial], direction: str) -> CodeTrial | None:
    """Return the trial to improve: the best; the latest failure if none is scored, if any."""
    return next(iter([*rank(trials, direction), *trials[::-1]]), None)


_SHARED = ("source", "number", "explanation", "parent", "fingerprint", "origin")


def candidate_of(
    trial: CodeTrial, functions: Sequence[Function], sandbox: Callable[[], Sandbox]
) -> Candidate:
    """Return a callable of a trial's code; see `Candidate`."""
    shared = {name: getattr(trial, name) for name in _SHARED}
    return Candidate(functions=functions, sandbox=sandbox, **shared)
