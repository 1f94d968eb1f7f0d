"""Facts about a model that decide how it is asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from llmopt.client.base import Client, Request, Style, client_name
from llmopt.errors import StorageError

CAPABLE_PARAMETERS = 13_000_000_000
"""Minimum number of weights for which a chat model gets the prompt ``"words"`` by default.

A model of 1.5 billion weights did not benefit from words. The smallest models with published gains
have 14 and 20 billion (ProPS, arXiv 2511.21928; R2PO, arXiv 2605.08315). No size in between was
measured.
"""

_MOST = 10**18  # tokens or weights of a model: more is a damaged or forged file
_SIZE = re.compile(r"(?<![\w.])(?:(\d+)x)?(\d+(?:\.\d+)?)b(?![a-z0-9])", re.IGNORECASE)


def size_in_name(name: str) -> int | None:
    """Return the number of weights stated in a model's name (``"llama3.2:1b"``), or ``None``."""
    size = _SIZE.search(name)
    return round(int(size[1] or 1) * float(size[2]) * 1e9) if size else None


def chat_prompt(parameters: int | None) -> str:
    """Return the default prompt of a chat model by its number of weights (``None``: unknown)."""
    return "props" if parameters is not None and parameters < CAPABLE_PARAMETERS else "words"


@dataclass(frozen=True)
class ModelFacts:
    """What is known about a model before the first request."""

    name: str  # short model string, without secrets
    style: Style = "chat"
    chats: bool = True  # whether it accepts several messages, so that a repair can follow an answer
    context_tokens: int | None = None  # prompt and completion together; ``None`` if not known
    default_prompt: str = "words"  # the meaning of ``prompt="auto"``
    columns: bool = False  # whether `Request.columns` are answered
    grammar: bool | None = None  # whether `Request.grammar` is enforced; ``None`` if not known
    schema: bool = False  # whether `Request.json_schema` is enforced
    structured: bool = False  # whether points are requested as JSON with a schema
    parameters: int | None = None  # number of weights; ``None`` if not known
    reads_text: bool = True  # whether it accepts other prompts than ``"columns"``
    # The most dollars that a request can cost; see `llmopt.client.prices.most_cost`.
    most_cost: Callable[[Request], float | None] | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON, without the function."""
        return {k: v for k, v in vars(self).items() if k != "most_cost"}

    def restored(self, stored: Mapping[str, Any]) -> ModelFacts:
        """Return facts that `to_json` gave, with the function of these.

        Raises:
            StorageError: A fact is unknown, of another kind, or a number that no model has.
        """
        kinds: dict[str, Any] = {**get_type_hints(ModelFacts), "style": str}
        for name, value in dict(stored).items() if isinstance(stored, Mapping) else [("", stored)]:
            valid = name in self.to_json() and isinstance(value, kinds[name])
            if not valid or (type(value) is int and not 0 < value < _MOST):
                raise StorageError(
                    f"the file does not hold the facts of its model (its fact {name} is "
                    f"{value!r}): restore it from a copy"
                )
        return ModelFacts(**{**stored, "most_cost": self.most_cost})


def model_facts(client: Client) -> ModelFacts:
    """Return a client's own ``facts()``, or facts from its attributes; loads and sends nothing."""
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
        default_prompt=getattr(client, "default_prompt", None)
        or (chat_prompt(size) if style == "chat" else "props"),
        columns=bool(getattr(client, "columns", False)),
        parameters=size,
        most_cost=getattr(client, "most_cost", None),
    )
