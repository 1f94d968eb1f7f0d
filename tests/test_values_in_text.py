"""Reading answers: what is understood, what is refused, and that nothing else happens."""

from __future__ import annotations

import json
import pickle
import time

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from strategies import examples

from llmopt import parse_parameters
from llmopt.errors import ParseError
from llmopt.prompt.values_in_text import Reading
from llmopt.space import Categorical, Float, Int, Space

BOX = Space({f"params[{i}]": Float(-6, 6) for i in range(3)}, decimals=1)
MIXED = Space(
    {
        "lr": Float(1e-5, 0.1, log=True),
        "lr_decay": Float(0, 1),
        "layers": Int(1, 8),
        "optimizer": Categorical(["adam", "adamw", "sgd, momentum", None, True, 1, "1", 2.5]),
    }
)


@pytest.mark.parametrize(
    "text",
    [
        "params[0]: 1.5, params[1]: -2, params[2]: 0.25\nbecause it is better",
        "params[0] = 1.5; params[1] = -2; params[2] = 0.25\nbecause it is better",
        "params[0]: 1.5\nparams[1]: -2.0\nparams[2]: 0.25\n\nbecause it is better",
        "- **params[0]**: 1.5\n- **params[1]**: -2\n- **params[2]**: 0.25\nbecause it is better",
        "**params[0]: 1.5, params[1]: -2, params[2]: 0.25**\nbecause it is better",
        "params\\[0\\]: 1.5, params\\[1\\]: -2, params\\[2\\]: 0.25\nbecause it is better",
        "params[2]: .25, params[0]: +1.5, params[1]: \u22122.0.\nbecause it is better",
        "Params[0]: 15e-1, params[1]: -0.2e+1, params[2]: 2.5 × 10^-1\nbecause it is better",
        '{"params[0]": 1.5, "params[1]": -2, "params[2]": 0.25}\nbecause it is better',
        '{"params": [1.5, -2, 0.25], "explanation": "because it is better"}\n',
        '```json\n{"params": {"params[0]": 1.5, "params[1]": "-2", "params[2]": 0.25},\n'
        ' "reason": "because it is better"}\n```',
        "```\nparams[0]: 1.5, params[1]: -2, params[2]: 0.25\n```\nbecause it is better",
        "[1.5, -2, 0.25]\nbecause it is better",
        "(1.5; -2; 0.25)\nbecause it is better",
        "params = [1.5, -2., 0.25]\nbecause it is better",
        "[ 1.5  -2.\n  0.25]\nbecause it is better",
        "1.5, -2, 0.25\nbecause it is better",
        "1.5 -2 0.25\nbecause it is better",
        "New params: 1.5, -2, 0.25\nbecause it is better",
        "I suggest this point:\n\n`1.5, -2, 0.25`\n\nbecause it is better",
        "<think>params[0]: 9, params[1]: 9, params[2]: 9</think>\n1.5, -2, 0.25\n"
        "because it is better",
        "the template opened it: 9, 9, 9</think>1.5, -2, 0.25\nbecause it is better",
        "In the range [-6, 6, 1], f = (1, 2, 3) was seen. So [1.5, -2, 0.25], because it is better",
        "Over the range \\([-6, 6, 1]\\) I take (1.5, -2, 0.25), because it is better",
        "Moving along results in [1.5, -2, 0.25], away from (0, 0, 0), because it is better",
        "Answer in the box: **[1.5, -2, 0.25]**, because it is better",
    ],
)
def test_forms_of_answers(text):
    reading = parse_parameters(text, BOX)
    assert reading.values == (1.5, -2.0, 0.25)
    assert "because it is better" in reading.explanation or text.startswith('{"params": [')
    assert not reading.clipped


