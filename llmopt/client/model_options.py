"""Options of a client as text: ``openai:gpt-6-luna?effort=low&timeout=60``.

A model string is all that commands, run folders and adapters pass on, so it carries the options of
the client's class as well, behind a question mark. Their types are those of its signature. A key
is none of them: model strings are shown and stored.
"""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import parse_qsl, quote

from llmopt.client.prices import Price
from llmopt.errors import LLMOptError, did_you_mean

_SECRET = "api_key"
_LEFT_OUT = {"self", _SECRET, "header"}
_ADDRESS = r"openai\+https?://(?:\[[^\]/]+\]|[^/:]+)(?::\d+)?(?:/[^:]*)?:(?!\d+/).+"


class OptionError(LLMOptError, ValueError):
    """An option of a client is unknown, or its value is none."""


def split_options(model: str) -> tuple[str, dict[str, str]]:
    """Return a model string without its options, and these."""
    found = re.fullmatch(r"(.+?)\?(\w+=[^?]*)", model)
    if model.startswith("openai+") and not (found and re.fullmatch(_ADDRESS, found[1])):
        return model, {}  # a question in the address itself
    return (found[1], dict(parse_qsl(found[2], keep_blank_values=True))) if found else (model, {})


def with_options(model: str, options: Sequence[str]) -> str:
    """Return a model string with further options.

    Args:
        model: Model string, perhaps with options, which later ones replace.
        options: Each ``"name=value"``.

    Raises:
        OptionError: One of them is not written so.
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


def typed_options(kind: type, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return options, texts by name, as the types that a client's class wants."""
    hints = _signature(kind)
    for name in texts:
        if name == _SECRET:
            raise OptionError(
                "api_key is no option of a model string, which is shown and stored: set the "
                "provider's environment variable (`llmopt models` names it)"
            )
        if name not in hints:
            from llmopt.client.remote import RemoteClient  # for this message alone

            others = " (hosted models have it)" if name in _signature(RemoteClient) else ""
            raise OptionError(f"it has no option {name!r}{others}; {did_you_mean(name, hints)}")
    return {name: _read(name, text, hints[name]) for name, text in texts.items()}


def option_names(kind: type) -> list[str]:
    """Return the names of a client's options, also those that no model string may hold."""
    return list(_signature(kind, {"self"}))


def _signature(kind: type, left_out: Collection[str] = _LEFT_OUT) -> dict[str, Any]:
    """Return the named arguments of a class, those that it passes on included, with types."""
    found: dict[str, Any] = {}
    for cls in kind.__mro__:
        own: Any = cls.__dict__.get("__init__")
        if not inspect.isfunction(own):
            continue
        parameters = inspect.signature(own).parameters.values()
        hints = typing.get_type_hints(own)
        for p in parameters:
            if p.kind is p.KEYWORD_ONLY and p.name not in left_out:
                found.setdefault(p.name, hints.get(p.name, str))
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found


_YES, _NO = ("true", "yes", "1"), ("false", "no", "0")
_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "true or false"),
    (int, "a whole number"),
    (float, "a number"),
    (Price, 'dollars per million tokens, such as {"input": 2.0, "output": 10.0}'),
    (Mapping, "a JSON object"),
    (str, "a text"),
)


def _read(name: str, text: str, hint: Any) -> Any:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    expected = []
    for one in typing.get_args(hint) if union else (hint,):
        if typing.get_origin(one) is Literal:
            choices = [str(c) for c in typing.get_args(one)]
            if text in choices:
                return text
            expected.append(f"one of {', '.join(choices)}")
        elif one is not type(None):
            kind = typing.get_origin(one) or one
            kind, words = next((k for k in _KINDS if k[0] is kind), _KINDS[-1])
            try:
                return _convert(kind, text)
            except (ValueError, TypeError):
                expected.append(words)
        elif text.lower() == "none":
            return None
    raise OptionError(f"option {name}={text!r}: expected {' or '.join(expected)}")


def _convert(kind: type, text: str) -> Any:
    """Return a text as one of the types."""
    if kind is bool:
        if text.lower() not in _YES + _NO:
            raise ValueError("neither")
        return text.lower() in _YES
    if kind is Price or kind is Mapping:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError("no object")
        return Price(**value) if kind is Price else value
    return kind(text)
