"""OpenAI, and every server that speaks its chat protocol."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from llmopt.client.anthropic import blocks
from llmopt.client.base import Completion, FinishReason, Reply, Request, whole
from llmopt.client.http import Fault, Secret, check_url, is_local, merged, redact
from llmopt.client.prices import FREE, Price, get_price
from llmopt.client.ready import not_listed
from llmopt.client.remote import (
    ASIDE_SECONDS,
    DEADLINE,
    Answer,
    MalformedBody,
    RemoteClient,
    closed,
    finish,
    load,
    sdk_fault,
    whole_body,
)
from llmopt.errors import ClientError, MissingKeyError, ModelNotFoundError, did_you_mean

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Server:
    """A server that speaks OpenAI's protocol.

    Attributes:
        url: Where its API begins; what stands in braces is read from the environment, from the
            first of the variables named there that is set.
        variable: Environment variable that holds its key; ``""`` if it needs none.
        about: What it is, in words.
        gateway: Whether it only passes on to models that may cost.
        tells_cost: Whether its answers say what was charged.
        schemas: Whether it documents that answers keep to a JSON schema, with all its models.
        lists: Whether its list of models names every one that it answers to, or one that is not
            in the list can be asked for by its name.
        key_path: Where a key is asked about; by default the list of models, which some servers
            give to everybody.
    """

    url: str
    variable: str
    about: str
    gateway: bool = False
    tells_cost: bool = False
    schemas: bool = False
    lists: bool = False
    key_path: str = ""

    @property
    def local(self) -> bool:
        """Whether it runs models on this machine."""
        return is_local(self.url) and not self.gateway

    @property
    def lacks(self) -> str:
        """Environment variables that the address needs and that are not set."""
        names = [n for n in re.findall(r"{(.+?)}", self.url) if not _variable(n)]
        return " and ".join(n.replace("|", " or ") for n in names)

    @property
    def address(self) -> str:
        """Where its API begins here; ``""`` while `lacks` names something."""
        if self.lacks:
            return ""
        return re.sub(r"{(.+?)}", lambda found: _variable(found[1]).rstrip("/"), self.url)

    def hosts(self, host: str) -> bool:
        """Whether an address's host is its own or that of one of its regions."""
        own, labels = _host(self.address), host.split(".")
        if not own or is_local(self.url) or labels[-2:] != own.split(".")[-2:]:
            return False
        # A region is a label more: us.api.openai.com, api.us-east-1.example.com.
        return host == own or own in (".".join(labels[1:]), ".".join(labels[:1] + labels[2:]))


def _variable(names: str) -> str:
    return next(filter(None, map(os.environ.get, names.split("|"))), "")


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


