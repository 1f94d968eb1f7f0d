"""What happened in a search, one event a line, in a file or in memory.

    journal = Journal("search.jsonl", State(space))
    journal.append(Told([0.5], [1.25]))      # on the disk before it returns
    journal.state.trials

The state in memory is nothing but a cache of the journal's beginning: `append` reduces an event,
writes its line and publishes the new state, in this order, and `state` first reduces what the
journal has beyond. So an interrupt at any moment leaves a line that is there, and is reduced by
the next access, or one that is not; an event that does not fit the state is not written; and a line
that a kill or a full disk left torn is removed before the next one is written. No step needs to be
protected against interrupts.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import weakref
from collections.abc import Iterator
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any

from llmopt.data import NO_DATA, TrialData, data_file, folder_of
from llmopt.errors import StorageError, StorageInUseError
from llmopt.events import Event, Json, Started, Told
from llmopt.history import Usage
from llmopt.state import State, reduce
from llmopt.util.caller import CALLER, PYTHON
from llmopt.util.files import (
    lock,
    open_file,
    open_to_append,
    read_bytes,
    read_json,
    room_for,
    sync_folder,
    try_lock,
    unlock,
    unreadable,
    write_bytes_atomically,
)
from llmopt.util.text import short
from llmopt.util.threads import Lock

logger = logging.getLogger(__name__)

FORMAT = 6
"""Number of the format of storage files; files of another number are refused."""

MAX_JOURNAL = 1_000_000_000
"""Bytes of the largest storage file that is read."""

_HEAD = 4096  # bytes by which a file is recognized
_START = b'{"event":"started"'
_FAULTS = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


class Arrays:
    """The data of trials: files in the folder beside a storage file, or in memory without one.

    Args:
        folder: The folder; ``None`` for memory.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._kept: dict[str, TrialData] = {}

    def keep(self, data: TrialData, number: int, again: int = 0) -> Json | None:
        """Store the data of a trial, and return what its event says of them; see `data_file`.

        Raises:
            StorageError: The file cannot be written.
        """
        if not data:
            return None
        name = data_file(Path(), number, again)
        if self.folder is not None:
            return data.keep_in(self.folder / name).line()
        self._kept[data.digest] = data
        return {**data.line(), "file": name.name}

    def read(self, line: Json | None) -> TrialData:
        """Return the data that an event names; files are read on first use."""
        data = TrialData.read(line)
        if data is NO_DATA:
            return data
        return self._kept.get(data.digest) or data.within(self.folder)


