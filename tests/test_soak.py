"""A thousand asks over a bad line: no trial is lost, and no call is counted twice."""

from __future__ import annotations

import os
import random
import sys
import threading
import warnings
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from provider_contract import no_proxies, server
from wire import Cut, Hang, Say, openai_body, openai_error

from llmopt import Float, LLMOptimizer
from llmopt.client.openai import OpenAIClient
from llmopt.client.prices import Price
from llmopt.client.retry import complete_with_retries
from llmopt.errors import ClientError, FallbackWarning

__all__ = ["no_proxies", "server"]

ASKS = 1000
SPACE = {"x": Float(-5.0, 5.0), "y": Float(-5.0, 5.0)}
FAULTS = {
    "429": Say(openai_error("slow down"), 429, {"Retry-After": "3"}),
    "500": Say(openai_error("oops"), 500),
    "cut": Cut(),
    "invalid": Say(b'{"choices": [{"mess'),
    "empty": Say({"choices": []}),
}


class BadLine:
    """Answers with a new point each time, and fails now and then, and for a while at once."""

    def __init__(self, share: float, outages: dict[int, int] | None = None) -> None:
        self.random = random.Random(7)
        self.share = share
        self.outages = outages or {}
        self.lock = threading.Lock()
        self.served = 0
        self.answered = 0
        self.faults: Counter[str] = Counter()

    def __call__(self, body):
        with self.lock:
            self.served += 1
            down = any(0 <= self.served - at < n for at, n in self.outages.items())
            # Each hang costs the client's whole timeout, so they are few.
            if self.served % 150 == 0:
                self.faults["hang"] += 1
                return Hang()
            if down or self.random.random() < self.share:
                name = self.random.choice(sorted(FAULTS))
                self.faults[name] += 1
                return FAULTS[name]
            self.answered += 1
            x, y = (self.random.uniform(-5, 5) for _ in "xy")
            return Say(openai_body(f"x: {x:.6f}, y: {y:.6f}\nWhy not."))


@pytest.fixture
def slept(monkeypatch):
    """The waits between attempts, of which none is waited for."""
    waits: list[float] = []
    quick = partial(complete_with_retries, sleep=waits.append)
    monkeypatch.setattr("llmopt.search.meter.complete_with_retries", quick)
    return waits


@pytest.mark.sweep
def test_a_thousand_asks(server, slept, tmp_path):
    # At call 300 and 700 the server is down for longer than the retries last.
    line = BadLine(0.10, outages={300: 6, 700: 9})
    server.play(line)
    file = tmp_path / "run.jsonl"

    def made():
        client = OpenAIClient(
            "m", base_url=f"{server.url}/v1", timeout=1.0, price=Price(1.0, 2.0, cached=1.0)
        )
        return LLMOptimizer(SPACE, client, "opro", seed=3, warmup=0, storage=file)

    optimizer = made()
    told, raised = [], 0
    for number in range(ASKS):
        if number == ASKS // 2:
            # The process ends here, and another one goes on.
            optimizer.close()
            optimizer = made()
        while True:
            try:
                params = optimizer.ask()
                break
            except ClientError:
                raised += 1
                assert raised < 20
        optimizer.tell(params, float(number))
        told.append(params)

    usage, trials = optimizer.usage, optimizer.trials
    # No trial is lost, none is there twice, and each has the reward of its own point.
    assert [t.number for t in trials] == list(range(ASKS))
    assert [t.params for t in trials] == told
    assert [t.reward for t in trials] == [float(n) for n in range(ASKS)]
    assert len({tuple(t.values) for t in trials}) == ASKS
    assert optimizer.pending == []
    # Every call that the server saw is counted once, with the tokens of those it answered.
    assert 0.09 < sum(line.faults.values()) / line.served < 0.15
    assert set(line.faults) == {*FAULTS, "hang"}
    assert raised >= 2
    assert usage.requests == len(server.seen) == line.served
    # Where the machine is busy an answer may come too late: the client must count it as failed.
    late = usage.failed_requests - sum(line.faults.values())
    assert late >= 0
    answered = line.answered - late
    assert usage.prompt_tokens == 100 * answered
    assert usage.cached_tokens == 60 * answered
    assert usage.completion_tokens == 7 * answered
    # A call that was given up counts with the most that it may have cost.
    assert usage.cost >= answered * (100 * 1.0 + 7 * 2.0) / 1e6
    assert usage.estimated > 0 == usage.unpriced
    assert usage.proposals == {"llm": ASKS}
    assert usage.requests - usage.failed_requests - sum(usage.rejected.values()) == ASKS
    # One wait for each failure but those that ended an ask; Retry-After is honoured.
    assert len(slept) == usage.failed_requests - raised
    assert sum(w >= 3.0 for w in slept) >= line.faults["429"] - raised
    # The file holds the same.
    optimizer.close()
    again = LLMOptimizer.load(file, optimizer.client)
    assert again.trials == trials
    assert again.usage == usage


def test_batches_over_a_bad_line(server, slept, tmp_path):
    """Where the server brings one sample a call, every call of a batch may fail by itself."""
    line = BadLine(0.10, outages={100: 40})
    server.play(line)
    client = OpenAIClient("m", base_url=f"{server.url}/v1", timeout=1.0)
    optimizer = LLMOptimizer(SPACE, client, "opro", seed=3, warmup=0)
    told, raised = 0, 0
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for _ in range(40):
            while True:
                try:
                    batch = optimizer.ask(8)
                    break
                except ClientError:
                    raised += 1
                    assert raised < 20
            for params in batch:
                optimizer.tell(params, float(told))
                told += 1
    assert raised >= 1
    assert len(optimizer.trials) == told == 320
    assert optimizer.usage.requests == len(server.seen) == line.served
    assert len({tuple(t.values) for t in optimizer.trials}) == 320
    assert optimizer.usage.proposals == {"llm": 320}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_small_load_with_faults_and_kills(tmp_path, monkeypatch):
    """The small form of tests/attacks/soak.py, which checks that nothing is lost."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "attacks")
    import soak

    result = soak.soak(tmp_path, 1000, 100, 20)
    # Each comes at a random moment after 20 asks; the last one may come too late.
    assert 3 <= result["kills"] <= 5
    assert result["failed"] > 0
    del sys.modules["soak"]


@pytest.mark.parametrize("provider", ["openai", "anthropic", "gemini"])
def test_streamed_structured_answers_over_a_bad_line(provider, no_proxies, tmp_path, monkeypatch):
    """The small form of tests/attacks/provider_soak.py, which checks that nothing is lost."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "attacks")
    import provider_soak

    result = provider_soak.soak(provider, 40, tmp_path)
    assert result["calls"] > result["asks"]
    assert min(result[kind] for kind in ("429", "529", "garbage")) > 0
    del sys.modules["provider_soak"]