@pytest.mark.parametrize(
    "text",
    [
        "over the domain [-5.0, 5.0] I choose (1, 2)",
        "The search space is [-5, 5]. I choose (1, 2)",
        "range ([-5, 5]) then (1, 2)",
        "range **`[-5, 5]`** then (1, 2)",
        "for $x \\in [-5, 5]$, y ∈ [0, 9]: [1, 2]",
        "I choose (1, 2), which is in [-5, 5] and [0, 9]",
        "a: 1, b: 2; f = 3\nThe search space is [-5, 5].",
        "1, 2\nis well inside [-5, 5]",
    ],
)
def test_a_quoted_range_is_not_the_answer(text):
    assert parse_parameters(text, Space({"a": Float(-5, 5), "b": Float(0, 9)})).values == (1.0, 2.0)


def test_a_corner_is_an_answer_where_there_is_no_other():
    square = Space({"a": Float(-5, 5), "b": Float(-5, 5)})
    assert parse_parameters("I choose [-5, 5]: the corner.", square).values == (-5.0, 5.0)
    assert parse_parameters("-5, 5", square).values == (-5.0, 5.0)
    with pytest.raises(ParseError):
        parse_parameters("It must lie within [-5, 5].", square)


def test_explanation_is_what_follows_the_values():
    assert parse_parameters("1, 2, 3\nI think so.\nReally.", BOX).explanation == (
        "I think so.\nReally."
    )
    same_line = "params[0]: 1, params[1]: 2, params[2]: 3. I think so."
    assert parse_parameters(same_line, BOX).explanation == "I think so."
    assert len(parse_parameters("1, 2, 3\n" + "x" * 50_000, BOX).explanation) == 4000


def test_history_echo_is_not_the_answer():
    echo = "params[0]: 9, params[1]: 9, params[2]: 9; f = 3.2\n"
    failed = "params[0]: 8, params[1]: 8, params[2]: 8; failed: diverged\n"
    answer = "params[0]: 1, params[1]: 2, params[2]: 3"
    assert parse_parameters(echo + failed + answer, BOX).values == (1.0, 2.0, 3.0)
    assert parse_parameters(answer + "\n" + echo, BOX).values == (1.0, 2.0, 3.0)
    # A model that writes only lines of that form means the last one.
    assert parse_parameters(echo + answer + "; f = 9", BOX).values == (1.0, 2.0, 3.0)


def test_a_line_that_names_all_wins_over_what_prose_says_before():
    text = "params[1]: 5 was too much.\nparams[0]: 1, params[1]: 2, params[2]: 3"
    assert parse_parameters(text, BOX).values == (1.0, 2.0, 3.0)


def test_names_that_begin_alike_and_choices():
    text = "lr: 3e-4, lr_decay: 0.9, layers: 4, optimizer: adamw"
    assert parse_parameters(text, MIXED).values == (3e-4, 0.9, 4, "adamw")


@pytest.mark.parametrize(
    ("written", "choice"),
    [
        ("ADAM", "adam"),
        ('"adamw"', "adamw"),
        ("'sgd, momentum'", "sgd, momentum"),
        ("None", None),
        ("null", None),
        ("true", True),
        ("1", 1),
        ("'1'", "1"),
        ("2.50", 2.5),
    ],
)
def test_choices(written, choice):
    values = parse_parameters(
        f"lr: 0.01, lr_decay: 0, optimizer: {written}, layers: 3.0", MIXED
    ).values
    assert values[3] == choice
    assert type(values[3]) is type(choice)
    assert values[2] == 3
    assert type(values[2]) is int


def test_letters_that_only_a_pattern_takes_for_the_same():
    space = Space({"wi": Float(0, 1), "c": Categorical(["sin", "cos"])})
    for text in ("wi: 1, c: s\u0131n", "w\u0131: 1, c: sin"):
        with pytest.raises(ParseError, match=r"no readable value|there is no value"):
            parse_parameters(text, space)


