"""Runs the Python that a model gives in place of a point: ``compute=True``.

A block runs in the confined worker of the code search (`llmopt.sandbox`): no file, no network,
no process. Its variables stay for later blocks. Where the worker is a new one (the search goes
on in another process, say) the blocks before are run again first, on the trials that they saw.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmopt.prompt import Prompt
from llmopt.prompt.python_block import MOST_OUTPUT, Computed, check_computes
from llmopt.search.emitter import ModelEmitter

if TYPE_CHECKING:
    from llmopt.sandbox.sandbox import Sandbox

SECONDS = 60.0
"""Seconds that a block may take."""

MEMORY = 512 << 20
"""Bytes that all blocks together may take, beyond Python and its modules."""

_LIFE = 3600.0  # seconds after which a worker is replaced
_PLAIN = (
    "math", "random", "ast", "io", "contextlib", "itertools", "functools", "collections",
    "multiprocessing", "types", "typing", "statistics", "dataclasses", "heapq", "bisect",
    "fractions", "decimal", "datetime", "copy", "operator", "string", "textwrap", "pprint", "json",
    "re", "time", "abc", "enum", "cmath", "warnings", "traceback", "sys",
)  # fmt: skip
_SCIPY = ("optimize", "linalg", "stats", "interpolate", "spatial", "special", "integrate", "signal")

Data = Callable[[int | None], Mapping[str, Any]]
"""What a block finds, of so many trials; of all for ``None``."""


class Calculator:
    """Runs the blocks of one search. Nothing is started before the first block.

    Raises:
        SandboxUnavailableError: A model's code cannot be confined here.
    """

    def __init__(self) -> None:
        from llmopt.sandbox.confine import support
        from llmopt.sandbox.failure import SandboxUnavailableError

        if problems := support().problems:
            raise SandboxUnavailableError(
                f"compute=True: a model's Python cannot be confined here: {'; '.join(problems)}. "
                "Use Linux on x86-64 or aarch64, or leave compute out"
            )
        self._sandbox: Sandbox | None = None
        self._ends = 0.0  # when the worker is to be replaced

    def __getstate__(self) -> dict[str, Any]:
        return {"_sandbox": None, "_ends": 0.0}  # a copy starts a worker of its own

    def close(self) -> None:
        """End the worker, if there is one."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.close()

    def run(self, code: str, before: Sequence[Computed], data: Data) -> Computed:
        """Run a block after those before it, on what `data` gives.

        Raises:
            SandboxError: No worker can be started.
        """
        from llmopt.sandbox.failure import CandidateError

        seen, note = data(None), ""
        try:
            note = self._prepare(before, data)
            text, names = self._call(code, seen)
            lost = False
        except CandidateError as error:
            self.close()
            why = f"it took more than {SECONDS:g} s" if error.kind == "timeout" else error
            text = f"The block was ended: {why}. All variables are gone."
            names, lost = (), True
        output = "\n".join(filter(None, [note, text]))
        return Computed(code, output, names, len(seen["X"]), lost)

    def _prepare(self, before: Sequence[Computed], data: Data) -> str:
        """Have a worker that has run all blocks before; say so if it could not."""
        from llmopt.sandbox.failure import CandidateError

        running = self._sandbox is not None and self._sandbox.running
        if running and time.monotonic() < self._ends:
            return ""
        self._start()
        kept = [k for k, block in enumerate(before) if block.lost]
        try:
            for block in before[kept[-1] + 1 if kept else 0 :]:
                self._call(block.code, data(block.trials))
        except CandidateError:
            self._start()
            return "(The variables of earlier blocks are gone.)"
        return ""

    def _start(self) -> None:
        from llmopt.sandbox import blocks
        from llmopt.sandbox.sandbox import Sandbox, WorkerLimits

        self.close()
        scipy = _SCIPY if importlib.util.find_spec("scipy") else ()
        modules = (*_PLAIN, "numpy", *(f"scipy.{part}" for part in scipy))
        limits = WorkerLimits(
            call_seconds=SECONDS,
            cpu_seconds=int(_LIFE),
            total_seconds=int(4 * _LIFE),
            memory_bytes=MEMORY,
            message_bytes=64 << 20,
        )
        self._sandbox = Sandbox(limits, imports=modules)
        self._ends = time.monotonic() + _LIFE
        self._sandbox.load(Path(blocks.__file__).read_text(encoding="utf-8"))

    def _call(self, code: str, seen: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
        from llmopt.sandbox.failure import CandidateError

        assert self._sandbox is not None
        found = self._sandbox.call("run", code, dict(seen), MOST_OUTPUT)
        # A block can take over its worker: whatever comes is checked.
        if isinstance(found, list) and len(found) == 2 and isinstance(found[1], list):
            text, names = found
            if all(isinstance(one, str) for one in (text, *names)):
                return text, tuple(names)
        raise CandidateError("it gave something else than text", "protocol")


def check_compute(prompt: Prompt) -> None:
    """Raise where answers to a prompt cannot be Python, or no code can be confined here."""
    check_computes(prompt)
    Calculator()


def let_compute(model: ModelEmitter) -> ModelEmitter:
    """Give an emitter with ``compute=True`` its calculator, and return it."""
    if model.options.compute:
        model.calculator = Calculator()
    return model
