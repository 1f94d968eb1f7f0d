"""``llmopt bench``: many cells of task, method and seed, each run once, one line of raw data each.

A cell is one search from one seed. Cells of one task and seed share their warm-up points, the
starts of their episodes and the held-out starts. Each finished cell is appended to a JSON
Lines file and never run again; a kill loses only the cells in progress.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from llmopt._version import __version__
from llmopt.benchmarks.methods.table import (
    METHODS,
    OPTIMA,
    Problem,
    check_method,
    decimals,
    make_method,
)
from llmopt.benchmarks.tasks.fast import FastEvaluator
from llmopt.benchmarks.tasks.table import TASKS, Task, get_task
from llmopt.client.base import Client, client_name, default_prompt
from llmopt.client.registry import get_client
from llmopt.errors import LLMOptError, StorageError, did_you_mean
from llmopt.policies.rollout import HELD_OUT_STARTS, held_out_seeds, selection_seeds, stream
from llmopt.search.eventlog import EventLog, read_events

_EXPLANATION = 600  # characters kept of what the model said about one point
_VERSIONED = ("gymnasium", "mujoco", "numpy", "cma", "nevergrad", "optuna", "cmaes", "xllamacpp")


class BenchConfigError(LLMOptError, ValueError):
    """A benchmark was asked for with options that cannot be."""


@dataclass(frozen=True)
class Cell:
    """One search: what is run once and never again.

    Attributes:
        task: Alias, task id or Gymnasium id.
        method: A key of `llmopt.benchmarks.methods.table.METHODS`.
        seed: Seed of everything random.
        evaluations: Points after the warm-up.
        episodes: Selection episodes of one evaluation.
        warmup: Points shared by all methods before the search.
        heldout: Fresh starts on which the best point is judged.
        box: Bounds of every parameter; ``None`` for the task's own.
        bias: Whether the policy has a bias; ``None`` for the task's own choice.
        model: Model string; empty for a method that asks none.
        batch: Points asked of a model in one request; 0 for a method that has no requests.
        max_tokens: Cap on a model's answer; 0 for the prompt's own.
    """

    task: str
    method: str
    seed: int
    evaluations: int = 100
    episodes: int = 5
    warmup: int = 20
    heldout: int = HELD_OUT_STARTS
    box: tuple[float, float] | None = None
    bias: bool | None = None
    model: str = ""
    batch: int = 0
    max_tokens: int = 0

    def __post_init__(self) -> None:
        least = {"seed": 0, "evaluations": 1, "episodes": 1, "warmup": 0, "heldout": 1}
        least |= {"batch": 0, "max_tokens": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise BenchConfigError(
                    f"{name}={value!r}: expected a whole number of at least {low}"
                )
        if self.method not in METHODS:
            raise BenchConfigError(
                f"unknown method {self.method!r}: {did_you_mean(self.method, METHODS)}"
            )

    @classmethod
    def make(cls, *, model: str = "smollm2", batch: int = 4, **options: Any) -> Cell:
        """Make a cell; the model and its batch are left out where the method has no use for them.

        Raises:
            BenchConfigError: An option is not valid.
        """
        cell = cls(model=model, batch=batch, **options)
        entry = METHODS[cell.method]
        if entry.asks_model:
            return replace(cell, batch=1) if cell.method == "llm-published" else cell
        batch = batch if entry.group == "ablation" else 0
        return replace(cell, model="", batch=batch, max_tokens=0)

    @classmethod
    def of(cls, line: dict[str, Any]) -> Cell:
        """Return the cell of a line of raw data.

        Raises:
            StorageError: The line is not one of a benchmark.
        """
        try:
            names = {f.name for f in fields(cls)}
            known = {k: v for k, v in line["cell"].items() if k in names}
            box = known["box"]
            return cls(**{**known, "box": box and (float(box[0]), float(box[1]))})
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(
                f"a line of the results is not a benchmark's ({error!r}): give the file that "
                "llmopt bench wrote"
            ) from error

    def get_task(self) -> Task:
        """Return the task.

        Raises:
            UnknownTaskError: There is no such task.
            SpaceError: The box is not valid.
        """
        return get_task(self.task, bias=self.bias, box=self.box)


def draw_warmup(box: tuple[float, float], n: int, count: int, seed: int) -> np.ndarray:
    """Draw the warm-up points of a run.

    They are normal with half the box's half-width as standard deviation, so N(0, 3) for the
    published box, clipped to it and rounded to the decimals that a prompt shows.

    Args:
        box: Low and high bound of every parameter.
        n: Number of parameters.
        count: Points wanted.
        seed: The run's seed.

    Returns:
        ``(count, n)`` array.
    """
    low, high = box
    rng = np.random.default_rng(stream(seed, "warmup"))
    drawn = rng.normal((low + high) / 2, (high - low) / 4, (count, n))
    points: np.ndarray = np.clip(drawn.round(decimals(low, high)), low, high)
    return points


def run_cell(cell: Cell, client: Client | None = None) -> dict[str, Any]:
    """Run one cell in this process, on one core.

    Args:
        cell: What to run.
        client: The model, in place of the one that the cell names.

    Returns:
        Its line of raw data: the cell, every mean return (warm-up first), the best point
        and its held-out returns, what was spent, what the model said.

    Raises:
        LLMOptError: The task or method does not exist here, or the model failed.
    """
    entry = check_method(cell.method)
    if client is None and entry.asks_model:
        client = get_client(cell.model)
    task = cell.get_task()
    evaluator = _evaluator(task)
    n = evaluator.policy.n_parameters
    seeds = selection_seeds(cell.seed, cell.episodes)
    started = time.perf_counter()
    warmup = draw_warmup(task.box, n, cell.warmup, cell.seed)
    outcomes = evaluator.evaluate_batch(warmup, seeds)
    points = list(warmup)
    evaluating = time.perf_counter() - started
    low, high = task.box
    problem = Problem(
        low,
        high,
        n,
        cell.evaluations,
        tuple((tuple(p.tolist()), o.mean) for p, o in zip(warmup, outcomes, strict=True)),
        task.description,
        OPTIMA.get(task.env_id),
    )
    # The stream depends on the method's name and on nothing else of the benchmark.
    number = sum(ord(c) << (8 * i) for i, c in enumerate(cell.method)) % 2**32
    method = make_method(
        cell.method,
        problem,
        stream(cell.seed, "method", number),
        client=client,
        batch_size=max(cell.batch, 1),
        max_tokens=cell.max_tokens or None,
    )
    sources: dict[str, int] = {}
    said: list[list[Any]] = []
    proposing = 0.0
    for index in range(cell.evaluations):
        began = time.perf_counter()
        params = method.ask()
        asked = time.perf_counter()
        outcome = evaluator.evaluate(params, seeds)
        evaluated = time.perf_counter()
        points.append(np.array(params))
        outcomes.append(outcome)
        proposal = getattr(method, "last", None)
        if proposal is not None:
            sources[proposal.source] = sources.get(proposal.source, 0) + 1
            if proposal.explanation.strip():
                said.append([index, proposal.explanation.strip()[:_EXPLANATION]])
        if outcome.mean is None:
            method.tell_failure(params, outcome.failure)
        else:
            method.tell(params, outcome.mean)
        proposing += asked - began + time.perf_counter() - evaluated
        evaluating += evaluated - asked
    means = [o.mean for o in outcomes]
    best = max(
        (i for i, m in enumerate(means) if m is not None),
        key=lambda i: (means[i], -i),
        default=None,
    )
    judged = None
    if best is not None:
        judged = evaluator.evaluate(points[best], held_out_seeds(cell.seed, cell.heldout))
    usage = getattr(method, "usage", None)
    return {
        "cell": asdict(cell),
        "task": task.id,
        "env_id": task.env_id,
        "box": list(task.box),
        "bias": task.bias,
        "parameters": n,
        "model": client_name(client) if client is not None and entry.asks_model else "",
        "means": [_short(m) for m in means],
        "failures": sum(m is None for m in means),
        "best_index": best,
        "best_params": None if best is None else points[best].tolist(),
        "selection": None if best is None else means[best],
        "heldout": None if judged is None else judged.mean,
        "heldout_returns": [] if judged is None else [_short(r) for r in judged.returns],
        "episodes": sum(len(o.lengths) for o in outcomes),
        "steps": sum(sum(o.lengths) for o in outcomes),
        "seconds": {"proposing": round(proposing, 3), "evaluating": round(evaluating, 3)},
        "sources": sources,
        "usage": None if usage is None or not entry.asks_model else asdict(usage),
        "explanations": said,
        "versions": _versions(),
    }


@functools.lru_cache(maxsize=4)
def _evaluator(task: Task) -> FastEvaluator:
    """Return the evaluator of a task, kept for the next cell of this process."""
    return FastEvaluator(task, workers=1)


def _short(value: float | None) -> float | None:
    """Round to seven digits, which keeps the raw data small."""
    return None if value is None else float(f"{value:.7g}")


@functools.cache
def _versions() -> dict[str, str]:
    from importlib import metadata

    found = {"llmopt": __version__}
    for name in _VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


# -- running many -------------------------------------------------------------------------


def run_cells(
    cells: Iterable[Cell], out: str | Path, *, jobs: int = 1, client: Client | None = None
) -> list[tuple[Cell, str]]:
    """Run the cells that a file does not hold yet, and append a line for each.

    Args:
        cells: What to run; repeated cells are run once.
        out: JSON Lines file; created if it is not there.
        jobs: Processes. With more than one, each keeps to one core, a local model included.
        client: The model for all cells that ask one, in place of those that they name; only
            with one job.

    Returns:
        The cells that could not be run, each with the reason. They are not in the file, and
        the next call tries them again.

    Raises:
        BenchConfigError: `jobs` is less than 1, or is more than one with a client.
        StorageError: The file cannot be used.
    """
    if jobs < 1 or (jobs > 1 and client is not None):
        raise BenchConfigError(
            f"jobs={jobs}: expected at least 1, and exactly 1 with a client object"
        )
    wanted = list(dict.fromkeys(cells))
    log = EventLog(out)
    failed: list[tuple[Cell, str]] = []
    try:
        done = {Cell.of(line) for line in log.events}
        todo = [cell for cell in wanted if cell not in done]
        print(
            f"llmopt: {len(wanted)} cells, {len(wanted) - len(todo)} of them done, "
            f"{len(todo)} to run, to {out}",
            file=sys.stderr,
        )
        started = time.perf_counter()
        for number, (cell, line, trouble) in enumerate(_results(todo, jobs, client), start=1):
            if line is None:
                failed.append((cell, trouble))
            else:
                log.append(line)
            passed = time.perf_counter() - started
            _announce(number, len(todo), cell, line, trouble, passed)
    finally:
        log.close()
    return failed


def _results(
    cells: Sequence[Cell], jobs: int, client: Client | None
) -> Iterator[tuple[Cell, dict[str, Any] | None, str]]:
    if jobs == 1:
        for cell in cells:
            yield _try_cell(cell, None, client)
        return
    with _one_thread_each():
        # A fresh process each: a fork would copy a loaded model's threads.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(jobs, mp_context=context)
        try:
            futures = [pool.submit(_try_cell, cell, 1) for cell in cells]
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
    mine = [name for name in names if name not in os.environ]
    os.environ.update(dict.fromkeys(mine, "1"))
    try:
        yield
    finally:
        for name in mine:
            del os.environ[name]


def _try_cell(
    cell: Cell, threads: int | None, client: Client | None = None
) -> tuple[Cell, dict[str, Any] | None, str]:
    """Run a cell; its own failure comes back as words, so that the others go on."""
    try:
        if client is None and METHODS[cell.method].asks_model:
            client = _client(cell.model, threads)
        return cell, run_cell(cell, client), ""
    except (LLMOptError, ImportError) as error:
        return cell, None, " ".join(str(error).split())


@functools.cache
def _client(model: str, threads: int | None) -> Client:
    """Return the model, loaded once for each process."""
    local = model == "smollm2" or model.startswith("gguf:")
    return get_client(model, **({"threads": threads} if local and threads else {}))


def _announce(
    number: int, total: int, cell: Cell, line: dict[str, Any] | None, trouble: str, passed: float
) -> None:
    left = passed / number * (total - number)
    score = trouble
    if line is not None:
        shown = "all points failed" if line["heldout"] is None else f"{line['heldout']:.2f}"
        score = f"held-out {shown}, {sum(line['seconds'].values()):.0f} s"
    print(
        f"llmopt: {number}/{total} {cell.task} {cell.method} seed {cell.seed} "
        f"({cell.evaluations}): {score}; {math.ceil(left / 60)} min left",
        file=sys.stderr,
        flush=True,
    )


def read_results(*paths: str | Path) -> list[dict[str, Any]]:
    """Read the lines of one or more result files; the first of equal cells counts.

    Raises:
        StorageError: A file cannot be read or is not a benchmark's.
    """
    found: dict[Cell, dict[str, Any]] = {}
    for path in paths:
        for line in read_events(path):
            found.setdefault(Cell.of(line), line)
    return list(found.values())


# -- command line -------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt bench``."""
    from llmopt.benchmarks.bench.suites import SUITES

    add = parser.add_argument
    add(
        "--suite",
        choices=sorted(SUITES),
        help="a committed set of cells; it goes without --tasks and what follows that",
    )
    add("--out", type=Path, metavar="FILE", help="results (default: bench.jsonl, or the suite's)")
    add("--jobs", type=int, default=1, metavar="N", help="cells run at once (default: 1)")
    add("--model", default="smollm2", metavar="M", help="model to ask (default: smollm2)")
    add("--batch", type=int, default=4, metavar="N", help="points of one request (default: 4)")
    add(
        "--max-tokens",
        type=int,
        default=0,
        metavar="N",
        help="cap on a model's answer (default: 0, the prompt's own)",
    )
    add(
        "--methods",
        nargs="+",
        metavar="METHOD",
        help="which to run (default: the model under the prompt that suits it, draws with no model "
        "from that prompt's grammar, cma, random); of a suite, only these. "
        f"There are {', '.join(METHODS)}",
    )
    add("--dry-run", action="store_true", help="list the cells that are missing, and stop")
    aliases = ", ".join(t.alias for t in TASKS)
    add("--tasks", nargs="+", metavar="TASK", help=f"{aliases}, or any Gymnasium id")
    add("--seeds", type=int, default=5, metavar="N", help="seeds 0 to N-1 (default: 5)")
    add("--evaluations", type=int, default=100, metavar="N", help="of each cell (default: 100)")
    add("--episodes", type=int, default=5, metavar="K", help="of one evaluation (default: 5)")
    add("--warmup", type=int, default=20, metavar="N", help="shared points (default: 20)")
    add("--heldout", type=int, default=100, metavar="H", help="fresh starts (default: 100)")
    add("--box", type=float, nargs=2, metavar=("LOW", "HIGH"), help="bounds of every parameter")
    add("--bias", action=argparse.BooleanOptionalAction, help="policy with or without a bias")


