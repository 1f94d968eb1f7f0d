"""Hyper-parameters in Optuna studies whose trials are trained for real.

Question: who has the better setting after 20 and 40 trials: a chat model that reads the task and
the curves, numeric samplers, or the small network? Protocol: the tasks of
`llmopt.benchmarks.tasks.studies`, six of them on data made for this. The parameters are
conditional, trials fail, some report curves. Validation rows choose the setting, test rows judge
it. Each sampler is used as its users use it, with its own start-up trials, on the same objective.

The arms of a chat model are ``words`` (task, curves, notes and failures) and ``plain`` (words that
give no solution away; six tasks). The committed studies of ``words`` had version 7 of the prompt,
those of ``plain`` version 9. results/README.md names the commits of the file's other arms.

    python -m llmopt.benchmarks.experiments.studies --jobs 2 --seeds 0 1 2 3 4 \
        --methods network-tpe tpe tpe-five gp cma random
    python -m llmopt.benchmarks.experiments.studies --model folder:DIR --record DIR \
        --name "a frontier chat model, relayed" --tasks bearing --evaluations 20

Runtime: about an hour of two cores for the methods without a chat model.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna

from llmopt._version import __version__
from llmopt.adapters.optuna import LLMSampler
from llmopt.benchmarks.engine.cell import Cell, Row
from llmopt.benchmarks.experiments.command import Experiment, answering
from llmopt.benchmarks.experiments.regret import TRIALS, judged_after
from llmopt.benchmarks.extras import require_packages
from llmopt.benchmarks.methods.libraries import quietly
from llmopt.benchmarks.tasks.studies import STUDIES, StudyTask
from llmopt.errors import LLMOptError

RESULTS = Path(__file__).parents[1] / "results" / "studies.jsonl"
CHAT = ("words", "plain")
METHODS = (*CHAT, "network-tpe", "tpe", "tpe-five", "gp", "cma", "random")
Objective = Callable[[optuna.Trial], float]


def check(cells: Sequence[Cell]) -> None:
    """Raise if a package is missing that some studies need."""
    methods = {cell.method for cell in cells}
    needs = ["sklearn", *(n for cell in cells for n in STUDIES[cell.task].needs)]
    for cell in cells:
        if cell.method == "plain" and not STUDIES[cell.task].plain:
            plain = ", ".join(name for name, task in STUDIES.items() if task.plain)
            raise LLMOptError(f"task {cell.task!r} has no plain words; tasks with them: {plain}")
    needs += ["torch", "scipy"] if "gp" in methods else []
    needs += ["cmaes"] if "cma" in methods else []
    require_packages("the experiment studies", list(dict.fromkeys(needs)))


def make_sampler(cell: Cell, client: Any, task: StudyTask) -> optuna.samplers.BaseSampler:
    """Return the sampler of a study, as its users would make it."""
    seed, samplers = cell.seed, optuna.samplers
    if cell.method == "random":
        return samplers.RandomSampler(seed=seed)
    if cell.method in ("tpe", "tpe-five"):
        count = 10 if cell.method == "tpe" else 5  # ten are the default
        return samplers.TPESampler(n_startup_trials=count, multivariate=True, group=True, seed=seed)
    if cell.method == "gp":
        return samplers.GPSampler(seed=seed)
    if cell.method == "cma":
        return samplers.CmaEsSampler(seed=seed)
    options: dict[str, Any] = {"seed": seed, "total": cell.evaluations, "max_fallbacks": None}
    if cell.method in CHAT:
        options["description"] = task.plain if cell.method == "plain" else task.description
    if cell.method == "network-tpe":
        client = "network"
        options["partner"] = samplers.TPESampler(multivariate=True, group=True, seed=seed)
    return LLMSampler(client, **options)


def run_cell(cell: Cell, source: str = "", record: Path | None = None) -> Row:
    """Run one study and return its line.

    Args:
        cell: The study.
        source: The model string, if the results call the model by another name.
        record: Folder for the model's requests and answers.
    """
    chats = cell.method in CHAT
    with answering(cell, source, record) if chats else contextlib.nullcontext() as client:
        return run_study(cell, client)


def run_study(cell: Cell, client: Any) -> Row:
    """Run one study with a client, if its method asks one, and return its line."""
    task = STUDIES[cell.task]
    values: list[float | None] = []
    tests: list[float | None] = []

    def objective(trial: optuna.Trial) -> float:
        values.append(None)
        tests.append(None)
        judged = task.train(trial, cell.seed)
        if not math.isfinite(judged.valid):
            raise FloatingPointError(f"the validation loss is {judged.valid}")
        values[-1], tests[-1] = (float(f"{x:.6g}") for x in (judged.valid, judged.test))
        if cell.method in CHAT and judged.said:
            trial.set_user_attr("feedback", judged.said)
        return judged.valid

    began = time.perf_counter()
    with quietly():
        sampler = make_sampler(cell, client, task)
        study = optuna.create_study(sampler=sampler)
        study.optimize(objective, n_trials=cell.evaluations, catch=(Exception,))
    line = cell.line(
        values=values,
        tests=tests,
        seconds=round(time.perf_counter() - began, 2),
        llmopt=__version__,
    )
    if isinstance(sampler, LLMSampler):
        usage = sampler.usage
        line |= {
            "requests": usage.requests,
            "tokens": [usage.prompt_tokens, usage.completion_tokens],
            "proposals": usage.proposals,
            "rejected": usage.rejected,
            "stopped": len(values) < cell.evaluations,
        }
    return line


def _summary(line: Row) -> str:
    value = judged_after(line, TRIALS)
    return "nothing" if value is None else f"{value:.4g}"


EXPERIMENT = Experiment(
    list(STUDIES),
    METHODS,
    RESULTS,
    run_cell,
    CHAT.__contains__,
    "values",
    {"methods": ["words"], "evaluations": TRIALS},
    check=check,
    summary=_summary,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main(__doc__))
