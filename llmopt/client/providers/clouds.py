"""Models of Anthropic, Google and others on Amazon Bedrock and Google Cloud."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from llmopt.client.http.api_keys import Secret
from llmopt.client.http.endpoint import LABEL, SCHEMAS, SERVERS, Endpoint, Server
from llmopt.client.http.remote import Connection, RemoteClient
from llmopt.client.http.transport import load
from llmopt.client.providers.anthropic import AnthropicClient
from llmopt.client.providers.gemini import GeminiClient
from llmopt.client.providers.openai import OpenAIClient

_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")


def bedrock(model: str, **options: Any) -> RemoteClient:
    """Return the client for a model on Amazon Bedrock; Claude uses Anthropic's protocol."""
    if "claude" in model:
        return BedrockClaudeClient(model, **options)
    return OpenAIClient(model, server="bedrock", **options)


class BedrockClaudeClient(AnthropicClient):
    """Claude on Amazon Bedrock; key in ``AWS_BEARER_TOKEN_BEDROCK``, region in ``AWS_REGION``."""

    provider = "bedrock"
    home = Server(
        f"https://bedrock-mantle.{{{'|'.join(_REGIONS)}}}.api.aws/anthropic",
        SERVERS["bedrock"].variable,
        "Claude on Amazon Bedrock",
        SCHEMAS,
    )

    def _missing(self, connection: Connection) -> str:
        return ""  # it has no list of models

    def _connect(self, key: Secret, endpoint: Endpoint) -> Any:
        sdk = load(self.module, self.package)
        if not hasattr(sdk, "AnthropicBedrockMantle"):
            raise ImportError(
                f"anthropic {sdk.__version__} has no Bedrock keys: pip install -U anthropic"
            )
        client = sdk.AnthropicBedrockMantle(
            aws_region=next(filter(None, map(os.environ.get, _REGIONS)), None),
            **self._arguments(sdk, key, endpoint),
        )
        return self._cleaned(client, endpoint)


def _location() -> str:
    return os.environ.get("GOOGLE_CLOUD_LOCATION") or "global"


class VertexClient(GeminiClient):
    """A Gemini model on Google Cloud. The arguments are those of `RemoteClient`.

    With ``GOOGLE_CLOUD_PROJECT`` set (and ``GOOGLE_CLOUD_LOCATION``, or it is ``global``),
    Google's own credentials of this machine are used (``gcloud auth application-default
    login``). Without it, an API key of Google Cloud's express mode from ``GOOGLE_API_KEY``.
    Neither goes to any other address.
    """

    provider = "vertex"
    home = Server(
        "https://aiplatform.googleapis.com",
        "GOOGLE_API_KEY",
        "Google Cloud",
        SCHEMAS,
        elsewhere="GOOGLE_VERTEX_BASE_URL",
    )

    def _endpoint(self) -> Endpoint:
        place = super()._endpoint()
        ambient = place.official and os.environ.get("GOOGLE_CLOUD_PROJECT")
        if not ambient:
            return place
        location = LABEL.fullmatch(_location())
        trouble = "GOOGLE_CLOUD_LOCATION holds no location, such as global or europe-west4"
        return replace(place, needs_key=False, trouble="" if location else trouble)

    def _missing(self, connection: Connection) -> str:
        return ""  # its list needs more rights than its models do

    def _connect(self, key: Secret, endpoint: Endpoint) -> Any:
        genai = load(self.module, self.package)
        options = self._http_options(endpoint.url)
        if endpoint.usual:
            del options["base_url"]  # the SDK has one for each location
        project = os.environ.get("GOOGLE_CLOUD_PROJECT")
        if project and endpoint.official:
            client = genai.Client(
                vertexai=True, project=project, location=_location(), http_options=options
            )
            # With a client certificate, older releases use another HTTP library.
            other = getattr(client._api_client, "_use_google_auth_sync", None)
            if other is not None and other():
                raise ImportError(
                    f"google-genai {genai.__version__} would follow redirections and forward your "
                    "credentials: pip install -U google-genai, or set "
                    "GOOGLE_API_USE_CLIENT_CERTIFICATE=false"
                )
            return client
        return genai.Client(vertexai=True, api_key=key.reveal or "none", http_options=options)
