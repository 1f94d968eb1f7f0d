"""How a model is asked: the options that every search has, in one place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, TypedDict

from llmopt.search.limits import Limits
from llmopt.util.arguments import (
    MOST_AT_ONCE,
    check_names,
    describe,
    number,
    one_of,
    whole_number,
    whole_or_auto,
)

_HOUR = 3600  # seconds

MOST_IN_ANSWER = 20
"""Points that one answer may be asked for: its hypotheses are to be thought through."""


class AskArguments(TypedDict, total=False):
    """The fields of `AskOptions`, for signatures: ``**options: Unpack[AskArguments]``."""

    description: str | Callable[..., Any] | None
    total: int | None
    attempts: int
    out_of_range: Literal["clip", "reject"]
    on_error: Literal["raise", "fallback"]
    noisy: bool
    may_stop: bool | None
    points: int | Literal["auto"]
    compute: bool | Literal["auto"]
    compute_seconds: float
    compute_blocks: int
    compute_total: float
    compute_workers: int | None
    max_requests: int | None
    max_tokens: int | None
    max_cost: float | None


def option(default: Any, stored: Literal["always", "rarely"], **rules: Any) -> Any:
    """Return the field of an option that the file of a search holds.

    One that is stored rarely is left out of it where it says nothing. `rules`: whether a stored
    search may go on with another value (`changes`); the values that there are (`choices`), or the
    least and the largest whole number (`whole`), beside ``None`` or ``"auto"`` as the default.
    """
    return dataclasses.field(default=default, metadata={"stored": stored, **rules})


@dataclass(frozen=True, kw_only=True)
class AskOptions:
    """How a model is asked, in `LLMOptimizer`, `minimize`, both adapters and `PolicySearch`.

    Attributes:
        description: The task in words, for prompts that use it; or the objective function, whose
            source and docstring are then sent to the model's provider. ``None`` for none.
        total: Proposals planned in all, for prompts that say "iteration k of N".
        attempts: Requests with an unusable sample for one batch of points, before points sampled
            at random take over. The request after one tells a chat model what was wrong with
            its answer. Requests whose samples are all usable are not counted.
        out_of_range: ``"clip"`` moves a value outside its range to the bound, and a point that
            breaks a constraint to one that keeps it; ``"reject"`` asks again.
        on_error: ``"raise"`` a model's failure and a reached cap, or ``"fallback"`` to a random
            point, loudly and counted. A missing or refused key, model or package is raised
            always. After an error the same call can be made again, and nothing is lost.
        noisy: Whether measuring a point again gives another reward. Then the model may propose
            a point again, `history` shows the mean of its rewards, and `best` is the point with
            the best mean less its standard error, so that a lucky value is not taken for good.
        may_stop: Whether the model may end the search where it expects no further gain (the
            prompt ``"words"`` offers it): `ask` then raises `SearchStopped`. ``None`` for yes in
            a whole search (`minimize`, `maximize`, `PolicySearch`), and no where you ask and tell.
        points: Most points of one answer. The model decides how many it gives (a design needs
            one, a scan of a parameter three); each is one proposal, with a hypothesis of its own,
            and the next asks take them without a request. ``"auto"`` for 4 of a chat model with
            the prompt ``"words"``, which alone asks for several, and else 1; 1, too, where
            `total` is less than the number of parameters (no points of one answer learn from
            each other) and `max_requests` allows it.
        compute: Whether a model may answer the prompt ``"words"`` with a block of Python in place
            of a point. It costs a request and no evaluation, runs confined
            (`llmopt.compute.blocks`; Linux only), and the next request shows what it printed.
            ``"auto"`` for chat models where code can be confined; ``True`` raises where it cannot.
        compute_seconds: Seconds that a block may take, at most 3,600.
        compute_blocks: Blocks that may follow each other before a point is proposed. One that
            fails does not count, but no more may fail than may succeed.
        compute_total: Seconds that all blocks of a search may take together.
        compute_workers: Processes for what blocks compute in parallel; ``None`` for one on each
            core, 0 for none.
        max_requests: Cap on calls to the model, failed ones included. With a `partner` the search
            continues once it is reached: the model proposes first, and the partner the rest.
        max_tokens: Cap on prompt and completion tokens together.
        max_cost: Cap in US dollars; needs a model whose price is known.

    Raises:
        ValueError: An option has a value that it cannot have.
    """

    description: str = option("", "always", changes=True)
    total: int | None = option(None, "always", changes=True, whole=(1,))
    attempts: int = option(3, "always", changes=True, whole=(1, MOST_AT_ONCE))
    out_of_range: Literal["clip", "reject"] = option(
        "clip", "always", changes=True, choices=("clip", "reject")
    )
    on_error: Literal["raise", "fallback"] = option(
        "raise", "rarely", changes=True, choices=("raise", "fallback")
    )
    noisy: bool = option(False, "always", choices=(True, False))
    may_stop: bool | None = option(None, "rarely", changes=True, choices=(True, False, None))
    points: int | Literal["auto"] = option(
        "auto", "rarely", changes=True, whole=(1, MOST_IN_ANSWER)
    )
    compute: bool | Literal["auto"] = "auto"  # no file turns it on
    compute_seconds: float = 120.0
    compute_blocks: int = 20
    compute_total: float = 14_400.0
    compute_workers: int | None = None
    max_requests: int | None = option(None, "rarely", changes=True)
    max_tokens: int | None = option(None, "rarely", changes=True)
    max_cost: float | None = option(None, "rarely", changes=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "description", describe(self.description))
        one_of("compute", self.compute, (True, False, "auto"))
        if number("compute_seconds", self.compute_seconds, 1) > _HOUR:
            raise ValueError(
                f"compute_seconds={self.compute_seconds}: expected at most {_HOUR}; let the model "
                "submit a job for more"
            )
        number("compute_total", self.compute_total, 1)
        whole_number("compute_blocks", self.compute_blocks, 1, 1000)
        if self.compute_workers is not None:
            whole_number("compute_workers", self.compute_workers, 0, 64)
        for each in dataclasses.fields(self):
            name, value = each.name, getattr(self, each.name)
            if "choices" in each.metadata:
                one_of(name, value, each.metadata["choices"])
            if "whole" in each.metadata and (value is not None or each.default is not None):
                check = whole_or_auto if each.default == "auto" else whole_number
                object.__setattr__(self, name, check(name, value, *each.metadata["whole"]))
        _ = self.limits

    @property
    def limits(self) -> Limits:
        """The caps."""
        return Limits(self.max_requests, self.max_tokens, self.max_cost)

    @classmethod
    def of(cls, call: str, given: Mapping[str, Any]) -> Self:
        """Return the options of a call.

        Args:
            call: The function's name, for messages.
            given: The arguments that it was given by name.

        Raises:
            TypeError: There is no such option; the message names the nearest ones.
        """
        check_names(call, given, cls.names())
        return cls(**given)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all options."""
        return tuple(field.name for field in dataclasses.fields(cls))
