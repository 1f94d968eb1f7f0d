"""The contract of a search, for each of the searches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from search_contract import SearchContract
from stubs import needs_confinement

from llmopt import BudgetExceededError, Float, Int, LLMOptimizer, ScriptedClient, report
from llmopt.code import CodeOptimizer, Function, Output
from llmopt.policies import PolicySearch


def proposal(**values: float) -> str:
    return "Start from: new\nProposal:\n" + ", ".join(f"{k}: {v}" for k, v in values.items())


class TestLLMOptimizer(SearchContract):
    takes_evaluations = True
    takes_callbacks = True

    def open(self, client, storage=None, **options):
        options = {"warmup": 0, "seed": 1, "storage": storage, **options}
        return LLMOptimizer({"k": Int(0, 9), "x": Float(-5, 5)}, client, "words", **options)

    def answer(self, number):
        return proposal(x=number, k=3)


class TestLLMSampler(SearchContract):
    own_file = False
    keeps_failed_asks = True

    def open(self, client, storage=None, **options):
        optuna = pytest.importorskip("optuna")
        from optuna.distributions import FloatDistribution, IntDistribution
        from optuna.storages.journal import JournalFileBackend

        from llmopt.adapters.optuna import LLMSampler

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space = {"k": IntDistribution(0, 9), "x": FloatDistribution(-5, 5)}
        made = {"n_startup_trials": 0, "seed": 1, "on_error": "raise", "space": self.space}
        sampler = LLMSampler(client, prompt="words", **{**made, **options})
        if storage is not None:
            storage = optuna.storages.JournalStorage(JournalFileBackend(str(storage)))
        return optuna.create_study(
            sampler=sampler, study_name="s", storage=storage, load_if_exists=True
        )

    answer = TestLLMOptimizer.answer

    def ask(self, search):
        return search.ask(self.space)

    def fail(self, search, reason):
        trial = self.ask(search)
        trial.set_user_attr("feedback", reason)
        search.tell(trial, state=pytest.importorskip("optuna").trial.TrialState.FAIL)

    def values(self, search):
        return [tuple(t.params.values()) for t in search.trials if t.values]

    def spender(self, search):
        return search.sampler

    def report(self, search, path):
        return report(search, path)

    def close(self, search):
        pass


class TestParametrizedLLM(SearchContract):
    other_caps = False

    def open(self, client, storage=None, **options):
        ng = pytest.importorskip("nevergrad")
        from llmopt.adapters.nevergrad import ParametrizedLLM

        space = ng.p.Dict(
            k=ng.p.Scalar(lower=0, upper=9).set_integer_casting(),
            x=ng.p.Scalar(lower=-5, upper=5),
        )
        search = ParametrizedLLM(model=client, prompt="words", **{"warmup": 0, **options})(space)
        search.parametrization.random_state = np.random.RandomState(7)
        return search

    answer = TestLLMOptimizer.answer
    own_file = False

    def fail(self, search, reason):
        search.tell(self.ask(search), float("nan"), feedback=reason)

    def values(self, search):
        return [trial.values for trial in search.history.trials if trial.rewards]

    def reopen(self, search, client, storage, **options):
        search.dump(storage)
        return type(search).load(storage)

    def close(self, search):
        pass


class Tilt(gym.Env):
    """Two numbers are observed, and the reward is the action."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Box(-1, 1, (1,))
    broken = ""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.float32([1, 0.5]), {}

    def step(self, action):
        if self.broken:
            raise RuntimeError(self.broken)
        return np.float32([1, 0.5]), float(action[0]), True, False, {}


class TestPolicySearch(SearchContract):
    takes_callbacks = True
    clones = ()  # it holds an environment

    def open(self, client, storage=None, **options):
        made = {"warmup": 0, "starts": 1, "bias": False, "box": 5, "total": 9, "storage": storage}
        return PolicySearch(Tilt, client, "words", max_steps=2, **{**made, **options})

    def answer(self, number):
        return proposal(**{"a0<-o0": number, "a0<-o1": 0.5})

    def values(self, search):
        return [trial.values for trial in search.optimizer.trials if trial.rewards]

    def spender(self, search):
        return search.optimizer

    def advance(self, search, points=1):
        try:
            search.run(len(search.optimizer.trials) + points)
        except BudgetExceededError as end:
            return str(end)
        return search.stopped

    def fail(self, search, reason, monkeypatch=None):
        Tilt.broken = reason
        try:
            self.advance(search)
        finally:
            Tilt.broken = ""


@needs_confinement
class TestCodeOptimizer(SearchContract):
    takes_evaluations = True
    offers_stop = False
    has_ranges = False
    reports = False
    clones = ()  # its candidates run in processes

    def open(self, client, storage=None, **options: Any):
        samples = ((np.array([1.0, 2.0]),),)
        function = Function("f(x)", "Return one number.", Output(), samples)
        options.pop("on_error", None)
        return CodeOptimizer(function, client=client, seed=1, storage=storage, **options)

    test_a_model_that_gives_no_point_again_and_again_ends_it = None  # it samples no points
    test_random_points_follow_a_failed_request_and_never_end_at_a_cap = None

    def block(self, code):
        return f"```run\n{code}\n```"

    def answer(self, number):
        return f"```python\ndef f(x):\n    return {float(number)}\n```"

    def values(self, search):
        return [trial.source for trial in search.trials if trial.reward is not None]


def answers(count: int) -> Iterator[str]:
    """Answer with points, some outside of the ranges, some repeated, and some unreadable."""
    rng = np.random.default_rng(0)
    for i in range(count):
        x, k = (0.5, 1) if i % 7 == 6 else (round(rng.uniform(-6, 6), 3), int(rng.integers(10)))
        yield "no idea" if i % 5 == 4 else proposal(x=x, k=k)


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("contract", [TestLLMSampler, TestParametrizedLLM])
def test_equal_answers_give_the_points_and_requests_of_the_optimizer(contract, batch_size):
    def run(of: SearchContract, **options: Any) -> list[Any]:
        client = ScriptedClient(answers(60))
        options |= {"batch_size": batch_size, "attempts": 5, "description": "a bowl"}
        with of.opened(client, out_of_range="clip", **options) as search:
            assert of.advance(search, 14) == ""
            requests = [request.messages for request in client.requests]
            return [of.values(search), of.usage(search).rejected, requests]

    expected = run(TestLLMOptimizer(), direction="minimize")
    assert {-5.0, 5.0} & {x for _, x in expected[0]}  # clipped ones are among them
    assert run(contract()) == expected
