"""Anthropic's Claude models, with prompt caching switched on."""

from __future__ import annotations

import json
from typing import Any

from llmopt.client.base import Completion, FinishReason, Request
from llmopt.client.http import Fault
from llmopt.client.remote import (
    Answer,
    MalformedBody,
    RemoteClient,
    finish,
    load,
    status_fault,
    tokens,
)

_FINISH: dict[str, FinishReason] = {
    "MAX_TOKENS": "length",
    "MODEL_CONTEXT_WINDOW_EXCEEDED": "length",
    "REFUSAL": "refusal",
}
# The protocol wants a cap; this one is what applies where the request names none.
_DEFAULT_MAX_TOKENS = 8192
# A prefix is cached up to the end of a block, and a hit needs the same block ends as before.
# Blocks of whole lines, about this long and counted from the start, end at the same places
# as long as a prompt only grows; the line that changes is in the last block, which is not
# cached. A later request finds the end that was cached before within 20 blocks of its own.
_BLOCK_CHARACTERS = 2000
# Below about 1,024 tokens nothing is cached, so waiting for the first call gains nothing.
_WORTH_CACHING = 2 * _BLOCK_CHARACTERS
_CACHED = {"type": "ephemeral"}


class AnthropicClient(RemoteClient):
    """A Claude model. The arguments are those of `RemoteClient`.

    The key comes from ``ANTHROPIC_API_KEY``. The system prompt and the part of the history
    that does not change are marked for the provider's prefix cache. One call brings one
    sample; where several are wanted of a long prompt, the first call goes ahead and the
    others read its prefix from the cache. There is no seed.
    """

    provider = "anthropic"
    package = "anthropic"
    samples_per_call = 1

    @property
    def key_variables(self) -> tuple[str, ...]:
        """Environment variables that can hold the API key."""
        return ("ANTHROPIC_API_KEY",)

    def _connect(self, key: str) -> Any:
        sdk = load("anthropic", self.package)
        return sdk.Anthropic(
            api_key=key, base_url=self.base_url, timeout=self.timeout, max_retries=0
        )

    def _parameters(self, request: Request) -> dict[str, Any]:
        parameters: dict[str, Any] = {
            # The range ends at 1 here, at 2 elsewhere.
            "temperature": None if request.temperature is None else min(request.temperature, 1.0),
            # Stop strings of white space alone are not allowed; the answer is cut at them later.
            "stop_sequences": [s for s in request.stop if s.strip()] or None,
        }
        if request.json_schema is not None:
            parameters["output_config"] = {
                "format": {"type": "json_schema", "schema": dict(request.json_schema)}
            }
        return {name: value for name, value in parameters.items() if value is not None}

    def _send(self, sdk: Any, request: Request, parameters: dict[str, Any]) -> Answer:
        system, messages = conversation(request)
        # In the body rather than as arguments: releases of the SDK differ in which they take.
        body = {**parameters, **self.extra_body}
        if system:
            body["system"] = system
        response = sdk.messages.create(
            model=self.model,
            max_tokens=request.max_tokens or _DEFAULT_MAX_TOKENS,
            messages=messages,
            extra_body=body,
        )
        if not isinstance(getattr(response, "content", None), list):
            raise MalformedBody("no content in the answer")
        usage = getattr(response, "usage", None)
        read = tokens(getattr(usage, "cache_read_input_tokens", None))
        written = tokens(getattr(usage, "cache_creation_input_tokens", None))
        texts = [b.text for b in response.content if getattr(b, "type", "") == "text"]
        if not all(isinstance(text, str) for text in texts):
            raise MalformedBody("a block of text holds none")
        return Answer(
            completions=(Completion("".join(texts), finish(response.stop_reason, _FINISH)),),
            model=response.model or "",
            prompt_tokens=tokens(getattr(usage, "input_tokens", None)) + read + written,
            cached_tokens=read,
            written_tokens=written,
            completion_tokens=getattr(usage, "output_tokens", None) or 0,
        )

    def _caches_prefix(self, request: Request) -> bool:
        return len(request.text) >= _WORTH_CACHING

    def _fault(self, error: Exception) -> Fault | None:
        sdk = load("anthropic", self.package)
        if isinstance(error, sdk.APITimeoutError):
            return Fault("timeout")
        if isinstance(error, sdk.APIStatusError):
            return status_fault(error, error.body, error.message)
        if isinstance(
            error, sdk.APIResponseValidationError | json.JSONDecodeError | UnicodeDecodeError
        ):
            return Fault("malformed", f"{type(error).__name__}: {error}")
        if isinstance(error, sdk.APIConnectionError):
            return Fault("connection", str(error.__cause__ or error))
        if isinstance(error, sdk.APIError):
            return Fault("other", str(error))
        return None


def conversation(request: Request) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a request's system blocks and messages, marked for the prefix cache.

    Args:
        request: Its system messages go first, wherever they stand. Of the last message, the
            last block (at most about 2,000 characters) is taken to change from request to
            request; everything before it is marked as worth caching.
    """
    system: list[dict[str, Any]] = [
        {"type": "text", "text": m.content}
        for m in request.messages
        if m.role == "system" and m.content.strip()
    ]
    if system:
        system[-1] = {**system[-1], "cache_control": _CACHED}
    turns = [m for m in request.messages if m.role != "system"]
    messages: list[dict[str, Any]] = []
    stable: dict[str, Any] | None = None
    for message in turns:
        parts: list[dict[str, Any]] = [
            {"type": "text", "text": text} for text in blocks(message.content)
        ]
        settled = parts[:-1] if message is turns[-1] else parts
        stable = settled[-1] if settled else stable
        messages.append({"role": message.role, "content": parts})
    if stable is not None:
        stable["cache_control"] = _CACHED
    return system, messages


def blocks(text: str, size: int = _BLOCK_CHARACTERS) -> list[str]:
    """Split `text` after lines, into blocks of at least `size` characters but the last.

    A text that begins with `text` begins with the same blocks, the last one excepted.
    """
    result: list[str] = []
    block = ""
    for line in text.splitlines(keepends=True):
        block += line
        if len(block) >= size and block.strip():
            result.append(block)
            block = ""
    if block.strip() or not result:
        result.append(block)
    else:
        result[-1] += block
    return result
