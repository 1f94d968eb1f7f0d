"""The protocol of callbacks, and the bell that rings them."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llmopt.text import clean

if TYPE_CHECKING:
    from llmopt.history import Direction, Proposal, Trial, Usage
    from llmopt.search.meter import Spent

logger = logging.getLogger("llmopt.search")


@dataclass(frozen=True, eq=False)
class Search:
    """Which search something happened in; each is equal to itself alone.

    Attributes:
        name: The file's name without its suffix, the method's in a run, or ``"search"``.
        parameters: The parameters' names.
        directions: One direction for each objective.
        settings: What the search was begun with, as JSON: seed, model, prompt, space, options.
        place: Where it is stored, as an absolute path; empty where it cannot be resumed.
    """

    name: str
    parameters: tuple[str, ...]
    directions: tuple[Direction, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", " ".join(clean(self.name).split()))


class Callback:
    """What a search tells of itself. Derive from it, and override what you need.

    Methods are called in the thread that asks or tells, after what happened has been stored. One
    that raises is warned of once; the search goes on. One callback may serve several searches.
    """

    def asked(self, search: Search, proposal: Proposal) -> None:
        """A point was handed out: ``proposal.values``, in the order of ``search.parameters``."""

    def told(self, search: Search, trial: Trial, best: Trial | None, usage: Usage) -> None:
        """A trial was recorded.

        Args:
            search: The search.
            trial: The trial; ``trial.values`` are in the order of ``search.parameters``.
            best: The best trial so far.
            usage: What was spent so far.
        """

    def sent(self, search: Search, spent: Spent) -> None:
        """A request to the model ended: its reply, or its error, and when it began."""

    def ended(self, search: Search, reason: str) -> None:
        """The search was closed; `reason` says why, if the model ended it."""


class Bell:
    """Calls the callbacks of one search, and lets none of them end it.

    Args:
        callbacks: Whom to call.
        search: Which search they are told of.
    """

    def __init__(self, callbacks: Sequence[Callback], search: Search) -> None:
        self.callbacks = tuple(callbacks)
        self.search = search
        self.reason = ""
        self._failed: set[tuple[int, str]] = set()
        self._ended = False

    def ring(self, event: str, *args: Any) -> None:
        """Call one method of every callback."""
        for callback in self.callbacks:
            try:
                getattr(callback, event)(self.search, *args)
            except Exception as error:
                place = id(callback), event
                if place not in self._failed:
                    self._failed.add(place)
                    logger.warning(
                        "%s.%s failed and the search goes on: %s: %s",
                        type(callback).__name__,
                        event,
                        type(error).__name__,
                        error,
                    )

    def end(self) -> None:
        """Tell that the search was closed; once."""
        if not self._ended:
            self._ended = True
            self.ring("ended", self.reason)


def check_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """Return callbacks as a tuple.

    Raises:
        TypeError: Something is none, or no sequence of them was given.
    """
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Sequence):
        raise TypeError(f"callbacks={callbacks!r}: expected a list of callbacks")
    for callback in callbacks:
        if not callable(getattr(callback, "told", None)):
            raise TypeError(
                f"callbacks: {callback!r} is none; derive from llmopt.trackers.Callback"
            )
    return tuple(callbacks)


class RunTracker(Callback):
    """A callback that writes each search as a run of its own, begun with its first new trial.

    Derive from it with `_begin`, `_write` and `_end`. Two searches of one name are two runs.
    """

    def __init__(self) -> None:
        self._runs: dict[Search, Any] = {}

    def told(self, search: Search, trial: Trial, best: Trial | None, usage: Usage) -> None:
        """Write a trial."""
        if search not in self._runs:
            self._runs[search] = self._begin(search, trial.number)
        self._write(self._runs[search], search, trial, numbers(search, trial, best, usage), best)

    def ended(self, search: Search, reason: str) -> None:
        """End the run."""
        if search in self._runs:
            self._end(self._runs.pop(search), reason)

    def _begin(self, search: Search, first: int) -> Any:
        """Return the run of a search whose first trial that is told here has this number."""
        raise NotImplementedError

    def _write(
        self,
        run: Any,
        search: Search,
        trial: Trial,
        found: Mapping[str, float],
        best: Trial | None,
    ) -> None:
        """Write a trial with its numbers."""
        raise NotImplementedError

    def _end(self, run: Any, reason: str) -> None:
        """End a run; `reason` may be empty."""
        raise NotImplementedError


def mark_of(search: Search) -> str:
    """Return a text that tells a stored search from others, and names no path."""
    known = [search.place, search.name, list(search.parameters), search.settings.get("seed")]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:32]


def numbers(search: Search, trial: Trial, best: Trial | None, usage: Usage) -> dict[str, float]:
    """Return the numbers of a told trial that a tracker plots, by name."""
    found: dict[str, float] = {}
    several = len(search.directions) > 1
    for name, one in (("reward", trial), ("best", best)):
        for i, reward in enumerate((one.rewards or ()) if one is not None else ()):
            if not (several and name == "best"):
                found[f"{name}/{i + 1}" if several else name] = reward
    if trial.stderr is not None:
        found["stderr"] = trial.stderr
    for name, value in zip(search.parameters, trial.values, strict=True):
        if isinstance(value, (int, float)):  # a choice that is a word is no number
            found[f"params/{name}"] = float(value)
    found["usage/requests"] = usage.requests
    found["usage/tokens"] = usage.prompt_tokens + usage.completion_tokens
    if usage.cost is not None:
        found["usage/cost"] = usage.cost
    found["usage/fallbacks"] = usage.fallbacks
    return found


def words(trial: Trial) -> dict[str, str]:
    """Return what was said about a trial, by name; what was not said is left out."""
    said = {"explanation": clean(trial.explanation), "feedback": clean(trial.feedback)}
    return {name: text for name, text in said.items() if text}


def missing(package: str, name: str) -> ImportError:
    """Return the error where a tracker's library is not installed."""
    return ImportError(f'{name} needs the package {package}: pip install "{package}"', name=package)
