"""Append-only JSON Lines: what a run did, one event a line, safe against being killed.

An event is on disk before the memory changes, a line that a kill or a full disk left
torn is cut off, and two processes cannot write to one file.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from llmopt.errors import StorageError

try:
    import fcntl
except ImportError:  # not on Windows, where two writers are then not told apart
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

Event = dict[str, Any]
_EVERY_EVENT_STARTS = b'{"event":'


def read_events(path: str | os.PathLike[str]) -> Iterator[Event]:
    """Read the events of a file in order; a torn last line is left out.

    Args:
        path: A file written by `EventLog`.

    Raises:
        StorageError: The file cannot be read, or a line other than the last is not JSON.
    """
    data = _read(Path(path))
    yield from _parse(data, Path(path))[0]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error


def _parse(data: bytes, path: Path) -> tuple[list[Event], int]:
    """Return the events and the length in bytes of the sound part of `data`."""
    events: list[Event] = []
    sound = 0
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        ended = number < len(lines)
        try:
            event = json.loads(line) if line.strip() else None
            if event is not None and not isinstance(event, dict):
                raise ValueError("not an object")
        except ValueError as error:
            rest = b"".join(lines[number:]).strip()
            if rest:
                raise StorageError(
                    f"{path}, line {number}: not a JSON object ({error}), and lines follow it: "
                    "the file was changed by something else. Restore it from a copy, or move it "
                    "away to start anew"
                ) from error
            break
        if not ended:
            break  # no line end: the write may be torn even where it parses (a number cut short)
        if event is not None:
            events.append(event)
        sound += len(line) + 1
    return events, sound


class EventLog:
    """One file of events, held open and locked for appending.

    Args:
        path: The file; it and its folder are created if they are not there.

    Attributes:
        path: The file.
        events: What the file held when it was opened, in order.

    Raises:
        StorageError: The file cannot be opened, is locked by another process, or is not
            an event file; it is then left as it was.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO | None = open(self.path, "a+b", buffering=0)
        except OSError as error:
            raise StorageError(
                f"cannot open {self.path} for appending: {error.strerror or error}. "
                "Give a path to a file in a folder that you may write to"
            ) from error
        try:
            if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                raise StorageError(f"{self.path} is not a regular file: give the path of one")
            self._lock()
            data = _read(self.path)
            self.events, sound = _parse(data, self.path)
            rest = data[sound:]
            head = rest[: len(_EVERY_EVENT_STARTS)]
            if not self.events and not _EVERY_EVENT_STARTS.startswith(head):
                raise StorageError(
                    f"{self.path} is not empty and does not hold an llmopt run: nothing was "
                    "changed in it; give the path of a new file"
                )
            if rest:
                logger.warning("%s: dropping a torn last line of %d bytes", self.path, len(rest))
            self._size = sound
            self._torn = bool(rest)  # cut off by the first write, so that a reader changes nothing
            self._process = os.getpid()
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        if fcntl is None or self._file is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StorageError(
                f"{self.path} is in use by another optimizer: close that one, or give each "
                "its own file"
            ) from None
        except OSError:  # a file system without locks
            logger.warning("%s: the file system has no locks", self.path)

    def check(self) -> BinaryIO:
        """Return the open file, or raise where this process cannot write to it.

        Raises:
            StorageError: It is closed, or belongs to the process that this one was forked from.
        """
        if self._file is None:
            raise StorageError(f"{self.path} is closed: resume the run to write to it again")
        if os.getpid() != self._process:
            raise StorageError(
                f"{self.path} belongs to the process that this one was forked from: return the "
                "results there and tell them there"
            )
        return self._file

    def append(self, event: Mapping[str, Any]) -> None:
        """Write one event; it is in the file when this returns.

        Args:
            event: A JSON-serializable mapping.

        Raises:
            StorageError: It could not be written (the disk is full, say). The file is as
                it was before the call, so that the caller can try again.
        """
        file = self.check()
        line = json.dumps(event, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        try:
            if self._torn:
                file.truncate(self._size)
            self._torn = True
            written = 0
            while written < len(line):
                written += file.write(line[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                file.truncate(self._size)
                self._torn = False
            raise StorageError(
                f"cannot write to {self.path}: {error.strerror or error}. Nothing was recorded; "
                "free some space and make the same call again"
            ) from error
        self._torn = False
        self._size += len(line)

    def close(self) -> None:
        """Close the file and release its lock; closing twice does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None
