"""Who wins: tables for README, docs/results.md and the archive, from the committed lines alone.

    python -m llmopt.benchmarks.experiments.findings  # writes the three pages

The archive has a row for each question and rival, docs/results.md the strongest rivals, and the
README one. docs/results.md says how to read them, `llmopt.benchmarks.report.stats` computes them.
A task is the unit: the dimensions of a BBOB function are parts of one task. First designs,
controllers, ablations and other versions of the prompt meet only the run of the same seed.
`FAMILIES` counts related tasks as one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from llmopt.benchmarks.engine.cell import Row, read_lines
from llmopt.benchmarks.experiments import regret
from llmopt.benchmarks.experiments.bbob import precision, read_runs
from llmopt.benchmarks.experiments.words import CHANGED, TASKS, TUNING, WRITTEN, is_present
from llmopt.benchmarks.report.budgets import budgets
from llmopt.benchmarks.report.lines import score
from llmopt.benchmarks.report.markdown import between_markers
from llmopt.benchmarks.report.stats import Pairing, Scores, format_p, holm, pair, share
from llmopt.benchmarks.report.table import Table
from llmopt.benchmarks.tasks.reactions import REACTIONS, get_reaction
from llmopt.benchmarks.tasks.studies import STUDIES

ROOT = Path(__file__).resolve().parents[2]
PAGE, README = ROOT / "docs" / "results.md", ROOT / "README.md"
ARCHIVE = ROOT / "benchmarks" / "results" / "archive.md"
AREAS = ("policies", "hyperparameters", "functions")
"""The tables of the page, in order; a question belongs to one."""


@dataclass(frozen=True)
class Question:
    """A question, and who was compared to answer it."""

    area: str  # one of `AREAS`
    who: str  # the method that is asked about
    title: str
    scores: Scores
    method: str  # its key in `scores`
    rivals: Mapping[str, str]  # keys of the rivals, with their names
    core: str = ""  # what the README calls the method and the task, if it shows a row of it

    @functools.cached_property
    def pairings(self) -> list[tuple[Pairing, float]]:
        """The method against each rival, with the p value after Holm's correction."""
        found = [
            pair(self.scores, self.method, key, name, same_seed=key in _SAME)
            for key, name in self.rivals.items()
        ]
        found = [each for each in found if each.tasks]
        return list(zip(found, holm([each.p for each in found]), strict=True))

    def verdict(self, each: Pairing, p: float) -> str:
        """Return what may be said of a pairing, significant findings in bold."""
        said = each.verdict(p, len(self.pairings))
        return f"**{said}**" if said in ("win", "lose") else said


def lines_of(name: str) -> list[Row]:
    """Return the lines of a committed file of results."""
    return read_lines(ROOT / "benchmarks" / "results" / f"{name}.jsonl")


def scores_of(found: Iterable[tuple[str, str, int, float]]) -> Scores:
    """Return scores from rows of method, task, seed and score."""
    scores: dict[str, dict[str, dict[int, float]]] = {}
    for method, task, seed, value in found:
        scores.setdefault(method, {}).setdefault(task, {})[seed] = value
    return scores


def words_scores(tasks: Iterable[str] = ()) -> Scores:
    """Return the held-out returns of the searches with words, and of their rivals.

    Args:
        tasks: Only these; all policies by default.
    """
    wanted = set(tasks or TASKS)
    return scores_of(
        (line["method"], line["task"], line["seed"], line["held_out"])
        for line in [*filter(is_present, lines_of("words")), *lines_of("rivals")]
        if line["task"] in wanted
    )


def only(scores: Scores, tasks: Iterable[str]) -> Scores:
    """Return the scores on some tasks."""
    wanted = set(tasks)
    return {m: {t: own[t] for t in own if t in wanted} for m, own in scores.items()}


def policy_scores() -> Scores:
    """Return the held-out returns of the suite of policies."""
    lines = [*lines_of("policies"), *lines_of("more-policies")]
    return scores_of((line["method"], line["task"], line["seed"], score(line)) for line in lines)


SUITE = {
    "acrobot": "Acrobot-v1/linear-v1",
    "cartpole": "CartPole-v1/linear-v1",
    "heavy-car": "llmopt.benchmarks.experiments.systems:HeavyMountainCar-v0/scaled-v1",
    "hopper": "Hopper-v5/linear-v1",
    "mountaincar": "MountainCarContinuous-v0/scaled-v1",
    "mountaincar-discrete": "MountainCar-v0/linear-v1",
    "pendulum": "Pendulum-v1/linear-v1",
    "pendulum-double": "InvertedDoublePendulum-v5/scaled-v1",
    "pendulum-inverted": "InvertedPendulum-v5/scaled-v1",
    "reacher": "Reacher-v5/scaled-v1",
    "swimmer": "Swimmer-v5/linear-v1",
    "zones": "llmopt.benchmarks.experiments.systems:TwoZones-v0/scaled-v1",
}
"""The tasks of the searches with words that the suite of policies has, too."""


