"""Small changes of the best point, once the model has ended the search: ``finish="auto"``."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from llmopt import BudgetExceededError, Categorical, Float, Int, ScriptedClient, maximize, minimize
from llmopt.policies import PolicySearch

SPACE = {"x": Float(-6, 6), "y": Float(-6, 6)}
STOP = "Hypothesis: nothing is left\nStart from: #1\nProposal: stop"


def loss(p):
    return (p["x"] - 3.1) ** 2 + (p["y"] + 1.7) ** 2


def answer(x, y):
    return f"Hypothesis: h\nStart from: new\nProposal:\nx: {x}, y: {y}"


def search(n=60, script=None, f=loss, space=SPACE, call=minimize, **options):
    options = {"prompt": "words", "seed": 0, "warmup": 2, "may_stop": True, **options}
    script = [answer(3, -2), STOP] if script is None else list(script)
    return call(f, space, n, ScriptedClient(script), progress=False, **options)


def sources(found):
    return [t.source for t in found.trials]


@pytest.mark.parametrize("call", [minimize, maximize])
def test_small_changes_go_on_where_the_model_stops(call):
    sign = 1 if call is minimize else -1
    found = search(call=call, f=lambda p: sign * loss(p))
    assert sources(found) == ["warmup"] * 2 + ["llm"] + ["finish"] * 57
    assert sign * found.best.reward < 0.01
    assert found.finish.evaluations == 57
    assert found.finish.gain == pytest.approx(loss({"x": 3, "y": -2}) - sign * found.best.reward)
    assert "ended the search" in found.stopped
    assert "57 small changes of the best point gained" in repr(found)
    assert found.usage.requests == 2
    assert found.usage.proposals == {"warmup": 2, "llm": 1, "finish": 57}


def test_they_go_on_where_a_cap_is_reached():
    found = search(script=[answer(3, -2)] * 2, max_requests=1)
    assert sources(found)[3:] == ["finish"] * 57
    assert "max_requests=1" in found.stopped


@pytest.mark.parametrize("finish", ["off", None])
def test_they_can_be_turned_off(finish):
    found = search(finish=finish)
    assert len(found.trials) == 3
    assert found.finish is None


def test_another_word_is_refused():
    with pytest.raises(ValueError, match="finish='on'"):
        search(finish="on")


def test_they_end_by_themselves_once_the_steps_have_shrunk_to_nothing():
    found = search(500, script=[answer(3.1, -1.7), STOP])
    assert found.finish.gain == 0.0
    assert 20 < found.finish.evaluations < 80
    assert "gained nothing" in repr(found)


def test_there_are_none_without_numbers_and_where_values_are_noisy():
    space = {"c": Categorical(list("abcdefgh"))}
    script = ["Hypothesis: h\nStart from: new\nProposal:\nc: a", STOP]
    assert search(8, script, lambda p: ord(p["c"]), space, warmup=1).finish is None
    assert search(noisy=True).finish is None


def test_limits_are_kept_and_a_space_without_further_points_ends():
    found = search(f=lambda p: -p["x"] - p["y"], constraints="x + y <= 2")
    assert all(t.values[0] + t.values[1] <= 2 + 1e-9 for t in found.trials if t.source == "finish")
    assert found.best.reward == pytest.approx(-2)
    few = {"k": Int(1, 3)}
    script = ["Hypothesis: h\nStart from: new\nProposal:\nk: 2", STOP]
    assert len(search(30, script, lambda p: p["k"], few, warmup=[{"k": 1}]).trials) == 3


def test_a_killed_finish_goes_on_with_the_same_points(tmp_path):
    whole, path = search(40), tmp_path / "run.jsonl"
    calls = []

    def dies(p):
        calls.append(p)
        if len(calls) in (9, 20):
            raise KeyboardInterrupt
        return loss(p)

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            search(40, f=dies, storage=path)
    found = search(40, f=dies, storage=path, script=())
    assert [t.values for t in found.trials] == [t.values for t in whole.trials]
    assert found.finish == whole.finish


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
