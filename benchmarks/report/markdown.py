"""Markdown tables of a benchmark's raw lines: one line for each problem, losses included."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llmopt.benchmarks.methods.table import METHODS
from llmopt.benchmarks.report.lines import (
    Grouped,
    ProblemKey,
    ReportError,
    Runs,
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
    text = [*_markdown_problems(grouped, model)]
    if model:
        text += _markdown_ablations(grouped, model)
    if len(grouped) > 1:
        said, table = methods_table(grouped, model)
        text += ["", said, "", *table.markdown()] if len(table.rows) > 1 else []
    text += _markdown_costs(grouped)
    for note in notes(grouped):
        text += ["", note]
    if source:
        text += ["", f"Made by `llmopt report` from {source}."]
    return "\n".join(map(_plain, text)) + "\n"


def _markdown_problems(grouped: Grouped, model: str | None) -> list[str]:
    """Make the main table: each problem's model, the usual rivals and the best baseline."""
    present = {runs.method: runs.label for runs in every(grouped)}
    usual = [present[method] for method in ("cma", "random") if method in present]
    shown = [*([model] if model else []), *usual]
    head = ["problem", "budget", *shown, "best baseline"]
    rows = []
    for key, runs in grouped.items():
        medians = {label: float(np.median(own.heldout)) for label, own in runs.items()}
        baselines = [label for label, own in runs.items() if own.group == "baseline"]
        best = max(baselines, key=medians.__getitem__, default=None)
        top = max((medians[x] for x in (*shown, best) if x in medians), default=math.inf)
        cells = [
            _markdown_score(runs, label, top, spread=label == model or label == present.get("cma"))
            for label in shown
        ]
        if best in shown:  # its numbers stand in the line already
            cells.append(best or "")
        else:
            cells.append(_markdown_score(runs, best, top) + (f" {best}" if best else ""))
        if model:
            cells.append(_place(medians, model))
        rows.append([_short_titles(grouped)[key], _budget(key, runs), *cells])
    return [
        "Mean return of each run's best policy on starts that no search saw: median over seeds "
        "[quartiles]; bold is the best of the line. The budget is evaluations × seeds. Within a "
        "line all methods have the same box (±6, scaled ±2, unless said), warm-up policies, "
        "evaluations and starts. “Best baseline” is chosen afterwards by these very scores"
        + (
            "; “place” is the model's among all methods run there, by medians, shared where equal."
            if model
            else "."
        ),
        "",
        *_table([*head, *(["place"] if model else [])], rows),
    ]


def _ablations_of(model: str, grouped: Grouped) -> list[str]:
    """Return the labels of a model's ablations: its own prompt, asked of it or of no model."""
    labelled = {runs.label: runs for runs in every(grouped)}
    main = labelled[model]
    return [
        label
        for label, runs in labelled.items()
        if runs.group == "ablation"
        and METHODS[runs.method].prompt == METHODS[main.method].prompt
        and (not runs.asks_model or runs.line["model"] == main.line["model"])
    ]


def _markdown_ablations(grouped: Grouped, model: str) -> list[str]:
    """Make the table of what stands in the model's place: what the model itself adds."""
    ablations = _ablations_of(model, grouped)
    rows = []
    for key, runs in grouped.items():
        shown = [label for label in (model, *ablations) if label in runs]
        if model in runs and len(shown) > 1:
            top = max(float(np.median(runs[label].heldout)) for label in shown)
            rows.append(
                [
                    _short_titles(grouped)[key],
                    _budget(key, {label: runs[label] for label in shown}),
                    *(_markdown_score(runs, label, top) for label in (model, *ablations)),
                ]
            )
    if not rows:
        return []
    return [
        "",
        f"What the model adds: {model} beside its ablations. Shuffled rewards: its prompt shows "
        "them exchanged. No model: something else draws from the same prompt in its place.",
        "",
        *_table(["problem", "budget", model, *ablations], rows),
    ]


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


