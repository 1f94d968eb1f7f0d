"""Asks of asynchronous loops: those that wait at the same time are joined into one.

A search decides what to ask next from all that it knows, so its asks follow one another. The
waiting need not: asks that come while none is under way, or while another one is, become one
request for all their points. The file of a run then holds one ask, as after ``ask(n)``.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from llmopt.errors import StorageError
from llmopt.history import Proposal

logger = logging.getLogger(__name__)

Served = tuple[list[Proposal], list[str]]
"""Points, and texts to warn of."""


class _Waiter:
    """One ask that is waited for, in whatever loop."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Served] = self.loop.create_future()
        self.points: list[Proposal] = []
        self.gone = False
        self.counted = False

    def wake(self, served: Served | None, error: BaseException | None = None) -> bool:
        """Let the loop go on with it; return whether it is still open."""

        def resolve() -> None:
            if self.future.done():
                return
            if served is None:
                self.future.set_exception(error or RuntimeError("no points"))
            else:
                self.future.set_result(served)

        try:
            self.loop.call_soon_threadsafe(resolve)
        except RuntimeError:
            return False
        return True


class Joiner:
    """Serves asks from one thread, which nobody has to wait for at Ctrl-C or at the end.

    Copies, and forked children, begin with nobody waiting.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()  # held briefly, and no other lock is taken meanwhile
        # Asks that were made in this turn of their event loop; they are served together.
        self._coming: list[_Waiter] = []
        self._waiting: list[_Waiter] = []
        self._serving = False
        self._process = os.getpid()

    def __reduce__(self) -> tuple[type[Joiner], tuple[()]]:
        return Joiner, ()

    async def ask(
        self,
        n: int,
        serve: Callable[[int, Callable[[], int]], Served],
        give_back: Callable[[list[Proposal]], object],
        turn: AbstractContextManager[Any],
    ) -> Served:
        """Return `n` points, and the texts to warn of, or raise whatever `serve` raises.

        `serve` asks for a number of points, in a thread. Right before it records them it calls its
        second argument for how many are still waited for, and returns those. `give_back` takes
        points of an ask that was cancelled meanwhile. `turn` is held while it is settled who is
        served next, and served.
        """
        if self._process != os.getpid():
            self._begin()
        waiter = _Waiter(n)
        with self._lock:
            self._coming.append(waiter)
        # Later, so that asks which begin together are served together.
        waiter.loop.call_soon(self._start, waiter.loop, serve, give_back, turn)
        try:
            return await waiter.future
        except BaseException:
            with self._lock:
                waiter.gone = True
                points, waiter.points = waiter.points, []
                for queue in (self._coming, self._waiting):
                    if waiter in queue:
                        queue.remove(waiter)
            _return(points, give_back)
            raise

    def _start(self, loop: asyncio.AbstractEventLoop, *how: Any) -> None:
        with self._lock:
            self._waiting += [w for w in self._coming if w.loop is loop]
            self._coming = [w for w in self._coming if w.loop is not loop]
            if self._serving or not self._waiting:
                return
            self._serving = True
        # Tracers keep what they know in the context; an executor's threads would be waited for.
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._serve, *how), daemon=True).start()

    def _serve(
        self,
        serve: Callable[[int, Callable[[], int]], Served],
        give_back: Callable[[list[Proposal]], object],
        turn: AbstractContextManager[Any],
    ) -> None:
        while True:
            with turn:
                with self._lock:
                    batch, self._waiting = self._waiting, []
                    if not batch:
                        self._serving = False
                        return
                try:
                    wanted = sum(waiter.n for waiter in batch)
                    proposals, warned = serve(wanted, partial(self._count, batch))
                except BaseException as error:
                    for waiter in batch:
                        waiter.wake(None, error)
                    continue
            for waiter in batch:
                if not waiter.counted:
                    continue
                mine, proposals = proposals[: waiter.n], proposals[waiter.n :]
                with self._lock:
                    gone = waiter.gone
                    waiter.points = [] if gone else mine
                if gone or not waiter.wake((mine, warned)):
                    _return(mine, give_back)
                else:
                    warned = []

    def _count(self, batch: list[_Waiter]) -> int:
        """Settle who of a batch gets points, and return how many they are."""
        with self._lock:
            for waiter in batch:
                waiter.counted = not waiter.gone
            return sum(waiter.n for waiter in batch if waiter.counted)


def _return(points: list[Proposal], give_back: Callable[[list[Proposal]], object]) -> None:
    if points:
        try:
            give_back(points)
        except StorageError as error:
            logger.warning("a cancelled ask leaves %d points pending: %s", len(points), error)