SERVERS: dict[str, Server] = {
    "openai": Server(
        "https://api.openai.com/v1", "OPENAI_API_KEY", "OpenAI", schemas=True, lists=True
    ),
    "openrouter": Server(
        "https://openrouter.ai/api/v1",
        "OPENROUTER_API_KEY",
        "OpenRouter",
        tells_cost=True,
        lists=True,
        key_path="/key",
    ),
    "deepseek": Server("https://api.deepseek.com", "DEEPSEEK_API_KEY", "DeepSeek", lists=True),
    "groq": Server("https://api.groq.com/openai/v1", "GROQ_API_KEY", "Groq", lists=True),
    "mistral": Server(
        "https://api.mistral.ai/v1", "MISTRAL_API_KEY", "Mistral", schemas=True, lists=True
    ),
    "together": Server("https://api.together.xyz/v1", "TOGETHER_API_KEY", "Together"),
    "xai": Server("https://api.x.ai/v1", "XAI_API_KEY", "xAI", schemas=True),
    "cerebras": Server(
        "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY", "Cerebras", schemas=True, lists=True
    ),
    "fireworks": Server(
        "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY", "Fireworks", schemas=True
    ),
    "moonshot": Server(
        "https://api.moonshot.ai/v1", "MOONSHOT_API_KEY", "Moonshot (Kimi)", lists=True
    ),
    "zai": Server("https://api.z.ai/api/paas/v4", "ZAI_API_KEY", "Z.ai (GLM)"),
    "hf": Server("https://router.huggingface.co/v1", "HF_TOKEN", "Hugging Face's router"),
    "azure": Server(
        "{AZURE_OPENAI_ENDPOINT}/openai/v1",
        "AZURE_OPENAI_API_KEY",
        "a deployment on Azure, address in AZURE_OPENAI_ENDPOINT",
        schemas=True,
    ),
    "bedrock": Server(
        "https://bedrock-runtime.{AWS_REGION|AWS_DEFAULT_REGION}.amazonaws.com/openai/v1",
        "AWS_BEARER_TOKEN_BEDROCK",
        "Amazon Bedrock",
    ),
    "litellm": Server(
        "http://localhost:4000/v1", "", "a LiteLLM proxy on this machine", gateway=True
    ),
    "ollama": Server(
        "http://localhost:11434/v1", "", "Ollama on this machine", schemas=True, lists=True
    ),
    "vllm": Server(
        "http://localhost:8000/v1", "", "vLLM on this machine", schemas=True, lists=True
    ),
    "llamacpp": Server(
        "http://localhost:8080/v1", "", "llama.cpp's server on this machine", schemas=True
    ),
    "lmstudio": Server("http://localhost:1234/v1", "", "LM Studio on this machine", schemas=True),
}
"""Short names of servers: ``"ollama:llama3.2"`` means the model at this address."""

CUSTOM_KEY_VARIABLE = "LLMOPT_API_KEY"
"""Holds the key for an address that is not among `SERVERS`, if it needs one."""

_FINISH: dict[str, FinishReason] = {"LENGTH": "length", "CONTENT_FILTER": "filter"}
_FILTERED = {"content_filter", "content_policy_violation"}
_SPELLINGS = {
    "response_format": r"response[_ ]?format|json[_ ]schema|structured output|additionalProperties"
    r"|grammar",
    "reasoning_effort": r"(?:reasoning[_. ]?)?effort",
    "stream": r"stream(?!_)",
    "prompt_cache_key": r"prompt_cache_(?:key|breakpoint)",
}
# Below about 1,024 tokens nothing is cached, so waiting for the first call gains nothing.
_WORTH_CACHING = 4_000
_MOST_MARKS = 80
_LEAST_CONTEXT = 256


