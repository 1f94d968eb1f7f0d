"""LLMSampler: Optuna's own conformance suite, and what that suite does not ask."""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import re
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, PartialFixedSampler, RandomSampler
from optuna.trial import TrialState
from stubs import in_threads

from llmopt import (
    Categorical,
    ClientError,
    Completion,
    FallbackWarning,
    Float,
    Int,
    Reply,
    ScriptedClient,
    Space,
    parse_parameters,
)
from llmopt.adapters.optuna import LLMSampler
from llmopt.client.base import Message, Request
from llmopt.client.folder import FolderClient
from llmopt.prompt import Question, Reading, Situation

# Registered before its import, so that a failure in Optuna's suite shows the values.
pytest.register_assert_rewrite("optuna.testing.pytest_samplers")
pytest_samplers = importlib.import_module("optuna.testing.pytest_samplers")

pytestmark = pytest.mark.filterwarnings(
    # Nothing that Optuna will remove may be used.
    "error::FutureWarning",
    "error::DeprecationWarning",
    # A scripted model that gives no usable answer is a mistake in the test, but in a small
    # finite space all points are soon tried, and random ones are right then.
    "error::llmopt.FallbackWarning",
    "ignore:.*already tried",
    "ignore:.*the partner 'cma' had no new point",
)

OPTUNA_5 = int(optuna.__version__.split(".")[0]) >= 5
XY = {"x": FloatDistribution(-5, 5), "y": IntDistribution(0, 9)}


class BowlModel:
    """Answers with random points for `bowl`, which depend on the whole request."""

    def __call__(self, request: Request) -> Reply:
        rng = np.random.default_rng(int(request.digest()[:12], 16))
        texts = (Completion(self.answer(rng)),)
        return Reply(
            texts, model="random", prompt_tokens=100, completion_tokens=10, seconds=1.5, cost=0.5
        )

    @staticmethod
    def answer(rng: np.random.Generator) -> str:
        point = f"x: {rng.uniform(-5, 5):.3f}, y: {rng.integers(10)}"
        return f"{point}\ndraw {rng.integers(1000)}"


class SpaceModel:
    """Answers with random points for any space, which it reads from a `SpacePrompt`."""

    def __call__(self, request: Request) -> str:
        space = Space.from_dict(json.loads(request.text))
        values = space.sample(np.random.default_rng(request.seed))
        return ", ".join(f"{n}: {space.format(i, values[i])}" for i, n in enumerate(space.names))


class SpacePrompt:
    """Shows the space only, in a form that does not change with anybody's wording."""

    name = "space"

    def prepare(self, situation: Situation) -> Question:
        text = json.dumps(situation.space.to_dict())

        def read(text: str) -> Reading:
            return parse_parameters(text, situation.space)

        return Question(Request((Message("user", text),)), read)

    def to_dict(self) -> dict[str, str]:
        return {"name": self.name}


def make(replies=None, **options) -> LLMSampler:
    options.setdefault("n_startup_trials", 0)
    options.setdefault("seed", 1)
    return LLMSampler(ScriptedClient(BowlModel() if replies is None else replies), **options)


def make_for_any_space(**options) -> LLMSampler:
    return make(SpaceModel(), prompt=SpacePrompt(), **options)


def study_of(sampler: BaseSampler, **options) -> optuna.Study:
    return optuna.create_study(sampler=sampler, **options)


def requests(sampler: LLMSampler) -> list[Request]:
    return sampler.client.requests


def told(study: optuna.Study, distributions, params, value, **options) -> None:
    values = {"values": value} if isinstance(value, list) else {"value": value}
    study.add_trial(
        optuna.create_trial(params=params, distributions=distributions, **values, **options)
    )


def begun(sampler: BaseSampler) -> optuna.Study:
    """Return a study that knows one finished trial, so that the model is asked next."""
    study = study_of(sampler)
    told(study, XY, {"x": 0.5, "y": 0}, 1.0)
    return study


def broken_by(amount: float) -> dict[str, object]:
    """Return the system attributes of a trial with one constraint, called "size" in Optuna 5."""
    return {"constraints:size": amount} if OPTUNA_5 else {"constraints": [amount]}


def bowl(trial: optuna.Trial) -> float:
    return trial.suggest_float("x", -5, 5) ** 2 + trial.suggest_int("y", 0, 9)


@pytest.fixture(autouse=True)
def _quiet():
    optuna.logging.set_verbosity(optuna.logging.WARNING)


