from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import ClipAction, RescaleObservation

from llmopt.benchmarks.tasks.table import TASKS, UnknownTaskError, get_task
from llmopt.errors import LLMOptError, SpaceError
from llmopt.policies.episode import STEP_CAP
from llmopt.policies.linear import MAX_PARAMETERS, LinearPolicy

BOX = spaces.Box(-1, 1, (2,), dtype=np.float32)


def test_flat_layout_is_weights_row_by_row_then_bias():
    policy = LinearPolicy(spaces.Box(-9, 9, (2,)), spaces.Box(-9, 9, (3,), dtype=np.float64))
    assert policy.n_parameters == 9
    action = policy.bind([1, 2, 3, 10, 20, 30, 0.1, 0.2, 0.3])([1.0, 2.0])
    np.testing.assert_allclose(action, [21.1, 42.2, 63.3])


@pytest.mark.parametrize("shape", [(2,), (2, 3), ()])
def test_box_action_has_the_environments_shape_and_dtype_and_is_not_clipped(shape):
    space = spaces.Box(-1, 1, shape, dtype=np.float32)
    policy = LinearPolicy(spaces.Box(-1, 1, (1,)), space, bias=False)
    action = policy.bind(np.full(policy.n_parameters, 6.0))(np.array([1.0]))
    assert action.shape == shape
    assert action.dtype == np.float32
    assert (action == 6.0).all()


def test_integer_box_action_is_rounded_and_clipped_to_what_the_dtype_holds():
    policy = LinearPolicy(BOX, spaces.Box(0, 255, (1,), dtype=np.uint8))
    action = policy.bind([0, 0, -7.0])(np.zeros(2))
    assert action.dtype == np.uint8
    assert action == 0
    assert policy.bind([0, 0, 7.6])(np.zeros(2)) == 8


def test_discrete_action_is_the_first_largest_output_with_its_start():
    policy = LinearPolicy(BOX, spaces.Discrete(3, start=5))
    act = policy.bind([0, 0, 0, 0, 0, 0, 1, 2, 2])
    assert act(np.zeros(2)) == 6
    assert isinstance(act(np.zeros(2)), int)


def test_discrete_observation_is_a_table():
    policy = LinearPolicy(spaces.Discrete(3, start=2), spaces.Discrete(2), bias=False)
    assert policy.n_parameters == 6
    act = policy.bind([0, 1, 1, 0, 0, 1])
    assert [act(s) for s in (2, 3, 4)] == [1, 0, 1]


def test_image_observation_is_flattened():
    policy = LinearPolicy(spaces.Box(0, 255, (2, 2), dtype=np.uint8), BOX)
    assert policy.n_inputs == 4
    np.testing.assert_allclose(
        policy.bind(np.ones(10))(np.full((2, 2), 200, dtype=np.uint8)), [801, 801]
    )


@pytest.mark.parametrize(
    "space",
    [
        spaces.Tuple([BOX, BOX]),
        spaces.Dict(a=BOX),
        spaces.MultiBinary(3),
        spaces.MultiDiscrete([2, 2]),
        spaces.Text(3),
    ],
)
def test_other_spaces_are_refused_with_the_supported_ones_named(space):
    with pytest.raises(SpaceError, match="supported are Box and Discrete observations"):
        LinearPolicy(space, BOX)
    with pytest.raises(SpaceError, match="actions from"):
        LinearPolicy(BOX, space)


# -- tasks --------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS, ids=lambda t: t.alias)
def test_every_shipped_task_can_be_made_and_searched(task):
    env = task.make_env()
    try:
        assert 1 <= task.policy(env).n_parameters <= MAX_PARAMETERS
        assert 1 <= task.step_cap(env) <= STEP_CAP
        assert task.description
    finally:
        env.close()


def test_the_scaled_form_is_gymnasium_s_own_wrappers():
    task = get_task("mountaincar")
    assert get_task("MountainCarContinuous-v0") is task
    inner = gym.make("MountainCarContinuous-v0")
    expected = ClipAction(RescaleObservation(inner, np.float64(-1), np.float64(1)))
    with task.make_env() as env, expected:
        for each in (env, expected):
            each.reset(seed=3)
        (a, reward, *_), (b, other, *_) = (e.step(np.array([7.0])) for e in (env, expected))
        assert a.tolist() == b.tolist()
        assert reward == other == pytest.approx(-0.1)
        policy = task.policy(env)
    # The policy knows the bounds to which its actions are clipped.
    assert policy.action_space == inner.action_space


def test_the_raw_form_of_a_scaled_task_is_the_published_one():
    assert get_task("mountaincar", wrappers=()) == get_task("mountaincar-published")
    assert not get_task("Blackjack-v1", wrappers=()).scaled
    with pytest.raises(SpaceError, match="expected none"):
        get_task("cartpole", wrappers=("ClipAction",))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("swimer-v5", "did you mean 'Swimmer-v5'"),
        ("CartPole-v99", "v99"),
        ("no_such_module:Thing-v0", "cannot import the module 'no_such_module'"),
        ("???", "Valid: acrobot"),
    ],
)
def test_unknown_task_lists_near_names(name, hint):
    with pytest.raises(UnknownTaskError, match=hint.replace("?", r"\?")):
        get_task(name)


@pytest.mark.parametrize("box", [(1, 1), (2, -2), (float("nan"), 1), (-float("inf"), 0)])
def test_a_box_without_room_is_refused(box):
    with pytest.raises(SpaceError, match="two finite numbers"):
        get_task("mountaincar", box=box)


def test_an_environment_without_a_time_limit_is_capped():
    env = gym.make("CliffWalking-v1")
    assert env.spec.max_episode_steps is None
    assert get_task("cliffwalking").step_cap(env) == 200


def test_a_policy_too_large_to_search_is_refused():
    class Wide(gym.Env):
        observation_space = spaces.Box(0, 1, (MAX_PARAMETERS,))
        action_space = spaces.Discrete(2)

    with pytest.raises(SpaceError, match="20002 parameters"):
        get_task("cartpole").policy(Wide())


def test_an_environment_that_cannot_be_made_is_a_clear_error():
    gym.register("llmopt-test/Broken-v0", entry_point=lambda **_: 1 / 0)
    try:
        with pytest.raises(LLMOptError, match=r"Broken-v0 cannot be made: ZeroDivisionError"):
            get_task("llmopt-test/Broken-v0").make_env()
    finally:
        del gym.registry["llmopt-test/Broken-v0"]