def beside_suite() -> Scores:
    """Return the returns of the searches with words beside those of the suite, by its names."""
    chat = words_scores(SUITE)["words"]
    return {**policy_scores(), "words": {SUITE[task]: runs for task, runs in chat.items()}}


def function_scores(budget: int) -> Scores:
    """Return minus the logarithm of the distance to the optimum on BBOB."""
    return scores_of(
        (method, f"f{function} in {d}-D", instance, -math.log10(precision(steps, budget)))
        for method, runs in read_runs(lines_of("bbob"), budget).items()
        for (d, function, instance), steps in runs.items()
    )


def study_scores(name: str, trials: int) -> Scores:
    """Return minus the regret of searches for hyper-parameters after some trials."""
    regrets = {"hpo": regret.of_hpo, "studies": regret.of_studies}[name]
    return scores_of(
        (method, task, seed, -value)
        for method, by_trials in regrets(lines_of(name)).items()
        for (task, seed), value in by_trials.get(trials, {}).items()
    )


FAMILIES = {
    "mountain cars": ("mountaincar", "mountaincar-discrete", "heavy-car"),
    "poles on a cart": ("cartpole", "pendulum-inverted", "pendulum-double"),
    "swimmers": ("swimmer", "swimmer-changed"),
}
"""Policy tasks that are forms of one system."""


def by_family(scores: Scores) -> Scores:
    """Return scores that count tasks of one family as one task."""
    names = {task: f"{family} in {task}" for family, own in FAMILIES.items() for task in own}
    names |= {SUITE[task]: name for task, name in names.items() if task in SUITE}
    return {m: {names.get(t, t): runs for t, runs in own.items()} for m, own in scores.items()}


CHAT = "Frontier chat model"
LLAMBO = "LLAMBO, with the same chat model"
ASKED = ("cancer", "wine", "strokes", "bearing", "brewery", "orchard", "gears")
"""The tuning tasks on which LLAMBO asks the model; on the others it only samples at random."""
EMBEDDED = "Embedded model"
NETWORK = "Small network"

_CHANCE = {"random": "random search"}
_LESS = {
    "docs": "words, no feedback",
    "shuffled": "results shuffled",
    "names": "names alone",
    "none": "the same model, numbers alone",
    "props-plus": "the prompt of ProPS+",
}
_NUMERIC = {
    "cma": "CMA-ES",
    "cma-bipop": "CMA-ES, BIPOP restarts",
    "optuna-tpe": "TPE",
    "optuna-tpe-tuned": "TPE, multivariate and grouped",
    "optuna-gp": "GP",
    "turbo": "TuRBO",
    "ars": "ARS",
    "columns-gaussian": "Gaussian samples, without a model",
}
_SUITE = ("cma", "cma-bipop", "optuna-tpe", "optuna-tpe-tuned", "optuna-gp", "turbo", "ars")
_SAMPLERS = {"tpe": "TPE", "tpe-five": "TPE, 5 start-up trials", "gp": "GP"}
_DESIGN = {
    "design-cma": "CMA-ES from the model's first design",
    "design-near": "CMA-ES with small steps, started at the model's first design",
    "design-tpe": "TPE from the model's first design",
    "controller": "hand-tuned controller",
}
_THEN_TPE = "TPE, started with the model's first answer"
_SAME = {*_DESIGN, *_LESS, "words", "plain", "compute"}
"""Rivals that are paired with the run of the same seed alone: they share its states or data."""


