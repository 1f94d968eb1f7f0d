"""Asks that are cancelled, cut off or refused: what was paid for is counted once, and used."""

from __future__ import annotations

import os

import pytest

from llmopt import Float, LLMOptimizer, ScriptedClient
from llmopt.caps import Limits
from llmopt.client import Completion, Message, Reply, Request
from llmopt.errors import BudgetExceededError
from llmopt.events import Called
from llmopt.model_calls import MemoryLedger, ModelCalls, Scope

SPACE = {"x": Float(-5, 5)}


def made(client, path=None, **options):
    return LLMOptimizer(SPACE, client, "props", seed=1, warmup=0, storage=path, **options)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ZeroDivisionError])
def test_what_is_cut_off_in_a_request_counts(tmp_path, error):
    def cut(request):
        raise error

    path = tmp_path / "a.jsonl"
    optimizer = made(ScriptedClient(cut), path, max_requests=3)
    for _ in range(3):
        with pytest.raises(error):
            optimizer.ask()
    with pytest.raises(BudgetExceededError, match="3 requests"):
        optimizer.ask()
    assert len(optimizer.client.requests) == optimizer.usage.requests == 3
    assert optimizer.usage.unpriced == 3
    optimizer.limits = Limits(max_cost=5.0)
    with pytest.raises(BudgetExceededError, match="at an unknown cost"):
        optimizer.ask()
    optimizer.close()
    again = made(ScriptedClient(cut), path, max_requests=3)
    assert again.usage == optimizer.usage
    with pytest.raises(BudgetExceededError):
        again.ask()
    again.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_caps_hold_through_kills_in_a_request(tmp_path):
    """Each call that a kill came upon counts against the cap."""
    path, calls = tmp_path / "a.jsonl", tmp_path / "calls"

    def killed(request):
        with calls.open("a") as file:
            file.write("call\n")
        os._exit(9)

    for _ in range(6):
        child = os.fork()
        if not child:
            try:
                made(ScriptedClient(killed), path, max_requests=3).ask()
            finally:
                os._exit(1)
        os.waitpid(child, 0)
    assert calls.read_text() == "call\n" * 3
    optimizer = made(ScriptedClient([]), path)
    assert optimizer.usage.requests == optimizer.usage.failed_requests == 3
    optimizer.close()


def test_a_call_in_doubt_costs_the_most_that_it_can_when_another_follows():
    ledger, client = (
        MemoryLedger(),
        ScriptedClient([Reply((Completion("x: 1"),), "m", 9, 0, 4, cost=0.5)]),
    )
    ledger.append(Called("another request", most=0.25))
    model = ModelCalls(client, ledger)
    Scope(model, ledger.state).complete(Request((Message("user", "x?"),)))
    usage = model.usage
    assert (usage.requests, usage.failed_requests) == (2, 1)
    assert (usage.cost, usage.estimated, usage.unpriced) == (0.75, 1, 0)