def test_nested_json_of_a_dict_space():
    space = Space.of(
        gym.spaces.Dict({"w": gym.spaces.Box(-1.0, 1.0, (2,)), "k": gym.spaces.Discrete(4)})
    )
    by_name = dict(
        zip(
            space.names,
            parse_parameters('Here: {"answer": {"w": [0.5, -0.25], "k": 3}}', space).values,
            strict=True,
        )
    )
    assert by_name == {"w[0]": 0.5, "w[1]": -0.25, "k": 3}


def test_out_of_range():
    text = "lr: 4.2, lr_decay: 0.5, layers: 99, optimizer: adam"
    reading = parse_parameters(text, MIXED)
    assert reading.values == (0.1, 0.5, 8, "adam")
    assert reading.clipped
    with pytest.raises(ParseError, match=r"`lr` = 4\.2 is outside \[.*; `layers` = 99 is outside"):
        parse_parameters(text, MIXED, out_of_range="reject")
    with pytest.raises(ValueError, match="expected 'clip' or 'reject'"):
        parse_parameters(text, MIXED, out_of_range="wrap")


def test_the_bound_as_shown_is_inside():
    space = Space({"x": Float(0.04, 1)}, decimals=1)
    assert parse_parameters("x: 0.0", space, out_of_range="reject").values == (0.04,)
    assert parse_parameters("x: 0.0", space) == Reading((0.04,), "", False)  # not clipped
    assert parse_parameters("x: -0.06", space).clipped
    with pytest.raises(ParseError, match="outside"):
        parse_parameters("x: -0.06", space, out_of_range="reject")


@pytest.mark.parametrize("bad", ["nan", "NaN", "inf", "-Infinity", "1e999"])
def test_not_finite_is_refused(bad):
    for text in (f"1, {bad}, 2", f'{{"params[0]": 1, "params[1]": {bad}, "params[2]": 2}}'):
        with pytest.raises(ParseError, match=r"`params\[1\]` must be a finite number"):
            parse_parameters(text, BOX)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is empty"),
        ("<think>params[0]: 1, params[1]: 1, params[2]: 1", "reasoning was not followed"),
        ("I cannot do that.", "no parameter values were found"),
        ("1, 2", "found 2 values, expected 3"),
        ("[1, 2, 3, 4]", "found 4 values, expected 3"),
        ("params[0]: 1, params[2]: 3", r"there is no value for `params\[1\]`"),
        ("params[0]: 1, params[1]: high, params[2]: 3", r"`params\[1\]` has no .*'high'"),
        ("params[0]: 1, params[1]: 1/2, params[2]: 3", r"`params\[1\]` has no readable value"),
        ("params[0]: 1, params[1]: 5%, params[2]: 3", r"`params\[1\]` has no readable value"),
    ],
)
def test_errors_say_what_was_wrong(text, reason):
    with pytest.raises(ParseError, match=reason) as caught:
        parse_parameters(text, BOX)
    assert caught.value.raw == text
    assert "params[0]: <value>" in caught.value.reason
    assert pickle.loads(pickle.dumps(caught.value)).raw == text


def test_the_first_of_a_line_and_a_JSON_object_is_read():
    pair = Space({"a": Float(0, 9), "b": Float(0, 9)})
    line, data = "a: 3, b: 4", '{"a": 1, "b": 2}'
    assert parse_parameters(f"{data}\n{line}", pair).values == (1.0, 2.0)
    assert parse_parameters(f"{line}\n{data}", pair).values == (3.0, 4.0)


SPACES = [
    BOX,
    MIXED,
    Space({"x": Float(0, 1)}),
    Space({"a": Int(-3, 3), "A": Int(0, 9)}),
    Space.of(gym.spaces.Tuple((gym.spaces.Discrete(3), gym.spaces.Box(-1, 1, (2, 2))))),
    Space(
        {"strange, name: [1]=": Float(-1, 1), "n": Int(0, 5), "é (mm)": Categorical(["", "a b"])}
    ),
]
TOKENS = st.sampled_from(
    [
        "params[0]", "params[1]", "params[2]", "lr", "lr_decay", "layers", "optimizer", "a", "A",
        "x", "[0]", "[1][0,0]", ":", "=", ",", ";", " ", "\n", "[", "]", "{", "}", "(", ")", '"',
        "'", "`", "```\n", "*", "<think>", "</think>", "f = ", "nan", "inf", "-", "\u2212", "1",
        "2.5", "1e5", "1e99999", "9" * 30, "0.1", "adam", "None", "true", "null", "failed", "/",
        "\\", "\u0663", "\x00", "é (mm)", "'a b'",
    ]
)  # fmt: skip


