"""Calls in threads that nobody has to wait for: not Ctrl-C, and not the end of the process."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class Lock:
    """A lock of which a pickle and a deep copy have one of their own."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[Lock], tuple[()]]:
        return Lock, ()


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
