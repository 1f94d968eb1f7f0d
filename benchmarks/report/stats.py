"""Statistics of a benchmark's runs: nothing here runs anything.

Ranks, wins and aggregates compare methods on equal terms: only on the seeds of a problem that
all of the compared methods have finished.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmopt.benchmarks.report.lines import Grouped, ProblemKey, Runs, every, first_model, score

RESAMPLES = 2000
LEVEL = 0.05  # a corrected p value below it is significant
BAND = (0.4, 0.6)  # "level" is said where the whole interval of a share lies in it

Scores = Mapping[str, Mapping[str, Mapping[int, float]]]
"""By method, task and seed; the larger, the better."""


def quartiles(values: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """Return lower quartile, median and upper quartile; between infinities, the nearest."""
    table = np.asarray(values, dtype=float)
    method: Any = "linear" if np.isfinite(table).all() else "nearest"
    low, middle, high = np.quantile(table, [0.25, 0.5, 0.75], method=method)
    return float(low), float(middle), float(high)


def interquartile_mean(values: np.ndarray) -> Any:
    """Return the mean of the middle half (Agarwal et al. 2021, arXiv 2108.13264)."""
    from scipy.stats import trim_mean

    return trim_mean(values, 0.25, axis=-1)


def mean(values: np.ndarray) -> Any:
    """Return the mean along the last axis."""
    return values.mean(axis=-1)


def bootstrap_interval(
    strata: Sequence[np.ndarray],
    statistic: Callable[[np.ndarray], Any] = interquartile_mean,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """Return a percentile bootstrap interval, resampled within each stratum."""
    rng = np.random.default_rng(seed)
    drawn = np.hstack([v[rng.integers(len(v), size=(resamples, len(v)))] for v in strata])
    tail = (1 - level) / 2
    low, high = np.quantile(statistic(drawn), [tail, 1 - tail])
    return float(low), float(high)


def ranks(scores: Sequence[float]) -> list[float]:
    """Return the rank of each score, 1 for the largest; equal ones share their mean rank."""
    from scipy.stats import rankdata

    places: list[float] = rankdata(-np.asarray(scores, dtype=float)).tolist()
    return places


@dataclass(frozen=True)
class Comparison:
    """Methods compared on the instances (problem and seed) that all of them have finished."""

    labels: tuple[str, ...]  # the methods: those that took part in every problem compared
    instances: int  # how many instances there are
    mean_rank: dict[str, float]  # of each method, 1 is best
    iqm: dict[str, float]  # interquartile mean of the normalized scores of each method
    interval: dict[str, tuple[float, float]]  # its bootstrap interval
    problems: tuple[ProblemKey, ...]  # the problems, in order
    absent: tuple[str, ...]  # skipped methods, which lack a run on some of the problems
    dropped: tuple[ProblemKey, ...]  # problems without the headline model, or without a shared seed


def compare(grouped: Grouped) -> Comparison:
    """Compare the methods that took part in every problem that the headline model met.

    Scores are normalized on each problem: 0 is random search's median, 1 the best median of
    any method; where that is random search's own, or it is missing, 0 is the worst median.
    """
    model = first_model(grouped)
    met = {key: runs for key, runs in grouped.items() if model is None or model in runs}
    first = next(iter(met.values()), {})
    shared = [label for label in first if all(label in runs for runs in met.values())]
    ranked: dict[str, list[np.ndarray]] = {label: [] for label in shared}
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
        for label, row, values in zip(shared, places, scaled, strict=True):
            ranked[label].append(row)
            strata[label].append(values)
    labels = tuple(shared) if problems else ()
    everyone = dict.fromkeys(runs.label for runs in every(met))
    return Comparison(
        labels,
        instances,
        {label: float(np.concatenate(ranked[label]).mean()) for label in labels},
        {label: float(interquartile_mean(np.concatenate(strata[label]))) for label in labels},
        {label: bootstrap_interval(strata[label]) for label in labels},
        tuple(problems),
        tuple(label for label in everyone if label not in labels),
        tuple(key for key in grouped if key not in problems),
    )


def _shared_seeds(runs: Mapping[str, Runs], labels: Sequence[str]) -> list[int]:
    finished = [set(runs[label].lines) for label in labels]
    return sorted(set.intersection(*finished)) if finished else []


def normalize(table: np.ndarray, labels: Sequence[str], runs: Mapping[str, Runs]) -> np.ndarray:
    """Scale the scores of one problem: 0 for random search's median, 1 for the best median."""
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
    return np.asarray(np.clip((table - zero) / width, -1.0, 2.0))


