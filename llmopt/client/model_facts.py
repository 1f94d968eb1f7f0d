"""Facts about a model that decide how it is asked: read in one place, from one function."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from llmopt.client.base import Client, Style, client_name

CAPABLE_PARAMETERS = 13_000_000_000
"""Weights from which on a chat model is asked with the prompt ``"words"`` by default.

A model of 1.5 billion weights made nothing of words; the smallest for which gains from them are
published have 14 and 20 billion (ProPS, arXiv 2511.21928; R2PO, arXiv 2605.08315). Nothing
between was measured.
"""

_SIZE = re.compile(r"(?<![\w.])(?:(\d+)x)?(\d+(?:\.\d+)?)b(?![a-z0-9])", re.IGNORECASE)


def size_in_name(name: str) -> int | None:
    """Return the number of weights that a model's name tells: ``"llama3.2:1b"``, or ``None``."""
    found = _SIZE.search(name)
    return round(int(found[1] or 1) * float(found[2]) * 1e9) if found else None


def chat_prompt(parameters: int | None) -> str:
    """Return the default prompt of a chat model with that many weights, ``None`` if unknown."""
    return "props" if parameters is not None and parameters < CAPABLE_PARAMETERS else "words"


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model before it is asked."""

    name: str  # short model string, never holding a secret
    style: Style = "chat"
    chats: bool = True  # whether it takes several messages, so that a repair can follow an answer
    context_tokens: int | None = None  # prompt and completion together; ``None`` if not known
    count_tokens: Callable[[str], int] | None = None  # the model's own tokenizer, if there is one
    default_prompt: str = "words"  # what ``prompt="auto"`` means for it
    max_samples: int | None = None  # the largest useful number a request; ``None`` for no limit
    columns: bool = False  # whether `Request.columns` are answered
    grammar: bool | None = None  # whether `Request.grammar` is kept; ``None`` if not known
    schema: bool = False  # whether `Request.json_schema` is kept
    structured: bool = False  # whether points are asked as JSON, held to a schema
    parameters: int | None = None  # number of weights; ``None`` if not known
    reads_text: bool = True  # whether it can be asked with other prompts than ``"columns"``


def model_facts(client: Client) -> ModelFacts:
    """Return what a client's own ``facts()`` says, or its attributes; loads and sends nothing."""
    own = getattr(client, "facts", None)
    if callable(own):
        facts = own()
        if isinstance(facts, ModelFacts):
            return facts
    style: Style = "completion" if getattr(client, "style", "chat") == "completion" else "chat"
    size = size_in_name(client_name(client))
    return ModelFacts(
        name=client_name(client),
        style=style,
        chats=style == "chat",
        context_tokens=getattr(client, "context_tokens", None),
        count_tokens=getattr(client, "count_tokens", None),
        default_prompt=getattr(client, "default_prompt", None)
        or (chat_prompt(size) if style == "chat" else "props"),
        max_samples=getattr(client, "max_samples", None),
        columns=bool(getattr(client, "columns", False)),
        parameters=size,
    )
