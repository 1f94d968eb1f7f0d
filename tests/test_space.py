"""Search spaces: what holds for every space and point, and a table of what is refused."""

import copy
import enum
import json
import math
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import any_spaces, conditional_spaces, examples, gymnasium_spaces, seeds, units

from llmopt import LLMOptimizer, ScriptedClient
from llmopt.errors import ParameterError, SpaceError
from llmopt.space import Categorical, Float, Int, Space
from llmopt.space.values import ABSENT
from llmopt.views import on_bounds

# Gymnasium's own: narrowed bounds, `contains` of its 0-d samples, draws of wide integers.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*Box (low|high)'s precision lowered"),
    pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array"),
    pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning:gymnasium"),
]
quick = examples(40)


class Color(enum.Enum):
    RED = 1


def mixed():
    return Space(
        {
            "lr": Float(1e-5, 0.1, log=True),
            "x": Float(-6, 6),
            "q": Float(0, 1, step=0.25),
            "n": Int(1, 8),
            "m": Int(1, 5, step=2),
            "opt": Categorical(["sgd", "adam", "adamw"]),
        }
    )


POINT = {"lr": 0.01, "x": 0.5, "q": 0.5, "n": 2, "m": 3, "opt": "adam"}

# Every space and point -----------------------------------------------------------------


@quick
@given(st.one_of(any_spaces, conditional_spaces()), seeds)
def test_samples_survive_every_round_trip(space, seed):
    rng = np.random.default_rng(seed)
    for _ in range(3):
        values = space.sample(rng)
        assert space.check(values) == space.clip(values) == space.conform(values) == values
        again = space.flatten(space.unflatten(values))
        assert space.key(again) == space.key(values)
        assert list(map(repr, again)) == list(map(repr, values))  # types, too
        stored = json.loads(json.dumps(space.to_json_values(values)))
        assert space.key(space.from_json_values(stored)) == space.key(values)
        unit = space.encode(values)
        assert ((unit >= 0) & (unit <= 1)).all()
        decoded = space.decode(unit)
        assert np.allclose(space.encode(decoded), unit, atol=0.02) or space.conditional
        assert not space.broken(values)
        present = {i: v for i, v in enumerate(values) if v is not ABSENT}
        assert not space.missing(present)
        for i, value in present.items():
            text = space.format(i, value)
            read = space.dimensions[i].clip(space.dimensions[i].parse(text))
            assert space.format(i, read) == text


@quick
@given(st.one_of(any_spaces, conditional_spaces()))
def test_spaces_survive_json_pickle_and_copy(space):
    stored = json.loads(json.dumps(space.to_dict()))
    again = Space.from_dict(stored)
    assert again.to_dict() == space.to_dict()
    assert again == space == pickle.loads(pickle.dumps(space))
    assert hash(again) == hash(space)
    assert copy.deepcopy(space) is space is Space.of(space)


@quick
@given(st.data())
def test_a_number_is_read_with_exactly_its_unit(data):
    unit, other = data.draw(st.tuples(*[units.filter(bool)] * 2).filter(lambda u: u[0] != u[1]))
    number = data.draw(st.one_of(st.floats(-1e9, 1e9), st.integers(-(10**9), 10**9)))
    dimension = (Int if isinstance(number, int) else Float)(-(10**9), 10**9, unit=unit)
    for text in (f"{number} {unit}", f"{number}{unit}", f"{number}\u202f{unit}", str(number)):
        for read in (dimension.parse, dimension.check):
            value = read(text)
            assert (value, type(value)) == (number, type(number))
    for text in (f"{number} {other}", f"{number} {unit.swapcase()}.", f"{number}{unit} {unit}"):
        for read in (dimension.parse, dimension.check):
            with pytest.raises(ParameterError, match=re.escape(f"] {unit}.")) as caught:
                read(text)
            assert repr(text)[1:-1] in str(caught.value)


