"""Statistics of benchmarks: the probability of improvement."""

from __future__ import annotations

import math

import numpy as np
import pytest

from llmopt.benchmarks.report.stats import (
    Pairing,
    fewest_tasks,
    holm,
    pair,
    sign_flip_test,
)


def test_holm_corrects_for_several_tests():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def won(*shares):
    """Return a pairing with the given share of each task, of one pair."""
    return Pairing("rival", {f"t{i}": [np.array([[s]])] for i, s in enumerate(shares)})


def test_all_runs_meet_all_runs_of_the_rival_and_ties_are_named():
    scores = {
        "a": {"t": {0: 3.0, 1: 1.0}, "u in 2-D": {5: 2.0}, "u in 5-D": {0: 1.0}, "own": {0: 1.0}},
        "b": {"t": {0: 2.0, 1: 1.0, 2: 0.0}, "u in 2-D": {7: 9.0}, "u in 5-D": {3: 0.0}},
    }
    pairing = pair(scores, "a", "b", "B")
    assert (pairing.tasks, pairing.pairs) == (2, 6 + 1 + 1)
    assert pairing.shares.tolist() == [pytest.approx((3 + 1.5) / 6), 0.5]
    assert pairing.effect == pytest.approx((0.75 + 0.5) / 2)
    assert pairing.ties == 1 / 8
    low, high = pairing.interval
    assert 0 <= low < pairing.effect < high <= 1
    assert pair(scores, "b", "a", "A").effect == pytest.approx(1 - pairing.effect)
    assert pair(scores, "a", "b", "B", same_seed=True).runs == (2, 2)
    assert pair(scores, "a", "nobody", "N").tasks == 0
    failed = {"a": {"t": {0: -math.inf}}, "b": {"t": {0: -math.inf}}}
    assert pair(failed, "a", "b", "B").effect == 0.5


def test_level_needs_a_narrow_interval():
    assert won(*[1.0] * 9).verdict(0.004) == "win"
    assert won(*[0.0] * 9).verdict(0.004) == "lose"
    assert won(*[0.5] * 9).verdict(1.0) == "level"
    assert won(*[0.0, 1.0] * 5).verdict(1.0) == "inconclusive"
    # Six tasks and five rivals: no outcome has a corrected p below 5 * 2 / 64.
    assert won(*[1.0] * 6).verdict(5 * won(*[1.0] * 6).p, 5) == "inconclusive: 8 tasks needed"
    assert won(*[1.0] * 6).verdict(won(*[1.0] * 6).p) == "win"
    assert [fewest_tasks(rivals) for rivals in (1, 2, 5, 9)] == [6, 7, 8, 9]


def test_the_sign_flip_test_is_exact_for_few_tasks():
    assert sign_flip_test(np.array([0.5] * 6)) == 2 / 64
    assert sign_flip_test(np.array([0.1, -0.1])) == 1.0
    assert sign_flip_test(np.array([3.0, 1.0, -1.0])) == 0.75  # six of eight sums
    assert sign_flip_test(np.array([0.5] * 30)) == pytest.approx(1e-5, rel=0.01)
    rng = np.random.default_rng(0)
    ps = [sign_flip_test(rng.normal(size=20), draws=199) for _ in range(300)]
    assert 0.02 < np.mean(np.array(ps) <= 0.05) < 0.09
