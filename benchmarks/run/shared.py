"""What all methods of a run share: warm-up points, and words on what each policy did."""

from __future__ import annotations

import warnings

import numpy as np

from llmopt.benchmarks.engine.asking import draw_warmup
from llmopt.benchmarks.run.config import RunConfig
from llmopt.benchmarks.run.published import WarmupPoint, load_warmup
from llmopt.benchmarks.tasks.table import Task


def warmup_points(config: RunConfig, task: Task, n: int) -> list[WarmupPoint]:
    """Draw or load the shared warm-up points."""
    if isinstance(config.warmup, int):
        drawn = draw_warmup(task.box, n, config.warmup, config.seed)
        return [WarmupPoint(tuple(row)) for row in drawn.tolist()]
    low, high = task.box
    points = load_warmup(config.warmup, n)
    inside: list[WarmupPoint] = []
    for point in points:
        clipped = tuple(np.clip(point.params, low, high).tolist())
        # A moved point is another policy: its stored returns are not its own.
        inside.append(point if clipped == point.params else WarmupPoint(clipped))
    moved = sum(a is not b for a, b in zip(points, inside, strict=True))
    if moved:
        warnings.warn(
            f"{moved} of {len(points)} loaded warm-up points lie outside [{low:g}, {high:g}]: "
            "they are moved to its border and evaluated anew; --box LOW HIGH widens it",
            stacklevel=2,
        )
    return inside
