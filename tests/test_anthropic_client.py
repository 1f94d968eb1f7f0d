from __future__ import annotations

import random

import pytest
from provider_contract import ASK, KEY, ProviderContract, no_proxies, server
from wire import Drip, Say, anthropic_body, anthropic_error

from llmopt.client.base import Message, Request
from llmopt.client.http.request_form import blocks
from llmopt.client.providers.anthropic import AnthropicClient

__all__ = ["no_proxies", "server"]


class TestContract(ProviderContract):
    own_variable = "ANTHROPIC_API_KEY"
    own_address = "https://api.anthropic.com"
    address_variable = "ANTHROPIC_BASE_URL"
    length = anthropic_body("cut off", finish="max_tokens")
    # The provider has no filter of its own: what it withholds, it calls a refusal.
    filtered = anthropic_body("", finish="refusal")
    filter_reason = "refusal"
    extra = {"output_config": {"format": {"type": "x", "top_p": 0.123}}}  # noqa: RUF012
    efforts = {  # noqa: RUF012
        "low": {"output_config.effort": "low"},
        "minimal": {"output_config.effort": "low"},
        "max": {"output_config.effort": "max"},
    }

    schema_refusal = "'claude-haiku-4-5' does not support output format."

    def client(self, server, **options):
        return AnthropicClient("claude-haiku-4-5", base_url=server.url, **options)

    def body(self, *texts):
        return anthropic_body(texts[0])

    def error(self, message):
        return anthropic_error(message)

    def sent_key(self, headers):
        return headers.get("x-api-key") or headers.get("authorization", "")[7:]


@pytest.fixture
def claude(server):
    return AnthropicClient("claude-haiku-4-5", base_url=server.url, api_key=KEY)


def test_parameters_on_the_wire(server, claude):
    server.play(Say(anthropic_body("a")))
    schema = {"type": "object", "properties": {}}
    claude.complete(Request(ASK.messages, "chat", 1.5, 40, ("###", "\n\n"), 11, None, schema))
    text = {"type": "text"}
    assert server.seen[0].path == "/v1/messages"
    assert server.seen[0].body == {
        "model": "claude-haiku-4-5",
        "max_tokens": 40 + 16_384,
        "stream": True,
        "temperature": 1.0,
        "stop_sequences": ["###"],
        "system": [text | {"text": "You optimize.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [text | {"text": "Try x=1."}]},
            {
                "role": "assistant",
                "content": [text | {"text": "x = 2", "cache_control": {"type": "ephemeral"}}],
            },
            {"role": "user", "content": [text | {"text": "And now?"}]},
        ],
        "output_config": {
            "format": {"type": "json_schema", "schema": schema | {"additionalProperties": False}}
        },
    }


def test_thinking_is_not_the_answer(server, claude):
    body = anthropic_body("x = 1")
    body["content"].insert(0, {"type": "thinking", "thinking": "Hm.", "signature": "s"})
    server.play(Say(body))
    assert claude.complete(ASK).completions[0].text == "x = 1"


def _prompt(trials: int, iteration: int) -> Request:
    history = "".join(f"x = {k / 7:.4f}, y = {k / 3:.4f}, reward = {k}\n" for k in range(trials))
    text = f"Find the best x and y.\n{history}Iteration {iteration} of 400."
    return Request((Message("system", "You optimize."), Message("user", text)))


def test_blocks_of_a_growing_text():
    rng = random.Random(5)
    text = ""
    for _ in range(300):
        before = blocks(text, 50)
        assert "".join(before) == text
        assert all(b.strip() for b in before) or not text.strip()
        assert all(len(b) >= 50 for b in before[:-1])
        text += rng.choice(["a line\n", "\n", "x" * rng.randrange(90) + "\n", "  \n", "y"])
        after = blocks(text, 50)
        assert after[: len(before) - 1] == before[:-1]


def test_how_long_the_cache_is_kept(server):
    body = anthropic_body("x")
    body["usage"]["input_tokens"] = 3000
    body["usage"]["cache_creation"] = {
        "ephemeral_5m_input_tokens": 4,
        "ephemeral_1h_input_tokens": 6,
    }
    server.play(Say(body))
    kept = AnthropicClient("claude-haiku-4-5", base_url=server.url, api_key=KEY, cache="long")
    cost = (3000 * 1.00 + 4 * 1.25 + 6 * 2.00 + 60 * 0.10 + 7 * 5.00) / 1e6
    assert kept.complete(_prompt(300, 1)).cost == pytest.approx(cost)
    assert server.seen[0].body["system"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert server.seen[0].body["max_tokens"] == 32_000  # where the request has no cap
    off = AnthropicClient("claude-haiku-4-5", base_url=server.url, api_key=KEY, cache="off")
    off.complete(_prompt(300, 1))
    assert "cache_control" not in str(server.seen[1].body)
    with pytest.raises(ValueError, match="'short', 'long', 'off'"):
        AnthropicClient("m", cache="2h")


@pytest.mark.parametrize("streamed", [False, True])
def test_overload(server, claude, streamed):
    body = anthropic_error("Overloaded", "overloaded_error")
    # In the middle of a stream it comes after a status of success.
    server.play(Drip(body) if streamed else Say(body, 529))
    with pytest.raises(Exception, match="Overloaded") as caught:
        claude.complete(ASK)
    assert caught.value.retryable
    assert caught.value.status == 529
