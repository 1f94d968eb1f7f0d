"""The page of results: one row for each question, made from the committed lines alone.

    python -m llmopt.benchmarks.report.findings          # writes docs/results.md and its figure

A pair is two searches of one task with one seed, or, where the seeds differ, the first search of
each, the second, and so on. The effect is the share of pairs that the first method wins, ties
counting half: the probability of improvement of Agarwal et al. 2021 (arXiv 2108.13264). It is
averaged over tasks, and its interval comes from drawing tasks again. Tasks have scales of their
own, so a difference is one of places: where both searches stand among all searches of the task, 0
for the worst and 1 for the best. The p value is that of a two-sided Wilcoxon signed-rank test over
tasks, of the mean difference on each, after Holm's correction within a question.
"""

from __future__ import annotations

import functools
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llmopt.benchmarks.engine.cell import Line, read_lines
from llmopt.benchmarks.report import figures
from llmopt.benchmarks.report.markdown import between_markers
from llmopt.benchmarks.report.stats import (
    bootstrap_interval,
    format_p,
    holm,
    mean,
    paired_test,
    ranks,
)
from llmopt.benchmarks.report.table import Table

ROOT = Path(__file__).resolve().parents[2]
PAGE, README = ROOT / "docs" / "results.md", ROOT / "README.md"
FIGURE = ROOT / "docs" / "images" / "results.png"
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
_LEVEL = 0.05
_FEWEST = 6  # tasks: of fewer the test cannot give a p value below 0.05

Scores = Mapping[str, Mapping[str, Mapping[int, float]]]
"""By method, task and seed; the larger, the better."""


@dataclass(frozen=True)
class Pairing:
    """One method against a rival."""

    rival: str
    gaps: Mapping[str, Sequence[float]]  # by task, the difference of places of each pair

    @functools.cached_property
    def _shares(self) -> np.ndarray:
        return np.array([np.mean([won(g) for g in gaps]) for gaps in self.gaps.values()])

    @property
    def effect(self) -> float:
        """Share of pairs that the method wins, averaged over tasks."""
        return float(self._shares.mean())

    @functools.cached_property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of `effect`."""
        return bootstrap_interval([self._shares], mean)

    @functools.cached_property
    def p(self) -> float:
        """Of the test over tasks, not corrected."""
        return paired_test([float(np.mean(g)) for g in self.gaps.values()])

    @property
    def pairs(self) -> int:
        """How many pairs there are."""
        return sum(map(len, self.gaps.values()))

    def verdict(self, p: float) -> str:
        """Return "win", "level", "lose" or "too few tasks" for a corrected p value."""
        if len(self.gaps) < _FEWEST:
            return "too few tasks"
        return "level" if p >= _LEVEL else "win" if self.effect > 0.5 else "lose"

    def share(self, unit: str) -> str:
        """Return the effect and its interval in percent."""
        low, high = self.interval
        return f"{100 * self.effect:.0f}{unit} [{100 * low:.0f}, {100 * high:.0f}]"


def won(gap: float) -> float:
    """Return 1 for a pair that is won, 0.5 for a tie, 0 for one that is lost."""
    return 0.5 + 0.5 * float(np.sign(gap))


def pair(scores: Scores, method: str, rival: str, label: str) -> Pairing:
    """Compare two methods on the tasks that both have searched."""
    gaps: dict[str, list[float]] = {}
    for task in scores[method]:
        places = _places(scores, task)
        own, other = places[method], places.get(rival, {})
        seeds = sorted(own.keys() & other.keys())
        if seeds:
            twos = [(own[s], other[s]) for s in seeds]
        else:
            twos = [(own[a], other[b]) for a, b in zip(sorted(own), sorted(other), strict=False)]
        if twos:
            gaps[task] = [a - b for a, b in twos]
    return Pairing(label, gaps)


def _places(scores: Scores, task: str) -> dict[str, dict[int, float]]:
    """Return where each search stands among all of a task: 0 the worst, 1 the best."""
    keys = [(m, seed) for m, tasks in scores.items() for seed in tasks.get(task, {})]
    ranked = ranks([-scores[m][task][seed] for m, seed in keys])
    found: dict[str, dict[int, float]] = {}
    for (method, seed), rank in zip(keys, ranked, strict=True):
        found.setdefault(method, {})[seed] = (rank - 1) / max(len(keys) - 1, 1)
    return found


@dataclass(frozen=True)
class Question:
    """A question, and who was compared to answer it."""

    who: str  # the method that is asked about
    title: str
    scores: Scores
    method: str  # its key in `scores`
    rivals: Mapping[str, str]  # keys of the rivals, with their names

    @functools.cached_property
    def pairings(self) -> list[tuple[Pairing, float]]:
        """The method against each rival, with the p value after Holm's correction."""
        found = [pair(self.scores, self.method, key, name) for key, name in self.rivals.items()]
        return list(zip(found, holm([each.p for each in found]), strict=True))


