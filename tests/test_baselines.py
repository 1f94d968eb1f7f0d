from __future__ import annotations

import numpy as np
import pytest

from llmopt.benchmarks.methods.baselines import RandomSearch
from llmopt.benchmarks.methods.protocol import Problem
from llmopt.partners.cma import CMA


def sphere(x):
    return -float(np.sum((x - 1.0) ** 2))


def drive(searcher, steps, reward=sphere):
    points = []
    for _ in range(steps):
        x = searcher.ask()
        points.append(x)
        value = reward(x)
        if value is None:
            searcher.tell_failure(x, "no")
        else:
            searcher.tell(x, value)
    return np.array(points)


@pytest.mark.parametrize("n", [1, 18])
def test_points_stay_in_the_box_and_are_new(n):
    points = drive(CMA(-6, 6, n, 3, np.full(n, 6.0)), 60)
    assert np.abs(points).max() <= 6
    assert len(np.unique(points, axis=0)) == 60


def test_cma_finds_the_optimum_and_random_search_does_not():
    methods = {"cma": CMA(-6, 6, 5, 0), "random": RandomSearch(Problem(-6, 6, 5, 400), 0)}
    best = {name: max(map(sphere, drive(method, 400))) for name, method in methods.items()}
    assert best["cma"] > -1e-3
    assert best["random"] < -1e-1


def test_cma_starts_around_the_given_point_with_a_sixth_of_the_width():
    points = drive(CMA(-60, 60, 3, 0, start=[10, 0, -10]), 7)  # the first generation
    np.testing.assert_allclose(points.mean(axis=0), [10, 0, -10], atol=25)
    spread = np.concatenate([CMA(-60, 60, 3, s, [0, 0, 0]).ask() for s in range(60)])
    assert spread.std() == pytest.approx(20, rel=0.15)


def test_cma_goes_on_after_converging():
    points = drive(CMA(-6, 6, 2, 0), 1200)
    assert len(np.unique(points.round(2), axis=0)) > 300
    far = np.abs(points[900:] - 1.0).max(axis=1) > 0.5
    assert far.any()