class OpenAIClient(RemoteClient):
    """A model behind OpenAI's protocol: OpenAI itself, or any compatible server.

    A key goes only where it belongs: ``OPENAI_API_KEY`` to OpenAI (or to the address in
    ``OPENAI_BASE_URL``), each hosted server's own variable to that server, and
    ``LLMOPT_API_KEY`` to any other address. Servers on one's own address need none.

    Ollama cuts prompts that are longer than its context without a word; set
    ``OLLAMA_CONTEXT_LENGTH`` for it where histories get long. It, vLLM, llama.cpp and LM Studio are
    asked for their context length after the first answer.

    Args:
        model: The model's name at the server.
        server: One of `SERVERS`.
        base_url: Any other address that speaks the protocol, such as
            ``"http://127.0.0.1:8000/v1"``.
        endpoint: ``"chat"``, or ``"completions"`` for base models behind vLLM, llama.cpp or
            Ollama: the text is continued with no chat template around it.
        local: Whether the model runs on one's own machine, so that tokens cost nothing. By
            default only for the servers of `SERVERS` that do: what listens at an address of
            this machine may be a gateway to models that cost.
        **options: The other arguments of `RemoteClient`.
    """

    provider = "openai"
    package = module = "openai"
    spellings = _SPELLINGS
    samples_per_call = 128  # the most that the API takes as `n`

    def __init__(
        self,
        model: str,
        *,
        server: str = "openai",
        base_url: str | None = None,
        endpoint: Literal["chat", "completions"] = "chat",
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

    @property
    def url(self) -> str:
        """The address that requests go to."""
        if self.base_url:
            return self.base_url
        if self.server == "openai":
            return os.environ.get("OPENAI_BASE_URL") or SERVERS["openai"].url
        return SERVERS[self.server].address

    @property
    def local(self) -> bool:
        """Whether the model runs on one's own machine, so that tokens cost nothing."""
        if self._local is not None:
            return self._local
        # Ollama passes models of that name on to its makers' servers.
        return not self.base_url and SERVERS[self.server].local and "cloud" not in self.model

    @property
    def _own_machine(self) -> bool:
        return self.local

    @property
    def _holds_to_schemas(self) -> bool:
        host = _host(self.url)
        known = any(s.schemas and s.hosts(host) for s in SERVERS.values())
        # Another server may stand behind OPENAI_BASE_URL.
        named = not self.base_url and self.server != "openai"
        return known or (named and SERVERS[self.server].schemas)

    @property
    def settings(self) -> dict[str, Any]:
        """What changes the answers beside `name` and the request."""
        return {**super().settings, "endpoint": self.endpoint}

    def current_price(self) -> Price | None:
        """What tokens cost now; nothing on one's own machine, ``None`` if it is not known."""
        if self.price is None and self.local:
            return get_price(self.name, listed=False) or FREE
        own = get_price(self.name, listed=False)
        host = _host(self.url)
        # Another server behind OPENAI_BASE_URL or base_url= does not charge what OpenAI does.
        server = next((n for n, s in SERVERS.items() if s.hosts(host)), None)
        return self.price or own or (get_price(f"{server}:{self.model}") if server else None)

    @property
    def priced(self) -> bool:
        """Whether the cost of a reply will be known."""
        return self._tells_cost or self.current_price() is not None

    @property
    def _tells_cost(self) -> bool:
        host = _host(self.url)
        return any(s.tells_cost and s.hosts(host) for s in SERVERS.values())

    @property
    def key_variables(self) -> tuple[str, ...]:
        """Environment variables that can hold the API key."""
        if self.base_url is None:
            return (SERVERS[self.server].variable or CUSTOM_KEY_VARIABLE,)
        host = _host(self.base_url)
        found = next((s.variable for s in SERVERS.values() if s.variable and s.hosts(host)), None)
        # No key of a hosted server goes out in the clear.
        secure = urlsplit(self.base_url).scheme == "https"
        return (found if found and secure else CUSTOM_KEY_VARIABLE,)

    @property
    def _key_required(self) -> bool:
        return self.key_variables != (CUSTOM_KEY_VARIABLE,) and not is_local(self.url)

    @property
    def _where(self) -> str:
        return "" if self.url == SERVERS[self.server].address else self.url

    @property
    def _names_models(self) -> bool:
        own = SERVERS[self.server]
        # What passes models on to its makers' servers knows more than it has.
        elsewhere = own.local and not self.local
        return own.lists and not elsewhere and self.url == own.address

    def _missing(self, sdk: Any) -> str:
        ask = partial(sdk.get, cast_to=object, options={"timeout": ASIDE_SECONDS})
        own = SERVERS[self.server]
        if own.key_path and self.url == own.address:
            ask(own.key_path)
        try:
            listed = _names(ask("/models"))
        except Exception as error:
            if _has_none(error):
                return ""  # it has no list
            raise
        # The last part of a name may choose a provider or a price: OpenRouter's ":free".
        same = {self.model, f"{self.model}:latest", self.model.partition(":")[0]}
        if not listed or same & listed or not self._names_models:
            return ""
        try:
            ask(f"/models/{quote(self.model, safe='')}")
        except Exception as error:
            if not _has_none(error):
                raise
            fetch = f"`ollama pull {self.model}` fetches it" if self.server == "ollama" else ""
            return not_listed(self.name, self.model, listed, fetch)
        return ""

    def _check_address(self) -> None:
        lacks = "" if self.base_url else SERVERS[self.server].lacks
        if lacks:
            raise MissingKeyError(
                f"{self.name} needs an address and there is none: set the environment variable "
                f"{lacks}",
                requests=0,
            )
        try:
            check_url(self.url)
        except ValueError as error:
            variable = "OPENAI_BASE_URL" if self.server == "openai" else "the environment"
            raise ClientError(
                f"{self.name}: the address in {variable} is none: {error}", requests=0
            ) from None

    def _connect(self, key: Secret) -> Any:
        sdk = load("openai", self.package)
        self._check_address()
        client = sdk.OpenAI(
            api_key=key.reveal or "none",  # the SDK insists on one; local servers ignore it
            base_url=self.url,
            **self._http(sdk, self.url),
        )
        if self.key_variables != ("OPENAI_API_KEY",):
            # What OPENAI_ORG_ID, OPENAI_PROJECT_ID and OPENAI_CUSTOM_HEADERS hold is OpenAI's.
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
            # OpenAI has renamed it, most other servers know the old name alone.
            names = ["max_completion_tokens", "max_tokens"]
            if self.endpoint == "completions" or self.server != "openai" or self.base_url:
                names.reverse()
            name = next((n for n in names if n not in self._refused), None)
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
        # llama.cpp's own field; other servers pass over it, or refuse it once.
        if request.grammar is not None and (
            self.server == "llamacpp" or (self.base_url and is_local(self.url))
        ):
            parameters["grammar"] = request.grammar
        if self._breakpoints:
            parameters["prompt_cache_options"] = {"mode": "explicit"}
            if self.cache != "off":
                parameters["prompt_cache_key"] = _cache_key(request)
        if {"stream", "stream_options"} & self._refused:
            # A stream without these options does not say what it has used.
            del parameters["stream"], parameters["stream_options"]
        return {name: value for name, value in parameters.items() if value is not None}

    @property
    def _breakpoints(self) -> bool:
        """Whether the model caches up to marks of ours, and charges for what it writes.

        From GPT-5.6 on OpenAI does; without marks it would write all of every prompt, and read
        nothing where the last line changes.
        """
        found = re.match(r"gpt-(\d+)(?:\.(\d+))?", self.model)
        version = (int(found[1]), int(found[2] or 0)) if found else (0, 0)
        return (
            version >= (5, 6)
            and self.endpoint == "chat"
            and SERVERS["openai"].hosts(_host(self.url))
        )

    @property
    def marks_cache(self) -> bool:  # type: ignore[override]
        """Whether the prefix cache is kept up to marks of ours."""
        return self._breakpoints

    def _caches_prefix(self, request: Request) -> bool:
        return self._breakpoints and self.cache != "off" and len(request.text) >= _WORTH_CACHING

    def _send(self, sdk: Any, request: Request, parameters: dict[str, Any]) -> Answer:
        # All in the body, since releases of the SDK differ in the arguments that they take.
        body: dict[str, Any] = {**parameters, "model": self.model}
        options: dict[str, Any] = {"stream": body.pop("stream", False)}
        if not options["stream"]:
            # Silent until it is complete.
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
                return Answer((Completion("", "filter"),))
            raise

    def _fault(self, error: Exception) -> Fault | None:
        return sdk_fault(load("openai", self.package), error)

    def complete(self, request: Request) -> Reply:
        """Answer one request; see `RemoteClient.complete`.

        A model on one's own machine is asked for its context length after its first answer, when
        it is loaded for sure: `context_tokens` has it from then on.
        """
        reply = super().complete(request)
        if self.local and not self._asked_context:
            self._asked_context = True
            sdk = self._connected(self._find_key())
            found = self._ask_context(sdk) if self.context_tokens is None else None
            if found is not None:
                self.context_tokens = found
                logger.info("%s has a context of %d tokens", self.name, found)
        return reply

    def _ask_context(self, sdk: Any) -> int | None:
        """Ask each kind of server in its own way; ``None`` if none of them works."""
        root = self.url.removesuffix("/v1")
        for path, names in (
            ("/v1/models", ("max_model_len",)),  # vLLM
            ("/props", ("n_ctx",)),  # llama.cpp, for each of its slots
            ("/api/ps", ("context_length",)),  # Ollama, of what is loaded
            (f"/api/v0/models/{self.model}", ("loaded_context_length",)),  # LM Studio
        ):
            try:
                body = sdk.get(root + path, cast_to=object, options={"timeout": ASIDE_SECONDS})
            except Exception as error:
                logger.debug("%s: no %s (%s)", self.name, path, type(error).__name__)
                continue
            found = _number(_of_model(body, self.model), names)
            if found is not None:
                return found
        return None


def _has_none(error: Exception) -> bool:
    return getattr(error, "status_code", None) in (404, 405, 501)


def _names(body: Any) -> set[str]:
    """Return the names in a list of models; none if it is no such list."""
    entries = body.get("data") if isinstance(body, Mapping) else body
    found = entries if isinstance(entries, list) else []
    names = (e.get("id") for e in found if isinstance(e, Mapping))
    return {name for name in names if isinstance(name, str)}


def _of_model(body: Any, model: str) -> Any:
    """Return what a list of models says of one of them, or the body if it is no such list."""
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


def _number(node: Any, names: tuple[str, ...]) -> int | None:
    """Return the first whole number of that name, wherever it stands."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            if name in names and isinstance(value, int) and _LEAST_CONTEXT <= value < 10**9:
                return value
        node = list(node.values())
    if isinstance(node, list):
        return next((n for n in (_number(item, names) for item in node) if n is not None), None)
    return None


def at_url(address: str, **options: Any) -> OpenAIClient:
    """Return the client for what follows ``openai+`` in a model string.

    Args:
        address: ``"http://host:port/v1:model"``, https as well; a path left out is ``/v1``.
        **options: Keyword arguments of `OpenAIClient`.

    Raises:
        ModelNotFoundError: The address and the model cannot be told apart, or the address is
            none, or it holds a password.
    """
    if re.match(r"https?://[^/@:]+(?::[^/@]+)?@", address):
        # It would be taken for a model's name, which is shown and written to files.
        raise ModelNotFoundError(
            "the address in the model string 'openai+...' holds a user name or a password: give "
            f"the address alone, and a key in {CUSTOM_KEY_VARIABLE}"
        )
    found = re.fullmatch(r"(https?://(?:\[[^\]/]+\]|[^/:]+)(?::\d+)?)(/[^:]*)?:(.+)", address)
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


def at_http(rest: str, **options: Any) -> OpenAIClient:
    """Return the client for what follows ``openai+http:``; see `at_url`."""
    return at_url("http:" + rest, **options)


def at_https(rest: str, **options: Any) -> OpenAIClient:
    """Return the client for what follows ``openai+https:``; see `at_url`."""
    return at_url("https:" + rest, **options)


def __getattr__(name: str) -> Any:
    # One factory for each short name, for the registry.
    if name in SERVERS:
        return partial(OpenAIClient, server=name)
    raise AttributeError(name)


def _cache_key(request: Request) -> str:
    """Name what requests of one search begin with, so that they reach the same cache."""
    return "llmopt-" + hashlib.sha256(request.text[: _WORTH_CACHING // 4].encode()).hexdigest()[:24]


def _messages(request: Request, marked: bool) -> list[dict[str, Any]]:
    """Return the messages, with a mark for the prefix cache after each block that stays.

    Of the last message, the last block is taken to change from request to request. A prefix is
    found again only at a mark, hence at all of them; only the latest four are written.
    """
    messages: list[dict[str, Any]] = [
        {"role": m.role, "content": m.content} for m in request.messages
    ]
    if not marked:
        return messages
    settled: list[dict[str, Any]] = []
    for message in messages:
        # The protocol takes no marks in what the model said.
        if message["role"] == "assistant" or not message["content"].strip():
            continue
        parts = [{"type": "text", "text": text} for text in blocks(message["content"])]
        settled += parts if message is not messages[-1] else parts[:-1]
        message["content"] = parts
    for part in settled[-_MOST_MARKS:]:
        part["prompt_cache_breakpoint"] = {"mode": "explicit"}
    return messages


def _collect(stream: Any) -> Answer:
    """Put an answer together that came in pieces.

    Raises:
        MalformedBody: It ended before it was complete, or it was none.
    """
    whole = whole_body(stream.response)
    if whole is not None:
        return _read(whole)
    texts: dict[int, str] = {}
    refusals: dict[int, str] = {}
    reasons: dict[int, object] = {}
    usage, model = None, ""
    for chunk in stream:
        usage = getattr(chunk, "usage", None) or usage
        model = getattr(chunk, "model", None) or model
        choices = getattr(chunk, "choices", None)
        for choice in choices if isinstance(choices, list) else ():
            index = getattr(choice, "index", None) or 0
            delta = getattr(choice, "delta", None)
            piece = getattr(choice, "text", None) if delta is None else _content(delta)
            if not isinstance(piece, str | None) or not isinstance(index, int):
                raise MalformedBody("a piece of a choice is no text")
            refused = getattr(delta, "refusal", None)
            texts[index] = texts.get(index, "") + (piece or "")
            refusals[index] = refusals.get(index, "") + (
                refused if isinstance(refused, str) else ""
            )
            reasons[index] = getattr(choice, "finish_reason", None) or reasons.get(index)
    if not texts:
        raise MalformedBody("no choices in the answer")
    if usage is None and not any(reasons.values()):
        raise MalformedBody("the answer ended before it was complete")
    return _answer(
        [
            Completion(refusals[i], "refusal")
            if refusals[i]
            else Completion(texts[i], finish(reasons[i], _FINISH))
            for i in sorted(texts)
        ],
        usage,
        model,
    )


def _read(response: Any) -> Answer:
    """Turn the SDK's response, whose fields a server may have left out, into an `Answer`."""
    choices = getattr(response, "choices", None)
    if not isinstance(choices, list) or not choices:
        raise MalformedBody("no choices in the answer")
    return _answer(
        list(map(_completion, choices)),
        getattr(response, "usage", None),
        getattr(response, "model", None),
    )


def _answer(completions: list[Completion], usage: Any, model: Any) -> Answer:
    details = getattr(usage, "prompt_tokens_details", None)
    prompt, completion, total = (
        whole(getattr(usage, f"{name}_tokens", None)) for name in ("prompt", "completion", "total")
    )
    if prompt is not None and total is not None and total > prompt:
        # xAI counts hidden reasoning in the total alone.
        completion = max(completion or 0, total - prompt)
    return Answer(
        completions=tuple(completions),
        model=model or "",
        prompt_tokens=prompt,
        # DeepSeek has a field of its own.
        cached_tokens=getattr(details, "cached_tokens", None)
        or getattr(usage, "prompt_cache_hit_tokens", None)
        or 0,
        written_tokens=getattr(details, "cache_write_tokens", None) or 0,
        completion_tokens=completion,
        cost=getattr(usage, "cost", None),  # OpenRouter says what it charged
    )


def _completion(choice: Any) -> Completion:
    reason = finish(getattr(choice, "finish_reason", None), _FINISH)
    if not hasattr(choice, "message"):
        text = getattr(choice, "text", None)
        if not isinstance(text, str):
            raise MalformedBody("a choice holds neither a message nor a text")
        return Completion(text, reason)
    if choice.message is None:
        raise MalformedBody("a choice holds no message")
    refusal = getattr(choice.message, "refusal", None)
    if isinstance(refusal, str) and refusal:
        return Completion(refusal, "refusal")
    content = _content(choice.message)
    return Completion("" if content is None else content, reason)


def _content(message: Any) -> Any:
    """Return a message's text, or whatever is in its place."""
    content = getattr(message, "content", None)
    if not isinstance(content, list):
        return content
    # Some servers bring parts, of which those of a reasoning model's thoughts have no text.
    texts = [
        part.get("text") if isinstance(part, Mapping) else getattr(part, "text", None)
        for part in content
    ]
    return "".join(text for text in texts if isinstance(text, str))
