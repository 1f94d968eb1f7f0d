from __future__ import annotations

import time
from dataclasses import replace

import pytest
from provider_contract import ASK, KEY, ProviderContract, ask, at_home, no_proxies, server
from wire import Say, Trickle, openai_body, openai_error

from llmopt import Float, LLMOptimizer
from llmopt.client.base import Message, Request
from llmopt.client.http.endpoint import NOTHING, SERVERS, Documented, Server
from llmopt.client.http.transport import is_local
from llmopt.client.model_facts import model_facts
from llmopt.client.prices import Price
from llmopt.client.providers.openai import OpenAIClient
from llmopt.errors import ClientError

__all__ = ["no_proxies", "server"]


class TestContract(ProviderContract):
    own_variable = "OPENAI_API_KEY"
    own_address = "https://api.openai.com"
    address_variable = "OPENAI_BASE_URL"
    length = openai_body("cut off", finish="length")
    filtered = openai_body("", finish="content_filter")
    efforts = {  # noqa: RUF012
        "low": {"reasoning_effort": "low"},
        "none": {"reasoning_effort": "none"},
    }

    schema_refusal = (
        "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this "
        "model."
    )

    def client(self, server, **options):
        return OpenAIClient("m", base_url=f"{server.url}/v1", **options)

    def body(self, *texts):
        return openai_body(*texts)

    def error(self, message):
        return openai_error(message)

    def sent_key(self, headers):
        return headers.get("authorization", "").removeprefix("Bearer ")

    # A server at one's own address needs no key.


@pytest.fixture
def openai(server, monkeypatch):
    """The client of OpenAI itself, sent to the loopback server by the environment."""
    at_home(monkeypatch)
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_ORG_ID", "org-mine")
    return OpenAIClient("gpt-5-mini")


def test_parameters_on_the_wire(server, openai):
    server.play(Say(openai_body("a", "b")))
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    openai.complete(Request(ASK.messages, "chat", 0.5, 40, ("###",), 11, None, schema))
    body = server.seen[0].body
    assert server.seen[0].path == "/v1/chat/completions"
    assert server.seen[0].headers["openai-organization"] == "org-mine"
    assert body == {
        "model": "gpt-5-mini",
        "messages": [{"role": m.role, "content": m.content} for m in ASK.messages],
        "temperature": 0.5,
        "stop": ["###"],
        "seed": 11,
        "max_completion_tokens": 40 + 16_384,
        "stream": True,
        "stream_options": {"include_usage": True},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        },
    }


def unsupported(name, message, code="unsupported_parameter"):
    return Say(openai_error(message, param=name, code=code), 400)


def test_the_name_of_the_token_cap_is_found_out(server):
    client = OpenAIClient("m", base_url=f"{server.url}/v1")
    said = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. "
        "Use 'max_completion_tokens' instead."
    )
    refusal = unsupported("max_tokens", said)
    server.play(lambda body: refusal if "max_tokens" in body else Say(openai_body("x")))
    ask(client)
    assert [sorted(k for k in s.body if k.startswith("max")) for s in server.seen] == [
        ["max_tokens"],
        ["max_completion_tokens"],
    ]


IN_PARTS = openai_body("x")
IN_PARTS["choices"][0]["message"]["content"] = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
    {"type": "text", "text": "x = 1"},
]
DEEPSEEK = {"prompt_tokens": 10, "completion_tokens": 5, "prompt_cache_hit_tokens": 8}
XAI = {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 407}  # hidden in the total


@pytest.mark.parametrize(
    ("said", "text", "reason", "cached", "tokens"),
    [
        (openai_body("", refusal="I cannot do that."), "I cannot do that.", "refusal", 60, 7),
        (IN_PARTS, "x = 1", "stop", 60, 7),
        (openai_body("x", usage=DEEPSEEK), "x", "stop", 8, 5),
        (openai_body("x", usage=XAI), "x", "stop", 0, 307),
    ],
)
def test_forms_of_answers(server, openai, said, text, reason, cached, tokens):
    server.play(Say(said))
    reply = openai.complete(ASK)
    assert (reply.completions[0].text, reply.completions[0].finish_reason) == (text, reason)
    assert (reply.cached_tokens, reply.completion_tokens) == (cached, tokens)


@pytest.mark.parametrize(
    "said",
    [
        Say(openai_error("pay first", code="insufficient_quota"), 429),
        Say(openai_error("pay first"), 402),
    ],
)
def test_an_account_without_credit_is_not_asked_again(server, openai, said):
    server.play(said, said)
    with pytest.raises(ClientError, match="no credit left") as caught:
        openai.complete(ASK)
    assert not caught.value.retryable
    search = LLMOptimizer({"x": Float(0.0, 1.0)}, openai, warmup=0, on_error="fallback")
    with pytest.raises(ClientError, match="no credit left"):
        search.ask()


