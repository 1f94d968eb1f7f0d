"""The worker: a script that confines itself, and only then looks at a candidate.

It is started by file name in a separate process and imports nothing of llmopt by name, so
that it starts fast and holds nothing worth stealing: no environment variables, no open
file but its socket, no scores. Protocol: see `llmopt.sandbox.sandbox`.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import importlib.util
import inspect
import io
import json
import linecache
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

SETUP, ANALYSE, LOAD, CALL, COLUMNS, GIVE, FETCH = 1, 2, 3, 4, 5, 6, 7
OK, OK_PRINTED, FAILED, BROKEN, OK_BYTES = 0, 1, 2, 3, 4
PAUSE, CONTINUE = 5, 6  # no answers: the clock of the request stops, and runs on
SAID = 7  # no answer: what was printed so far

_NUMPY = (
    "char", "ctypeslib", "fft", "lib.recfunctions", "linalg", "ma", "polynomial", "random", "rec",
    "strings", "typing",
)  # fmt: skip
_FILE = "<candidate>"
_TRACE_LINES = 8
_TEXT = 2000


def _sibling(name: str) -> Any:
    folder = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.util.spec_from_file_location(name, os.path.join(folder, f"{name}.py"))
    if spec is None or spec.loader is None:
        raise ImportError(f"{name}.py is not beside the worker")
    module = importlib.util.module_from_spec(spec)
    sys.modules[f"_llmopt_{name}"] = sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    del sys.modules[spec.name]  # the plain name is free for a module of the candidate's imports
    return module


class _Printed(io.TextIOBase):
    """What the candidate prints: the first characters are kept."""

    def __init__(self) -> None:
        self.text = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if len(self.text) < _TEXT:
            self.text += str(text)[: _TEXT - len(self.text)]
        return len(text)


class Worker:
    """Serves one parent over file descriptors 0 and 1."""

    def __init__(self, encoding: Any, confine: Any) -> None:
        self._encoding, self._confine = encoding, confine
        self._confined = False  # as far as it can be, where that was waived
        self._buffer = bytearray()
        self._message_bytes = 1 << 20
        self._number = 0  # of the request
        self._source = ""
        self._modules: dict[str, ModuleType] = {}
        self._namespace: dict[str, Any] = {}
        self._printed = _Printed()

    def serve(self) -> None:
        """Answer requests until the parent closes its end."""
        handlers: dict[int, Callable[[Any], Any]] = {
            SETUP: self._setup,
            ANALYSE: self._analyse,
            LOAD: self._load,
            CALL: self._call,
            COLUMNS: self._columns,
            GIVE: self._call,
            FETCH: self._call,
        }
        while True:
            self._number, kind, payload = self._receive()
            try:
                if not self._confined and kind != SETUP:
                    raise RuntimeError("nothing is run before the worker has confined itself")
                value = handlers[kind](payload)
                if kind == FETCH and isinstance(value, bytes):
                    reply, code = value, OK_BYTES
                elif self._printed.text:
                    reply = self._encode((value, self._printed.text))
                    code, self._printed.text = OK_PRINTED, ""
                else:
                    reply, code = self._encode(value), OK
            except BaseException as error:  # sys.exit and KeyboardInterrupt are the candidate's
                reply, code = self._failure(error), BROKEN if kind == SETUP else FAILED
            if len(reply) > self._message_bytes:
                too_long = ValueError(f"the result takes {len(reply)} bytes")
                reply, code = self._failure(too_long), FAILED
            self._send(code, reply)

    def _send(self, code: int, reply: bytes = b"") -> None:
        data = memoryview(self._encoding.HEADER.pack(len(reply), self._number, code) + reply)
        while data:
            data = data[os.write(1, data) :]

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock of the request, if the parent allows that."""
        self._send(PAUSE)
        try:
            yield
        finally:
            self._send(CONTINUE)

    def say(self, text: str) -> None:
        """Send what was printed so far, for the case that the worker is stopped."""
        self._send(SAID, self._encode(text))

    def _encode(self, value: Any) -> Any:
        try:
            return self._encoding.encode(value, self._message_bytes)
        except self._encoding.EncodingError as error:
            raise TypeError(f"the function returned {error}") from None

    def _receive(self) -> tuple[int, int, Any]:
        header = self._encoding.HEADER
        while len(self._buffer) < header.size:
            self._fill()
        length, number, kind = header.unpack_from(self._buffer)
        end = header.size + length
        while len(self._buffer) < end:
            self._fill()
        data = bytes(self._buffer[header.size : end])
        self._buffer = self._buffer[end:]
        if kind == GIVE:  # a request in one line, and bytes behind it
            data, _, given = data.partition(b"\n")
            name, args, more = self._encoding.decode(data)
            return number, kind, (name, [given, *args], more)
        return number, kind, self._encoding.decode(data)

    def _fill(self) -> None:
        data = os.read(0, 1 << 18)
        if not data:
            os._exit(0)
        self._buffer += data

    def _setup(self, options: dict[str, Any]) -> dict[str, Any]:
        confine, self._analysis = self._confine, _sibling("analysis")
        self._message_bytes = options["message_bytes"]
        for name in options["imports"]:
            try:
                self._modules[name] = importlib.import_module(name)
            except BaseException as error:
                why = f"{type(error).__name__}: {error}"
                raise ImportError(f"{name} cannot be imported ({why})") from None
        # What Python, NumPy and SciPy load when it is first needed, such as for \N{} in a text.
        importlib.import_module("unicodedata")
        for part in _NUMPY if "numpy" in self._modules else ():
            with contextlib.suppress(ImportError):  # not every NumPy has every part
                importlib.import_module(f"numpy.{part}")
        if "scipy.stats" in self._modules:
            with contextlib.suppress(Exception):
                self._modules["scipy.stats"].qmc.Sobol(1)
        sys.stdin = None
        for stream in ("stdout", "stderr", "__stdout__", "__stderr__"):
            setattr(sys, stream, self._printed)
        linecache.getlines = lambda *_, **__: []  # no file can be opened for a traceback
        allowed: tuple[str, ...] = ()
        if options.get("extension"):
            allowed = self._extend(options["extension"])
        gc.collect()
        gc.freeze()  # so that to collect what a source left takes no time
        confine.set_limits(options["memory_bytes"], options["cpu_seconds"], options["wall_seconds"])
        problems = confine.confine(partly=options["allow_unsandboxed"], allowed=allowed)
        self._confined = True
        return {"problems": list(problems)}

    def _extend(self, extension: dict[str, Any]) -> tuple[str, ...]:
        """Import a module of llmopt, which may fork its own workers before confinement.

        Later calls name its functions. Returns the further system calls that it needs.
        """
        package, root = "", extension["root"]
        for part in extension["module"].split(".")[:-1]:
            package = f"{package}.{part}".lstrip(".")
            root = os.path.join(root, part)
            empty = sys.modules[package] = ModuleType(package)  # the package itself is not run
            empty.__path__ = [root]
        module = importlib.import_module(extension["module"])
        allowed: tuple[str, ...] = module.prepare(
            self._confine, self.paused, self.say, **extension["options"]
        )
        self._namespace = vars(module)
        return allowed

    def _analyse(self, source: str) -> Any:
        return self._analysis.analyse(source)

    def _load(self, request: tuple[str, dict[str, Any], dict[str, tuple[int, str]]]) -> None:
        self._source, variables, wanted = request
        self._namespace = {}
        gc.collect()  # what the source before left, in functions that refer to their globals
        namespace: dict[str, Any] = {"__name__": "candidate", "__builtins__": builtins}
        for name, module in self._modules.items():
            if "." not in name:
                namespace[name] = module
        if "numpy" in namespace:
            namespace["np"] = namespace["numpy"]
        namespace.update(variables)
        self._namespace = namespace
        # A type hint is never looked up: models write List[float] and import nothing.
        flags = annotations.compiler_flag
        exec(compile(self._source, _FILE, "exec", flags, dont_inherit=True), namespace)
        for name, (count, signature) in wanted.items():
            function = namespace[name]
            if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
                raise TypeError(f"{name} must be a plain function with a return")
            try:
                inspect.signature(function).bind(*range(count))
            except TypeError as error:
                raise TypeError(f"{name}: {error}; expected `def {signature}:`") from None

    def _call(self, request: tuple[str, list[Any], dict[str, Any]]) -> Any:
        name, args, kwargs = request
        return self._namespace[name](*args, **kwargs)

    def _columns(self, request: tuple[str, list[Any]]) -> list[Any]:
        function = self._namespace[request[0]]
        return [function(*row) for row in zip(*request[1], strict=True)]

    def _failure(self, error: BaseException) -> bytes:
        """Describe an exception in plain texts; an exception's own methods may fail or lie."""
        try:
            message = str(error)[:_TEXT]
        except BaseException:
            message = "(its message cannot be shown)"
        lines = self._source.splitlines()
        trace = []
        step = error.__traceback__
        while step is not None:
            if step.tb_frame.f_code.co_filename == _FILE:
                text = lines[step.tb_lineno - 1].strip() if step.tb_lineno <= len(lines) else ""
                trace.append((step.tb_lineno, step.tb_frame.f_code.co_name[:100], text[:200]))
            step = step.tb_next
        if isinstance(error, SyntaxError) and error.filename == _FILE:
            trace.append((error.lineno or 0, "<module>", (error.text or "").strip()[:200]))
        printed, self._printed.text = self._printed.text, ""
        data: bytes = self._encoding.encode(
            {
                "type": type(error).__name__[:100],
                "message": message,
                "trace": trace[-_TRACE_LINES:],
                "printed": printed,
            }
        )
        return data


def main() -> None:
    """Take the parent's import path and serve."""
    confine = _sibling("confine")
    confine.die_with(int(sys.argv[2]))
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in json.loads(sys.argv[1]) if os.path.abspath(p) != here]
    sys.argv[:] = sys.orig_argv[:] = ["worker"]  # a candidate could tell the paths to the model
    Worker(_sibling("encoding"), confine).serve()


if __name__ == "__main__":
    main()
