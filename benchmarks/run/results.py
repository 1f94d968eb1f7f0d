"""What a run shows: its progress bar, and its results as a table."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from llmopt.benchmarks.run.config import RunConfig
from llmopt.benchmarks.run.published import WARMUP, Record


@dataclass(frozen=True)
class MethodResult:
    """One line of the table.

    Attributes:
        method: Its name in `RunConfig.methods`.
        label: What tables and pictures call it.
        selection: Best mean return on the selection starts; ``None`` if all points failed.
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
    """

    method: str
    label: str
    selection: float | None
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


@dataclass(frozen=True)
class RunResult:
    """What a run found.

    Attributes:
        path: The run folder.
        methods: One result for each method, in the order of `RunConfig.methods`.
        best: The one with the best policy on the selection starts, which the GIF shows;
            ``None`` if every evaluation failed.
        table: The same as text.
    """

    path: Path
    methods: tuple[MethodResult, ...]
    best: MethodResult | None
    table: str = field(repr=False)


class Progress:
    """A progress bar with the best score of each method so far.

    Args:
        total: Evaluations of the run.
        labels: What each method is called, by name.
        shown: Whether the bar is drawn.
    """

    def __init__(self, total: int, labels: Mapping[str, str], shown: bool) -> None:
        self._labels = labels
        self._best: dict[str, float] = {}
        self._bar: Any = None
        if shown:
            from tqdm import tqdm

            # Where no terminal rewrites the line, a line now and then is enough.
            quiet = 0.2 if sys.stderr.isatty() else 10
            self._bar = tqdm(
                total=total, unit="eval", desc="warm-up", mininterval=quiet, file=sys.stderr
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

    def say(self, what: str) -> None:
        """Show what is done now."""
        if self._bar is not None:
            self._bar.set_description(what)

    def step(self, record: Record) -> None:
        """Count an evaluated point."""
        mean = record.mean
        if mean is not None:
            self._best[record.method] = max(mean, self._best.get(record.method, mean))
        if self._bar is None:
            return
        warm = self._best.get(WARMUP)
        shown = []
        for method in self._labels:
            known = [b for b in (self._best.get(method), warm) if b is not None]
            if method in self._best or (method == record.method and known):
                shown.append(f"{method} {max(known):.1f}")
        if not shown and warm is not None:
            shown = [f"warm-up {warm:.1f}"]
        self._bar.set_postfix_str("best " + ", ".join(shown) if shown else "", refresh=False)
        self._bar.update()


def format_table(results: Sequence[MethodResult], config: RunConfig) -> str:
    """Return the results as a table of plain text."""
    head = (
        "method",
        f"best of {config.episodes}",
        f"held-out {config.heldout}",
        "episodes",
        "requests",
        "tokens",
        "seconds",
        "fallback",
    )
    rows = [head]
    for r in results:
        heldout = "failed" if r.heldout is None else f"{r.heldout:.2f}"
        if r.heldout is not None and r.heldout_error is not None:
            heldout += f" ± {r.heldout_error:.2f}"
        rows.append(
            (
                r.label,
                "all failed" if r.selection is None else f"{r.selection:.2f}",
                "-" if r.selection is None else heldout,
                f"{r.episodes:,}",
                f"{r.requests:,}" if r.fallback_share is not None else "-",
                f"{r.tokens:,}" if r.fallback_share is not None else "-",
                f"{r.seconds:.1f}",
                "-" if r.fallback_share is None else f"{100 * r.fallback_share:.1f} %",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = [
        "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "-" * max(map(len, lines)))
    lines.append("")
    lines.append(
        f"best of {config.episodes}: best mean return on the selection starts. "
        f"held-out {config.heldout}: mean return of that policy"
    )
    lines.append("on fresh starts, ± its standard error. Episodes and seconds include the warm-up.")
    failed = [f"{r.failures} of {r.label}" for r in results if r.failures]
    if failed:
        lines.append(f"Failed evaluations: {', '.join(failed)} (the reasons are in trials.jsonl).")
    return "\n".join(lines) + "\n"
