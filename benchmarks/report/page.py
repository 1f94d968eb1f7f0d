"""The web page of a benchmark: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from llmopt._version import __version__
from llmopt.benchmarks.report.figures import comparison
from llmopt.benchmarks.report.lines import (
    Grouped,
    ProblemKey,
    ReportError,
    Runs,
    costs,
    every,
    first_model,
    group,
    notes,
    titles,
)
from llmopt.benchmarks.report.markdown import RIVALS, rivals_table
from llmopt.benchmarks.report.stats import quartiles
from llmopt.benchmarks.report.table import Column, Table, plain_number
from llmopt.benchmarks.tasks.table import TARGETS
from llmopt.report_page.page import environment

_CURVES = 6  # methods shown in colour; the others are grey
_SAID = 40  # explanations shown of one run
_SAMPLER = "columns-gaussian"  # the ablation without a model that is shown in colour

Gif = Callable[[Mapping[str, Any]], bytes | None]

_HINTS = {
    "method": "who searched; “no model”: something else draws what the model's prompt allows",
    "held-out return": "mean return of the best policy on starts that no search saw, median over "
    "seeds [quartiles]: the score",
    "target reached": "seeds whose best policy reached the target on the selection starts",
    "evaluations to target": "policies evaluated until then, warm-up included, median over seeds; "
    "“> N” where half of the seeds or more never did",
    "episodes a run": "selection episodes, warm-up included, mean over seeds",
    "requests a run": "calls sent to the model, mean over seeds",
    "tokens": "tokens sent to the model in a run + tokens that it wrote, mean over seeds",
    "cost a run": "US dollars by list prices, mean over seeds; “unknown” where there is no price",
    "seconds proposing": "seconds of a run not spent in episodes, mean over seeds",
    "fallback": "share of the points that the model did not deliver and that were drawn at random "
    "in its place",
    "failed": "evaluations of all seeds that had no return; shown where there are any",
}
COLUMNS = tuple(Column(name, name != "method", hint) for name, hint in _HINTS.items())
"""What a problem's table shows of each method."""


def _breakable(text: str) -> Markup:
    """Return a text that may be broken within a long name."""
    parts = re.split(r"(?<=[_\-./:])(?=[A-Za-z])|(?<=[a-z])(?=[A-Z])", text)
    return Markup("<wbr>").join(parts)


def page(lines: Sequence[Mapping[str, Any]], *, gif: Gif | None = None) -> str:
    """Make the whole page."""
    grouped = group(lines)
    if not grouped:
        raise ReportError("no finished cells: run llmopt bench first")
    named = titles(grouped)
    model = first_model(grouped)
    always = _in_colour(grouped, model)
    templates = environment("llmopt.benchmarks.report")
    templates.filters["breakable"] = _breakable
    return templates.get_template("page.html.j2").render(
        version=__version__,
        versions=sorted({f"{k} {v}" for line in lines for k, v in line["versions"].items()}),
        seeds=sum(len(runs.seeds) for runs in every(grouped)),
        notes=notes(grouped),
        columns=COLUMNS,
        rivals=rivals_table(grouped, model) if len(grouped) > 1 else None,
        about=RIVALS.format(model),
        problems=[
            _problem(f"p{i}", key, runs, named[key], always)
            for i, (key, runs) in enumerate(grouped.items())
        ],
        films=_films(grouped, gif) if gif else [],
        said=_explanations(grouped, named),
        most_said=_SAID,
    )


def _problem(
    anchor: str, key: ProblemKey, runs: Mapping[str, Runs], title: str, always: Sequence[str]
) -> dict[str, Any]:
    line = next(iter(runs.values())).line
    figure = comparison(
        {label: r.curves for label, r in runs.items()},
        {label: r.heldout for label, r in runs.items()},
        _styles(runs, always),
        key.warmup,
        [label for label in runs if label in always],  # more than a few would hide each other
    )
    target = TARGETS.get(line["env_id"])
    seeds = sorted({len(r.seeds) for r in runs.values()})
    return {
        "anchor": anchor,
        "title": title,
        "key": key,
        "parameters": line["parameters"],
        "seeds": str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}",
        "target": None if target is None else plain_number(target),
        "figure": base64.b64encode(figure).decode(),
        "table": _problem_table(list(runs.values())),
    }


