"""One call to a provider: who pays for it, what it brought, and the form of what is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol

from llmopt.client.api_keys import Secret, hide
from llmopt.client.base import Completion, FinishReason, Request, amount, believed, whole
from llmopt.client.faults import MalformedBody
from llmopt.client.prices import Price
from llmopt.text import clean, estimate_tokens

_MOST_CHARACTERS = 2**18  # of one sample: some 60,000 tokens
_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
_DATA = ("enum", "const", "default", "examples", "required")


class Payer(Protocol):
    """Whoever pays for the calls inside of `paying`."""

    def take(self) -> None:
        """Allow one more call, or raise `BudgetExceededError`."""
        ...

    def paid(self, tokens: int, cost: float | None) -> None:
        """Take note of what a call has used: tokens, and dollars or ``None`` for unknown."""
        ...


_PAYER: ContextVar[Payer | None] = ContextVar("payer", default=None)


@contextmanager
def paying(payer: Payer) -> Iterator[None]:
    """Have all calls inside paid by somebody, those in threads of `within` included."""
    before = _PAYER.set(payer)
    try:
        yield
    finally:
        _PAYER.reset(before)


def take_call() -> None:
    """Ask whoever pays, if anybody does, for one call; right before each one is sent."""
    payer = _PAYER.get()
    if payer is not None:
        payer.take()


def note_paid(tokens: int, cost: float | None) -> None:
    """Tell whoever pays, if anybody does, what the call has used."""
    payer = _PAYER.get()
    if payer is not None:
        payer.paid(tokens, cost)


@dataclass(frozen=True)
class Call:
    """What one call to a provider brought."""

    completions: tuple[Completion, ...]  # at least one
    model: str = ""
    prompt_tokens: int | None = None  # cached and written ones included; ``None`` if unknown
    cached_tokens: int = 0  # those read from a prefix cache
    written_tokens: int = 0  # those written to one, if that is charged apart
    written_long_tokens: int = 0  # those of them that are kept for an hour
    completion_tokens: int | None = None  # over all samples, hidden reasoning included
    cost: float | None = None  # US dollars, if the provider itself says so
    calls: int = 1  # those included that a refused parameter wasted
    estimated: bool = False  # whether the tokens are an estimate

    def priced(self, request: Request, price: Price | None, tells_cost: bool) -> Call:
        """Return this answer with its cost, and with estimates of what it does not say."""
        texts = [c.text for c in self.completions]
        prompt = believed(self.prompt_tokens, request.text)
        completion = believed(self.completion_tokens, *texts)
        # No prompt is empty, and no text either.
        told = bool(prompt) and completion is not None and (completion > 0 or not any(texts))
        prompt = prompt or estimate_tokens(request.text)
        completion = completion or sum(map(estimate_tokens, texts))
        cost = self.cost if tells_cost else None
        if price is not None and (not cost or cost < price.least(prompt, completion)):
            cost = price.cost(
                prompt,
                completion,
                self.cached_tokens,
                self.written_tokens,
                self.written_long_tokens,
            )
        return replace(
            self, prompt_tokens=prompt, completion_tokens=completion, cost=cost, estimated=not told
        )


def sound(answer: Call, request: Request, key: Secret) -> Call:
    """Return an answer whose fields are what their types say, whatever the server sent."""
    prompt_tokens = whole(answer.prompt_tokens)
    most = prompt_tokens or 0
    return replace(
        answer,
        completions=tuple(_cut(c, request.stop, key) for c in answer.completions[: request.n]),
        model=hide(clean(answer.model), (key,)) if isinstance(answer.model, str) else "",
        prompt_tokens=prompt_tokens,
        cached_tokens=min(whole(answer.cached_tokens) or 0, most),
        written_tokens=min(whole(answer.written_tokens) or 0, most),
        completion_tokens=whole(answer.completion_tokens),
        cost=amount(answer.cost),
    )


def _cut(completion: Completion, stop: tuple[str, ...], key: Secret) -> Completion:
    """End a sample at the first stop string, for servers that do not take them."""
    if not isinstance(completion.text, str):
        raise MalformedBody(f"a sample is a {type(completion.text).__name__}, not a text")
    text = hide(clean(completion.text), (key,))
    ends = [at for at in map(text.find, stop) if at >= 0]
    reason: FinishReason = "stop" if ends else completion.finish_reason
    text = text[: min(ends, default=None)]
    return Completion(text[:_MOST_CHARACTERS], "length" if text[_MOST_CHARACTERS:] else reason)


def finish(reason: object, table: Mapping[str, FinishReason]) -> FinishReason:
    """Translate a provider's finish reason; one that is not in `table` means ``"stop"``."""
    return table.get(str(reason or "").rsplit(".", 1)[-1].upper(), "stop")


def closed(schema: object) -> Any:
    """Return a JSON schema as strict modes want it: closed, all fields required, no lengths."""
    if isinstance(schema, list | tuple):
        return [closed(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    result: dict[str, Any] = {}
    for word, value in schema.items():
        if word in _NAMED_SCHEMAS and isinstance(value, Mapping):
            result[word] = {name: closed(inner) for name, inner in value.items()}
        elif word != "maxLength":
            result[word] = value if word in _DATA else closed(value)
    if result.get("type") == "object" and isinstance(result.get("properties", {}), dict):
        result.setdefault("additionalProperties", False)
        if result.get("properties"):
            result["required"] = list(result["properties"])
    return result
