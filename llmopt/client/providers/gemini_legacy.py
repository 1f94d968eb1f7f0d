"""Gemini through the retired package `google-generativeai`, for users who depend on it.

It has no seed, no stream, no count of reasoning tokens and no JSON schema: prefer
`llmopt.client.providers.gemini`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from llmopt.client.base import Completion, Reply, Request
from llmopt.client.http.api_keys import Secret
from llmopt.client.http.endpoint import NOTHING, Endpoint
from llmopt.client.http.faults import Fault, parsed, status_fault
from llmopt.client.http.remote import DEADLINE, RemoteClient, finish
from llmopt.client.http.transport import chunks_within, load
from llmopt.client.http.urls import is_local
from llmopt.client.prices import Price, get_price
from llmopt.client.providers.gemini import FINISH, GeminiClient, contents, system_text
from llmopt.util.threads import SEARCH_DEADLINE, DeadlineExceeded, within


class GeminiLegacyClient(RemoteClient):
    """A Gemini model behind the retired SDK, whose process-wide ``configure`` is not called."""

    provider = package = "gemini-legacy"
    module = "google.generativeai"

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
        return home.endpoint(self.base_url)

    def current_price(self) -> Price | None:
        """Return the current price of tokens, which does not depend on the SDK."""
        return super().current_price() or get_price(f"gemini:{self.model}")

    def _connect(self, key: Secret, endpoint: Endpoint) -> Any:
        load(self.module, self.package)
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
        }

    def _events(self, sdk: Any, request: Request, parameters: dict[str, Any]) -> Iterator[Any]:
        genai = load(self.module, self.package)
        model = genai.GenerativeModel(self.model, system_instruction=system_text(request) or None)
        model._client = sdk
        ask = partial(
            model.generate_content,
            contents(request),
            generation_config={**parameters, **self.extra_body},
            request_options={"timeout": self.timeout, "retry": None},
        )
        try:
            yield within(min(DEADLINE * self.timeout, SEARCH_DEADLINE.get().left), ask)
        except DeadlineExceeded:
            raise Fault("deadline") from None

    def _read(self, events: list[Any]) -> Reply:
        response = events[0]
        usage = response.usage_metadata
        if not response.candidates and not response.prompt_feedback.block_reason:
            raise Fault("malformed", "no candidates in the answer")
        samples = tuple(
            Completion(
                "".join(p.text for p in c.content.parts), finish(c.finish_reason.name, FINISH)
            )
            for c in response.candidates
        )
        return Reply(
            completions=samples or (Completion("", "filter"),),
            prompt_tokens=usage.prompt_token_count,
            cached_tokens=usage.cached_content_token_count,
            # The total includes the reasoning tokens, for which this SDK has no field.
            completion_tokens=max(
                usage.candidates_token_count, usage.total_token_count - usage.prompt_token_count
            ),
        )


def _bound_reply(response: Any, **_: Any) -> Any:
    """Read a body within its limits, and raise an error of the server in our form."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    chunks = response.raw.stream(2**16, decode_content=False)
    response._content = b"".join(chunks_within(headers, chunks, cut=not response.ok))
    if not response.ok:
        raise status_fault(response.status_code, headers, parsed(response.content))
    return response
