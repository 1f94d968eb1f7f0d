"""Search spaces: form, validation, sampling, text and storage."""

import copy
import enum
import json
import math
import os
import pickle
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import any_spaces, examples, gymnasium_spaces, plain_spaces, seeds

from llmopt import LLMOptimizer, ScriptedClient
from llmopt.errors import LLMOptError, ParameterError, SpaceError
from llmopt.space import Categorical, Float, Int, Space

# Gymnasium's own: narrowed bounds, `contains` of its 0-d samples, draws of wide integers.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*Box (low|high)'s precision lowered"),
    pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array"),
    pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning:gymnasium"),
]
quick = examples(40)


def rng(seed=0):
    return np.random.default_rng(seed)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def mixed():
    return Space(
        {
            "lr": Float(1e-5, 0.1, log=True),
            "x": Float(-6, 6),
            "q": Float(0, 1, step=0.25),
            "n": Int(1, 8),
            "m": Int(0, 10, step=5),
            "opt": Categorical(["adam", "sgd", None]),
        }
    )


GOOD = {"lr": 0.01, "x": 0.5, "q": 0.25, "n": 3, "m": 5, "opt": "sgd"}


# Dimensions


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Float(2, 1), "swap"),
        (lambda: Int(2, 1), "swap"),
        (lambda: Float(0, math.inf), "finite"),
        (lambda: Float(math.nan, 1), "finite"),
        (lambda: Float(True, 2), "finite"),
        (lambda: Float("0", 1), "finite"),
        (lambda: Float(0, 10**400), "finite"),
        (lambda: Float(-1.7e308, 1.7e308), "closer together"),
        (lambda: Float(0, 1, log=True), "low > 0"),
        (lambda: Int(0, 4, log=True), "low > 0"),
        (lambda: Float(1, 2, log=True, step=0.5), "do not go together"),
        (lambda: Int(1, 9, log=True, step=2), "do not go together"),
        (lambda: Float(0, 1, step=0), "not positive"),
        (lambda: Float(0, 1, step=-0.1), "not positive"),
        (lambda: Float(0, 1, step=math.nan), "finite"),
        (lambda: Float(0, 1, step=1e-300), "too small"),
        (lambda: Int(0, 4, step=0), "not positive"),
        (lambda: Int(0, 1.5), "not an integer"),
        (lambda: Int(0, math.inf), "not an integer"),
        (lambda: Int(0, 10**400), "2\\*\\*64"),
        (lambda: Int(0, True), "not an integer"),
        (lambda: Categorical([]), "no choices"),
        (lambda: Categorical(["a", "b", "a"]), r"choices\[0\] and choices\[2\]"),
        (lambda: Categorical([math.nan, math.nan]), "the same"),
        (lambda: Categorical([[1], [2]]), "cannot be hashed"),
        (lambda: Categorical([(1, [2])]), "cannot be hashed"),
        (lambda: Categorical("abc"), "list or a tuple"),
        (lambda: Categorical({"a", "b"}), "order"),
        (lambda: Categorical(3), "list or a tuple"),
    ],
)
def test_bad_dimensions_are_refused(make, words):
    with pytest.raises(SpaceError, match=words):
        make()


def test_high_becomes_the_highest_value_on_the_steps():
    assert Float(0, 1, step=0.3).high == 0.9
    assert Int(0, 10, step=4).high == 8
    assert Float(0, 1, step=5).high == 0
    assert Float(0, 0.30000000000000004, step=0.1).high == 0.3
    assert Float(0, 1, step=1 / 3).high == pytest.approx(1)
    assert Int(0, 3) == Int(0, 3, step=1)


def test_choices_of_different_types_are_different():
    choices = Categorical([1, 1.0, True, "1", None, (1,), (True,)])
    assert len(choices.choices) == 7
    assert Categorical([1]) != Categorical([True])
    assert Categorical([1, 2]) == Categorical((1, 2))
    assert hash(Categorical([1, 2])) == hash(Categorical((1, 2)))
    assert Categorical([np.int64(3)]).choices == (3,)
    assert type(Categorical([np.int64(3)]).choices[0]) is int


def test_representations_can_be_read():
    assert repr(Float(1e-5, 0.1, log=True)) == "Float(1e-05, 0.1, log=True)"
    assert repr(Int(1, 9, step=2)) == "Int(1, 9, step=2)"
    assert repr(Space({"n": Int(1, 4)})) == "Space({'n': Int(1, 4)})"
    assert eval(repr(mixed())) == mixed()
    assert len(repr(Space.of(spaces.Box(0, 1, (100,))))) < 400