@functools.cache
def questions() -> list[Question]:
    """Return all questions, with the committed scores that answer them."""
    words, policies, hpo = words_scores(), policy_scores(), study_scores("hpo", 50)
    short, long = function_scores(100), function_scores(400)
    tuned = words_scores(TUNING)
    studies = study_scores("studies", 20)
    made_here = [s for s in STUDIES if not STUDIES[s].known]
    public = [s for s in STUDIES if STUDIES[s].known]
    after_forty = study_scores("studies", 40)
    suite = beside_suite()
    in_suite = {key: f"{_NUMERIC[key]} (suite), 120" for key in _SUITE}
    budget = {"cma": "CMA-ES, 100", "random": "random search, 100"}
    columns, network = "llm-columns", "columns-network"
    beside = {network: "small network"}
    chat = "chat model: policies, 30 evaluations"
    curves = "chat model: hyper-parameters, 20 trials"
    policy, settings, functions = AREAS
    own = "the same model, numbers alone"
    return [
        Question(policy, CHAT, "policies, with words and feedback, 30 evaluations", words,
                 "words", budget | {"columns": "embedded model, 100"} | _DESIGN, chat),
        Question(policy, CHAT, "of these, the four systems written or changed for this",
                 only(words, (*WRITTEN, *CHANGED)), "words", {"cma": "CMA-ES, 100"}),
        Question(policy, CHAT, "policies, against methods of the suite (other initial states)",
                 suite, "words", in_suite, chat),
        Question(policy, CHAT, "policies, with related tasks as one task", by_family(words),
                 "words", budget),
        Question(policy, CHAT, "policies of the suite, with related tasks as one task",
                 by_family(suite), "words", in_suite),
        Question(policy, CHAT, "policies, against itself with less", words, "words", _LESS),
        Question(settings, CHAT, "hyper-parameters without curves, 30 evaluations", tuned,
                 "words", budget | {"none": own}),
        Question(settings, CHAT, "hyper-parameters, with words and curves, 20 trials", studies,
                 "words", _SAMPLERS | {"cma": "CMA-ES"} | _CHANCE
                 | {"design-tpe": _THEN_TPE},
                 curves),
        Question(settings, CHAT, "of these, the seven that LLAMBO asks about",
                 only(studies, ASKED), "words", {"llambo": LLAMBO}, curves),
        Question(settings, LLAMBO, "the same seven tasks, 20 trials", only(studies, ASKED),
                 "llambo", {"tpe": "TPE"} | _CHANCE),
        Question(settings, CHAT, "of these, the six tasks on data made here",
                 only(studies, made_here), "words", _SAMPLERS | {"design-tpe": _THEN_TPE}),
        Question(settings, CHAT, "of these, the five tasks on public data",
                 only(studies, public), "words", _SAMPLERS | {"design-tpe": _THEN_TPE}),
        Question(settings, CHAT, "hyper-parameters, words that give nothing away, 20 trials",
                 studies, "plain", _SAMPLERS | _CHANCE),
        Question(settings, CHAT, "hyper-parameters, version 9, which may compute, 20 trials",
                 studies, "compute",
                 _SAMPLERS | _CHANCE | {"words": "version 7, without computing"}),
        Question(settings, CHAT, "version 9, with the full description", studies, "compute",
                 {"plain": "words that give nothing away"}),
        Question(settings, CHAT, "hyper-parameters, with words and curves, 40 trials", after_forty,
                 "words", _SAMPLERS | {"cma": "CMA-ES"} | _CHANCE | {"design-tpe": _THEN_TPE}),
        Question(policy, EMBEDDED, "policies, 120 evaluations", policies, columns,
                 _NUMERIC | beside | _CHANCE, "embedded model: policies, 120 evaluations"),
        Question(policy, NETWORK, "policies, 120 evaluations", policies, network,
                 _NUMERIC | _CHANCE),
        Question(functions, EMBEDDED, "functions (BBOB), 100 evaluations", short, columns,
                 _NUMERIC | beside | _CHANCE, "embedded model: BBOB functions, 100 evaluations"),
        Question(functions, NETWORK, "functions (BBOB), 400 evaluations", long, network,
                 _NUMERIC | _CHANCE),
        Question(settings, NETWORK, "hyper-parameters, TPE beside it, 40 trials",
                 after_forty, "network-tpe", _SAMPLERS),
        Question(settings, EMBEDDED, "hyper-parameters, names, 50 trials", hpo, "smollm2, names",
                 {"TPE": "TPE", "GP": "GP", "random": "random search"}),
        Question(settings, NETWORK, "hyper-parameters, 50 trials", hpo, "small network",
                 {"TPE": "TPE", "GP": "GP"} | _CHANCE,
                 "small network: hyper-parameters, 50 trials"),
    ]  # fmt: skip


def table(asked: Sequence[Question], area: str) -> Table:
    """Return one row for each question of an area and rival."""
    rows = []
    for question in (each for each in asked if each.area == area):
        for place, (each, p) in enumerate(question.pairings):
            rows.append(
                [
                    f"{question.who}: {question.title}" if not place else "",
                    each.rival,
                    question.verdict(each, p),
                    _unbroken(share(each, "")),
                    f"{100 * each.ties:.0f}",
                    _unbroken(format_p(each.p)),
                    _unbroken(format_p(p)),
                    str(each.tasks),
                    _unbroken("{:,} : {:,}".format(*each.runs)),
                ]
            )
    head = ["method: task, budget", "rival", "result", "% of pairs won [95 %]", "% ties"]
    return Table.of([*head, "p", "p, corrected", "tasks", "runs"], rows)


