"""Situations of public bug reports, each played by a server on the wire."""

from __future__ import annotations

import json
import re
import sys

import pytest
from provider_contract import ASK, KEY, ask, at_home, no_proxies, server
from wire import Say, anthropic_body, gemini_body, openai_body, openai_error

from llmopt import Float, LLMOptimizer, get_client
from llmopt.client.base import Message, Request
from llmopt.client.prices import Price, most_cost
from llmopt.client.providers.openai import OpenAIClient
from llmopt.errors import ClientError, StorageError, install_hint

__all__ = ["no_proxies", "server"]


@pytest.fixture
def client(server):
    return OpenAIClient("m", base_url=f"{server.url}/v1")


def vllm(context):
    """Refuse, without naming a field, what exceeds the context, as vLLM does."""

    def answer(body):
        prompt = sum(len(m["content"]) for m in body["messages"]) // 4
        if prompt + body["max_tokens"] > context:
            said = f"This model's maximum context length is {context} tokens."
            return Say({"object": "error", "message": said, "param": None, "code": 400}, 400)
        return Say(openai_body("Hypothesis: h\nStart from: new\nProposal: x: 0.5"))

    return answer


@pytest.mark.defect(11)
@pytest.mark.parametrize("context", [4096, 8192, 16_384, 32_768])
@pytest.mark.parametrize("prompt", ["props", "words"])
def test_a_listed_small_context_starts_a_search(server, client, context, prompt):
    server.lists = Say({"data": [{"id": "m", "max_model_len": context}]})
    server.play(vllm(context))
    search = LLMOptimizer({"x": Float(0.0, 1.0)}, client, prompt, warmup=0)
    assert search.ask() == {"x": 0.5}
    assert len(server.seen) == search.usage.requests == 1


@pytest.mark.defect(11)
def test_an_unlisted_small_context_is_asked_once_more_with_less(server, client, caplog):
    server.play(vllm(8192))
    ask(client, Request((Message("user", "hi"),), max_tokens=1100))
    assert len(server.seen) == 2
    assert "at most 1100 tokens from now on" in caplog.text
    assert "maximum context length is 8192" in caplog.text
    client.complete(Request((Message("user", "hi"),), max_tokens=1100))


@pytest.mark.defect(12)
@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("streamed", [True, False])
def test_an_answer_in_the_field_of_thoughts_is_read(server, client, caplog, field, streamed):
    body = openai_body("")
    body["choices"][0]["message"] |= {"content": None, field: "x: 0.5"}
    if streamed:
        pieces = [{"delta": {field: piece}, "index": 0} for piece in ("x: ", "0.5")]
        pieces += [{"delta": {}, "index": 0, "finish_reason": "stop"}]
        chunks = [{"choices": [piece]} for piece in pieces]
        data = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        server.play(Say(data.encode(), content_type="text/event-stream"))
    else:
        server.play(Say(json.dumps(body).encode()))
    assert client.complete(ASK).completions[0].text == "x: 0.5"
    assert "reasoning_content" in caplog.text
    body["choices"][0]["finish_reason"] = "length"  # the thoughts were cut, no answer came
    server.play(Say(json.dumps(body).encode()))
    assert client.complete(ASK).completions[0].text == ""


@pytest.mark.defect(13)
@pytest.mark.parametrize(
    ("error", "status", "retryable"),
    [
        ({"code": 402, "message": "Insufficient credits"}, 402, False),
        ({"code": 429, "message": "Rate limit exceeded"}, 429, True),
        ({"code": "rate_limit_exceeded", "message": "Slow down"}, 429, True),
        ({"type": "overloaded_error", "message": "Overloaded"}, 529, True),
        ({"code": "invalid_api_key", "message": "Wrong"}, 401, False),
    ],
)
@pytest.mark.parametrize("where", ["body", "choice"])
def test_an_error_in_the_body_of_a_success(server, client, error, status, retryable, where):
    body = {"error": error} if where == "body" else openai_body("")
    if where == "choice":
        body["choices"][0] |= {"error": error, "finish_reason": "error"}
    server.play(Say(json.dumps(body).encode()))
    with pytest.raises(ClientError) as caught:
        client.complete(ASK)
    assert (caught.value.status, caught.value.retryable) == (status, retryable)
    assert error["message"] in str(caught.value) or status == 401
    assert caught.value.unpriced == 0


