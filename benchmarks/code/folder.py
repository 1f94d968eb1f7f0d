"""The folder of a code run: every candidate, its score and its feedback, on disk at once.

::

    config.json          what was asked for
    search.jsonl         every paid reply and every score; what a resume needs
    candidates/003.py    each candidate's source
    candidates/003.json  its score, parent, feedback, and further measures
    starts.json          the secret seed of the initial states; no prompt and no worker sees it
    held_out.json        the best candidate on starts that the search never saw
    best.gif             the best candidate in one episode
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmopt._version import __version__
from llmopt.code.candidate import CodeTrial
from llmopt.code.secret_seeds import Starts
from llmopt.errors import LLMOptError, StorageError
from llmopt.util.files import (
    read_json_object,
    refuse_link,
    refuse_links,
    write_json_atomically,
    write_text_atomically,
)

STARTS = "starts.json"
_NUMBERED = "numbered_starts"  # of a run that began on starts without a secret


class CodeRun:
    """One run folder; `begin` makes it.

    With `resume` it resumes the run in the folder: entries that are missing in `config` are
    taken from there, and others than those of `free` may not differ. `given_starts` are those of
    another run that this one is to be made on, if any.

    Raises:
        LLMOptError: The folder holds a run and `resume` is not set, or the reverse, or the run
            was made with other settings.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: Mapping[str, Any],
        *,
        resume: bool = False,
        free: tuple[str, ...] = (),
    ) -> None:
        self.path = Path(path)
        file = self.path / "config.json"
        if file.exists() and not resume:
            raise LLMOptError(
                f"{self.path} holds a run: go on with --resume, or give another --out"
            )
        if resume:
            refuse_links(self.path)
            stored = read_config(self.path)
            other = [k for k in config if k not in free and stored.get(k) != config[k]]
            if other:
                names = ", ".join(f"{k} ({stored.get(k)!r})" for k in other)
                raise LLMOptError(f"{self.path} was made with another {names}: leave it out")
            config = {**stored, **config}
        self.config = {**config, "llmopt": __version__}
        self.resumed = resume  # whether the run is resumed
        self.given_starts: Starts | None = None  # of another run

    def begin(self, starts: Starts) -> None:
        """Write what was asked for, once it is known to be usable and to hold no key."""
        if not self.resumed:
            if starts.secret is None:
                self.config[_NUMBERED] = True
            _write_json(self.path / STARTS, starts.to_dict())
        _write_json(self.path / "config.json", self.config)

    def read_starts(self) -> Starts:
        """Return the starts of a run to go on with."""
        starts = read_starts(self.path)
        if starts.secret is None and self.config.get(_NUMBERED) is not True:
            raise StorageError(
                f"{self.path / STARTS} names no secret, and the run began with one: code could "
                "plan on starts that it can guess. Restore the file from a copy, or begin another "
                "run"
            )
        return starts

    @property
    def search(self) -> Path:
        """The file of the search's events."""
        return self.path / "search.jsonl"

    def write_candidate(self, trial: CodeTrial, measures: Mapping[str, Any]) -> None:
        """Write a candidate's source, score, feedback and other measures."""
        stem = self._candidate(trial.number)
        refuse_link(stem.parent)
        write_text_atomically(stem.with_suffix(".py"), trial.source)
        names = ("number", "parent", "explanation", "feedback", "ties", "samples")
        told = {"score": trial.reward, **{name: getattr(trial, name) for name in names}}
        _write_json(stem.with_suffix(".json"), {**told, **measures})

    def _candidate(self, number: int) -> Path:
        return self.path / "candidates" / f"{number:03d}"

    def write_missing(self, trials: Sequence[CodeTrial]) -> None:
        """Write the candidates that a kill came before."""
        for trial in trials:
            if not self._candidate(trial.number).with_suffix(".json").exists():
                self.write_candidate(trial, {})

    def write_held_out(self, measures: Mapping[str, Any]) -> None:
        """Write what the best candidate is worth on held-out starts."""
        _write_json(self.path / "held_out.json", measures)


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the settings of a run."""
    try:
        return read_json_object(Path(path) / "config.json")
    except StorageError as error:
        raise LLMOptError(f"{path} holds no run to go on with ({error})") from error


def read_starts(path: Path) -> Starts:
    """Return the starts in a file, or in the file of a run folder."""
    file = path / STARTS if path.is_dir() else path
    try:
        return Starts.from_dict(read_json_object(file, links=not path.is_dir()))
    except StorageError as error:
        raise StorageError(f"cannot take the starts of {file}: {error}") from error


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_json_atomically(path, value, default=_plain)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)
