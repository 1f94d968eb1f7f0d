"""The web page of a benchmark: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from llmopt._version import __version__
from llmopt.benchmarks.report.charts import (
    Bar,
    Curve,
    heldout_bars,
    learning_curves,
    legend,
    number,
)
from llmopt.benchmarks.report.runs import (
    Grouped,
    ProblemKey,
    ReportError,
    Runs,
    any_line,
    first_model,
    group,
    group_of,
    notes,
    titles,
)
from llmopt.benchmarks.report.stats import compare, duels, quartiles
from llmopt.benchmarks.report.tables import COLUMNS, duel_table, problem_table, rank_table
from llmopt.benchmarks.tasks.targets import TARGETS

_CURVES = 6  # methods drawn in colour; the others are grey
_SAID = 40  # explanations shown of one run
_SAMPLER = "columns-gaussian"  # the ablation without a model that is drawn in colour

Gif = Callable[[Mapping[str, Any]], bytes | None]


def page(lines: Sequence[Mapping[str, Any]], *, gif: Gif | None = None) -> str:
    """Make the whole page.

    Args:
        lines: Raw lines of one or more result files.
        gif: Renders the best point of a raw line; ``None`` leaves the pictures out.

    Returns:
        One HTML file that needs nothing else.

    Raises:
        ReportError: There are no lines.
    """
    grouped = group(lines)
    if not grouped:
        raise ReportError("no finished cells: run llmopt bench first")
    named = titles(grouped)
    model = first_model(grouped)
    always = _in_colour(grouped, model)
    environment = Environment(
        loader=PackageLoader("llmopt.benchmarks.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = _breakable
    environment.filters["sha256"] = _sha256
    return environment.get_template("page.html.j2").render(
        version=__version__,
        versions=sorted({f"{k} {v}" for line in lines for k, v in line["versions"].items()}),
        seeds=sum(len(r.seeds) for runs in grouped.values() for r in runs.values()),
        notes=notes(grouped),
        columns=COLUMNS,
        overall=_overall(grouped, named, model) if len(grouped) > 1 else None,
        problems=[
            _problem(f"p{i}", key, runs, named[key], always)
            for i, (key, runs) in enumerate(grouped.items())
        ],
        films=_films(grouped, gif) if gif else [],
        said=_explanations(grouped, named),
        silent=_silent(grouped),
        most_said=_SAID,
    )


def _problem(
    anchor: str, key: ProblemKey, runs: Mapping[str, Runs], title: str, always: Sequence[str]
) -> dict[str, Any]:
    line = any_line(runs)
    styles = _styles(runs, always)
    curves = []
    for label, method_runs in runs.items():
        # Until its first sound point a run counts as worse than all, and nothing lies between.
        missing = np.isnan(method_runs.curves).any()
        low, middle, high = np.quantile(
            np.where(np.isnan(method_runs.curves), -np.inf, method_runs.curves),
            [0.25, 0.5, 0.75],
            axis=0,
            method="nearest" if missing else "linear",
        )
        band = label in always  # more than a few would hide each other
        curves.append(Curve(label, low, middle, high, styles.get(label), band))
    bars = [
        Bar(label, *quartiles(r.heldout), tuple(r.heldout.tolist()), styles.get(label))
        for label, r in runs.items()
    ]
    bars.sort(key=lambda b: -b.middle if math.isfinite(b.middle) else math.inf)
    shown: list[tuple[str, int | None]] = list(styles.items())
    if len(runs) > len(styles):
        shown.append(("other methods", None))
    target = TARGETS.get(line["env_id"])
    seeds = sorted({len(r.seeds) for r in runs.values()})
    return {
        "anchor": anchor,
        "title": title,
        "key": key,
        "parameters": line["parameters"],
        "seeds": str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}",
        "target": None if target is None else number(target),
        "curves": Markup(
            learning_curves(curves, key.warmup, f"Learning curves, {title}", "best mean return")
        ),
        "legend": Markup(legend(shown)),
        "bars": Markup(heldout_bars(bars, f"Held-out scores, {title}")),
        "table": problem_table(list(runs.values())),
    }


def _in_colour(grouped: Grouped, model: str | None) -> tuple[str, ...]:
    """Choose the labels that have the same colour on every problem."""
    labels = {label: r for runs in grouped.values() for label, r in runs.items()}
    first = [] if model is None else [model]
    for method in (_SAMPLER, "cma", "random"):
        first += [label for label, r in labels.items() if r.method == method][:1]
    return tuple(first)


def _styles(runs: Mapping[str, Runs], always: Sequence[str]) -> dict[str, int]:
    """Choose what is drawn in colour: some methods always and in their own, then the best."""
    fixed = {label: always.index(label) for label in runs if label in always}
    rest = [label for label in runs if label not in fixed]
    rest.sort(key=lambda label: -float(np.median(runs[label].heldout)))
    styles = {**fixed, **dict(zip(rest, range(len(always), _CURVES), strict=False))}
    return {label: styles[label] for label in runs if label in styles}


def _overall(
    grouped: Grouped, named: Mapping[ProblemKey, str], model: str | None
) -> dict[str, Any]:
    compared = compare(grouped)
    return {
        "compared": compared,
        "dropped": [named[key] for key in compared.dropped],
        "ranks": rank_table(compared, grouped),
        "model": model,
        "duels": duel_table(duels(grouped, model)) if model else None,
    }


def _films(grouped: Grouped, gif: Gif) -> list[dict[str, str]]:
    """Show the best policy of each task, and the model's own where it is another."""
    best: dict[tuple[str, str], tuple[float, str, Mapping[str, Any]]] = {}
    for runs in grouped.values():
        for method_runs in runs.values():
            kinds = ["any"] + (["model"] if group_of(method_runs) == "model" else [])
            for line in method_runs.lines.values():
                if line["heldout"] is None:
                    continue
                for kind in kinds:
                    leader = best.get((line["env_id"], kind))
                    if leader is None or line["heldout"] > leader[0]:
                        best[line["env_id"], kind] = line["heldout"], method_runs.label, line
    chosen: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for (env_id, _), (_, label, line) in best.items():
        known = chosen.setdefault(env_id, [])
        if all(line is not other for _, other in known):
            known.append((label, line))
    films = []
    for env_id, pairs in chosen.items():
        for label, line in pairs:
            picture = gif(line)
            if picture is not None:
                text = f"{env_id}: {label}, held-out {number(line['heldout'])}"
                films.append({"text": text, "data": base64.b64encode(picture).decode()})
    return films


