"""The ask/tell contract of LLMOptimizer."""

from __future__ import annotations

import math
import threading
import warnings

import gymnasium as gym
import numpy as np
import pytest
from stubs import Gate

from llmopt import (
    BudgetExceededError,
    ClientError,
    Completion,
    FallbackWarning,
    Float,
    Int,
    LLMOptimizer,
    NoTrialsError,
    Reply,
    RewardError,
    ScriptedClient,
)
from llmopt.client.base import Request

SPACE = {"x": Float(-5.0, 5.0, step=0.1), "k": Int(0, 50)}


def answers(*points: tuple[float, int]) -> list[str]:
    return [f"x: {x}, k: {k}\nbecause of {x}" for x, k in points]


def make(replies=(), **options) -> LLMOptimizer:
    options.setdefault("warmup", 0)
    options.setdefault("seed", 1)
    return LLMOptimizer(SPACE, ScriptedClient(list(replies)), **options)


def numbered(request: Request) -> Reply:
    """A model whose answer depends on the whole request, so that any difference shows."""
    state = int(request.digest()[:12], 16)
    rng = np.random.default_rng(state)
    text = f"x: {rng.uniform(-5, 5):.1f}, k: {rng.integers(0, 51)}\nnumber {state}"
    return Reply((Completion(text),), prompt_tokens=100, completion_tokens=10, seconds=0.5)


def search(optimizer: LLMOptimizer, evaluations: int) -> None:
    """Evaluate what was cut off, then go on up to a number of trials."""
    for proposal in optimizer.pending_proposals:
        score(optimizer, optimizer.space.unflatten(proposal.values))
    while len(optimizer.trials) < evaluations:
        for point in optimizer.ask(min(3, evaluations - len(optimizer.trials))):
            score(optimizer, point)


def score(optimizer: LLMOptimizer, point: dict) -> None:
    if point["k"] % 7 == 0:
        optimizer.tell_failure(point, "divisible by seven")
    else:
        optimizer.tell(point, -((point["x"] - 1) ** 2) - point["k"] / 50, feedback="ok")


def outcome(optimizer: LLMOptimizer) -> tuple:
    return (
        [(t.values, t.rewards, t.source, t.explanation, t.feedback) for t in optimizer.trials],
        optimizer.usage,
    )


class TestReadiness:
    """What is sure to stop the first request is an error before the first evaluation."""

    def test_a_cost_cap_without_a_price_is_one_too(self, monkeypatch):
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        optimizer = LLMOptimizer(SPACE, "openai:not-in-any-list", max_cost=1.0)
        with pytest.raises(BudgetExceededError, match="Nothing was sent"):
            optimizer.ask()
        assert optimizer.pending == []


class TestAsk:
    def test_batch_size_fills_later_asks(self):
        optimizer = make(answers((1, 1), (2, 2), (3, 3)), batch_size=3)
        assert optimizer.ask()["k"] == 1
        assert optimizer.usage.requests == 3
        assert [optimizer.ask()["k"] for _ in range(2)] == [2, 3]
        assert optimizer.usage.requests == 3
        assert optimizer.usage.proposals == {"llm": 3}


class TestRejection:
    def test_exhausted_finite_space_repeats_points_loudly(self):
        space = {"k": Int(0, 1)}
        optimizer = LLMOptimizer(space, ScriptedClient(["k: 0", "k: 1"]), warmup=0, seed=0)
        assert [optimizer.ask()["k"], optimizer.ask()["k"]] == [0, 1]
        with pytest.warns(FallbackWarning, match="every point of the space"):
            assert optimizer.ask()["k"] in (0, 1)
        assert optimizer.usage.requests == 2

    def test_refusal_and_truncation_are_told_apart(self):
        client = ScriptedClient(
            [
                Reply((Completion("", "filter"),)),
                Reply((Completion("I cannot", "refusal"),)),
                Reply((Completion("x: 1", "length"),)),
                Reply((Completion("x: 1, k: 2"),)),
            ]
        )
        optimizer = LLMOptimizer(SPACE, client, warmup=0, attempts=4)
        assert optimizer.ask() == {"x": 1.0, "k": 2}
        assert optimizer.usage.rejected == {"filter": 1, "refusal": 1, "truncated": 1}