class TestBasicAtOnce(pytest_samplers.BasicSamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return make_for_any_space


class TestRelative(pytest_samplers.RelativeSamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return make_for_any_space


class TestMultiObjective(pytest_samplers.MultiObjectiveSamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return make_for_any_space


class TestRecommend:
    @pytest.mark.parametrize("direction", ["maximize", "minimize"])
    def test_the_best_mean_less_its_error_in_the_direction_of_the_study(self, direction):
        study = study_of(RandomSampler(), direction=direction)
        sign = 1 if direction == "maximize" else -1
        # The mean of x = 2 is 9.5, give or take 0.65; x = 1 was measured once; x = 4 is the worst.
        for x, value in ((2, 9.0), (2, 11.0), (1, 10.0), (2, 8.0), (2, 10.0), (4, 3.0), (4, 3.1)):
            told(study, XY, {"x": x, "y": 0}, sign * value)
        assert LLMSampler.recommend(study).params == {"x": 2, "y": 0}
        told(study, XY, {"x": 3, "y": 0}, sign * 14.0)
        assert LLMSampler.recommend(study).params == {"x": 3, "y": 0}

    def test_a_reported_error_counts_in_the_recommendation(self):
        study = study_of(RandomSampler())
        for x, error in ((1.0, 5.0), (1.2, 0.01)):
            told(study, XY, {"x": x, "y": 0}, x, user_attrs={"stderr": error})
        assert LLMSampler.recommend(study).params["x"] == 1.2

    def test_what_breaks_a_constraint_comes_last_and_what_is_not_finite_never(self):
        study = study_of(RandomSampler())
        told(study, XY, {"x": 0.0, "y": 0}, float("-inf"))
        with pytest.raises(ValueError, match="no trial"):
            LLMSampler.recommend(study)
        told(study, XY, {"x": 1.0, "y": 0}, 1.0, system_attrs=broken_by(0.5))
        assert LLMSampler.recommend(study).params["x"] == 1.0
        told(study, XY, {"x": 2.0, "y": 0}, 9.0, system_attrs=broken_by(-1.0))
        assert LLMSampler.recommend(study).params["x"] == 2.0


class TestDistributions:
    @pytest.mark.parametrize(
        ("distribution", "answer", "value"),
        [
            (FloatDistribution(-1, 1), "0.25", 0.25),
            (FloatDistribution(1e-6, 1, log=True), "2.5e-05", 2.5e-5),
            (FloatDistribution(0, 1, step=0.25), "0.75", 0.75),
            (FloatDistribution(0, 1, step=0.25), "7", 1.0),
            (IntDistribution(3, 9, step=2), "7", 7),
            (IntDistribution(1, 1024, log=True), "64", 64),
            (CategoricalDistribution(["adam", "sgd"]), "sgd", "sgd"),
            (CategoricalDistribution([None, 1, 2.5, True]), "None", None),
            (CategoricalDistribution([None, 0, 2.5, True]), "True", True),
            (CategoricalDistribution([float("inf"), 0.5]), "inf", float("inf")),
        ],
    )
    def test_the_answer_becomes_the_parameter(self, distribution, answer, value):
        sampler = make([f"p: {answer}"])
        study = study_of(sampler)
        first = distribution.to_external_repr(distribution.to_internal_repr(value))
        told(study, {"p": distribution}, {"p": _other(distribution, first)}, 0.0)
        got = study.ask({"p": distribution}).params["p"]
        assert got == value
        assert type(got) is type(value)

    @pytest.mark.filterwarnings("ignore:Choices for a categorical")
    def test_choices_that_storages_cannot_hold_and_cannot_hash(self):
        distribution = CategoricalDistribution([(1, 2), [3, 4]])
        sampler = make(["layers: [3, 4]", "layers: (1, 2)"])
        for known, expected in (((1, 2), [3, 4]), ([3, 4], (1, 2))):
            study = study_of(sampler)
            told(study, {"layers": distribution}, {"layers": known}, 0.0)
            assert study.ask({"layers": distribution}).params["layers"] == expected
        assert sampler.usage.fallbacks == 0

    def test_what_no_prompt_can_show_is_sampled_independently(self, caplog):
        space = {"x": FloatDistribution(0, 2), "two\nlines": FloatDistribution(0, 1)}
        sampler = make(["x: 1.5"])
        study = study_of(sampler)
        told(study, space, {"x": 1.0, "two\nlines": 0.0}, 0.0)
        with caplog.at_level(logging.WARNING, "optuna.llmopt"), _propagate():
            params = study.ask(space).params
        assert params["x"] == 1.5
        assert 0 <= params["two\nlines"] <= 1
        assert "white space that a prompt cannot show" in caplog.text


def _other(distribution, value):
    if isinstance(distribution, CategoricalDistribution):
        return next(c for c in distribution.choices if c != value or type(c) is not type(value))
    return distribution.low


class _propagate:
    """Lets caplog see Optuna's messages."""

    def __enter__(self):
        optuna.logging.enable_propagation()

    def __exit__(self, *_):
        optuna.logging.disable_propagation()


class TestPrompt:
    def test_says_names_ranges_scales_words_and_direction(self):
        sampler = make(
            ["booster: dart, depth: 2, learning_rate: 0.001"],
            description="Accuracy of a boosted tree",
        )
        study = study_of(sampler, direction="maximize")
        study.set_user_attr("expert", "small learning rates were better last year")
        space = {
            "learning_rate": FloatDistribution(1e-5, 0.1, log=True),
            "depth": IntDistribution(2, 8, step=2),
            "booster": CategoricalDistribution(["dart", "gbtree", None]),
        }
        told(study, space, {"learning_rate": 0.01, "depth": 4, "booster": None}, 0.875)
        study.ask(space)
        text = requests(sampler)[0].text
        assert "learning_rate: a number from 1e-05 to 0.1 (logarithmic scale)" in text
        assert "depth: an integer from 2 to 8 in steps of 2" in text
        assert "booster: one of dart, gbtree, None" in text
        assert "Accuracy of a boosted tree" in text
        assert "expert: small learning rates were better last year" in text
        assert "global maximum" in text
        assert "f = 0.875" in text

    def test_shows_pruned_failed_and_infinite_trials_as_such(self):
        sampler = make()
        study = begun(sampler)
        pruned = {"intermediate_values": {1: 9.0, 3: 7.25}, "state": TrialState.PRUNED}
        study.add_trial(optuna.create_trial(params={"x": 1.5, "y": 1}, distributions=XY, **pruned))
        silent = {"params": {"x": 3.5, "y": 3}, "state": TrialState.PRUNED}
        study.add_trial(optuna.create_trial(distributions=XY, **silent))
        failed = {"params": {"x": 2.5, "y": 2}, "state": TrialState.FAIL}
        study.add_trial(optuna.create_trial(distributions=XY, **failed))
        told(study, XY, {"x": 4.5, "y": 4}, float("inf"))
        study.ask(XY)
        lines = requests(sampler)[0].text.splitlines()
        assert any("x: 1.5, y: 1; pruned" in t and "f = 7.25" in t and "step 3" in t for t in lines)
        assert any("x: 3.5, y: 3; pruned" in t and "f =" not in t for t in lines)
        assert "x: 2.5, y: 2; failed" in lines
        assert "x: 4.5, y: 4; failed: the value was inf" in lines

    def test_tells_constraints_and_ranks_feasible_trials_first(self):
        sampler = make(["x: 3, y: 3"], prompt="opro")
        study = study_of(sampler)
        for x, value, constraint in ((1.5, 1.0, 0.75), (2.5, 9.0, -1.0)):
            told(study, XY, {"x": x, "y": 1}, value, system_attrs=broken_by(constraint))
        study.ask(XY)
        text = requests(sampler)[0].text
        assert "violates the constraints by 0.75" in text
        assert f"constraints above 0: {'size' if OPTUNA_5 else '0'} = 0.75" in text
        # This prompt shows the best last: the feasible trial, though its value is worse.
        assert text.index("x: 1.5") < text.index("x: 2.5")

    @pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
    def test_several_objectives_are_named_and_shown(self):
        sampler = make()
        study = study_of(sampler, directions=["minimize", "maximize"])
        study.set_metric_names(["latency", "accuracy"])
        told(study, XY, {"x": 0.5, "y": 0}, [3.5, 0.25])
        study.ask(XY)
        text = requests(sampler)[0].text
        assert "minimize latency, maximize accuracy" in text
        assert "(3.5, 0.25)" in text
        assert "objective names" not in text  # they are said once


class TestStartup:
    def test_the_model_is_asked_after_the_startup_trials(self):
        sampler = make(n_startup_trials=3)
        study = study_of(sampler)
        study.optimize(bowl, n_trials=5)
        sources = [t.user_attrs["llmopt:source"] for t in study.trials]
        assert sources == ["warmup"] * 3 + ["llm"] * 2
        assert sampler.usage.proposals == {"warmup": 3, "llm": 2}

    def test_failed_trials_do_not_count(self):
        sampler = make(n_startup_trials=2)
        study = study_of(sampler)
        study.optimize(lambda t: bowl(t) * float("nan"), n_trials=3)
        assert len(requests(sampler)) == 0

    def test_an_independent_sampler_of_the_user_is_used(self):
        class Fixed(RandomSampler):
            def sample_independent(self, study, trial, param_name, param_distribution):
                return param_distribution.high

        sampler = make(n_startup_trials=1, independent_sampler=Fixed())
        study = study_of(sampler)
        study.optimize(bowl, n_trials=1)
        assert study.trials[0].params == {"x": 5, "y": 9}

    def test_equal_seeds_do_not_repeat_draws_across_workers(self):
        storage = optuna.storages.InMemoryStorage()
        first = study_of(make(n_startup_trials=9, seed=3), storage=storage, study_name="s")
        second = optuna.load_study(
            study_name="s", storage=storage, sampler=make(n_startup_trials=9, seed=3)
        )
        points = {study.ask(XY).params["x"] for study in (first, second) for _ in range(4)}
        assert len(points) == 8


class TestConditional:
    @staticmethod
    def branches(trial: optuna.Trial) -> float:
        if trial.suggest_categorical("k", ["a", "b"]) == "a":
            return trial.suggest_float("u", 0, 10)
        return trial.suggest_float("v", 0, 10)

    def branched(self, replies, prompt="words", **options):
        """Return the study of two branches, with two trials in each, and its sampler."""
        sampler = make(replies, prompt=prompt, **options)
        study = study_of(sampler)
        for given in ({"k": "b", "v": 7}, {"k": "a", "u": 9}, {"k": "b", "v": 5}):
            words = {"words": "the default"} if given.get("u") == 9 else {}
            study.enqueue_trial(given, user_attrs=words)
        study.optimize(self.branches, n_trials=3)
        assert requests(sampler) == []
        return study, sampler

    @pytest.mark.parametrize("prompt", ["words", "props", "opro"])
    def test_a_point_of_a_conditional_space_is_one_request_and_one_row(self, prompt):
        sampler = make(["k: a, u: 2.5", "k: b, v: 2.5"], prompt=prompt)
        study = study_of(sampler)
        study.enqueue_trial({"k": "a", "u": 9})
        study.enqueue_trial({"k": "b", "v": 5})
        study.optimize(self.branches, n_trials=4)
        assert [t.params for t in study.trials[2:]] == [{"k": "a", "u": 2.5}, {"k": "b", "v": 2.5}]
        assert sampler.usage.requests == 2
        text = requests(sampler)[0].text
        assert "u: a number from 0" in text
        assert "only with k = a" in text
        assert ("#2 | 5 | b | – | 5" if prompt == "words" else "k: b, v: 5.0") in text

    ANSWERS = (
        "Lesson: none\nHypothesis: a is better\nStart from: #2\nProposal:\nu: 3",
        "Hypothesis: less u\nStart from: #3\nProposal:\nk: a, u: 2.5",
        "Hypothesis: back\nStart from: #4\nProposal:\nk: b",
        "Hypothesis: back\nStart from: #4\nProposal:\nk: b, v: 4",
    )

    def test_a_start_from_another_branch_takes_what_this_one_needs(self):
        study, sampler = self.branched(self.ANSWERS)
        study.optimize(self.branches, n_trials=3)
        assert [t.params for t in study.trials[3:]] == [
            {"k": "a", "u": 3.0},
            {"k": "a", "u": 2.5},
            {"k": "b", "v": 4.0},
        ]
        *_, refused, last = (r.text for r in requests(sampler))
        assert "#5 | 2.5 | a | 2.5 | – | #3\n" in refused
        assert "-2.5 against #3" in refused
        assert 'hypothesis: "a is better"' in refused
        assert "there is no value for `v`" in last
        # A start that another worker reads is the same one.
        again = make(["Start from: #6\nProposal:\nv: 1"], prompt="words")
        study.sampler = again
        study.optimize(self.branches, n_trials=1)
        assert "| a | 2.5 | – | #3\n" in requests(again)[0].text
        assert study.trials[-1].params == {"k": "b", "v": 1.0}

    def test_a_choice_that_no_trial_had_needs_no_values_of_other_branches(self):
        replies = [
            "Start from: new\nProposal:\nk: b",  # nobody knows yet what it has
            "Start from: #1\nProposal:\nk: c",
            "Start from: new\nProposal:\nk: b, v: 4",
        ]
        sampler = make(replies, prompt="words")
        study = study_of(sampler)

        def objective(trial):
            kind = trial.suggest_categorical("k", ["a", "b", "c"])
            return trial.suggest_float({"a": "u", "b": "v", "c": "w"}[kind], 0, 10)

        study.enqueue_trial({"k": "a", "u": 9})
        study.optimize(objective, n_trials=4)
        assert [t.params["k"] for t in study.trials] == ["a", "b", "c", "b"]
        assert study.trials[3].params == {"k": "b", "v": 4}
        assert sampler.usage.requests == 3
        assert sampler.usage.rejected == {}
        first, second, third = (r.text for r in requests(sampler))
        assert "no trial has had k = b or k = c yet. With such a choice" in first
        assert "no trial has had k = c yet" in second
        assert "no trial has had" not in third

    @pytest.mark.parametrize(
        ("first", "answer", "row"),
        [
            ({"k": "a", "u": 9}, "k: a, u: 2.5", "#1 | failed | a | 9 | – | warm-up"),
            ({"k": "a"}, "k: a", "#1 | failed | a | – | warm-up"),  # it did not get to `u`
        ],
    )
    def test_a_branch_whose_only_trial_failed_is_open(self, first, answer, row):
        def objective(trial):
            if trial.number > 0:
                return self.branches(trial)
            trial.suggest_categorical("k", ["a", "b"])
            if "u" in first:
                trial.suggest_float("u", 0, 10)
            raise ValueError("out of memory")

        points = (answer, answer, "k: a, u: 1")
        sampler = make([f"Start from: new\nProposal:\n{p}" for p in points], prompt="words")
        study = study_of(sampler)
        study.enqueue_trial(first)
        study.enqueue_trial({"k": "b", "v": 5})
        study.optimize(objective, n_trials=4, catch=ValueError)
        assert row in requests(sampler)[0].text
        assert ("no trial has had k = a yet" in requests(sampler)[0].text) == ("u" not in first)
        assert study.trials[2].params.keys() == {"k", "u"}
        assert study.trials[3].params == {"k": "a", "u": 1}  # what the branch has is known
        assert sum(sampler.usage.rejected.values()) == 1
        assert sampler.usage.fallbacks == 0

    def test_what_nothing_tells_is_asked_for_when_it_is_needed(self):
        sampler = make(["x: 1, y: 1", "x: 2, y: 2", "z: 0.5"])
        study = study_of(sampler)

        def objective(trial):
            x, y = trial.suggest_float("x", 0, 5), trial.suggest_float("y", 0, 5)
            return x + y + (trial.suggest_float("z", 0, 1) if trial.number in (1, 3) else 0)

        for _ in range(3):
            study.enqueue_trial(
                {"x": study._storage.get_n_trials(study._study_id), "y": 0, "z": 0.25}
            )
        study.optimize(objective, n_trials=4)
        first, second = requests(sampler)[0].text, requests(sampler)[-1].text
        assert "z: a number from 0.00 to 1.00 with 2 decimals, not in every point" in first
        assert "already set for this proposal: x = 1.0, y = 1.0" in second
        assert study.trials[3].params == {"x": 1, "y": 1, "z": 0.5}

    def test_warns_as_optunas_samplers_do(self, caplog):
        def objective(trial):
            low = 10 * (trial.number % 2)
            return trial.suggest_float("x", low, low + 5)

        for warn in (True, False):
            sampler = make(["x: 1.5", "x: 11.5"], warn_independent_sampling=warn)
            with caplog.at_level(logging.WARNING, "optuna.llmopt"), _propagate():
                study_of(sampler).optimize(objective, n_trials=3)
            if warn:
                assert "`x` in Trial#1 is sampled independently" in caplog.text
                assert "instead of `LLMSampler`" in caplog.text
                caplog.clear()
        assert caplog.text == ""

    def test_warns_of_a_parameter_that_the_given_space_lacks(self, caplog):
        sampler = make(["rate: 0.5, x: 1.5"], space={"rate": Float(0, 1), "x": Float(0, 5)})
        with caplog.at_level(logging.WARNING, "optuna.llmopt"), _propagate():
            study_of(sampler).optimize(lambda trial: trial.suggest_float("lr", 0, 1), n_trials=1)
        assert "`lr` in Trial#0 is sampled independently" in caplog.text
        assert "`space=` has 'rate', 'x' alone" in caplog.text

    @pytest.mark.parametrize("startup", [0, 1])
    def test_warns_once_of_a_given_space_that_is_unlike_the_trials(self, startup, caplog):
        space = {"x": Float(0, 1), "lr": Float(0, 1), "k": Int(1, 3)}

        def objective(trial):
            return trial.suggest_float("x", 5, 6) + trial.suggest_int("k", 1, 3)

        with caplog.at_level(logging.WARNING, "optuna.llmopt"), _propagate():
            sampler = make(["x: 0.5, lr: 0.5, k: 2"] * 9, space=space, n_startup_trials=startup)
            study_of(sampler).optimize(objective, 2)
        (said,) = {m for m in caplog.messages if "is unlike" in m}
        assert "it has no `lr`; `x` is FloatDistribution(high=6.0, log=False, low=5.0" in said
        assert "`k`" not in said

    def test_a_given_space_with_equal_parameters_is_no_reason_for_a_warning(self, caplog):
        space = {"x": Float(0, 1), "kind": Categorical(["a", "b"])}
        space["k"] = Int(1, 3, when={"kind": "a"})

        def objective(trial):
            value = trial.suggest_float("x", 0, 1)
            return value + (trial.suggest_categorical("kind", ["a", "b"]) == "a" and 0)

        with caplog.at_level(logging.WARNING, "optuna.llmopt"), _propagate():
            study_of(make(["x: 0.5, kind: b"], space=space)).optimize(objective, 1)
        assert "is unlike" not in caplog.text


class TestGivenParameters:
    def test_waiting_trials_are_pending(self):
        sampler = make(["x: 2.5, y: 3", "x: 3.5, y: 3"])
        study = begun(sampler)
        trial = study.ask()
        study.enqueue_trial({"x": 2.5, "y": 3})
        assert (trial.suggest_float("x", -5, 5), trial.suggest_int("y", 0, 9)) == (3.5, 3)
        assert sampler.usage.rejected == {"duplicate": 1}

    def test_points_of_one_answer_serve_the_trials_of_a_sampler_around_this_one(self):
        points = [f"Start from: new\nProposal:\nx: {x}\n" for x in (1, 2, 3, 4)]
        sampler = make(["\n".join(points), points[0].replace("1", "5")], prompt="words")
        study = begun(sampler)
        with pytest.warns(optuna.exceptions.ExperimentalWarning):
            study.sampler = PartialFixedSampler({"y": 8}, sampler)
        study.optimize(bowl, n_trials=5)
        assert [t.params for t in study.trials[1:]] == [{"x": x, "y": 8} for x in (1, 2, 3, 4, 5)]
        assert sampler.usage.requests == 2
        assert sampler.usage.rejected == {}
        assert "drawn at random" not in requests(sampler)[1].text  # y is the user's

    def test_what_a_trial_was_enqueued_with_is_asked_of_no_other(self):
        sampler = make(
            [f"Start from: new\nProposal:\n{p}" for p in ("d: 2", "d: 3, k: a")], prompt="words"
        )
        study = study_of(sampler)

        def objective(trial):
            kind = trial.suggest_categorical("k", ["a", "b"])
            return trial.suggest_int("d", 0, 3) + (kind == "b" and trial.suggest_int("w", 0, 9))

        study.enqueue_trial({"d": 1, "k": "a"})
        study.enqueue_trial({"k": "b", "w": 3})
        study.optimize(objective, n_trials=3)
        assert study.trials[1].params == {"d": 2, "k": "b", "w": 3}
        first, second = (r.text for r in requests(sampler))
        assert "already set for this proposal: k = 'b', w = 3" in first
        assert "up to" not in first.splitlines()[-1]  # one point: the others would be of k = b, too
        assert "and up to 3 more" in second
        assert "drawn at random" not in second  # w is the user's


class TestState:
    def test_what_is_drawn_depends_on_the_seed_alone(self):
        def draw(seed, reseed=False):
            sampler = make(n_startup_trials=5, seed=seed)
            if reseed:
                sampler.reseed_rng()
            return study_of(sampler).ask(XY).params["x"]

        assert draw(2) == draw(2)
        assert len({draw(2), draw(2, reseed=True), draw(None), draw(None)}) == 4
        assert repr(make()) == "LLMSampler(client='scripted', prompt='props')"

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"n_startup_trials": -1}, ValueError, "n_startup_trials=-1"),
            ({"batch_size": 0}, ValueError, "batch_size=0"),
            ({"hints": "expert"}, ValueError, r"\['expert'\]"),
            ({"constraints_func": abs}, TypeError, r'call trial.set_constraint\("memory", '),
            ({"n_trials": 5}, TypeError, r"give it to study.optimize, such as study.optimize\("),
            ({"on_error": "ignore"}, ValueError, "on_error='ignore'"),
        ],
    )
    def test_wrong_arguments_are_told_at_once(self, options, error, message):
        with pytest.raises(error, match=message):
            make(**options)


