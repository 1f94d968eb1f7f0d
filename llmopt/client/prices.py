"""What tokens cost: a small dated table of list prices, a package, and ways to override both.

Where the package ``genai-prices`` is installed, its newer and longer list goes before the table.
A price that is in neither is unknown, and an unknown price is ``None``, never 0. Providers
change prices without notice: where the sum matters, give your own, either ``price=Price(...)`` to a
client, `set_price`, or a JSON file named by the environment variable ``LLMOPT_PRICES``::

    {"openai:gpt-6-sol": {"input": 2.0, "cached": 0.2, "output": 10.0}}
"""

from __future__ import annotations

import datetime
import functools
import importlib
import importlib.metadata
import importlib.util
import math
import os
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from llmopt.errors import PriceError
from llmopt.files import read_json, read_text

PRICES_AS_OF = "2026-10"
"""Month in which the table was compiled."""

PRICES_VARIABLE = "LLMOPT_PRICES"
"""Environment variable that names a JSON file of prices that go before the table."""

_MILLION = 1e6


@dataclass(frozen=True)
class Price:
    """US dollars per million tokens.

    Attributes:
        input: Prompt tokens that came from no cache.
        output: Completion tokens, those of hidden reasoning included.
        cached: Prompt tokens read from a prefix cache; ``None`` means as `input`.
        written: Prompt tokens written to a prefix cache, where that is charged apart;
            ``None`` means as `input`.
        written_long: The same for a cache that is kept for an hour; ``None`` means as `written`.
        up_to: Longest prompt, in tokens, for which the price holds; beyond it the cost is
            unknown.
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
        """Return the cost of one call in US dollars.

        Args:
            prompt_tokens: All prompt tokens, cached and written ones included.
            completion_tokens: All completion tokens.
            cached_tokens: Those of `prompt_tokens` that were read from a cache.
            written: Those of `prompt_tokens` that were written to a cache.
            written_long: Those of `written` that are kept for an hour.

        Returns:
            Dollars, or ``None`` for a prompt longer than the price covers.
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


FREE = Price(0.0, 0.0)
"""Price of a model that runs on one's own machine."""


def _openai(input: float, cached: float, output: float, *, up_to: int | None = None) -> Price:
    return Price(input, output, cached, None, up_to)


def _writes(input: float, cached: float, output: float) -> Price:
    # From GPT-5.6 on, writing to the prefix cache is charged apart; 272,000 tokens is where
    # the long-context price begins.
    return Price(input, output, cached, 1.25 * input, 272_000)


def _claude(input: float, cached: float, output: float, *, up_to: int | None = None) -> Price:
    # A cache write costs a quarter more than plain input for five minutes, twice for an hour.
    return Price(input, output, cached, 1.25 * input, up_to, 2 * input)


