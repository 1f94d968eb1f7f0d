"""LLMSampler inside of Optuna's PartialFixedSampler: the model is told what is fixed."""

from __future__ import annotations

import logging

import optuna
import pytest
from optuna.samplers import BaseSampler, PartialFixedSampler

from llmopt import Categorical, Float, Int, ScriptedClient, Space
from llmopt.adapters.optuna import LLMSampler

pytestmark = [
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
    pytest.mark.filterwarnings("error::llmopt.FallbackWarning"),
]

BRANCHES = Space(
    {
        "model": Categorical(["forest", "mlp"]),
        "trees": Int(10, 2000, when={"model": "forest"}),
        "rate": Float(0, 1, when={"model": "mlp"}),
        "width": Int(16, 512, when={"model": "mlp"}),
    }
)


def branches(trial: optuna.Trial) -> float:
    if trial.suggest_categorical("model", ["forest", "mlp"]) == "forest":
        return trial.suggest_int("trees", 10, 2000)
    return trial.suggest_float("rate", 0, 1) + trial.suggest_int("width", 16, 512)


def plain(trial: optuna.Trial) -> float:
    return trial.suggest_float("a", 0, 1) + trial.suggest_float("b", 0, 1)


def asked(answers, **options) -> LLMSampler:
    points = [f"Start from: new\nProposal:\n{answer}" for answer in answers]
    client = ScriptedClient(points)
    return LLMSampler(client, prompt="words", description="A loss.", seed=1, **options)


def fixed(sampler: BaseSampler, **values: object) -> optuna.Study:
    return optuna.create_study(sampler=PartialFixedSampler(values, sampler))


def test_the_first_request_says_what_is_fixed_and_an_answer_may_repeat_it(caplog):
    answers = [
        "model: mlp, width: 256, rate: 0.25",  # as it was told
        "model: forest, trees: 36, rate: 0.5",  # in part of another branch
        "rate: 0.75",
    ]
    sampler = asked(answers, space=BRANCHES)
    study = fixed(sampler, model="mlp", width=256)
    optuna.logging.enable_propagation()
    try:
        study.optimize(branches, n_trials=3)
    finally:
        optuna.logging.disable_propagation()
    expected = [{"model": "mlp", "width": 256, "rate": rate} for rate in (0.25, 0.5, 0.75)]
    assert [trial.params for trial in study.trials] == expected
    for request in sampler.client.requests:
        assert "already set for this proposal: model = 'mlp', width = 256" in request.text
        assert "model, which a point has" not in request.text
        assert "width: <value>" not in request.text
    assert (sampler.usage.requests, sampler.usage.proposals) == (3, {"llm": 3})
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_a_plain_space_is_asked_for_the_rest():
    sampler = asked(["b: 0.1", "a: 0.9, b: 0.2"], space={"a": Float(0, 1), "b": Float(0, 1)})
    study = fixed(sampler, a=0.5)
    study.optimize(plain, n_trials=2)
    assert [t.params for t in study.trials] == [{"a": 0.5, "b": 0.1}, {"a": 0.5, "b": 0.2}]
    for request in sampler.client.requests:
        assert "already set for this proposal: a = 0.5" in request.text
        assert "a: <value>" not in request.text
    assert study.trials[0].user_attrs["llmopt:source"] == "llm"


def test_an_answer_with_the_fixed_values_alone_lacks_the_others():
    space = {"a": Float(0, 1), "b": Float(0, 1), "c": Float(0, 1)}
    sampler = asked(["a: 0.5, b: 0.25", "c: 0.75"], space=space)
    study = fixed(sampler, a=0.5, b=0.25)
    study.optimize(lambda trial: plain(trial) + trial.suggest_float("c", 0, 1), n_trials=1)
    assert study.trials[0].params == {"a": 0.5, "b": 0.25, "c": 0.75}
    assert sampler.usage.rejected == {"unreadable": 1}


def test_without_a_space_the_values_are_said_once_the_parameters_are_known():
    sampler = asked(["b: 0.1"])
    study = fixed(sampler, a=0.5)
    study.optimize(plain, n_trials=2)
    assert study.trials[1].params == {"a": 0.5, "b": 0.1}
    (request,) = sampler.client.requests
    assert "already set for this proposal: a = 0.5" in request.text


def test_what_is_enqueued_comes_before_what_is_fixed():
    sampler = asked(["b: 0.1"], space={"a": Float(0, 1), "b": Float(0, 1)})
    study = fixed(sampler, a=0.5)
    study.enqueue_trial({"a": 0.25})
    study.optimize(plain, n_trials=1)
    assert study.trials[0].params == {"a": 0.25, "b": 0.1}
    assert "already set for this proposal: a = 0.25" in sampler.client.requests[0].text


def test_waiting_points_are_dropped_once_other_values_are_fixed():
    space = {"a": Float(0, 1), "b": Float(0, 1)}
    points = "b: 0.1\n\nStart from: new\nProposal:\nb: 0.2"
    sampler = asked([points, "b: 0.3"], space=space)
    study = fixed(sampler, a=0.5)
    study.optimize(plain, n_trials=1)
    study.sampler = PartialFixedSampler({"a": 0.75}, PartialFixedSampler({}, sampler))
    study.optimize(plain, n_trials=1)
    assert [t.params for t in study.trials] == [{"a": 0.5, "b": 0.1}, {"a": 0.75, "b": 0.3}]
    second = sampler.client.requests[1].text
    assert "already set for this proposal: a = 0.75" in second
    assert "not used, as other values are set by now: a = 0.5, b = 0.2" in second
