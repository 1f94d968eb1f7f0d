"""Statistics of an evaluation: what is said, in which order, and within which budget."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from llmopt import ScriptedClient
from llmopt.policies import (
    EnvMaker,
    EpisodeStatistics,
    Evaluation,
    Evaluator,
    LinearPolicy,
    PolicySearch,
    Step,
)
from llmopt.policies.line import fit
from llmopt.policies.report.gait import stances
from llmopt.policies.report.statistics import PROBES

POLICY = LinearPolicy(spaces.Box(-9, 9, (2,)), spaces.Box(-1, 1, (1,)))
NAMES = (("angle", "speed"), ("torque",))


class Task:
    """What a benchmark's task is to an evaluator."""

    def __init__(self, env_id, bias=True):
        self.make_env = EnvMaker(env_id)
        self.bias = bias

    def policy(self, env):
        return LinearPolicy.for_env(env, self.bias)

    def step_cap(self, env):
        return env.spec.max_episode_steps

    def evaluator(self):
        env = self.make_env()
        return Evaluator(self.make_env, self.policy(env), self.step_cap(env), env)


def watched(rows, *, policy=POLICY, names=NAMES, actions=None, ends="terminated", **options):
    """Statistics of one episode for each list of rows; a row is an observation."""
    statistics = EpisodeStatistics(policy, *names, **options)
    returns, lengths = [], []
    for episode, seen in enumerate(rows):
        for k, row in enumerate(seen):
            last = k == len(seen) - 1
            action = 0.0 if actions is None else actions(k)
            statistics(
                Step(
                    episode,
                    np.array(row, dtype=float),
                    np.array([action]),
                    1.0 + episode,
                    np.array(row, dtype=float) + 100,
                    last and ends == "terminated",
                    last and ends == "limit",
                    {"reward_up": 2.0, "reward_cost": -1.0 + episode, "is_success": k == 1},
                    SimpleNamespace(unwrapped=None),
                )
            )
        returns.append(len(seen) * (1.0 + episode))
        lengths.append(len(seen))
    return statistics, Evaluation(tuple(returns), tuple(lengths))


def test_episodes_of_different_lengths_may_all_end_by_a_limit():
    lines = statistics_text([[(0, 0)] * 3, [(0, 0)] * 2], ends="limit").splitlines()
    assert (
        lines[0] == "Mean return 3.5 over 2 starts, 1.4 a step; returns in steps: 3 in 3, 4 in 2."
    )


def test_the_first_lines_say_what_came_of_every_start():
    lines = statistics_text([[(0, 0)] * 3, [(0, 0)] * 2]).splitlines()
    assert lines[:2] == [
        "Mean return 3.5 over 2 starts, 1.4 a step; returns in steps, ended early (failure) unless "
        "marked: 3 in 3, 4 in 2 (success).",
        "The parts of the mean return: reward_up 5; reward_cost -1.5.",
    ]


def report(parts, returns=None, steps=4, ends=()):
    """The report of episodes in whose steps `info` names parts, each a list over the episodes."""
    statistics = EpisodeStatistics(POLICY, *NAMES)
    count = len(next(iter(parts.values())))
    returns = returns or [steps * sum(values[e] for values in parts.values()) for e in range(count)]
    for e in range(count):
        info = {name: values[e] for name, values in parts.items()}
        for k in range(steps):
            last = k == steps - 1
            seen = np.zeros(2)
            early = last and e not in ends
            statistics(Step(e, seen, np.zeros(1), returns[e] / steps, seen, early, last, info))
    return statistics.text(Evaluation(tuple(returns), (steps,) * count)).splitlines()


def test_each_start_is_a_row_with_the_parts_that_differ():
    parts = {
        "reward_near": [1.0, 2.0, 9.0],
        "reward_calm": [-1.0, -4.0, -2.0],
        "reward_up": [5.0] * 3,
    }
    lines = report(parts, ends=(1,))
    assert lines[0].endswith(
        "return (reward_calm; the rest is reward_near) in steps, ended early (failure) unless "
        "marked: 20 (-4) in 4, 12 (-16) in 4 (limit), 48 (-8) in 4."
    )
    assert lines[1] == (
        "The parts of the mean return: reward_near 16; reward_calm -9.3333; reward_up 20."
    )


