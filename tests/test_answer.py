"""Answers that give reasons before their point: their parts, their start, what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

from llmopt import Categorical, Float, Int, LLMOptimizer, ParseError, ScriptedClient, SearchStopped
from llmopt.client.model_facts import ModelFacts
from llmopt.history import History, Trial
from llmopt.prompt import Situation, get_prompt
from llmopt.prompt.answer import AnswerReader, notes_of, start_of, with_start
from llmopt.prompt.log import Log
from llmopt.space import Space

SPACE = Space({"gain": Float(-5, 5), "bias": Float(0, 1), "steps": Int(1, 9)})
POINTS = [(1.0, 0.5, 3), (2.0, 0.5, 3), (2.0, 0.25, 4), (-1.0, 0.0, 9)]
LINE = "gain: 1.5, bias: 0.25, steps: 2"
POINT = (1.5, 0.25, 2)
OTHER = "gain: 1, bias: 1, steps: 1"


def reader(space=SPACE, points=POINTS, **options):
    options = {"last": True, "changes": True, "may_stop": True, **options}
    return AnswerReader(space, space.names, points=points, **options)


def read(text, **options):
    return reader(**options)(text)


def structured(space=SPACE, points=POINTS, most=1, **fields):
    """Read a structured answer of `words`."""
    trials = tuple(Trial(i, {}, v, (float(i),)) for i, v in enumerate(points))
    model = ModelFacts("m", structured=True, schema=True)
    situation = Situation.after(History(trials), space, model, may_stop=True, points=most)
    usual = {"lesson": "none", "analysis": "", "hypothesis": "h", "start_from": "new"}
    answer = {**usual, "converged": False, **fields}
    return get_prompt("words").prepare(situation).read(json.dumps(answer))


def changes(**values):
    return [{"parameter": n, "value": v} for n, v in values.items()]


# What an answer starts from -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "values"),
    [
        ("Hypothesis: h\nStart from: #2\nProposal:\ngain: 2.2", (2.2, 0.5, 3)),
        ("Start from: #2\nProposal: no change", POINTS[1]),
        ("Start from: new\nProposal: gain: 1, bias: 0, steps: 2", (1.0, 0.0, 2)),
        ("Start from: #1\nProposal:\n1, 0.25, 2", (1.0, 0.25, 2)),
        ("**Start from:** point 3 (the best)\n**Proposal:**\n- gain: 4", (4.0, 0.25, 4)),
        ("Start from #4\nProposal:\ngain -> 4", (4.0, 0.0, 9)),
        ("Start from: #2\nProposal:\ngain: 2 -> 3, bias 0.5 → bias: 0.75", (3.0, 0.75, 3)),
        ("Lesson: none. Start from: #1 Proposal: x\nProposal: steps: 4", (1.0, 0.5, 4)),
    ],
)
def test_a_point_may_be_given_as_a_change(answer, values):
    assert read(answer).values == values


@pytest.mark.parametrize(
    "before",
    [
        "Starting from 2 gave nothing.\n",
        "Analysis: starting from: 2 gave nothing.\n",
        "Analysis: the two before failed.\n> Start from: #2 was wrong.\n",
        "Starting from #2, gain was the limit.\n",
    ],
)
def test_what_precedes_the_start_is_no_start(before):
    answer = f"{before}Start from: {{}}\nProposal: {LINE}"
    reading = read(answer.format("new"))
    assert (reading.values, reading.start) == (POINT, None)
    assert start_of(reading.explanation) is None
    assert read(answer.format("new, since #2 gave nothing")).start is None
    partial = answer.format("#3").replace(LINE, "gain: 3")
    assert (read(partial).values, read(partial).start) == ((3.0, 0.25, 4), 3)
    with pytest.raises(ParseError, match="no value for `bias`, `steps`"):
        read(f"{before}Start from: new\nProposal: gain: 3")


@pytest.mark.parametrize("length", [100, 3990, 4000, 20_000])
def test_a_long_analysis_loses_nothing(length):
    answer = f"Lesson: bias counts.\nAnalysis: {'a b c d. ' * (length // 9)}\nHypothesis: Less.\n"
    reading = read(f"{answer}Start from: #2\nProposal:\nbias: 0.1")
    assert (reading.values, reading.start) == ((2.0, 0.1, 3), 2)
    assert len(reading.explanation) <= 4000
    notes = notes_of(reading.explanation)
    assert (notes.lesson, notes.hypothesis, notes.start) == ("bias counts.", "Less.", 2)
    assert notes.analysis.startswith("a b c d.")
    stopped = read(f"{answer}Start from: #2\nProposal: stop")
    assert (stopped.stop, stopped.start, stopped.values) == (True, 2, POINTS[1])

    said = f"{answer}Start from: #2\nProposal: stop"
    search = LLMOptimizer(SPACE, ScriptedClient([said]), "words", warmup=0, may_stop=True)
    for point in POINTS:
        search.tell(dict(zip(SPACE.names, point, strict=True)), 1.0)
    with pytest.raises(SearchStopped, match="recommends point 2: a b c") as end:
        search.ask()
    assert end.value.point == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("Analysis: done\nHypothesis: flat", "recommends point 2: done. Hypothesis: flat"),
        ("Analysis: Done!\nHypothesis: flat", "recommends point 2: Done! Hypothesis: flat"),
        ("Hypothesis: flat", "recommends point 2: Hypothesis: flat"),
        (",", "recommends point 2"),
        ("", "recommends point 2"),
    ],
)
def test_the_reason_of_an_end_is_in_whole_sentences(words, said):
    answer = f"{words}\nStart from: #2\nProposal: stop"
    search = LLMOptimizer(SPACE, ScriptedClient([answer]), "words", warmup=0, may_stop=True)
    for point in POINTS:
        search.tell(dict(zip(SPACE.names, point, strict=True)), 1.0)
    with pytest.raises(SearchStopped) as end:
        search.ask()
    assert str(end.value).endswith(said)


def test_an_answer_without_a_hypothesis_has_none():
    explanation = read(f"I think that the gain matters.\nProposal: {LINE}").explanation
    assert notes_of(explanation).hypothesis == ""
    trials = tuple(
        Trial(i, {}, v, (1.0,), source="llm", explanation=explanation)
        for i, v in enumerate(POINTS[:2])
    )
    log = "\n".join(Log().read(History(trials), SPACE, SPACE.names).log)
    assert "hypothesis" not in log
    assert "I think" not in log


def test_a_start_may_be_renumbered():
    text = read("Hypothesis: h\nStart from: #2\nProposal:\ngain: 2.2").explanation
    assert text == "Hypothesis: h\nStart from: #2"
    assert with_start(text, 7) == "Hypothesis: h\nStart from: #7"
    assert with_start(text, None) == "Hypothesis: h\nStart from: new"
    assert with_start("no start", 7) == "no start"


# What cannot be read ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "reasons"),
    [
        ("Start from: #9\nProposal: gain: 1", ("no point #9", "from 1 to 4")),
        ("Start from: #0\nProposal: gain: 1", ("no point #0", "from 1 to 4")),
        (
            "Start from: new\nProposal: gian: 1, bias: 0, steps: 2",
            ("no value for `gain`", "'gian' is none", "mean 'gain'?", "must give all 3 values"),
        ),
        *[
            (f"Start from: #4\nProposal:\n{said}", (
                "'gian' is none of the parameters (did you mean 'gain'?)",
                'after "Start from: #4"', "only the values that differ",
            ))
            for said in ("gain: 1\ngian: 2", "gian: 2", "gain: 1, gian: 2", "bias: 1; `gian`: 2")
        ],
        ("Start from: #1\nProposal: hm, let me think", ("no parameter values", "differ from it")),
        ("Start from: #1\nProposal: gain: high", ("`gain` has no readable value", "differ from")),
        ("Start from: #1\nProposal: gain: high, bias: 0.5", ("`gain` has no readable value",)),
        (f"Proposal: {LINE[:9]}", ("no value for `bias`, `steps`", '"Start from: #number"')),
        ("Start from: new\nProposal: gain: 1", ("no value for `bias`", "must give all 3 values")),
        ("Proposal: stop", ("no parameter values",)),
        ("Start from: zero\nProposal: gain: 1", ("no value for `bias`",)),  # 0 steps are none
    ],
)  # fmt: skip
def test_what_cannot_be_read_says_why(answer, reasons):
    with pytest.raises(ParseError) as caught:
        read(answer, may_stop=False)
    for reason in reasons:
        assert reason in caught.value.reason
    assert caught.value.raw == answer


def test_a_retry_keeps_the_start_and_asks_only_for_what_differs():
    client = ScriptedClient(
        ["Start from: #4\nProposal: gian: 2", "Start from: #4\nProposal: gain: 2"]
    )
    search = LLMOptimizer(SPACE, client, "words", warmup=0)
    for point in POINTS:
        search.tell(dict(zip(SPACE.names, point, strict=True)), 1.0)
    assert search.ask() == {"gain": 2.0, "bias": 0.0, "steps": 9}
    complaint = client.requests[1].messages[-1].content
    assert "'gian' is none of the parameters (did you mean 'gain'?)" in complaint
    assert 'after "Start from: #4"' in complaint
    assert "all 3" not in complaint


def test_an_answer_may_end_the_search_where_it_was_offered():
    reading = read("Proposal: **stop**.", points=POINTS[:1])
    assert reading.stop
    assert (reading.values, reading.start) == (POINTS[0], None)
    with pytest.raises(ParseError):
        read("Proposal: stop", may_stop=False)


def test_a_point_may_be_given_as_what_is_not_zero():
    space = Space({f"w{i}": Float(-1, 1) for i in range(9)})
    reading = read("Start from: zero\nProposal:\nw3: 0.5", space=space, points=[])
    assert reading.values == (0, 0, 0, 0.5, 0, 0, 0, 0, 0)
    text = get_prompt("words").prepare(Situation.after(History(), space, ModelFacts("m")))
    assert 'after "zero" only those that are not 0' in text.request.text


REPLIES = {
    "plain": f"Analysis: (4, 5) is best; {OTHER}.\nHypothesis: h.\nProposal:\n{LINE}",
    "headings": f"## Analysis\n{OTHER}\n\n## Hypothesis\nh.\n\n## Proposal\n```\n{LINE}\n```",
    "bold": f"**Analysis:** 6 > 5.\n\n**Hypothesis:** h.\n\n**Proposal:** {LINE}",
    "numbered": f"1. Analysis: 6.\n2. Hypothesis: h.\n3. Proposal: {LINE}",
    "one line": f"Analysis: the gain. Hypothesis: h. Proposal: {LINE}",
    "JSON": 'Hypothesis: h.\nProposal:\n```json\n{"gain": 1.5, "bias": 0.25, "steps": 2}\n```',
    "remarks after it": f"Hypothesis: h.\nProposal:\n{LINE}\n\n**Expected:** unlike {OTHER}.",
    "thought aloud": f"<think>Proposal:\n{OTHER}?</think>\nHypothesis: h.\nProposal:\n{LINE}",
    "a draft before": f"Proposal: {OTHER} is far.\nHypothesis: h.\nFinal proposal: {LINE}",
    "values alone": "Analysis: (4, 5, 6) is best of 1, 2, 3.\nHypothesis: h.\n\n1.5, 0.25, 2",
    "a point quoted behind it": f"Hypothesis: h.\n\n{LINE}\n\nBest so far: {OTHER}; f = 3",
    "values first": f"{LINE}\nHypothesis: h.",
}  # fmt: skip


@pytest.mark.parametrize("changes", [True, False])
@pytest.mark.parametrize("said", REPLIES.values(), ids=list(REPLIES))
def test_the_point_is_read_and_not_the_numbers_of_the_analysis(said, changes):
    reading = read(said, changes=changes)
    assert reading.values == POINT
    assert notes_of(reading.explanation).hypothesis == "h."


def test_out_of_range_is_not_mended_by_the_analysis():
    said = "Analysis: a.\n\n[1, 0.5, 3]\n\nHypothesis: h.\nProposal:\n" + LINE.replace("1.5", "9")
    assert read(said).clipped
    with pytest.raises(ParseError, match=r"`gain` = 9 is outside") as caught:
        read(said, out_of_range="reject")
    assert caught.value.raw == said


# Several points in one answer ----------------------------------------------------------------

SCAN = """Lesson: bias counts.
Analysis: the gain is open.
Hypothesis: less gain.
Start from: #2
Proposal:
gain: 1.5
{between}Hypothesis: more gain.
Start from: #2
Proposal:
gain: 2.5
Hypothesis: all new.
Start from: new
Proposal:
gain: 3, bias: 1, steps: 4"""
SCANNED = [(1.5, 0.5, 3), (2.5, 0.5, 3), (3.0, 1.0, 4)]


def said_of(reading):
    notes = [notes_of(r.explanation) for r in reading.each]
    return [(n.lesson, n.hypothesis, n.start) for n in notes]


@pytest.mark.parametrize("between", ["", "\n", "Expected: 12.\n\n## Point 2\n\n"])
def test_an_answer_may_give_several_points(between):
    reading = read(SCAN.format(between=between), most=4)
    assert [r.values for r in reading.each] == SCANNED
    assert said_of(reading) == [
        ("bias counts.", "less gain.", 2), ("", "more gain.", 2), ("", "all new.", "new"),
    ]  # fmt: skip
    assert [r.start for r in reading.each] == [2, 2, None]
    assert reading.dropped == ()
    assert read(SCAN.format(between=between)).each[0].values == SCANNED[-1]  # one is asked for


@pytest.mark.parametrize(
    ("answer", "values", "dropped"),
    [
        # Without a hypothesis and a start of its own a point has the ones before it.
        ("Hypothesis: h.\nStart from: #2\nProposal 1: gain: 1\nProposal 2: gain: 3\n"
         "**Proposal #3:** gain: 4", [(1.0, 0.5, 3), (3.0, 0.5, 3), (4.0, 0.5, 3)], ()),
        ("Start from: #2\nProposal: gain: high\nStart from: #2\nProposal: gain: 3",
         [(3.0, 0.5, 3)], ("`gain` has no readable value",)),
        ("Start from: #2\nProposal: gain: 3\nStart from: #9\nProposal: gain: 3",
         [(3.0, 0.5, 3)], ("no point #9",)),
        ("\n".join(f"Start from: #2\nProposal: gain: {g}" for g in (0, 1, 3, 4, 5)),
         [(g, 0.5, 3) for g in (0.0, 1.0, 3.0)], ("at most 3 points",) * 2),
        (f"Hypothesis: h.\nProposal: {LINE}", [POINT], ()),
    ],
)  # fmt: skip
def test_of_several_points_the_good_ones_count(answer, values, dropped):
    reading = read(answer, most=3)
    assert [r.values for r in reading.each] == values
    assert len(reading.dropped) == len(dropped)
    assert all(said in got for got, said in zip(reading.dropped, dropped, strict=True))
    with pytest.raises(ParseError, match="no point #9") as caught:
        read("Start from: #9\nProposal: gain: 1\nStart from: #8\nProposal: gain: 2", most=3)
    assert caught.value.raw.startswith("Start from: #9")
    assert "point 2 of the answer: there is no point #8" in caught.value.reason


def test_an_answer_is_read_in_four_steps():
    steps = reader(most=2, first=5)
    one, other = steps.split(
        "Hypothesis: h.\nStart from: #2\nProposal: gain: 9\n"
        "Start from: #5\nProposal: gian: 1"
    )  # fmt: skip
    assert (one.start, one.values, one.trouble) == (2, {0: 9.0}, "")
    assert "did you mean 'gain'?" in other.trouble
    assert steps.resolve(one, {}) == (one, POINTS[1])
    values = steps.complete(one, POINTS[1])
    assert values == {0: 9.0, 1: 0.5, 2: 3}
    made = steps.check(one, values)
    assert (made.values, made.clipped, made.start) == ((5.0, 0.5, 3), True, 2)
    third = replace(one, start=5)
    assert steps.resolve(third, {5: made}) == (third, made.values)
    with pytest.raises(ParseError, match="no point #5 to start from"):
        steps.complete(*steps.resolve(third, {}))


def test_a_point_may_start_from_one_of_the_same_answer():
    answer = "Start from: #2\nProposal: gain: 3\nStart from: #{}\nProposal: steps: 7"
    reading = read(answer.format(5), most=2, first=5)
    assert [r.values for r in reading.each] == [(3.0, 0.5, 3), (3.0, 0.5, 7)]
    assert [r.start for r in reading.each] == [2, 5]
    assert said_of(reading)[1][2] == 5
    waiting = read(answer.format(8), most=2, first=8)  # points under way may come before it
    assert [r.start for r in waiting.each] == [2, 2]
    # A point that is dropped leaves its number to the next one.
    bad = read(f"Start from: #9\nProposal: gain: 9\n{answer.format(6)}", most=3, first=5)
    assert [(r.start, r.values) for r in bad.each] == [(2, (3.0, 0.5, 3)), (5, (3.0, 0.5, 7))]
    stop = read(f"{answer.format(5)}\nStart from: #6\nProposal: stop", most=2, first=5).each[-1]
    assert (stop.stop, stop.start, stop.values) == (True, 6, (3.0, 0.5, 7))


def test_several_points_of_a_structured_answer():
    def item(start, **values):
        return {"hypothesis": "h", "start_from": start, "changes": changes(**values)}

    proposals = [item("#2", gain=3), item("#9", gain=1), item("new", gain=3, bias=1, steps=2)]
    made = structured(most=4, lesson="L.", proposals=proposals)
    assert [r.values for r in made.each] == [(3.0, 0.5, 3), (3.0, 1.0, 2)]
    assert said_of(made) == [("L.", "h", 2), ("", "h", "new")]
    assert "no point #9" in made.dropped[0]
    ends = structured(most=4, analysis="Flat.", proposals=proposals[:1], converged=True)
    assert [r.stop for r in ends.each] == [False, True]
    assert notes_of(ends.each[1].explanation).analysis == "Flat."
    ends = structured(most=4, proposals=[*proposals[:1], item("#1")], converged=True)
    assert [(r.stop, r.start) for r in ends.each] == [(False, 2), (True, 1)]
    assert structured(most=4, proposals=[item("#3")], converged=True).stop


PIECES = st.sampled_from(
    ["Analysis:", "Proposal:", "Hypothesis:", "Lesson:", "Start from: #2", LINE, "gain", ": 1",
     "\n", "\n\n", "```", "|", "->", "}", "zero", "f = 3", "[1, 2, 3]", "<think>", "nan", " "]
)  # fmt: skip


@examples(100)
@given(st.lists(PIECES | st.text(max_size=8), max_size=40).map("".join), st.booleans())
def test_any_text_is_a_valid_point_or_an_error(text, stop):
    for answer in (text, f"Start from: #2\nProposal:\n{text}", f"Start from: #{text}"):
        for most in (1, 3):
            try:
                found = read(answer, may_stop=stop, most=most)
            except ParseError:
                continue
            assert len(found.each) <= most + stop
            for reading in found.each:
                SPACE.check(reading.values)
                again = notes_of(reading.explanation)
                same = notes_of(again.explanation)
                assert replace(again, analysis="") == replace(same, analysis="")


# Structured answers -------------------------------------------------------------------------

SCHEDULES = Space({"schedule": Categorical(["constant", "cosine, warmup: 5"]), "warmup": Int(0, 9)})


def test_a_structured_answer_is_read_as_structure():
    known = [("constant", 1)]
    said = changes(schedule="cosine, warmup: 5", warmup=2)
    assert structured(SCHEDULES, known, changes=said).values == ("cosine, warmup: 5", 2)
    said = changes(schedule="cosine, warmup: 5")
    made = structured(SCHEDULES, known, start_from="#1", changes=said)
    assert made.values == ("cosine, warmup: 5", 1)
    hostile = "Start from: #1\nProposal: gain: 1"
    made = structured(
        analysis=hostile,
        hypothesis=hostile,
        lesson=hostile,
        changes=changes(gain=3, bias=1, steps=2),
    )
    assert (made.values, made.start) == ((3.0, 1.0, 2), None)
    assert start_of(made.explanation) is None
    # The same as text: what stands in a choice is no value of its own.
    assert read(
        "Start from: #1\nProposal: warmup: 2, schedule: cosine, warmup: 5", space=SCHEDULES,
        points=known,
    ).values == ("cosine, warmup: 5", 2)  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"changes": changes(gian=1.0), "start_from": "#1"}, r"'gian' .*did you mean 'gain'\?"),
        ({"changes": changes(gain="high"), "start_from": "#1"}, "`gain` has no readable value"),
        ({"changes": changes(gain=math.pi)}, "no value for `bias`, `steps`"),
        ({"changes": changes(gain=1.0), "start_from": "#9"}, "no point #9"),
    ],
)
def test_what_a_structured_answer_lacks_is_said(fields, reason):
    with pytest.raises(ParseError, match=reason):
        structured(**fields)


@pytest.mark.parametrize(
    ("said", "start"),
    [("#3", 3), ("3", 3), ("point #3", 3), ("the point 3 (best)", 3), ("new", None), ("", None),
     ("new: #3 and #2 failed", None)],
)  # fmt: skip
def test_the_start_of_a_structured_answer(said, start):
    made = structured(start_from=said, changes=changes(gain=3, bias=1, steps=2))
    assert made.start == start
