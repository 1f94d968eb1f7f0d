"""Anthropic's Claude models, with prompt caching switched on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from llmopt.client.base import Completion, FinishReason, Reply, Request, whole
from llmopt.client.http.api_keys import Secret
from llmopt.client.http.endpoint import BOTH, Endpoint, Server
from llmopt.client.http.faults import Fault
from llmopt.client.http.remote import Connection, RemoteClient, answer_events, finish
from llmopt.client.http.request_form import closed, in_blocks, merged
from llmopt.client.http.transport import load

_FINISH: dict[str, FinishReason] = {
    "MAX_TOKENS": "length",
    "MODEL_CONTEXT_WINDOW_EXCEEDED": "length",
    "REFUSAL": "refusal",
}
_MARKS: Mapping[str, dict[str, str] | None] = {
    "short": {"type": "ephemeral"},
    "long": {"type": "ephemeral", "ttl": "1h"},
    "off": None,
}


class AnthropicClient(RemoteClient):
    """A Claude model; the key comes from ``ANTHROPIC_API_KEY``.

    The system prompt and the settled part of the history are marked for the prefix cache. There is
    no seed.
    """

    provider = package = module = "anthropic"
    home = Server(
        "https://api.anthropic.com",
        "ANTHROPIC_API_KEY",
        "Anthropic",
        BOTH,
        elsewhere="ANTHROPIC_BASE_URL",
    )
    marks_cache = True
    default_cap = 32_000
    fields = {"output_format": "schema", "output_config": "schema"}  # noqa: RUF012

    def _connect(self, key: Secret, endpoint: Endpoint) -> Any:
        sdk = load(self.module, self.package)
        return self._cleaned(sdk.Anthropic(**self._arguments(sdk, key, endpoint)), endpoint)

    def _arguments(self, sdk: Any, key: Secret, endpoint: Endpoint) -> dict[str, Any]:
        # Without a key the SDK would look for credentials in the environment and in files.
        return {"api_key": key.reveal or "none", **self._http(sdk, endpoint.url)}

    def _cleaned(self, client: Any, endpoint: Endpoint) -> Any:
        """Return an SDK's client without Anthropic's settings from the environment."""
        client.auth_token = None
        if not endpoint.official:
            client._custom_headers = {}
        return client

    def _missing(self, connection: Connection) -> str:
        self._learned.read(connection.get(f"/v1/models/{quote(self.model, safe='')}"))
        return ""

    def _parameters(self, request: Request) -> dict[str, Any]:
        thinks = self.effort not in (None, "none")
        return {
            # The maximum is 1 here, 2 elsewhere.
            "temperature": None if request.temperature is None else min(request.temperature, 1.0),
            # Stop strings of only white space are not allowed; the answer is cut at them later.
            "stop_sequences": [s for s in request.stop if s.strip()] or None,
            "schema": request.json_schema,
            "thinking": {"type": "disabled"} if self.effort == "none" else None,
            # The protocol has no lower effort than "low".
            "effort": ("low" if self.effort == "minimal" else self.effort) if thinks else None,
        }

    def _events(self, sdk: Any, request: Request, parameters: dict[str, Any]) -> Iterator[Any]:
        system, messages = _conversation(request, _MARKS[self.cache])
        output: dict[str, Any] = {}
        if "effort" in parameters:
            output["effort"] = parameters.pop("effort")
        if "schema" in parameters:
            schema = closed(parameters.pop("schema"))
            output["format"] = {"type": "json_schema", "schema": schema}
        # In the body, because releases of the SDK differ in their arguments.
        body = {
            **parameters,
            **({"system": system} if system else {}),
            **({"output_config": output} if output else {}),
        }
        stream = sdk.messages.create(
            model=self.model,
            max_tokens=request.max_tokens,
            messages=messages,
            stream=True,
            extra_body=merged(body, self.extra_body),
        )
        yield from answer_events(stream)

    def _read(self, events: list[Any]) -> Reply:
        message: dict[str, Any] = {}
        usage: dict[str, Any] = {}
        texts: list[str] = []
        for event in events:
            kind = event.get("type")
            if kind in ("message_start", "message"):
                message = dict(event["message"] if kind == "message_start" else event)
                usage |= message.get("usage") or {}
                texts += [b["text"] for b in message["content"] if b.get("type") == "text"]
            elif kind == "content_block_start" and event["content_block"]["type"] == "text":
                texts.append(event["content_block"].get("text") or "")
            elif kind == "content_block_delta" and event["delta"]["type"] == "text_delta":
                texts.append(event["delta"]["text"])
            elif kind == "message_delta":
                message |= event["delta"]
                usage |= event.get("usage") or {}
        if not message:
            raise Fault("malformed", "no message in the answer")
        if message.get("stop_reason") is None:
            raise Fault("malformed", "the answer ended before it was complete")
        cached = whole(usage.get("cache_read_input_tokens")) or 0
        written = whole(usage.get("cache_creation_input_tokens")) or 0
        new = whole(usage.get("input_tokens"))
        kinds = usage.get("cache_creation") or {}
        return Reply(
            completions=(Completion("".join(texts), finish(message["stop_reason"], _FINISH)),),
            model=message.get("model") or "",
            prompt_tokens=None if new is None else new + cached + written,
            cached_tokens=cached,
            written_tokens=written,
            written_long_tokens=min(written, whole(kinds.get("ephemeral_1h_input_tokens")) or 0),
            completion_tokens=usage.get("output_tokens"),
        )


def _conversation(
    request: Request, mark: dict[str, str] | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the system blocks and the messages, with a mark at the end of each prefix."""
    system: list[dict[str, Any]] = [
        {"type": "text", "text": m.content}
        for m in request.messages
        if m.role == "system" and m.content.strip()
    ]
    turns = [m for m in request.messages if m.role != "system"]
    parts, settled = in_blocks([m.content for m in turns])
    for last in (system[-1:], settled[-1:]) if mark else ():
        for block in last:
            block["cache_control"] = mark
    return system, [
        {"role": m.role, "content": content} for m, content in zip(turns, parts, strict=True)
    ]
