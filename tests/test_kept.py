"""``kept: NAME``: a variable of a model's Python in place of values."""

import json
import math

import pytest
from stubs import needs_confinement

from llmopt import (
    Categorical,
    FallbackWarning,
    Float,
    Int,
    RecordClient,
    ReplayClient,
    ScriptedClient,
    Space,
    minimize,
)
from llmopt.client.model_facts import ModelFacts
from llmopt.errors import ParseError
from llmopt.history import History, Trial
from llmopt.lab import blocks
from llmopt.lab.laboratory import Laboratory
from llmopt.prompt import Situation, ToolCall, get_prompt
from llmopt.prompt.kept_variables import MOST_VALUES, plain_values
from llmopt.prompt.python_block import Computed
from llmopt.sandbox import confine

SPACE = Space({"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)})
THIRD = 1 / 3
KEPT = {
    "best": [THIRD, 0.1 + 0.2],
    "part": {"x": THIRD},
    "whole": {"Y": 0.25, "x": THIRD, "score": -3.0},
    "wrong": {"x": 0.5, "why": 0.5},
    "long": [0.1, 0.2, 0.3],
    "odd": ["nan", 0.5],
    "text": ["much", 0.5],
    "none": [None, 0.5],
    "large": [10**400, 0.5],
}
VARIABLES = (*(f"{name} (list of 2)" for name in KEPT), "fit (function)")


def answer(values, start="new"):
    return f"Hypothesis: h.\nStart from: {start}\nProposal:\n{values}"


def prepared(space=SPACE, facts=None, **given):
    trials = (Trial(0, {}, (0.5, 0.75), (1.0,)),) if space is SPACE else ()
    given = {"compute": True, "kept": KEPT, "variables": VARIABLES, "points": 4, **given}
    situation = Situation.after(History(trials), space, facts or ModelFacts("m"), **given)
    return get_prompt("words").prepare(situation)


# -- how an answer names one --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (answer("kept: best"), (THIRD, 0.1 + 0.2)),
        ("Start from: new\n**Proposal:** kept: `best`", (THIRD, 0.1 + 0.2)),
        (answer("Kept = best (as computed, f = -3)"), (THIRD, 0.1 + 0.2)),
        (answer("kept: best (f = -3, say), y: 0.5"), (THIRD, 0.5)),
        (answer("```\nkept: best\n```"), (THIRD, 0.1 + 0.2)),
        ("Hypothesis: h.\nStart from: new\nkept: best", (THIRD, 0.1 + 0.2)),
        ("Kept: the gains.\nx: 0.5, y: 0.25", (0.5, 0.25)),
        (answer("kept: best", "#1"), (THIRD, 0.1 + 0.2)),
        (answer("kept: best, y: 0.5"), (THIRD, 0.5)),
        (answer("y: 0.5\nkept: best"), (THIRD, 0.5)),
        (answer("kept: part", "#1"), (THIRD, 0.75)),
        (answer("kept: part, y: 0"), (THIRD, 0.0)),
        (answer("kept: whole"), (THIRD, 0.25)),
        (answer("x: 0.5, y: 0.25\n\nKept: everything else unchanged"), (0.5, 0.25)),
        (answer("y: 0.5\nKept: all others as in #1.", "#1"), (0.5, 0.5)),
    ],
)
def test_an_answer_names_a_variable_in_place_of_values(text, values):
    assert prepared().read(text).values == values


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("kept: gone", "no variable `gone` was kept by an earlier block; there are: best"),
        ("kept: fit", r"the variable `fit` \(function\) has no values of a point on record"),
        ("kept: long", r"the variable `long` \(list of 2\) has no values of a point"),
        ("kept: part", "there is no value for `y`"),
        ("kept: wrong", "'why' is none of the parameters"),
        ("kept: odd", "`x` has no readable value"),
        ("kept: large", "`x` has no readable value"),
        ("kept: text", "`x` has no readable value .got .*much"),
        ("kept: none", "`x` has no readable value .got 'null'"),
        ("kept: best, z: 1", "'z' is none of the parameters"),
        ("kept: Best of all, y: 0.5", "'Best of all' is no name of a variable"),
        ("kept: best * 0.9", "'best . 0.9' is no name of a variable; expected `kept: NAME`"),
        ("kept: best[0]", "'best.0.' is no name of a variable"),
        ("kept: job.best", "'job.best' is no name of a variable"),
        ("kept: __import__('os')", "is no name of a variable"),
        ("kept: __class__", "no variable `__class__` was kept"),
        ("kept:", "`kept:` has no name"),
        ("kept: " + "n" * 5000, "no variable `n{20,60}"),
    ],
)
def test_a_variable_that_is_no_point_is_named_with_what_was_expected(text, why):
    with pytest.raises(ParseError, match=why) as error:
        prepared().read(answer(text))
    assert len(error.value.reason) < 700


