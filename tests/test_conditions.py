"""Conditions: when a parameter is part of a point, declared by the user."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import conditional_spaces, examples

from llmopt import Categorical, Float, Int, LLMOptimizer, ScriptedClient, Space, minimize
from llmopt.errors import ParameterError, ParseError, SpaceError
from llmopt.prompt.answer_reader import parse_parameters
from llmopt.prompt.structured import Form
from llmopt.service.description import read_space
from llmopt.space.values import ABSENT

DIMENSIONS = {
    "optimizer": Categorical(["sgd", "adam"]),
    "momentum": Float(0, 0.99, when={"optimizer": "sgd"}),
    "nesterov": Categorical([False, True], when={"momentum": (">", 0.5)}),
    "layers": Int(1, 4),
    "width": Int(8, 256, log=True, when={"layers": (">=", 3)}),
    "beta": Float(
        0.8, 0.999, when=[{"optimizer": ["adam"], "layers": (">", 1)}, {"width": ("<", 20)}]
    ),
}
SPACE = Space(DIMENSIONS)


def active(point):
    """Return the names that a point must have, by another implementation."""
    names = {"optimizer", "layers"}
    if point["optimizer"] == "sgd":
        names |= {"momentum"} | ({"nesterov"} if point["momentum"] > 0.5 else set())
    if point["layers"] >= 3:
        names |= {"width"}
    if (point["optimizer"] == "adam" and point["layers"] > 1) or point.get("width", 99) < 20:
        names |= {"beta"}
    return names


def test_points_have_what_their_conditions_say():
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(500):
        values = SPACE.sample(rng)
        point = SPACE.unflatten(values)
        assert set(point) == active(point)
        assert list(point) == [name for name in DIMENSIONS if name in point]
        assert SPACE.flatten(point) == SPACE.clip(values) == SPACE.check(values) == values
        assert SPACE.admits(SPACE.decode(SPACE.encode(values)))
        seen.add(frozenset(point))
    assert len(seen) >= 8


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ({"optimizer": "sdg"}, "did you mean 'sgd'"),
        ({"optimiser": "sgd"}, "no parameter of the space; did you mean 'optimizer'"),
        ({"layers": [2, 7]}, "outside"),
        ({"layers": lambda k: k > 2}, r'expected an integer.*a comparison is {">=": 2}, in TOML'),
        ({"optimizer": (">", 1)}, "a choice, which has no order"),
        ({"x": 1}, "circle"),
        *[
            ({"layers": wrong}, r"expected a value of layers, a list of values, or a comparison")
            for wrong in [(">",), {"=>": 2}, (">", "a"), [], [[1]], ("in", "abc"), {}]
        ],
        *[(wrong, r"expected a dict such as \{\"optimizer\"") for wrong in [{}, 3, [], {1: 2}]],
    ],
)
def test_a_condition_that_cannot_be_is_refused(when, words):
    with pytest.raises(SpaceError, match=words):
        Space({**DIMENSIONS, "x": Float(0, 1, when=when)})


def test_conditions_in_a_circle_are_refused():
    with pytest.raises(SpaceError, match=r"`\w` depends on `\w` depends on `\w`"):
        Space(
            {
                "a": Int(0, 1, when={"b": 1}),
                "b": Int(0, 1, when={"c": 1}),
                "c": Int(0, 1, when={"a": 1}),
            }
        )


@pytest.mark.parametrize(
    ("when", "words", "holds"),
    [
        ({"k": "a"}, "only with k = a", {"a": True, "b": False}),
        ({"k": ["a", "b"]}, "only with k = a or b", {"b": True, "c d": False}),
        ({"k": {"a"}}, "only with k = a", {"a": True, "b": False}),
        ({"k": ("!=", "a")}, "only with k other than a", {"a": False, "b": True}),
        ({"k": {"not in": ["a", "b"]}}, "only with k other than a or b", {"c d": True}),
        ({"k": "c d"}, "only with k = c d", {"c d": True}),
    ],
)
def test_conditions_on_a_choice(when, words, holds):
    space = Space({"k": Categorical(["a", "b", "c d"]), "x": Float(0, 1, when=when)})
    assert space.condition(1) == words
    for value, there in holds.items():
        assert (space.conform((value, 0.5))[1] is not ABSENT) == there


@pytest.mark.parametrize(
    ("when", "words", "there"),
    [
        ((">", 2), "n > 2", {3, 4}),
        ((">=", 2, "<", 4), "n >= 2 and n < 4", {2, 3}),
        ({"<": 2}, "n < 2", {1}),
        (range(2, 4), "n = 2 or 3", {2, 3}),
        (2, "n = 2", {2}),
        (("in", [1, 4]), "n = 1 or 4", {1, 4}),
    ],
)
def test_conditions_on_a_number(when, words, there):
    space = Space({"n": Int(1, 4), "x": Float(0, 1, when={"n": when})})
    assert space.condition(1) == f"only with {words}"
    assert {n for n in range(1, 5) if space.conform((n, 0.5))[1] is not ABSENT} == there


def test_a_tuple_may_be_a_choice():
    space = Space(
        {"hidden": Categorical([(64,), (64, 64)]), "drop": Float(0, 1, when={"hidden": (64, 64)})}
    )
    assert set(space.unflatten(((64,), ABSENT))) == {"hidden"}
    assert Space.from_dict(json.loads(json.dumps(space.to_dict()))) == space


def test_inactive_values_of_the_user_are_ignored_and_active_ones_needed():
    point = {"optimizer": "adam", "layers": 1}
    for ignored in (0.5, 99, None, float("nan"), "junk"):
        assert SPACE.validate({**point, "momentum": ignored}) == point
    with pytest.raises(ParameterError, match=r"missing 'momentum'.* optimizer = sgd"):
        SPACE.flatten({"optimizer": "sgd", "layers": 1})
    with pytest.raises(ParameterError, match="missing 'optimizer'"):
        SPACE.flatten({"layers": 1})
    with pytest.raises(ParameterError, match="unknown parameter 'layer'"):
        SPACE.flatten({**point, "layer": 1})
    # What is inactive makes no condition hold.
    assert SPACE.validate({**point, "width": 9, "beta": 0.9}) == point


def test_points_that_differ_in_nothing_that_counts_are_one():
    space = Space({"k": Categorical(["a", "b"]), "n": Int(1, 9, when={"k": "a"})})
    assert space.cardinality == len(space.points()) == 10
    assert space.key(("b", 3)) == space.key(("b", ABSENT))
    deep = Space({"k": Int(0, 1), **{f"n{i}": Int(1, 99, when={"k": 0}) for i in range(2)}})
    assert deep.cardinality == 1 + 99**2


def test_constraints_and_forbidden_combinations():
    space = Space(
        {
            "kernel": Categorical(["rbf", "poly"]),
            "degree": Int(2, 5, when={"kernel": "poly"}),
            "c": Float(0, 9),
        },
        constraints="degree + c <= 8",
        forbidden=[{"kernel": "poly", "degree": (">", 3)}],
    )
    rng = np.random.default_rng(0)
    for _ in range(300):
        point = space.unflatten(space.sample(rng))
        assert point.get("degree", 2) <= 3
        assert point.get("degree", 0) + point["c"] <= 8 or "degree" not in point
    assert space.constraints == ("degree + c <= 8", "never kernel = poly and degree > 3 together")
    assert space.broken(("poly", 4, 1.0)) == {"never kernel = poly and degree > 3 together": 1.0}
    assert space.broken(("rbf", ABSENT, 9.0)) == {}
    assert Space.from_dict(json.loads(json.dumps(space.to_dict()))) == space
    with pytest.raises(SpaceError, match=r"^forbidden names 'kernl', which is no"):
        Space({"kernel": Categorical(["a"])}, forbidden=[{"kernl": "a"}])
    with pytest.raises(SpaceError, match="no point"):
        Space({"k": Categorical(["a", "b"])}, forbidden=[{"k": ["a", "b"]}])


def test_the_schema_lets_what_is_inactive_be_null():
    schema = Form(SPACE, SPACE.names, ()).schema["properties"]["point"]["properties"]
    assert {"type": "null"} in schema["momentum"]["anyOf"]
    assert schema["optimizer"] == {"type": "string", "enum": ["sgd", "adam"]}


@pytest.mark.parametrize("prompt", ["words", "props", "opro"])
def test_the_first_request_says_the_conditions(prompt):
    client = ScriptedClient(
        ["Proposal:\noptimizer: adam, momentum: 0.5, layers: 1", "optimizer: sgd, layers: 2"]
        + ["optimizer: sgd, layers: 1, momentum: 0.2"] * 2
    )
    search = LLMOptimizer(DIMENSIONS, client, prompt=prompt, description="training a net", warmup=0)
    point = search.ask()
    assert point == {"optimizer": "adam", "layers": 1}
    first = "\n".join(m.content for m in client.requests[0].messages)
    assert "only with optimizer = sgd" in first
    assert "only with optimizer = adam and layers > 1; or with width < 20" in first
    assert "all 6" not in first
    search.tell(point, 1.0)
    assert search.ask() == {"optimizer": "sgd", "momentum": 0.2, "layers": 1}
    if prompt == "words":  # it reads what was left out of its answer
        second = "\n".join(m.content for m in client.requests[1].messages)
        assert "momentum, which a point has only with optimizer = sgd" in second
    retried = "\n".join(m.content for m in client.requests[2].messages)
    assert "no value for `momentum`" in retried
    assert search.usage.rejected["unreadable"] == 1


def test_cma_says_at_once_that_it_cannot():
    numbers = {"n": Int(1, 4), "x": Float(0, 1, when={"n": 2})}
    client = ScriptedClient([])
    with pytest.raises(SpaceError, match="'x' is not in every point"):
        LLMOptimizer(numbers, client, partner="cma")
    assert not client.requests


def test_conditions_in_a_json_schema():
    schema = {
        "optimizer": {"enum": ["sgd", "adam"]},
        "momentum": {
            "type": "number",
            "minimum": 0,
            "maximum": 0.99,
            "when": {"optimizer": "sgd"},
        },
        "layers": {"type": "integer", "minimum": 1, "maximum": 4},
        "width": {
            "type": "integer",
            "minimum": 8,
            "maximum": 256,
            "log": True,
            "when": {"layers": {">=": 3}},
        },
    }
    assert read_space(schema) == Space({n: DIMENSIONS[n] for n in schema})
    with pytest.raises(SpaceError, match=r"'momentum'.*a comparison such as"):
        read_space({**schema, "momentum": {**schema["momentum"], "when": {"layers": {"~": 1}}}})


# Whatever the space and the text ------------------------------------------------------


def holds(space, index, point):
    when = space.dimensions[index].when
    return when is None or bool(
        when.active(lambda name: point.get(space.names.index(name), ABSENT))
    )


@examples(50)
@given(conditional_spaces(), st.integers(0, 2**32 - 1), st.text(max_size=80))
def test_any_conditional_space_and_any_answer(space, seed, text):
    rng = np.random.default_rng(seed)
    for _ in range(5):
        values = space.sample(rng)
        there = {i: v for i, v in enumerate(values) if v is not ABSENT}
        assert all(holds(space, i, there) == (i in there) for i in range(len(space)))
        rounded = {i: space.dimensions[i].parse(space.format(i, v)) for i, v in there.items()}
        if any(holds(space, i, rounded) != (i in there) for i in range(len(space))):
            continue  # -0.99999999 is shown as -1, where another condition holds
        shown = ", ".join(f"{space.names[i]}: {space.format(i, v)}" for i, v in there.items())
        params = space.unflatten(parse_parameters(shown, space).values)
        assert set(params) == set(space.unflatten(values))
    try:
        reading = parse_parameters(text, space)
    except ParseError:
        return
    space.unflatten(reading.values)
    if space.cardinality <= 10_000:
        points = space.points()
        assert len(points) == space.cardinality == len(set(map(space.key, points)))


def test_a_search_is_imported(tmp_path):
    def objective(point):
        assert set(point) == active(point)
        return point["layers"] + point.get("momentum", 0.5)

    path = tmp_path / "search.jsonl"
    result = minimize(
        objective, DIMENSIONS, client="network", n_trials=14, seed=1, warmup=3, storage=path
    )
    assert len({SPACE.key(t.values) for t in result.trials}) == 14
    other = LLMOptimizer(DIMENSIONS, "network", direction="minimize")
    report = other.import_trials(path)
    assert len(other.trials) == 14, report
    rows = [
        {"optimizer": "adam", "layers": 1, "momentum": "", "reward": 1.0},
        {"optimizer": "adam", "layers": 1, "momentum": 7, "reward": 2.0},
        {"optimizer": "sgd", "layers": 1, "momentum": 7, "reward": 2.0},
    ]
    table = LLMOptimizer(DIMENSIONS, "network")
    table.import_trials(rows)
    assert [t.params for t in table.trials] == [{"optimizer": "adam", "layers": 1}] * 2


@pytest.mark.defect(10)
@examples(25)
@given(conditional_spaces(), st.integers(0, 9))
def test_the_keyless_default_searches_any_conditional_space(space, seed):
    optimizer = LLMOptimizer(space, "network", warmup=2, seed=seed, noisy=True)
    for k in range(8):
        point = optimizer.ask()
        assert space.unflatten(space.flatten(point)) == point
        optimizer.tell(point, None if k == 3 else float(len(point)))
    assert optimizer.usage.fallbacks == 0