def _explanations(grouped: Grouped, named: Mapping[ProblemKey, str]) -> list[dict[str, Any]]:
    """Return what each model said in its first run with words, on each problem."""
    parts = []
    for key, runs in grouped.items():
        for label, method_runs in runs.items():
            said = [(s, x) for s, x in sorted(method_runs.lines.items()) if x["explanations"]]
            if not said:
                continue
            seed, line = said[0]
            texts = line["explanations"]
            step = max(1, -(-len(texts) // _SAID))
            parts.append(
                {
                    "title": f"{label}, {named[key]}, seed {seed}",
                    "count": len(texts),
                    "texts": [(i + 1, _return_of(line, i), text) for i, text in texts[::step]],
                }
            )
    return parts


def _silent(grouped: Grouped) -> list[str]:
    """Return the models that said nothing on some problem."""
    return list(
        dict.fromkeys(
            label
            for runs in grouped.values()
            for label, method_runs in runs.items()
            if group_of(method_runs) == "model"
            and not any(line["explanations"] for line in method_runs.lines.values())
        )
    )


def _return_of(line: Mapping[str, Any], index: int) -> str:
    mean = line["means"][line["cell"]["warmup"] + index]
    return "failed" if mean is None else number(mean)


def _sha256(text: str) -> str:
    """Return what a content security policy names a script by."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _breakable(text: str) -> Markup:
    """Return text that may be broken within a long name, such as an environment's."""
    return Markup(re.sub(r"(?<=[a-z])(?=[A-Z])", "<wbr>", str(escape(text))))