# Construction


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Space({}), "at least one"),
        (lambda: Space([Float(0, 1)]), "expected a dict"),
        (lambda: Space({"a": (0, 1)}), r"Float\(0, 1\)"),
        (lambda: Space({1: Float(0, 1)}), "not a string"),
        (lambda: Space({"": Float(0, 1)}), "rename"),
        (lambda: Space({"a\nb": Float(0, 1)}), "rename"),
        (lambda: Space({"a": spaces.Discrete(2)}), r"gymnasium\.spaces\.Dict"),
        (lambda: Space({"a": Float(0, 1)}, decimals=-1), "decimals"),
        (lambda: Space({"a": Float(0, 1)}, decimals=True), "decimals"),
        (lambda: Space({"a": Float(0, 1)}, decimals=1.5), "decimals"),
        (lambda: Space.of(3), "expected a Space"),
        (lambda: Space.of(None), "expected a Space"),
        (lambda: Space.from_gymnasium({"a": Float(0, 1)}), "gymnasium.spaces"),
        (lambda: Space.of(spaces.Text(5)), "Text space cannot be searched"),
        (lambda: Space.of(spaces.Dict({"a": spaces.Text(5)})), "`a`: a Text"),
        (lambda: Space.of(spaces.Tuple(())), "empty"),
        (lambda: Space.of(spaces.Box(0, 1, (0,))), "empty"),
        (
            lambda: Space.of(spaces.Dict({"a[0]": spaces.Discrete(2), "a": spaces.MultiBinary(1)})),
            "two dimensions are named `a\\[0\\]`",
        ),
    ],
)
def test_bad_spaces_are_refused(make, words):
    with pytest.raises(SpaceError, match=words):
        make()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_unbounded_box_names_its_bounds_and_the_remedy(dtype):
    box = spaces.Box(np.array([0.0, -np.inf]), np.array([1.0, 5.0]), dtype=dtype)
    with pytest.raises(SpaceError, match=r"`params\[1\]` in \[-inf, 5\.0\].*Box\(low=-1\.0"):
        Space.of(box)


def test_names_follow_the_structure():
    inner = spaces.Dict({"sub": spaces.Discrete(3), "arr": spaces.Box(0, 1, (2,))})
    space = Space.of(
        spaces.Dict({"k": inner, "t": spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1)])})
    )
    assert space.names == ("k.arr[0]", "k.arr[1]", "k.sub", "t[0]", "t[1][0]")
    assert Space.of(spaces.Box(0, 1, (1, 2))).names == ("params[0,0]", "params[0,1]")
    assert Space.of(spaces.Box(0, 1, ())).names == ("params",)
    assert Space.of(spaces.Discrete(2)).names == ("params",)
    assert Space.of(spaces.Tuple([spaces.Discrete(2)])).names == ("[0]",)


def test_of_keeps_a_space_and_tells_a_gymnasium_dict_from_a_dict():
    space = mixed()
    assert Space.of(space) is space
    assert Space.of({"a": Int(0, 1)}) == Space({"a": Int(0, 1)})
    assert Space.of(spaces.Dict({"a": spaces.Discrete(2)})) != Space({"a": Int(0, 1)})


def test_discrete_keeps_start_and_type():
    gym_space = spaces.Discrete(3, start=-1)
    space = Space.of(gym_space)
    assert space.dimensions == (Int(-1, 1),)
    assert type(space.unflatten((-1,))) is np.int64
    assert gym_space.contains(space.unflatten((1,)))


def test_integer_and_bool_boxes():
    for dtype in (np.uint8, np.int64, np.bool_):
        box = spaces.Box(0, 1, (3,), dtype)
        space = Space.of(box)
        assert space.dimensions == (Int(0, 1),) * 3
        params = space.unflatten((1, 0, 1))
        assert params.dtype == dtype
        assert box.contains(params)
        assert space.flatten(params) == (1, 0, 1)
        assert all(type(v) is int for v in space.flatten(params))
    with pytest.raises(ParameterError, match="outside"):
        Space.of(spaces.Box(0, 255, (1,), np.uint8)).flatten([256])


