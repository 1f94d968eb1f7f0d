"""The one loop of a search: ask for points, evaluate them (perhaps in parallel), tell the results.

    ended = drive(ask, call, tell, executor=Threads(), workers=8, timeout=600)

A search gives three functions. ``ask(free, running)`` returns at most `free` jobs, and none if the
search is over or has to wait for a running one. ``call(job)`` returns the function and the
arguments that evaluate a job. ``tell(job, result, error)`` records the outcome, and returns why the
evaluation failed and what to do about it. Asking and telling stay in this process; only
``call(job)`` runs in the executor.

However the loop ends, running evaluations are completed and recorded first. Only a second
Ctrl-C leaves them alone.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
)
from functools import partial
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Generic, TypeVar

from llmopt.errors import HOPELESS, BrokenTaskError
from llmopt.util.arguments import whole_number
from llmopt.util.text import clean, short
from llmopt.util.threads import SEARCH_DEADLINE, Deadline

Job = TypeVar("Job")
Ask = Callable[[int, int], Sequence[Job]]
Call = Callable[[Job], tuple[Any, ...]]
Tell = Callable[[Job, Any, "Exception | None"], "tuple[str, str] | None"]
Record = Callable[[Job, Any, "Exception | None"], None]

INTERRUPTED = "interrupted by Ctrl-C"
MOST_WORKERS = 10_000
_REMEDY = "Fix the environment or its wrappers"


class FailureWatch:
    """Ends a search whose evaluations have all failed, because more would be useless."""

    def __init__(self, what: str, sound: bool = False) -> None:
        self._what, self._sound = what, sound
        self._failed = 0

    def see(self, failure: str, remedy: str = "") -> None:
        """Count an evaluation; raise `BrokenTaskError` if it is the last of `HOPELESS` failures.

        `failure` is empty for a success; `remedy` says what to do about the failure.
        """
        self._sound, self._failed = self._sound or not failure, self._failed + 1
        if not self._sound and self._failed >= HOPELESS:
            raise BrokenTaskError(
                f"{self._what}: none of {self._failed} evaluations had a result, so no more are "
                f"made. The last one: {clean(failure).rstrip('.')}. {remedy or _REMEDY}"
            )


class Threads(Executor):
    """An executor with a daemon thread for each call: the interpreter exits without waiting."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return the future of a call, which begins at once."""
        future: Future[Any] = Future()
        context = contextvars.copy_context()  # tracers keep what they know there

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    result = context.run(fn, *args, **kwargs)
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)

        threading.Thread(target=run, daemon=True).start()
        return future


def workers_of(n_jobs: Any, executor: Any) -> tuple[int, Executor | None]:
    """Return the number of parallel evaluations, and their executor (``None``: the caller).

    Raises:
        TypeError: `executor` is none.
        ValueError: `n_jobs` is neither -1 nor at least 1, or `executor` hides its workers.
    """
    if n_jobs is not None and n_jobs != -1:
        try:
            n_jobs = whole_number("n_jobs", n_jobs, 1, MOST_WORKERS)
        except ValueError as error:
            raise ValueError(f"{error}, or -1 for one for each processor") from None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    count = (cores or 1) if n_jobs == -1 else n_jobs
    if executor is None:
        return (count, Threads()) if count and count > 1 else (1, None)
    if isinstance(executor, type) or not callable(getattr(executor, "submit", None)):
        raise TypeError(
            f"executor={short(executor)}: expected a concurrent.futures executor, such as "
            "ProcessPoolExecutor(8) or a Dask client's get_executor(); n_jobs=8 takes threads"
        )
    if callable(getattr(executor, "get_executor", None)):  # futures of Dask are others
        raise TypeError(f"executor={short(executor)}: give its get_executor()")
    return count or _workers_in(executor), executor