def _default_methods(model: str) -> tuple[str, ...]:
    """Return the model under the prompt that suits it, its ablations, and two baselines."""
    prompt = default_prompt(_client(model, None))
    ablations = [
        name
        for name, entry in METHODS.items()
        if entry.group == "ablation" and not entry.asks_model and entry.asked == (prompt, None)
    ]
    return (f"llm-{prompt}", *ablations, "cma", "random")


def main(args: argparse.Namespace) -> int:
    """Run the subcommand.

    Returns:
        0, or 1 if cells could not be run.

    Raises:
        LLMOptError: The options, a task or a method are not valid.
    """
    cells = _cells(args)
    for method in dict.fromkeys(cell.method for cell in cells):
        if not args.dry_run:
            check_method(method)
    for task in {(c.task, c.bias, c.box): c for c in cells}.values():
        task.get_task()
    out = args.out or _default_out(args.suite)
    if args.dry_run:
        done = set(map(Cell.of, read_results(out))) if Path(out).exists() else set()
        for cell in dict.fromkeys(cells):
            if cell not in done:
                print(json.dumps(asdict(cell)))
        return 0
    try:
        failed = run_cells(cells, out, jobs=args.jobs)
    except KeyboardInterrupt:
        print("\nllmopt: stopped; the same command goes on", file=sys.stderr)
        return 130
    for cell, reason in failed:
        print(
            f"llmopt: not run: {cell.task} {cell.method} seed {cell.seed}: {reason}",
            file=sys.stderr,
        )
    print(f"{out}\nllmopt report {out}  makes the page of it", file=sys.stderr)
    return 1 if failed else 0