def test_the_widest_integers_stay_exact():
    info = np.iinfo(np.uint64)
    box = spaces.Box(np.array([0], np.uint64), np.array([info.max], np.uint64), dtype=np.uint64)
    space = Space.of(box)
    assert space.dimensions == (Int(0, 2**64 - 1),)
    for value in (0, 2**63 + 1, 2**64 - 1):
        params = space.unflatten((value,))
        assert params[0] == np.uint64(value)
        assert box.contains(params)
        assert space.flatten(params) == (value,)
    assert space.decode([1.0]) == (2**64 - 1,)
    assert space.clip((1e30,)) == (2**64 - 1,)


def test_cardinality():
    assert Space({"a": Int(0, 10, step=5), "b": Float(0, 1, step=0.25)}).cardinality == 15
    assert Space({"a": Float(2, 2), "c": Categorical("a b".split())}).cardinality == 2
    assert mixed().cardinality == math.inf
    assert Space.of(spaces.MultiBinary((2, 3))).cardinality == 64


# Validation


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lr": 4.2}, r"`lr`=4\.2 is outside \[1e-05, 0\.1\]"),
        ({"lr": "0.1"}, "`lr`='0.1' is of type str; expected a number"),
        ({"x": None}, "of type NoneType"),
        ({"x": math.nan}, "nan"),
        ({"x": math.inf}, "outside"),
        ({"x": True}, "of type bool"),
        ({"x": np.bool_(True)}, "bool"),
        ({"x": np.array([0.5])}, "ndarray"),
        ({"x": 1j}, "complex"),
        ({"x": 10**400}, "outside"),
        ({"n": 3.5}, "not an integer"),
        ({"n": True}, "of type bool"),
        ({"n": 9}, r"outside \[1, 8\]"),
        ({"n": math.nan}, "nan"),
        ({"m": 7}, "nearest valid value is 5"),
        ({"q": 0.3}, "nearest valid value is 0.25"),
        ({"opt": "adm"}, "did you mean 'adam'"),
        ({"opt": ["adam"]}, "not one of its choices"),
        ({"learning_rate": 1}, "unknown parameter 'learning_rate'"),
        ({"opts": 1}, "did you mean 'opt'"),
    ],
)
def test_bad_parameters_are_named(change, words):
    with pytest.raises(ParameterError, match=words):
        mixed().flatten({**GOOD, **change})


def test_missing_names_and_wrong_forms():
    with pytest.raises(ParameterError, match="missing 'm', 'opt'"):
        mixed().flatten({k: v for k, v in GOOD.items() if k not in ("m", "opt")})
    with pytest.raises(ParameterError, match="expected a dict"):
        mixed().flatten([1, 2])
    box = Space.of(spaces.Box(-1, 1, (2, 2)))
    for wrong in (np.zeros(4), 0.0, None, {"params": 1}, "ab", [[1], [1, 2]]):
        with pytest.raises(ParameterError, match=r"\(2, 2\)"):
            box.flatten(wrong)
    with pytest.raises(ParameterError, match=r"`params\[1,0\]`=2\.0 is outside"):
        box.flatten([[0, 0], [2.0, 0]])
    with pytest.raises(ParameterError, match="bool"):
        box.flatten(np.ones((2, 2), bool))
    with pytest.raises(ParameterError, match="of type str"):
        box.flatten([["a", 0], [0, 0]])
    pair = Space.of(spaces.Tuple([spaces.Box(0, 1, (2,)), spaces.Discrete(2)]))
    assert pair.flatten([[0.5, 1], 1]) == (0.5, 1.0, 1)
    for wrong in (3, (1,), np.array(1.0), ([0, 0], 1, 2)):
        with pytest.raises(ParameterError, match="tuple of 2"):
            pair.flatten(wrong)
    nested = Space.of(spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)})}))
    with pytest.raises(ParameterError, match="`a`: unknown parameter 'c'"):
        nested.flatten({"a": {"c": 1}})


def test_numbers_of_every_type_become_python_scalars():
    numpy_form = {
        "lr": np.float32(0.01),
        "x": np.array(0.5),
        "q": 1,
        "n": np.int8(3),
        "m": 5.0,
        "opt": np.str_("sgd"),
    }
    values = mixed().flatten(numpy_form)
    assert [type(v) for v in values] == [float, float, float, int, int, str]
    assert values[1:] == (0.5, 1.0, 3, 5, "sgd")
    assert values[0] == pytest.approx(0.01)


