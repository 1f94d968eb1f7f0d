"""Programs as the points of a search: what the journal of a code search holds of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmopt.code.candidate import CodeTrial
from llmopt.history import Trial
from llmopt.util.arguments import whole_number


@dataclass(frozen=True)
class Program:
    """A program of a search.

    Attributes:
        number: Its number among the candidates, from 1; 0 is the code to begin from.
        source: Its source.
        fingerprint: See `llmopt.sandbox.analysis.analyse`; equal for equal programs.
        parent: Number of the candidate that it should improve, if any.
    """

    number: int
    source: str
    fingerprint: str
    parent: int | None = None

    @property
    def values(self) -> tuple[Any, ...]:
        """The program as the flat point of a trial."""
        return self.number, self.source, self.fingerprint, self.parent

    def trial(self, reward: float | None = None, **recorded: Any) -> CodeTrial:
        """Return the program as a trial, with the other fields that are recorded."""
        known = self.number, self.source, reward
        return CodeTrial(*known, parent=self.parent, fingerprint=self.fingerprint, **recorded)


class ProgramSpace:
    """The programs of a search; see `llmopt.state.PointSpace`."""

    def key(self, values: tuple[Any, ...]) -> Any:
        """Return the candidate's number: two candidates never share one."""
        return values[0]

    def unflatten(self, values: tuple[Any, ...]) -> Program:
        """Return the program."""
        return Program(*values)

    def same(self, one: Program, other: Program) -> bool:
        """Whether two programs do the same: layout, comments and names are ignored."""
        return one.fingerprint == other.fingerprint

    def to_json_values(self, values: tuple[Any, ...]) -> list[Any]:
        """Return a program as JSON."""
        return list(values)

    def from_json_values(self, values: Sequence[Any], measured: bool = False) -> tuple[Any, ...]:
        """Return the program of a line.

        Raises:
            TypeError: An entry has another type.
            ValueError: An entry is missing, or a number is out of its range.
        """
        number, source, fingerprint, parent = values
        whole_number("number", number, 0)
        whole_number("parent", 0 if parent is None else parent, 0)
        if not isinstance(source, str) or not isinstance(fingerprint, str):
            raise TypeError("the source of a program is not a string")
        return number, source, fingerprint, parent

    def trial(self, trial: Trial[Program]) -> CodeTrial:
        """Return a recorded trial as readers see it."""
        return trial.params.trial(
            None if trial.rewards is None else trial.rewards[0],
            feedback=trial.feedback,
            explanation=trial.explanation,
            origin="llm" if trial.source == "llm" else "user",
            ties=trial.ties,
            samples=trial.samples,
            data=trial.data,
        )
