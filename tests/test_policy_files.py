"""Scaled environments, and policies in files that act on the environment's own numbers."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import RescaleObservation, TimeLimit

from llmopt import Float, LLMOptimizer, ScriptedClient, SpaceError, StorageError
from llmopt.cli import main
from llmopt.policies import LinearPolicy, PolicySearch, held_out_seeds, load_policy, save_policy
from llmopt.policies.environment import measure_normal
from llmopt.policies.scaling import Scaling, acting_space, centre_and_size, scale, stack

UNIT = {"kind": "box", "shape": [2], "dtype": "float32", "low": 0, "high": 1}


class Plain(gym.Env):
    """Observations between 90 and 110, and a constant; no action matters."""

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


# -- scaling ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "acts", "expected"),
    [
        (None, None, "NormalizeObservation RescaleAction ClipAction"),
        (spaces.Box(-1, 5, (2,)), None, "RescaleObservation RescaleAction ClipAction"),
        (spaces.Box(-1, 1, (2,)), spaces.Discrete(2), ""),
        (spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (1,)), "ClipAction"),
        (spaces.Box(-1, 1, (2,)), spaces.Box(-np.inf, 1, (1,)), ""),
        (spaces.Box(-1e30, 1e30, (2,)), spaces.Discrete(2), "NormalizeObservation"),
        (
            spaces.Box(0, 255, (2,), np.uint8),
            spaces.Discrete(2),
            "DtypeObservation RescaleObservation",
        ),
        (spaces.Discrete(4), spaces.Discrete(2), ""),
        (
            spaces.Dict({"a": spaces.Box(-2, 2, (1,)), "b": spaces.Discrete(2)}),
            spaces.Discrete(2),
            "FlattenObservation RescaleObservation",
        ),
    ],
)
def test_the_spaces_decide_the_scaling(seen, acts, expected):
    scaled = scale(Plain(seen, acts))
    assert " ".join(type(layer).__name__ for layer in stack(scaled)) == expected
    if "RescaleObservation" in expected:
        assert (np.abs(scaled.observation_space.low) == 1).all()


def test_actions_are_scaled_to_their_range_and_clipped_before_they_act():
    env = Plain()
    scaled = scale(env, ((0.0, 0.0), (1.0, 1.0)))
    scaled.reset(seed=0)
    for action in (50.0, -0.5):
        scaled.step(np.array([action], np.float32))
    assert env.actions == [[3.0], [-1.5]]
    assert acting_space(scaled) == spaces.Box(-1.0, 1.0, (1,), np.float32)
    assert acting_space(env) is env.action_space
    box = spaces.Box(0.0, 1.0, (1,), np.float32)
    doubled = gym.wrappers.TransformAction(scaled, lambda action: 2 * action - 1, box)
    assert acting_space(doubled) is box  # what is clipped beneath is another number


def test_normalization_is_measured_once_and_does_not_change():
    normal = measure_normal(lambda: scale(Plain()), 50)
    mean, variance = normal
    assert mean == pytest.approx((100, 7), abs=1)
    assert variance[0] == pytest.approx(400 / 12, rel=0.1)
    assert variance[1] == 1  # a number that never changes is only shifted
    assert normal == measure_normal(lambda: scale(Plain()), 50)
    env = scale(Plain(), normal)
    first, _ = env.reset(seed=5)
    for _ in range(9):
        env.step(np.zeros(1, np.float32))
    assert env.reset(seed=5)[0].tolist() == first.tolist()
    centre, size = centre_and_size(env)
    np.testing.assert_allclose(centre, mean, rtol=1e-5)
    np.testing.assert_allclose(size, np.sqrt(variance), rtol=1e-5)


# -- files --------------------------------------------------------------------------------


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
        {"scaled": True},
        {"scaled": True, "normal": [[0.0, 0.0], [1.0, -1.0]]},
        {"scaled": True, "normal": [[0.0], [1.0]]},
        {"action_space": {"kind": "pickle"}},
        {"inputs": 3},
    ],
)
def test_a_file_that_holds_no_policy_is_a_clear_error(change, tmp_path):
    form = LinearPolicy(spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(-1, 1, (1,)))
    save_policy(form.bind([1, 2, 3]), tmp_path / "p.json")
    data = json.loads((tmp_path / "p.json").read_text())
    (tmp_path / "p.json").write_text(json.dumps({**data, **change}))
    with pytest.raises(StorageError, match="contains no policy"):
        load_policy(tmp_path / "p.json")


def test_a_file_that_cannot_be_read_or_written_is_named(tmp_path):
    with pytest.raises(StorageError, match="cannot read"):
        load_policy(tmp_path / "none.json")
    search = LLMOptimizer({"x": Float(0, 1)}, ScriptedClient([]), storage=tmp_path / "run.jsonl")
    search.tell({"x": 0.5}, 1.0)
    search.close()
    with pytest.raises(StorageError, match=r"cannot read a policy: .*a storage file"):
        load_policy(tmp_path / "run.jsonl")
    form = LinearPolicy(spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (1,)))
    with pytest.raises(StorageError, match="cannot write"):
        save_policy(form.bind([1, 2, 3]), tmp_path / "no" / "p.json")
    with pytest.raises(SpaceError, match="expected one for each observed number"):
        Scaling(spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(2))


def nine_steps(env):
    return TimeLimit(env, 9)


def played(policy, make):
    """The returns of a policy on three held-out initial states, in a plain loop."""
    returns = []
    with make() as env:
        for seed in held_out_seeds(0, 3):
            (observation, _), total, done = env.reset(seed=seed), 0.0, False
            while not done:
                observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
                total, done = total + float(reward), terminated or truncated
            returns.append(total)
    return tuple(returns)


SPEC = RescaleObservation(
    gym.make("Pendulum-v1", g=5.0), *np.float32([[-1, -1, -1], [1, 1, 1]])
).spec


@pytest.mark.parametrize(
    ("source", "wrappers", "plain"),
    [
        ("InvertedPendulum-v5", (), lambda: gym.make("InvertedPendulum-v5")),
        ("FrozenLake-v1", (), lambda: gym.make("FrozenLake-v1")),
        (
            "CartPole-v1",
            [nine_steps],
            lambda: nine_steps(gym.make("CartPole-v1")),
        ),
        (SPEC, (), lambda: gym.make(SPEC)),
    ],
    ids=["inverted", "lake", "a function", "a spec's wrappers"],
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
    assert played(policy, plain) == expected


class Single(Plain):
    """Allows one live instance, such as a robot."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012
    live = 0

    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode
        if Single.live:
            raise RuntimeError("another instance is connected")
        Single.live += 1

    def render(self):
        return np.zeros((20, 20, 3), np.uint8)

    def close(self):
        Single.live = 0


@pytest.mark.defect(18)
def test_an_environment_that_allows_one_live_instance_is_searched_saved_and_drawn(tmp_path):
    with PolicySearch(Single, ScriptedClient([]), starts=1, warmup=2, max_steps=60) as search:
        search.run(2)
        search.save(tmp_path / "p.json")
        search.gif(tmp_path / "p.gif")
        assert search.evaluate(2).failure == ""
    assert load_policy(tmp_path / "p.json").parameters.tolist()


@pytest.mark.defect(39)
@pytest.mark.parametrize("task", ["InvertedPendulum-v5", "CartPole-v1"])
def test_a_run_leaves_a_policy_file(task, tmp_path, capsys):
    options = "--methods random --iterations 2 --warmup 2 --episodes 1 --heldout 3 --no-gif"
    assert main(["run", task, *options.split(), "--out", str(tmp_path / "run")]) == 0
    assert "policy.json" in capsys.readouterr().out
    (result,) = json.loads((tmp_path / "run" / "summary.json").read_text())
    returns = played(load_policy(tmp_path / "run" / "policy.json"), lambda: gym.make(task))
    assert np.mean(returns) == pytest.approx(result["heldout"], rel=1e-12)
