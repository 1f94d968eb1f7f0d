"""The tables and the picture of `llmopt.benchmarks.experiments.words`, made from its lines alone.

python -m llmopt.benchmarks.experiments.words --table
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from llmopt.benchmarks.engine.cell import Line
from llmopt.benchmarks.experiments.words import ARMS, BASELINES, UNKNOWN
from llmopt.benchmarks.report.figures import Look, Panel, best_so_far, panels
from llmopt.benchmarks.report.table import Table

COLUMNS = {
    "words": "words and feedback",
    "ten": "the same, ten requests",
    "shuffled": "results shuffled",
    "docs": "words, no feedback",
    "names": "names alone",
    "none": "numbers alone",
    "props-plus": "ProPS+",
    "props": "ProPS",
    "columns": "embedded model, 100",
    "cma": "CMA-ES, 100",
    "random": "random search, 100",
}

TITLES = {
    "zones": "heating of two zones, 10 parameters",
    "cascade": "three water tanks, 18",
    "heavy-car": "heavy car, reversed motor, 4",
    "swimmer-changed": "Swimmer, observations permuted and sign-flipped, 18",
    "spills": "data `spills`, hyper-parameters",
    "switches": "data `switches`, hyper-parameters",
    "mountaincar": "MountainCarContinuous (scaled)",
    "mountaincar-discrete": "MountainCar",
    "swimmer": "Swimmer",
    "hopper": "Hopper",
    "pendulum-inverted": "InvertedPendulum",
    "pendulum-double": "InvertedDoublePendulum",
    "reacher": "Reacher",
    "cartpole": "CartPole",
    "acrobot": "Acrobot",
    "pendulum": "Pendulum",
    "frozenlake": "FrozenLake",
    "walker": "Walker2d, 108 parameters",
    "cheetah": "HalfCheetah, 108 parameters",
}


PRESENT = 4
"""The first seed that was searched under version 2 of the prompt `words`, in the main table."""

PUBLISHED = {
    "mountaincar": "98.8",
    "mountaincar-discrete": "-111",
    "swimmer": "295",
    "pendulum-inverted": "1,000",
    "pendulum-double": "254",
    "cartpole": "500",
    "frozenlake": "0.93",
}
"""R2PO with a model of 20 billion weights after 4,000 episodes, mean of the best."""

Cells = dict[tuple[str, str], list[Line]]


def table(lines: Sequence[Line]) -> str:
    """Return the held-out returns as Markdown tables.

    They are of unknown systems, of known ones, of unknown ones seed by seed, and of earlier forms
    of the prompt. A cell is the median over searches, [least, largest], and for a chat model (the
    evaluations of each search).
    """
    now: Cells = {}
    earlier: Cells = {}
    for line in lines:
        where = now if is_present(line) else earlier
        where.setdefault((line["task"], line["method"]), []).append(line)
    unknown = [task for task in TITLES if task in UNKNOWN]
    known = [task for task in TITLES if task not in UNKNOWN]
    parts = [
        _summary("system that no model can know", unknown, now),
        _summary("task known to every model", known, now, published=True),
        _by_seed(now),
        _summary("earlier forms of the prompt", list(TITLES), earlier),
    ]
    return "\n\n".join(parts)


def is_present(line: Line) -> bool:
    """Whether a search was made with the present form of the prompt, or without a model."""
    return line["method"] in BASELINES or line["seed"] >= PRESENT


def _summary(head: str, tasks: Sequence[str], cells: Cells, *, published: bool = False) -> str:
    tasks = [t for t in tasks if any(t == c[0] for c in cells)]
    arms = [a for a in COLUMNS if any((t, a) in cells for t in tasks)]
    heads = [head, *(COLUMNS[a] for a in arms)]
    if published:
        heads.append("R2PO, 20 billion weights, 4,000 episodes (mean best)")
    rows = []
    for task in tasks:
        found = [_cell(cells.get((task, arm), []), arm not in BASELINES) for arm in arms]
        rows.append([TITLES[task], *found, *([PUBLISHED.get(task, "–")] if published else [])])
    return "\n".join(Table.of(heads, rows).markdown())


def _by_seed(cells: Cells) -> str:
    """Return the searches of unknown systems seed by seed: a seed has its own fresh starts."""
    tasks = [t for t in TITLES if t in UNKNOWN]
    arms = [a for a in COLUMNS if a in ARMS and any((t, a) in cells for t in tasks)]
    rows = []
    for task in tasks:
        found = {(a, line["seed"]): line for a in arms for line in cells.get((task, a), [])}
        for seed in sorted({s for _, s in found}):
            row = [_cell([found[a, seed]] if (a, seed) in found else [], True) for a in arms]
            rows.append([TITLES[task].split(",")[0], str(seed), *row])
    return "\n".join(Table.of(["system", "seed", *(COLUMNS[a] for a in arms)], rows).markdown())


def _cell(group: Sequence[Line], chat: bool) -> str:
    held = [line["held_out"] for line in group]
    if not held:
        return "–"
    text = f"{median(held):.4g}"
    if len(held) > 1 and max(held) > min(held):
        text += f" [{min(held):.4g}, {max(held):.4g}]"
    return text + (f" ({', '.join(str(len(g['curve'])) for g in group)})" if chat else "")


def picture(lines: Sequence[Line]) -> bytes:
    """Draw the best value so far of each search on systems that no model can know.

    Systems that were not searched without words, and earlier forms of the prompt, are left out.
    """
    looks = {
        "words": ("chat model, words and feedback", "C3", 2.0),
        "shuffled": ("chat model, results shuffled", "C4", 0.8),
        "none": ("chat model, numbers alone", "C1", 2.0),
        "cma": ("CMA-ES", "C0", 0.8),
        "random": ("random search", "C7", 0.8),
    }
    lines = [line for line in lines if is_present(line)]
    compared = {line["task"] for line in lines if line["method"] == "none"}
    drawn = []
    for task in (t for t in UNKNOWN if t in compared):
        own = [line for line in lines if line["task"] == task]
        curves = []
        for line in own:
            if line["method"] in looks:
                best = best_so_far(line["curve"])
                curves.append((line["method"], np.arange(1, len(best) + 1), best))
        top, low = (f(line["best"] for line in own) for f in (max, min))
        title = TITLES[task].rpartition(",")[0].replace("`", "")
        drawn.append(Panel(title, curves, (low - 0.4 * (top - low), top + 0.05 * (top - low))))
    styles = {arm: {"color": c, "linewidth": w} for arm, (_, c, w) in looks.items()}
    labels = {arm: name for arm, (name, _, _) in looks.items()}
    grid = [drawn[i : i + 3] for i in range(0, len(drawn), 3)]
    return panels(grid, Look(styles, labels))
