from __future__ import annotations

import pytest
from provider_contract import (
    ASK,
    KEY,
    ProviderContract,
    no_proxies,
    server,
)
from wire import Say, gemini_body, gemini_error

from llmopt.client.base import Request, check_ready
from llmopt.client.http.request_form import closed
from llmopt.client.providers.gemini import GeminiClient
from llmopt.client.providers.gemini_legacy import GeminiLegacyClient
from llmopt.errors import ClientError, RefusedKeyError, is_permanent

__all__ = ["no_proxies", "server"]


class GeminiContract:
    own_variable = "GEMINI_API_KEY"
    own_address = "https://generativelanguage.googleapis.com"
    kind = GeminiClient
    length = gemini_body("cut off", finish="MAX_TOKENS")
    filtered = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {}}  # noqa: RUF012

    def client(self, server, **options):
        return self.kind("gemini-2.5-flash", base_url=server.url, **options)

    def body(self, *texts):
        return gemini_body(*texts)

    def error(self, message):
        return gemini_error(message)

    def sent_key(self, headers):
        return headers.get("x-goog-api-key", "")


class TestContract(GeminiContract, ProviderContract):
    address_variable = "GOOGLE_GEMINI_BASE_URL"
    extra = {"generationConfig": {"topP": 0.123}}  # noqa: RUF012
    efforts = {  # noqa: RUF012
        "none": {"generationConfig.thinkingConfig.thinkingBudget": 0},
        "low": {"generationConfig.thinkingConfig.thinkingBudget": 2048},
    }
    schema_refusal = "JSON mode is not enabled for models/gemini-2.5-flash"


class TestLegacyContract(GeminiContract, ProviderContract):
    kind = GeminiLegacyClient
    filtered = {"promptFeedback": {"blockReason": "SAFETY"}}  # noqa: RUF012
    extra = {"top_p": 0.123}  # noqa: RUF012
    streams = False
    has_list = False

    def test_effort_in_the_provider_s_words(self, server):
        with pytest.raises(ValueError, match="take gemini:"):
            self.client(server, effort="low")


@pytest.fixture
def gemini(server):
    return GeminiClient("gemini-2.5-flash", base_url=server.url, api_key=KEY)


@pytest.fixture
def legacy(server):
    return GeminiLegacyClient("gemini-2.5-flash", base_url=server.url, api_key=KEY)


@pytest.fixture(params=["gemini", "legacy"])
def either(request):
    return request.getfixturevalue(request.param)


def test_parameters_on_the_wire(server, either):
    server.play(Say(gemini_body("a")))
    legacy = isinstance(either, GeminiLegacyClient)
    schema = None if legacy else {"type": "object", "properties": {"x": {"type": "number"}}}
    either.complete(Request(ASK.messages, "chat", 0.5, 40, ("###",), 11, None, schema))
    path, body = server.seen[0].path, server.seen[0].body
    if legacy:
        assert path.startswith("/v1beta/models/gemini-2.5-flash:generateContent")
    else:  # releases of the SDK differ in the version: v1 or v1beta
        assert path.endswith("/models/gemini-2.5-flash:streamGenerateContent?alt=sse")
    assert body["systemInstruction"]["parts"] == [{"text": "You optimize."}]
    assert [(c["role"], c["parts"][0]["text"]) for c in body["contents"]] == [
        ("user", "Try x=1."),
        ("model", "x = 2"),
        ("user", "And now?"),
    ]
    config = body["generationConfig"]
    if not legacy:
        assert config.pop("responseJsonSchema") == closed(schema)
        assert config.pop("responseMimeType") == "application/json"
        assert config.pop("seed") == 11
    assert config == {
        "temperature": 0.5,
        "stopSequences": ["###"],
        "maxOutputTokens": 40 + 16_384,
    }


def test_thoughts_are_counted_and_not_shown(server, gemini):
    body = gemini_body("x = 1")
    body["candidates"][0]["content"]["parts"].insert(0, {"text": "Hm.", "thought": True})
    body["usageMetadata"]["thoughtsTokenCount"] = 50
    server.play(Say(body))
    reply = gemini.complete(ASK)
    assert reply.completions[0].text == "x = 1"
    assert reply.completion_tokens == 57
    assert reply.cost == pytest.approx((40 * 0.30 + 60 * 0.03 + 57 * 2.50) / 1e6)


@pytest.mark.parametrize(
    ("delay", "client", "seconds"),
    [
        ("13.5s", "gemini", 13.5),
        ("13s", "legacy", 13.0),
        *((odd, "gemini", None) for odd in ("1.2.3s", "9" * 400 + "s", 7, None)),
    ],
)
def test_the_body_says_how_long_to_wait(server, request, delay, client, seconds):
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}
    server.play(Say(gemini_error("quota", 429, details=[{"@type": "x"}, info]), 429))
    with pytest.raises(Exception, match="quota") as caught:
        request.getfixturevalue(client).complete(ASK)
    assert caught.value.retry_after == seconds


def test_a_wrong_key_that_is_answered_with_400(server, gemini):
    server.play(WRONG_KEY)
    with pytest.raises(RefusedKeyError, match="LLMOPT_API_KEY") as caught:
        gemini.complete(ASK)
    assert not caught.value.retryable
    assert is_permanent(caught.value)
    server.lists = WRONG_KEY
    with pytest.raises(RefusedKeyError, match="LLMOPT_API_KEY"):
        check_ready(gemini)


WRONG_KEY = Say(
    gemini_error(
        "API key not valid. Please pass a valid API key.",
        details=[
            {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
        ],
    ),
    400,
)


def test_newer_models_think_in_levels(server):
    server.play(Say(gemini_body("x")))
    for effort, level in (("none", "minimal"), ("low", "low"), ("max", "high")):
        client = GeminiClient("gemini-3.8-flash", base_url=server.url, api_key=KEY, effort=effort)
        client.complete(ASK)
        config = server.seen[-1].body["generationConfig"]
        assert config["thinkingConfig"] == {"thinkingLevel": level}


def test_a_release_that_takes_no_such_argument_is_not_asked_again(server, gemini, monkeypatch):
    def refuse(*_, **__):
        raise TypeError("unexpected keyword argument 'config'")

    monkeypatch.setattr(gemini._connected().sdk.models, "generate_content_stream", refuse)
    with pytest.raises(ClientError, match="TypeError: unexpected keyword") as caught:
        gemini.complete(ASK)
    assert not caught.value.retryable
    assert caught.value.unpriced == 0


def test_the_process_wide_configuration_is_left_alone(server, legacy):
    import google.generativeai.client as sdk

    server.play(Say(gemini_body("x")))
    legacy.complete(ASK)
    assert KEY not in str(vars(sdk._client_manager))
