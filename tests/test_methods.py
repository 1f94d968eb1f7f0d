from __future__ import annotations

import re
from dataclasses import replace
from string import ascii_lowercase

import numpy as np
import pytest

from llmopt import Completion, LLMOptError, Reply, ScriptedClient
from llmopt.benchmarks import extras
from llmopt.benchmarks.methods.baselines import (
    ARS,
    CMA,
    BipopCMA,
    GaussianGrammarClient,
    RandomSearch,
)
from llmopt.benchmarks.methods.protocol import Problem, method_seed
from llmopt.benchmarks.methods.table import METHODS, check_method, make_method
from llmopt.benchmarks.methods.turbo import Turbo
from llmopt.errors import install_hint
from llmopt.history import History, Trial
from llmopt.prompt import ColumnsPrompt, Situation
from llmopt.space import Float, Space

N = 4
SEED = np.random.SeedSequence(0)
GOAL = np.array([2.0, -3.0, 0.5, 4.0])


def sphere(params) -> float:
    return -float(((np.asarray(params) - GOAL) ** 2).sum())


def warmed(count=10, *, evaluations=60, failed=0) -> Problem:
    points = np.random.default_rng(0).normal(0, 3, (count, N)).clip(-6, 6).round(1)
    rewards = [None if i < failed else sphere(p) for i, p in enumerate(points)]
    pairs = tuple((tuple(p.tolist()), r) for p, r in zip(points, rewards, strict=True))
    return Problem(-6.0, 6.0, N, evaluations, pairs, "a sphere")


def here(name: str) -> bool:
    try:
        check_method(name)
    except LLMOptError:
        return False
    return True


RUNNABLE = [n for n, e in METHODS.items() if not e.asks_model and here(n)]
INFORMED = [n for n in RUNNABLE if n != "random"]


def search(name, problem, seed=0, count=60, f=sphere):
    method = make_method(name, problem, np.random.SeedSequence(seed))
    points, rewards = [], []
    for _ in range(count):
        point = method.ask()
        reward = f(point)
        points.append(point.copy())
        if reward is None:
            method.tell_failure(point, "no")
        else:
            rewards.append(reward)
            method.tell(point, reward)
    return np.array(points), rewards


@pytest.mark.parametrize("name", RUNNABLE)
def test_points_stay_in_the_box_and_repeat_with_the_seed(name):
    points, _ = search(name, warmed(), count=30)
    assert points.shape == (30, N)
    assert points.dtype == np.float64
    assert (points >= -6).all()
    assert (points <= 6).all()
    np.random.seed(7)  # what others draw meanwhile must not matter, nor does the method draw there
    before = np.random.get_state()[1].copy()
    again, _ = search(name, warmed(), count=30)
    np.testing.assert_array_equal(np.random.get_state()[1], before)
    np.testing.assert_array_equal(points, again)
    other, _ = search(name, warmed(), seed=1, count=30)
    assert not np.array_equal(points, other)


@pytest.mark.parametrize("name", INFORMED)
def test_every_informed_method_uses_the_rewards(name):
    """Sixty evaluations of a sphere bring each one nearer than blind luck does."""
    blind = np.median([max(search("random", warmed(), s)[1]) for s in range(5)])
    # Slow to begin with, or done too early: they only have to get better.
    if name.endswith("-gaussian"):
        blind = max(warmed().rewards)
    assert np.median([max(search(name, warmed(), s)[1]) for s in range(2)]) > blind


@pytest.mark.parametrize("name", RUNNABLE)
def test_failures_and_an_empty_warmup_end_no_search(name):
    def fails_often(point):
        return None if point[0] > 0 else sphere(point)

    points, rewards = search(name, warmed(failed=10), count=20, f=fails_often)
    assert len(points) == 20 > len(rewards)
    points, _ = search(name, warmed(0), count=15)
    assert np.isfinite(points).all()


