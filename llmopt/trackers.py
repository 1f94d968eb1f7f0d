"""Callbacks that write a search elsewhere: a log, MLflow, Weights & Biases, TensorBoard.

    optimizer = LLMOptimizer(space, model, callbacks=[MLflow("my search"), Log()])

Each tracker imports its library when it is constructed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llmopt.callbacks import Callback as Callback
from llmopt.callbacks import Search as Search
from llmopt.client.base import Reply
from llmopt.errors import LLMOptError, did_you_mean, needs
from llmopt.events import Failed, Replied
from llmopt.history import Proposal, Trial, Usage
from llmopt.space.values import ABSENT
from llmopt.util.text import clean, cut

logger = logging.getLogger("llmopt.search")
_PRIVATE = ("description", "task")  # may be source code


class Log(Callback):
    """Logs a line for each point, result and request, and for the end.

    Args:
        level: The level of the lines; requests that failed are warnings.
        logger: Another logger than ``llmopt.search``.
    """

    def __init__(self, level: int = logging.INFO, logger: logging.Logger = logger) -> None:
        self._level, self._logger = level, logger

    def asked(self, search: Search, proposal: Proposal) -> None:
        """Log a point."""
        self._write(search, f"asked ({proposal.source}) {_point(search, proposal.values)}")

    def told(self, search: Search, trial: Trial, best: Trial | None, usage: Usage) -> None:
        """Log a trial."""
        outcome = "failed" if trial.reward is None else f"reward {trial.reward}"
        outcome += f"; {cut(' '.join(trial.feedback.split()), 200)}" if trial.feedback else ""
        of = f"trial {trial.number} ({trial.source}) {_point(search, trial.values)}"
        self._write(search, f"{of}: {outcome}; best {best and best.reward}")

    def sent(self, search: Search, event: Replied | Failed) -> None:
        """Log a request."""
        if isinstance(event, Failed):
            text = clean(f"{event.requests} calls failed: {event.error}")
            self._logger.warning("%s: %s", search.name, text)
            return
        reply = Reply.from_dict(event.reply)
        tokens = (reply.prompt_tokens, reply.completion_tokens)
        counts = " + ".join("?" if n is None else str(n) for n in tokens)
        cost = "unknown" if reply.cost is None else f"${reply.cost:.6f}"
        model = reply.model or "the model"
        text = f"{model} answered in {reply.seconds:.1f} s: {counts} tokens, cost {cost}"
        self._write(search, text)

    def ended(self, search: Search, reason: str) -> None:
        """Log the end."""
        self._write(search, f"ended{reason and f' ({reason})'}")

    def _write(self, search: Search, text: str) -> None:
        self._logger.log(self._level, "%s: %s", search.name, clean(text))


def _point(search: Search, values: tuple[object, ...]) -> str:
    pairs = zip(search.parameters, values, strict=True)
    return ", ".join(f"{n}={v!r}" for n, v in pairs if v is not ABSENT)


class Tracker(Callback):
    """Writes each search as a separate run. Subclasses define `begin`, `write` and `end`.

    Args:
        content: Whether to write the task and its description, which may be source code.
    """

    def __init__(self, content: bool = False) -> None:
        self._content = content
        self._runs: dict[Search, Any] = {}

    def told(self, search: Search, trial: Trial, best: Trial | None, usage: Usage) -> None:
        """Write a trial."""
        if search not in self._runs:
            about = [search.place, search.name, search.parameters, search.settings.get("seed")]
            mark = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:12]
            mark = mark if search.place else secrets.token_hex(6)
            given = {k: v for k, v in search.settings.items() if self._content or k not in _PRIVATE}
            texts = {k: clean(v if isinstance(v, str) else json.dumps(v)) for k, v in given.items()}
            self._runs[search] = self.begin(search, texts, mark, trial.number > 0)
        self.write(self._runs[search], trial, _row(search, trial, best, usage))

    def ended(self, search: Search, reason: str) -> None:
        """End the run."""
        if search in self._runs:
            self.end(self._runs.pop(search), clean(reason))

    def begin(self, search: Search, settings: dict[str, str], mark: str, resumed: bool) -> Any:
        """Return a run; `mark` identifies its search, also after a resume."""
        raise NotImplementedError

    def write(self, run: Any, trial: Trial, row: dict[str, Any]) -> None:
        """Write a trial: ``reward``, ``best``, ``state``, ``usage/…``, ``params/…``, by name."""
        raise NotImplementedError

    def end(self, run: Any, reason: str) -> None:
        """End a run; `reason` may be empty."""
        raise NotImplementedError


def _row(search: Search, trial: Trial, best: Trial | None, usage: Usage) -> dict[str, Any]:
    """Return what is written of a trial, by name."""
    one = len(search.directions) == 1
    pairs = zip(search.parameters, trial.values, strict=True)
    row: dict[str, Any] = {f"params/{n}": v for n, v in pairs if v is not ABSENT}
    for i, reward in enumerate(trial.rewards or (), start=1):
        row["reward" if one else f"reward/{i}"] = reward
        row["stderr" if one else f"stderr/{i}"] = trial.errors[i - 1]
    row |= {f"parts/{name}": value for name, value in trial.parts.items()}
    row |= {"best": best.reward if best and one else None}
    row |= {"usage/requests": usage.requests, "usage/fallbacks": usage.fallbacks}
    row |= {"usage/tokens": usage.prompt_tokens + usage.completion_tokens}
    row |= {"usage/cost": usage.cost, "state": trial.state, "source": trial.source}
    row |= {"explanation": trial.explanation or None, "feedback": trial.feedback or None}
    there = {name: value for name, value in row.items() if value is not None}
    return {n: v if isinstance(v, int | float) else clean(v)[:5000] for n, v in there.items()}


class MLflow(Tracker):
    """Writes each search as a run of metrics, with a child run for each trial.

    Args:
        experiment: Name of the experiment; created if missing.
        tracking_uri: Address of the tracking server; MLflow's default (``MLFLOW_TRACKING_URI``).
        content: Whether to write the task and its description too.
    """

    def __init__(
        self, experiment: str = "llmopt", *, tracking_uri: str | None = None, content: bool = False
    ) -> None:
        with needs("MLflow()", "mlflow", extra="trackers"):
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param
        super().__init__(content)
        self._client: Any = MlflowClient(tracking_uri=tracking_uri)
        self._metric, self._param = Metric, Param
        self._experiment, self._id = experiment, ""

    def begin(self, search: Search, settings: dict[str, str], mark: str, resumed: bool) -> Any:
        """Return the run's id: of a resumed search the latest with its mark."""
        client = self._client
        there = client.get_experiment_by_name(self._experiment)
        self._id = there.experiment_id if there else client.create_experiment(self._experiment)
        same, latest = f"tags.`llmopt.search` = '{mark}'", ["attributes.start_time DESC"]
        for run in client.search_runs([self._id], same, order_by=latest)[:1] if resumed else ():
            client.update_run(run.info.run_id, status="RUNNING")
            return run.info.run_id
        tags = {"llmopt.search": mark}
        run = client.create_run(self._id, run_name=search.name, tags=tags).info.run_id
        client.log_batch(run, params=[self._param(k, v[:6000]) for k, v in settings.items()])
        return run

    def write(self, run: Any, trial: Trial, row: dict[str, Any]) -> None:
        """Write the metrics of a trial, and its own run."""
        now = int(time.time() * 1000)
        values = {k: v for k, v in row.items() if not k.startswith("params/")}
        texts = {f"llmopt.{k}": v for k, v in values.items() if isinstance(v, str)}
        numbers = {k: float(v) for k, v in values.items() if not isinstance(v, str)}
        metrics = [self._metric(_name(k), v, now, trial.number) for k, v in numbers.items()]
        self._client.log_batch(run, metrics=metrics)
        tags = {"mlflow.parentRunId": run, **texts}
        child = self._client.create_run(self._id, run_name=f"trial {trial.number}", tags=tags)
        point = [(k[7:].replace("/", "_"), str(v)) for k, v in row.items() if k not in values]
        params = [self._param(_name(k, i), v) for i, (k, v) in enumerate(point)]
        for start in range(0, len(params), 100):  # MLflow takes a hundred in one call
            self._client.log_batch(child.info.run_id, metrics, params[start : start + 100])
        self._client.set_terminated(child.info.run_id, "FINISHED" if trial.rewards else "FAILED")

    def end(self, run: Any, reason: str) -> None:
        """End the run."""
        self._client.set_tag(run, "llmopt.ended", reason[:5000])
        self._client.set_terminated(run)


