"""A search as a run of Weights & Biases."""

from __future__ import annotations

from typing import Any

from llmopt.errors import needs
from llmopt.history import Trial
from llmopt.trackers.callback import Row, RunTracker, Search


class WeightsAndBiases(RunTracker):
    """Writes each search as a run: one step for every trial.

    Args:
        project: The project's name.
        content: Whether to upload the task and its description too.
        **options: Passed on to ``wandb.init``: ``mode="offline"``, ``dir="..."``, ``tags=[...]``.
    """

    def __init__(self, project: str = "llmopt", *, content: bool = False, **options: Any) -> None:
        with needs("WeightsAndBiases()", "wandb"):
            import wandb
        super().__init__(content)
        self._wandb: Any = wandb
        self._options = {"project": project, **options}

    def _begin(self, search: Search, mark: str, resumed: bool) -> Any:
        settings = {"name": search.name, "config": dict(search.settings), "reinit": "create_new"}
        return self._wandb.init(**{**settings, **self._options})

    def _write(self, run: Any, trial: Trial, row: Row, best: Row) -> None:
        run.log(row, step=trial.number)
        if best:
            run.summary["best_params"] = best

    def _end(self, run: Any, reason: str) -> None:
        if reason:
            run.summary["ended"] = reason
        run.finish()  # uploads the run unless it is offline
