"""The parent's side of a worker: start, ask, time out, kill; nothing that arrives is trusted.

A worker is a new Python process in its own session, which confines itself before it sees the
candidate. It holds no score and no environment whose state counts: code that takes it over can
return numbers, which it could do anyway, and nothing else.
"""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmopt.sandbox import worker
from llmopt.sandbox.confine import support
from llmopt.sandbox.failure import (
    CandidateError,
    SandboxError,
    SandboxUnavailableError,
    UnsandboxedWarning,
)
from llmopt.sandbox.worker_process import Channel
from llmopt.util.closing import Closing
from llmopt.util.text import clean

_PRINTED = 4000


@dataclass(frozen=True)
class WorkerLimits:
    """What a worker may use.

    Attributes:
        call_seconds: Wall-clock seconds for one request: a call, or a whole batch.
        startup_seconds: Wall-clock seconds to start Python and import modules.
        cpu_seconds: Processor seconds of one worker's whole life.
        total_seconds: Wall-clock seconds of all requests to a candidate together, in whatever
            worker: the next one is refused. Also the most that one worker lives.
        memory_bytes: Address space on top of what Python and its modules take.
        message_bytes: Largest message in either direction.
    """

    call_seconds: float = 5.0
    startup_seconds: float = 60.0
    cpu_seconds: int = 600
    total_seconds: int = 3600
    memory_bytes: int = 512 << 20
    message_bytes: int = 8 << 20

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"{name}={value}: expected a positive number")


