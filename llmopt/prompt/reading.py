"""What a prompt's question returns for an answer: points of the space, or Python to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from llmopt.space import Value

OutOfRange = Literal["auto", "clip", "reject"]
"""``"clip"`` moves a number outside its range to the nearer bound, ``"reject"`` sends it back to
the model, ``"auto"`` rejects it if the prompt lets an answer say what differs from a point."""

Point: TypeAlias = tuple[Value, ...]


@dataclass(frozen=True)
class Reading:
    """What was read from one answer: its first point, and the points behind it."""

    values: Point  # a valid point of the space: flat, one value for each dimension
    explanation: str  # the reasons, at most 4,000 characters
    clipped: bool  # whether a number outside its range was moved to the bound
    # whether the answer ends the search; the values are then those of a known point
    stop: bool = False
    start: int | None = None  # number of the point that the answer names as its start, from 1
    # the further points of the answer in its order; the last one may be a stop
    more: tuple[Reading, ...] = ()
    # why other points of the answer cannot be used, one reason for each
    dropped: tuple[str, ...] = ()
    # the point to take instead if `values`, which were moved to a bound, are an evaluated point
    otherwise: Point | None = None
    # whether the text ends with the values: if it was cut there, digits or values may be missing
    unterminated: bool = False

    @property
    def each(self) -> tuple[Reading, ...]:
        """All points of the answer, in its order."""
        return (self, *self.more)

    def moved(self, move: Callable[[Point], Point]) -> Reading:
        """Return the reading with its point, and the one to take instead, moved."""
        otherwise = None if self.otherwise is None else move(self.otherwise)
        return replace(self, values=move(self.values), otherwise=otherwise)


@dataclass(frozen=True)
class ToolCall:
    """An answer that is a block of Python in place of a point."""

    code: str
