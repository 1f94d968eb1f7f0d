"""Statistics of a benchmark's raw lines: nothing here runs anything.

The score of a run is the mean return of its best point on starts that no search saw
(``heldout``), never the best score on the starts that chose that point. Ranks, wins and
aggregates compare methods on equal terms: only on the seeds of a problem that all of the
compared methods have finished.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from llmopt.benchmarks.methods.table import METHODS
from llmopt.benchmarks.run.pictures import best_so_far
from llmopt.benchmarks.tasks.table import TASKS
from llmopt.benchmarks.tasks.targets import TARGETS

RESAMPLES = 2000


@dataclass(frozen=True, order=True)
class ProblemKey:
    """What makes runs comparable: the task, the budget and the starts of the judgement."""

    task: str
    evaluations: int
    episodes: int
    warmup: int
    heldout: int

    def __str__(self) -> str:
        return f"{self.task}, {self.evaluations} evaluations"


@dataclass(frozen=True)
class Runs:
    """The runs of one method on one problem, by seed.

    Attributes:
        problem: What was solved.
        label: The method's name for readers.
        method: A key of `METHODS`.
        lines: Raw lines by seed.
    """

    problem: ProblemKey
    label: str
    method: str
    lines: Mapping[int, Mapping[str, Any]] = field(repr=False)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, in order."""
        return tuple(sorted(self.lines))

    @cached_property
    def heldout(self) -> np.ndarray:
        """Held-out mean of each seed; a run whose points all failed has its floor."""
        return np.array([score(self.lines[s]) for s in self.seeds], dtype=float)

    @cached_property
    def curves(self) -> np.ndarray:
        """``(n_seeds, n_points)`` best mean on the selection starts so far, warm-up first."""
        return np.array([best_so_far(self.lines[s]["means"]) for s in self.seeds])

    @property
    def to_target(self) -> list[float]:
        """Evaluations until the target was reached, warm-up included; infinite if never."""
        target = TARGETS.get(str(next(iter(self.lines.values()))["env_id"]))
        if target is None:
            return [math.nan] * len(self.lines)
        return [evaluations_to(curve, target) for curve in self.curves]

    def total(self, *path: str) -> float:
        """Sum of one number of the lines, such as ``total("usage", "requests")``."""
        found = 0.0
        for line in self.lines.values():
            value: Any = line
            for key in path:
                value = (value or {}).get(key)
            found += value or 0.0
        return found

    def mean(self, *path: str) -> float:
        """Mean over the seeds of one number of the lines."""
        return self.total(*path) / len(self.lines)

    @property
    def cost(self) -> float | None:
        """US dollars of all requests; ``None`` where the price is not known."""
        costs = [(line.get("usage") or {"cost": 0.0})["cost"] for line in self.lines.values()]
        return None if any(c is None for c in costs) else float(sum(costs))

    @property
    def fallback_share(self) -> float | None:
        """Share of the points asked of a model, or its stand-in, that were drawn at random."""
        counts = [line["sources"] for line in self.lines.values() if line["sources"]]
        asked = sum(c.get("llm", 0) + c.get("fallback", 0) for c in counts)
        return sum(c.get("fallback", 0) for c in counts) / asked if asked else None


def score(line: Mapping[str, Any]) -> float:
    """Return the score of one run: its best point's mean return on held-out starts.

    Where a run has none (all of its points failed, or the best one did on the held-out
    starts) it is the worst return that the run has seen, or minus infinity.
    """
    if line["heldout"] is not None:
        return float(line["heldout"])
    return min((m for m in line["means"] if m is not None), default=-math.inf)


def label_of(line: Mapping[str, Any]) -> str:
    """Return a line's method as tables call it."""
    method = str(line["cell"]["method"])
    model = line.get("model") or line["cell"].get("model") or "model"
    return METHODS[method].label.format(model=model) if method in METHODS else method


