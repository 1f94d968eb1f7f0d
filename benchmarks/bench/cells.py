"""The cells of ``llmopt bench``: each one search from one seed, and one line of raw data.

Cells of one task and seed share their warm-up points, the starts of their episodes and the
held-out starts. Each finished cell is appended to a JSON Lines file and never run again; a kill
loses only the cells in progress.
"""

from __future__ import annotations

import functools
import inspect
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llmopt.benchmarks.bench.reactions import run_reaction
from llmopt.benchmarks.engine.asking import repeatable, sample_warmup
from llmopt.benchmarks.engine.cell import Cell, Row
from llmopt.benchmarks.engine.contest import Contest, Entrant, Terms
from llmopt.benchmarks.engine.lines import read_file
from llmopt.benchmarks.engine.options import MOST_POINTS, RANGES, check_ranges
from llmopt.benchmarks.engine.pool import load_model, run_pool
from llmopt.benchmarks.engine.records import WARMUP, Records
from llmopt.benchmarks.engine.search import FINALISTS
from llmopt.benchmarks.extras import package_versions
from llmopt.benchmarks.methods.table import METHODS, Asking, check_method, check_names
from llmopt.benchmarks.tasks.reactions import REACTIONS
from llmopt.benchmarks.tasks.table import Task, get_task
from llmopt.callbacks import Callback, Callbacks, Search
from llmopt.client.base import Client, client_name
from llmopt.client.recordings import RecordClient
from llmopt.errors import FallbackWarning, LLMOptError, StorageError
from llmopt.policies.episode_seeds import HELD_OUT_STARTS
from llmopt.policies.evaluation import Evaluator

_EXPLANATION = 600  # characters kept of what the model said about one point


_RANGES = {
    **{name: RANGES[name] for name in ("seed", "episodes", "heldout", "finalists")},
    "evaluations": (1, MOST_POINTS),
    "warmup": (0, MOST_POINTS),
    "batch": (0, RANGES["batch"][1]),
}


class BenchConfigError(LLMOptError, ValueError):
    """A benchmark was asked for with options that cannot be."""


def make_cell(
    task: str,
    method: str,
    seed: int,
    evaluations: int = 100,
    model: str = "smollm2",
    *,
    episodes: int = 5,
    warmup: int = 20,
    heldout: int = HELD_OUT_STARTS,
    box: tuple[float, float] | None = None,
    bias: bool | None = None,
    batch: int = 1,
    wrappers: tuple[str, ...] | None = None,
    finalists: int = FINALISTS,
) -> Cell:
    """Make a cell; without model and batch if the method uses neither."""
    check_ranges(locals(), _RANGES, BenchConfigError)
    try:
        check_names([method])
    except ValueError as error:
        raise BenchConfigError(str(error)) from None
    spec = METHODS[method]
    if not spec.asks_model:
        model = ""
        batch = batch if spec.group == "ablation" else 0
    return Cell.make(
        task, method, seed, evaluations, model,
        episodes=episodes, warmup=warmup, heldout=heldout, box=box, bias=bias, batch=batch,
        max_tokens=0, wrappers=wrappers, finalists=finalists,
    )  # fmt: skip


_OPTIONS = {*inspect.signature(make_cell).parameters, "max_tokens"}


def task_of(cell: Cell) -> Task:
    """Return the task of a cell."""
    return get_task(cell.task, bias=cell["bias"], box=cell["box"], wrappers=cell["wrappers"])