def lines_of(name: str) -> list[Line]:
    """Return the lines of a committed file of results."""
    return read_lines(ROOT / "benchmarks" / "results" / f"{name}.jsonl")


def scores_of(found: Iterable[tuple[str, str, int, float]]) -> Scores:
    """Return scores from rows of method, task, seed and score."""
    scores: dict[str, dict[str, dict[int, float]]] = {}
    for method, task, seed, score in found:
        scores.setdefault(method, {}).setdefault(task, {})[seed] = score
    return scores


def words_scores() -> Scores:
    """Return the returns on fresh starts of the searches with words, and of their rivals."""
    from llmopt.benchmarks.experiments.words import is_present

    return scores_of(
        (line["method"], line["task"], line["seed"], line["held_out"])
        for line in lines_of("words")
        if is_present(line)
    )


def policy_scores() -> Scores:
    """Return the held-out returns of the suite of policies."""
    from llmopt.benchmarks.report.lines import score

    return scores_of(
        (line["method"], line["task"], line["seed"], score(line)) for line in lines_of("policies")
    )


def function_scores(budget: int, dimensions: Sequence[int]) -> Scores:
    """Return minus the logarithm of the distance to the optimum on BBOB."""
    from llmopt.benchmarks.experiments.bbob import precision, read_runs

    return scores_of(
        (method, f"f{function} in {d}-D", instance, -math.log10(precision(steps, budget)))
        for method, runs in read_runs(lines_of("bbob"), budget).items()
        for (d, function, instance), steps in runs.items()
        if d in dimensions
    )


def study_scores(name: str, trials: int) -> Scores:
    """Return minus the regret of searches for hyper-parameters after some trials."""
    from llmopt.benchmarks.experiments import hpo, studies

    regrets = {"hpo": hpo.regrets, "studies": studies.regrets}[name]
    return scores_of(
        (method, task, seed, -regret)
        for method, by_trials in regrets(lines_of(name)).items()
        for (task, seed), regret in by_trials.get(trials, {}).items()
    )


CHAT = "Frontier chat model"
EMBEDDED = "Embedded model"
NETWORK = "Small network"


def questions() -> list[Question]:
    """Return all questions, with the committed scores that answer them."""
    words, policies, studies = words_scores(), policy_scores(), study_scores("hpo", 50)
    short, long = function_scores(100, (2, 5)), function_scores(400, (2, 5, 10, 20))
    chance = {"random": "random search"}
    budget = {"cma": "CMA-ES, 100", "columns": "embedded model, 100"}
    budget["random"] = "random search, 100"
    less = {
        "docs": "words, no feedback",
        "names": "names alone",
        "none": "numbers alone",
        "props-plus": "the prompt of ProPS+",
    }
    numeric = {"cma": "CMA-ES", "optuna-tpe": "TPE", "optuna-gp": "GP", "turbo": "TuRBO"}
    tpe = {"tpe": "TPE", "gp": "GP"}
    on_words = "policies, with words and feedback, 30 evaluations"
    on_curves = "hyper-parameters, with words and curves, 20 trials"
    beside = "hyper-parameters, TPE beside it, 40 trials"
    columns, network = "llm-columns", "columns-network"
    rows: list[tuple[str, str, Scores, str, Mapping[str, str]]] = [
        (CHAT, on_words, words, "words", budget),
        (CHAT, "words and feedback, against itself with less", words, "words", less),
        (EMBEDDED, "policies, 100 evaluations", policies, columns, numeric | chance),
        (EMBEDDED, "functions (BBOB), 100 evaluations", short, columns,
         numeric | {network: "small network"} | chance),
        (NETWORK, "functions (BBOB), 400 evaluations", long, network,
         {"cma": "CMA-ES"} | chance),
        (CHAT, on_curves, study_scores("studies", 20), "words", tpe | {"cma": "CMA-ES"} | chance),
        (NETWORK, beside, study_scores("studies", 40), "network-tpe", tpe),
        (EMBEDDED, "hyper-parameters, names, 50 trials", studies, "smollm2, names",
         {"TPE": "TPE", "GP": "GP"}),
        (NETWORK, "hyper-parameters, 50 trials", studies, "small network",
         {"TPE": "TPE", "GP": "GP"} | chance),
    ]  # fmt: skip
    return [Question(*row) for row in rows]