def _in_colour(grouped: Grouped, model: str | None) -> tuple[str, ...]:
    """Choose the labels that have the same colour on every problem."""
    labels = {runs.label: runs for runs in every(grouped)}
    first = [] if model is None else [model]
    for method in (_SAMPLER, "cma", "random"):
        first += [label for label, r in labels.items() if r.method == method][:1]
    return tuple(first)


def _styles(runs: Mapping[str, Runs], always: Sequence[str]) -> dict[str, int]:
    """Choose the methods shown in colour: some always, in their own colours, then the best."""
    fixed = {label: always.index(label) for label in runs if label in always}
    rest = [label for label in runs if label not in fixed]
    rest.sort(key=lambda label: -float(np.median(runs[label].heldout)))
    styles = {**fixed, **dict(zip(rest, range(len(always), _CURVES), strict=False))}
    return {label: styles[label] for label in runs if label in styles}


def _problem_table(runs: Sequence[Runs]) -> Table:
    """Return the table of one problem; the last column only where something failed."""
    rows = [_method_row(method_runs) for method_runs in runs]
    if any(row[-1] != "0" for row in rows):
        return Table(COLUMNS, rows)
    return Table(COLUMNS[:-1], [row[:-1] for row in rows])


def _method_row(runs: Runs) -> list[str]:
    """Return the numbers of one method on one problem, in the order of `COLUMNS`."""
    reached = sum(map(math.isfinite, runs.to_target))
    median = float(np.median(runs.to_target))
    has_target = not any(map(math.isnan, runs.to_target))
    points = runs.problem.evaluations + runs.problem.warmup
    to_target = f"> {points:,}" if math.isinf(median) else f"{median:,.0f}"
    lines = list(runs.lines.values())
    *spent, fallback = costs(lines, runs.asks_model)
    return [
        runs.label,
        "{1} [{0}, {2}]".format(*map(plain_number, quartiles(runs.heldout))),
        *((f"{reached} of {len(lines)}", to_target) if has_target else ("–", "–")),
        f"{np.mean([line['episodes'] for line in lines]):,.0f}",
        *spent,
        plain_number(float(np.mean([line["seconds"]["proposing"] for line in lines]))),
        fallback,
        f"{sum(line.get('failures', 0) for line in lines):,.0f}",
    ]


def _films(grouped: Grouped, gif: Gif) -> list[dict[str, str]]:
    """Show the best policy of each task, and the model's own where it is another."""
    shown: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for models in (False, True):
        best: dict[str, tuple[float, str, Mapping[str, Any]]] = {}
        for runs in every(grouped):
            for line in runs.lines.values():
                if line["heldout"] is None or (models and runs.group != "model"):
                    continue
                leader = best.get(line["env_id"])
                if leader is None or line["heldout"] > leader[0]:
                    best[line["env_id"]] = line["heldout"], runs.label, line
        for env_id, (_, label, line) in best.items():
            known = shown.setdefault(env_id, [])
            if all(line is not other for _, other in known):
                known.append((label, line))
    films = []
    for env_id, pairs in shown.items():
        for label, line in pairs:
            picture = gif(line)
            if picture is not None:
                text = f"{env_id}: {label}, held-out {plain_number(line['heldout'])}"
                films.append({"text": text, "data": base64.b64encode(picture).decode()})
    return films


def _explanations(grouped: Grouped, named: Mapping[ProblemKey, str]) -> list[dict[str, Any]]:
    """Return what each model said in its first run with words, on each problem."""
    parts = []
    for runs in every(grouped):
        for seed, line in sorted(runs.lines.items()):
            if texts := line["explanations"]:
                step = max(1, -(-len(texts) // _SAID))
                shown = [(i + 1, _return_of(line, i), text) for i, text in texts[::step]]
                title = f"{runs.label}, {named[runs.problem]}, seed {seed}"
                parts.append({"title": title, "count": len(texts), "texts": shown})
                break
    return parts


def _return_of(line: Mapping[str, Any], index: int) -> str:
    mean = line["means"][line["cell"]["warmup"] + index]
    return "failed" if mean is None else plain_number(mean)
