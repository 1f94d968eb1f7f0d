"""The policy that a search keeps: the one recommended, or the best on held-out initial states."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from llmopt import Float, LLMOptError, LLMOptimizer, ScriptedClient, maximize
from llmopt.policies import PolicySearch, load_policy


def test_choosing_on_fresh_starts(tmp_path):
    with PolicySearch("MountainCarContinuous-v0", ScriptedClient([]), "words", warmup=12, starts=2,
                      max_steps=150, seed=4) as search:  # fmt: skip
        search.run(12)
        before = search.best
        chosen = search.choose(finalists=4)
        assert search.best is chosen
        rank = [t.number for t in search.optimizer.history.ranked]
        assert rank.index(chosen.number) < 4
        assert search.choose(finalists=1).number == before.number
        assert load_policy_of(search, tmp_path).tolist() == search.best_policy.parameters.tolist()


class Cliff(gym.Env):
    """A policy without a push falls on one start in ten.

    Rewards:
        What the push is, at most 0.2, and 1.
    """

    observation_space = spaces.Box(0, 1, (1,), dtype=np.float64)
    action_space = spaces.Box(-1, 1, (1,), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.start = self.np_random.uniform(0, 1, 1)
        return self.start, {}

    def step(self, action):
        push = float(action[0])
        fallen = self.start[0] > 0.9 and push < 0.5
        return self.start, 0.0 if fallen else 1 + min(push, 0.0), fallen, False, {}


def at_the_cliff(*answers, **options):
    """A search with pushes as answers; a number as text ends it and recommends that point."""
    texts = [
        f"Analysis: safe\nHypothesis: h\nStart from: #{a}\nProposal: stop"
        if isinstance(a, str)
        else f"Hypothesis: h\nStart from: new\nProposal: a0<-o0: 0, a0<-bias: {a}"
        for a in answers
    ]
    warmup = [{"a0<-o0": 0.0, "a0<-bias": -0.5}]
    return PolicySearch(
        lambda: gym.wrappers.TimeLimit(Cliff(), 10),
        ScriptedClient(texts),
        "words",
        **{"seed": 4, "starts": 4, "warmup": warmup, "points": 1, **options},
    )


def test_a_recommended_policy_is_kept_and_nothing_else_is_evaluated(tmp_path):
    stored = {"storage": tmp_path / "cliff.jsonl"}
    with at_the_cliff(0, 1, "3", **stored) as search:
        best = search.run(10)
        assert [t.kind for t in search.optimizer.trials] == ["search"] * 3
        assert best is search.best is search.optimizer.trials[2]  # not the first of equals
        assert "recommends #3" in search.stopped
        assert search.left["evaluations"] == 7
        assert search.evaluate().mean == 10
    with at_the_cliff(**stored) as reopened:
        assert reopened.best == best


def prompts(search):
    return [r.messages[-1].content for r in search.optimizer.client.requests]


def test_the_prompt_says_how_many_evaluations_are_left():
    """Also where points are measured again, where the plan changes, and for a whole batch."""
    with at_the_cliff(0.6, 0.6, 0.7, noisy=True) as search:
        search.run(4)
        assert "You propose #3 of at most 3." in prompts(search)[2]  # two rows, and one is left
    with at_the_cliff(0.1, 0.2, 0.3) as search:
        with pytest.raises(LLMOptError, match="the script of"):
            search.run(20)
        with pytest.raises(LLMOptError, match="the script of"):
            search.run(6)  # shorter than was planned
        assert "You propose #5 of at most 6." in prompts(search)[-1]
    with at_the_cliff(0.1, 0.2, 0.3, total=20) as search:
        search.run(4)
        assert "of at most 20." in prompts(search)[-1]  # the user's own plan
    with at_the_cliff(0.1, 0.2, 0.3, 0.4, batch_size=3) as search:
        search.run(5)
        assert len(prompts(search)) == 4
        assert "You propose #5 of at most 5." in prompts(search)[-1]
        assert search.optimizer.batch_size == 3


def load_policy_of(search, folder):
    search.save(folder / "p.json")
    policy = load_policy(folder / "p.json")
    assert policy.policy.clip
    return policy.parameters


def test_a_withdrawn_trial_is_none_of_the_planned_ones(tmp_path):
    values, path = iter([0.1, 0.2, 0.3, 0.4]), tmp_path / "s.jsonl"
    client = ScriptedClient(lambda request: f"x: {next(values)}")
    setup = {"warmup": 0, "prompt": "words", "total": 3, "storage": path, "compute": False}
    with LLMOptimizer({"x": Float(0, 1)}, client, **setup) as optimizer:
        for _ in range(3):
            optimizer.tell(optimizer.ask(), 1.0)
        optimizer.withdraw(trial=0)
    options = {"client": client, **setup}
    result = maximize(lambda p: p["x"], {"x": Float(0, 1)}, 3, **options, progress=False)
    assert [t.state for t in result.trials] == ["withdrawn"] + ["complete"] * 3
    assert "You propose #4 of at most 4." in client.requests[-1].messages[-1].content
