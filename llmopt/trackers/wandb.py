"""A search as a run of Weights & Biases."""

from __future__ import annotations

from typing import Any

from llmopt.history import Trial, Usage
from llmopt.trackers.base import Callback, Search, missing, numbers, words


class WeightsAndBiases(Callback):
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
        self._wandb: Any = wandb
        self._options = {"project": project, **options}
        self._runs: dict[str, Any] = {}

    def told(self, search: Search, trial: Trial, best: Trial | None, usage: Usage) -> None:
        """Write a trial."""
        run = self._runs.get(search.name)
        if run is None:
            settings = dict(search.settings)
            run = self._runs[search.name] = self._wandb.init(
                **{"name": search.name, "config": settings, "reinit": "create_new", **self._options}
            )
        pairs = zip(search.parameters, trial.values, strict=True)
        point = {
            f"params/{n}": v if isinstance(v, (int, float, str)) else repr(v) for n, v in pairs
        }
        said = {"state": trial.state, "source": trial.source, **words(trial)}
        run.log({**point, **numbers(search, trial, best, usage), **said}, step=trial.number)
        if best is not None and len(search.directions) == 1:
            run.summary["best_params"] = dict(zip(search.parameters, best.values, strict=True))

    def ended(self, search: Search, reason: str) -> None:
        """Finish the run, which uploads it where it is not offline."""
        run = self._runs.pop(search.name, None)
        if run is not None:
            if reason:
                run.summary["ended"] = reason
            run.finish()
