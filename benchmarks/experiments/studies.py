"""Hyper-parameters in Optuna studies whose trials are trained for real.

Question: who has the better setting after 10, 20 and 40 trials: a chat model that reads the task
and the curves, numeric samplers, or the small network? Protocol: the tasks of
`llmopt.benchmarks.tasks.studies`, six of them on data made here. The parameters are
conditional, trials fail, some report curves. Validation rows choose the setting, test rows judge
it. Each sampler is used as its users use it, with its own start-up. All see the same objective.

``design-tpe`` begins with the trials of a recorded study until the model had to be asked a second
time; from there on TPE continues from them.

The arms of a chat model: ``words`` (the task in words, curves, notes, failures; version 7 of the
prompt), ``compute`` (the same with version 9, where the model may compute), ``plain`` (also with
version 9, but without a period, a band or other facts that give the solution away; six tasks),
``names`` (names, ranges and values), ``anonymous`` (numbered parameters from 0 to 1, lettered
choices). ``llambo`` asks the same model through LLAMBO, the sampler of OptunaHub, with the words of
``words`` (`llmopt.benchmarks.experiments.llambo`).

    python -m llmopt.benchmarks.experiments.studies --jobs 2 --seeds 0 1 2 3 4 \
        --methods embedded network network-tpe tpe gp cma random default
    python -m llmopt.benchmarks.experiments.studies --model folder:DIR --record DIR \
        --name "a frontier chat model, relayed" --tasks bearing --evaluations 20

The second command is for single studies of a chat model. Runtime: about an hour of two cores for
the methods without one.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import optuna

from llmopt._version import __version__
from llmopt.adapters.optuna import LLMSampler
from llmopt.benchmarks.engine.cell import Cell, Row
from llmopt.benchmarks.engine.pool import load_model
from llmopt.benchmarks.experiments import llambo
from llmopt.benchmarks.experiments.command import Experiment, answering, load
from llmopt.benchmarks.extras import require_packages
from llmopt.benchmarks.methods.libraries import quietly
from llmopt.benchmarks.report.stats import (
    bootstrap_interval,
    format_p,
    fought,
    mean,
    ranks,
)
from llmopt.benchmarks.report.table import Table
from llmopt.benchmarks.tasks.studies import STUDIES, StudyTask
from llmopt.errors import LLMOptError
from llmopt.history import Usage

RESULTS = Path(__file__).parents[1] / "results" / "studies.jsonl"
TRIALS, CHECKPOINTS = 40, (10, 20, 40)
CHAT = ("words", "compute", "plain", "names", "anonymous", "llambo")
WORDED = CHAT[:3]
LABELS = {
    "words": "chat model, words and curves",
    "compute": "chat model, words, may compute",
    "plain": "chat model, words that give nothing away",
    "names": "chat model, names",
    "anonymous": "chat model, anonymous",
    "llambo": "LLAMBO, with the same chat model",
    "embedded": "embedded model",
    "network": "network",
    "network-tpe": "network, TPE beside it",
    "tpe": "TPE",
    "tpe-five": "TPE, five start-up trials",
    "design-tpe": "chat model's first answer, then TPE",
    "gp": "GP",
    "cma": "CMA-ES",
    "random": "random search",
    "default": "textbook's setting",
}
METHODS = tuple(LABELS)
LATER = ("tpe-five", "design-tpe", "compute", "plain", "llambo")
"""Rivals added after the others: they do not say which regret is 0."""


def check(cells: Sequence[Cell]) -> None:
    """Raise where a package is missing that some studies need to run."""
    methods = {cell.method for cell in cells}
    needs = ["sklearn", *(n for cell in cells for n in STUDIES[cell.task].needs)]
    for cell in cells:
        if cell.method == "plain" and not STUDIES[cell.task].plain:
            known = ", ".join(name for name, task in STUDIES.items() if task.plain)
            raise LLMOptError(f"task {cell.task!r} has no plain words; those that do: {known}")
    needs += ["torch", "scipy"] if "gp" in methods else []
    needs += ["cmaes"] if "cma" in methods else []
    needs += llambo.NEEDS if "llambo" in methods else []
    require_packages("the experiment studies", list(dict.fromkeys(needs)))


class Hidden:
    """A trial whose parameters are numbered, and run from 0 to 1 or over letters."""

    def __init__(self, trial: optuna.Trial, names: dict[str, str]) -> None:
        self._trial, self._names = trial, names

    def _alias(self, name: str) -> str:
        return self._names.setdefault(name, f"p{len(self._names) + 1}")

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        """Suggest a number between the bounds."""
        share = self._trial.suggest_float(self._alias(name), 0.0, 1.0)
        value = low * (high / low) ** share if log else low + (high - low) * share
        return min(max(value, low), high)

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        """Suggest a whole number between the bounds."""
        return round(self.suggest_float(name, low, high, log=log))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Suggest one of the choices."""
        letters = [chr(ord("A") + i) for i in range(len(choices))]
        letter = self._trial.suggest_categorical(self._alias(name), letters)
        return choices[letters.index(letter)]