def read_or_error(text, space, **options):
    try:
        return parse_parameters(text, space, **options)
    except ParseError as error:
        return error


@examples(130, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.one_of(st.text(), st.lists(TOKENS, max_size=60).map("".join)),
    st.sampled_from(SPACES),
    st.sampled_from(["clip", "reject"]),
)
def test_any_text_gives_a_valid_point_or_a_parse_error(text, space, out_of_range):
    reading = read_or_error(text, space, out_of_range=out_of_range)
    if isinstance(reading, ParseError):
        assert reading.raw == text
        assert 0 < len(reading.reason) < 1000
        return
    assert space.check(reading.values) == reading.values
    assert len(reading.explanation) <= 4000


def labelled(names, shown):
    return ", ".join(f"{n}: {v}" for n, v in zip(names, shown, strict=True))


@examples(50)
@given(st.sampled_from(SPACES[:5]), st.integers(0, 2**32))
def test_what_the_prompt_shows_is_read_back(space, seed):
    sampled = space.sample(np.random.default_rng(seed))
    texts = [space.format(i, v) for i, v in enumerate(sampled)]
    values = space.clip([space.parse_value(i, text) for i, text in enumerate(texts)])
    shown = [space.format(i, v) for i, v in enumerate(values)]
    forms = [
        labelled(space.names, shown),
        labelled(space.names, shown).replace(", ", "\n"),
        labelled(space.names, shown).replace(": ", " = "),
        f"[{', '.join(shown)}]",
        "; ".join(shown),
        "I take this:\n```\n" + labelled(space.names, shown) + "\n```",
    ]
    if space is MIXED:  # a comma inside a choice is no separator of lines
        del forms[1]
    else:
        forms.append(json.dumps(dict(zip(space.names, values, strict=True))))
        forms.append(" ".join(shown))
    for text in forms:
        read = parse_parameters(text + "\nthe reason", space)
        assert space.key(read.values) == space.key(values), text
        assert not read.clipped


@pytest.mark.parametrize(
    "unit",
    [
        "1", "1 ", "1,", "1.1.", "a: ", "params[", "params[0]: ", "params[0]: 1, ", "[", "[1,",
        "{", '{"a":', "(1", "((", "`", "*", "* ", "- ", " ", "\n", "\t\n", "<think>", "</think>",
        "```\n", "x ", "e1", "-", "1e", "1e1", "f = ", "f(", "params[0]\\ ", '"', "'", "ab ",
        "{}", "{1},",
        "1 x 10^", "[1 2 3 4] ", "range of [1,1,1] ", "params[0]: 1, params[1]: 1, params[2]: 1 ",
    ],
)  # fmt: skip
def test_hostile_text_takes_linear_time(unit):
    text = unit * (100_000 // len(unit)) + "!"
    start = time.process_time()
    for space in (BOX, MIXED):
        read_or_error(text, space)
    assert time.process_time() - start < 10  # about 0.5; quadratic time would be minutes


def test_labels_stand_for_names():
    space = Space({"x": Float(-1, 1), "y": Float(-1, 1)})
    for text in ("a: 0.5, b: -0.5", "x: 0.5, y: -0.5"):
        assert parse_parameters(text, space, labels=("a", "b")).values == (0.5, -0.5)
    with pytest.raises(ValueError, match="got 1 labels, expected one for each of 2"):
        parse_parameters("1", space, labels=("a",))
