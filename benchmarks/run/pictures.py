"""Pictures of a run: learning curves (PNG) and the best policy at work (GIF)."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llmopt.benchmarks.tasks.table import Task
from llmopt.policies import picture
from llmopt.text import clean

# Okabe and Ito's colours, told apart by every kind of colour vision; line styles do it in grey.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_STYLES = ("-", "--", "-.", ":", (0, (3, 1, 1, 1, 1, 1)), (0, (5, 1)))


def best_so_far(means: Sequence[float | None]) -> np.ndarray:
    """Return the largest mean return up to each evaluation, NaN before the first sound one.

    Args:
        means: Mean return of each evaluation; ``None`` for a failed one.
    """
    values = np.array([np.nan if m is None else m for m in means], dtype=float)
    return np.fmax.accumulate(values) if values.size else values


def learning_curve(
    curves: Mapping[str, Sequence[float | None]],
    *,
    warmup: int,
    title: str,
    episodes: int,
    heldout: Mapping[str, float | None] | None = None,
) -> bytes:
    """Draw the best mean return so far against the number of evaluated policies.

    Args:
        curves: For each method's label the mean return of every evaluation, warm-up first.
        warmup: How many evaluations at the start are shared warm-up.
        title: What stands above.
        episodes: Selection episodes of one evaluation, for the axis label.
        heldout: For each label the best policy's mean on held-out starts, drawn as a mark
            at the right edge.

    Returns:
        A PNG file's content.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 4.8), dpi=120, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    longest = max((len(c) for c in curves.values()), default=0)
    if warmup:
        axes.axvspan(0.5, warmup + 0.5, color="0.92", lw=0)
        shared = best_so_far(next(iter(curves.values()), ())[:warmup])
        axes.plot(
            np.arange(1, len(shared) + 1),
            shared,
            drawstyle="steps-post",
            color="0.35",
            linewidth=2,
            label="shared warm-up",
        )
    scores = {k: s for k, s in (heldout or {}).items() if s is not None}
    for number, (label, means) in enumerate(curves.items()):
        color = _COLORS[number % len(_COLORS)]
        first = max(warmup, 1)
        best = best_so_far(means)[first - 1 :]
        axes.plot(
            np.arange(first, first + len(best)),
            best,
            drawstyle="steps-post",
            color=color,
            linestyle=_STYLES[number % len(_STYLES)],
            linewidth=2,
            label=clean(label),
        )
        if label in scores:
            # Side by side, so that equal scores do not hide each other.
            place = longest * (1.03 + 0.02 * number) + 0.5
            axes.plot([place], [scores[label]], marker="D", color=color, ms=6, ls="", clip_on=False)
    if scores:
        axes.plot([], [], marker="D", color="0.35", ls="", label="chosen policy, held-out starts")
    right = longest * (1.03 + 0.02 * len(curves)) + 0.5 if scores else longest + 0.5
    axes.set_xlim(0.5, max(right, 2.0))
    _limit(axes, curves, warmup, list(scores.values()))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("evaluated policies")
    axes.set_ylabel(f"best mean return so far\n({episodes} selection episodes)")
    axes.set_title(clean(title), parse_math=False)
    axes.grid(True, color="0.88", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if warmup or curves:
        legend = figure.legend(loc="outside lower center", ncols=3, frameon=False)
        for text in legend.get_texts():
            text.set_parse_math(False)  # a model's name is no formula
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _limit(
    axes: Any, curves: Mapping[str, Sequence[float | None]], warmup: int, scores: list[float]
) -> None:
    """Let the returns from the end of the warm-up on fill the height.

    What the first random points score is often so low that the search would be a flat line.
    """
    shown = [best_so_far(means)[max(warmup, 1) - 1 :] for means in curves.values()]
    values = np.concatenate([*shown, np.array(scores, dtype=float)])
    values = values[np.isfinite(values)]
    if values.size:
        low, high = values.min(), values.max()
        margin = 0.08 * (high - low) or max(abs(high) * 0.1, 1.0)
        axes.set_ylim(low - margin, high + margin)


def policy_gif(task: Task, params: Any, seed: int, caption: str = "") -> bytes:
    """Render one episode of a policy.

    Args:
        task: What to run.
        params: Flat policy parameters.
        seed: Seed of the start.
        caption: A line below the picture.

    Returns:
        A GIF file's content: at most `picture.FRAMES` frames, evenly spread over the episode
        and played in the episode's own time, but in no more than about 11 seconds.

    Raises:
        Exception: Whatever the environment's renderer raises; it is no part of a run's
            result, so that a caller should report it and go on.
    """
    view = {"camera_name": task.camera} if task.camera else {}
    env = task.make_env(render_mode="rgb_array", **view)
    try:
        act = task.policy(env).bind(params)
        return picture.policy_gif(env, act, seed, task.step_cap(env), caption)
    finally:
        env.close()
