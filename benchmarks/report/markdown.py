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
from llmopt.benchmarks.report.stats import against_each, format_p, quartiles, share
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
    if len(grouped) > 1 and (rivals := rivals_table(grouped, model)):
        text += ["", RIVALS.format(model), "", *rivals.markdown()]
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


def rivals_table(grouped: Grouped, model: str | None) -> Table | None:
    """Return the table of the headline model against each other method, if there is a model."""
    pairings = against_each(grouped, model) if model else []
    head = ["rival", "pairs won [95 %]", "p", "p, corrected", "problems", "result"]
    rows = [
        [
            each.rival,
            share(each, " %"),
            format_p(each.p),
            format_p(p),
            str(each.tasks),
            each.verdict(p, len(pairings)),
        ]
        for each, p in pairings
    ]
    return Table.of(head, rows) if rows else None


RIVALS = (
    "{} against each other method: the share of pairs of runs on the same problem that it wins "
    "(ties count half), averaged over problems; the p value is from a two-sided sign-flip test "
    "over problems, raw and after Holm's correction."
)


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