class TestWorkers:
    def test_points_of_running_trials_are_shown_and_not_proposed_again(self):
        storage = optuna.storages.InMemoryStorage()
        first = study_of(make(["x: 1.5, y: 1"]), storage=storage, study_name="s")
        told(first, XY, {"x": 0.5, "y": 0}, 1.0)
        first.ask().suggest_float("x", -5, 5)  # y is not suggested yet, but known
        sampler = make(["x: 1.5, y: 1", "x: 2.5, y: 2"])
        second = optuna.load_study(study_name="s", storage=storage, sampler=sampler)
        assert second.ask(XY).params == {"x": 2.5, "y": 2}
        assert sampler.usage.rejected == {"duplicate": 1}
        evaluated, _, pending = requests(sampler)[0].text.partition("x: 0.5, y: 0; f = 1")
        assert "x: 1.5, y: 1" in pending
        assert "x: 1.5, y: 1" not in evaluated

    def test_two_workers_that_ask_at_once_do_not_take_the_same_point(self):
        storage = optuna.storages.InMemoryStorage()
        barrier = threading.Barrier(2)

        def slow(request):
            barrier.wait(120)
            return "x: 1.5, y: 1"

        started = study_of(make(), storage=storage, study_name="s")
        told(started, XY, {"x": 0.5, "y": 0}, 1.0)
        samplers = [make([slow, f"x: {i}.5, y: 2", "x: 4, y: 4"]) for i in (2, 3)]
        params = []

        def work(sampler):
            study = optuna.load_study(study_name="s", storage=storage, sampler=sampler)
            params.append(study.ask(XY).params)

        in_threads(work, samplers)
        assert len(params) == 2
        assert params[0] != params[1]
        rejected = [s.usage.rejected.get("taken meanwhile", 0) for s in samplers]
        assert sum(rejected) >= 1
        assert all(s.usage.proposals == {"llm": 1} for s in samplers)

    def test_a_long_proposal_is_read_by_another_worker(self):
        names = [f"parameter_with_a_long_name_{i:03d}" for i in range(120)]
        space = {n: FloatDistribution(0, 1) for n in names}
        answer = ", ".join(f"{name}: 0.123456789" for name in names) + "\n" + "x" * 30_000
        storage = optuna.storages.InMemoryStorage()
        study = study_of(make([answer]), storage=storage, study_name="s")
        told(study, space, dict.fromkeys(names, 0.5), 1.0)
        trial = study.ask()
        trial.suggest_float(names[0], 0, 1)
        frozen = study.trials[1]
        written = [*frozen.system_attrs.values(), *frozen.user_attrs.values()]
        assert all(len(json.dumps(value)) < 2**16 for value in written)  # what MySQL keeps
        sampler = make([json.dumps(dict.fromkeys(names, 0.75))])
        optuna.load_study(study_name="s", storage=storage, sampler=sampler).ask(space)
        shown = requests(sampler)[0].text
        assert shown.count("0.12") == len(names)