def run_cell(
    cell: Cell,
    client: Client | None = None,
    callbacks: Sequence[Callback] = (),
    threads: int | None = None,
    record: Path | None = None,
) -> Row:
    """Run one cell in this process and return its line.

    A local model runs on some `threads`; `record` is a folder that keeps a model's answers.
    """
    spec = check_method(cell.method)
    if client is None and spec.asks_model:
        client = repeatable(load_model(cell.model, threads), spec.prompt)
    if client is not None and spec.asks_model and record is not None:
        record.mkdir(parents=True, exist_ok=True)
        path = record / f"{cell.task}-{cell.method}-{cell.seed}.jsonl"
        if path.exists():  # of an attempt that did not end: a replay takes one search only
            path.replace(f"{path}.old")
        client = RecordClient(client, path)
    if cell.task in REACTIONS:
        return run_reaction(cell, client)
    task, name = task_of(cell), cell.method
    evaluator = _evaluator(task)
    terms = Terms(cell.seed, cell.evaluations, cell["episodes"], cell["heldout"], cell["finalists"])
    kept = Records()
    contest = Contest(task, evaluator, terms, [Entrant(name, spec)], kept)
    asking = Asking(client, max(cell["batch"], 1))
    contest.check(name, asking)
    started = time.perf_counter()
    n = contest.policy.n_parameters
    contest.warm_up(
        [(p, ()) for p in sample_warmup(task.box, n, cell["warmup"], cell.seed).tolist()]
    )
    told = None
    if callbacks:
        names = tuple(f"params[{i}]" for i in range(n))
        title = f"{cell.task}-{name}-{cell.seed}"
        told = Callbacks(callbacks, Search(title, names, ("maximize",), cell.line()["cell"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)  # counted in every line
        contest.search(name, asking, told)
    own = kept.records[name]
    points = [*kept.records[WARMUP], *own]
    evaluating = sum(record.evaluation_seconds for record in points)
    proposing = time.perf_counter() - started - evaluating
    chosen = contest.judge(name)
    finals = () if chosen is None else chosen.finals
    heldout = None if chosen is None else chosen.heldout
    proposed = name in contest.usage  # by a model or its replacement
    return {
        **cell.line(),
        "task": task.id,
        "env_id": task.env_id,
        "box": list(task.box),
        "bias": task.bias,
        "parameters": n,
        "model": client_name(client) if client is not None and spec.asks_model else "",
        "means": [_short(record.mean) for record in points],
        "failures": sum(record.mean is None for record in points),
        "best_index": None if chosen is None else chosen.place,
        "best_params": None if chosen is None else list(chosen.record.params),
        "selection": None if chosen is None else chosen.record.mean,
        "finals": [[final.index, _short(final.mean)] for final in finals],
        "heldout": None if heldout is None else heldout.mean,
        "heldout_returns": [] if heldout is None else [_short(r) for r in heldout.returns],
        "episodes": sum(len(record.lengths) for record in points)
        + sum(len(final.returns) for final in finals),
        "steps": sum(sum(record.lengths) for record in points),
        "seconds": {"proposing": round(proposing, 3), "evaluating": round(evaluating, 3)},
        "sources": Counter(record.source for record in own) if proposed else {},
        "usage": asdict(contest.usage[name]) if spec.asks_model else None,
        "explanations": [
            [record.index, words[:_EXPLANATION]]
            for record in own
            if (words := record.explanation.strip())
        ],
        "versions": package_versions(),
    }


@functools.lru_cache(maxsize=4)
def _evaluator(task: Task) -> Evaluator:
    """Return the evaluator of a task, kept for the next cell of this process."""
    return task.evaluator()


def _short(value: float | None) -> float | None:
    """Round to seven digits, which keeps the raw data small."""
    return None if value is None else float(f"{value:.7g}")


def run_bench(
    cells: Iterable[Cell],
    out: str | Path,
    *,
    jobs: int = 1,
    client: Client | None = None,
    callbacks: Sequence[Callback] = (),
    record: Path | None = None,
) -> list[tuple[Cell, str]]:
    """Run the cells that a file does not hold yet, and append a line for each; see `run_pool`.

    `client` takes the place of the models that cells name; it and callbacks need one job. `record`
    is a folder that keeps the models' answers. Searches of reactions call no callbacks.
    """
    if jobs < 1 or (jobs > 1 and (client is not None or callbacks)):
        raise BenchConfigError(
            f"jobs={jobs}: expected at least 1, and 1 with a client object, callbacks or trackers "
            "(--track), since these are in one process only"
        )
    threads = None if jobs == 1 else 1
    run = functools.partial(
        run_cell, client=client, callbacks=tuple(callbacks), threads=threads, record=record
    )
    return run_pool(cells, run, out, jobs=jobs, summary=_summary)


def _summary(line: dict[str, Any]) -> str:
    score = "all points failed" if line["heldout"] is None else f"{line['heldout']:.2f}"
    return f"held-out {score}, {sum(line['seconds'].values()):.0f} s"


def read_results(*paths: str | Path) -> list[Row]:
    """Read the lines of one or more result files; the first of equal cells counts."""
    lines: dict[Cell, Row] = {}
    for path in paths:
        if Path(path).is_dir() or not Path(path).exists():
            got = "it is a folder" if Path(path).is_dir() else "there is no such file"
            raise StorageError(
                f"cannot read {path}: {got}; give a file of results that llmopt bench wrote"
            )
        for line in read_file(path):
            cell = Cell.of(line)
            if lacking := _OPTIONS - set(line["cell"]):
                raise StorageError(
                    f"a line of {path} is not a benchmark's (it lacks {', '.join(lacking)}): give "
                    "a file of results that llmopt bench wrote"
                )
            lines.setdefault(cell, line)
    return list(lines.values())
