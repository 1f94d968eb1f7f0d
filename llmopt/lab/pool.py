"""Workers beside a worker: what `pmap` and `submit` run on.

They are forked before the worker confines itself, each confines itself in the same way, and each
is joined to it by one socket. All of them may be taken over by a block: none is trusted more than
the others, and none has the socket of the parent.

Only the standard library is imported, and nothing of llmopt that is not beside this file.
"""

from __future__ import annotations

import builtins
import contextlib
import mmap
import os
import pickle
import select
import socket
import struct
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from llmopt.lab import function_pickles as pickles

_SLOT = 1 << 20  # bytes of what a job reports on its way
_HEAD = struct.Struct("<QQ")  # a counter, odd while it is written, and the length
_FLAG = _HEAD.size  # a byte: whether the job is to end
_AT = _FLAG + 1  # where the report begins
_SIZE = struct.Struct("<Q")
_ENDED = "its worker ended: too much memory or time?"
_CANCELLED = "it was cancelled"
_CHUNKS = 8  # parts of the items of one worker: they take differently long

slot: mmap.mmap | None = None
"""Where the job that this process runs reports; ``None`` in the main worker."""


class WorkerError(RuntimeError):
    """A function failed in another worker; the message holds its traceback."""


class Cancelled(BaseException):
    """Raised by `report` in a job that `Job.cancel` ends."""


def check_cancelled() -> None:
    """Raise `Cancelled` in a job that is to end; elsewhere nothing happens."""
    if slot is not None and slot[_FLAG]:
        raise Cancelled(_CANCELLED)


def report(value: Any) -> None:
    """Show a value as `job.best`, from within a job; elsewhere nothing happens."""
    if slot is None:
        return
    check_cancelled()
    data = pickles.dumps(value)
    if len(data) > _SLOT - _AT:
        said = f"it has {len(data)} bytes pickled; expected at most {_SLOT - _AT}"
        data = pickles.dumps(WorkerError(f"what the job reported cannot be read: {said}"))
    count = _HEAD.unpack_from(slot)[0] // 2 * 2
    _HEAD.pack_into(slot, 0, count + 1, len(data))
    slot[_AT : _AT + len(data)] = data
    _HEAD.pack_into(slot, 0, count + 2, len(data))


def send(fd: int, value: Any) -> None:
    """Write a value, pickled, to a socket."""
    data = pickle.dumps(value, protocol=5)
    left = memoryview(_SIZE.pack(len(data)) + data)
    while left:
        left = left[os.write(fd, left) :]


def receive(fd: int) -> Any:
    """Return the next value of a socket. Only a confined process may call this."""
    size = _SIZE.unpack(_read(fd, _SIZE.size))[0]
    return pickle.loads(_read(fd, size))


