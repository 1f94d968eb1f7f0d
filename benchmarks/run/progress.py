"""What a run shows: its progress bar, and its results as a table."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from llmopt.benchmarks.engine.records import WARMUP, Record
from llmopt.benchmarks.engine.search import FINAL_ROUNDS
from llmopt.benchmarks.report.table import Table
from llmopt.benchmarks.run.config import RunConfig
from llmopt.text import clean

STANDS_STILL = (
    "The best policy does no better than one whose parameters are all zero: the search has found "
    "nothing yet. Try another --seed, a larger --warmup, or more --iterations (also of this run, "
    "with --resume)."
)
"""What is said where nothing was found."""

UNSOLVED = (
    "Not solved: Gymnasium takes {task} for solved from a mean return of {solved:g} on; the best "
    "policy ({best.label}) has {best.heldout:.2f} on held-out starts. More --iterations may help "
    "(also of this run, with --resume), or another --model.\n"
)
"""What is said where something was found, but less than the environment asks for."""

LINE_SECONDS = 10.0
"""Between two lines of progress, without a terminal."""


@dataclass(frozen=True)
class MethodResult:
    """One line of the table.

    Attributes:
        method: Its name in `RunConfig.methods`.
        label: What tables and pictures call it.
        selection: Mean return of the chosen policy on the selection starts; ``None`` if all
            points failed.
        final: The same on the selection starts and the fresh ones that chose it.
        heldout: Mean return of that policy on the held-out starts; ``None`` if it failed.
        heldout_error: Standard error of `heldout`.
        episodes: Selection episodes, shared warm-up included.
        steps: Environment steps of those.
        requests: Requests sent to the model.
        tokens: Prompt and completion tokens.
        seconds: Wall-clock seconds of proposing and evaluating, warm-up included.
        fallback_share: Share of the model's proposals that were drawn at random instead;
            ``None`` for a baseline.
        failures: Evaluations that gave no score.
        params: The best policy's parameters, or ``None``.
        stopped: Why the model ended the search before all evaluations; empty where it did not.
    """

    method: str
    label: str
    selection: float | None
    final: float | None
    heldout: float | None
    heldout_error: float | None
    episodes: int
    steps: int
    requests: int
    tokens: int
    seconds: float
    fallback_share: float | None
    failures: int
    params: tuple[float, ...] | None
    stopped: str = ""


@dataclass(frozen=True)
class RunResult:
    """What a run found.

    Attributes:
        path: The run folder.
        methods: One result for each method, in the order of `RunConfig.methods`.
        best: The one with the best policy on the starts that chose it; ``None`` if every
            evaluation failed.
        drawn: The one whose policy the GIF shows: the best of those that ask the model, or of
            all where none does; ``None`` for no GIF.
        table: The same as text.
    """

    path: Path
    methods: tuple[MethodResult, ...]
    best: MethodResult | None
    drawn: MethodResult | None
    table: str = field(repr=False)


class Progress:
    """A progress bar with the best score of each method so far; without a terminal, some lines.

    Args:
        total: Evaluations of the run.
        labels: What each method is called, by name.
        shown: Whether anything is shown.
    """

    def __init__(self, total: int, labels: Mapping[str, str], shown: bool) -> None:
        self._labels = labels
        self._best: dict[str, float] = {}
        self._shown = shown
        self._what, self._scores = "warm-up", ""
        self._of = " of all methods" if len(labels) > 1 else ""
        self._total, self._done = total, 0
        self._next: dict[str, float] = {}
        self._bar: Any = None
        if shown and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                total=total, unit="eval", desc=self._what, mininterval=0.2, file=sys.stderr
            )

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        elif kind is None:
            self._what = "done"
            self._line(now=True)

    def _line(self, kind: str = "", *, now: bool = False) -> None:
        """Print a line where no terminal rewrites one, if it is time for one of its kind."""
        if not self._shown or (not now and time.monotonic() < self._next.get(kind, 0.0)):
            return
        self._next[kind] = time.monotonic() + LINE_SECONDS
        scores = f"; {self._scores}" if self._scores else ""
        text = f"llmopt: {self._done}/{self._total} evaluations{self._of}, {self._what}{scores}"
        print(text, file=sys.stderr, flush=True)

    def say(self, what: str) -> None:
        """Show what is done now."""
        self._what = what
        if self._bar is not None:
            self._bar.set_description(what)
        else:
            self._line(now=True)

    def wait(self, what: str, request: int) -> None:
        """Show that a request waits for its answer, with 0 that none does."""
        self._what = f"{what}: waits for the answer to request {request}" if request else what
        if self._bar is not None:
            self._bar.set_description(self._what)
        elif request:
            self._line("request")

    def tell(self, text: str) -> None:
        """Print something that is to be read."""
        text = clean(text)
        if self._bar is not None:
            self._bar.write(f"llmopt: {text}", file=sys.stderr)
        elif self._shown:
            print(f"llmopt: {text}", file=sys.stderr, flush=True)

    def drop(self, count: int) -> None:
        """Leave out evaluations that will not take place."""
        self._total -= count
        if self._bar is not None:
            self._bar.total = self._total
            self._bar.refresh()

    def resume(self, records: Sequence[Record]) -> None:
        """Count the points that were evaluated before the run was interrupted, if any."""
        for record in records:
            self._count(record)
        if not records:
            return
        if self._bar is not None:
            self._bar.update(len(records))
        self.tell(f"going on after {self._done} of {self._total} evaluations{self._of}")

    def step(self, record: Record) -> None:
        """Count an evaluated point, and show it."""
        self._count(record)
        if self._bar is not None:
            self._bar.update()
        else:
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
        if self._bar is not None:
            self._bar.set_postfix_str(self._scores, refresh=False)


def format_table(results: Sequence[MethodResult], config: RunConfig, episodes: int) -> str:
    """Return the results as a table of plain text.

    Args:
        results: One for each method.
        config: The run.
        episodes: Starts of one evaluation.
    """
    starts = episodes * (1 + FINAL_ROUNDS if config.finalists else 1)
    head = (
        "method",
        f"chosen on {starts}",
        f"held-out {config.heldout}",
        "episodes",
        "requests",
        "tokens",
        "seconds",
        "fallback",
    )
    rows = []
    for r in results:
        heldout = "failed" if r.heldout is None else f"{r.heldout:.2f}"
        if r.heldout is not None and r.heldout_error is not None:
            heldout += f" ± {r.heldout_error:.2f}"
        rows.append(
            (
                r.label,
                "all failed" if r.final is None else f"{r.final:.2f}",
                "-" if r.final is None else heldout,
                f"{r.episodes:,}",
                f"{r.requests:,}" if r.fallback_share is not None else "-",
                f"{r.tokens:,}" if r.fallback_share is not None else "-",
                f"{r.seconds:.1f}",
                "-" if r.fallback_share is None else f"{100 * r.fallback_share:.1f} %",
            )
        )
    lines = Table.of(head, rows).text()
    lines.append("")
    lines.append(
        f"chosen on {starts}: mean return of the best policy on the starts that chose it. held-out "
        f"{config.heldout}: its mean"
    )
    lines.append("on fresh starts, ± standard error. Episodes and seconds are of all but these.")
    lines += [f"{r.label}: {r.stopped}" for r in results if r.stopped]
    failed = [f"{r.failures} of {r.label}" for r in results if r.failures]
    if failed:
        lines.append(f"Failed evaluations: {', '.join(failed)} (the reasons are in trials.jsonl).")
    return "\n".join(lines) + "\n"