class Clock:
    """A trial that measures how long its sampler takes, and may keep its curve to itself."""

    def __init__(self, trial: Any, told: bool) -> None:
        self._trial, self._told, self.seconds = trial, told, 0.0

    def __getattr__(self, name: str) -> Any:
        if name == "report" and not self._told:
            return lambda *_: None
        method = getattr(self._trial, name)

        def timed(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*args, **options)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


def make_sampler(cell: Cell, client: Any, task: StudyTask) -> optuna.samplers.BaseSampler:
    """Return the sampler of a study, as its users would make it."""
    seed, samplers = cell.seed, optuna.samplers
    if cell.method in ("random", "default"):
        return samplers.RandomSampler(seed=seed)
    if cell.method in ("tpe", "tpe-five", "design-tpe"):
        count = 10 if cell.method == "tpe" else 5  # ten are the default
        return samplers.TPESampler(n_startup_trials=count, multivariate=True, group=True, seed=seed)
    if cell.method == "gp":
        return samplers.GPSampler(seed=seed)
    if cell.method == "cma":
        return samplers.CmaEsSampler(seed=seed)
    if cell.method == "llambo":
        sampler: optuna.samplers.BaseSampler = llambo.llambo_sampler(client, task.description, seed)
        return sampler
    options: dict[str, Any] = {"seed": seed, "total": cell.evaluations}
    if cell.method in WORDED:
        options["description"] = task.plain if cell.method == "plain" else task.description
    if cell.method == "network-tpe":
        options["partner"] = samplers.TPESampler(multivariate=True, group=True, seed=seed)
    return LLMSampler(client, **options)


def run_cell(cell: Cell, source: str = "", record: Path | None = None) -> Row:
    """Run one study and return its line.

    Args:
        cell: Which study.
        source: The model string, where it is not what the results call the model.
        record: Folder for the model's requests and answers.
    """
    with contextlib.ExitStack() as opened:
        client: Any = {"network": "network", "network-tpe": "network"}.get(cell.method)
        if cell.method == "embedded":
            client = load_model("smollm2", 1)
        elif cell.method in CHAT:
            client = opened.enter_context(answering(cell, source, record))
        return _run(cell, client)


def _run(cell: Cell, client: Any) -> Row:
    task = STUDIES[cell.task]
    names: dict[str, str] = {}
    values: list[float | None] = []
    tests: list[float | None] = []
    training = 0.0

    def objective(trial: optuna.Trial) -> float:
        nonlocal training
        seen: Any = Hidden(trial, names) if cell.method == "anonymous" else trial
        asked = Clock(seen, cell.method not in ("names", "anonymous"))
        began = time.perf_counter()
        values.append(None)
        tests.append(None)
        try:
            judged = task.train(asked, cell.seed)
        finally:
            training += time.perf_counter() - began - asked.seconds
        if not math.isfinite(judged.valid):
            raise FloatingPointError(f"the validation loss is {judged.valid}")
        values[-1], tests[-1] = short(judged.valid), short(judged.test)
        if cell.method in WORDED and judged.said:
            trial.set_user_attr("feedback", judged.said)
        return judged.valid

    began = time.perf_counter()
    lone = cell.method == "default"
    count = 1 if lone else cell.evaluations
    begun: Sequence[optuna.trial.FrozenTrial] = ()
    if cell.method == "design-tpe":
        begun = designed(cell, task, objective)
        del values[len(begun) :], tests[len(begun) :]
    spent = search(
        lambda: make_sampler(cell, client, task),
        objective,
        count - len(begun),
        task.default if lone else None,
        catch=(Exception,),
        begun=begun,
    )
    if spent:
        spent["stopped"] = len(values) < count
    return cell.line(
        values=values,
        tests=tests,
        training_seconds=round(training, 2),
        sampler_seconds=round(time.perf_counter() - began - training, 2),
        llmopt=__version__,
        **spent,
    )


