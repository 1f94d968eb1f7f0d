"""The common part of all providers' clients; each provider adds a few short methods."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar, get_args

from llmopt.client.base import FinishReason, Reply, Request, Style
from llmopt.client.http.api_keys import Secret, find_key, redact
from llmopt.client.http.endpoint import LISTS, SCHEMAS, Documented, Endpoint, Server
from llmopt.client.http.faults import Fault, MalformedBody, joined, sdk_fault, transport_fault
from llmopt.client.http.refusals import ROOM, SCHEMA_FIELDS, Change, Learned
from llmopt.client.http.request_form import WORTH_CACHING
from llmopt.client.http.transport import (
    CONNECT_SECONDS,
    Bound,
    RateLimiter,
    check_url,
    http_options,
    load,
    unlogged,
)
from llmopt.client.model_facts import ModelFacts, chat_prompt, size_in_name
from llmopt.client.payment import note_paid, priced, take_call
from llmopt.client.prices import Price, get_price
from llmopt.errors import (
    BudgetExceededError,
    ClientError,
    MissingKeyError,
    ModelNotFoundError,
    RefusedKeyError,
)
from llmopt.util.arguments import number, one_of, whole_number
from llmopt.util.text import estimate_tokens, first_line
from llmopt.util.threads import DeadlineExceeded, Lock, at_once, within

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 600.0
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Cache = Literal["short", "long", "off"]
Structured = bool | Literal["auto"]
DEADLINE = 5
"""Maximum duration of a whole call, in multiples of the timeout."""
ASIDE_SECONDS = 10.0
"""Timeout of a free request, such as a list of models; the whole answer has twice as long."""
_ASIDE = Bound()
_MOST_TOKENS = 2**17  # of an answer without a cap
_Result = Reply | ClientError | BudgetExceededError
_Came = TypeVar("_Came")


@dataclass(frozen=True, repr=False)
class Connection:
    """An SDK's client for one key, address and process."""

    process: int
    key: Secret
    endpoint: Endpoint
    sdk: Any

    def error(self, fault: Fault, name: str, timeout: float) -> ClientError:
        """Return the exception to raise for a fault."""
        here = self.endpoint
        return fault.error(
            name=name,
            timeout=DEADLINE * timeout if fault.kind == "deadline" else timeout,
            variables=here.variables,
            secrets=(self.key,),
            where="" if here.usual and not here.local else here.url,
        )