def table(asked: Sequence[Question]) -> Table:
    """Return one row for each question and rival."""
    rows = []
    for question in asked:
        for place, (each, p) in enumerate(question.pairings):
            rows.append(
                [
                    f"{question.who}: {question.title}" if not place else "",
                    each.rival,
                    _bold(each.verdict(p)),
                    each.share(""),
                    format_p(p),
                    f"{each.pairs}, {len(each.gaps)}",
                ]
            )
    head = ["who, and on what", "rival", "so", "% of pairs won [95 %]", "p", "pairs, tasks"]
    return Table.of(head, rows)


CORE = (
    (0, "CMA-ES, 100", "a chat model that reads words, 30 evaluations of a policy"),
    (1, "numbers alone", "a chat model that reads words, 30 evaluations of a policy"),
    (5, "TPE", "a chat model that reads words and curves, 20 trials of hyper-parameters"),
    (5, "GP", "a chat model that reads words and curves, 20 trials of hyper-parameters"),
    (3, "CMA-ES", "the embedded model, 100 evaluations of a function of numbers"),
    (4, "CMA-ES", "the small network, 400 evaluations of a function of numbers"),
    (2, "CMA-ES", "the embedded model, 100 evaluations of a policy"),
    (8, "TPE", "the small network, 50 trials of hyper-parameters"),
)
"""The rows of the README: number of the question, rival, who."""


def core(asked: Sequence[Question]) -> Table:
    """Return the rows that the README shows."""
    rows = []
    for number, rival, who in CORE:
        ((each, p),) = (found for found in asked[number].pairings if found[0].rival == rival)
        shown = rival.replace("numbers alone", "the same model, numbers alone")
        rows.append([who, shown, each.share(" %"), _bold(each.verdict(p))])
    return Table.of(["method, on what", "rival", "pairs won [95 %]", "so"], rows)


def _bold(verdict: str) -> str:
    return f"**{verdict}**" if verdict in ("win", "lose") else verdict


def figure(asked: Sequence[Question]) -> bytes:
    """Draw the differences of all pairs as a PNG file's content: a row a rival, by question."""
    found = [(question, each) for question in asked for each, _ in question.pairings]
    rng = np.random.default_rng(0)
    canvas = figures.new_figure(10, 0.3 * len(found) + 1.2)
    axes = canvas.add_subplot()
    for place, (question, each) in enumerate(found):
        gaps = np.concatenate([np.asarray(g) for g in each.gaps.values()])
        y = place + rng.uniform(-0.28, 0.28, len(gaps))
        color = figures.COLORS[asked.index(question) % len(figures.COLORS)]
        axes.scatter(gaps, y, s=5, alpha=0.35, color=color, lw=0)
        axes.plot([np.median(gaps)] * 2, [place - 0.36, place + 0.36], color="black", lw=1.6)
    for question in asked:
        rows = [place for place, (own, _) in enumerate(found) if own is question]
        text = textwrap.fill(f"{question.who}: {question.title}", 28)
        axes.text(1.08, np.mean(rows), text, va="center", fontsize="small")
        axes.axhline(rows[-1] + 0.5, color="0.7", lw=0.8)
    axes.axvline(0, color="0.4", lw=0.8)
    axes.set_yticks(range(len(found)), [each.rival for _, each in found], fontsize="small")
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.set_xlim(-1.05, 1.05)
    axes.set_xlabel(
        "← the rival is better    difference of places in a pair    the model is better →"
    )
    figures.plain(axes)
    return figures.png(canvas)


def page(shown: Table, text: str) -> str:
    """Return a page with a table between its marks."""
    return between_markers(text, "\n".join([*shown.markdown(), ""]), BEGIN, END)


def main() -> None:
    """Write the page, its figure, and the README's rows."""
    asked = questions()
    for path, shown in ((PAGE, table(asked)), (README, core(asked))):
        path.write_text(page(shown, path.read_text(encoding="utf-8")), encoding="utf-8")
    FIGURE.write_bytes(figure(asked))


if __name__ == "__main__":
    main()
