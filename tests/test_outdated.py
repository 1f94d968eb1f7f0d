"""Requests of one ask: each states the results that were recorded before it was written."""

from __future__ import annotations

import contextlib

import pytest

from llmopt import ClientError, Float, LLMOptimizer, ScriptedClient
from llmopt.client.base import Completion, Reply

SPACE = {"x": Float(-3, 3), "y": Float(-3, 3)}


def opened(client, path=None, **options):
    options = {"warmup": 0, "prompt": "props", "noisy": True} | options
    return LLMOptimizer(SPACE, client, direction="maximize", storage=path, **options)


def seen(client):
    """Return the messages of each request as one text."""
    return ["\n".join(m.content for m in r.messages) for r in client.requests]


def answer(number):
    return f"x: {number}, y: 0.5"


class Killed(BaseException):
    """What a signal leaves of an ask."""


def killed(_):
    raise Killed


@pytest.mark.parametrize("how", ["plain", "partial", "fixed"])
def test_later_requests_of_an_ask_state_results_that_came_during_the_earlier(how):
    def correct(_):
        optimizer.tell({"x": 2, "y": 2}, 69.46, replaces=0)
        return Reply((Completion(answer(1)),))

    client = ScriptedClient([correct, answer(1.5), answer(2.5)])
    optimizer = opened(client)
    optimizer.tell({"x": 2, "y": 2}, 96.46)
    if how == "partial":
        optimizer.enqueue({"x": 1})
    points = optimizer.ask(3, fixed={"y": 0.5} if how == "fixed" else None)
    assert [point["x"] for point in points] == [1, 1.5, 2.5]
    first, second, third = seen(client)
    assert "96.46" in first
    for later in (second, third):
        assert "69.46" in later
        assert "96.46" not in later
    assert "x: 1.0" in second  # the first point is not proposed again
    assert optimizer.usage.proposals == {"llm": 3}
    assert [t.reward for t in optimizer.trials] == [69.46]


class Keeping(ScriptedClient):
    """Keeps its requests, as a folder does: they may be answered later."""

    def kept(self, digest):
        return 1, False


def recorded(optimizer, what):
    """Record something that the interrupted ask does not know."""
    if what == "correction":
        optimizer.tell({"x": 2, "y": 2}, 69.46, replaces=0)
    elif what == "result":
        optimizer.tell({"x": 1, "y": 2}, 69.46)
    elif what == "withdrawal":
        optimizer.withdraw(trial=0)
    elif what == "queued":
        optimizer.enqueue({"x": 1})


@pytest.mark.parametrize("kind", [ScriptedClient, Keeping])
@pytest.mark.parametrize("what", ["nothing", "correction", "result", "withdrawal", "queued"])
def test_an_interrupted_ask_starts_anew_if_it_is_outdated_and_nobody_can_answer_it(
    tmp_path, caplog, what, kind
):
    first = kind([killed])
    optimizer = opened(first, tmp_path / "s.jsonl", noisy=False, max_requests=3)
    optimizer.tell({"x": 2, "y": 2}, 96.46)
    with pytest.raises(Killed):
        optimizer.ask()
    del optimizer
    second = kind([answer(1)])
    optimizer = opened(second, tmp_path / "s.jsonl", noisy=False, max_requests=3)
    recorded(optimizer, what)
    optimizer.ask()
    text = seen(second)[0]
    repeats = what == "nothing" or kind is Keeping
    assert (second.requests[0].digest() == first.requests[0].digest()) is repeats
    assert ("69.46" in text) is (not repeats and what in ("correction", "result"))
    assert ("96.46" in text) is (repeats or what in ("result", "queued"))
    doubt = int(kind is ScriptedClient)  # a request that is kept was sent once
    assert (optimizer.usage.requests, optimizer.left["requests"]) == (1 + doubt, 2 - doubt)
    said = "results or changes recorded after its request was written: 1. To send a new one"
    assert (said in caplog.text) is (repeats and what != "nothing")
    assert optimizer.usage.proposals == {"llm": 1}


def test_a_paid_answer_is_used_and_its_age_is_said(tmp_path, caplog):
    optimizer = opened(ScriptedClient([answer(1)]), tmp_path / "s.jsonl")
    optimizer.tell({"x": 2, "y": 2}, 96.46)
    optimizer.ask()
    del optimizer
    lines = (tmp_path / "s.jsonl").read_text().splitlines(keepends=True)
    assert '"asked"' in lines[-1][:40]
    (tmp_path / "s.jsonl").write_text("".join(lines[:-1]))
    optimizer = opened(ScriptedClient([]), tmp_path / "s.jsonl")
    optimizer.withdraw(trial=0)
    assert optimizer.ask()["x"] == 1
    said = caplog.text.count("results or changes recorded after its request was written: 1\n")
    assert said == 1


