"""An environment in words: names, sections, bounds, wrappers, and the probe."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import (
    FlattenObservation,
    FrameStackObservation,
    RescaleAction,
    RescaleObservation,
    TimeAwareObservation,
    TimeLimit,
    TransformReward,
)

from llmopt import ScriptedClient
from llmopt.errors import LLMOptError, SpaceError
from llmopt.policies import EnvMaker, LinearPolicy, PolicySearch, describe_environment
from llmopt.policies.words import docstrings
from llmopt.policies.words.describe import MAX_WORDS
from llmopt.policies.words.naming import slug
from llmopt.policies.words.physics import MAX_PHYSICS, describe_physics
from llmopt.policies.words.task_words import describe_parameters


def made(env_id, **kwargs):
    return gym.make(env_id, disable_env_checker=True, **kwargs)


def names(quantities):
    return [q.name for q in quantities]


class Bare(gym.Env):
    observation_space = spaces.Box(-1, 1, (3,))
    action_space = spaces.Box(-2, 2, (1,))


class Tank(gym.Env):
    """A tank with a leak is to be kept at a level.

    Observations:
        level: height of the water above the wanted one (m)
        inflow: what comes in by the rain

    Actions:
        valve: opening of the valve

    Reward:
        Minus the squared level, a step.
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
    try:
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
        assert 50 < len(words.text) < MAX_WORDS + listed + 1000
        assert "```" not in words.text
        assert "|--" not in words.text
        physics = "\n".join(describe_physics(env.unwrapped))
        assert len(physics) < MAX_PHYSICS + 120
        assert physics in words.text
        if "-v5" in env_id:
            assert any(name != f"o{i}" for i, name in enumerate(names(words.observations)))
            assert physics.startswith("Physics, from the MuJoCo model: ")
        if env.spec.max_episode_steps:
            assert f"at most {env.spec.max_episode_steps} steps" in words.text
    finally:
        env.close()


def test_names_are_those_of_the_tables():
    swimmer = describe_environment(made("Swimmer-v5"))
    assert names(swimmer.observations) == [
        "front_tip_angle",
        "first_rotor_angle",
        "second_rotor_angle",
        "tip_x_vel",
        "tip_y_vel",
        "front_tip_angvel",
        "first_rotor_angvel",
        "second_rotor_angvel",
    ]
    assert names(swimmer.actions) == ["first_torque", "second_torque"]
    assert swimmer.observations[3].meaning == "velocity of the tip along the x-axis (m/s)"
    cart = describe_environment(made("CartPole-v1"))
    assert names(cart.observations) == ["cart_position", "cart_vel", "pole_angle", "pole_angvel"]
    assert names(cart.actions) == ["left", "right"]
    assert names(describe_environment(made("Pendulum-v1")).observations)[0] == "cos_theta"
    assert names(describe_environment(made("Acrobot-v1")).actions) == [
        "minus1_torque_actuated_joint",
        "0_torque_actuated_joint",
        "1_torque_actuated_joint",
    ]


@pytest.mark.parametrize(
    ("meaning", "name"),
    [
        ("angle of the front tip (rad)", "front_tip_angle"),
        ("Torque applied on the first rotor (N m)", "first_rotor_torque"),
        ("velocity of the z-coordinate (height) of the torso", "torso_z_vel"),
        ("sine of the angle between the two poles", "angle_between_poles_sin"),
        ("Push cart to the left", "push_cart_left"),
        ("???", ""),
    ],
)
def test_a_name_is_short_and_says_what_it_is(meaning, name):
    assert slug(meaning) == name


def test_sections_that_a_controller_needs_are_kept_and_the_rest_is_dropped():
    text = describe_environment(made("MountainCarContinuous-v0")).text
    for needed in ("-0.1 * action^2", "0.45 (the goal", "0.0025 * cos", "[-0.6 , -0.4]"):
        assert needed in text
    for useless in ("TECHREPORT", "Version", "first appeared", "```", "render_mode"):
        assert useless not in text
    hopper = describe_environment(made("Hopper-v5")).text
    assert "[-0.2, 0.2]" in hopper
    assert "exclude_current" not in hopper
    assert "A step is 0.008 s." in hopper


def test_a_budget_keeps_names_and_the_reward_longest():
    full = describe_environment(made("Hopper-v5"))
    short = describe_environment(made("Hopper-v5"), max_chars=1500)
    none = describe_environment(made("Hopper-v5"), max_chars=0)
    assert len(none.text) < len(short.text) - 1000 < len(full.text) - 2000
    for words in (short, none):
        assert "thigh_joint_angle" in words.text
        assert "at most 1000 steps" in words.text
    assert "healthy_reward" in short.text
    assert "figure consisting" not in short.text


def test_what_counts_as_solved_is_told_only_of_the_registered_task():
    said = "A mean return of 360 counts as solved"
    assert said in describe_environment(made("Swimmer-v5")).text
    assert said not in describe_environment(made("Swimmer-v5"), threshold=False).text
    assert said not in describe_environment(made("Swimmer-v5", ctrl_cost_weight=1.0)).text
    rewarded = TransformReward(made("Swimmer-v5"), lambda r: 2 * r)
    assert said not in describe_environment(rewarded).text