def test_values_of_a_variable_get_the_same_checks_as_written_ones():
    space = Space(
        {
            "n": Int(1, 9),
            "kind": Categorical(["a", "b"]),
            "size": Categorical([16, 32]),
            "d": Float(0.0, 1.0, when={"kind": "b"}),
        }
    )
    kept = {
        "numpy": [3.0, "b", 32.0, 0.5],
        "lacks": [3, "a", 16, "nan"],
        "none": {"n": 3, "kind": "a", "size": 16, "d": None},
        "outside": [30, "b", 32, 0.5],
        "code": [3, 1, 32, 0.5],
    }

    def read(name, **given):
        return prepared(space, kept=kept, **given).read(answer(f"kept: {name}"))

    assert read("numpy").values == (3, "b", 32, 0.5)
    lacks = prepared(space).read(answer("n: 3, kind: a, size: 16")).values
    assert read("lacks").values == read("none").values == lacks
    clipped = read("outside", out_of_range="clip")
    assert (clipped.values[0], clipped.clipped) == (9, True)
    with pytest.raises(ParseError, match=r"`n` = 30 is outside \[1, 9\]"):
        read("outside")
    with pytest.raises(
        ParseError, match=r"got '1'.; expected a choice as it is written, such as a, not"
    ):
        read("code")


@pytest.mark.parametrize("kept", [[0.25, 0.75], {"a": 0.25, "A": 0.75}])
def test_names_that_differ_in_case_alone_are_two_parameters(kept):
    space = Space({"a": Float(0.0, 1.0), "A": Float(0.0, 1.0)})
    assert prepared(space, kept={"w": kept}).read(answer("kept: w")).values == (0.25, 0.75)


def test_several_points_and_answers_in_json_name_variables():
    two = prepared().read(answer("kept: best") + "\n\n" + answer("kept: part", "#1"))
    assert [point.values for point in two.each] == [(THIRD, 0.1 + 0.2), (THIRD, 0.75)]
    facts = ModelFacts("m", schema=True, structured=True)
    query = prepared(facts=facts)
    proposal = query.request.json_schema["properties"]["proposals"]["items"]
    assert proposal["required"] == ["hypothesis", "start_from", "kept", "changes"]
    assert '"kept": "<NAME alone, or empty>", "changes": ' in query.request.text

    def read(**point):
        return query.read(json.dumps({"proposals": [{"start_from": "new", **point}]})).values

    y = [{"parameter": "y", "value": 0.5}]
    assert read(kept="best", changes=[]) == read(kept="best") == (THIRD, 0.1 + 0.2)
    assert read(kept="best", changes=y) == (THIRD, 0.5)
    for nothing in ("", "No", "None.", "n/a", "-"):
        assert read(kept=nothing, changes=[{"parameter": "x", "value": 0.5}, *y]) == (0.5, 0.5)
    assert read(kept="part", changes=None, start_from="#1") == (THIRD, 0.75)
    with pytest.raises(ParseError, match="no variable `gone` was kept"):
        read(kept="gone", changes=[])
    alone = prepared(facts=facts, points=1)
    both = json.dumps({"python": "1", "kept": "best", "changes": []})
    assert alone.read(both).values == (THIRD, 0.1 + 0.2)
    block = json.dumps({"python": "1", "kept": "", "changes": []})
    assert alone.read(block) == ToolCall("1")


