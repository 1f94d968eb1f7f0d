"""The learning curve of a run, drawn with Matplotlib, and the film of a policy."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llmopt.benchmarks.tasks.table import Task
from llmopt.policies import picture
from llmopt.util.text import clean, cut

# Okabe and Ito's colours, distinct to every kind of colour vision; in grey the line styles differ.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY = "#9aa0a6"
_LONGEST_NAME = 80
_LARGEST = 1e300  # that an axis shows; matplotlib overflows beyond it
_STYLES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (3, 1, 1, 1, 1, 1)), (0, (5, 1)))


def best_so_far(means: Sequence[float | None]) -> np.ndarray:
    """Return the largest mean return up to each evaluation, NaN before the first sound one."""
    values = np.array([np.nan if m is None else m for m in means], dtype=float)
    return np.fmax.accumulate(values) if values.size else values


def new_figure(width: float, height: float, dpi: int = 120) -> Any:
    """Return an empty figure of some inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def png(figure: Any, handles: Mapping[str, Any] | None = None, columns: int = 3) -> bytes:
    """Put a legend below a figure, and return it as a PNG file's content."""
    if handles:
        legend = figure.legend(
            list(handles.values()),
            list(map(_name, handles)),
            loc="outside lower center",
            ncols=min(columns, len(handles)),
            frameon=False,
        )
        for text in legend.get_texts():
            text.set_parse_math(False)  # a model's name is no formula
    buffer = io.BytesIO()
    with np.errstate(all="ignore"):  # numbers near the largest float
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _name(label: str) -> str:
    return cut(clean(label), _LONGEST_NAME)


def _look(style: int | None) -> dict[str, Any]:
    """Return the style of a curve by its number, or grey."""
    if style is None:
        return {"color": GREY, "linewidth": 1}
    color, line = COLORS[style % len(COLORS)], _STYLES[style % len(_STYLES)]
    return {"color": color, "linewidth": 2, "linestyle": line}


def plain(axes: Any, title: str = "") -> None:
    """Give axes a title and a light grid."""
    axes.set_title(_name(title), parse_math=False, fontsize="medium")
    axes.grid(True, color="0.88", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _limit(axes: Any, curves: Sequence[np.ndarray], scores: Sequence[float] = ()) -> None:
    """Let the finite values of some curves fill the height.

    What the first random points score is often so low that the search would be a flat line.
    """
    values = np.concatenate([*curves, np.array(scores, dtype=float)])
    values = values[np.isfinite(values)]
    if values.size:
        low, high = max(values.min(), -_LARGEST), min(values.max(), _LARGEST)
        margin = 0.08 * (high - low) or max(abs(high) * 0.1, 1.0)
        axes.set_ylim(low - margin, high + margin)


def learning_curve(
    curves: Mapping[str, Sequence[float | None]],
    *,
    warmup: int,
    title: str,
    episodes: int,
    heldout: Mapping[str, float | None] | None = None,
) -> bytes:
    """Draw the best mean return so far of one run against the number of evaluated policies."""
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(8, 4.8)
    axes = figure.add_subplot()
    longest = max((len(c) for c in curves.values()), default=0)
    first = max(warmup, 1)
    handles: dict[str, Any] = {}
    if warmup:
        axes.axvspan(0.5, warmup + 0.5, color="0.92", lw=0)
        shared = best_so_far(next(iter(curves.values()), ())[:warmup])
        step: dict[str, Any] = {"drawstyle": "steps-post", "linewidth": 2}
        (line,) = axes.plot(np.arange(1, len(shared) + 1), shared, color="0.35", **step)
        handles["shared warm-up"] = line
    scores = {k: s for k, s in (heldout or {}).items() if s is not None}
    shown = []
    for number, (label, means) in enumerate(curves.items()):
        best = best_so_far(means)[first - 1 :]
        shown.append(best)
        x = np.arange(first, first + len(best))
        (handles[label],) = axes.plot(x, best, drawstyle="steps-post", **_look(number))
        if label in scores:
            # Side by side, so that equal scores do not hide each other.
            place = longest * (1.03 + 0.02 * number) + 0.5
            mark = {"marker": "D", "color": _look(number)["color"], "ls": "", "clip_on": False}
            axes.plot([place], [scores[label]], **mark)
    if scores:
        (handles["chosen policy, held-out starts"],) = axes.plot(
            [], [], marker="D", color="0.35", ls=""
        )
    right = longest * (1.03 + 0.02 * len(curves)) if scores else longest
    axes.set_xlim(0.5, max(right + 0.5, 2.0))
    _limit(axes, shown, list(scores.values()))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("evaluated policies")
    axes.set_ylabel(f"best mean return so far\n({episodes} selection episodes)")
    plain(axes, title)
    return png(figure, handles)


def policy_gif(task: Task, params: Any, seed: int, caption: str = "") -> bytes:
    """Render one episode of a policy."""
    view = {"camera_name": task.camera} if task.camera else {}
    env = task.make_env(render_mode="rgb_array", **view)
    try:
        act = task.policy(env).bind(params)
        return picture.policy_gif(env, act, seed, task.step_cap(env), caption)
    finally:
        env.close()