def test_users_words_and_names_come_first():
    words = describe_environment(
        made("Pendulum-v1"), words="Mine.", observations=("c", "s: sine", "w"), actions=("u",)
    )
    assert words.text.startswith("Mine.\n")
    assert names(words.observations) == ["c", "s", "w"]
    assert words.observations[1].meaning == "sine"
    acts = ("heater_A", "heater_B: acts late", "Off!")
    cart = describe_environment(made("MountainCar-v0"), actions=acts)
    assert names(cart.actions) == ["heater_A", "heater_B", "off"]
    with pytest.raises(SpaceError, match="got 2 names, expected 3"):
        describe_environment(made("Pendulum-v1"), observations=("a", "b"))
    with pytest.raises(SpaceError, match="one text on how the states are numbered"):
        describe_environment(made("FrozenLake-v1"), observations=("a", "b"))


# -- wrappers -----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_wrappers_that_keep_the_numbers_keep_their_names():
    env = made("MountainCarContinuous-v0")
    env = RescaleObservation(env, np.float32([-1, -1]), np.float32([1, 1]))
    env = TimeLimit(FlattenObservation(RescaleAction(env, -0.5, 0.5)), 300)
    words = describe_environment(env)
    assert names(words.observations) == ["car_x_position", "car_vel"]
    assert "- car_vel: velocity of the car (v), from -1 to 1" in words.text
    assert "RescaleObservation(" in words.text
    assert "from -0.5 to 0.5" in words.text
    assert "at most 300 steps" in words.text


def test_wrappers_that_extend_the_numbers_extend_their_names():
    stacked = describe_environment(FrameStackObservation(made("MountainCar-v0"), 2))
    assert names(stacked.observations) == [
        "car_x_position_back1",
        "car_vel_back1",
        "car_x_position",
        "car_vel",
    ]
    timed = describe_environment(TimeAwareObservation(made("MountainCar-v0")))
    assert len(timed.observations) == 3
    assert "time" in timed.observations[2].name


class Swapped(gym.ObservationWrapper):
    """Shows the two numbers in the other order."""

    def observation(self, observation):
        return observation[::-1]


class Explained(Swapped):
    """Shows the two numbers in the other order.

    ## Observation Space

    | Num | Observation | Min |
    |-----|-------------|-----|
    | 0 | speed of the car | -1 |
    | 1 | place of the car | -1 |
    """


def test_an_unknown_wrapper_takes_the_names_away_unless_it_gives_its_own():
    words = describe_environment(Swapped(made("MountainCar-v0")))
    assert names(words.observations) == ["o0", "o1"]
    assert "Swapped(): Shows the two numbers in the other order." in words.text
    assert names(words.actions) == ["left", "dont_accelerate", "right"]
    words = describe_environment(Explained(made("MountainCar-v0")))
    assert names(words.observations) == ["car_speed", "car_place"]


def test_a_flattened_dictionary_is_named_by_its_keys():
    class Both(gym.Env):
        observation_space = spaces.Dict(goal=spaces.Box(-1, 1, (2,)), speed=spaces.Box(-1, 1, (1,)))
        action_space = spaces.Discrete(2)

    words = describe_environment(FlattenObservation(Both()))
    assert names(words.observations) == ["goal0", "goal1", "speed"]


# -- actions out of bounds ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("clips", "charges", "said"),
    [
        (True, "clipped", "acts, and is charged, as the bound"),
        (True, "raw", "counts (charges) it unclipped"),
        (False, "raw", "acts with its full size"),
    ],
)
def test_the_probe_tells_what_an_action_out_of_bounds_does(clips, charges, said):
    def make():
        env = Tank()
        env.clips, env.charges = clips, charges
        return env

    assert said in describe_environment(make(), probe=make).text


# -- ways to name an environment ----------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("NoSuch-v0", "NoSuch"),
        (3, "expected a Gymnasium id"),
        (lambda: 3, "returned an int"),
        (lambda: 1 / 0, "ZeroDivisionError"),
        (Bare(), "pass a function that makes it"),
    ],
)
def test_what_makes_no_environment_is_a_clear_error(source, message):
    with pytest.raises(LLMOptError, match=message):
        EnvMaker(source)()


@pytest.mark.parametrize(
    ("env_id", "arguments", "ceiling"),
    [
        ("CartPole-v1", {}, 500),
        ("InvertedPendulum-v5", {}, 1000),
        ("CartPole-v1", {"max_episode_steps": 80}, 80),
        ("CartPole-v1", {"sutton_barto_reward": True}, None),
        ("InvertedDoublePendulum-v5", {}, None),
        ("Hopper-v5", {}, None),
        ("MountainCar-v0", {}, None),
    ],
)
def test_a_ceiling_is_told_where_each_step_earns_the_same(env_id, arguments, ceiling):
    env = gym.make(env_id, **arguments)
    text = describe_environment(env).text
    env.close()
    told = f"A return of {ceiling} is the most there can be" in text
    assert told if ceiling else "the most there can be" not in text


