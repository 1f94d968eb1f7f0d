"""The Nevergrad adapter: Nevergrad's own checks, and what they leave out."""

from __future__ import annotations

import math
import os
import pickle
import re
import socket
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest

ng = pytest.importorskip("nevergrad")

from nevergrad.optimization import test_optimizerlib as peer  # noqa: E402
from nevergrad.optimization import test_suggest as peer_suggest  # noqa: E402
from nevergrad.parametrization._datalayers import Angles  # noqa: E402

from llmopt import (  # noqa: E402
    ClientError,
    FallbackWarning,
    Float,
    Int,
    LLMOptError,
    MissingKeyError,
    RewardError,
    ScriptedClient,
    SearchStopped,
    SpaceError,
)
from llmopt.adapters.nevergrad import LLM, ParametrizedLLM  # noqa: E402
from llmopt.adapters.nevergrad.space import ParameterSpace  # noqa: E402
from llmopt.client.base import Request  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::nevergrad.common.errors.NevergradWarning"),
    # Where it matters, `pytest.warns` looks for it.
    pytest.mark.filterwarnings("ignore::llmopt.errors.FallbackWarning"),
]

P = ng.p
SECRET = "sk-this-must-not-leak"
_ROW = re.compile(r"^(.*); f = (-?[\d.e+-]+|\(.*\))")
_PAIR = re.compile(r"([^\s,:][^:]*?): ([^,]+)(?:, |$)")


# -- models --------------------------------------------------------------------------------


def read_rows(request: Request) -> list[tuple[dict[str, float], tuple[float, ...]]]:
    """The evaluations that a request shows."""
    rows = []
    for line in request.text.splitlines():
        match = _ROW.match(line)
        if match:
            losses = tuple(float(v) for v in match[2].strip("()").split(","))
            rows.append(({k: float(v) for k, v in _PAIR.findall(match[1])}, losses))
    return rows


