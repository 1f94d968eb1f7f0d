"""The hybrid under failures: does a model whose points fail drag CMA-ES down?

Question: half of the model's points fail, at random; is CMA-ES beside such a model worse than
CMA-ES alone? Protocol: the 24 functions of BBOB on [-5, 5], two instances in 5 and one in 10
dimensions, the warm-up points of `bbob`, then 200 evaluations. A failed point counts as one and is
told as a failure. The small network stands in the model's place (``--model smollm2`` asks the
model), beside CMA-ES (``partner="cma"``), four points a request.

    python -m llmopt.benchmarks.experiments.failures

Each search is a line of ``failures.jsonl`` and is not run again; the table ``failures.md`` is made
from that file alone (``--table-only``). Runtime: some minutes with the network.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmopt._version import __version__
from llmopt.benchmarks.experiments.bbob import (
    BATCH,
    FUNCTIONS,
    improvements,
    instance_of,
    model_client,
)
from llmopt.benchmarks.experiments.bbob_page import WARMUP, precision
from llmopt.benchmarks.extras import require_packages
from llmopt.benchmarks.methods.grammar_clients import NetworkClient
from llmopt.benchmarks.methods.model import ModelMethod
from llmopt.benchmarks.methods.protocol import Method
from llmopt.benchmarks.methods.table import make_method
from llmopt.benchmarks.pool import cell_reader, run_pool
from llmopt.benchmarks.report.stats import format_p, holm, paired_test
from llmopt.search.eventlog import EventLog, read_events

RESULTS = Path(__file__).parents[1] / "results" / "failures.jsonl"
BUDGET, CHECKPOINTS = 200, (100, 200)
INSTANCES = {5: (1, 2), 10: (1,)}
HALF = "hybrid, half of the model's points fail"
ARMS = (HALF, "hybrid", "CMA-ES")


@dataclass(frozen=True)
class FailureCell:
    """One search."""

    arm: str
    function: int
    instance: int
    dimension: int
    model: str = ""


def run_cell(cell: FailureCell) -> dict[str, Any]:
    """Run one search and return its line."""
    instance, problem = instance_of(cell.function, cell.instance, cell.dimension, BUDGET)
    key = [cell.dimension, cell.function, cell.instance]
    seed = np.random.SeedSequence([*key, zlib.crc32(cell.arm.encode())])
    chance = np.random.default_rng([*key, 1])
    precisions = [-reward for reward in problem.rewards]
    start, failed = time.perf_counter(), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        method: Method
        if cell.arm == "CMA-ES":
            method = make_method("cma", problem, seed)
        else:
            client = model_client(cell.model) if cell.model else NetworkClient()
            method = ModelMethod(problem, client, "columns", seed, BATCH, "cma")
        for _ in range(BUDGET):
            point = method.ask()
            asked = isinstance(method, ModelMethod) and method.last and method.last.source == "llm"
            if cell.arm == HALF and asked and chance.random() < 0.5:
                method.tell_failure(point, "failed at random")
                precisions.append(math.inf)
                failed += 1
            else:
                precisions.append(instance(point))
                method.tell(point, -precisions[-1])
    return {
        **asdict(cell),
        "steps": improvements(precisions),
        "failed": failed,
        "seconds": round(time.perf_counter() - start, 1),
        "llmopt": __version__,
    }


def make_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the Markdown page: each arm beside CMA-ES alone."""
    text = [
        "# The hybrid under failures",
        "",
        f"BBOB, {WARMUP} + {BUDGET} evaluations. Better : worse than CMA-ES alone, and p "
        "(two-sided Wilcoxon test of the logarithms of the distances to the optimum, Holm's "
        "correction for the table). Made by `python -m llmopt.benchmarks.experiments.failures`.",
        "",
    ]
    found: dict[tuple[Any, ...], dict[tuple[int, int], Mapping[str, Any]]] = {}
    for line in sorted(lines, key=lambda r: (ARMS.index(r["arm"]), r["model"], r["dimension"])):
        own = found.setdefault((line["arm"], line["model"], line["dimension"]), {})
        own[line["function"], line["instance"]] = line
    rows, tests = [], []
    for (arm, model, d), own in found.items():
        alone = found.get(("CMA-ES", "", d), {})
        for n in CHECKPOINTS if arm != "CMA-ES" else ():
            gains = [
                math.log10(precision(alone[key]["steps"], WARMUP + n))
                - math.log10(precision(own[key]["steps"], WARMUP + n))
                for key in own
                if key in alone
            ]
            if not gains:
                continue
            failed = np.mean([r["failed"] for r in own.values()])
            won = f"{sum(g > 0 for g in gains)} : {sum(g < 0 for g in gains)}"
            row = [arm, model or "small network", f"{d}-D", str(len(gains)), str(n)]
            rows.append([*row, f"{failed:.0f}", won])
            tests.append(paired_test(gains))
    head = ["arm", "model", "BBOB", "searches", "evaluations", f"failed of {BUDGET}"]
    head += ["better : worse than CMA-ES", "p"]
    text += [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    text += [
        f"| {' | '.join([*row, format_p(p)])} |" for row, p in zip(rows, holm(tests), strict=True)
    ]
    return "\n".join([*text, ""])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="", help="model string; the small network without")
    parser.add_argument("--jobs", type=int, default=1, help="searches run at once")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    args = parser.parse_args(argv)
    if not args.table_only:
        require_packages("the experiment failures", ("ioh", "cma"))
        cells = [
            FailureCell(arm, f, i, d, "" if arm == "CMA-ES" else args.model)
            for d, instances in INSTANCES.items()
            for i, f, arm in itertools.product(instances, FUNCTIONS, ARMS)
        ]
        run_pool(cells, run_cell, EventLog(args.results), cell_reader(FailureCell), jobs=args.jobs)
    page = make_table(list(read_events(args.results)))
    args.results.with_suffix(".md").write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
