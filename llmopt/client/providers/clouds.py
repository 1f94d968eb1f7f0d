"""Models of Anthropic, Google and others on Amazon Bedrock and Google Cloud."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from llmopt.client.base import Request
from llmopt.client.http.api_keys import Secret
from llmopt.client.http.endpoint import LABEL, SCHEMAS, SERVERS, Endpoint, Server
from llmopt.client.http.remote import RemoteClient
from llmopt.client.http.transport import load
from llmopt.client.providers.anthropic import AnthropicClient
from llmopt.client.providers.gemini import GeminiClient
from llmopt.client.providers.openai import OpenAIClient

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def bedrock(model: str, **options: Any) -> RemoteClient:
    """Return the client for a model on Amazon Bedrock; Claude uses Anthropic's protocol."""
    if "claude" in model:
        return BedrockClaudeClient(model, **options)
    return OpenAIClient(model, server="bedrock", **options)


class BedrockClaudeClient(AnthropicClient):
    """Claude on Amazon Bedrock; key in ``AWS_BEARER_TOKEN_BEDROCK``, region in ``AWS_REGION``."""

    provider = "bedrock"
    home = Server(
        "https://bedrock-mantle.{AWS_REGION|AWS_DEFAULT_REGION}.api.aws/anthropic",
        SERVERS["bedrock"].variable,
        "Claude on Amazon Bedrock",
        SCHEMAS,
    )

    def _missing(self, connection: Any) -> str:
        return ""  # it has no list of models


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
    _credentials: Any = None  # Google's own, once they are needed

    def _endpoint(self) -> Endpoint:
        place = super()._endpoint()
        if not self._ambient(place):
            return place
        if not LABEL.fullmatch(_location()):
            trouble = "GOOGLE_CLOUD_LOCATION holds no location, such as global or europe-west4"
            return replace(place, needs_key=False, trouble=trouble)
        location, url = _location(), place.url
        if place.usual and location != "global":
            multi = location in ("us", "eu")  # several regions under one address
            host = f"aiplatform.{location}.rep" if multi else f"{location}-aiplatform"
            url = f"https://{host}.googleapis.com"
        return replace(place, url=url, needs_key=False)

    def _ambient(self, place: Endpoint) -> bool:
        """Whether Google's own credentials of this machine may go to an address."""
        return place.official and bool(os.environ.get("GOOGLE_CLOUD_PROJECT"))

    def _path(self) -> str:
        model = f"publishers/google/models/{quote(self.model, safe='')}"
        if not self._ambient(super()._endpoint()):
            return f"/v1beta1/{model}"
        project = quote(os.environ["GOOGLE_CLOUD_PROJECT"], safe="")
        return f"/v1beta1/projects/{project}/locations/{_location()}/{model}"

    def _headers(self, key: Secret, endpoint: Endpoint) -> dict[str, str]:
        return super()._headers(Secret() if self._ambient(endpoint) else key, endpoint)

    def _missing(self, connection: Any) -> str:
        return ""  # its list needs more rights than its models do

    def _form(
        self, connection: Any, request: Request, parameters: dict[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        if self._ambient(connection.endpoint):
            connection.http.headers["Authorization"] = f"Bearer {self._token()}"
            if quota := self._credentials.quota_project_id:
                connection.http.headers["x-goog-user-project"] = quota
        return super()._form(connection, request, parameters)

    def _token(self) -> str:
        """Return an access token of Google's own credentials, refreshed if it has expired."""
        if self._credentials is None:
            google = load("google.auth", self.package)
            self._credentials, _ = google.default(scopes=[_SCOPE])
        if not self._credentials.token or self._credentials.expired:
            transport = load("google.auth.transport.requests", self.package)
            self._credentials.refresh(transport.Request())
        return str(self._credentials.token)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_credentials": None}
