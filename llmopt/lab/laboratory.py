"""Runs the blocks of Python that a model gives in place of a point.

Blocks run in a confined worker (`llmopt.sandbox`, `llmopt.lab.block_runner`): no file, no network,
no further process. Its variables, functions and jobs stay for later blocks. After each block the
worker gives a snapshot, bytes that only a confined worker ever reads again: with it a new worker
continues where the last one ended, in this process or a later one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from llmopt.data import TrialData
from llmopt.errors import StorageError
from llmopt.packing import MOST_PACKED
from llmopt.prompt.kept_variables import MOST_VALUES, Plain, plain_values
from llmopt.prompt.python_block import MOST_OUTPUT, Computed, ToolFacts
from llmopt.sandbox.failure import CandidateError, SandboxError, SandboxUnavailableError
from llmopt.sandbox.sandbox import Sandbox, WorkerLimits
from llmopt.util.closing import Closing
from llmopt.util.files import make_folder, read_bytes, write_bytes_atomically

logger = logging.getLogger(__name__)

MEMORY = 1 << 30
"""Bytes that all blocks together may take, beyond Python and its modules."""

WORKERS_MEMORY = 4 << 30
"""Bytes that the workers of `pmap` and of jobs may take together."""

MOST_SNAPSHOT = 32 << 20
"""Bytes of a snapshot, which is compressed."""

MOST_WORKERS = 64

_MOST_ANSWER = 512 << 10  # bytes of what a block printed and left
_MOST_DATA = 384 << 20  # bytes of the packed data of all trials that a worker gets
_LIFE = 12 * 3600.0  # seconds after which a worker is replaced, between blocks
_SNAPSHOT_SECONDS = 60.0
_PLAIN = (
    "math", "random", "ast", "io", "contextlib", "itertools", "functools", "collections",
    "multiprocessing", "types", "typing", "statistics", "dataclasses", "heapq", "bisect",
    "fractions", "decimal", "datetime", "copy", "operator", "string", "textwrap", "pprint", "json",
    "re", "time", "abc", "enum", "cmath", "warnings", "traceback", "sys", "pickle", "marshal",
    "select", "mmap", "zipfile", "csv", "pathlib", "inspect", "numbers", "array", "struct", "zlib",
    "hashlib", "secrets", "tokenize", "numpy.lib.format", "os", "glob", "tempfile", "shutil",
    "cloudpickle",
)  # fmt: skip

LIBRARIES = {
    "SciPy": (
        "scipy.optimize", "scipy.linalg", "scipy.stats", "scipy.interpolate", "scipy.spatial",
        "scipy.special", "scipy.integrate", "scipy.signal", "scipy.sparse",
        "scipy.sparse.linalg", "scipy.fft", "scipy.ndimage", "scipy.cluster",
    ),
    "scikit-learn": (
        "sklearn.linear_model", "sklearn.gaussian_process", "sklearn.ensemble", "sklearn.svm",
        "sklearn.neighbors", "sklearn.neural_network", "sklearn.preprocessing",
        "sklearn.pipeline", "sklearn.model_selection", "sklearn.decomposition",
        "sklearn.metrics", "sklearn.cluster", "sklearn.kernel_ridge", "sklearn.tree",
    ),
    "cma": (),  # `llmopt.lab.toolbox` imports it
    "numba": (),  # `llmopt.lab.warmup` does, as soon as a block names it
}  # fmt: skip
"""What blocks may import where it is installed, as the extra ``lab`` does, and its modules."""

_ROOTS = {"SciPy": "scipy", "scikit-learn": "sklearn"}

Data: TypeAlias = Callable[[], Mapping[str, Any]]
"""Returns the variables that a block finds. ``"X"`` or ``"sources"`` has an entry for each.
``"data"`` maps each trial's number in the prompt to its `TrialData`."""

_LeftOver: TypeAlias = tuple[tuple[str, ...], Mapping[str, Plain]]
"""The variables that a block left, and the values of those that can be a point."""