def test_cost(server, openai, monkeypatch):
    server.play(Say(openai_body("x")))
    # An address that is not OpenAI's does not charge OpenAI's prices, but perhaps others.
    assert openai.complete(ASK).cost is None
    assert not openai.priced
    assert OpenAIClient("x", server="ollama").current_price().cost(5, 5) == 0.0
    assert OpenAIClient("glm:cloud", server="ollama").current_price() is None
    at_home = OpenAIClient("m", base_url=f"{server.url}/v1", local=True)
    assert at_home.complete(ASK).cost == 0.0
    assert at_home.priced
    # What the user says goes before that.
    openai.price = Price(100.0, 100.0)
    assert openai.complete(ASK).cost == pytest.approx(107 * 100 / 1e6)
    openai.price = None
    monkeypatch.delenv("OPENAI_BASE_URL")
    openai.close()  # an address is resolved once for each connection
    price = openai.current_price()
    assert price.cost(100, 7, 60) == pytest.approx((40 * 0.25 + 60 * 0.025 + 7 * 2) / 1e6)
    assert OpenAIClient("gpt-unheard-of").current_price() is None


@pytest.mark.parametrize(
    ("tells", "told", "price", "cost"),
    [
        (True, 0.0125, None, 0.0125),
        (True, 0.0125, Price(1.0, 2.0), 0.0125),
        (True, 0.0, None, 0.0),  # a free model
        (True, 0.0, Price(1.0, 2.0), 2e-5),
        (True, -1.0, Price(1.0, 2.0), 2e-5),
        (True, float("nan"), None, None),
        (False, 0.0125, Price(1.0, 2.0), 2e-5),
        (False, 0.0, Price(1.0, 2.0), 2e-5),
        (False, 0.0125, None, None),
    ],
)
def test_a_cost_that_the_server_reports(server, monkeypatch, tells, told, price, cost):
    resolve, says = OpenAIClient._endpoint, Documented.COST if tells else NOTHING
    monkeypatch.setattr(
        OpenAIClient, "_endpoint", lambda client: replace(resolve(client), documents=says)
    )
    client = OpenAIClient("m", base_url=f"{server.url}/v1", price=price)
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "cost": told}
    server.play(Say(openai_body("x", usage=usage)))
    assert client.complete(ASK).cost == (cost if cost is None else pytest.approx(cost))


def test_a_server_that_takes_no_stream_options_is_asked_for_whole_answers(server, openai):
    said = openai_error("stream_options is not supported", param="stream_options")
    server.play(Say(said, 400), Say(openai_body("x")))
    reply = ask(openai)
    assert server.seen[-1].body["stream"] is False
    assert (reply.prompt_tokens, reply.estimated) == (100, 0)


@pytest.mark.parametrize(
    "body",
    [
        {"error": "Model m does not support parameter temperature."},
        {"detail": "Model m does not support parameter temperature."},
        {"detail": [{"loc": ["body", "temperature"], "msg": "Extra inputs are not permitted"}]},
        {"object": "error", "message": {"detail": [{"msg": "temperature is not supported"}]}},
        b"temperature is not supported",
    ],
    ids=["error", "detail", "list", "message", "text"],
)
def test_errors_in_the_words_of_other_servers(server, openai, body):
    server.play(Say(body, 400), Say(openai_body("x")))
    ask(openai)
    assert "temperature" not in server.seen[1].body
    server.play(Say(body, 400))
    with pytest.raises(ClientError, match="temperature"):
        ask(openai)


def test_a_prompt_that_the_filter_refuses_is_an_answer_with_a_price(server):
    client = OpenAIClient("m", base_url=f"{server.url}/v1", price=Price(1.0, 2.0))
    server.play(Say(openai_error("filtered", code="content_filter"), 400))
    reply = client.complete(ASK)
    assert reply.completions[0].finish_reason == "filter"
    assert reply.cost > 0


def _search(trials: int) -> Request:
    history = "".join(f"x = {k / 7:.4f}, y = {k / 3:.4f}, reward = {k}\n" for k in range(trials))
    text = f"Find the best x and y.\n{history}Iteration {trials + 1} of 400."
    return Request((Message("system", "You optimize. " * 80), Message("user", text)))


@pytest.fixture
def caching(openai, monkeypatch):
    """The client of a model that caches up to marks, whose address is OpenAI's own."""
    monkeypatch.setattr(Server, "hosts", lambda server, host: server.about == "OpenAI")
    return OpenAIClient("gpt-6-sol")


