"""All figures of the benchmarks, made with Matplotlib, and the film of a policy."""

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


def comparison(
    curves: Mapping[str, np.ndarray],
    scores: Mapping[str, np.ndarray],
    styles: Mapping[str, int],
    warmup: int,
    banded: Sequence[str] = (),
) -> bytes:
    """Draw what methods found on one problem: learning curves, and held-out scores, best above.

    Curves are ``(n_seeds, n_points)`` best means so far, scores ``(n_seeds,)``. A label without a
    style is grey; the banded ones also show quartiles.
    """
    figure = new_figure(12, max(4.5, 2.2 + 0.32 * len(scores)), 80)
    left, right = figure.subplots(1, 2)
    handles: dict[str, Any] = {}
    after = []
    # The grey ones first, so that they lie below.
    for label in sorted(curves, key=lambda label: label in styles):
        table = np.where(np.isnan(curves[label]), -np.inf, curves[label])
        method: Any = "linear" if np.isfinite(table).all() else "nearest"
        low, middle, high = np.quantile(table, [0.25, 0.5, 0.75], axis=0, method=method)
        look, x = _look(styles.get(label)), np.arange(1, table.shape[1] + 1)
        finite = np.isfinite(middle)
        (line,) = left.plot(x[finite], middle[finite], **look)
        handles[label if label in styles else "other methods"] = line
        seen = [low, high] if label in banded else [middle]
        after += [values[max(warmup - 1, 0) :] for values in seen]
        if label in banded:
            sound = np.isfinite(low)
            band = {"color": look["color"], "alpha": 0.14, "lw": 0}
            left.fill_between(x[sound], low[sound], high[sound], **band)
    if warmup > 1:
        left.axvspan(1, warmup, color="0.92", lw=0, zorder=0)
    _limit(left, after)
    left.set_xlabel("evaluated policies")
    left.set_ylabel("best mean return")
    plain(left, "best mean return so far on the selection starts")
    draw_scores(right, scores, styles)
    named = {label: handles[label] for label in styles if label in handles}
    return png(figure, {**named, **{k: h for k, h in handles.items() if k not in named}})


def draw_scores(axes: Any, scores: Mapping[str, np.ndarray], styles: Mapping[str, int]) -> None:
    """Draw held-out scores, the best method above: quartiles, median and each seed.

    Scores below the range of the axis are drawn at its left end, as arrows.
    """
    order = sorted(scores, key=lambda label: float(np.median(scores[label])))
    groups = [scores[label][np.isfinite(scores[label])] for label in order]
    least, most = _score_range(groups)
    for place, (label, own) in enumerate(zip(order, groups, strict=True)):
        if not own.size:
            continue
        color = _look(styles.get(label))["color"]
        low, middle, high = np.quantile(own, [0.25, 0.5, 0.75]).clip(least, most)
        axes.barh(place, high - low, left=low, height=0.55, color=color, alpha=0.35)
        axes.plot([middle] * 2, [place - 0.38, place + 0.38], color=color, linewidth=3)
        inside = own[own >= least]
        axes.plot(inside, [place] * inside.size, ".", color=color, alpha=0.8)
        if inside.size < own.size:
            axes.plot([least], [place], "<", color=color)
            axes.annotate(f" {own.size - inside.size} below", (least, place), fontsize="small")
    axes.set_yticks(range(len(order)), list(map(_name, order)))
    for text in axes.get_yticklabels():
        text.set_parse_math(False)
    pad = 0.05 * (most - least)
    axes.set_xlim(least - pad, most + pad)
    plain(axes, "held-out return of the best policy: quartiles, median")


def _score_range(groups: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return the ends of the axis: all scores but those far below most medians."""
    some = [group for group in groups if group.size]
    if not some:
        return -1.0, 1.0
    middles = [float(np.median(group)) for group in some]
    high = float(max(group.max() for group in some))
    span = high - float(np.quantile(middles, 0.25, method="higher"))
    low = float(min(group.min() for group in some))
    if span > 0:  # a median is worth more room than a single seed
        low = max(low, min(high - 4 * span, max(min(middles), high - 10 * span)))
    return (low, high) if high > low else (low - 1.0, high + 1.0)


def policy_gif(task: Task, params: Any, seed: int, caption: str = "") -> bytes:
    """Render one episode of a policy."""
    view = {"camera_name": task.camera} if task.camera else {}
    env = task.make_env(render_mode="rgb_array", **view)
    try:
        act = task.policy(env).bind(params)
        return picture.policy_gif(env, act, seed, task.step_cap(env), caption)
    finally:
        env.close()
