"""The progress of a run: a bar on a terminal, else some lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from llmopt.benchmarks.engine.records import WARMUP, Record
from llmopt.util.text import clean

LINE_SECONDS = 10.0
"""Between two lines of progress, without a terminal."""


class _NoBar:
    """Does nothing, where no terminal shows a bar."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class Progress:
    """A progress bar with the best score of each method so far; without a terminal, some lines."""

    def __init__(self, total: int, labels: Mapping[str, str], shown: bool) -> None:
        self._labels = labels
        self._best: dict[str, float] = {}
        self._what, self._scores = "warm-up", ""
        self._of = " of all methods" if len(labels) > 1 else ""
        self._total, self._done = total, 0
        self._next: dict[str, float] = {}
        self._bar: Any = _NoBar()
        self._lines = shown and not sys.stderr.isatty()
        if shown and not self._lines:
            from tqdm import tqdm

            self._bar = tqdm(None, self._what, total, mininterval=0.2, unit="eval")

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._bar.close()
        if kind is None:
            self._what = "done"
            self._line(now=True)

    def _line(self, kind: str = "", *, now: bool = False) -> None:
        """Print a line where no terminal rewrites one, if it is time for one of its kind."""
        if not self._lines or (not now and time.monotonic() < self._next.get(kind, 0.0)):
            return
        self._next[kind] = time.monotonic() + LINE_SECONDS
        scores = f"; {self._scores}" if self._scores else ""
        text = f"llmopt: {self._done}/{self._total} evaluations{self._of}, {self._what}{scores}"
        print(text, file=sys.stderr, flush=True)

    def say(self, what: str) -> None:
        """Show what is done now."""
        self._what = what
        self._bar.set_description(what)
        self._line(now=True)

    def wait(self, what: str, request: int) -> None:
        """Show that a request waits for its answer, with 0 that none does."""
        self._what = f"{what}: waits for the answer to request {request}" if request else what
        self._bar.set_description(self._what)
        if request:
            self._line("request")

    def tell(self, text: str) -> None:
        """Print something that is to be read."""
        text = f"llmopt: {clean(text)}"
        self._bar.write(text, file=sys.stderr)
        if self._lines:
            print(text, file=sys.stderr, flush=True)

    def drop(self, count: int) -> None:
        """Leave out evaluations that will not take place."""
        self._total -= count
        self._bar.total = self._total
        self._bar.refresh()

    def resume(self, records: Sequence[Record]) -> None:
        """Count the points that were evaluated before the run was interrupted, if any."""
        for record in records:
            self._count(record)
        if not records:
            return
        self._bar.update(len(records))
        self.tell(f"going on after {self._done} of {self._total} evaluations{self._of}")

    def step(self, record: Record) -> None:
        """Count an evaluated point, and show it."""
        self._count(record)
        self._bar.update()
        self._line()

    def _count(self, record: Record) -> None:
        mean = record.mean
        if mean is not None:
            self._best[record.method] = max(mean, self._best.get(record.method, mean))
        self._done += 1
        warm = self._best.get(WARMUP)
        shown = []
        for method in self._labels:
            known = [b for b in (self._best.get(method), warm) if b is not None]
            if method in self._best or (method == record.method and known):
                shown.append(f"{method} {max(known):.1f}")
        if not shown and warm is not None:
            shown = [f"warm-up {warm:.1f}"]
        self._scores = "best " + ", ".join(shown) if shown else ""
        self._bar.set_postfix_str(self._scores, refresh=False)
