"""The one reader of answers: a point of the space or a complaint, and never a guess."""

from __future__ import annotations

import json
import random
import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

from llmopt import Categorical, Float, Int, LLMOptimizer, ScriptedClient, Space, parse_parameters
from llmopt.client import Completion, Reply
from llmopt.code.answer import read_answer
from llmopt.errors import ParseError
from llmopt.prompt.answer_parts import notes_of, start_of, with_start
from llmopt.prompt.answer_reader import AnswerReader
from llmopt.prompt.kept_variables import Kept
from llmopt.prompt.thoughts import cut_thoughts
from llmopt.util.numbers import read_number

SPACE = Space({"units": Int(1, 4096), "lr": Float(-10.0, 10.0)})
TWO = Space({"x": Float(0.0, 10.0), "y": Float(0.0, 10.0)})
POINTS = ((1.0, 2.0), (3.0, 4.0))
NOTES = "Lesson: none\nAnalysis: a.\nHypothesis: h.\n"


def reader(space=TWO, **more):
    given = {"last": True, "changes": True, "points": POINTS, "first": 3, **more}
    return AnswerReader(space, space.names, **given)


def values(text, **more):
    return [r.values for r in reader(**more)(text).each]


# -- numbers ------------------------------------------------------------------------------------

GOOD = {
    "0.003": 0.003, "-0.25": -0.25, "+.5": 0.5, "5.": 5.0, "3e-3": 0.003, "1E+2": 100.0, "007": 7.0,
    "10^-3": 0.001, "10**-3": 0.001, "10^{-3}": 0.001, "10^(-3)": 0.001, "-10^3": -1000.0,
    "3×10⁻³": 0.003, "5·10⁻³": 0.005, "3 × 10⁻³": 0.003, "3x10^-3": 0.003, "3*10**-3": 0.003,
    r"3 \times 10^{-3}": 0.003, r"$3 \times 10^{-3}$": 0.003, r"\(2.5 \cdot 10^{-4}\)": 2.5e-4,
    "−0.5": -0.5, "‑0.5": -0.5, "–0.5": -0.5, "-1.5e−2": -0.015, "3\u00a0×\u00a010⁻³": 0.003,
    "\u202f0.5\u2009": 0.5, "**0.5**": 0.5, "`2`": 2.0, "\u200b0.5": 0.5,
}  # fmt: skip
BAD = (
    "1,024", "0,003", "1 024", "1\u202f024", "50 %", "50%", "1/3", "2^10", "2**10", "0.1-0.3",
    "0.1..0.3",
    "0.1 to 0.3", "0.1 ± 0.2", "3 mm", "3mm", "3e", "e5", "0x10", "1_000", "~0.5", "≈0.5", "<0.5",
    "about 0.5", "nan", "inf", "-Infinity", "1e999", "3e-3×10^2", "10^0.5", "10^", "--5", "- 5",
    "1.2.3", "٣", "½", "", "high", "(0.5)", "[0.5]", '"0.5"', "0.5 0.6", "10 10^-3", "<value>",
)  # fmt: skip


@pytest.mark.defect(1)
@pytest.mark.parametrize("written", GOOD)
def test_a_form_of_a_number_is_read_exactly(written):
    assert read_number(written) == GOOD[written]
    if abs(GOOD[written]) <= 10:
        for text in (
            f"units: 7, lr: {written}",
            f"lr = {written}; units = 7",
            f"lr: {written}\nunits: 7",
        ):
            assert parse_parameters(text, SPACE, out_of_range="reject").values == (7, GOOD[written])
            words = reader(SPACE, points=())(f"Start from: new\nProposal: {text}")
            assert words.values == (7, GOOD[written])


@pytest.mark.defect(1)
@pytest.mark.parametrize("written", BAD)
def test_anything_else_is_a_complaint_that_names_it(written):
    assert read_number(written) is None
    for text in (
        f"units: 7, lr: {written}",
        f"lr: {written}, units: 7",
        f"lr = {written}\nunits = 7",
    ):
        for read in (
            lambda t: parse_parameters(t, SPACE),
            lambda t: reader(SPACE, points=())(f"{NOTES}Start from: new\nProposal: {t}"),
            lambda t: reader(SPACE, points=((1, 1.0),))(f"Start from: #1\nProposal:\n{t}"),
        ):
            with pytest.raises(ParseError) as caught:
                read(text)
            assert "`lr`" in caught.value.reason
            assert repr(written.strip()[:20])[1:-1] in caught.value.reason


