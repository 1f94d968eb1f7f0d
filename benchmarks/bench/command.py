"""``llmopt bench``: many cells of task, method and seed, each run once."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from llmopt.benchmarks.bench.cells import (
    BenchConfigError,
    make_cell,
    read_results,
    run_bench,
    task_of,
)
from llmopt.benchmarks.bench.suites import BATCH, SUITES
from llmopt.benchmarks.engine.cell import Cell
from llmopt.benchmarks.engine.options import add_numbers, add_search_options
from llmopt.benchmarks.engine.pool import load_model
from llmopt.benchmarks.methods.table import METHODS, check_method
from llmopt.benchmarks.report.budgets import budgets
from llmopt.benchmarks.report.lines import label_of, score
from llmopt.benchmarks.report.table import Table
from llmopt.benchmarks.tasks.reactions import REACTIONS, get_reaction
from llmopt.benchmarks.tasks.table import TASKS, get_task
from llmopt.client.base import check_ready
from llmopt.client.model_facts import model_facts
from llmopt.commands.shared import add_config_argument, add_option_argument, take_options
from llmopt.errors import did_you_mean
from llmopt.trackers import add_track_argument, callbacks_of
from llmopt.util.files import read_bytes, write_bytes_atomically
from llmopt.util.text import clean


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt bench``."""
    add = parser.add_argument
    add(
        "--suite",
        choices=sorted(SUITES),
        help="a committed set of cells; of its tasks, methods and seeds --tasks, --methods and "
        "--seeds take a part, and the options of one search do not matter",
    )
    add("--out", type=Path, metavar="FILE", help="results (default: bench.jsonl, or the suite's)")
    add_search_options(parser)
    add_option_argument(parser)
    add_config_argument(parser)
    add_track_argument(parser)
    numbers = {
        "--batch": f"points of one request (default: 1, as of llmopt run; {BATCH} for a suite)",
        "--jobs": "cells run at once (default: 1)",
        "--seeds": "seeds 0 to N-1 (default: 5)",
        "--iterations": "evaluations of each method after the warm-up (default: 100)",
        "--warmup": "shared points (default: 20)",
    }
    add_numbers(parser, numbers)
    parser.set_defaults(model="smollm2", jobs=1, seeds=5, iterations=100, warmup=20)
    add(
        "--methods",
        nargs="+",
        metavar="METHOD",
        help="which to run (default: the model under the prompt that suits it, draws with no model "
        "from that prompt's grammar, cma, random); of a suite, only these. "
        f"There are {', '.join(METHODS)}",
    )
    add("--record", type=Path, metavar="DIR", help="folder that keeps the model's answers")
    add("--dry-run", action="store_true", help="list the cells that are missing, and stop")
    aliases = ", ".join(t.alias for t in TASKS)
    add("--tasks", nargs="+", metavar="TASK", help=f"{aliases}, or any Gymnasium id")


def _default_methods(model: str) -> tuple[str, ...]:
    """Return the model under the prompt that suits it, its ablations, and two baselines."""
    prompt = model_facts(load_model(model)).default_prompt
    ablations = [
        name
        for name, spec in METHODS.items()
        if spec.group == "ablation" and not spec.asks_model and spec.prompt == prompt
    ]
    return (f"llm-{prompt}", *ablations, "cma", "random")


def main(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    take_options(vars(args))
    cells = _cells(args)
    for method in dict.fromkeys(cell.method for cell in cells if not args.dry_run):
        check_method(method)
    for cell in {(c.task, c["bias"], c["box"]): c for c in cells}.values():
        if cell.task not in REACTIONS:
            task_of(cell)  # raises if there is no such task
    suite = Path(f"benchmarks/results/{args.suite}.jsonl") if args.suite else Path("bench.jsonl")
    out = args.out or suite
    done = set(map(Cell.of, read_results(out))) if Path(out).exists() else set()
    missing = [cell for cell in dict.fromkeys(cells) if cell not in done]
    if args.dry_run:
        for cell in missing:
            print(json.dumps(cell.line()["cell"]))
        return 0
    for model in dict.fromkeys(c.model for c in missing if c.model):
        check_ready(load_model(model))  # before anything is evaluated
    try:
        callbacks = callbacks_of(getattr(args, "track", ()))
        if (kept := getattr(args, "config", None)) is not None:
            write_bytes_atomically(Path(f"{out}.toml"), read_bytes(kept))
        failures = run_bench(cells, out, jobs=args.jobs, callbacks=callbacks, record=args.record)
    except KeyboardInterrupt:
        print("\nllmopt: stopped; the same command resumes", file=sys.stderr)
        return 130
    print(out, file=sys.stderr)
    wanted = set(cells)
    print(_table([line for line in read_results(out) if Cell.of(line) in wanted]))
    return 1 if failures else 0


def _table(lines: Sequence[dict[str, Any]]) -> str:
    """Return the outcome of some cells as text.

    Of reactions it is the best value after few evaluations; of policies the held-out returns, a
    block a problem and a line a method.
    """
    if any(line["task"] in REACTIONS for line in lines):
        best = {name: get_reaction(name).best for name in REACTIONS}
        return "\n".join(budgets(lines, best).text())
    scores: dict[str, dict[str, list[float]]] = {}
    for line in lines:
        title = f"{line['task']}, {line['cell']['evaluations']} evaluations"
        scores.setdefault(title, {}).setdefault(label_of(line), []).append(score(line))
    head = ("method", "held-out median", "least", "largest", "seeds")
    blocks = []
    for title, runs in scores.items():
        rows = [
            (label, *(f"{x:,.4g}" for x in (median(own), min(own), max(own))), str(len(own)))
            for label, own in sorted(runs.items(), key=lambda item: -median(item[1]))
        ]
        blocks += ["", clean(title), *Table.of(head, rows).text()]
    return "\n".join(blocks)


def _cells(args: argparse.Namespace) -> list[Cell]:
    for name in ("batch", "seeds"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise BenchConfigError(f"--{name} {value}: expected at least 1")
    if args.suite:
        cells = SUITES[args.suite](args.model, args.batch or BATCH)
        for option, name in (("tasks", "task"), ("methods", "method")):
            wanted, names = getattr(args, option), {getattr(c, name): None for c in cells}
            for one in wanted or ():
                if one not in names:
                    raise BenchConfigError(
                        f"--{option} {one}: it is not in the suite {args.suite}; "
                        f"{did_you_mean(one, names)}"
                    )
            cells = [c for c in cells if not wanted or getattr(c, name) in wanted]
        return [c for c in cells if c.seed < args.seeds]
    if not args.tasks:
        raise BenchConfigError("nothing to run: give --tasks TASK ... or --suite NAME")
    options = ("model", "warmup", "episodes", "heldout", "finalists", "batch", "bias", "box")
    given: dict[str, Any] = {name: getattr(args, name) for name in (*options, "wrappers")}
    given = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if value is not None
    }
    return [
        make_cell(
            task, method, seed, args.iterations, **{"episodes": get_task(task).episodes, **given}
        )
        for task in args.tasks
        for seed in range(args.seeds)
        for method in args.methods or _default_methods(args.model)
    ]
