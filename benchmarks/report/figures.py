"""The learning curve of a run, drawn with Matplotlib, and the film of a policy."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llmopt.benchmarks.tasks.table import Task
from llmopt.policies import picture
from llmopt.util.text import clean, cut

_LONGEST_NAME = 80
_LARGEST = 1e300  # that an axis shows; Matplotlib overflows beyond it


def _best_so_far(means: Sequence[float | None]) -> np.ndarray:
    """Return the largest mean return up to each evaluation, NaN before the first sound one."""
    values = np.array([np.nan if m is None else m for m in means], dtype=float)
    return np.clip(np.fmax.accumulate(values), -_LARGEST, _LARGEST) if values.size else values


def learning_curve(
    curves: Mapping[str, Sequence[float | None]],
    *,
    warmup: int,
    title: str,
    episodes: int,
    heldout: Mapping[str, float | None] | None = None,
) -> bytes:
    """Draw the best mean return so far of one run against the number of evaluated policies.

    Args:
        curves: Mean returns by method, the shared warm-up first.
        warmup: Length of the warm-up, which is shaded.
        title: Title of the picture.
        episodes: Episodes of one evaluation.
        heldout: Scores on held-out initial states, drawn as diamonds at the end.

    Returns:
        A PNG file's content.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 4.8), dpi=120, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    names, shown = [cut(clean(label), _LONGEST_NAME) for label in curves], []
    handles = []
    for label, means in curves.items():
        best, first = _best_so_far(means), max(warmup, 1)
        (line,) = axes.plot(
            np.arange(first, len(best) + 1), best[first - 1 :], drawstyle="steps-post", linewidth=2
        )
        handles.append(line)
        shown += best[first - 1 :].tolist()
        score = (heldout or {}).get(label)
        if score is not None:
            axes.plot([len(best) * 1.03], [score], marker="D", color=line.get_color())
            shown.append(score)
    if warmup:
        axes.axvspan(0.5, warmup + 0.5, color="0.92", lw=0)
    finite = [v for v in shown if np.isfinite(v)]
    if finite:  # what the first random points score would often flatten the search
        low, high = min(finite), max(finite)
        margin = 0.08 * (high - low) or max(abs(high) * 0.1, 1.0)
        axes.set_ylim(low - margin, high + margin)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("evaluated policies; diamonds: held-out states")
    axes.set_ylabel(f"best mean return so far\n({episodes} selection episodes)")
    axes.set_title(cut(clean(title), _LONGEST_NAME), parse_math=False, fontsize="medium")
    axes.grid(True, color="0.88", linewidth=0.8)
    if handles:
        legend = figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
        for text in legend.get_texts():
            text.set_parse_math(False)  # a model's name is no formula
    buffer = io.BytesIO()
    with np.errstate(all="ignore"):  # numbers near the largest float
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def policy_gif(task: Task, params: Any, seed: int, caption: str = "") -> bytes:
    """Render one episode of a policy."""
    view = {"camera_name": task.camera} if task.camera else {}
    env = task.make_env(render_mode="rgb_array", **view)
    try:
        act = task.policy(env).bind(params)
        return picture.policy_gif(env, act, seed, task.step_cap(env), caption)
    finally:
        env.close()