@pytest.mark.defect(1)
def test_a_whole_number_keeps_all_its_digits():
    big = Space({"n": Int(0, 2**63 - 1)})
    assert parse_parameters(f"n: {2**63 - 2}", big).values == (2**63 - 2,)
    assert parse_parameters("n: 1e3", big).values == (1000,)


@pytest.mark.defect(1)
@pytest.mark.parametrize("value", ['"1,025"', '"7"', "true", "null", "[7]", "NaN", "1e400"])
def test_a_json_value_that_is_no_number_is_a_complaint(value):
    for text in (f'{{"units": {value}, "lr": 1}}', f'{{"params": {{"units": {value}, "lr": 1}}}}'):
        with pytest.raises(ParseError):
            parse_parameters(text, SPACE)
        with pytest.raises(ParseError):
            reader(SPACE)(f"{NOTES}Start from: new\nProposal: {text}")


HEAT = Space({"heat": Float(20, 80, unit="°C"), "time": Int(1, 48, unit="eq."), "x": Float(0, 9)})


@pytest.mark.parametrize(
    "text",
    [
        "heat: 77.5 °C, time: 18 eq., x: 1",
        "heat: **77.5°C**; time = 18eq.; x = 1",
        "x: 1\nheat: `77.5\u00a0°C`.\ntime: 18\n",
        "heat: 77.5 ° C, time: 18 eq ., x: 1",
        "heat: 77.5ºC, time: 18 eq., x: 1",
        "heat: 77.5 C, time: 18 equiv, x: 1",
        "heat: 77.5 deg C; time: 18 equiv.; x: 1",
        '{"heat": "77.5 degrees Celsius", "time": "18 equivalents", "x": 1}',
        '{"heat": "77.5 ˚ C", "time": "18 eq.", "x": 1}',
        '{"heat": "77.5 °C", "time": "18 eq.", "x": 1}',
    ],
)
def test_a_value_may_have_the_unit_of_its_parameter(text):
    assert parse_parameters(text, HEAT).values == (77.5, 18, 1.0)
    words = reader(HEAT, points=((60.0, 2, 1.0),))(f"Start from: new\nProposal: {text}")
    assert words.values == (77.5, 18, 1.0)


@pytest.mark.parametrize(
    "wrong", ["170 °F", "77 degF", "350 K", "77 °C 18 h", "60-70 °C", "77 °c", "7 7 °C"]
)
def test_a_value_with_another_unit_is_a_complaint_that_names_both(wrong):
    for text in (f"heat: {wrong}, time: 2, x: 1", f'{{"heat": "{wrong}", "time": 2, "x": 1}}'):
        with pytest.raises(ParseError) as caught:
            parse_parameters(text, HEAT)
        assert wrong in caught.value.reason
        assert "plain number, or one in °C" in caught.value.reason
    with pytest.raises(ParseError, match=r"`x` has no readable value .*, expected a plain number$"):
        parse_parameters("heat: 30, time: 2, x: 1 °C", HEAT)


@pytest.mark.defect(1)
@pytest.mark.parametrize("text", ["units: 10", "units: 1024, lr: 0.0", "units: 10, lr: -1"])
def test_an_answer_cut_inside_its_values_is_not_used(text):
    def cut(request):
        return Reply((Completion(f"Start from: new\nProposal: {text}", "length"),))

    with LLMOptimizer(
        SPACE, ScriptedClient([cut, "Start from: new\nProposal: units: 1024, lr: 0.5"]),
        "words", warmup=0,
    ) as optimizer:  # fmt: skip
        assert optimizer.ask() == {"units": 1024, "lr": 0.5}
        assert optimizer.usage.rejected == {"truncated": 1}
        assert "cut off at the token limit" in optimizer.client.requests[1].text


# -- thoughts -----------------------------------------------------------------------------------

