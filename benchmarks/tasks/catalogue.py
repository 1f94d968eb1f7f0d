"""The tasks by name, from `catalogue.toml`: an environment, how it is said in words, its forms."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Any

from llmopt.benchmarks.tasks.task import SCALED_BOX, Task
from llmopt.policies.wrapping import CLIP, RESCALE

_CLIPPED = "A force or torque beyond its bounds counts, and costs, as the bound."


def _read() -> dict[str, tuple[Task, Task | None]]:
    """Return by alias the published form of each task, and the scaled one where there is one."""
    text = files(__package__).joinpath("catalogue.toml").read_text(encoding="utf-8")
    found = {}
    for row in tomllib.loads(text)["task"]:
        scaled = row.pop("scaled", None)
        form: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in row.items()
        }
        task = Task(f"{row['env_id']}/linear-v1", **form)
        found[task.alias] = task, None if scaled is None else _scaled(task, scaled)
    return found


def _scaled(task: Task, form: Mapping[str, Any]) -> Task:
    """Return a published task as it is searched where nobody asks for the published form."""
    wrappers = tuple(form["wrappers"])
    seen = "scaled to [-1, 1]" if RESCALE in wrappers else "normalized: less its mean, over its sd"
    low, high = form.get("box", SCALED_BOX)
    return replace(
        task,
        id=f"{task.env_id}/scaled-v1",
        box=(low, high),
        description=f"{task.description} {_CLIPPED}" if CLIP in wrappers else task.description,
        observes=tuple(f"{text} ({seen})" for text in task.observes),
        wrappers=wrappers,
        normal=(tuple(form["mean"]), tuple(form["variance"])) if "mean" in form else None,
    )


_FORMS = _read()
TASKS: tuple[Task, ...] = (
    *(scaled or published for published, scaled in _FORMS.values()),
    *(replace(p, alias=f"{p.alias}-published") for p, scaled in _FORMS.values() if scaled),
)
"""All tasks by name. Where scaling helps, the name alone is the scaled form."""