def test_rounding_errors_are_forgiven_and_removed():
    space = Space({"a": Float(0, 0.1), "s": Float(0, 1, step=0.1), "l": Float(1e-8, 1, log=True)})
    bound = float(np.float32(0.1))
    assert bound > 0.1
    assert space.flatten({"a": bound, "s": 0.1 + 0.2, "l": 1 + 1e-9}) == (0.1, 0.3, 1.0)
    assert space.flatten({"a": -1e-17, "s": np.float32(0.7), "l": 1e-8}) == (0.0, 0.7, 1e-8)
    with pytest.raises(ParameterError):
        space.flatten({"a": 0.1001, "s": 0.3, "l": 0.5})
    with pytest.raises(ParameterError, match="step"):
        space.flatten({"a": 0.1, "s": 0.301, "l": 0.5})
    with pytest.raises(ParameterError, match="outside"):  # below `low` of a log scale
        space.flatten({"a": 0.1, "s": 0.3, "l": 0.0})


def test_choices_are_found_by_type_then_by_value():
    space = Space({"c": Categorical([1, 1.0, True, "1"]), "d": Categorical([0.1, 2, math.nan])})
    for choice in (1, 1.0, True, "1"):
        found = space.flatten({"c": choice, "d": 2})[0]
        assert found == choice
        assert type(found) is type(choice)
    keys = {space.key((choice, 2)) for choice in (1, 1.0, True, "1")}
    assert len(keys) == 4
    assert space.flatten({"c": 1, "d": np.float32(0.1)})[1] == 0.1
    assert type(space.flatten({"c": 1, "d": 2.0})[1]) is int
    assert math.isnan(space.flatten({"c": 1, "d": float("nan")})[1])
    with pytest.raises(ParameterError):
        Space({"c": Categorical([1, 2])}).flatten({"c": True})


def test_parameters_are_copied_both_ways():
    space = Space.of(spaces.Box(-1, 1, (2,)))
    given_array = np.array([0.5, -0.5], dtype=np.float32)
    kept = space.validate(given_array)
    given_array[0] = 1
    assert kept[0] == 0.5
    values = (0.5, -0.5)
    first, second = space.unflatten(values), space.unflatten(values)
    first[0] = 1
    assert second[0] == 0.5
    assert not np.shares_memory(first, second)


@pytest.mark.parametrize(
    "method", ["check", "unflatten", "clip", "key", "encode", "from_json_values"]
)
def test_wrong_number_of_values(method):
    with pytest.raises(ParameterError, match="got 2 values; expected 6"):
        getattr(mixed(), method)((1, 2))


@pytest.mark.parametrize("unit", [[0.5], [math.nan] * 6, np.zeros((2, 3))])
def test_decode_refuses_what_is_not_a_point(unit):
    with pytest.raises(ParameterError, match="expected 6 numbers"):
        mixed().decode(unit)


def test_clip_moves_numbers_and_refuses_the_rest():
    assert mixed().clip((1, -math.inf, 0.4, 3.6, 8, "sgd")) == (0.1, -6.0, 0.5, 4, 10, "sgd")
    assert mixed().clip((0, 10**400, 9, -5, 2, None)) == (1e-5, 6.0, 1.0, 1, 0, None)
    for wrong in (math.nan, "1", None, True):
        with pytest.raises(ParameterError):
            mixed().clip((0.1, wrong, 0, 1, 0, None))
    with pytest.raises(ParameterError):
        mixed().clip((0.1, 0, 0, 1, 0, "rmsprop"))


# Decimals


@pytest.mark.parametrize(
    ("dimension", "decimals", "expected"),
    [
        (Float(-6, 6), None, 1),
        (Float(0, 1), None, 2),
        (Float(0, 1000), None, 0),
        (Float(0, 0.1), None, 3),
        (Float(0, float(np.float32(0.1))), None, 3),
        (Float(0, 1, step=0.25), None, 2),
        (Float(0, 10, step=2), None, 0),
        (Float(0.5, 10, step=2), None, 1),
        (Float(0, 1, step=0.25), 1, 2),
        (Float(-6, 6), 3, 3),
        (Float(0.31, 0.34), 1, 2),
        (Float(1e-5, 0.1, log=True), None, None),
        (Float(1e-5, 0.1, log=True), 1, None),
        (Float(-1e30, 1e30), None, None),
        (Float(0, 1e-9), None, None),
        (Int(0, 5), 1, None),
        (Categorical("a b".split()), 1, None),
    ],
)
def test_decimals(dimension, decimals, expected):
    assert Space({"x": dimension}, decimals=decimals).decimals == (expected,)