def group(lines: Iterable[Mapping[str, Any]]) -> dict[ProblemKey, dict[str, Runs]]:
    """Sort raw lines by problem and method label, both in the order of tables.

    No run is lost: where lines of one label differ in how the model was asked, each way is
    a method of its own. Of equal cells the first counts.
    """
    found: dict[ProblemKey, dict[str, dict[int, Mapping[str, Any]]]] = defaultdict(dict)
    methods: dict[str, str] = {}
    lines = list(lines)
    ways: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for line in lines:
        ways[label_of(line)].append(_asking(line["cell"]))
    for line in lines:
        cell = line["cell"]
        key = ProblemKey(
            line["task"], cell["evaluations"], cell["episodes"], cell["warmup"], cell["heldout"]
        )
        label = label_of(line)
        differ = [len(set(column)) > 1 for column in zip(*ways[label], strict=True)]
        label += "".join(
            f", {part}" for part, other in zip(_asking(cell), differ, strict=True) if other
        )
        methods[label] = cell["method"]
        found[key].setdefault(label, {}).setdefault(cell["seed"], line)
    order = list(METHODS)

    def place(label: str) -> tuple[int, str]:
        method = methods[label]
        return order.index(method) if method in order else len(order), label

    return {
        key: {
            label: Runs(key, label, methods[label], found[key][label])
            for label in sorted(found[key], key=place)
        }
        for key in sorted(found, key=lambda k: (_task_place(k.task), k))
    }


def _asking(cell: Mapping[str, Any]) -> tuple[str, ...]:
    """Say how a cell's model is asked, as a label says it where this differs."""
    cap = cell.get("max_tokens")
    return (
        str(cell.get("model") or "no model"),
        f"{cell['batch']} a request",
        f"answers up to {cap} tokens" if cap else "answers as long as the prompt allows",
    )


def _task_place(task: str) -> int:
    places = [i for i, t in enumerate(TASKS) if task.startswith(t.env_id)]
    return places[0] if places else len(TASKS)


def evaluations_to(curve: np.ndarray, target: float) -> float:
    """Return the number of the first point that reaches a target, from 1; infinity if none."""
    reached = np.flatnonzero(curve >= target)
    return float(reached[0] + 1) if reached.size else math.inf