def _markdown_costs(grouped: Grouped) -> list[str]:
    """Say what the models cost, and how many of their points they did not deliver."""
    owns: dict[str, list[Runs]] = {}
    for runs in every(grouped):
        if runs.asks_model:
            owns.setdefault(runs.label, []).append(runs)
    text: list[str] = []
    for label, many in owns.items():
        count = sum(len(runs.lines) for runs in many)
        spent = {
            name: sum(runs.total("usage", name) for runs in many) / count
            for name in ("requests", "prompt_tokens", "completion_tokens")
        }
        costs = [runs.cost for runs in many]
        total = sum(c for c in costs if c is not None)
        cost = f"${total / count:.4f}" if total else "no money"
        cost = "an unknown cost" if None in costs else cost
        sources = [line["sources"] for runs in many for line in runs.lines.values()]
        lost = sum(counts.get("fallback", 0) for counts in sources)
        asked = lost + sum(counts.get("llm", 0) for counts in sources)
        text += [
            "",
            f"A run of {label} took {spent['requests']:,.0f} requests, "
            f"{spent['prompt_tokens']:,.0f} prompt and {spent['completion_tokens']:,.0f} answer "
            f"tokens and {cost} (means over {count} runs). Fallback: {lost:,} of the {asked:,} "
            "points asked of it were not delivered, and drawn at random instead.",
        ]
    return text


def _budget(key: ProblemKey, runs: Mapping[str, Runs]) -> str:
    """Return evaluations and seeds; the least and the most seeds where methods differ."""
    counts = sorted({len(own.lines) for own in runs.values()})
    seeds = "–".join(str(c) for c in dict.fromkeys((counts[0], counts[-1])))
    return _JOINED.join((f"{key.evaluations:,}", "×", seeds))


def _markdown_score(
    runs: Mapping[str, Runs], label: str | None, top: float, *, spread: bool = True
) -> str:
    """Return a method's median and quartiles, bold where the median is the best shown."""
    if label is None or label not in runs:
        return ""
    low, middle, high = quartiles(runs[label].heldout)
    shown = short_number(middle)
    shown += f" [{short_number(low)},{_JOINED}{short_number(high)}]" if spread else ""
    return f"**{shown}**" if float(np.median(runs[label].heldout)) == top else shown


def _place(medians: Mapping[str, float], label: str) -> str:
    """Return a method's place by medians, with all the places that equal ones share."""
    if label not in medians:
        return ""
    first = 1 + sum(m > medians[label] for m in medians.values())
    last = sum(m >= medians[label] for m in medians.values())
    places = first if first == last else f"{first}–{last}"
    return _JOINED.join((str(places), "of", str(len(medians))))


def _short_titles(grouped: Grouped) -> dict[ProblemKey, str]:
    """Return the problems' names without what a column or the text above says."""
    usual = f", box ±{PUBLISHED_BOX[1]:g}"
    scaled = f", scaled, box ±{SCALED_BOX[1]:g}"
    return {
        key: title.replace(f", {key.evaluations} evaluations", "")
        .replace(usual, "")
        .replace(scaled, ", scaled")
        for key, title in titles(grouped).items()
    }


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return Table.of(head, rows).markdown()


def _plain(text: str) -> str:
    """Return text in which no name out of a file becomes a tag, a link or another line."""
    return re.sub(r"[\r\n]+", " ", text).replace("<", "&lt;").replace("](", "]\\(")


def between_markers(text: str, table: str, begin: str = BEGIN, end: str = END) -> str:
    """Put a table between the markers of a text, in place of what is there."""
    head, first, rest = text.partition(begin)
    _, last, tail = rest.partition(end)
    if not first or not last or begin in rest or end in tail or end in head:
        raise ReportError(
            f"expected a line {begin} and after it a line {end}, each once: add them where the "
            "table belongs"
        )
    return f"{head}{first}\n{table}{last}{tail}"
