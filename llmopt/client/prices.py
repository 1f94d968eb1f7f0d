"""Prices of tokens: the list of the package ``genai-prices``, and ways to override it.

A price that is not in the list is unknown: ``None``, never 0. Providers change prices without
notice. If the amount matters, set the price yourself: with ``price=Price(...)`` of a client, or
with a JSON file named by the environment variable ``LLMOPT_PRICES``::

    {"openai:gpt-6-sol": {"input": 2.0, "cached": 0.2, "output": 10.0}}
"""

from __future__ import annotations

import datetime
import functools
import importlib
import importlib.util
import json
import math
import os
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from llmopt.client.base import Client, Request
from llmopt.client.model_facts import ModelFacts, model_facts
from llmopt.errors import PriceError, install_hint
from llmopt.util.files import read_json, read_text
from llmopt.util.text import estimate_tokens

PRICES_VARIABLE = "LLMOPT_PRICES"
"""Environment variable that names a JSON file of prices, which take precedence."""

_MILLION = 1e6


@dataclass(frozen=True)
class Price:
    """US dollars per million tokens.

    Attributes:
        input: Prompt tokens that no cache served.
        output: Completion tokens, including hidden reasoning.
        cached: Prompt tokens read from a prefix cache; ``None`` means as `input`.
        written: Prompt tokens written to a prefix cache, if the provider charges for this
            separately; ``None`` means as `input`.
        written_long: Prompt tokens written to a cache for an hour; ``None`` means as `written`.
        up_to: Maximum prompt length, in tokens, for which the price holds; the cost of a longer
            prompt is unknown.
    """

    input: float
    output: float
    cached: float | None = None
    written: float | None = None
    up_to: int | None = None
    written_long: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not (
                isinstance(value, int | float) and math.isfinite(value) and value >= 0
            ):
                raise PriceError(
                    f"price {field.name}={value!r}: expected a finite number of US dollars per "
                    "million tokens, 0 or more"
                )

    def cost(
        self,
        prompt_tokens: int,
        completion_tokens: int,
        cached_tokens: int = 0,
        written: int = 0,
        written_long: int = 0,
    ) -> float | None:
        """Return the cost of a call in US dollars; ``None`` for a prompt longer than `up_to`.

        `prompt_tokens` includes cached and written tokens, and `written` includes `written_long`.
        """
        if self.up_to is not None and prompt_tokens > self.up_to:
            return None
        cached_price = self.input if self.cached is None else self.cached
        written_price = self.input if self.written is None else self.written
        long_price = written_price if self.written_long is None else self.written_long
        fresh = max(0, prompt_tokens - cached_tokens - written)
        return (
            fresh * self.input
            + cached_tokens * cached_price
            + (written - written_long) * written_price
            + written_long * long_price
            + completion_tokens * self.output
        ) / _MILLION

    def maximum(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Return an upper bound on the cost in US dollars: all of the prompt at its highest price.

        ``None`` for a prompt longer than `up_to`.
        """
        prices = (self.input, self.cached, self.written, self.written_long)
        highest = max(price for price in prices if price is not None)
        return Price(highest, self.output, up_to=self.up_to).cost(prompt_tokens, completion_tokens)


FREE = Price(0.0, 0.0)
"""Price of a model that runs on the user's own machine."""

_MESSAGE_TOKENS = 16  # the marks that a chat template puts around one message


def most_cost(model: Client | ModelFacts, request: Request) -> float | None:
    """Return the most US dollars that the calls for a request can cost, apart from retries.

    The prompt is over-estimated, and each answer counts with its cap. 0.0 for a model on this
    machine or in a recording, ``None`` if the price is unknown.
    """
    facts = model if isinstance(model, ModelFacts) else model_facts(model)
    return None if facts.most_cost is None else facts.most_cost(request)


def free(request: Request) -> float | None:
    """Return the most that a request to a model on this machine can cost: 0.0."""
    return 0.0


def most_prompt_tokens(request: Request) -> int:
    """Over-estimate the tokens of a request's prompt, with its schema."""
    schema = "" if request.json_schema is None else json.dumps(dict(request.json_schema))
    texts = [*(m.content for m in request.messages), schema]
    return sum(_MESSAGE_TOKENS + estimate_tokens(text) for text in texts)


# A snapshot costs what its model costs: gpt-4o-2024-08-06, claude-haiku-4-5-20251001,
# gemini-2.5-pro-002, claude-sonnet-4-5-latest.
_SNAPSHOT = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{8}|00\d|latest)$")