THOUGHTS = [
    "<think>{}</think>{}", "<thinking>{}</thinking>\n{}", "<thought>{}</thought>{}",
    "<reasoning>{}</reasoning>{}", "[THINK]{}[/THINK]{}", "{}</think>{}", "{}[/THINK]{}",
    "<think><think>{}</think>a</think>{}", "◁think▷{}◁/think▷{}", "<seed:think>{}</seed:think>{}",
    "<|begin_of_thought|>{}<|end_of_thought|><|begin_of_solution|>{}<|end_of_solution|>",
    "<|START_THINKING|>{}<|END_THINKING|>{}", "<unused94>thought\n{}<unused95>{}",
    "<|channel|>analysis<|message|>{}<|channel|>final<|message|>{}",
    "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>{}<|return|>",
    "analysis{}assistantfinal{}", '<details type="reasoning" done="true">{}</details>{}',
]  # fmt: skip


@pytest.mark.defect(2)
@pytest.mark.parametrize("form", THOUGHTS)
def test_a_draft_in_the_thoughts_is_neither_evaluated_nor_run(form):
    draft, final = "\nProposal: x: 9, y: 9\n", "Start from: new\nProposal: x: 2.5, y: 1"
    assert values(form.format(draft, final), most=4) == [(2.5, 1.0)]
    assert parse_parameters(form.format("x: 9, y: 9\n", "x: 2.5, y: 1"), TWO).values == (2.5, 1.0)
    code = form.format(
        "\n```python\ndef f(x):\n    return 1\n```\n", "\n```python\ndef f(x):\n    return 2\n```"
    )
    assert read_answer(code).source == "def f(x):\n    return 2\n"


@pytest.mark.defect(2)
def test_thoughts_without_an_end_hide_all_and_marks_in_quotes_are_text():
    with pytest.raises(ParseError, match="reasoning was not followed"):
        parse_parameters("<think>x: 1, y: 2", TWO)
    for text in ('HINT = "<think>"', "re.sub(r'<think>.*?</think>', '', s)", "`[/THINK]`"):
        assert cut_thoughts(text) == text


# -- text ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "x: 1.5, y: 2", "x = 1.5; y = 2", "x: 1.5\ny: 2", "- x: 1.5\n- y: 2", "1. x: 1.5\n2. y: 2",
        "y: 2, x: 1.5", "**x**: 1.5, **y**: 2", "`x`: `1.5`, `y`: 2.", "```\nx: 1.5, y: 2\n```",
        "Here is the next point:\n\nx: 1.5, y: 2", "Proposal: x: 1.5, y: 2", "(x: 1.5, y: 2)",
        "X: 1.5, Y: 2", "x: 1.5 and y: 2", "x := 1.5, y := 2", "> x: 1.5, y: 2", "x:1.5,y:2,",
        '{"x": 1.5, "y": 2}', '```json\n{"point": {"x": 1.5, "y": 2.0}}\n```',
        'Sure: {"y": 2, "x": 1.5}',
        "x: 1.5, y: 2\nEarlier x: 3, y: 4 was worse.", "x: 1, y: 3; f = 2\nx: 1.5, y: 2",
    ],
)  # fmt: skip
def test_forms_of_an_answer(text):
    assert parse_parameters(text, TWO).values == (1.5, 2.0)
    assert parse_parameters(f"{text}\nbecause it is better", TWO).values == (1.5, 2.0)


@pytest.mark.parametrize(
    "text",
    [
        "1.5, 2", "[1.5, 2]", "x: 1.5", "y: 2", "x: 1.5, z: 2", "Take x: 1.5, y: 2 for now",
        "x 1.5 y 2",
        "x: 1, y: 3; f = 2", "We saw x: 1, y: 3.\nThe best: x: 2, y: 4\nx: 1.5, y: 2",
        "x: 1.5, x: 2",
        "I tried x: 1, y: 3\nand x: 1.5, y: 2", '{"x": 1.5, "y": 2', '{"x": 1.5, "x": 3, "y": 2}',
        '{"x": 1, "y": 1} or {"x": 1.5, "y": 2}', "{'x': 1.5, 'y': 2}", "learning x: 1.5, y: 2",
        "z<-x: 1.5, y: 2", "x: high -> 1.5, y: 2", "x: 1.5, y: 2 (up from 1)", "x: 1.5 (m), y: 2",
    ],
)  # fmt: skip
def test_what_could_mean_something_else_is_a_complaint(text):
    with pytest.raises(ParseError):
        parse_parameters(text, TWO)