class RemoteClient:
    """A client for a hosted model; use one of its subclasses. docs/model-options.md lists options.

    Nothing is imported, read or sent before the first request. The API key is looked up
    at every request: the `api_key` argument first, then the environment. It is in no
    ``repr``, log, exception, completion or pickle; a pickled client loses its `api_key` argument
    and reads the environment instead. A deep copy keeps the key.

    The SDK's own retries are off: a failed call raises a `ClientError` with ``retryable`` and
    ``retry_after``, and the caller has the only retry loop. Redirections are not followed, and
    this machine is not reached through a proxy.

    Refusals, filtered and truncated answers are completions with that `Completion.finish_reason`.
    An empty answer is a completion with empty text and ``"stop"``: it was paid for and counts. A
    reply without any completion is malformed, hence retryable.

    A parameter that the model rejects is dropped from then on, with one warning, and a cap on the
    answer that is too large is lowered; see `llmopt.client.http.refusals`. Every provider counts
    hidden reasoning against the cap, so `reasoning_tokens` are added to `Request.max_tokens`.
    """

    provider: ClassVar[str]
    package: ClassVar[str]
    """The extra of llmopt that installs the SDK."""
    module: ClassVar[str]
    """The SDK's module."""
    home: ClassVar[Server]
    """The provider's own server, unless `_endpoint` resolves another one."""
    samples_per_call: ClassVar[int]
    """Maximum samples of one call."""
    default_cap: ClassVar[int | None] = None
    """Cap on an answer's tokens if the request has none and the protocol requires one."""
    fields: ClassVar[Mapping[str, str]] = {}
    """The parameter for each field name that the provider uses in errors."""
    style: Style = "chat"

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,  # by default from the environment
        base_url: str | None = None,  # another address with the same protocol
        timeout: float = DEFAULT_TIMEOUT,  # seconds without a byte; a call may take five times that
        requests_per_minute: int | None = None,
        concurrency: int = 8,  # maximum simultaneous calls for the samples of a request
        price: Price | None = None,  # takes precedence over `llmopt.client.prices`
        effort: Effort | None = None,  # of reasoning; ``None`` leaves the model's default
        cache: Cache = "short",  # how long the provider keeps a prefix, if it can be chosen
        reasoning_tokens: int | None = None,  # in addition to `Request.max_tokens`
        transport_attempts: int = 4,  # sends of one request before its failure is final
        patience: float = 300.0,  # seconds to wait for a provider that answers 429, 503 or 529
        structured: Structured = "auto",  # JSON with a schema; "auto": if documented
        extra_body: Mapping[str, Any] | None = None,  # merged into the request; never a key
    ) -> None:
        if not model:
            raise ValueError(f"{type(self).__name__} needs a model name and got {model!r}")
        if not 0 < number("timeout", timeout):
            raise ValueError(f"timeout={timeout}: expected a finite number of seconds above 0")
        number("patience", patience, 0.0)
        whole_number("concurrency", concurrency, 1)
        whole_number("transport_attempts", transport_attempts, 1)
        whole_number("reasoning_tokens", reasoning_tokens or 0, 0)
        one_of("effort", effort, (None, *get_args(Effort)))
        one_of("cache", cache, get_args(Cache))
        one_of("structured", structured, (True, False, "auto"))
        self.model = model
        self.name = f"{self.provider}:{model}"
        self.base_url = check_url(base_url) if base_url else None
        self.timeout = timeout
        self.concurrency = concurrency
        self.price = price
        self.effort = effort
        self.cache = cache
        self.reasoning_tokens = reasoning_tokens
        self.transport_attempts = transport_attempts
        self.patience = patience
        self.structured = structured
        self.extra_body = dict(extra_body or {})
        self._key = Secret(api_key)
        self._limiter = RateLimiter(requests_per_minute)
        self._learned = Learned(self.samples_per_call)
        self._ready = False
        self._connection: Connection | None = None
        self._lock = Lock()

    # For subclasses.

    def _endpoint(self) -> Endpoint:
        """Return the endpoint, by the current arguments and environment."""
        return self.home.endpoint(self.base_url)

    def _connect(self, key: Secret, endpoint: Endpoint) -> Any:
        """Import the SDK and return its client object."""
        raise NotImplementedError

    def _parameters(self, request: Request) -> dict[str, Any]:
        """Return the optional parameters of one call, by their wire names; ``None`` is dropped."""
        raise NotImplementedError

    def _send(self, sdk: Any, request: Request, parameters: dict[str, Any]) -> Reply:
        """Make one call; `_fault` interprets its exceptions."""
        raise NotImplementedError

    def _fault(self, error: Exception) -> Fault | None:
        """Return the fault of an exception of the SDK; ``None`` for other exceptions."""
        return sdk_fault(load(self.module, self.package), error)

    def _missing(self, sdk: Any, endpoint: Endpoint) -> str:
        """Look the model up, free of charge; return a message if it does not exist, or ``""``.

        `_fault` interprets exceptions. Only a rejected key, an unreachable server, and, if the
        server `LISTS` its models, a missing model stop the search.
        """
        return ""

    # Common to all.

    @property
    def where(self) -> Endpoint:
        """Where requests go: the endpoint of the open connection, if there is one."""
        connected = self._connection
        return self._endpoint() if connected is None else connected.endpoint

    @property
    def key_variables(self) -> tuple[str, ...]:
        """Environment variables of the API key, in order."""
        return self.where.variables

    @property
    def context_tokens(self) -> int | None:
        """Maximum tokens of prompt and completion together, or ``None`` if unknown."""
        return self._learned.context_tokens

    @property
    def marks_cache(self) -> bool:
        """Whether llmopt marks the end of cached prefixes for this provider."""
        return False

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that change the answers, besides `name` and the request; part of a cache key."""
        return {"extra_body": self.extra_body} | ({"effort": self.effort} if self.effort else {})

    @property
    def default_prompt(self) -> str:
        """The prompt that suits the model."""
        return chat_prompt(size_in_name(self.name)) if self.style == "chat" else "props"

    def facts(self) -> ModelFacts:
        """Return the facts of the model; its context may be known only after the first answer."""
        style: Style = "completion" if self.style == "completion" else "chat"
        chats = style == "chat"
        schema = chats and not self._learned.refused & SCHEMA_FIELDS
        return ModelFacts(
            name=self.name,
            style=style,
            chats=chats,
            context_tokens=self.context_tokens,
            default_prompt=self.default_prompt,
            parameters=size_in_name(self.name),
            schema=schema,
            structured=schema
            and (SCHEMAS in self.where.documents if self.structured == "auto" else self.structured),
        )

    @property
    def priced(self) -> bool:
        """Whether the cost of a reply will be known."""
        return self.current_price() is not None

    def current_price(self) -> Price | None:
        """Return the current price of tokens, or ``None`` if it is unknown."""
        return self.price or get_price(self.name)

    def check_ready(self) -> None:
        """Check key and package, and look the model up once if this is free.

        If the server is slow or the key may not list models, the first request is the check.
        """
        self.current_price()
        connection = self._connected()
        if not self._ready:
            failure = self._look(connection)
            if failure is not None:
                failure.requests = failure.unpriced = 0
                raise failure
            self._ready = True

    def _look(self, connection: Connection) -> ClientError | None:
        """Return an error that is sure to stop the first request, or ``None``."""
        endpoint = connection.endpoint
        came = self._guarded(2 * ASIDE_SECONDS, partial(self._missing, connection.sdk, endpoint))
        if not isinstance(came, Fault):
            return ModelNotFoundError(redact(came, (connection.key,))) if came else None
        failure = connection.error(came, self.name, self.timeout)
        sure = isinstance(failure, RefusedKeyError) or (
            isinstance(failure, ModelNotFoundError) and LISTS in endpoint.documents
        )
        no_server = came.kind == "connection" and not came.unpriced
        return failure if sure or no_server else None

    def complete(self, request: Request) -> Reply:
        """Answer one request, with as many calls as its samples need; some of them may fail."""
        connection = self._connected()
        # If prices cannot be read, fail before a request is sent.
        price = self.current_price()
        started = time.monotonic()  # after the import of the SDK, which takes seconds
        per_call = self._learned.samples_per_call
        counts = [per_call] * (request.n // per_call) + [request.n % per_call]
        call = partial(self._call, connection, price)
        results = self._run(call, request, [c for c in counts if c])
        short = request.n - sum(len(r.completions) for r in results if isinstance(r, Reply))
        if short > 0 and per_call > 1 and _complied(results):
            # The server ignored or rejected `n`: ask for one sample per call.
            self._learned.samples_per_call = 1
            logger.info(
                "%s returns one sample per call; requesting the others separately", self.name
            )
            results += self._run(call, request, [1] * short, first_sample=request.n - short)
        answers = [r for r in results if isinstance(r, Reply)]
        failures = [r for r in results if isinstance(r, ClientError)]
        if not answers and failures:
            raise joined(failures)
        if not answers:
            raise next(r for r in results if isinstance(r, BudgetExceededError))
        for failure in failures:
            logger.warning("%s: one of %d calls failed: %s", self.name, len(results), failure)
        self._warn_of_room(request, answers)
        return self._reply(answers, failures, time.monotonic() - started)

    def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        with self._lock:
            connected, self._connection = self._connection, None
        if connected is not None and hasattr(connected.sdk, "close"):
            connected.sdk.close()

    def _connected(self) -> Connection:
        """Return the connection; a fork, another key or another address needs a new one."""
        end = self._endpoint()
        try:
            key = find_key(self._key, end.variables, name=self.name, required=end.needs_key)
            if end.trouble:
                kind = MissingKeyError if end.lacking else ClientError
                raise kind(f"{self.name}: {end.trouble}", requests=0)
        except MissingKeyError as error:
            try:
                load(self.module, self.package)
            except ImportError as absent:  # report both problems together
                raise MissingKeyError(f"{error}; and {absent}", requests=0) from None
            raise
        with self._lock:
            made = self._connection
            if made is None or (made.process, made.key, made.endpoint) != (os.getpid(), key, end):
                made = Connection(os.getpid(), key, end, self._connect(key, end))
                self._connection = made
            return made

    def _http(self, sdk: Any, url: str) -> dict[str, Any]:
        """Return the arguments that make an OpenAI-like SDK's HTTP client follow our rules."""
        return {
            "max_retries": 0,
            "timeout": sdk.Timeout(self.timeout, connect=min(self.timeout, CONNECT_SECONDS)),
            "http_client": sdk.DefaultHttpxClient(**http_options(url)),
        }

    def _run(
        self,
        call: Callable[[Request], _Result],
        request: Request,
        counts: list[int],
        first_sample: int = 0,
    ) -> list[_Result]:
        """Make one call for each of `counts`; failures are returned, not raised."""

        def one(position: int) -> _Result:
            sample = first_sample + sum(counts[:position])
            seed = None if request.seed is None else request.seed + sample
            return call(replace(request, n=counts[position], seed=seed))

        if len(counts) == 1:
            return [one(0)]
        first: list[_Result] = []
        kept = self.marks_cache and self.cache != "off"
        if kept and len(request.text) >= WORTH_CACHING:
            # The other calls can read what the first one wrote to the cache.
            first = [one(0)]
            if not isinstance(first[0], Reply):
                return first
        return first + at_once(one, range(len(first), len(counts)), self.concurrency)

    def _call(self, connection: Connection, price: Price | None, request: Request) -> _Result:
        """Make one call; if it is rejected, change the request and repeat it. Each call is paid."""
        key = connection.key
        request = replace(request, max_tokens=self._cap(request))
        tried: list[Change] = []
        failure: ClientError | None = None
        first: ClientError | None = None
        fault: Fault | None = None
        calls = 0
        while True:
            change = tried[-1] if tried else Change()
            cap = request.max_tokens if change.cap is None else change.cap
            asked = replace(request, max_tokens=cap)
            parameters = self._parameters(asked).items()
            refused = self._learned.refused
            offered = {n: v for n, v in parameters if v is not None and n not in refused}
            sent = {n: v for n, v in offered.items() if n not in change.without}
            self._limiter.wait()
            try:
                take_call()
            except BudgetExceededError as error:
                return failure or error
            calls += 1
            came = self._attempt(connection, asked, sent, price)
            if isinstance(came, Reply):
                if fault is not None:
                    self._keep(change, fault, key)
                note_paid(came.tokens, came.cost)
                return replace(came, requests=calls)
            fault = came
            failure = connection.error(fault, self.name, self.timeout)
            self._bound(failure, asked, price, connection.endpoint.local)
            first = first or failure
            first.requests = failure.requests = calls
            step = self._learned.change(fault, request, offered, self.fields, tried)
            if step is None:
                if tried and not tried[-1].named:
                    self._learned.give_up()
                    return first
                return failure
            if step.named and step.without:
                self._keep(step, fault, key)
            tried.append(step)

    def _attempt(
        self,
        connection: Connection,
        request: Request,
        parameters: dict[str, Any],
        price: Price | None,
    ) -> Reply | Fault:
        """Send one call, and price its reply."""
        tells_cost = Documented.COST in connection.endpoint.documents

        def call() -> Reply:
            answer = self._send(connection.sdk, request, dict(parameters))
            return priced(answer, request, price, tells_cost, connection.key)

        tokens = _MOST_TOKENS if request.max_tokens is None else request.max_tokens
        bound = Bound.of_answer(tokens * request.n)
        return self._guarded(DEADLINE * self.timeout, call, bound)

    def _guarded(
        self, seconds: float, call: Callable[[], _Came], bound: Bound = _ASIDE
    ) -> _Came | Fault:
        """Call the SDK; turn its exceptions, which contain headers, into faults."""
        try:
            with unlogged(bound):
                return within(seconds, call)
        except DeadlineExceeded:
            return Fault("deadline")
        except MalformedBody as error:
            return Fault("malformed", str(error))
        except Exception as error:
            other = Fault("other", f"{type(error).__name__}: {first_line(error)}")
            return self._fault(error) or transport_fault(error) or other

    def _bound(
        self, failure: ClientError, request: Request, price: Price | None, local: bool
    ) -> None:
        """Count the maximum cost for a failed call that may be charged, if its price is known."""
        if local:
            failure.unpriced = 0
        elif failure.unpriced and price is not None:
            answer = (request.max_tokens or _MOST_TOKENS) * request.n
            most = price.cost(estimate_tokens(request.text), answer)
            if most is not None:
                failure.unpriced, failure.estimated, failure.cost = 0, 1, most
                note_paid(0, most)

    def _keep(self, change: Change, fault: Fault, key: Secret) -> None:
        for parameter in sorted(self._learned.keep(change)):
            logger.warning(
                "%s rejects the parameter `%s`%s; it is no longer sent (%s)",
                self.name, parameter, "" if change.named else " or another one",
                fault.said((key,), 200),
            )  # fmt: skip
        if change.cap is not None:
            logger.info("%s answers with at most %d tokens", self.name, change.cap)

    def _cap(self, request: Request) -> int | None:
        """Return the maximum tokens of one sample, including hidden ones."""
        cap, most = self.default_cap, self._learned.most_tokens
        if request.max_tokens is not None:
            reasons = self.effort not in (None, "none") or not self.where.local
            room = ROOM if reasons else 0
            if self.reasoning_tokens is not None:
                room = self.reasoning_tokens
            cap = request.max_tokens + (0 if request.style == "completion" else room)
        return cap if cap is None or most is None else min(cap, most)

    def _warn_of_room(self, request: Request, answers: list[Reply]) -> None:
        cap = self._cap(request)
        samples = [c for a in answers for c in a.completions]
        starved = any(c.finish_reason == "length" and not c.text.strip() for c in samples)
        if starved and cap is not None and request.style != "completion":
            logger.warning(
                "%s used up all %d tokens before it wrote an answer: raise reasoning_tokens=",
                self.name, cap,
            )  # fmt: skip

    def _reply(self, answers: list[Reply], failures: list[ClientError], seconds: float) -> Reply:
        known = [a.cost for a in answers if a.cost is not None]
        lost = sum(f.cost for f in failures)
        return Reply(
            completions=tuple(c for a in answers for c in a.completions),
            model=answers[0].model or self.model,
            prompt_tokens=sum(a.prompt_tokens or 0 for a in answers),
            cached_tokens=sum(a.cached_tokens for a in answers),
            completion_tokens=sum(a.completion_tokens or 0 for a in answers),
            seconds=seconds,
            cost=sum(known) + lost if len(known) == len(answers) else None,
            requests=sum(a.requests for a in answers) + sum(f.requests for f in failures),
            unpriced=sum(f.unpriced for f in failures),
            estimated=sum(a.estimated for a in answers) + sum(f.estimated for f in failures),
            written_tokens=sum(a.written_tokens for a in answers),
            written_long_tokens=sum(a.written_long_tokens for a in answers),
        )

    def __repr__(self) -> str:
        where = f", base_url={self.base_url!r}" if self.base_url else ""
        return f"{type(self).__name__}({self.model!r}{where})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}


def _complied(results: list[_Result]) -> bool:
    """Whether all calls returned valid samples, even if too few."""
    return all(
        isinstance(r, Reply) and all(c.finish_reason in ("stop", "length") for c in r.completions)
        for r in results
    )


def finish(reason: object, table: Mapping[str, FinishReason]) -> FinishReason:
    """Translate a provider's finish reason; ``"stop"`` if it is not in `table`."""
    return table.get(str(reason or "").rsplit(".", 1)[-1].upper(), "stop")
