from __future__ import annotations

import json
import math

import pytest

from llmopt.client.prices import _TABLE, FREE, PRICES_AS_OF, Price, get_price, set_price


def test_cost_counts_cached_and_written_tokens_apart():
    price = Price(input=10.0, output=40.0, cached=1.0, written=12.5)
    # 1,000 prompt tokens: 600 read from the cache, 100 written to it, 300 neither.
    assert price.cost(1000, 50, 600, 100) == pytest.approx(
        (300 * 10 + 600 * 1 + 100 * 12.5 + 50 * 40) / 1e6
    )


def test_no_cache_price_means_the_full_price():
    assert Price(10.0, 40.0).cost(1000, 0, 600) == Price(10.0, 40.0).cost(1000, 0)


def test_beyond_its_range_a_price_is_unknown():
    price = Price(1.0, 2.0, up_to=1000)
    assert price.cost(1000, 1) is not None
    assert price.cost(1001, 1) is None


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


def test_a_snapshot_with_a_price_of_its_own():
    assert get_price("openai:gpt-4o-2024-05-13") != get_price("openai:gpt-4o")


def test_mini_is_not_taken_for_its_big_sister():
    assert get_price("openai:gpt-5-mini").input < get_price("openai:gpt-5").input


def test_the_table_is_plausible():
    assert len(PRICES_AS_OF) == 7
    for name, price in _TABLE.items():
        assert name.partition(":")[0] in ("openai", "gemini", "anthropic")
        assert 0 < price.input < price.output <= 200, name
        assert price.cached is not None, name
        assert price.cached <= price.input, name


def test_overrides(monkeypatch, tmp_path):
    own = Price(7.0, 8.0)
    file = tmp_path / "prices.json"
    file.write_text(json.dumps({"openai:gpt-4o": {"input": 5, "output": 6}}))
    monkeypatch.setenv("LLMOPT_PRICES", str(file))
    assert get_price("openai:gpt-4o") == Price(5, 6)
    assert get_price("openai:gpt-4o-2024-08-06") == Price(5, 6)
    set_price("openai:gpt-4o", own)
    try:
        assert get_price("openai:gpt-4o") == own
    finally:
        set_price("openai:gpt-4o", None)
    assert get_price("openai:gpt-4o") == Price(5, 6)
    assert get_price("openai:gpt-4o-mini") == _TABLE["openai:gpt-4o-mini"]


@pytest.mark.parametrize("content", ["{", "[1]", '{"m": {"input": 1}}', '{"m": {"inptu": 1}}'])
def test_a_prices_file_that_cannot_be_read(monkeypatch, tmp_path, content):
    file = tmp_path / "prices.json"
    file.write_text(content)
    monkeypatch.setenv("LLMOPT_PRICES", str(file))
    with pytest.raises(ValueError, match="LLMOPT_PRICES"):
        get_price("openai:gpt-4o")


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf, "3"])
def test_prices_are_finite_numbers(wrong):
    with pytest.raises(ValueError, match="input"):
        Price(wrong, 1.0)


def test_free():
    assert FREE.cost(10**9, 10**9) == 0.0
