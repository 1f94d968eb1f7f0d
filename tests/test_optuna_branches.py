"""Spaces of an Optuna study, whose points may lack parameters: what is learned from its trials."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from llmopt import Categorical, Float, Int
from llmopt.adapters.optuna.branches import BranchedSpace, Condition, find_conditions
from llmopt.prompt.answer_reader import parse_parameters
from llmopt.space.values import ABSENT

DIMENSIONS = {"k": Categorical(["a", "b"]), "n": Int(1, 3), "u": Float(0, 1), "v": Int(1, 2)}
WHEN = {
    "u": Condition("k", frozenset("a"), frozenset("b")),
    "v": Condition("n", frozenset({2}), frozenset({1})),
}
SPACE = BranchedSpace(DIMENSIONS, WHEN)


def test_points_have_what_was_seen_with_them():
    assert SPACE.conform(("b", 1, 0.5, 2)) == ("b", 1, ABSENT, ABSENT)
    assert SPACE.key(("b", 1, 0.5, 2)) == SPACE.key(("b", 1, ABSENT, ABSENT))
    assert SPACE.clip(("a", 7, 9.0, 0)) == ("a", 3, 1.0, 1)
    assert pickle.loads(pickle.dumps(SPACE)) == SPACE
    rng = np.random.default_rng(0)
    for _ in range(200):
        values = SPACE.sample(rng)
        assert (values[2] is ABSENT) == (values[0] == "b")
        assert (values[3] is ABSENT) == (values[1] == 1)
        assert SPACE.check(values) == SPACE.clip(values) == values
    limited = SPACE.constrained(["u + n <= 2"])
    assert limited.admits(("b", 3, ABSENT, 1))
    assert all(limited.admits(limited.sample(rng)) for _ in range(100))


def test_values_that_are_set_are_fixed():
    dimensions = {n: DIMENSIONS[n] for n in ("k", "n", "v")}
    space = BranchedSpace(dimensions, {"v": WHEN["v"]})
    assert space.cardinality == len(space.points()) == 2 * (1 + 2 * 2)
    fixed = BranchedSpace(dimensions, {"v": WHEN["v"]}, {"n": 1})
    assert fixed.points() == [("a", 1, ABSENT), ("b", 1, ABSENT)]
    assert [*fixed.asked] == [0, 2]
    assert fixed.missing({}) == [0]
    assert BranchedSpace(dimensions, {}, {}, {"k": ["b"]}).missing({0: "b"}) == []


@pytest.mark.parametrize(
    ("condition", "holds", "words"),
    [
        (WHEN["u"], {"a": True, "b": False, "c": None, ABSENT: False}, "only with k = a"),
        (WHEN["v"], {1: False, 2: True, 3: True, ABSENT: False}, "only with n = 2 or more"),
    ],
)
def test_a_condition_says_no_more_than_was_seen(condition, holds, words):
    assert {value: condition.holds(value) for value in holds} == holds
    assert condition.said(lambda name, value: str(value)) == words


def test_conditions_are_found_in_points():
    dimensions = {
        **{"kind": Categorical(["net", "tree"]), "layers": Int(1, 4), "seed": Int(0, 99)},
        **{"opt": Categorical(["sgd", "adam"]), "momentum": Float(0, 1), "w2": Int(1, 9)},
        **{"odd": Float(0, 1), "new": Float(0, 1)},
    }
    rng = np.random.default_rng(1)
    points = []
    for i in range(40):
        point = {"seed": int(rng.integers(100)), "kind": rng.choice(["net", "tree"]).item()}
        if point["kind"] == "net":
            point |= {"layers": int(rng.integers(1, 5)), "opt": rng.choice(["sgd", "adam"]).item()}
            point |= {"momentum": 0.5} if point["opt"] == "sgd" else {}
            point |= {"w2": 3} if point["layers"] >= 2 else {}
        point |= {"odd": 0.5} if i % 3 == 0 else {}
        point |= {"new": 0.5} if i > 20 else {}
        points.append(point)
    conditions = find_conditions(points, dimensions)
    on = {name: condition and condition.on for name, condition in conditions.items()}
    assert on == {"layers": "kind", "opt": "kind", "momentum": "opt", "w2": "layers", "odd": None}
    order = list(conditions)
    assert order.index("opt") < order.index("momentum")  # what tells comes first
    assert conditions["w2"].least == 2


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("k: a, n: 1, u: 0.5\nbecause v: 2 was worse", ("a", 1, 0.5, ABSENT)),
        ("k: b\nn: 3\nv: 2", ("b", 3, ABSENT, 2)),
        ('{"k": "b", "n": 1, "u": null}', ("b", 1, ABSENT, ABSENT)),
    ],
)
def test_an_answer_gives_what_its_point_has(text, values):
    assert parse_parameters(text, SPACE).values == values
