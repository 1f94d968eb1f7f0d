"""Texts in the layout of the published ProPS code; see `llmopt.benchmarks.run.folder`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from llmopt.benchmarks.engine.records import WARMUP, Record
from llmopt.errors import LLMOptError, StorageError
from llmopt.policies.linear import LinearPolicy
from llmopt.util.files import open_to_append, read_text, write_text_atomically

OVERALL_HEADER = "Iteration, CPU Time, API Time, Total Episodes, Total Steps, Total Reward"


class OverallLog:
    """A method's ``overall_log.txt``, rewritten from the records and then extended line by line."""

    def __init__(self, path: Path, warmup: Sequence[Record], records: Sequence[Record]) -> None:
        self.path = path
        self._cpu = self._api = 0.0
        self._episodes = self._steps = 0
        for record in warmup:
            self._count(record)
        write_text_atomically(path, "".join([OVERALL_HEADER, "\n", *map(self._line, records)]))

    def add(self, record: Record) -> None:
        """Append one iteration."""
        try:
            with open_to_append(self.path) as file:
                file.write(self._line(record).encode())
        except OSError as error:
            raise StorageError(f"cannot write {self.path}: {error.strerror or error}") from error

    def _count(self, record: Record) -> None:
        self._cpu += record.cpu_seconds
        self._api += record.model_seconds
        self._episodes += len(record.lengths)
        self._steps += sum(record.lengths)

    def _line(self, record: Record) -> str:
        self._count(record)
        reward = math.nan if record.mean is None else record.mean
        return (
            f"{record.index + 1}, {self._cpu:.6f}, {self._api:.6f}, {self._episodes}, "
            f"{self._steps}, {reward!r}\n"
        )


def rollout_text(record: Record, steps: Sequence[str]) -> str:
    """Return the text of a rollout file."""
    head = ", ".join(map(repr, record.params)) + "\nparameter ends\n\nstate | action | reward\n"
    first = "".join(steps)
    blocks = [f"Total reward: {total!r}\n" for total in record.returns]
    blocks += [f"failed: {record.failure}\n"] if record.failure else []
    return "".join(head + (first if not i else "") + block for i, block in enumerate(blocks))


def parameters_text(policy: LinearPolicy, params: Sequence[float]) -> str:
    """Return the text of ``parameters.txt``."""
    weights, bias = policy.unpack(params)
    rows = [", ".join(map(repr, row)) for row in weights.tolist()]
    tail = ["Bias:", ", ".join(map(repr, bias.tolist()))] if policy.bias else []
    return "\n".join(["Weights:", *rows, *tail]) + "\n"


class WarmupPoint(NamedTuple):
    """A warm-up point."""

    params: tuple[float, ...]  # flat policy parameters
    returns: tuple[float, ...] = ()  # empty if it is to be evaluated


def load_warmup(folder: str | Path, n: int) -> list[WarmupPoint]:
    """Read the points of a warm-up folder in the published layout, each with `n` parameters.

    Raises:
        LLMOptError: There is no such folder, or a file in it does not fit the task.
    """
    root = Path(folder)
    files = [
        (int(match[1]), path)
        for path in (*root.glob("*.txt"), *(root / WARMUP).glob("*.txt"))
        if (match := re.fullmatch(r"warmup_rollout_(\d+)\.txt", path.name))
    ]
    if not files:
        raise LLMOptError(
            f"warm-up {str(folder)!r} is neither a number nor a folder of warmup_rollout_<i>.txt "
            "files: give how many points to sample, or such a folder"
        )
    return [_read_rollout(path, n) for _, path in sorted(files)]


def _read_rollout(path: Path, n: int) -> WarmupPoint:
    text = read_text(path)
    head, separator, _ = text.partition("parameter ends")
    # A matrix may be on several lines, one row each.
    fields = [f for f in head.replace("\n", ",").split(",") if f.strip()]
    try:
        params = tuple(map(float, fields))
        returns = tuple(map(float, re.findall(r"^Total reward: *(\S+)", text, re.MULTILINE)))
    except ValueError as error:
        raise LLMOptError(
            f"{path}: expected comma-separated numbers before 'parameter ends', and a number in "
            f"each line 'Total reward: ' ({error})"
        ) from error
    if not separator or len(params) != n or not all(map(math.isfinite, params)):
        raise LLMOptError(
            f"{path}: got {len(params)} parameters{'' if separator else ' and no end mark'}, "
            f"expected {n} finite numbers and then a line 'parameter ends'. It was made for "
            "another task, or with (or without) a bias"
        )
    return WarmupPoint(params, returns if all(map(math.isfinite, returns)) else ())
