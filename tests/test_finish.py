"""Small changes of the best point, once the model has ended the search: ``finish="auto"``."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from llmopt import BudgetExceededError, ScriptedClient
from llmopt.policies import PolicySearch

STOP = "Hypothesis: nothing is left\nStart from: #1\nProposal: stop"


class Throw(gym.Env):
    """One step; the reward is the height of the throw, less how far it is from the target.

    Rewards:
        Minus the square of the miss. With ``luck`` a throw that knows its start by heart gains.
    """

    observation_space = spaces.Box(0, 1, (1,), dtype=np.float64)
    action_space = spaces.Box(-1, 1, (1,), dtype=np.float64)
    luck = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.wanted = self.np_random.uniform(0, 1, 1), self.np_random.uniform(-1, 1)
        return self.at, {}

    def step(self, action):
        goal = self.wanted if self.luck else 0.3 + 0.4 * self.at[0]
        return self.at, -((float(action[0]) - goal) ** 2), True, False, {}


class Lucky(Throw):
    luck = True


def design(slope, bias):
    return f"Hypothesis: h\nStart from: new\nProposal: {slope}, {bias}"


def throws(n, env=Throw, script=None, **options):
    script = (
        ["Hypothesis: h\nStart from: new\nProposal: 0.2, 0.3", STOP] if script is None else script
    )
    options = {"seed": 1, "starts": 3, "warmup": 1, "points": 1, **options}
    search = PolicySearch(env, ScriptedClient(script), "words", **options)
    search.run(n)
    return search


def kinds(search):
    return [(t.kind, t.source) for t in search.optimizer.trials]


def test_a_policy_is_finished_and_checked_on_fresh_starts():
    with throws(80) as search:
        told = kinds(search)
        # The check of the model's point, the changes, and the check of the best of them.
        assert told[:3] == [("search", "warmup"), ("search", "llm"), ("check", "user")]
        assert set(told[3:-1]) == {("search", "finish")}
        assert told[-1] == ("check", "user")
        assert search._spent() == 80
        assert search.best.source == "finish"
        began = search.optimizer.trials[1].reward
        assert search.best.reward > began + 0.007
        assert search.finish.evaluations == 80 - 2 - 2 * 5
        assert search.finish.gain == pytest.approx(
            search.best.reward - search.optimizer.trials[1].reward
        )
        assert search.finish.fresh > 0
        assert str(search.finish).endswith("on fresh starts: kept")
        assert "ended the search" in search.stopped
        assert search.left == {"evaluations": 0}
        assert search.evaluate().mean > -0.01
        assert len(search.optimizer.client.requests) == 2


def test_a_gain_that_does_not_hold_on_fresh_starts_is_not_kept():
    # It falls on fresh starts as it is, and the model insists.
    with throws(120, Lucky, [design(0, 0), STOP, STOP.replace("#1", "#2")], starts=2) as search:
        assert search.finish.gain > 0 > search.finish.fresh
        assert str(search.finish).endswith("not kept")
        assert search.best.values == search.optimizer.trials[1].values
        assert search.best.source == "llm"


def test_a_policy_is_finished_where_a_cap_is_reached_too():
    script = [design(0.2, 0.3)] * 2
    with throws(60, script=script, max_requests=1) as search:
        assert search.best.source == "finish"
        assert "max_requests=1" in search.stopped
    with pytest.raises(BudgetExceededError):
        throws(60, script=script, max_requests=1, finish="off")


@pytest.mark.parametrize(
    ("n", "options"), [(80, {"finish": "off"}), (80, {"finish": None}), (11, {})]
)
def test_no_finish_where_it_is_off_and_where_too_little_is_left_for_its_check(n, options):
    with throws(n, **options) as search:
        assert kinds(search) == [("search", "warmup"), ("search", "llm")]
        assert search.finish is None
        assert search.best.source == "llm"


def test_a_killed_finish_of_a_policy_goes_on_with_the_same_points(tmp_path, monkeypatch):
    with throws(60) as whole:
        best = whole.best
    for count in (3, 4, 9, 30):
        path = tmp_path / f"{count}.jsonl"
        record = PolicySearch._record

        def dies(self, *args, most=count, record=record):
            if len(self.optimizer.trials) == most:
                raise KeyboardInterrupt
            return record(self, *args)

        monkeypatch.setattr(PolicySearch, "_record", dies)
        with pytest.raises(KeyboardInterrupt):
            throws(60, storage=path)
        monkeypatch.setattr(PolicySearch, "_record", record)
        with throws(60, script=["Hypothesis: h\nProposal: stop"], storage=path) as search:
            assert [t.values for t in search.optimizer.trials] == [
                t.values for t in whole.optimizer.trials
            ]
            assert (search.best.values, search.finish) == (best.values, whole.finish)


def test_a_finished_search_may_go_on_and_its_best_is_kept(tmp_path):
    path = tmp_path / "run.jsonl"
    with throws(40, storage=path) as search:
        first = search.best
    with throws(40, storage=path, script=[]) as again:
        assert again.best.values == first.values
    with throws(60, storage=path, script=[]) as more:
        assert more.finish.evaluations > search.finish.evaluations
        assert more.best.reward >= first.reward
