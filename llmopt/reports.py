"""The report of any search: an object, a file or a folder."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmopt.client.scripted import ScriptedClient
from llmopt.errors import LLMOptError, StorageError
from llmopt.events import Started
from llmopt.journal import read_started
from llmopt.optimizer import LLMOptimizer, Recorder
from llmopt.report_page.page import write_page
from llmopt.resume_check import parameters_of
from llmopt.space.constraints import read_constraints, read_forbidden
from llmopt.to_optuna import PREFIX, study_of
from llmopt.util.files import open_file, read_json_object, read_mapping, read_text
from llmopt.util.text import a_type, clean

if TYPE_CHECKING:
    from optuna import Study

logger = logging.getLogger(__name__)

_STUDY = "For an Optuna study call llmopt.report(optuna.load_study(...), path)"
_STORAGES = ("optimizer.jsonl", "search.jsonl")  # in the folder of a run, of policies or of code


def report(
    search: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    title: str = "",
    reference: Sequence[float] | Mapping[str, float] | None = None,
) -> Path:
    """Write the report of a search as one self-contained HTML page, and return its path.

        llmopt.report("search.jsonl", "search.html")

    Args:
        search: An optimizer, the result of `minimize`, a `PolicySearch`, a `CodeOptimizer`, an
            Optuna study; or a storage file, a description of a search, or the folder of an
            ``llmopt run``.
        path: The file; an existing one is replaced. By default ``search.html`` beside
            ``search.jsonl`` or ``search.toml``, and else ``report.html``, in the folder of a run.
        title: The page's title; by default the name of the file, the folder or the study.
        reference: Reference point of the hypervolume of several objectives, a number for each.

    Raises:
        ImportError: Optuna or Plotly is not installed.
        StorageError: The search cannot be read, or the page cannot be written.
        TypeError: `search` is no search.
    """
    if isinstance(search, str | os.PathLike):
        file, (search, name) = Path(search), open_search(str(search))
        title = title or name
        if path is None:
            path = file / "report.html" if file.is_dir() else file.with_suffix(".html")
    elif not hasattr(search, "to_optuna") and not hasattr(search, "study_name"):
        raise TypeError(
            f"got {a_type(search)}: expected a search, an Optuna study, or the path of a storage "
            "file or a run folder"
        )
    path = "report.html" if path is None else path
    return write_page(search, path, title=title, reference=reference)


def open_search(path: str) -> tuple[Any, str]:
    """Return the search that a path names, only to read it, and what it is called.

    Raises:
        StorageError: It cannot be read, or holds no search.
    """
    if "://" in path:
        shown = re.sub("//[^/@]*@", "//...@", path)  # without a password
        raise StorageError(
            f"{shown} is the address of a database, and a report takes a storage file of llmopt or "
            "a run folder. For the Optuna study in it run in Python: "
            f'llmopt.report(optuna.load_study(study_name=None, storage="{shown}"), "report.html")'
        )
    file = Path(path)
    if file.is_dir():
        storage = next(filter(Path.is_file, (file / name for name in _STORAGES)), None)
        if storage is None:
            raise StorageError(
                f"{file} is not the folder of an llmopt run: it has no {' or '.join(_STORAGES)}. "
                "Give such a folder, or a storage file"
            )
        stored = _stored(storage)
        if isinstance(stored, LLMOptimizer) and "run" in _object(file / "config.json"):
            stored = _Run(file, stored)
        return stored, clean(file.resolve().name)
    if _head(file).startswith(b"SQLite format"):
        raise StorageError(f"{file} is a database, not a storage file of llmopt. {_STUDY}")
    described = file.suffix in (".toml", ".json")
    if described and {"space", "candidates"} & read_mapping(file).keys():
        storage = file.with_suffix(".jsonl")
        if not storage.exists():
            raise StorageError(
                f"{file} describes a search that has not begun: `llmopt ask {file}` begins it"
            )
        file = storage
    return _stored(file), clean(file.stem)


class _Run:
    """The model's search of an ``llmopt run``, with what the other files of its folder say."""

    def __init__(self, folder: Path, optimizer: LLMOptimizer[Any]) -> None:
        self._folder, self.optimizer = folder, optimizer

    def to_optuna(self) -> Study:
        """Return the search as a study; its warm-up points, seed and names are those of the run."""
        study, config = self.optimizer.to_optuna(), _object(self._folder / "config.json")
        about = {k.removeprefix(PREFIX): v for k, v in study.user_attrs.items()}
        about |= {"seed": str(config["run"]["seed"]), "outcome": self._outcome()}
        names, trials = self._names(), study.get_trials()
        for trial in trials:
            if trial.number < len(config["warmup"]):
                trial.set_user_attr(PREFIX + "source", "warmup")
            limits = {names.get(n, n): d for n, d in trial.distributions.items()}
            trial.params = {names.get(n, n): value for n, value in trial.params.items()}
            trial.distributions = limits
        metrics = study.metric_names or ()
        return study_of(study.study_name, self.optimizer.directions, metrics, trials, about)

    def _names(self) -> dict[str, str]:
        """Return the policy's names of the numbered parameters."""
        policy, numbers = _object(self._folder / "policy.json"), self.optimizer.space.names
        rows = [*policy.get("inputs", ()), *["bias"] * bool(policy.get("bias"))]
        names = [f"{column}<-{row}" for row in rows for column in policy.get("outputs", ())]
        return dict(zip(numbers, names, strict=True)) if len(names) == len(numbers) else {}

    def _outcome(self) -> str:
        """Return the recommended policy of each method, and its score."""
        summary = self._folder / "summary.json"
        scores = [
            f"{r['label']}{self._number(r)} {r['heldout']:.6g}"
            + (f" ± {r['heldout_error']:.2g}" if r["heldout_error"] is not None else "")
            for r in (json.loads(read_text(summary)) if summary.is_file() else ())
            if r["heldout"] is not None
        ]
        line = f"Recommended policies on held-out initial states: {', '.join(scores)}. "
        return line * bool(scores) + (
            "This page shows the search of the model; summary.txt has the table of all methods, "
            "and trials.jsonl their points."
        )

    def _number(self, result: Any) -> str:
        """Return the number of the trial that a run recommends, if it is one of the model's."""
        same = (t for t in self.optimizer.trials if list(t.values) == result["params"])
        trial = next(same, None) if result["method"] == "llm" else None
        return "" if trial is None else f" (#{trial.number + 1})"