def quartiles(values: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """Return lower quartile, median and upper quartile; between infinities, the nearest."""
    table = np.asarray(values, dtype=float)
    method: Any = "linear" if np.isfinite(table).all() else "nearest"
    low, middle, high = np.quantile(table, [0.25, 0.5, 0.75], method=method)
    return float(low), float(middle), float(high)


def interquartile_mean(values: np.ndarray) -> float:
    """Return the mean of the middle half (Agarwal et al. 2021, arXiv 2108.13264).

    The first and the last quarter of the sorted values are left out, rounded down, as
    ``scipy.stats.trim_mean(values, 0.25)`` does.
    """
    ordered = np.sort(np.asarray(values, dtype=float).ravel())
    cut = ordered.size // 4
    return float(ordered[cut : ordered.size - cut].mean())


def bootstrap_interval(
    strata: Sequence[np.ndarray],
    statistic: Callable[[np.ndarray], float] = interquartile_mean,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """Return a percentile bootstrap interval, resampled within each stratum.

    Args:
        strata: Values of each problem, one for each seed (Agarwal et al. 2021, section 4.1).
        statistic: Of all values together.
        level: Coverage wanted.
        resamples: Bootstrap samples.
        seed: Of the resampling.
    """
    rng = np.random.default_rng(seed)
    drawn = np.hstack([v[rng.integers(len(v), size=(resamples, len(v)))] for v in strata])
    found = [statistic(sample) for sample in drawn]
    tail = (1 - level) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    return float(low), float(high)


def ranks(scores: Sequence[float]) -> list[float]:
    """Return the rank of each score, 1 for the largest; equal ones share their mean rank."""
    return [
        1 + sum(s > own for s in scores) + (sum(s == own for s in scores) - 1) / 2 for own in scores
    ]


@dataclass(frozen=True)
class Comparison:
    """Methods compared on the instances (problem and seed) that all of them have finished.

    Attributes:
        labels: The methods: those that took part in every problem compared.
        instances: How many instances there are.
        mean_rank: Of each method, 1 is best.
        iqm: Interquartile mean of the normalized scores of each method.
        interval: Its bootstrap interval.
        problems: The problems, in order.
        rank_by_problem: Mean rank of each method on each problem.
        absent: Methods left out, as they have no run on some of the problems.
        dropped: Problems left out: without the headline model, or without a seed that all of
            the methods have finished.
    """

    labels: tuple[str, ...]
    instances: int
    mean_rank: dict[str, float]
    iqm: dict[str, float]
    interval: dict[str, tuple[float, float]]
    problems: tuple[ProblemKey, ...]
    rank_by_problem: dict[str, dict[ProblemKey, float]]
    absent: tuple[str, ...]
    dropped: tuple[ProblemKey, ...]


def compare(grouped: Mapping[ProblemKey, Mapping[str, Runs]]) -> Comparison:
    """Compare the methods that took part in every problem that the headline model met.

    Scores are normalized on each problem: 0 is random search's median, 1 the best median of
    any method; where that is random search's own, or it is missing, 0 is the worst median.

    Args:
        grouped: What `group` returned, or a part of it.
    """
    model = first_model(grouped)
    met = {key: runs for key, runs in grouped.items() if model is None or model in runs}
    shared = _shared_labels(met)
    ranked: dict[str, dict[ProblemKey, np.ndarray]] = {label: {} for label in shared}
    strata: dict[str, list[np.ndarray]] = {label: [] for label in shared}
    problems: list[ProblemKey] = []
    instances = 0
    for key, runs in met.items():
        seeds = _shared_seeds(runs, shared)
        if not seeds:
            continue
        problems.append(key)
        instances += len(seeds)
        table = np.array([[score(runs[label].lines[s]) for s in seeds] for label in shared])
        places = np.array([ranks(column) for column in table.T.tolist()]).T
        scaled = normalize(table, shared, runs)
        for label, own, values in zip(shared, places, scaled, strict=True):
            ranked[label][key] = own
            strata[label].append(values)
    labels = tuple(shared) if problems else ()
    everyone = dict.fromkeys(label for runs in met.values() for label in runs)
    return Comparison(
        labels,
        instances,
        {label: float(np.concatenate([*ranked[label].values()]).mean()) for label in labels},
        {label: interquartile_mean(np.concatenate(strata[label])) for label in labels},
        {label: bootstrap_interval(strata[label]) for label in labels},
        tuple(problems),
        {label: {k: float(v.mean()) for k, v in ranked[label].items()} for label in labels},
        tuple(label for label in everyone if label not in labels),
        tuple(key for key in grouped if key not in problems),
    )


def _shared_labels(grouped: Mapping[ProblemKey, Mapping[str, Runs]]) -> list[str]:
    first = next(iter(grouped.values()), {})
    return [label for label in first if all(label in runs for runs in grouped.values())]


def _shared_seeds(runs: Mapping[str, Runs], labels: Sequence[str]) -> list[int]:
    found = [set(runs[label].lines) for label in labels]
    return sorted(set.intersection(*found)) if found else []


def normalize(table: np.ndarray, labels: Sequence[str], runs: Mapping[str, Runs]) -> np.ndarray:
    """Scale the scores of one problem: 0 for random search's median, 1 for the best median.

    Args:
        table: ``(n_methods, n_seeds)`` scores.
        labels: The methods.
        runs: The runs, which say what method each label is.

    Returns:
        Scores of the same shape, from -1 to 2: one run far off must not decide a mean where
        the medians lie close together.
    """
    medians = np.median(table, axis=1)
    zero = medians.min()
    for label, median in zip(labels, medians, strict=True):
        if runs[label].method == "random":
            zero = median
    if zero >= medians.max():
        zero = medians.min()
    width = medians.max() - zero
    if not width > 0 or not math.isfinite(width):
        return np.zeros_like(table)
    scaled: np.ndarray = np.clip((table - zero) / width, -1.0, 2.0)
    return scaled


@dataclass(frozen=True)
class Duel:
    """One method against another on the instances that both have finished.

    Attributes:
        label: The other method.
        wins: Instances on which the first is better.
        ties: Instances on which they are equal.
        losses: Instances on which the other is better.
        p: Two-sided Wilcoxon signed-rank test of the normalized differences; 1 where all
            are zero.
        adjusted: The same after Holm's correction for all duels of the table.
    """

    label: str
    wins: int
    ties: int
    losses: int
    p: float
    adjusted: float = math.nan


def duels(grouped: Mapping[ProblemKey, Mapping[str, Runs]], label: str) -> list[Duel]:
    """Compare one method with each other one, pair by pair.

    Args:
        grouped: What `group` returned, or a part of it.
        label: The first method.
    """
    others = dict.fromkeys(o for runs in grouped.values() for o in runs if o != label)
    found: list[Duel] = []
    for other in others:
        gaps: list[float] = []
        for runs in grouped.values():
            if label not in runs or other not in runs:
                continue
            pair = [label, other]
            seeds = _shared_seeds(runs, pair)
            if not seeds:
                continue
            table = np.array([[score(runs[name].lines[s]) for s in seeds] for name in pair])
            # Problems have scales of their own: the spread of both methods' scores is the unit.
            finite = table[np.isfinite(table)]
            unit = (finite.max() - finite.min() if finite.size else 0.0) or 1.0
            with np.errstate(invalid="ignore"):
                gap = np.nan_to_num((table[0] - table[1]) / unit, posinf=1e9, neginf=-1e9)
            gaps += gap.tolist()
        if gaps:
            wins, losses = sum(g > 0 for g in gaps), sum(g < 0 for g in gaps)
            found.append(Duel(other, wins, len(gaps) - wins - losses, losses, paired_test(gaps)))
    adjusted = holm([d.p for d in found])
    return [
        Duel(d.label, d.wins, d.ties, d.losses, d.p, a)
        for d, a in zip(found, adjusted, strict=True)
    ]


def paired_test(differences: Sequence[float]) -> float:
    """Return the p value of the two-sided Wilcoxon signed-rank test; zeros are left out."""
    from scipy.stats import wilcoxon

    if not any(differences):
        return 1.0
    return float(wilcoxon(differences, zero_method="wilcox").pvalue)


def holm(values: Sequence[float]) -> list[float]:
    """Return p values adjusted for being several (Holm 1979), in the given order."""
    adjusted = [math.nan] * len(values)
    largest = 0.0
    for place, i in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - place) * values[i]))
        adjusted[i] = largest
    return adjusted


