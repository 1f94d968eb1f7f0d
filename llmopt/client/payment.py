"""The cost of one call, and its checked reply."""

from __future__ import annotations

from dataclasses import replace

from llmopt.client.base import Completion, FinishReason, Reply, Request
from llmopt.client.http.api_keys import Secret, hide
from llmopt.client.http.faults import Fault
from llmopt.client.prices import Price
from llmopt.util.text import a_type, clean

_MOST_CHARACTERS = 2**18  # of one sample: some 60,000 tokens


def priced(
    answer: Reply, request: Request, price: Price | None, reports_cost: bool, key: Secret
) -> Reply:
    """Return one call's reply with checked counts and its cost, whatever the server sent."""
    answer = replace(
        answer,
        completions=tuple(_cut(c, request.stop, key) for c in answer.completions[:1]),
        model=hide(clean(answer.model), (key,)) if isinstance(answer.model, str) else "",
    )
    # A count of 0 is wrong: no prompt is empty, and a text has tokens.
    completion: int | None = answer.completion_tokens
    if not completion and any(c.text for c in answer.completions):
        completion = None
    reply = replace(
        answer, prompt_tokens=answer.prompt_tokens or None, completion_tokens=completion
    ).counted(request)
    cost = reply.cost if reports_cost else None
    if price is not None and not cost:
        tokens = reply.prompt_tokens or 0, reply.completion_tokens or 0
        cached = reply.cached_tokens, reply.written_tokens, reply.written_long_tokens
        cost = price.cost(*tokens, *cached)
    return replace(reply, cost=cost)


def _cut(completion: Completion, stop: tuple[str, ...], key: Secret) -> Completion:
    """End a sample at the first stop string, for servers that ignore stop strings."""
    if not isinstance(completion.text, str):
        raise Fault("malformed", f"a sample is {a_type(completion.text)}, not a text")
    text = hide(clean(completion.text), (key,))
    ends = [at for at in map(text.find, stop) if at >= 0]
    reason: FinishReason = "stop" if ends else completion.finish_reason
    text = text[: min(ends, default=None)]
    return Completion(text[:_MOST_CHARACTERS], "length" if text[_MOST_CHARACTERS:] else reason)
