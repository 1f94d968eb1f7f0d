"""Anthropic's Claude models, with prompt caching switched on."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

from llmopt.client.base import Completion, FinishReason, Request, whole
from llmopt.client.call import Call, closed, finish
from llmopt.client.connection import load, merged, whole_body
from llmopt.client.endpoint import Endpoint, address
from llmopt.client.faults import Fault, MalformedBody, sdk_fault
from llmopt.client.keys import Secret
from llmopt.client.remote import ASIDE_SECONDS, DEADLINE, RemoteClient

_URL = "https://api.anthropic.com"
_FINISH: dict[str, FinishReason] = {
    "MAX_TOKENS": "length",
    "MODEL_CONTEXT_WINDOW_EXCEEDED": "length",
    "REFUSAL": "refusal",
}
# A prefix is cached up to the end of a block, and a hit needs the same block ends as before.
# Blocks of whole lines, about this long and counted from the start, end at the same places
# as long as a prompt only grows; the line that changes is in the last block, which is not
# cached. A later request finds the end that was cached before within 20 blocks of its own.
_BLOCK_CHARACTERS = 2000
# Below about 1,024 tokens nothing is cached, so waiting for the first call gains nothing.
_WORTH_CACHING = 2 * _BLOCK_CHARACTERS
_MARKS: Mapping[str, dict[str, str] | None] = {
    "short": {"type": "ephemeral"},
    "long": {"type": "ephemeral", "ttl": "1h"},
    "off": None,
}
# The protocol has no word for less than little.
_EFFORTS = {"minimal": "low"}


class AnthropicClient(RemoteClient):
    """A Claude model. The arguments are those of `RemoteClient`.

    The key comes from ``ANTHROPIC_API_KEY``. The system prompt and the part of the history
    that does not change are marked for the provider's prefix cache. One call brings one
    sample; where several are wanted of a long prompt, the first call goes ahead and the
    others read its prefix from the cache. There is no seed.
    """

    provider = "anthropic"
    package = module = "anthropic"
    samples_per_call = 1
    marks_cache = True
    default_cap = 32_000
    fields = {"output_format": "schema", "output_config": "schema"}  # noqa: RUF012

    def _endpoint(self) -> Endpoint:
        url, trouble = address(self.base_url, "ANTHROPIC_BASE_URL", _URL)
        own = url == _URL
        return Endpoint(url, ("ANTHROPIC_API_KEY",), trouble=trouble, usual=own, lists=own)

    def _connect(self, key: Secret, endpoint: Endpoint) -> Any:
        sdk = load("anthropic", self.package)
        url = endpoint.url
        return sdk.Anthropic(api_key=key.reveal, base_url=url, **self._http(sdk, url))

    def _missing(self, sdk: Any, endpoint: Endpoint) -> str:
        path = f"/v1/models/{quote(self.model, safe='')}"
        found = sdk.get(path, cast_to=object, options={"timeout": ASIDE_SECONDS})
        if isinstance(found, Mapping):
            self._learned.read(found)
        return ""

    def _parameters(self, request: Request) -> dict[str, Any]:
        parameters: dict[str, Any] = {
            "stream": True,
            # The range ends at 1 here, at 2 elsewhere.
            "temperature": None if request.temperature is None else min(request.temperature, 1.0),
            # Stop strings of white space alone are not allowed; the answer is cut at them later.
            "stop_sequences": [s for s in request.stop if s.strip()] or None,
            "schema": request.json_schema,
        }
        if self.effort == "none":
            parameters["thinking"] = {"type": "disabled"}
        elif self.effort:
            parameters["effort"] = _EFFORTS.get(self.effort, self.effort)
        return {name: value for name, value in parameters.items() if value is not None}

    def _send(self, sdk: Any, request: Request, parameters: dict[str, Any]) -> Call:
        system, messages = conversation(request, _MARKS[self.cache])
        options: dict[str, Any] = {"stream": parameters.pop("stream", False)}
        if not options["stream"]:
            # Silent until it is complete.
            options["timeout"] = DEADLINE * self.timeout
        output: dict[str, Any] = {}
        if "effort" in parameters:
            output["effort"] = parameters.pop("effort")
        if "schema" in parameters:
            schema = closed(parameters.pop("schema"))
            output["format"] = {"type": "json_schema", "schema": schema}
        # In the body rather than as arguments: releases of the SDK differ in which they take.
        body = {**parameters, **({"output_config": output} if output else {})}
        if system:
            body["system"] = system
        response = sdk.messages.create(
            model=self.model,
            max_tokens=request.max_tokens,
            messages=messages,
            extra_body=merged(body, self.extra_body),
            **options,
        )
        return _read(_collected(response) if options["stream"] else response)

    def _caches_prefix(self, request: Request) -> bool:
        return self.cache != "off" and len(request.text) >= _WORTH_CACHING

    def _fault(self, error: Exception) -> Fault | None:
        return sdk_fault(load("anthropic", self.package), error)


def _collected(stream: Any) -> Any:
    """Return the message that came in pieces, as it would have come at once.

    Raises:
        MalformedBody: It ended before it was complete.
    """
    whole = whole_body(stream.response)
    if whole is not None:
        return whole
    message: Any = None
    texts: dict[int, list[Any]] = {}
    counts: dict[str, Any] = {}
    reason: Any = None
    ended = False
    for event in stream:
        kind = getattr(event, "type", "")
        if kind == "message_start":
            message = event.message
            counts.update(_counts(getattr(message, "usage", None)))
            counts.pop("output_tokens", None)  # of the answer's beginning; the end counts all
        elif kind == "content_block_start" and getattr(event.content_block, "type", "") == "text":
            texts[event.index] = [event.content_block.text]
        elif kind == "content_block_delta" and getattr(event.delta, "type", "") == "text_delta":
            texts.setdefault(event.index, []).append(event.delta.text)
        elif kind == "message_delta":
            reason = getattr(event.delta, "stop_reason", None) or reason
            # The counts are those of the message so far.
            counts.update(_counts(getattr(event, "usage", None)))
        elif kind == "message_stop":
            ended = True
    if message is None or not (ended or reason):
        raise MalformedBody("the answer ended before it was complete")
    pieces = [piece for index in sorted(texts) for piece in texts[index]]
    return SimpleNamespace(
        content=[SimpleNamespace(type="text", text=piece) for piece in pieces],
        stop_reason=reason,
        model=getattr(message, "model", None),
        usage=SimpleNamespace(**counts),
    )


_COUNTED = (
    "input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens",
    "cache_creation",
)  # fmt: skip


def _counts(usage: Any) -> dict[str, Any]:
    found = {name: getattr(usage, name, None) for name in _COUNTED}
    return {name: value for name, value in found.items() if value is not None}


def _read(message: Any) -> Call:
    """Turn a message, whose fields a server may have left out, into a `Call`."""
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
    return Call(
        completions=(Completion("".join(pieces), reason),),
        model=getattr(message, "model", None) or "",
        prompt_tokens=None if fresh is None else fresh + read + written,
        cached_tokens=read,
        written_tokens=written,
        written_long_tokens=min(written, long),
        completion_tokens=getattr(usage, "output_tokens", None),
    )


def conversation(
    request: Request, mark: dict[str, str] | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a request's system blocks and messages, marked for the prefix cache.

    Args:
        mark: What says how long to keep the prefix; ``None`` for no marks.
        request: Its system messages go first, wherever they stand. Of the last message, the
            last block (at most about 2,000 characters) is taken to change from request to
            request; everything before it is marked as worth caching.
    """
    system: list[dict[str, Any]] = [
        {"type": "text", "text": m.content}
        for m in request.messages
        if m.role == "system" and m.content.strip()
    ]
    if system and mark:
        system[-1] = {**system[-1], "cache_control": mark}
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
    if stable is not None and mark:
        stable["cache_control"] = mark
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
