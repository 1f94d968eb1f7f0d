"""Pictures of a run: learning curves (PNG) and the best policy at work (GIF)."""

from __future__ import annotations

import ctypes.util
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from llmopt.benchmarks.tasks.table import Task

# Okabe and Ito's colours, told apart by every kind of colour vision; line styles do it in grey.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_STYLES = ("-", "--", "-.", ":", (0, (3, 1, 1, 1, 1, 1)), (0, (5, 1)))

GIF_FRAMES = 100
GIF_WIDTH = 320  # pixels


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
            label=label,
        )
        if label in scores:
            # Side by side, so that equal scores do not hide each other.
            place = longest * (1.03 + 0.02 * number) + 0.5
            axes.plot([place], [scores[label]], marker="D", color=color, ms=6, ls="", clip_on=False)
    if scores:
        axes.plot([], [], marker="D", color="0.35", ls="", label="same policy, held-out starts")
    right = longest * (1.03 + 0.02 * len(curves)) + 0.5 if scores else longest + 0.5
    axes.set_xlim(0.5, max(right, 2.0))
    _limit(axes, curves, warmup, list(scores.values()))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("evaluated policies")
    axes.set_ylabel(f"best mean return so far\n({episodes} selection episodes)")
    axes.set_title(title)
    axes.grid(True, color="0.88", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if warmup or curves:
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
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


def choose_renderer() -> None:
    """Let pictures be drawn without a screen: must run before MuJoCo is first imported.

    Nothing changes where a screen is there or the user has chosen.
    """
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        if ctypes.util.find_library("EGL"):
            os.environ.setdefault("MUJOCO_GL", "egl")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")


def policy_gif(task: Task, params: Any, seed: int) -> bytes:
    """Render one episode of a policy.

    Args:
        task: What to run.
        params: Flat policy parameters.
        seed: Seed of the start.

    Returns:
        A GIF file's content: at most `GIF_FRAMES` frames, evenly spread over the episode
        and played in the episode's own time, but in no more than about 11 seconds.

    Raises:
        Exception: Whatever the environment's renderer raises; it is no part of a run's
            result, so that a caller should report it and go on.
    """
    from PIL import Image

    view = {"camera_name": task.camera} if task.camera else {}
    env = task.make_env(render_mode="rgb_array", **view)
    try:
        act = task.policy(env).bind(params)
        cap = task.step_cap(env)
        # A frame may cost a hundred steps: run once to learn the length, then draw few.
        length = sum(1 for _ in _episode(env, act, seed, cap))
        wanted = set(np.linspace(0, length - 1, min(GIF_FRAMES - 1, length)).round().astype(int))
        frames = [_shrink(env.render()) for i in _episode(env, act, seed, cap) if i in wanted]
        frames.append(_shrink(env.render()))
        fps = float(env.metadata.get("render_fps") or 30)
    finally:
        env.close()
    # A viewer shows no frame for less than 20 ms.
    pause = int(np.clip(1000 * length / len(wanted) / fps, 20, 100))
    palette = [f.quantize(128, dither=Image.Dither.NONE) for f in frames]
    buffer = io.BytesIO()
    durations = [pause] * (len(palette) - 1) + [1000]
    palette[0].save(
        buffer,
        format="GIF",
        save_all=True,
        append_images=palette[1:],
        duration=durations,
        loop=0,
        optimize=False,
    )
    return buffer.getvalue()


def _episode(
    env: gym.Env[Any, Any], act: Callable[[Any], Any], seed: int, cap: int
) -> Iterator[int]:
    """Run an episode; yield each step's number before it is taken."""
    observation, _ = env.reset(seed=seed)
    for step in range(cap):
        yield step
        observation, _, terminated, truncated, _ = env.step(act(observation))
        if terminated or truncated:
            return


def _shrink(frame: Any) -> Any:
    """Turn a rendered ``(height, width, 3)`` frame into a picture no wider than `GIF_WIDTH`.

    Raises:
        TypeError: The environment rendered no picture.
    """
    from PIL import Image

    if not isinstance(frame, np.ndarray):
        raise TypeError(f"expected a picture from render(), got {type(frame).__name__}")
    image = Image.fromarray(frame.astype(np.uint8))
    if image.width > GIF_WIDTH:
        size = (GIF_WIDTH, round(image.height * GIF_WIDTH / image.width))
        image = image.resize(size, Image.Resampling.LANCZOS)
    return image
