"""Markdown tables of a benchmark's raw lines: one line for each problem, losses included."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llmopt.benchmarks.report.lines import (
    COSTS,
    Grouped,
    ReportError,
    Runs,
    costs,
    every,
    first_model,
    group,
    notes,
    titles,
)
from llmopt.benchmarks.report.stats import (
    Comparison,
    compare,
    duels,
    format_interval,
    format_p,
    quartiles,
)
from llmopt.benchmarks.report.table import Table, short_number
from llmopt.benchmarks.tasks.task import PUBLISHED_BOX, SCALED_BOX

BEGIN, END = "<!-- benchmark:begin -->", "<!-- benchmark:end -->"

_JOINED = "\u00a0"  # a space at which no narrow cell breaks


def markdown(lines: Sequence[Mapping[str, Any]], source: str = "") -> str:
    """Make the tables for a README: one line for each problem, losses included."""
    grouped = group(lines)
    if not grouped:
        raise ReportError("no finished cells: run llmopt bench first")
    model = first_model(grouped)
    text = [
        "Mean return of each run's best policy on starts that no search saw: median over seeds "
        "[quartiles]; bold is the best of the line. The budget is evaluations × seeds. Within a "
        "line all methods have the same box (±6, scaled ±2, unless said), warm-up policies, "
        "evaluations and starts. No model: something else draws from the same prompt in its place.",
        "",
        *_problems(grouped).markdown(),
    ]
    if len(grouped) > 1:
        said, table = methods_table(grouped, model)
        text += ["", said, "", *table.markdown()] if len(table.rows) > 1 else []
    text += _costs(grouped)
    for note in notes(grouped):
        text += ["", note]
    if source:
        text += ["", f"Made by `llmopt report` from {source}."]
    return "\n".join(map(_plain, text)) + "\n"


def _problems(grouped: Grouped) -> Table:
    """Return the main table: a row for each problem, a column for each method."""
    labels = list(dict.fromkeys(runs.label for runs in every(grouped)))
    named = titles(grouped)
    rows = []
    for key, runs in grouped.items():
        # Without what the next column or the text above says.
        title = named[key].replace(f", {key.evaluations} evaluations", "")
        title = title.replace(f", box ±{PUBLISHED_BOX[1]:g}", "")
        title = title.replace(f", scaled, box ±{SCALED_BOX[1]:g}", ", scaled")
        counts = sorted({len(own.lines) for own in runs.values()})
        seeds = "–".join(str(c) for c in dict.fromkeys((counts[0], counts[-1])))
        budget = _JOINED.join((f"{key.evaluations:,}", "×", seeds))
        top = max(float(np.median(own.heldout)) for own in runs.values())
        rows.append([title, budget, *(_score(runs.get(label), top) for label in labels)])
    return Table.of(["problem", "budget", *labels], rows)


def _score(runs: Runs | None, top: float) -> str:
    """Return a method's median and quartiles, bold where the median is the best."""
    if runs is None:
        return ""
    low, middle, high = quartiles(runs.heldout)
    shown = f"{short_number(middle)} [{short_number(low)},{_JOINED}{short_number(high)}]"
    return f"**{shown}**" if float(np.median(runs.heldout)) == top else shown


def methods_table(grouped: Grouped, model: str | None) -> tuple[str, Table]:
    """Return the table of methods (ranks, aggregates, wins and losses), and what it means."""
    compared: Comparison = compare(grouped)
    fought = {d.label: d for d in duels(grouped, model)} if model else {}
    labels = sorted(compared.labels, key=compared.mean_rank.__getitem__)
    rows = []
    for label in (*labels, *(other for other in fought if other not in labels)):
        row = [label, "–", "–"]
        if label in labels:
            low, high = compared.interval[label]
            interval = format_interval(compared.iqm[label], low, high)
            row = [label, f"{compared.mean_rank[label]:.2f}", interval]
        if model:
            d = fought.get(label)
            row += (
                ["–"] * 4
                if d is None
                else [str(d.wins), str(d.ties), str(d.losses), format_p(d.adjusted)]
            )
        rows.append(row)
    head = ["method", "mean rank", "IQM", *(["wins", "ties", "losses", "p"] if model else [])]
    text = (
        f"Mean rank (1 is best of {len(labels)}) and interquartile mean of normalized scores (0: "
        "random search's median, 1: the best median) with its 95 % bootstrap interval, over the "
        f"{compared.instances} instances (problem and seed) of {len(compared.problems)} problems "
        "that all ranked methods have finished."
    )
    if model:
        text += (
            f" Wins, ties and losses are {model}'s against the method of the line, pair by pair "
            "(p: two-sided Wilcoxon signed-rank test after Holm's correction)."
        )
    return text, Table.of(head, rows)


def _costs(grouped: Grouped) -> list[str]:
    """Say what a run of each model took."""
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for runs in every(grouped):
        if runs.asks_model:
            lines.setdefault(runs.label, []).extend(runs.lines.values())
    if not lines:
        return []
    rows = [[label, *costs(own, True)] for label, own in lines.items()]
    return [
        "",
        "What a run of a model took (means). Fallback is the share of its points that it did not "
        "deliver, and that were drawn at random instead.",
        "",
        *Table.of(["method", *COSTS], rows).markdown(),
    ]


def _plain(text: str) -> str:
    """Return text in which no name out of a file becomes a tag, a link or another line."""
    return re.sub(r"[\r\n]+", " ", text).replace("<", "&lt;").replace("](", "]\\(")


def between_markers(text: str, table: str, begin: str = BEGIN, end: str = END) -> str:
    """Replace the text between two markers by a table."""
    head, first, rest = text.partition(begin)
    _, last, tail = rest.partition(end)
    if not first or not last or begin in rest or end in tail or end in head:
        raise ReportError(
            f"expected a line {begin} and after it a line {end}, each once: add them where the "
            "table belongs"
        )
    return f"{head}{first}\n{table}{last}{tail}"