class Corridor(gym.Env):
    """A corridor with a door.

    ## Rewards
    A reward of +1 is given for each step. Reaching the door adds 100.
    """

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Discrete(2)


class Bonus(gym.Wrapper):
    def step(self, action):
        seen, reward, *ends = super().step(action)
        return (seen, reward + 1, *ends)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: TimeLimit(Corridor(), 100), {}),
        (lambda: gym.wrappers.RepeatAction(made("CartPole-v1"), 3), {}),
        (lambda: Bonus(made("CartPole-v1")), {}),
        (lambda: gym.wrappers.MaxAndSkipObservation(made("CartPole-v1")), {}),
    ],
    ids=["a bonus", "repeated steps", "a wrapper's bonus", "skipped steps"],
)
def test_no_most_and_no_solved_is_claimed_that_nobody_stated(make, options):
    gym.register("llmopt-test/Corridor-v0", lambda: Corridor(), max_episode_steps=100)
    try:
        for env in (make(), made("llmopt-test/Corridor-v0")):
            text = describe_environment(env).text
            assert "the most there can be" not in text
            assert "counts as solved" not in text
    finally:
        del gym.registry["llmopt-test/Corridor-v0"]


def test_a_shorter_episode_has_another_most_and_no_solved():
    text = describe_environment(made("CartPole-v1"), step_cap=90).text
    assert "A return of 90 is the most there can be (90 steps)" in text
    assert "counts as solved" not in text
    assert "475 counts as solved" in describe_environment(made("CartPole-v1")).text


@pytest.mark.parametrize(
    ("options", "raw"),
    [({}, False), ({"clip": False}, True), ({"wrappers": ["ClipAction"], "clip": False}, False)],
)
def test_what_becomes_of_an_action_out_of_bounds_is_told_as_it_acts_here(options, raw):
    client = ScriptedClient([])
    with PolicySearch("MountainCarContinuous-v0", client, starts=1, **options) as search:
        text = search.optimizer.start_event()["options"]["description"]
    assert ("charges) it unclipped" in text) is raw
    assert ("passed on as it is" in text) is raw
    assert ("It is clipped to its bounds" in text) is not raw


def test_whole_numbers_are_always_clipped():
    policy = LinearPolicy(spaces.Box(-1, 1, (1,)), spaces.Box(0, 3, (1,), np.int64))
    assert policy.clips
    assert "clipped to its bounds" in describe_parameters(policy)
    endless = LinearPolicy(spaces.Box(-1, 1, (1,)), spaces.Box(-np.inf, np.inf, (1,)), clip=True)
    assert "passed on as it is" in describe_parameters(endless)


def test_a_table_is_told_the_names_of_its_own_states():
    table = LinearPolicy(spaces.Discrete(3, start=1), spaces.Discrete(2), bias=False)
    assert describe_parameters(table, choices=True).endswith("in one state: s1 that in state 1.")


def test_a_policy_search_tells_its_starts_and_the_users_ceiling():
    with PolicySearch("Pendulum-v1", ScriptedClient([]), starts=3, ceiling=-50) as search:
        told = search.optimizer.start_event()["options"]["description"]
    assert "A value of -50 is the most there can be." in told
    assert "Observed at the 3 starts, in the order of the returns shown: cos_theta" in told
    with pytest.raises(ValueError, match="ceiling=nan"):
        PolicySearch("Pendulum-v1", ScriptedClient([]), ceiling=float("nan"))


LANDER = """
## Description
A rocket. This is the reason why this environment has discrete actions: engine on or off.

There are two environment versions: discrete or continuous.
The pad is at (0,0).

To see a heuristic landing, run:
```shell
python lander.py
```

## Action Space
There are four discrete actions available:
- 0: do nothing
- 1: fire

## Arguments
* `continuous` says which actions are used. For continuous actions, the first one is the throttle.

* `gravity` pulls. It is negative.

## Notes
The units of it differ:
* angles are in degrees

<!-- ## References -->
"""


def test_no_dangling_pieces_or_unused_variants_of_a_docstring():
    def told(discrete):
        found = docstrings.chosen(docstrings.sections_of(LANDER), LANDER, {}, discrete=discrete)
        return {title: text for title, text, _ in found}

    continuous, discrete = told(False), told(True)
    assert continuous["Description"] == "A rocket.\nThe pad is at (0,0)."
    assert discrete["Description"].endswith("engine on or off.\nThe pad is at (0,0).")
    for each in (continuous, discrete):
        assert "Action Space" not in each
        assert each["Notes"] == "The units of it differ:\n- angles are in degrees"
    assert "throttle" in continuous["Arguments"]
    assert "throttle" not in discrete["Arguments"]
    assert "It is negative." in discrete["Arguments"]