def test_bipop_changes_its_population_where_a_run_converges():
    def begun(method_class):
        made = method_class(-6.0, 6.0, 2, 3)
        sizes = [made._strategy.popsize]
        for _ in range(3000):
            point = made.ask()
            made.tell(point, -float((point**2).sum()))
            if made._strategy.popsize != sizes[-1]:
                sizes.append(made._strategy.popsize)
        return sizes

    assert len(begun(CMA)) == 1
    sizes = begun(BipopCMA)
    assert sizes[1] >= 2 * sizes[0] or sizes[1] <= sizes[0]
    assert max(sizes) >= 2 * sizes[0]


def test_ars_makes_the_step_of_its_algorithm(monkeypatch):
    problem = Problem(-6.0, 6.0, 3, 100)
    monkeypatch.setattr(ARS, "DIRECTIONS", 3)
    monkeypatch.setattr(ARS, "NOISE", 0.05)
    search = ARS(problem, np.random.SeedSequence(1))
    rewards = [1.0, 0.0, 5.0, 2.0, -1.0, -9.0]
    deltas = []
    for i, reward in enumerate(rewards):
        point = search.ask()
        if i % 2 == 0:
            deltas.append(point / 0.6)
        else:
            np.testing.assert_allclose(point, -0.6 * deltas[-1])
        search.tell(point, reward)
    # The two best directions are the second and the first; their rewards' deviation counts.
    deviation = np.std([5.0, 2.0, 1.0, 0.0])
    step = 1.2 / (2 * deviation) * (3.0 * deltas[1] + 1.0 * deltas[0])
    middle = (search.ask() + 0) - 0.6 * search._deltas[0]
    np.testing.assert_allclose(middle, step)


def test_the_region_of_turbo_shrinks_after_steps_without_gain_and_grows_after_gains(monkeypatch):
    search = Turbo(Problem(0.0, 1.0, 8, 100, (((0.5,) * 8, 1.0),) * 3), SEED)
    for name in ("_propose", "_sobol"):  # these two need PyTorch
        monkeypatch.setattr(search, name, lambda count=4: [np.full(8, 0.5)] * count)

    def step(reward):
        for _ in range(4):
            search.tell(search.ask(), reward)
        return search._length

    assert [step(0.0), step(0.0)] == [0.8, 0.4]  # ceil(8 / 4) steps
    assert [step(2.0), step(3.0), step(4.0)] == [0.4, 0.4, 0.8]  # three steps
    lengths = [step(0.0) for _ in range(20)]
    assert 0.8 / 2**6 in lengths  # and then anew, from points of its own
    assert lengths[lengths.index(0.8 / 2**6) + 2] == 0.8


# -- the samplers without a model ---------------------------------------------------------


def columns_request(count=12, spread=1.0, seed=3):
    space = Space({f"x{i}": Float(-6.0, 6.0) for i in range(N)})
    rng = np.random.default_rng(0)
    points = (GOAL + spread * rng.normal(size=(count, N))).clip(-6, 6).tolist()
    trials = tuple(Trial(i, None, tuple(p), (sphere(p),)) for i, p in enumerate(points))
    situation = Situation(space, History(trials), count + 1, seed=seed)
    return ColumnsPrompt().prepare(situation)


def test_the_sampler_answers_the_columns_prompt_with_no_model():
    query = columns_request()
    reply = GaussianGrammarClient().complete(query.request)
    assert (reply.prompt_tokens, reply.completion_tokens, reply.cost) == (0, 0, 0.0)
    assert GaussianGrammarClient().complete(query.request) == reply
    requests = (replace(query.request, seed=seed) for seed in range(400))
    texts = [GaussianGrammarClient().complete(r).completions[0].text for r in requests]
    rows = np.array([[ascii_lowercase.index(x) for x in text.split()] for text in texts])
    assert rows.shape == (400, N)
    assert not query.read(reply.completions[0].text).clipped
    np.testing.assert_allclose(rows.std(axis=0), 26 / 5, rtol=0.12)
    np.testing.assert_allclose(rows.mean(axis=0), 12.5, atol=1.2)


# -- the model ----------------------------------------------------------------------------