class Journal:
    """The events of a search and the state that they add up to.

    Args:
        path: The file, which is made if it is missing and stays locked until `close`, except in
            `lent`; ``None`` to keep the events in memory.
        start: The state before the first event.
        durable: Whether to wait until each line is on the disk (a few milliseconds).
        beside: Whether it only records results, and may be open while another one lends the file.

    Attributes:
        lock: Held while an event is appended; hold it to read the state and append as one step.

    Raises:
        StorageInUseError: Another optimizer or process holds the file.
        StorageError: The file cannot be opened, holds something else, or has another format.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        start: State,
        durable: bool = False,
        beside: bool = False,
    ) -> None:
        self.path = None if path is None else _checked_path(path)
        self.arrays = Arrays(None if self.path is None else folder_of(self.path))
        self._start = replace(start, read_data=self.arrays.read)
        self._durable = durable
        self._head: Started | None = None
        self.lock = Lock()
        self._memory = bytearray()
        self._published = 0, self._start  # bytes that were reduced, and to what: replaced together
        self._process, self._made = os.getpid(), False
        self._file: FileIO | None = None
        self._mark: FileIO | None = None  # locked while the file is lent
        if self.path is not None:
            self._open(self.path, beside)

    @classmethod
    def read(cls, path: str | os.PathLike[str], start: State) -> Journal:
        """Return a journal in memory with the events of a file, which is left as it is."""
        data = read_journal(path)
        journal = cls(None, start)
        journal.arrays.folder = folder_of(path)
        journal.path_read = Path(path)
        journal._memory += data[: data.rfind(b"\n") + 1]
        _ = journal.state
        return journal

    path_read: Path | None = None  # of a journal in memory: where its events come from

    def begin(self, event: Started) -> None:
        """Write an event before the next one: a search that never began has no file."""
        self._head = event

    def write_start(self) -> None:
        """Write the event of `begin`, if it is not written yet."""
        with self.lock:
            if self._head is not None:
                self.check()
                # An interrupt may have come between its line and this one.
                if self.state.started != _read_line(self._head.to_json()):
                    self._append(self._head)
                self._head = None

    # -- the file -------------------------------------------------------------------------

    def _open(self, path: Path, beside: bool) -> None:
        try:
            path.parent.mkdir(exist_ok=True)  # a mistyped path is no reason for more folders
            made = not path.exists()
            self._file = open_to_append(path)
            _open_journals.add(self)
        except OSError as error:
            raise StorageError(
                f"cannot open {path} for appending: {error.strerror or error}. "
                "Give a path to a file in a folder that you may write to"
            ) from error
        try:
            status = os.fstat(self._file.fileno())
            self._place = status.st_dev, status.st_ino
            # Who had the lock before may have removed an empty file.
            if not _locked(self._file, path) or not _is_at(path, self._place):
                raise StorageInUseError(_in_use(path))
            if not beside and _is_lent(path):
                in_use = StorageInUseError(_in_use(path))
                in_use.lent = True
                raise in_use
            self._made = made  # only who has the lock may remove it
            if status.st_size > MAX_JOURNAL:
                raise StorageError(f"{path} has more than {MAX_JOURNAL:,} bytes: begin another")
            _check_start(self._bytes(0, _HEAD), path)
            _ = self.state
            if self._durable and self._made:
                sync_folder(path.parent)
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        """Raise `StorageError` if nothing can be appended; call it before paying for anything."""
        if self.path is None:
            return
        if os.getpid() != self._process:
            raise StorageError(
                f"{self.path} belongs to the process that this one was forked from: return the "
                "results there and record them there"
            )
        if self._file is None:
            raise StorageError(f"{self.path} is closed: resume the search to write to it again")
        known = self._published[0]  # first: another thread may append meanwhile
        try:
            status = os.stat(self.path)
        except OSError as error:
            raise StorageError(
                f"{self.path} cannot be found any more ({error.strerror or error}): something "
                "else removed it. Put it back, or save the search to another path"
            ) from error
        if (status.st_dev, status.st_ino) != self._place or status.st_size < known:
            raise StorageError(
                f"{self.path} was replaced or shortened by something else. Restore it, or save the "
                "search to another path"
            )

    def _bytes(self, start: int, end: int | None = None) -> bytes:
        if self._file is None or os.getpid() != self._process:
            return bytes(self._memory[start:end])
        size = os.fstat(self._file.fileno()).st_size
        end = size if end is None else min(end, size)
        return os.pread(self._file.fileno(), end - start, start) if end > start else b""

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Let journals of other processes that are `beside` append meanwhile, and no others.

        The lock of the file protects its lines. That of a second file, which exists only meanwhile,
        tells all others that somebody goes on with this search, until a kill releases it, too.
        """
        if self._file is None or self.path is None:
            yield
            return
        mark, lent = _mark_of(self.path), False
        with self.lock:  # this process appends nothing
            try:
                with contextlib.suppress(OSError):  # no room, or no locks: the file is not lent
                    self._mark = open_to_append(mark)
                    lent = try_lock(self._mark)
                    if lent:
                        unlock(self._file)
                yield
            finally:
                if lent and self._file is not None:  # else it is a forked child
                    self._take_back(self._file)
                if self._mark is not None:
                    self._mark.close()
                    with contextlib.suppress(OSError):
                        mark.unlink()

    def _take_back(self, file: FileIO) -> None:
        try:
            lock(file)
        except BaseException:  # without its lock, nothing may be written any more
            self.leave()
            raise

    def close(self) -> None:
        """Release the file; remove it if this journal made it and it is empty."""
        if self._file is None:
            return
        with self.lock, contextlib.suppress(OSError):
            self._memory[:] = self._bytes(0, self._published[0])  # results can still be read
        file, self._file = self._file, None
        if os.getpid() == self._process and self.path is not None:
            with contextlib.suppress(OSError):
                status = os.stat(self.path)
                if self._made and status.st_size == 0:
                    self.path.unlink()
                unlock(file)  # a forked child may hold the open file, too
        file.close()

    # -- events ---------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state after all events.

        Raises:
            StorageError: A line of the file cannot be read, or does not fit the state before it.
        """
        with self.lock:
            at, state = self._published
            rest = self._bytes(at)
            if not rest:
                return state
            for line in rest.splitlines(keepends=True):
                if not line.endswith(b"\n"):
                    break  # torn
                state = self._reduced(state, line)
                at += len(line)
            self._published = at, state
            return state

    @property
    def spent(self) -> Usage:
        """What counts against the caps."""
        return self.state.spent

    @property
    def usage(self) -> Usage:
        """`spent`, in which a call that a process waits for has not failed."""
        return self.state.sent if self.calling else self.state.spent

    @property
    def calling(self) -> bool:
        """Whether a process waits for the calls under way, as far as locks can tell."""
        path = self.path or self.path_read
        if path is None or not self.state.under_way:
            return False
        # A process that does not lend its file has it locked; but this one locks its own always.
        return _is_taken(_mark_of(path)) or (self._file is None and _is_taken(path))

    def _reduced(self, state: State, line: bytes) -> State:
        try:
            return reduce(state, _read_line(line))
        except StorageError:
            raise
        except _FAULTS as error:
            raise StorageError(
                f"{self.path or self.path_read or 'the journal'}, line {state.count + 1}: it is "
                f"damaged, or not as llmopt wrote it ({type(error).__name__}: {error}). Restore "
                f"the file from a copy; or continue with the lines before it: `head -n "
                f"{state.count} FILE > NEW`, and give NEW; or move it away to start again"
            ) from error

    def state_at(self, count: int) -> State:
        """Return the state after the first `count` events."""
        with self.lock:
            if self.state.count == count:
                return self.state
            state = self._start
            for line in self._bytes(0, self._published[0]).splitlines()[:count]:
                state = reduce(state, _read_line(line))
            return state

    def events(self) -> Iterator[Event]:
        """Return all events in order."""
        with self.lock:
            _ = self.state
            lines = self._bytes(0, self._published[0]).splitlines()
        return map(_read_line, lines)

    def steps(self) -> Iterator[tuple[State, Event, State]]:
        """Yield each event in order, between the states before and after it."""
        state = self._start
        for event in self.events():
            before, state = state, reduce(state, event)
            yield before, event, state

    def append(self, event: Event) -> State:
        """Write an event, and return the state after it; the line is in the file by then.

        Raises:
            StorageError: It cannot be written: the file is as it was before.
            TypeError, ValueError: The event does not fit the state. Nothing is written.
        """
        with self.lock:
            self.check()
            self.write_start()
            return self._append(event)

    def _append(self, event: Event) -> State:
        line = event.to_json()
        state = reduce(self.state, _read_line(line))
        at = self._published[0]
        if self._file is None:
            self._memory[at:] = line
        else:
            self._write(at, line)
        self._published = at + len(line), state
        self._made = False
        return state

    def _write(self, at: int, line: bytes) -> None:
        assert self._file is not None
        handle, rest = self._file.fileno(), line
        try:
            if os.fstat(handle).st_size > at:
                os.ftruncate(handle, at)  # a torn line
            while rest:
                rest = rest[os.write(handle, rest) :]
            if self._durable:
                os.fsync(handle)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(handle, at)
            raise StorageError(
                f"cannot write to {self.path}: {error.strerror or error}. Nothing was "
                f"recorded; {room_for(error)} and make the same call again"
            ) from error

    def save(self, path: Path) -> None:
        """Write all events and the data of trials to another file, atomically."""
        with self.lock:
            events = list(self.events())
            data = self._bytes(0, self._published[0])
        if not data and self._head is not None:
            data = self._head.to_json()
        folder = folder_of(path)
        for event in events:
            if isinstance(event, Told) and event.data is not None:
                self.arrays.read(event.data).keep_in(folder / event.data["file"])
        write_bytes_atomically(path, data, durable=True)

    def leave(self) -> None:
        """Close the file, also in a forked child: its lock would outlive the parent."""
        files, self._file, self._mark = (self._file, self._mark), None, None
        for file in files:
            if file is not None:
                file.close()

    def is_at(self, path: Path) -> bool:
        """Whether a path leads to the file of this journal."""
        try:
            status = os.stat(path)
        except OSError:
            return False
        return self.path is not None and (status.st_dev, status.st_ino) == self._place

    def __getstate__(self) -> dict[str, Any]:
        """A copy keeps its events in memory: two writers would tear the file."""
        with self.lock:
            _ = self.state
            data = self._bytes(0, self._published[0])
            return {"start": self._start, "data": data, "arrays": self.arrays, "head": self._head,
                    "path": self.path or self.path_read}  # fmt: skip

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__init__(None, kept["start"])  # type: ignore[misc]
        self.arrays, self._head = kept["arrays"], kept["head"]
        self.path_read = kept["path"]
        self._start = replace(self._start, read_data=self.arrays.read)
        self._published = 0, self._start
        self._memory += kept["data"]


_open_journals: weakref.WeakSet[Journal] = weakref.WeakSet()


def _leave_journals() -> None:
    for journal in list(_open_journals):
        journal.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_journals)


def _read_line(line: bytes) -> Event:
    data = read_json(line)
    if not isinstance(data, dict):
        raise ValueError("not a JSON object")
    return Event.read(data)


def read_journal(path: str | os.PathLike[str], *, links: bool = True) -> bytes:
    """Return the content of a storage file.

    Raises:
        StorageError: It cannot be read, or is none.
    """
    try:
        data = read_bytes(path, most=MAX_JOURNAL, links=links)
    except OSError as error:
        raise unreadable(path, error) from error
    _check_start(data[:_HEAD], Path(path))
    return data


def read_events(
    path: str | os.PathLike[str], *, links: bool = True, kind: str = ""
) -> Iterator[Event]:
    """Read the events of a storage file, all or of one kind; a torn last line is skipped.

    Raises:
        StorageError: It cannot be read, or a line is damaged.
    """
    data = read_journal(path, links=links)
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), start=1):
        if kind and not re.match(rb'\s*\{\s*"event"\s*:\s*"' + kind.encode(), line):
            continue
        try:
            yield _read_line(line)
        except _FAULTS as error:
            raise StorageError(f"{path}, line {number}: damaged ({error})") from error


def read_started(path: str | os.PathLike[str], *, links: bool = True) -> Started:
    """Return the latest event of a storage file that says what search it is.

    Raises:
        StorageError: It cannot be read, or is of another kind.
    """
    *_, started = None, *read_events(path, links=links, kind="started")
    if not isinstance(started, Started):
        raise StorageError(f"{path} holds no search yet: give the file of a search that began")
    return started


def _check_start(data: bytes, path: Path) -> None:
    """Raise unless a file is empty, or begins as a journal of this format does."""
    first = data.partition(b"\n")[0]
    if first == data and len(data) < _HEAD and _START.startswith(first[: len(_START)]):
        return  # empty, or torn in its first line
    kind = re.match(rb'\s*\{\s*"event"\s*:\s*"(\w+)"', first)
    if kind is None or kind[1] != b"started":
        raise StorageError(
            f"{path} is not a storage file of llmopt: nothing was changed in it. Give the file "
            "that save() or storage= wrote, or the path of a new file"
        )
    number = re.search(rb'"format"\s*:\s*(\d+)', first)
    if number is None or int(number[1]) != FORMAT:
        there = number[1].decode() if number else "no"
        raise StorageError(
            f"{path} has format number {there}, and this version of llmopt reads number {FORMAT}. "
            "Continue the search with the version that wrote it, or move the file away"
        )


def _locked(file: FileIO, path: Path) -> bool:
    try:
        return try_lock(file)
    except OSError:
        logger.warning("%s: the file system has no locks", path)
        return True


def _mark_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _is_lent(path: Path) -> bool:
    """Whether a journal of another process lends its file, which is locked here."""
    mark = _mark_of(path)
    if not os.path.lexists(mark):
        return False
    try:
        with open_to_append(mark) as file:
            if not _locked(file, mark):
                return True
        mark.unlink()  # its process was killed
    except OSError:
        return True
    return False


def _is_taken(path: Path) -> bool:
    """Whether somebody has locked a file."""
    try:
        with open_file(path, links=False) as file:
            return not try_lock(file)
    except FileNotFoundError:
        return False
    except OSError:  # it has no locks
        return True


def _is_at(path: Path, place: tuple[int, int]) -> bool:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return False
    return (status.st_dev, status.st_ino) == place


def _checked_path(path: str | os.PathLike[str]) -> Path:
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:[/\\]", os.fspath(path)):
        raise StorageError(
            f"storage={short(os.fspath(path))} is a URL: expected the path of a file, such as "
            'storage="search.jsonl". For a database of Optuna make a study with it, and use '
            "LLMSampler as its sampler"
        )
    return Path(path).expanduser()


def _in_use(path: Path) -> str:
    caller = CALLER.get()
    if caller is not PYTHON:
        longer = f", or wait longer ({caller.argument('wait', 'SECONDS')})" * caller.options
        return (
            f"{path} is in use by another program, perhaps an `llmopt ask` that waits for its "
            f"model: answer its request, end it (`lsof {path}` names it){longer}"
        )
    return (
        f"{path} is in use by another optimizer or process (`lsof {path}` may name it): close() or "
        "end that search, or give each its own file. Several processes can share one search as an "
        "Optuna study with LLMSampler (docs/workers.md)"
    )