@pytest.mark.defect(16)
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SSL_CERT_FILE", "/gone/certificates.pem"),
        ("SSL_CERT_DIR", "/gone/certificates"),
        ("ALL_PROXY", "socks://me:planted@127.0.0.1:9"),
        ("HTTPS_PROXY", "nonsense://proxy"),
    ],
)
@pytest.mark.parametrize("model", ["openai:m", "anthropic:m", "gemini:m"])
def test_a_broken_environment_is_named(monkeypatch, no_proxies, model, variable, value):
    monkeypatch.setenv(variable, value)
    client = get_client(model, api_key=KEY)
    for call in (client.check_ready, lambda: client.complete(ASK)):
        with pytest.raises(ClientError, match=variable) as caught:
            call()
        assert caught.value.requests == 0
        assert "planted" not in str(caught.value)


@pytest.mark.parametrize("model", ["openai:m", "anthropic:m", "gemini:m", "gemini-legacy:m"])
def test_a_missing_package_is_not_blamed_on_a_proxy(monkeypatch, no_proxies, model):
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    client = get_client(model, api_key=KEY)
    monkeypatch.setitem(sys.modules, client.module, None)
    with pytest.raises(ImportError, match=re.escape(install_hint(client.package))):
        client.complete(ASK)


@pytest.mark.parametrize("model", ["openai:m", "gemini-legacy:m"])
def test_a_proxy_that_is_not_there_may_come_back(monkeypatch, no_proxies, model):
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    with pytest.raises(ClientError, match="cannot be reached") as caught:
        get_client(model, api_key=KEY).complete(ASK)
    assert caught.value.retryable


@pytest.mark.defect(17)
@pytest.mark.parametrize(
    "path", ["", "/", "/openai/v1", "/openai/v1/", "/openai/deployments/d/chat?api-version=1"]
)
def test_the_address_of_azure_as_its_portal_shows_it(server, monkeypatch, path):
    at_home(monkeypatch)
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", KEY)
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", server.url + path)
    server.play(Say(openai_body("x = 3")), Say(openai_error("no such deployment"), 404))
    client = get_client("azure:my-deployment")
    assert client.complete(ASK).completions[0].text == "x = 3"
    assert server.seen[0].path == "/openai/v1/chat/completions"
    with pytest.raises(ClientError, match=f"{server.url}/openai/v1 does not exist there"):
        client.complete(ASK)


@pytest.mark.defect(3)
def test_a_file_is_loaded_with_its_own_model_or_not_at_all(server, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    path = tmp_path / "search.jsonl"
    LLMOptimizer({"x": Float(0.0, 1.0)}, "openai:gpt-6-luna", "props", warmup=1).save(path)
    assert LLMOptimizer.load(path).client.name == "openai:gpt-6-luna"
    for model in (f"openai+{server.url}/v1:m", f"folder:{tmp_path}"):
        LLMOptimizer({"x": Float(0.0, 1.0)}, model, "props", warmup=1).save(path)
        with pytest.raises(StorageError, match="client="):
            LLMOptimizer.load(path)
        assert LLMOptimizer.load(path, model).client.name == get_client(model).name


PRICE = Price(1.0, 10.0, cached=0.1, written=1.25)


@pytest.mark.defect(32)
@pytest.mark.parametrize(
    ("model", "path", "body"),
    [
        ("openai", "/v1", openai_body("x" * 3000, usage={"prompt_tokens": 900,
                                                         "completion_tokens": 16_424})),
        ("anthropic", "", anthropic_body("x" * 3000)),
        ("gemini", "", gemini_body("x" * 3000)),
    ],
)  # fmt: skip
def test_no_call_costs_more_than_its_bound(server, model, path, body):
    client = get_client(f"{model}:m", base_url=server.url + path, api_key=KEY, price=PRICE)
    request = Request((Message("user", "try x: 1, y: 2 " * 100),), max_tokens=40)
    bound = most_cost(client, request)
    assert 10 * (40 + 16_384) / 1e6 < bound < 0.2
    assert most_cost(client.facts(), request) == bound
    server.play(Say(body))
    assert client.complete(request).cost <= bound


@pytest.mark.defect(32)
def test_the_bound_is_none_without_a_price_and_0_on_this_machine(client):
    assert most_cost(client, ASK) is None
    assert most_cost(get_client("openai:m", price=Price(1, 1, up_to=5)), ASK) is None
    for model in ("smollm2", "network", "ollama:m"):
        assert most_cost(get_client(model), ASK) == 0.0
