from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from llmopt.benchmarks.tasks.table import Task, get_task
from llmopt.policies.episode import episode, mean_or_none
from llmopt.policies.episode_seeds import held_out_seeds, selection_seeds


def evaluate(task, params, seeds):
    with task.evaluator() as evaluator:
        return evaluator.evaluate(params, seeds)


class Faulty(gym.Env):
    """Ten steps; what goes wrong depends on the first parameter."""

    observation_space = spaces.Box(-1, 1, (1,), dtype=np.float64)
    action_space = spaces.Box(-9, 9, (1,), dtype=np.float64)
    made = 0

    def __init__(self):
        type(self).made += 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.uniform(-1, 1, 1), {}

    def step(self, action):
        self.steps += 1
        fault = round(float(action[0]))
        if self.steps == 3 and fault == 1:
            raise RuntimeError("the simulator\nexploded")
        reward = {2: np.nan, 3: np.inf, 4: 1e308}.get(fault, 1.0)
        return np.zeros(1), reward, self.steps >= 10, False, {}


@pytest.fixture
def faulty():
    gym.register("llmopt-test/Faulty-v0", entry_point=Faulty)
    yield Task("faulty", "llmopt-test/Faulty-v0", max_steps=50)
    del gym.registry["llmopt-test/Faulty-v0"]


def plain_return(env_id, params, seed, bias=True):
    """The same episode written out, as a reference."""
    env = gym.make(env_id)
    n = env.observation_space.shape[0]
    table = np.array(params).reshape(n + bias, -1)
    observation, _ = env.reset(seed=seed)
    total, steps, done = 0.0, 0, False
    while not done:
        action = (observation @ table[:n] + (table[n] if bias else 0)).astype(np.float32)
        observation, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        steps += 1
        done = terminated or truncated
    return total, steps


@pytest.mark.parametrize(
    ("task", "count"),
    [("mountaincar-published", 3), ("pendulum", 4), ("swimmer", 18), ("reacher-published", 22)],
)
def test_returns_are_those_of_the_plain_loop(task, count):
    params = np.random.default_rng(3).normal(0, 2, count)
    outcome = evaluate(get_task(task), params, (4, 8))
    expected = [plain_return(get_task(task).env_id, params, s) for s in (4, 8)]
    assert outcome.returns == tuple(e[0] for e in expected)
    assert outcome.lengths == tuple(e[1] for e in expected)
    assert outcome.mean == pytest.approx(np.mean(outcome.returns))


def test_mountaincar_charges_the_unclipped_action():
    # A bias of 6 is a force of 1 and a cost of 3.6 a step.
    outcome = evaluate(get_task("mountaincar-published"), [0, 0, 6.0], (0,))
    assert outcome.lengths == (999,)
    assert outcome.returns[0] == pytest.approx(-3.6 * 999, rel=1e-5)


@pytest.mark.parametrize("task", ["mountaincar", "swimmer", "frozenlake"])
def test_an_evaluation_does_not_depend_on_those_before_it(task):
    with get_task(task).evaluator() as evaluator:
        rng = np.random.default_rng(0)
        a, b = rng.normal(0, 2, (2, evaluator.policy.n_parameters))
        first = evaluator.evaluate(a, (1, 2))
        evaluator.evaluate(b, (3,))
        again = evaluator.evaluate(a, (1, 2))
    assert first.returns == again.returns
    assert first.returns == evaluate(get_task(task), a, (1, 2)).returns


def test_step_cap_ends_an_episode_without_a_time_limit():
    # Up, for ever: a tabular policy that never leaves the upper left corner.
    params = np.tile([1.0, 0, 0, 0], 48)
    outcome = evaluate(get_task("cliffwalking"), params, (0,))
    assert outcome.lengths == (200,)
    assert outcome.returns == (-200.0,)


FAULTS = {
    1: "the environment raised RuntimeError: the simulator",
    2: "the reward of step 1 is nan",
    3: "the reward of step 1 is inf",
    4: "the return is inf",
}


