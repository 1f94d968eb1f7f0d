"""A search as a run of MLflow, with a child run for each trial."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from typing import Any

from llmopt.errors import needs
from llmopt.history import Trial
from llmopt.trackers.callback import Row, RunTracker, Search
from llmopt.util.text import clean

_AT_ONCE = 100  # parameters that MLflow takes in one call
_MOST_PARAM = 6000  # characters of a parameter that every store takes
_MOST_TAG = 5000  # characters of a tag
_MOST_NAME = 200  # characters; MLflow takes 250
_MARK = "llmopt.search"


class MLflow(RunTracker):
    """Writes each search as a run: metrics with every trial, and a child run for each.

    The parent run has the search's settings as parameters, and ``reward``, ``best`` and ``usage/…``
    over the trials. A child run has the point's parameters and reward, with reasons and feedback
    as tags. A resumed search continues in its run, found by the tag ``llmopt.search``.

    Args:
        experiment: Name of the experiment; created if missing.
        tracking_uri: Address of the tracking server; MLflow's default (``MLFLOW_TRACKING_URI``).
        children: Whether to write a run for each trial.
        content: Whether to write the task and its description too.
    """

    def __init__(
        self,
        experiment: str = "llmopt",
        *,
        tracking_uri: str | None = None,
        children: bool = True,
        content: bool = False,
    ) -> None:
        with needs("MLflow()", "mlflow"):
            from mlflow.entities import Metric, Param, RunTag
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        super().__init__(content)
        self._refused = MlflowException
        self._metric, self._param, self._tag = Metric, Param, RunTag
        self._client: Any = MlflowClient(tracking_uri=tracking_uri)
        self._name, self._id = experiment, ""
        self._children = children

    @property
    def _experiment(self) -> str:
        """The experiment's id; found or created in the tracker's thread."""
        if not self._id:
            found = self._client.get_experiment_by_name(self._name)
            made = found.experiment_id if found else self._client.create_experiment(self._name)
            self._id = str(made)
        return self._id

    def _begin(self, search: Search, mark: str, resumed: bool) -> str:
        same = f"tags.`{_MARK}` = '{mark}'"
        latest = {"max_results": 1, "order_by": ["attributes.start_time DESC"]}
        found = self._client.search_runs([self._experiment], same, **latest) if resumed else ()
        for run in found:
            self._client.update_run(run.info.run_id, status="RUNNING")
            return str(run.info.run_id)
        made = self._client.create_run(self._experiment, run_name=search.name, tags={_MARK: mark})
        with contextlib.suppress(self._refused):  # otherwise each trial would begin a run
            self._params(made.info.run_id, search.settings)
        return str(made.info.run_id)

    def _params(self, run: str, params: Mapping[str, Any]) -> None:
        texts = {k: clean(v if isinstance(v, str) else json.dumps(v)) for k, v in params.items()}
        every = [self._param(k, v[:_MOST_PARAM]) for k, v in texts.items()]
        for start in range(0, len(every), _AT_ONCE):
            self._client.log_batch(run, params=every[start : start + _AT_ONCE])

    def _write(self, run: str, trial: Trial, row: Row, best: Row) -> None:
        now = int(time.time() * 1000)
        told = {k: v for k, v in row.items() if not k.startswith("params/")}
        metrics = {
            name: self._metric(_name(name), float(v), now, trial.number)
            for name, v in told.items()
            if not isinstance(v, str)
        }
        self._client.log_batch(run, metrics=list(metrics.values()))
        if not self._children:
            return
        tags = {"mlflow.parentRunId": run}
        made = self._client.create_run(
            self._experiment, run_name=f"trial {trial.number}", tags=tags
        )
        child = made.info.run_id
        try:
            self._fill(child, row, metrics)
        finally:
            self._client.set_terminated(child, "FINISHED" if trial.rewards else "FAILED")

    def _fill(self, child: str, row: Row, metrics: Mapping[str, Any]) -> None:
        told = {k: v for k, v in row.items() if not k.startswith("params/")}
        named: dict[str, str] = {}
        for number, name in enumerate(k for k in row if k not in told):
            key = _name(name.removeprefix("params/").replace("/", "_"))
            named[f"{key}_{number}" if key in named else key] = str(row[name])
        self._params(child, named)
        rewards = [m for n, m in metrics.items() if n.startswith("reward") or n == "stderr"]
        shown = [
            self._tag(f"llmopt.{k}", clean(v)[:_MOST_TAG])
            for k, v in told.items()
            if isinstance(v, str)
        ]
        self._client.log_batch(child, metrics=rewards, tags=shown)

    def _end(self, run: str, reason: str) -> None:
        if reason:
            self._client.set_tag(run, "llmopt.ended", clean(reason)[:_MOST_TAG])
        self._client.set_terminated(run)


def _name(name: str) -> str:
    """Return a name that MLflow accepts; its file stores use names as paths."""
    name = "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name)[:_MOST_NAME]
    return f"_{name}" if name.startswith((".", " ")) or not name else name
