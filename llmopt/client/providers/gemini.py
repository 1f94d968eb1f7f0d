"""Google's Gemini models through the `google-genai` SDK."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from llmopt.client.base import Completion, FinishReason, Reply, Request, whole
from llmopt.client.http.api_keys import Secret
from llmopt.client.http.endpoint import BOTH, Endpoint, Server
from llmopt.client.http.faults import Fault, MalformedBody, headers_of, parse_duration, words
from llmopt.client.http.remote import ASIDE_SECONDS, DEADLINE, RemoteClient, finish
from llmopt.client.http.request_form import closed
from llmopt.client.http.transport import http_options, load, merged

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

    provider = "gemini"
    package = "gemini"
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
    samples_per_call = 8  # the API's maximum of candidateCount

    def _connect(self, key: Secret, endpoint: Endpoint) -> Any:
        genai = load("google.genai", self.package)
        # Without vertexai=False the environment could choose another service and account.
        # Without a key the SDK would look for one in the environment.
        options = self._http_options(endpoint.url)
        return genai.Client(api_key=key.reveal or "none", vertexai=False, http_options=options)

    def _http_options(self, url: str) -> dict[str, Any]:
        return {
            "base_url": url,
            "timeout": max(1, round(self.timeout * 1000)),
            # Otherwise the SDK makes the server end the whole answer after `timeout`.
            "headers": {"X-Server-Timeout": str(math.ceil(DEADLINE * self.timeout))},
            "retry_options": {"attempts": 1},
            "client_args": http_options(url),
        }

    def _parameters(self, request: Request) -> dict[str, Any]:
        thinking: dict[str, Any] | None = None
        if self.effort is not None and re.match(r"gemini-[12]\b", self.model):
            thinking = {"thinkingBudget": _BUDGETS[self.effort]}
        elif self.effort is not None:
            thinking = {"thinkingLevel": _LEVELS.get(self.effort, self.effort)}
        return {
            "stream": True,
            "thinking": thinking,
            "temperature": request.temperature,
            "stop_sequences": list(request.stop) or None,
            "max_output_tokens": request.max_tokens,
            "seed": None if request.seed is None else request.seed % 2**31,
            "candidate_count": request.n if request.n > 1 else None,
            "response_json_schema": request.json_schema and closed(request.json_schema),
        }

    def _send(self, sdk: Any, request: Request, parameters: dict[str, Any]) -> Reply:
        config = dict(parameters)
        stream = config.pop("stream", False)
        if "response_json_schema" in config:
            config["response_mime_type"] = "application/json"
        system = "\n\n".join(m.content for m in request.messages if m.role == "system")
        if system:
            config["system_instruction"] = system
        # It is on by default, and logs a line at every call.
        config["automatic_function_calling"] = {"disable": True}
        # In the body, because releases of the SDK differ in their arguments.
        thinking = config.pop("thinking", None)
        body = {"generationConfig": {"thinkingConfig": thinking}} if thinking else {}
        http: dict[str, Any] = {"extra_body": merged(body, self.extra_body)}
        if not stream:
            # No byte until it is complete.
            http["timeout"] = max(1, round(DEADLINE * self.timeout * 1000))
        config["http_options"] = http
        ask = sdk.models.generate_content_stream if stream else sdk.models.generate_content
        response = ask(model=self.model, contents=contents(request), config=config)
        if stream:
            response = _collected(response)
        usage = response.usage_metadata
        counts = ("candidates_token_count", "thoughts_token_count")
        known = [n for n in (whole(getattr(usage, name, None)) for name in counts) if n is not None]
        return Reply(
            completions=completions(response),
            model=response.model_version or "",
            prompt_tokens=getattr(usage, "prompt_token_count", None),
            cached_tokens=getattr(usage, "cached_content_token_count", None) or 0,
            completion_tokens=sum(known) if known else None,
        )

    def _missing(self, sdk: Any, endpoint: Endpoint) -> str:
        milliseconds = round(1000 * ASIDE_SECONDS)
        found = sdk.models.get(model=self.model, config={"http_options": {"timeout": milliseconds}})
        self._learned.read(vars(found))
        return ""

    def _fault(self, error: Exception) -> Fault | None:
        errors = load("google.genai.errors", self.package)
        if isinstance(error, errors.APIError):
            code = error.code if isinstance(error.code, int) else 500
            return Fault(
                "status",
                str(error.message or words(error.details) or error),
                status=code if code >= 300 else 500,
                headers=headers_of(error.response),
                code=_text_at(error.details, "reason") or str(error.status or ""),
                parameter=_text_at(error.details, "field"),
                retry_after=retry_delay(error.details),
            )
        if type(error).__name__ in ("UnknownApiResponseError", "ValidationError"):
            return Fault("malformed", f"{type(error).__name__}: {error}")
        # The SDK does not wrap the exceptions of its HTTP library.
        return None


def _collected(chunks: Iterable[Any]) -> Any:
    """Return the complete response of a stream."""
    parts: dict[int, list[str]] = {}
    reasons: dict[int, Any] = {}
    usage = version = feedback = None
    for chunk in chunks:
        usage = chunk.usage_metadata or usage
        version = chunk.model_version or version
        feedback = chunk.prompt_feedback or feedback
        for candidate in chunk.candidates or ():
            index = candidate.index or 0
            parts.setdefault(index, []).append(_text(candidate))
            reasons[index] = candidate.finish_reason or reasons.get(index)
    if parts and usage is None and not any(reasons.values()):
        raise MalformedBody("the answer ended before it was complete")
    return SimpleNamespace(
        usage_metadata=usage,
        model_version=version,
        prompt_feedback=feedback,
        candidates=[
            SimpleNamespace(text="".join(parts[i]), finish_reason=reasons[i]) for i in sorted(parts)
        ],
    )


def contents(request: Request) -> list[dict[str, Any]]:
    """Return a request's messages, without system messages, in the protocol's form."""
    return [
        {"role": "model" if m.role == "assistant" else "user", "parts": [{"text": m.content}]}
        for m in request.messages
        if m.role != "system"
    ]


def completions(response: Any) -> tuple[Completion, ...]:
    """Return the samples of a response of either SDK, without the model's thoughts."""
    if not response.candidates:
        feedback = response.prompt_feedback
        blocked = getattr(feedback, "block_reason", None)
        if blocked:
            return (Completion("", "filter"),)
        raise MalformedBody("no candidates in the answer")
    return tuple(
        Completion(
            candidate.text if isinstance(candidate, SimpleNamespace) else _text(candidate),
            finish(getattr(candidate.finish_reason, "name", candidate.finish_reason), FINISH),
        )
        for candidate in response.candidates
    )


def _text(candidate: Any) -> str:
    """Return the text of a candidate, without the model's thoughts."""
    parts = getattr(candidate.content, "parts", None) or ()
    return "".join(p.text or "" for p in parts if not getattr(p, "thought", False))


def _text_at(details: object, name: str, deepest: int = 12) -> str:
    """Return a text field of a Google error body, such as ``reason`` of ErrorInfo, or ``""``."""
    if isinstance(details, Mapping):
        found = details.get(name)
        if isinstance(found, str):
            return found
        details = list(details.values())
    if isinstance(details, list) and deepest:
        return next(filter(None, (_text_at(item, name, deepest - 1) for item in details)), "")
    return ""


def retry_delay(details: object) -> float | None:
    """Return the seconds to wait in a Google error body (google.rpc.RetryInfo), or ``None``."""
    return parse_duration(_text_at(details, "retryDelay"))
