"""The one sender through which everything that costs money goes.

    meter = Meter(client, Limits(max_requests=100))
    meter.journal = ...                   # where spending is stored
    def ask(draft):                       # one ask at a time
        reply = meter.send(request)       # counted and recorded before it returns
        meter.count_rejection("unreadable")
        ...                               # record what the ask produced
    meter.asking(ask)
    meter.usage                           # a copy

Requests, tokens and cost count at once. Proposals and rejections count when the ask is over:
an ask that raises leaves them as they were, and the replies that it paid for are kept for the
next ask that sends the same requests.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from llmopt.client.base import Client, Reply, Request, check_ready, client_name
from llmopt.client.http.retry import complete_with_retries
from llmopt.client.payment import paying
from llmopt.errors import BudgetExceededError, ClientError, LLMOptError, SearchStopped, StorageError
from llmopt.history import Proposal, Source, Usage
from llmopt.search.limits import Limits
from llmopt.search.spend_log import Books, SpendLog, Spent
from llmopt.util.text import a_type, short
from llmopt.util.threads import Lock, uninterrupted

if TYPE_CHECKING:
    from llmopt.prompt.python_block import Computed

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass
class Draft:
    """The record of one ask."""

    replies: list[tuple[Request, Reply]] = field(default_factory=list)  # paid now or before
    points: Sequence[Proposal] = ()  # what it gives; they count by their sources
    proposals: Counter[str] = field(default_factory=Counter)  # further ones, by source
    rejected: Counter[str] = field(default_factory=Counter)  # by reason
    warnings: list[str] = field(default_factory=list)  # for the caller, who has the line to warn at
    stop: SearchStopped | None = None  # where an answer gave points and ended the search
    committed: bool = False  # whether `proposals` and `rejected` count
    computed: list[Computed] = field(default_factory=list)  # now or before
    process: int = field(default_factory=os.getpid)


class Attempt:
    """The calls of one `Meter.send`, including failed ones, up to a reply or the last error.

    It pays for these calls (see `llmopt.client.payment.Payer`), which may be made at once.
    """

    def __init__(self, meter: Meter, request: Request) -> None:
        self._meter, self._request = meter, request
        # The usage that counts against the caps, with losses of this call.
        self._now = now = meter.counted
        self._call = now  # the same, with what the call under way has used
        self._lock = threading.Lock()
        self._lost = Usage()
        self._reply: Reply | None = None
        self._trouble = ""
        self._had = meter.usage.cost
        self._began, self._started = time.time(), time.monotonic()
        # Whether a call was announced, and whether one was sent whose end is unknown.
        self._begun = self._under_way = False

    def run(self) -> Reply:
        """Return the reply; count, store and report the usage even after an error."""
        meter, most = self._meter, self._meter.limits.max_requests
        meter.limits.check(self._now)
        meter.check_priced()
        try:
            answer = complete_with_retries(
                meter.client,
                self._request,
                call=self._begin,
                most_calls=None if most is None else most - self._now.requests,
                on_failure=self._failed,
            )
            if not isinstance(answer, Reply):
                raise TypeError(
                    f"{client_name(meter.client)}.complete returned {a_type(answer)}: "
                    "expected a llmopt.Reply, such as Reply((Completion(text),))"
                )
            return self._settled(answer)
        except BaseException as error:
            self._given_up(error)
            raise
        finally:
            if meter.observe is not None and (self._lost.requests or self._reply is not None):
                meter.observe(self._spent())

    def _begin(self, request: Request) -> Reply:
        """Announce a call and make it."""
        meter = self._meter
        try:
            self._begun = True
            meter.journal.announce(self._spent())
        except LLMOptError:
            self._begun = False
            raise
        self._under_way, self._call = True, self._now.copy()
        try:
            with paying(self):
                return meter.client.complete(request)
        except ClientError:
            raise  # it stays under way until this failure is counted
        except (LLMOptError, ImportError):  # nothing was sent, so that nothing is in doubt
            self._under_way = False
            raise

    def take(self) -> None:
        """Count a request of a call that is about to be sent, or raise where none may be."""
        with self._lock:
            self._meter.limits.check(self._call)
            self._call.requests += 1

    def paid(self, tokens: int, cost: float | None) -> None:
        """Count the usage of a call's request."""
        with self._lock:
            usage = self._call
            usage.prompt_tokens += tokens
            usage.cost = None if usage.cost is None or cost is None else usage.cost + cost

    def _failed(self, error: ClientError, attempt: int) -> None:
        """Count a call that failed; raise if the cap on cost allows no further one."""
        with uninterrupted():
            self._count(error.requests, error.unpriced, error.cost, error.estimated)
            self._under_way = False
        if error.requests or error.retryable:  # else nothing was sent; the error says why
            name = client_name(self._meter.client)
            logger.warning("%s: attempt %d failed: %s", name, attempt, error)
        if error.unpriced or error.estimated:
            self._meter.limits.check_cost(self._now)  # before it is sent once more

    def _settled(self, answer: Reply) -> Reply:
        """Count and store a reply."""
        meter = self._meter
        with uninterrupted():
            self._reply = reply = answer.counted(self._request)
            usage = meter.usage
            usage.add_reply(reply)
            meter._usage = usage
            self._store()
            if (draft := meter._open_draft) is not None:
                draft.replies.append((self._request, reply))
        return reply

    def _given_up(self, error: BaseException) -> None:
        """Count and store the usage if there is no reply."""
        self._trouble = f"{type(error).__name__}: {error}"
        if self._reply is None:
            with uninterrupted():
                if self._under_way:  # interrupted, by Ctrl-C for example: it may be charged for
                    self._count(1, self._meter.in_doubt)
                if self._lost.requests or self._begun:
                    self._store()

    def _spent(self) -> Spent:
        lost, seconds = self._lost, time.monotonic() - self._started
        return Spent(
            self._request, self._reply, lost.requests, lost.unpriced, lost.cost or 0.0,
            lost.estimated, client_name(self._meter.client), self._trouble, self._began, seconds,
        )  # fmt: skip

    def _count(
        self, requests: int, unpriced: int = 0, cost: float = 0.0, estimated: int = 0
    ) -> None:
        usage = self._meter.usage
        for each in (self._lost, self._now, usage):
            each.add_failure(requests, unpriced, cost, estimated)
        if usage.cost is not None and self._had is not None:
            # Summed as a resumed search does, to be equal to the last bit.
            usage.cost = self._had + (self._lost.cost or 0.0)
        self._meter._usage = usage

    def _store(self) -> None:
        self._meter.unsaved.append(self._spent())
        try:
            self._meter.flush()
        except StorageError as error:
            logger.warning("kept in memory until it can be stored: %s", error)


