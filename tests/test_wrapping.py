"""Wrappers by name, the usual ones of an environment, and normalization that is frozen."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from llmopt.policies.environment import measure_normal
from llmopt.policies.wrapping import (
    WrapperError,
    acting_space,
    check_wrapper,
    scaling,
    usual_wrappers,
    wrap,
)


class Plain(gym.Env):
    """Observations between 90 and 110 around 100, and a constant; no action matters."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, seen=None, acts=None):
        self.observation_space = seen or spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = acts or spaces.Box(-3.0, 3.0, (1,), np.float32)
        self.actions = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen(), {}

    def _seen(self):
        return np.array([self.np_random.uniform(90, 110), 7.0])

    def step(self, action):
        self.actions.append(np.array(action).tolist())
        return self._seen(), 0.0, False, len(self.actions) % 50 == 0, {}


@pytest.mark.parametrize(
    ("seen", "acts", "expected"),
    [
        (None, None, ("NormalizeObservation", "RescaleAction=-1,1", "ClipAction")),
        (
            spaces.Box(-1, 5, (2,)),
            None,
            ("RescaleObservation=-1,1", "RescaleAction=-1,1", "ClipAction"),
        ),
        (spaces.Box(-1, 1, (2,)), spaces.Discrete(2), ()),
        (spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (1,)), ("ClipAction",)),
        (spaces.Box(-1, 1, (2,)), spaces.Box(-np.inf, 1, (1,)), ()),
        (spaces.Box(-1e30, 1e30, (2,)), spaces.Discrete(2), ("NormalizeObservation",)),
        (
            spaces.Box(0, 255, (2,), np.uint8),
            spaces.Discrete(2),
            ("DtypeObservation=float32", "RescaleObservation=-1,1"),
        ),
        (spaces.Discrete(4), spaces.Discrete(2), ()),
        (
            spaces.Dict({"a": spaces.Box(-2, 2, (1,)), "b": spaces.Discrete(2)}),
            spaces.Discrete(2),
            ("FlattenObservation", "RescaleObservation=-1,1"),
        ),
    ],
)
def test_the_usual_wrappers(seen, acts, expected):
    env = Plain(seen, acts)
    assert usual_wrappers(env) == expected
    if expected[:1] != ("NormalizeObservation",):
        wrapped = wrap(env, expected)
        if "RescaleObservation=-1,1" in expected:
            assert (np.abs(wrapped.observation_space.low) == 1).all()


def test_actions_are_clipped_before_they_act_and_scaled_to_their_range():
    env = Plain()
    wrapped = wrap(env, ("RescaleAction=-1,1", "ClipAction"))
    wrapped.reset(seed=0)
    for action in (50.0, -0.5):
        wrapped.step(np.array([action], np.float32))
    assert env.actions == [[3.0], [-1.5]]
    assert acting_space(wrapped) == spaces.Box(-1.0, 1.0, (1,), np.float32)
    assert acting_space(env) is env.action_space
    box = spaces.Box(0.0, 1.0, (1,), np.float32)
    doubled = gym.wrappers.TransformAction(wrapped, lambda action: 2 * action - 1, box)
    assert acting_space(doubled) is box  # what is clipped beneath is another number


def test_normalization_is_measured_once_and_frozen():
    normal = measure_normal(lambda: gym.wrappers.NormalizeObservation(Plain()), 50)
    mean, variance = normal
    assert mean == pytest.approx((100, 7), abs=1)
    assert variance[0] == pytest.approx(400 / 12, rel=0.1)
    assert variance[1] == 1  # a number that never changes is only shifted
    assert normal == measure_normal(lambda: gym.wrappers.NormalizeObservation(Plain()), 50)
    env = wrap(Plain(), ("NormalizeObservation",), normal)
    first, _ = env.reset(seed=5)
    for _ in range(9):
        env.step(np.zeros(1, np.float32))
    assert env.reset(seed=5)[0].tolist() == first.tolist()
    centre, size = scaling(env)
    np.testing.assert_allclose(centre, mean, rtol=1e-5)
    np.testing.assert_allclose(size, np.sqrt(variance), rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("RescaleObservtion", "did you mean 'RescaleObservation'"),
        ("no_such_module:Wrapper", "cannot be imported"),
    ],
)
def test_an_unknown_wrapper_is_refused(text, message):
    with pytest.raises(WrapperError, match=message):
        check_wrapper(text)
