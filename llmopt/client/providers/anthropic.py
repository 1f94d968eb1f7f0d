"""Anthropic's Claude models, with prompt caching switched on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from llmopt.client.base import Completion, FinishReason, Reply, Request, whole
from llmopt.client.http.api_keys import Secret
from llmopt.client.http.endpoint import BOTH, Endpoint, Server
from llmopt.client.http.faults import MalformedBody
from llmopt.client.http.remote import ASIDE_SECONDS, DEADLINE, RemoteClient, finish
from llmopt.client.http.request_form import closed, in_blocks
from llmopt.client.http.transport import load, merged, whole_body

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
# The protocol has no lower effort than "low".
_EFFORTS = {"minimal": "low"}


class AnthropicClient(RemoteClient):
    """A Claude model; the key comes from ``ANTHROPIC_API_KEY``.

    The system prompt and the settled part of the history are marked for the prefix cache. A call
    returns one sample: for a long prompt the first call goes ahead, and the others read its prefix
    from the cache. There is no seed.
    """

    provider = "anthropic"
    package = module = "anthropic"
    home = Server(
        "https://api.anthropic.com",
        "ANTHROPIC_API_KEY",
        "Anthropic",
        BOTH,
        elsewhere="ANTHROPIC_BASE_URL",
    )
    samples_per_call = 1
    marks_cache = True
    default_cap = 32_000
    fields = {"output_format": "schema", "output_config": "schema"}  # noqa: RUF012

    def _connect(self, key: Secret, endpoint: Endpoint) -> Any:
        sdk = load("anthropic", self.package)
        client = sdk.Anthropic(**self._arguments(sdk, key, endpoint))
        return self._cleaned(client, endpoint)

    def _arguments(self, sdk: Any, key: Secret, endpoint: Endpoint) -> dict[str, Any]:
        # Without a key the SDK would look for credentials in the environment and in files.
        url = endpoint.url
        return {"api_key": key.reveal or "none", "base_url": url, **self._http(sdk, url)}

    def _cleaned(self, client: Any, endpoint: Endpoint) -> Any:
        """Return an SDK's client without Anthropic's settings from the environment."""
        client.auth_token = None
        if not endpoint.official:
            client._custom_headers = {}
        return client

    def _missing(self, sdk: Any, endpoint: Endpoint) -> str:
        path = f"/v1/models/{quote(self.model, safe='')}"
        found = sdk.get(path, cast_to=object, options={"timeout": ASIDE_SECONDS})
        if isinstance(found, Mapping):
            self._learned.read(found)
        return ""

    def _parameters(self, request: Request) -> dict[str, Any]:
        parameters: dict[str, Any] = {
            "stream": True,
            # The maximum is 1 here, 2 elsewhere.
            "temperature": None if request.temperature is None else min(request.temperature, 1.0),
            # Stop strings of only white space are not allowed; the answer is cut at them later.
            "stop_sequences": [s for s in request.stop if s.strip()] or None,
            "schema": request.json_schema,
        }
        if self.effort == "none":
            parameters["thinking"] = {"type": "disabled"}
        elif self.effort:
            parameters["effort"] = _EFFORTS.get(self.effort, self.effort)
        return parameters

    def _send(self, sdk: Any, request: Request, parameters: dict[str, Any]) -> Reply:
        system, messages = _conversation(request, _MARKS[self.cache])
        output: dict[str, Any] = {}
        if "effort" in parameters:
            output["effort"] = parameters.pop("effort")
        if "schema" in parameters:
            schema = closed(parameters.pop("schema"))
            output["format"] = {"type": "json_schema", "schema": schema}
        streamed = parameters.pop("stream", False)
        # In the body, because releases of the SDK differ in their arguments.
        own = {"system": system, "output_config": output}
        body = {**parameters, **{name: value for name, value in own.items() if value}}
        asked: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.max_tokens,
            "messages": messages,
            "extra_body": merged(body, self.extra_body),
        }
        if not streamed:  # no byte until it is complete
            return _read(sdk.messages.create(**asked, timeout=DEADLINE * self.timeout))
        with sdk.messages.stream(**asked) as stream:
            return _read(_whole(stream))


def _whole(stream: Any) -> Any:
    """Return the complete message of a stream."""
    whole = whole_body(stream.response)
    if whole is not None:
        return whole
    try:
        message = stream.get_final_message()
    except (AssertionError, RuntimeError, LookupError, AttributeError) as error:
        raise MalformedBody("its pieces are no message") from error
    if message.stop_reason is None:
        raise MalformedBody("the answer ended before it was complete")
    return message


def _read(message: Any) -> Reply:
    """Turn a message, in which fields may be missing, into a `Reply`."""
    content = getattr(message, "content", None)
    if not isinstance(content, list):
        raise MalformedBody("no content in the answer")
    pieces = [block.text for block in content if getattr(block, "type", "") == "text"]
    if not all(isinstance(piece, str) for piece in pieces):
        raise MalformedBody("a block of text holds none")
    usage = getattr(message, "usage", None)
    kinds = getattr(usage, "cache_creation", None)
    read = whole(getattr(usage, "cache_read_input_tokens", None)) or 0
    written = whole(getattr(usage, "cache_creation_input_tokens", None)) or 0
    fresh = whole(getattr(usage, "input_tokens", None))
    long = whole(getattr(kinds, "ephemeral_1h_input_tokens", None)) or 0
    reason = finish(getattr(message, "stop_reason", None), _FINISH)
    return Reply(
        completions=(Completion("".join(pieces), reason),),
        model=getattr(message, "model", None) or "",
        prompt_tokens=None if fresh is None else fresh + read + written,
        cached_tokens=read,
        written_tokens=written,
        written_long_tokens=min(written, long),
        completion_tokens=getattr(usage, "output_tokens", None),
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