class Meter:
    """Sends requests within limits, counts their cost, and never pays twice for one."""

    def __init__(self, client: Client, limits: Limits | None = None) -> None:
        self.client = client
        self.limits = limits or Limits()  # assign new ones to raise them
        self.journal = SpendLog()  # records the spending; copies have none
        # Called when a `send` has ended that sent something; must not raise.
        self.observe: Callable[[Spent], object] | None = None
        self.lock = Lock()  # held by an ask from its first to its last request
        self._writing = Lock()
        self._usage = Usage()  # replaced, never changed: a reader needs no lock
        self._paid: deque[tuple[str, Reply]] = deque()
        self.computed: list[Computed] = []
        self._kept: list[Computed] = []  # of an interrupted ask
        self.unsaved: deque[Spent] = deque()  # what could not be stored yet; see `flush`
        self._draft: Draft | None = None
        self._ready: tuple[int, Client] | None = None  # the process and client found ready

    # -- sending --------------------------------------------------------------------------

    def send(self, request: Request) -> Reply:
        """Return the model's reply, or the one that an interrupted ask paid for."""
        with self.lock:
            if self._paid:
                with uninterrupted():
                    reply = self._take_paid(request)
                if reply is not None:
                    return reply
            self._kept.clear()  # they belong to another answer
            self.flush()  # first, as the check may count what is stored
            self.journal.check()
            return Attempt(self, request).run()

    def _take_paid(self, request: Request) -> Reply | None:
        digest = request.digest()
        for index, (known, reply) in enumerate(self._paid):
            if known == digest:
                del self._paid[index]
                if (draft := self._open_draft) is not None:
                    draft.replies.append((request, reply))
                return reply
        return None

    def compute(
        self, code: str, run: Callable[[Sequence[Computed]], Computed], tokens: int = 0
    ) -> Computed:
        """Return the output of a model's Python, from this ask or an interrupted one.

        `run` runs it, after all blocks before it; its request took `tokens`.
        """
        with self.lock:
            while self._kept and self._kept[0].code != code:
                self._kept.pop(0)  # it belongs to a dropped answer
            if self._kept:
                found = self._kept.pop(0)
            else:
                replay = getattr(self.client, "replay_block", None)
                known = None if replay is None else replay(code)
                found = run(self.computed) if known is None else _read_block(known)
                found = replace(found, tokens=tokens)
                self.journal.compute(found)
                if (record := getattr(self.client, "record_block", None)) is not None:
                    record(found.line())
                self.computed.append(found)
                usage = self.usage
                usage.add_block(found.seconds, tokens)
                self._usage = usage
            if (draft := self._open_draft) is not None:
                draft.computed.append(found)
            return found

    @property
    def blocks(self) -> list[Computed]:
        """The blocks, without those of an interrupted ask until it reaches them again.

        So a request that states what they took and left is the same after a resume.
        """
        return self.computed[: len(self.computed) - len(self._kept)]

    @property
    def in_doubt(self) -> int:
        """What an aborted call adds to `Usage.unpriced`; 0 on this machine."""
        return int(not getattr(self.client, "local", False))

    def check_ready(self, *, priced: bool = True, capped: bool = False) -> None:
        """Check once per process that the first request can succeed; sends no request.

        Args:
            priced: Whether a cap on cost that cannot be kept is such a thing.
            capped: Whether caps of 0 are.
        """
        if self._ready == (os.getpid(), self.client):
            return
        if capped:
            self.limits.check(Usage())
        if priced:
            self.check_priced()  # first: it asks nobody
        check_ready(self.client)
        self._ready = os.getpid(), self.client

    def check_priced(self) -> None:
        """Raise if there is a cap on cost and the price of the model is not known."""
        if self.limits.max_cost is not None and not getattr(self.client, "priced", True):
            raise BudgetExceededError(
                f"max_cost={self.limits.max_cost} cannot be kept: the model's price is not known "
                f"({client_name(self.client)}). Give the client its prices "
                "(price=Price(...), LLMOPT_PRICES, or the package genai-prices), say local=True if "
                "it is free, or cap requests or tokens instead. Nothing was sent"
            )

    def flush(self) -> None:
        """Store events whose writing failed. Call this before writing other events."""
        while self.unsaved:
            with uninterrupted(), self._writing:
                if self.unsaved:
                    self.journal.record(self.unsaved[0])
                    self.unsaved.popleft()

    # -- one ask --------------------------------------------------------------------------

    def asking(self, ask: Callable[[Draft], Result]) -> tuple[Result, Draft]:
        """Return what `ask` returns and its record, and count what happens in it as one ask.

        Inside another ask it is a part of that one. Whatever is raised before `commit` makes it an
        interrupted ask: its proposals and rejections do not count, and its replies are kept for
        the next one. (No context manager: an interrupt right before its end would leave it open.)
        """
        with self.lock:
            if (outer := self._open_draft) is not None:
                return ask(outer), outer
            draft = Draft()
            try:
                try:
                    self._draft = draft
                    result = ask(draft)
                    self.commit(draft)
                    return result, draft
                finally:
                    with uninterrupted():
                        self._end(draft)
            finally:
                self._end(draft)  # where Ctrl-C came right before the other

    def _end(self, draft: Draft) -> None:
        if self._draft is draft:
            self._draft = None
            if not draft.committed:
                replies = [(request.digest(), reply) for request, reply in draft.replies]
                self._paid.extendleft(reversed(replies))
                self._kept[:0] = draft.computed

    def commit(self, draft: Draft) -> None:
        """Let an ask count, whatever is raised in it from now on."""
        if draft.committed:
            return
        if self._paid:
            logger.warning(
                "%d paid replies of an ask that gave no point (it was interrupted, or the model "
                "wished to stop) are dropped: the history has changed since",
                len(self._paid),
            )
            self._paid.clear()
        self._kept.clear()
        self._usage = self.usage_with(draft)
        draft.committed = True

    def usage_with(self, draft: Draft) -> Usage:
        """Return the usage as it will be once a draft counts."""
        usage = self.usage
        if not draft.committed:
            given = draft.proposals + Counter(point.source for point in draft.points)
            for counts, new in (
                (usage.proposals, given),
                (usage.rejected, draft.rejected),
            ):
                for name, count in new.items():
                    counts[name] = counts.get(name, 0) + count
        return usage

    # -- counting -------------------------------------------------------------------------

    @property
    def usage(self) -> Usage:
        """What was spent so far (a copy)."""
        return self._usage.copy()

    @property
    def counted(self) -> Usage:
        """The usage that counts against the caps, of all meters that share them (a copy)."""
        return self.journal.total(self.usage)

    @property
    def paid(self) -> tuple[tuple[str, Reply], ...]:
        """Replies of interrupted asks, by the digest of the request."""
        return tuple(self._paid)

    def count_proposal(self, source: Source, times: int = 1) -> None:
        """Count points that no emitter gave, with the open ask or at once; -1 takes one back."""
        self._count("proposals", source, times)

    def count_rejection(self, reason: str) -> None:
        """Count one sample that was not used: as `count_proposal`."""
        self._count("rejected", reason, 1)

    def _count(self, what: str, name: str, times: int) -> None:
        with self.lock:
            draft, usage = self._open_draft, self.usage
            counts = getattr(usage if draft is None else draft, what)
            counts[name] = counts.get(name, 0) + times
            if draft is None:
                self._usage = usage

    @property
    def _open_draft(self) -> Draft | None:
        # A draft of the process that this one was forked from is nobody's here.
        draft = self._draft
        return draft if draft is not None and draft.process == os.getpid() else None

    @property
    def books(self) -> Books:
        """All that is known (a copy)."""
        return Books(self.usage, list(self._paid), list(self.computed), len(self._kept))

    def restore(self, books: Books) -> None:
        """Continue from the books of a stored search."""
        self._usage, self._paid = books.usage.copy(), deque(books.paid)
        self.computed = list(books.computed)
        self._kept = self.computed[len(books.computed) - books.computed_open :]

    # -- copies ---------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        # A copy spends on its own account, and stores nothing: a file has one writer.
        return {
            **self.__dict__,
            "lock": Lock(),
            "_writing": Lock(),
            "journal": SpendLog(),
            "observe": None,
            "_paid": self._paid.copy(),
            "computed": [*self.computed],
            "_kept": [*self._kept],
            "unsaved": deque(),
            "_draft": None,
            "_ready": None,
        }