# Standard tier, list prices, read from the providers' public price pages and compared with a
# list that others keep. Models whose price depends on the hour of the day or on a
# promotion are left out: unknown is better than wrong.
_TABLE: dict[str, Price] = {
    "openai:gpt-6.1-sol": _writes(2.00, 0.10, 10.00),
    "openai:gpt-6.1-terra": _writes(1.00, 0.05, 5.00),
    "openai:gpt-6-astra": _writes(10.00, 1.00, 50.00),
    "openai:gpt-6-sol": _writes(2.00, 0.20, 10.00),
    "openai:gpt-6-luna": _writes(0.10, 0.01, 0.50),
    "openai:gpt-5.6-sol": _writes(4.00, 0.40, 20.00),
    "openai:gpt-5.6-terra": _writes(2.00, 0.20, 12.00),
    "openai:gpt-5.6-luna": _writes(0.20, 0.02, 1.20),
    "openai:gpt-5.5": _openai(5.00, 0.50, 30.00, up_to=272_000),
    "openai:gpt-5.4": _openai(2.50, 0.25, 15.00, up_to=272_000),
    "openai:gpt-5.4-mini": _openai(0.75, 0.075, 4.50),
    "openai:gpt-5.4-nano": _openai(0.20, 0.02, 1.25),
    "openai:gpt-5.2": _openai(1.75, 0.175, 14.00),
    "openai:gpt-5.1": _openai(1.25, 0.125, 10.00),
    "openai:gpt-5": _openai(1.25, 0.125, 10.00),
    "openai:gpt-5-mini": _openai(0.25, 0.025, 2.00),
    "openai:gpt-5-nano": _openai(0.05, 0.005, 0.40),
    "openai:gpt-4.1": _openai(2.00, 0.50, 8.00),
    "openai:gpt-4.1-mini": _openai(0.40, 0.10, 1.60),
    "openai:gpt-4.1-nano": _openai(0.10, 0.025, 0.40),
    "openai:gpt-4o": _openai(2.50, 1.25, 10.00),
    "openai:gpt-4o-2024-05-13": _openai(5.00, 5.00, 15.00),
    "openai:gpt-4o-mini": _openai(0.15, 0.075, 0.60),
    "openai:o3": _openai(2.00, 0.50, 8.00),
    "openai:o4-mini": _openai(1.10, 0.275, 4.40),
    "gemini:gemini-4-argon": Price(2.00, 10.00, 0.10),
    "gemini:gemini-3.8-flash": Price(0.75, 3.75, 0.075),
    "gemini:gemini-3.7-flash": Price(0.75, 3.75, 0.075),
    "gemini:gemini-3.6-flash": Price(0.75, 3.75, 0.075),
    "gemini:gemini-3.5-flash": Price(1.50, 9.00, 0.15),
    "gemini:gemini-3.5-flash-lite": Price(0.30, 2.50, 0.03),
    "gemini:gemini-3.1-pro-preview": Price(2.00, 12.00, 0.20, None, 200_000),
    "gemini:gemini-3.1-flash-lite": Price(0.25, 1.50, 0.025),
    "gemini:gemini-2.5-pro": Price(1.25, 10.00, 0.125, None, 200_000),
    "gemini:gemini-2.5-flash": Price(0.30, 2.50, 0.03),
    "gemini:gemini-2.5-flash-lite": Price(0.10, 0.40, 0.01),
    "anthropic:claude-fable-5-1": _claude(10.00, 0.25, 50.00),
    "anthropic:claude-fable-5": _claude(10.00, 1.00, 50.00),
    "anthropic:claude-opus-5-5": _claude(4.00, 0.20, 20.00),
    "anthropic:claude-opus-5": _claude(5.00, 0.50, 25.00),
    "anthropic:claude-opus-4-8": _claude(5.00, 0.50, 25.00),
    "anthropic:claude-opus-4-7": _claude(5.00, 0.50, 25.00),
    "anthropic:claude-opus-4-6": _claude(5.00, 0.50, 25.00),
    "anthropic:claude-opus-4-5": _claude(5.00, 0.50, 25.00),
    "anthropic:claude-sonnet-5-5": _claude(2.00, 0.10, 10.00),
    "anthropic:claude-sonnet-5": _claude(2.00, 0.20, 10.00),
    "anthropic:claude-sonnet-4-6": _claude(3.00, 0.30, 15.00),
    "anthropic:claude-sonnet-4-5": _claude(3.00, 0.30, 15.00, up_to=200_000),
    "anthropic:claude-haiku-5-5": _claude(0.10, 0.01, 0.50, up_to=100_000),
    "anthropic:claude-haiku-4-5": _claude(1.00, 0.10, 5.00),
}

_overrides: dict[str, Price] = {}
# A snapshot costs what its model costs: gpt-4o-2024-08-06, claude-haiku-4-5-20251001,
# gemini-2.5-pro-002, claude-sonnet-4-5-latest.
_SNAPSHOT = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{8}|00\d|latest)$")


def set_price(name: str, price: Price | None) -> None:
    """Set what a model costs, in this process, before the table and the prices file.

    Args:
        name: Model string, such as ``"openai:gpt-6-sol"`` or ``"deepseek:deepseek-flash"``.
        price: Its price; ``None`` takes an earlier `set_price` back.
    """
    if price is None:
        _overrides.pop(name, None)
    else:
        _overrides[name] = price


