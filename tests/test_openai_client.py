from __future__ import annotations

import json

import pytest
from provider_contract import ASK, KEY, ProviderContract, no_proxies, server
from wire import Say, openai_body, openai_error

from llmopt.client.base import Message, Request
from llmopt.client.openai import SERVERS, OpenAIClient
from llmopt.client.prices import Price, set_price
from llmopt.errors import ClientError, MissingKeyError

__all__ = ["no_proxies", "server"]


class TestContract(ProviderContract):
    variable = "LLMOPT_API_KEY"
    length = openai_body("cut off", finish="length")
    filtered = openai_body("", finish="content_filter")

    def client(self, server, **options):
        return OpenAIClient("m", base_url=f"{server.url}/v1", **options)

    def body(self, *texts):
        return openai_body(*texts)

    def error(self, message):
        return openai_error(message)

    def sent_key(self, headers):
        return headers["authorization"].removeprefix("Bearer ")

    # A server at one's own address needs no key.
    def test_no_key(self, server):
        client = self.client(server)
        server.play(Say(openai_body("x")))
        assert client.complete(ASK).completions[0].text == "x"

    def test_pickling_drops_the_key_and_copying_keeps_it(self, server, connected, monkeypatch):
        monkeypatch.setattr(OpenAIClient, "_key_required", True)
        super().test_pickling_drops_the_key_and_copying_keeps_it(server, connected, monkeypatch)


@pytest.fixture
def openai(server, monkeypatch):
    """The client of OpenAI itself, sent to the loopback server by the environment."""
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_ORG_ID", "org-mine")
    return OpenAIClient("gpt-5-mini")


def test_parameters_on_the_wire(server, openai):
    server.play(Say(openai_body("a", "b")))
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    openai.complete(Request(ASK.messages, 2, "chat", 0.5, 40, ("###",), 11, None, schema))
    body = server.seen[0].body
    assert server.seen[0].path == "/v1/chat/completions"
    assert server.seen[0].headers["openai-organization"] == "org-mine"
    assert body == {
        "model": "gpt-5-mini",
        "messages": [{"role": m.role, "content": m.content} for m in ASK.messages],
        "temperature": 0.5,
        "stop": ["###"],
        "seed": 11,
        "n": 2,
        "max_completion_tokens": 40,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        },
    }


def test_a_reasoning_model_that_refuses_nearly_everything(server, openai):
    def picky(body):
        if "temperature" in body:
            return Say(
                openai_error(
                    "Unsupported value: 'temperature' does not support 0.5 with this model. "
                    "Only the default (1) value is supported.",
                    param="temperature",
                    code="unsupported_value",
                ),
                400,
            )
        if "stop" in body:
            return Say(
                openai_error(
                    "Unsupported parameter: 'stop' is not supported with this model.",
                    param="stop",
                    code="unsupported_parameter",
                ),
                400,
            )
        return Say(openai_body("x = 1### and more"))

    server.play(picky)
    reply = openai.complete(ASK)
    assert reply.completions[0].text == "x = 1"
    assert reply.requests == 3
    assert "seed" in server.seen[-1].body
    assert openai.complete(ASK).requests == 1


def test_the_name_of_the_token_cap_is_found_out(server):
    client = OpenAIClient("m", base_url=f"{server.url}/v1")

    def modern(body):
        if "max_tokens" in body:
            return Say(
                openai_error(
                    "Unsupported parameter: 'max_tokens' is not supported with this model. "
                    "Use 'max_completion_tokens' instead.",
                ),
                400,
            )
        return Say(openai_body("x"))

    server.play(modern)
    client.complete(ASK)
    assert [sorted(k for k in s.body if k.startswith("max")) for s in server.seen] == [
        ["max_tokens"],
        ["max_completion_tokens"],
    ]


@pytest.mark.parametrize(
    "said",
    ["'n' : number must be at most 1", "Invalid value: n must be 1", "`n` is not supported"],
)
def test_servers_that_refuse_n(server, said):
    client = OpenAIClient("m", base_url=f"{server.url}/v1")
    server.play(lambda b: Say(openai_error(said), 400) if "n" in b else Say(openai_body("x")))
    reply = client.complete(Request((Message("user", "hi"),), n=3, seed=5))
    assert len(reply.completions) == 3
    assert reply.requests == 4
    assert client.complete(Request((Message("user", "hi"),), n=3)).requests == 3


def test_single_samples_have_seeds_of_their_own(server):
    client = OpenAIClient("m", base_url=f"{server.url}/v1")
    server.play(Say(openai_body("x")))
    client.complete(Request((Message("user", "hi"),), n=4, seed=100))
    # The first call asked for all four with the first seed.
    assert sorted(s.body["seed"] for s in server.seen) == [100, 101, 102, 103]


