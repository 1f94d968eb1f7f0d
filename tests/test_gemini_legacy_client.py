from __future__ import annotations

import pytest
from provider_contract import ASK, KEY, ProviderContract, no_proxies, server
from wire import Say, gemini_body, gemini_error

from llmopt.client.base import Message, Request
from llmopt.client.gemini_legacy import GeminiLegacyClient

__all__ = ["no_proxies", "server"]


class TestContract(ProviderContract):
    variable = "GEMINI_API_KEY"
    length = gemini_body("cut off", finish="MAX_TOKENS")
    filtered = {"promptFeedback": {"blockReason": "SAFETY"}}  # noqa: RUF012
    extra = {"top_p": 0.123}  # noqa: RUF012
    streams = False
    has_list = False
    too_large = (
        "Unable to submit request because it has a maxOutputTokens value of {cap} but the "
        "supported range is from 1 (inclusive) to 8193 (exclusive). Update the value and try again."
    )

    def test_effort_in_the_provider_s_words(self, server):
        with pytest.raises(ValueError, match="take gemini:"):
            self.client(server, effort="low")

    def client(self, server, **options):
        return GeminiLegacyClient("gemini-2.5-flash", base_url=server.url, **options)

    def body(self, *texts):
        return gemini_body(*texts)

    def error(self, message):
        return gemini_error(message)

    def sent_key(self, headers):
        return headers["x-goog-api-key"]


@pytest.fixture
def gemini(server):
    return GeminiLegacyClient("gemini-2.5-flash", base_url=server.url, api_key=KEY)


def test_parameters_on_the_wire(server, gemini):
    server.play(Say(gemini_body("a", "b")))
    gemini.complete(Request(ASK.messages, 2, "chat", 0.5, 40, ("###",), 11))
    body = server.seen[0].body
    assert server.seen[0].path.startswith("/v1beta/models/gemini-2.5-flash:generateContent")
    assert body["systemInstruction"]["parts"] == [{"text": "You optimize."}]
    assert [(c["role"], c["parts"][0]["text"]) for c in body["contents"]] == [
        ("user", "Try x=1."),
        ("model", "x = 2"),
        ("user", "And now?"),
    ]
    assert body["generationConfig"] == {
        "temperature": 0.5,
        "stopSequences": ["###"],
        "candidateCount": 2,
        "maxOutputTokens": 40 + 16_384,
    }


def test_the_process_wide_configuration_is_left_alone(server, gemini):
    import google.generativeai.client as sdk

    server.play(Say(gemini_body("x")))
    gemini.complete(ASK)
    assert KEY not in str(vars(sdk._client_manager))


def test_reasoning_tokens_are_in_the_total(server, gemini):
    body = gemini_body("x")
    body["usageMetadata"]["totalTokenCount"] = 157
    server.play(Say(body))
    reply = gemini.complete(ASK)
    assert reply.completion_tokens == 57
    assert reply.cost == pytest.approx((40 * 0.30 + 60 * 0.03 + 57 * 2.50) / 1e6)


def test_a_model_that_gives_one_candidate(server, gemini):
    def picky(body):
        if "candidateCount" in body.get("generationConfig", {}):
            return Say(gemini_error("Multiple candidates is not enabled for this model"), 400)
        return Say(gemini_body("x"))

    server.play(picky)
    assert len(gemini.complete(Request((Message("user", "hi"),), n=3)).completions) == 3


def test_finish_reasons_that_the_sdk_does_not_know(server, gemini):
    server.play(Say(gemini_body("x = 1", finish="A_REASON_OF_TOMORROW")))
    assert gemini.complete(ASK).completions[0].finish_reason == "stop"


def test_the_body_says_how_long_to_wait(server, gemini):
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "13s"}
    server.play(Say(gemini_error("quota", 429, details=[info]), 429))
    with pytest.raises(Exception, match="quota") as caught:
        gemini.complete(ASK)
    assert caught.value.retry_after == 13.0
