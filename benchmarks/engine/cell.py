"""The one cell of all benchmarks and experiments, and its lines in a file of results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmopt.benchmarks.engine.lines import read_file
from llmopt.errors import StorageError

Row = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One search, which runs once."""

    task: str  # what is searched
    method: str  # what searches, or which arm of an experiment
    seed: int  # of everything random
    evaluations: int  # points of the search
    model: str = ""  # who answers; empty for a method that asks none
    options: tuple[tuple[str, Any], ...] = ()  # what else there is, in order of names

    @classmethod
    def make(
        cls, task: str, method: str, seed: int, evaluations: int, model: str = "", **options: Any
    ) -> Cell:
        """Make a cell from its options by name."""
        pairs = ((k, tuple(v) if isinstance(v, list) else v) for k, v in sorted(options.items()))
        return cls(task, method, seed, evaluations, model, tuple(pairs))

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Cell:
        """Return the cell of a line of results."""
        try:
            cell = cls.make(**line["cell"])
            hash(cell)  # a list is no name
            return cell
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise StorageError(
                f"a line of the results is not a benchmark's ({error!r}): give the file that "
                "llmopt bench wrote"
            ) from error

    def __getitem__(self, name: str) -> Any:
        """Return one of the `options`."""
        return dict(self.options)[name]

    def __str__(self) -> str:
        return f"{self.task} {self.method} seed {self.seed} ({self.evaluations})"

    def line(self, **outcome: Any) -> Row:
        """Return the line of the search: the cell and the outcome."""
        fixed = ("task", "method", "seed", "evaluations", "model")
        cell = {name: getattr(self, name) for name in fixed}
        return {"cell": {**cell, **dict(self.options)}, **outcome}


def read_lines(path: str | Path) -> list[Row]:
    """Read a file of results; the entries of each line's cell are added to the line."""
    return [{**line["cell"], **line} for line in read_file(path)]