def _cells(args: argparse.Namespace) -> list[Cell]:
    from llmopt.benchmarks.bench.suites import SUITES

    if args.suite and args.tasks:
        raise BenchConfigError("--suite and --tasks do not go together: a suite names its tasks")
    if args.suite:
        cells = SUITES[args.suite](args.model, args.batch)
        return [c for c in cells if not args.methods or c.method in args.methods]
    if not args.tasks:
        raise BenchConfigError("nothing to run: give --tasks TASK ... or --suite NAME")
    if args.seeds < 1:
        raise BenchConfigError(f"--seeds {args.seeds}: expected at least 1")
    methods = args.methods or _default_methods(args.model)
    return [
        Cell.make(
            task=task,
            method=method,
            seed=seed,
            evaluations=args.evaluations,
            episodes=args.episodes,
            warmup=args.warmup,
            heldout=args.heldout,
            box=args.box and (args.box[0], args.box[1]),
            bias=args.bias,
            model=args.model,
            batch=args.batch,
            max_tokens=args.max_tokens,
        )
        for task in args.tasks
        for seed in range(args.seeds)
        for method in methods
    ]


def _default_out(suite: str | None) -> Path:
    return Path(f"benchmarks/results/{suite}.jsonl") if suite else Path("bench.jsonl")
