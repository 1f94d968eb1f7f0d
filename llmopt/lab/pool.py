"""Workers beside a worker: what `pmap` and `submit` run on.

They are forked before the worker confines itself, each confines itself in the same way, and each
is joined to it by one socket. All of them may be taken over by a block: none is trusted more than
the others, and none has the socket of the parent.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import select
import socket
import struct
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from llmopt.lab import pickles

_SLOT = 1 << 20  # bytes of what a job reports on its way
_HEAD = struct.Struct("<QQ")  # a counter, odd while it is written, and the length
_FLAG = _HEAD.size  # a byte: whether the job is to end
_AT = _FLAG + 1  # where the report begins
_SIZE = struct.Struct("<Q")
_DIED = "its worker died: too much memory or time?"
_NONE_LEFT = "no worker is left to run it"
_CANCELLED = "it was cancelled"
_MOST_REASONS = 5  # that a message on failed items gives

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
    function: Callable[..., Any] = _no_function
    while True:
        kind, *parts = receive(fd)
        if kind == "prepare":
            prepare[parts[0]](*parts[1:])
        elif kind == "function":
            try:
                function = pickles.loads(parts[0])
            except BaseException as error:
                function = partial(_no_function, error=error)
        else:
            _answer(fd, function, parts[0])


def _no_function(*_: Any, error: BaseException | None = None) -> None:
    raise error or RuntimeError("there is no function to run")


def _answer(fd: int, function: Callable[..., Any], item: bytes | None) -> None:
    """Send the result of a function for an item, or without one, or why there is none."""
    outcome: tuple[bool, Any]
    try:
        given = () if item is None else (pickles.loads(item),)
        outcome = True, pickles.dumps(function(*given))
    except BaseException as error:
        outcome = False, describe(error)
    try:
        send(fd, outcome)
    except (MemoryError, ValueError) as error:
        send(fd, (False, f"{type(error).__name__}: {error}"))


def describe(error: BaseException) -> str:
    """Return an exception and the lines of blocks in its traceback."""
    steps = [
        f"  {step.filename}, line {step.lineno}, in {step.name}"
        for step in traceback.extract_tb(error.__traceback__, limit=20)
        if step.filename.startswith("<")
    ]
    try:
        said = str(error)[:2000]
    except Exception:
        said = "(its message cannot be shown)"
    return "\n".join([f"{type(error).__name__}: {said}", *steps])


# -- the side of the main worker ------------------------------------------------------------


class Member:
    """One worker as the main one sees it."""

    def __init__(self, fd: int, memory: mmap.mmap) -> None:
        self.fd, self.memory = fd, memory
        self.job: Job | None = None
        self.prepared = 0  # how many of the pool's preparations it has received
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
        """Read what it reported last."""
        if self._member is None:
            return
        memory = self._member.memory
        for _ in range(100):
            count, size = _HEAD.unpack_from(memory)
            if not count:
                return
            data = bytes(memory[_AT : _AT + min(size, _SLOT)])
            if not count % 2 and _HEAD.unpack_from(memory)[0] == count:  # not while it is written
                try:
                    value = pickles.loads(data)
                except Exception as error:
                    why = f"{type(error).__name__}: {error}"
                    value = WorkerError(f"what the job reported cannot be read: {why}")
                if isinstance(value, WorkerError):
                    self._unread = value
                else:
                    self._best, self._unread = value, None
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

    def finish(self, outcome: tuple[bool, Any]) -> None:
        """Store what its worker sent, unless it was cancelled."""
        self._member = None
        if not self._ended:
            self._ended = True
            good, value = outcome
            try:
                self._result, self._error = pickles.loads(value) if good else None, ""
            except Exception as error:
                good, value = False, describe(error)
            self._error = "" if good else str(value)

    @property
    def state(self) -> str:
        """Its state in words."""
        if self._error:
            return "cancelled" if self._error == _CANCELLED else "failed"
        if self.done:
            return "done"
        return "running" if self._member is not None else "waiting for a worker"

    def __repr__(self) -> str:
        return f"Job({self._name}: {self.state})"

    def __getstate__(self) -> dict[str, Any]:
        if not self.done:
            self.read_report()
        return {**self.__dict__, "_pool": None, "_member": None}

    def start(self, pool: Pool, member: Member | None = None) -> None:
        """Wait for a worker of a pool, or run on `member`, unless it has ended."""
        self._pool, self._member = pool, member
        if member is not None:
            member.job = self
            if pool.send(member, "function", self._payload):
                pool.send(member, "item", None)
        elif not self._ended:
            pool.waiting.append(self)


class Pool:
    """The workers beside this one."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)
        self.waiting: list[Job] = []
        self.preparations: list[tuple[Any, ...]] = []
        self.paused: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

    @property
    def alive(self) -> list[Member]:
        """Workers that have not died."""
        return [m for m in self.members if m.alive]

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
        """Drop a worker that has died; its job fails."""
        member.alive = False
        job, member.job = member.job, None
        if job is not None:
            job.finish((False, _DIED))

    def look(self, seconds: float = 0.0) -> None:
        """Store the results of ended jobs, and start waiting ones."""
        busy = {m.fd: m for m in self.members if m.job is not None}
        for fd in _ready(list(busy), seconds):
            member, job = busy[fd], busy[fd].job
            assert job is not None
            job.read_report()
            outcome = _outcome(fd)
            if outcome is None:
                self.lose(member)
            else:
                job.finish(outcome)
                member.job = None
        for member in self.alive:
            if self.waiting and member.job is None:
                self.waiting.pop(0).start(self, member)

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Job:
        """Run a function in another worker, and return its job at once.

        It runs on while later blocks run and the objective is evaluated: see ``job.done``,
        ``job.best`` (what it gave to `report`), ``job.wait(seconds)``, ``job.result`` and
        ``job.cancel()``.
        """
        if not self.alive:
            raise RuntimeError("there is no worker to run a job on: call the function itself")
        payload = pickles.dumps(partial(function, *args, **kwargs))
        job = Job(self, payload, getattr(function, "__name__", "job"))
        job.start(self)
        self.look()
        return job

    def wait(self, jobs: Iterable[Job], seconds: float = 1e9) -> list[Job]:
        """Wait until all jobs have ended, for at most `seconds`; return those that have."""
        ends, listed = time.monotonic() + seconds, list(jobs)
        return [job for job in listed if job.wait(max(0.0, ends - time.monotonic()))]

    def pmap(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """Return ``[function(item) for item in items]``, computed by all idle workers.

        ``None`` stands in the place of an item that failed, and why is printed.

        Raises:
            WorkerError: All items failed.
        """
        listed = list(items)
        self.look()
        results: list[Any] = [None] * len(listed)
        failures: dict[int, str] = {}
        members = [m for m in self.alive if m.job is None][: len(listed)]
        if members and len(listed) > 1:
            self._map(members, function, listed, results, failures)
        else:
            for place, item in enumerate(listed):
                try:
                    results[place] = function(item)
                except Exception as error:
                    failures[place] = describe(error)
        if failures:
            said = _failed(failures, len(listed))
            if len(failures) == len(listed):
                raise WorkerError(said)
            print(f"pmap: {said}")
        return results

    def _map(
        self,
        members: Sequence[Member],
        function: Callable[[Any], Any],
        items: Sequence[Any],
        results: list[Any],
        failures: dict[int, str],
    ) -> None:
        """Compute items in idle workers, one item at a time, and fill in results and failures."""
        payload = pickles.dumps(function)
        idle = [m for m in members if self.send(m, "function", payload)]
        waiting, running = deque(range(len(items))), dict[int, tuple[Member, int]]()
        while waiting or running:
            while waiting and idle:
                place = waiting.popleft()
                try:
                    item = pickles.dumps(items[place])
                except TypeError as error:
                    failures[place] = str(error)
                    continue
                member = idle.pop()
                if self.send(member, "item", item):
                    running[member.fd] = member, place
                else:
                    waiting.appendleft(place)
            if not running:
                failures |= dict.fromkeys(waiting, _NONE_LEFT)
                return
            for fd in _ready(list(running), 60.0):
                member, place = running.pop(fd)
                answer: tuple[bool | None, Any] = _outcome(fd) or (None, _DIED)
                good, value = answer
                if good is None:
                    self.lose(member)
                else:
                    idle.append(member)
                try:
                    if good:
                        results[place] = pickles.loads(value)
                    else:
                        failures[place] = str(value)
                except Exception as error:
                    failures[place] = describe(error)


def _failed(failures: dict[int, str], of: int) -> str:
    """Return which items failed and why, equal reasons together."""
    reasons: dict[str, list[int]] = {}
    for place, why in sorted(failures.items()):
        reasons.setdefault(why, []).append(place)
    lines = [f"{len(failures)} of {of} items failed, with None in their places:"]
    for why, places in list(reasons.items())[:_MOST_REASONS]:
        some = ", ".join(map(str, places[:10])) + ", …" * (len(places) > 10)
        lines.append(f"item{'s' * (len(places) > 1)} {some}: {why}")
    more = len(reasons) - _MOST_REASONS
    return "\n".join(lines + [f"and {more} more reasons"] * (more > 0))


def _outcome(fd: int) -> tuple[bool, Any] | None:
    """Return what a worker answers; ``None`` if it died or sent something else."""
    try:
        good, value = receive(fd)
    except Exception:
        return None
    return (good is True, value)


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


def fork(count: int, begin: Callable[[int], dict[str, Callable[..., Any]]]) -> Pool:
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
    return Pool(members)


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