CHOICES = Space(
    {"act": Categorical(["relu", "relu6", "a, b", None, True, 8, "x: 5"]), "x": Float(0, 9)}
)


@pytest.mark.parametrize(
    ("written", "choice"),
    [
        ("relu", "relu"), ("RELU6", "relu6"), ("'relu'", "relu"), ("'a, b'", "a, b"),
        ("a, b", "a, b"),
        ("None", None), ("null", None), ("True", True), ("true", True), ("8", 8), ("8.0", 8),
        ("**relu**", "relu"), ("'x: 5'", "x: 5"),
    ],
)  # fmt: skip
def test_choices(written, choice):
    for text in (f"act: {written}, x: 2", f"x: 2, act: {written}.", f"act: {written}\nx: 2"):
        assert parse_parameters(text, CHOICES).values == (choice, 2.0), text


def test_json_that_is_nested_too_deeply_is_a_complaint():
    for depth in (50, *range(800, 1000)):  # the decoder goes deeper than the encoder, by the stack
        with pytest.raises(ParseError, match="the JSON cannot be read"):
            parse_parameters(f'{{"x": {"[" * depth}{"]" * depth}, "y": 2}}', TWO)


def test_a_choice_that_is_a_tuple_is_a_list_in_json():
    space = Space({"layers": Categorical([(16,), (16, 8)])})
    assert parse_parameters('{"layers": [16, 8]}', space).values == ((16, 8),)
    with pytest.raises(ParseError, match="`layers` has no readable value"):
        parse_parameters('{"layers": [8, 16]}', space)


@pytest.mark.parametrize(
    "written", ["rel", "relu7", "relu or relu6", "none of them", "1", "relu 6"]
)
def test_a_choice_that_is_none_is_a_complaint(written):
    with pytest.raises(ParseError, match="`act` has no readable value"):
        parse_parameters(f"act: {written}, x: 2", CHOICES)


def test_a_choice_that_could_be_two_is_a_complaint():
    numbers = Space({"x": Categorical([8, 8.0])})
    assert parse_parameters("x: 8.0", numbers).values == (8.0,)
    with pytest.raises(ParseError, match="`x` has no readable value"):
        parse_parameters("x: 8e0", numbers)
    space = Space({"unit": Categorical(["mW", "MW"])})
    assert parse_parameters("unit: MW", space).values == ("MW",)
    with pytest.raises(ParseError, match="`unit` has no readable value"):
        parse_parameters("unit: mw", space)


@pytest.mark.defect(21)
@pytest.mark.parametrize(("name", "written"), [("größe", "gro\u0308ße"), ("gro\u0308ße", "größe")])
def test_names_are_compared_in_one_form(name, written):
    space = Space({name: Float(0.0, 1.0), "y": Float(0.0, 1.0)})
    for text in (f"{written}: 0.25, y: 0.5", json.dumps({written: 0.25, "y": 0.5})):
        assert parse_parameters(text, space).values == (0.25, 0.5)


def test_names_that_differ_in_case_alone_or_hold_marks():
    space = Space({"a": Int(0, 9), "A": Int(0, 9), "a_b<-c [1]=": Int(0, 9)})
    assert parse_parameters("a: 1, A: 2, a\\_b<-c [1]=: 3", space).values == (1, 2, 3)


