"""Reference values and baselines of the systems of `llmopt.benchmarks.experiments.unseen_more`.

A reference is the best of a CMA-ES with BIPOP restarts in the search box of `design`, which
optimizes the judged value itself (of a policy the mean return on 50 other initial states, not the
100 held-out ones). It is the best known value and no proven optimum. The baselines search with the
same box and evaluations as a model.

    python -m llmopt.benchmarks.experiments.unseen_values --reference alder --evaluations 5000
    python -m llmopt.benchmarks.experiments.unseen_values --baselines alder fir birch cedar elder

The second command writes ``unseen_more.md`` from seeds 0 to 4. Runtime: minutes for each task.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from llmopt.benchmarks.engine.search import Asked, Outcome, search
from llmopt.benchmarks.experiments.design import HELD_OUT, POLICIES
from llmopt.benchmarks.experiments.unseen_more import PROBLEMS, REFERENCES, Batched
from llmopt.benchmarks.methods.protocol import Problem, method_seed
from llmopt.benchmarks.methods.table import METHODS, make_method
from llmopt.benchmarks.report.table import Table
from llmopt.policies import PolicySearch
from llmopt.policies.episode_seeds import held_out_seeds, selection_seeds
from llmopt.policies.parameters import BOX
from llmopt.space import Space

RESULTS = Path(__file__).parents[1] / "results" / "unseen_more.md"
TASKS = ("alder", "fir", *PROBLEMS)
BASELINES = ("random", "optuna-tpe", "cma")
COUNTS, SEED, STARTS = (30, 100), 20, 10

Objective = Callable[[np.ndarray], tuple[float, Any]]
"""Returns the reward of a point of the unit cube, and the point in its own form."""


def plant(task: str) -> Batched:
    """Return the environment of a policy's task."""
    env: Any = POLICIES[task].env
    return env()  # type: ignore[no-any-return]


def policy_return(task: str, flat: Sequence[float], seeds: Sequence[int]) -> float:
    """Return a policy's mean return over the initial states of seeds."""
    return float(plant(task).returns(np.reshape(flat, (-1, 2)), seeds).mean())


def judged(task: str, point: Any, seed: int = SEED) -> float:
    """Return the value by which `design` judges a point."""
    if task in PROBLEMS:
        return PROBLEMS[task].judge(point)
    return policy_return(task, point, held_out_seeds(seed, HELD_OUT))


def objective(task: str, seed: int, *, reference: bool = False) -> tuple[Space, Objective]:
    """Return a task's space, and its reward as a search sees it (or a reference's)."""
    if task in PROBLEMS:
        problem, space = PROBLEMS[task], Space(PROBLEMS[task].space)

        def reward(cube: np.ndarray) -> tuple[float, Any]:
            point = space.unflatten(space.decode(cube))
            value = problem.judge(point) if reference else problem.objective(point).value
            return -float(value), point

        return space, reward
    with PolicySearch(POLICIES[task].env, "smollm2", seed=seed, box=BOX, words="none") as policies:
        weights = policies.optimizer.space
    seeds = selection_seeds(seed, 50 if reference else STARTS)

    def mean(cube: np.ndarray) -> tuple[float, Any]:
        flat = list(map(float, weights.decode(cube)))
        return policy_return(task, flat, seeds), flat

    return weights, mean


def trace(
    task: str, name: str, seed: int, evaluations: int, *, reference: bool = False
) -> list[tuple[float, Any]]:
    """Search with a method and return the reward and the point of each evaluation."""
    space, reward = objective(task, seed, reference=reference)
    found: list[tuple[float, Any]] = []

    def evaluate(asked: Asked) -> Outcome:
        found.append(reward(np.clip(asked.params, 0.0, 1.0)))
        return Outcome(found[-1][0], "failed")

    problem = Problem(0.0, 1.0, len(space), evaluations)
    search(make_method(name, problem, method_seed(seed, name)), evaluations, evaluate)
    return found


def best(found: Sequence[tuple[float, Any]]) -> Any:
    """Return the point with the highest reward."""
    return max(found, key=lambda pair: pair[0])[1]


def make_page(tasks: Sequence[str], seeds: Sequence[int]) -> str:
    """Run the baselines and return their table."""
    rows = []
    for task in tasks:
        row = [task, f"{REFERENCES[task][1]:.5g}"]
        for name in BASELINES:
            found = [(trace(task, name, seed, max(COUNTS)), seed) for seed in seeds]
            row += [
                f"{median(judged(task, best(trials[:count]), seed) for trials, seed in found):.5g}"
                for count in COUNTS
            ]
        rows.append(row)
        print(" | ".join(row), flush=True)
    head = ["task", "reference"]
    head += [f"{METHODS[name].label}, {count}" for name in BASELINES for count in COUNTS]
    return "\n".join(
        [
            "# Baselines of the systems of `unseen_more`",
            "",
            f"Judged value of the best point after {COUNTS[0]} and {COUNTS[1]} evaluations, median "
            f"of {len(seeds)} seeds: mean return on {HELD_OUT} held-out initial states (`alder`, "
            "`fir`, larger is better), the value to be minimized (`birch`, `cedar`), or the RMS "
            "error on held-out rows (`elder`). The reference is the best known value: CMA-ES with "
            "BIPOP restarts on the judged value (policies: on 50 other initial states).",
            "",
            "```",
            "python -m llmopt.benchmarks.experiments.unseen_values --baselines",
            "```",
            "",
            *Table.of(head, rows).markdown(),
            "",
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Print a reference point, or write the table of the baselines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--reference", nargs="+", choices=TASKS, default=[])
    parser.add_argument("--baselines", nargs="*", choices=TASKS)
    parser.add_argument("--evaluations", type=int, default=5000, help="of a reference's search")
    parser.add_argument("--seed", type=int, default=SEED, help="of a reference's search")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    for task in args.reference:
        point = best(trace(task, "cma-bipop", args.seed, args.evaluations, reference=True))
        print(repr(task), (point, judged(task, point)), flush=True)
    if args.baselines is not None:
        page = make_page(args.baselines or TASKS, args.seeds)
        args.out.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
