"""What a run has found: one result for each method, and the table of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llmopt.benchmarks.engine.search import FINAL_ROUNDS
from llmopt.benchmarks.report.table import Table
from llmopt.benchmarks.run.config import RunConfig
from llmopt.errors import BudgetExceededError


@dataclass(frozen=True)
class MethodResult:
    """One line of the table."""

    method: str  # its name in `RunConfig.methods`
    label: str
    selection: float | None  # mean return on the selection starts; `None` if all failed
    final: float | None  # the same on the selection starts and the fresh ones that chose it
    heldout: float | None  # mean return of that policy on the held-out starts; `None` if it failed
    heldout_error: float | None
    episodes: int  # selection episodes, shared warm-up included
    steps: int
    requests: int
    tokens: int  # prompt and completion tokens
    seconds: float  # wall-clock seconds of proposing and evaluating, warm-up included
    fallback_share: float | None  # of the model's proposals; `None` for a baseline
    failures: int  # evaluations that gave no score
    params: tuple[float, ...] | None
    stopped: str = ""  # why the model or a cap ended the search, if it did


@dataclass(frozen=True)
class RunResult:
    """What a run found."""

    path: Path
    methods: tuple[MethodResult, ...]  # in the order of `RunConfig.methods`
    best: MethodResult | None  # on the starts that chose it; `None` if all failed
    # the one whose policy the GIF shows: the best of those that ask the model, or of all where none
    # does; `None` for no GIF
    drawn: MethodResult | None
    table: str = field(repr=False)  # the same as text
    capped: BudgetExceededError | None = None  # of the first search that a cap ended


def format_table(results: Sequence[MethodResult], config: RunConfig, episodes: int) -> str:
    """Return the results as a table of plain text."""
    starts = episodes * (1 + FINAL_ROUNDS if config.finalists else 1)
    chosen, held_out = f"chosen on {starts}", f"held-out {config.heldout}"
    rows = []
    for r in results:
        heldout = "failed" if r.heldout is None else f"{r.heldout:.2f}"
        if r.heldout is not None and r.heldout_error is not None:
            heldout += f" ± {r.heldout_error:.2f}"
        scores = ("all failed", "-") if r.final is None else (f"{r.final:.2f}", heldout)
        asked = ("-", "-", f"{r.seconds:.1f}", "-")
        if r.fallback_share is not None:
            share = f"{100 * r.fallback_share:.1f} %"
            asked = (f"{r.requests:,}", f"{r.tokens:,}", f"{r.seconds:.1f}", share)
        rows.append((r.label, *scores, f"{r.episodes:,}", *asked))
    head = ("method", chosen, held_out, "episodes", "requests", "tokens", "seconds", "fallback")
    lines = Table.of(head, rows).text()
    lines.append("")
    lines.append(
        f"{chosen}: mean return of the best policy on the starts that chose it. {held_out}: its "
        "mean"
    )
    lines.append("on held-out initial states, ± standard error. Episodes and seconds exclude them.")
    lines += [f"{r.label}: {r.stopped}" for r in results if r.stopped]
    failed = [f"{r.failures} of {r.label}" for r in results if r.failures]
    if failed:
        lines.append(f"Failed evaluations: {', '.join(failed)} (the reasons are in trials.jsonl).")
    return "\n".join(lines) + "\n"
