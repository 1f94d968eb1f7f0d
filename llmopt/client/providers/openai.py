"""OpenAI, and every server that speaks its chat protocol."""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

from llmopt.client.base import Completion, FinishReason, Reply, Request, whole
from llmopt.client.http.api_keys import Secret, redact
from llmopt.client.http.endpoint import (
    ADDRESS,
    CUSTOM_KEY_VARIABLE,
    LISTS,
    SERVERS,
    Documented,
    Endpoint,
    openai_endpoint,
)
from llmopt.client.http.faults import Fault, status_fault, words
from llmopt.client.http.remote import (
    DEADLINE,
    Connection,
    RemoteClient,
    answer_events,
    finish,
)
from llmopt.client.http.request_form import WORTH_CACHING, closed, in_blocks, merged
from llmopt.client.http.transport import ASIDE_SECONDS, load
from llmopt.client.http.urls import check_url
from llmopt.client.prices import FREE, Price, get_price
from llmopt.errors import ModelNotFoundError, did_you_mean
from llmopt.util.arguments import one_of

logger = logging.getLogger(__name__)

_FINISH: dict[str, FinishReason] = {"LENGTH": "length", "CONTENT_FILTER": "filter"}
_THOUGHTS = ("reasoning_content", "reasoning")  # fields of hidden reasoning, by server
_MOST_MARKS = 80
_SHOWN_CHARACTERS = 80


