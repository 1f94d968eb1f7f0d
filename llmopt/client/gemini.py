"""Google's Gemini models through the `google-genai` SDK."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from llmopt.client.base import Completion, FinishReason, Request
from llmopt.client.http import Fault
from llmopt.client.remote import Answer, MalformedBody, RemoteClient, finish, load

KEY_VARIABLES = ("GEMINI_API_KEY", "GOOGLE_API_KEY")

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


class GeminiClient(RemoteClient):
    """A Gemini model. The arguments are those of `RemoteClient`.

    The key comes from ``GEMINI_API_KEY``, else from ``GOOGLE_API_KEY``.
    """

    provider = "gemini"
    package = "gemini"
    samples_per_call = 8  # the most that the API takes as candidateCount

    @property
    def key_variables(self) -> tuple[str, ...]:
        """Environment variables that can hold the API key."""
        return KEY_VARIABLES

    def _connect(self, key: str) -> Any:
        genai = load("google.genai", self.package)
        options: dict[str, Any] = {
            "timeout": max(1, round(self.timeout * 1000)),
            "retry_options": {"attempts": 1},
        }
        if self.base_url:
            options["base_url"] = self.base_url
        # Without vertexai=False the environment could choose another service and account.
        return genai.Client(api_key=key, vertexai=False, http_options=options)

    def _parameters(self, request: Request) -> dict[str, Any]:
        parameters = {
            "temperature": request.temperature,
            "stop_sequences": list(request.stop) or None,
            "max_output_tokens": request.max_tokens,
            "seed": None if request.seed is None else request.seed % 2**31,
            "candidate_count": request.n if request.n > 1 else None,
            "response_json_schema": request.json_schema and dict(request.json_schema),
        }
        return {name: value for name, value in parameters.items() if value is not None}

    def _send(self, sdk: Any, request: Request, parameters: dict[str, Any]) -> Answer:
        config = dict(parameters)
        if "response_json_schema" in config:
            config["response_mime_type"] = "application/json"
        system = "\n\n".join(m.content for m in request.messages if m.role == "system")
        if system:
            config["system_instruction"] = system
        # It is on by default, and says so in the log at every call.
        config["automatic_function_calling"] = {"disable": True}
        if self.extra_body:
            config["http_options"] = {"extra_body": self.extra_body}
        response = sdk.models.generate_content(
            model=self.model, contents=contents(request), config=config
        )
        usage = response.usage_metadata
        return Answer(
            completions=completions(response),
            model=response.model_version or "",
            prompt_tokens=getattr(usage, "prompt_token_count", None) or 0,
            cached_tokens=getattr(usage, "cached_content_token_count", None) or 0,
            completion_tokens=(getattr(usage, "candidates_token_count", None) or 0)
            + (getattr(usage, "thoughts_token_count", None) or 0),
        )

    def _fault(self, error: Exception) -> Fault | None:
        errors = load("google.genai.errors", self.package)
        if isinstance(error, errors.APIError):
            headers = getattr(error.response, "headers", None) or {}
            return Fault(
                "status",
                str(error.message or error),
                status=error.code,
                headers={str(k).lower(): str(v) for k, v in headers.items()},
                code=str(error.status or ""),
                retry_after=retry_delay(error.details),
            )
        if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) or type(error).__name__ in (
            "UnknownApiResponseError",
            "ValidationError",
        ):
            return Fault("malformed", f"{type(error).__name__}: {error}")
        # The SDK lets the exceptions of its HTTP library through, whichever that is.
        lineage = {c.__name__ for c in type(error).__mro__}
        if "TimeoutException" in lineage:
            return Fault("timeout")
        if lineage & {"TransportError", "ConnectionError"}:
            return Fault("connection", f"{type(error).__name__}: {error}")
        return None


def contents(request: Request) -> list[dict[str, Any]]:
    """Return a request's messages, system ones left out, as the protocol writes them."""
    return [
        {
            "role": "model" if m.role == "assistant" else "user",
            "parts": [{"text": m.content}],
        }
        for m in request.messages
        if m.role != "system"
    ]


def completions(response: Any) -> tuple[Completion, ...]:
    """Read the samples off a response of either SDK; the model's thoughts are left out.

    Raises:
        MalformedBody: There is no candidate, and no reason why.
    """
    if not response.candidates:
        feedback = response.prompt_feedback
        blocked = getattr(feedback, "block_reason", None)
        if blocked:
            return (Completion("", "filter"),)
        raise MalformedBody("no candidates in the answer")
    return tuple(
        Completion(
            "".join(
                part.text or ""
                for part in (getattr(candidate.content, "parts", None) or ())
                if not getattr(part, "thought", False)
            ),
            finish(getattr(candidate.finish_reason, "name", candidate.finish_reason), FINISH),
        )
        for candidate in response.candidates
    )


def retry_delay(details: object) -> float | None:
    """Seconds to wait that a Google error body names (google.rpc.RetryInfo), or ``None``."""
    if isinstance(details, Mapping):
        if "retryDelay" in details:
            found = re.fullmatch(r"([\d.]+)s", str(details["retryDelay"]))
            return float(found[1]) if found else None
        details = list(details.values())
    if isinstance(details, list):
        for item in details:
            found_delay = retry_delay(item)
            if found_delay is not None:
                return found_delay
    return None
