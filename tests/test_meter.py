"""The metered sender: what is counted, recorded and kept when something fails."""

from __future__ import annotations

import logging
import os
import threading

import pytest
from stubs import Gate

from llmopt import (
    BudgetExceededError,
    ClientError,
    Completion,
    Float,
    LLMOptimizer,
    Reply,
    ScriptedClient,
    StorageError,
)
from llmopt.client.base import Message, Request
from llmopt.client.http.retry import complete_with_retries
from llmopt.search.limits import Limits
from llmopt.search.meter import Meter
from llmopt.search.spend_log import SpendLog


def request(text: str) -> Request:
    return Request((Message("user", text),))


def reply(text: str) -> Reply:
    return Reply((Completion(text),), "m", prompt_tokens=3, completion_tokens=2, cost=0.5)


def make(replies, journal=None, **options) -> Meter:
    meter = Meter(ScriptedClient(replies), **options)
    meter.journal = journal or meter.journal
    return meter


def texts(meter, requests):
    """Send these requests in one ask."""
    found, _ = meter.asking(
        lambda _: [meter.send(request(text)).completions[0].text for text in requests]
    )
    return found


class File(SpendLog):
    """Stores what is spent, or does not."""

    def __init__(self) -> None:
        self.spent = []
        self.full = False

    def record(self, spent) -> None:
        if self.full:
            raise StorageError("the disk is full")
        self.spent.append(spent)


def test_spending_counts_at_once_and_the_rest_with_the_ask():
    meter = make([reply("a")])

    def ask(draft):
        meter.send(request("1"))
        meter.count_proposal("llm")
        meter.count_rejection("duplicate")
        assert (meter.usage.requests, meter.usage.cost) == (1, 0.5)
        assert (meter.usage.proposals, meter.usage.rejected) == ({}, {})
        assert meter.usage_with(draft).proposals == {"llm": 1}

    meter.asking(ask)
    assert (meter.usage.proposals, meter.usage.rejected) == ({"llm": 1}, {"duplicate": 1})


def test_a_usage_that_was_handed_out_never_changes():
    meter = make([reply("a")])
    before = meter.usage
    meter.send(request("1"))
    assert before.requests == 0
    meter.usage.requests = 100
    assert meter.usage.requests == 1


def test_an_ask_that_is_cut_off_counts_nothing_but_money_and_is_not_paid_twice():
    meter = make([reply("a"), reply("b"), ClientError("down"), reply("c")])

    def ask(_):
        for text in "123":
            meter.send(request(text))
            meter.count_proposal("llm")

    with pytest.raises(ClientError):
        meter.asking(ask)
    assert meter.usage.proposals == {}
    assert (meter.usage.requests, meter.usage.failed_requests) == (3, 1)
    # Whatever the order.
    assert texts(meter, "213") == ["b", "a", "c"]
    assert meter.usage.requests == 4
    assert meter.paid == ()


def test_replies_that_fit_no_more_are_dropped_with_a_word(caplog):
    meter = make([reply("a"), ClientError("down"), reply("b")])
    with pytest.raises(ClientError):
        texts(meter, "12")
    with caplog.at_level(logging.WARNING):
        texts(meter, ["other"])
    assert "1 paid replies of an ask that gave no point" in caplog.text
    assert meter.paid == ()


def test_an_error_after_settling_takes_nothing_back():
    meter = make([reply("a")])

    def ask(draft):
        meter.send(request("1"))
        meter.count_proposal("llm")
        meter.commit(draft)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        meter.asking(ask)
    assert meter.usage.proposals == {"llm": 1}
    assert meter.paid == ()


def test_an_ask_inside_an_ask_is_a_part_of_it():
    meter = make([reply("a")])

    def inner(draft):
        meter.send(request("1"))
        meter.count_proposal("llm")
        return draft

    def outer(draft):
        assert meter.asking(inner) == (draft, draft)
        assert not draft.committed
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        meter.asking(outer)
    assert meter.usage.proposals == {}
    assert len(meter.paid) == 1


def test_a_send_is_recorded_before_it_returns():
    file = File()
    meter = make([reply("a"), ClientError("no")], journal=file)
    meter.send(request("1"))
    assert [(s.request, s.reply, s.failed) for s in file.spent] == [(request("1"), reply("a"), 0)]
    with pytest.raises(ClientError):
        meter.send(request("2"))
    assert [(s.reply, s.failed) for s in file.spent] == [(reply("a"), 0), (None, 1)]


def test_a_reply_whose_write_fails_is_used_and_written_later(caplog):
    file = File()
    meter = make([reply("a"), reply("b")], journal=file)
    file.full = True
    with caplog.at_level(logging.WARNING), pytest.raises(StorageError):
        texts(meter, "12")  # nothing more is paid while the first is not stored
    assert "the disk is full" in caplog.text
    assert len(meter.client.requests) == 1

    def ask(_):
        assert meter.send(request("1")) == reply("a")
        meter.flush()  # as whoever writes the ask's own event

    with pytest.raises(StorageError):
        meter.asking(ask)
    assert len(meter.client.requests) == 1
    file.full = False
    assert texts(meter, "12") == ["a", "b"]
    assert [s.reply for s in file.spent] == [reply("a"), reply("b")]
    assert meter.usage.requests == 2