# -- the form of `words` ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Start from: #1\nProposal:\ny: 5", (1.0, 5.0)),
        ("Start from: 2\nProposal: x: 5", (5.0, 4.0)),
        ("Start from: zero\nProposal: x: 5", (5.0, 0.0)),
        ("Start from: #2\nProposal: no change", POINTS[1]),
        ("**Start from:** #1\n\n**Proposal:**\n\n```\nx: 1 -> 5\n```", (5.0, 2.0)),
        ('Start from: #1\nProposal: {"y": 5}', (1.0, 5.0)),
        ("Start from: #1\nProposal: y = 5", (1.0, 5.0)),
        ("Hypothesis: x: 9 and y: 9 fail.\nStart from: new\nProposal: x: 5, y: 6", (5.0, 6.0)),
        ("x: 5, y: 6", (5.0, 6.0)),
        ("Start from: #1\nProposal:\n```\ny: 5\n```\nI would try y = 7 next.", (1.0, 5.0)),
        ("```\nStart from: #1\nProposal: y: 5\n``` Then y = 7, since 5: low", (1.0, 5.0)),
    ],
)  # fmt: skip
def test_the_point_that_an_answer_changes(text, expected):
    assert values(NOTES + text) == [expected]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Start from: #9\nProposal: x: 5", "no point #9"),
        ("Start from: #0\nProposal: x: 5", "no point #0"),
        ("Start from: #1\nProposal: z: 5", "'z' is none of the parameters"),
        ("Start from: #1\nProposal: x: 5, z: 6", "'z' is none"),
        ("Start from: new\nProposal: x: 5", "for `y`"),
        ("Start from: #1\nProposal: x: 5\nx: 6", "`x` has two values"),
        ("Start from: #1\nProposal: 5", "no param"),
        ("Start from: #1\nProposal: raise x: 5", "none of the parameters"),
        ("Proposal: stop", "takes no stop"),
        ("Start from: #1\nProposal: x: 5\nProposal: x: 6", "one was asked for"),
        ("Proposal: {", "JSON cannot be read: Expecting"),
        ("Proposal: {}", "JSON cannot be read: it is not one object"),
        ("Start from: #1\nProposal:\n```\nx: 5\n```\ny: high", "`y` has no readable value"),
        ("Start from: #1\nProposal:\n```\nx: 5\n```\nz: 6", "'z' is none"),
        (
            "Start from: new\nProposal: x: 5, y: 6\n\ntokens used: 1,234",
            "'tokens used' is none of the parameters, and each of these has a value: leave it out;",
        ),
    ],
)  # fmt: skip
def test_a_complaint_says_why(text, reason):
    with pytest.raises(ParseError) as caught:
        reader()(NOTES + text)
    assert reason in caught.value.reason
    assert caught.value.raw == NOTES + text


def enveloped(*objects, indent=None):
    return "\n".join(json.dumps(o, indent=indent) for o in objects)


@pytest.mark.parametrize("answer", [NOTES + "Proposal:\nx: 5\ny: 6", "Proposal: x: 5, y: 6"])
def test_json_around_an_answer_is_named_with_the_field_to_print(answer):
    message = {"message": {"content": [{"type": "text", "text": answer}]}}
    for field, text in {
        "result": enveloped({"type": "result", "result": answer, "session_id": "a-1"}),
        "response": enveloped({"response": answer, "stats": {"calls": 3}}, indent=2),
        "text": enveloped({"thread_id": "01"}, {"item": {"text": answer}}, {"usage": {"in": 3}}),
        "content": enveloped({"choices": [{"message": {"content": answer}}]}),
    }.items():
        for last in (True, False):
            with pytest.raises(ParseError) as caught:
                reader(last=last)(text)
            said = f"the answer is JSON: print the text of its field `{field}` alone; "
            assert caught.value.reason.startswith(said)
    with pytest.raises(ParseError, match="field `result` alone"):
        reader()(enveloped({"type": "system"}, message, {"result": answer}))
    for text in ("See: " + enveloped({"text": answer}), enveloped({"text": answer, "x": 5})):
        with pytest.raises(ParseError) as caught:
            reader()(text)
        assert "the answer is JSON" not in caught.value.reason
    assert values(enveloped({"text": "why", "x": 5, "y": 6})) == [(5.0, 6.0)]


@pytest.mark.parametrize(
    ("count", "form"),
    [
        (4, "a: <value>, b: <value>, c: <value>, d: <value>"),
        (5, "a: <value>, b: <value>, …, e: <value>"),
    ],
)
def test_a_complaint_shows_the_form_of_a_few_values(count, form):
    space = Space({name: Float(0.0, 1.0) for name in "abcde"[:count]})
    with pytest.raises(ParseError, match=re.escape(f"all {count} values as `{form}`")):
        parse_parameters("I cannot.", space)


