"""Eight workers on a function of one second: wall time and points of one request.

Question: does a parallel search keep its workers busy while a model is asked, and how many requests
does it send, beside Optuna's TPE with ``n_jobs=8``? Protocol: a shifted sphere of four parameters
that sleeps for one second; 64 evaluations, 8 workers (threads), seeds 0 to 4. A chat model is
replaced by a scripted one that waits as long as the row says and answers with random points, so
that only its times and counts mean something. At best, 64 evaluations take eight seconds.

    python -m llmopt.benchmarks.experiments.parallel

It writes ``benchmarks/results/parallel.jsonl`` (a line for each search) and ``parallel.md`` (the
medians over the seeds). Runtime: twelve minutes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import optuna

import llmopt
from llmopt import Completion, Float, Reply, Request, ScriptedClient

RESULTS = Path(__file__).parents[1] / "results"
SECONDS, EVALUATIONS, WORKERS, SEEDS = 1.0, 64, 8, range(5)
NAMES = ("a", "b", "c", "d")
SPACE = {name: Float(-5.0, 5.0) for name in NAMES}
CENTRE = (1.3, -0.4, 2.1, -2.7)

Row = dict[str, Any]


def sphere(point: dict[str, float]) -> float:
    time.sleep(SECONDS)
    return sum((point[n] - c) ** 2 for n, c in zip(NAMES, CENTRE, strict=True))


def answer(seconds: float, request: Request) -> Reply:
    """Wait like a chat model, then answer with random points."""
    time.sleep(seconds)
    points = np.random.default_rng(request.seed).uniform(-5, 5, (request.n, len(NAMES)))
    texts = [json.dumps(dict(zip(NAMES, p.round(4).tolist(), strict=True))) for p in points]
    return Reply(tuple(map(Completion, texts)))


def of_llmopt(make: Callable[[], Any], seed: int, **options: Any) -> Row:
    options = {"n_jobs": WORKERS, **options}
    result = llmopt.minimize(sphere, SPACE, EVALUATIONS, make(), seed=seed, **options)
    points = sum(t.source == "llm" for t in result.trials)
    requests = result.usage.requests
    return {"best": result.best.reward, "requests": requests, "points_asked": points}


def of_optuna(seed: int) -> Row:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))

    def objective(trial: optuna.Trial) -> float:
        return sphere({name: trial.suggest_float(name, -5, 5) for name in NAMES})

    study.optimize(objective, n_trials=EVALUATIONS, n_jobs=WORKERS)
    return {"best": study.best_value, "requests": 0, "points_asked": 0}


def scripted(seconds: float) -> Callable[[], ScriptedClient]:
    return lambda: ScriptedClient(partial(answer, seconds))


METHODS: dict[str, Callable[[int], Row]] = {
    "Optuna TPE, n_jobs=8": of_optuna,
    "network, n_jobs=8": partial(of_llmopt, lambda: "network"),
    "network, one worker": partial(of_llmopt, lambda: "network", n_jobs=1),
    "a model that answers in 2 s, n_jobs=8": partial(of_llmopt, scripted(2.0), prompt="props"),
    "a model that answers in 2 s, one worker": partial(
        of_llmopt, scripted(2.0), prompt="props", n_jobs=1
    ),
}
ONCE = ("a model that answers in 2 s, one worker",)  # three minutes a seed


def main() -> None:
    """Run every method, and write the searches and their medians."""
    rows = []
    for method, run in METHODS.items():
        for seed in SEEDS[:1] if method in ONCE else SEEDS:
            started = time.perf_counter()
            found = run(seed)
            wall = round(time.perf_counter() - started, 2)
            rows.append({"method": method, "seed": seed, "wall_s": wall, **found})
            print(json.dumps(rows[-1]), flush=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (RESULTS / "parallel.jsonl").write_text(text, encoding="utf-8")
    (RESULTS / "parallel.md").write_text(table(rows), encoding="utf-8")


def table(rows: list[Row]) -> str:
    """Return the medians over the seeds as a table."""
    head = f"{EVALUATIONS} evaluations of {SECONDS:g} s, with n_jobs=8 by {WORKERS} workers"
    lines = [f"{head}; medians of the searches.", ""]
    lines += [
        "| method | searches | wall time | requests | points of a request | best value |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        wall, requests, points = (
            median(r[k] for r in own) for k in ("wall_s", "requests", "points_asked")
        )
        share = f"{points / requests:.1f}" if requests else "–"
        best = f"{median(r['best'] for r in own):.2g}"
        lines.append(
            f"| {method} | {len(own)} | {wall:.1f} s | {requests:.0f} | {share} | {best} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
