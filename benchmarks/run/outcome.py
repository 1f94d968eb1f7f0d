"""What a run has found: one result for each method, and the table of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llmopt.benchmarks.engine.search import FINAL_ROUNDS
from llmopt.benchmarks.report.table import Table
from llmopt.benchmarks.run.config import RunConfig

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
