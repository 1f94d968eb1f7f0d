from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import re

import pytest

from llmopt.client.base import Completion, Message, Reply, Request
from llmopt.client.http.api_keys import Secret
from llmopt.client.payment import priced
from llmopt.client.prices import Price, get_price, price_list, price_source
from llmopt.errors import install_hint


def test_cost_counts_cached_and_written_tokens_apart():
    price = Price(input=10.0, output=40.0, cached=1.0, written=12.5)
    # 1,000 prompt tokens: 600 read from the cache, 100 written to it, 300 neither.
    assert price.cost(1000, 50, 600, 100) == pytest.approx(
        (300 * 10 + 600 * 1 + 100 * 12.5 + 50 * 40) / 1e6
    )


def test_unknown_is_none_and_not_zero():
    assert get_price("openai:gpt-unheard-of") is None
    assert get_price("gpt-4o") is None
    assert get_price("groq:gpt-4o") is None


@pytest.mark.parametrize(
    ("snapshot", "model"),
    [
        ("openai:gpt-4o-2024-08-06", "openai:gpt-4o"),
        ("anthropic:claude-haiku-4-5-20251001", "anthropic:claude-haiku-4-5"),
        ("gemini:gemini-2.5-pro-002", "gemini:gemini-2.5-pro"),
    ],
)
def test_snapshots_cost_what_their_model_does(snapshot, model):
    assert get_price(snapshot) == get_price(model) is not None


def test_the_list_is_named_with_its_date(monkeypatch, tmp_path):
    found = re.fullmatch(r"genai-prices [\d.]+, newest entry of (20\d\d-\d\d-\d\d)", price_list())
    assert found
    assert "2026-01-01" < found[1] <= datetime.date.today().isoformat()
    assert price_source("openai:gpt-6-luna") == price_list()
    file = tmp_path / "prices.json"
    file.write_text(json.dumps({"openai:gpt-6-luna": {"input": 0, "output": 0}}))
    monkeypatch.setenv("LLMOPT_PRICES", str(file))
    assert price_source("openai:gpt-6-luna") == "your own"


def test_overrides(monkeypatch, tmp_path):
    file = tmp_path / "prices.json"
    file.write_text(json.dumps({"openai:gpt-4o": {"input": 5, "output": 6}}))
    monkeypatch.setenv("LLMOPT_PRICES", str(file))
    assert get_price("openai:gpt-4o") == Price(5, 6)
    assert get_price("openai:gpt-4o-2024-08-06") == Price(5, 6)
    assert get_price("openai:gpt-4o-mini") == Price(0.15, 0.6, 0.075)
    file.write_text(json.dumps({"openai:gpt-4o": {"input": 50, "output": 60}}))
    os.utime(file, ns=(1, 1))
    assert get_price("openai:gpt-4o") == Price(50, 60)


@pytest.mark.parametrize("content", ["{", "[1]", '{"m": {"input": 1}}', '{"m": {"inptu": 1}}'])
def test_a_prices_file_that_cannot_be_read(monkeypatch, tmp_path, content):
    file = tmp_path / "prices.json"
    file.write_text(content)
    monkeypatch.setenv("LLMOPT_PRICES", str(file))
    with pytest.raises(ValueError, match="LLMOPT_PRICES"):
        get_price("openai:gpt-4o")


class FakePackage:
    """What is used of `genai_prices`: a price that rises at noon, and a tier."""

    def get_snapshot(self):
        return self

    def find_provider_model(self, model, provider, provider_id, url):
        if (provider_id, model) != ("x-ai", "grok-9"):
            raise LookupError(model)
        return None, self

    def get_prices(self, when):
        from types import SimpleNamespace

        tiers = [SimpleNamespace(start=1000)]
        price = 3.0 if when.hour >= 12 else 2.0
        return SimpleNamespace(
            input_mtok=SimpleNamespace(base=price, tiers=tiers),
            output_mtok=10.0,
            cache_read_mtok=0.5,
        )


def test_the_dearest_hour_counts(monkeypatch):
    import sys

    from llmopt.client import prices

    prices._listed.cache_clear()
    monkeypatch.setitem(sys.modules, "genai_prices", FakePackage())
    monkeypatch.setitem(sys.modules, "genai_prices.data_snapshot", FakePackage())
    try:
        assert get_price("xai:grok-9") == Price(3.0, 10.0, 0.5, up_to=1000)
        assert get_price("xai:grok-10") is None
    finally:
        prices._listed.cache_clear()


def test_without_the_package_a_price_is_unknown_and_the_remedy_named(monkeypatch):
    import sys

    from llmopt.client import prices

    prices._listed.cache_clear()
    prices.price_list.cache_clear()
    monkeypatch.setitem(sys.modules, "genai_prices.data_snapshot", None)

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    try:
        assert get_price("openai:gpt-5-mini") is None
        assert install_hint("prices") in price_list()
    finally:
        prices._listed.cache_clear()
        prices.price_list.cache_clear()


@pytest.mark.parametrize(
    ("told", "cost", "estimated"),
    [
        # What a real provider tells stays: discounts, cached prompts, hidden reasoning.
        ({"prompt_tokens": 400, "completion_tokens": 90, "cost": 6e-4}, 6e-4, False),
        ({"prompt_tokens": 400, "completion_tokens": 90, "cached_tokens": 400}, 1.3e-3, False),
        ({"prompt_tokens": 200, "completion_tokens": 9000}, 0.092, False),
    ],
)
def test_the_cost_of_a_reply(told, cost, estimated):
    request = Request((Message("user", "Find the best x and y, said the one to the other. " * 30),))
    answer = Reply((Completion("x: 0.5, since it is near the best one. " * 9),), **told)
    found = priced(answer, request, Price(10.0, 10.0, cached=1.0), True, Secret())
    assert found.estimated == estimated
    assert found.cost == pytest.approx(cost)
