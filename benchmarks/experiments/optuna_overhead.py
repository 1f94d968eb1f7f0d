"""Overhead of `LLMSampler` apart from the model's own time, beside Optuna's samplers.

Question: what does the adapter cost a study of 1,000 trials? Protocol: a scripted model
answers at once, the objective is a sum of 5 floats, the storage is in memory, Optuna's log is
off; the whole study is timed, the median of the repeats counts, and each sampler is given as
a multiple of RandomSampler and of TPESampler. Runtime: about five minutes.

    python -m llmopt.benchmarks.experiments.optuna_overhead --out overhead.json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import optuna

from llmopt.adapters.optuna import LLMSampler
from llmopt.client.base import Completion, Reply, Request
from llmopt.client.scripted import ScriptedClient

PARAMETERS = 5
TRIALS = 1_000
PROMPTS = ("props", "opro")


def scripted(request: Request) -> Reply:
    """Answer at once with a point that depends on the request's seed."""
    rng = np.random.default_rng(request.seed)
    text = ", ".join(f"p{i}: {v:.4f}" for i, v in enumerate(rng.uniform(-5, 5, PARAMETERS)))
    return Reply((Completion(text),) * request.n)


def objective(trial: optuna.Trial) -> float:
    """Return the squared distance from the origin."""
    return float(sum(trial.suggest_float(f"p{i}", -5, 5) ** 2 for i in range(PARAMETERS)))


def llm(prompt: str) -> LLMSampler:
    """Return a sampler whose model takes no time."""
    return LLMSampler(ScriptedClient(scripted), prompt=prompt, seed=0)


SAMPLERS: dict[str, Callable[[], optuna.samplers.BaseSampler]] = {
    "RandomSampler": lambda: optuna.samplers.RandomSampler(seed=0),
    "TPESampler": lambda: optuna.samplers.TPESampler(seed=0),
    **{f"LLMSampler, {prompt}": partial(llm, prompt) for prompt in PROMPTS},
}


def measure(make: Callable[[], optuna.samplers.BaseSampler], trials: int) -> float:
    """Return the seconds that one study takes."""
    study = optuna.create_study(sampler=make())
    start = time.perf_counter()
    study.optimize(objective, n_trials=trials)
    return time.perf_counter() - start


def main(argv: Sequence[str] | None = None) -> None:
    """Time every sampler, print the ratios, and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args(argv)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    times: dict[str, list[float]] = {name: [] for name in SAMPLERS}
    for _ in range(args.repeats):
        # By turns, so that a busy moment of the machine does not fall on one sampler alone.
        for name, make in SAMPLERS.items():
            times[name].append(measure(make, args.trials))
    medians = {name: statistics.median(t) for name, t in times.items()}
    rows = [
        {
            "sampler": name,
            "seconds": [round(t, 3) for t in times[name]],
            "times_random": round(medians[name] / medians["RandomSampler"], 2),
            "times_tpe": round(medians[name] / medians["TPESampler"], 2),
        }
        for name in SAMPLERS
    ]
    for row in rows:
        print(
            f"{row['sampler']:20} {medians[str(row['sampler'])]:7.2f} s, "
            f"{row['times_random']:6} x RandomSampler, {row['times_tpe']:5} x TPESampler"
        )
    if args.out:
        record = {
            "python": platform.python_version(),
            "optuna": version("optuna"),
            "trials": args.trials,
            "parameters": PARAMETERS,
            "rows": rows,
        }
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