def _name(name: str, number: int = 0) -> str:
    """Return a name that MLflow accepts; `number` tells apart those that it changes."""
    safe = "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name)[:200]
    return safe if safe == name and safe[:1] not in ". " else f"_{safe}_{number}"


class WeightsAndBiases(Tracker):
    """Writes each search as a run: one step for every trial.

    Args:
        project: The project's name.
        content: Whether to upload the task and its description too.
        **options: Passed on to ``wandb.init``: ``mode="offline"``, ``dir="..."``, ``tags=[...]``.
    """

    def __init__(self, project: str = "llmopt", *, content: bool = False, **options: Any) -> None:
        with needs("WeightsAndBiases()", "wandb", extra="trackers"):
            import wandb
        super().__init__(content)
        self._wandb: Any = wandb
        self._options = {"project": project, "reinit": "create_new", **options}

    def begin(self, search: Search, settings: dict[str, str], mark: str, resumed: bool) -> Any:
        """Return a new run."""
        return self._wandb.init(**{"name": search.name, "config": settings, **self._options})

    def write(self, run: Any, trial: Trial, row: dict[str, Any]) -> None:
        """Write a step."""
        run.log(row, step=trial.number)

    def end(self, run: Any, reason: str) -> None:
        """End the run, which uploads it unless it is offline."""
        run.summary["ended"] = reason
        run.finish()


