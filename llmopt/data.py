"""The data of an evaluation: named arrays beside its reward, for a model that computes.

    optimizer.tell(params, reward, data={"time": t, "position": [run_1, run_2]})
    return llmopt.Evaluation(reward, "overshot", {"position": positions})   # from an objective

Prompts show only their names and shapes. They are stored compressed, one file for each trial beside
the search's storage; blocks of Python read them (`llmopt.lab.blocks`).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from llmopt.errors import RewardError, StorageError
from llmopt.packing import MOST_PACKED, DataError, pack, summary, unpack
from llmopt.util.files import (
    make_folder,
    read_bytes,
    read_table,
    refuse_link,
    write_bytes_atomically,
)
from llmopt.util.text import a_type, cut, short

_FILE = re.compile(r"\d{6}(-\d{1,9})?\.npz")
_MOST_WORDS = 1000  # characters of names and shapes in a file


@dataclass(frozen=True)
class Evaluation:
    """A result that an objective function may return instead of a number.

    Attributes:
        value: The number to minimize or maximize, or a sequence of them for several objectives;
            ``None`` for a failed evaluation.
        feedback: Observations in words, which the model reads.
        data: Named arrays, such as the steps of a simulation; see `LLMOptimizer.tell`.
        samples: The numbers whose mean is `value`, such as cross-validation scores, in the same
            order for every point: the model then sees paired differences.
        constraint_violation: Amount, 0 or more, by which the evaluation violated constraints that
            the search does not know; infeasible points rank after all feasible ones.
        parts: Named numbers that `value` is made of; see `LLMOptimizer.tell`.

    Raises:
        RewardError: `value` is neither a number, nor a sequence, nor ``None``.
    """

    value: Any
    feedback: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    samples: Sequence[float] = ()
    constraint_violation: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = self.value
        many = isinstance(given, Iterable) and not isinstance(given, (str, bytes))
        if not (given is None or many or hasattr(given, "__float__")):
            raise RewardError(
                f"value={short(given)} is {a_type(given)}: expected a number, a list of numbers "
                "for several objectives, or None for a failed evaluation"
            )

    def told_with(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of `tell` beside the reward: those `given` and its own.

        Raises:
            RewardError: An argument is given twice.
        """
        own = {name: value for name, value in vars(self).items() if name != "value"}
        own = {name: value for name, value in own.items() if _is_given(value)}
        for name in own:
            if _is_given(given.get(name)):
                raise RewardError(f"{name}= is given, and the Evaluation has it, too: give one")
        return {**given, **own}


def _is_given(value: Any) -> bool:
    """Whether a value says more than the default of its argument."""
    if isinstance(value, Sized):
        return len(value) > 0
    return value is not None and value != 0


