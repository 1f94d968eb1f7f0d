"""Append-only JSON Lines: what a run did, one event a line, safe against being killed.

An event is on disk before the memory changes, a line that a kill or a full disk left
torn is removed, and two processes cannot write to one file. A durable log also forces each
line to the disk.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from llmopt.errors import StorageError, StorageInUseError
from llmopt.util.files import (
    open_to_append,
    read_bytes,
    read_json,
    room_for,
    sync_folder,
    try_lock,
    unlock,
    unreadable,
    unseal,
)
from llmopt.util.text import short
from llmopt.util.threads import Lock, uninterrupted

logger = logging.getLogger(__name__)

Event = dict[str, Any]
_EVERY_EVENT_STARTS = b'{"event":'
MAX_LOG = 1_000_000_000
"""Bytes of the largest log that is read."""


def read_events(path: str | os.PathLike[str], *, links: bool = True) -> Iterator[Event]:
    """Read the events of a file in order; a torn last line is skipped."""
    try:
        data = read_bytes(path, most=MAX_LOG, links=links)
    except OSError as error:
        raise unreadable(path, error) from error
    yield from _parse(data, Path(path))[0]


def stored_start(storage: str | os.PathLike[str] | None) -> Event:
    """Return the first event of a stored search; empty if none can be read."""
    path = None if storage is None else Path(storage).expanduser()
    try:
        return next(read_events(path), {}) if path is not None and path.is_file() else {}
    except StorageError:
        return {}  # the optimizer reports the fault of the file


def _parse(data: bytes, path: Path, start: bytes = _EVERY_EVENT_STARTS) -> tuple[list[Event], int]:
    """Return the events, and the bytes of the sound part of `data`."""
    events: list[Event] = []
    sound = 0
    for number, line in enumerate(io.BytesIO(data), start=1):
        try:
            if not line.endswith(b"\n") and not line.startswith(start):
                break
            event = _read_line(line)
        except (ValueError, RecursionError) as error:
            if not line.endswith(b"\n"):
                break  # torn
            foreign = number == 1 and not line.startswith(start)
            if foreign and not data[len(line) :].strip():
                break
            if number == 1:
                raise StorageError(
                    f"{path}, line 1: it is not an llmopt run, or its first line is damaged "
                    f"({error}). Give the file that save() or storage= wrote, restore it from a "
                    "copy, or give the path of a new file"
                ) from error
            raise StorageError(
                f"{path}, line {number}: damaged ({error}). Restore the file from "
                f"a copy; or continue with the lines before it: `head -n {number - 1} "
                f"FILE > NEW`, and give NEW; or move the file away to start again"
            ) from error
        if event is not None:
            events.append(event)
        sound += len(line)
    return events, sound


def _read_line(line: bytes) -> Event | None:
    """Return the event of a line; ``None`` for an empty one. Earlier versions wrote checksums."""
    if not line.strip():
        return None
    event = read_json(unseal(line)[0])
    if not isinstance(event, dict):
        raise ValueError("not a JSON object")
    return event


def line_of(event: Mapping[str, Any]) -> bytes:
    """Return an event as a line of a log."""
    return json.dumps(event, separators=(",", ":"), allow_nan=False).encode() + b"\n"


@contextlib.contextmanager
def as_written(path: str | os.PathLike[str], number: int, event: Event) -> Iterator[None]:
    """Turn exceptions about an event of a file into a `StorageError` that names it."""
    try:
        yield
    except StorageError as error:
        raise StorageError(f"{path}, event {number}: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise StorageError(
            f"{path}, event {number} ({short(event.get('event'))}): it is not as llmopt "
            f"wrote it ({type(error).__name__}: {error}). Restore the file from a copy, or "
            "continue with the events before it (each is a line), or move it away to start again"
        ) from error


_open_logs: weakref.WeakSet[EventLog] = weakref.WeakSet()


def holders_of(place: tuple[int, int]) -> list[int]:
    """Return the processes that lock a file, by device and inode, if Linux shows them."""
    found: set[int] = set()
    try:
        processes = os.listdir("/proc")
    except OSError:  # not on Linux, or confined
        return []
    for process in filter(str.isdigit, processes):
        with contextlib.suppress(OSError):  # it ended, or is another user's
            for number in os.listdir(f"/proc/{process}/fd"):
                status = os.stat(f"/proc/{process}/fd/{number}")
                if (status.st_dev, status.st_ino) == place:
                    facts = Path(f"/proc/{process}/fdinfo/{number}").read_text()
                    found.update([int(process)] if "FLOCK" in facts else [])
    return sorted(found)


def holders_in_words(holders: Sequence[int]) -> str:
    """Return the processes that lock a file in words."""
    return f"process {' and '.join(map(str, holders))}" if holders else "another process"


def _in_use(path: Path, place: tuple[int, int]) -> str:
    holders = holders_of(place)
    if os.getpid() in holders:
        return (
            f"{path} is in use by another optimizer of this process: close() that one, or give "
            "each its own file"
        )
    see = "" if holders else f" (`lsof {path}` may name it)"
    return (
        f"{path} is in use by {holders_in_words(holders)}{see}: end that search, or give each its "
        "own file. Several processes can share one search as an Optuna study with LLMSampler "
        "(docs/workers.md)"
    )


class EventLog:
    """One file of events, held open and locked for appending; `events` are those it began with.

    `start` is how every line of such a file begins: by it a first line that a kill left torn is
    distinguished from another kind of file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durable: bool = False,
        start: bytes = _EVERY_EVENT_STARTS,
    ) -> None:
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:[/\\]", os.fspath(path)):
            raise StorageError(
                f"storage={short(os.fspath(path))} is a URL: expected the path of a file, such as "
                'storage="search.jsonl". For a database of Optuna make a study with it, and take '
                "LLMSampler as its sampler"
            )
        self.path = Path(path).expanduser()
        self._durable = durable
        self._lock, self._process = Lock(), os.getpid()
        self._head: Event | None = None  # to be written with the next event
        self._made = False  # whether this log made the file, in which there is nothing yet
        try:
            self.path.parent.mkdir(exist_ok=True)  # a mistyped path is no reason for others
            made = not self.path.exists()
            self._file: BinaryIO | None = open_to_append(self.path)
            _open_logs.add(self)
        except OSError as error:
            raise StorageError(
                f"cannot open {self.path} for appending: {error.strerror or error}. "
                "Give a path to a file in a folder that you may write to"
            ) from error
        try:
            status = os.fstat(self._file.fileno())
            self._place = status.st_dev, status.st_ino
            self._claim()
            if os.fstat(self._file.fileno()).st_size > MAX_LOG:
                raise StorageError(f"{self.path} has more than {MAX_LOG:,} bytes: begin another")
            self._file.seek(0)
            data = self._file.read()
            self.events, sound = _parse(data, self.path, start)
            rest = data[sound:]
            if not self.events and not start.startswith(rest[: len(start)]):
                raise StorageError(
                    f"{self.path} is not empty and does not hold an llmopt run: nothing was "
                    "changed in it; give the path of a new file"
                )
            if rest:
                logger.warning("%s: dropping a torn last line of %d bytes", self.path, len(rest))
            self._size = sound  # bytes of whole lines
            # Size of the file as this log left it; another one means that somebody else wrote.
            # ``None`` while a write is under way, or after one that failed.
            self._found: int | None = len(data)
            self._unended = sound > 0 and data[sound - 1 : sound] != b"\n"
            # The first write removes a torn line: reading changes nothing.
            self._torn = bool(rest)
            self._made = made
            if durable and not data:
                sync_folder(self.path.parent)
        except BaseException:
            self.close()
            raise

    def begin(self, head: Event) -> None:
        """Queue an event to be written before the next one: an empty search has no file."""
        self._head = head

    def _claim(self) -> None:
        if self._file is None:
            return
        try:
            free = try_lock(self._file)
        except OSError:
            logger.warning("%s: the file system has no locks", self.path)
            return
        if not free:
            raise StorageInUseError(_in_use(self.path, self._place))

    def check(self) -> BinaryIO:
        """Return the open file, or raise an error if nothing can be appended.

        To be called before anything is paid for that is to be stored.
        """
        if os.getpid() != self._process:
            raise StorageError(
                f"{self.path} belongs to the process that this one was forked from: return the "
                "results there and tell them there"
            )
        if self._file is None:
            raise StorageError(f"{self.path} is closed: resume the run to write to it again")
        with self._lock:  # not in the middle of a write
            try:
                status = os.stat(self.path)
            except OSError as error:
                raise StorageError(
                    f"{self.path} cannot be found any more ({error.strerror or error}): something "
                    "else removed it. Put it back, or save the state to another path"
                ) from error
            if (status.st_dev, status.st_ino) != self._place:
                raise StorageError(
                    f"{self.path} is another file than the one that was opened: something else "
                    "replaced it. Put the first one back, or save the state to another path"
                )
            if self._found is not None and status.st_size != self._found:
                raise StorageError(
                    f"{self.path} has {status.st_size} bytes, and {self._found} were written: "
                    "something else changed it. Save the state to another path, and continue there"
                )
        return self._file

    def is_at(self, path: Path) -> bool:
        """Whether a path leads to the file of this log."""
        try:
            status = os.stat(path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._place

    def append(self, event: Mapping[str, Any]) -> None:
        """Write one event; it is in the file when this returns.

        Where it cannot be written (the disk is full, say), the file is as it was before.
        """
        with uninterrupted(), self._lock:
            file = self.check()
            line = b"\n" if self._unended else b""
            for one in (event,) if self._head is None else (self._head, event):
                line += line_of(one)
            self._found = None
            try:
                if self._torn:
                    file.truncate(self._size)
                self._torn = True
                written = 0
                while written < len(line):
                    written += file.write(line[written:])
                if self._durable:
                    os.fsync(file.fileno())
            except OSError as error:
                with contextlib.suppress(OSError):
                    file.truncate(self._size)
                    self._torn, self._found = False, self._size
                raise StorageError(
                    f"cannot write to {self.path}: {error.strerror or error}. Nothing was "
                    f"recorded; {room_for(error)} and make the same call again"
                ) from error
            self._torn = self._unended = False
            self._head, self._made = None, False
            self._size += len(line)
            self._found = self._size

    def close(self) -> None:
        """Close the file and release its lock; remove it if this log made it and it is empty."""
        if self._file is None:
            return
        if os.getpid() == self._process:
            with contextlib.suppress(OSError):
                if self._made and self.is_at(self.path) and self.path.stat().st_size == 0:
                    self.path.unlink()
                # A child that was forked without Python's knowledge holds the open file, too.
                unlock(self._file)
        self._file.close()
        self._file = None

    def leave(self) -> None:
        """Close the file in a forked child, and leave its lock to the parent.

        Closed is this process's descriptor only: the lock ends with the last one of all processes,
        so that a worker that outlives a killed parent must not keep one. ``LOCK_UN`` would take the
        lock from the parent.
        """
        if self._file is not None:
            self._file.close()
            self._file = None


def _leave_logs() -> None:
    for log in list(_open_logs):
        log.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_logs)
