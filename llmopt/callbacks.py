"""Callbacks of a search: the base class, and the code that calls them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmopt.errors import SearchStopped
from llmopt.events import Failed, Replied
from llmopt.history import Direction, Proposal, Trial, Usage
from llmopt.util.text import clean, first_line, short

logger = logging.getLogger("llmopt.search")


@dataclass(frozen=True, eq=False)
class Search:
    """Identifies a search in callbacks; two searches are never equal.

    Attributes:
        name: The name of the storage file without its suffix, of the method in a run, or
            ``"search"``.
        parameters: The names of the parameters.
        directions: One for each objective.
        settings: The search's settings, as JSON: seed, model, prompt, space, options.
        place: Absolute path of its storage; empty if the search cannot be resumed.
    """

    name: str
    parameters: tuple[str, ...]
    directions: tuple[Direction, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", " ".join(clean(self.name).split()))


class Callback:
    """Follows a search: derive from it, and override the methods that you need.

    Methods are called in the thread that calls ``ask`` or ``tell``, after the event has been
    stored. A method that raises `SearchStopped` ends the search. Any other exception is logged
    once, and the search continues. One callback may serve several searches.
    """

    def asked(self, search: Search, proposal: Proposal) -> None:
        """``ask`` returned a point: ``proposal.values``, in the order of ``search.parameters``."""

    def told(self, search: Search, trial: Trial, best: Trial | None, usage: Usage) -> None:
        """A trial was recorded; `best` and `usage` are the best trial and the usage so far."""

    def sent(self, search: Search, event: Replied | Failed) -> None:
        """A request to the model ended with a reply, or failed."""

    def ended(self, search: Search, reason: str) -> None:
        """The search was closed; `reason` says why, if the model ended it."""


class Callbacks:
    """Calls the callbacks of one search, and contains their exceptions."""

    def __init__(self, callbacks: Sequence[Callback], search: Search) -> None:
        self.callbacks = tuple(callbacks)
        self.search = search
        self.reason = ""
        self.stopped: SearchStopped | None = None  # by a callback
        self._failed: set[tuple[int, str]] = set()
        self._ended = False

    def notify(self, event: str, *args: Any) -> None:
        """Call one method of every callback."""
        for callback in self.callbacks:
            try:
                getattr(callback, event)(self.search, *args)
            except SearchStopped as stopped:
                self.stopped = self.stopped or stopped
                self.reason = self.reason or str(stopped)
            except Exception as error:
                place = id(callback), event
                if place not in self._failed:
                    self._failed.add(place)
                    where, kind = f"{type(callback).__name__}.{event}", type(error).__name__
                    said = first_line(error)
                    logger.warning("%s failed; the search continues: %s: %s", where, kind, said)

    def end(self) -> None:
        """Call ``ended``, once."""
        if not self._ended:
            self._ended = True
            self.notify("ended", self.reason)


def check_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """Return callbacks as a tuple."""
    if callbacks is None:
        return ()
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Sequence):
        raise TypeError(f"callbacks={short(callbacks)}: expected a list of callbacks")
    for callback in callbacks:
        if not callable(getattr(callback, "told", None)):
            raise TypeError(
                f"callbacks: {short(callback)} is not a callback: derive a class from "
                "llmopt.trackers.Callback, override told(search, trial, best, usage), and pass "
                "an instance"
            )
    return tuple(callbacks)
