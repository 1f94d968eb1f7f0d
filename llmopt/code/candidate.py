"""A candidate: source, and a handle that runs it in a worker of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from llmopt.code.checks import Function, check
from llmopt.sandbox.sandbox import Sandbox
from llmopt.util.arguments import one_of, whole_number
from llmopt.util.closing import Closing
from llmopt.util.text import clean

Origin = Literal["llm", "user"]
STRATEGIES = ("hill-climb", "best-of-n", "beam")


@dataclass(repr=False, eq=False)
class Candidate(Closing):
    """Source that a model wrote, callable as if it were a function.

    Calling it calls the first function that was asked for; `function` gives the others. The
    worker starts at the first call, and is killed by `close`, by leaving a ``with`` block,
    or by `tell`. Results are checked against what the function has to return.

    Args:
        source: Python source.
        functions: What it defines.
        sandbox: Makes a worker that is not started yet.
        number: Position among the candidates of a search.
        params: Values beside the code, in the form the space was given in; the code finds
            them as the dict ``params``.
        variables: All names that the code finds bound.
        explanation: What the model said about it.
        parent: Number of the candidate it was to improve, if any.
        fingerprint: See `llmopt.sandbox.analysis.analyse`.
        origin: Who wrote the source: ``"llm"``, the model of this search, or ``"user"``.
    """

    source: str
    functions: Sequence[Function]
    sandbox: Callable[[], Sandbox] = Sandbox
    _: KW_ONLY
    number: int = 0
    params: Any = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    explanation: str = ""
    parent: int | None = None
    fingerprint: str = ""
    origin: Origin = "llm"

    def __post_init__(self) -> None:
        self.functions = tuple(self.functions)
        self._sandbox: Sandbox | None = None
        self._loaded = False

    def __repr__(self) -> str:
        names = ", ".join(f.name for f in self.functions)
        return f"<Candidate {self.number}: {names}, {len(self.source.splitlines())} lines>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sandbox": None, "_loaded": False}

    @property
    def printed(self) -> str:
        """What the code printed since its worker was started, cut."""
        return self._sandbox.printed if self._sandbox is not None else ""

    def check(self) -> None:
        """Run every check of `llmopt.code.checks.check`; the code is ready to be called then.

        Raises:
            CandidateError: What is wrong, in words for the model.
        """
        self.fingerprint = check(self._worker(), self.source, self.functions, self.variables)
        self._loaded = True

    def reset(self) -> None:
        """Load the source anew, which clears the names that it has set.

        State that code hides elsewhere, such as in a module, is cleared by `close` alone.

        Raises:
            CandidateError: It cannot be loaded.
        """
        self._worker().load(self.source, self.variables)
        self._loaded = True

    def close(self) -> None:
        """Kill the worker; the next call starts a new one."""
        self._loaded = False
        if self._sandbox is not None:
            self._sandbox.close()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the first function.

        Raises:
            CandidateError: It failed, or its result is not as asked for.
        """
        return self.call(self.functions[0].name, *args, **kwargs)

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call the function of that name and check its result; raises as `__call__`."""
        function = self._function(name)
        return function.output.read(self._ready().call(name, *args, **kwargs))

    def call_columns(self, name: str, columns: Sequence[Any]) -> list[Any]:
        """Call a function once for each row of columns (see `Sandbox.call_columns`)."""
        read = self._function(name).output.read
        return [read(value) for value in self._ready().call_columns(name, columns)]

    def function(self, name: str) -> Callable[..., Any]:
        """Return one of its functions as a plain callable."""
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
        params: Values beside the code, if any.
        reward: The score; ``None`` for a failure.
        feedback: Words that came with it; for a failure, the reason.
        explanation: What the model said about it.
        parent: Number of the candidate it was to improve, if any.
        fingerprint: See `llmopt.sandbox.analysis.analyse`.
        origin: ``"llm"``, or ``"user"`` for source that no model wrote in this search.
        ties: Numbers that decide between equal scores, the first one first; larger is better.
        samples: The numbers that the score is the mean of, if any.
    """

    number: int
    source: str
    params: Any
    reward: float | None
    feedback: str = ""
    explanation: str = ""
    parent: int | None = None
    fingerprint: str = ""
    origin: Origin = "llm"
    ties: tuple[float, ...] = ()
    samples: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("feedback", "explanation"):
            object.__setattr__(self, name, clean(getattr(self, name)))


def rank(trials: Sequence[CodeTrial], direction: str) -> list[CodeTrial]:
    """Return the scored trials, best first; of full equals the earliest first."""
    sign = -1.0 if direction == "maximize" else 1.0
    return sorted(
        (t for t in trials if t.reward is not None),
        key=lambda t: (
            sign * (t.reward if t.reward is not None else math.inf),
            *(-tie for tie in t.ties),
        ),
    )


@dataclass(frozen=True)
class Strategy:
    """Which earlier candidate the next one is to improve.

    A pure function of the trials told so far, so that a resumed search goes on the same way.

    Attributes:
        name: ``"hill-climb"``: the best so far. ``"best-of-n"``: in rounds of `n`
            independent tries at the best of all earlier rounds. ``"beam"``: in rounds of `n`
            tries at each of the `width` best of all earlier rounds.
        n: Tries from one candidate in a round.
        width: Candidates that a beam keeps.
    """

    name: str = "hill-climb"
    n: int = 4
    width: int = 3

    def __post_init__(self) -> None:
        one_of("strategy", self.name, STRATEGIES)
        whole_number("n", self.n, 1)
        whole_number("width", self.width, 1)

    def round_of(self, number: int) -> range:
        """Return the numbers of the round that a candidate belongs to."""
        size = {"hill-climb": 1, "best-of-n": self.n, "beam": self.n * self.width}[self.name]
        start = number - number % size
        return range(start, start + size)

    def parent(self, number: int, trials: Sequence[CodeTrial], direction: str) -> CodeTrial | None:
        """Return the trial that candidate `number` is to improve.

        Args:
            number: The candidate's number.
            trials: What was told so far.
            direction: ``"maximize"`` or ``"minimize"``.

        Returns:
            A scored trial; the latest failure where none is scored; ``None`` at the start.
        """
        before = [t for t in trials if t.number < self.round_of(number).start]
        if self.name == "hill-climb":
            before = list(trials)
        ranked = rank(before, direction)
        if ranked:
            if self.name != "beam":
                return ranked[0]
            return ranked[(number - self.round_of(number).start) % min(self.width, len(ranked))]
        return max(before, key=lambda t: t.number) if before else None


_SHARED = ("source", "number", "params", "explanation", "parent", "fingerprint", "origin")


def trial_of(candidate: Candidate, reward: float | None = None, **told: Any) -> CodeTrial:
    """Return the trial of a candidate, with what else was told of it."""
    shared = {name: getattr(candidate, name) for name in _SHARED}
    return CodeTrial(reward=reward, **shared, **told)


def candidate_of(
    trial: CodeTrial,
    functions: Sequence[Function],
    sandbox: Callable[[], Sandbox],
    variables: Mapping[str, Any],
) -> Candidate:
    """Return a callable of a trial's code; see `Candidate`."""
    shared = {name: getattr(trial, name) for name in _SHARED}
    return Candidate(functions=functions, sandbox=sandbox, variables=variables, **shared)