@pytest.mark.parametrize(
    ("parts", "returns", "said"),
    [
        ({"reward_run": [3.0], "ctrl_cost": [1.0]}, [8.0], "reward_run 12; ctrl_cost -4"),
        ({"reward_run": [3.0], "ctrl_cost": [-1.0]}, [8.0], "reward_run 12; ctrl_cost -4"),
        ({"reward_run": [3.0], "bonus": [1.0]}, [10.0], "reward_run 12; bonus 4; the rest -6"),
        ({"reward": [2], "reward_run": [3], "penalty": [1]}, [8.0], "reward_run 12; penalty -4"),
        ({"reward": [2.5]}, [10.0], ""),
    ],
    ids=["a cost", "a negative cost", "the rest", "the whole is no part", "only the whole"],
)
def test_parts_sum_to_the_return(parts, returns, said):
    line = f"The parts of the mean return: {said}."
    assert (line in report(parts, returns)) == bool(said)
    assert any(each.startswith("The parts") for each in report(parts, returns)) == bool(said)


def statistics_text(*args, **options):
    statistics, outcome = watched(*args, **options)
    return statistics.text(outcome)


def test_saturation_counts_steps_at_or_beyond_each_bound():
    text = statistics_text([[(0, 0)] * 4], actions=lambda k: (-1.0, 0.5, 3.0, 4.0)[k])
    assert "torque 1.62 sd 1.98 (25% low, 50% high, up to 4 in size)" in text


def test_the_second_half_and_the_end_are_told():
    rows = [[(float(k), -1.0) for k in range(20)]]
    text = statistics_text(rows)
    assert "angle 14.5 sd 2.87 [0, 19] (55% at a bound); speed -1 sd 0 [-1, -1]" in text
    assert (
        "1 of 1 ended early (failure) with angle above all it was before (119), after 20 steps. "
        "Seen 10 steps before, at the end: angle 10, 119; speed -1, 99." in text
    )
    assert (
        "At steps 2, 3, 4, 6, 8, 11, 14, 19 of it: angle 2, 3, 4, 6, 8, 11, 14, 19; speed" in text
    )
    assert "At the end of the episodes, mean [least, largest]: is_success 0." in text


def hops(text, episodes=1):
    """Contacts after each step as text gives them ("." for none), and what is then reported."""
    rows = [[(float(k), float(k % 7)) for k in range(len(text))]] * episodes
    steps = iter([frozenset({"foot"} if c == "x" else ()) for c in text] * episodes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llmopt.policies.report.recording.touching", lambda env: next(steps))
        options = {"actions": lambda k: k / 100, "ends": "limit", "contacts": True}
        statistics, outcome = watched(rows, **options)
    return statistics.text(outcome)


def test_a_gait_is_told_where_a_body_touches_down_and_leaves():
    lines = hops("x" * 5 + ("." * 8 + "x" * 6) * 5 + "." * 3).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("foot"))
    head = "foot touches down/leaves at steps -/5, 27/33, 41/47, 69/75 of it, 6 stances, median "
    assert lines[at] == (
        head + "steps down 6, up 8: torque -/0.05, 0.27/0.33, 0.41/0.47, 0.69/0.75; "
        "angle -/5, 27/33, 41/47, 69/75; speed -/5, 6/5, 6/5, 6/5."
    )
    assert lines[at + 1].startswith("Observed,")
    assert not any(line.startswith("At steps") for line in lines)


