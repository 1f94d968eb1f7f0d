"""Small changes of the best point, once the model has ended the search: ``finish="auto"``."""

from __future__ import annotations

import pytest

from llmopt import Categorical, Float, Int, ScriptedClient, maximize, minimize

SPACE = {"x": Float(-6, 6), "y": Float(-6, 6)}
STOP = "Hypothesis: nothing is left\nStart from: #1\nProposal: stop"


def loss(p):
    return (p["x"] - 3.1) ** 2 + (p["y"] + 1.7) ** 2


def answer(x, y):
    return f"Hypothesis: h\nStart from: new\nProposal:\nx: {x}, y: {y}"


def search(n=60, script=None, f=loss, space=SPACE, call=minimize, **options):
    options = {"prompt": "words", "seed": 0, "warmup": 2, "may_stop": True, **options}
    script = [answer(3, -2), STOP] if script is None else list(script)
    return call(f, space, n, ScriptedClient(script), progress=False, **options)


def sources(found):
    return [t.source for t in found.trials]


@pytest.mark.parametrize("call", [minimize, maximize])
def test_small_changes_go_on_where_the_model_stops(call):
    sign = 1 if call is minimize else -1
    found = search(call=call, f=lambda p: sign * loss(p))
    assert sources(found) == ["warmup"] * 2 + ["llm"] + ["finish"] * 57
    assert sign * found.best.reward < 0.01
    assert found.finish.evaluations == 57
    assert found.finish.gain == pytest.approx(loss({"x": 3, "y": -2}) - sign * found.best.reward)
    assert "ended the search" in found.stopped
    assert "57 small changes of the best point gained" in repr(found)
    assert found.usage.requests == 2
    assert found.usage.proposals == {"warmup": 2, "llm": 1, "finish": 57}


def test_they_go_on_where_a_cap_is_reached():
    found = search(script=[answer(3, -2)] * 2, max_requests=1)
    assert sources(found)[3:] == ["finish"] * 57
    assert "max_requests=1" in found.stopped


@pytest.mark.parametrize("finish", ["off", None])
def test_they_can_be_turned_off(finish):
    found = search(finish=finish)
    assert len(found.trials) == 3
    assert found.finish is None


def test_another_word_is_refused():
    with pytest.raises(ValueError, match="finish='on'"):
        search(finish="on")


def test_they_end_by_themselves_once_the_steps_have_shrunk_to_nothing():
    found = search(500, script=[answer(3.1, -1.7), STOP])
    assert found.finish.gain == 0.0
    assert 20 < found.finish.evaluations < 80
    assert "gained nothing" in repr(found)


def test_there_are_none_without_numbers_and_where_values_are_noisy():
    space = {"c": Categorical(list("abcdefgh"))}
    script = ["Hypothesis: h\nStart from: new\nProposal:\nc: a", STOP]
    assert search(8, script, lambda p: ord(p["c"]), space, warmup=1).finish is None
    assert search(noisy=True).finish is None


def test_limits_are_kept_and_a_space_without_further_points_ends():
    found = search(f=lambda p: -p["x"] - p["y"], constraints="x + y <= 2")
    assert all(t.values[0] + t.values[1] <= 2 + 1e-9 for t in found.trials if t.source == "finish")
    assert found.best.reward == pytest.approx(-2)
    few = {"k": Int(1, 3)}
    script = ["Hypothesis: h\nStart from: new\nProposal:\nk: 2", STOP]
    assert len(search(30, script, lambda p: p["k"], few, warmup=[{"k": 1}]).trials) == 3


def test_a_killed_finish_goes_on_with_the_same_points(tmp_path):
    whole, path = search(40), tmp_path / "run.jsonl"
    calls = []

    def dies(p):
        calls.append(p)
        if len(calls) in (9, 20):
            raise KeyboardInterrupt
        return loss(p)

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            search(40, f=dies, storage=path)
    found = search(40, f=dies, storage=path, script=())
    assert [t.values for t in found.trials] == [t.values for t in whole.trials]
    assert found.finish == whole.finish
