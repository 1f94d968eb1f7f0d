"""What all methods of a run share: warm-up points, and words on what each policy did."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from llmopt.benchmarks.run.config import RunConfig
from llmopt.benchmarks.run.published import Record, WarmupPoint, load_warmup
from llmopt.benchmarks.runner import draw_warmup
from llmopt.benchmarks.tasks.table import Task
from llmopt.search.eventlog import EventLog


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


class Feedback:
    """What is told with the rewards, in a file of its own, so that a resumed run tells the same.

    Args:
        path: The file, made where there is feedback to tell.
        wanted: Whether there is.
    """

    def __init__(self, path: Path, wanted: bool) -> None:
        self._path = path if wanted else None
        self._log: EventLog | None = None
        self._texts: dict[tuple[str, int, bool], str] = {}

    def __enter__(self) -> Feedback:
        if self._path is not None:
            self._log = EventLog(self._path)
            for event in self._log.events:
                key = event.get("method", ""), event.get("index", -1), event.get("named", False)
                self._texts[key] = event.get("text", "")
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._log is not None:
            self._log.close()

    def add(self, record: Record, text: str, named: bool) -> None:
        """Keep what is told with a record's reward, with the task's names or with numbers."""
        if self._log is not None:
            event = {"event": "statistics", "method": record.method, "index": record.index}
            self._log.append({**event, "named": named, "text": text})
            self._texts[record.method, record.index, named] = text

    def of(self, record: Record, named: bool) -> str:
        """Return what is told with a record's reward; empty where nothing is known."""
        return self._texts.get((record.method, record.index, named), "")