def test_it_is_offered_with_python_alone_and_to_no_parameter_of_that_name():
    offer = '"kept: NAME"'
    assert offer in prepared().request.text
    off = prepared(compute=False)
    assert offer not in off.request.text
    with pytest.raises(ParseError, match="no parameter values were found"):
        off.read(answer("kept: best"))
    taken = prepared(Space({"Kept": Float(0.0, 1.0), "y": Float(0.0, 1.0)}))
    assert offer not in taken.request.text
    assert taken.read(answer("kept: 0.5, y: 0.25")).values == (0.5, 0.25)


@pytest.mark.parametrize(
    "values",
    [
        [], {"w": 1}, {"w": "ab"}, {"w": [[1]]}, {"w": [math.nan]}, {"w": {1: 2}}, {"w": [{}]},
        {"w": [1] * (MOST_VALUES + 1)}, {"w": ["n" * 1000]}, {"n" * 1000: [1]}, {1: [1]},
    ],
)  # fmt: skip
def test_values_that_no_worker_gives_are_refused(values):
    with pytest.raises(TypeError, match="value"):
        plain_values(values)
    with pytest.raises(TypeError, match="value"):
        Computed.read({**Computed("1", "").line(), "values": values})


# -- searches -----------------------------------------------------------------------------------

BLOCK = """best = np.array([1 / 3, 2 / 7])
part = {'y': 1 / 7}
cand = np.array([[1, 1], [3 / 4, 1 / 2]])
print(best)"""
SCRIPT = [
    answer("x: 0.2, y: 0.5"),
    f"Analysis: a.\n\n```python\n{BLOCK}\n```",
    answer("kept: gone"),
    answer("kept: best"),
    answer("kept: part", "#2"),
    answer("kept: cand[1]"),
]
WANTED = [(0.2, 0.5), (1 / 3, 2 / 7), (1 / 3, 1 / 7), (3 / 4, 1 / 2)]
OPTIONS = {"prompt": "words", "seed": 1, "description": "A spring", "progress": False}


def search(client, **options):
    space = {"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)}
    return minimize(lambda p: p["x"], space, 4, client, **OPTIONS, **options)


@needs_confinement
def test_a_replay_gives_the_same_points_where_no_code_can_be_confined(tmp_path, monkeypatch):
    result = search(RecordClient(client := ScriptedClient(SCRIPT), tmp_path / "r.jsonl"))
    assert [t.values for t in result.trials] == WANTED
    assert result.usage.rejected == {"unreadable": 1}
    assert "This answer cannot be used: no variable `gone` was kept" in client.requests[3].text
    monkeypatch.setattr(Laboratory, "_start", lambda *_: pytest.fail("a worker was started"))
    monkeypatch.setattr(blocks, "support", lambda: confine.Support(0, False, ("no seccomp",)))
    again = search(ReplayClient(tmp_path / "r.jsonl"))
    assert [t.values for t in again.trials] == WANTED
    assert again.usage.blocks == 1
    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    torn = tmp_path / "torn.jsonl"
    torn.write_text("".join(f"{json.dumps(line)}\n" for line in lines if "block" not in line))
    with pytest.warns(RuntimeWarning, match="lacks the output of a block .* here: no seccomp. Rep"):
        assert len(search(ReplayClient(torn, strict=False)).trials) == 1
    for line in lines:  # as it was recorded before
        line.get("block", {}).pop("values", None)
    bare = tmp_path / "bare.jsonl"
    bare.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.warns((RuntimeWarning, FallbackWarning)):
        search(RecordClient(ReplayClient(bare, strict=False), tmp_path / "again.jsonl"))
    sent = (tmp_path / "again.jsonl").read_text()
    assert "the variable `best` (array 2) has no values of a point on record" in sent


def test_a_choice_beside_an_array_replaces_its_number():
    space = Space({"x": Float(0, 1), "colour": Categorical(["red", "green"])})
    kept = {"c": [THIRD, 1.0]}
    question = prepared(space, kept=kept, variables=("c (array 2)",))
    assert question.read(answer("kept: c, colour: green")).values == (THIRD, "green")
    with pytest.raises(ParseError, match="no readable value"):
        question.read(answer("kept: c"))
