"""A lock that does not outlive its thread in a forked child."""

from __future__ import annotations

import os
import threading


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