class TestTell:
    def test_a_point_that_was_not_asked_for_is_the_users(self):
        trial = make().tell({"k": 3, "x": 0.1}, -1)
        assert (trial.source, trial.reward, trial.number) == ("user", -1.0, 0)

    @pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, None, np.float32("nan")])
    def test_no_finite_reward_is_a_failed_trial(self, reward):
        optimizer = make(answers((1, 1)))
        trial = optimizer.tell(optimizer.ask(), reward)
        assert trial.state == "failed"
        assert trial.reward is None
        with pytest.raises(NoTrialsError, match=r"all 1 trials failed.* reward"):
            optimizer.best  # noqa: B018

    def test_a_curve_stands_in_one_line_before_the_words(self):
        optimizer = make(answers((1.5, 1)), direction="minimize")
        losses = [1 / (step + 1) for step in range(100)]
        told = optimizer.tell({"x": 0.0, "k": 1}, 0.01, feedback="slow", curve=losses)
        assert told.feedback.startswith("curve 0: 1, 1: 0.5, 2: 0.3333, ")
        assert told.feedback.endswith("99: 0.01 (best 0.01 at 99); slow")
        assert len(told.feedback) < 200
        told = optimizer.tell({"x": 1.0, "k": 1}, None, curve=[(10, 0.5), (20, math.nan)])
        assert told.feedback == "no reward; curve 10: 0.5, 20: nan (best 0.5 at 10)"
        assert optimizer.tell({"x": 2.0, "k": 1}, 1.0, curve=[3.0]).feedback == ""
        optimizer.ask()
        assert "curve 10: 0.5, 20: nan" in optimizer.client.requests[0].text

    @pytest.mark.parametrize("curve", [1.0, "1, 2", [(1, 2, 3)], ["a", "b"], [1, None]])
    def test_what_is_no_curve_is_refused_and_nothing_is_lost(self, curve):
        optimizer = make()
        with pytest.raises(RewardError, match="curve="):
            optimizer.tell({"x": 0.0, "k": 1}, 1.0, curve=curve)
        assert optimizer.trials == []

    def test_callers_array_is_not_kept(self):
        optimizer = LLMOptimizer(gym.spaces.Box(-1, 1, (2,)), ScriptedClient([]), warmup=0)
        point = np.zeros(2, dtype=np.float32)
        optimizer.tell(point, 1.0)
        point[:] = 1.0
        np.testing.assert_array_equal(optimizer.trials[0].params, [0, 0])

    @pytest.mark.parametrize("reward", [1, np.float32(1), np.int64(1), np.array(1.0)])
    def test_any_real_scalar_is_a_reward(self, reward):
        assert make().tell({"x": 0, "k": 0}, reward).reward == 1.0


