"""Files of JSON lines: one line for each result, on disk before the next one is computed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmopt.errors import StorageError, StorageInUseError
from llmopt.util.closing import Closing
from llmopt.util.files import (
    open_to_append,
    read_bytes,
    read_json,
    room_for,
    try_lock,
    unreadable,
)

MAX_BYTES = 1_000_000_000
"""Largest file that is read."""


def read_file(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the JSON objects of a file, one a line; a last line without an end is dropped.

    Raises:
        StorageError: The file cannot be read, or one of its lines is no JSON object.
    """
    try:
        data = read_bytes(path, most=MAX_BYTES)
    except OSError as error:
        raise unreadable(path, error) from error
    return _parse(data, Path(path))


def _parse(data: bytes, path: Path) -> list[dict[str, Any]]:
    lines = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            value = read_json(line) if line.strip() else {}
            if not isinstance(value, dict):
                raise ValueError("it is not a JSON object")
        except (ValueError, RecursionError) as error:
            raise StorageError(
                f"{path}, line {number}: it cannot be read ({error}). Give a file that llmopt "
                "wrote, or restore it from a copy"
            ) from error
        lines += [value] if value else []
    return lines


class LinesFile(Closing):
    """A file of JSON lines, open and locked for appending; `lines` are those it held.

    A last line that a kill left without an end is removed by the next `append`.

    Raises:
        StorageError: The file cannot be opened, or holds something else.
        StorageInUseError: Another process has opened it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()
        try:
            self.path.parent.mkdir(exist_ok=True)  # a mistyped path makes no further folders
            self._file = open_to_append(self.path)
        except OSError as error:
            raise StorageError(
                f"cannot open {self.path} for appending: {error.strerror or error}. Give a path "
                "in a folder that you may write to"
            ) from error
        try:
            self._lock()
            self._file.seek(0)
            data = self._file.read()
            self.lines = _parse(data, self.path)
            self._size = data.rfind(b"\n") + 1  # bytes of whole lines
            if not self._size and not b"{".startswith(data[:1]):
                raise StorageError(
                    f"{self.path} is not a file of results: nothing was changed in it; give the "
                    "path of a new file"
                )
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        try:
            free = try_lock(self._file)
        except OSError:  # a file system without locks
            return
        if not free:
            raise StorageInUseError(
                f"{self.path} is in use by another process: wait for its end, or give another file"
            )

    def append(self, line: Mapping[str, Any]) -> None:
        """Write one line; it is on disk when this returns, or the file is as it was before.

        Raises:
            StorageError: The line cannot be written.
        """
        text = json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        try:
            self._file.truncate(self._size)
            left = text
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise StorageError(
                f"cannot write to {self.path}: {error.strerror or error}. {room_for(error)}, and "
                "run the same command again"
            ) from error
        self._size += len(text)

    def close(self) -> None:
        """Close the file, which releases its lock."""
        self._file.close()
