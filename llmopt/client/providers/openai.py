"""OpenAI, and every server that speaks its chat protocol."""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal
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
from llmopt.client.http.faults import Fault, MalformedBody
from llmopt.client.http.remote import ASIDE_SECONDS, DEADLINE, RemoteClient, finish
from llmopt.client.http.request_form import WORTH_CACHING, closed, in_blocks
from llmopt.client.http.transport import check_url, is_local, load, merged, whole_body
from llmopt.client.prices import FREE, Price, get_price
from llmopt.errors import ModelNotFoundError, did_you_mean

logger = logging.getLogger(__name__)


_FINISH: dict[str, FinishReason] = {"LENGTH": "length", "CONTENT_FILTER": "filter"}
_FILTERED = {"content_filter", "content_policy_violation"}
_FIELDS = {
    "reasoning": "reasoning_effort",
    "json_schema": "response_format",
    "prompt_cache_breakpoint": "prompt_cache_key",
}
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

    provider = "openai"
    package = module = "openai"
    fields = _FIELDS
    samples_per_call = 128  # the API's maximum of `n`

    def __init__(
        self,
        model: str,
        *,
        server: str = "openai",  # one of `SERVERS`
        base_url: str | None = None,  # any other address with the same protocol
        endpoint: Literal["chat", "completions"] = "chat",  # "completions" continues plain text
        # Whether the model runs on the user's own machine and is free. By default only for such
        # servers of `SERVERS`: any other local server may be a gateway to paid models.
        local: bool | None = None,
        **options: Any,
    ) -> None:
        if server not in SERVERS:
            raise ValueError(f"server={server!r} is unknown: {did_you_mean(server, SERVERS)}")
        if endpoint not in ("chat", "completions"):
            raise ValueError(f"endpoint={endpoint!r}: expected 'chat' or 'completions'")
        super().__init__(model, base_url=base_url, **options)
        self._local = local
        self._asked_context = False
        self.server = server
        self.endpoint = endpoint
        if endpoint == "completions":
            self.style = "completion"
        self.name = f"openai+{self.base_url}:{model}" if self.base_url else f"{server}:{model}"

    def _endpoint(self) -> Endpoint:
        return openai_endpoint(self.server, self.base_url, self.model, self._local)

    @property
    def url(self) -> str:
        """The address that requests go to."""
        return self.where.url

    @property
    def local(self) -> bool:
        """Whether the model runs on the user's own machine, so that tokens are free."""
        return self.where.local

    @property
    def settings(self) -> dict[str, Any]:
        """What changes the answers beside `name` and the request."""
        return {**super().settings, "endpoint": self.endpoint}

    def current_price(self) -> Price | None:
        """What tokens cost now; nothing on one's own machine, ``None`` if it is not known."""
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

    def _missing(self, sdk: Any, endpoint: Endpoint) -> str:
        ask = partial(sdk.get, cast_to=object, options={"timeout": ASIDE_SECONDS})
        if endpoint.key_path:
            ask(endpoint.key_path)
        try:
            body = ask("/models")
        except Exception as error:
            if _has_none(error):
                return ""  # it has no list
            raise
        listed = _names(body)
        entries = _of_model(body, self.model)
        if isinstance(entries, list) and entries:
            self._learned.read(entries[0])
        # A name's suffix may choose a provider or a price, such as OpenRouter's ":free".
        same = {self.model, f"{self.model}:latest", self.model.partition(":")[0]}
        if not listed or same & listed or LISTS not in endpoint.documents:
            return ""
        try:
            ask(f"/models/{quote(self.model, safe='')}")
        except Exception as error:
            if not _has_none(error):
                raise
            fetch = f". `ollama pull {self.model}` fetches it" if self.server == "ollama" else ""
            names = did_you_mean(self.model, {name[:_SHOWN_CHARACTERS] for name in listed})
            return f"{self.name} does not exist there: {names}{fetch}"
        return ""

    def _connect(self, key: Secret, endpoint: Endpoint) -> Any:
        sdk = load("openai", self.package)
        client = sdk.OpenAI(
            api_key=key.reveal or "none",  # the SDK requires one; local servers ignore it
            base_url=endpoint.url,
            **self._http(sdk, endpoint.url),
        )
        if self.server != "openai" or not endpoint.official:
            # OPENAI_ORG_ID, OPENAI_PROJECT_ID and OPENAI_CUSTOM_HEADERS are only for OpenAI.
            client.organization = client.project = None
            client._custom_headers = {}
        return client

    def _parameters(self, request: Request) -> dict[str, Any]:
        parameters: dict[str, Any] = {
            "stream": True,
            "stream_options": {"include_usage": True},
            "reasoning_effort": self.effort if self.endpoint == "chat" else None,
            "temperature": request.temperature,
            "stop": list(request.stop) or None,
            "seed": request.seed,
            "n": request.n if request.n > 1 else None,
        }
        if request.max_tokens is not None:
            # OpenAI has renamed it; most other servers know only the old name.
            names = ["max_completion_tokens", "max_tokens"]
            if self.endpoint == "completions" or self.server != "openai" or self.base_url:
                names.reverse()
            name = next((n for n in names if n not in self._learned.refused), None)
            if name and not (self.endpoint == "completions" and name != "max_tokens"):
                parameters[name] = request.max_tokens
        if request.json_schema is not None and self.endpoint == "chat":
            parameters["response_format"] = {
                "type": "json_schema",
                "json_schema": {
                    "name": "answer",
                    "schema": closed(request.json_schema),
                    "strict": True,
                },
            }
        # llama.cpp's own field; other servers ignore it, or reject it once.
        if request.grammar is not None and (
            self.server == "llamacpp" or (self.base_url and is_local(self.url))
        ):
            parameters["grammar"] = request.grammar
        if self.marks_cache:
            parameters["prompt_cache_options"] = {"mode": "explicit"}
            if self.cache != "off":
                # Requests of one search share a prefix, and should reach the same cache.
                start = request.text[: WORTH_CACHING // 4].encode()
                parameters["prompt_cache_key"] = "llmopt-" + hashlib.sha256(start).hexdigest()[:24]
        if {"stream", "stream_options"} & self._learned.refused:
            # A stream without these options does not report its usage.
            del parameters["stream"], parameters["stream_options"]
        return parameters

    @property
    def marks_cache(self) -> bool:
        """Whether llmopt marks cached prefixes, because the model charges for cache writes.

        OpenAI does from GPT-5.6 on. Without marks it would write the whole of every prompt, and
        read nothing if the last line changes.
        """
        found = re.match(r"gpt-(\d+)(?:\.(\d+))?", self.model)
        version = (int(found[1]), int(found[2] or 0)) if found else (0, 0)
        return version >= (5, 6) and self.endpoint == "chat" and self.where.server == "openai"

    def _send(self, sdk: Any, request: Request, parameters: dict[str, Any]) -> Reply:
        # All in the body, because releases of the SDK differ in their arguments.
        body: dict[str, Any] = {**parameters, "model": self.model}
        options: dict[str, Any] = {"stream": body.pop("stream", False)}
        if not options["stream"]:
            # No byte until it is complete.
            options["timeout"] = DEADLINE * self.timeout
        required: dict[str, Any]
        if self.endpoint == "completions":
            create, required = sdk.completions.create, {"prompt": request.text}
        else:
            marked = "prompt_cache_key" in parameters
            create, required = sdk.chat.completions.create, {"messages": _messages(request, marked)}
        extra = merged(body, self.extra_body)
        try:
            response = create(model=extra.pop("model"), extra_body=extra, **required, **options)
            return _collect(response) if options["stream"] else _read(response)
        except Exception as error:
            if getattr(error, "code", None) in _FILTERED:
                return Reply((Completion("", "filter"),))
            raise

    def complete(self, request: Request) -> Reply:
        """Answer one request; see `RemoteClient.complete`.

        The context length of a model on the user's own machine is looked up after the first
        answer, when the model is certainly loaded; `context_tokens` returns it from then on.
        """
        reply = super().complete(request)
        if self.local and not self._asked_context:
            self._asked_context = True
            if self.context_tokens is None:
                self._ask_context(self._connected().sdk)
        return reply

    def _ask_context(self, sdk: Any) -> None:
        """Try the queries of all kinds of servers until one works, in a bounded time."""
        seconds = min(self.timeout, ASIDE_SECONDS)
        came = self._guarded(seconds, partial(self._read_context, sdk, seconds))
        if isinstance(came, Fault):
            logger.debug("%s does not report its context (%s)", self.name, came.kind)

    def _read_context(self, sdk: Any, seconds: float) -> None:
        root, ends = self.url.removesuffix("/v1"), time.monotonic() + seconds
        # vLLM; llama.cpp (for each slot); Ollama (for loaded models); LM Studio.
        for path in ("/v1/models", "/props", "/api/ps", f"/api/v0/models/{self.model}"):
            if time.monotonic() >= ends:
                return  # nobody waits for it any more
            try:
                body = sdk.get(root + path, cast_to=object, options={"timeout": seconds})
                self._learned.read(_of_model(body, self.model))
            except Exception as error:
                logger.debug("%s: no %s (%s)", self.name, path, type(error).__name__)
            if self.context_tokens is not None:
                logger.info("%s has a context of %d tokens", self.name, self.context_tokens)
                return


def _has_none(error: Exception) -> bool:
    return getattr(error, "status_code", None) in (404, 405, 501)


def _names(body: Any) -> set[str]:
    """Return the names in a list of models; empty for any other body."""
    entries = body.get("data") if isinstance(body, Mapping) else body
    found = entries if isinstance(entries, list) else []
    names = (e.get("id") for e in found if isinstance(e, Mapping))
    return {name for name in names if isinstance(name, str)}


def _of_model(body: Any, model: str) -> Any:
    """Return the entries of one model in a list of models, or the body if it is not a list."""
    for name in ("data", "models"):
        entries = body.get(name) if isinstance(body, Mapping) else None
        if isinstance(entries, list):
            ids = ("id", "name", "model")
            return [
                e
                for e in entries
                if isinstance(e, Mapping)
                and any(e.get(i) in (model, f"{model}:latest") for i in ids)
            ]
    return body


def at_url(address: str, **options: Any) -> OpenAIClient:
    """Return the client for the part after ``openai+`` in a model string."""
    if re.match(r"https?://[^/@:]+(?::[^/@]+)?@", address):
        # It would be read as a model's name, which is shown and written to files.
        raise ModelNotFoundError(
            "the address in the model string 'openai+...' holds a user name or a password: give "
            f"the address alone, and a key in {CUSTOM_KEY_VARIABLE}"
        )
    found = ADDRESS.fullmatch(address)
    if found is None:
        raise ModelNotFoundError(
            f"model string 'openai+{redact(address)}' cannot be read: expected "
            "openai+http://host:port/v1:model"
        )
    origin, path, model = found.groups()
    try:
        base_url = check_url(origin + (path or "/v1"))
    except ValueError as error:
        raise ModelNotFoundError(f"model string 'openai+...' cannot be used: {error}") from None
    return OpenAIClient(model, base_url=base_url, **options)


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


def _collect(stream: Any) -> Reply:
    """Return the complete answer of a stream."""
    whole = whole_body(stream.response)
    if whole is not None:
        return _read(whole)
    choices: dict[int, SimpleNamespace] = {}
    usage, model = None, ""
    for chunk in stream:
        usage = getattr(chunk, "usage", None) or usage
        model = getattr(chunk, "model", None) or model
        listed = getattr(chunk, "choices", None)
        for choice in listed if isinstance(listed, list) else ():
            index = getattr(choice, "index", None) or 0
            delta = getattr(choice, "delta", None)
            piece = getattr(choice, "text", None) if delta is None else _content(delta)
            if not isinstance(piece, str | None) or not isinstance(index, int):
                raise MalformedBody("a piece of a choice is not a string")
            empty = SimpleNamespace(text="", refusal="", finish_reason=None)
            so_far = choices.setdefault(index, empty)
            so_far.text += piece or ""
            refused = getattr(delta, "refusal", None)
            so_far.refusal += refused if isinstance(refused, str) else ""
            so_far.finish_reason = getattr(choice, "finish_reason", None) or so_far.finish_reason
    if not choices:
        raise MalformedBody("no choices in the answer")
    if usage is None and not any(choice.finish_reason for choice in choices.values()):
        raise MalformedBody("the answer ended before it was complete")
    return _answer([_completion(choices[i]) for i in sorted(choices)], usage, model)


def _read(response: Any) -> Reply:
    """Turn the SDK's response, in which fields may be missing, into a `Reply`."""
    choices = getattr(response, "choices", None)
    if not isinstance(choices, list) or not choices:
        raise MalformedBody("no choices in the answer")
    return _answer(
        list(map(_completion, choices)),
        getattr(response, "usage", None),
        getattr(response, "model", None),
    )


def _answer(completions: list[Completion], usage: Any, model: Any) -> Reply:
    details = getattr(usage, "prompt_tokens_details", None)
    prompt, completion, total = (
        whole(getattr(usage, f"{name}_tokens", None)) for name in ("prompt", "completion", "total")
    )
    if prompt is not None and total is not None and total > prompt:
        # xAI counts hidden reasoning only in the total.
        completion = max(completion or 0, total - prompt)
    return Reply(
        completions=tuple(completions),
        model=model or "",
        prompt_tokens=prompt,
        # DeepSeek has its own field.
        cached_tokens=getattr(details, "cached_tokens", None)
        or getattr(usage, "prompt_cache_hit_tokens", None)
        or 0,
        written_tokens=getattr(details, "cache_write_tokens", None) or 0,
        completion_tokens=completion,
        cost=getattr(usage, "cost", None),  # OpenRouter reports what it charged
    )


def _completion(choice: Any) -> Completion:
    message = getattr(choice, "message", choice)  # a text completion has no message
    refusal = getattr(message, "refusal", None)
    if isinstance(refusal, str) and refusal:
        return Completion(refusal, "refusal")
    if message is None or (message is choice and not isinstance(getattr(choice, "text", 0), str)):
        raise MalformedBody("a choice holds neither a message nor a text")
    content = choice.text if message is choice else _content(message)
    reason = finish(getattr(choice, "finish_reason", None), _FINISH)
    return Completion("" if content is None else content, reason)


def _content(message: Any) -> Any:
    """Return a message's text, or its invalid content."""
    content = getattr(message, "content", None)
    if not isinstance(content, list):
        return content
    # Some servers send parts; those with a reasoning model's thoughts have no text.
    texts = [
        part.get("text") if isinstance(part, Mapping) else getattr(part, "text", None)
        for part in content
    ]
    return "".join(text for text in texts if isinstance(text, str))