@pytest.mark.parametrize(
    ("dimension", "value", "text"),
    [
        (Float(-6, 6), 1.26, "1.3"),
        (Float(-6, 6), -0.04, "0.0"),
        (Float(-6, 6), 6.0, "6.0"),
        (Float(0, 1, step=0.25), 0.5, "0.50"),
        (Float(1e-5, 0.1, log=True), 0.0012345, "0.00123"),
        (Float(1e-5, 0.1, log=True), 1.2345e-5, "1.23e-05"),
        (Float(1, 1e6, log=True), 123456.0, "123000"),
        (Float(-1e30, 1e30), 1.23456e29, "1.23e+29"),
        (Int(0, 2**63), 2**63 - 1, str(2**63 - 1)),
        (Categorical(["adam", "b c"]), "b c", "b c"),
        (Categorical(["a,b"]), "a,b", "'a,b'"),
        (Categorical(["None", None]), "None", "'None'"),
        (Categorical(["None", None]), None, "None"),
        (Categorical(["1", 1]), "1", "'1'"),
        (Categorical([(1, "x")]), (1, "x"), "(1, 'x')"),
        (Categorical([Color.RED]), Color.RED, "<Color.RED: 1>"),
    ],
)
def test_format(dimension, value, text):
    assert Space({"x": dimension}).format(0, value) == text


@pytest.mark.parametrize("bounds", [(0, 5e-324), (-5e-324, 1e-310), (0, 8e307), (1, 1 + 2**-52)])
@pytest.mark.parametrize("decimals", [None, 0, 15])
def test_extreme_ranges_work(bounds, decimals):
    space = Space({"x": Float(*bounds)}, decimals=decimals)
    for unit in (0.0, 0.4, 1.0):
        value = space.decode([unit])
        assert bounds[0] <= value[0] <= bounds[1]
        read = space.clip([space.parse_value(0, space.format(0, value[0]))])
        assert space.clip([space.parse_value(0, space.format(0, read[0]))]) == read
    assert space.encode((bounds[1],)).tolist() == [1.0]


def test_equal_labels_are_told_apart():
    class Same:
        def __repr__(self):
            return "same"

    first, second = Same(), Same()
    space = Space({"c": Categorical([first, second, "same"])})
    labels = [space.format(0, c) for c in space.dimensions[0].choices]
    assert len(set(labels)) == 3
    assert [space.parse_value(0, t) for t in labels] == [first, second, "same"]


@pytest.mark.parametrize(
    ("dimension", "text", "value"),
    [
        (Float(0, 1), " 1e-3 ", 0.001),
        (Float(0, 1), "\N{MINUS SIGN}5", -5.0),
        (Float(0, 1), "+7", 7.0),
        (Int(0, 5), "3.0", 3),
        (Int(0, 5), "3.7", 3.7),
        (Int(0, 5), "-12", -12),
        (Int(0, 2**64), str(2**63 + 1), 2**63 + 1),
        (Categorical(["adam", None]), '"Adam"', "adam"),
        (Categorical(["adam", None]), "null", None),
        (Categorical(["adam", None]), "none", None),
        (Categorical([True, False]), "true", True),
        (Categorical([0.5, 2]), "0.50", 0.5),
        (Categorical(["1", 1]), "1", 1),
        (Categorical(["1", 1]), "'1'", "1"),
        (Categorical(["a", "A"]), "A", "A"),
        (Categorical([(1, "x")]), '(1,"x")', (1, "x")),
    ],
)
def test_parse_value(dimension, text, value):
    got = Space({"x": dimension}).parse_value(0, text)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("dimension", "text"),
    [
        (Float(0, 1), "nan"),
        (Float(0, 1), "inf"),
        (Float(0, 1), "1e999"),
        (Float(0, 1), "9" * 5000),
        (Float(0, 1), "1_0"),
        (Float(0, 1), ""),
        (Float(0, 1), "high"),
        (Int(0, 1), "nan"),
        (Int(0, 1), "one"),
        (Categorical(["a", "A"]), " 'b' "),
        (Categorical(["ab", "AB"]), "Ab"),
        (Categorical([True, 2]), "1"),
    ],
)
def test_unreadable_text(dimension, text):
    with pytest.raises(ParameterError, match="`x`: cannot read"):
        Space({"x": dimension}).parse_value(0, text)


# Sampling and encoding


