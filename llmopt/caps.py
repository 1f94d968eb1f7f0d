"""Caps on requests, tokens and cost of a search."""

from __future__ import annotations

import math
from dataclasses import dataclass

from llmopt.errors import BudgetExceededError
from llmopt.history import Usage
from llmopt.util.arguments import whole_number

_REMEDY = "raise the cap to continue"


@dataclass(frozen=True)
class Limits:
    """Caps of a search; ``None`` means no cap.

    Each cap is checked before each call to the provider. Against `max_cost` the next call counts
    with the most that it can cost, so that the sum of all calls stays below the cap, and so does a
    call that was sent and never ended, for example because the process was killed.

    Attributes:
        max_requests: Calls to the model, including failed ones.
        max_tokens: Prompt and completion tokens together. The last call may exceed it.
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

    def left(self, spent: Usage) -> dict[str, float]:
        """Return the remaining budget under each cap that is set."""
        cost = math.inf if spent.cost is None else spent.cost
        used = {
            "requests": (self.max_requests, spent.requests),
            "tokens": (self.max_tokens, spent.prompt_tokens + spent.completion_tokens),
            "cost": (self.max_cost, cost),
        }
        return {of: max(0, cap - amount) for of, (cap, amount) in used.items() if cap is not None}

    def check(self, spent: Usage, most: float | None = None) -> None:
        """Raise `BudgetExceededError` if the next call may not be sent.

        Args:
            spent: All calls so far; those in doubt with the most that they can cost.
            most: Dollars that the next call can cost at most; ``None`` if not known.
        """
        if self.max_requests is not None and spent.requests >= self.max_requests:
            said = f"{spent.requests} requests were sent and max_requests={self.max_requests}"
            raise _reached("max_requests", self.max_requests, spent.requests + 1, said)
        tokens = spent.prompt_tokens + spent.completion_tokens
        if self.max_tokens is not None and tokens >= self.max_tokens:
            said = f"{tokens} tokens were used and max_tokens={self.max_tokens}"
            raise _reached("max_tokens", self.max_tokens, tokens + 1, said)
        if self.max_cost is not None:
            self._check_cost(self.max_cost, spent, most)

    def _check_cost(self, cap: float, spent: Usage, most: float | None) -> None:
        if spent.unpriced > self.max_unpriced:
            raise BudgetExceededError(
                f"max_cost={cap} cannot be kept: {spent.unpriced} of the requests were "
                "abandoned, and may be charged at an unknown cost. Check the provider's bill; then "
                f"assign limits with max_unpriced={spent.unpriced} (and a max_cost that leaves "
                "room for it), or cap requests or tokens instead (max_cost=inf, or on the command "
                "line --max-cost inf --max-tokens N). A larger timeout= of the client may prevent "
                "this"
            )
        if spent.cost is None:
            raise BudgetExceededError(
                f"max_cost={cap} cannot be kept: the model's price is not known. "
                "Give the client its prices, or cap requests or tokens instead"
            )
        if spent.cost >= cap and (cap or most != 0):  # a free model may be asked
            said = f"${spent.cost:.4f} was spent and max_cost={cap}"
            raise _reached("max_cost", cap, spent.cost + (most or 0.0), said)
        if most is not None and spent.cost + most > cap:
            said = f"${spent.cost:.4f} was spent, the next request can cost up to ${most:.4f}, and "
            instead = ", or lower what an answer can cost (max_tokens= of the prompt)"
            raise _reached("max_cost", cap, spent.cost + most, f"{said}max_cost={cap}", instead)


def _reached(
    name: str, cap: float, needed: float, said: str, instead: str = ""
) -> BudgetExceededError:
    """Return the error for a cap that is reached; the next call needs one of `needed`."""
    error = BudgetExceededError(f"{said}: {_REMEDY}{instead}")
    raised = 2 * cap if 2 * cap >= needed else 2 * needed
    error.raised = (name, raised if isinstance(raised, int) else float(f"{raised:.3g}"))
    return error


NO_LIMITS = Limits()


def checked(limits: object) -> Limits:
    """Return caps, or raise `TypeError` for anything else."""
    if not isinstance(limits, Limits):
        raise TypeError(f"limits={limits!r}: expected caps by name, such as Limits(max_cost=2.0)")
    return limits