def test_a_model_that_refuses_structured_output(server, openai):
    server.play(
        Say(
            openai_error(
                "Invalid parameter: 'response_format' of type 'json_schema' is not supported "
                "with this model."
            ),
            400,
        ),
        Say(openai_body("{}")),
    )
    openai.complete(Request(ASK.messages, json_schema={"type": "object"}))
    assert "response_format" not in server.seen[1].body


def test_refusal(server, openai):
    server.play(Say(openai_body("", refusal="I cannot do that.")))
    completion = openai.complete(ASK).completions[0]
    assert completion.finish_reason == "refusal"
    assert completion.text == "I cannot do that."


def test_a_prompt_that_the_filter_stops(server, openai):
    server.play(Say(openai_error("blocked", code="content_filter"), 400))
    assert openai.complete(ASK).completions[0].finish_reason == "filter"


def test_an_account_without_credit_is_not_asked_again(server, openai):
    server.play(Say(openai_error("pay first", code="insufficient_quota"), 429))
    with pytest.raises(Exception, match="no credit left") as caught:
        openai.complete(ASK)
    assert not caught.value.retryable


def test_cost(server, openai, monkeypatch):
    server.play(Say(openai_body("x")))
    # An address that is not OpenAI's does not charge OpenAI's prices; this machine nothing.
    assert openai.complete(ASK).cost == 0.0
    assert OpenAIClient("x", server="ollama").current_price().cost(5, 5) == 0.0
    monkeypatch.setattr(OpenAIClient, "local", False)
    assert openai.complete(ASK).cost is None
    # What the user says goes before that.
    set_price("openai:gpt-5-mini", Price(100.0, 100.0))
    try:
        assert openai.complete(ASK).cost == pytest.approx(107 * 100 / 1e6)
    finally:
        set_price("openai:gpt-5-mini", None)
    monkeypatch.delenv("OPENAI_BASE_URL")
    price = openai.current_price()
    assert price.cost(100, 7, 60) == pytest.approx((40 * 0.25 + 60 * 0.025 + 7 * 2) / 1e6)
    assert OpenAIClient("gpt-unheard-of").current_price() is None


def test_prices_that_cannot_be_read_cost_no_request(server, monkeypatch, tmp_path):
    from llmopt.errors import PriceError

    file = tmp_path / "prices.json"
    file.write_text("{")
    monkeypatch.setenv("LLMOPT_PRICES", str(file))
    monkeypatch.setattr(OpenAIClient, "local", False)
    server.play(Say(openai_body("x")))
    with pytest.raises(PriceError, match="LLMOPT_PRICES"):
        OpenAIClient("m", base_url=f"{server.url}/v1").complete(ASK)
    assert server.seen == []


def test_an_answer_in_parts(server, openai):
    body = openai_body("x")
    body["choices"][0]["message"]["content"] = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "x = 1"},
    ]
    server.play(Say(body))
    assert openai.complete(ASK).completions[0].text == "x = 1"


def test_a_cost_that_the_server_reports(server, openai):
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "cost": 0.0125}
    server.play(Say(openai_body("x", usage=usage)))
    assert openai.complete(ASK).cost == 0.0125


def test_the_cache_field_of_deepseek(server, openai):
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "prompt_cache_hit_tokens": 8}
    server.play(Say(openai_body("x", usage=usage)))
    assert openai.complete(ASK).cached_tokens == 8


def test_no_usage_is_zero_tokens(server, openai):
    body = openai_body("x")
    del body["usage"]
    server.play(Say(body))
    assert openai.complete(ASK).prompt_tokens == 0


