"""Errors of running a model's code: of the code, of the worker, of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from llmopt.errors import LLMOptError
from llmopt.util.text import clean, cut

_LONGEST = 3000

Kind = Literal["syntax", "check", "exception", "timeout", "crash", "protocol"]


class SandboxUnavailableError(LLMOptError):
    """Untrusted code cannot be confined here, and running it unconfined was not allowed."""


class SandboxError(LLMOptError):
    """A worker could not be set up, through no fault of a candidate."""


class UnsandboxedWarning(UserWarning):
    """A model's code runs with the rights of the user, as was allowed."""


class CandidateError(LLMOptError):
    """A candidate failed. The message is clean, and fit to be sent back to the model.

    Attributes:
        kind: ``"syntax"``, ``"check"`` (it is not as asked for), ``"exception"``,
            ``"timeout"``, ``"crash"`` (its process died) or ``"protocol"`` (it sent something
            that is no answer).
        line: Line of the source, from 1; 0 where there is none.
        trace: Triples of line, function and source text, outermost first.
        printed: What it printed before.
    """

    def __init__(
        self,
        message: str,
        kind: Kind = "check",
        *,
        line: int = 0,
        trace: Sequence[tuple[int, str, str]] = (),
        printed: str = "",
    ) -> None:
        # It can contain source, and a repair turn has to fit into a model's context.
        super().__init__(cut(clean(message), _LONGEST))
        self.kind: Kind = kind
        self.line = line
        self.trace = tuple((n, clean(name), clean(code)) for n, name, code in trace)
        self.printed = clean(printed)

    def feedback(self) -> str:
        """Return the message with traceback and line, in words for the model."""
        text = str(self)
        if self.trace:
            steps = "".join(f"\n  line {n}, in {name}: {code}" for n, name, code in self.trace)
            text = f"{text}\nTraceback:{steps}"
        return f"{text}\nIt printed: {self.printed}" if self.printed else text


class NoCandidateError(LLMOptError):
    """A model gave no usable code within its bounded number of tries.

    Attributes:
        tries: Pairs of the answer as it came and what was wrong with it.
    """

    def __init__(self, message: str, tries: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.tries = tuple(tries)


class EnvironmentFailure(CandidateError):
    """A candidate has no score since the environment failed, and not its code."""