def test_of_starts_that_end_otherwise_the_worst_is_told_beside_a_median_one(monkeypatch):
    statistics = EpisodeStatistics(POLICY, *NAMES, contacts=True)
    touched: set[str] = set()
    monkeypatch.setattr("llmopt.policies.report.recording.touching", lambda env: frozenset(touched))
    lengths = (100, 100, 37)
    for episode, length in enumerate(lengths):
        for k in range(length):
            (touched.add if k % 10 < 4 else touched.discard)("foot")
            seen, last = np.array([k, 1.0]), k == length - 1
            ends = (last and length < 100, last and length == 100)
            env = SimpleNamespace(unwrapped=None)
            statistics(Step(episode, seen, np.zeros(1), 1.0, seen, *ends, {}, env))
    text = statistics.text(Evaluation(tuple(map(float, lengths)), lengths))
    line = next(line for line in text.splitlines() if line.startswith("foot"))
    assert line.startswith(
        "foot touches down/leaves at steps 30/34 of start 3, the worst one (37) "
    )
    assert (
        "| 40/44, 90/94 of start 1, a median one (100), 10 stances, median steps down 4, up 6:"
        in line
    )


@pytest.mark.parametrize(
    ("touching", "found"),
    [
        ("", []),
        ("....", []),
        ("xxxx", [(None, None)]),
        ("..xx", [(2, None)]),
        ("xx....xxx..", [(None, 2), (6, 9)]),
        # What flickers at a landing is one stance.
        ("." * 30 + "x.xx." + "x" * 30 + "." * 30, [(30, 65)]),
        ("xx" + "." * 30 + "x" * 20 + ".x" + "." * 40 + "x", [(None, 2), (32, 54), (94, None)]),
        # Short hops are hops where all are short.
        ("..x..x..x", [(2, 3), (5, 6), (8, None)]),
    ],
)
def test_the_times_on_the_ground(touching, found):
    assert stances([c == "x" for c in touching]) == found


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("episode_reward", [1, 2, 3], "At the end of the episodes, mean [{} 3"),
        ("total_cost", [4, 4, 9], "At the end of the episodes, mean [{} 9"),
        ("reward", [1, 2, 3], "At the end of the episodes, mean [{} 3"),
        ("bonus", [0, 2, 3], "The parts of the mean return: bonus 5"),
        ("consumption_cost", [1, 1, 2], "The parts of the mean return: consumption_cost -4"),
        ("reward_up", [2, 2, 2], "The parts of the mean return: reward_up 6"),
    ],
)
def test_what_is_summed_already_is_not_summed_again(name, values, said):
    statistics = EpisodeStatistics(POLICY, *NAMES)
    for k, value in enumerate(values):
        seen = np.zeros(2)
        statistics(Step(0, seen, np.zeros(1), 1.0, seen, False, k == 2, {name: value}))
    assert said.format(f"least, largest]: {name}") in statistics.text(Evaluation((3.0,), (3,)))


def ending(ends, limit=()):
    """Statistics of episodes of 12 steps that end with these observations."""
    statistics = EpisodeStatistics(POLICY, *NAMES)
    for episode, last in enumerate(ends):
        for k in range(12):
            seen = np.array([0.1 * np.sin(k), 0.01 * k])
            done = k == 11
            following = np.array(last) if done else seen
            ended, cut = done and episode not in limit, done and episode in limit
            statistics(Step(episode, seen, np.zeros(1), 1.0, following, ended, cut, {}))
    n = len(ends)
    return statistics.text(Evaluation((12.0,) * n, (12,) * n))


def test_episodes_are_grouped_by_the_observation_that_their_end_is_about():
    text = ending([(0.21, 0.3), (0.22, 0.2), (-0.3, 0.05), (0.0, 0.05), (0.2, 0.1)], limit=(3,))
    assert (
        "3 of 5 ended early (failure) with angle above all it was before (0.2), after 12 steps"
        in text
    )
    assert "1 of 5 ended early (failure) with angle below all it was before (-0.3)" in text
    assert "Observed in the 1 episode that lasted" in text
    assert "1 of 1 ended early (failure), after 12 steps" in ending([(0.0, 0.05)])