class Sandbox(Closing):
    """One worker for one candidate. Calls of several threads wait for one another.

    A fork of the process that started the worker cannot call it: there `running` is false, and
    `start` or `load` starts another.

    Args:
        limits: What the worker may use.
        imports: Modules that are imported before confinement, and so can be imported by the
            candidate. Their names are bound for it, and ``np`` for NumPy.
        allow_unsandboxed: Run where seccomp is not to be had. Rlimits, the scrubbed environment and
            the wall clock remain.
        extension: A module of llmopt's (``module``, ``root``, ``options``) that the worker imports
            before its confinement, and whose functions are called in place of a source's.

    Attributes:
        confined: Whether the running worker is confined in full; ``None`` before the first start.
        printed: What the candidate printed, cut.
    """

    def __init__(
        self,
        limits: WorkerLimits | None = None,
        *,
        imports: Sequence[str] = ("math", "numpy"),
        allow_unsandboxed: bool = False,
        extension: Mapping[str, Any] | None = None,
    ) -> None:
        self.limits = limits or WorkerLimits()
        self.imports = tuple(imports)
        self.allow_unsandboxed = allow_unsandboxed
        self._extension = dict(extension) if extension else None
        self.confined: bool | None = None
        self.printed = ""
        self._channel: Channel | None = None
        self._empty: int | None = None  # address space of the worker without a candidate
        self._tainted = False  # whether a candidate's code has run in the worker
        self._used = 0.0  # seconds of all requests
        self._old = math.inf  # the time from which on the worker is replaced when code is loaded

    @property
    def running(self) -> bool:
        """Whether there is a worker that this process can call."""
        return self._channel is not None and self._channel.alive

    @property
    def pid(self) -> int | None:
        """The worker's process number, or ``None`` if there is none."""
        return self._channel.pid if self.running and self._channel is not None else None

    @property
    def memory_bytes(self) -> int | None:
        """Address space that the code holds in the worker; ``None`` if that is not known."""
        total = self._address_space()
        return None if total is None or self._empty is None else total - self._empty

    def _address_space(self) -> int | None:
        if (pid := self.pid) is None:
            return None
        try:  # Linux
            with open(f"/proc/{pid}/statm", encoding="ascii") as file:
                return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError):
            return None

    def close(self) -> None:
        """Kill the worker, if there is one, with its whole process group."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def start(self) -> None:
        """Start a worker that is ready for a candidate; a running one is kept.

        Raises:
            SandboxUnavailableError: It cannot be confined, and that was not waived.
            SandboxError: It cannot be set up.
        """
        if self.running:
            return
        self._tainted = False
        require_confinement(self.allow_unsandboxed)
        if os.name != "posix":
            raise SandboxError("a worker needs a POSIX system: use Linux, for instance in WSL 2")
        limits = self.limits
        self._old = time.monotonic() + limits.total_seconds / 2
        channel = Channel(limits.message_bytes)
        try:
            setup = self._exchange(
                channel,
                worker.SETUP,
                {
                    "imports": list(self.imports),
                    "allow_unsandboxed": self.allow_unsandboxed,
                    "message_bytes": limits.message_bytes,
                    "memory_bytes": limits.memory_bytes,
                    "cpu_seconds": math.ceil(limits.cpu_seconds),
                    "wall_seconds": math.ceil(limits.total_seconds),
                    "extension": self._extension,
                },
                limits.startup_seconds,
            )
        except CandidateError as error:
            channel.close()
            raise SandboxError(
                f"the worker did not start: {error}. Check that {sys.executable} runs, and imports "
                "what it cannot import here"
            ) from error
        except BaseException:
            channel.close()
            raise
        problems = tuple(map(str, setup["problems"]))
        other = self._channel
        if other is not None and other.alive:  # another thread was first
            channel.close()
            return
        self._channel = channel
        self._empty = self._address_space()
        self.confined = not problems
        if problems:
            warnings.warn(
                f"a model's code runs without full confinement ({'; '.join(problems)})",
                UnsandboxedWarning,
                stacklevel=3,
            )

    def analyse(self, source: str) -> dict[str, Any]:
        """Return what a source holds (see `analysis.analyse`), without running it.

        A worker that has run code could lie about it: a fresh one takes its place.
        """
        if self._tainted:
            self.close()
        self.start()
        found = self._exchange(self._channel, worker.ANALYSE, source)
        if not isinstance(found, dict):
            raise self._wrong("the analysis is no dict")
        return found

    def load(
        self,
        source: str,
        variables: Mapping[str, Any] | None = None,
        wanted: Mapping[str, tuple[int, str]] | None = None,
    ) -> None:
        """Run a source in a separate namespace, in which `variables` are bound.

        `wanted` are functions that it has to define, by name: how many arguments each is called
        with, and its signature in words.

        Raises:
            CandidateError: It raised, took too long, or its process died; or a function does not
                take its arguments.
        """
        if time.monotonic() > self._old:  # its own clock must not end it in the next episode
            self.close()
        self.start()
        self._tainted = True
        self._exchange(
            self._channel, worker.LOAD, (source, dict(variables or {}), dict(wanted or {}))
        )

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a function of the loaded source; return plain data, whatever it claims to be.

        Raises:
            CandidateError: It raised, took too long, or its process died.
        """
        return self._exchange(self._channel, worker.CALL, (name, list(args), kwargs))

    def call_within(
        self, seconds: float, most: int, name: str, *args: Any, pause: float | None = None
    ) -> Any:
        """Call a function as `call` does, with its own deadline and limit on the answer.

        While the function waits for its own workers, the clock of `seconds` stops, for at most
        `pause` seconds.
        """
        request: tuple[str, list[Any], dict[str, Any]] = name, list(args), {}
        return self._exchange(self._channel, worker.CALL, request, seconds, most=most, pause=pause)

    def give(self, given: bytes, seconds: float, name: str, *args: Any) -> Any:
        """Call a function with bytes as its first argument."""
        request: tuple[str, list[Any], dict[str, Any]] = name, list(args), {}
        most = 100_000
        return self._exchange(self._channel, worker.GIVE, request, seconds, given, most)

    def fetch(self, seconds: float, most: int, name: str, *args: Any) -> bytes:
        """Return the raw, unchecked bytes that a function returns, up to a limit."""
        request: tuple[str, list[Any], dict[str, Any]] = name, list(args), {}
        found = self._exchange(self._channel, worker.FETCH, request, seconds, most=most)
        if not isinstance(found, bytes):
            raise self._wrong("it sent something else than bytes")
        return found

    def call_columns(self, name: str, columns: Sequence[Any]) -> list[Any]:
        """Call a function once for each row, with a column of values for each argument.

        Raises:
            CandidateError: As `call`; the limit of seconds is for all rows.
        """
        results = self._exchange(self._channel, worker.COLUMNS, (name, list(columns)))
        rows = len(columns[0])
        if not isinstance(results, list) or len(results) != rows:
            raise self._wrong(f"it did not return {rows} results")
        return results

    def _exchange(
        self,
        channel: Channel | None,
        kind: int,
        value: Any,
        seconds: float | None = None,
        given: bytes = b"",
        most: int | None = None,
        pause: float | None = None,
    ) -> Any:
        if channel is not None and not channel.mine:
            raise SandboxError(
                "the worker belongs to the process that this one was forked from. Load the "
                "source here too: that starts a worker of this process's own"
            )
        if channel is None or not channel.alive:
            raise CandidateError("its process is gone; load it again", "crash")
        if kind != worker.SETUP and self._used > self.limits.total_seconds:
            self.close()
            raise CandidateError(
                f"its calls have taken {self._used:.0f} s together, and "
                f"{self.limits.total_seconds:g} s is the most (WorkerLimits.total_seconds)",
                "timeout",
            )
        started = time.monotonic()
        try:
            seconds = seconds or self.limits.call_seconds
            code, answer = channel.exchange(kind, value, seconds, given, most, pause)
        finally:
            if kind != worker.SETUP:
                self._used += time.monotonic() - started
        if code == worker.OK or (code == worker.OK_BYTES and kind == worker.FETCH):
            return answer
        if code == worker.OK_PRINTED and isinstance(answer, list) and len(answer) == 2:
            self._keep(answer[1])
            return answer[0]
        broken = code == worker.BROKEN and kind == worker.SETUP  # later it is a candidate's lie
        if code != worker.FAILED and not broken:
            raise self._wrong(f"it sent a message of unknown kind {code}")
        error = self._failure(answer)
        if broken:
            self.close()
            if str(error).startswith("ConfinementError"):
                raise SandboxUnavailableError(f"the worker could not confine itself: {error}")
        raise error

    def _wrong(self, message: str) -> CandidateError:
        """Kill the worker and return the error that says what it sent."""
        self.close()
        return CandidateError(message, "protocol")

    def _keep(self, text: Any) -> None:
        if isinstance(text, str):
            self.printed = (self.printed + clean(text[:_PRINTED]))[:_PRINTED]

    def _failure(self, answer: Any) -> CandidateError:
        """Read the worker's description of an exception, which may be anything."""
        if not isinstance(answer, dict):
            return self._wrong("its error report is no dict")
        trace = []
        steps = answer.get("trace")
        for step in steps[-8:] if isinstance(steps, list) else ():
            if isinstance(step, list) and len(step) == 3 and isinstance(step[0], int):
                trace.append((step[0], _text(step[1], 100), _text(step[2], 200)))
        name = _text(answer.get("type"), 100) or "an exception"
        message = _text(answer.get("message"), 2000)
        printed = _text(answer.get("printed"), _PRINTED)
        line = trace[-1][0] if trace else 0
        self._keep(printed)
        where = f" (line {line})" if line else ""
        return CandidateError(
            f"{name}: {message}{where}" if message else f"{name}{where}",
            "syntax" if name in ("SyntaxError", "IndentationError", "TabError") else "exception",
            line=line,
            trace=trace,
            printed=printed,
        )


def _text(value: Any, most: int) -> str:
    """Return a text of the worker's, cut; to write out anything else could take minutes."""
    return value[:most] if isinstance(value, str) else ""


def require_confinement(allow_unsandboxed: bool) -> None:
    """Raise `SandboxUnavailableError` if confinement is not to be had, and not waived."""
    problems = support().problems
    if problems and not allow_unsandboxed:
        raise SandboxUnavailableError(
            f"a model's code cannot be confined here: {'; '.join(problems)}. Use Linux on "
            "x86-64 or aarch64, or a virtual machine or container that you can afford to "
            "lose together with allow_unsandboxed=True (--allow-unsandboxed)"
        )
