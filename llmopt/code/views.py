"""What can be read of a search over code, also of its storage file alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmopt.code.candidate import CodeTrial
from llmopt.code.program import ProgramSpace
from llmopt.errors import StorageError
from llmopt.history import Direction, Usage
from llmopt.journal import Journal, read_started
from llmopt.prompt.python_block import Computed
from llmopt.state import State
from llmopt.to_optuna import frozen, study_of
from llmopt.util.text import short
from llmopt.views import Views

if TYPE_CHECKING:
    from optuna import Study


class CodeViews(Views):
    """The candidates, blocks and report of a search over code."""

    direction: Direction
    _journal: Journal
    _programs: ProgramSpace
    _about: dict[str, Any]  # model and functions

    @property
    def trials(self) -> list[CodeTrial]:
        """All recorded candidates, in the order of `tell`."""
        return [self._programs.trial(trial) for trial in self._journal.state.trials]

    @property
    def blocks(self) -> tuple[Computed, ...]:
        """The model's blocks of Python so far: `code`, `output`, and `trials` at the time."""
        state = self._journal.state
        runs = (*state.runs, *state.open_runs)
        return tuple(Computed.read(run.event.result) for run in runs if run.event.block)

    def to_optuna(self) -> Study:
        """Return the search as an Optuna study in memory, a trial for each recorded candidate.

        The user attributes ``llmopt:code``, ``llmopt:explanation`` and ``llmopt:feedback`` hold
        the source, the model's words and the outcome; the label ``#n`` has the candidate's number.

        Raises:
            ImportError: Optuna is not installed.
        """
        trials = [
            frozen(
                trial.number - 1,  # labels begin at #1
                "FAIL" if trial.reward is None else "COMPLETE",
                None if trial.reward is None else [trial.reward],
                {},
                {},
                None,
                source=trial.origin,
                code=trial.source,
                explanation=trial.explanation,
                feedback=trial.feedback,
            )
            for trial in self.trials
        ]
        name = self._about["functions"].partition(",")[0]
        return study_of(name, [self.direction], (), trials, self._about)


class StoredCode(CodeViews):
    """A stored search over code; no code of it is run.

    Args:
        path: The storage file of a `CodeOptimizer`.

    Raises:
        StorageError: The file cannot be read, or is not of a search over code.
    """

    def __init__(self, path: Path) -> None:
        started = read_started(path)
        identity, self._programs = started.identity, ProgramSpace()
        try:
            (self.direction,) = identity["directions"]
            signatures = [str(signature) for signature, *_ in identity["functions"]]
            first = State(self._programs, (self.direction,), identity["seed"])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise StorageError(
                f"{path}, line 1: expected a search over code ({type(error).__name__}: "
                f"{short(str(error))}). Restore the file from a copy"
            ) from error
        self._journal = Journal.read(path, first)
        names = [s.removeprefix("def ").partition("(")[0].strip() for s in signatures]
        model = str(started.options.get("client", ""))
        self._about = {"model": model, "functions": ", ".join(names)}

    @property
    def usage(self) -> Usage:
        """The requests, tokens and cost."""
        return self._journal.usage
