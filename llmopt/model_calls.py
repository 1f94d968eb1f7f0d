"""A model whose calls are in a journal: the only place of money, caps, resume and replay.

A request is looked up in the journal before it is sent. So an ask that an error, Ctrl-C or a kill
ended is repeated from the state in which it began, finds the replies that it paid for, and sends
only what is missing:

    model = ModelCalls(client, journal, Limits(max_requests=100))
    scope = Scope(model, journal.state)              # one ask
    reply = scope.complete(request)                  # of the journal, or paid for within the caps
    journal.append(Asked(...))                       # settles the ask, and closes its replies
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Protocol

from llmopt.caps import NO_LIMITS, Limits, checked
from llmopt.client.base import Client, Reply, Request, check_ready, client_name
from llmopt.client.http.retry import complete_with_retries
from llmopt.client.model_facts import model_facts
from llmopt.errors import BudgetExceededError, ClientError, LLMOptError
from llmopt.events import Asked, Called, Computed, Event, Failed, Json, Replied
from llmopt.history import Usage
from llmopt.state import Run, State, reduce
from llmopt.util.text import a_type, estimate_tokens

logger = logging.getLogger(__name__)


class Ledger(Protocol):
    """What a model needs of a journal; an Optuna study and a list in memory are others."""

    @property
    def state(self) -> State:
        """The state after all events."""

    @property
    def spent(self) -> Usage:
        """What counts against the caps."""

    @property
    def usage(self) -> Usage:
        """What this search spent."""

    def append(self, event: Event) -> State:
        """Store an event, and return the state after it."""


class AnyPoints:
    """The points of a search whose trials another library keeps."""

    def key(self, values: tuple[Any, ...]) -> Any:
        """Return the values."""
        return values

    def unflatten(self, values: tuple[Any, ...]) -> Any:
        """Return the values."""
        return values

    def to_json_values(self, values: tuple[Any, ...]) -> list[Any]:
        """Return nothing: these points are not stored."""
        return []

    def from_json_values(self, values: Sequence[Any], measured: bool = False) -> tuple[Any, ...]:
        """Return the values."""
        return tuple(values)


class MemoryLedger:
    """The calls of a search whose trials another library keeps; lost with the process."""

    def __init__(self) -> None:
        self.state = State(AnyPoints())

    @property
    def spent(self) -> Usage:
        """What counts against the caps."""
        return self.state.spent

    @property
    def usage(self) -> Usage:
        """What this process spent."""
        return self.state.spent

    def append(self, event: Event) -> State:
        """Reduce an event."""
        state = reduce(self.state, event)
        # The points are the library's: only their number counts here.
        self.state = replace(state, pending=(), queue=())
        return self.state

    def settle(
        self, sources: Sequence[str], rejected: Mapping[str, int], blocks: Sequence[int] = ()
    ) -> None:
        """Count the points of an ask by their sources, and close its replies."""
        new = [{"values": [], "source": source} for source in sources]
        counts = {reason: n for reason, n in rejected.items() if n > 0}
        self.append(Asked(new, 0, blocks, counts))


class Stale(Exception):
    """The repeated ask was another one or is outdated: it starts from the present state instead."""


class ModelCalls:
    """A client with its journal and its caps.

    Args:
        client: The model.
        journal: Where each call is stored before it is sent.
        limits: The caps; assign `limits` to change them.

    Attributes:
        observe: Called with each `Replied` and `Failed` event; must not raise.
        waiting: Returns what is entered while the client is called; ``None`` for nothing.
    """

    def __init__(self, client: Client, journal: Ledger, limits: Limits | None = None) -> None:
        self.client, self.journal, self.limits = client, journal, limits or NO_LIMITS
        self.observe: Callable[[Event], object] | None = None
        self.waiting: Callable[[], AbstractContextManager[object]] | None = None
        self._ready: tuple[int, Client] | None = None  # the process and client that were checked
        self._unsaved: list[Event] = []  # paid for, and not in the journal yet: its disk was full

    @property
    def usage(self) -> Usage:
        """Everything that was spent; calls in doubt count with the most that they can cost."""
        return self.journal.usage

    @property
    def left(self) -> dict[str, float]:
        """The remaining budget under each cap that is set."""
        return self.limits.left(self.journal.spent)

    @property
    def local(self) -> bool:
        """Whether the model runs on this machine, where a call in doubt is free."""
        return bool(getattr(self.client, "local", False))

    def kept(self, calls: Sequence[Called]) -> tuple[int, bool] | None:
        """Return the number of a request that the client keeps, and whether it has an answer."""
        find = getattr(self.client, "kept", None)
        found: tuple[int, bool] | None = find(calls[0].digest) if calls and callable(find) else None
        return found

    @property
    def priced(self) -> bool:
        """Whether the cost of each reply is known."""
        return bool(getattr(self.client, "priced", True))

    def check_ready(self, *, capped: bool = False) -> None:
        """Check once per process that the first request can succeed; sends no request.

        Args:
            capped: Whether caps of 0 are an error.

        Raises:
            BudgetExceededError: A cap allows no request, or `max_cost` cannot be kept.
            LLMOptError, ImportError: See `llmopt.client.base.check_ready`.
        """
        if self._ready == (os.getpid(), self.client):
            return
        if capped:
            self.limits.check(Usage(), 0.0 if self.local else None)
        self.check_priced()  # first: it asks nobody
        if not self.priced and self.limits == NO_LIMITS:
            logger.warning(
                "%s costs requests of a price that is not known, and no cap is set: max_requests= "
                "sets one, and `llmopt estimate` says how many a search takes",
                client_name(self.client),
            )
        check_ready(self.client)
        self._ready = os.getpid(), self.client

    def check_priced(self) -> None:
        """Raise if there is a cap on cost and the price of the model is not known."""
        if self.limits.max_cost is not None and not self.priced:
            raise BudgetExceededError(
                f"max_cost={self.limits.max_cost} cannot be kept: the model's price is not known "
                f"({client_name(self.client)}). Give the client its prices "
                "(price=Price(...), LLMOPT_PRICES, or the package genai-prices), say local=True if "
                "it is free, or cap requests or tokens instead. Nothing was sent"
            )

    def most_cost(self, request: Request) -> float | None:
        """Return the dollars that one call can cost at most; ``None`` if not known."""
        if self.local:
            return 0.0
        most = model_facts(self.client).most_cost
        return None if most is None else most(request)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "observe": None, "_ready": None}

    def note(self, event: Event) -> State:
        """Append what ended a call, and report it; after an error `flush` appends it."""
        self._unsaved.append(event)
        if self.observe is not None:
            self.observe(event)
        return self.flush()

    def flush(self) -> State:
        """Append events that could not be written before, and return the state.

        Raises:
            StorageError: They cannot be written yet; they are kept.
        """
        while self._unsaved:
            self.journal.append(self._unsaved[0])
            del self._unsaved[0]
        return self.journal.state


class Account:
    """What a search spends: the public part of its `ModelCalls` model."""

    _model: ModelCalls

    @property
    def client(self) -> Client:
        """The model."""
        return self._model.client

    @property
    def usage(self) -> Usage:
        """Requests, tokens and cost so far, and the number of points by source (a copy)."""
        return self._model.usage

    @property
    def limits(self) -> Limits:
        """The caps; assign new ones to change them."""
        return self._model.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._model.limits = checked(limits)

    @property
    def left(self) -> dict[str, float]:
        """The remaining budget under each cap that is set: requests, tokens, cost."""
        return self._model.left


class Scope:
    """The calls and runs of one ask, made now or by the ask that an interrupt ended.

    Args:
        owner: The model.
        state: What the ask has seen; an ask that is repeated takes that of the first time.
        repeats: Whether it repeats an ask that was interrupted. If that one sent another request
            first, `complete` raises `Stale`.

    Raises:
        Stale: The ask that is repeated got no reply, its client keeps no request, and something was
            recorded since.

    Attributes:
        state: What the ask has seen.
        client: The model.
        runs: Code that was run for this ask, in order.
        replies: The replies of this ask, in order.
    """

    def __init__(self, owner: ModelCalls, state: State, repeats: bool = False) -> None:
        self._owner, self.state, self.client = owner, state, owner.client
        self._repeats, now = repeats, owner.flush() if repeats else owner.journal.state
        self._since = (now.changes - state.changes) * repeats
        mine = any(paid.base == state.count for paid in now.paid)
        if self._since and now.under_way and not mine and owner.kept(now.under_way) is None:
            owner.note(_lost(now))
            raise Stale
        cap, before = owner.limits.max_requests, state.usage.requests
        if cap is not None:  # of a study, other workers and runs have sent some, too
            before += owner.journal.spent.requests - owner.journal.state.spent.requests
        # That this ask may send: a prompt states it, and interrupted calls since do not change it.
        self._requests = None if cap is None else cap - before
        self._known: list[Run] = [run for run in owner.journal.state.open_runs]
        self._used: set[int] = set()  # numbers of the replies of this ask
        self.runs: list[Run] = []
        self.replies: list[Reply] = []

    @property
    def requests_left(self) -> int | None:
        """What `max_requests` leaves for further requests; ``None`` without it."""
        sent = sum(reply.requests for reply in self.replies)
        return None if self._requests is None else max(0, self._requests - sent)

    @property
    def outdated(self) -> bool:
        """Whether results were recorded that this ask has not seen, and no reply is left to use.

        A request that the client keeps is one to use: its answer may wait.
        """
        owner, now = self._owner, self._owner.journal.state
        if owner.kept(now.under_way) or any(paid.number not in self._used for paid in now.paid):
            return False
        return bool(self.replies) and now.trials != self.state.trials

    @property
    def blocks(self) -> list[int]:
        """The numbers of the runs that are blocks of Python, in order."""
        return [run.number for run in self.runs if run.event.block]

    @property
    def limits(self) -> Limits:
        """The caps, as they are now."""
        return self._owner.limits

    def complete(self, request: Request) -> Reply:
        """Return the reply to a request: of the journal, or of the model.

        Raises:
            BudgetExceededError: A cap is reached.
            ClientError: The model could not be asked.
            SearchStopped: The time of the search is over.
            StorageError: The journal cannot be written.
            Stale: Nothing is known of the ask that is repeated.
        """
        owner, digest = self._owner, request.digest()
        state = owner.flush()
        for paid in state.paid:
            if paid.digest == digest and paid.number not in self._used:
                self._used.add(paid.number)
                self.replies.append(paid.reply)
                self._say_outdated()
                return paid.reply
        in_doubt = state.under_way
        again = bool(in_doubt) and in_doubt[0].digest == digest  # it may be answered by now
        if in_doubt:
            lost, kept = _lost(state), owner.kept(in_doubt)
            if again:
                self._say_outdated()
                if callable(getattr(self.client, "kept", None)):
                    lost = replace(lost, requests=0)  # the same request in the same place waits
            elif kept is not None and kept[1]:
                warn_of_unused(f"answer {kept[0]}", same=self.state.trials == state.trials)
            owner.note(lost)
        if self._repeats and not (self._used or again):
            raise Stale
        self._known.clear()  # of an ask that took another way
        owner.check_priced()
        reply = self._send(request, digest)
        self.replies.append(reply)
        return reply

    def _say_outdated(self) -> None:
        """Log once that the ask that is repeated does not state what was recorded since."""
        since, self._since = self._since, 0
        if since:
            number, answered = self._owner.kept(self._owner.journal.state.under_way) or (0, True)
            logger.warning(
                "repeats an interrupted ask; results or changes recorded after its request was "
                "written: %d%s", since, "" if answered else
                f". To send a new one, stop this ask, remove the files of request {number} from "
                f"{client_name(self.client)}, and repeat the ask",
            )  # fmt: skip

    def _send(self, request: Request, digest: str) -> Reply:
        owner, client = self._owner, self.client
        most, doubt = owner.most_cost(request), int(not owner.local)
        tokens, priced, began = estimate_tokens(request.text) * doubt, owner.priced, 0.0
        limit = owner.limits.max_requests

        def call(request: Request) -> Reply:
            nonlocal began
            if owner.limits != NO_LIMITS:  # a study's calls take time to read
                owner.limits.check(owner.journal.spent, most)
            owner.journal.append(Called(digest, self.state.count, most, doubt, tokens, priced))
            began = time.monotonic()
            try:
                with (owner.waiting or nullcontext)():
                    return client.complete(request)
            except ClientError:
                raise
            except (LLMOptError, ImportError):  # nothing was sent
                owner.note(Failed())
                raise

        def failed(error: ClientError) -> None:
            cost = None if error.unpriced and not priced else error.cost or 0.0
            spent = error.requests, error.unpriced, cost, error.estimated
            charged = tokens if error.unpriced or error.estimated else 0
            took = round(time.monotonic() - began, 3)
            owner.note(Failed(*spent, str(error)[:1000], charged, took))
            if error.retryable and (error.unpriced or error.estimated):
                owner.limits.check(owner.journal.spent, most)  # before it is sent once more

        calls = None if limit is None else limit - owner.journal.spent.requests
        reply = complete_with_retries(
            client, request, call=call, most_calls=calls, on_failure=failed
        )
        if not isinstance(reply, Reply):
            raise TypeError(
                f"{client_name(client)}.complete returned {a_type(reply)}: "
                "expected a llmopt.Reply, such as Reply((Completion(text),))"
            )
        state = owner.note(Replied(digest, reply.counted(request).to_dict()))
        paid = state.paid[-1]
        self._used.add(paid.number)
        return paid.reply

    def run(
        self, code: str, run: Callable[[], Json], *, block: bool = True, tokens: int = 0
    ) -> Mapping[str, Any]:
        """Return the result of code: of the journal if it ran already, else of `run`.

        Args:
            code: The code.
            run: Runs it, and returns its result as JSON.
            block: Whether it is a block of Python, which counts in `Usage.blocks`.
            tokens: Of the request that was answered by it.
        """
        while self._known and self._known[0].event.code != code:
            self._known.pop(0)  # of an answer that was dropped
        if self._known:
            known = self._known.pop(0)
        else:
            recorded = getattr(self.client, "replay_block", None) if block else None
            result = recorded(code) if recorded is not None else None
            result = run() if result is None else result
            seconds = float(result.get("seconds", 0.0)) if block else 0.0
            event = Computed(code, dict(result), seconds, tokens, block)
            known = self._owner.journal.append(event).open_runs[-1]
            if block and (record := getattr(self.client, "record_block", None)) is not None:
                record(dict(result))
        self.runs.append(known)
        return known.event.result


def warn_of_unused(answer: str, same: bool) -> None:
    """Log a warning that an answer to a killed ask is dropped now.

    While the trials are the `same`, that ask sends its requests again if it is repeated.
    """
    logger.warning(
        "%s is not used: this ask differs from the one that was killed, in its options or the "
        "candidates%s", answer, ". To use the answer, end this ask and repeat that one" * same,
    )  # fmt: skip


def _lost(state: State) -> Failed:
    """Return the failure of calls in doubt: they count with the most that they can cost."""
    before, after = state.usage, state.spent
    return Failed(
        after.requests - before.requests,
        after.unpriced - before.unpriced,
        None if before.cost is None or after.cost is None else after.cost - before.cost,
        after.estimated - before.estimated,
        error="the call was interrupted",
        prompt_tokens=after.prompt_tokens - before.prompt_tokens,
    )
