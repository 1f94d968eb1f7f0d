"""Model strings: the client for ``"smollm2"`` or ``"openai:gpt-6-luna?effort=low"``.

Commands, run folders and adapters pass on only a model string, so it can also carry options of the
client's class, after a question mark, as JSON or plain text. API keys cannot be part of a model
string, because model strings are shown and stored.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl, quote

from llmopt.client.base import Client
from llmopt.client.http.endpoint import ADDRESS, SERVERS
from llmopt.errors import LLMOptError, ModelNotFoundError, did_you_mean
from llmopt.util.text import short

_NO_KEY = (
    "api_key cannot be part of a model string, which is shown and stored: set the provider's "
    "environment variable (`llmopt models` names it)"
)
_HOLDS_KEY = re.compile(r"\bapi_key\s*=|(?<![\w-])(?:(?:sk|gsk)-[\w-]{20,}|AIza[\w-]{30,})")


class OptionError(LLMOptError, ValueError):
    """An option of a client is unknown, or its value is invalid."""


class Provider(NamedTuple):
    """A family of model strings, and the factory of its clients."""

    module: str  # module of `llmopt.client`, imported when it is used
    factory: str  # name of a function of the argument after the prefix and of options
    about: str  # the form of the model string, ": ", and a description
    options: Mapping[str, Any] = {}  # always passed to the factory


_OTHERS = (
    ("local.embedded", "embedded_client", "smollm2",
     ": SmolLM2-135M-Instruct in this process, downloaded once (98 MB), no key"),
    ("local.network", "NetworkClient", "network",
     ": a small network (80,000 weights) in this package; numeric-only, no key"),
    ("local.local", "LocalClient", "gguf:", "PATH: any GGUF model file in this process"),
    ("folder", "FolderClient", "folder:",
     "DIR: a person, an agent or a batch system that answers the files in a folder"),
    ("command", "CommandClient", "command:",
     "COMMAND: any program that answers standard input, such as 'claude -p'; it may use tools"),
    ("recordings", "ReplayClient", "replay:",
     "FILE: the answers of a recording, for identical requests"),
    ("providers.openai", "at_url", "openai+",
     "http://HOST:PORT/v1:MODEL: any server that speaks OpenAI's protocol, https as well, key in "
     "LLMOPT_API_KEY if it needs one"),
    ("providers.gemini", "GeminiClient", "gemini:",
     "MODEL: Google Gemini, key in GEMINI_API_KEY or GOOGLE_API_KEY"),
    ("providers.gemini_legacy", "GeminiLegacyClient", "gemini-legacy:",
     "MODEL: the same through google-generativeai, which is retired"),
    ("providers.anthropic", "AnthropicClient", "anthropic:",
     "MODEL: Anthropic Claude, key in ANTHROPIC_API_KEY"),
)  # fmt: skip
PROVIDERS: dict[str, Provider] = {
    prefix: Provider(module, make, prefix + about) for module, make, prefix, about in _OTHERS
}
for _name, _server in SERVERS.items():
    _key = f", key in {_server.variable}" if _server.variable else ""
    _about = f"{_name}:MODEL: {_server.about}{_key}"
    _made = Provider("providers.openai", "OpenAIClient", _about, {"server": _name})
    PROVIDERS.setdefault(f"{_name}:", _made)
"""Providers by prefix. A prefix that ends in ``":"`` or ``"+"`` is followed by an argument for the
factory; any other prefix is a whole model string."""


def get_client(model: str | Client, **options: Any) -> Client:
    """Return the client for a model string.

    Args:
        model: A string such as ``"smollm2"``, ``"gguf:/models/qwen.gguf"`` or
            ``"openai:gpt-6-luna"``, or a client, which is returned as it is. Options of the
            client's class may follow: ``"openai:gpt-6-luna?effort=low&timeout=60"``.
        **options: Keyword arguments of the client's class.

    Returns:
        A client that has not loaded, fetched or sent anything yet.

    Raises:
        ModelNotFoundError: The string matches no provider.
        OptionError: An option in the string is unknown, or its value is invalid.
        TypeError: `model` is neither a string nor a client, an option is unknown, or
            options came with a client.
    """
    if not isinstance(model, str):
        return _ready_client(model, options)
    if _HOLDS_KEY.search(model):
        raise OptionError(_NO_KEY)
    bare, texts = split_options(model)
    if texts:
        get_client(bare)
        try:
            return get_client(bare, **{n: _value(text) for n, text in texts.items()} | options)
        except (TypeError, ValueError) as error:
            raise OptionError(f"model {bare!r}: {error}") from error
    # The longest prefix first: one provider's prefix may begin another's.
    for prefix in sorted(PROVIDERS, key=len, reverse=True):
        if prefix.endswith((":", "+")) and model.startswith(prefix):
            if model == prefix:
                about = PROVIDERS[prefix].about
                raise ModelNotFoundError(
                    f"model {model!r} lacks its part after {prefix[-1]!r}; {about}"
                )
            return _make_client(model, PROVIDERS[prefix], (model[len(prefix) :],), options)
        if model == prefix:
            return _make_client(model, PROVIDERS[prefix], (), options)
    raise _unknown_model(model)


def _ready_client(client: Client, options: Mapping[str, Any]) -> Client:
    if not callable(getattr(client, "complete", None)) or isinstance(client, type):
        raise TypeError(
            f"model is {short(client)}; expected a model string such as 'smollm2', or a client: "
            "an object with a complete(request) method"
        )
    if options:
        raise TypeError(
            f"options {sorted(options)} cannot be applied to the ready client {client!r}; "
            "set them when you create it"
        )
    return client


def _make_client(
    model: str, provider: Provider, argument: tuple[str, ...], options: dict[str, Any]
) -> Client:
    module = importlib.import_module(f"llmopt.client.{provider.module}")
    make = partial(getattr(module, provider.factory), **provider.options)
    try:
        return cast(Client, make(*argument, **options))
    except TypeError:
        names = _options_of(type(make(*argument)))
        unknown = next((name for name in options if name not in names), None)
        if unknown is None:
            raise
        raise TypeError(
            f"{model!r} has no option {unknown!r}; {did_you_mean(unknown, names, 0.7)}"
        ) from None


def _unknown_model(model: str) -> ModelNotFoundError:
    name, _, rest = model.lower().partition(":")
    written = {prefix.rstrip(":"): entry.about for prefix, entry in PROVIDERS.items()}
    # Some names, such as the embedded model's, have no part after ':'.
    near = [
        f"{n}:{rest}" if rest and f"{n}:" in PROVIDERS else written[n].partition(": ")[0]
        for n in difflib.get_close_matches(name, written, n=3, cutoff=0.7)
    ]
    from llmopt.client.command import COMMANDS  # it starts processes, which most models need not

    line = model.strip().removeprefix("command ")
    program = line.partition(" ")[0]
    if not rest and (program != line or program in COMMANDS or shutil.which(program)):
        near = [COMMANDS[program].model if program in COMMANDS else f"command:{line}"]
    hint = (
        f"did you mean {' or '.join(map(repr, near))}?"
        if near
        else "expected PROVIDER:MODEL, such as 'openai:gpt-6-luna', 'gguf:PATH' or "
        "'openai+http://HOST:PORT/v1:MODEL', or 'smollm2' or 'network'."
    )
    return ModelNotFoundError(
        f"unknown model {model!r}: {hint} `llmopt models` lists all model strings"
    )


def one_model(client: str | Client | None, model: str | Client | None) -> str | Client:
    """Return the model given as `client` or as `model`, or the embedded model by default."""
    if client is not None and model is not None:
        raise TypeError(
            f"client={client!r} and model={model!r} are two names of one argument: give one of them"
        )
    given = model if client is None else client
    return "smollm2" if given is None else given


# Options.


def split_options(model: str) -> tuple[str, dict[str, str]]:
    """Return a model string without its options, and the options."""
    match = re.fullmatch(r"(.+?)\?(\w+=[^?]*)", model)
    if match and model.startswith("command:") and _quoted_on(match[1]):
        return model, {}  # a question mark in a quoted argument
    _, own, address = (match[1] if match else "").partition("openai+")
    if model.startswith("openai+") and not (own and ADDRESS.fullmatch(address)):
        return model, {}  # a question mark in the address itself
    return (match[1], dict(parse_qsl(match[2], keep_blank_values=True))) if match else (model, {})


def _quoted_on(line: str) -> bool:
    """Whether a command line has an open quotation mark."""
    try:
        shlex.split(line)
    except ValueError:
        return True
    return False


def with_options(model: str, options: Sequence[str]) -> str:
    """Return a model string with more options, each ``"name=value"``; later values win.

    Raises:
        OptionError: An option does not have this form.
    """
    bare, known = split_options(model)
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or not re.fullmatch(r"\w+", name.strip()):
            raise OptionError(
                f"--option {name.strip()}: expected name=value, such as --option timeout=60"
            )
        known[name.strip()] = value.strip()
    if not known:
        return model
    return bare + "?" + "&".join(f"{n}={quote(v, safe=':/,.-')}" for n, v in known.items())


def _options_of(kind: type) -> list[str]:
    """Return the names of the keyword arguments of a class, including forwarded ones."""
    inits: list[Any] = [cls.__dict__.get("__init__") for cls in kind.__mro__]
    signatures = [inspect.signature(init) for init in inits if inspect.isfunction(init)]
    parameters = [p for signature in signatures for p in signature.parameters.values()]
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]


def _value(text: str) -> Any:
    """Return the value of an option's text: JSON, or else the text itself."""
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false") else text)
    except ValueError:
        return text


# Providers whose model strings contain an address, a file, a folder or a command.
_PLACES = frozenset({"openai+http", "openai+https", "gguf", "folder", "replay", "command"})
# Options that contain no address, file or folder, and no price: a price of 0 would lift a cap.
_HARMLESS = frozenset(
    {"cache", "effort", "patience", "reasoning_tokens"}
    | {"thinking", "threads", "timeout", "transport_attempts"}
)


def names_a_place(model: str) -> bool:
    """Whether a model string contains an address, a file, a folder or a command.

    A model string from an untrusted file must not decide where prompts and keys go, or what is
    read or run: it takes effect only if the user repeats it.
    """
    bare, options = split_options(model)
    return (
        "://" in model
        or re.split("[:/]", bare, maxsplit=1)[0].lower() in _PLACES
        or not _HARMLESS.issuperset(options)
    )