def test_several_points_and_the_end():
    text = (
        f"{NOTES}Start from: #1\nProposal 1: x: 5\n\nHypothesis: i.\nStart from: #2\nProposal 2: "
        "y: 6\nStart from: #2\nProposal: y: much\nProposal: stop"
    )
    first, second, stop = (reading := reader(most=4, may_stop=True)(text)).each
    assert (first.values, second.values, stop.stop) == ((5.0, 2.0), (3.0, 6.0), True)
    assert [r.start for r in reading.each] == [1, 2, 2]
    assert notes_of(first.explanation).analysis == "a."
    assert notes_of(second.explanation).hypothesis == "i."
    assert "no readable value (got 'much')" in reading.dropped[0]
    assert values(text, most=1 + 1, may_stop=True)[:2] == [(5.0, 2.0), (3.0, 6.0)]
    # A point may start from an earlier one of the same answer, by the number that it will have.
    chain = f"{NOTES}Start from: #1\nProposal: x: 5\nStart from: #3\nProposal: y: 7"
    assert values(chain, most=4) == [(5.0, 2.0), (5.0, 7.0)]
    assert reader(most=4)(chain).more[0].start == 3


def test_notes_survive_being_stored():
    said = reader()(
        "Lesson: l.\nAnalysis: a.\nHypothesis: h.\nStart from: #2\nProposal: x: 5"
    ).explanation
    assert said == "Lesson: l.\nAnalysis: a.\nHypothesis: h.\nStart from: #2"
    assert start_of(with_start(said, 7)) == 7
    notes = notes_of("Lesson 3 withdrawn: it is the bias.\nHypothesis: h")
    assert (notes.lesson, notes.hypothesis) == (
        "lesson 3 withdrawn: it is the bias.".capitalize(),
        "h",
    )


# -- JSON ---------------------------------------------------------------------------------------


@pytest.mark.defect(19)
@pytest.mark.parametrize(
    "text",
    [
        '{"x": 1.5, "y": 2, "explanation": "two\nlines"}', 'The set {x} holds.\n{"x": 1.5, "y": 2}',
        '{} {"x": 1.5, "y": 2}', '{"note": 1}\n{"x": 1.5, "y": 2}',
    ],
)  # fmt: skip
def test_raw_line_breaks_and_other_braces_do_not_hide_an_object(text):
    assert parse_parameters(text, TWO).values == (1.5, 2.0)


# -- ranges and repeats -------------------------------------------------------------------------


@pytest.mark.defect(44)
def test_words_refuse_a_value_out_of_its_range_by_default():
    assert parse_parameters("x: 11, y: 2", TWO).clipped
    with LLMOptimizer(
        TWO, ScriptedClient(["Proposal: x: 11, y: 2", "Proposal: x: 9.5, y: 2"]), "words", warmup=0
    ) as optimizer:  # fmt: skip
        assert optimizer.ask() == {"x": 9.5, "y": 2.0}
        assert "`x` = 11 is outside [0.0, 10.0]" in optimizer.client.requests[1].text
    for prompt, choice in (("props", "auto"), ("words", "clip")):
        client = ScriptedClient(["x: 11, y: 2"])
        with LLMOptimizer(TWO, client, prompt, warmup=0, out_of_range=choice) as optimizer:
            assert optimizer.ask() == {"x": 10.0, "y": 2.0}


@pytest.mark.defect(44)
def test_a_variable_out_of_range_is_a_complaint_but_for_rounding():
    kept = Kept.of(TWO, TWO.names, {"w": [11.0, 2.0], "v": [10.0 + 1e-12, 2.0]}, ())
    read = reader(kept=kept, out_of_range="reject")
    with pytest.raises(ParseError, match=r"`x` = 11 is outside \[0.0, 10.0\]"):
        read("Start from: new\nProposal: kept: w")
    assert read("Start from: new\nProposal: kept: v").values == (10.0, 2.0)


def ask_after(told, answer, prompt="words", **options):
    """Return what is proposed after some points, and the search."""
    space = Space({"T": Float(20.0, 90.0), "t": Float(1.0, 60.0)})
    optimizer = LLMOptimizer(space, ScriptedClient([answer] * 3), prompt, warmup=0, **options)
    for point in told:
        optimizer.tell(point, 1.0)
    return optimizer.ask(), optimizer


