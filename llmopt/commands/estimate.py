"""What a search will ask for and cost, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from llmopt.client.base import Client, Request, client_name
from llmopt.client.http.request_form import in_blocks
from llmopt.client.model_facts import model_facts
from llmopt.client.prices import FREE, PRICES_VARIABLE, Price, price_source
from llmopt.history import History, Trial
from llmopt.prompt import Prompt, prompt_for
from llmopt.prompt.python_block import Computed
from llmopt.prompt.situation import Situation
from llmopt.space import Space
from llmopt.util.text import estimate_tokens

_CUT = 1.06  # where a search cuts its log is not known, so a little more is counted
_PLACES = 16  # of a search at which its prompt is measured
_SIMULATED = 1000  # trials; a prompt with more of them is taken to be as long
# Prefixes shorter than this are not cached by the large providers.
_SHORTEST_CACHED = 1024
# A chat model's sentence or two beside the numbers.
_WORDS_TOKENS = 100
# The same under `words`, which asks for an analysis: the mean of the recorded searches.
_ANALYSIS_TOKENS = 250
# Of the recorded searches that computed: blocks for each point, and how long they and outputs were.
_BLOCKS = 3
_BLOCK = Computed("x = fit(model, data, p0)  # and so on\n" * 32, "step 12: rms 0.034\n" * 80)
# What of an answer its row in the log repeats, of the length that they had there.
_LESSON = "Lesson: " + "what the latest results taught " * 4
_HYPOTHESIS = "Hypothesis: " + "what is changed and why it should help " * 3


@dataclass(frozen=True)
class Estimate:
    """What a search will need if every answer can be used at once."""

    model: str
    prompt: str
    evaluations: int  # after the warm-up
    warmup: int  # points that are evaluated before the first request
    requests: int  # to the model
    prompt_tokens: int  # over all requests; over-estimated rather than under-estimated
    cacheable_tokens: int  # the part that repeats the beginning of the previous request
    completion_tokens: int  # without hidden reasoning, which is unknown beforehand
    cost: float | None  # US dollars if a cache serves nothing; ``None`` if the price is unknown
    cached_cost: float | None  # US dollars if all `cacheable_tokens` come from the cache
    written_tokens: int = 0  # those written to a cache, where that is charged apart
    prices: str = ""  # where the prices are from, and of when; or why there are no tokens to pay
    cache_minutes: int = 5  # minimum time that a prefix cache keeps its content
    blocks: int = 0  # those of `requests` whose answer is Python

    def summary(self) -> str:
        """Return the estimate in one line."""
        share = self.cacheable_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
        text = (
            f"{self.warmup + self.evaluations} evaluations per method, {self.warmup} of them "
            f"warm-up; about {self.requests} requests to {self.model}"
        )
        if self.blocks:
            text += (
                f", {self.blocks} of them for blocks of Python (1 to 60 s each in recorded "
                "searches; --no-compute turns them off)"
            )
        if not self.prompt_tokens and self.requests:
            return f"{text}, {self.prices}"
        text += (
            f" with the prompt {self.prompt!r}: {self.prompt_tokens:,} prompt tokens "
            f"({share:.0%} repeated from the request before) and {self.completion_tokens:,} "
            "completion tokens"
        )
        if self.cost is None or self.cached_cost is None:
            return (
                f"{text}; cost unknown ({PRICES_VARIABLE} can name a file of prices; "
                "the extra 'prices' knows more models)"
            )
        if self.cost == 0.0:
            return f"{text}; free, on this machine"
        low, high = f"${self.cached_cost:.2f}", f"${self.cost:.2f}"
        price = high
        if low != high:
            price = (
                f"{low} where an evaluation takes less than {self.cache_minutes} minutes, so that "
                f"the provider's prefix cache serves the repeated part; else up to {high}"
            )
        return (
            f"{text}; {price} (prices: {self.prices}; hidden reasoning not counted: a reasoning "
            "model may bill several times the completion tokens shown)"
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
    feedback: str = "",
    compute: bool = False,
    count_tokens: Callable[[str], int] = estimate_tokens,
) -> Estimate:
    """Estimate a search from its prompt at a few places; nothing is sent or loaded.

    The model makes `iterations` proposals, one request each, and with `compute` one for each block
    of Python before them; `feedback` is a sample of the feedback with each score.
    `prompt`, `warmup`, `total` and `description` are as for `LLMOptimizer`.

    Raises:
        LLMOptError: The prompt cannot be made for this space, or does not fit the model.
        ValueError: `iterations` or `warmup` is negative.
    """
    if iterations < 0 or warmup < 0:
        raise ValueError(f"iterations={iterations}, warmup={warmup}: expected 0 or more")
    model = replace(model_facts(client), count_tokens=count_tokens)
    made = prompt_for(prompt, model)
    total = warmup + iterations if total is None else total
    blocks = _BLOCKS * compute
    words = _ANALYSIS_TOKENS if made.name == "words" else _WORDS_TOKENS
    trials = simulated_trials(space, min(warmup + iterations, _SIMULATED), warmup, feedback)

    def request(number: int, computed: int = 0) -> Request:
        given: dict[str, Any] = {"total": total, "description": description, "compute": compute}
        given["computed"] = (_BLOCK,) * computed
        history = History(trials[: warmup + number])
        return made.prepare(Situation.after(history, space, model, **given)).request

    row = np.zeros(4)
    for place in range(_PLACES if iterations else 0):
        number = int((place + 0.5) / _PLACES * min(iterations, max(_SIMULATED - warmup, 1)))
        before = request(number - 1, blocks) if number else None
        for computed in range(blocks + 1):
            now = request(number, computed)
            prompt_tokens = count_tokens(_flat(now)) * (_CUT if made.name == "words" else 1)
            answer = _answer_tokens(now, space, trials, words, count_tokens)
            if computed < blocks:
                answer = count_tokens(_BLOCK.code) + words
            row += [prompt_tokens, *prefix_use(before, now, client, count_tokens), answer]
            before = now
    sums = [round(float(x)) for x in row * iterations / _PLACES]
    without = getattr(client, "without_tokens", "")
    if without:
        sums = [0, 0, 0, 0]
    price = FREE if without else price_of(client)
    # A price may hold up to a prompt's length only, so it is asked for one request.
    requests = iterations * (blocks + 1)
    mean = [round(s / max(requests, 1)) for s in sums]
    hour = getattr(client, "cache", "") == "long"
    marked = mean[1] + mean[2] if getattr(client, "marks_cache", False) else 0
    one = price.cost(mean[0], mean[3], 0, marked, marked * hour) if price else None
    cheap = price.cost(mean[0], mean[3], mean[1], mean[2], mean[2] * hour) if price else None
    return Estimate(
        model=model.name,
        prompt=made.name,
        evaluations=iterations,
        warmup=warmup,
        requests=requests,
        blocks=iterations * blocks,
        prompt_tokens=sums[0],
        cacheable_tokens=sums[1],
        completion_tokens=sums[3],
        cost=None if one is None else one * requests,
        cached_cost=None if cheap is None else cheap * requests,
        written_tokens=sums[2],
        prices=without or prices_of(client),
        cache_minutes=60 if hour else 5,
    )


def prefix_use(
    before: Request | None, now: Request, client: Client, count: Callable[[str], int]
) -> tuple[int, int]:
    """Return the tokens that a request reads from and writes to a prefix cache.

    Where a provider keeps what we mark, a prefix is found up to a mark alone, and what is written
    is charged apart. Elsewhere all that two requests begin with is found, and writing is free.
    """
    marked = getattr(client, "marks_cache", False)
    if not marked:
        shared = count(_flat(now)[: _alike(_flat(before), _flat(now))]) if before else 0
        return (shared if shared >= _SHORTEST_CACHED else 0), 0
    if getattr(client, "cache", "") == "off":
        return 0, 0
    old, new = (
        [block["text"] for block in in_blocks([m.content for m in r.messages])[1]] if r else []
        for r in (before, now)
    )
    read, kept = (count("".join(part)) for part in (new[: _alike(old, new)], new))
    if kept < _SHORTEST_CACHED:
        return 0, 0
    read = read if read >= _SHORTEST_CACHED else 0
    return read, kept - read


def prices_of(client: Client) -> str:
    """Say where the prices of a client are from."""
    return "your own" if getattr(client, "price", None) else price_source(client_name(client))


def price_of(client: Client) -> Price | None:
    """Return the price of a client's tokens, or ``None`` if it is not known."""
    if hasattr(client, "current_price"):
        price: Price | None = client.current_price()
        return price
    return FREE if getattr(client, "local", False) else None


