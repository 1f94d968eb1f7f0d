"""The steps of a policy's episodes as arrays, and the policy as Python text."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from llmopt import ScriptedClient
from llmopt.packing import pack, unpack
from llmopt.policies import EnvMaker, Evaluator, LinearPolicy, PolicySearch
from llmopt.policies.episode import Step
from llmopt.policies.episode_seeds import held_out_seeds
from llmopt.policies.source import policy_source
from llmopt.policies.steps import StepData

SEEDS = (3, 5)


def recorded(env, steps=60, most=1 << 25, clip=True, scale=1.0):
    """A policy on an environment: the data of its episodes, the policy, and the maker."""
    make = EnvMaker(env)
    with make() as made:
        bias = not isinstance(made.observation_space, spaces.Discrete)
        policy = LinearPolicy.for_env(made, bias, clip=clip)
    row = np.random.default_rng(0).normal(0, scale, policy.n_parameters)
    bound = policy.bind(row)
    data = StepData(most)
    with Evaluator(make, policy, steps) as evaluator:
        outcome = evaluator.evaluate(row, SEEDS, watch=data)
    return data.data(bound), bound, make, outcome


def test_every_step_is_kept_as_the_environment_gave_it():
    data, bound, make, outcome = recorded("Hopper-v5")
    for j, seed in enumerate(SEEDS):
        env = make()
        observation, _ = env.reset(seed=seed)
        base = env.unwrapped
        assert data["initial_qpos"][j].tolist() == base.data.qpos.tolist()
        assert data["initial_qvel"][j].tolist() == base.data.qvel.tolist()
        for k, action in enumerate(data["actions"][j]):
            assert data["observations"][j][k].tolist() == observation.tolist()
            assert action.tolist() == bound.act(observation).tolist()
            assert np.clip(data["proposed"][j][k], -1, 1).astype(np.float32).tolist() == (
                action.tolist()
            )
            observation, reward, ended, _, info = env.step(action)
            assert data["rewards"][j][k] == reward
            assert data["info"]["reward_ctrl"][j][k] == info["reward_ctrl"]
        assert data["observations"][j][-1].tolist() == observation.tolist()
        assert data["ended"][j] == ("terminated" if ended else "step limit")
        assert sum(data["rewards"][j]) == outcome.returns[j]
    assert data["observations"][0].dtype == np.float64
    assert data["actions"][0].dtype == np.float32


@pytest.mark.parametrize("env", ["CartPole-v1", "MountainCar-v0", "Pendulum-v1", "FrozenLake-v1"])
def test_states_of_other_environments_are_kept(env):
    data, *_ = recorded(env, steps=9)
    assert len(data["actions"]) == 2
    assert len(data["observations"][0]) == len(data["actions"][0]) + 1
    if env in ("CartPole-v1", "Pendulum-v1", "MountainCar-v0"):
        assert data["initial_state"][0].dtype.kind == "f"
    assert data["observations"][0].dtype == (np.float32 if env != "FrozenLake-v1" else np.int64)


def test_a_number_that_no_array_holds_is_left_out():
    """Such as a seed of 128 bits, which would also let a model foresee an episode."""
    data = StepData()
    with gym.make("CartPole-v1") as env:
        observation, _ = env.reset(seed=1)
        data.begin(observation, env)
        for count in range(2):
            info = {"count": count, "seed": 1 << 127, "time": np.timedelta64(3)}
            data(Step(0, observation, 0, 1.0, observation, False, False, info, env))
    kept = unpack(pack(data.data()))
    assert {name: rows[0].tolist() for name, rows in kept["info"].items()} == {"count": [0, 1]}


def test_memory_is_bounded_and_said():
    data, *_ = recorded("Pendulum-v1", most=1500)
    assert len(data["observations"][0]) == 0
    assert len(data["rewards"][1]) == 60
    assert data["note"].startswith("steps of 0 of 2 episodes")
    half, *_ = recorded("Pendulum-v1", most=3000)
    assert len(half["observations"][0]) == 61
    assert len(half["observations"][1]) == 0
    assert half["note"].startswith("steps of 1 of 2 episodes")
    assert half["ended"] == ["step limit"] * 2


@pytest.mark.parametrize(("episodes", "kept"), [(120, 75), (1200, 2)])
def test_no_number_of_episodes_and_names_is_too_large_to_keep(episodes, kept):
    steps, step = StepData(), Step(0, [1.0], 0.5, 1.0, [2.0], True, False, {})
    for _ in range(episodes):
        steps.begin(np.ones(1), Odd())
        steps(step._replace(info={f"n{k}": k for k in range(100)}))
    data = steps.data()
    assert len(data["info"]) == kept
    assert len(unpack(pack(data))["actions"]) == min(episodes, 1000)
    assert ("note" in data) == (episodes > 1000)


class Odd(gym.Env):
    """Reuses its arrays, and has numbers in `info` that come and go, under odd names."""

    observation_space = spaces.Box(-9, 9, (2,), dtype=np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.seen = np.zeros(2, np.float32)
        self.k = 0
        return self.seen, {}

    def step(self, action):
        self.k += 1
        self.seen[:] = self.k
        info = {"a/b": 1.5, "7": self.k, "text": "x", "flag": True, 3: 4.0}
        return self.seen, 1.0, self.k == 4, False, info if self.k > 1 else {}


CASES = ["Hopper-v5", "Swimmer-v5", "MountainCarContinuous-v0", "CartPole-v1", "FrozenLake-v1"]


@pytest.mark.parametrize("env", CASES)
@pytest.mark.parametrize("clip", [True, False])
def test_the_text_of_a_policy_acts_like_the_search_to_the_bit(env, clip):
    data, bound, *_ = recorded(env, clip=clip, scale=3.0)
    text, values, words = policy_source(bound.policy)
    names = dict(values)
    exec(text, names)
    assert words.startswith("policy(weights, observation): ")
    table = bound.policy.chooses
    row = bound.weights.argmax(axis=1) if table else bound.parameters
    count = 0
    for seen, actions in zip(data["observations"], data["actions"], strict=True):
        for observation, action in zip(seen, actions, strict=False):
            found = names["policy"](row, observation if not table else observation[0])
            assert np.ravel(found).tolist() == action.tolist()
            assert table or np.asarray(found).dtype == action.dtype
            count += 1
    assert count > 3


CHECK = """```python
rows = data[2]["observations"][1]
same = all(np.array_equal(policy(X[1], o), a) for o, a in zip(rows, data[2]["actions"][1]))
print("equal:", same, rows.shape, sum(data[2]["rewards"][1]), data[2]["ended"][1])
print(data[2]["initial_qpos"][1], data[2]["info"]["reward_ctrl"][1].sum())
```"""


def test_a_model_computes_on_the_steps_of_a_search(tmp_path):
    head = "Hypothesis: h\nStart from: new\nProposal: "
    names: list[str] = []
    replies = [lambda: CHECK, lambda: head + ", ".join(f"{name}: 0.1" for name in names)]
    client = ScriptedClient(lambda request: replies.pop(0)())
    storage = tmp_path / "s.jsonl"
    options = {"starts": 2, "max_steps": 15, "warmup": 2, "storage": storage, "points": 1}
    with PolicySearch("Swimmer-v5", client, "words", **options) as search:
        names += search.optimizer.space.names
        search.run(3)
        second = search.optimizer.trials[1]
        assert second.data["observations"][0].shape == (16, 8)
        assert "policy(weights, observation): " in client.requests[0].text
        seen = client.requests[1].text
        assert "equal: True (16, 8) " in seen
        assert f"{second.samples[1]:.6g}"[:6] in seen
    with PolicySearch("Swimmer-v5", ScriptedClient([]), "words", **options) as resumed:
        again = resumed.optimizer.trials[1].data["observations"][0]
        assert again.tolist() == second.data["observations"][0].tolist()


def test_the_first_point_has_further_initial_states_that_nothing_is_scored_on(tmp_path):
    file = tmp_path / "s.jsonl"
    answers = ["Hypothesis: h.\nStart from: new\nProposal:\n" + "x"] * 2
    with PolicySearch("CartPole-v1", ScriptedClient(answers), "words", storage=file) as search:
        search.run(2)
        first, second = (t.data for t in search.optimizer.trials)
        further = first["further"]
        assert "further" not in second
        assert further["observations"].shape == further["state"].shape == (200, 4)
        scored = {tuple(rows[0]) for rows in first["observations"]}
        scored |= {tuple(search.make_env().reset(seed=s)[0]) for s in held_out_seeds(0)}
        assert not scored & set(map(tuple, further["observations"]))
    with PolicySearch("CartPole-v1", ScriptedClient([]), "words", storage=file) as again:
        assert (again.optimizer.trials[0].data["further"]["state"] == further["state"]).all()
