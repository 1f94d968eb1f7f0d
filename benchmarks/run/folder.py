"""The run folder: every fact of a run on disk as it happens, and the published layout.

::

    config.json        the options, the task and the versions of the packages
    trials.jsonl       every evaluated point of every method, one a line: those of the search, the
                       finalists on other initial states, and the chosen one on held-out states
                       (`round`)
    stopped.json       the methods that the model ended before all evaluations, and its reasons
    optimizer.jsonl    the model's side: its replies, and the state of the search
    summary.json, summary.txt, learning_curve.png, policy.gif
    policy.json        the model's policy (or the best without one), for `load_policy`
    baselines/<method>/overall_log.txt, and all files of a further method that asks a model

and, for the model under ``--prompt``, the files of the published ProPS code, in its formats:

- ``overall_log.txt``: a header line ``Iteration, CPU Time, API Time, Total Episodes, Total
  Steps, Total Reward``, then one line for each iteration, from 1, separated by ``", "``.
  Times, episodes and steps are running totals, warm-up included; the reward is the mean
  return of that iteration alone (``nan`` for a failed one).
- ``warmup/warmup_rollout_<i>.txt`` and ``evaluations/episode_<i>/training_rollout.txt``, from 0
  (the published code has no folder ``evaluations`` around these): for each
  episode a line of comma-separated parameters, a line ``parameter ends``, a blank line, a
  line ``state | action | reward``, the steps, and a line ``Total reward: <return>``. Unlike
  the published code, only the steps of the first episode are written.
- ``evaluations/episode_<i>/parameters.txt``: ``Weights:``, a row for each observed number, then
  ``Bias:``; ``parameters_reasoning.txt`` beside it: the model's explanation.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llmopt.benchmarks.engine.lines import LinesFile
from llmopt.benchmarks.engine.records import WARMUP, Record, Records
from llmopt.benchmarks.run.published import (
    OverallLog,
    WarmupPoint,
    parameters_text,
    rollout_text,
)
from llmopt.errors import StorageError
from llmopt.policies.linear import LinearPolicy
from llmopt.util.closing import Closing
from llmopt.util.files import (
    read_json_object,
    refuse_links,
    write_json_atomically,
    write_text_atomically,
)

SUMMARY = "summary.json"
"""Is there once a run has ended."""

_STOPPED = "stopped.json"
_BY_MODEL = ("llm", "fallback")  # sources of a model's points, or its stand-in's


class RunFolder(Records, Closing):
    """The files of one run, open for writing; a new one is made by `create`."""

    keeps_steps = True  # in the published layout
    policy: LinearPolicy  # whose parameters are searched; for the files of the published layout

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        refuse_links(path)
        self.config = read_config(path)  # what `config.json` holds
        self.stopped: dict[str, str] = {}  # why the model ended a method's search, by method
        self.added: Callable[[Record], None] = lambda record: None  # called with each new record
        self._overall: dict[str, OverallLog] = {}
        self._trials = LinesFile(path / "trials.jsonl")
        try:
            for number, line in enumerate(self._trials.lines, start=1):
                try:
                    record = Record.from_dict(line)
                except StorageError as error:
                    raise StorageError(
                        f"{self._trials.path}, line {number}: {error}. Restore it"
                    ) from error
                before = len(self.records.get(record.method, ()))
                if record.round == "search" and record.index != before:
                    raise StorageError(
                        f"{self._trials.path}: point {record.index} of {record.method} follows "
                        f"{before} others, so some are missing or double; restore the file"
                    )
                super().add(record)
            if (path / _STOPPED).exists():
                self.stopped = read_json_object(path / _STOPPED)
        except BaseException:
            self.close()
            raise

    @property
    def warmup(self) -> list[WarmupPoint]:
        """The shared points, each with its returns where these are known."""
        try:
            pairs = self.config["warmup"]
            return [WarmupPoint(*(tuple(map(float, each)) for each in pair)) for pair in pairs]
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(
                f"{self.path} holds no warm-up points that can be read ({error!r}): restore its "
                "config.json"
            ) from error

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> RunFolder:
        """Start a run in a new or empty folder."""
        if not is_empty(path):
            what, remedy = "files of something else", "give an empty or new folder with --out"
            if (path / "config.json").exists():
                what, remedy = "a run", "give --resume to resume it, or another folder"
            raise StorageError(f"{path} already holds {what}: {remedy}")
        write_json_atomically(path / "config.json", config, indent=2)
        return cls(path)

    def close(self) -> None:
        """Close the file of records."""
        self._trials.close()

    def extend(self, iterations: int) -> None:
        """Give the run more evaluations; nothing changes where it has as many."""
        before = self.config["run"]["iterations"]
        if iterations <= before:
            return
        self.config.setdefault("planned", before)
        self.config["run"]["iterations"] = iterations
        write_json_atomically(self.path / "config.json", self.config, indent=2)
        self.stopped = {}
        for name in (_STOPPED, SUMMARY):
            (self.path / name).unlink(missing_ok=True)

    def add(self, record: Record, steps: Sequence[str] = ()) -> None:
        """Write one record; it is on disk when this returns."""
        search = record.round == "search"
        # The other files come first: a kill in between makes them again, and a record is
        # never without its files.
        if search and record.method == WARMUP:
            file = self.path / WARMUP / f"warmup_rollout_{record.index}.txt"
            write_text_atomically(file, rollout_text(record, steps))
        elif search and record.source in _BY_MODEL:
            self._write_episode(record, steps)
        self._trials.append(asdict(record))
        super().add(record)
        if search:
            self.added(record)
            if record.method in self._overall:
                self._overall[record.method].add(record)

    def begin(self, method: str) -> None:
        """Rewrite a method's ``overall_log.txt``, and continue it."""
        self._overall[method] = OverallLog(
            self.home(method) / "overall_log.txt",
            self.records[WARMUP],
            self.records.setdefault(method, []),
        )

    def stop(self, method: str, reason: str) -> None:
        """Write that the model ended a method's search."""
        stopped = {**self.stopped, method: reason}
        write_json_atomically(self.path / _STOPPED, stopped, indent=2)
        self.stopped = stopped

    # -- the published layout -------------------------------------------------------------

    def home(self, method: str) -> Path:
        """Return the folder of a method's files: for ``"llm"`` the run folder itself."""
        return self.path if method == "llm" else self.path / "baselines" / method

    def _write_episode(self, record: Record, steps: Sequence[str]) -> None:
        folder = self.home(record.method) / "evaluations" / f"episode_{record.index}"
        write_text_atomically(
            folder / "parameters.txt", parameters_text(self.policy, record.params)
        )
        write_text_atomically(folder / "parameters_reasoning.txt", record.explanation)
        write_text_atomically(folder / "training_rollout.txt", rollout_text(record, steps))


def read_config(path: Path) -> dict[str, Any]:
    """Read a run's ``config.json``."""
    file = path / "config.json"
    if not file.is_file():
        raise StorageError(f"{path} is not a run folder: there is no {file}")
    config = read_json_object(file)
    if "run" not in config:
        raise StorageError(f"{file} does not describe an llmopt run; give the folder of one")
    return config


def is_empty(path: Path) -> bool:
    """Whether a folder is missing, or holds nothing but what a kill at the very start left."""
    try:
        return all(p.name.endswith(".part") for p in path.iterdir())
    except FileNotFoundError:
        return True
    except OSError as error:
        raise StorageError(f"cannot use {path} as a run folder: {error.strerror}") from error


def default_folder(*parts: str) -> Path:
    """Return the folder of a new run in ``runs/``, named by its task, model, prompt and seed."""
    name = "-".join(re.sub(r"[^A-Za-z0-9._]+", "-", p).strip("-.") for p in parts)
    numbered = (Path("runs") / f"{name}{f'-{k}' if k > 1 else ''}" for k in itertools.count(1))
    return next(path for path in numbered if is_empty(path))
