"""The options of a search by name, in one place: how a model is asked, and the others."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypedDict, get_args

from llmopt.client.base import Client
from llmopt.search.limits import Limits
from llmopt.trackers.callback import Callback, check_callbacks
from llmopt.util.arguments import (
    MOST_AT_ONCE,
    check_names,
    describe,
    number,
    one_of,
    whole_number,
    whole_or_auto,
)
from llmopt.util.text import short

_HOUR = 3600  # seconds

MOST_IN_ANSWER = 20
"""Points that one answer may be asked for: its hypotheses are to be thought through."""


Partner = Literal["cma", "network"]
"""A partner by name; `llmopt.adapters.optuna` takes samplers, too."""

Partners = Partner | Sequence[Partner] | None
"""What ``partner=`` may be."""


class Composed(str):
    """A description that the library wrote: nobody misses it where a prompt does not read it."""


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


class SearchArguments(AskArguments, total=False):
    """The fields of `SearchOptions`, for signatures."""

    model: Client | str | None
    warmup: int | Literal["auto"] | Sequence[Any]
    start: Mapping[str, Any] | Sequence[Any]
    constraints: str | Iterable[str]
    batch_size: int
    partner: Partners
    seeded: bool
    task: Mapping[str, Any] | None
    import_trials: Any
    storage: str | os.PathLike[str] | None
    durable: bool
    callbacks: Sequence[Callback]


@dataclass(frozen=True, kw_only=True)
class SearchOptions(AskOptions):
    """The options of a search by name, beside those of `AskOptions`.

    Attributes:
        model: Another name of `client`.
        warmup: Points before the model is first asked: how many to draw, or the points
            themselves. Points recorded without `ask` count towards the number. ``"auto"`` for
            none where the prompt ``"words"`` has a description to design by, 1 where it has none,
            and for other prompts 10, or 5 to 10 in a search of fewer than 100 points (`total`).
        start: Points to begin with, before the warm-up: a list of them, or a mapping from words
            for the prompt (``"the current production setting"``) to the point. They
            count towards `warmup`; see also `LLMOptimizer.enqueue`.
        constraints: Linear inequalities over the parameters, such as ``"2 * a + b <= 40"``,
            beside those of the space. The prompt states them, no point that breaks one is
            proposed, and a recorded one ranks after all feasible ones; see `Space`.
        batch_size: Points asked of the model at a time. Above 1, one request fills several
            calls of ``ask()``, which is cheaper, and the later ones know less.
        partner: Who proposes beside the model: ``"cma"`` for CMA-ES (spaces of numbers; needs the
            package `cma`), ``"network"`` for the small network, or a list of them. Each learns
            from the others' points, and the one with better recent points proposes more of the
            next. With `max_requests` the model proposes first, and once its requests are spent the
            partner proposes all points. For one objective.
        seeded: Whether each evaluation takes a seed: a function is called with ``seed=``, and
            `LLMOptimizer.seed_of` has it for your own loop. It implies `noisy`: a point that
            is evaluated again takes another seed, the k-th evaluation of every point the same.
        task: What the rewards are of, as JSON values (``{"data": "mnist", "seeds": [1, 2]}``). It
            is stored, and a stored run resumes only with the same: rewards of another
            objective cannot be compared.
        import_trials: Trials of an earlier search, to begin with; see
            `LLMOptimizer.import_trials`. A stored search takes each of them once.
        storage: JSON Lines file to append to. If it already holds a run of the same space,
            directions and task, that run resumes. The options of requests may change:
            the model, the prompt, the description, the caps.
        durable: Whether each line of `storage` is forced to the disk, which takes some
            milliseconds. Without it a power cut may lose the last lines; the end of the process
            loses none.
        callbacks: Whom to tell what happens: see `llmopt.trackers`. Copies have none.

    Raises:
        ValueError: An option has a value that it cannot have.
        TypeError: `callbacks` holds something else.
    """

    model: Client | str | None = None
    warmup: int | Literal["auto"] | Sequence[Any] = option("auto", "always")
    start: Mapping[str, Any] | Sequence[Any] = option((), "rarely")
    constraints: str | Iterable[str] = ()
    batch_size: int = option(1, "always", changes=True, whole=(1, MOST_AT_ONCE))
    partner: Partners = option(None, "always")  # noqa: RUF009
    seeded: bool = option(False, "rarely", choices=(True, False))
    task: Mapping[str, Any] | None = option(None, "always")
    import_trials: Any = None
    storage: str | os.PathLike[str] | None = None
    durable: bool = True
    callbacks: Sequence[Callback] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "noisy", self.noisy or self.seeded)
        if isinstance(self.warmup, (str, Mapping)) and self.warmup != "auto":
            raise ValueError(
                f"warmup={self.warmup!r}: expected a whole number, 'auto', or a sequence of points"
            )
        if not isinstance(self.warmup, Iterable):
            object.__setattr__(self, "warmup", whole_or_auto("warmup", self.warmup, 0))
        object.__setattr__(self, "partner", checked_partners(self.partner))
        object.__setattr__(self, "callbacks", check_callbacks(self.callbacks))
        if not isinstance(self.storage, (str, os.PathLike, type(None))):
            raise TypeError(f"storage={short(self.storage)}: expected the path of a file")
        one_of("durable", self.durable, (True, False))
        object.__setattr__(self, "task", _as_json("task", self.task))

    @property
    def asking(self) -> dict[str, Any]:
        """The options of `AskOptions` by name."""
        return {name: getattr(self, name) for name in AskOptions.names()}


def stored_names() -> tuple[str, ...]:
    """Return the options that a file may hold: none names a file or a model, and none runs."""
    return tuple(field.name for field in dataclasses.fields(SearchOptions) if field.metadata)


def options_to_store(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those options of a search that its file holds."""
    kept = {}
    for each in dataclasses.fields(SearchOptions):
        stored, value = each.metadata.get("stored"), values[each.name]
        rare = value in (None, False, [], each.default)  # it says nothing
        if stored == "always" or (stored and not rare):
            kept[each.name] = value
    return kept


def _as_json(name: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a mapping in the form in which a file gives it back."""
    try:
        if value is not None and not isinstance(value, Mapping):
            raise TypeError("not a mapping")
        found: dict[str, Any] = json.loads(json.dumps(dict(value or {}), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{name}={short(value)}: expected a mapping of JSON values ({error})"
        ) from error
    return found


def partners_of(partner: Any) -> tuple[Any, ...]:
    """Return what was given as ``partner=`` as a tuple."""
    if partner is None:
        return ()
    several = isinstance(partner, Iterable) and not isinstance(partner, str)
    return tuple(partner) if several else (partner,)


def checked_partners(partner: Any) -> Any:
    """Return names of partners as a file keeps them: a list where there are several."""
    names = partners_of(partner)
    for name in names:
        if name not in get_args(Partner):
            raise unknown_partner(name)
    return list(names) if len(names) > 1 else names[0] if names else None


def unknown_partner(partner: Any) -> ValueError:
    """Return the error about a partner that there is not."""
    return ValueError(f"partner={partner!r}: expected 'cma', 'network', a list of them, or None")
