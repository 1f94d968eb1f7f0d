"""The caller of a search, for messages: Python, the shell and MCP write an argument differently."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Caller:
    """How a caller names trials and arguments.

    Attributes:
        first_trial: Number of the first trial in arguments.
        imports: The call that imports the trials of a file.
        reopens: What continues a search that its model has ended.
        options: Whether arguments are options of a command.
    """

    first_trial: int
    imports: str
    reopens: str
    options: bool = False

    def argument(self, name: str, value: object = "") -> str:
        """Return an argument as the caller writes it; a value is optional."""
        if self.options:
            return f"--{name.replace('_', '-')} {value}".rstrip()
        return f"{name}={value}"

    def number(self, trial: int) -> int:
        """Return the caller's number of a trial, given its number from 0."""
        return trial + self.first_trial

    def trial(self, name: str, trial: int) -> str:
        """Return an argument whose value is a trial, given its number from 0."""
        return self.argument(name, self.number(trial))


PYTHON = Caller(0, "import_trials(FILE)", "enqueue() a point, or pass may_stop=False")
SHELL = Caller(
    1,
    "`llmopt tell --import FILE`",
    "queue a point by `llmopt enqueue`, or set may_stop = false in the description",
    options=True,
)
MCP = Caller(1, SHELL.imports, "enqueue() a point")

CALLER = ContextVar("CALLER", default=PYTHON)
"""Who reads the messages that are made now."""


@contextlib.contextmanager
def called_by(caller: Caller) -> Iterator[None]:
    """Address the messages that are made inside to a caller."""
    token = CALLER.set(caller)
    try:
        yield
    finally:
        CALLER.reset(token)
