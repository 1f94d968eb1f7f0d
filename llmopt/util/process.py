"""A call in its own process, which is killed when its time is over."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import pickle
import random
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

_LINUX = sys.platform == "linux"  # elsewhere a forked process is not safe
_PR_SET_PDEATHSIG = 1
_starting = threading.Lock()  # a process that another thread forks would inherit the pipe
_running: set[Any] = set()


class ProcessEndedError(Exception):
    """The process of a call was killed at its time limit, or ended without a result."""


def call_within(seconds: float, function: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a call in its own process, of which nothing runs afterwards.

    On Linux the process is a fork, so any function will do; elsewhere it must be importable. Random
    numbers of `random` and `numpy.random` are seeded anew.

    Args:
        seconds: Limit of the call.
        function: What is called. What it raises is raised here, with its traceback as a note.
        *args: Its arguments.

    Raises:
        ProcessEndedError: The time is over, or the process crashed.
    """
    import multiprocessing

    context: Any = multiprocessing.get_context("fork" if _LINUX else "spawn")
    with _starting, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forks beside threads
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_call, args=(sender, function, args))
        process.start()
        sender.close()
    _running.add(process)
    try:
        if not receiver.poll(seconds):
            raise ProcessEndedError(f"it took longer than evaluation_timeout={seconds:g} seconds")
        result, error = pickle.loads(receiver.recv_bytes())
    except EOFError:
        process.join()
        raise ProcessEndedError(f"its process ended with exit code {process.exitcode}") from None
    finally:
        _end(process)
        receiver.close()
    if error is not None:
        raise error
    return result


def _call(sender: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Send the result of a call, or what it raised."""
    if hasattr(os, "setsid"):
        os.setsid()  # what it starts is killed with it, and Ctrl-C reaches the parent alone
    if _LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    random.seed()
    np.random.seed()
    result, error = None, None
    try:
        result = function(*args)
    except BaseException as raised:
        error = raised
        error.add_note(traceback.format_exc())
    try:
        sent = pickle.dumps((result, error))
        pickle.loads(sent)
    except Exception as trouble:
        what = f"{type(error).__name__}: {error}" if error else f"a result that is not ({trouble})"
        sent = pickle.dumps((None, RuntimeError(f"{what}; it cannot be sent between processes")))
    sender.send_bytes(sent)


def _end(process: Any) -> None:
    """Kill a process and all that it started."""
    with contextlib.suppress(OSError, AttributeError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()
    _running.discard(process)


@atexit.register
def _end_all() -> None:
    for process in list(_running):
        _end(process)