def test_a_growing_history_is_read_from_the_cache_of_newer_models(server, caching):
    server.play(Say(openai_body("x")))
    for trials in range(0, 400, 10):
        caching.complete(_search(trials))
    written: set[str] = set()
    sent = hit = 0
    for seen in server.seen:
        # The provider's rules: a prefix is found at a mark alone, and the latest four are written.
        text, marks = "", []
        for message in seen.body["messages"]:
            for part in message["content"]:
                text += part["text"]
                if "prompt_cache_breakpoint" in part:
                    assert part["prompt_cache_breakpoint"] == {"mode": "explicit"}
                    marks.append(text)
        assert text == "".join(m.content for m in _search(server.seen.index(seen) * 10).messages)
        sent += len(text)
        hit += max((len(t) for t in marks[-80:] if t in written and len(t) > 4000), default=0)
        written.update(marks[-4:])
        assert seen.body["prompt_cache_options"] == {"mode": "explicit"}
    assert hit / sent > 0.75
    assert not any("Iteration" in text for text in written)
    assert len({s.body["prompt_cache_key"] for s in server.seen}) == 1
    caching.complete(Request((Message("user", "Another task."),)))
    assert server.seen[-1].body["prompt_cache_key"] != server.seen[0].body["prompt_cache_key"]


def test_a_schema_is_closed(server, openai):
    server.play(Say(openai_body("{}")))
    inner = {"type": "object", "properties": {"a": {"type": "number"}}}
    schema = {"type": "object", "properties": {"x": inner, "y": {"type": "string"}}}
    openai.complete(Request(ASK.messages, json_schema=schema))
    sent = server.seen[0].body["response_format"]["json_schema"]["schema"]
    assert sent["required"] == ["x", "y"]
    assert sent["additionalProperties"] is sent["properties"]["x"]["additionalProperties"] is False
    assert "required" not in schema


def test_the_address_of_a_hosted_server_asks_for_its_variable():
    client = OpenAIClient("m", base_url="https://api.deepseek.com/v1")
    assert client.key_variables == ("DEEPSEEK_API_KEY",)
    # A name that only begins like a hosted server's gets no key of it.
    for lookalike in (
        "https://api.deepseek.com.evil.example/v1",
        "https://openrouter.evil.ai/api/v1",
    ):
        assert OpenAIClient("m", base_url=lookalike).key_variables == ("LLMOPT_API_KEY",)


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("vllm", "/v1/models", {"data": [{"id": "x"}, {"id": "m", "max_model_len": 4096}]}),
        ("llamacpp", "/props", {"default_generation_settings": {"n_ctx": 4096}}),
        ("ollama", "/api/ps", {"models": [{"name": "m:latest", "context_length": 4096}]}),
        ("lmstudio", "/api/v0/models/m", {"id": "m", "loaded_context_length": 4096}),
    ],
)
def test_servers_of_one_s_own_are_asked_for_their_context(server, monkeypatch, name, path, body):
    monkeypatch.setitem(SERVERS, name, Server(f"{server.url}/v1", "", "test"))
    client = OpenAIClient("m", server=name)
    server.lists = None
    assert model_facts(client).context_tokens is None

    def answer(sent):
        if sent is not None:
            return Say(openai_body("x"))
        return Say(body) if server.seen[-1].path == path else Say(openai_error("no"), 404)

    server.play(answer)
    reply = client.complete(ASK)
    assert reply.requests == 1
    assert model_facts(client).context_tokens == 4096
    asked = len(server.seen)
    client.complete(ASK)
    assert len(server.seen) == asked + 1


@pytest.mark.parametrize(
    "options",
    [
        {"server": "opnai"},
        {"base_url": "http://user:secret@host/v1"},
        {"base_url": "https://host/v1?key=secret"},
        {"base_url": "host:80/v1"},
        {"timeout": 0},
        {"timeout": float("inf")},
    ],
)
def test_wrong_options(options):
    with pytest.raises(ValueError, match=r"expected|unknown|base_url") as caught:
        OpenAIClient("m", **options)
    assert "secret" not in str(caught.value)


def test_a_server_that_drips_its_context_holds_no_answer_up(server):
    client = OpenAIClient("m", base_url=f"{server.url}/v1", local=True, timeout=0.3)
    server.lists = Trickle()
    server.play(lambda sent: Say(openai_body("x")) if sent is not None else Trickle())
    began = time.monotonic()
    assert client.complete(ASK).completions[0].text == "x"
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:1/v1", True),
        ("http://127.8.9.1/v1", True),
        ("http://[::1]:8000/v1", True),
        ("http://localhost/v1", True),
        ("http://127.evil.example/v1", False),
        ("http://127.0.0.1.evil.example/v1", False),
        ("http://localhost.evil.example/v1", False),
    ],
)
def test_which_addresses_are_this_machine(url, local):
    assert is_local(url) == local
