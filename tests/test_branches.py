"""Spaces whose points may lack a parameter: what tells when, and points that are the same."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from llmopt import Categorical, Float, Int
from llmopt.prompt.reader import parse_parameters
from llmopt.space.branches import BranchedSpace, Condition, filled, find_conditions
from llmopt.space.values import ABSENT

DIMENSIONS = {"k": Categorical(["a", "b"]), "n": Int(1, 3), "u": Float(0, 1), "v": Int(1, 2)}
WHEN = {
    "u": Condition("k", frozenset("a"), frozenset("b")),
    "v": Condition("n", frozenset({2}), frozenset({1})),
}
SPACE = BranchedSpace(DIMENSIONS, WHEN)


def test_absent_is_one_object_whatever_is_done_to_it():
    assert pickle.loads(pickle.dumps(ABSENT)) is ABSENT
    assert copy.deepcopy((ABSENT,))[0] is ABSENT
    assert repr(ABSENT) == "–"
    assert pickle.loads(pickle.dumps(SPACE)) == SPACE


def test_what_a_point_cannot_have_makes_no_other_point_of_it():
    assert SPACE.conform(("b", 1, 0.5, 2)) == ("b", 1, ABSENT, ABSENT)
    assert SPACE.key(("b", 1, 0.5, 2)) == SPACE.key(("b", 1, ABSENT, ABSENT))
    assert SPACE.key(("a", 2, 0.5, 2)) != SPACE.key(("a", 2, 0.5, 1))
    assert SPACE.clip(("a", 7, 9.0, 0)) == ("a", 3, 1.0, 1)
    rng = np.random.default_rng(0)
    for _ in range(200):
        drawn = SPACE.sample(rng)
        assert (drawn[2] is ABSENT) == (drawn[0] == "b")
        assert (drawn[3] is ABSENT) == (drawn[1] == 1)
        assert SPACE.check(drawn) == SPACE.clip(drawn) == drawn
        assert SPACE.key(SPACE.decode(SPACE.encode(drawn)))[:2] == SPACE.key(drawn)[:2]
        assert ABSENT not in filled(SPACE, drawn, rng)


def test_points_are_counted_once():
    space = BranchedSpace({n: DIMENSIONS[n] for n in ("k", "n", "v")}, {"v": WHEN["v"]})
    assert space.cardinality == len(space.points()) == 2 * (1 + 2 * 2)
    fixed = BranchedSpace({n: DIMENSIONS[n] for n in ("k", "n", "v")}, {"v": WHEN["v"]}, {"n": 1})
    assert fixed.points() == [("a", 1, ABSENT), ("b", 1, ABSENT)]


@pytest.mark.parametrize(
    ("condition", "holds", "words"),
    [
        (WHEN["u"], {"a": True, "b": False, "c": None, ABSENT: False}, "only with k = a"),
        (WHEN["v"], {1: False, 2: True, 3: True, ABSENT: False}, "only with k = 2 or more"),
        (
            Condition("n", frozenset({4}), frozenset({1, ABSENT})),
            {1: False, 3: None, 4: True, 9: True},
            "only with k = 4 or more",
        ),
    ],
)
def test_a_condition_says_no_more_than_was_seen(condition, holds, words):
    assert {value: condition.holds(value) for value in holds} == holds
    assert condition.words(str).replace("n =", "k =") == words


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
    found = find_conditions(points, dimensions)
    on = {name: condition and condition.on for name, condition in found.items()}
    assert on == {
        **{"layers": "kind", "opt": "kind", "momentum": "opt", "w2": "layers", "odd": None}
    }
    order = list(found)
    assert order.index("opt") < order.index("momentum")  # what tells comes first
    assert found["w2"].least == 2


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


def test_a_constraint_on_what_a_point_lacks_is_kept():
    space = SPACE.constrained(["u + n <= 2"])
    assert space.admits(("b", 3, ABSENT, 1))
    assert not space.admits(("a", 3, 0.5, 1))
    rng = np.random.default_rng(0)
    assert all(space.admits(space.sample(rng)) for _ in range(100))
