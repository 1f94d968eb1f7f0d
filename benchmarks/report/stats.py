"""Statistics of a benchmark's runs: the probability of improvement, with interval and p value."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
LEVEL = 0.05  # a corrected p value below it is significant
BAND = (0.4, 0.6)  # "level" means that the whole interval of a share lies in it
FEWEST = 6
"""Minimum number of tasks for a bootstrap interval."""

Scores = Mapping[str, Mapping[str, Mapping[int, float]]]
"""By method, task and seed; the larger, the better."""


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
            own, other = (np.array([[each[s]] for s in common]) for each in (runs, others))
        elif others and not same_seed:
            own, other = np.array([*runs.values()])[:, None], np.array([*others.values()])[None, :]
        else:
            continue
        wins = np.where(own > other, 1.0, np.where(own < other, 0.0, 0.5))
        won.setdefault(task.partition(" in ")[0], []).append(wins)
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


def share(each: Pairing, unit: str) -> str:
    """Return the effect of a pairing in percent, with its interval if there are enough tasks."""
    if each.tasks < FEWEST:
        return f"{100 * each.effect:.0f}{unit} [–]"
    low, high = each.interval
    return f"{100 * each.effect:.0f}{unit} [{100 * low:.0f}, {100 * high:.0f}]"