def get_price(name: str, *, listed: bool = True) -> Price | None:
    """Return a model's price, or ``None``; a dated snapshot has the price of its model.

    Raises:
        PriceError: The file that ``LLMOPT_PRICES`` names cannot be read.
    """
    own = _prices_file()
    price = own.get(name) or own.get(_SNAPSHOT.sub("", name))
    return _listed(name) if price is None and listed else price


def price_source(name: str) -> str:
    """Return the source and date of the price that `get_price` returns."""
    return "your own" if get_price(name, listed=False) else price_list()


@functools.cache
def price_list() -> str:
    """Return the name of the price list, with the date of its newest entry."""
    from importlib import metadata

    try:
        version = metadata.version("genai-prices")
        spec = importlib.util.find_spec("genai_prices.data")
    except (metadata.PackageNotFoundError, ModuleNotFoundError):
        return f"none ({install_hint('prices')})"
    today = datetime.date.today().isoformat()
    text = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    # Most entries have the date of a check or of a change; some dates are in the future.
    days = [day for day in re.findall(r"20\d\d-\d\d-\d\d", text) if day <= today]
    return f"genai-prices {version}" + (f", newest entry of {max(days)}" if days else "")


_PACKAGE_NAMES = {
    "gemini": "google",
    "gemini-legacy": "google",
    "xai": "x-ai",
    "moonshot": "moonshotai",
    "bedrock": "aws",
}


@functools.lru_cache(maxsize=256)
def _listed(name: str) -> Price | None:
    """Return the listed price of a model: of the highest hour, so that a cap on cost holds."""
    provider, _, model = name.partition(":")
    try:
        package = importlib.import_module("genai_prices.data_snapshot")
        _, entry = package.get_snapshot().find_provider_model(
            model, None, _PACKAGE_NAMES.get(provider, provider), None
        )
        day = datetime.datetime.now(datetime.UTC)
        prices = [
            _converted(entry.get_prices(day.replace(hour=hour, minute=45))) for hour in range(24)
        ]
    except (ImportError, LookupError, AttributeError, TypeError, ValueError):
        return None
    return max((p for p in prices if p), key=lambda p: (p.output, p.input), default=None)


_FIELDS = {
    "input": "input_mtok",
    "output": "output_mtok",
    "cached": "cache_read_mtok",
    "written": "cache_write_mtok",
    "written_long": "cache_write_1h_mtok",
}


def _converted(prices: Any) -> Price | None:
    """Convert the package's prices; higher prices of long prompts are dropped (`up_to`)."""
    listed = {name: getattr(prices, theirs, None) for name, theirs in _FIELDS.items()}
    values = {name: value for name, value in listed.items() if value is not None}
    starts = [
        tier.start for value in values.values() for tier in getattr(value, "tiers", None) or ()
    ]
    if not {"input", "output"} <= set(values):
        return None
    dollars = {name: float(getattr(value, "base", value)) for name, value in values.items()}
    return Price(**dollars, up_to=int(min(starts)) if starts else None)


def _prices_file() -> dict[str, Price]:
    """Return the prices in the file that ``LLMOPT_PRICES`` names, if it is set."""
    path = os.environ.get(PRICES_VARIABLE)
    try:
        data = read_json(read_text(path)) if path else {}
        return {str(name): Price(**price) for name, price in data.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise PriceError(
            f"{PRICES_VARIABLE}={path!r} cannot be used: {error}. Expected a JSON object such as "
            '{"openai:gpt-6-sol": {"input": 2.0, "cached": 0.2, "output": 10.0}}'
        ) from error