@pytest.mark.defect(5)
def test_a_value_that_differs_from_the_row_of_an_evaluated_point_is_new():
    point, search = ask_after([{"T": 31.4159, "t": 5.0}], "Proposal: T: 31.42, t: 5")
    assert point == {"T": 31.42, "t": 5.0}
    assert search.usage.rejected == {}


@pytest.mark.defect(5, 30)
@pytest.mark.parametrize(("prompt", "shown"), [("words", "64.9465162"), ("props", "64.9")])
def test_a_copied_row_is_the_evaluated_point(prompt, shown):
    told = {"T": 64.94651623456789, "t": 5.0}
    answer = f"Proposal: T: {shown}, t: 5"
    point, search = ask_after([told], answer, prompt, noisy=True)
    assert point == told
    search.tell(point, 3.0)
    assert search.history.trials[0].evaluations == 2
    _, search = ask_after([told], answer, prompt, on_error="fallback")
    assert search.usage.rejected == {"duplicate": 3}


# -- any text -----------------------------------------------------------------------------------

TOKENS = st.sampled_from(
    [
        *"xy:=,;.-+*/^%$`'\"{}[]()<>| \n", "x: 1", "y: 2", "units", "lr", "act", "relu", "10^-3",
        "×10⁻³", "1,024", "Proposal:", "Start from: #1\n", "Start from: new\n", "Hypothesis: h\n",
        "stop", "no change", "<think>", "</think>", "[THINK]", "```", "```json\n",
        '{"x": 1, "y": 2}',
        '{"x":', "null", "true", "NaN", "1e999", "9" * 30, "−", "\u00a0", "\u202f", "f = 3",
        "failed",
        "\x00", "\ud800", "kept: w", "lesson", "->", "–", "\\times", "é", "e\u0301",
    ]
)  # fmt: skip
SPACES = [
    TWO,
    SPACE,
    CHOICES,
    Space({"é": Float(-1, 1), "n": Int(0, 5), "b": Categorical([True, False])}),
]


@given(
    st.sampled_from(SPACES),
    st.one_of(st.text(max_size=200), st.lists(TOKENS, max_size=40).map("".join)),
    st.booleans(),
    st.integers(1, 3),
)
@examples(300)
def test_any_text_is_a_point_of_the_space_or_a_complaint(space, text, words, most):
    points = [space.sample(np.random.default_rng(i)) for i in range(2)] if words else []
    kept = Kept.of(space, space.names, {"w": list(points[0])} if words else {}, ())
    read = reader(
        space, points=points, last=words, changes=words, most=most, may_stop=True, kept=kept,
        out_of_range="reject" if most == 2 else "clip",
    )  # fmt: skip
    try:
        reading = read(text)
    except ParseError:
        return
    for one in reading.each:
        space.check(one.values)


@pytest.mark.parametrize(
    "unit", ["x: ", "{", '{"a":', "[", "<think>", "Proposal:\n", "x: 1,", "a\n", "10^"]
)
def test_reading_takes_linear_time(unit):
    for text in (unit * 20_000, "x: 1, y: 2 " + unit * 20_000):
        for read in (reader(most=4), reader(last=False, changes=False)):
            try:
                read(text)
            except ParseError:
                pass


# -- recorded answers, transformed --------------------------------------------------------------

ANSWERS = json.loads((Path(__file__).parent / "data" / "answers.json").read_text(encoding="utf-8"))
_VALUE = re.compile(r"(?<=[:=] )(-?\d+(?:\.\d+)?)(?=[,\n]|$)")


def space_of(kinds):
    made = {"float": Float, "int": Int}
    return Space(
        {n: Categorical(a) if k == "choice" else made[k](*a) for n, (k, *a) in kinds.items()}
    )


def grid(space, n=60):
    """Return points to start from, the same on every machine."""
    return [
        space.clip(
            [
                d.choices[i % len(d.choices)]
                if isinstance(d, Categorical)
                else d.low + (d.high - d.low) * ((0.618 * i + 0.37 * j) % 1)
                for j, d in enumerate(space.dimensions)
            ]
        )
        for i in range(n)
    ]