@dataclass(frozen=True)
class Duel:
    """One method against another on the instances that both have finished."""

    label: str  # the other method
    wins: int  # instances on which the first is better
    ties: int  # instances on which they are equal
    losses: int  # instances on which the other is better
    p: float  # Wilcoxon's signed-rank test of the gaps; 1 where all are zero
    adjusted: float = math.nan  # the same after Holm's correction for all duels of the table


def duels(grouped: Grouped, label: str) -> list[Duel]:
    """Compare one method with each other one, pair by pair."""
    others = dict.fromkeys(runs.label for runs in every(grouped) if runs.label != label)
    gaps: dict[str, list[float]] = {}
    for other in others:
        for runs in grouped.values():
            pair = [label, other]
            seeds = _shared_seeds(runs, pair) if label in runs and other in runs else []
            if not seeds:
                continue
            table = np.array([[score(runs[name].lines[s]) for s in seeds] for name in pair])
            # Each problem has its own scale: the spread of both methods' scores is the unit.
            finite = table[np.isfinite(table)]
            unit = (finite.max() - finite.min() if finite.size else 0.0) or 1.0
            with np.errstate(invalid="ignore"):
                gap = np.nan_to_num((table[0] - table[1]) / unit, posinf=1e9, neginf=-1e9)
            gaps.setdefault(other, []).extend(gap.tolist())
    return list(fought(gaps).values())


def fought(gaps: Mapping[str, Sequence[float]]) -> dict[str, Duel]:
    """Return the duels with some rivals, of each pair's gap: above 0 where the pair is won."""
    tests = [paired_test(own) for own in gaps.values()]
    found = {}
    for (label, own), p, adjusted in zip(gaps.items(), tests, holm(tests), strict=True):
        wins, losses = sum(g > 0 for g in own), sum(g < 0 for g in own)
        found[label] = Duel(label, wins, len(own) - wins - losses, losses, p, adjusted)
    return found


def paired_test(differences: Sequence[float]) -> float:
    """Return the p value of the two-sided Wilcoxon signed-rank test; zeros are dropped."""
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


