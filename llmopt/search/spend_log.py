"""What requests cost: as a meter notes it, as a file keeps it, and as a resume reads it back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmopt.client.base import Reply, Request, amount
from llmopt.history import Usage
from llmopt.prompt.python_block import Computed
from llmopt.search.eventlog import Event, EventLog
from llmopt.util.arguments import whole_number
from llmopt.util.text import short


@dataclass(frozen=True)
class Spent:
    """What one `Meter.send` cost."""

    request: Request
    reply: Reply | None  # the model's answer; ``None`` if the request ended in an error
    failed: int  # calls that failed, before the reply or without one
    unpriced: int = 0  # those of `failed` that may be charged for at an unknown cost
    cost: float = 0.0  # US dollars that others of `failed` may have cost at most
    estimated: int = 0  # how many of them are in `cost`
    client: str = ""
    error: str = ""  # what ended it without a reply: the class, and the text
    began: float = 0.0  # when it was sent first, in seconds since 1970
    seconds: float = 0.0  # from then until the end, waiting for an overloaded server included


class SpendLog:
    """Where a meter records spending. This one stores nothing; see `SpendFile`."""

    def check(self) -> object:
        """Raise where nothing may be spent: in a forked child, say, that cannot store a reply."""

    def announce(self, spent: Spent) -> object:
        """Store that a request is about to be sent: it counts if a kill comes before its end.

        Where this raises, nothing is sent.
        """

    def record(self, spent: Spent) -> object:
        """Store what a request cost, before `Meter.send` returns.

        Where this raises a `StorageError` the reply is used all the same, and storing it is tried
        again before the next request is sent, and at every `Meter.flush`.
        """

    def compute(self, block: Computed) -> object:
        """Store what a model computed."""

    def total(self, own: Usage) -> Usage:
        """Return what counts against the caps, where several meters share them."""
        return own


class SpendFile(SpendLog):
    """Stores in a search's file what its requests cost."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def check(self) -> None:  # noqa: D102
        self._log.check()

    def announce(self, spent: Spent) -> None:  # noqa: D102
        digest = spent.request.digest()
        self._log.append({"event": "request", "digest": digest, **_failures(spent, "failed")})

    def record(self, spent: Spent) -> None:  # noqa: D102
        if spent.reply is None:
            self._log.append({"event": "failure", **_failures(spent, "requests")})
        else:
            paid = {"digest": spent.request.digest(), "reply": spent.reply.to_dict()}
            self._log.append({"event": "reply", **paid, **_failures(spent, "failed")})

    def compute(self, block: Computed) -> None:  # noqa: D102
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


@dataclass
class Books:
    """The books of a search: what was spent, and replies that are paid for and unused."""

    usage: Usage = field(default_factory=Usage)
    # paid replies of interrupted asks, by the digest of the request
    paid: list[tuple[str, Reply]] = field(default_factory=list)
    computed: list[Computed] = field(default_factory=list)  # what a model computed
    computed_open: int = 0  # how many of the last blocks belong to an interrupted ask
    # a call without an end in the file: it may have been paid for before a kill
    _lost: tuple[int, int, float, int] = _NOTHING

    def take(self, event: Event, in_doubt: int) -> bool:
        """Take in a line of a file, if it is of a request; return whether it is.

        `in_doubt` is that of the `Meter` of the search.
        """
        kind = event["event"]
        if kind == "request":
            failed, unpriced, cost, estimated = _read_failures(event, "failed")
            if failed == 0:
                self.count_lost()
            self._lost = 1 + failed, in_doubt + unpriced, cost, estimated
        elif kind == "reply":
            reply = Reply.from_dict(event["reply"])
            self.usage.add_failure(*_read_failures({"failed": 0, **event}, "failed"))
            self.usage.add_reply(reply)
            self.paid.append((checked_text(event["digest"]), reply))
            self._lost = _NOTHING
        elif kind == "compute":
            self.computed.append(block := Computed.read(event))
            self.usage.add_block(block.seconds, block.tokens)
            self.computed_open += 1
        elif kind == "failure":
            self.usage.add_failure(*_read_failures(event, "requests"))
            self._lost = _NOTHING
        else:
            return False
        return True

    def asked(self, **counts: Mapping[str, int]) -> None:
        """Note the end of an ask: the replies before it have come to it."""
        if counts:
            self.usage = Usage.from_dict({**vars(self.usage), **counts})
        self.paid.clear()
        self.computed_open = 0

    def begin_with(self, books: Books) -> None:
        """Restart from a line that sums up all earlier ones."""
        self.__dict__.update(vars(books))

    def count_lost(self) -> None:
        """Count the call that no line ended."""
        self.usage.add_failure(*self._lost)
        self._lost = _NOTHING


def checked_text(value: Any) -> str:
    """Return a text of a file, or raise `TypeError`."""
    if not isinstance(value, str):
        raise TypeError(f"{short(value)} is not a string")
    return value
