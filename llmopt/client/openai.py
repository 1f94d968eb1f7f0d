"""OpenAI, and every server that speaks its chat protocol."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from urllib.parse import urlsplit

from llmopt.client.base import Completion, FinishReason, Request
from llmopt.client.http import Fault, check_url, is_local, redact
from llmopt.client.prices import FREE, Price, get_price
from llmopt.client.remote import (
    DEFAULT_TIMEOUT,
    Answer,
    MalformedBody,
    RemoteClient,
    finish,
    load,
    status_fault,
)
from llmopt.errors import ClientError, ModelNotFoundError, did_you_mean


@dataclass(frozen=True)
class Server:
    """A server that speaks OpenAI's protocol.

    Attributes:
        url: Where its API begins.
        variable: Environment variable that holds its key; ``""`` if it needs none.
        about: What it is, in words.
    """

    url: str
    variable: str
    about: str

    @property
    def local(self) -> bool:
        """Whether it runs on this machine."""
        return is_local(self.url)


SERVERS: dict[str, Server] = {
    "openai": Server("https://api.openai.com/v1", "OPENAI_API_KEY", "OpenAI"),
    "openrouter": Server("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", "OpenRouter"),
    "deepseek": Server("https://api.deepseek.com", "DEEPSEEK_API_KEY", "DeepSeek"),
    "groq": Server("https://api.groq.com/openai/v1", "GROQ_API_KEY", "Groq"),
    "mistral": Server("https://api.mistral.ai/v1", "MISTRAL_API_KEY", "Mistral"),
    "together": Server("https://api.together.xyz/v1", "TOGETHER_API_KEY", "Together"),
    "xai": Server("https://api.x.ai/v1", "XAI_API_KEY", "xAI"),
    "ollama": Server("http://localhost:11434/v1", "", "Ollama on this machine"),
    "vllm": Server("http://localhost:8000/v1", "", "vLLM on this machine"),
    "llamacpp": Server("http://localhost:8080/v1", "", "llama.cpp's server on this machine"),
    "lmstudio": Server("http://localhost:1234/v1", "", "LM Studio on this machine"),
}
"""Short names of servers: ``"ollama:llama3.2"`` means the model at this address."""

CUSTOM_KEY_VARIABLE = "LLMOPT_API_KEY"
"""Holds the key for an address that is not among `SERVERS`, if it needs one."""

_FINISH: dict[str, FinishReason] = {"LENGTH": "length", "CONTENT_FILTER": "filter"}
_FILTERED = {"content_filter", "content_policy_violation"}


class OpenAIClient(RemoteClient):
    """A model behind OpenAI's protocol: OpenAI itself, or any compatible server.

    A key goes only where it belongs: ``OPENAI_API_KEY`` to OpenAI (or to the address in
    ``OPENAI_BASE_URL``), each hosted server's own variable to that server, and
    ``LLMOPT_API_KEY`` to any other address. Servers on one's own address need none.

    Ollama cuts prompts that are longer than its ``num_ctx`` without a word; set
    ``OLLAMA_CONTEXT_LENGTH`` for it where histories get long.

    Args:
        model: The model's name at the server.
        server: One of `SERVERS`.
        base_url: Any other address that speaks the protocol, such as
            ``"http://127.0.0.1:8000/v1"``.
        endpoint: ``"chat"``, or ``"completions"`` for base models behind vLLM, llama.cpp or
            Ollama: the text is continued with no chat template around it.
        api_key: See `RemoteClient`, for this and the other arguments.
        timeout: Seconds.
        requests_per_minute: Most calls in any 60 seconds.
        concurrency: Most calls at once.
        price: What tokens cost.
        extra_body: Further fields for the request.
    """

    provider = "openai"
    package = "openai"
    samples_per_call = 128  # the most that the API takes as `n`

    def __init__(
        self,
        model: str,
        *,
        server: str = "openai",
        base_url: str | None = None,
        endpoint: Literal["chat", "completions"] = "chat",
        api_key: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        requests_per_minute: int | None = None,
        concurrency: int = 8,
        price: Price | None = None,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        if server not in SERVERS:
            raise ValueError(f"server={server!r} is unknown: {did_you_mean(server, SERVERS)}")
        if endpoint not in ("chat", "completions"):
            raise ValueError(f"endpoint={endpoint!r}: expected 'chat' or 'completions'")
        super().__init__(
            model,
            api_key=api_key,
            base_url=base_url,
            timeout=timeout,
            requests_per_minute=requests_per_minute,
            concurrency=concurrency,
            price=price,
            extra_body=extra_body,
        )
        self.server = server
        self.endpoint = endpoint
        if endpoint == "completions":
            self.default_prompt = "levels"
            self.style = "completion"
        self.name = f"openai+{self.base_url}:{model}" if self.base_url else f"{server}:{model}"

    @property
    def url(self) -> str:
        """The address that requests go to."""
        if self.base_url:
            return self.base_url
        if self.server == "openai":
            return os.environ.get("OPENAI_BASE_URL") or SERVERS["openai"].url
        return SERVERS[self.server].url

    @property
    def local(self) -> bool:
        """Whether the model runs on this machine, so that tokens cost nothing."""
        return is_local(self.url)

    @property
    def settings(self) -> dict[str, Any]:
        """What changes the answers beside `name` and the request."""
        return {**super().settings, "endpoint": self.endpoint}

    def current_price(self) -> Price | None:
        """What tokens cost now; nothing on this machine, ``None`` if it is not known."""
        # Another server behind OPENAI_BASE_URL does not charge what OpenAI does.
        price = self.price or get_price(self.name, listed=self.url == SERVERS[self.server].url)
        return FREE if price is None and self.local else price

    @property
    def key_variables(self) -> tuple[str, ...]:
        """Environment variables that can hold the API key."""
        if self.base_url is None:
            return (SERVERS[self.server].variable or CUSTOM_KEY_VARIABLE,)
        origin = urlsplit(self.base_url)[:2]  # scheme and host: no key goes out in the clear
        for server in SERVERS.values():
            if server.variable and origin == urlsplit(server.url)[:2]:
                return (server.variable,)
        return (CUSTOM_KEY_VARIABLE,)

    @property
    def _key_required(self) -> bool:
        return self.key_variables != (CUSTOM_KEY_VARIABLE,) and not self.local

    @property
    def _where(self) -> str:
        return "" if self.url == SERVERS[self.server].url else self.url

    def _connect(self, key: str) -> Any:
        sdk = load("openai", self.package)
        try:
            check_url(self.url)
        except ValueError as error:
            raise ClientError(
                f"{self.name}: OPENAI_BASE_URL is no address: {error}", requests=0
            ) from None
        foreign = self.key_variables != ("OPENAI_API_KEY",)
        # The SDK would send the user's OpenAI organization to any server.
        headers = {"OpenAI-Organization": sdk.omit, "OpenAI-Project": sdk.omit} if foreign else {}
        return sdk.OpenAI(
            api_key=key or "none",  # the SDK insists on one; local servers ignore it
            base_url=self.url,
            timeout=self.timeout,
            max_retries=0,
            default_headers=headers,
            # A proxy in the environment cannot reach this machine's own servers.
            http_client=sdk.DefaultHttpxClient(trust_env=False) if self.local else None,
        )

    def _parameters(self, request: Request) -> dict[str, Any]:
        parameters: dict[str, Any] = {
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
                    "schema": dict(request.json_schema),
                    "strict": True,
                },
            }
        # llama.cpp's own field; other servers pass over it, or refuse it once.
        if request.grammar is not None and (
            self.server == "llamacpp" or (self.base_url and self.local)
        ):
            parameters["grammar"] = request.grammar
        return {name: value for name, value in parameters.items() if value is not None}

    def _send(self, sdk: Any, request: Request, parameters: dict[str, Any]) -> Answer:
        body = {**self.extra_body}
        if "grammar" in parameters:
            body["grammar"] = parameters.pop("grammar")
        try:
            if self.endpoint == "completions":
                response = sdk.completions.create(
                    model=self.model, prompt=request.text, extra_body=body, **parameters
                )
            else:
                response = sdk.chat.completions.create(
                    model=self.model,
                    messages=[{"role": m.role, "content": m.content} for m in request.messages],
                    extra_body=body,
                    **parameters,
                )
        except Exception as error:
            if getattr(error, "code", None) in _FILTERED:
                return Answer((Completion("", "filter"),))
            raise
        return _read(response)

    def _fault(self, error: Exception) -> Fault | None:
        sdk = load("openai", self.package)
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


# One factory for each short name, for the registry.
openrouter = partial(OpenAIClient, server="openrouter")
deepseek = partial(OpenAIClient, server="deepseek")
groq = partial(OpenAIClient, server="groq")
mistral = partial(OpenAIClient, server="mistral")
together = partial(OpenAIClient, server="together")
xai = partial(OpenAIClient, server="xai")
ollama = partial(OpenAIClient, server="ollama")
vllm = partial(OpenAIClient, server="vllm")
llamacpp = partial(OpenAIClient, server="llamacpp")
lmstudio = partial(OpenAIClient, server="lmstudio")


def _read(response: Any) -> Answer:
    """Turn the SDK's response, whose fields a server may have left out, into an `Answer`."""
    choices = getattr(response, "choices", None)
    if not isinstance(choices, list) or not choices:
        raise MalformedBody("no choices in the answer")
    usage = getattr(response, "usage", None)
    details = getattr(usage, "prompt_tokens_details", None)
    cost = getattr(usage, "cost", None)  # OpenRouter says what it charged
    return Answer(
        completions=tuple(map(_completion, choices)),
        model=getattr(response, "model", None) or "",
        prompt_tokens=getattr(usage, "prompt_tokens", None) or 0,
        # DeepSeek has a field of its own.
        cached_tokens=getattr(details, "cached_tokens", None)
        or getattr(usage, "prompt_cache_hit_tokens", None)
        or 0,
        written_tokens=getattr(details, "cache_write_tokens", None) or 0,
        completion_tokens=getattr(usage, "completion_tokens", None) or 0,
        cost=cost,
    )


def _completion(choice: Any) -> Completion:
    reason = finish(getattr(choice, "finish_reason", None), _FINISH)
    if not hasattr(choice, "message"):
        text = getattr(choice, "text", None)
        if not isinstance(text, str):
            raise MalformedBody("a choice holds neither a message nor a text")
        return Completion(text, reason)
    message = choice.message
    if message is None:
        raise MalformedBody("a choice holds no message")
    refusal = getattr(message, "refusal", None)
    if isinstance(refusal, str) and refusal:
        return Completion(refusal, "refusal")
    content = getattr(message, "content", None)
    if isinstance(content, list):
        # Some servers bring parts, of which those of a reasoning model's thoughts have no text.
        content = "".join(
            part["text"]
            for part in content
            if isinstance(part, Mapping) and isinstance(part.get("text"), str)
        )
    return Completion("" if content is None else content, reason)
