"""Long searches over a bad line: no trial is lost, and no call is counted twice."""

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
from llmopt.client.retry import complete_with_retries
from llmopt.errors import ClientError, FallbackWarning

__all__ = ["no_proxies", "server"]

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
@pytest.mark.parametrize(("tells", "points"), [(1000, 1), (150, 4)])
def test_a_small_load_with_faults_and_kills(tmp_path, monkeypatch, tells, points):
    """The small form of tests/attacks/soak.py, which checks that nothing is lost."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "attacks")
    import soak

    result = soak.soak(tmp_path, tells, 100, 20, points)
    # Each comes at a random moment after 20 asks; the last one may come too late.
    assert 3 <= result["kills"] <= 5
    assert result["failed"] > 0
    del sys.modules["soak"]


@pytest.mark.parametrize(
    ("provider", "asks"),
    [
        ("openai", 40),
        ("anthropic", 40),
        ("gemini", 40),
        pytest.param("openai", 1000, marks=pytest.mark.sweep),
    ],
)
def test_streamed_structured_answers_over_a_bad_line(
    provider, asks, no_proxies, tmp_path, monkeypatch
):
    """The small form of tests/attacks/provider_soak.py, which checks that nothing is lost."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "attacks")
    import provider_soak

    result = provider_soak.soak(provider, asks, tmp_path)
    assert result["calls"] > result["asks"]
    assert min(result[kind] for kind in ("429", "529", "garbage")) > 0
    del sys.modules["provider_soak"]
