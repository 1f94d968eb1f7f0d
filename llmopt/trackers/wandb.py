"""A search as a run of Weights & Biases."""

from __future__ import annotations

from typing import Any

from llmopt.trackers.callback import RunTracker, Search, Told, needs


class WeightsAndBiases(RunTracker):
    """Writes each search as a run: one step for every trial.

    Args:
        project: The project's name.
        **options: Passed on to ``wandb.init``: ``mode="offline"``, ``dir="..."``, ``tags=[...]``.
    """

    def __init__(self, project: str = "llmopt", **options: Any) -> None:
        with needs("wandb", "WeightsAndBiases()"):
            import wandb
        super().__init__()
        self._wandb: Any = wandb
        self._options = {"project": project, **options}

    def _begin(self, search: Search, mark: str, resumed: bool) -> Any:
        settings = {"name": search.name, "config": dict(search.settings), "reinit": "create_new"}
        return self._wandb.init(**{**settings, **self._options})

    def _write(self, run: Any, told: Told) -> None:
        point = {f"params/{name}": value for name, value in told.params.items()}
        run.log({**point, **told.numbers, **told.said}, step=told.trial.number)
        if told.best:
            run.summary["best_params"] = told.best

    def _end(self, run: Any, reason: str) -> None:
        if reason:
            run.summary["ended"] = reason
        run.finish()  # uploads it where it is not offline
