"""``llmopt estimate``: requests, tokens and cost of a search, before anything is sent.

The formula is fitted to recorded searches by a strong chat model under the prompt ``words``:

    requests = evaluations / points          (+ 17 blocks of Python, if the model may compute)
    prompt tokens of a request = 3,000 + 7 · parameters · evaluations / 2 (+ 6,000 with feedback)

A search that computes seldom needs more than five answers with points: 30 recorded searches took
7 to 76 requests, 22 in the median. Under other prompts each request shows all earlier points.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from llmopt.client.base import Client, client_name
from llmopt.client.model_facts import model_facts
from llmopt.client.model_string import get_client
from llmopt.client.prices import FREE, PRICES_VARIABLE, Price, price_source
from llmopt.commands.shared import add_option_argument, take_options
from llmopt.errors import LLMOptError
from llmopt.prompt import Prompt, prompt_for

BLOCKS, ANSWERS = 17, 5
"""Blocks of Python of a search that computes, and its answers with points: medians."""

_POINTS = 4  # of an answer under `words`, if the search has no fewer evaluations than parameters
_FRAME, _FEEDBACK, _NUMBER = 3000, 6000, 7  # tokens: of a prompt, of feedback, of a parameter
_ANSWER, _COMPUTED_ANSWER, _PLAIN_ANSWER = 430, 690, 100  # tokens beside the numbers


@dataclass(frozen=True)
class Estimate:
    """Requests, tokens and cost of a search."""

    model: str
    requests: int
    blocks: int  # of the requests, those whose answer is Python
    prompt_tokens: int
    completion_tokens: int  # without hidden reasoning, which is unknown
    cost: float | None  # US dollars without a prefix cache; `None` if the price is unknown
    prices: str = ""  # source and date of the prices
    max_cost: float | None = None

    def summary(self) -> str:
        """Return the estimate in one line."""
        text = f"about {self.requests:,} requests to {self.model}"
        if self.blocks:
            text += f", {self.blocks} of them for blocks of Python (--no-compute turns them off)"
        if self.cost == 0:
            return f"{text}; free"
        text += f": {self.prompt_tokens:,} prompt and {self.completion_tokens:,} completion tokens"
        if self.cost is None:
            return (
                f"{text}; cost unknown ({PRICES_VARIABLE} can name a file of prices; "
                "the extra 'prices' knows more models)"
            )
        text += (
            f"; ${self.cost:.2f} without a prefix cache (prices: {self.prices}; hidden reasoning "
            "not counted: it may multiply the completion tokens)"
        )
        if self.max_cost is not None and self.cost > self.max_cost:
            paid = int(self.requests * self.max_cost / self.cost)
            text += f"; --max-cost {self.max_cost:g} is reached after about {paid:,} requests"
        return text


def estimate(
    client: Client,
    prompt: str | Prompt = "auto",
    *,
    evaluations: int,
    parameters: int,
    points: int | None = None,
    feedback: bool = True,
    compute: bool | None = None,
    max_cost: float | None = None,
) -> Estimate:
    """Estimate a search; nothing is sent or loaded.

    Args:
        client: The model.
        prompt: The prompt, or its name.
        evaluations: Points that the model proposes.
        parameters: Numbers in a point.
        points: Points of an answer; ``None`` for what is usual under the prompt.
        feedback: Whether results come with words, as in policy searches.
        compute: Whether the model may run Python; ``None`` for chat models under ``words``.
        max_cost: A cap in US dollars.
    """
    facts = model_facts(client)
    name = getattr(prompt_for(prompt, facts), "name", "")
    words = name == "words"
    if name == "columns":  # each point of a batch is a request
        points = 1
    elif points is None:
        points = _POINTS if words and parameters <= evaluations else 1
    if compute is None:
        compute = words and facts.chats and getattr(client, "computes", True)
    answers = -(-evaluations // points)
    blocks = BLOCKS if compute and evaluations else 0
    requests = (min(answers, ANSWERS) if compute else answers) + blocks
    rows = _NUMBER * parameters * evaluations // 2
    frame = _FRAME + _FEEDBACK * feedback if words else 0
    answer = _NUMBER * parameters * points
    answer += (_COMPUTED_ANSWER if compute else _ANSWER) if words else _PLAIN_ANSWER
    price = FREE if getattr(client, "without_tokens", "") else price_of(client)
    # A price may hold up to a prompt's length only, so it is asked for one request.
    one = price.cost(frame + rows, answer) if price else None
    tokens = (requests * (frame + rows), requests * answer) if one != 0 else (0, 0)
    cost = None if one is None else one * requests
    return Estimate(facts.name, requests, blocks, *tokens, cost, prices_of(client), max_cost)


def prices_of(client: Client) -> str:
    """Return the source of a client's prices."""
    return "your own" if getattr(client, "price", None) else price_source(client_name(client))


def price_of(client: Client) -> Price | None:
    """Return the price of a client's tokens, or ``None`` if it is not known."""
    if hasattr(client, "current_price"):
        price: Price | None = client.current_price()
        return price
    return FREE if getattr(client, "local", False) else None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt estimate``."""
    add = parser.add_argument
    add("--model", default="smollm2", metavar="M", help="model to ask (default: smollm2)")
    add("--prompt", default="auto", metavar="P", help="prompt (default: what suits the model)")
    add("--evaluations", type=int, default=30, metavar="N", help="points (default: 30)")
    add("--parameters", type=int, default=10, metavar="N", help="numbers in a point (default: 10)")
    add("--points", type=int, metavar="N", help="points of one answer (default: the prompt's)")
    for name, text in (("feedback", "words with each result"), ("compute", "blocks of Python")):
        default = True if name == "feedback" else None
        kind = argparse.BooleanOptionalAction
        add(f"--{name}", action=kind, default=default, help=f"{text} (default: as usual)")
    add("--max-cost", type=float, metavar="USD", help="cap of the search in US dollars")
    add_option_argument(parser)


def main(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    given = dict(vars(args))
    take_options(given)
    for name in ("evaluations", "parameters", "points"):
        least = 0 if name == "evaluations" else 1
        if given[name] is not None and given[name] < least:
            raise LLMOptError(f"--{name} {given[name]}: expected {least} or more")
    print(estimate(get_client(given.pop("model")), **given).summary())
    return 0
