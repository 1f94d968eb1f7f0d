"""The pictures of README and docs/results.md, drawn from the committed lines by `findings`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np

from llmopt.benchmarks.engine.cell import Row
from llmopt.benchmarks.experiments.findings import Question
from llmopt.benchmarks.experiments.words import CHANGED, WRITTEN, is_present
from llmopt.benchmarks.report import figures
from llmopt.benchmarks.report.stats import FEWEST

_LOOKS = {
    "words": ("chat model, words and feedback", "C3", 2.0),
    "shuffled": ("chat model, results shuffled", "C4", 0.8),
    "none": ("chat model, numbers alone", "C1", 2.0),
    "cma": ("CMA-ES", "C0", 0.8),
    "random": ("random search", "C7", 0.8),
}


def shares(asked: Sequence[Question]) -> bytes:
    """Draw the share of pairs won on each task as a PNG file's content, a row for each rival."""
    rows = [(question, each) for question in asked for each, _ in question.pairings]
    rng = np.random.default_rng(0)
    canvas = figures.new_figure(10, 0.26 * len(rows) + 1.2)
    axes = canvas.add_subplot()
    for place, (question, each) in enumerate(rows):
        y = place + rng.uniform(-0.28, 0.28, each.tasks)
        color = figures.COLORS[asked.index(question) % len(figures.COLORS)]
        axes.scatter(each.shares, y, s=7, alpha=0.45, color=color, lw=0)
        if each.tasks >= FEWEST:
            axes.plot(each.interval, [place, place], color="black", lw=1.2)
        axes.plot([each.effect], [place], "o", color="black", ms=3.5)
    for question in asked:
        own = [place for place, (other, _) in enumerate(rows) if other is question]
        text = textwrap.fill(f"{question.who}: {question.title}", 48)
        axes.text(1.04, np.mean(own), text, va="center", fontsize="small")
        axes.axhline(own[-1] + 0.5, color="0.7", lw=0.8)
    axes.axvline(0.5, color="0.4", lw=0.8)
    axes.set_yticks(range(len(rows)), [each.rival for _, each in rows], fontsize="small")
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(-0.03, 1.03)
    axes.set_xlabel("share of pairs won: each task, and the mean with its 95 % interval")
    figures.plain(axes)
    return figures.png(canvas)


def curves(lines: Sequence[Row]) -> bytes:
    """Draw the best return so far of each search on the systems written or changed for this."""
    canvas = figures.new_figure(8, 6.6, 100)
    handles = {}
    for place, task in enumerate((*WRITTEN, *CHANGED), start=1):
        axes = canvas.add_subplot(2, 2, place)
        own = [x for x in lines if x["task"] == task and x["method"] in _LOOKS and is_present(x)]
        for line in own:
            name, color, width = _LOOKS[line["method"]]
            best = figures.best_so_far(line["curve"])
            x = np.arange(1, len(best) + 1)
            (handles[name],) = axes.plot(x, best, color=color, linewidth=width)
        top, low = (end(line["best"] for line in own) for end in (max, min))
        axes.set_ylim(low - 0.4 * (top - low), top + 0.05 * (top - low))
        axes.set_xlabel("evaluations")
        axes.set_ylabel("best return so far")
        figures.plain(axes, task)
    return figures.png(canvas, handles)
