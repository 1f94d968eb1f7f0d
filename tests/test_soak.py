"""Long searches over a bad line: no trial is lost, and no call is counted twice."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path

import pytest
from provider_contract import no_proxies, server

from llmopt import LLMOptimizer
from llmopt.client.http.retry import complete_with_retries
from llmopt.client.providers.openai import OpenAIClient
from llmopt.errors import ClientError, FallbackWarning

__all__ = ["no_proxies", "server"]


@pytest.fixture
def slept(monkeypatch):
    """The waits between attempts, of which none is waited for."""
    waits: list[float] = []
    quick = partial(complete_with_retries, sleep=waits.append)
    monkeypatch.setattr("llmopt.model_calls.complete_with_retries", quick)
    return waits


@pytest.fixture
def attacks(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent / "attacks")


def test_batches_over_a_bad_line(server, slept, attacks):
    """Where the server brings one sample a call, every call of a batch may fail by itself."""
    from provider_soak import SPACE, BadLine

    line = BadLine("openai", outage=range(60, 100))
    server.play(line)
    client = OpenAIClient("m", base_url=f"{server.url}/v1", timeout=3.0, structured=True)
    optimizer = LLMOptimizer(SPACE, client, "opro", seed=3, warmup=0)
    told, raised = 0, 0
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for _ in range(16):
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
    assert len(optimizer.trials) == told == 128
    assert optimizer.usage.requests == len(server.seen) == line.counts["calls"]
    assert len({tuple(t.values) for t in optimizer.trials}) == 128
    assert optimizer.usage.proposals == {"llm": 128}


@pytest.mark.parametrize(
    ("provider", "asks"),
    [
        ("openai", 25),
        ("anthropic", 25),
        ("gemini", 25),
        pytest.param("openai", 1000, marks=pytest.mark.sweep),
    ],
)
def test_streamed_structured_answers_over_a_bad_line(provider, asks, no_proxies, tmp_path, attacks):
    """The small form of tests/attacks/provider_soak.py, which checks that nothing is lost."""
    import provider_soak

    result = provider_soak.soak(provider, asks, tmp_path)
    assert result["calls"] > result["asks"]
    assert min(result[kind] for kind in ("429", "529", "garbage")) > 0
