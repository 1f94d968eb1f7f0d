"""Model strings: which client answers to ``"smollm2"`` or ``"gguf:/models/qwen.gguf"``."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, cast

from llmopt.arguments import check_names
from llmopt.client.base import Client
from llmopt.client.endpoint import SERVERS
from llmopt.client.model_options import OptionError, option_names, split_options, typed_options
from llmopt.errors import ModelNotFoundError


class Provider(NamedTuple):
    """Who answers to a model string.

    Attributes:
        module: Module of `llmopt.client`, imported when it is used.
        factory: Its name for what makes the client, of what follows the prefix and of options.
        about: How the model string is written, ``": "``, and what it is.
        options: Options that the factory always gets.
    """

    module: str
    factory: str
    about: str
    options: Mapping[str, Any] = {}


_GEMINI_KEYS = "key in GEMINI_API_KEY or GOOGLE_API_KEY"
PROVIDERS: dict[str, Provider] = {
    "smollm2": Provider(
        "embedded",
        "embedded_client",
        "smollm2: SmolLM2-135M-Instruct in this process, fetched once (98 MB), no key",
    ),
    "network": Provider(
        "network",
        "NetworkClient",
        "network: 80,000 weights for searches of numbers, in this package, no key, no words",
    ),
    "gguf:": Provider("local", "LocalClient", "gguf:PATH: any GGUF model file in this process"),
    "folder:": Provider(
        "folder",
        "FolderClient",
        "folder:DIR: whoever answers the files in a folder: a person, an agent, a batch system",
    ),
    "replay:": Provider(
        "recording",
        "ReplayClient",
        "replay:FILE: the answers of a recording, as long as the requests are the same",
    ),
    "openai+": Provider(
        "openai",
        "at_url",
        "openai+http://HOST:PORT/v1:MODEL: any server that speaks OpenAI's protocol, https as "
        "well, key in LLMOPT_API_KEY if it needs one",
    ),
    "gemini:": Provider("gemini", "GeminiClient", f"gemini:MODEL: Google Gemini, {_GEMINI_KEYS}"),
    "gemini-legacy:": Provider(
        "gemini_legacy",
        "GeminiLegacyClient",
        "gemini-legacy:MODEL: the same through google-generativeai, which is retired",
    ),
    "anthropic:": Provider(
        "anthropic",
        "AnthropicClient",
        "anthropic:MODEL: Anthropic Claude, key in ANTHROPIC_API_KEY",
    ),
    "vertex:": Provider(
        "clouds",
        "VertexClient",
        "vertex:MODEL: Gemini on Google Cloud, project in GOOGLE_CLOUD_PROJECT",
    ),
}
for _name, _server in SERVERS.items():
    _about = f"{_name}:MODEL: {_server.about}"
    PROVIDERS[f"{_name}:"] = Provider(
        "openai",
        "OpenAIClient",
        f"{_about}, key in {_server.variable}" if _server.variable else _about,
        {"server": _name},
    )
PROVIDERS["bedrock:"] = Provider(
    "clouds",
    "bedrock",
    "bedrock:MODEL: Amazon Bedrock, key in AWS_BEARER_TOKEN_BEDROCK, place in AWS_REGION",
)
"""By prefix. One that ends in ``":"`` or ``"+"`` is followed by an argument, which the factory
gets as its first; any other is a whole model string, whose factory gets none."""


def get_client(model: str | Client, **options: Any) -> Client:
    """Return the client for a model string.

    Args:
        model: A string such as ``"smollm2"``, ``"gguf:/models/qwen.gguf"`` or
            ``"openai:gpt-6-luna"`` (``"openai/gpt-6-luna"`` means the same), or a client, which
            is returned as it is. Options of the client's class may follow:
            ``"openai:gpt-6-luna?effort=low&timeout=60"``.
        **options: Keyword arguments of the client's class.

    Returns:
        A client that has loaded, fetched and asked nothing yet.

    Raises:
        ModelNotFoundError: No provider answers to the string.
        OptionError: An option in the string is unknown, or its value is none.
        TypeError: `model` is neither a string nor a client, an option is unknown, or
            options came with a client.
    """
    if not isinstance(model, str):
        if not callable(getattr(model, "complete", None)) or isinstance(model, type):
            raise TypeError(
                f"model is {model!r}; expected a model string such as 'smollm2', or a client: "
                "an object with a complete(request) method"
            )
        if options:
            raise TypeError(
                f"options {sorted(options)} cannot be applied to the ready client {model!r}; "
                "set them where it is made"
            )
        return model
    bare, texts = split_options(model)
    if texts:
        kind = type(get_client(bare))
        try:
            return get_client(bare, **{**typed_options(kind, texts), **options})
        except ValueError as error:
            raise OptionError(f"model {bare!r}: {error}") from error
    maker, slash, rest = model.partition("/")
    if slash and ":" not in maker and f"{_ALIASES.get(maker, maker)}:" in PROVIDERS:
        model = f"{_ALIASES.get(maker, maker)}:{rest}"  # as other libraries write it
    # The longest prefix first, so that a provider may refine another's.
    for prefix in sorted(PROVIDERS, key=len, reverse=True):
        takes_argument = prefix.endswith((":", "+"))
        if not (model.startswith(prefix) if takes_argument else model == prefix):
            continue
        provider = PROVIDERS[prefix]
        argument = model[len(prefix) :]
        if takes_argument and not argument:
            raise ModelNotFoundError(
                f"model {model!r} lacks its part after {prefix[-1]!r}; {provider.about}"
            )
        module = importlib.import_module(f"llmopt.client.{provider.module}")
        make = partial(getattr(module, provider.factory), **provider.options)
        given = (argument,) if takes_argument else ()
        try:
            return cast(Client, make(*given, **options))
        except TypeError:
            if options:  # the class itself would name neither the model nor the nearest option
                check_names(f"get_client({model!r})", options, option_names(type(make(*given))))
            raise
    if model.startswith("github:"):
        raise ModelNotFoundError(
            f"unknown model {model!r}: GitHub Models was retired on 2026-07-30; ask the model's "
            "own provider, or openrouter:MODEL"
        )
    meant = " or ".join(map(repr, _meant(model) or _nearest(model)))
    such = f"openai:{model.rpartition(':')[2] or 'NAME'}"
    expected = f"expected PROVIDER:MODEL, such as {such!r}, or 'smollm2', the embedded model, or "
    expected += "'network', the small network."
    raise ModelNotFoundError(
        f"unknown model {model!r}: {f'did you mean {meant}?' if meant else expected} "
        "`llmopt models` lists all model strings"
    )


def one_model(client: str | Client | None, model: str | Client | None) -> str | Client:
    """Return the model that was given under one of its two names; the embedded one for none."""
    if client is not None and model is not None:
        raise TypeError(
            f"client={client!r} and model={model!r} are two names of one argument: give one of them"
        )
    given = model if client is None else client
    return "smollm2" if given is None else given


# Other names of providers.
_ALIASES = {
    "claude": "anthropic",
    "chatgpt": "openai",
    "google": "gemini",
    "vertex_ai": "vertex",
    "x-ai": "xai",
    "grok": "xai",
    "moonshotai": "moonshot",
    "kimi": "moonshot",
    "z-ai": "zai",
    "zhipuai": "zai",
    "mistralai": "mistral",
    "together_ai": "together",
    "togetherai": "together",
    "fireworks_ai": "fireworks",
    "huggingface": "hf",
    "hosted_vllm": "vllm",
    "lm_studio": "lmstudio",
    "llama.cpp": "llamacpp",
}
# What the names of a provider's own models begin with.
_FAMILIES = (
    (r"gpt(?!-?oss)|chatgpt|o\d", "openai"),
    (r"claude", "anthropic"),
    (r"gemini", "gemini"),
    (r"grok", "xai"),
    (r"deepseek", "deepseek"),
    (r"kimi|moonshot", "moonshot"),
    (r"glm", "zai"),
    (r"mistral|ministral|magistral|codestral|devstral", "mistral"),
)


def _nearest(model: str) -> list[str]:
    """Return the model strings that are spelt like one that nobody answers to."""
    name, _, rest = model.lower().partition(":")
    written = {prefix.rstrip(":"): entry.about for prefix, entry in PROVIDERS.items()}
    near = difflib.get_close_matches(name, written, n=3, cutoff=0.7)
    return [
        # A name without a part after ':', such as the embedded model's, stands alone.
        f"{n}:{rest}" if rest and f"{n}:" in PROVIDERS else written[n].partition(": ")[0]
        for n in near
    ]


def _meant(model: str) -> list[str]:
    """Return the model string for a bare model name or file, by its family or its alias."""
    if model.lower().endswith(".gguf") and ":" not in model:
        return [f"gguf:{model}"]
    provider, colon, rest = model.partition(":")
    if colon and provider.lower() in _ALIASES:
        return [f"{_ALIASES[provider.lower()]}:{rest}"]
    if colon and provider.lower() != provider and f"{provider.lower()}:" in PROVIDERS:
        return [f"{provider.lower()}:{rest}"]
    if colon:
        return []
    name = model.rpartition("/")[2]
    found = next((p for start, p in _FAMILIES if re.match(start, name, re.IGNORECASE)), None)
    if found and name == model:
        return [f"{found}:{model}"]
    # The maker's name and the model's, as the gateways write them.
    return [f"openrouter:{model}"] if "/" in model[1:] and model[0].isalnum() else []