def designed(
    cell: Cell, task: StudyTask, objective: Callable[[optuna.Trial], float]
) -> Sequence[optuna.trial.FrozenTrial]:
    """Return the trials of a recorded study that its model's first answer gave, and those before.

    The trial for which the model was asked again is skipped.
    """
    client = load(f"replay:study-{cell.task}-words-{cell.seed}")
    with quietly():
        sampler = LLMSampler(client, seed=cell.seed, total=TRIALS, description=task.description)
        study = optuna.create_study(sampler=sampler)
        while sampler.usage.requests < 2:
            study.optimize(objective, n_trials=1, catch=(Exception,))
    return study.trials[:-1]


def search(
    make: Callable[[], optuna.samplers.BaseSampler],
    objective: Callable[[optuna.Trial], float],
    count: int,
    first: Mapping[str, Any] | None = None,
    direction: Literal["minimize", "maximize"] = "minimize",
    catch: tuple[type[Exception], ...] = (),
    begun: Sequence[optuna.trial.FrozenTrial] = (),
) -> Row:
    """Run a study, and return what its model cost, if it has one.

    Args:
        make: Makes the sampler.
        objective: Evaluates a trial.
        count: Trials.
        first: The parameters of the first trial, if they are given.
        direction: Of the objective.
        catch: Errors of the objective that fail a trial alone.
        begun: Trials that the study begins with.
    """
    with quietly():
        sampler = make()
        study = optuna.create_study(sampler=sampler, direction=direction)
        study.add_trials(begun)
        if first is not None:
            study.enqueue_trial(dict(first))
        study.optimize(objective, n_trials=count, catch=catch)
    usage: Usage | None = getattr(sampler, "usage", None)
    if usage is None:
        return {}
    tokens = [usage.prompt_tokens, usage.completion_tokens]
    rejected = {"rejected": usage.rejected} if usage.rejected else {}
    return {"requests": usage.requests, "tokens": tokens, "proposals": usage.proposals, **rejected}


def short(value: float) -> float:
    """Return a value with six digits."""
    return float(f"{value:.6g}")


# -- the table ----------------------------------------------------------------------------

Key = tuple[str, int]
Regrets = Mapping[str, Mapping[int, Mapping[Key, float]]]


def judged_after(line: Mapping[str, Any], trials: int) -> float | None:
    """Return the test loss of the setting that validation chose among the first trials."""
    sound = [
        (value, test)
        for value, test in zip(line["values"][:trials], line["tests"], strict=False)
        if value is not None
    ]
    return min(sound)[1] if sound else None


def regrets(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, dict[Key, float]]]:
    """Return each study's regret: by method, trials, and (task, seed).

    0 is the best test loss that a study's choice has on the task and seed (without the rivals
    that were added `LATER`, whose regret may be below 0), 1 the median of
    random search's first trials, whose settings are random; cut at 3.
    """
    found: dict[str, dict[int, dict[Key, float]]] = {}
    keys = {(line["task"], line["seed"]) for line in lines}
    for task, seed in sorted(keys):
        own = [line for line in lines if (line["task"], line["seed"]) == (task, seed)]
        chosen = {
            (line["method"], n): judged_after(line, n)
            for line in own
            for n in CHECKPOINTS
            if line["method"] == "default" or len(line["values"]) >= n or line.get("stopped")
        }
        drawn = [t for r in own if r["method"] == "random" for t in r["tests"] if t is not None]
        if not drawn:
            continue
        known = [v for (m, _), v in chosen.items() if v is not None and m not in LATER]
        best, middle = min(known), float(np.median(drawn))
        for (method, n), value in chosen.items():
            regret = 3.0 if value is None else (value - best) / max(middle - best, 1e-12)
            found.setdefault(method, {}).setdefault(n, {})[task, seed] = min(regret, 3.0)
    return found


def by_task(values: Mapping[Key, float]) -> dict[str, float]:
    """Return the mean regret of each task over its seeds."""
    tasks = sorted({task for task, _ in values})
    return {t: float(np.mean([v for (task, _), v in values.items() if task == t])) for t in tasks}