@pytest.mark.parametrize("at", ["announce", "record"])
def test_a_kill_while_a_call_is_announced_or_stored_leaves_it_counted(at):
    class Killed(BaseException):
        pass

    def kill(*_):
        raise Killed

    file = File()
    meter = make([reply("a"), reply("b")], journal=file)
    setattr(file, at, kill)
    with pytest.raises(Killed):
        texts(meter, "1")
    sent = len(meter.client.requests)
    assert sent == (0 if at == "announce" else 1)
    delattr(file, at)
    texts(meter, "2")  # what could not be stored is stored with the next call
    assert meter.usage.requests - meter.usage.failed_requests == len(meter.client.requests)
    assert [s.reply for s in file.spent if s.reply] == [reply("a"), reply("b")][: sent + 1]


def test_nothing_is_sent_where_the_check_refuses():
    class Closed(SpendLog):
        def check(self):
            raise StorageError("closed")

    meter = make([reply("a")], Closed())
    with pytest.raises(StorageError, match="closed"):
        meter.send(request("1"))
    assert meter.client.requests == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_in_another_threads_ask_can_ask():
    gate = Gate("x")
    meter = Meter(gate)

    def ask(_):
        meter.send(request("1"))
        meter.count_proposal("llm")

    thread = threading.Thread(target=meter.asking, args=(ask,))
    thread.start()
    assert gate.asked.wait(60)
    child = os.fork()
    if not child:
        code = 1
        try:
            meter.client = ScriptedClient([reply("a")])
            texts(meter, "2")
            code = 0 if meter.usage.proposals == {} else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    gate.open.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
    assert meter.usage.proposals == {"llm": 1}


def test_a_cap_on_a_cost_that_nobody_knows_is_refused_before_anything_is_sent():
    client = ScriptedClient([reply("a")])
    client.priced = False
    meter = Meter(client, Limits(max_cost=5.0))
    with pytest.raises(BudgetExceededError, match="price is not known"):
        meter.send(request("1"))
    assert client.requests == []
    client.priced = True
    meter.send(request("1"))


def test_a_busy_provider_is_waited_for_and_the_cap_on_requests_holds(monkeypatch):
    busy = [ClientError("busy", retryable=True, status=503) for _ in range(6)]
    client = ScriptedClient([*busy, reply("a"), *busy])
    slept = []
    monkeypatch.setitem(complete_with_retries.__kwdefaults__, "sleep", slept.append)
    meter = Meter(client, Limits(max_requests=10))
    assert meter.send(request("1")).completions[0].text == "a"
    assert sum(slept) > 30
    with pytest.raises(ClientError):
        meter.send(request("2"))
    assert len(client.requests) == meter.usage.requests == 10


def given_up(requests: int = 1) -> ClientError:
    error = ClientError("sent nothing for 600 s", retryable=True, unpriced=1)
    error.requests = requests
    return error


@pytest.fixture
def no_waiting(monkeypatch):
    defaults = complete_with_retries.__kwdefaults__
    fast = {**defaults, "sleep": lambda seconds: None}
    monkeypatch.setattr(complete_with_retries, "__kwdefaults__", fast)


def test_calls_given_up_and_lost_samples_count_as_spent_at_unknown_cost(no_waiting):
    file = File()
    lost = Reply((Completion("b"),), cost=0.5, requests=3, unpriced=2)
    meter = make([given_up(), reply("a"), lost], journal=file)
    meter.send(request("1"))
    assert (meter.usage.unpriced, meter.usage.cost) == (1, 0.5)
    meter.send(request("2"))
    assert (meter.usage.unpriced, meter.usage.cost, meter.usage.requests) == (3, 1.0, 5)
    assert [spent.unpriced for spent in file.spent] == [1, 0]


def test_a_cost_cap_ends_with_the_first_call_given_up_and_says_how_to_go_on(no_waiting):
    file = File()
    meter = make([given_up(), reply("a")], limits=Limits(max_cost=5.0), journal=file)
    with pytest.raises(BudgetExceededError, match=r"1 of the requests were abandoned.*bill"):
        meter.send(request("1"))
    assert len(meter.client.requests) == 1  # not sent once more
    assert [(s.failed, s.unpriced, s.reply) for s in file.spent] == [(1, 1, None)]
    with pytest.raises(BudgetExceededError, match="max_unpriced=1"):
        meter.send(request("1"))
    meter.limits = Limits(max_cost=5.0, max_unpriced=1)
    assert meter.send(request("1")).completions[0].text == "a"


def test_a_cap_of_infinite_cost_is_none(tmp_path):
    path, options = tmp_path / "run.jsonl", {"warmup": 1, "max_cost": float("inf"), "seed": 0}
    for _ in range(2):  # stored, and gone on with
        optimizer = LLMOptimizer({"x": Float(0, 1)}, ScriptedClient([]), storage=path, **options)
        optimizer.close()
    assert optimizer.limits == Limits()


def test_no_cost_cap_puts_up_with_calls_given_up(no_waiting):
    for limits in (Limits(max_requests=9), Limits(max_cost=float("inf"))):
        meter = make([given_up(), reply("a")], limits=limits)
        assert meter.send(request("1")).completions[0].text == "a"


def test_calls_given_up_add_up_as_in_a_resumed_search(no_waiting):
    lost = [ClientError("late", retryable=True, cost=c, estimated=1) for c in (0.1, 0.2)]
    file = File()
    paid = Reply((Completion("a"),), "m", 3, 0, 2, cost=0.7)
    meter = make([paid, *lost], journal=file)
    meter.send(request("1"))
    with pytest.raises(ClientError):
        meter.send(request("2"))
    stored = file.spent[-1]
    assert (stored.failed, stored.unpriced, stored.estimated) == (2, 0, 2)
    assert meter.usage.cost == 0.7 + stored.cost
    assert meter.usage.estimated == 2
