"""Policies in files: names, spaces and wrappers, and what is refused."""

from __future__ import annotations

import json
import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import RescaleObservation

from llmopt import Float, LLMOptimizer, ScriptedClient, SpaceError, StorageError
from llmopt.policies import LinearPolicy, PolicySearch, held_out_seeds, load_policy, save_policy

UNIT = {"kind": "box", "shape": [2], "dtype": "float32", "low": 0, "high": 1}


@pytest.mark.parametrize(
    "observed",
    [spaces.Box(-np.inf, np.inf, (3,)), spaces.Box(0, 1, (2, 2)), spaces.Discrete(4, start=1)],
)
@pytest.mark.parametrize(
    "acts", [spaces.Box(np.float32([-1, 0]), np.float32([1, 5])), spaces.Discrete(3)]
)
@pytest.mark.parametrize("bias", [True, False])
def test_a_saved_policy_is_the_same(observed, acts, bias, tmp_path):
    form = LinearPolicy(observed, acts, bias=bias)
    bound = form.bind(np.random.default_rng(0).normal(size=form.n_parameters))
    save_policy(bound, tmp_path / "p.json", note="mine")
    loaded = load_policy(tmp_path / "p.json")
    assert loaded.policy == form
    np.testing.assert_array_equal(loaded.parameters, bound.parameters)
    assert json.loads((tmp_path / "p.json").read_text())["note"] == "mine"


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"parameters": [1.0]},
        {"parameters": ["x"] * 3},
        {"observation_space": {**UNIT, "shape": [10**9]}},
        {"observation_space": {**UNIT, "dtype": "object"}},
        {"wrappers": ["os:system"]},
        {"wrappers": ["RescaleObservation"]},
        {"wrappers": ["ClipAction=1"]},
        {"wrappers": ["RepeatAction=4"]},
        {"wrappers": ["NormalizeObservation"]},
        {"wrappers": ["NormalizeObservation"], "normal": [[0.0, 0.0], [1.0, -1.0]]},
        {"wrappers": ["NormalizeObservation"], "normal": [[0.0], [1.0]]},
        {"action_space": {"kind": "pickle"}},
        {"inputs": 3},
    ],
)
def test_a_file_that_holds_no_policy_is_a_clear_error(change, tmp_path):
    form = LinearPolicy(spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (1,)))
    save_policy(form.bind([1, 2, 3]), tmp_path / "p.json")
    data = json.loads((tmp_path / "p.json").read_text())
    assert data.pop("crc")
    (tmp_path / "p.json").write_text(json.dumps({**data, **change}))
    with pytest.raises(StorageError, match="contains no policy"):
        load_policy(tmp_path / "p.json")
    with pytest.raises(StorageError, match="cannot read"):
        load_policy(tmp_path / "none.json")
    search = LLMOptimizer({"x": Float(0, 1)}, ScriptedClient([]), storage=tmp_path / "run.jsonl")
    search.tell({"x": 0.5}, 1.0)
    search.close()
    with pytest.raises(StorageError, match=r"cannot read a policy: .*a storage file") as caught:
        load_policy(tmp_path / "run.jsonl")
    assert "crc" not in str(caught.value)
    with pytest.raises(StorageError, match="cannot write"):
        save_policy(form.bind([1, 2, 3]), tmp_path / "no" / "p.json")


class Mixed(gym.Env):
    """Shows a dictionary, and moves by what it is told."""

    observation_space = spaces.Dict(
        place=spaces.Box(-5, 5, (2,)), kind=spaces.Discrete(3, start=1), on=spaces.MultiBinary(2)
    )
    action_space = spaces.Box(np.float32([-2, 0]), np.float32([2, 10]))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self._seen(), {}

    def _seen(self):
        kind = 1 + int(abs(self.place[0]) * 7) % 3
        return {"place": self.place, "kind": kind, "on": np.int8(self.place > 0)}

    def step(self, action):
        assert action in self.action_space
        self.place = np.clip(self.place + 0.1 * action, -5, 5).astype(np.float32)
        return self._seen(), -float(self.place @ self.place), False, False, {}


def half_bounded():
    low, high = np.float32([-3, -np.inf, 0]), np.float32([3, np.inf, 8])

    class Half(Mixed):
        observation_space = spaces.Box(low, high)

        def _seen(self):
            return np.clip(np.append(self.place, 3.3).astype(np.float32), low, high)

    return gym.wrappers.TimeLimit(Half(), 20)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # of Gymnasium's own bounds
@pytest.mark.parametrize(
    ("source", "wrappers", "plain"),
    [
        ("InvertedPendulum-v5", "usual", lambda: gym.make("InvertedPendulum-v5")),
        ("MountainCarContinuous-v0", "usual", lambda: gym.make("MountainCarContinuous-v0")),
        ("CartPole-v1", ["NormalizeObservation"], lambda: gym.make("CartPole-v1")),
        ("FrozenLake-v1", "usual", lambda: gym.make("FrozenLake-v1")),
        (
            lambda: gym.wrappers.TimeLimit(Mixed(), 20),
            "usual",
            lambda: gym.wrappers.TimeLimit(Mixed(), 20),
        ),
        (half_bounded, ["RescaleObservation=-1,1", "RescaleAction=-1,1"], half_bounded),
        (
            RescaleObservation(
                gym.make("Pendulum-v1", g=5.0), *np.float32([[-1, -1, -1], [1, 1, 1]])
            ).spec,
            ["ClipReward=-99,0", "DtypeObservation=float64"],
            lambda: gym.wrappers.ClipReward(gym.make("Pendulum-v1", g=5.0), -99, 0),
        ),
    ],
    ids=["inverted", "car", "cart", "lake", "dictionary", "half bounded", "a spec's wrappers"],
)
def test_a_policy_file_runs_by_itself(source, wrappers, plain, tmp_path):
    """The policy of a file, in a plain loop, has the held-out returns of the search."""
    with PolicySearch(
        source, ScriptedClient([]), wrappers=wrappers, starts=1, warmup=2, box=2
    ) as search:
        search.run(2)
        search.save(tmp_path / "p.json")
        expected = search.evaluate(3).returns
    policy = load_policy(tmp_path / "p.json")
    save_policy(policy, tmp_path / "again.json")
    policy = load_policy(tmp_path / "again.json")
    returns = []
    with plain() as env:
        for seed in held_out_seeds(0, 3):
            (observation, _), total, done = env.reset(seed=seed), 0.0, False
            while not done:
                observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
                total, done = total + float(reward), terminated or truncated
            returns.append(total)
    assert tuple(returns) == expected


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        ("RepeatAction=4", "the wrapper RepeatAction cannot be saved in a policy file"),
        ("StickyAction=0.5", "search.make_env"),
        ("gymnasium.wrappers:TimeAwareObservation", "cannot be saved"),
    ],
)
def test_a_wrapper_that_cannot_travel_is_refused(wrapper, message, tmp_path):
    with PolicySearch(
        "CartPole-v1", ScriptedClient([]), wrappers=[wrapper], starts=1, warmup=1
    ) as search:
        search.run(1)
        with pytest.raises(SpaceError, match=re.escape(message)):
            search.save(tmp_path / "p.json")
    assert not (tmp_path / "p.json").exists()
