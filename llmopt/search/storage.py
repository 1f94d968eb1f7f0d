"""A search that spends and may be kept in a file.

`LLMOptimizer` and `CodeOptimizer` have events of their own. How an event is stored and applied,
what requests cost, the caps, and the end of the file are the same and stand here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmopt.client.base import Reply, amount
from llmopt.errors import StorageError
from llmopt.history import Usage
from llmopt.prompt.python_block import Computed
from llmopt.search.eventlog import Event, EventLog
from llmopt.search.meter import Books, Journal, Meter, Metered, Spent
from llmopt.util.arguments import whole_number
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

    def _start_event(self) -> Event:
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
                log.begin(self._start_event())
        except BaseException:
            log.close()
            raise
        log.events = []
        self._log = log
        # Without a reference to this search: one that is dropped closes its file at once.
        self._meter.journal = _Spending(log)

    def close(self) -> None:
        """Close the storage file. What is known can still be read."""
        if self._log is not None:
            with contextlib.suppress(StorageError):  # it was told when it was to be written
                self._meter.flush()
            self._log.close()


class _Spending(Journal):
    """Stores in a search's file what its requests cost."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def check(self) -> None:
        self._log.check()

    def announce(self, spent: Spent) -> None:
        digest = spent.request.digest()
        self._log.append({"event": "request", "digest": digest, **_failures(spent, "failed")})

    def record(self, spent: Spent) -> None:
        if spent.reply is None:
            self._log.append({"event": "failure", **_failures(spent, "requests")})
        else:
            paid = {"digest": spent.request.digest(), "reply": spent.reply.to_dict()}
            self._log.append({"event": "reply", **paid, **_failures(spent, "failed")})

    def compute(self, block: Computed) -> None:
        self._log.append({"event": "compute", **block.line()})


def _failures(spent: Spent, name: str) -> Event:
    rare = {"unpriced": spent.unpriced, "cost": spent.cost, "estimated": spent.estimated}
    return {name: spent.failed} | {k: v for k, v in rare.items() if v}


def _read_failures(event: Event, name: str) -> tuple[int, int, float, int]:
    """Return the arguments of `Usage.add_failure` that a line holds, the calls as `name`."""
    cost = amount(event.get("cost", 0.0))
    if cost is None:
        raise ValueError(f"cost={event['cost']!r}; expected US dollars, 0 or more")
    unpriced, estimated = (
        whole_number(rare, event.get(rare, 0), 0) for rare in ("unpriced", "estimated")
    )
    return whole_number(name, event[name], 0), unpriced, cost, estimated


_NOTHING = (0, 0, 0.0, 0)


class Ledger:
    """What was spent, and which replies are paid for and not used, as the lines of a file tell it.

    A call of which a file holds no end may have been paid for: a kill came upon it.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._lost = _NOTHING
        self.books = Books()

    def replay(
        self, lines: Sequence[Event], path: str | os.PathLike[str], apply: Callable[[Event], None]
    ) -> None:
        """Take in the lines of a file after its first one, and give the meter what they tell.

        `apply` takes in a line that is of no request.
        """
        for number, line in enumerate(lines[1:], start=2):
            with as_written(path, number, line):
                if not self._take(line):
                    apply(line)
        self._count_lost()
        self._meter.restore(self.books)

    def _take(self, event: Event) -> bool:
        """Take in a line, if it is of a request; return whether it is."""
        kind = event["event"]
        if kind == "request":
            failed, unpriced, cost, estimated = _read_failures(event, "failed")
            if failed == 0:
                self._count_lost()
            self._lost = 1 + failed, self._meter.in_doubt + unpriced, cost, estimated
        elif kind == "reply":
            reply = Reply.from_dict(event["reply"])
            self.books.usage.add_failure(*_read_failures({"failed": 0, **event}, "failed"))
            self.books.usage.add_reply(reply)
            self.books.paid.append((text_of(event["digest"]), reply))
            self._lost = _NOTHING
        elif kind == "compute":
            self.books.computed.append(block := Computed.read(event))
            self.books.usage.add_block(block.seconds)
            self.books.computed_open += 1
        elif kind == "error" or (kind == "failure" and "requests" in event):
            # Earlier searches over code called it "error", and another event "failure".
            self.books.usage.add_failure(*_read_failures(event, "requests"))
            self._lost = _NOTHING
        else:
            return False
        return True

    def asked(self, **counts: Mapping[str, int]) -> None:
        """Note the end of an ask: the replies before it have come to it."""
        if counts:
            self.books.usage = Usage.from_dict({**vars(self.books.usage), **counts})
        self.books.paid.clear()
        self.books.computed_open = 0

    def begin_with(self, books: Books) -> None:
        """Begin anew with what a line tells of all before it."""
        self.books, self._lost = books, _NOTHING

    def _count_lost(self) -> None:
        self.books.usage.add_failure(*self._lost)
        self._lost = _NOTHING


def text_of(value: Any) -> str:
    """Return a text of a file, or raise `TypeError`."""
    if not isinstance(value, str):
        raise TypeError(f"{short(value)} is no text")
    return value


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
            "on with the events before it (each is a line), or move it away to start anew"
        ) from error
