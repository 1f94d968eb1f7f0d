"""Threads, forks and Ctrl-C: a lock, steps done as a whole, calls that nobody has to wait for."""

from __future__ import annotations

import contextlib
import contextvars
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, TypeVar

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class Lock:
    """A re-entrant lock that a forked child finds open.

    The thread that held it when the process was forked does not exist in the child, where
    a plain lock would stay closed for ever. Copies are open, too.
    """

    def __init__(self) -> None:
        self._open()

    def _open(self) -> None:
        self._lock, self._process = threading.RLock(), os.getpid()

    def __enter__(self) -> None:
        if self._process != os.getpid():
            self._open()
        self._lock.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[Lock], tuple[()]]:
        return Lock, ()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C, and a SIGTERM that the program handles, wait until a step is done.

    For what must happen as a whole: an event on the disk and in memory, a reply that is counted
    and kept. Only the main thread is ever interrupted by a signal, so elsewhere this does nothing.
    """
    with _waiting(signal.SIGTERM), _waiting(signal.SIGINT):
        yield


@contextlib.contextmanager
def _waiting(number: int) -> Iterator[None]:
    came: list[FrameType | None] = []
    handler: Any = None
    try:
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(number)
        if callable(handler):
            signal.signal(number, lambda _, frame: came.append(frame))
        yield
    finally:
        if callable(handler):
            signal.signal(number, handler)
            if came:
                handler(number, came[0])


class DeadlineExceeded(Exception):
    """A call took longer than it may."""


class _Task:
    """One call in a thread of its own."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.error: BaseException | None = None
        self.done = threading.Event()
        # Tracers keep what they know in the context.
        context = contextvars.copy_context()
        # The threads of an executor are waited for when the process ends.
        threading.Thread(target=context.run, args=(self._run,), daemon=True).start()

    def _run(self) -> None:
        try:
            self.call()
        except BaseException as error:
            self.error = error
        finally:
            self.done.set()


def within(seconds: float, call: Callable[[], Result]) -> Result:
    """Return what `call` returns, or give up on it: it goes on in its thread until it ends."""
    results: list[Result] = []
    task = _Task(lambda: results.append(call()))
    if not task.done.wait(seconds):
        raise DeadlineExceeded
    if task.error is not None:
        raise task.error
    return results[0]


def at_once(
    call: Callable[[Argument], Result], arguments: Iterable[Argument], most: int
) -> list[Result]:
    """Return what `call` returns for each argument, in order; at most `most` run at once.

    If the caller is interrupted, no further call begins, and those that run are left alone.
    """
    waiting = list(enumerate(arguments))
    count = len(waiting)
    waiting.reverse()
    results: dict[int, Result] = {}
    stopped = threading.Event()

    def work() -> None:
        while not stopped.is_set():
            try:
                position, argument = waiting.pop()
            except IndexError:
                return
            try:
                results[position] = call(argument)
            except BaseException:
                stopped.set()
                raise

    tasks = [_Task(work) for _ in range(min(most, count))]
    try:
        for task in tasks:
            task.done.wait()
    finally:
        stopped.set()
    for task in tasks:
        if task.error is not None:
            raise task.error
    return [results[position] for position in range(count)]
