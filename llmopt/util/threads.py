"""Threads and forks: a lock, and calls that an interrupted caller need not wait for."""

from __future__ import annotations

import contextvars
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

Argument = TypeVar("Argument")
Result = TypeVar("Result")

WAIT_SHOWN = contextvars.ContextVar("WAIT_SHOWN", default=False)
"""Whether a caller shows for how long a model is waited for."""


class Deadline(NamedTuple):
    """When the requests of a search end."""

    ends: float = math.inf  # by the monotonic clock
    why: str = ""

    @property
    def left(self) -> float:
        """The seconds until then, at least 0."""
        return max(0.0, self.ends - time.monotonic())


_NEVER = Deadline()
SEARCH_DEADLINE = contextvars.ContextVar("SEARCH_DEADLINE", default=_NEVER)
"""Of the requests that the caller sends; each client ends a request then if it can."""

_RLock: Any = type(threading.RLock())
_locks: weakref.WeakSet[Any] = weakref.WeakSet()


class Lock(_RLock):  # type: ignore[misc]
    """A re-entrant lock that a forked child finds open.

    The thread that held it when the process was forked does not exist in the child, where
    a plain lock would stay closed for ever. Copies are open, too.
    """

    def __init__(self) -> None:
        super().__init__()
        _locks.add(self)

    def __reduce__(self) -> tuple[type[Lock], tuple[()]]:
        return Lock, ()


def _open_locks() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_locks)


class DeadlineExceeded(Exception):
    """A call took longer than it may."""


class _Task:
    """One call in a separate thread."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.error: BaseException | None = None
        # Open once the call has ended. An Event would stay locked after an interrupt of `wait`.
        self._end = threading.Lock()
        self._end.acquire()
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
            self._end.release()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait, once, until the call has ended; return whether it has."""
        return self._end.acquire(timeout=-1 if seconds is None else max(0.0, seconds))


def within(seconds: float, call: Callable[[], Result]) -> Result:
    """Return the result of `call`, or give up on it: it keeps running in its thread."""
    results: list[Result] = []
    task = _Task(lambda: results.append(call()))
    if not task.wait(seconds):
        raise DeadlineExceeded
    if task.error is not None:
        raise task.error
    return results[0]