def test_a_number_is_read_with_another_spelling_of_its_unit_and_none_is_converted():
    right = {"h": "8 hours", "min": "8 minutes", "s": "8 sec", "mol%": "8 mol %", "µL": "8 μL"}
    right |= {"mW/cm2": "8 mW/cm²", "mW/cm²": "8×10⁰ mW / cm2", "h-1": "8 h⁻¹"}
    for unit, text in {**right, "hour": "8h", "equiv.": "8 eq", "mL": "8 ml"}.items():
        assert Float(0, 9, unit=unit).parse(text) == 8
    wrong = {"h": "8 min", "min": "8 m", "s": "8 ms", "mol%": "8 %", "C": "8 °C", "m2": "8 m³"}
    for unit, text in wrong.items():
        with pytest.raises(ParameterError, match=f"cannot read '{text}'; .* {unit}\\."):
            Float(0, 9, unit=unit).parse(text)


@pytest.mark.parametrize(
    "unit", [None, 3, " h", "h ", "a\nb", "x" * 41, "0", "e3", "e 3", "^2", "x10^3"]
)
def test_a_unit_that_changes_a_number_is_refused(unit):
    with pytest.raises(SpaceError, match="unit="):
        Float(0, 1, unit=unit)


@quick
@given(gymnasium_spaces, seeds)
def test_points_have_the_form_of_the_gymnasium_space(gym_space, seed):
    space = Space.of(gym_space)
    rng = np.random.default_rng(seed)
    assert gym_space.contains(space.unflatten(space.sample(rng)))
    gym_space.seed(seed % 2**31)
    theirs = gym_space.sample()
    assume(gym_space.contains(theirs))  # it rounds integers from 2**52 on, beyond its bounds
    assert gym_space.contains(space.validate(theirs))


@quick
@given(any_spaces, st.text(max_size=30))
def test_any_text_is_read_or_refused(space, text):
    for i, dimension in enumerate(space.dimensions):
        try:
            value = space.dimensions[i].parse(text)
        except ParameterError:
            continue
        assert dimension.check(dimension.clip(value)) is not None or None in dimension.choices


@quick
@given(any_spaces, seeds, st.data())
def test_clip_gives_the_nearest_valid_number(space, seed, data):
    rng = np.random.default_rng(seed)
    for dimension in space.dimensions:
        if isinstance(dimension, Categorical):
            continue
        inside = st.integers if isinstance(dimension, Int) else st.floats
        number = data.draw(st.floats(-1e15, 1e15) | inside(dimension.low, dimension.high))
        nearest = dimension.clip(number)
        assert dimension.check(nearest) == nearest
        other = dimension.draw(rng.random())
        room = 1e-3 * max(abs(nearest - number), abs(dimension.high), abs(dimension.low))
        assert abs(nearest - number) <= abs(other - number) + room


def test_sampling_is_uniform_and_uses_one_number_a_dimension():
    space, rng = mixed(), np.random.default_rng(0)
    points = [space.sample(rng) for _ in range(4000)]
    columns = dict(zip(space.names, zip(*points, strict=True), strict=True))
    assert np.mean(np.log(columns["lr"])) == pytest.approx(np.log(1e-3), abs=0.2)
    assert np.mean(columns["x"]) == pytest.approx(0, abs=0.2)
    for name, count in {"q": 5, "n": 8, "m": 3, "opt": 3}.items():
        values, counts = np.unique(columns[name], return_counts=True)
        assert len(values) == count
        assert counts.min() > 0.85 * 4000 / count
    log = Space({"n": Int(1, 3, log=True)})
    shares = np.bincount([log.sample(rng)[0] for _ in range(4000)]) / 4000
    expected = np.log([1.5 / 0.5, 2.5 / 1.5, 3.5 / 2.5]) / np.log(7)
    assert shares[1:] == pytest.approx(expected, abs=0.03)
    used, fresh = np.random.default_rng(1), np.random.default_rng(1)
    space.sample(used)
    fresh.random(len(space))
    assert used.random() == fresh.random()


