"""Evidence for capable models: the table, its digits, parents, hypotheses, lessons, feedback."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmopt import Categorical, Float, Int, ParseError, Space
from llmopt.client.facts import ModelFacts
from llmopt.history import History, Trial
from llmopt.prompt import Situation, get_prompt
from llmopt.prompt.evidence import Evidence, start_of
from llmopt.prompt.parse_change import parse_change

SPACE = Space({"gain": Float(-6, 6), "bias": Float(0, 1), "steps": Int(1, 9)})
LABELS = SPACE.names


def trial(number, values, reward, **more):
    rewards = None if reward is None else (reward,)
    state = "failed" if reward is None else "complete"
    fields = {"state": state, "source": "llm", **more}
    return Trial(number, SPACE.unflatten(values), values, rewards, **fields)


TRIALS = (
    trial(0, (1.0, 0.5, 3), 10.0, source="warmup"),
    trial(1, (2.0, 0.5, 3), 14.0, stderr=0.5, evaluations=5, explanation="Hypothesis: more gain."),
    trial(2, (2.0, 0.25, 4), None, feedback="it fell", explanation="Hypothesis: two at once."),
    trial(
        3,
        (2.5, 0.5, 3),
        13.0,
        feedback="a\n\n b  c\n" + "x" * 50,
        explanation="Lesson: **gain above 2 shakes.**\nHypothesis: still more.\nStart from: #2",
    ),
    trial(4, (2.5, 0.5, 3), 13.5, explanation="Lesson: none\nStart from: #4"),
)


def evidence(trials=TRIALS, **more):
    return Evidence(History(trials), SPACE, LABELS, trials, **more)


def test_one_header_row_and_the_best_marked():
    shown = evidence()
    assert shown.header == "# | f | gain | bias | steps | made from"
    assert shown.rows == [
        "*2 | 14 ± 0.5 (5 times) | 2 | 0.5 | 3 | #1: gain 1 -> 2",
        "5 | 13.5 | 2.5 | 0.5 | 3 | #4 again",
        "4 | 13 | 2.5 | 0.5 | 3 | #2: gain 2 -> 2.5",
        "1 | 10 | 1 | 0.5 | 3 | warmup",
        "3 | failed | 2 | 0.25 | 4 | ",
    ]


def test_digits_grow_as_the_best_points_close_in():
    close = tuple(trial(i, (1.23456789 + i * 1e-5, 0.5, 3), float(i)) for i in range(5))
    assert "1.234608" in evidence(close).rows[0]
    wide = tuple(trial(i, (1.23456789 + i, 0.5, 3), float(i)) for i in range(5))
    assert "| 5.23 |" in evidence(wide).rows[0]


def test_a_hypothesis_has_the_change_that_it_brought():
    lines = evidence().hypotheses()
    assert lines[0] == ('#2: "more gain." -> f = 14 ± 0.5 (5 times) (+4 against #1, its start)')
    assert lines[1] == '#3: "two at once." -> failed'
    assert "-1 against #2, its start" in lines[2]
    assert "-0.5 against #2, the best until then" in lines[3]
    assert evidence().hypotheses(0) == []


def test_lessons_are_kept_once_and_empty_ones_dropped():
    assert evidence().lessons() == ["gain above 2 shakes."]


def test_feedback_of_the_best_and_the_latest_keeps_whole_lines():
    titles = evidence(feedback_limit=20).closeups(best=1, last=2)
    assert titles == [
        ("#4, one of the best, f = 13", "a\nb c\n…"),
        ("#3, one of the latest, failed", "it fell"),
    ]


def test_a_point_may_be_given_as_a_change():
    points = [t.values for t in TRIALS]
    answer = "Hypothesis: h\nStart from: #2\nProposal:\ngain: 2.2"
    reading = parse_change(answer, SPACE, points=points)
    assert reading.values == (2.2, 0.5, 3)
    assert reading.explanation == "Hypothesis: h\nStart from: #2"
    again = parse_change("Start from: #2\nProposal: no change", SPACE, points=points)
    assert again.values == points[1]
    whole = parse_change(
        "Start from: new\nProposal: gain: 1, bias: 0, steps: 2", SPACE, points=points
    )
    assert whole.values == (1.0, 0.0, 2)
    full = parse_change("Start from: #1\nProposal:\n1, 0.25, 2", SPACE, points=points)
    assert full.values == (1.0, 0.25, 2)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("Start from: #9\nProposal: gain: 1", "no point #9"),
        ("Start from: #1\nProposal:\ngain: 1\ngian: 2", "'gian' is none of the parameters"),
        ("Start from: #1\nProposal: hm, let me think", "no parameter values"),
        ("Proposal: stop", "no parameter values"),
    ],
)
def test_what_cannot_be_read_says_why(answer, reason):
    with pytest.raises(ParseError, match=reason):
        parse_change(answer, SPACE, points=[t.values for t in TRIALS])


def test_an_answer_may_end_the_search_where_it_was_offered():
    reading = parse_change("Proposal: **stop**.", SPACE, points=[TRIALS[0].values], may_stop=True)
    assert reading.stop
    assert reading.values == TRIALS[0].values


@given(st.text(max_size=300), st.booleans())
def test_any_text_is_a_point_or_an_error(text, may_stop):
    points = [t.values for t in TRIALS]
    for answer in (text, f"Start from: #2\nProposal:\n{text}", f"Start from: #{text}"):
        start_of(answer)
        try:
            reading = parse_change(answer, SPACE, points=points, may_stop=may_stop)
        except ParseError:
            continue
        SPACE.check(reading.values)


def test_categories_and_wide_spaces():
    space = Space({"kind": Categorical(["a", "b"]), **{f"w{i}": Float(0, 1) for i in range(60)}})
    trials = tuple(
        Trial(i, {}, ("a", *[0.5] * 59, i / 10), (float(i),), source="llm") for i in range(6)
    )
    rows = Evidence(History(trials), space, space.names, trials).rows
    assert [len(r.split(" | ")) > 10 for r in rows] == [True, True, True, False, False, False]
    assert rows[3].endswith("w59 0.1 -> 0.2") or "w59" in rows[3]


def test_the_prompt(check_golden):
    situation = Situation.after(
        History(TRIALS, ((1.0, 0.5, 4),)),
        SPACE,
        ModelFacts("m"),
        description="A crane that swings.",
        total=30,
        noisy=True,
        may_stop=True,
    )
    request = get_prompt("words").prepare(situation).request
    text = "\n".join(f"--- {m.role} ---\n{m.content}" for m in request.messages)
    check_golden("words", text + "\n")
    assert request.max_tokens > 16_000
    bare = get_prompt("words").prepare(Situation.after(History(), SPACE, ModelFacts("m"))).request
    check_golden("words_bare", "\n".join(m.content for m in bare.messages) + "\n")


def test_points_measured_on_the_same_starts_are_compared_start_by_start():
    pair = (
        trial(0, (1.0, 0.5, 3), 10.0, samples=(0.0, 10.0, 20.0)),
        trial(1, (2.0, 0.5, 3), 11.0, samples=(1.0, 11.5, 20.5), explanation="Hypothesis: more."),
    )
    assert "+1 ± 0.29 start by start against #1, its start" in evidence(pair).hypotheses()[0]
    other = (pair[0], trial(1, (2.0, 0.5, 3), 11.0, samples=(1.0,), explanation="Hypothesis: x."))
    assert "start by start" not in evidence(other).hypotheses()[0]