def test_sampling_is_uniform():
    space = Space(
        {
            "x": Float(-2, 6),
            "lr": Float(1e-4, 1, log=True),
            "q": Float(0, 1, step=0.25),
            "n": Int(0, 3),
            "k": Int(1, 100, log=True),
            "c": Categorical(["a", "b"]),
        }
    )
    generator = rng(1)
    x, lr, q, n, k, c = zip(*(space.sample(generator) for _ in range(4000)), strict=True)
    for column in ((np.array(x) + 2) / 8, (np.log10(lr) + 4) / 4):
        counts, _ = np.histogram(column, bins=8, range=(0, 1))
        assert counts.min() > 420
        assert counts.max() < 580
    for column, count in ((q, 5), (n, 4), (c, 2)):
        _, counts = np.unique(column, return_counts=True)
        assert len(counts) == count
        assert abs(counts * count / 4000 - 1).max() < 0.12
    # log-uniform: half of the draws at or below the geometric middle of [0.5, 100.5]
    assert np.mean(np.array(k) <= 7) == pytest.approx(np.log(15) / np.log(201), abs=0.03)
    assert {1, 2, 3, 100} <= set(k)


def test_sampling_depends_on_the_generator_alone():
    assert mixed().sample(rng(3)) == mixed().sample(rng(3))
    assert mixed().sample(rng(3)) != mixed().sample(rng(4))
    first, second = rng(5), rng(5)
    mixed().sample(first)
    Space({f"x{i}": Int(0, 1) for i in range(6)}).sample(second)
    assert first.random() == second.random()


def test_encode_scales_by_bounds():
    space = mixed()
    assert space.encode((1e-5, -6.0, 0.0, 1, 0, "adam")).tolist() == [0.0] * 6
    assert space.encode((0.1, 6.0, 1.0, 8, 10, None)).tolist() == pytest.approx([1.0] * 6)
    middle = space.encode((1e-3, 0.0, 0.5, 1, 5, "sgd"))
    assert middle.tolist() == pytest.approx([0.5, 0.5, 0.5, 0, 0.5, 0.5])
    assert space.decode([2] * 6) == (0.1, 6.0, 1.0, 8, 10, None)
    assert space.decode([-1] * 6) == (1e-5, -6.0, 0.0, 1, 0, "adam")
    fixed = Space({"a": Float(3, 3), "b": Categorical(["only"])})
    assert fixed.encode((3.0, "only")).tolist() == [0, 0]
    assert fixed.decode([0.7, 0.7]) == (3.0, "only")


# Identity


def test_key_tells_points_apart():
    space = mixed()
    point = space.flatten(GOOD)
    assert space.key(point) == space.key(tuple(point))
    assert hash(space.key(point)) == hash(space.key(list(point)))
    assert space.key(point) != space.key((0.02, *point[1:]))
    with pytest.raises(ParameterError):
        space.key((*point[:-1], "unknown"))
    with pytest.raises(ParameterError):
        space.key((*point[:-1], ["unhashable"]))


def test_copies_know_the_caller_choices():
    class Thing:
        pass

    thing = Thing()
    space = Space({"c": Categorical([thing, None])})
    assert copy.deepcopy(space).flatten({"c": thing})[0] is thing
    assert copy.copy(space) == space


# Storage


def test_choices_json_cannot_hold_are_only_identified():
    space = Space({"c": Categorical([Color.RED, frozenset("abc"), object(), len])})
    data = json.loads(json.dumps(space.to_dict()))
    assert " at 0x" not in json.dumps(data)
    with pytest.raises(SpaceError, match=r"make the space in code"):
        Space.from_dict(data)
    values = (space.dimensions[0].choices[2],)
    stored = json.loads(json.dumps(space.to_json_values(values)))
    assert stored == [2]
    assert space.from_json_values(stored)[0] is values[0]


def test_to_dict_is_the_same_in_every_process():
    code = (
        "import json; from llmopt.space import *; "
        "print(json.dumps(Space({'c': Categorical([frozenset('abcdef'), object(), 1])}).to_dict()))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.pop("layout"),
        lambda d: d["dimensions"].pop(),
        lambda d: d["dimensions"][0].update(type="complex"),
        lambda d: d["layout"].update(kind="list"),
        lambda d: d.update(dimensions=None),
    ],
)
def test_damaged_data_is_refused(damage):
    data = mixed().to_dict()
    damage(data)
    with pytest.raises(SpaceError):
        Space.from_dict(data)


@pytest.mark.parametrize("stored", [-1, 3, True, "sgd", 1.0, None])
def test_stored_choices_are_indices(stored):
    with pytest.raises(ParameterError, match="index from 0 to 2"):
        mixed().from_json_values([0.01, 0.5, 0.25, 3, 5, stored])


