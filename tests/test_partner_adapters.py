"""CMA-ES beside the model in the Optuna sampler and the Nevergrad optimizer."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from llmopt import (
    ClientError,
    Completion,
    FallbackWarning,
    Reply,
    ScriptedClient,
    SpaceError,
)

optuna = pytest.importorskip("optuna")
ng = pytest.importorskip("nevergrad")
pytest.importorskip("cma")

from llmopt.adapters.nevergrad import ParametrizedLLM  # noqa: E402
from llmopt.adapters.optuna import LLMSampler  # noqa: E402
from llmopt.partners import PARTNERS  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
    pytest.mark.filterwarnings("ignore::nevergrad.common.errors.NevergradWarning"),
]


class Uniform:
    """A model that proposes uniform points."""

    def __init__(self, names) -> None:
        self.names = names

    def __call__(self, request) -> Reply:
        rng = np.random.default_rng(request.seed)
        text = ", ".join(f"{name}: {rng.uniform(-5, 5):.6f}" for name in self.names)
        return Reply((Completion(text),), cost=0.0)


def uniform(names):
    return ScriptedClient(Uniform(names))


def sampler(names=("x", "y"), **options) -> LLMSampler:
    options.setdefault("partner", "cma")
    options.setdefault("n_startup_trials", 4)
    options.setdefault("seed", 1)
    return LLMSampler(uniform(names), prompt="props", **options)


def bowl(trial) -> float:
    x, y = (trial.suggest_float(name, -5, 5) for name in "xy")
    return (x - 2) ** 2 + (y + 1) ** 2


def source(trial) -> str:
    return trial.user_attrs["llmopt:source"]


@pytest.fixture(autouse=True)
def quiet():
    optuna.logging.set_verbosity(optuna.logging.WARNING)


class TestOptuna:
    def test_the_numbers_of_the_best_branch_are_searched(self):
        def objective(trial) -> float:
            kind = trial.suggest_categorical("kind", ["a", "b"])
            if kind == "a":
                return trial.suggest_float("x", -5, 5) ** 2
            return (trial.suggest_float("y", -5, 5) - 3) ** 2 + 1

        def answer(request) -> str:
            rng = np.random.default_rng(request.seed)
            kind = rng.choice(["a", "b"])
            x, y = rng.uniform(-5, 5, 2)
            return f"kind: {kind}, x: {x:.5f}, y: {y:.5f}"

        one = LLMSampler(
            ScriptedClient(answer), prompt="props", partner="cma", n_startup_trials=6, seed=3
        )
        study = optuna.create_study(sampler=one)
        study.optimize(objective, n_trials=40)
        found = [t for t in study.trials[6:] if source(t) == "cma"]
        assert len(found) > 5
        assert {source(t) for t in study.trials[6:]} == {"llm", "cma"}
        for trial in found:
            best = min(study.trials[: trial.number], key=lambda t: t.value)
            assert trial.params["kind"] == best.params["kind"]
        assert study.best_value < 0.05
        assert one.usage.requests == sum(source(t) == "llm" for t in study.trials)

    @pytest.mark.parametrize(
        "other",
        [
            optuna.samplers.TPESampler(multivariate=True, group=True, seed=0),
            optuna.samplers.TPESampler(seed=0),
            optuna.samplers.RandomSampler(seed=0),
        ],
    )
    def test_a_sampler_of_optunas_proposes_beside_the_model(self, other):
        def objective(trial) -> float:
            """The model, which knows uniform points alone, is the smallest part of this."""
            if trial.suggest_categorical("kind", ["a", "b"]) == "a":
                return 5 + trial.suggest_float("x", -5, 5) ** 2
            return (trial.suggest_float("y", -5, 5) - 3) ** 2 + trial.suggest_int("k", 1, 5)

        def answer(request) -> str:
            rng = np.random.default_rng(request.seed)
            kind, (x, y) = rng.choice(["a", "b"]), rng.uniform(-5, 5, 2)
            rest = f"x: {x:.5f}" if kind == "a" else f"y: {y:.5f}, k: {rng.integers(1, 6)}"
            return f"kind: {kind}, {rest}"

        one = LLMSampler(
            ScriptedClient(answer), prompt="props", partner=other, n_startup_trials=6, seed=3
        )
        study = optuna.create_study(sampler=one)
        study.optimize(objective, n_trials=60)
        found = [source(t) for t in study.trials[6:]]
        assert {"llm", "sampler"} == set(found)
        assert found.count("sampler") == len(found) / 2  # they take turns
        branches = {frozenset(t.params) for t in study.trials[6:]}
        assert branches <= {frozenset({"kind", "x"}), frozenset({"kind", "y", "k"})}

    def test_a_sampler_moves_on_from_a_branch_that_is_a_single_point(self):
        def objective(trial) -> float:
            kind = trial.suggest_categorical("kind", ["a", "b", "c"])
            return 1.0 if kind == "a" else (trial.suggest_float(kind, -5, 5) - 2) ** 2

        tpe = optuna.samplers.TPESampler(multivariate=True, group=True, seed=0)
        one = LLMSampler(
            ScriptedClient(["kind: b, b: 4.5"]),
            prompt="props",
            partner=tpe,
            n_startup_trials=12,
            max_requests=1,
            seed=2,
        )
        study = optuna.create_study(sampler=one)
        study.optimize(objective, n_trials=45)
        assert sum(t.params["kind"] == "a" for t in study.trials[12:]) <= 1
        assert [source(t) for t in study.trials[12:]] == ["llm"] + ["sampler"] * 32

    @pytest.mark.parametrize("noisy", [False, True])
    def test_a_sampler_that_only_repeats_a_point(self, noisy):
        tries = []

        class Stubborn(optuna.samplers.BaseSampler):
            def infer_relative_search_space(self, study, trial):
                return {}

            def sample_relative(self, study, trial, search_space):
                return {}

            def sample_independent(self, study, trial, name, distribution):
                told = [t.state.name for t in study.get_trials(deepcopy=False)]
                tries.append((len(study.trials) - trial.number, told.count("PRUNED")))
                return 0.5

        one = LLMSampler(
            ScriptedClient(["x: 1.0"]),
            prompt="props",
            partner=Stubborn(),
            n_startup_trials=0,
            space={"x": optuna.distributions.FloatDistribution(-5, 5)},
            noisy=noisy,
            max_requests=1,
        )
        study = optuna.create_study(sampler=one)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            study.optimize(lambda trial: trial.suggest_float("x", -5, 5), n_trials=4)
        found = [source(t) for t in study.trials]
        if noisy:
            assert found == ["llm", "sampler", "sampler", "sampler"]
            assert tries == [(1, 0)] * 3
            return
        assert found == ["llm", "sampler", "fallback", "fallback"]
        assert one.usage.fallbacks == 2
        assert tries == [(1, 0)] + [(1 + k, k) for k in range(24)] * 2
        assert [t.state.name for t in study.trials] == ["COMPLETE"] * 4
        said = [str(w.message) for w in caught if issubclass(w.category, FallbackWarning)]
        assert len(said) == 2
        assert all("the partner 'sampler' had no new point" in text for text in said)
        assert not any("from here on" in text for text in said)

    def test_several_partners(self):
        study = optuna.create_study(
            sampler=sampler(partner=[*PARTNERS, optuna.samplers.TPESampler(seed=0)])
        )
        study.optimize(bowl, n_trials=60)
        assert {"llm", *PARTNERS, "sampler"} == {source(t) for t in study.trials[4:]}
        with pytest.raises(ValueError, match="expected each partner once"):
            sampler(partner=["cma", "cma"])

    def test_a_sampler_hears_of_trials_and_is_seeded_anew_as_the_independent_one(self):
        heard = []

        class Hears(optuna.samplers.RandomSampler):
            def reseed_rng(self):
                heard.append("reseed")

            def before_trial(self, study, trial):
                heard.append("before")

            def after_trial(self, study, trial, state, values):
                heard.append("after")

        study = optuna.create_study(sampler=sampler(partner=Hears()))
        study.optimize(bowl, n_trials=2)
        study.sampler.reseed_rng()
        assert heard == ["before", "after"] * 2 + ["reseed"]

    def test_several_objectives(self):
        for partner, name in (
            (optuna.samplers.TPESampler(), r"TPESampler\(\)"),
            *((name, repr(name)) for name in PARTNERS),
        ):
            refused = sampler(partner=partner)
            study = optuna.create_study(directions=["minimize", "maximize"], sampler=refused)
            with pytest.raises(ValueError, match=f"partner={name} searches one objective.* 2"):
                study.optimize(lambda trial: (trial.suggest_float("x", -5, 5), 1.0), n_trials=3)
            assert [t.state.name for t in study.trials] == ["WAITING"]

    def test_unknown(self):
        with pytest.raises(ValueError, match=f"expected {', '.join(map(repr, PARTNERS))}, a list"):
            sampler(partner="tpe")

    def test_a_sampler_that_visits_a_list_of_points_is_refused(self):
        grid, brute = optuna.samplers.GridSampler({"x": [0, 1]}), optuna.samplers.BruteForceSampler
        for partner in (grid, ["network", brute()], optuna.samplers.PartialFixedSampler({}, grid)):
            with pytest.raises(ValueError, match=r"list in its own trials.*such as TPESampler\(\)"):
                sampler(partner=partner)


def optimizer(parametrization=None, budget=100, **options):
    if parametrization is None:
        parametrization = ng.p.Instrumentation(
            **{name: ng.p.Scalar(lower=-5, upper=5) for name in "xy"}
        )
    parametrization.random_state.seed(5)
    options.setdefault("partner", "cma")
    return ParametrizedLLM(model=uniform("xy"), prompt="props", **options)(
        parametrization, budget=budget
    )


def loss(x, y) -> float:
    return (x - 2) ** 2 + (y + 1) ** 2


def sources(one) -> list[str]:
    return [t.source for t in one.history.trials]


class TestNevergrad:
    def test_both_propose_in_turns(self):
        one = optimizer()
        found = one.minimize(loss)
        assert set(sources(one)) == {"warmup", "llm", "cma"}
        assert sources(one)[50:].count("cma") == 25
        assert loss(**found.kwargs) < 0.1
        assert one.usage.proposals == {n: sources(one).count(n) for n in set(sources(one))}

    def test_working_ranges_may_widen(self):
        parametrization = ng.p.Instrumentation(x=ng.p.Scalar(init=0.0), y=ng.p.Scalar(init=0.0))
        one = optimizer(parametrization, budget=150)
        found = one.minimize(lambda x, y: (x - 20) ** 2 + (y + 1) ** 2)
        assert "cma" in sources(one)[100:]
        assert found.kwargs["x"] == pytest.approx(20, abs=2)

    def test_choices_are_refused_when_made(self):
        with pytest.raises(SpaceError, match="is a choice"):
            optimizer(ng.p.Instrumentation(x=ng.p.Choice(["a", "b"])))

    def test_points_of_a_partner_do_not_hide_that_the_model_fails(self):
        parametrization = ng.p.Instrumentation(x=ng.p.Scalar(lower=-5, upper=5))
        mute = {"partner": "network", "warmup": 1, "attempts": 1, "max_fallbacks": 2}
        llm = ParametrizedLLM(model=ScriptedClient(["no idea"] * 99), **mute, batch_size=2)
        one = llm(parametrization, budget=99)
        with pytest.warns(FallbackWarning), pytest.raises(ClientError, match="gave no point"):
            one.minimize(lambda x: 1.0)
        assert sources(one) == ["warmup", "network", "fallback", "network", "fallback"]

    def test_several_objectives(self):
        one = optimizer(warmup=2)
        for _ in range(2):
            one.tell(one.ask(), [1.0, 2.0])
        with pytest.raises(ValueError, match="one objective"):
            one.ask()


@pytest.mark.parametrize(
    ("make", "wrong", "meant"),
    [
        (LLMSampler, "n_startup", "n_startup_trials"),
        (LLMSampler, "max_request", "max_requests"),
        (ParametrizedLLM, "warm_up", "warmup"),
        (ParametrizedLLM, "on_eror", "on_error"),
    ],
)
def test_an_unknown_argument_is_answered_with_the_nearest(make, wrong, meant):
    with pytest.raises(TypeError, match=f"no argument '{wrong}'; did you mean '{meant}'"):
        make(**{wrong: 3})