def answering(requests):
    def answer(request):
        requests.append(request)
        rng = np.random.default_rng(request.seed)
        if request.grammar:
            text = " " + " ".join(rng.choice(list(ascii_lowercase), N))
        else:
            values = ", ".join(f"params[{i}]: {rng.uniform(-6, 6):.1f}" for i in range(N))
            text = values + "\nBecause it is there."
        return Reply((Completion(text),), prompt_tokens=7, completion_tokens=5)

    client = ScriptedClient(answer)
    client.columns = True
    return client


@pytest.mark.parametrize("name", ["llm-columns", "llm-props", "llm-props-plus", "llm-opro"])
def test_the_model_searches_under_every_prompt(name):
    requests = []
    problem = warmed(evaluations=6)
    method = make_method(name, problem, np.random.SeedSequence(0), client=answering(requests))
    for _ in range(6):
        point = method.ask()
        assert method.last.source == "llm"
        method.tell(point, sphere(point))
    assert len(requests) == method.usage.requests == 6
    assert method.usage.proposals == {"llm": 6}
    plain = name.startswith("llm-columns")
    if not plain:
        assert method.last.explanation == "Because it is there."
    assert ("a sphere" in requests[0].text) == (not plain)
    assert "optimum" not in requests[0].text


# -- the table ----------------------------------------------------------------------------


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(LLMOptError, match="needs optuna"):
        check_method("optuna-tpe")
    with pytest.raises(
        LLMOptError,
        match="needs optuna and torch and scipy.*"
        + re.escape(install_hint("optuna,rivals,bench"))
        + "$",
    ):
        check_method("optuna-gp")
    with pytest.raises(
        LLMOptError, match=f"needs torch and botorch.*{re.escape(install_hint('rivals'))}$"
    ):
        check_method("turbo")
    check_method("random")


# -- seeds --------------------------------------------------------------------------------


def test_a_method_draws_from_a_stream_of_its_whole_name():
    words = {name: tuple(method_seed(0, name).generate_state(4)) for name in METHODS}
    assert len(set(words.values())) == len(METHODS)  # those of llm-* among them
    assert not np.array_equal(method_seed(1, "cma").generate_state(4), words["cma"])
    # Committed results depend on these numbers: no version and no machine changes them.
    assert method_seed(0, "cma").spawn_key == (3, 4040343188, 1871611770, 1377938957, 1357140580)
    assert method_seed(0, "llm-columns").spawn_key[1] == 1401756110


# -- CMA-ES ---------------------------------------------------------------------------------


def centred(x):
    return -float(np.sum((x - 1.0) ** 2))


def drive(searcher, steps, reward=centred):
    points = []
    for _ in range(steps):
        x = searcher.ask()
        points.append(x)
        value = reward(x)
        if value is None:
            searcher.tell_failure(x, "no")
        else:
            searcher.tell(x, value)
    return np.array(points)


@pytest.mark.parametrize("n", [1, 18])
def test_points_stay_in_the_box_and_are_new(n):
    points = drive(CMA(-6, 6, n, 3, np.full(n, 6.0)), 60)
    assert np.abs(points).max() <= 6
    assert len(np.unique(points, axis=0)) == 60


def test_cma_finds_the_optimum_and_random_search_does_not():
    methods = {"cma": CMA(-6, 6, 5, 0), "random": RandomSearch(Problem(-6, 6, 5, 400), 0)}
    best = {name: max(map(centred, drive(method, 400))) for name, method in methods.items()}
    assert best["cma"] > -1e-3
    assert best["random"] < -1e-1


def test_cma_starts_around_the_given_point_with_a_sixth_of_the_width():
    points = drive(CMA(-60, 60, 3, 0, start=[10, 0, -10]), 7)  # the first generation
    np.testing.assert_allclose(points.mean(axis=0), [10, 0, -10], atol=25)
    spread = np.concatenate([CMA(-60, 60, 3, s, [0, 0, 0]).ask() for s in range(60)])
    assert spread.std() == pytest.approx(20, rel=0.15)


def test_cma_goes_on_after_converging():
    points = drive(CMA(-6, 6, 2, 0), 1200)
    assert len(np.unique(points.round(2), axis=0)) > 300
    far = np.abs(points[900:] - 1.0).max(axis=1) > 0.5
    assert far.any()