# -- words ---------------------------------------------------------------------------------


def problem_title(key: ProblemKey, runs: Mapping[str, Runs]) -> str:
    """Return a problem's name for readers."""
    line = any_line(runs)
    low, high = line["box"]
    parts = [line["env_id"]]
    if not line["bias"]:
        parts.append("no bias")
    parts.append(f"box ±{high:g}" if low == -high else f"box [{low:g}, {high:g}]")
    parts.append(f"{key.evaluations} evaluations")
    return ", ".join(parts)


def titles(grouped: Mapping[ProblemKey, Mapping[str, Runs]]) -> dict[ProblemKey, str]:
    """Return every problem's name, with as much of the budget as tells them apart."""
    found = {key: problem_title(key, runs) for key, runs in grouped.items()}
    for name, words in (
        ("episodes", "{} episodes each"),
        ("warmup", "{} warm-up policies"),
        ("heldout", "{} held-out starts"),
    ):
        alike: dict[str, set[int]] = defaultdict(set)
        for key, title in found.items():
            alike[title].add(getattr(key, name))
        for key, title in found.items():
            if len(alike[title]) > 1:
                found[key] = f"{title}, {words.format(getattr(key, name))}"
    return found


def any_line(runs: Mapping[str, Runs]) -> Mapping[str, Any]:
    """Return some raw line of a problem, for what is the same in all of them."""
    return next(iter(next(iter(runs.values())).lines.values()))


