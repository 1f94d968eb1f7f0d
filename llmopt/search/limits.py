"""Caps on requests, tokens and cost of a search."""

from __future__ import annotations

import math
from dataclasses import dataclass

from llmopt.errors import BudgetExceededError
from llmopt.history import Usage
from llmopt.util.arguments import whole_number

_REMEDY = "raise the cap (`limits`) to go on; every trial and every paid reply is kept"


@dataclass(frozen=True)
class Limits:
    """Caps of a search; ``None`` means no cap.

    Each cap is checked before each call, so simultaneous calls may exceed it. If a provider does
    not report the usage of a call, a high estimate counts.

    Attributes:
        max_requests: Calls to the model, including failed ones.
        max_tokens: Prompt and completion tokens together.
        max_cost: US dollars.
        max_unpriced: Abandoned calls of unknown cost that `max_cost` tolerates.
    """

    max_requests: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    max_unpriced: int = 0

    def __post_init__(self) -> None:
        for name in ("max_requests", "max_tokens", "max_unpriced"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 0)
        cost = self.max_cost
        if cost is not None and not (isinstance(cost, (int, float)) and cost >= 0):
            raise ValueError(f"max_cost={cost!r}: expected US dollars, 0 or more")
        if cost == math.inf:  # which no file of JSON holds
            object.__setattr__(self, "max_cost", None)

    def left(self, usage: Usage) -> dict[str, float]:
        """Return the remaining budget under each cap that is set."""
        cost = math.inf if usage.cost is None else usage.cost
        spent = {
            "requests": (self.max_requests, usage.requests),
            "tokens": (self.max_tokens, usage.prompt_tokens + usage.completion_tokens),
            "cost": (self.max_cost, cost),
        }
        return {of: max(0, cap - used) for of, (cap, used) in spent.items() if cap is not None}

    def check(self, usage: Usage) -> None:
        """Raise `BudgetExceededError` if no further request may be sent."""
        if self.max_requests is not None and usage.requests >= self.max_requests:
            raise BudgetExceededError(
                f"{usage.requests} requests were sent and max_requests={self.max_requests}: "
                + _REMEDY
            )
        tokens = usage.prompt_tokens + usage.completion_tokens
        if self.max_tokens is not None and tokens >= self.max_tokens:
            raise BudgetExceededError(
                f"{tokens} tokens were used and max_tokens={self.max_tokens}: {_REMEDY}"
            )
        self.check_cost(usage)

    def check_cost(self, usage: Usage) -> None:
        """Raise an error if the cost cap is reached, or cannot be checked; see `check`."""
        if self.max_cost is None:
            return
        if usage.unpriced > self.max_unpriced:
            raise BudgetExceededError(
                f"max_cost={self.max_cost} cannot be kept: {usage.unpriced} of the requests were "
                "abandoned, and may be charged at an unknown cost. "
                "Check the provider's bill; then assign limits with "
                f"max_unpriced={usage.unpriced} (and a max_cost that leaves room for it), or cap "
                "requests or tokens instead (max_cost=inf, or on the command line --max-cost inf "
                "--max-tokens N). A larger timeout= of the client may prevent this; "
                "every trial and every paid reply is kept"
            )
        if usage.cost is None:
            raise BudgetExceededError(
                f"max_cost={self.max_cost} cannot be kept: the model's price is not known. "
                "Give the client its prices, or cap requests or tokens instead"
            )
        if usage.cost >= self.max_cost:
            raise BudgetExceededError(
                f"${usage.cost:.4f} was spent and max_cost={self.max_cost}: {_REMEDY}"
            )
