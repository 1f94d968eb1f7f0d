"""Raw lines of a benchmark, sorted by problem and method, and named for readers.

The score of a run is the mean return of its best point on starts that no search saw
(``heldout``), never the best score on the starts that chose that point.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from llmopt.benchmarks.methods.table import METHODS
from llmopt.benchmarks.tasks.table import TASKS


@dataclass(frozen=True, order=True)
class ProblemKey:
    """What makes runs comparable: the task, the budget and the starts of the judgement."""

    task: str
    evaluations: int
    episodes: int
    warmup: int
    heldout: int


@dataclass(frozen=True)
class Runs:
    """The runs of one method on one problem, by seed."""

    problem: ProblemKey  # what was solved
    label: str  # the method's name for readers
    method: str  # a key of `METHODS`
    lines: Mapping[int, Mapping[str, Any]] = field(repr=False)  # raw lines by seed

    @property
    def line(self) -> Mapping[str, Any]:
        """Any raw line, for fields that all lines share."""
        return next(iter(self.lines.values()))

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, in order."""
        return tuple(sorted(self.lines))

    @cached_property
    def heldout(self) -> np.ndarray:
        """Held-out mean of each seed; a run whose points all failed has its floor."""
        return np.array([score(self.lines[s]) for s in self.seeds], dtype=float)


Grouped = Mapping[ProblemKey, Mapping[str, Runs]]
"""Runs by problem and label, as `group` returns them."""


def score(line: Mapping[str, Any]) -> float:
    """Return the score of one run: its best point's mean return on held-out starts.

    Where a run has none (all of its points failed, or the best one did on the held-out
    starts) it is the worst return that the run has seen, or minus infinity.
    """
    if line["heldout"] is not None:
        return float(line["heldout"])
    return min((m for m in line["means"] if m is not None), default=-math.inf)


def label_of(line: Mapping[str, Any]) -> str:
    """Return a line's method as tables call it."""
    method = str(line["cell"]["method"])
    model = line.get("model") or line["cell"].get("model") or "model"
    return METHODS[method].label.format(model=model) if method in METHODS else method


def group(raw: Iterable[Mapping[str, Any]]) -> dict[ProblemKey, dict[str, Runs]]:
    """Sort raw lines by problem and method label, both in the order of tables.

    No run is lost: where lines of one label differ in how the model was asked, each way is
    a separate method. Of equal cells the first counts.
    """
    grouped: dict[ProblemKey, dict[str, dict[int, Mapping[str, Any]]]] = defaultdict(dict)
    methods: dict[str, str] = {}
    lines = [(line, label_of(line), _asking(line["cell"])) for line in raw]
    ways: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for _, label, way in lines:
        ways[label].append(way)
    for line, label, way in lines:
        cell = line["cell"]
        budget = (cell[name] for name in ("evaluations", "episodes", "warmup", "heldout"))
        key = ProblemKey(line["task"], *budget)
        differ = [len(set(column)) > 1 for column in zip(*ways[label], strict=True)]
        parts = [part for part, other in zip(way, differ, strict=True) if other]
        label = ", ".join([label, *parts])
        methods[label] = cell["method"]
        grouped[key].setdefault(label, {}).setdefault(cell["seed"], line)
    order = [*METHODS, *methods.values()]
    labels = sorted(methods, key=lambda label: (order.index(methods[label]), label))
    return {
        key: {
            label: Runs(key, label, methods[label], grouped[key][label])
            for label in labels
            if label in grouped[key]
        }
        for key in sorted(grouped, key=lambda k: (_task_place(k.task), k))
    }


def _asking(cell: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parts of a label that name how a cell's model is asked, if this differs."""
    return str(cell.get("model") or "no model"), f"{cell['batch']} a request"


def _task_place(task: str) -> int:
    places = [i for i, t in enumerate(TASKS) if task.startswith(t.env_id)]
    return places[0] if places else len(TASKS)


def problem_title(key: ProblemKey, runs: Mapping[str, Runs]) -> str:
    """Return a problem's name for readers."""
    line = next(iter(runs.values())).line
    if line["box"] is None:  # a table of reactions
        return f"{line['env_id']}, {key.evaluations} evaluations"
    low, high = line["box"]
    parts = [line["env_id"]]
    form = str(line["task"]).removeprefix(parts[0]).split("/")[1:]
    if form[:1] == ["scaled-v1"]:
        parts.append("scaled")
    parts += [part for part in form[1:] if "=" in part or "+" in part or part[:1].isupper()]
    if not line["bias"]:
        parts.append("no bias")
    parts.append(f"box ±{high:g}" if low == -high else f"box [{low:g}, {high:g}]")
    parts.append(f"{key.evaluations} evaluations")
    return ", ".join(parts)


def titles(grouped: Grouped) -> dict[ProblemKey, str]:
    """Return every problem's name, with as much of the budget as tells them apart."""
    names = {key: problem_title(key, runs) for key, runs in grouped.items()}
    for name, words in (
        ("episodes", "{} episodes each"),
        ("warmup", "{} warm-up policies"),
        ("heldout", "{} held-out starts"),
    ):
        alike: dict[str, set[int]] = defaultdict(set)
        for key, title in names.items():
            alike[title].add(getattr(key, name))
        for key, title in names.items():
            if len(alike[title]) > 1:
                names[key] = f"{title}, {words.format(getattr(key, name))}"
    return names