def test_each_probe_speaks_for_itself():
    """A probe is a function of a recording, and gives nothing where it has nothing to say."""
    statistics, outcome = watched([[(float(k), 1.0) for k in range(30)]] * 2)
    recording = statistics
    recording.evaluation = outcome
    said = {probe.__name__: fit(probe(recording), 10_000) for probe in PROBES}
    assert said["parts"].startswith("The parts of the mean return: reward_up 60")
    assert said["endings"].startswith(
        "2 of 2 ended early (failure) with angle above all it was before"
    )
    assert said["facts"] == "At the end of the episodes, mean [least, largest]: is_success 0."
    assert {name for name, text in said.items() if not text} == {
        *("quarters", "contacts", "last_steps", "visited", "gait")
    }
    assert statistics.text(outcome) == "\n".join(filter(None, said.values()))


@pytest.mark.parametrize("most", [120, 300, 500, 1500])
def test_the_budget_is_kept_and_the_first_lines_survive(most):
    rng = np.random.default_rng(0)
    wide = LinearPolicy(spaces.Box(-9, 9, (40,)), spaces.Box(-1, 1, (1,)))
    rows = [rng.normal(size=(50, 40)).tolist() for _ in range(3)]
    text = statistics_text(rows, policy=wide, names=((), ()), max_chars=most)
    assert len(text) <= most
    assert text.startswith("Mean return")
    assert text.endswith((".", "…"))


def test_a_failed_evaluation_says_where_it_failed():
    statistics, _ = watched([[(1, 2)] * 3, [(3, 4)] * 2])
    text = statistics.text(Evaluation((3.0,), (3,), "episode 1: the reward of step 2 is nan"))
    assert "after 2 steps of episode 1" in text
    assert "last seen: angle 3, speed 4" in text
    assert EpisodeStatistics(POLICY).text(Evaluation((), (), "it broke")) == ""


# -- real environments --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "bias", "said"),
    [
        ("CartPole-v1", True, ("Actions taken:", "steps before", "at the end")),
        ("MountainCarContinuous-v0", True, ("torque", "second half")),
        ("Pendulum-v1", True, ("each 200 steps, step limit",)),
        ("Swimmer-v5", True, ("reward_forward", "reward_ctrl", "x_position")),
        ("Hopper-v5", True, ("reward_survive", "ended early", "at the end")),
        ("FrozenLake-v1", False, ("Last steps: ", "-> s", "states visited")),
    ],
)
def test_statistics_cost_no_second_rollout_and_change_nothing(env_id, bias, said):
    with Task(env_id, bias).evaluator() as evaluator:
        params = np.random.default_rng(0).normal(0, 3, evaluator.policy.n_parameters)
        statistics = EpisodeStatistics(
            evaluator.policy, actions=("torque",) if evaluator.policy.n_outputs == 1 else ()
        )
        outcome = evaluator.evaluate(params, (2, 4, 6), watch=statistics)
        text = statistics.text(outcome)
        assert outcome.returns == evaluator.evaluate(params, (2, 4, 6)).returns
        assert statistics.text(outcome) == text
        for words in said:
            assert words in text
        assert f"Mean return {outcome.mean:.5g} " in text


def test_a_hopper_is_told_hop_by_hop():
    """The best policy of a committed search, which hops for all 1,000 steps."""
    lines = map(json.loads, open("benchmarks/results/design.jsonl", encoding="utf-8"))
    found = (x for x in lines if x["cell"]["task"] == "hopper" and "prompt-six" in str(x["cell"]))
    best = max(found, key=lambda line: line["best"])
    with PolicySearch("Hopper-v5", ScriptedClient([])) as search:
        outcome, text = search.measure(best["params"], [0, 1])
    assert min(outcome.lengths) > 900
    line = next(line for line in text.splitlines() if line.startswith("foot touches"))
    assert line.endswith(".")
    assert not line.endswith("….")
    for name in ("torso_z", "torso_x_vel", "foot_hinge_angvel", "thigh_torque", "foot_torque"):
        assert f" {name} " in line
    height = re.search(r" torso_z ([^;]*)", line)[1]
    assert all(1 < float(z) < 2 for z in re.findall(r"[\d.]+", height))
    stances, down, up = map(
        float, re.search(r"(\d+) stances, median steps down (\S+), up (\S+):", line).groups()
    )
    assert 8 < stances < 30
    assert 60 < down + up < 110
    assert len(text) <= 2600


