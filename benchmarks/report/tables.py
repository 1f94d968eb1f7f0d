"""The tables of the page, as values to show and to sort by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmopt.benchmarks.methods.table import METHODS
from llmopt.benchmarks.report.charts import number
from llmopt.benchmarks.report.runs import Grouped, ProblemKey, Runs, titles
from llmopt.benchmarks.report.stats import (
    Comparison,
    Duel,
    format_interval,
    format_p,
    quartiles,
)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its head.
        numeric: Whether it is sorted by numbers.
        hint: What it means.
    """

    name: str
    numeric: bool = True
    hint: str = ""


class Value:
    """A table's cell.

    Attributes:
        text: What is shown.
        key: What it is sorted by, always finite.
    """

    def __init__(self, text: str, key: float | str) -> None:
        self.text = text
        if isinstance(key, float) and not math.isfinite(key):
            key = 1e300 if key > 0 else -1e300 if key < 0 else 0.0
        self.key = key


@dataclass(frozen=True)
class Table:
    """A table whose columns sort.

    Attributes:
        columns: The heads.
        rows: One value for each column.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]


COLUMNS = (
    Column(
        "method",
        False,
        "who searched; “no model”: something else draws what the model's prompt allows",
    ),
    Column(
        "held-out return",
        True,
        "mean return of the best policy on starts that no search saw, median over seeds "
        "[quartiles]: the score",
    ),
    Column(
        "selection return",
        True,
        "mean return of the same policy on the starts that chose it, which flatters it: for "
        "comparison only",
    ),
    Column(
        "target reached", True, "seeds whose best policy reached the target on the selection starts"
    ),
    Column(
        "evaluations to target",
        True,
        "policies evaluated until then, warm-up included, median over seeds; “> N” where half"
        " of the seeds or more never did",
    ),
    Column("episodes a run", True, "selection episodes, warm-up included, mean over seeds"),
    Column("requests a run", True, "calls sent to the model, mean over seeds"),
    Column("prompt tokens", True, "tokens sent to the model in a run, mean over seeds"),
    Column("answer tokens", True, "tokens that the model wrote in a run, mean over seeds"),
    Column(
        "cost a run",
        True,
        "US dollars by list prices, mean over seeds; “unknown” where there is no price",
    ),
    Column("seconds proposing", True, "seconds of a run not spent in episodes, mean over seeds"),
    Column(
        "fallback",
        True,
        "share of the points that the model did not deliver and that were drawn at random in its "
        "place",
    ),
    Column(
        "failed", True, "evaluations of all seeds that had no return; shown where there are any"
    ),
)
"""What a problem's table shows of each method."""


def problem_table(runs: Sequence[Runs]) -> Table:
    """Return the table of one problem; the last column only where something failed."""
    rows = [method_row(method_runs) for method_runs in runs]
    if any(row[-1].key for row in rows):
        return Table(COLUMNS, rows)
    return Table(COLUMNS[:-1], [row[:-1] for row in rows])


def method_row(runs: Runs) -> list[Value]:
    """Return the numbers of one method on one problem, in the order of `COLUMNS`."""
    low, middle, high = quartiles(runs.heldout)
    first, selection, third = quartiles(
        [
            -math.inf if line["selection"] is None else line["selection"]
            for line in runs.lines.values()
        ]
    )
    reached = [t for t in runs.to_target if math.isfinite(t)]
    has_target = not any(math.isnan(t) for t in runs.to_target)
    median = float(np.median(runs.to_target)) if has_target else math.nan
    spec = METHODS.get(runs.method)
    asks = spec is not None and spec.asks_model
    cost = runs.cost
    share = runs.fallback_share
    points = runs.problem.evaluations + runs.problem.warmup
    none = Value("–", math.inf)

    def model(value: float) -> Value:
        return Value(f"{value:,.0f}", value) if asks else Value("–", 0.0)

    return [
        Value(runs.label, runs.label.lower()),
        Value(f"{number(middle)} [{number(low)}, {number(high)}]", middle),
        Value(f"{number(selection)} [{number(first)}, {number(third)}]", selection),
        Value(f"{len(reached)} of {len(runs.lines)}", len(reached) / len(runs.lines))
        if has_target
        else none,
        Value(f"> {points:,}" if math.isinf(median) else f"{median:,.0f}", median)
        if has_target
        else none,
        Value(f"{runs.mean('episodes'):,.0f}", runs.mean("episodes")),
        model(runs.mean("usage", "requests")),
        model(runs.mean("usage", "prompt_tokens")),
        model(runs.mean("usage", "completion_tokens")),
        Value("–", 0.0)
        if not asks
        else Value("unknown", math.inf)
        if cost is None
        else Value(
            "free" if cost == 0 else f"${cost / len(runs.lines):.4f}", cost / len(runs.lines)
        ),
        Value(number(runs.mean("seconds", "proposing")), runs.mean("seconds", "proposing")),
        none if share is None else Value(f"{100 * share:.1f} %", share),
        Value(f"{runs.total('failures'):,.0f}", runs.total("failures")),
    ]


def rank_table(compared: Comparison, grouped: Grouped) -> Table:
    """Return mean ranks and normalized scores, best first."""
    named = titles(grouped)
    columns = [Column("method", False), Column("mean rank"), Column("IQM of normalized scores")]
    columns += [Column(named[key]) for key in compared.problems]
    rows = []
    for label in sorted(compared.labels, key=compared.mean_rank.__getitem__):
        interval = format_interval(compared.iqm[label], *compared.interval[label])
        row = [
            Value(label, label.lower()),
            Value(f"{compared.mean_rank[label]:.2f}", compared.mean_rank[label]),
            Value(interval, compared.iqm[label]),
        ]
        row += [_rank(compared, label, key) for key in compared.problems]
        rows.append(row)
    return Table(columns, rows)


def _rank(compared: Comparison, label: str, key: ProblemKey) -> Value:
    rank = compared.rank_by_problem[label][key]
    return Value(f"{rank:.1f}", rank)


def duel_table(fought: Sequence[Duel]) -> Table:
    """Return wins and losses against each other method."""
    columns = [Column("against", False)]
    columns += [Column(name) for name in ("wins", "ties", "losses", "p", "p (Holm)")]
    return Table(
        columns,
        [
            [
                Value(d.label, d.label.lower()),
                *(Value(str(count), count) for count in (d.wins, d.ties, d.losses)),
                *(Value(format_p(p), p) for p in (d.p, d.adjusted)),
            ]
            for d in fought
        ],
    )
