"""A search over code, read from its storage file for a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmopt.code.candidate import CodeTrial
from llmopt.code.program import ProgramSpace
from llmopt.code.views import study_of_code
from llmopt.errors import StorageError
from llmopt.history import Usage
from llmopt.journal import Journal, read_started
from llmopt.prompt.python_block import Computed
from llmopt.state import State
from llmopt.util.text import short

if TYPE_CHECKING:
    from optuna import Study


class StoredCode:
    """The candidates, blocks and usage of a stored search over code; no code of it is run.

    Args:
        path: The storage file of a `CodeOptimizer`.

    Raises:
        StorageError: The file cannot be read, or is not of a search over code.
    """

    def __init__(self, path: Path) -> None:
        started = read_started(path)
        identity, options = started.identity, started.options
        try:
            programs = ProgramSpace()
            (self.direction,) = identity["directions"]
            signatures = [str(signature) for signature, *_ in identity["functions"]]
            first = State(programs, (self.direction,), identity["seed"])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise StorageError(
                f"{path}, line 1: expected a search over code ({type(error).__name__}: "
                f"{short(str(error))}). Restore the file from a copy"
            ) from error
        self._programs = programs
        self._state = Journal.read(path, first).state
        self._model = str(options.get("client", ""))
        self._names = [s.removeprefix("def ").partition("(")[0].strip() for s in signatures]

    @property
    def trials(self) -> list[CodeTrial]:
        """The recorded candidates, in the order of `tell`."""
        return [self._programs.trial(trial) for trial in self._state.trials]

    @property
    def usage(self) -> Usage:
        """The requests, tokens and cost."""
        return self._state.spent

    @property
    def blocks(self) -> tuple[Any, ...]:
        """The model's blocks of Python, in order."""
        runs = (*self._state.runs, *self._state.open_runs)
        return tuple(Computed.read(run.event.result) for run in runs if run.event.block)

    def to_optuna(self) -> Study:
        """Return the search as an Optuna study in memory; see `CodeOptimizer.to_optuna`."""
        return study_of_code(self._names, self._model, self.direction, self.trials)
