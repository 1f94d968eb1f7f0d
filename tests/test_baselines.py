from __future__ import annotations

import os
import re

import numpy as np
import pytest

from llmopt.benchmarks.methods.baselines import RandomSearch
from llmopt.benchmarks.methods.protocol import Problem
from llmopt.errors import LLMOptError, install_hint
from llmopt.search.partners import cma
from llmopt.search.partners.cma import CMA


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


def test_random_search_covers_the_box():
    points = drive(RandomSearch(Problem(-2, 5, 2, 500), 0), 500)
    assert points.min() < -1.9
    assert points.max() > 4.9
    assert abs(points.mean() - 1.5) < 0.2


def test_cma_starts_around_the_given_point_with_a_sixth_of_the_width():
    points = drive(CMA(-60, 60, 3, 0, start=[10, 0, -10]), 7)  # the first generation
    np.testing.assert_allclose(points.mean(axis=0), [10, 0, -10], atol=25)
    spread = np.concatenate([CMA(-60, 60, 3, s, [0, 0, 0]).ask() for s in range(300)])
    assert spread.std() == pytest.approx(20, rel=0.15)


def test_cma_moves_a_start_outside_the_box_to_its_border():
    assert np.abs(drive(CMA(-1, 1, 2, 0, start=[50, -50]), 20)).max() <= 1


def test_cma_goes_on_after_converging():
    points = drive(CMA(-6, 6, 2, 0), 1200)
    assert len(np.unique(points.round(2), axis=0)) > 300
    far = np.abs(points[900:] - 1.0).max(axis=1) > 0.5
    assert far.any()


def test_cma_goes_on_where_every_reward_is_the_same():
    points = drive(CMA(-6, 6, 4, 0), 400, lambda x: 0.0)
    assert np.isfinite(points).all()


def test_failed_points_count_as_the_worst():
    # Half the box has no reward; the search must settle in the other half.
    points = drive(CMA(-6, 6, 3, 1, [-3, -3, -3]), 300, lambda x: sphere(x) if x[0] < 0 else None)
    assert (points[-30:, 0] < 0.5).all()


def test_a_generation_of_failures_alone_does_no_harm():
    points = drive(CMA(-6, 6, 3, 1), 60, lambda x: None)
    assert np.isfinite(points).all()


def test_an_asked_point_may_be_changed_by_the_caller():
    a, b = CMA(-6, 6, 2, 0), CMA(-6, 6, 2, 0)
    for _ in range(30):
        x, y = a.ask(), b.ask()
        np.testing.assert_array_equal(x, y)
        value = sphere(x)
        x[:] = 99
        a.tell(x, value)
        b.tell(y, value)


def test_tell_before_ask_is_an_error():
    with pytest.raises(LLMOptError, match="call ask first"):
        CMA(-6, 6, 2, 0).tell(np.zeros(2), 1.0)


def test_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr(cma, "find_spec", lambda name: None)
    with pytest.raises(LLMOptError, match=re.escape(install_hint("bench"))):
        CMA(-1, 1, 2, 0)


def test_cma_writes_no_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    drive(CMA(-6, 6, 2, 0), 30)
    assert os.listdir(tmp_path) == []
