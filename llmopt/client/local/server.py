"""Imports xllamacpp with settings that share the cores, and starts its server."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from llmopt.errors import install_hint
from llmopt.util.threads import within

EXITING = threading.Event()
"""Set when the interpreter shuts down; no model is loaded after that."""
_loads: list[threading.Event] = []
_EXIT_SECONDS = 1.0
"""Maximum time that the end of the process waits for an interrupted load."""


def start_server(make: Callable[[], Any]) -> Any:
    """Return a running server, started in a thread so that Ctrl-C need not wait for the load."""
    ended = threading.Event()

    def started() -> Any:
        try:
            server = make()
            # A server that is dropped before its loop runs waits forever. This call returns
            # from the loop.
            server.handle_metrics()
            return server
        finally:
            _loads.remove(ended)
            ended.set()

    _loads.append(ended)
    return within(threading.TIMEOUT_MAX, started)


def not_installed() -> ImportError:
    """Return an error that explains how to install xllamacpp."""
    return ImportError(
        f"running a language model in this process needs xllamacpp: {install_hint('local')}, or "
        "use the model 'network', which is numeric-only and needs no other package"
    )


def import_xllamacpp() -> Any:
    """Import xllamacpp."""
    # llama.cpp's threads synchronize hundreds of times per token, and GNU OpenMP spins while it
    # waits. If another process uses the same cores, generation slows down twentyfold; a short
    # spin is free on idle cores. The library reads this variable only when it is loaded.
    set_here = not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(os.environ)
    if set_here:
        os.environ["GOMP_SPINCOUNT"] = "1000"
    try:
        import xllamacpp
    except ImportError as error:
        raise not_installed() from error
    finally:
        if set_here:
            del os.environ["GOMP_SPINCOUNT"]
    return xllamacpp


def available_threads() -> int | None:
    """Return the number of CPUs of this process, or ``None`` if it may use all of them."""
    affinity = getattr(os, "sched_getaffinity", None)
    available = len(affinity(0)) if affinity else 0
    return available if 0 < available < (os.cpu_count() or 0) else None


def wait_for_loads() -> None:
    """Wait briefly for interrupted loads before the process ends."""
    for ended in list(_loads):
        ended.wait(_EXIT_SECONDS)