def _object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one without the file."""
    return read_json_object(path) if path.is_file() else {}


def _head(path: Path) -> bytes:
    try:
        with open_file(path) as file:
            return bytes(file.read(200)).lstrip()
    except OSError as error:
        remedy = "" if path.exists() else f"; give a storage file or a run folder. {_STUDY}"
        raise StorageError(f"cannot read {path}: {error.strerror}{remedy}") from error


def _stored(path: Path) -> Any:
    """Return a stored search, from which nobody proposes."""
    if "functions" in read_started(path).identity:
        from llmopt.code.views import StoredCode  # with Gymnasium

        return StoredCode(path)
    return stored_search(path)


def stored_search(path: Path) -> LLMOptimizer[Any]:
    """Return a stored search over points, only to read it.

    Its candidates, constraints and forbidden combinations are those of a description beside the
    file, if there is one.
    """
    started = read_started(path)
    nobody: dict[str, Any] = {"prompt": "words", "partner": None}
    client = ScriptedClient.nobody(str(started.options.get("client") or "none"))
    try:
        return Recorder.load(path, client, **nobody, **_described(path, started))
    except (LLMOptError, OSError) as error:
        logger.warning("%s is read without its candidates and present constraints: %s", path, error)
    return Recorder.load(path, client, **nobody)


def _described(path: Path, started: Started) -> dict[str, Any]:
    """Return the candidates and the limited space of a description beside a storage file."""
    described = next((f for s in (".json", ".toml") if (f := path.with_suffix(s)).is_file()), None)
    if described is None:
        return {}
    found, data = dict[str, Any](), read_mapping(described)
    if (table := data.get("candidates")) is not None:
        found["candidates"] = (
            described.parent / Path(table).name if isinstance(table, str) else table
        )
    if "direction" in data and (space := parameters_of(started)) is not None:
        by_name = dict(zip(space.names, space.dimensions, strict=True))
        limits = read_constraints(data.get("constraints", ()), space.names)
        forbidden = read_forbidden(data.get("forbidden", ()), by_name)
        found["space"] = space.constrained((*limits, *forbidden))
    return found
