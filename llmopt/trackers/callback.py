"""The base class of callbacks, and the code that calls them."""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from llmopt.errors import SearchStopped
from llmopt.history import Direction, Proposal, Trial, Usage
from llmopt.search.spend_log import Spent
from llmopt.space.values import ABSENT
from llmopt.util.text import clean, first_line, short

logger = logging.getLogger("llmopt.search")
_CONTENT = ("description", "task")
Row: TypeAlias = dict[str, Any]
"""Numbers and texts by name."""


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

    def sent(self, search: Search, spent: Spent) -> None:
        """A request to the model ended: its reply, or its error, and when it began."""

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


class _Writer:
    """Makes calls in order in its own thread, so that a slow server delays no trial.

    It gives up with one warning after `FAILURES` consecutive failures, or if it is still busy
    `SECONDS` after the end of a search or of the process.
    """

    FAILURES = 3
    SECONDS = 20.0

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | threading.Event] = queue.SimpleQueue()
        self._failed = 0
        self._process: int | None = None
        atexit.register(self.finish)

    def put(self, call: Callable[[], None]) -> None:
        if self._failed == self.FAILURES:
            return
        if self._process != os.getpid():  # a forked child has no thread
            self._process, self._calls = os.getpid(), queue.SimpleQueue()
            threading.Thread(target=self._work, args=(self._calls,), daemon=True).start()
        self._calls.put(call)

    def finish(self) -> None:
        """Wait for all calls, at most `SECONDS`."""
        if self._process == os.getpid() and self._failed < self.FAILURES:
            done = threading.Event()
            self._calls.put(done)
            if not done.wait(self.SECONDS):
                self._give_up(f"its server did not answer for {self.SECONDS:g} s")

    def _work(self, calls: queue.SimpleQueue[Callable[[], None] | threading.Event]) -> None:
        while True:
            call = calls.get()
            if isinstance(call, threading.Event):
                call.set()
            elif self._failed < self.FAILURES:
                try:
                    call()
                    self._failed = 0
                except Exception as error:
                    self._failed += 1
                    if self._failed == self.FAILURES:
                        self._give_up(f"{type(error).__name__}: {first_line(error)}")

    def _give_up(self, reason: str) -> None:
        self._failed = self.FAILURES
        logger.warning(
            "%s failed and is switched off; the search continues: %s", self._name, reason
        )


class RunTracker(Callback):
    """A callback that writes each search as a separate run, from its first new trial on.

    Subclasses define `_begin`, `_write` and `_end`, which are called in the tracker's thread. Two
    searches with the same name are two runs.

    Args:
        content: Whether to write the task and its description, which may be source code.
    """

    def __init__(self, content: bool = False) -> None:
        self._content = content
        self._runs: dict[Search, Any] = {}
        self._calls_in_order = _Writer(type(self).__name__)

    def told(self, search: Search, trial: Trial, best: Trial | None, usage: Usage) -> None:
        """Queue a trial to be written."""
        self._calls_in_order.put(partial(self._told, search, trial, best, usage))

    def ended(self, search: Search, reason: str) -> None:
        """End the run, and wait until everything is written."""
        self._calls_in_order.put(partial(self._ended, search, reason))
        self._calls_in_order.finish()

    def _told(self, search: Search, trial: Trial, best: Trial | None, usage: Usage) -> None:
        if search not in self._runs:
            known = [search.place, search.name, search.parameters, search.settings.get("seed")]
            mark = hashlib.sha256(json.dumps(known).encode()).hexdigest()[:32]
            resumed = trial.number > 0 and search.place != ""
            said = {k: v for k, v in search.settings.items() if self._content or k not in _CONTENT}
            self._runs[search] = self._begin(replace(search, settings=said), mark, resumed)
        best = best if len(search.directions) == 1 else None
        rewards = trial.rewards or ()
        row = {f"params/{name}": value for name, value in _by_name(search, trial).items()}
        row |= {"usage/requests": usage.requests, "usage/fallbacks": usage.fallbacks}
        row |= {"usage/tokens": usage.prompt_tokens + usage.completion_tokens}
        row |= {f"reward/{i}": reward for i, reward in enumerate(rewards, start=1)}
        if len(search.directions) == 1:
            row["reward"] = row.pop("reward/1", None)
        row |= {"best": best and best.reward, "stderr": trial.stderr, "usage/cost": usage.cost}
        row |= {"state": trial.state, "source": trial.source}
        row |= {"explanation": trial.explanation or None, "feedback": trial.feedback or None}
        row = {name: value for name, value in row.items() if value is not None}
        self._write(self._runs[search], trial, row, _by_name(search, best) if best else {})

    def _ended(self, search: Search, reason: str) -> None:
        if search in self._runs:
            self._end(self._runs.pop(search), reason)

    def _begin(self, search: Search, mark: str, resumed: bool) -> Any:
        """Return a run; `mark` identifies its search."""
        raise NotImplementedError

    def _write(self, run: Any, trial: Trial, row: Row, best: Row) -> None:
        """Write a trial: its numbers and texts by name, and the best parameters so far.

        Names are ``reward``, ``best``, ``stderr``, ``state``, ``source``, ``explanation``,
        ``feedback``, ``usage/…`` and ``params/…``; names without a value are absent.
        """
        raise NotImplementedError

    def _end(self, run: Any, reason: str) -> None:
        """End a run; `reason` may be empty."""
        raise NotImplementedError


def _by_name(search: Search, trial: Trial) -> Row:
    pairs = zip(search.parameters, trial.values, strict=True)
    there = {name: value for name, value in pairs if value is not ABSENT}
    return {n: v if isinstance(v, (int, float, str)) else repr(v) for n, v in there.items()}
