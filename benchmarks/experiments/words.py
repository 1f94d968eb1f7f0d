"""The policies that a chat model searched with words, and which of the committed searches count.

``words.jsonl`` and ``rivals.jsonl`` hold at most 30 evaluations of 10 episodes of each search, with
version 2 of the prompt ``words``; results/README.md names the commit whose code made them. Large
models know the known tasks from their training: `WRITTEN` systems exist nowhere else, `CHANGED`
ones are changed forms of known tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from llmopt.benchmarks.engine.cell import Row
from llmopt.benchmarks.methods.baselines import CMA
from llmopt.space import Space

BASELINES = ("columns", "cma", "random")
"""Methods without a chat model."""
PRESENT = 4
"""The first seed of the committed searches under version 2 of the prompt `words`."""


@dataclass(frozen=True)
class WordsTask:
    """A task: how its environment is made, and further options of its `PolicySearch`."""

    env: str | Callable[[], gym.Env[Any, Any]]
    options: dict[str, Any] = field(default_factory=dict)


TASKS = (
    "zones", "cascade", "heavy-car", "swimmer-changed", "mountaincar", "mountaincar-discrete",
    "swimmer", "hopper", "pendulum-inverted", "pendulum-double", "reacher", "cartpole", "acrobot",
    "pendulum", "frozenlake", "walker", "cheetah",
)  # fmt: skip
"""The tasks of the committed searches."""

WRITTEN, CHANGED = ("zones", "cascade"), ("heavy-car", "swimmer-changed")
"""Systems that exist nowhere else, and changed forms of known ones."""

TUNING = ("spills", "switches")
"""Two tuning tasks on data made for this, in the committed lines; their code is gone."""


def is_present(line: Row) -> bool:
    """Whether a committed search had version 2 of the prompt, or no model."""
    return line["method"] in BASELINES or line["seed"] >= PRESENT


class InSpace:
    """CMA-ES of the unit cube, in the form of a space's points."""

    def __init__(self, space: Space, cma: CMA) -> None:
        self._space, self._cma = space, cma

    def ask(self) -> Any:
        """Return the next point."""
        self._point = self._cma.ask()
        return self._space.unflatten(self._space.decode(np.clip(self._point, 0.0, 1.0)))

    def tell(self, params: Any, reward: float) -> None:
        """Report the value."""
        self._cma.tell(self._point, reward)

    def tell_failure(self, params: Any, reason: str) -> None:
        """Report that there is none."""
        self._cma.tell_failure(self._point, reason)