@pytest.mark.parametrize(("fault", "reason"), FAULTS.items())
def test_a_fault_of_the_environment_is_a_failed_evaluation(faulty, fault, reason):
    with faulty.evaluator() as evaluator:
        good = evaluator.evaluate([0.0, 0.0], (1, 2))
        bad = evaluator.evaluate([0.0, fault], (1, 2))
        after = evaluator.evaluate([0.0, 0.0], (1, 2))
    assert bad.mean is None
    assert bad.failure == f"episode 0: {reason}"
    assert bad.returns == ()
    assert good.mean == after.mean == 10.0
    assert after.failure == ""


def test_ctrl_c_is_not_taken_for_a_failure(faulty, monkeypatch):
    def step(self, action):
        raise KeyboardInterrupt

    monkeypatch.setattr(Faulty, "step", step)
    with faulty.evaluator() as evaluator, pytest.raises(KeyboardInterrupt):
        evaluator.evaluate([0.0, 0.0], (1,))


@pytest.mark.parametrize(
    ("task", "ends"), [("mountaincar", (False, True)), ("frozenlake", (True, False))]
)
def test_a_watcher_sees_the_whole_step(task, ends):
    steps = []
    with get_task(task).evaluator() as evaluator:
        params = np.zeros(evaluator.policy.n_parameters)
        outcome = evaluator.evaluate(params, (1,), steps.append)
    assert sum(s.reward for s in steps) == pytest.approx(outcome.returns[0])
    assert (steps[-1].terminated, steps[-1].truncated) == ends
    assert not any(s.terminated or s.truncated for s in steps[:-1])
    assert all(isinstance(s.info, dict) for s in steps)


# -- seeds --------------------------------------------------------------------------------


def test_selection_and_held_out_starts_never_meet():
    selection = {s for seed in range(50) for s in selection_seeds(seed, 100)}
    held_out = {s for seed in range(50) for s in held_out_seeds(seed, 100)}
    assert not selection & held_out
    assert all(s % 2 == 0 for s in selection)
    assert all(s % 2 == 1 for s in held_out)
    assert len(held_out) > 4_990  # and runs of other seeds have other starts


@pytest.mark.parametrize("draw", [selection_seeds, held_out_seeds])
def test_seeds_are_distinct_fixed_and_prefixes_of_each_other(draw):
    seeds = draw(7, 30)
    assert len(set(seeds)) == 30
    assert draw(7, 30) == seeds
    assert draw(7, 10) == seeds[:10]
    assert draw(8, 30) != seeds
    assert all(0 <= s < 2**31 for s in seeds)


# -- one episode --------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "reason"), [(0, ""), *FAULTS.items()])
def test_a_failed_episode_has_no_return(fault, reason):
    made = episode(Faulty(), lambda seen: np.array([fault]), 1, 20)
    assert (made.total is None) == bool(reason)
    assert made.failure == reason
    assert made.end == ("failed" if reason else "terminated")
    assert fault != 1 or (isinstance(made.error, RuntimeError) and not made.by_policy)
    sound = episode(Faulty(), lambda seen: np.zeros(1), 1, 7)
    assert (sound.total, sound.length, sound.end) == (7.0, 7, "step limit")
    assert mean_or_none([sound.total, sound.total]) == 7.0
    assert mean_or_none([sound.total, made.total]) == (8.5 if not fault else None)
    assert mean_or_none([]) is None


@pytest.mark.parametrize("step", [None, 3, (1, 2, 3, 4), (np.zeros(1), "x", False, False, {})])
def test_an_environment_that_answers_anything_is_a_failed_episode(step, monkeypatch):
    monkeypatch.setattr(Faulty, "step", lambda self, action: step)
    assert "the environment raised" in episode(Faulty(), lambda seen: 0, 0, 5).failure


def test_an_exception_of_the_policy_is_told_from_one_of_the_environment():
    def act(seen):
        raise ZeroDivisionError("mine")

    made = episode(Faulty(), act, 0, 5)
    assert made.by_policy
    assert made.failure == "the policy raised ZeroDivisionError: mine"
