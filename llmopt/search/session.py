"""A search that asks a model: its caps, usage and end, and perhaps its file.

The adapters, whose libraries keep the trials themselves, are a `Session`. `LLMOptimizer` and
`CodeOptimizer` are a `StoredSession`, which writes their events to a file and reads them back.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llmopt.callbacks import Callbacks
from llmopt.data import TrialData, data_file, folder_of
from llmopt.errors import BudgetExceededError, SearchStopped, StorageError
from llmopt.search.eventlog import Event, EventLog
from llmopt.search.meter import Metered
from llmopt.search.resume import EventState, replay
from llmopt.search.spend_log import SpendFile, Spent
from llmopt.util.closing import Closing
from llmopt.util.text import clean, cut
from llmopt.util.threads import uninterrupted

_REASON = 1000  # characters of why a search ended


class Session(Metered):
    """A search that asks a model: it has caps and a usage, and informs the model of its outcome."""

    _concluded = False

    @property
    def _informs(self) -> bool:
        """Whether the client accepts the outcome of a search; see `llmopt.client.base.Client`."""
        return callable(getattr(self.client, "inform", None))

    def _inform(self) -> None:
        """Send the outcome so far to a client that accepts it."""
        if callable(inform := getattr(self.client, "inform", None)):
            inform(self._outcome())

    def conclude(self, reason: str = "", recommended: int | None = None) -> None:
        """Inform the client of the outcome of the search, and why it ended.

        Args:
            reason: Why it ended; empty for the search's own reason.
            recommended: Number from 1 of the trial to keep, if it is not the best one.
        """
        self._concluded = True
        if self._informs and callable(end := getattr(self.client, "conclude", None)):
            why = cut(" ".join(clean(reason or self._why_it_ended()).split()), _REASON)
            end((f"Why it ended: {why}\n" if why else "") + self._outcome(recommended))

    def _outcome(self, recommended: int | None = None) -> str:
        """Return what was found so far in words."""
        raise NotImplementedError

    def _why_it_ended(self) -> str:
        """Return the search's own reason for its end; empty for none."""
        return ""


class StoredSession(Session, Closing):
    """A search that asks a model and may be kept in a file."""

    space: Any = None
    _state: EventState
    _log: EventLog | None = None
    _callbacks: Callbacks | None = None  # calls the callbacks, if there are any

    def check_ready(self) -> None:
        """Check that the first request can succeed; see `Meter.check_ready`."""
        self.meter.check_ready()

    def observe(self, callback: Callable[[Spent], object]) -> None:
        """Call a function with the cost of each further request; it must not raise."""
        self.meter.observe = callback

    # -- the file -------------------------------------------------------------------------

    @property
    def storage(self) -> Path | None:
        """The search's storage file, if it has one."""
        return None if self._log is None else self._log.path

    def start_event(self) -> Event:
        """Return the first line of a storage file, which identifies the search."""
        raise NotImplementedError

    def _begin(self, start: Event, path: Path) -> None:
        """Take over what the first line of a file says, or raise if it is of another search."""
        raise NotImplementedError

    def _attach(self, path: str | os.PathLike[str], durable: bool) -> None:
        """Resume the search in a file, or begin one there, and append to it from now on."""
        folder = folder_of(path)
        log = EventLog(path, durable=durable)
        try:
            if log.events:
                self._begin(log.events[0], log.path)
                self.resume(log.events, log.path)
            else:
                log.begin(self.start_event())
        except BaseException:
            log.close()
            raise
        log.events = []
        self._log, self._state.folder = log, folder
        # Without a reference to this search: one that is dropped closes its file at once.
        self.meter.journal = SpendFile(log)

    def resume(self, events: Sequence[Event], path: str | os.PathLike[str]) -> None:
        """Restore the state and the meter of a stored search."""
        self._state.folder = folder_of(path)
        replay(events, self._state, self.meter, path)

    def _record(self, event: Any) -> None:
        """Store an event, then let it change the state."""
        with uninterrupted():
            if self._log is not None:
                if self.meter.unsaved:
                    self.meter.flush()
                self._log.append(event.line(self.space))
            self._state.apply(event)

    def _stored(self, data: TrialData, number: int) -> TrialData:
        """Write the data of a trial beside the storage file, if there is one; return them."""
        if self._log is None or self._state.folder is None:
            return data
        return data.keep_in(data_file(self._state.folder, number))

    def close(self) -> None:
        """Close the storage file, and end the callbacks. The results can still be read."""
        if self._callbacks is not None:
            self._callbacks.end()
        if self._log is not None:
            with contextlib.suppress(StorageError):  # its value when it was to be written
                self.meter.flush()
            self._log.close()
        if not self._concluded:
            self.conclude()

    # -- the end --------------------------------------------------------------------------

    @property
    def stopped_by_callback(self) -> SearchStopped | None:
        """Why a callback ended the search, if one did."""
        return None if self._callbacks is None else self._callbacks.stopped

    @property
    def stopped(self) -> str:
        """Why the model ended the search; empty if it did not."""
        return ""

    def _planned_end(self) -> str:
        """Say that all planned evaluations were made, or how many were when it was closed."""
        raise NotImplementedError

    def _why_it_ended(self) -> str:
        if self.left_by is not None:
            return described(self.left_by)
        if said := str(self.stopped_by_callback or "") or self.stopped:
            return said
        try:
            self.limits.check(self.meter.counted)
        except BudgetExceededError as error:
            return str(error)
        return self._planned_end()


def described(error: BaseException) -> str:
    """Return an exception that ended a search in words."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted by Ctrl-C"
    return f"{type(error).__name__}: {error}".rstrip(": ")
