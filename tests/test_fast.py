from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from llmopt.benchmarks.tasks.fast import FastEvaluator
from llmopt.benchmarks.tasks.table import Task, get_task
from llmopt.errors import ParameterError

# Large seeds and small, policies near zero and at the border of the box: gentle and wild ones.
SEEDS = (0, 12, 2**31 - 1)
# Where only the last digit may differ: Gymnasium squares some of Pendulum's float32 torques
# with the C library's powf, whose rounding is its own.
ROUNDED = {"pendulum"}


def policies(n_parameters: int, count: int) -> np.ndarray:
    rng = np.random.default_rng(n_parameters)
    drawn = rng.normal(0, 3, (count, n_parameters)).round(1).clip(-6, 6)
    drawn[::3] *= 0.05
    drawn[-1] = 0
    return drawn


def solving(task: str) -> np.ndarray:
    """A policy that does well, for tasks where random ones end at once or never."""
    return {
        "mountaincar": np.array([[0, 11.5, 0], [0.1, 15.0, 0.2]]),
        "mountaincar-discrete": np.array([[0, 0, 0, -50.0, 0, 50, 0, 0, 0]]),
        "cartpole": np.array([[-0.1, 0.1, -0.5, 0.5, -2.0, 2, -1, 1, 0, 0]]),
    }.get(task, np.empty((0, 0)))


@pytest.mark.parametrize(
    ("task", "count"),
    [
        ("mountaincar", 12),
        ("mountaincar-discrete", 12),
        ("cartpole", 12),
        ("pendulum", 8),
        ("acrobot", 5),
        ("frozenlake", 4),
    ],
)
def test_every_episode_equals_the_plain_evaluator(task, count):
    with get_task(task).evaluator() as plain, FastEvaluator(get_task(task)) as quick:
        drawn = policies(plain.policy.n_parameters, count)
        drawn = np.concatenate([drawn, solving(task)]) if solving(task).size else drawn
        expected = [plain.evaluate(p, SEEDS) for p in drawn]
        found = quick.evaluate_batch(drawn, SEEDS)
    assert [f.lengths for f in found] == [e.lengths for e in expected]
    assert len({length for f in found for length in f.lengths}) > 1 or task == "pendulum"
    if task in ROUNDED:
        np.testing.assert_allclose(
            [f.returns for f in found], [e.returns for e in expected], rtol=1e-12
        )
    else:
        assert [f.returns for f in found] == [e.returns for e in expected]


@pytest.mark.parametrize("task", ["mountaincar", "cliffwalking"])
def test_the_box_and_the_bias_are_the_tasks_own(task):
    changed = get_task(task, bias=not get_task(task).bias, box=(-15.0, 15.0))
    with changed.evaluator() as plain, FastEvaluator(changed) as quick:
        params = np.random.default_rng(0).uniform(-15, 15, (3, plain.policy.n_parameters))
        expected = [plain.evaluate(p, (1, 3)).returns for p in params]
        assert [e.returns for e in quick.evaluate_batch(params, (1, 3))] == expected


def test_what_ran_before_leaves_no_trace():
    with FastEvaluator(get_task("cartpole")) as quick:
        params = policies(quick.policy.n_parameters, 7)
        first = [e.returns for e in quick.evaluate_batch(params, SEEDS)]
        turned = [e.returns for e in quick.evaluate_batch(params[::-1], SEEDS[::-1])]
        assert [row[::-1] for row in turned[::-1]] == first
        assert quick.evaluate(params[2], SEEDS[1:2]).returns == first[2][1:2]


def test_more_episodes_than_fit_at_a_time():
    task = get_task("cartpole")
    with FastEvaluator(task) as quick, task.evaluator() as plain:
        params = policies(quick.policy.n_parameters, 1)
        seeds = range(150)
        assert quick.evaluate_batch(params, seeds)[0].returns == (
            plain.evaluate(params[0], seeds).returns
        )


def test_an_environment_with_options_of_its_own_is_left_to_gymnasium():
    gym.register(
        "llmopt-test/EasyPendulum-v0",
        entry_point="gymnasium.envs.classic_control:PendulumEnv",
        kwargs={"g": 1.0},
        max_episode_steps=20,
    )
    try:
        with FastEvaluator(Task("easy", "llmopt-test/EasyPendulum-v0")) as quick:
            assert not quick.batched
            assert quick.evaluate([0.0, 0, 0, 0], (1,)).lengths == (20,)
    finally:
        del gym.registry["llmopt-test/EasyPendulum-v0"]


class Faulty(gym.Env):
    """Five steps; the second reward is the action, or an exception if that is negative."""

    observation_space = spaces.Box(-1, 1, (1,), dtype=np.float64)
    action_space = spaces.Box(-9, 9, (1,), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1), {}

    def step(self, action):
        self.steps += 1
        if action[0] < 0:
            raise RuntimeError("broken")
        return np.zeros(1), float(action[0]), self.steps >= 5, False, {}


def test_a_failed_policy_fails_alone_and_in_the_same_words():
    gym.register("llmopt-test/Faulty2-v0", entry_point=Faulty)
    try:
        task = Task("faulty", "llmopt-test/Faulty2-v0")
        with FastEvaluator(task) as quick, task.evaluator() as plain:
            params = [[0.0, 2.0], [0.0, -1.0], [0.0, np.inf], [0.0, 3.0]]
            found = quick.evaluate_batch(params, (1, 2))
            expected = [plain.evaluate(p, (1, 2)) for p in params]
    finally:
        del gym.registry["llmopt-test/Faulty2-v0"]
    assert [f.failure for f in found] == [e.failure for e in expected]
    assert [bool(f.failure) for f in found] == [False, True, True, False]
    assert [f.returns for f in found] == [e.returns for e in expected]
    assert found[3].mean == 15.0


@pytest.mark.parametrize("task", ["mountaincar", "pendulum"])
def test_a_policy_that_breaks_the_arithmetic_is_judged_by_gymnasium(task):
    with FastEvaluator(get_task(task)) as quick, get_task(task).evaluator() as plain:
        params = np.zeros((2, quick.policy.n_parameters))
        params[1, -1] = 1e200  # infinite in float32
        sound, broken = quick.evaluate_batch(params, (4,))
        assert sound.returns == plain.evaluate(params[0], (4,)).returns
        again = plain.evaluate(params[1], (4,))
        assert (broken.returns, broken.failure) == (again.returns, again.failure)


def test_edges_of_a_call():
    with FastEvaluator(get_task("mountaincar")) as quick:
        assert quick.evaluate_batch(np.empty((0, 3)), (1,)) == []
        assert [e.returns for e in quick.evaluate_batch(np.zeros((2, 3)), ())] == [(), ()]
        with pytest.raises(ParameterError, match=r"expected \(n, 3\)"):
            quick.evaluate_batch(np.zeros((2, 4)), (1,))
        kept = np.zeros((1, 3))
        quick.evaluate_batch(kept, (1,))
        assert not kept.any()
