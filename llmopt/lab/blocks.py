"""Runs the Python that a model gives in place of a point: its laboratory.

Blocks run in a confined worker (`llmopt.sandbox`, `llmopt.lab.laboratory`): no file, no
network, no further process. Its variables, functions, files and jobs stay for later blocks. After
each block the worker gives a snapshot, bytes that only a confined worker ever reads again: with it
a new worker continues where the last one ended, in this process or a later one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from llmopt.client.model_facts import model_facts
from llmopt.data import TrialData
from llmopt.errors import ClientError, StorageError
from llmopt.options import AskOptions
from llmopt.packing import MOST_PACKED
from llmopt.prompt import Prompt, PromptCapabilities
from llmopt.prompt.kept import MOST_VALUES, Plain, plain_values
from llmopt.prompt.python_block import MOST_OUTPUT, Computed
from llmopt.util.files import make_folder, read_bytes, write_bytes_atomically

if TYPE_CHECKING:
    from llmopt.client.base import Client
    from llmopt.sandbox.sandbox import Sandbox

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
)  # fmt: skip
_SCIPY = (
    "optimize", "linalg", "stats", "interpolate", "spatial", "special", "integrate", "signal",
    "sparse", "sparse.linalg", "fft", "ndimage", "cluster",
)  # fmt: skip
_SKLEARN = (
    "linear_model", "gaussian_process", "ensemble", "svm", "neighbors", "neural_network",
    "preprocessing", "pipeline", "model_selection", "decomposition", "metrics", "cluster",
    "kernel_ridge", "tree",
)  # fmt: skip

Data = Callable[[int | None], Mapping[str, Any]]
"""Returns the variables of a block for the first n trials, or for all with ``None``. ``"X"`` or
``"sources"`` has an entry for each trial. ``"data"`` maps each trial's number in the prompt to its
`TrialData`."""

_LeftOver: TypeAlias = tuple[tuple[str, ...], Mapping[str, Plain]]
"""The variables that a block left, and the values of those that can be a point."""


class Calculator:
    """Runs the blocks of one search. Nothing is started before the first block.

    Args:
        seconds: What a block may take.
        total: What all blocks may take together; a job may take as much.
        workers: Workers of `pmap` and of jobs; ``None`` for one on each core.
        replays: Whether a recording gives the results of blocks: then nothing need be confined.

    Attributes:
        folder: Where snapshots are kept; ``None`` for memory.
        imports: Further modules that blocks may import; trusted.

    Raises:
        SandboxUnavailableError: A model's code cannot be confined here.
    """

    def __init__(
        self,
        seconds: float = 120.0,
        total: float = 14_400.0,
        workers: int | None = None,
        replays: bool = False,
    ) -> None:
        from llmopt.sandbox.confine import support
        from llmopt.sandbox.failure import SandboxUnavailableError

        if (problems := support().problems) and not replays:
            raise SandboxUnavailableError(
                f"compute=True: a model's Python cannot be confined here: {'; '.join(problems)}. "
                "Use Linux on x86-64 or aarch64, or leave compute out"
            )
        self._problems = tuple(problems)
        self.seconds, self.total = seconds, total
        self.workers = min(_cores() if workers is None else workers, MOST_WORKERS)
        self.folder: Path | None = None
        self.imports: tuple[str, ...] = ()
        self._tools: tuple[str, dict[str, Any]] = ("", {})
        self._former: Path | None = None
        self._snapshots: dict[int, bytes] = {}  # by the number of blocks before
        self._clear()

    def _clear(self) -> None:
        self._sandbox: Sandbox | None = None
        self._ends = 0.0  # when the worker is to be replaced
        self._blocks = 0  # how many blocks it has run or restored
        self._sent: dict[int, str] = {}  # digests of the data that it has

    def __getstate__(self) -> dict[str, Any]:
        # A copy starts its own worker, and writes into no folder.
        gone: dict[str, Any] = {
            "_sandbox": None,
            "_ends": 0.0,
            "_blocks": 0,
            "_sent": {},
            "folder": None,
        }
        return {**self.__dict__, **gone}

    def close(self) -> None:
        """End the worker, if there is one, and all its jobs."""
        sandbox = self._sandbox
        self._clear()
        if sandbox is not None:
            sandbox.close()

    def equip(self, source: str, values: Mapping[str, Any]) -> None:
        """Have blocks find the functions of a source; see `LLMOptimizer.equip`."""
        self._tools = source, dict(values)
        self.close()

    def run(
        self, code: str, before: Sequence[Computed], data: Data, seconds: float | None = None
    ) -> Computed:
        """Run a block after the earlier ones, on `data`, for at most `seconds`.

        What it waits for its jobs counts towards these, but not towards the limit of a block.
        """
        from llmopt.sandbox.failure import CandidateError, SandboxError

        if self._problems:
            raise ClientError(
                "the recording lacks the output of a block of Python, and none can be run here: "
                f"{'; '.join(self._problems)}. Replay it on Linux on x86-64 or aarch64, or "
                "restore the recording from a copy",
                requests=0,
            )
        seen, began, notes = dict(data(None)), time.monotonic(), []
        given = seen.pop("data", {})
        left = seconds or self.total
        seconds = min(self.seconds, left)
        left_over: _LeftOver = (), {}
        lost, text, failed = False, "", False
        try:
            notes += self._prepare(len(before))
            notes += self._give(given)
            began = time.monotonic()  # a block does not pay for the start of its worker
            text, left_over, failed = self._call(code, seen, seconds, left - seconds)
        except CandidateError as error:
            why = f"it took more than {seconds:g} s" if error.kind == "timeout" else error
            printed, failed = f"{error.printed.rstrip()}\n\n" if error.printed else "", True
            said, left_over = self._back(before)
            text, lost = f"{printed}The block was ended: {why}. {said}", not left_over[0]
        except SandboxError as error:
            logger.warning("no worker for a model's Python: %s", error)
            self.close()
            text, failed = f"Python cannot be started here: {error}. Propose without it.", True
        if self._sandbox is not None:
            why, ended = self._keep(len(before) + 1)
            if ended:
                said, left_over = self._back(before)
                why, lost = f"{why} {said}", not left_over[0]
            notes += [why] if why else []
        took = time.monotonic() - began  # objects of the block can compute in the snapshot, too
        logger.info("a block of Python took %.1f s%s", took, " and failed" if failed else "")
        ends = lost, round(took, 3), failed
        names, values = left_over
        trials = len(seen.get("X", seen.get("sources", ())))
        return Computed(code, text, names, trials, *ends, notes=tuple(notes), values=values)

    def _back(self, before: Sequence[Computed]) -> tuple[str, _LeftOver]:
        """End the worker, go back to the variables before the block, and state what remains."""
        self.close()
        if before and (stored := self._stored(len(before))) is not None:
            self._store(len(before) + 1, stored)  # the ended block changed no variable
            said = "Variables are those before it; jobs that ran start again with the next block."
            return said, (before[-1].variables, before[-1].values)
        return "All variables are gone.", ((), {})

    def _prepare(self, before: int) -> list[str]:
        """Start a worker from the last snapshot, if none runs; return what could not be kept."""
        running = self._sandbox is not None and self._sandbox.running and self._blocks == before
        if running and time.monotonic() < self._ends:
            return []
        from llmopt.sandbox.failure import CandidateError

        self._start()
        if not before:
            return []
        gone = ["The variables of earlier blocks are gone."]
        if (stored := self._stored(before)) is None:
            return gone
        assert self._sandbox is not None
        try:
            lost = self._sandbox.give(stored, _SNAPSHOT_SECONDS, "restore")
        except CandidateError as error:
            logger.warning("a snapshot of a model's variables cannot be read: %s", error)
            self._start()
            return gone
        self._blocks = before
        if not isinstance(lost, list) or not all(isinstance(name, str) for name in lost):
            return []
        return [f"These variables are gone: {', '.join(lost)[:1000]}."] if lost else []

    def _start(self) -> None:
        from llmopt.sandbox.sandbox import Sandbox, WorkerLimits

        self.close()
        packages = [
            f"{package}.{part}"
            for package, parts in (("scipy", _SCIPY), ("sklearn", _SKLEARN))
            for part in parts
            if importlib.util.find_spec(package)
        ]
        cpu = int(self.total) + 60
        limits = WorkerLimits(
            call_seconds=self.seconds,
            startup_seconds=120,
            cpu_seconds=cpu,
            total_seconds=int(3 * _LIFE),
            memory_bytes=MEMORY,
            message_bytes=MOST_PACKED + (1 << 20),
        )
        memory = max(128 << 20, min(512 << 20, WORKERS_MEMORY // max(1, self.workers)))
        options = {"workers": self.workers, "memory": memory, "cpu": cpu, "wall": int(3 * _LIFE)}
        extension = {
            "module": "llmopt.lab.laboratory",
            "root": str(Path(__file__).parents[2]),
            "options": options,
        }
        imports = (*_PLAIN, "numpy", *packages, *self.imports)
        self._sandbox = Sandbox(limits, imports=imports, extension=extension)
        self._ends = time.monotonic() + _LIFE
        self._sandbox.start()
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
            if digest and self._sent.get(number) != digest:
                assert data is not None
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
        from llmopt.sandbox.failure import CandidateError

        assert self._sandbox is not None
        found = self._sandbox.call_within(
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
        if isinstance(found, list) and len(found) == 4 and isinstance(found[1], list):
            text, names, failed, values = found
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
        from llmopt.sandbox.failure import CandidateError

        assert self._sandbox is not None
        try:
            stored = self._sandbox.fetch(
                _SNAPSHOT_SECONDS, MOST_SNAPSHOT, "snapshot", MOST_SNAPSHOT
            )
            large = self._sandbox.call_within(_SNAPSHOT_SECONDS, _MOST_ANSWER, "left_out")
        except CandidateError as error:
            if self._sandbox.running:  # it could not be made: the worker has its variables
                self._blocks = blocks
                return f"The variables do not survive an interruption: {error}.", False
            return f"The worker ended while it stored the variables: {error}.", True
        self._blocks = blocks
        self._store(blocks, stored)
        if not isinstance(large, list) or not all(isinstance(name, str) for name in large):
            return "", False
        limit = f"all variables and files together, compressed, may have {MOST_SNAPSHOT >> 20} MiB"
        if not large:
            return "", False
        return f"Gone if the worker ends: {', '.join(large)[:1000]}; {limit}.", False

    def _store(self, blocks: int, stored: bytes) -> None:
        """Store a snapshot in the folder, or in memory; earlier ones but the last are deleted."""
        try:
            if self.folder is not None:
                make_folder(self.folder, "give another storage=", links=False)
                write_bytes_atomically(self._file(blocks), stored, durable=True)
                self._snapshots.clear()
                for old in self.folder.glob("laboratory-*.bin"):
                    if old not in (self._file(blocks), self._file(blocks - 1)):
                        old.unlink(missing_ok=True)
                return
        except (OSError, StorageError) as error:
            logger.warning("a snapshot of a model's variables stays in memory: %s", error)
        self._snapshots = {k: v for k, v in self._snapshots.items() if k == blocks - 1}
        self._snapshots[blocks] = stored

    def _file(self, blocks: int) -> Path:
        assert self.folder is not None
        return self.folder / self._name(blocks)

    def _stored(self, blocks: int) -> bytes | None:
        """Return the snapshot after a number of blocks; only a confined worker reads it."""
        if blocks in self._snapshots:
            return self._snapshots[blocks]
        for folder in filter(None, (self.folder, self._former)):
            with contextlib.suppress(OSError):
                return read_bytes(folder / self._name(blocks), most=MOST_SNAPSHOT, links=False)
        return None

    def read_from(self, folder: Path) -> None:
        """Take snapshots of a saved search from its folder, in which nothing is written."""
        self._former = folder

    def export(self, folder: Path, blocks: int) -> None:
        """Write the snapshot after a number of blocks, if there is one, into another folder."""
        if blocks and (stored := self._stored(blocks)) is not None:
            make_folder(folder, "save to another path", links=False)
            write_bytes_atomically(folder / self._name(blocks), stored, durable=True)

    @staticmethod
    def _name(blocks: int) -> str:
        return f"laboratory-{blocks:06d}.bin"


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_compute(prompt: Prompt) -> None:
    """Raise where answers to a prompt cannot be Python, or no code can be confined here."""
    PromptCapabilities.of(prompt).check_computes(prompt.name)
    Calculator()


def calculator_for(
    options: AskOptions, client: Client, prompt: Prompt | None = None
) -> Calculator | None:
    """Return what runs a model's blocks, if `AskOptions.compute` asks for it.

    Raises:
        SandboxUnavailableError: A model's code cannot be confined here, and ``compute=True``.
    """
    if options.compute == "auto" and (why := why_not(client, prompt)):
        if why not in _said:
            _said.add(why)
            logger.info("compute='auto': the model does not compute in Python, since %s", why)
        return None
    if not options.compute:
        return None
    workers = options.compute_workers
    if workers is None:  # a replay has the workers of its recording
        workers = getattr(client, "workers", None)
    seconds = options.compute_seconds, options.compute_total
    return Calculator(*seconds, workers, _replays(client))


_said: set[str] = set()


def _replays(client: Client) -> bool:
    return getattr(client, "replay_block", None) is not None


def why_not(client: Client, prompt: Prompt | None) -> str:
    """Return why a model may not compute; empty if it may. A search over code has no `prompt`."""
    from llmopt.sandbox.confine import support

    facts = model_facts(client)
    if prompt is not None and not PromptCapabilities.of(prompt).computes:
        return f"the prompt {prompt.name!r} takes no Python"
    if not facts.chats:
        return f"{facts.name} is no chat model"
    if not getattr(client, "computes", True):
        return "its recording was made without it"
    problems = () if _replays(client) else support().problems
    return f"code cannot be confined here: {'; '.join(problems)}" if problems else ""
