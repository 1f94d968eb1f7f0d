"""A lock that does not outlive its thread in a forked child, and steps that Ctrl-C waits for."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


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