def test_the_parts_of_a_space():
    space = mixed()
    assert space.names == tuple(POINT)
    assert space.flatten(POINT) == tuple(POINT.values())
    assert space.named(space.flatten(POINT)) == space.unflatten(space.flatten(POINT)) == POINT
    assert space.part([1, 5]) == Space({"x": Float(-6, 6), "opt": space.dimensions[5]})
    assert space.cardinality == math.inf
    assert Space({n: d for n, d in zip("abc", space.dimensions[3:], strict=True)}).cardinality == 72
    assert space.encode((0.001, 0.0, 0.25, 8, 1, "adamw")) == pytest.approx(
        [0.5, 0.5, 0.25, 1, 0, 1]
    )
    assert space.decode([0.5, 0.5, 0.45, 1, 0.2, 2]) == pytest.approx(
        (0.001, 0.0, 0.5, 8, 1, "adamw")
    )
    assert space.steps((0.01, 0.0, 0.5, 8, 3, "sgd")) == pytest.approx([0, 0, 0.25, 1 / 7, 0.5, 0])
    ends = on_bounds(space, (1e-5, 6.0, 1.0, 8, 1, "sgd"))
    assert ends[0] == "lr = 1e-05, the lowest value allowed"
    assert [end.split()[0] for end in ends] == ["lr", "x", "q", "n"]
    parts = spaces.Dict({"b": spaces.Box(-1, 1, (2,)), "a": spaces.Discrete(3)})
    assert Space.of(parts).names == ("a", "b[0]", "b[1]")
    assert Space.of(spaces.Discrete(3, start=-1)).flatten(np.int64(1)) == (1,)
    assert Space.of(spaces.MultiBinary(2)).flatten([True, False]) == (1, 0)


def test_choices_of_different_types_are_different():
    choices = [1, 1.0, True, "1", None, (1, "a"), math.nan, Color.RED]
    space = Space({"c": Categorical(choices)})
    assert [space.key((c,)) for c in choices] == [(i,) for i in range(len(choices))]
    assert len(set(space.dimensions[0].labels)) == len(choices)
    assert Categorical([object(), object()]).labels == ("<object object>", "<object object>#2")
    assert Space({"c": Categorical([1, "a"])}).flatten({"c": np.float32(1)}) == (1,)
    assert Space({"c": Categorical([0.1, "a"])}).flatten({"c": np.float32(0.1)}) == (0.1,)
    with pytest.raises(ParameterError):
        Space({"c": Categorical([1, "a"])}).flatten({"c": True})
    with pytest.raises(ParameterError):
        Space({"c": Categorical([0.1, "a"])}).flatten({"c": np.float32(0.2)})


def test_rounding_errors_of_float32_are_removed():
    space = Space({"x": Float(0, 0.1), "q": Float(0, 1, step=0.1), "l": Float(1e-9, 1, log=True)})
    one = np.float32(0.1), np.float32(0.3), np.float32(1e-9)
    assert space.check(one) == (0.1, 0.3, 1e-9)
    assert space.check((0.05, 0, 1)) == (0.05, 0.0, 1.0)
    for wrong in [(0.1001, 0, 1), (0, 0.305, 1), (0, 0, 0)]:
        with pytest.raises(ParameterError, match="nearest valid value is"):
            space.check(wrong)
    narrow = Space.of(spaces.Box(-1, 1, (1,), np.float32))
    assert repr(narrow.clip((-1e-60,))) == "(0.0,)"  # no negative zero
    wide = Space({"n": Int(-(2**63), 2**63)})
    assert wide.check((2**63 - 1,)) == wide.clip((2**63 - 1,)) == (2**63 - 1,)


# What is shown -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dimension", "value", "text"),
    [
        (Float(-6, 6), -0.04, "0.0"),
        (Float(0, 1), 0.125, "0.12"),
        (Float(1e-5, 0.1, log=True), 0.00123456, "0.00123"),
        (Float(0, 1, step=0.25), 0.5, "0.50"),
        (Float(0, 2e7), 12345678.0, "1.23e+07"),
        (Float(1, 5e6, log=True), 1234567.0, "1230000"),
        (Int(1, 10**6), 1000, "1000"),
        (Categorical(["a b", "None", None, 1.5]), "None", "'None'"),
    ],
)
def test_numbers_have_the_digits_that_tell_them_apart(dimension, value, text):
    space = Space({"x": dimension})
    assert space.format(0, value) == text
    if isinstance(dimension, Float):
        finer = Space({"x": dimension}, decimals=5)
        assert finer.decimals == (None if dimension.log else 5,)