def gaussian_steps(request: Request) -> list[str]:
    """A model that reads the best points of the prompt and takes a random step from one.

    It knows nothing but the prompt's text, so where it does well the text says enough.
    """
    rng = np.random.default_rng(request.seed)
    rows = sorted(read_rows(request), key=lambda row: sum(row[1]))
    if not rows:  # all failed
        return spread(request)
    names = list(rows[0][0])
    best = np.array([list(point.values()) for point, _ in rows[: max(2, min(6, len(rows) // 3))]])
    scale = 10 ** rng.uniform(-0.5, 0.7) * best.std(axis=0) + 0.01
    point = best[rng.integers(len(best))] + scale * rng.standard_normal(len(names))
    return ", ".join(f"{n}: {v:.4f}" for n, v in zip(names, point, strict=True))


def names_in(request: Request) -> list[str]:
    wanted = next(line for line in request.text.splitlines() if "<value>" in line)
    return [pair.rsplit(": ", 1)[0] for pair in wanted.split(", ")]


def spread(request: Request) -> str:
    """A model that never repeats itself."""
    rng = np.random.default_rng(request.seed)
    return ", ".join(f"{name}: {rng.uniform(-3, 3):.6f}" for name in names_in(request))


def wild(request: Request) -> str:
    """A model whose numbers are anywhere, in the format that the prompt asks for."""
    rng = np.random.default_rng(request.seed)
    ranges = re.findall(r"^- (.*?): (?:each )?(.*)$", request.text, re.MULTILINE)
    parts, text = [], ""
    for name in names_in(request):
        # Equal neighbours share a line, under the first one's name.
        text = next((t for n, t in ranges if name in (n, n.split(" to ")[0])), text)
        choices = text.removeprefix("one of ").split(", ")
        numbers = [-1e9, -5, 0, 0.3, 2, 7, 1e9]
        value = rng.choice(choices if text.startswith("one of") else numbers)
        parts.append(f"{name}: {value}")
    return ", ".join(parts)


def count(client: Any) -> int:
    return len(client.requests)


def make(replies: Any, parametrization: Any = 2, budget: int | None = None, workers=1, **config):
    config.setdefault("warmup", 0)
    config.setdefault("prompt", "props")
    client = replies if hasattr(replies, "complete") else ScriptedClient(replies)
    optimizer = ParametrizedLLM(model=client, **config)(parametrization, budget, workers)
    optimizer.parametrization.random_state = np.random.RandomState(7)
    return optimizer


def points(*values: tuple[float, float]) -> list[str]:
    return [f"params[0]: {a}, params[1]: {b}" for a, b in values]


def sphere(x: np.ndarray) -> float:
    return float(np.sum((np.asarray(x) - 0.5) ** 2))


# -- Nevergrad's own checks ----------------------------------------------------------------

SCRIPTED = "LLMScripted"


@pytest.fixture(scope="module", autouse=True)
def registered():
    ParametrizedLLM(model=ScriptedClient(gaussian_steps), prompt="opro").set_name(
        SCRIPTED, register=True
    )
    yield
    ng.optimizers.registry.unregister(SCRIPTED)


class TestPeerChecks:
    @pytest.fixture(autouse=True)
    def no_skips(self, monkeypatch):
        # Its checks skip by name; a skipped one proves nothing.
        class Skipped(AssertionError):
            pass

        for module in (peer, peer_suggest):
            monkeypatch.setattr(module, "SkipTest", Skipped)

    @pytest.mark.parametrize("one_worker", [True, False])
    def test_check_optimizer_finds_the_optimum(self, one_worker):
        cls = ng.optimizers.registry[SCRIPTED]
        if one_worker:

            class OneWorker(type(cls)):
                no_parallelization = True

            cls = OneWorker(**cls.config())
        np.random.seed(3)
        peer.check_optimizer(cls, budget=200, verify_value=True)

    @pytest.mark.parametrize(
        "check", [peer.test_optimizers_minimal, peer.test_mo_constrained, peer.test_mo_with_nan]
    )
    def test_checks_of_a_search(self, check):
        np.random.seed(3)
        check(SCRIPTED)

    @pytest.mark.parametrize("name", ["LLM", SCRIPTED])
    @pytest.mark.parametrize(
        "check", [peer.test_optim_pickle, peer_suggest.test_optimizers_suggest]
    )
    def test_checks_of_an_optimizer(self, check, name):
        check(name)


# -- the registry --------------------------------------------------------------------------


class TestRegistry:
    def test_entries_make_optimizers(self):
        for name in ("LLM", "ParametrizedLLM"):
            optimizer = ng.optimizers.registry[name](3, 50, 2)
            assert (optimizer.dimension, optimizer.budget, optimizer.num_workers) == (3, 50, 2)
            assert optimizer.name == name

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("model", "gpt5"), ("prompt", "porps"), ("batch_size", 0), ("warmup", -1),
            ("on_error", "x"),
        ],
    )  # fmt: skip
    def test_bad_configuration_is_refused_at_once(self, name, value):
        with pytest.raises((LLMOptError, ValueError)):
            ParametrizedLLM(**{name: value})

    def test_names_show_what_was_set_and_no_secret(self):
        class Leaky(ScriptedClient):
            """A client that is careless with its key."""

            def __repr__(self):
                return f"Leaky(key={SECRET!r})"

        client = Leaky([], name="")
        configured = ParametrizedLLM(client, prompt="opro", batch_size=2, description=sphere)
        assert (
            configured.name
            == ParametrizedLLM(model=client, prompt="opro", batch_size=2, description=sphere).name
        )
        assert configured(2, 10).name == configured.name
        assert "prompt='opro', batch_size=2, description='f is computed by th…'" in configured.name
        for text in (repr(configured), str(configured), repr(configured(2, 10))):
            assert SECRET not in text

    def test_nothing_is_sent_read_or_loaded_before_the_model_is_needed(self, monkeypatch):
        def refuse(*args, **kwargs):
            raise AssertionError("a constructor opened a connection")

        monkeypatch.setattr(socket, "socket", refuse)
        monkeypatch.setattr("llmopt.client.local.local.LocalClient._loaded", refuse)
        monkeypatch.setattr("llmopt.client.local.embedded.fetch_model", refuse)
        for config in ({}, {"model": "openai:gpt-4o"}):
            monkeypatch.delenv("OPENAI_API_KEY", raising=False)
            optimizer = ParametrizedLLM(**config, warmup=10)(2, 50)
            monkeypatch.setenv("OPENAI_API_KEY", SECRET)
            for _ in range(10):
                optimizer.tell(optimizer.ask(), 1.0)
            assert optimizer.usage.proposals == {"warmup": 10}


# -- parametrizations ----------------------------------------------------------------------


def train(lr):
    return lr


def choices_of_parameters():
    return P.Choice([P.Scalar(lower=0, upper=1), P.Dict(x=P.Scalar(lower=0, upper=10)), "c"])


class Case(NamedTuple):
    """A parametrization, its names in order, and the first one's range as the space shows it."""

    make: Callable[[], Any]
    first: str
    names: str = "params"


def bounded(method: str) -> P.Array:
    return P.Array(shape=(1,)).set_bounds(-1, 1, method=method)


ONE, TWO, UNIT = "params[0]", "params[0] params[1]", "Float(-1.0, 1.0)"
CASES = {
    "array": Case(lambda: P.Array(shape=(2,)), "Float(-3.0, 3.0)", TWO),
    "matrix": Case(
        lambda: P.Array(shape=(1, 2), lower=-1, upper=[[1, 2]]), UNIT, "params[0,0] params[0,1]"
    ),
    "wide sigma": Case(
        lambda: P.Array(init=[1.0]).set_mutation(sigma=5), "Float(-14.0, 16.0)", ONE
    ),
    "half-bounded": Case(lambda: P.Array(init=[1.0], lower=0), "Float(0.0, 4.0)", ONE),
    "infinite bounds": Case(
        lambda: P.Array(init=[0.0, 1.0], lower=[-np.inf, 0], upper=[np.inf, 5]), UNIT, TWO
    ),
    "scalar": Case(lambda: P.Scalar(), "Float(-3.0, 3.0)"),
    "integer": Case(lambda: P.Scalar(lower=1, upper=12).set_integer_casting(), "Int(1, 12)"),
    "open integer": Case(lambda: P.Scalar(init=7).set_integer_casting(), "Int(4, 10)"),
    "random integer": Case(
        lambda: ng.ops.Int(deterministic=False)(P.Array(shape=(1,), lower=0, upper=9)),
        "Int(0, 9)",
        ONE,
    ),
    "log": Case(lambda: P.Log(lower=1e-5, upper=0.1), "Float(1e-05, 0.1, log=True)"),
    "open log": Case(lambda: P.Log(init=4.0), "Float(0.5, 32.0, log=True)"),
    "integer log": Case(
        lambda: P.Log(lower=1, upper=1000).set_integer_casting(), "Int(1, 1000, log=True)"
    ),
    "exponent": Case(
        lambda: P.Scalar(init=1.0).set_mutation(exponent=3.0),
        "Float(0.037037037037037035, 27.0, log=True)",
    ),
    "negated": Case(lambda: -P.Scalar(init=3.0, lower=0), "Float(-6.0, 0.0)"),
    "shifted": Case(lambda: 3 * P.Scalar(lower=-1, upper=1) + 10, "Float(7.0, 13.0)"),
    "square": Case(lambda: P.Scalar() ** 2, "Float(0.0, 9.0)"),
    "modulo": Case(lambda: P.Scalar(init=0.5) % 3.0, "Float(0.0, 2.999999999997)"),
    "tanh": Case(lambda: bounded("tanh"), "Float(-0.999999999998, 0.999999999998)", ONE),
    "arctan": Case(lambda: bounded("arctan"), UNIT, ONE),
    "gaussian": Case(lambda: bounded("gaussian"), UNIT, ONE),
    "constraint": Case(lambda: bounded("constraint"), UNIT, ONE),
    "angles": Case(lambda: Angles(shape=(1,), deg=True), "Float(-180.0, 180.0)", ONE),
    "choice": Case(lambda: P.Choice(["conv", None, 2.5]), "Categorical(['conv', None, 2.5])"),
    "equal choices": Case(
        lambda: P.Choice([1, True, "x", "x"]), "Categorical(['1', 'True', 'x', 'x#2'])"
    ),
    "objects": Case(
        lambda: P.Choice([train, [1], {"a": 1}]), """Categorical(['train', '[1]', "{'a': 1}"])"""
    ),
    "repeated choice": Case(
        lambda: P.Choice(["a", "b"], repetitions=2), "Categorical(['a', 'b'])", TWO
    ),
    "transition": Case(
        lambda: P.TransitionChoice(["lo", "mid", "hi"]), "Categorical(['lo', 'mid', 'hi'])"
    ),
    "ordered integers": Case(
        lambda: P.TransitionChoice([16, 32, 48], repetitions=2), "Int(16, 48, step=16)", TWO
    ),
    "choice of parameters": Case(
        choices_of_parameters,
        "Categorical(['option0', 'option1', 'c'])",
        "params params.option0 params.option1.x",
    ),
    "tuple": Case(
        lambda: P.Tuple(P.Scalar(), 3, P.Array(shape=(1,)).set_name("w")),
        "Float(-3.0, 3.0)",
        "params[0] w[0]",
    ),
    "nested dict": Case(
        lambda: P.Dict(a=P.Scalar(), b=P.Dict(c=P.Log(lower=1, upper=10), d=P.Tuple(P.Scalar()))),
        "Float(-3.0, 3.0)",
        "a b.c b.d[0]",
    ),
    "instrumentation": Case(
        lambda: P.Instrumentation(
            P.Array(shape=(2,)), 5, lr=P.Log(lower=1e-4, upper=1), arch=P.Choice(["conv", "fc"])
        ),
        "Float(-3.0, 3.0)",
        "args[0][0] args[0][1] lr arch",
    ),
}


class Pair(P.Parameter):
    """A parameter type of the user's own."""

    def __init__(self):
        super().__init__()
        self._pair = np.full(2, 10.0)

    def _layered_get_value(self):
        return tuple(self._pair.tolist())

    def _internal_get_standardized_data(self, reference):
        return self._pair - reference._pair

    def _internal_set_standardized_data(self, data, reference):
        self._pair = reference._pair + data


class Picky(P.Array):
    """An array that takes no value between 1 and 2."""

    def _layered_set_value(self, value):
        if np.any((value > 1) & (value < 2)):
            raise ValueError("not here")
        super()._layered_set_value(value)


class TestParametrizations:
    @pytest.mark.parametrize("case", CASES)
    def test_space_has_the_users_names_and_ranges(self, case):
        space = LLM(CASES[case].make(), 10)._parameters.space
        assert list(space.names) == CASES[case].names.split()
        assert repr(space.dimensions[0]) == CASES[case].first

    @pytest.mark.parametrize("case", CASES)
    def test_every_candidate_is_valid_whatever_the_model_says(self, case):
        optimizer = make(wild, CASES[case].make(), 40, 2, warmup=1, max_fallbacks=None)
        dimensions = optimizer._parameters.space.dimensions
        for _ in range(10):
            for candidate in [optimizer.ask() for _ in range(2)]:
                # Nevergrad raises for a value that does not belong to it.
                optimizer.parametrization.spawn_child(new_value=candidate.value)
                assert candidate.satisfies_constraints()
                data = candidate.get_standardized_data(reference=optimizer.parametrization)
                assert np.isfinite(data).all()
                optimizer.tell(candidate, float(np.sum(data**2)))
        assert any(t.source == "llm" for t in optimizer.history.trials)
        for trial in optimizer.history.trials:
            for value, dimension in zip(trial.values, dimensions, strict=True):
                assert isinstance(value, int) or not isinstance(dimension, Int)

    def test_the_models_values_reach_the_function(self):
        seen = []

        def function(weights, *, lr, layers, arch, block):
            seen.append((weights.tolist(), lr, layers, arch, block))
            return 0.0

        parametrization = P.Instrumentation(
            P.Array(shape=(2,), lower=-1, upper=1),
            lr=P.Log(lower=1e-4, upper=1),
            layers=P.Scalar(lower=1, upper=12).set_integer_casting(),
            arch=P.Choice(["conv", "fc"]),
            block=choices_of_parameters(),
        )
        reply = (
            "args[0][0]: 0.5, args[0][1]: -0.25, lr: 0.01, layers: 7, arch: fc, "
            "block: option1, block.option0: 0.5, block.option1.x: 8"
        )
        optimizer = make([reply], parametrization, 1)
        best = optimizer.minimize(function)
        assert seen[0] == ([0.5, -0.25], pytest.approx(0.01), 7, "fc", {"x": 8.0})
        assert type(seen[0][2]) is int
        assert best.kwargs["arch"] == "fc"
        assert "lr: a number from 0.0001 to 1" in optimizer.client.requests[0].text

    @pytest.mark.parametrize(
        ("parametrization", "asked", "given"),
        [
            (lambda: P.Log(lower=1e-5, upper=0.1), "1e-9", 1e-5),
            (lambda: P.Log(lower=1e-5, upper=0.1), "7", 0.1),
            (lambda: P.Scalar(init=0.0).set_bounds(-1, 1, method="tanh"), "5", 1.0),
            (lambda: P.Log(lower=1, upper=1000).set_integer_casting(), "4000", 1000),
        ],
    )
    def test_bounds_are_reached_through_transforms(self, parametrization, asked, given):
        candidate = make([f"params: {asked}"], parametrization()).ask()
        assert candidate.value == pytest.approx(given, rel=1e-9)

    def test_a_type_it_does_not_know_is_refused_with_those_that_it_does(self):
        with pytest.raises(SpaceError, match=r"pair: Pair is no parameter type .* Scalar, Log"):
            make([], P.Dict(x=P.Scalar(), pair=Pair()))

    def test_what_a_parametrization_refuses_becomes_its_initial_point(self):
        optimizer = make(points((0.5, 1.5), (0.5, 2.5)), Picky(shape=(2,)))
        asked = [optimizer.ask().value.tolist() for _ in range(2)]
        assert asked == [[0.0, 0.0], [0.5, 2.5]]
        assert optimizer.history.pending == ((0.0, 0.0), (0.5, 2.5))

    def test_building_leaves_the_users_parametrization_and_randomness_alone(self):
        array = P.Array(shape=(2,))
        state = np.random.get_state()[1].copy()
        optimizer = LLM(array, 10)
        assert array._random_state is None
        np.testing.assert_array_equal(np.random.get_state()[1], state)
        optimizer.parametrization.random_state.seed(1)
        optimizer.ask()
        np.testing.assert_array_equal(array.value, [0, 0])


class TestWorkingRanges:
    def test_one_point_near_an_end_may_be_chance_and_two_are_not(self):
        parameters = ParameterSpace(P.Array(shape=(2,)))
        assert not parameters.widen([(2.9, 0.0), (0.0, -2.9), (0.1, 0.0)])
        assert parameters.widen([(2.9, 0.0), (0.0, -2.9), (2.8, 0.0)])
        ranges = [repr(d) for d in parameters.space.dimensions]
        assert ranges == ["Float(-3.0, 9.0)", "Float(-3.0, 3.0)"]

    def test_a_recorded_integer_from_outside_is_taken_in(self):
        parameters = ParameterSpace(P.Scalar(init=0).set_integer_casting())
        assert parameters.widen([(12,)])
        assert repr(parameters.space.dimensions[0]) == "Int(-3, 13)"

    def test_is_named_as_such_in_the_prompt(self):
        client = ScriptedClient(["a: 1, b: 1"])
        parametrization = P.Dict(a=P.Scalar(), b=P.Scalar(lower=0, upper=2))
        make(client, parametrization).ask()
        assert "of a are working ranges" in client.requests[0].text
        bounded = ScriptedClient(points((1, 1)))
        make(bounded, P.Array(shape=(2,), lower=0, upper=2)).ask()
        assert "working range" not in bounded.requests[0].text


# -- ask and tell --------------------------------------------------------------------------


class TestAskTell:
    def test_warm_up_starts_at_the_initial_point(self):
        client = ScriptedClient(points((0.1, 0.2)))
        optimizer = make(client, P.Array(init=[1.0, 2.0]), warmup=3)
        asked = [optimizer.ask() for _ in range(4)]
        np.testing.assert_array_equal(asked[0].value, [1.0, 2.0])
        np.testing.assert_array_equal(asked[3].value, [0.1, 0.2])
        assert count(client) == 1
        assert len({tuple(c.value) for c in asked}) == 4

    @pytest.mark.parametrize(("budget", "expected"), [(None, 10), (100, 10), (20, 5), (3, 1)])
    def test_the_warm_up_is_shorter_in_a_short_search(self, budget, expected):
        assert LLM(2, budget)._n_warmup == expected

    def test_out_of_order_tells_find_their_points(self):
        optimizer = make(points((0, 0.5), (1, 0.5), (2, 0.5)), workers=3)
        a, b, c = (optimizer.ask() for _ in range(3))
        for candidate, loss in ((c, 3.0), (a, 1.0), (b, 2.0)):
            optimizer.tell(candidate, loss)
        told = {t.values[0]: (t.rewards[0], t.source) for t in optimizer.history.trials}
        assert told == {2.0: (3.0, "llm"), 0.0: (1.0, "llm"), 1.0: (2.0, "llm")}
        assert optimizer.history.pending == ()

    def test_points_of_the_user_cost_no_request_and_count_as_the_warm_up(self):
        client = ScriptedClient(points((0.1, 0.1)))
        optimizer = make(client, warmup=2)
        child = optimizer.parametrization.spawn_child(new_value=np.array([1.0, -1.0]))
        optimizer.tell(child, 0.5)
        assert optimizer.num_tell_not_asked == 1
        optimizer.suggest(np.array([1.5, 2.5]))
        candidate = optimizer.ask()
        np.testing.assert_array_equal(candidate.value, [1.5, 2.5])
        assert optimizer.history.pending == ((1.5, 2.5),)
        optimizer.tell(candidate, 1.0)
        assert [t.source for t in optimizer.history.trials] == ["user", "user"]
        assert count(client) == 0
        optimizer.ask()
        assert "params[0]: 1.00, params[1]: -1.00; f = 0.5" in client.requests[0].text
        np.testing.assert_array_equal(optimizer.provide_recommendation().value, [1.0, -1.0])

    def test_the_model_is_asked_for_as_many_points_as_there_are_workers(self):
        client = ScriptedClient(points((0, 1), (0, 2), (0, 3), (0, 0), (1, 0), (2, 0)))
        optimizer = make(client, workers=4)
        candidates = [optimizer.ask() for _ in range(4)]
        assert count(client) == 4
        # Two workers come free: the next requests know what they found.
        for candidate in candidates[:2]:
            optimizer.tell(candidate, 1.0)
        optimizer.ask()
        optimizer.ask()
        assert count(client) == 6
        assert "params[0]: 0.00, params[1]: 3.00" in client.requests[4].text.split("not propose")[1]

    @pytest.mark.parametrize(
        ("pool", "batch_mode"), [(ThreadPoolExecutor, False), (ProcessPoolExecutor, True)]
    )
    def test_pools(self, pool, batch_mode):
        client = ScriptedClient(gaussian_steps)
        optimizer = make(client, budget=24, workers=4, warmup=4, prompt="opro")
        with pool(max_workers=2) as executor:
            best = optimizer.minimize(sphere, executor=executor, batch_mode=batch_mode)
        assert optimizer.num_tell == 24
        assert len(optimizer.history.trials) == 24
        assert sphere(best.value) < 0.5
        if batch_mode:
            assert count(client) == 20


# -- saving, seeds -------------------------------------------------------------------------


class TestSaving:
    def test_a_loaded_run_checks_the_model_of_its_own_process(self, tmp_path, monkeypatch):
        optimizer = make(points((1, 1), (2, 2)), budget=20, on_error="fallback")
        waiting = optimizer.ask()
        optimizer.dump(tmp_path / "run.pkl")
        loaded = LLM.load(tmp_path / "run.pkl")
        loaded.tell(waiting, 1.0)
        assert [(t.source, t.values) for t in loaded.history.trials] == [("llm", (1, 1))]
        process = os.getpid()
        monkeypatch.setattr("llmopt.model_calls.os.getpid", lambda: process + 1)

        def gone(client):
            raise MissingKeyError("no key")

        monkeypatch.setattr("llmopt.model_calls.check_ready", gone)
        with pytest.raises(MissingKeyError):
            loaded.ask()


class TestSeeds:
    @pytest.mark.parametrize("warmup", [0, 5])
    def test_the_parametrizations_random_state_is_the_only_source(self, warmup):
        def run(seed: int, noise: int) -> list[Any]:
            np.random.seed(noise)
            parametrization = P.Instrumentation(
                P.Array(shape=(2,)), P.Scalar(lower=0, upper=9).set_integer_casting()
            )
            parametrization.random_state.seed(seed)
            optimizer = make(wild, parametrization, 20, warmup=warmup, attempts=1)
            optimizer.parametrization.random_state.seed(seed)
            told = []
            for _ in range(20):
                np.random.rand()
                candidate = optimizer.ask()
                told.append((candidate.args[0].tolist(), candidate.args[1]))
                optimizer.tell(candidate, sum(told[-1][0]))
            return told

        assert run(12, 1) == run(12, 2)
        assert run(12, 1) != run(13, 1)


def test_words_in_a_loss_and_a_space_of_llmopt_are_refused_with_the_way_out():
    optimizer = make(ScriptedClient([]), P.Scalar(lower=0, upper=1), 5)
    with pytest.raises(RewardError, match="words go to tell_feedback"):
        optimizer.tell(optimizer.parametrization.spawn_child(), (0.3, "words"))
    with pytest.raises(TypeError, match="'direction': Nevergrad minimizes"):
        ParametrizedLLM(direction="maximize")
    with pytest.raises(TypeError, match="expected a parametrization of Nevergrad"):
        ParametrizedLLM(model=ScriptedClient([]))({"x": Float(0, 1)}, budget=5)


# -- constraints, several objectives, failures ---------------------------------------------


def too_low(x) -> float:
    return float(1.0 - np.min(x))


def in_the_corner(x) -> float:
    return float(np.min(x) - 1.0)


def never(x) -> float:
    return -1.0


class TestConstraints:
    def test_the_model_is_asked_again_and_only_evaluated_points_count(self):
        client = ScriptedClient(points((0.5, 0.5), (2, 2)))
        optimizer = make(client, P.Array(shape=(2,), lower=-3, upper=3), 20)
        optimizer.parametrization.register_cheap_constraint(in_the_corner)
        assert optimizer.ask().value.tolist() == [2, 2]
        assert "this point violates the constraint" in client.requests[1].text
        assert optimizer.usage.proposals == {"llm": 1}
        assert optimizer.usage.rejected == {"constraint": 1}

    def test_random_points_follow_where_it_refuses_all_and_it_is_said(self):
        refused = points(*((0.5, i / 99) for i in range(99)))
        client = ScriptedClient(lambda request: refused.pop())
        optimizer = make(client, P.Array(shape=(2,), lower=-3, upper=3), 20)
        optimizer.parametrization.register_cheap_constraint(in_the_corner)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                candidate = optimizer.ask()
                assert candidate.satisfies_constraints()
                optimizer.tell(candidate, 1.0)
        said = [str(w.message) for w in caught if w.category is FallbackWarning]
        assert ["constraint" in text for text in said] == [True] * 3
        assert (count(client), optimizer.num_ask) == (9, 3)
        assert optimizer.usage.proposals == {"fallback": 3}
        assert {t.source for t in optimizer.history.trials} == {"fallback"}

    def test_where_none_satisfies_it_nevergrad_takes_a_point_and_it_is_said(self):
        optimizer = ParametrizedLLM(model="network", warmup=2)(2, budget=7)
        optimizer.parametrization.register_cheap_constraint(never)
        with pytest.warns(FallbackWarning, match="a point of its own, whose source is 'user'"):
            optimizer.tell(optimizer.ask(), 1.0)
        assert optimizer.usage.fallbacks == 0
        assert [t.source for t in optimizer.history.trials] == ["user"]

    def test_one_that_is_a_layer_moves_points_and_the_model_sees_where(self):
        client = ScriptedClient(points((0.5, 0.5), (2, 2)))
        parametrization = P.Array(shape=(2,), lower=-3, upper=3)
        parametrization.register_cheap_constraint(too_low, as_layer=True)
        optimizer = make(client, parametrization, 20)
        candidate = optimizer.ask()
        assert candidate.value.min() >= 1.0
        optimizer.tell(candidate, 1.0)
        assert optimizer.history.trials[0].values == pytest.approx(candidate.value.tolist())
        assert optimizer.ask().value.tolist() == [2, 2]

    @pytest.mark.parametrize("cheap", [False, True])
    def test_points_that_violate_one_rank_last(self, cheap):
        optimizer = make([], budget=20)
        rows = [(0.0, 0.1, [2.0, -1.0]), (2.0, 5.0, [-1.0, 0.0]), (3.0, 4.0, None)]
        if cheap:
            optimizer.parametrization.register_cheap_constraint(in_the_corner)
        for x, loss, violation in rows:
            child = optimizer.parametrization.spawn_child(new_value=np.array([x, x]))
            optimizer.tell(child, loss, None if cheap else violation)
        ranked = [(t.rewards[0], t.constraint_violation) for t in optimizer.history.ranked]
        assert ranked == [(4.0, 0.0), (5.0, 0.0), (0.1, 1.0 if cheap else 2.0)]


class TestFailures:
    @pytest.mark.parametrize(
        "loss", [math.nan, math.inf, -math.inf, 1e300, [1.0, math.nan], [math.inf, 2.0]]
    )
    def test_unusable_losses_are_failures_to_the_model(self, loss):
        client = ScriptedClient(points((1, 1), (2, 2), (3, 3)))
        optimizer = make(client)
        optimizer.tell(optimizer.ask(), loss)
        assert optimizer.history.trials[0].state == "failed"
        candidate = optimizer.ask()
        assert "params[1]: 1.00; failed" in client.requests[1].text
        optimizer.tell(candidate, [1.0, 0.25][: np.size(loss)])
        assert optimizer.history.best.rewards == (1.0, 0.25)[: np.size(loss)]
        optimizer.ask()
        several = "minimize f1, minimize f2" in client.requests[2].text
        assert several == ("f = (1, 0.25)" in client.requests[2].text) == isinstance(loss, list)

    def test_a_models_error_loses_nothing_and_minimize_goes_on(self):
        replies = [*points((1, 1)), ClientError("no quota"), *points((2, 2), (0.4, 0.5))]
        optimizer = make(replies, budget=3)
        with pytest.raises(ClientError, match="no quota"):
            optimizer.minimize(sphere)
        assert (optimizer.num_ask, optimizer.num_tell) == (1, 1)
        best = optimizer.minimize(sphere)
        np.testing.assert_array_equal(best.value, [0.4, 0.5])
        assert [t.source for t in optimizer.history.trials] == ["llm"] * 3


class TestWords:
    def test_a_callback_tells_feedback_and_standard_error_within_minimize(self):
        client = ScriptedClient(points((1, 1), (2, 2), (3, 3)))
        optimizer = make(client, budget=3, prompt="words")

        def say(told, candidate, loss):
            told.tell_feedback(candidate, f"came to\n{loss:.2f}", stderr=0.25)

        optimizer.register_callback("tell", say)
        optimizer.minimize(sphere)
        trials = optimizer.history.trials
        assert [t.feedback for t in trials] == [f"came to\n{t.rewards[0]:.2f}" for t in trials]
        assert [t.stderr for t in trials] == [0.25] * 3
        assert "> came to\n> 0.50" in client.requests[1].text
        assert "0.5 ± 0.25" in client.requests[1].text

    def test_the_objective_describes_itself(self):
        client = ScriptedClient(points((1, 1)))
        make(client, prompt="words", description=sphere).ask()
        assert "np.sum((np.asarray(x) - 0.5) ** 2)" in client.requests[0].text

    def test_the_points_of_one_answer_serve_the_workers_and_then_it_ends(self):
        answer = "".join(
            f"Start from: new\nProposal:\nparams[0]: {x}, params[1]: 2\n\n" for x in (1, 2, 3)
        )
        client = ScriptedClient([answer + "Proposal: stop", answer])
        optimizer = make(client, workers=2, budget=9, prompt="words", may_stop=True)
        asked = [optimizer.ask() for _ in range(3)]
        assert [c.value.tolist() for c in asked] == [[1, 2], [2, 2], [3, 2]]
        again = pickle.loads(pickle.dumps(optimizer))
        for one in (optimizer, again):
            with pytest.raises(SearchStopped, match="ended the search"):
                one.ask()
        assert optimizer.usage.requests == 1
        assert optimizer.usage.proposals == {"llm": 3}


def test_noisy_repeats_of_a_candidate_are_one_point():
    rate = ng.p.Log(lower=1e-3, upper=10.0)
    rate.random_state.seed(3)
    optimizer = ParametrizedLLM(model="network", noisy=True)(rate, budget=20)
    for _ in range(10):
        candidate = optimizer.ask()
        optimizer.tell(candidate, 1.0)
        optimizer.tell(candidate, 3.0)
    assert [(t.evaluations, t.reward) for t in optimizer.history] == [(2, 2.0)] * 10
    assert optimizer.recommend().loss == 2.0