def test_the_key_of_openai_goes_to_openai_alone(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_ORG_ID", "org-mine")
    client = OpenAIClient("m", base_url=f"{server.url}/v1")
    server.play(Say(openai_body("x")))
    client.complete(ASK)
    assert KEY not in str(server.seen[0].headers)
    assert "org-mine" not in str(server.seen[0].headers)


@pytest.mark.parametrize("name", [n for n, s in SERVERS.items() if not s.local])
def test_hosted_servers_name_their_own_variable(name, monkeypatch):
    for entry in SERVERS.values():
        monkeypatch.delenv(entry.variable or "UNUSED", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    client = OpenAIClient("m", server=name)
    assert client.name == f"{name}:m"
    with pytest.raises(MissingKeyError, match=SERVERS[name].variable):
        client.complete(ASK)


def test_the_address_of_a_hosted_server_asks_for_its_variable():
    client = OpenAIClient("m", base_url="https://api.deepseek.com/v1")
    assert client.key_variables == ("DEEPSEEK_API_KEY",)
    # A name that only begins like a hosted server's gets no key of it.
    lookalike = OpenAIClient("m", base_url="https://api.deepseek.com.evil.example/v1")
    assert lookalike.key_variables == ("LLMOPT_API_KEY",)


def test_this_machine_is_not_asked_through_a_proxy(server, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    server.play(Say(openai_body("x")))
    client = OpenAIClient("m", base_url=f"{server.url}/v1")
    assert client.complete(ASK).completions[0].text == "x"


def test_plain_completions(server):
    client = OpenAIClient("m", base_url=f"{server.url}/v1", endpoint="completions")
    body = {
        "id": "c", "object": "text_completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "text": " 3, 4", "finish_reason": "length"}],
    }  # fmt: skip
    server.play(Say(body))
    request = Request((Message("user", "1, 2,"),), style="completion", max_tokens=5)
    reply = client.complete(request)
    assert (reply.completions[0].text, reply.completions[0].finish_reason) == (" 3, 4", "length")
    assert server.seen[0].path == "/v1/completions"
    assert server.seen[0].body["prompt"] == "1, 2,"
    assert server.seen[0].body["max_tokens"] == 5
    assert client.default_prompt == "levels"
    assert client.settings != OpenAIClient("m", base_url=f"{server.url}/v1").settings


def test_grammar_goes_to_llamacpp(server, monkeypatch):
    from llmopt.client.openai import Server

    monkeypatch.setitem(SERVERS, "llamacpp", Server(f"{server.url}/v1", "", "test"))
    client = OpenAIClient("m", server="llamacpp")
    server.play(Say(openai_body("1")))
    client.complete(Request((Message("user", "hi"),), grammar='root ::= "1"'))
    assert server.seen[0].body["grammar"] == 'root ::= "1"'


@pytest.mark.parametrize(
    "options",
    [
        {"server": "opnai"},
        {"base_url": "http://user:secret@host/v1"},
        {"base_url": "https://host/v1?key=secret"},
        {"base_url": "host:80/v1"},
        {"timeout": 0},
        {"timeout": float("inf")},
        {"concurrency": 0},
        {"requests_per_minute": 0},
        {"endpoint": "responses"},
    ],
)
def test_wrong_options(options):
    with pytest.raises(ValueError, match=r"expected|unknown|alone") as caught:
        OpenAIClient("m", **options)
    assert "secret" not in str(caught.value)


REAL_KEY = "llama-key-0123456789"


@pytest.fixture(scope="module")
def real_server(embedded_client):
    """llama.cpp's own server over HTTP, with the embedded model."""
    yield embedded_client.serve(api_key=REAL_KEY)
    embedded_client.close()


@pytest.mark.embedded
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_a_real_server(real_server, no_proxies, endpoint):
    client = OpenAIClient("smollm2", base_url=real_server, endpoint=endpoint, api_key=REAL_KEY)
    reply = client.complete(Request((Message("user", "Say hi."),), n=3, max_tokens=8, seed=1))
    assert len(reply.completions) == 3
    assert 3 <= reply.completion_tokens <= 24
    assert reply.cost == 0.0
    long = Request((Message("user", "1, 2, 3, 4, 5, " * 12),), max_tokens=4)
    assert client.complete(long).prompt_tokens > 100
    assert client.complete(long).cached_tokens > 50
    with pytest.raises(ClientError, match="refused the API key"):
        OpenAIClient("m", base_url=real_server, api_key="wrong").complete(ASK)


@pytest.mark.embedded
def test_a_whole_run_over_http(real_server, no_proxies, monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    from llmopt.benchmarks.run import RunConfig, run

    monkeypatch.setenv("LLMOPT_API_KEY", REAL_KEY)
    config = RunConfig(
        "mountaincar",
        model=f"openai+{real_server}:smollm2",
        prompt="pattern",
        iterations=8,
        episodes=1,
        warmup=6,
        methods=("llm",),
        heldout=2,
        gif=False,
    )
    folder = tmp_path / "run"
    run(config, folder)
    written = [p.read_bytes() for p in folder.rglob("*") if p.is_file()]
    assert any(real_server.encode() in data for data in written)
    assert not any(REAL_KEY.encode() in data for data in written)
    records = [json.loads(line) for line in (folder / "trials.jsonl").open()]
    sources = [r["source"] for r in records if r["method"] == "llm"]
    assert len(sources) == 8
    assert sources.count("llm") >= 6