@pytest.mark.parametrize(
    ("dimension", "text", "value"),
    [
        (Float(0, 1), " 1e-3 ", 0.001),
        (Float(0, 1), "\N{MINUS SIGN}0.5", -0.5),
        (Int(0, 9), "3.0", 3),
        (Int(0, 9), "12345678901234567891", 12345678901234567891),
        (Categorical(["ReLU", "tanh"]), "'relu'", "ReLU"),
        (Categorical([None, "a"]), "null", None),
        (Categorical([1, 2.5]), "1.0", 1),
    ],
)
def test_text_is_read(dimension, text, value):
    read = Space({"x": dimension}).dimensions[0].parse(text)
    assert (read, type(read)) == (value, type(value))


# What is refused -----------------------------------------------------------------------

BOX = spaces.Box(np.float32([0, -np.inf]), np.float32([1, 5]))
REFUSED = [
    (lambda: Float(0, 1, log=True), "log=True needs low > 0"),
    (lambda: Float(0, math.inf), "high=inf is not a finite number"),
    (lambda: Float(0, 1, step=0), "step=0.0: give a step above 0"),
    (lambda: Float(1, 2, step=0.1, log=True), "do not go together"),
    (lambda: Float(-1e308, 1e308), "too large for a float"),
    (lambda: Float(0, 1, step=1e-13), "too small to tell its values apart"),
    (lambda: Float(0, 1, log="no"), "expected True or False"),
    (lambda: Int(0, 1.5), "high=1.5 is not an integer of at most 2**64; give one, or use Float"),
    (lambda: Int(0, 10**400), "is not an integer of at most 2**64"),
    (lambda: Categorical([]), "give at least one"),
    (lambda: Categorical("abc"), "give them as a list or a tuple"),
    (lambda: Categorical({"a", "b"}), "give them as a list or a tuple"),
    (lambda: Categorical("a", "b"), "give the choices as one list: Categorical(['a', 'b'])"),
    (lambda: Categorical([1, 1]), "choices[0] and choices[1] are the same"),
    (lambda: Categorical([[1]]), "cannot be hashed"),
    (lambda: Space([Float(0, 1)]), "expected a dict such as"),
    (lambda: Space({"x": (0, 1)}), "for a range write Float(0, 1), or Int(0, 1)"),
    (lambda: Space({"x": ["a", "b"]}), "for choices write Categorical(['a', 'b'])"),
    (lambda: Space({"x": BOX}), "put all of them in a gymnasium.spaces.Dict"),
    (lambda: Space({1: Float(0, 1)}), "the name 1 is not a string; use str(1)"),
    (lambda: Space({" x": Float(0, 1)}), "rename it"),
    (lambda: Space({"x": Float(0, 1)}, decimals=16), "expected an integer from 0 to 15"),
    (lambda: Space.of(BOX), "no finite bounds for `params[1]` in [-inf, 5.0]"),
    (lambda: Space.of(spaces.Text(3)), "cannot be searched; use Box, Discrete"),
    (lambda: Space.of(spaces.Tuple([BOX])), "`params`: a Tuple space cannot be"),
    (lambda: Space.from_dict({}), "the stored space is damaged"),
    (lambda: Space.from_dict({**mixed().to_dict(), "form": {"kind": "?"}}), "is damaged"),
    (lambda: mixed().flatten({**POINT, "x": math.nan}), "`x`=nan; expected a number"),
    (lambda: mixed().flatten({**POINT, "x": 10**400}), "is outside [-6.0, 6.0]"),
    (lambda: mixed().flatten({**POINT, "n": True}), "of type bool; expected an integer"),
    (
        lambda: mixed().flatten({**POINT, "n": 3.5}),
        "is not an integer; the nearest valid",
    ),
    (lambda: mixed().flatten({**POINT, "m": 2}), "not a whole number of steps of 2 above 1"),
    (lambda: mixed().flatten({**POINT, "q": 0.3}), "the nearest valid value is 0.25"),
    (lambda: mixed().flatten({**POINT, "opt": "adm"}), "did you mean 'adam'?"),
    (lambda: mixed().check((1,)), "got 1 values; expected 6, one for each of lr"),
    (lambda: mixed().decode([math.nan] * 6), "expected 6 numbers in [0, 1]"),
    (lambda: mixed().dimensions[0].parse("fast"), "`lr`: cannot read 'fast'; expected a number in"),
    (lambda: mixed().from_json_values([0.1, 0, 0, 1, 1, 9]), "expected an index from 0 to 2"),
    (lambda: Space.of(spaces.Box(0, 1, (2,))).flatten([1]), "has shape (1,); expected an array of"),
    (lambda: Space.of(spaces.Box(0, 1, (1,))).flatten([True]), "is an array of bool"),
]