class TensorBoard(Tracker):
    """Writes the numbers of each search into a folder, without TensorFlow or PyTorch.

    Args:
        folder: Parent folder; ``tensorboard --logdir FOLDER`` shows it.
    """

    def __init__(self, folder: str | os.PathLike[str] = "runs/tensorboard") -> None:
        with needs("TensorBoard()", "tensorboard", extra="trackers"):
            from tensorboard.summary import Writer
        super().__init__()
        self._folder, self._writer = Path(folder), Writer

    def begin(self, search: Search, settings: dict[str, str], mark: str, resumed: bool) -> Any:
        """Return a writer in the folder ``NAME-MARK``, where a resumed search continues."""
        return self._writer(str(self._folder / re.sub(r"[^\w -]", "_", f"{search.name}-{mark}")))

    def write(self, run: Any, trial: Trial, row: dict[str, Any]) -> None:
        """Write the numbers of a trial."""
        for tag, value in row.items():
            if not isinstance(value, str):
                run.add_scalar(tag, value, step=trial.number)
        run.flush()

    def end(self, run: Any, reason: str) -> None:
        """Close the file."""
        run.close()


# By name on the command line: the class, and where it writes by default.
_TRACKERS: dict[str, tuple[Callable[..., Callback], str]] = {
    "log": (Log, ""),
    "mlflow": (MLflow, "llmopt"),
    "wandb": (WeightsAndBiases, "llmopt"),
    "tensorboard": (TensorBoard, "runs/tensorboard"),
}


def add_track_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--track``, whose values `callbacks_of` turns into callbacks."""
    parser.add_argument(
        "--track",
        metavar="NAME[:WHERE]",
        action="append",
        default=argparse.SUPPRESS,
        help="follow the searches with log, mlflow[:EXPERIMENT], wandb[:PROJECT] or "
        "tensorboard[:FOLDER]; may be repeated",
    )


def callbacks_of(names: Sequence[str]) -> tuple[Callback, ...]:
    """Return the callbacks that ``--track`` names."""
    return tuple(_made(*name.partition(":")[::2]) for name in names)


def _made(name: str, where: str) -> Callback:
    make, usual = _TRACKERS.get(name, (None, ""))
    if make is None or (where and not usual):
        raise LLMOptError(f"--track {name}{where and ':' + where}: {did_you_mean(name, _TRACKERS)}")
    if name == "log":  # on the command line the lines should be visible
        logging.basicConfig(level=logging.INFO, format="%(message)s")
    return make(where or usual) if usual else make()