@pytest.mark.parametrize("kind", [ScriptedClient, Keeping])
@pytest.mark.parametrize("partial", [False, True])
def test_a_new_request_of_a_killed_ask_states_a_correction(tmp_path, partial, kind):
    first = kind([answer(1), killed])
    optimizer = opened(first, tmp_path / "s.jsonl")
    optimizer.tell({"x": 2, "y": 2}, 96.46)
    if partial:
        optimizer.enqueue({"x": 1})
    with pytest.raises(Killed):
        optimizer.ask(3)
    del optimizer

    second = kind([answer(1.5), answer(2.5)])
    optimizer = opened(second, tmp_path / "s.jsonl")
    optimizer.tell({"x": 2, "y": 2}, 69.46, replaces=0)
    points = optimizer.ask(3)
    assert [point["x"] for point in points] == [1, 1.5, 2.5]
    # A request that is kept is repeated as it was: its answer may wait.
    assert (second.requests[0].digest() == first.requests[1].digest()) is (kind is Keeping)
    assert ("96.46" if kind is Keeping else "69.46") in seen(second)[0]
    assert "69.46" in seen(second)[1]
    assert "96.46" not in seen(second)[1]
    assert optimizer.usage.proposals == {"llm": 3}


def test_an_ask_killed_between_two_requests_continues_with_what_was_told(tmp_path):
    """The answer to the first was paid for; the second was never sent."""
    first = ScriptedClient([answer(1), answer(1.5)])
    optimizer = opened(first, tmp_path / "s.jsonl")
    optimizer.tell({"x": 2, "y": 2}, 96.46)
    optimizer.ask(2)
    del optimizer
    lines = (tmp_path / "s.jsonl").read_text().splitlines(keepends=True)
    replied = next(i for i, line in enumerate(lines) if '"replied"' in line[:40])
    (tmp_path / "s.jsonl").write_text("".join(lines[: replied + 1]))

    second = ScriptedClient([answer(1.5)])
    optimizer = opened(second, tmp_path / "s.jsonl")
    optimizer.tell({"x": 2, "y": 2}, 69.46, replaces=0)
    assert [point["x"] for point in optimizer.ask(2)] == [1, 1.5]
    (text,) = seen(second)
    assert "69.46" in text
    assert "96.46" not in text
    del optimizer
    again = opened(ScriptedClient([]), tmp_path / "s.jsonl")
    assert [point["x"] for point in again.pending] == [1, 1.5]


def test_points_that_came_meanwhile_are_not_missing_for_a_partner():
    def tell(_):
        optimizer.tell({"x": -1, "y": -1}, 3.0)
        return Reply((Completion(answer(1)),))

    client = ScriptedClient([tell, answer(1.5)])
    optimizer = opened(client, partner="cma", max_requests=2, noisy=False)
    optimizer.tell({"x": 2, "y": 2}, 96.46)
    assert [point["x"] for point in optimizer.ask(2)] == [1, 1.5]
    assert optimizer.usage.proposals == {"llm": 2}


NEW = "Hypothesis: h.\nStart from: new\nProposal:\nx: {}"
OUTSIDE = "Hypothesis: h.\nStart from: new\nProposal:\nx: 50, y: 0.5"


def begun(client, path=None, **options):
    return opened(client, path, prompt="words", noisy=False, compute=False, **options)


def test_the_request_after_a_refused_answer_states_the_refusal_and_the_new_results(tmp_path):
    def tell(_):
        optimizer.tell({"x": 2, "y": 2}, 69.46)  # the first result of the search
        return Reply((Completion(OUTSIDE),))

    first = Keeping([tell, killed])
    optimizer = begun(first, tmp_path / "s.jsonl")
    with pytest.raises(Killed):
        optimizer.ask()
    del optimizer
    second = Keeping([killed])  # the request is kept: it is repeated as it was
    optimizer = begun(second, tmp_path / "s.jsonl")
    optimizer.tell({"x": 1, "y": 2}, 70.25)
    with pytest.raises(Killed):
        optimizer.ask()
    del optimizer
    text = seen(first)[1]
    assert "69.46" in text
    assert "`x` = 50 is outside [-3.00, 3.00]" in text
    assert second.requests[0].digest() == first.requests[1].digest()
    other = ScriptedClient([killed])  # it keeps none
    optimizer = begun(other, tmp_path / "s.jsonl")
    with pytest.raises(Killed):
        optimizer.ask()
    del optimizer
    for part in ("69.46", "70.25", "`x` = 50 is outside [-3.00, 3.00]"):
        assert part in seen(other)[0]

    lines = (tmp_path / "s.jsonl").read_text().splitlines(keepends=True)
    sent = [k for k, line in enumerate(lines) if '"called"' in line[:40]]
    (tmp_path / "s.jsonl").write_text("".join(lines[: sent[1]]))  # killed before it was sent
    third = ScriptedClient([answer(1), answer(1.5)])
    optimizer = begun(third, tmp_path / "s.jsonl")
    optimizer.ask()
    optimizer.ask()
    assert third.requests[0].digest() == first.requests[1].digest()
    assert "outside" not in seen(third)[1]
    assert optimizer.usage.rejected == {"unreadable": 1}


