"""The options of a search by name, in one place: how a model is asked, and the others."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypedDict

from llmopt.caps import Limits
from llmopt.client.base import Client
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
"""Maximum points of one answer, so that a model thinks each hypothesis through."""


Partners = str | Sequence[str] | None
"""What ``partner=`` may be: names of `llmopt.partners`."""


class Composed(str):
    """A description that the library wrote: no warning is due if a prompt does not read it."""


class ComputeArguments(TypedDict, total=False):
    """The fields of `AskOptions` on blocks of Python."""

    compute: bool | Literal["auto"]
    compute_seconds: float
    compute_blocks: int
    compute_total: float
    compute_workers: int | None
    compute_packages: Sequence[str]


class AskArguments(ComputeArguments, total=False):
    """The fields of `AskOptions`, for signatures: ``**options: Unpack[AskArguments]``."""

    description: str | Callable[..., Any] | None
    compute_objective: Callable[..., Any] | None
    total: int | None
    attempts: int
    out_of_range: Literal["auto", "clip", "reject"]
    on_error: Literal["raise", "fallback"]
    max_fallbacks: int | None
    noisy: bool
    may_stop: bool | None
    best_known: float | None
    points: int | Literal["auto"]
    max_requests: int | None
    max_tokens: int | None
    max_cost: float | None


def option(default: Any, stored: Literal["always", "rarely"], **rules: Any) -> Any:
    """Return the field of an option that the file of a search holds.

    A file omits an option that is stored ``"rarely"`` if it has its default. `rules`: whether a
    resumed search may change the value (`changes`); the valid values (`choices`), or the minimum
    and maximum of a whole number (`whole`), beside a default of ``None`` or ``"auto"``.
    """
    return dataclasses.field(default=default, metadata={"stored": stored, **rules})


@dataclass(frozen=True, kw_only=True)
class AskOptions:
    """Request options of `LLMOptimizer`, `minimize`, both adapters and `PolicySearch`.

    Attributes:
        description: The task in words, for prompts that use it; or the objective function, whose
            source and docstring are then sent to the model's provider. ``None`` for none.
        total: Total number of planned proposals, for prompts that say "iteration k of N". Imported
            trials are none of them.
        attempts: Maximum number of requests with unusable samples per batch; random points then
            fill the batch. After such a request, a chat model reads what was wrong with its
            answer.
        out_of_range: ``"clip"`` moves a value outside its range to the bound; ``"reject"`` asks
            again; ``"auto"`` asks again under the prompt ``"words"`` and clips under the others.
        on_error: After a failure of the model or at a cap, ``"raise"`` an error, or ``"fallback"``
            to a random point, with a warning, and count
            it. A missing or refused key, model or package, and a server that cannot be reached
            before the first request, always raise. After an error you can repeat the call, and
            nothing is lost.
        max_fallbacks: Maximum number of random points in a row for a model that fails, or whose
            answers cannot be used: the next failure raises an error, whatever `on_error` says, and
            the call, repeated, asks again. A model whose first answers could all not be read raises
            it at once, and so does one that gives the same unreadable answer three times. ``None``
            for no limit; 0 permits no random point. At a cap there is no limit.
        noisy: Whether repeated evaluations of a point give different rewards. If so, the model may
            propose a point again, `history` shows the mean of its rewards, and `best` is the point
            whose mean, made worse by one standard error, is best: one lucky value does not win.
        may_stop: Whether the model may end the search when it expects no further gain (with the
            prompt ``"words"``): `ask` then raises `SearchStopped`. ``None`` means yes in a whole
            search (`minimize`, `maximize`, `PolicySearch`), and no in your own loop.
        best_known: The best value of f that you know of, such as a published one, which the prompt
            ``"words"`` states.
        points: Maximum points of one answer. The model decides how many it gives (a design needs
            one, a scan of a parameter three); each is a proposal with its own hypothesis, and later
            asks return them without a request. ``"auto"`` means 4 for a chat model with the prompt
            ``"words"``, the only one that asks for several, and otherwise 1. It also means 1 if
            `total` is less than the number of parameters and `max_requests` allows it, because
            points of one answer do not learn from each other.
        compute: Whether a model may answer the prompt ``"words"`` with a block of Python instead of
            a point. A block costs a request but no evaluation, and runs in a sandbox
            (`llmopt.lab.blocks`; Linux only); the next request shows what it printed.
            ``"auto"`` means yes for chat models if the sandbox is available; ``True`` raises an
            error if not.
        compute_seconds: Maximum seconds of one block, at most 3,600, without the time in which it
            waits for a job.
        compute_blocks: Maximum number of successful blocks, and also of failed blocks, before a
            point is proposed.
        compute_total: Maximum seconds of all blocks of a search.
        compute_workers: Number of processes for parallel work in blocks; ``None`` means one per
            core, 0 none.
        compute_packages: Further packages that blocks may import, such as ``("casadi", "mujoco")``.
            They are imported before the sandbox closes, so you have to trust them.
        compute_objective: A function that blocks may call as ``objective``, such as the objective
            itself: the model then evaluates it outside the budget of the search, as often as its
            seconds allow. It runs in the sandbox, without files and network.
        max_requests: Cap on calls to the model, including failed ones. With a `partner` the model
            proposes first, and after the cap the partner proposes the rest.
        max_tokens: Cap on prompt and completion tokens together.
        max_cost: Cap in US dollars; needs a model whose price is known.

    Raises:
        ValueError: An option has an invalid value.
    """

    description: str = option("", "always", changes=True)
    total: int | None = option(None, "always", changes=True, whole=(1,))
    attempts: int = option(3, "always", changes=True, whole=(1, MOST_AT_ONCE))
    out_of_range: Literal["auto", "clip", "reject"] = option(
        "auto", "always", changes=True, choices=("auto", "clip", "reject")
    )
    on_error: Literal["raise", "fallback"] = option(
        "raise", "rarely", changes=True, choices=("raise", "fallback")
    )
    max_fallbacks: int | None = option(5, "rarely", changes=True)
    noisy: bool = option(False, "always", choices=(True, False))
    may_stop: bool | None = option(None, "rarely", changes=True, choices=(True, False, None))
    best_known: float | None = option(None, "rarely", changes=True)
    points: int | Literal["auto"] = option(
        "auto", "rarely", changes=True, whole=(1, MOST_IN_ANSWER)
    )
    compute: bool | Literal["auto"] = "auto"  # a description may say it, no storage
    compute_seconds: float = 120.0
    compute_blocks: int = 20
    compute_total: float = 14_400.0
    compute_workers: int | None = None
    compute_packages: Sequence[str] = ()
    compute_objective: Callable[..., Any] | None = None
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
        if self.best_known is not None:
            number("best_known", self.best_known, -math.inf)
        whole_number("compute_blocks", self.compute_blocks, 1, 1000)
        if self.max_fallbacks is not None:
            whole_number("max_fallbacks", self.max_fallbacks, 0)
        if self.compute_workers is not None:
            whole_number("compute_workers", self.compute_workers, 0, 64)
        if isinstance(self.compute_packages, str):
            raise TypeError(
                f"compute_packages={self.compute_packages!r} is a text; expected names in a "
                f"sequence: compute_packages=({self.compute_packages!r},)"
            )
        object.__setattr__(self, "compute_packages", tuple(self.compute_packages))
        if not (self.compute_objective is None or callable(self.compute_objective)):
            raise TypeError(
                f"compute_objective={self.compute_objective!r:.50}: expected a function that "
                "blocks may call, such as the objective, or None"
            )
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
            given: The keyword arguments of the call.

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
    candidates: Any
    batch_size: int
    partner: Partners
    seeded: bool
    task: Mapping[str, Any] | None
    import_trials: Any
    storage: str | os.PathLike[str] | None
    durable: bool
    callbacks: Sequence[Callable[..., Any]]


@dataclass(frozen=True, kw_only=True)
class SearchOptions(AskOptions):
    """The options of a search, in addition to those of `AskOptions`.

    Attributes:
        model: Alias of `client`.
        warmup: Points before the first request: the number to sample, or the points themselves.
            Points recorded without `ask` count towards the number. ``"auto"`` means 0 for the
            prompt ``"words"`` with a description, 1 without a description, and for other prompts
            10, or 5 to 10 in a search of fewer than 100 points (`total`).
        start: Points to begin with, before the warm-up: a list of them, or a mapping from words
            for the prompt (``"the current production setting"``) to the point. They
            count towards `warmup`; see also `LLMOptimizer.enqueue`.
        constraints: Linear inequalities over the parameters, such as ``"2 * a + b <= 40"``, in
            addition to those of the space. The prompt states them, only points that satisfy them
            are proposed, and a recorded point that violates one ranks after all feasible ones; see
            `Space`.
        candidates: Table of the only points that exist: a list of dicts, a DataFrame or the path of
            a CSV file. Each proposal is a row, which is proposed once (unless `noisy`); after the
            last one `ask` raises `SearchStopped`. Parameters without a column stay free. Omit
            `space` if all columns are parameters; see `Space.among`.
        batch_size: Points per request. Above 1, one request serves several calls of ``ask()``: this
            is cheaper, but the later points do not know the results of the earlier ones.
        partner: Numeric method that proposes some of the points: ``"cma"`` for CMA-ES (numbers
            only; needs the package `cma`), ``"network"`` for the small network, or a list of them.
            The model and its partners take turns, one to one, and each reads all results. With
            `max_requests` the model proposes first, and then the partner proposes all points. Only
            for one objective.
        seeded: Whether each evaluation gets a seed: a function is called with ``seed=``; in your
            own loop, `LLMOptimizer.seed_of` returns it. It implies `noisy`: each repeat of a point
            has another seed, and the k-th evaluations of all points have the same seed.
        task: Identifies the objective, as JSON values (``{"data": "mnist", "seeds": [1, 2]}``). It
            is stored, and a run resumes only with the same `task`, because rewards of another
            objective cannot be compared.
        import_trials: Trials of an earlier search to start from; see `LLMOptimizer.import_trials`.
            A stored search imports each of them once.
        storage: JSON Lines file to append to. If it already holds a run of the same space,
            directions and task, that run resumes. The options of requests may change:
            the model, the prompt, the description, the caps; and so may the rows of `candidates`.
        durable: Whether to fsync each line of `storage`, which takes a few
            milliseconds. Otherwise a power cut may lose the last lines; a killed process loses
            none.
        callbacks: Callbacks and trackers; see `llmopt.trackers`. Copies of the optimizer have none.

    Raises:
        ValueError: An option has an invalid value.
        TypeError: `callbacks` holds something else.
    """

    model: Client | str | None = None
    warmup: int | Literal["auto"] | Sequence[Any] = option("auto", "always")
    start: Mapping[str, Any] | Sequence[Any] = option((), "rarely")
    constraints: str | Iterable[str] = ()
    candidates: Any = None
    batch_size: int = option(1, "always", changes=True, whole=(1, MOST_AT_ONCE))
    partner: Partners = option(None, "always")  # noqa: RUF009
    seeded: bool = option(False, "rarely", choices=(True, False))
    task: Mapping[str, Any] | None = option(None, "always")
    import_trials: Any = None
    storage: str | os.PathLike[str] | None = None
    durable: bool = True
    callbacks: Sequence[Callable[..., Any]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "noisy", self.noisy or self.seeded)
        if isinstance(self.warmup, (str, Mapping)) and self.warmup != "auto":
            raise ValueError(
                f"warmup={self.warmup!r}: expected a whole number, 'auto', or a sequence of points"
            )
        if not isinstance(self.warmup, Iterable):
            object.__setattr__(self, "warmup", whole_or_auto("warmup", self.warmup, 0))
        object.__setattr__(self, "partner", _names(self.partner))
        if not isinstance(self.storage, (str, os.PathLike, type(None))):
            raise TypeError(f"storage={short(self.storage)}: expected the path of a file")
        one_of("durable", self.durable, (True, False))
        object.__setattr__(self, "task", _as_json("task", self.task))

    @property
    def asking(self) -> dict[str, Any]:
        """The options of `AskOptions` by name."""
        return {name: getattr(self, name) for name in AskOptions.names()}


def stored_names() -> tuple[str, ...]:
    """Return the options that a file may hold: none of them names a file or model, or is code."""
    return tuple(field.name for field in dataclasses.fields(SearchOptions) if field.metadata)


def options_to_store(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a search that its file stores."""
    kept = {}
    for each in dataclasses.fields(SearchOptions):
        stored, value = each.metadata.get("stored"), values[each.name]
        if stored == "always" or (
            stored and value is not False and value not in (None, [], each.default)
        ):
            kept[each.name] = value
    return kept


def _as_json(name: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a mapping as it is after a round trip through JSON."""
    try:
        if value is not None and not isinstance(value, Mapping):
            raise TypeError("not a mapping")
        found: dict[str, Any] = json.loads(json.dumps(dict(value or {}), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{name}={short(value)}: expected a mapping of JSON values ({error})"
        ) from error
    return found


def _names(partner: Any) -> str | list[str] | None:
    """Return names of partners as a file stores them: several as a list."""
    several = isinstance(partner, Iterable) and not isinstance(partner, str)
    names = list(partner) if several else [] if partner is None else [partner]
    for name in names:
        if not isinstance(name, str):
            raise ValueError(
                f"partner={short(name)}: expected names of partners, such as 'cma'; in LLMSampler "
                "also a sampler of Optuna, such as TPESampler()"
            )
    return names if len(names) > 1 else names[0] if names else None
