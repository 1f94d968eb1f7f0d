"""Imports xllamacpp with settings that share the cores."""

from __future__ import annotations

import os
from typing import Any

from llmopt.errors import install_hint


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
