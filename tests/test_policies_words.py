"""An environment in words: names, docstring, bounds, scaling, and the probe."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import (
    FlattenObservation,
    RescaleAction,
    RescaleObservation,
    TimeLimit,
    TransformReward,
)

from llmopt import ScriptedClient
from llmopt.errors import LLMOptError, SpaceError
from llmopt.policies import EnvMaker, LinearPolicy, PolicySearch, describe_environment
from llmopt.policies.words.describe import MAX_WORDS, probe_bounds
from llmopt.policies.words.docstrings import meanings
from llmopt.policies.words.naming import slug
from llmopt.policies.words.physics import MAX_PHYSICS, describe_physics
from llmopt.policies.words.task_words import describe_parameters, describe_task


def made(env_id, **kwargs):
    return gym.make(env_id, disable_env_checker=True, **kwargs)


def names(quantities):
    return [q.name for q in quantities]


class Tank(gym.Env):
    """A tank with a leak is to be kept at a level.

    Observations:
        level: height of the water above the wanted one (m)
        inflow: what comes in by the rain

    Actions:
        valve: opening of the valve

    Reward:
        Minus the squared level, a step.

    References:
        A book.
    """

    observation_space = spaces.Box(-5, 5, (2,))
    action_space = spaces.Box(0, 1, (1,), dtype=np.float64)
    clips = True
    charges = "clipped"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        acting = np.clip(action, 0, 1) if self.clips else action
        charged = acting if self.charges == "clipped" else action
        seen = np.full(2, float(acting[0]), np.float32)
        return seen, -(float(charged[0]) ** 2), False, False, {}


def tank():
    return TimeLimit(Tank(), 50)


# -- the whole description ----------------------------------------------------------------


def scaled(env):
    return RescaleObservation(env, np.float32([-1, -1]), np.float32([1, 1]))


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("MountainCarContinuous-v0", {"wrappers": [scaled]}),
        ("FrozenLake-v1", {"ceiling": 1}),
        (tank, {"description": "Keep it level."}),
    ],
    ids=["mountaincar", "frozenlake", "tank"],
)
def test_the_description_of_a_search(env, options, check_golden, request):
    with PolicySearch(env, ScriptedClient([]), "words", starts=3, **options) as search:
        text = search.description
    check_golden(f"policy_{request.node.callspec.id}", text)


MADE = [
    spec_id
    for spec_id, spec in gym.registry.items()
    if isinstance(spec.entry_point, str)
    and spec.entry_point.startswith("gymnasium.envs.")
    and "Gym" not in spec_id
]


@pytest.mark.parametrize("env_id", MADE)
@pytest.mark.filterwarnings("ignore")
def test_every_environment_of_gymnasium_is_described(env_id):
    try:
        env = made(env_id)
    except Exception as error:
        # Those of other packages and of retired MuJoCo versions.
        pytest.skip(f"{type(error).__name__}: {error}")
    with env:
        words = describe_environment(env)
        table = isinstance(env.observation_space, spaces.Discrete)
        if not isinstance(env.observation_space, spaces.Tuple):
            policy = LinearPolicy.for_env(env)
            assert len(words.observations) == (1 if table else policy.n_inputs)
            assert len(words.actions) == policy.n_outputs
            given = names(words.actions)
            assert len(policy.names(names(words.observations), given)) == policy.n_parameters
        for each in (words.observations, words.actions):
            assert len(set(names(each))) == len(each)
            assert all(n and not set(n) & set(" :,;") for n in names(each))
        listed = sum(len(q.name) + len(q.meaning) + 40 for q in words.observations + words.actions)
        physics = "\n".join(describe_physics(env.unwrapped))
        assert 50 < len(words.text) < MAX_WORDS + len(physics) + listed + 1000
        assert "```" not in words.text
        assert len(physics) < MAX_PHYSICS + 120
        assert physics in words.text
        if "-v5" in env_id:
            assert any(name != f"o{i}" for i, name in enumerate(names(words.observations)))
            assert physics.startswith("Physics, from the MuJoCo model: ")
        if env.spec.max_episode_steps:
            assert f"at most {env.spec.max_episode_steps} steps" in words.text


def test_a_long_docstring_is_cut_at_a_line_and_names_are_not(monkeypatch):
    full = describe_environment(made("Hopper-v5")).text
    monkeypatch.setattr("llmopt.policies.words.describe.MAX_WORDS", 1500)
    short = describe_environment(made("Hopper-v5")).text
    assert " … (cut)\n" in short
    assert " … (cut)" not in full
    assert 0 < len(full) - len(short) < len(full) - 1000
    assert "- thigh_joint_angle: angle of the thigh joint (rad)" in short
    assert "at most 1000 steps" in short


# -- names --------------------------------------------------------------------------------


def test_names_are_those_of_the_tables():
    swimmer = describe_environment(made("Swimmer-v5"))
    assert names(swimmer.observations) == [
        "front_tip_angle", "first_rotor_angle", "second_rotor_angle", "tip_x_vel", "tip_y_vel",
        "front_tip_angvel", "first_rotor_angvel", "second_rotor_angvel",
    ]  # fmt: skip
    assert names(swimmer.actions) == ["first_torque", "second_torque"]
    assert swimmer.observations[3].meaning == "velocity of the tip along the x-axis (m/s)"
    cart = describe_environment(made("CartPole-v1"))
    assert names(cart.observations) == ["cart_position", "cart_vel", "pole_angle", "pole_angvel"]
    assert names(cart.actions) == ["left", "right"]
    assert names(describe_environment(made("Pendulum-v1")).observations)[0] == "cos_theta"
    assert names(describe_environment(Tank()).observations) == ["level", "inflow"]


def test_a_column_of_units_is_read():
    rows = "| Num | Observation | {} |\n| --- | --- | --- |\n| 0 | level | {} |\n| 1 | on | - |"
    assert meanings(rows.format("Unit", "m"), 2) == ["level (m)", "on"]
    assert meanings(rows.format("Type (Unit)", "depth (m)"), 2) == ["level (m)", "on"]


@pytest.mark.parametrize(
    ("meaning", "name"),
    [
        ("angle of the front tip (rad)", "front_tip_angle"),
        ("Torque applied on the first rotor (N m)", "first_rotor_torque"),
        ("velocity of the z-coordinate (height) of the torso", "torso_z_vel"),
        ("sine of the angle between the two poles", "angle_between_poles_sin"),
        ("???", ""),
    ],
)
def test_a_name_is_short_and_says_what_it_is(meaning, name):
    assert slug(meaning) == name


def test_users_words_and_names_come_first():
    words = describe_environment(
        made("Pendulum-v1"), words="Mine.", observations=("c", "s: sine", "w"), actions=("u",)
    )
    assert words.text.startswith("Mine.\n")
    assert names(words.observations) == ["c", "s", "w"]
    assert words.observations[1].meaning == "sine"
    acts = ("heater_A", "heater_B: acts late", "Off!")
    assert names(describe_environment(made("MountainCar-v0"), actions=acts).actions) == [
        "heater_A", "heater_B", "off",
    ]  # fmt: skip
    with pytest.raises(SpaceError, match="got 2 names, expected 3"):
        describe_environment(made("Pendulum-v1"), observations=("a", "b"))
    with pytest.raises(SpaceError, match="one text on how the states are numbered"):
        describe_environment(made("FrozenLake-v1"), observations=("a", "b"))


class Swapped(gym.ObservationWrapper):
    """Shows the two numbers in the other order."""

    def observation(self, observation):
        return observation[::-1]


class Both(gym.Env):
    observation_space = spaces.Dict(goal=spaces.Box(-1, 1, (2,)), speed=spaces.Box(-1, 1, (1,)))
    action_space = spaces.Discrete(2)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_names_stay_under_wrappers_that_keep_the_meaning_of_the_numbers():
    env = made("MountainCarContinuous-v0")
    env = RescaleObservation(env, np.float32([-1, -1]), np.float32([1, 1]))
    words = describe_environment(TimeLimit(RescaleAction(env, -0.5, 0.5), 300))
    assert names(words.observations) == ["car_x_position", "car_vel"]
    assert "- car_vel: velocity of the car (v), from -1 to 1" in words.text
    assert "in: RescaleObservation, RescaleAction." in words.text
    assert "at most 300 steps" in words.text
    words = describe_environment(Swapped(made("MountainCar-v0")))
    assert names(words.observations) == ["o0", "o1"]
    assert names(words.actions) == ["left", "dont_accelerate", "right"]
    flat = describe_environment(FlattenObservation(Both()))
    assert names(flat.observations) == ["goal0", "goal1", "speed"]


# -- solved, and the most there can be ----------------------------------------------------


def test_the_solved_return_is_stated_for_the_registered_task_only():
    said = "A mean return of 360 counts as solved"
    assert said in describe_environment(made("Swimmer-v5")).text
    assert said not in describe_environment(made("Swimmer-v5"), step_cap=90).text
    assert said not in describe_environment(made("Swimmer-v5", ctrl_cost_weight=1.0)).text
    rewarded = TransformReward(made("Swimmer-v5"), lambda r: 2 * r)
    assert said not in describe_environment(rewarded).text


class Bonus(gym.Wrapper):
    def step(self, action):
        seen, reward, *ends = super().step(action)
        return (seen, reward + 1, *ends)


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (lambda: gym.make("CartPole-v1"), 500),
        (lambda: gym.make("InvertedPendulum-v5"), 1000),
        (lambda: gym.make("CartPole-v1", max_episode_steps=80), 80),
        (lambda: gym.make("CartPole-v1", sutton_barto_reward=True), None),
        (lambda: gym.make("Hopper-v5"), None),
        (lambda: gym.wrappers.RepeatAction(made("CartPole-v1"), 3), None),
        (lambda: Bonus(made("CartPole-v1")), None),
    ],
)
def test_a_highest_return_is_stated_if_each_step_earns_the_same(make, most):
    with make() as env:
        text = describe_environment(env).text
    assert (f"A return of {most} is the most there can be" in text) == (most is not None)
    assert ("the most there can be" in text) == (most is not None)


# -- actions out of bounds ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("clips", "charges", "said"),
    [
        (True, "clipped", "acts, and is charged, as the bound"),
        (True, "raw", "counts (charges) it unclipped"),
        (False, "raw", "acts with its full size"),
    ],
)
def test_the_probe_shows_the_effect_of_an_action_out_of_bounds(clips, charges, said):
    def make():
        env = Tank()
        env.clips, env.charges = clips, charges
        return env

    assert said in probe_bounds(make)


@pytest.mark.parametrize(
    ("wrappers", "clip", "raw"),
    [((), True, False), ((), False, True), ([gym.wrappers.ClipAction], False, False)],
)
def test_the_description_states_whether_actions_are_clipped(wrappers, clip, raw):
    make = EnvMaker("MountainCarContinuous-v0", wrappers)
    text = describe_task(make, LinearPolicy.for_env(make(), clip=clip), (0,), 999).text
    assert ("charges) it unclipped" in text) is raw
    assert ("passed on as it is" in text) is raw
    assert ("It is clipped to its bounds" in text) is not raw


def test_whole_numbers_are_always_clipped():
    policy = LinearPolicy(spaces.Box(-1, 1, (1,)), spaces.Box(0, 3, (1,), np.int64))
    assert policy.clips
    assert "clipped to its bounds" in describe_parameters(policy)
    endless = LinearPolicy(spaces.Box(-1, 1, (1,)), spaces.Box(-np.inf, np.inf, (1,)), clip=True)
    assert "passed on as it is" in describe_parameters(endless)
    table = LinearPolicy(spaces.Discrete(3, start=1), spaces.Discrete(2), bias=False)
    assert describe_parameters(table, choices=True).endswith("in one state: s1 that in state 1.")


# -- ways to name an environment ----------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "wrappers", "message"),
    [
        (3, (), "expected a Gymnasium id"),
        (lambda: 3, (), "returned an int"),
        (lambda: 1 / 0, (), "ZeroDivisionError"),
        (Tank(), (), "pass a function that makes it"),
        (Tank, None, "wrappers=None: expected a list of functions"),
        (Tank, ["ClipAction"], "expected a list of functions"),
        (Tank, [lambda env: 3], r"the wrapper 'wrapper' does not fit Tank \(TypeError"),
    ],
)
def test_a_source_that_makes_no_environment_is_a_clear_error(source, wrappers, message):
    with pytest.raises(LLMOptError, match=message):
        EnvMaker(source, wrappers)()