def _read_block(line: Mapping[str, Any]) -> Computed:
    from llmopt.prompt.python_block import Computed

    try:
        return Computed.read(line)
    except (LookupError, TypeError, ValueError) as error:
        raise ClientError(
            f"a recorded block of Python is damaged: {error}. Restore the recording from a copy, "
            "or record again",
            requests=0,
        ) from error


class Metered:
    """What every search has that asks a model: its meter, its caps and its usage."""

    _meter: Meter

    @property
    def meter(self) -> Meter:
        """Sends the requests and counts what they cost."""
        return self._meter

    @property
    def client(self) -> Client:
        """The model that is asked."""
        return self.meter.client

    @property
    def limits(self) -> Limits:
        """The caps; assign new ones to raise them."""
        return self.meter.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        if not isinstance(limits, Limits):
            raise TypeError(
                f"limits={short(limits)}: expected caps by name, such as Limits(max_cost=0.5); "
                "from llmopt.search.limits import Limits"
            )
        self.meter.limits = limits

    @property
    def usage(self) -> Usage:
        """What was spent so far (a copy)."""
        return self.meter.usage

    @property
    def left(self) -> dict[str, float]:
        """The remaining ``"requests"``, ``"tokens"`` and ``"cost"``, for each cap that is set."""
        return self.limits.left(self.meter.counted)
