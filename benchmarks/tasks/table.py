"""The tasks: those of `catalogue.toml` by alias and task id, others by their Gymnasium id."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from importlib.resources import files
from typing import Any

import gymnasium as gym

from llmopt.benchmarks.tasks.task import SCALED_BOX, Task
from llmopt.errors import LLMOptError, SpaceError
from llmopt.policies.environment import missing_environment
from llmopt.util.text import first_line

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
    seen = "normalized: less its mean, over its sd" if "mean" in form else "scaled to [-1, 1]"
    low, high = form.get("box", SCALED_BOX)
    return replace(
        task,
        id=f"{task.env_id}/scaled-v1",
        box=(low, high),
        description=f"{task.description} {_CLIPPED}",
        observes=tuple(f"{text} ({seen})" for text in task.observes),
        scaled=True,
        normal=(tuple(form["mean"]), tuple(form["variance"])) if "mean" in form else None,
    )


_FORMS = _read()
TASKS: tuple[Task, ...] = (
    *(scaled or published for published, scaled in _FORMS.values()),
    *(replace(p, alias=f"{p.alias}-published") for p, scaled in _FORMS.values() if scaled),
)
"""All tasks by name. Where scaling helps, the name alone is the scaled form."""

__all__ = ["TASKS", "Task", "UnknownTaskError", "get_task"]


class UnknownTaskError(LLMOptError, ValueError):
    """A task's name is neither an alias nor a Gymnasium id."""


def get_task(
    name: str,
    *,
    bias: bool | None = None,
    box: tuple[float, float] | None = None,
    description: str | None = None,
    wrappers: Sequence[str] | None = None,
) -> Task:
    """Return a task by alias, task id or Gymnasium id.

    An environment that is not in the table is scaled. `wrappers` is ``()`` for the published form,
    raw observations, and ``None`` for the task's own.
    """
    if box is not None and not (-1e300 < box[0] < box[1] < 1e300):
        raise SpaceError(
            f"the box is [{box[0]}, {box[1]}]; expected two finite numbers, the lower first"
        )
    task = next((t for t in TASKS if name in (t.alias, t.id, t.env_id)), None)
    if task is None:
        _check_id(name)
        task = Task(f"{name}/scaled-v1", name, box=SCALED_BOX, scaled=True)
    if wrappers:
        raise SpaceError(f"wrappers={list(wrappers)}: expected none; wrap the environment yourself")
    if wrappers is not None and task.scaled:
        raw = (t for t in TASKS if t.env_id == task.env_id and not t.scaled)
        task = next(raw, Task(f"{task.env_id}/linear-v1", task.env_id))
    changes: dict[str, Any] = {}
    if bias is not None and bias != task.bias:
        changes["bias"] = bias
    if box is not None and tuple(box) != task.box:
        changes["box"] = (float(box[0]), float(box[1]))
    if changes:  # another problem, so another id
        changes["id"] = "/".join(
            [task.id]
            + ([] if "bias" not in changes else ["bias" if bias else "no-bias"])
            + ([] if "box" not in changes else ["box{:g},{:g}".format(*changes["box"])])
        )
    if description is not None:
        changes["description"] = description
    return replace(task, **changes) if changes else task


def _check_id(name: str) -> None:
    """Raise `UnknownTaskError` if Gymnasium does not know an id; say what is near."""
    module, colon, env_id = name.rpartition(":")
    if colon:  # as gymnasium.make does: the module registers its environments on import
        try:
            importlib.import_module(module)
        except (ImportError, ValueError) as error:
            raise UnknownTaskError(
                f"task {name!r}: cannot import the module {module!r} ({error}); for a module in "
                "this folder set PYTHONPATH=."
            ) from error
    try:
        gym.spec(env_id)
    except gym.error.Error as error:
        aliases = [t.alias for t in TASKS]
        lower = {known.lower(): known for known in [*gym.registry, *aliases]}
        near = [lower[n] for n in get_close_matches(name.lower(), lower, n=3, cutoff=0.7)]
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        if isinstance(error, gym.error.DeprecatedEnv | gym.error.VersionNotFound):
            hint = f"{first_line(error) or type(error).__name__} "
        elif not near:
            hint = f"{missing_environment(name)}. "
        raise UnknownTaskError(
            f"unknown task {name!r}: {hint}Valid: {', '.join(sorted(aliases))}, and any "
            "Gymnasium id"
        ) from error