def test_pictures_are_not_kept():
    class Camera(gym.Env):
        observation_space = spaces.Box(0, 255, (30, 30), dtype=np.uint8)
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros((30, 30), np.uint8), {}

        def step(self, action):
            return np.zeros((30, 30), np.uint8), 1.0, True, False, {}

    class CameraTask(Task):
        def __init__(self):
            self.make_env, self.bias = Camera, True

        def step_cap(self, env):
            return 5

    with CameraTask().evaluator() as evaluator:
        statistics = EpisodeStatistics(evaluator.policy)
        outcome = evaluator.evaluate(np.zeros(1802), (0, 2), watch=statistics)
        assert statistics.text(outcome).startswith("Mean return 1 over 2 starts")
        assert not statistics.episodes[0].seen


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("blown", [np.inf, 1e300, -1.7e308])
def test_an_observation_that_blew_up_ends_no_search(blown):
    policy = LinearPolicy(spaces.Box(-np.inf, np.inf, (1,)), spaces.Box(-1, 1, (1,)))
    statistics = EpisodeStatistics(policy)
    seen = [0.0, 1.0, -blown if np.isfinite(blown) else 2.0, blown]
    for k in range(3):
        ended = k == 2
        statistics(
            Step(0, np.array(seen[k : k + 1]), np.zeros(1), 1.0, np.array(seen[k + 1 : k + 2]),
                 ended, False, {})
        )  # fmt: skip
    assert "ended early" in statistics.text(Evaluation((3.0,), (3,)))


def ended(rewards, **info):
    """The report of two episodes with these rewards that the environment ends."""
    statistics = EpisodeStatistics(POLICY, *NAMES)
    for episode in range(2):
        for k, reward in enumerate(rewards):
            last = k == len(rewards) - 1
            seen = np.array([0.01 * k, 0.0])
            statistics(Step(episode, seen, np.zeros(1), reward, seen + last, last, False, info))
    total, n = float(sum(rewards)), len(rewards)
    return statistics.text(Evaluation((total, total), (n, n)))


@pytest.mark.parametrize(
    ("rewards", "info", "said"),
    [
        ([-1, 2, 1, -2, 100], {}, " (success)"),  # a landing
        ([-1, 2, 1, -2, -100], {}, " (failure)"),  # a crash
        ([1, 1, 1, 1], {}, " (failure)"),  # a fall, of what earns with each step
        ([-1, -1, -1, -1], {}, " (success)"),  # a goal, where only time counts
        ([-3, -1, -2, -1.5], {}, ""),  # costs that an end may have saved
        ([1, 1, 1, 1], {"is_success": True}, " (success)"),
        ([1, 1, 1, 9], {"success": 0.0}, " (failure)"),
    ],
)
def test_an_end_in_success_is_told_from_a_failure(rewards, info, said):
    text = ended(rewards, **info)
    assert f"each {len(rewards)} steps, terminated{said}; returns" in text
    assert f"2 of 2 ended early{said} with angle above" in text


def test_a_flag_is_not_at_a_bound():
    policy = LinearPolicy(spaces.Box(np.array([0, -1.0]), np.array([1, 1.0])), POLICY.action_space)
    rows = [[(float(k % 2), 1.0) for k in range(20)]]
    text = statistics_text(rows, policy=policy, ends="limit")
    assert "angle 0.5 sd 0.5 [0, 1];" in text
    assert "speed 1 sd 0 [1, 1] (100% at a bound)" in text