class TestFailure:
    def test_a_failing_model_does_not_break_the_study(self):
        sampler = make([ClientError("no such key")] * 2 + ["x: 1, y: 1"])
        study = begun(sampler)
        with pytest.warns(FallbackWarning, match="no such key") as caught:
            study.optimize(bowl, n_trials=2)
        assert {w.filename for w in caught} == {__file__}
        study.optimize(bowl, n_trials=1)
        sources = [t.user_attrs.get("llmopt:source") for t in study.trials]
        assert sources == [None, "fallback", "fallback", "llm"]
        assert sampler.usage.fallbacks == 2
        assert sampler.usage.failed_requests == 2

    @pytest.mark.parametrize("early", [True, False])
    @pytest.mark.parametrize("error", [ValueError("bad"), optuna.TrialPruned()])
    @pytest.mark.parametrize(
        ("model", "options"),
        [
            ("folder:mail", {"description": "d"}),
            ("folder:mail", {"description": "d", "space": XY}),
            ("network", {"seed": 1}),
            ("network", {"seed": 1, "partner": "cma", "n_startup_trials": 0}),
        ],
    )
    def test_first_trials_that_fail_or_are_pruned(
        self, model, options, error, early, tmp_path, monkeypatch
    ):
        def objective(trial):
            if early:
                raise error
            bowl(trial)
            raise error

        class Folder(FolderClient):
            def complete(self, request):
                return Reply((Completion("x: 1, y: 1"),), "m")

        monkeypatch.chdir(tmp_path)
        client = Folder("mail") if model.startswith("folder") else model
        sampler = LLMSampler(client, total=2, **options)
        study = study_of(sampler)
        study.optimize(objective, n_trials=2, catch=ValueError)
        assert len(study.trials) == 2
        study.optimize(bowl, n_trials=1)
        assert study.trials[2].state == TrialState.COMPLETE


