"""A search as a run of Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmopt.history import Trial
from llmopt.trackers.base import RunTracker, Search, missing, words


class WeightsAndBiases(RunTracker):
    """Writes each search as a run: one step for every trial.

    Args:
        project: The project's name.
        **options: Passed on to ``wandb.init``: ``mode="offline"``, ``dir="..."``, ``tags=[...]``.

    Raises:
        ImportError: The package is not installed.
    """

    def __init__(self, project: str = "llmopt", **options: Any) -> None:
        try:
            import wandb
        except ModuleNotFoundError as error:
            raise missing("wandb", "WeightsAndBiases()") from error
        super().__init__()
        self._wandb: Any = wandb
        self._options = {"project": project, **options}

    def _begin(self, search: Search, first: int) -> Any:
        settings = {"name": search.name, "config": dict(search.settings), "reinit": "create_new"}
        return self._wandb.init(**{**settings, **self._options})

    def _write(
        self,
        run: Any,
        search: Search,
        trial: Trial,
        found: Mapping[str, float],
        best: Trial | None,
    ) -> None:
        pairs = zip(search.parameters, trial.values, strict=True)
        point = {
            f"params/{n}": v if isinstance(v, (int, float, str)) else repr(v) for n, v in pairs
        }
        said = {"state": trial.state, "source": trial.source, **words(trial)}
        run.log({**point, **found, **said}, step=trial.number)
        if best is not None and len(search.directions) == 1:
            run.summary["best_params"] = dict(zip(search.parameters, best.values, strict=True))

    def _end(self, run: Any, reason: str) -> None:
        if reason:
            run.summary["ended"] = reason
        run.finish()  # uploads it where it is not offline
