"""Which proposed points a search accepts: new ones, within the constraints, of the candidates."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence, Set
from dataclasses import dataclass

from llmopt.prompt.describe import describe_params
from llmopt.propose import Unusable
from llmopt.space import Space, Value
from llmopt.space.fixed import Fixed


@dataclass(frozen=True)
class Acceptance:
    """The checks of a proposed point; one that fails is the complaint of the next request.

    Attributes:
        space: The search space.
        seen: Keys (`Space.key`) of all points so far; grows.
        refused: Keys of the points not to accept: `seen`, or with noise those that only failed.
        labels: The parameters' names in the prompt.
        reads_complaints: Whether the model reads that a candidate does not exist, or that a value
            is fixed, and answers again; for others the nearest point is taken.
        fixed: Values that the points keep.
        refusal: See `llmopt.point_task.Asking.refusal`.
    """

    space: Space
    seen: set[Hashable]
    refused: Set[Hashable]
    labels: Sequence[str]
    reads_complaints: bool
    fixed: Fixed | None = None
    refusal: Callable[[tuple[Value, ...]], str] | None = None

    def accept(
        self, values: tuple[Value, ...], otherwise: tuple[Value, ...] | None, text: str
    ) -> tuple[tuple[Value, ...], bool]:
        """Return an accepted point, and whether it is another one than proposed.

        Args:
            values: The proposed point.
            otherwise: What it also may mean, if it is a duplicate.
            text: The answer, for the complaint.

        Raises:
            Unusable: With the complaint.
        """
        if self.reads_complaints and self.fixed and (other := self.fixed.contradiction(values)):
            why = f"the next experiment has {self.fixed}, and this point has {other}"
            raise Unusable("fixed", why, text)
        if self.fixed is None:
            point = self.space.conform(values)
        elif (kept := self.fixed.apply(values)) is not None:
            point = kept
        else:
            why = f"with {self.fixed} this point lacks the values of other parameters"
            raise Unusable("incomplete", why, text)
        self._check_constraints(point, text)
        point, moved = self._candidate(point, text)
        if moved:
            self._check_constraints(point, text)
        key = self.space.key(point)
        if key in self.refused:
            if otherwise is not None:
                return self.accept(otherwise, None, text)
            raise Unusable("duplicate", "this point was already tried; propose another", text)
        self.seen.add(key)
        return point, moved

    def _check_constraints(self, values: tuple[Value, ...], text: str) -> None:
        inside = self.space if self.fixed is None else self.fixed.inside
        if broken := inside.broken(values):
            amounts = ", ".join(f"{limit} (by {amount:.3g})" for limit, amount in broken.items())
            raise Unusable("constraint", f"this point breaks {amounts}", text)
        if self.refusal is not None and (why := self.refusal(values)):
            raise Unusable("constraint", why, text)

    def _candidate(self, values: tuple[Value, ...], text: str) -> tuple[tuple[Value, ...], bool]:
        table = (self.space if self.fixed is None else self.fixed.inside).candidates
        if table is None:
            return values, False
        row = table.match(values, self.refused)
        if row is not None and (self.reads_complaints or self.space.key(row) not in self.refused):
            return row, False
        if not self.reads_complaints:
            return table.nearest(values, self.refused, equal_first=False), True
        near = describe_params(table.nearest(values, self.refused), self.space, self.labels)
        raise Unusable("candidate", f"this point does not exist; the nearest one is {near}", text)
