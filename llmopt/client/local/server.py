"""The library xllamacpp: imported with settings that share the cores, and its server started."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from llmopt.errors import install_hint
from llmopt.util.threads import within

EXITING = threading.Event()
"""Set when the interpreter shuts down: no model is loaded from then on."""
_loads: list[threading.Event] = []
_EXIT_SECONDS = 1.0
"""How long the end of the process waits for a load that was interrupted."""


def start_server(make: Callable[[], Any]) -> Any:
    """Return a server whose loop runs, made in a thread: Ctrl-C need not wait for the load."""
    ended = threading.Event()

    def started() -> Any:
        try:
            server = make()
            # A server that is dropped before its loop runs waits for the loop for ever. This
            # call comes back from the loop.
            server.handle_metrics()
            return server
        finally:
            _loads.remove(ended)
            ended.set()

    _loads.append(ended)
    return within(threading.TIMEOUT_MAX, started)


def not_installed() -> ImportError:
    """Return the error that says how to install it."""
    return ImportError(
        f"running a language model in this process needs xllamacpp: {install_hint('local')}, or "
        "take the model 'network', which searches numbers and needs no further package"
    )


def import_xllamacpp() -> Any:
    """Import it."""
    # llama.cpp's threads meet hundreds of times a token, and GNU OpenMP's spin while they
    # wait. Where another process wants the same cores, that takes generation down to a
    # twentieth of its speed; a short spin costs nothing on idle cores. The library reads this
    # when it is loaded, and only then.
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
    """The CPUs this process may use, where they are fewer than the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)
    available = len(affinity(0)) if affinity else 0
    return available if 0 < available < (os.cpu_count() or 0) else None


def wait_for_loads() -> None:
    """Wait a moment for loads that were interrupted, before the process ends."""
    for ended in list(_loads):
        ended.wait(_EXIT_SECONDS)