def simulated_trials(
    space: Space, n: int, warmup: int = 0, feedback: str = ""
) -> tuple[Trial, ...]:
    """Return `n` random points with random rewards; after the warm-up with a model's words."""
    rng = np.random.default_rng(0)
    values = [space.sample(rng) for _ in range(n)]
    rewards = rng.normal(50.0, 30.0, n).round(2)
    trials = []
    for number, (point, reward) in enumerate(zip(values, rewards, strict=True)):
        asked = number >= max(warmup, 1)
        answer = f"{_LESSON}\n{_HYPOTHESIS}\nStart from: #{number}"
        trials.append(
            Trial(
                number,
                space.unflatten(point),
                point,
                (float(reward),),
                feedback=feedback,
                explanation=answer if asked else "",
                stderr=1.25 if feedback else None,
                samples=tuple(rng.normal(reward, 9.0, 5)) if feedback else (),
                source="llm" if asked else "warmup",
            )
        )
    return tuple(trials)


def _alike(old: Sequence[str], new: Sequence[str]) -> int:
    """Return how many parts, or characters, both begin with."""
    pairs = enumerate(zip(old, new, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(old), len(new)))


def _flat(request: Request) -> str:
    # What providers cache is the whole conversation in order.
    return "\n".join(f"{m.role}\n{m.content}" for m in request.messages)


def _answer_tokens(
    request: Request,
    space: Space,
    trials: tuple[Trial, ...],
    words: int,
    count: Callable[[str], int],
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
        tokens = count(named) + words
    return tokens if request.max_tokens is None else min(tokens, request.max_tokens)
