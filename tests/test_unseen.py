"""The systems that nobody tuned the prompt for: they run, repeat, and reach their references."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from llmopt import ScriptedClient
from llmopt.benchmarks.engine.cell import Cell
from llmopt.benchmarks.experiments import command, design
from llmopt.benchmarks.experiments.unseen_more import PROBLEMS, REFERENCES, Balloon, Unknown
from llmopt.policies import PolicySearch
from llmopt.space import Space


@pytest.mark.parametrize("task", PROBLEMS)
def test_a_reference_reaches_its_value_and_beats_random_points(task):
    point, value = REFERENCES[task]
    problem, rng = PROBLEMS[task], np.random.default_rng(1)
    assert problem.judge(point) == pytest.approx(value, rel=1e-3)
    space = Space(problem.space)
    assert all(problem.judge(space.unflatten(space.sample(rng))) > value for _ in range(20))


@pytest.mark.parametrize("kind", [Balloon, Unknown])
def test_an_environment_is_sound_and_its_episodes_repeat(kind):
    env = kind()
    check_env(env, skip_render_check=True)
    flat = np.random.default_rng(0).normal(size=2 * (env.observation_space.shape[0] + 1))
    with PolicySearch(kind, "smollm2", seed=3, words="none") as search:
        params = dict(zip(search.optimizer.space.names, map(float, flat), strict=True))
        measured = search.measure(params, search.starts)[0].returns
        assert measured == search.measure(params, search.starts)[0].returns
    assert len({round(value, 6) for value in measured}) == len(search.starts)


@pytest.mark.parametrize("task", PROBLEMS)
def test_an_objective_is_deterministic_and_finite_all_over_its_space(task):
    problem = PROBLEMS[task]
    space, rng = Space(problem.space), np.random.default_rng(0)
    for _ in range(50):
        point = space.unflatten(space.sample(rng))
        one, again = problem.objective(point), problem.objective(point)
        assert math.isfinite(one.value)
        assert (one.value, one.feedback) == (again.value, again.feedback)


def test_a_described_problem_is_searched_with_its_description(monkeypatch, tmp_path):
    answer = "Start from: new\nProposal:\n100, 0.02, 3, 2, triangular, 1.3, 8, 10"
    client = ScriptedClient([answer])
    client.default_prompt = "words"
    monkeypatch.setattr(command, "load", lambda model: client)
    cell = Cell("birch", "prompt-eight", 20, 1, "folder:x")
    line = design.run_cell(cell, "folder:x", tmp_path)
    text = client.requests[0].text
    assert "Dittus-Boelter" in text
    assert "birch" not in text
    assert line["optimum"] == REFERENCES["birch"][1]
    assert line["sources"] == ["llm"]
    assert line["curve"] == [line["best"]]
    assert line["best"] > line["optimum"]