def _workers_in(executor: Any) -> int:
    """Return the number of calls that an executor runs at once, if it states it."""
    count = getattr(executor, "_max_workers", None)
    cluster: Any = getattr(executor, "_client", None)
    if count is None and hasattr(cluster, "nthreads"):  # Dask
        count = sum(cluster.nthreads().values())
    if not isinstance(count, int) or count < 1:
        raise ValueError(
            f"executor={short(executor)} does not say how many calls it runs at once: add n_jobs="
        )
    return count


class _Interrupts:
    """Lets the first Ctrl-C end a search after its running evaluations; a second one raises.

    While the model is asked in the main thread, the first one ends that request at once.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self.came = self.asking = False
        self._wake = wake

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Take Ctrl-C meanwhile, unless the program has its own handler."""
        main = threading.current_thread() is threading.main_thread()
        if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.came or self.asking:
            signal.default_int_handler(number, frame)
        self.came = True
        with contextlib.suppress(RuntimeError, OSError):  # it may come while stderr is written to
            said = "stopping after the running evaluations; press Ctrl-C again to stop at once"
            print(f"\nllmopt: {said}", file=sys.stderr, flush=True)
        self._wake()


def drive(
    ask: Ask[Job],
    call: Call[Job],
    tell: Tell[Job],
    *,
    what: str = "evaluation",
    sound: bool = False,
    give_back: Callable[[Sequence[Job]], object] = lambda jobs: None,
    executor: Executor | None = None,
    workers: int = 1,
    timeout: float | None = None,
) -> str:
    """Return why a search ended before its `ask` had no more jobs; empty if it did not.

    Args:
        ask: Returns jobs; called by one thread at a time, and with an `executor` in its own.
        call: Returns the function that evaluates a job, and its arguments.
        tell: Takes a job, and its result or what was raised. It may raise, which ends the search.
            It returns why the evaluation failed (empty if it did not) and what to do about it;
            ``None`` for an evaluation that says nothing of the others.
        what: What is evaluated, for the error if all evaluations fail.
        sound: Whether an evaluation before this call had a result.
        give_back: Takes jobs that did not begin.
        executor: Where evaluations run; ``None`` for the calling thread.
        workers: How many run at once.
        timeout: Seconds after which no further evaluation and no request begins.

    Raises:
        BrokenTaskError: The first five evaluations failed.
        KeyboardInterrupt: Ctrl-C came again while evaluations were running.
    """
    failures = FailureWatch(what, sound)

    def record(job: Job, result: Any, error: Exception | None) -> None:
        failure = tell(job, result, error)
        if failure is not None:
            failures.see(*failure)

    deadline = Deadline()
    if timeout is not None:
        deadline = Deadline(time.monotonic() + timeout, f"timeout={timeout:g} seconds are over")

    def ask_in_time(free: int, running: int) -> Sequence[Job]:
        before = SEARCH_DEADLINE.set(deadline)
        try:
            return ask(free, running)
        finally:
            SEARCH_DEADLINE.reset(before)

    if executor is None:
        return _one_by_one(ask_in_time, call, record, give_back, deadline)
    return _Parallel(ask_in_time, call, record, give_back, executor, workers).run(deadline)


def _one_by_one(
    ask: Ask[Job],
    call: Call[Job],
    record: Record[Job],
    give_back: Callable[[Sequence[Job]], object],
    deadline: Deadline,
) -> str:
    interrupts = _Interrupts(lambda: None)
    try:
        with interrupts.watched():
            while not interrupts.came:
                interrupts.asking = True
                jobs = ask(1, 0) if deadline.left else []
                interrupts.asking = False
                if not deadline.left:
                    give_back(jobs)
                    return deadline.why
                if not jobs:
                    return ""
                function, *args = call(jobs[0])
                result = error = None
                try:
                    result = function(*args)
                except Exception as raised:
                    error = raised
                record(jobs[0], result, error)
    except KeyboardInterrupt:
        if interrupts.came:
            raise
    return INTERRUPTED


