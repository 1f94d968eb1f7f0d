"""Several points in one answer: a row each, one request, and none lost."""

import asyncio
import re
from contextlib import closing

import pytest

from llmopt import Float, LLMOptimizer, ScriptedClient, SearchStopped, Space
from llmopt.client.base import Message, Request
from llmopt.prompt import Reading, get_prompt
from llmopt.prompt.situation import Question, Situation

SPACE = {"x": Float(0.0, 1.0)}


class Several:
    """A prompt whose answers are numbers, one point each; ``stop`` ends the search."""

    name, changes = "several", True

    def __init__(self):
        self.asked: list[Situation] = []

    def prepare(self, situation):
        self.asked.append(situation)
        text = f"{len(situation.history.trials)} {situation.notes} {situation.complaint}"
        return Question(Request((Message("user", text),)), _read)

    def to_dict(self):
        return get_prompt("words").to_dict()


def _read(text):
    parts = text.split()
    made = [
        Reading((0.0,), "flat", False, stop=True)
        if part == "stop"
        else Reading((float(part),), f"Hypothesis: {part}", False)
        for part in parts
        if part != "bad"
    ]
    dropped = ("no number",) * parts.count("bad")
    return Reading(**{**vars(made[0]), "more": tuple(made[1:]), "dropped": dropped})


def make(answers, **options):
    client = ScriptedClient(answers)
    options = {"prompt": Several(), "warmup": 0, "seed": 1, **options}
    return LLMOptimizer(SPACE, client, **options), client


def tell(optimizer, count):
    return [optimizer.tell(p, p["x"]) for p in (optimizer.ask() for _ in range(count))]


def test_the_points_of_an_answer_are_served_in_order_by_one_request():
    optimizer, client = make(["0.1 0.2 0.3", "0.4"])
    trials = tell(optimizer, 3)
    assert [t.params["x"] for t in trials] == [0.1, 0.2, 0.3]
    assert [t.explanation for t in trials] == [f"Hypothesis: 0.{i}" for i in (1, 2, 3)]
    assert len(client.requests) == optimizer.usage.requests == 1
    assert optimizer.usage.proposals == {"llm": 3}
    assert len({t.prompt_tokens for t in trials}) == 1
    assert sum(t.prompt_tokens for t in trials) == pytest.approx(optimizer.usage.prompt_tokens)
    tell(optimizer, 1)
    assert optimizer.usage.requests == 2


def test_asks_for_several_take_from_the_answer_before_a_request_is_made():
    optimizer, client = make(["0.1 0.2 0.3 0.4", "0.5 0.6 0.7", "0.8"])
    assert [p["x"] for p in optimizer.ask(2)] == [0.1, 0.2]
    assert [p["x"] for p in optimizer.ask(4)] == [0.3, 0.4, 0.5, 0.6]
    assert [p["x"] for p in optimizer.ask(2)] == [0.7, 0.8]
    assert "2 points are evaluated at the same time" in client.requests[0].text
    assert "evaluated at the same time" not in client.requests[2].text


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"total": 2}, 1),  # fewer evaluations than parameters
        ({"total": 3}, 4),
        ({}, 4),
        ({"total": 2, "points": 3}, 3),
        ({"total": 2, "max_requests": 1}, 4),
        ({"total": 2, "max_requests": 2}, 1),
        ({"style": "completion"}, 1),
        ({"points": 2}, 2),
        ({"prompt": "props"}, 1),
        ({"prompt": "props", "points": 1}, 1),
    ],
)
def test_how_many_points_an_answer_may_hold(options, most):
    made = {"prompt": "words", "warmup": 0, "description": "A mill.", **options}
    space = {name: Float(0.0, 1.0) for name in "abc"}
    point = "a: 0.1, b: 0.2, c: 0.3"
    client = ScriptedClient([f"Proposal:\n{point}" if made["prompt"] == "words" else point])
    client.style = made.pop("style", "chat")
    LLMOptimizer(space, client, **made).ask()
    said = re.findall(r"up to (\d+) points", client.requests[0].text)
    assert said == ([str(most)] if most > 1 else [])


def test_what_cannot_be_used_is_counted_and_the_rest_is_kept():
    optimizer, _ = make(["0.1 0.1 bad 0.3"])
    assert ["Left out" in t.explanation for t in tell(optimizer, 2)] == [False, True]
    assert optimizer.usage.rejected == {"duplicate": 1, "unreadable": 1}
    assert optimizer.usage.requests == 1
    again, client = make(["0.5", "0.5 0.5", "0.6"])
    tell(again, 2)  # an answer with nothing new is complained about, once
    assert again.usage.rejected == {"duplicate": 2}
    assert "already tried" in client.requests[2].text


def test_the_model_reads_what_is_wrong_with_each_point_if_none_can_be_used():
    client = ScriptedClient(["0.1", "0.1 bad 0.7", "0.2"])
    space = Space(SPACE, constraints=["x <= 0.4"])
    optimizer = LLMOptimizer(space, client, prompt=Several(), warmup=0, seed=1)
    tell(optimizer, 2)
    assert optimizer.usage.rejected == {"unreadable": 1, "duplicate": 1, "constraint": 1}
    complaint = client.requests[2].text
    for wrong in ("no number", "x: 0.1", "already tried", "x: 0.7", "this point breaks x <= 0.4"):
        assert wrong in complaint


@pytest.mark.parametrize("told", [0, 1, 2, 3])
def test_a_stop_behind_points_ends_the_search_after_them(tmp_path, told):
    made = {"storage": tmp_path / "run.jsonl", "may_stop": True}
    optimizer, _ = make(["0.1 0.2 0.3 stop"], **made)
    tell(optimizer, told) if told else optimizer.ask()
    optimizer.close()
    optimizer, client = make(["0.9"], **made)
    with closing(optimizer):
        for waiting in optimizer.pending_proposals:
            optimizer.tell(optimizer.space.unflatten(waiting.values), 0.0)
        tell(optimizer, 3 - len(optimizer.trials))
        for _ in range(2):
            with pytest.raises(SearchStopped, match="flat"):
                optimizer.ask()
        assert [t.values for t in optimizer.trials] == [(0.1,), (0.2,), (0.3,)]
        assert client.requests == []
        copy = tmp_path / "copy.jsonl"
        optimizer.save(copy)
        loaded = LLMOptimizer.load(copy, client, prompt=Several())
        with pytest.raises(SearchStopped, match="flat"):
            loaded.ask()
        optimizer.tell({"x": 0.05}, 1.0)  # another point may change the model's mind
        assert optimizer.ask() == {"x": 0.9}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"points": 3, "prompt": "props"}, "points=3: the prompt 'props' asks for one point"),
        ({"points": 0}, "points=0: expected a whole number"),
        ({"points": "many"}, "points='many': expected a whole number from 1 to 20, or 'auto'"),
    ],
)
def test_wrong_numbers_of_points(given, expected):
    with pytest.raises(ValueError, match=expected):
        make([], **given)


def test_loops_that_wait_at_the_same_time_share_one_answer():
    optimizer, client = make(["0.1 0.2 0.3 0.4"])

    async def evaluate():
        return (await optimizer.aask())["x"]

    async def all_of_them():
        return await asyncio.gather(*(evaluate() for _ in range(3)))

    assert sorted(asyncio.run(all_of_them())) == [0.1, 0.2, 0.3]
    assert optimizer.ask() == {"x": 0.4}
    assert len(client.requests) == 1
