"""The progress of a run: a bar on a terminal or in a notebook, else some lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmopt import progress
from llmopt.benchmarks.engine.records import WARMUP, Record


class Progress(progress.Progress):
    """How far a run is, with the best score of each method so far."""

    def __init__(self, total: int, labels: Mapping[str, str], shown: bool) -> None:
        self._labels = labels
        self._best: dict[str, float] = {}
        unit = "evaluations of all methods" if len(labels) > 1 else "evaluations"
        super().__init__(total, shown=shown, what="warm-up", unit=unit)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._what = "done"
        super().__exit__(kind, *rest)

    def wait(self, what: str, request: int) -> None:
        """Show that a request waits for its answer, with 0 that none does."""
        waits = f"{what}: waits for the answer to request {request}" if request else what
        self.say(waits)
        if request:
            self.line("request")

    def resume(self, records: Sequence[Record]) -> None:
        """Count the points that were evaluated before the run was interrupted, if any."""
        scores = [self._scores(record) for record in records]
        if scores:
            self.begin_at(len(records), scores[-1])
            self.tell(f"resuming after {len(records)} of {self.total} {self.unit}")

    def add(self, record: Record) -> None:
        """Count an evaluated point, and show it."""
        self.step(self._scores(record))

    def _scores(self, record: Record) -> str:
        mean = record.mean
        if mean is not None:
            self._best[record.method] = max(mean, self._best.get(record.method, mean))
        warm = self._best.get(WARMUP)
        shown = []
        for method in self._labels:
            known = [b for b in (self._best.get(method), warm) if b is not None]
            if method in self._best or (method == record.method and known):
                shown.append(f"{method} {max(known):.1f}")
        if not shown and warm is not None:
            shown = [f"warm-up {warm:.1f}"]
        return "best " + ", ".join(shown) if shown else ""