class OpenAIClient(RemoteClient):
    """A client for OpenAI's protocol: OpenAI itself, or any compatible server.

    A key goes only to its owner: ``OPENAI_API_KEY`` to OpenAI, each hosted server's variable to
    that server, and ``LLMOPT_API_KEY`` to any other address, such as the one in
    ``OPENAI_BASE_URL``. Such an address may need no key.

    Ollama silently cuts prompts that exceed its context; for long histories set its
    ``OLLAMA_CONTEXT_LENGTH``. After the first answer, the client looks up the context length of
    Ollama, vLLM, llama.cpp and LM Studio.
    """

    provider = package = module = "openai"
    fields = {  # noqa: RUF012
        "reasoning": "reasoning_effort",
        "json_schema": "response_format",
        "prompt_cache_breakpoint": "prompt_cache_key",
    }

    def __init__(
        self,
        model: str,
        *,
        server: str = "openai",  # one of `SERVERS`
        base_url: str | None = None,  # any other address with the same protocol
        # Whether the model runs on the user's own machine and is free. By default only for such
        # servers of `SERVERS`: any other local server may be a gateway to paid models.
        local: bool | None = None,
        **options: Any,
    ) -> None:
        if server not in SERVERS:
            raise ValueError(f"server={server!r} is unknown: {did_you_mean(server, SERVERS)}")
        one_of("local", local, (True, False, None))
        super().__init__(model, base_url=base_url, **options)
        self._local = local
        self._asked_context = self._noted_thoughts = False
        self.server = server
        self.name = f"openai+{self.base_url}:{model}" if self.base_url else f"{server}:{model}"

    def _endpoint(self) -> Endpoint:
        return openai_endpoint(self.server, self.base_url, self.model, self._local)

    def _connect(self, key: Secret, endpoint: Endpoint) -> Any:
        sdk = load(self.module, self.package)
        # The SDK requires a key; local servers ignore it.
        client = sdk.OpenAI(api_key=key.reveal or "none", **self._http(sdk, endpoint.url))
        if self.server != "openai" or not endpoint.official:
            # OPENAI_ORG_ID, OPENAI_PROJECT_ID and OPENAI_CUSTOM_HEADERS are only for OpenAI.
            client.organization = client.project = None
            client._custom_headers = {}
        return client

    @property
    def url(self) -> str:
        """The address that requests go to."""
        return self.where.url

    @property
    def local(self) -> bool:
        """Whether the model runs on the user's own machine, so that tokens are free."""
        return self.where.local

    def current_price(self) -> Price | None:
        """Return the price of tokens; free on the user's machine, ``None`` if it is unknown."""
        own = self.price or get_price(self.name, listed=False)
        if own is not None or self.local:
            return own or FREE
        # Another server (OPENAI_BASE_URL or base_url=) has other prices than OpenAI.
        server = self.where.server
        return get_price(f"{server}:{self.model}") if server else None

    @property
    def priced(self) -> bool:
        """Whether the cost of a reply will be known."""
        return Documented.COST in self.where.documents or self.current_price() is not None

    @property
    def marks_cache(self) -> bool:
        """Whether llmopt marks cached prefixes, because the model charges for cache writes.

        OpenAI does from GPT-5.6 on. Without marks it would write the whole of every prompt, and
        read nothing if the last line changes.
        """
        gpt = re.match(r"gpt-(\d+)(?:\.(\d+))?", self.model)
        version = (int(gpt[1]), int(gpt[2] or 0)) if gpt else (0, 0)
        return version >= (5, 6) and self.where.server == "openai"

    def _missing(self, connection: Connection) -> str:
        if connection.endpoint.key_path:
            connection.get(connection.endpoint.key_path)
        try:
            body = connection.get("/models")
        except Exception as error:
            if _has_none(error):
                return ""  # it has no list
            raise
        entries = _of_model(body, self.model)
        if isinstance(entries, list) and entries:
            self._learned.read(entries[0])
        listed = body.get("data") if isinstance(body, Mapping) else body
        ids = [e.get("id") for e in listed or () if isinstance(e, Mapping)]
        names = {name for name in ids if isinstance(name, str)}
        # A name's suffix may choose a provider or a price, such as OpenRouter's ":free".
        same = {self.model, f"{self.model}:latest", self.model.partition(":")[0]}
        if not names or same & names or LISTS not in connection.endpoint.documents:
            return ""
        try:
            connection.get(f"/models/{quote(self.model, safe='')}")
        except Exception as error:
            if not _has_none(error):
                raise
            fetch = f". `ollama pull {self.model}` fetches it" if self.server == "ollama" else ""
            near = did_you_mean(self.model, {name[:_SHOWN_CHARACTERS] for name in names})
            return f"{self.name} does not exist there: {near}{fetch}"
        return ""

    def _parameters(self, request: Request) -> dict[str, Any]:
        parameters: dict[str, Any] = {
            "stream": True,
            "stream_options": {"include_usage": True},
            "reasoning_effort": self.effort,
            "temperature": request.temperature,
            "stop": list(request.stop) or None,
            "seed": request.seed,
        }
        if request.max_tokens is not None:
            # OpenAI has renamed it; most other servers know only the old name.
            caps = ["max_completion_tokens", "max_tokens"]
            if self.server != "openai" or self.base_url:
                caps.reverse()
            cap = next((n for n in caps if n not in self._learned.without), None)
            if cap:
                parameters[cap] = request.max_tokens
        if request.json_schema is not None:
            schema = {"name": "answer", "schema": closed(request.json_schema), "strict": True}
            parameters["response_format"] = {"type": "json_schema", "json_schema": schema}
        if self.marks_cache:
            parameters["prompt_cache_options"] = {"mode": "explicit"}
            if self.cache != "off":
                # Requests of one search share a prefix, and should reach the same cache.
                start = request.text[: WORTH_CACHING // 4].encode()
                parameters["prompt_cache_key"] = "llmopt-" + hashlib.sha256(start).hexdigest()[:24]
        if {"stream", "stream_options"} & self._learned.without:
            # A stream without these options does not report its usage.
            del parameters["stream"], parameters["stream_options"]
        return parameters

    def _events(self, sdk: Any, request: Request, parameters: dict[str, Any]) -> Iterator[Any]:
        messages = _messages(request, "prompt_cache_key" in parameters)
        options: dict[str, Any] = {"stream": parameters.pop("stream", False)}
        if not options["stream"]:  # no byte until it is complete
            options["timeout"] = DEADLINE * self.timeout
        # All else in the body, because releases of the SDK differ in their arguments.
        body = merged({"model": self.model, **parameters}, self.extra_body)
        answer = sdk.chat.completions.create(
            model=body.pop("model"), messages=messages, extra_body=body, **options
        )
        yield from answer_events(answer)

    def _read(self, events: list[Any]) -> Reply:
        choices: dict[int, dict[str, Any]] = {}
        usage: Mapping[str, Any] = {}
        model = ""
        for event in events:
            usage, model = event.get("usage") or usage, event.get("model") or model
            for choice in event.get("choices") or ():
                if choice.get("error"):
                    raise status_fault(200, {}, choice)
                _add(choices.setdefault(int(choice.get("index") or 0), {}), choice)
        if not choices:
            said = words(events[0])
            raise Fault("malformed", f"no choices in the answer{said and f': {said}'}")
        streamed = any("delta" in c for e in events for c in e.get("choices") or ())
        if streamed and not usage and not any(c["finish_reason"] for c in choices.values()):
            raise Fault("malformed", "the answer ended before it was complete")
        completions = tuple(self._completion(choices[index]) for index in sorted(choices))
        return _reply(completions, usage, model)

    def _completion(self, choice: dict[str, Any]) -> Completion:
        if choice["refusal"]:
            return Completion(choice["refusal"], "refusal")
        reason = finish(choice["finish_reason"], _FINISH)
        thoughts = choice["thoughts"]
        if choice["content"].strip() or not thoughts.strip() or reason != "stop":
            return Completion(choice["content"], reason)
        if not self._noted_thoughts:
            self._noted_thoughts = True
            logger.warning(
                "%s puts its whole answer into `reasoning_content`, which is read in its place: "
                "start the server without a parser of reasoning, or give effort='none'", self.name,
            )  # fmt: skip
        return Completion(thoughts, reason)

    def complete(self, request: Request) -> Reply:
        """Answer one request; see `RemoteClient.complete`.

        The context length of a model on the user's own machine is looked up after the first
        answer, when the model is certainly loaded; `context_tokens` returns it from then on.
        """
        reply = super().complete(request)
        if self.local and not self._asked_context:
            self._asked_context = True
            if self.context_tokens is None:
                self._ask_context(self._connected())
        return reply

    def _ask_context(self, connection: Connection) -> None:
        """Try the queries of all kinds of servers until one works, in a bounded time."""
        root = self.url.removesuffix("/v1")
        seconds = min(self.timeout, ASIDE_SECONDS) / 2  # the answer may take twice as long
        ends = time.monotonic() + seconds
        # vLLM; llama.cpp (for each slot); Ollama (for loaded models); LM Studio.
        for path in ("/v1/models", "/props", "/api/ps", f"/api/v0/models/{self.model}"):
            if time.monotonic() >= ends:
                return
            body = self._guarded(partial(connection.get, root + path, seconds), seconds=seconds)
            if not isinstance(body, Fault):
                self._learned.read(_of_model(body, self.model))
            if self.context_tokens is not None:
                logger.info("%s has a context of %d tokens", self.name, self.context_tokens)
                return


def at_url(address: str, **options: Any) -> OpenAIClient:
    """Return the client for the part after ``openai+`` in a model string."""
    if re.match(r"https?://[^/@:]+(?::[^/@]+)?@", address):
        # It would be read as a model's name, which is shown and written to files.
        raise ModelNotFoundError(
            "the address in the model string 'openai+...' holds a user name or a password: give "
            f"the address alone, and a key in {CUSTOM_KEY_VARIABLE}"
        )
    parts = ADDRESS.fullmatch(address)
    if parts is None:
        raise ModelNotFoundError(
            f"model string 'openai+{redact(address)}' cannot be read: expected "
            "openai+http://host:port/v1:model"
        )
    origin, path, model = parts.groups()
    try:
        base_url = check_url(origin + (path or "/v1"))
    except ValueError as error:
        raise ModelNotFoundError(f"model string 'openai+...' cannot be used: {error}") from None
    return OpenAIClient(model, base_url=base_url, **options)


def _has_none(error: Exception) -> bool:
    return getattr(error, "status_code", None) in (404, 405, 501)


def _of_model(body: Any, model: str) -> Any:
    """Return the entries of one model in a list of models, or the body if it is not a list."""
    for name in ("data", "models"):
        entries = body.get(name) if isinstance(body, Mapping) else None
        if isinstance(entries, list):
            names, places = (model, f"{model}:latest"), ("id", "name", "model")
            described = [e for e in entries if isinstance(e, Mapping)]
            return [e for e in described if any(e.get(place) in names for place in places)]
    return body


def _messages(request: Request, marked: bool) -> list[dict[str, Any]]:
    """Return the messages, with marks for the prefix cache after the latest settled blocks.

    The cache finds a prefix only at a mark, so all are marked; only the latest four are written.
    """
    messages: list[dict[str, Any]] = [
        {"role": m.role, "content": m.content} for m in request.messages
    ]
    # The protocol accepts no marks in the model's messages.
    own = [m for m in messages if m["role"] != "assistant" and m["content"].strip()]
    parts, settled = in_blocks([m["content"] for m in own] if marked else ())
    for message, content in zip(own, parts, strict=False):
        message["content"] = content
    for part in settled[-_MOST_MARKS:]:
        part["prompt_cache_breakpoint"] = {"mode": "explicit"}
    return messages


def _add(choice: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """Add a piece of a stream, or the whole, to a choice."""
    holder = next((piece[n] for n in ("delta", "message") if piece.get(n) is not None), None)
    if holder is None:
        raise TypeError("a choice holds no message")
    source: Mapping[str, Any] = holder
    text = _text(source.get("content"))
    thoughts = next((source[n] for n in _THOUGHTS if isinstance(source.get(n), str)), "")
    refusal = source.get("refusal")
    choice["content"] = choice.get("content", "") + (text or "")
    choice["thoughts"] = choice.get("thoughts", "") + thoughts
    choice["refusal"] = choice.get("refusal", "") + (refusal if isinstance(refusal, str) else "")
    choice["finish_reason"] = piece.get("finish_reason") or choice.get("finish_reason")


def _text(content: Any) -> Any:
    """Return the text of a message's content; parts with thoughts have none."""
    if not isinstance(content, list):
        return content
    return "".join(p["text"] for p in content if isinstance(p.get("text"), str))


def _reply(completions: tuple[Completion, ...], usage: Mapping[str, Any], model: Any) -> Reply:
    details = usage.get("prompt_tokens_details") or {}
    prompt, completion, total = (
        whole(usage.get(f"{name}_tokens")) for name in ("prompt", "completion", "total")
    )
    if prompt is not None and total is not None and total > prompt:
        # xAI counts hidden reasoning only in the total.
        completion = max(completion or 0, total - prompt)
    return Reply(
        completions=completions,
        model=model or "",
        prompt_tokens=prompt,
        # DeepSeek has its own field.
        cached_tokens=details.get("cached_tokens") or usage.get("prompt_cache_hit_tokens") or 0,
        written_tokens=details.get("cache_write_tokens") or 0,
        completion_tokens=completion,
        cost=usage.get("cost"),  # OpenRouter reports what it charged
    )