def test_import_pulls_in_numpy_alone():
    code = (
        "import sys, types; package = types.ModuleType('llmopt'); "
        "import importlib.util as u; "
        "package.__path__ = list(u.find_spec('llmopt').submodule_search_locations); "
        "sys.modules['llmopt'] = package; import llmopt.space as s; "
        "s.Space.of({'a': s.Float(0, 1)}); "
        "assert 'gymnasium' not in sys.modules, 'gymnasium was imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# Properties


@quick
@given(gymnasium_spaces, seeds)
def test_samples_belong_to_the_gymnasium_space(gym_space, seed):
    space = Space.of(gym_space)
    generator = rng(seed)
    values = space.sample(generator)
    for point in (values, space.decode(space.encode(values))):
        params = space.unflatten(point)
        assert gym_space.contains(params)
        assert space.key(space.flatten(params)) == space.key(point)


@quick
@given(gymnasium_spaces, seeds)
def test_gymnasium_samples_are_valid(gym_space, seed):
    gym_space.seed(seed)
    params = gym_space.sample()
    # Gymnasium draws integers as floats: beyond 2**52 it misses its own bounds.
    assume(gym_space.contains(params))
    space = Space.of(gym_space)
    assert gym_space.contains(space.validate(params))
    again = space.flatten(space.validate(params))
    assert again == space.flatten(params)


@quick
@given(any_spaces, seeds)
def test_flat_points_survive_every_round_trip(space, seed):
    values = space.sample(rng(seed))
    assert space.check(values) == values
    assert space.key(space.flatten(space.unflatten(values))) == space.key(values)
    stored = json.loads(json.dumps(space.to_json_values(values)))
    assert space.key(space.from_json_values(stored)) == space.key(values)
    hash(space.key(values))


@quick
@given(any_spaces, seeds)
def test_decode_inverts_encode(space, seed):
    values = space.sample(rng(seed))
    unit = space.encode(values)
    assert unit.shape == (len(space),)
    assert unit.dtype == np.float64
    assert ((unit >= 0) & (unit <= 1)).all()
    decoded = space.decode(unit)
    assert space.check(decoded) == decoded
    again = space.encode(decoded)
    np.testing.assert_allclose(again, unit, atol=1e-6)
    for dimension, before, after in zip(space.dimensions, values, decoded, strict=True):
        if isinstance(dimension, Categorical) or (
            isinstance(dimension, Int) and dimension.high - dimension.low < 2**40
        ):
            assert after is before or after == before or after != after


numbers = st.one_of(st.floats(allow_nan=False), st.integers())


@quick
@given(any_spaces, seeds, st.data())
def test_clip_and_round_are_valid_and_idempotent(space, seed, data):
    values = [
        v if isinstance(d, Categorical) else data.draw(numbers)
        for d, v in zip(space.dimensions, space.sample(rng(seed)), strict=True)
    ]
    moved = space.clip(values)
    assert space.check(moved) == moved
    assert space.clip(moved) == moved
    for d, v in zip(space.dimensions, moved, strict=True):
        if not isinstance(d, Categorical):
            assert d.low <= v <= d.high
            assert type(v) is (float if isinstance(d, Float) else int)


@quick
@given(any_spaces, seeds)
def test_what_is_shown_is_read_back(space, seed):
    def read_back(values):
        texts = [space.format(i, v) for i, v in enumerate(values)]
        assert "\n" not in "".join(texts)
        return space.clip([space.parse_value(i, t) for i, t in enumerate(texts)])

    values = space.sample(rng(seed))
    read = read_back(values)
    assert space.key(read_back(read)) == space.key(read)
    for d, before, after in zip(space.dimensions, values, read, strict=True):
        if isinstance(d, Float) and not d.log and space._asked_decimals is None:
            assert abs(after - before) <= (d.high - d.low) / 50
        elif not isinstance(d, Float):
            assert d.key(after) == d.key(before)


@quick
@given(any_spaces)
def test_spaces_survive_json_pickle_and_copy(space):
    for twin in (
        Space.from_dict(json.loads(json.dumps(space.to_dict()))),
        pickle.loads(pickle.dumps(space)),
        copy.deepcopy(space),
    ):
        assert twin == space
        assert hash(twin) == hash(space)
        assert twin.to_dict() == space.to_dict()
        first, second = twin.sample(rng(1)), space.sample(rng(1))
        assert twin.key(first) == space.key(second)
        assert space.decimals == twin.decimals


@quick
@given(plain_spaces, st.text(max_size=30))
def test_any_text_is_read_or_refused(space, text):
    for i, dimension in enumerate(space.dimensions):
        try:
            value = space.parse_value(i, text)
        except ParameterError:
            continue
        if isinstance(dimension, Categorical):
            assert any(value is c for c in dimension.choices)
        else:
            assert math.isfinite(value)


def test_numbers_on_an_end_of_their_range_are_named():
    space = Space(
        {
            "rate": Float(1e-4, 1e2, log=True),
            "layers": Int(1, 8),
            "few": Int(0, 3),
            "kind": Categorical(list("abcdefgh")),
            "fixed": Float(2, 2),
        }
    )
    assert space.on_bounds((1.0, 4, 0, "a", 2.0)) == ()
    assert space.on_bounds((1e2, 1, 3, "h", 2.0)) == (
        "rate = 100, the highest value allowed",
        "layers = 1, the lowest value allowed",
    )
    wide = Space({f"x{i}": Float(0, 1) for i in range(9)})
    assert wide.on_bounds((0.0,) * 9)[-1] == "and 5 more"


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (lambda: Space({"x": Float(-5, 5)}).flatten({"x": 9}), r"outside .* nearest .* 5\.0"),
        (lambda: Space({"n": Int(1, 4)}).flatten({"n": 2.5}), "not an integer; the nearest"),
        (lambda: Space({"x": (0, 1)}), r"write Float\(0, 1\), or Int\(0, 1\)"),
        (lambda: Space({"x": ["a", "b"]}), r"write Categorical\(\['a', 'b'\]\)"),
        (lambda: Categorical("a", "b"), r"Categorical\(\['a', 'b'\]\)"),
    ],
)
def test_refusals_say_what_to_write(make, remedy):
    with pytest.raises(LLMOptError, match=remedy):
        make()


