"""The cells of a benchmark or an experiment: run in processes, each kept as soon as it is done."""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from llmopt.benchmarks.engine.cell import Cell, Row
from llmopt.benchmarks.engine.lines import LinesFile
from llmopt.client.base import Client
from llmopt.client.model_string import get_client
from llmopt.errors import LLMOptError
from llmopt.progress import Progress


def run_pool(
    cells: Iterable[Cell],
    run: Callable[[Cell], Row],
    out: str | Path,
    *,
    jobs: int = 1,
    summary: Callable[[Row], str] = lambda line: "done",
) -> list[tuple[Cell, str]]:
    """Run the cells that a file of results does not hold yet, and append a line for each.

    A cell that fails keeps no other from running. It is not in the file, so that the next call
    tries it again; what failed is returned with the reason. With several jobs `run` is a function
    of a module, and each process keeps to one core.
    """
    wanted = list(dict.fromkeys(cells))
    failures: list[tuple[Cell, str]] = []
    with LinesFile(out) as file:
        done = {Cell.of(line) for line in file.lines}
        missing = [cell for cell in wanted if cell not in done]
        before = len(wanted) - len(missing)
        _say(f"{len(wanted)} cells, {before} of them done, {len(missing)} to run, to {file.path}")
        with Progress(len(wanted), before, True, unit="cells") as progress:
            for cell, line, reason in _results(missing, partial(_attempt, run), jobs):
                if line is None:
                    failures.append((cell, reason))
                else:
                    file.append(line)
                progress.tell(f"{cell}: {reason if line is None else summary(line)}")
                progress.step()
    for cell, reason in failures:
        _say(f"not run: {cell}: {reason}")
    return failures


@functools.cache
def load_model(model: str, threads: int | None = None) -> Client:
    """Return a model, loaded once for each process."""
    local = model == "smollm2" or model.startswith("gguf:")
    return get_client(model, **({"threads": threads} if local and threads else {}))


def _say(text: str) -> None:
    print(f"llmopt: {text}", file=sys.stderr, flush=True)


def _attempt(run: Callable[[Cell], Row], cell: Cell) -> tuple[Cell, Row | None, str]:
    """Run a cell; its own failure comes back as words, so that the others go on."""
    try:
        return cell, run(cell), ""
    except (LLMOptError, ImportError) as error:
        return cell, None, " ".join(str(error).split())


def _results(
    cells: Sequence[Cell], attempt: Callable[[Cell], tuple[Cell, Row | None, str]], jobs: int
) -> Iterator[tuple[Cell, Row | None, str]]:
    if jobs == 1:
        yield from map(attempt, cells)
        return
    with _one_thread_each():
        # A fresh process each: a fork would copy a loaded model's threads.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(jobs, mp_context=context)
        try:
            futures = [pool.submit(attempt, cell) for cell in cells]
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            # Without this the pool would finish every cell before the error shows.
            workers = list(pool._processes.values())
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.terminate()
            raise
        pool.shutdown()


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Keep the linear algebra of the processes that are started meanwhile to one thread."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    unset = [name for name in names if name not in os.environ]
    os.environ.update(dict.fromkeys(unset, "1"))
    try:
        yield
    finally:
        for name in unset:
            del os.environ[name]
