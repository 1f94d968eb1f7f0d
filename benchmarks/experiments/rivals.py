"""Rivals that bite: the chat model's first design and then numbers, and controllers tuned by hand.

Question: how much of a chat model's lead is its first point, and what does an engineer's controller
reach? Protocol: the searches are those of ``words.jsonl`` (`llmopt.benchmarks.experiments.words`)
with words and feedback: same box, initial states, held-out states and 30 evaluations. The
recording of a search plays its five random points and the first point that the model designed.
The other 24 evaluations are the rival's:

- ``design-cma``: CMA-ES from the best of these six points, with its usual step, a sixth of a range;
- ``design-near``: the same with a step of a fiftieth;
- ``design-tpe``: Optuna's TPE, given all six (multivariate, five start-up trials);
- ``controller``: no search: `llmopt.benchmarks.experiments.controllers`, judged on the same fresh
  starts.

The line keeps whether the six returns are those of the committed search (``same_start``).

    python -m llmopt.benchmarks.experiments.rivals

Runtime: about a quarter of an hour. No model is asked: the recordings answer.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmopt.benchmarks.engine.cell import Cell, Row, read_lines
from llmopt.benchmarks.engine.search import Proposed, Result, search
from llmopt.benchmarks.experiments import controllers, words
from llmopt.benchmarks.experiments.command import Experiment, agree, load
from llmopt.benchmarks.methods.baselines import CMA
from llmopt.benchmarks.methods.libraries import Optuna
from llmopt.benchmarks.methods.protocol import Method, Problem
from llmopt.policies import EnvMaker
from llmopt.policies.episode_seeds import held_out_seeds

RESULTS = Path(__file__).parents[1] / "results" / "rivals.jsonl"
ARMS = ("design-cma", "design-near", "design-tpe", "controller")
DESIGNED = words.WARMUP + 1


class Near(CMA):
    """CMA-ES whose first step is a fiftieth of a range."""

    def _begin(self, sigma: float | None = None, popsize: int | None = None) -> Any:
        return super()._begin(0.02 * (self._high - self._low) if sigma is None else sigma, popsize)


def _method(arm: str, problem: Problem, seed: int) -> Method:
    start = np.random.SeedSequence([seed, 3])
    if arm == "design-tpe":
        return Optuna("TPE, tuned", problem, start)
    kind = Near if arm == "design-near" else CMA
    return kind(problem.low, problem.high, problem.n, start, problem.start)


def run_design(cell: Cell) -> Row:
    """Let a method continue from the chat model's first design, and return what it found."""
    client = load(f"replay:{cell.task}-words-{cell.seed}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the wording of the prompt has changed since
        with words.make_search(cell.task, "words", client, cell.seed) as policies:
            policies.run(DESIGNED)
            space = policies.optimizer.space
            trials = policies.optimizer.trials
            found: list[tuple[Any, Any]] = [(t.reward, t.params) for t in trials]
            points = [tuple(map(float, space.encode(t.values))) for t in trials]
            known = tuple((p, reward) for p, (reward, _) in zip(points, found, strict=True))
            problem = Problem(0.0, 1.0, len(space), cell.evaluations - DESIGNED, known)

            def evaluate(asked: Proposed) -> Result:
                point = np.clip(asked.params, 0.0, 1.0)
                params = space.unflatten(space.decode(point))
                outcome, _ = policies.measure(params)
                found.append((outcome.mean, params))
                return Result(outcome.mean, "failed")

            search(_method(cell.method, problem, cell.seed), problem.evaluations, evaluate)
            best = max((f for f in found if f[0] is not None), key=lambda f: float(f[0]))
            held = policies.evaluate(words.HELD_OUT, params=best[1])
    curve = [value for value, _ in found]
    return {
        "curve": curve,
        "best": best[0],
        "params": best[1],
        "held_out": held.mean,
        "held_out_stderr": held.standard_error,
        "same_start": _same_start(cell, curve[:DESIGNED]),
    }


def _same_start(cell: Cell, curve: Sequence[float | None]) -> bool:
    key = (cell.task, "words", cell.seed)
    (line,) = (x for x in read_lines(words.RESULTS) if (x["task"], x["method"], x["seed"]) == key)
    return agree(line["curve"][:DESIGNED], curve)


def run_controller(cell: Cell) -> Row:
    """Score the controller of a task on the held-out initial states of a seed."""
    make = EnvMaker(words.TASKS[cell.task].env)
    gains, controller = controllers.tuned(cell.task)
    found = controllers.returns(make, controller, held_out_seeds(cell.seed, words.HELD_OUT))
    error = float(np.std(found, ddof=1) / np.sqrt(len(found)))
    mean = float(np.mean(found))
    return {"curve": [mean], "gains": gains, "held_out": mean, "held_out_stderr": error}


def run_cell(cell: Cell, source: str = "", record: Path | None = None) -> Row:
    """Run one search and return its line."""
    began = time.monotonic()
    found = run_controller(cell) if cell.method == "controller" else run_design(cell)
    return cell.line(**found, seconds=round(time.monotonic() - began, 1))


def searched(wanted: Sequence[Cell], lines: Sequence[Row]) -> list[Cell]:
    """Return the cells whose search with words is committed, and the existing controllers."""
    done = {
        (x["task"], x["seed"]): x["evaluations"]
        for x in read_lines(words.RESULTS)
        if x["method"] == "words" and words.is_present(x) and x["task"] in words.TASKS
    }
    return [
        Cell.make(cell.task, cell.method, cell.seed, done[cell.task, cell.seed])
        for cell in wanted
        if (cell.task, cell.seed) in done
        and (cell.method != "controller" or cell.task in controllers.SYSTEMS)
    ]


EXPERIMENT = Experiment(
    list(words.TASKS),
    ARMS,
    RESULTS,
    run_cell,
    lambda method: False,
    "curve",
    {"seeds": list(range(words.PRESENT, 11)), "evaluations": words.EVALUATIONS},
    missing=searched,
    summary=lambda line: f"held-out {line['held_out']:.5g}",
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main(__doc__))