@pytest.mark.parametrize(("make", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_refusals_say_what_to_write(make, words):
    with pytest.raises((SpaceError, ParameterError)) as error:
        make()
    assert words in str(error.value)


def test_a_bound_that_no_step_reaches_is_said():
    with pytest.warns(UserWarning, match=r"rounded down to 0\.9"):
        assert Float(0, 1, step=0.3).high == 0.9
    with pytest.warns(UserWarning, match="rounded down to 8"):
        assert Int(0, 10, step=4).high == 8


def test_import_pulls_in_numpy_alone():
    code = (
        "import sys, llmopt.space; "
        "print([m for m in ('gymnasium', 'optuna', 'ConfigSpace', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.defect(21)
@pytest.mark.parametrize("name", ["gr\u00f6\u00dfe", "gro\u0308\u00dfe"])
@pytest.mark.parametrize("asked", ["gr\u00f6\u00dfe", "gro\u0308\u00dfe"])
def test_names_are_compared_in_their_composed_form(name, asked):
    space = Space({name: Float(0, 1), "k": Categorical(["b\u00e4r", "no"])})
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
        ([None, "a"], "None", "expected the choice None, a NoneType: write it without quotes"),
        ([1, 2], 3, "`x`=3 is not one of its choices; Valid: '1', '2'"),
        (["none", "base"], "bas", "choices; did you mean 'base'? Valid: 'base', 'none'"),
    ],
)
def test_the_text_of_a_choice_is_no_choice(choices, value, words):
    with pytest.raises(ParameterError) as error:
        Space({"x": Categorical(choices)}).flatten({"x": value})
    assert words in str(error.value)


SMILES = {"PPh3": "P(C1=CC=CC=C1)(C2=CC=CC=C2)C3=CC=CC=C3", "PMe3": "CP(C)C"}


class TestNamesOfChoices:
    space = Space({"ligand": Categorical(SMILES), "T": Int(30, 90)})

    def test_points_hold_values_and_are_read_from_values_or_names(self):
        point = {"ligand": "CP(C)C", "T": 60}
        assert self.space.validate({"ligand": "PMe3", "T": 60}) == point
        assert self.space.validate(point) == point
        assert self.space.format(0, "CP(C)C") == "PMe3"
        assert (
            self.space.dimensions[0].parse("pme3")
            == self.space.dimensions[0].parse("CP(C)C")
            == "CP(C)C"
        )
        assert Space({"n": Categorical({"few": 1, "many": 9})}).flatten({"n": "many"}) == (9,)

    def test_storage_keeps_them(self):
        assert Space.from_dict(json.loads(json.dumps(self.space.to_dict()))) == self.space
        assert self.space != Space({"ligand": Categorical(SMILES.values()), "T": Int(30, 90)})
        assert eval(repr(self.space)) == self.space
        many = Space({name: Int(0, 1) for name in "abcdefg"})
        assert repr(many).endswith("'d': Int(0, 1), ... 2 more ..., 'g': Int(0, 1)})")

    def test_prompts_explain_a_name_once_and_use_it(self):
        answer = "Hypothesis: h.\nStart from: new\nProposal:\nligand: PMe3, T: {}"
        client = ScriptedClient([answer.format(60), answer.format(61)])
        optimizer = LLMOptimizer(self.space, client, "words", warmup=0, compute=False)
        optimizer.tell(optimizer.ask(), 1.0)
        optimizer.tell({"ligand": "PPh3", "T": 45}, 2.0)
        assert optimizer.ask() == {"ligand": "CP(C)C", "T": 61}
        text = "".join(m.content for m in optimizer.client.requests[1].messages)
        assert text.count("CP(C)C") == 1
        assert text.count("PPh3") > 1

    @pytest.mark.parametrize("names", [{"": 1, "b": 2}, {1: "a"}, {" a": 1}, {"a": "b", "b": "c"}])
    def test_a_name_must_be_a_word_of_its_own(self, names):
        with pytest.raises(SpaceError, match=r"the name|is the name"):
            Categorical(names)