class TestRecords:
    def test_explanation_tokens_cost_and_source_stand_in_the_trial(self):
        sampler = make()
        study = begun(sampler)
        study.optimize(bowl, n_trials=1)
        attributes = study.trials[1].user_attrs
        assert attributes.pop("llmopt:explanation").startswith("draw ")
        assert attributes == {
            "llmopt:source": "llm",
            "llmopt:model": "random",
            "llmopt:prompt_tokens": 100,
            "llmopt:completion_tokens": 10,
            "llmopt:seconds": 1.5,
            "llmopt:cost": 0.5,
        }
        assert sampler.usage.cost == 0.5


class TestBatch:
    def test_a_point_taken_by_another_worker_is_not_handed_out(self):
        sampler = make(["x: 1, y: 1", "x: 2, y: 2", "x: 3, y: 3"], batch_size=3)
        study = begun(sampler)
        study.ask(XY)
        told(study, XY, {"x": 2.0, "y": 2}, 1.0)
        assert study.ask(XY).params["x"] == 3
        assert sampler.usage.proposals == {"llm": 2}
        assert sampler.usage.rejected == {"taken meanwhile": 1}

    @pytest.mark.parametrize("mass", [4, 3])
    def test_what_others_do_while_the_model_answers_is_known_to_the_next_request(self, mass):
        space = {"core": CategoricalDistribution(["vinyl", "foam"])}
        space |= {"mass": FloatDistribution(1, 15), "flow": FloatDistribution(1, 2)}

        def answer(request):
            if len(client.requests) > 1:
                return "Start from: new\nProposal:\ncore: vinyl, mass: 9"
            for params in ({"core": "vinyl", "mass": 4.0}, {"core": "foam", "flow": 1.5}):
                told(study, {n: space[n] for n in params}, params, 2.0)
            points = f"core: vinyl, mass: {mass}", "core: foam"
            return "\n".join(f"Start from: new\nProposal:\n{p}\n" for p in points)

        def objective(trial):
            foam = trial.suggest_categorical("core", ["vinyl", "foam"]) == "foam"
            return trial.suggest_float("flow", 1, 2) if foam else trial.suggest_float("mass", 1, 15)

        client = ScriptedClient(answer)
        sampler = LLMSampler(
            client, prompt="words", description="d", n_startup_trials=1, seed=0, compute=False
        )
        study = study_of(sampler)
        study.enqueue_trial({"core": "vinyl", "mass": 5.0})
        study.optimize(objective, n_trials=3)
        # "core: foam" was a whole point when it was asked for, and is one still.
        own = [t for t in study.trials if t.user_attrs.get("llmopt:source") == "llm"]
        cores = [t.params["core"] for t in own]
        if mass == 3:
            assert (cores, len(client.requests)) == (["vinyl", "foam"], 1)
            return
        assert cores == ["foam", "vinyl"]
        assert sampler.usage.rejected == {"taken meanwhile": 1}
        text = client.requests[1].text
        assert "mass: a number from 1 to 15, only with core = vinyl" in text
        assert "flow: a number from 1 to 2, only with core = foam" in text
        assert "another worker took the point meanwhile: core = 'vinyl', mass = 4.0" in text