def first_model(grouped: Mapping[ProblemKey, Mapping[str, Runs]]) -> str | None:
    """Return the label of the headline model's method, or ``None``.

    It is the one that was run on the most problems; of several the first of `METHODS`, and of
    several models the one with the most runs.
    """
    problems: Counter[tuple[int, str]] = Counter()
    counts: Counter[tuple[int, str]] = Counter()
    order = list(METHODS)
    for runs in grouped.values():
        for label, own in runs.items():
            if group_of(own) == "model":
                problems[order.index(own.method), label] += 1
                counts[order.index(own.method), label] += len(own.lines)
    return min(counts, key=lambda k: (-problems[k], k[0], -counts[k]))[1] if counts else None


def missing_runs(
    grouped: Mapping[ProblemKey, Mapping[str, Runs]],
) -> dict[ProblemKey, dict[str, tuple[int, ...]]]:
    """Return the seeds that a method lacks where another method of the problem has them."""
    found: dict[ProblemKey, dict[str, tuple[int, ...]]] = {}
    for key, runs in grouped.items():
        seeds = {s for own in runs.values() for s in own.lines}
        for label, own in runs.items():
            lacking = tuple(sorted(seeds - set(own.lines)))
            if lacking:
                found.setdefault(key, {})[label] = lacking
    return found


def notes(grouped: Mapping[ProblemKey, Mapping[str, Runs]]) -> list[str]:
    """Say what a reader of the tables has to know: what is missing, and what failed."""
    named = titles(grouped)
    found: list[str] = []
    gaps = missing_runs(grouped)
    if gaps:
        count = sum(len(seeds) for own in gaps.values() for seeds in own.values())
        text = " ".join(
            f"{named[key]}: "
            + "; ".join(
                f"{seed_list(seeds)} of {', '.join(k for k, v in own.items() if v == seeds)}"
                for seeds in dict.fromkeys(own.values())
            )
            + "."
            for key, own in gaps.items()
        )
        found.append(
            f"Unfinished: {count} runs that other methods of the same problem have are missing, so "
            f"that medians of a problem are not over the same seeds. {text}"
        )
    everyone = dict.fromkeys(label for runs in grouped.values() for label in runs)
    part = [
        f"{label} ({sum(label in runs for runs in grouped.values())})"
        for label in everyone
        if any(label not in runs for runs in grouped.values())
    ]
    if part:
        found.append(f"Not on all of the {len(grouped)} problems: {', '.join(part)}.")
    unjudged = [
        f"{label} on {named[key]}, seed {seed}"
        for key, runs in grouped.items()
        for label, own in runs.items()
        for seed, line in sorted(own.lines.items())
        if line["heldout"] is None
    ]
    if unjudged:
        found.append(
            "Runs with no held-out score, as all of their points failed or the best one did; they "
            f"count as the worst return that they saw: {'; '.join(unjudged)}."
        )
    return found


def seed_list(seeds: Sequence[int]) -> str:
    """Return seeds in words, such as ``"seeds 0, 3 to 5, 8"``.

    Args:
        seeds: In order.
    """
    spans: list[list[int]] = []
    for seed in seeds:
        if spans and seed == spans[-1][1] + 1:
            spans[-1][1] = seed
        else:
            spans.append([seed, seed])
    text = ", ".join(
        f"{a}" if a == b else f"{a}{', ' if b == a + 1 else ' to '}{b}" for a, b in spans
    )
    return f"seed{'s' if len(seeds) > 1 else ''} {text}"


def group_of(runs: Runs) -> str:
    """Return ``"model"``, ``"ablation"`` or ``"baseline"``."""
    return METHODS[runs.method].group if runs.method in METHODS else "baseline"


def format_p(value: float) -> str:
    """Return a p value for a table."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def format_interval(value: float, low: float, high: float) -> str:
    """Return a value with its interval, two decimals each, for a table."""
    value, low, high = (round(v, 2) + 0.0 for v in (value, low, high))  # no minus before 0.00
    return f"{value:.2f} [{low:.2f}, {high:.2f}]".replace("-", "−")