@dataclass(frozen=True)
class Pairing:
    """A method against a rival: the probability of improvement of Agarwal et al. 2021, section 4.3.

    All runs of the method meet all runs of the rival on the same task. A share is averaged over the
    parts of a task (the dimensions of a function), then over tasks.
    """

    rival: str
    won: Mapping[str, Sequence[np.ndarray]]  # by task and part: (runs, rival's runs), ties are 0.5
    same_seed: bool = False  # whether a run met one run of the rival, whose array then has 1 column

    @functools.cached_property
    def shares(self) -> np.ndarray:
        """The share of pairs won on each task."""
        return np.array([np.mean([w.mean() for w in parts]) for parts in self.won.values()])

    @property
    def tasks(self) -> int:
        """How many tasks both have searched."""
        return len(self.won)

    @property
    def pairs(self) -> int:
        """How many pairs of runs there are."""
        return sum(w.size for parts in self.won.values() for w in parts)

    @property
    def runs(self) -> tuple[int, int]:
        """How many runs of the method and of the rival there are."""
        shapes = np.array([w.shape for parts in self.won.values() for w in parts])
        own, others = shapes.sum(axis=0)
        return int(own), int(own if self.same_seed else others)

    @property
    def effect(self) -> float:
        """The share of pairs that the method wins, ties counting half, averaged over tasks."""
        return float(self.shares.mean())

    @property
    def ties(self) -> float:
        """The share of all pairs that are ties."""
        return sum(float((w == 0.5).sum()) for p in self.won.values() for w in p) / self.pairs

    @functools.cached_property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of `effect`: resamples tasks, and on each the runs of both."""
        rng = np.random.default_rng(0)
        drawn = []
        for parts in self.won.values():
            means = []
            for w in parts:
                own, other = (rng.multinomial(n, [1 / n] * n, RESAMPLES) / n for n in w.shape)
                means.append(np.einsum("ri,ij,rj->r", own, w, other))
            drawn.append(np.mean(means, axis=0))
        places = rng.integers(self.tasks, size=(RESAMPLES, self.tasks))
        found = np.take_along_axis(np.array(drawn).T, places, axis=1).mean(axis=1)
        low, high = np.quantile(found, [0.025, 0.975])
        return float(low), float(high)

    @functools.cached_property
    def p(self) -> float:
        """Of a two-sided sign-flip test over tasks, not corrected for several rivals."""
        return sign_flip_test(self.shares - 0.5)

    def verdict(self, adjusted: float, rivals: int = 1) -> str:
        """Return "win", "lose", "level" or "inconclusive", and of the last how many tasks it needs.

        Args:
            adjusted: The corrected p value.
            rivals: How many rivals it was corrected for.
        """
        if adjusted < LEVEL:
            return "win" if self.effect > 0.5 else "lose"
        if self.tasks < fewest_tasks(rivals):
            return f"inconclusive: {fewest_tasks(rivals)} tasks needed"
        low, high = self.interval
        return "level" if BAND[0] <= low and high <= BAND[1] else "inconclusive"


def pair(scores: Scores, method: str, rival: str, label: str, same_seed: bool = False) -> Pairing:
    """Compare two methods on the tasks that both have searched.

    A task "f1 in 2-D" is a part of the task "f1".

    Args:
        scores: Of all methods.
        method: Its key.
        rival: The key of the rival.
        label: The name of the rival.
        same_seed: Pair only runs of the same seed: a rival that begins with the method's own points
            has the method's initial states, too.
    """
    won: dict[str, list[np.ndarray]] = {}
    for task, runs in scores.get(method, {}).items():
        others = scores.get(rival, {}).get(task, {})
        common = [seed for seed in runs if seed in others]
        if same_seed and common:
            difference = np.array([[runs[seed] - others[seed]] for seed in common])
        elif others and not same_seed:
            own, other = (np.array(list(each.values())) for each in (runs, others))
            difference = own[:, None] - other[None, :]
        else:
            continue
        won.setdefault(task.partition(" in ")[0], []).append(0.5 + 0.5 * np.sign(difference))
    return Pairing(label, won, same_seed)


def sign_flip_test(differences: np.ndarray, draws: int = 99_999) -> float:
    """Return the p value of the two-sided sign-flip test of a mean of 0.

    If neither method is better, each task's difference is as likely to have the other sign. Up to
    14 tasks all signs are tried, beyond that `draws` random ones.
    """
    count = len(differences)
    if count <= 14:
        signs = 1 - 2.0 * (np.arange(2**count)[:, None] >> np.arange(count) & 1)
    else:
        flips = np.random.default_rng(0).integers(2, size=(draws, count))
        signs = np.vstack([np.ones(count), 1 - 2.0 * flips])
    means = np.abs(signs @ differences)
    return float(np.mean(means >= means[0] - 1e-9))


def fewest_tasks(rivals: int) -> int:
    """Return from how many tasks on the test can be significant, if all of them are won."""
    return next(n for n in range(1, 64) if rivals * 2 / 2**n < LEVEL)


def format_p(value: float) -> str:
    """Return a p value for a table."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def format_interval(value: float, low: float, high: float) -> str:
    """Return a value with its interval, two decimals each, for a table."""
    value, low, high = (round(v, 2) + 0.0 for v in (value, low, high))  # no minus before 0.00
    return f"{value:.2f} [{low:.2f}, {high:.2f}]".replace("-", "−")