class _Parallel(Generic[Job]):
    """Evaluations in an executor; a thread asks the model, so that results are recorded at once.

    `arrived` holds what ended: a job with its future, ``None`` with the future of an ask, and
    two ``None`` to look at the reasons to end.

    An executor that breaks, as a process pool does when a point ends its process, ends the search.
    """

    def __init__(
        self,
        ask: Ask[Job],
        call: Call[Job],
        record: Record[Job],
        give_back: Callable[[Sequence[Job]], object],
        executor: Executor,
        workers: int,
    ) -> None:
        self._ask, self._call, self._record, self._give_back = ask, call, record, give_back
        self._executor, self._workers, self._asker = executor, workers, Threads()
        self._arrived: SimpleQueue[tuple[Job | None, Future[Any] | None]] = SimpleQueue()
        self._running: dict[int, Future[Any]] = {}
        self._asking = self._dry = False  # whether it is asked, and whether it gave no jobs
        self._done = self._done_before = 0  # evaluations that ended, in all and before that ask
        self._raised: BaseException | None = None  # the first error, raised once all has ended
        self._ended = ""

    def run(self, deadline: Deadline) -> str:
        interrupts = _Interrupts(lambda: self._arrived.put((None, None)))
        try:
            with interrupts.watched():
                self._begin_ask()
                while self._asking or self._running:
                    try:
                        wait = min(deadline.left, threading.TIMEOUT_MAX)
                        self._take(*self._arrived.get(timeout=wait))
                    except Empty:
                        self._end(deadline.why)
                        deadline = Deadline()
                    if interrupts.came:
                        self._end(INTERRUPTED)
                    if self._arrived.empty():  # results first: the next points follow from them
                        self._begin_ask()
        except KeyboardInterrupt:
            self._end(INTERRUPTED)  # what has not begun must not begin
            raise
        if self._raised is not None:
            raise self._raised
        return self._ended

    def _begin_ask(self) -> None:
        free = self._workers - len(self._running)
        if self._asking or self._dry or self._over or free < 1:
            return
        self._asking, self._done_before = True, self._done
        asked = self._asker.submit(self._ask, free, len(self._running))
        asked.add_done_callback(lambda future: self._arrived.put((None, future)))

    @property
    def _over(self) -> bool:
        return bool(self._ended) or self._raised is not None

    def _end(self, reason: str) -> None:
        if not self._ended:
            self._ended = reason
            for future in list(self._running.values()):
                future.cancel()  # waiting for a worker

    def _take(self, job: Job | None, future: Future[Any] | None) -> None:
        try:
            if future is None:
                return
            if job is None:
                self._asking = False
                self._start(future.result())
            else:
                self._running.pop(id(future), None)
                self._done, self._dry = self._done + 1, False
                self._finish(job, future)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit of one evaluation: the others are recorded first
            self._raised = self._raised or error
            self._end(str(error) or type(error).__name__)

    def _start(self, jobs: Sequence[Job]) -> None:
        if self._over:
            self._give_back(jobs)
            return
        self._dry = not jobs and self._done == self._done_before
        for job in jobs:
            self._submit(job)

    def _submit(self, job: Job) -> None:
        function, *args = self._call(job)
        try:
            future = self._executor.submit(function, *args)
        except BrokenExecutor as raised:
            self._give_back([job])
            if not self._running:
                raise
            self._end(f"the executor broke: {raised}")  # a running evaluation broke it
            return
        self._running[id(future)] = future
        future.add_done_callback(partial(self._note, job))

    def _note(self, job: Job, future: Future[Any]) -> None:
        self._arrived.put((job, future))

    def _finish(self, job: Job, future: Future[Any]) -> None:
        result = error = None
        try:
            result = future.result()
        except BrokenExecutor as raised:
            self._record(job, None, raised)
            self._end(f"the executor broke: {raised}")
            return
        except CancelledError:
            self._give_back([job])
            return
        except KeyboardInterrupt:  # in a worker process
            self._end(INTERRUPTED)
            return
        except Exception as raised:
            error = raised
        self._record(job, result, error)
