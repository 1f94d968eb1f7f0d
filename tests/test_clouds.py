from __future__ import annotations

import pytest
from provider_contract import ASK, CREDENTIALS, KEY, at_home, no_proxies, server
from wire import Say, WireServer, anthropic_body, gemini_body, openai_body

from llmopt import get_client
from llmopt.client.providers.clouds import BedrockClaudeClient, VertexClient, bedrock
from llmopt.client.providers.openai import OpenAIClient
from llmopt.errors import ClientError, MissingKeyError

__all__ = ["no_proxies", "server"]

_AWS = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_BEARER_TOKEN_BEDROCK")
_GOOGLE = ("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION", "GOOGLE_API_KEY")


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    for name in (*_AWS, *_GOOGLE, "AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_claude_on_bedrock(server, monkeypatch):
    at_home(monkeypatch)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", KEY)
    client = bedrock("anthropic.claude-haiku-4-5", base_url=server.url)
    assert isinstance(client, BedrockClaudeClient)
    client.check_ready()
    server.play(Say(anthropic_body("x = 3")))
    assert client.complete(ASK).completions[0].text == "x = 3"
    assert server.seen[0].path == "/v1/messages"
    headers = server.seen[0].headers
    assert KEY in (headers.get("x-api-key", "") + headers.get("authorization", ""))
    assert bedrock("anthropic.claude-haiku-4-5")._endpoint().url == (
        "https://bedrock-mantle.eu-west-1.api.aws/anthropic"
    )


def test_other_models_on_bedrock(monkeypatch):
    client = bedrock("openai.gpt-oss-120b")
    assert isinstance(client, OpenAIClient)
    with pytest.raises(MissingKeyError, match="AWS_BEARER_TOKEN_BEDROCK"):
        client.check_ready()
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", KEY)
    for asked in (client, bedrock("anthropic.claude-haiku-4-5")):
        with pytest.raises(MissingKeyError, match="AWS_REGION or AWS_DEFAULT_REGION"):
            asked.check_ready()
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-2")
    client.check_ready()
    assert client.url == "https://bedrock-runtime.us-east-2.amazonaws.com/openai/v1"
    assert not client.local


@pytest.mark.parametrize("region", ["evil.example/x", "evil.example\\", "a.b", " us-east-1"])
@pytest.mark.parametrize("model", ["openai.gpt-oss-120b", "anthropic.claude-haiku-4-5"])
def test_a_region_cannot_name_another_host(monkeypatch, model, region):
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", KEY)
    monkeypatch.setenv("AWS_REGION", region)
    with pytest.raises(MissingKeyError, match="to a region, such as us-east-1"):
        bedrock(model).check_ready()


def test_gemini_on_google_cloud(server, monkeypatch):
    at_home(monkeypatch)
    client = VertexClient("gemini-3.8-flash", base_url=server.url)
    with pytest.raises(MissingKeyError, match="GOOGLE_API_KEY"):
        client.check_ready()
    monkeypatch.setenv("GOOGLE_API_KEY", KEY)
    server.play(Say(gemini_body("x = 3")))
    assert client.complete(ASK).completions[0].text == "x = 3"
    assert "publishers/google/models/gemini-3.8-flash" in server.seen[0].path
    monkeypatch.delenv("GOOGLE_API_KEY")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "mine")
    client.check_ready()


@pytest.mark.parametrize("project", ["", "mine"])
@pytest.mark.parametrize(
    ("model", "variable", "body"),
    [
        ("bedrock:anthropic.claude-haiku-4-5", "", anthropic_body("x")),
        ("bedrock:openai.gpt-oss-120b", "", openai_body("x")),
        ("vertex:gemini-3.8-flash", "GOOGLE_VERTEX_BASE_URL", gemini_body("x")),
        ("gemini-legacy:gemini-2.5-flash", "", gemini_body("x")),
        ("azure:m", "AZURE_OPENAI_ENDPOINT", openai_body("x")),
    ],
)
def test_no_credential_of_a_cloud_goes_to_a_named_address(
    server, monkeypatch, model, variable, body, project
):
    import google.auth

    asked = []
    monkeypatch.setattr(google.auth, "default", lambda **options: asked.append(options))
    for name in CREDENTIALS:
        monkeypatch.setenv(name, f"X-Planted: {KEY}" if name.endswith("HEADERS") else KEY)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SESSION_TOKEN", KEY)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", project)
    server.play(Say(body))
    clients = [get_client(f"{model}?base_url={server.url}")]
    if variable:
        monkeypatch.setenv(variable, server.url)
        clients.append(get_client(model))
    for client in clients:
        assert client.complete(ASK).completions[0].text == "x"
        assert client.key_variables == ("LLMOPT_API_KEY",)
        assert KEY not in str(server.seen)
    assert asked == []


def test_a_customer_s_name_at_a_cloud_is_not_the_provider_s_host(monkeypatch):
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    for model, address in (
        ("gemini:m", "https://generativelanguage.storage.googleapis.com"),
        ("vertex:m", "https://aiplatform.storage.googleapis.com"),
        ("bedrock:claude", "https://bedrock-mantle.s3.eu-west-1.api.aws"),
        ("azure:m", "https://evil.cloudapp.azure.com"),
    ):
        client = get_client(f"{model}?base_url={address}")
        assert client.key_variables == ("LLMOPT_API_KEY",)


class _Credentials:
    """Google's own, as ``google.auth.default`` finds them."""

    token, expired, quota_project_id = "ya29.secret", False, None

    def refresh(self, request):
        raise AssertionError("they are not expired")


@pytest.fixture
def vertex(server, monkeypatch):
    import google.auth

    at_home(monkeypatch)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p")
    monkeypatch.setattr(google.auth, "default", lambda **options: (_Credentials(), "p"))
    return VertexClient("gemini-3.8-flash", base_url=server.url)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_googles_own_credentials_follow_no_redirection(server, vertex, status):
    other = WireServer()
    other.play(Say(gemini_body("stolen")))
    server.play(Say({}, status, {"Location": f"{other.url}/elsewhere"}))
    try:
        with pytest.raises(ClientError):
            vertex.complete(ASK)
    finally:
        other.close()
    assert server.seen[0].headers["authorization"] == "Bearer ya29.secret"
    assert other.seen == []
