"""The report on a policy's episodes, for a model that reads words."""

from __future__ import annotations

import itertools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from llmopt.errors import SpaceError
from llmopt.policies import EnvMaker, EpisodeStatistics, Evaluation, Evaluator, LinearPolicy, Step

POLICY = LinearPolicy(spaces.Box(-9, 9, (2,)), spaces.Box(-1, 1, (1,)))
NAMES = (("angle", "speed"), ("torque",))


def report(rows, *, policy=POLICY, names=NAMES, ends="terminated", info=None, **options):
    """The report on one episode for each list of observed rows; actions are those of each step."""
    statistics = EpisodeStatistics(policy, *names, **options)
    returns = []
    for episode, seen in enumerate(rows):
        for k, (row, following) in enumerate(itertools.pairwise(seen)):
            last = k == len(seen) - 2
            ended = last and ends == "terminated", last and ends == "limit"
            facts = {} if info is None else info(episode, k)
            observed = np.array(row, dtype=float), np.array([0.5 * k]), 1.0 + episode
            statistics(Step(episode, *observed, np.array(following, float), *ended, facts))
        returns.append((len(seen) - 1) * (1.0 + episode))
    lengths = tuple(len(seen) - 1 for seen in rows)
    return statistics.text(Evaluation(tuple(returns), lengths))


def test_reports_of_short_episodes(check_golden):
    def info(episode, k):
        return {"reward_up": 1.5, "cost_of_push": 0.5, "is_success": episode == 1, "total_cost": 9}

    three = [[(0, 0)] * 3]
    failed = EpisodeStatistics(POLICY, *NAMES)
    observed = np.array([1.0, 2.0])
    failed(Step(0, observed, np.array([0.25]), 1.0, observed, False, False, {}))
    reports = {
        "ended early": report([[(0, 0), (1, -2), (2, 4)], [(0, 0), (3, 1), (1, 1), (5, 0)]]),
        "all to the limit": report(three * 2, ends="limit"),
        "many": report([[(0, 0)] * (2 + k % 3) for k in range(25)]),
        "terms, a cost and no success": report(three, info=info),
        "a term and a rest": report(three, info=lambda episode, k: {"reward_up": 0.25}),
        "one term, which is all": report(three, info=lambda episode, k: {"reward_up": 1.0}),
        "failed": failed.text(Evaluation((), (), "episode 0: it broke")),
    }
    check_golden("reports", "\n".join(f"# {name}\n{text}\n" for name, text in reports.items()))


def test_the_report_keeps_to_its_budget_and_its_first_lines():
    rows = [[(k / 7, -k / 3) for k in range(30)]] * 3
    whole = report(rows)
    for most in (0, 1, 30, 150, 400, 2600):
        text = report(rows, max_chars=most)
        assert len(text) <= most
        assert text[: most // 2] == whole[: most // 2] or most < 150
        assert all(line.endswith((".", "…")) for line in text.splitlines())


def test_a_failure_without_a_step_has_no_report_and_names_must_fit():
    assert EpisodeStatistics(POLICY).text(Evaluation((), (), "no environment")) == ""
    with pytest.raises(SpaceError, match="names of 1 observed numbers"):
        EpisodeStatistics(POLICY, ("angle",))


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "Hopper-v5", "CartPole-v1", "Pendulum-v1"])
def test_every_kind_of_environment_is_reported(env_id):
    make = EnvMaker(env_id)
    with make() as env:
        policy = LinearPolicy.for_env(env, clip=True)
    weights = np.random.default_rng(0).normal(size=policy.n_parameters)
    statistics = EpisodeStatistics(policy)
    with Evaluator(make, policy, 50) as evaluator:
        outcome = evaluator.evaluate(weights, (1, 2, 3), watch=statistics)
    text = statistics.text(outcome)
    lines = text.splitlines()
    assert lines[0].startswith(f"Mean return {outcome.mean:.5g}"[:17])
    assert any(line.startswith("Actions") for line in lines)
    if env_id == "FrozenLake-v1":
        assert "Last steps: " in text
        assert "States visited (action there, share of the steps): s" in text
    else:
        assert "Observed, [minimum, maximum]" in text
        assert "of an episode of the median return: " in text
    if env_id == "Hopper-v5":
        assert "reward_survive" in text


def test_arrays_that_an_environment_reuses_are_copied_and_pictures_are_not_reported():
    class Picture(gym.Env):
        observation_space = spaces.Box(0, 255, (30, 30), np.uint8)
        action_space = spaces.Discrete(2)
        picture = np.zeros((30, 30), np.uint8)

        def reset(self, *, seed=None, options=None):
            self.picture[:] = 0
            return self.picture, {}

        def step(self, action):
            self.picture += 1
            return self.picture, 1.0, False, False, {}

    policy = LinearPolicy.for_env(Picture())
    statistics = EpisodeStatistics(policy)
    with Evaluator(Picture, policy, 3) as evaluator:
        outcome = evaluator.evaluate(np.zeros(policy.n_parameters), (0,), watch=statistics)
    assert [row[0] for row in statistics.data()["observations"][0]] == [0, 1, 2, 3]
    assert "Observed" not in statistics.text(outcome)
