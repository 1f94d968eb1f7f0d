"""What a search will ask for and cost, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from llmopt.client.base import Client, Request
from llmopt.client.facts import model_facts
from llmopt.client.prices import FREE, PRICES_AS_OF, PRICES_VARIABLE, Price
from llmopt.history import History, Trial
from llmopt.prompt import Prompt, prompt_for
from llmopt.prompt.base import Situation
from llmopt.prompt.budget import estimate_tokens
from llmopt.space import Space

_POINTS = 16
# Prefixes shorter than this are not cached by the large providers.
_SHORTEST_CACHED = 1024
# A chat model's sentence or two beside the numbers.
_WORDS_TOKENS = 100


@dataclass(frozen=True)
class Estimate:
    """What a search will need if every answer can be used at once.

    Attributes:
        model: The model's name.
        prompt: The prompt's name.
        requests: Requests to the model.
        prompt_tokens: Over all requests; over-estimated rather than under-estimated.
        cacheable_tokens: Those of `prompt_tokens` that repeat the beginning of the request
            before, which a provider's prefix cache can serve.
        completion_tokens: Over all requests; hidden reasoning is not among them, since
            nobody knows it beforehand.
        cost: US dollars with no help from a cache, or ``None`` if the price is unknown.
        cached_cost: US dollars if all `cacheable_tokens` come from the cache.
    """

    model: str
    prompt: str
    requests: int
    prompt_tokens: int
    cacheable_tokens: int
    completion_tokens: int
    cost: float | None
    cached_cost: float | None

    def summary(self) -> str:
        """Return the estimate in one line."""
        share = self.cacheable_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
        text = (
            f"about {self.requests} requests to {self.model} with the prompt {self.prompt!r}: "
            f"{self.prompt_tokens:,} prompt tokens ({share:.0%} repeated from the request "
            f"before) and {self.completion_tokens:,} completion tokens"
        )
        if self.cost is None or self.cached_cost is None:
            return f"{text}; cost unknown ({PRICES_VARIABLE} can name a file of prices)"
        if self.cost == 0.0:
            return f"{text}; free, on this machine"
        return (
            f"{text}; ${self.cost:.2f}, or ${self.cached_cost:.2f} with a prefix cache "
            f"(prices of {PRICES_AS_OF} unless you set your own; hidden reasoning not counted)"
        )


def estimate(
    space: Space,
    client: Client,
    prompt: str | Mapping[str, Any] | Prompt = "auto",
    *,
    iterations: int,
    warmup: int = 20,
    total: int | None = None,
    description: str = "",
    count_tokens: Callable[[str], int] = estimate_tokens,
) -> Estimate:
    """Estimate a search by making its prompts over a simulated history.

    Nothing is sent and no model is loaded.

    Args:
        space: The search space.
        client: The model that would be asked.
        prompt: As for `LLMOptimizer`.
        iterations: Proposals of the model, one request each.
        warmup: Trials before the first of them.
        total: Proposals planned in all, as the prompt says it; by default both together.
        description: The task in words.
        count_tokens: Tokenizer; the default over-estimates.

    Raises:
        LLMOptError: The prompt cannot be made for this space, or does not fit the model.
        ValueError: `iterations` or `warmup` is negative.
    """
    if iterations < 0 or warmup < 0:
        raise ValueError(f"iterations={iterations}, warmup={warmup}: expected 0 or more")
    model = replace(model_facts(client), count_tokens=count_tokens)
    made = prompt_for(prompt, model)
    total = warmup + iterations if total is None else total
    trials = _simulated(space, warmup + iterations)

    def request(number: int) -> Request:
        history = History(trials[: warmup + number])
        situation = Situation.after(history, space, model, total=total, description=description)
        return made.prepare(situation).request

    # A prompt grows smoothly, so a few requests tell about all.
    places = np.unique(np.linspace(0, max(0, iterations - 1), _POINTS).astype(int))
    prompt_tokens, cacheable, completion = [], [], []
    for number in places if iterations else ():
        now = request(int(number))
        text = _flat(now)
        before = _flat(request(int(number) - 1)) if number else ""
        repeated = count_tokens(_shared(before, text))
        prompt_tokens.append(count_tokens(text))
        cacheable.append(repeated if repeated >= _SHORTEST_CACHED else 0)
        completion.append(_answer_tokens(now, space, trials, count_tokens))
    sums = [
        round(float(np.interp(np.arange(iterations), places, np.array(column)).sum()))
        if iterations
        else 0
        for column in (prompt_tokens, cacheable, completion)
    ]
    price = price_of(client)
    each = [s / iterations if iterations else 0 for s in sums]
    # A price may hold up to a prompt's length only, so it is asked for one request.
    one = price.cost(round(each[0]), round(each[2])) if price else None
    cheap = price.cost(round(each[0]), round(each[2]), round(each[1])) if price else None
    return Estimate(
        model=model.name,
        prompt=made.name,
        requests=iterations,
        prompt_tokens=sums[0],
        cacheable_tokens=sums[1],
        completion_tokens=sums[2],
        cost=None if one is None else one * iterations,
        cached_cost=None if cheap is None else cheap * iterations,
    )


def price_of(client: Client) -> Price | None:
    """Return the price of a client's tokens, or ``None`` if it is not known."""
    from llmopt.client.local import LocalClient

    while not hasattr(client, "current_price"):
        if isinstance(client, LocalClient):
            return FREE
        inner = getattr(client, "client", None)
        if inner is None:
            return None
        client = inner
    price: Price | None = client.current_price()
    return price


def _simulated(space: Space, n: int) -> tuple[Trial, ...]:
    rng = np.random.default_rng(0)
    values = [space.round(space.sample(rng)) for _ in range(n)]
    rewards = rng.normal(50.0, 30.0, n).round(2)
    return tuple(
        Trial(k, space.unflatten(v), v, (float(r),), source="llm")
        for k, (v, r) in enumerate(zip(values, rewards, strict=True))
    )


def _flat(request: Request) -> str:
    # What providers cache is the whole conversation in order.
    return "\n".join(f"{m.role}\n{m.content}" for m in request.messages)


def _shared(before: str, now: str) -> str:
    """The longest text that both begin with."""
    same = next((i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), None)
    return now[: min(len(before), len(now)) if same is None else same]


def _answer_tokens(
    request: Request, space: Space, trials: tuple[Trial, ...], count: Callable[[str], int]
) -> int:
    if request.columns:
        return len(request.columns)
    values = trials[0].values
    if request.style == "completion" and request.grammar is not None:
        tokens = count(request.text.splitlines()[0])  # a line as those that are shown
    elif request.style == "completion":
        tokens = count(", ".join(space.format(i, v) for i, v in enumerate(values)))
    else:
        named = ", ".join(f"{n}: {space.format(i, values[i])}" for i, n in enumerate(space.names))
        tokens = count(named) + _WORDS_TOKENS
    return tokens if request.max_tokens is None else min(tokens, request.max_tokens)