class TrialData(Mapping[str, Any]):
    """The data of one trial: a mapping of names to arrays, read on first use.

    Args:
        packed: The bytes of an ``.npz`` file, or its path.
        words: Descriptions of the entries, by name.
        digest: SHA-256 of the bytes, in hexadecimal.
    """

    def __init__(self, packed: bytes | Path, words: Mapping[str, str], digest: str) -> None:
        self._packed, self.words, self.digest = packed, dict(words), digest
        self._arrays: dict[str, Any] | None = None

    @classmethod
    def of(cls, data: Mapping[str, Any] | None) -> TrialData:
        """Return a stored copy of data.

        Raises:
            DataError: An entry has an unsupported type, or the data are too large.
        """
        if isinstance(data, TrialData):
            return data
        if data is None or (isinstance(data, Mapping) and not data):
            return NO_DATA
        if not isinstance(data, Mapping):
            raise DataError(f"data is {a_type(data)}: expected a mapping of names")
        packed = pack(data)
        words = {name: cut(said, _MOST_WORDS) for name, said in summary(unpack(packed)).items()}
        return cls(packed, words, hashlib.sha256(packed).hexdigest())

    @property
    def packed(self) -> bytes:
        """The bytes of the ``.npz`` file.

        Raises:
            StorageError: The file is missing or was replaced.
        """
        if isinstance(self._packed, bytes):
            return self._packed
        try:
            packed = read_bytes(self._packed, most=MOST_PACKED, links=False)
        except OSError as error:
            raise StorageError(
                f"{self._packed}: the data of a trial cannot be read ({error.strerror or error}). "
                "Restore the folder beside the storage file from a copy"
            ) from error
        if hashlib.sha256(packed).hexdigest() != self.digest:
            raise StorageError(
                f"{self._packed}: it is not the file that the search wrote. Restore it from a copy"
            )
        return packed

    def keep_in(self, path: Path) -> TrialData:
        """Write the bytes to a file atomically, and return data that are read from there.

        Raises:
            StorageError: The file cannot be written.
        """
        if not self:
            return self
        make_folder(path.parent, "give another storage=", links=False)
        write_bytes_atomically(path, self.packed, durable=True)
        return TrialData(path, self.words, self.digest)

    def line(self) -> dict[str, Any]:
        """Return the entry of a storage file that refers to the data's file."""
        name = self._packed.name if isinstance(self._packed, Path) else ""
        return {"file": name, "sha256": self.digest, "words": self.words}

    def within(self, folder: Path | None) -> TrialData:
        """Return the data that an entry of a storage file refers to, in `folder`."""
        if folder is None or not isinstance(self._packed, Path):
            return self
        return TrialData(folder / self._packed.name, self.words, self.digest)

    @classmethod
    def read(cls, line: Mapping[str, Any] | None) -> TrialData:
        """Return the data that an entry of a storage file refers to; see `within`."""
        if line is None:
            return NO_DATA
        name, digest, words = line["file"], line["sha256"], line["words"]
        if not all(isinstance(text, str) for text in (name, digest, *words, *words.values())):
            raise TypeError("what names the data of a trial is not a string")
        if not _FILE.fullmatch(name):  # it leads nowhere else
            raise ValueError(f"the data of a trial is in {name!r:.80}")
        return cls(Path(name), words, digest)

    def _read(self) -> dict[str, Any]:
        if self._arrays is None:
            try:
                self._arrays = unpack(self.packed)
            except DataError as error:
                raise StorageError(f"the data of a trial cannot be read: {error}") from error
        return self._arrays

    def __getitem__(self, name: str) -> Any:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.words)

    def __len__(self) -> int:
        return len(self.words)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrialData) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"TrialData({self.words})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": None}


NO_DATA = TrialData(b"", {}, "")
"""The data of a trial that recorded none."""


def folder_of(storage: str | os.PathLike[str]) -> Path:
    """Return the folder beside a storage file that holds the data of its trials.

    Raises:
        StorageError: It is a link.
    """
    folder = Path(f"{os.fspath(storage)}.data").expanduser()
    refuse_link(folder)
    return folder


def data_file(folder: Path, number: int, again: int = 0) -> Path:
    """Return the file that holds the data of a trial, by its number from 0.

    The data of a corrected result have a file of their own, by the count of corrections: `again`.
    """
    return folder / (f"{number:06d}-{again}.npz" if again else f"{number:06d}.npz")


def read_data_file(path: str | os.PathLike[str], *, links: bool = True) -> dict[str, Any]:
    """Return the arrays of an ``.npz`` file, or the columns of a ``.csv`` file with a header.

    Args:
        path: The file.
        links: Whether its name may be a link; not in a folder that others may write to.

    Raises:
        DataError: It cannot be read, or contains anything other than plain arrays.
    """
    path = Path(path)
    if path.suffix.lower() not in (".npz", ".csv"):
        raise DataError(f"{path}: expected a file that ends in .npz or .csv")
    try:
        if path.suffix.lower() == ".npz":
            return unpack(read_bytes(path, most=MOST_PACKED, links=links))
        columns = read_table(path, most=MOST_PACKED, links=links)
    except StorageError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise DataError(f"{path}: it cannot be read ({error.strerror or error})") from error
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    if not any(columns.values()):
        raise DataError(f"{path}: expected a header of names, and at least a row")
    return {"table": {name: _column(cells) for name, cells in columns.items()}}


def _column(cells: Sequence[str]) -> np.ndarray:
    """Return numbers if all cells are, else texts."""
    try:
        return np.array([float(cell or "nan") for cell in cells])
    except ValueError:
        return np.array(cells)
