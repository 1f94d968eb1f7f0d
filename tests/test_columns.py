"""The prompt `columns`: lines of letters, the probabilities they are continued by, the adapter."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from llmopt import (
    Categorical,
    Float,
    Int,
    LLMOptimizer,
    ParseError,
    ScriptedClient,
)
from llmopt.adapters.optuna.branches import BranchedSpace, find_conditions
from llmopt.benchmarks.experiments.columns_data import Window
from llmopt.benchmarks.methods.baselines import GaussianGrammarClient
from llmopt.client.base import Message, Request
from llmopt.client.local.local import LocalClient
from llmopt.client.local.network import (
    NetworkClient,
    read_line,
)
from llmopt.client.model_facts import ModelFacts
from llmopt.commands.check import check
from llmopt.history import History, Trial
from llmopt.prompt import Situation
from llmopt.prompt.columns.columns import ColumnsPrompt, write_line
from llmopt.prompt.columns.frame import covariance_frame, slope_frame
from llmopt.space import Space
from llmopt.space.values import ABSENT

SPACE = Space({"x": Float(-5, 5), "y": Float(0, 1), "z": Float(-1, 1)})


def situation(space=SPACE, n=30, **options) -> Situation:
    rng = np.random.default_rng(4)
    trials = []
    for i in range(n):
        values = space.sample(rng)
        trials.append(Trial(i, None, values, (-float(np.sum(space.encode(values)) ** 2),)))
    return Situation(space, History(tuple(trials)), n + 1, **options)


def test_a_line_for_each_parameter_best_first():
    state = situation(seed=3)
    query = ColumnsPrompt(dither=False).prepare(state)
    lines = query.request.columns
    assert len(lines) == 3
    assert query.request.messages == (Message("user", "\n".join(lines)),)
    assert query.request.choices == tuple(f" {c}" for c in "abcdefghijklmnopqrstuvwxyz")
    heads = [line.split(" ")[0] for line in lines]
    assert sorted(heads) == ["C", "C", "c"]  # three parameters, one of them along the slope
    assert all(len(line.split(" ")) == 21 for line in lines)
    # The best trial's letters, read back, are a point within half a cell of it.
    best = "".join(" " + line.split(" ")[1] for line in lines)
    units = np.array([SPACE.encode(t.values) for t in state.history.ranked[:20]])
    cell = 5 * units.std(axis=0) / 26
    away = np.abs(np.array(SPACE.encode(query.read(best).values)) - units[0])
    assert (away < 2 * cell).all()


def test_one_line_leads_to_better_points():
    """Its letters fall from the best trial to the worst, and z is better than a."""
    state = situation(seed=3)
    query = ColumnsPrompt(dither=False).prepare(state)
    leading = [line[0].islower() for line in query.request.columns]
    line = query.request.columns[leading.index(True)]
    _, _, levels = read_line(line)
    assert np.corrcoef(levels, np.arange(20))[0, 1] < -0.5

    def reward(letter):
        units = SPACE.encode(
            query.read(" " + " ".join(letter if i else "m" for i in leading)).values
        )
        return -(float(np.sum(units)) ** 2)

    assert reward("s") > reward("m") > reward("g")


def test_discrete_values_are_read_off_the_cells():
    """Neighbours of a whole number stay in reach however much the elites agree."""
    space = Space({"k": Int(1, 9), "s": Float(0, 1, step=0.25), "x": Float(0, 1)})
    same = History(tuple(Trial(i, None, (5, 0.5, 0.3), (1.0,)) for i in range(20)))
    query = ColumnsPrompt(dither=False).prepare(replace(situation(space), history=same))
    low, high = query.read(" a a a").values, query.read(" z z z").values
    assert low[0] < 5 < high[0]
    assert low[1] < 0.5 < high[1]
    assert high[2] - low[2] < 0.01
    assert isinstance(low[0], int)


@pytest.mark.parametrize("at", [1, 2, 9, 16])
def test_steps_of_a_logarithmic_scale_stay_in_reach(at):
    space = Space({"k": Int(1, 16, log=True), "x": Float(0, 1)})
    same = History(tuple(Trial(i, None, (at, 0.3), (1.0,)) for i in range(20)))
    query = ColumnsPrompt(dither=False).prepare(replace(situation(space), history=same))
    read = {query.read(f" {chr(97 + i)} m").values[0] for i in range(26)}
    assert {max(at - 1, 1), min(at + 1, 16)} <= read


def test_a_fixed_dimension_keeps_its_value():
    space = Space({"x": Float(0, 1), "fixed": Float(2, 2)})
    for out_of_range in ("clip", "reject"):
        query = ColumnsPrompt().prepare(situation(space, out_of_range=out_of_range))
        reading = query.read(" c z")
        assert reading.values[1] == 2
        assert not reading.clipped


def test_an_answer_is_one_line_of_letters():
    query = ColumnsPrompt(dither=False).prepare(situation())
    for text in (" C A Z\n", "c, a, z"):
        assert query.read(text).values == query.read(" c a z").values
    for text in (" a b", " a b c d", "I am", "a b or c", ""):
        with pytest.raises(ParseError, match="expected one line of 3 letters"):
            query.read(text)


def drawn(state, n, text=""):
    """Return the points that one answer gives with `n` seeds."""
    prompt = ColumnsPrompt()
    return [prompt.prepare(replace(state, seed=seed)).read(text).values for seed in range(n)]


@pytest.mark.parametrize("space", [SPACE, Space({"x": Float(0, 1), "k": Categorical(["a", "b"])})])
def test_few_trials_are_followed_by_uniform_numbers(space):
    history = History((*situation(space, 4).history.trials, *situation(space, 2).history.failed))
    x = [p[0] for p in drawn(Situation(space, history, 5), 200)]
    low, high = (space.decode(np.full(len(space), u))[0] for u in (0.1, 0.9))
    assert sum(v < low for v in x) > 8
    assert sum(v > high for v in x) > 8


MIXED = Space(
    {"kind": Categorical(["a", "b", "c"]), "x": Float(0, 1), "n": Int(1, 9), "on": Categorical([1])}
)


def mixed(n=40, **options) -> Situation:
    """Trials of which the best have the choice "b"."""
    rng = np.random.default_rng(8)
    trials = []
    for i in range(n):
        values = MIXED.sample(rng)
        reward = -abs(values[1] - 0.3) - 3 * (values[0] != "b")
        trials.append(Trial(i, None, values, (reward,)))
    return Situation(MIXED, History(tuple(trials)), n + 1, **options)


def test_choices_have_no_line_and_are_drawn_as_the_best_trials_have_them():
    state = mixed(200, seed=3)
    query = ColumnsPrompt().prepare(state)
    assert len(query.request.columns) == 2
    assert {line[0].upper() for line in query.request.columns} == {"B"}  # two numbers
    points = drawn(state, 300, " m m")
    assert all(MIXED.key(p) for p in points)
    kinds = [p[0] for p in points]
    # All of the twenty best have "b"; four points of ten take any of the three.
    assert 190 < kinds.count("b") < 240
    assert 25 < kinds.count("a") < 65
    assert {p[3] for p in points} == {1}
    numbers = Space({"x": Float(0, 1), "n": Int(1, 9)})
    trials = [replace(t, values=t.values[1:3]) for t in state.history.trials]
    alone = ColumnsPrompt().prepare(Situation(numbers, History(tuple(trials)), 201, seed=3))
    assert alone.request == query.request
    assert alone.read(" m m").values == query.read(" m m").values[1:3]


CHOICES = Space({"kind": Categorical(list("abc")), "on": Categorical([True, False])})


def test_categorical_parameters_alone_are_drawn_with_no_model():
    state = situation(CHOICES, n=3, seed=5)
    tried = {CHOICES.key(t.values) for t in state.history.trials}
    assert not tried & {CHOICES.key(p) for p in drawn(state, 20)}

    client = GaussianGrammarClient()
    client.complete = lambda request: pytest.fail("the model was asked")
    space = dict(zip(CHOICES.names, CHOICES.dimensions, strict=True))
    optimizer = LLMOptimizer(space, client, "columns", warmup=2, seed=0)
    for point in optimizer.ask(2) + optimizer.ask(3):
        optimizer.tell(point, float(point["kind"] == "b"))
    assert optimizer.usage.proposals == {"warmup": 2, "drawn": 3}
    assert (optimizer.usage.requests, optimizer.usage.fallbacks) == (0, 0)


def test_the_length_does_not_grow():
    lengths = {len(ColumnsPrompt().prepare(situation(n=n)).request.text) for n in (20, 100, 1000)}
    assert len(lengths) == 1
    wide = Space({f"x{i}": Float(0, 1) for i in range(500)})
    columns = (
        ColumnsPrompt()
        .prepare(situation(wide, model=ModelFacts("m", context_tokens=2048)))
        .request.columns
    )
    assert {len(line.split(" ")) for line in columns} == {21}  # each line is a text of its own


# The slope


def sloped(points, places):
    """Return the plain and the turned frame of points of the unit cube, and the line that leads."""
    n = points.shape[1]
    space = Space({f"x{i}": Float(0, 1) for i in range(n)})
    plain = covariance_frame(space, points[np.argsort(places)][:20], 2.5, np.full(n, 1e-4))
    return plain, *slope_frame(plain, points, places)


def test_the_slope_is_the_one_that_the_adapter_was_trained_with():
    """Its constants belong to the adapter: another slope needs another training."""
    points = np.random.default_rng(7).random((60, 3))
    losses = ((points - [0.2, 0.5, 0.9]) ** 2) @ [1.0, 3.0, 9.0]
    plain, turned, leading = sloped(points, np.argsort(np.argsort(losses)).astype(float))
    assert leading == 1
    before, after = plain.axes.matrix, turned.axes.matrix
    np.testing.assert_allclose(after @ after.T, before @ before.T, atol=1e-12)
    np.testing.assert_array_equal(turned.axes.mean, plain.axes.mean)
    expected = [
        [0.1486753, 0.054617, -0.1018109],
        [0.035491, 0.0977408, 0.0973342],
        [-0.0269928, 0.0419837, -0.042714],
    ]
    np.testing.assert_allclose(turned.axes.matrix, expected, atol=1e-6)


# Requests and clients


def test_a_request_with_columns_goes_through_json_and_others_are_as_before():
    plain = Request((Message("user", "x"),))
    assert "columns" not in plain.to_dict()
    asked = replace(plain, columns=("C a b", "C c d"), choices=(" a", " b"))
    assert Request.from_dict(json.loads(json.dumps(asked.to_dict()))) == asked
    assert len({plain.digest(), asked.digest(), replace(asked, choices=(" a",)).digest()}) == 3


def test_a_client_without_probabilities_is_told_what_to_take():
    with pytest.raises(ValueError, match="take prompt 'props'"):
        LLMOptimizer(SPACE, ScriptedClient([" a b c"]), "columns")
    with pytest.raises(ValueError, match="take prompt 'props'"):
        check(ScriptedClient([" a b c"]), "columns")


# The embedded model with its adapter


def ask(client, letters, seed=0, n=15, temperature=1.0, heads="CCCCC"):
    """Return a reply to lines of the given letters, and the letters of `n` replies."""
    lines = tuple(" ".join([head, *line]) for head, line in zip(heads, letters, strict=False))
    request = Request(
        (Message("user", "\n".join(lines)),),
        style="completion",
        temperature=temperature,
        seed=seed,
        columns=lines,
        choices=tuple(f" {chr(97 + i)}" for i in range(26)),
    )
    replies = [client.complete(replace(request, seed=seed + k)) for k in range(n)]
    return replies[0], [r.completions[0].text.replace(" ", "") for r in replies]


@pytest.mark.embedded
def test_the_adapter_follows_the_best_points(embedded_client):
    """Towards the letters that the best trials have, not those of the worst."""
    low_first = "cdcedbcdefghhjklmopq"
    high_first = "xwxvwyxwvutssqponlkj"
    reply, drawn = ask(embedded_client, [low_first, high_first])
    means = np.array([[ord(c) - 97 for c in text] for text in drawn]).mean(axis=0)
    assert means[0] + 3 < means[1]
    _, along = ask(embedded_client, ["nmonlmonmnlomnmonlmn"] * 2, heads="cC")
    ahead, other = np.array([[ord(c) - 97 for c in text] for text in along]).mean(axis=0)
    assert ahead > other + 1
    assert reply.requests == 1
    assert reply.prompt_tokens == 2 * 21
    ask(embedded_client, ["abcdefghijklmnopqrst"] * 5, seed=9)
    _, again = ask(embedded_client, [low_first, high_first])
    assert again == drawn
    _, cold = ask(embedded_client, [low_first], temperature=0.0, n=5)
    assert len(set(cold)) == 1


@pytest.mark.embedded
def test_the_adapter_leaves_other_requests_alone(embedded_client):
    text = Request(
        (Message("user", "One, two, three,"),), style="completion", temperature=0, max_tokens=8
    )
    ask(embedded_client, ["abcdefgabcdefgabcdef"], n=1)
    after = embedded_client.complete(text).completions[0].text
    without = LocalClient(embedded_client.path, context_tokens=512, threads=1)
    try:
        assert without.complete(text).completions[0].text == after
    finally:
        without.close()


# What it is trained on


def test_a_line_to_learn_from_is_that_of_the_prompt():
    """What the training shows of a search is what `ColumnsPrompt` writes of it."""
    rng = np.random.default_rng(5)
    points = rng.random((100, 3))
    losses = ((points - 0.4) ** 2).sum(axis=1).round(1)  # some are equal
    space = Space({name: Float(0, 1) for name in "xyz"})
    units = zip(points.tolist(), losses.tolist(), strict=True)
    trials = tuple(Trial(i, None, tuple(p), (-y,)) for i, (p, y) in enumerate(units))
    asked = ColumnsPrompt().prepare(Situation(space, History(trials), 100)).request
    shown = zip(*Window(points, losses).lines, strict=True)
    written = [write_line(3, bool(leading), levels) for levels, leading, _ in shown]
    assert tuple(written) == asked.columns


# -- branches -----------------------------------------------------------------------------


def branched(counts, seed=0):
    """A situation with trials of two branches: `a` has `x` and is good near 2, `b` has `y`."""
    dimensions = {"kind": Categorical(["a", "b"]), "x": Float(-5, 5), "y": Float(-5, 5)}
    known = [{"kind": "a", "x": 0.0}, {"kind": "b", "y": 0.0}]
    space = BranchedSpace(dimensions, find_conditions(known, dimensions))
    rng, trials = np.random.default_rng(1), []
    for kind, count in counts.items():
        for value in rng.normal(2, 0.5, count) if kind == "a" else rng.uniform(-5, 5, count):
            point = (kind, float(value), ABSENT) if kind == "a" else (kind, ABSENT, float(value))
            loss = abs(value - 2) if kind == "a" else 20 + abs(value + 3)
            trials.append(Trial(len(trials), None, point, (-loss,)))
    return Situation(space, History(tuple(trials)), len(trials) + 1, seed=seed)


def drawn_points(counts, draws=300):
    """Points that are proposed after such trials, and whether a model was asked for each."""
    found = []
    for seed in range(draws):
        query = ColumnsPrompt().prepare(branched(counts, seed))
        text = "" if query.sampled else NetworkClient().complete(query.request).completions[0].text
        found.append((query.read(text).values, query.sampled, query.request.columns))
    return found


def test_a_branch_is_asked_for_its_own_numbers_by_its_own_trials():
    found = drawn_points({"a": 20, "b": 20})
    for (kind, x, y), _, columns in found:
        assert (x is ABSENT, y is ABSENT) == (kind == "b", kind == "a")
        assert all(len(line.split()) == 1 + 10 for line in columns)  # the better half of 20
    near = [abs(x - 2) < 1 for (kind, x, _), drawn, _ in found if kind == "a" and not drawn]
    assert np.mean(near) > 0.9
    good = [abs(y + 3) < 2.5 for (kind, _, y), drawn, _ in found if kind == "b" and not drawn]
    assert np.mean(good) > 0.6


def test_no_branch_is_given_up_and_one_of_few_trials_is_drawn_evenly():
    found = drawn_points({"a": 40, "b": 2})
    others = [values[2] for values, *_ in found if values[0] == "b"]
    assert 0.3 < len(others) / len(found) < 0.55  # two of three points draw a branch evenly
    assert all(drawn for values, drawn, _ in found if values[0] == "b")
    assert min(others) < -4
    assert max(others) > 4
    explored = np.mean([drawn for values, drawn, _ in found if values[0] == "a"])
    assert 0.4 < explored < 0.7  # the model is asked for the others


def test_beside_a_sampler_that_explores_one_point_of_ten_is_drawn_evenly():
    drawn = []
    for seed in range(200):
        state = replace(branched({"a": 20, "b": 20}, seed), explores=False)
        drawn.append(ColumnsPrompt().prepare(state).sampled)
    assert 0.03 < np.mean(drawn) < 0.2
