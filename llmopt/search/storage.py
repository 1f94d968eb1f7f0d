"""A search that spends and may be kept in a file.

`LLMOptimizer` and `CodeOptimizer` have their own events. How an event is stored and applied,
what requests cost, the caps, and the end of the file are the same and stand here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from llmopt.errors import StorageError
from llmopt.search.eventlog import Event, EventLog
from llmopt.search.meter import Meter, Metered
from llmopt.search.spending import Books, SpendFile
from llmopt.util.closing import Closing
from llmopt.util.text import short
from llmopt.util.threads import uninterrupted


class StoredSearch(Metered, Closing):
    """The base of a search that asks a model and may be kept in a file."""

    _log: EventLog | None = None
    _state: Any
    space: Any

    def _record(self, event: Any) -> None:
        """Store an event, then let it change the state."""
        with uninterrupted():
            if self._log is not None:
                if self._meter.unsaved:
                    self._meter.flush()
                self._log.append(event.line(self.space))
            self._state.apply(event)

    def start_event(self) -> Event:
        """Return the first line of a storage file: what the search is."""
        raise NotImplementedError

    def _attach(
        self,
        path: str | os.PathLike[str],
        durable: bool,
        resume: Callable[[list[Event], Path], None],
    ) -> None:
        """Go on with the search in a file, or begin one there, and append to it from now on."""
        log = EventLog(path, durable=durable)
        try:
            if log.events:
                resume(log.events, log.path)
            else:
                log.begin(self.start_event())
        except BaseException:
            log.close()
            raise
        log.events = []
        self._log = log
        # Without a reference to this search: one that is dropped closes its file at once.
        self._meter.journal = SpendFile(log)

    def close(self) -> None:
        """Close the storage file. What is known can still be read."""
        if self._log is not None:
            with contextlib.suppress(StorageError):  # its value when it was to be written
                self._meter.flush()
            self._log.close()


def replay_lines(
    lines: Sequence[Event],
    meter: Meter,
    path: str | os.PathLike[str],
    apply: Callable[[Event, Books], object],
) -> None:
    """Take in the lines of a file after its first one, and give the meter what they tell.

    `apply` takes in a line that is of no request, with what was spent before it.
    """
    books = Books()
    for number, line in enumerate(lines[1:], start=2):
        with as_written(path, number, line):
            if not books.take(line, meter.in_doubt):
                apply(line, books)
    books.count_lost()
    meter.restore(books)


@contextlib.contextmanager
def as_written(path: str | os.PathLike[str], number: int, event: Event) -> Iterator[None]:
    """Turn what goes wrong with an event of a file into a `StorageError` that names it."""
    try:
        yield
    except StorageError as error:
        raise StorageError(f"{path}, event {number}: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise StorageError(
            f"{path}, event {number} ({short(event.get('event'))}): it is not as llmopt "
            f"wrote it ({type(error).__name__}: {error}). Restore the file from a copy, or go "
            "on with the events before it (each is a line), or move it away to start again"
        ) from error