@pytest.mark.parametrize("kind", [Float, Int])
@pytest.mark.parametrize("log", ["no", "yes", None, 2])
def test_a_scale_is_true_or_false(kind, log):
    with pytest.raises(SpaceError, match="expected True or False"):
        kind(1, 10, log=log)


@pytest.mark.parametrize(
    ("make", "high"),
    [(lambda: Float(0, 1, step=0.3), 0.9), (lambda: Float(0, 1, step=3), 0.0),
     (lambda: Int(1, 10, step=4), 9)],
)  # fmt: skip
def test_a_bound_that_no_step_reaches_is_said(make, high):
    with pytest.warns(UserWarning, match="is rounded down to"):
        assert make().high == high


def test_a_bound_that_steps_reach_is_not(recwarn):
    for dimension in (Float(0, 1, step=0.1), Int(1, 10, step=3), Float(1e-6, 0.3, step=1e-7)):
        assert Space({"x": dimension}) == Space.from_dict(Space({"x": dimension}).to_dict())
    assert not recwarn.list


@pytest.mark.defect(21)
@pytest.mark.parametrize("name", ["gr\u00f6\u00dfe", "gro\u0308\u00dfe"])
@pytest.mark.parametrize("form", [unicodedata.normalize("NFC", "ö"), "o\u0308"])
def test_names_are_compared_in_their_composed_form(name, form):
    space = Space({name: Float(0, 1), "k": Categorical(["b\u00e4r", "no"])})
    asked = f"gr{form}ße"
    assert space.flatten({asked: 0.5, "k": "no"}) == (0.5, "no")
    assert list(space.unflatten((0.5, "no"))) == [name, "k"]
    answers = [f"{asked}: 0.25\nk: ba\u0308r", f'{{"{asked}": 0.25, "k": "b\u00e4r"}}']
    for k, answer in enumerate(answers):
        client = ScriptedClient([answer])
        optimizer = LLMOptimizer(space, client, ["words", "props"][k], warmup=0, compute=False)
        assert optimizer.ask() == {name: 0.25, "k": "b\u00e4r"}


@pytest.mark.defect(35)
@pytest.mark.parametrize(
    ("choices", "value", "words"),
    [
        ([1, 2], "1", "`x`='1' is a str; expected the choice 1, an int: write it without quotes"),
        ([None, "a"], "None", "expected the choice None, a NoneType: write it without quotes"),
        ([1, 2], 3, "`x`=3 is not one of its choices; Valid: '1', '2'"),
    ],
)
def test_the_text_of_a_choice_is_no_choice(choices, value, words):
    with pytest.raises(ParameterError) as error:
        Space({"x": Categorical(choices)}).flatten({"x": value})
    assert words in str(error.value)
