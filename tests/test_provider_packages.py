"""Our requests, compared with those that the providers' own packages send."""

from __future__ import annotations

from dataclasses import replace

import pytest
from provider_contract import ASK, KEY, no_proxies, server
from wire import Say, anthropic_body, gemini_body, openai_body

from llmopt import get_client
from llmopt.client.http.request_form import closed

__all__ = ["no_proxies", "server"]

SCHEMA = {"type": "object", "properties": {"x": {"type": "number"}}}
QUESTION = replace(ASK, json_schema=SCHEMA)


def with_openai(url):
    sdk = pytest.importorskip("openai").OpenAI(api_key=KEY, base_url=f"{url}/v1")
    stream = sdk.chat.completions.create(
        model="m",
        messages=[{"role": m.role, "content": m.content} for m in ASK.messages],
        stream=True,
        stream_options={"include_usage": True},
        temperature=0.5,
        stop=["###"],
        seed=11,
        max_tokens=40 + 16_384,
        reasoning_effort="low",
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": closed(SCHEMA), "strict": True},
        },
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def with_anthropic(url):
    sdk = pytest.importorskip("anthropic").Anthropic(api_key=KEY, base_url=url)
    mark = {"cache_control": {"type": "ephemeral"}}
    turns = [(m.role, {"type": "text", "text": m.content}) for m in ASK.messages]
    with sdk.messages.stream(
        model="m",
        max_tokens=40 + 16_384,
        system=[turns[0][1] | mark],
        messages=[
            {"role": role, "content": [text | (mark if role == "assistant" else {})]}
            for role, text in turns[1:]
        ],
        extra_body={"temperature": 0.5},
        stop_sequences=["###"],
        output_config={
            "effort": "low",
            "format": {"type": "json_schema", "schema": closed(SCHEMA)},
        },
    ) as stream:
        return "".join(block.text for block in stream.get_final_message().content)


def with_gemini(url):
    sdk = pytest.importorskip("google.genai").Client(
        api_key=KEY, vertexai=False, http_options={"base_url": url}
    )
    chunks = sdk.models.generate_content_stream(
        model="m",
        contents=[
            {"role": role, "parts": [{"text": m.content}]}
            for role, m in zip(("user", "model", "user"), ASK.messages[1:], strict=True)
        ],
        config={
            "system_instruction": ASK.messages[0].content,
            "temperature": 0.5,
            "stop_sequences": ["###"],
            "seed": 11,
            "max_output_tokens": 40 + 16_384,
            "response_mime_type": "application/json",
            "response_json_schema": closed(SCHEMA),
        },
    )
    return "".join(chunk.text or "" for chunk in chunks)


@pytest.mark.parametrize(
    ("model", "path", "body", "sdk"),
    [
        ("openai:m", "/v1", openai_body("x = 3"), with_openai),
        ("anthropic:m", "", anthropic_body("x = 3"), with_anthropic),
        ("gemini:m", "", gemini_body("x = 3"), with_gemini),
    ],
)
def test_a_request_is_that_of_the_provider_s_package(server, model, path, body, sdk):
    server.play(Say(body))
    client = get_client(model, base_url=server.url + path, api_key=KEY, effort="low")
    assert client.complete(QUESTION).completions[0].text == sdk(server.url) == "x = 3"
    ours, theirs = server.seen
    assert ours.path == theirs.path
    ours.body.get("generationConfig", {}).pop("thinkingConfig", None)  # the package writes LOW
    assert ours.body == theirs.body
    for name in ("authorization", "x-goog-api-key", "anthropic-version", "content-type"):
        assert ours.headers.get(name) == theirs.headers.get(name)