def get_price(name: str, *, listed: bool = True) -> Price | None:
    """Return what a model costs.

    Args:
        name: Model string, such as ``"openai:gpt-6-sol"``. A dated snapshot
            (``-2026-09-22``) costs what its model does unless it has a line of its own.
        listed: Whether the list prices count, or the user's own alone.

    Returns:
        The price, or ``None`` if it is not known.

    Raises:
        PriceError: The file that ``LLMOPT_PRICES`` names cannot be read.
    """
    own = {**_prices_file(), **_overrides}
    names = (name, _SNAPSHOT.sub("", name))
    found = next((own[n] for n in names if n in own), None)
    if found is not None or not listed:
        return found
    return _from_package(name) or next((_TABLE[n] for n in names if n in _TABLE), None)


def price_source(name: str) -> str:
    """Return where `get_price` has a list price from, and of when it is."""
    return price_list(package=_from_package(name) is not None)


def price_list(*, package: bool = True) -> str:
    """Return the list that prices are from first of all, and of when it is.

    Args:
        package: Whether the package ``genai-prices`` counts, if it is installed.
    """
    found = _package_version() if package else None
    return found or f"llmopt's table of {PRICES_AS_OF}"


@functools.cache
def _package_version() -> str | None:
    """Name the package of prices, with the newest day that its list holds."""
    try:
        version = importlib.metadata.version("genai-prices")
        found = importlib.util.find_spec("genai_prices.data")
    except (importlib.metadata.PackageNotFoundError, ModuleNotFoundError):
        return None
    today = datetime.date.today().isoformat()
    text = Path(found.origin).read_text(encoding="utf-8") if found and found.origin else ""
    # It says of most prices when they were checked or began to hold; some are yet to come.
    days = [day for day in re.findall(r"20\d\d-\d\d-\d\d", text) if day <= today]
    return f"genai-prices {version}" + (f", newest entry of {max(days)}" if days else "")


_PACKAGE_NAMES = {
    "gemini": "google",
    "gemini-legacy": "google",
    "xai": "x-ai",
    "moonshot": "moonshotai",
    "bedrock": "aws",
    "vertex": "google",
}


@functools.lru_cache(maxsize=256)
def _from_package(name: str) -> Price | None:
    """Price by the package ``genai-prices``, if it is there and knows the model.

    Where it depends on the hour, the dearest: a cap on cost should hold.
    """
    provider, _, model = name.partition(":")
    try:
        package = importlib.import_module("genai_prices.data_snapshot")
        _, found = package.get_snapshot().find_provider_model(
            model, None, _PACKAGE_NAMES.get(provider, provider), None
        )
        day = datetime.datetime.now(datetime.UTC)
        prices = [
            _converted(found.get_prices(day.replace(hour=hour, minute=45))) for hour in range(24)
        ]
    except (ImportError, LookupError, AttributeError, TypeError, ValueError):
        return None
    return max((p for p in prices if p), key=lambda p: (p.output, p.input), default=None)


def _converted(prices: Any) -> Price | None:
    """Turn the package's prices into ours; those of long prompts are left out."""
    found: dict[str, float] = {}
    up_to = None
    for ours, theirs in (
        ("input", "input_mtok"),
        ("output", "output_mtok"),
        ("cached", "cache_read_mtok"),
        ("written", "cache_write_mtok"),
        ("written_long", "cache_write_1h_mtok"),
    ):
        value = getattr(prices, theirs, None)
        if value is None:
            continue
        if getattr(value, "tiers", None):
            up_to = min(up_to or math.inf, *(tier.start for tier in value.tiers))
        found[ours] = float(getattr(value, "base", value))
    if not {"input", "output"} <= set(found):
        return None
    return Price(**found, up_to=None if up_to is None else int(up_to))


def known_models() -> tuple[str, ...]:
    """Return the model strings in the table."""
    return tuple(_TABLE)


def _prices_file() -> dict[str, Price]:
    """Prices in the file that the environment names, if it names one."""
    path = os.environ.get(PRICES_VARIABLE)
    if not path:
        return {}
    try:
        data = read_json(read_text(path))
        return {str(name): Price(**price) for name, price in data.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise PriceError(
            f"{PRICES_VARIABLE}={path!r} cannot be used: {error}. Expected a JSON object such as "
            '{"openai:gpt-6-sol": {"input": 2.0, "cached": 0.2, "output": 10.0}}'
        ) from error
