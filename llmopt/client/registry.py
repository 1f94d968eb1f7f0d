"""Model strings: which client answers to ``"smollm2"`` or ``"gguf:/models/qwen.gguf"``."""

from __future__ import annotations

import importlib
from typing import Any, cast

from llmopt.client.base import Client
from llmopt.errors import ModelNotFoundError, did_you_mean

PROVIDERS: dict[str, tuple[str, str, str]] = {
    "smollm2": (
        "llmopt.client.embedded",
        "embedded_client",
        "smollm2: SmolLM2-135M-Instruct in this process, fetched once (98 MB), no key",
    ),
    "gguf:": (
        "llmopt.client.local",
        "LocalClient",
        "gguf:PATH: any GGUF model file in this process",
    ),
    "folder:": (
        "llmopt.client.folder",
        "FolderClient",
        "folder:DIR: whoever answers the files in a folder: a person, an agent, a batch system",
    ),
    "replay:": (
        "llmopt.client.scripted",
        "ReplayClient",
        "replay:FILE: the answers of a recording, as long as the requests are the same",
    ),
    "openai:": (
        "llmopt.client.openai",
        "OpenAIClient",
        "openai:MODEL: OpenAI, key in OPENAI_API_KEY",
    ),
    "openai+http:": (
        "llmopt.client.openai",
        "at_http",
        "openai+http://HOST:PORT/v1:MODEL: any server that speaks OpenAI's protocol",
    ),
    "openai+https:": (
        "llmopt.client.openai",
        "at_https",
        "openai+https://HOST/v1:MODEL: the same, key in LLMOPT_API_KEY if it needs one",
    ),
    "gemini:": (
        "llmopt.client.gemini",
        "GeminiClient",
        "gemini:MODEL: Google Gemini, key in GEMINI_API_KEY or GOOGLE_API_KEY",
    ),
    "gemini-legacy:": (
        "llmopt.client.gemini_legacy",
        "GeminiLegacyClient",
        "gemini-legacy:MODEL: the same through google-generativeai, which is retired",
    ),
    "anthropic:": (
        "llmopt.client.anthropic",
        "AnthropicClient",
        "anthropic:MODEL: Anthropic Claude, key in ANTHROPIC_API_KEY",
    ),
    "openrouter:": (
        "llmopt.client.openai",
        "openrouter",
        "openrouter:MODEL: OpenRouter, key in OPENROUTER_API_KEY",
    ),
    "deepseek:": (
        "llmopt.client.openai",
        "deepseek",
        "deepseek:MODEL: DeepSeek, key in DEEPSEEK_API_KEY",
    ),
    "groq:": ("llmopt.client.openai", "groq", "groq:MODEL: Groq, key in GROQ_API_KEY"),
    "mistral:": (
        "llmopt.client.openai",
        "mistral",
        "mistral:MODEL: Mistral, key in MISTRAL_API_KEY",
    ),
    "together:": (
        "llmopt.client.openai",
        "together",
        "together:MODEL: Together, key in TOGETHER_API_KEY",
    ),
    "xai:": ("llmopt.client.openai", "xai", "xai:MODEL: xAI, key in XAI_API_KEY"),
    "ollama:": (
        "llmopt.client.openai",
        "ollama",
        "ollama:MODEL: Ollama on this machine, port 11434",
    ),
    "vllm:": ("llmopt.client.openai", "vllm", "vllm:MODEL: vLLM on this machine, port 8000"),
    "llamacpp:": (
        "llmopt.client.openai",
        "llamacpp",
        "llamacpp:MODEL: llama.cpp's server on this machine, port 8080",
    ),
    "lmstudio:": (
        "llmopt.client.openai",
        "lmstudio",
        "lmstudio:MODEL: LM Studio on this machine, port 1234",
    ),
}
"""Prefix -> (module, factory, help line).

A prefix that ends in ``":"`` is followed by an argument, which the factory gets as its first;
any other is a whole model string, whose factory gets none. Modules are imported when used.
"""


def get_client(model: str | Client, **options: Any) -> Client:
    """Return the client for a model string.

    Args:
        model: A string such as ``"smollm2"`` or ``"gguf:/models/qwen.gguf"``, or a client,
            which is returned as it is.
        **options: Keyword arguments of the client's class.

    Returns:
        A client that has loaded, fetched and asked nothing yet.

    Raises:
        ModelNotFoundError: No provider answers to the string.
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
    # The longest prefix first, so that a provider may refine another's.
    for prefix in sorted(PROVIDERS, key=len, reverse=True):
        takes_argument = prefix.endswith(":")
        if not (model.startswith(prefix) if takes_argument else model == prefix):
            continue
        module, factory, help_line = PROVIDERS[prefix]
        argument = model[len(prefix) :]
        if takes_argument and not argument:
            raise ModelNotFoundError(f"model {model!r} lacks its part after ':'; {help_line}")
        make = getattr(importlib.import_module(module), factory)
        return cast(Client, make(argument, **options) if takes_argument else make(**options))
    hint = _meant(model)
    if hint:
        raise ModelNotFoundError(f"unknown model {model!r}: did you mean {hint!r}?")
    lines = "".join(f"\n  {line}" for _, _, line in PROVIDERS.values())
    written = model.partition(":")[0] + ":" if ":" in model else model
    raise ModelNotFoundError(
        f"unknown model {model!r}; {did_you_mean(written, PROVIDERS)}. Model strings:{lines}"
    )


def _meant(model: str) -> str | None:
    """Return the model string for a bare model name or file, if it is a well-known one."""
    from llmopt.client.prices import known_models

    if model.lower().endswith(".gguf") and ":" not in model:
        return f"gguf:{model}"
    return next((name for name in known_models() if name.partition(":")[2] == model), None)
