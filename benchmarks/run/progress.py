"""The progress of a run: a bar on a terminal or in a notebook, else some lines."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from llmopt import progress
from llmopt.benchmarks.engine.records import WARMUP, Record


class Progress(progress.Progress):
    """The progress of a run, with the best score of each method so far."""

    def __init__(self, total: int, labels: Mapping[str, str], shown: bool) -> None:
        self._best: dict[str, float] = {}
        self._waits = contextlib.ExitStack()
        unit = "evaluations of all methods" if len(labels) > 1 else "evaluations"
        super().__init__(total, shown=shown, what="warm-up", unit=unit)

    def wait(self, what: str, waits: bool) -> None:
        """Show whether a request waits for its answer."""
        self._waits.close()
        self.say(what)
        if waits:
            what += ": a request waits for its answer"
            self.say(what)
            self.line("request")
            self._waits.enter_context(self.waiting(what))

    def resume(self, records: Sequence[Record]) -> None:
        """Count the points that were evaluated before the run was interrupted, if any."""
        scores = [self._scores(record) for record in records]
        if scores:
            self.begin_at(len(records), scores[-1])
            self.tell(f"resuming after {len(records)} of {self.total} {self.unit}")

    def add(self, record: Record) -> None:
        """Count an evaluated point, and show the best scores."""
        self.step(self._scores(record))

    def _scores(self, record: Record) -> str:
        if record.mean is not None:
            before = self._best.get(record.method, self._best.get(WARMUP, record.mean))
            self._best[record.method] = max(record.mean, before)
        shown = {n: b for n, b in self._best.items() if n != WARMUP or len(self._best) == 1}
        return "best " + ", ".join(f"{n} {b:.1f}" for n, b in shown.items()) if shown else ""