def _read(fd: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = os.read(fd, min(size - len(data), 1 << 20))
        if not part:
            raise EOFError("the worker at the other end is gone")
        data += part
    return bytes(data)


# -- the side of a further worker -----------------------------------------------------------


def serve(fd: int, prepare: dict[str, Callable[..., Any]]) -> None:
    """Run what comes, one after another, until the main worker is gone."""
    task: Any = None
    space: dict[str, Any] = {}
    while True:
        kind, *parts = receive(fd)
        if kind == "prepare":
            prepare[parts[0]](*parts[1:])
            continue
        try:
            if kind == "function":
                task, space = None, new_space()
                task = pickles.unpacked(parts[0], space)
                continue
            if kind == "items":
                items = pickles.unpacked(parts[0], space)
                done: Any = [pickles.dumps(task(item)) for item in items]
            else:
                function, args, kwargs = pickles.unpacked(parts[0], new_space())
                done = pickles.dumps(function(*args, **kwargs))
            answer = (True, done)
        except BaseException as error:
            answer = (False, _describe(error))
            if kind == "function":
                task = _Failing(answer[1])
                continue
        try:
            send(fd, answer)
        except (MemoryError, ValueError) as error:
            send(fd, (False, f"{type(error).__name__}: {error}"))


class _Failing:
    """Stands for a function that could not be unpacked here."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __call__(self, item: Any) -> Any:
        raise WorkerError(self.why)


def new_space() -> dict[str, Any]:
    """Return the namespace of a function that runs here."""
    pickles.lost.clear()
    return {"__name__": pickles.BLOCK, "__builtins__": builtins, **pickles.given}


def _describe(error: BaseException) -> str:
    steps = [
        f"  {step.filename}, line {step.lineno}, in {step.name}"
        for step in traceback.extract_tb(error.__traceback__, limit=20)
        if step.filename.startswith("<")
    ]
    try:
        said = str(error)[:2000]
    except Exception:
        said = "(its message cannot be shown)"
    if isinstance(error, NameError) and error.name in pickles.lost:
        said += f", since it cannot be sent to another process: {pickles.lost[error.name]}"
    return "\n".join([f"{type(error).__name__}: {said}", *steps])


# -- the side of the main worker ------------------------------------------------------------


class Member:
    """One worker as the main one sees it."""

    def __init__(self, fd: int, memory: mmap.mmap) -> None:
        self.fd, self.memory = fd, memory
        self.job: Job | None = None
        self.prepared = 0  # how many of the pool's preparations it has got
        self.alive = True


class Job:
    """A function that runs in another worker while blocks and the search continue."""

    _unread: WorkerError | None = None  # why the latest report cannot be read

    def __init__(self, pool: Pool | None, payload: bytes, name: str) -> None:
        self._pool, self._payload, self._name = pool, payload, name
        self._member: Member | None = None
        self._best: Any = None
        self._result: Any = None
        self._error = ""
        self._ended = False

    @property
    def done(self) -> bool:
        """Whether it has ended, with a result or an error."""
        if self._pool is not None:
            self._pool.look()
        return self._ended

    @property
    def best(self) -> Any:
        """What it reported last, by `report(value)`; `cma` reports ``(x, f)``.

        Raises:
            WorkerError: The report cannot be read.
        """
        if not self.done:
            self.read_report()
        if self._unread is not None:
            raise self._unread
        return self._best

    def read_report(self) -> None:
        """Take in what it reported last."""
        if self._member is None or self._pool is None:
            return
        memory = self._member.memory
        for _ in range(100):
            count, size = _HEAD.unpack_from(memory)
            if not count:
                return
            data = bytes(memory[_AT : _AT + min(size, _SLOT)])
            if not count % 2 and _HEAD.unpack_from(memory)[0] == count:  # not while it is written
                try:
                    found = pickles.loads(data, self._pool.space)
                except Exception as error:
                    why = f"{type(error).__name__}: {error}"
                    found = WorkerError(f"what the job reported cannot be read: {why}")
                if isinstance(found, WorkerError):
                    self._unread = found
                else:
                    self._best, self._unread = found, None
                return

    @property
    def result(self) -> Any:
        """What the function returned. Raises what it raised; waits for it if it still runs."""
        self.wait()
        if self._error:
            raise WorkerError(self._error)
        return self._result

    def wait(self, seconds: float = 1e9) -> bool:
        """Wait until it has ended, for at most `seconds`; return whether it has.

        The clock of the block stands still meanwhile.
        """
        ends = time.monotonic() + seconds
        if not self.done and self._pool is not None:
            with self._pool.paused():
                while not self.done and time.monotonic() < ends:
                    self._pool.look(min(1.0, max(0.0, ends - time.monotonic())))
        return self._ended

    def cancel(self) -> None:
        """End it at its next `report` or generation of `cma`; one that waits never begins."""
        if self.done or self._pool is None:
            return
        if self._member is None:
            self._pool.waiting.remove(self)
        else:
            self.read_report()
            self._member.memory[_FLAG] = 1
        self._ended, self._error = True, _CANCELLED

    def __repr__(self) -> str:
        state = "failed" if self._error else "done" if self.done else "running"
        if self._member is None and not self._ended:
            state = "waiting for a worker"
        if self._error == _CANCELLED:
            state = "cancelled"
        return f"Job({self._name}: {state})"

    def __getstate__(self) -> dict[str, Any]:
        if not self.done:
            self.read_report()
        return {**self.__dict__, "_pool": None, "_member": None}

    def go_on(self, pool: Pool) -> None:
        """Start again in a new pool, unless it has ended."""
        self._pool = pool
        if not self._ended:
            pool.waiting.append(self)


class Pool:
    """The workers beside this one."""

    def __init__(self, members: Sequence[Member], space: dict[str, Any]) -> None:
        self.members, self.space = list(members), space
        self.waiting: list[Job] = []
        self.preparations: list[tuple[Any, ...]] = []
        self.paused: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

    @property
    def idle(self) -> list[Member]:
        """Workers that run nothing."""
        self.look()
        return [m for m in self.members if m.alive and m.job is None]

    def prepare(self, *preparation: Any) -> None:
        """Have every worker do something before its next function: a name and arguments."""
        self.preparations.append(preparation)

    def send(self, member: Member, *message: Any) -> bool:
        """Send a message to an idle worker, after what it is to prepare."""
        member.memory[:_AT] = bytes(_AT)  # here: where it runs, it may be late
        try:
            for preparation in self.preparations[member.prepared :]:
                send(member.fd, ("prepare", *preparation))
            member.prepared = len(self.preparations)
            send(member.fd, message)
        except OSError:
            self.lose(member)
        return member.alive

    def lose(self, member: Member) -> None:
        """Leave out a worker that has ended; its job fails."""
        member.alive = False
        job, member.job = member.job, None
        if job is not None:
            job._ended, job._error, job._member = True, job._error or _ENDED, None

    def look(self, seconds: float = 0.0) -> None:
        """Take the results of ended jobs, and start waiting ones."""
        busy = {m.fd: m for m in self.members if m.job is not None}
        for fd in _ready(list(busy), seconds):
            member = busy[fd]
            job = member.job
            assert job is not None
            job.read_report()
            try:
                right, found = receive(fd)
                if not job._ended:
                    job._result = pickles.loads(found, self.space) if right else None
                    job._error = "" if right else str(found)
            except (EOFError, OSError):
                self.lose(member)
                continue
            except Exception as error:
                job._error = f"{type(error).__name__}: {error}"
            job._ended, job._member, member.job = True, None, None
        for member in self.members:
            if self.waiting and member.alive and member.job is None:
                job = self.waiting.pop(0)
                member.job, job._member = job, member
                self.send(member, "job", job._payload)

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Job:
        """Run a function in another worker, and return its job at once.

        It runs on while later blocks run and the objective is evaluated: look at ``job.done``,
        ``job.best`` (what it gave to `report`), ``job.wait(seconds)``, ``job.result`` and
        ``job.cancel()``.
        """
        if not any(m.alive for m in self.members):
            raise RuntimeError("there is no worker to run a job on: call the function itself")
        payload = pickles.packed((function, args, kwargs), self.space)
        job = Job(self, payload, getattr(function, "__name__", "job"))
        self.waiting.append(job)
        self.look()
        return job

    def pmap(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """Return ``[function(item) for item in items]``, computed by all idle workers."""
        listed = list(items)
        members = self.idle
        if not members or len(listed) < 2:
            return [function(item) for item in listed]
        payload = pickles.packed(function, self.space)
        members = [m for m in members[: len(listed)] if self.send(m, "function", payload)]
        return _Map(self, members, listed).run()


class _Map:
    """One `pmap`: parts of its items, each sent to a worker that has none."""

    def __init__(self, pool: Pool, members: Sequence[Member], items: list[Any]) -> None:
        self._pool, self._members, self._items = pool, members, items
        self._size = max(1, len(items) // (max(1, len(members)) * _CHUNKS))
        self._left = list(range(0, len(items), self._size))[::-1]  # first items of parts
        self._working: dict[int, tuple[Member, int]] = {}
        self._results: list[Any] = [None] * len(items)
        self._trouble = ""

    def run(self) -> list[Any]:
        """Return the results. After an error no part is sent; those under way are waited for."""
        while self._working or (self._left and not self._trouble):
            for member in self._members:
                if member.alive and member.fd not in self._working:
                    self._send(member)
            if not self._working:
                self._trouble = self._trouble or _ENDED
                break
            for fd in _ready(list(self._working), 60.0):
                self._receive(*self._working.pop(fd))
        if self._trouble:
            raise WorkerError(self._trouble)
        return self._results

    def _send(self, member: Member) -> None:
        if self._trouble or not self._left:
            return
        start = self._left[-1]
        try:
            part = pickles.packed(self._items[start : start + self._size], self._pool.space)
        except Exception as error:
            self._trouble = f"item {start} cannot be sent to another process: {error}"
            return
        if self._pool.send(member, "items", part):
            self._working[member.fd] = member, self._left.pop()

    def _receive(self, member: Member, start: int) -> None:
        try:
            right, found = receive(member.fd)
            values = [pickles.loads(each, self._pool.space) for each in found if right]
            self._results[start : start + len(values)] = values
        except (EOFError, OSError):
            self._pool.lose(member)
            right, found = False, _ENDED
        except Exception as error:
            right, found = False, f"{type(error).__name__}: {error}"
        if not right:
            last = min(start + self._size, len(self._items)) - 1
            which = f"item {start}" if start == last else f"one of items {start} to {last}"
            self._trouble = self._trouble or f"{which}: {found}"


def _ready(fds: Sequence[int], seconds: float) -> list[int]:
    """Return the sockets that can be read without waiting; wait for one at most so long."""
    if not fds:
        if seconds:
            time.sleep(seconds)
        return []
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(int(seconds * 1000))]


def fork(
    count: int, space: dict[str, Any], begin: Callable[[int], dict[str, Callable[..., Any]]]
) -> Pool:
    """Fork workers; each first calls `begin` with its parent's process, to confine itself."""
    parent = os.getpid()
    members: list[Member] = []
    for _ in range(count):
        mine, its = socket.socketpair()
        memory = mmap.mmap(-1, _SLOT)
        if os.fork() == 0:
            try:
                _become_worker(parent, mine, its, memory, members, begin)
            finally:
                os._exit(1)
        its.close()
        members.append(Member(mine.detach(), memory))
    return Pool(members, space)


def _become_worker(
    parent: int,
    mine: socket.socket,
    its: socket.socket,
    memory: mmap.mmap,
    members: Sequence[Member],
    begin: Callable[[int], dict[str, Callable[..., Any]]],
) -> None:
    global slot
    mine.close()
    for member in members:  # those of the workers before
        os.close(member.fd)
        member.memory.close()
    os.dup2(its.fileno(), 0)  # in place of the socket to the parent, which it must not have
    os.dup2(its.fileno(), 1)
    its.close()
    slot = memory
    prepare = begin(parent)
    with contextlib.suppress(EOFError, OSError):
        serve(0, prepare)
    os._exit(0)