def _unbroken(text: str) -> str:
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def core(asked: Sequence[Question], areas: Iterable[str] = AREAS, rivals: int = 1) -> Table:
    """Return the strongest rivals of each method and task that README and results show."""
    rows = []
    shown = [question for question in asked if question.core and question.area in areas]
    for name in dict.fromkeys(question.core for question in shown):
        met = [(q, *pairing) for q in shown if q.core == name for pairing in q.pairings]
        met.sort(key=lambda row: float(row[1].shares.mean()))
        for place, (question, each, p) in enumerate(met[:rivals]):
            found = [share(each, " %"), f"{each.tasks}, {each.pairs:,}"]
            found += [f"{format_p(each.p)}, {format_p(p)}", question.verdict(each, p)]
            rows.append(["" if place else name, each.rival, *found])
    head = ["method: task, budget", "rival", "pairs won [95 %]", "tasks, pairs", "p raw, corrected"]
    return Table.of([*head, "result"], rows)


def reactions() -> Table:
    """Return the table of the searches of reactions."""
    return budgets(lines_of("reactions"), {name: get_reaction(name).best for name in REACTIONS})


_METHODS = {
    "laboratory": "llmopt",
    "agent": "coding agent",
    "cma": "CMA-ES",
}


def laboratory(lines: Sequence[Row]) -> Table:
    """Return a row for each task and method: the searches in which a model computes, and rivals."""
    rows, last = [], ""
    asked = {x["task"] for x in lines if x["method"] != "cma"}
    for task in (t for t in dict.fromkeys(x["task"] for x in lines) if t in asked):
        for method, name in _METHODS.items():
            own = [x for x in lines if (x["task"], x["method"]) == (task, method)]
            if own:
                minutes = median(x["seconds"] for x in own) / 60
                rows.append(
                    [
                        "" if task == last else task,
                        name,
                        _spread([x["held_out"] for x in own]),
                        "{:+.2f} ± {:.2f}".format(*paired(lines, task, method, "laboratory"))
                        if method == "agent"
                        else "",
                        _spread([x["held_out_first"] for x in own if "held_out_first" in x]),
                        _spread([len(x["curve"]) for x in own]),
                        _spread([x["requests"] for x in own if "requests" in x]),
                        f"{minutes:.0f}" if method != "cma" else "",
                        str(len(own)),
                    ]
                )
                last = task
    head = ["system", "method", "held-out return", "agent minus llmopt", "first design"]
    return Table.of([*head, "evaluations", "requests", "minutes", "searches"], rows)


def _spread(values: Sequence[float]) -> str:
    """Return the median, and the range of several values."""
    if not values:
        return ""
    shown = [
        f"{v:,.0f}" if abs(v) >= 1000 or v == int(v) else f"{v:.4g}"
        for v in (median(values), min(values), max(values))
    ]
    return shown[0] if len(set(values)) == 1 else f"{shown[0]} ({shown[1]} to {shown[2]})"


def paired(lines: Sequence[Row], task: str, method: str, rival: str) -> tuple[float, float]:
    """Return by how much a method beats a rival on the same states, with its standard error."""
    returns = {x["method"]: np.array(x["held_out_returns"]) for x in lines if x["task"] == task}
    gain = returns[method] - returns[rival]
    return float(gain.mean()), float(gain.std(ddof=1) / math.sqrt(len(gain)))


def put(shown: Table, text: str, name: str) -> str:
    """Return a page with a table between its marks."""
    lines = "\n".join([*shown.markdown(), ""])
    return between_markers(text, lines, f"<!-- {name}:begin -->", f"<!-- {name}:end -->")


def page(asked: Sequence[Question], text: str) -> str:
    """Return the page of results with regenerated tables."""
    for area in AREAS:
        text = put(core(asked, [area], rivals=4), text, area)
    text = put(laboratory(lines_of("laboratory")), text, "laboratory")
    return put(reactions(), text, "reactions")


def archive(asked: Sequence[Question], text: str) -> str:
    """Return the archive with all regenerated comparisons."""
    return functools.reduce(lambda made, area: put(table(asked, area), made, area), AREAS, text)


def readme(asked: Sequence[Question], text: str) -> str:
    """Return the README with its regenerated table."""
    return put(core(asked), text, "results")


def main() -> None:
    """Write the three pages."""
    asked = questions()
    for path, made in ((PAGE, page), (README, readme), (ARCHIVE, archive)):
        path.write_text(made(asked, path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
