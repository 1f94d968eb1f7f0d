"""A worker process and the socket to it: messages with a deadline, and a sure end.

What arrives is measured before it is kept: a message that is too long, out of step or
unreadable ends the worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from llmopt.sandbox import encoding, worker
from llmopt.sandbox.failure import CandidateError, SandboxError

_MOST_REPORT = 100_000  # bytes of an error
_MOST_SECONDS = 1e6  # a socket waits no more than 2**31 ms
# That the reader is gone comes as an error, also in a program that lets SIGPIPE kill it.
_QUIET = getattr(socket, "MSG_NOSIGNAL", 0)
WORKER = str(Path(worker.__file__).resolve())


_Started = tuple[subprocess.Popen[bytes], socket.socket]


class Channel:
    """One worker process, which leads its own session and process group."""

    def __init__(self, message_bytes: int) -> None:
        self._limit = message_bytes
        self._number = 0
        self._said = b""  # the latest message of kind SAID of the present request
        self._owner = os.getpid()
        self._lock = threading.Lock()
        command = [sys.executable, "-B", WORKER, json.dumps(import_path()), str(self._owner)]
        try:
            self._process, self._socket = _start(command)
        except OSError as error:
            raise SandboxError(
                f"cannot start a worker ({error}). Close some candidates, or raise the limits of "
                f"processes and open files, and check that {sys.executable} runs"
            ) from error
        self.pid = self._process.pid
        self._finalizer = weakref.finalize(self, _kill, self._process, self._socket, self._owner)

    @property
    def mine(self) -> bool:
        """Whether this process started the worker; a fork of it would take its answers."""
        return os.getpid() == self._owner

    @property
    def alive(self) -> bool:
        """Whether there is a worker that this process can call."""
        return self.mine and self._finalizer.alive

    def close(self) -> None:
        """Kill the worker with its whole process group."""
        self._finalizer()

    def exchange(
        self,
        kind: int,
        value: Any,
        seconds: float,
        given: bytes = b"",
        most: int | None = None,
        pause: float | None = None,
    ) -> tuple[int, Any]:
        """Send a request, and `given` bytes behind it; return the answer's kind and value.

        An answer has at most `most` bytes (as a message, if that is not given). If `pause` is
        given, the worker may stop the clock of its `seconds` for at most so many, and send what it
        has printed so far, which an error then has in `printed`.
        The worker is killed if no proper answer comes in time (`CandidateError`), and on Ctrl-C
        too: half a message is no state to go on from. A request that is too large raises
        `SandboxError`.
        """
        try:
            payload = encoding.encode(value) + (b"\n" if kind == worker.GIVE else b"")
        except encoding.TooLargeError as error:
            raise SandboxError(f"a request with {error}") from error
        length = len(payload) + len(given)
        if length > self._limit:
            raise SandboxError(
                f"a request of {length} bytes; WorkerLimits.message_bytes is {self._limit}"
            )
        with self._lock:
            if not self._finalizer.alive:  # closed while another thread had it
                raise CandidateError("its process is gone; load it again", "crash")
            self._number, self._said = (self._number + 1) & 0xFFFFFFFF, b""
            deadline = time.monotonic() + seconds
            try:
                self._wait_until(deadline)
                header = encoding.HEADER.pack(length, self._number, kind)
                self._socket.sendall(header + payload, _QUIET)
                if given:
                    self._wait_until(deadline)
                    self._socket.sendall(given, _QUIET)
                most = most or self._limit
                return self._receive(deadline, pause, most, kind == worker.FETCH)
            except TimeoutError:
                self.close()
                raise CandidateError(
                    "it did not finish within its wall-clock limit (WorkerLimits.call_seconds) and "
                    "was stopped",
                    "timeout",
                    printed=self._printed(),
                ) from None
            except OSError:  # its end is closed
                raise self._dead() from None
            except BaseException:
                self.close()
                raise

    def _receive(
        self, deadline: float, pause: float | None, most: int, fetch: bool
    ) -> tuple[int, Any]:
        length, number, code, deadline = self._header(deadline, pause)
        raw = fetch and code == worker.OK_BYTES
        most = most if raw or not fetch else min(most, _MOST_REPORT)
        if length > most or number != self._number:
            raise _wrong(
                f"it announced {length} bytes as answer {number}; expected at most {most} bytes "
                f"as answer {self._number}"
            )
        data = self._read(length, deadline)
        if self._more():
            raise _wrong("bytes follow its answer")
        if raw:
            return code, data
        try:
            return code, encoding.decode(data)
        except encoding.EncodingError as error:
            raise _wrong(f"its answer cannot be read: {error}") from None

    def _header(self, deadline: float, pause: float | None) -> tuple[int, int, int, float]:
        """Return the header of the answer, and the deadline after all pauses before it."""
        since: float | None = None  # when the clock stopped
        while True:
            header = self._read(encoding.HEADER.size, deadline)
            length, number, code = encoding.HEADER.unpack(header)
            wanted = worker.PAUSE if since is None else worker.CONTINUE
            if pause is None or number != self._number:
                return length, number, code, deadline
            if code == worker.SAID and length <= _MOST_REPORT:
                self._said = self._read(length, deadline)
                continue
            if code != wanted or length:
                return length, number, code, deadline
            if since is None:
                since = time.monotonic()
                deadline += pause
            else:
                left = max(0.0, pause - (time.monotonic() - since))
                deadline, pause, since = deadline - left, left, None

    def _printed(self) -> str:
        said: Any = ""
        with contextlib.suppress(encoding.EncodingError):
            said = encoding.decode(self._said) if self._said else ""
        return said if isinstance(said, str) else ""

    def _read(self, length: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < length:
            self._wait_until(deadline)
            part = self._socket.recv(min(1 << 18, length - len(data)))
            if not part:
                raise self._dead()
            data += part
        return bytes(data)

    def _more(self) -> bool:
        """Whether more has arrived than was asked for."""
        self._socket.settimeout(0.0)
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def _wait_until(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(min(left, _MOST_SECONDS))

    def _dead(self) -> CandidateError:
        """Return the error that says of what the worker died."""
        # It was closed: let it exit by itself before it is killed.
        with contextlib.suppress(ChildProcessError):
            _await_death(self._process, 2.0)
        self.close()
        died = f"its process died ({_cause(self._process)})"
        return CandidateError(died, "crash", printed=self._printed())


def import_path() -> list[str]:
    """Return the import path as a process in another folder can use it."""
    try:
        here = os.getcwd()
    except OSError:
        here = os.devnull  # the folder was deleted: nothing can be imported from it
    # Import skips entries that are no text, such as a Path.
    return [os.path.join(here, p) for p in sys.path if isinstance(p, str) and p]


_starters: dict[int, queue.SimpleQueue[tuple[list[str], Future[Any]]]] = {}


def _start(command: list[str]) -> _Started:
    """Start a worker from a thread that lives as long as this process.

    A worker dies with its parent (`llmopt.sandbox.confine.die_with`), and to the kernel
    that is the thread which started it.
    """
    if threading.get_native_id() == os.getpid() or not sys.platform.startswith("linux"):
        return _popen(command)  # the main thread
    orders = _starters.get(os.getpid())  # a fork has none of its parent's threads
    if orders is None:
        orders = _starters[os.getpid()] = queue.SimpleQueue()
        # A daemon: unlike others it keeps running while threads outlive the main program.
        threading.Thread(target=_serve, args=(orders.get,), name="llmopt", daemon=True).start()
    started: Future[_Started] = Future()
    orders.put((command, started))
    return started.result()


def _serve(take: Callable[[], tuple[list[str], Future[Any]]]) -> None:
    while True:
        command, started = take()
        try:
            started.set_result(_popen(command))
        except BaseException as error:
            started.set_exception(error)


def _popen(command: list[str]) -> _Started:
    mine, its = socket.socketpair()
    with its:
        try:
            process = subprocess.Popen(
                command,
                stdin=its.fileno(),
                stdout=its.fileno(),
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=_scrubbed(),
                start_new_session=True,
            )
        except BaseException:
            mine.close()
            raise
    return process, mine


def _wrong(message: str) -> CandidateError:
    return CandidateError(message, "protocol")


def _scrubbed() -> dict[str, str]:
    """The whole environment of a worker."""
    environment = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}
    # Threads can be neither confined nor started: linear algebra keeps to the one there is.
    for name in ("OPENBLAS", "OMP", "MKL", "NUMEXPR", "VECLIB_MAXIMUM"):
        environment[f"{name}_NUM_THREADS"] = "1"
    environment["JE_ARROW_MALLOC_CONF"] = "background_thread:false"  # pandas imports pyarrow
    if "LD_LIBRARY_PATH" in os.environ:  # some Pythons do not start without it
        environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    return environment


def _await_death(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait until a process is dead, but do not reap it: its number stays taken until then."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        time.sleep(0.1)
        return
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.005)


def _kill(process: subprocess.Popen[bytes], line: socket.socket, owner: int) -> None:
    # A fork of the owner may drop its copy of a channel, but the worker is not its own.
    if process.returncode is None and os.getpid() == owner:
        # It is not reaped, so that the number still means this group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    line.close()


def _cause(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    if code is None or code >= 0:
        return f"exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = {
        "SIGXCPU": ": it used up its processor time",
        "SIGKILL": ": it used up its processor time, or the machine's memory",
        "SIGALRM": ": it used up its wall-clock time",
        "SIGSEGV": ": segmentation fault, often endless recursion",
    }.get(name, "")
    return name + hint
