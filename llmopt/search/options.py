"""The options that `LLMOptimizer`, `minimize` and `PolicySearch` have by name, in one place."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llmopt.client.base import Client
from llmopt.search.ask_options import AskArguments, AskOptions, option
from llmopt.search.partners.scheduler import Partners, checked_partners
from llmopt.trackers.callback import Callback, check_callbacks
from llmopt.util.arguments import MOST_AT_ONCE, whole_or_auto
from llmopt.util.text import short


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
        object.__setattr__(self, "task", _as_json("task", self.task))

    @property
    def asking(self) -> dict[str, Any]:
        """The options of `AskOptions` by name."""
        return {name: getattr(self, name) for name in AskOptions.names()}


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
