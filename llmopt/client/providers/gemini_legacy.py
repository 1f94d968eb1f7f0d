"""Gemini through the retired package `google-generativeai`, for users who depend on it.

It has no seed, no count of reasoning tokens and no JSON schema: prefer
`llmopt.client.providers.gemini`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmopt.client.base import Reply, Request
from llmopt.client.http.api_keys import Secret
from llmopt.client.http.endpoint import NOTHING, Endpoint
from llmopt.client.http.faults import Fault, headers_of
from llmopt.client.http.remote import RemoteClient
from llmopt.client.http.transport import bounded, is_local, load
from llmopt.client.prices import Price, get_price
from llmopt.client.providers.gemini import GeminiClient, completions, contents, retry_delay


class GeminiLegacyClient(RemoteClient):
    """A Gemini model behind the retired SDK, whose process-wide ``configure`` is not called."""

    provider = "gemini-legacy"
    package = "gemini-legacy"
    module = "google.generativeai"
    samples_per_call = 8

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model, **options)
        if self.effort is not None:
            raise ValueError(
                f"effort={self.effort!r}: this retired SDK has no such parameter; take "
                f"gemini:{model}"
            )

    def _endpoint(self) -> Endpoint:
        # The SDK has a default address, and reads none from the environment.
        home = replace(GeminiClient.home, documents=NOTHING, elsewhere="")
        return replace(home.endpoint(self.base_url), usual=not self.base_url)

    def current_price(self) -> Price | None:
        """Return the current price of tokens, which does not depend on the SDK."""
        return super().current_price() or get_price(f"gemini:{self.model}")

    def _connect(self, key: Secret, endpoint: Endpoint) -> Any:
        load("google.generativeai", self.package)
        glm = load("google.ai.generativelanguage", self.package)
        # Without a key the SDK would use Google's credentials of this machine.
        options = {"api_key": key.reveal or "none"}
        if self.base_url:
            options["api_endpoint"] = self.base_url
        # REST, not gRPC, so that time-outs and proxies work as for other providers.
        client = glm.GenerativeServiceClient(transport="rest", client_options=options)
        session = client.transport._session
        # After a 401 the session would try to refresh the key and send the request again.
        session._refresh_status_codes = ()
        session.get_redirect_target = lambda response: None
        session.headers["Accept-Encoding"] = "identity"
        session.hooks["response"].append(_bound_reply)
        session.trust_env = not is_local(endpoint.url)
        return client

    def _parameters(self, request: Request) -> dict[str, Any]:
        return {
            "temperature": request.temperature,
            "stop_sequences": list(request.stop) or None,
            "max_output_tokens": request.max_tokens,
            "candidate_count": request.n if request.n > 1 else None,
        }

    def _send(self, sdk: Any, request: Request, parameters: dict[str, Any]) -> Reply:
        genai = load("google.generativeai", self.package)
        system = "\n\n".join(m.content for m in request.messages if m.role == "system")
        model = genai.GenerativeModel(self.model, system_instruction=system or None)
        model._client = sdk
        response = model.generate_content(
            contents(request),
            generation_config={**parameters, **self.extra_body},
            # No byte until it is complete.
            request_options={"timeout": self.timeout, "retry": None},
        )
        usage = response.usage_metadata
        prompt_tokens = usage.prompt_token_count
        # The total includes the reasoning tokens, for which this SDK has no field.
        completion_tokens = max(
            usage.candidates_token_count, usage.total_token_count - prompt_tokens
        )
        return Reply(
            completions=completions(response),
            prompt_tokens=prompt_tokens,
            cached_tokens=usage.cached_content_token_count,
            completion_tokens=completion_tokens,
        )

    def _fault(self, error: Exception) -> Fault | None:
        api = load("google.api_core.exceptions", self.package)
        http = load("requests.exceptions", self.package)
        if isinstance(error, api.RetryError):
            return Fault("timeout")
        if isinstance(error, api.GoogleAPICallError) and error.code is not None:
            return Fault(
                "status",
                str(error.message),
                status=int(error.code),
                headers=headers_of(error.response),
                retry_after=_delay(error.response),
            )
        lineage = {c.__name__ for c in type(error).__mro__}
        if "ParseError" in lineage:
            return Fault("malformed", f"{type(error).__name__}: {error}")
        if isinstance(error, http.Timeout) or "ReadTimeoutError" in lineage:
            return Fault("timeout")
        if isinstance(error, http.RequestException) or lineage & {"TransportError", "HTTPError"}:
            return Fault("connection", f"{type(error).__name__}: {error}", unpriced=True)
        return None


def _bound_reply(response: Any, **_: Any) -> Any:
    """Read a body that is neither packed nor sends more than it may."""
    chunks = response.raw.stream(2**16, decode_content=False)
    response._content = b"".join(bounded(response.headers, chunks, not response.ok))
    return response


def _delay(response: Any) -> float | None:
    """Return the seconds to wait that an error's body states, or ``None``."""
    try:
        return retry_delay(response.json())
    except (AttributeError, ValueError):
        return None
