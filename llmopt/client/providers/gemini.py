"""Google's Gemini models."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from llmopt.client.base import Completion, FinishReason, Reply, Request, whole
from llmopt.client.http.api_keys import Secret
from llmopt.client.http.endpoint import BOTH, Endpoint, Server
from llmopt.client.http.faults import Fault
from llmopt.client.http.remote import DEADLINE, Connection, RemoteClient, finish
from llmopt.client.http.request_form import closed, merged
from llmopt.client.http.transport import ASIDE_SECONDS, http_options, load

FINISH: dict[str, FinishReason] = {
    "MAX_TOKENS": "length",
    **dict.fromkeys(
        (
            "SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII",
            "ESCALATION", "MODEL_ARMOR", "PUP_LIMITED_DISABLED",
        ),
        "filter",
    ),
}  # fmt: skip
# Up to Gemini 2.5 thinking has a token budget, from 3 on a level.
_BUDGETS = {
    "none": 0, "minimal": 512, "low": 2048, "medium": 8192,
    "high": 24_576, "xhigh": 24_576, "max": 24_576,
}  # fmt: skip
_LEVELS = {"none": "minimal", "xhigh": "high", "max": "high"}


class GeminiClient(RemoteClient):
    """A Gemini model; the key comes from ``GEMINI_API_KEY``, else from ``GOOGLE_API_KEY``."""

    provider = package = "gemini"
    module = "google.genai"
    home = Server(
        "https://generativelanguage.googleapis.com",
        "GEMINI_API_KEY|GOOGLE_API_KEY",
        "Google Gemini",
        BOTH,
        elsewhere="GOOGLE_GEMINI_BASE_URL",
    )
    fields = {  # noqa: RUF012
        "thinking_config": "thinking",
        "response_schema": "response_json_schema",
    }

    def _connect(self, key: Secret, endpoint: Endpoint) -> Any:
        # Without vertexai=False the environment could choose another service and account.
        # Without a key the SDK would look for one in the environment.
        return load(self.module, self.package).Client(
            api_key=key.reveal or "none",
            vertexai=False,
            http_options=self._http_options(endpoint.url),
        )

    def _http_options(self, url: str) -> dict[str, Any]:
        return {
            "base_url": url,
            "timeout": max(1, round(self.timeout * 1000)),
            # Otherwise the SDK makes the server end the whole answer after `timeout`.
            "headers": {"X-Server-Timeout": str(math.ceil(DEADLINE * self.timeout))},
            "retry_options": {"attempts": 1},
            "client_args": http_options(url),
        }

    def _missing(self, connection: Connection) -> str:
        config = {"http_options": {"timeout": round(1000 * ASIDE_SECONDS)}}
        entry = connection.sdk.models.get(model=self.model, config=config)
        self._learned.read(entry.model_dump(by_alias=True))
        return ""

    def _parameters(self, request: Request) -> dict[str, Any]:
        thinking: dict[str, Any] | None = None
        if self.effort is not None and re.match(r"gemini-[12]\b", self.model):
            thinking = {"thinkingBudget": _BUDGETS[self.effort]}
        elif self.effort is not None:
            thinking = {"thinkingLevel": _LEVELS.get(self.effort, self.effort)}
        return {
            "thinking": thinking,
            "temperature": request.temperature,
            "stop_sequences": list(request.stop) or None,
            "max_output_tokens": request.max_tokens,
            "seed": None if request.seed is None else request.seed % 2**31,
            "response_json_schema": request.json_schema and closed(request.json_schema),
        }

    def _events(self, sdk: Any, request: Request, parameters: dict[str, Any]) -> Iterator[Any]:
        config = dict(parameters)
        if "response_json_schema" in config:
            config["response_mime_type"] = "application/json"
        if system := system_text(request):
            config["system_instruction"] = system
        # It is on by default, and logs a line at every call.
        config["automatic_function_calling"] = {"disable": True}
        # In the body, because releases of the SDK differ in their arguments.
        thinking = config.pop("thinking", None)
        body = {"generationConfig": {"thinkingConfig": thinking}} if thinking else {}
        config["http_options"] = {"extra_body": merged(body, self.extra_body)}
        stream = sdk.models.generate_content_stream(
            model=self.model, contents=contents(request), config=config
        )
        for chunk in stream:
            yield chunk.model_dump(
                mode="json", by_alias=True, exclude_none=True, exclude={"sdk_http_response"}
            )

    def _read(self, events: list[Any]) -> Reply:
        texts: dict[int, str] = {}
        reasons: dict[int, Any] = {}
        usage: Mapping[str, Any] = {}
        model, blocked = "", None
        for event in events:
            usage = event.get("usageMetadata") or usage
            model = event.get("modelVersion") or model
            blocked = (event.get("promptFeedback") or {}).get("blockReason") or blocked
            for candidate in event.get("candidates") or ():
                index = int(candidate.get("index") or 0)
                parts = (candidate.get("content") or {}).get("parts") or ()
                text = "".join(p.get("text") or "" for p in parts if not p.get("thought"))
                texts[index] = texts.get(index, "") + text
                reasons[index] = candidate.get("finishReason") or reasons.get(index)
        if not texts and not blocked:
            raise Fault("malformed", "no candidates in the answer")
        if texts and not usage and not any(reasons.values()):
            raise Fault("malformed", "the answer ended before it was complete")
        samples = tuple(Completion(texts[i], finish(reasons[i], FINISH)) for i in sorted(texts))
        counts = (usage.get(f"{kind}TokenCount") for kind in ("candidates", "thoughts"))
        tokens = [n for n in map(whole, counts) if n is not None]
        return Reply(
            completions=samples or (Completion("", "filter"),),
            model=model,
            prompt_tokens=usage.get("promptTokenCount"),
            cached_tokens=usage.get("cachedContentTokenCount") or 0,
            completion_tokens=sum(tokens) if tokens else None,
        )


def contents(request: Request) -> list[dict[str, Any]]:
    """Return a request's messages, without system messages, in the protocol's form."""
    return [
        {"role": "model" if m.role == "assistant" else "user", "parts": [{"text": m.content}]}
        for m in request.messages
        if m.role != "system"
    ]


def system_text(request: Request) -> str:
    """Return the text of a request's system messages."""
    return "\n\n".join(m.content for m in request.messages if m.role == "system")