def power(text, form):
    sign, digits, exponent = Decimal(text).as_tuple()
    raised = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return form.format(s="-" * sign, m="".join(map(str, digits)), e=exponent, r=raised)


def numbers(form, rng):
    """Return what rewrites some values of the proposals of a text."""

    def change(text):
        head, mark, rest = text.partition("Proposal:") if "Proposal:" in text else ("", "", text)
        if not mark:
            rest, _, after = rest.partition("\n")
            return _VALUE.sub(one, rest) + ("\n" + after if after else "")
        return head + mark + _VALUE.sub(one, rest)

    def one(match):
        if rng.random() < 0.4:
            return match[0]
        return power(match[0], form) if "{m}" in form else form.replace("{}", match[0])

    return change


EXACT = [  # forms that must be read
    "{s}{m}e{e}", "{s}{m}×10{r}", "{s}{m}·10^{e}", "{s}{m}*10**{e}", "${s}{m} \\times 10^{{{e}}}$",
    "\u00a0{}", "{}\u202f", "**{}**", "`{}`",
]  # fmt: skip
DOUBTFUL = [  # a complaint, unless no value is changed
    "1,{}", "{},5", "{} %", "{}/3", "{} mm", "{}-9", "~{}", "{}^2", "{} ± 1", "{} or 7", "<{}",
    "'{}'", "{}e",
]  # fmt: skip
AROUND = [
    *THOUGHTS[:6], "Sure!\n\n{1}", "{1}\n", "<think>{0}\nx</think>\n\n{1}",
    "Hier ist mein Vorschlag.\n{1}",
]  # fmt: skip


def variants(text, prompt, rng):
    """Yield transformed texts, and whether each must be read."""
    for form in EXACT:
        yield numbers(form, rng)(text), True
    for form in DOUBTFUL:
        yield numbers(form, rng)(text), False
    draft = _VALUE.sub("0.123", text)
    for form in AROUND:
        yield (
            form.format(draft, text),
            prompt == "words" or ("ist" not in form and "Sure" not in form),
        )
    yield text.replace("-", "−"), "<-" not in text
    yield (
        text.replace("Proposal:", "**Proposal:**").replace("Start from:", "- **Start from:**"),
        True,
    )
    yield (
        text.replace("Proposal:\n", "Proposal:\n```\n") + ("\n```" if prompt == "words" else ""),
        True,
    )
    yield text.replace("Proposal:", "Vorschlag:"), False
    yield f"{text} is my choice.", False
    yield f"{text}\n\nThis should work; 0.5 is my guess.", True
    yield text.replace(": ", " = "), False
    yield text.replace(", ", "\n"), False
    yield text.upper(), False
    yield text.replace(",", ";"), False
    yield text.replace(".", ","), False


def check(answer, space, text, right, must, cut=False):
    words = answer["prompt"] == "words"
    read = AnswerReader(
        space, space.names, last=words, changes=words, points=grid(space) if words else (),
        may_stop=answer["may_stop"], most=answer["most"], first=61,
    )  # fmt: skip
    try:
        reading = read(text)
    except ParseError:
        assert not must, text
        return
    if cut and reading.unterminated:
        return
    got = [None if r.stop else r.values for r in reading.each]
    # Of several points some may be dropped with a complaint, or be cut off.
    few = cut or len(got) + len(reading.dropped) >= len(right)
    some = not must and few and got == [p for p in right if p in got]
    assert got == right or some, (text, got, right)


@pytest.mark.defect(1, 2)
def test_a_transformed_answer_gives_its_point_or_a_complaint():
    rng, count = random.Random(0), 0
    for answer in ANSWERS:
        space, text = space_of(answer["space"]), answer["text"]
        right = [None if p is None else tuple(p) for p in answer["points"]]
        check(answer, space, text, right, True)
        for changed, must in variants(text, answer["prompt"], rng):
            check(answer, space, changed, right, must)
            count += 1
        for _ in range(10):
            check(answer, space, text[: rng.randrange(len(text))], right, False, cut=True)
            count += 1
    assert count > 2000
