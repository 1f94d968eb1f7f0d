"""Rollouts in NumPy give what Gymnasium gives, to the last digit."""

from __future__ import annotations

import numpy as np
import pytest

from llmopt.benchmarks.tasks.fast import FastEvaluator
from llmopt.benchmarks.tasks.table import get_task

# Large seeds and small, policies near zero and at the border of the box: gentle and wild ones.
SEEDS = (0, 12, 2**31 - 1, 7)
SOLVING = {
    "mountaincar": [[0, 11.5, 0], [0.1, 15.0, 0.2]],
}
"""Policies that do well: random ones end at once or never."""


def policies(n_parameters: int, count: int) -> np.ndarray:
    rng = np.random.default_rng(n_parameters)
    drawn = rng.normal(0, 3, (count, n_parameters)).round(1).clip(-6, 6)
    drawn[::3] *= 0.05
    drawn[-1] = 0
    return drawn


@pytest.mark.parametrize(
    ("task", "batched"),
    [
        ("mountaincar", True),
        ("cartpole", False),
        ("pendulum", False),
    ],
)
def test_every_episode_equals_the_plain_evaluator(task, batched):
    with get_task(task).evaluator() as plain, FastEvaluator(get_task(task)) as quick:
        assert quick.batched == batched
        drawn = [*policies(plain.policy.n_parameters, 9), *np.array(SOLVING.get(task, []))]
        for params in drawn:
            found, expected = (each.evaluate(params, SEEDS) for each in (quick, plain))
            assert (found.returns, found.lengths) == (expected.returns, expected.lengths)
        few = quick.evaluate(drawn[0], SEEDS[1:2])
        assert few.returns == quick.evaluate(drawn[0], SEEDS[::-1]).returns[::-1][1:2]