class TestSeeds:
    def test_other_seed_other_points(self):
        points = [LLMOptimizer(SPACE, ScriptedClient([]), seed=s).ask(5) for s in (1, 2)]
        assert points[0] != points[1]

    def test_global_random_state_is_not_touched(self):
        np.random.seed(0)
        before = np.random.get_state()[1].copy()
        optimizer = make(["nonsense"] * 3, warmup=1, max_fallbacks=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            optimizer.ask(2)
        np.testing.assert_array_equal(np.random.get_state()[1], before)


class TestConcurrency:
    def test_tell_does_not_wait_for_a_model_call(self):
        gate = Gate("x: 1, k: 1")
        optimizer = LLMOptimizer(SPACE, gate, warmup=0)
        asking = threading.Thread(target=optimizer.ask)
        asking.start()
        assert gate.asked.wait(60)
        optimizer.tell({"x": 0.5, "k": 5}, 1.0)
        assert len(optimizer.trials) == 1
        gate.open.set()
        asking.join()
        assert len(optimizer.pending) == 1


@pytest.mark.parametrize("how", ["enqueue", "tell"])
def test_a_point_that_comes_during_an_ask_is_not_proposed_too(how):
    point = {"x": 1.5, "k": 7}

    def answer(_: Request) -> Reply:
        optimizer.enqueue(point) if how == "enqueue" else optimizer.tell(point, 1.0)
        return Reply((Completion("x: 1.5, k: 7"),))

    optimizer = make([answer, "x: 2.5, k: 7"], on_error="fallback")
    first = optimizer.ask()
    known = [t.params for t in optimizer.trials] + optimizer.pending
    assert first == known[-1]
    assert known.count(point) == 1
    if how == "enqueue":
        assert first == point
        first = optimizer.ask()
    assert first == {"x": 2.5, "k": 7}
    assert optimizer.usage.proposals == {"llm": 1}


def test_a_point_told_again_with_another_reward_is_said_once(caplog):
    optimizer = make()
    optimizer.tell({"x": 1.5, "k": 7}, 1.0)
    assert not caplog.records
    for reward in (1.0, 1.0, 2.0, 3.0):
        optimizer.tell({"x": 1.5, "k": 7}, reward)
    same, said = [r.message for r in caplog.records]
    assert "recorded again with the same reward" in same
    assert "another reward (2.0, before 1.0)" in said
    assert "tell the result with replaces=2. If rewards are noisy, set `noisy` to true" in said
    # Of every failed point that has a result now, and by its proposer.
    late = make([], warmup=3)
    for number in range(3):
        point = late.ask()
        late.tell_failure(point)
        assert late.tell(point, 1.0).source == "warmup"
        late.withdraw(trial=2 * number + 1)
        said = caplog.records.pop().message
        assert "another reward (1.0, before a failure)" in said
        assert f"replaces={2 * number}." in said
    noisy = make(noisy=True)
    for reward in (1.0, 2.0):
        noisy.tell({"x": 1.5, "k": 7}, reward)
    assert len(caplog.records) == 2


def test_samples_whose_mean_is_not_the_reward_are_refused():
    optimizer = make()
    with pytest.raises(RewardError, match=r"their mean is 2\.5, and the reward 1;"):
        optimizer.tell({"x": 1.5, "k": 7}, 1, samples=[2, 3])
    assert not optimizer.trials
    assert optimizer.tell({"x": 1.5, "k": 7}, 0.2, samples=[0.1, 0.2, 0.3]).samples


def test_a_failure_may_be_given_as_the_exception():
    assert make().tell_failure({"x": 1.5, "k": 7}, KeyError("lr")).feedback == "KeyError: 'lr'"
    assert make().tell_failure({"x": 1.5, "k": 7}, ValueError()).feedback == "ValueError"


@pytest.mark.parametrize("end", ["cap", "error"])
def test_points_paid_for_before_an_ask_fails_are_returned_by_later_ones(end):
    answers = iter(range(1, 9))

    def answer(request):
        k = next(answers)
        if k == 4 and end == "error":
            raise ClientError("busy", status=400)
        return f"x: {k / 100}"

    limits = {"max_requests": 3} if end == "cap" else {}
    optimizer = LLMOptimizer({"x": Float(0, 1)}, ScriptedClient(answer), warmup=0, **limits)
    with pytest.raises(BudgetExceededError if end == "cap" else ClientError):
        optimizer.ask(5)
    assert [optimizer.ask(), *optimizer.ask(2)] == [{"x": 0.01}, {"x": 0.02}, {"x": 0.03}]
    assert optimizer.usage.requests - optimizer.usage.failed_requests == 3