def make_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the Markdown page."""
    found = regrets(lines)
    methods = [m for m in METHODS if m in found]
    text = [
        "# Studies",
        "",
        "Test loss of the setting that validation chose, as regret: 0 is the best of the first "
        "methods on a task and seed, 1 the median of random settings. Every study counts.",
        "",
        "```",
        "python -m llmopt.benchmarks.experiments.studies --table  # this page",
        "```",
        "",
        "## All tasks",
        "",
        "Mean over tasks of the mean over seeds (not all methods have all of them: the pairs below "
        "say how many they share); mean rank on the studies that all methods with five seeds have; "
        "seconds that the sampler took for a trial (a chat model's are those of waiting for its "
        "answers, relayed by hand); requests a trial.",
        "",
    ]
    wide = [m for m in methods if len(found[m].get(TRIALS, {})) >= 40 and m not in LATER]
    rows = []
    for m in methods:
        own = [line for line in lines if line["method"] == m]
        means = [
            np.mean(list(by_task(found[m][n]).values())) if n in found[m] else math.nan
            for n in CHECKPOINTS
        ]
        rank = [_mean_rank(found, wide, m, n) if m in wide else "" for n in CHECKPOINTS]
        trials = sum(len(line["values"]) for line in own)
        asked = [line["requests"] / len(line["values"]) for line in own if "requests" in line]
        rows.append(
            [
                LABELS[m],
                str(len(own)),
                *("" if math.isnan(x) else f"{x:.3f}" for x in means),
                *rank,
                f"{sum(line['sampler_seconds'] for line in own) / trials:.2f}"
                + (" with waiting" if m in CHAT else ""),
                f"{np.mean(asked):.2f}" if asked else "",
            ]
        )
    head = ["method", "studies", *(f"{n} trials" for n in CHECKPOINTS)]
    head += [*(f"rank at {n}" for n in CHECKPOINTS), "s a trial", "requests a trial"]
    text += Table.of(head, rows).markdown()
    for main in ("words", "network-tpe"):
        if main in found:
            text += _duels(found, main, methods)
    for n in CHECKPOINTS:
        text += ["", f"## Each task after {n} trials", "", "Mean regret over seeds.", ""]
        shown = [m for m in methods if n in found[m]]
        table = {m: by_task(found[m][n]) for m in shown}
        text += Table.of(
            ["task", *(LABELS[m] for m in shown)],
            [
                [
                    task + ("" if STUDIES[task].known else " *"),
                    *(f"{table[m][task]:.3f}" if task in table[m] else "" for m in shown),
                ]
                for task in STUDIES
                if any(task in table[m] for m in shown)
            ],
        ).markdown()
    text += ["", "*: data made here."]
    return "\n".join([*text, ""])


def _mean_rank(found: Regrets, wide: Sequence[str], m: str, n: int) -> str:
    shared = set.intersection(*(set(found[w].get(n, {})) for w in wide))
    places = [ranks([-found[w][n][key] for w in wide])[wide.index(m)] for key in sorted(shared)]
    return f"{np.mean(places):.2f}" if places else ""


def _duels(found: Regrets, main: str, methods: Sequence[str]) -> list[str]:
    """Return how a method stands against each other one, by the seeds of a task that both have."""
    rows = []
    for n in CHECKPOINTS:
        ours = found[main].get(n, {})
        rivals = {m: found[m].get(n, {}) for m in methods if m != main}
        leads = {m: {k: of[k] - ours[k] for k in ours if k in of} for m, of in rivals.items()}
        gaps = {m: list(by_task(own).values()) for m, own in leads.items() if own}
        for rival, duel in fought(gaps).items():
            own = np.array(gaps[rival])
            low, high = bootstrap_interval([own], mean)
            rows.append(
                [
                    str(n),
                    LABELS[rival],
                    f"{len(own)}, {len(leads[rival])}",
                    f"{duel.wins} : {duel.losses}",
                    f"{own.mean():+.3f} [{low:+.3f}, {high:+.3f}]",
                    format_p(duel.adjusted),
                ]
            )
    head = ["trials", "rival", "tasks, studies", "tasks ahead : behind"]
    head += ["mean lead in regret [95 %]", "p (Holm)"]
    title = f"## {LABELS[main][0].upper()}{LABELS[main][1:]}, against each"
    return ["", title, "", *Table.of(head, rows).markdown()]


def _summary(line: Row) -> str:
    value = judged_after(line, TRIALS)
    return "nothing" if value is None else f"{value:.4g}"


EXPERIMENT = Experiment(
    list(STUDIES),
    METHODS,
    RESULTS,
    run_cell,
    make_table,
    CHAT.__contains__,
    "values",
    {"methods": ["words"], "evaluations": TRIALS},
    check=check,
    summary=_summary,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main(__doc__))