def test_a_refusal_after_a_point_of_the_same_ask_is_stated():
    def tell(_):
        optimizer.tell({"x": 2, "y": 2}, 69.46)
        return Reply((Completion(OUTSIDE),))

    client = ScriptedClient([answer(1), tell, answer(1.5)])
    optimizer = begun(client)
    assert [point["x"] for point in optimizer.ask(2)] == [1, 1.5]
    assert "69.46" in seen(client)[2]
    assert "`x` = 50 is outside [-3.00, 3.00]" in seen(client)[2]


@pytest.mark.parametrize("n", [1, 2])
def test_a_proposal_that_was_recorded_meanwhile_is_asked_for_again(tmp_path, n):
    texts = ["Hypothesis: h.\nStart from: new\nProposal:\nx: 1, y: 2"]
    texts += [part.replace("1", str(k)) for k in range(2, n + 1) for part in texts[:1]]

    def tell(_):
        optimizer.tell({"x": 1, "y": 2}, 69.46)
        return Reply((Completion("\n".join(texts)),))

    again = texts[0].replace("1", "2.5")
    client = ScriptedClient([tell, texts[0], again])
    optimizer = begun(client, tmp_path / "s.jsonl", max_fallbacks=0, points=n)
    optimizer.tell({"x": 0, "y": 0}, 1)
    assert [point["x"] for point in optimizer.ask(n)] == [2, 2.5][-n:]
    assert "69.46" in seen(client)[1]
    assert ("it was recorded as a trial meanwhile: x: 1.00, y: 2.00" in seen(client)[1]) is (n == 1)
    assert optimizer.usage.proposals == {"llm": n}
    before = optimizer.pending
    optimizer.close()
    assert begun(ScriptedClient([]), tmp_path / "s.jsonl").pending == before


def test_no_random_point_takes_the_place_of_one_recorded_meanwhile():
    text = "Hypothesis: h.\nStart from: new\nProposal:\nx: 1, y: 2"

    def tell(_):
        optimizer.tell({"x": 1, "y": 2}, 69.46)
        return Reply((Completion(text),))

    optimizer = begun(ScriptedClient([tell, *[text] * 9]), max_fallbacks=0)
    with pytest.raises(ClientError, match="could not be used, the last: this point was already"):
        optimizer.ask()
    assert optimizer.pending == []
    assert optimizer.usage.requests == 4


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("change", [{"n": 1}, {"total": 9}, {"candidates": [{"x": 0}]}, {}])
def test_a_paid_answer_that_another_ask_does_not_use_is_named(tmp_path, caplog, change, recorded):
    path = tmp_path / "s.jsonl"

    def ask(*answers, told=False, n=2, total=8, candidates=()):
        rows = [{"x": x} for x in (1, 1.5, 2, 2.5)] + [*candidates]
        options = {"total": total, "candidates": rows, "storage": path, "warmup": 0}
        client, space = ScriptedClient(answers), {"x": Float(-3, 3)}
        optimizer = LLMOptimizer(space, client, "words", compute=False, **options)
        with contextlib.closing(optimizer), contextlib.suppress(Killed):
            if told:
                optimizer.tell({"x": 2}, 1.0)
            return [point["x"] for point in optimizer.ask(n)]

    assert ask(NEW.format(1), killed) is None
    assert ask(killed, told=recorded, **change) is None
    said = "an answer that was paid for is not used: this ask differs from the one that was killed"
    assert (said in caplog.text) is bool(change)
    assert ("end this ask and repeat that one" in caplog.text) is (bool(change) and not recorded)
    if not recorded:
        assert ask(NEW.format(2.5)) == [1, 2.5]
