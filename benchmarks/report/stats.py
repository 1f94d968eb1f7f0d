"""Statistics of a benchmark's runs: nothing here runs anything.

Ranks, wins and aggregates compare methods on equal terms: only on the seeds of a problem that
all of the compared methods have finished.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmopt.benchmarks.report.lines import Grouped, ProblemKey, Runs, every, first_model, score

RESAMPLES = 2000


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
    absent: tuple[str, ...]  # methods left out, as they have no run on some of the problems
    dropped: tuple[ProblemKey, ...]  # problems without the headline model, or without a shared seed


def compare(grouped: Grouped) -> Comparison:
    """Compare the methods that took part in every problem that the headline model met.

    Scores are normalized on each problem: 0 is random search's median, 1 the best median of
    any method; where that is random search's own, or it is missing, 0 is the worst median.
    """
    model = first_model(grouped)
    met = {key: runs for key, runs in grouped.items() if model is None or model in runs}
    shared = _shared_labels(met)
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


def _shared_labels(grouped: Grouped) -> list[str]:
    first = next(iter(grouped.values()), {})
    return [label for label in first if all(label in runs for runs in grouped.values())]


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
            # Problems have scales of their own: the spread of both methods' scores is the unit.
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


def format_p(value: float) -> str:
    """Return a p value for a table."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def format_interval(value: float, low: float, high: float) -> str:
    """Return a value with its interval, two decimals each, for a table."""
    value, low, high = (round(v, 2) + 0.0 for v in (value, low, high))  # no minus before 0.00
    return f"{value:.2f} [{low:.2f}, {high:.2f}]".replace("-", "−")