class TestOptunaHub:
    FOLDER = Path(__file__).parents[1] / "adapters/optunahub/package/samplers/llm_sampler"

    def test_the_registrys_files_are_there(self):
        assert {p.name for p in self.FOLDER.iterdir()} - {"__pycache__"} == {
            "LICENSE",
            "README.md",
            "__init__.py",
            "example.py",
            "requirements.txt",
        }
        front = self.FOLDER.joinpath("README.md").read_text().split("---\n")[1]
        keys = [line.partition(":")[0] for line in front.splitlines()]
        assert keys == ["author", "title", "description", "tags", "optuna_versions", "license"]
        assert "sampler" in re.search(r"tags: \[(.*)\]", front)[1].split(", ")

    def test_the_module_gives_this_sampler(self):
        spec = importlib.util.spec_from_file_location("hub", self.FOLDER / "__init__.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert module.LLMSampler is LLMSampler
        assert module.__all__ == ["LLMSampler"]


def test_names_of_choices_reach_the_model_and_values_the_study():
    client = ScriptedClient(["Start from: new\nProposal:\nligand: PMe3"])
    space = {"ligand": Categorical({"PPh3": "P(c1ccccc1)(c2ccccc2)c3ccccc3", "PMe3": "CP(C)C"})}
    sampler = LLMSampler(client, space=space, prompt="words", n_startup_trials=0, seed=0)
    study = optuna.create_study(sampler=sampler)
    choices = space["ligand"].choices
    study.optimize(lambda trial: len(trial.suggest_categorical("ligand", choices)), n_trials=1)
    assert study.best_params == {"ligand": "CP(C)C"}
    assert sampler.usage.rejected == {}


def test_the_direction_belongs_to_the_study():
    with pytest.raises(TypeError, match=r"give it to optuna\.create_study"):
        LLMSampler("network", direction="maximize")