class Laboratory(Closing):
    """Runs the blocks of one search, each after all earlier ones.

    Nothing is started before the first block:

        with Laboratory(seconds=60) as laboratory:
            block = laboratory.run("print(X.mean())", [], lambda: {"X": X}, 600.0)

    Args:
        seconds: What a block may take.
        total: What all blocks may take together; a job may take as much.
        workers: Workers of `pmap` and of jobs; ``None`` for one on each core.
        packages: Further packages that blocks may import. They are imported before the
            confinement, and so they are trusted.
        objective: The pickle of a function that blocks find as ``objective``, which only the
            confined worker loads; empty for none.
        folder: Where snapshots are kept; ``None`` for memory.

    Attributes:
        memory: Bytes that all blocks together may take.
        libraries: What blocks may import beside NumPy, as a prompt names it; ``None`` if a
            recording does not say.

    Raises:
        ImportError: A package is not installed.
    """

    memory = MEMORY

    def __init__(
        self,
        seconds: float = 120.0,
        total: float = 14_400.0,
        workers: int | None = None,
        packages: Sequence[str] = (),
        objective: bytes = b"",
        folder: Path | None = None,
    ) -> None:
        self.seconds, self.total = seconds, total
        self.cores = _cores()
        self.workers = min(self.cores if workers is None else workers, MOST_WORKERS)
        self.packages, self._objective = tuple(packages), objective
        self._untried = bool(packages or objective)
        for package in self.packages:
            if not _installed(package.partition(".")[0]):
                raise ImportError(
                    f"compute_packages: {package!r} is not installed in this Python; install it "
                    "(pip install takes the name of its distribution), or leave it out"
                )
        self.folder = folder
        self.libraries: tuple[str, ...] | None = self._libraries()
        self._tools: tuple[str, dict[str, Any]] = ("", {})
        self._former: Path | None = None
        self._snapshots: dict[int, bytes] = {}  # by the number of blocks before
        self._clear()

    @property
    def facts(self) -> ToolFacts:
        """What a prompt states of it."""
        return ToolFacts(self.workers, self.libraries, self.memory, self.cores)

    def _clear(self) -> None:
        self._sandbox: Sandbox | None = None
        self._ends = 0.0  # when the worker is to be replaced
        self._numba = False  # whether it has numba
        self._blocks = 0  # how many blocks it has run or restored
        self._sent: dict[int, str] = {}  # digests of the data that it has

    def __getstate__(self) -> dict[str, Any]:
        # A copy starts its own worker, and writes into no folder.
        gone: dict[str, Any] = {"_sandbox": None, "_ends": 0.0, "_blocks": 0, "folder": None}
        gone["_sent"] = {}
        return {**self.__dict__, **gone}

    def _libraries(self) -> tuple[str, ...]:
        roots = {name: _ROOTS.get(name, name) for name in LIBRARIES}
        usual = {*sys.stdlib_module_names, "numpy", *roots.values()}
        more = [name for name in self.packages if name.partition(".")[0] not in usual]
        return (*(name for name, root in roots.items() if _installed(root)), *more)

    def check(self) -> None:
        """Try once, before a request is paid for, whether `packages` and `objective` load.

        Raises:
            SandboxError: They do not.
        """
        if self._untried:
            self._start(False)
            self._untried = False

    def close(self) -> None:
        """End the worker, if there is one, and all its jobs."""
        sandbox = self._sandbox
        self._clear()
        if sandbox is not None:
            sandbox.close()

    def equip(self, source: str, values: Mapping[str, Any]) -> None:
        """Have blocks find the functions of a source, in which `values` are variables."""
        self._tools = source, dict(values)
        self.close()

    def run(self, code: str, before: Sequence[Computed], data: Data, seconds: float) -> Computed:
        """Run a block after the earlier ones, for at most `seconds`; return its outcome.

        What it waits for its jobs counts towards these, but not towards the limit of a block. What
        an ended block changed is gone; earlier variables stay.

        Raises:
            SandboxUnavailableError: A model's code cannot be confined here.
            SandboxError: The worker cannot import one of `packages`.
        """
        seen, began = dict(data()), time.monotonic()
        arrays = seen.pop("data", {})
        within = min(self.seconds, seconds)
        lost, text, failed, notes = False, "", False, list[str]()
        left_over: _LeftOver = (), {}
        try:
            notes += self._prepare(code, before)
            notes += self._give(arrays)
            began = time.monotonic()  # a block does not pay for the start of its worker
            text, left_over, failed = self._call(code, seen, within, seconds - within)
        except CandidateError as error:
            why = f"it took more than {within:g} s" if error.kind == "timeout" else error
            printed, failed = f"{error.printed.rstrip()}\n\n" if error.printed else "", True
            said, left_over = self._roll_back(before)
            text, lost = f"{printed}The block was ended: {why}. {said}", not left_over[0]
        except SandboxError as error:
            self.close()
            if self.packages:
                raise
            logger.warning("no worker for a model's Python: %s", error)
            text, failed = f"Python cannot be started here: {error}. Propose without it.", True
        if self._sandbox is not None:
            why, ended = self._keep(len(before) + 1)
            if ended:
                said, left_over = self._roll_back(before)
                why, lost = f"{why} {said}", not left_over[0]
            notes += [why] if why else []
        took = time.monotonic() - began  # objects of the block can compute in the snapshot, too
        logger.info("a block of Python took %.1f s%s", took, " and failed" if failed else "")
        names, values = left_over
        trials = len(seen["X"]) if "X" in seen else sum(map(bool, seen.get("sources", ())))
        ends = lost, round(took, 3), failed
        return Computed(code, text, names, trials, *ends, notes=tuple(notes), values=values)

    def _roll_back(self, before: Sequence[Computed]) -> tuple[str, _LeftOver]:
        """End the worker, go back to the variables before the block, and state what remains."""
        self.close()
        number, stored = self._latest(len(before))
        if stored is None:
            return "All variables are gone.", ((), {})
        self._store(len(before) + 1, stored)  # the ended block changed no variable
        said = "Variables are those before it; jobs that ran start again with the next block."
        if number < len(before):
            said = f"Variables are those after block {number} of {len(before)}: {_NOT_STORED}"
        return said, (before[number - 1].variables, before[number - 1].values)

    # -- the worker -----------------------------------------------------------------------

    def _prepare(self, code: str, before: Sequence[Computed]) -> list[str]:
        """Start a worker from the last snapshot, if none fits; return what could not be kept."""
        numba = _installed("numba") and any(
            "numba" in text for text in (code, *(block.code for block in before))
        )
        numba = numba or (_installed("numba") and b"numba" in self._objective)
        running = self._sandbox is not None and self._sandbox.running
        if running and self._blocks == len(before) and self._numba >= numba:
            if time.monotonic() < self._ends:
                return []
        self._start(numba)
        number, stored = self._latest(len(before))
        if not before:
            return []
        gone = ["The variables of earlier blocks are gone."]
        if stored is None:
            return gone
        assert self._sandbox is not None
        try:
            lost = self._sandbox.give(stored, max(_SNAPSHOT_SECONDS, self.seconds), "restore")
        except CandidateError as error:
            logger.warning("a snapshot of a model's variables cannot be read: %s", error)
            self._start(numba)
            return gone
        self._blocks = len(before)
        notes = []
        if number < len(before):
            notes = [f"Variables are those after block {number} of {len(before)}: {_NOT_STORED}"]
        if isinstance(lost, list) and lost and all(isinstance(name, str) for name in lost):
            notes.append(f"These variables are gone: {', '.join(lost)[:1000]}.")
        return notes

    def _start(self, numba: bool) -> None:
        self.close()
        libraries = self._libraries()
        modules = [m for name in libraries for m in LIBRARIES.get(name, ())]
        cpu = int(self.total) + 60
        limits = WorkerLimits(
            call_seconds=self.seconds,
            startup_seconds=180,
            cpu_seconds=cpu,
            total_seconds=int(3 * _LIFE),
            memory_bytes=self.memory,
            message_bytes=MOST_PACKED + (1 << 20),
        )
        memory = max(128 << 20, min(512 << 20, WORKERS_MEMORY // max(1, self.workers)))
        options = {
            "workers": self.workers, "memory": memory, "cpu": cpu, "wall": int(3 * _LIFE),
            "numba": numba, "cma": "cma" in libraries,
        }  # fmt: skip
        extension = {
            "module": "llmopt.lab.block_runner",
            "root": str(Path(__file__).parents[2]),
            "options": options,
        }
        imports = (*_PLAIN, "numpy", *modules, *self.packages)
        self._sandbox = Sandbox(limits, imports=imports, extension=extension)
        self._ends, self._numba = time.monotonic() + _LIFE, numba
        try:
            self._sandbox.start()
            if self._objective:
                self._sandbox.give(self._objective, self.seconds, "take_objective")
        except (SandboxError, SandboxUnavailableError, CandidateError) as error:
            self.close()
            if not self._untried:
                raise
            remedy = "name the submodules that they use, or leave out the one that fails"
            what = f"the packages {', '.join(self.packages)} in the sandbox"
            if isinstance(error, CandidateError):
                what = "compute_objective in the sandbox"
                remedy = "name the modules that it needs in compute_packages"
            raise SandboxError(f"blocks of Python cannot use {what}: {error}; {remedy}") from error
        source, values = self._tools
        if source:
            self._sandbox.call_within(self.seconds, _MOST_ANSWER, "equip", source, values)

    def _give(self, given: Mapping[int, TrialData]) -> list[str]:
        """Send the data that the worker has not; say which do not fit."""
        assert self._sandbox is not None
        room, left_out = _MOST_DATA, []
        for number in sorted({*given, *self._sent}, reverse=True):
            data = given.get(number)
            digest = data.digest if data is not None else ""
            packed = None
            if data is not None and digest and self._sent.get(number) != digest:
                packed = data.packed
            if packed is not None and len(packed) > room:
                left_out.append(f"#{number}")
                packed = b"" if number in self._sent else None
            if packed is not None or not digest:
                self._sandbox.give(packed or b"", _SNAPSHOT_SECONDS, "take", number)
                self._sent[number] = digest if packed else ""
            room -= len(packed or b"")
            if not self._sent.get(number, ""):
                self._sent.pop(number, None)
        return [f"The data of {', '.join(left_out)} do not fit."] if left_out else []

    def _call(
        self, code: str, seen: Mapping[str, Any], seconds: float, pause: float
    ) -> tuple[str, _LeftOver, bool]:
        assert self._sandbox is not None
        answer = self._sandbox.call_within(
            seconds,
            _MOST_ANSWER,
            "run",
            code,
            {**seen, "workers": self.workers},
            MOST_OUTPUT,
            MOST_VALUES,
            pause=pause,
        )
        # A block can take over its worker: whatever comes is checked.
        if isinstance(answer, list) and len(answer) == 4 and isinstance(answer[1], list):
            text, names, failed, values = answer
            if all(isinstance(one, str) for one in (text, *names)):
                with contextlib.suppress(TypeError):
                    return text, (tuple(names), plain_values(values)), bool(failed)
        raise CandidateError("it gave something else than text", "protocol")

    # -- snapshots ------------------------------------------------------------------------

    def _keep(self, blocks: int) -> tuple[str, bool]:
        """Store the snapshot from which a new worker continues.

        Returns:
            What it does not hold, in words, and whether the worker ended.
        """
        assert self._sandbox is not None
        try:
            stored = self._sandbox.fetch(
                _SNAPSHOT_SECONDS, MOST_SNAPSHOT, "snapshot", MOST_SNAPSHOT
            )
            large = self._sandbox.call_within(_SNAPSHOT_SECONDS, _MOST_ANSWER, "left_out")
        except CandidateError as error:
            if self._sandbox.running:  # it could not be made: the worker has its variables
                self._blocks = blocks
                return f"This block's variables do not survive an interruption: {error}.", False
            return f"The worker ended while it stored the variables: {error}.", True
        self._blocks = blocks
        self._store(blocks, stored)
        if not isinstance(large, list) or not all(isinstance(name, str) for name in large):
            return "", False
        limit = f"all variables together, compressed, may have {MOST_SNAPSHOT >> 20} MiB"
        if not large:
            return "", False
        return f"Gone if the worker ends: {', '.join(large)[:1000]}; {limit}.", False

    def _store(self, blocks: int, stored: bytes) -> None:
        """Store a snapshot in the folder, or in memory; earlier ones but the last are deleted."""
        try:
            if self.folder is not None:
                make_folder(self.folder, "give another storage=", links=False)
                write_bytes_atomically(self.folder / _name(blocks), stored, durable=True)
                self._snapshots.clear()
                for old in self.folder.glob("laboratory-*.bin"):
                    if old.name not in (_name(blocks), _name(blocks - 1)):
                        old.unlink(missing_ok=True)
                return
        except (OSError, StorageError) as error:
            logger.warning("a snapshot of a model's variables stays in memory: %s", error)
        self._snapshots = {k: v for k, v in self._snapshots.items() if k == blocks - 1}
        self._snapshots[blocks] = stored

    def _latest(self, blocks: int) -> tuple[int, bytes | None]:
        """Return the latest snapshot after at most so many blocks, and after how many it is."""
        for number in range(blocks, 0, -1):
            if number in self._snapshots:
                return number, self._snapshots[number]
            for folder in filter(None, (self.folder, self._former)):
                with contextlib.suppress(OSError):
                    path = folder / _name(number)
                    return number, read_bytes(path, most=MOST_SNAPSHOT, links=False)
        return 0, None

    def read_from(self, folder: Path) -> None:
        """Take snapshots of a saved search from its folder, in which nothing is written."""
        self._former = folder

    def export(self, folder: Path, blocks: int) -> None:
        """Write the latest snapshot after a number of blocks, if any, into another folder."""
        number, stored = self._latest(blocks)
        if stored is not None:
            make_folder(folder, "save to another path", links=False)
            write_bytes_atomically(folder / _name(number), stored, durable=True)


_NOT_STORED = "those of later blocks could not be stored."


def _name(blocks: int) -> str:
    return f"laboratory-{blocks:06d}.bin"


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
