"""The common part of all hosted models' clients; each provider adds a few short methods."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar, get_args

from llmopt.client.base import Completion, FinishReason, Reply, Request
from llmopt.client.http.api_keys import Secret, find_key, redact
from llmopt.client.http.endpoint import LISTS, SCHEMAS, Documented, Endpoint, Server
from llmopt.client.http.faults import Fault, raise_if_error, sdk_fault
from llmopt.client.http.refusals import ROOM, SCHEMA_FIELDS, Learned
from llmopt.client.http.transport import (
    ASIDE_BYTES,
    ASIDE_SECONDS,
    CONNECT_SECONDS,
    answer_bytes,
    bounded,
    http_options,
    load,
    usable_environment,
)
from llmopt.client.http.urls import check_url, is_local
from llmopt.client.model_facts import ModelFacts, chat_prompt, size_in_name
from llmopt.client.payment import priced
from llmopt.client.prices import Price, get_price, most_prompt_tokens
from llmopt.errors import (
    ClientError,
    MissingKeyError,
    ModelNotFoundError,
    RefusedKeyError,
)
from llmopt.util.arguments import number, one_of, whole_number
from llmopt.util.text import first_line, short
from llmopt.util.threads import SEARCH_DEADLINE, Lock

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 600.0
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Cache = Literal["short", "long", "off"]
Structured = bool | Literal["auto"]
DEADLINE = 5
"""Maximum duration of a whole call, in multiples of the timeout."""
_MOST_TOKENS = 2**17  # of an answer without a cap
_FILTERED = ("content_filter", "content_policy_violation")
_ASIDE_END = 2 * ASIDE_SECONDS
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, repr=False)
class Connection:
    """An SDK's client for one key, address and process."""

    process: int
    key: Secret
    endpoint: Endpoint
    sdk: Any

    def get(self, path: str, seconds: float | None = None) -> Any:
        """Return the body at a path or an address, free of charge (OpenAI and Anthropic)."""
        return self.sdk.get(path, cast_to=object, options={"timeout": seconds or ASIDE_SECONDS})


class RemoteClient:
    """A client for a hosted model; use one of its subclasses. docs/model-options.md lists options.

    Nothing is imported, read or sent before the first request. The API key is looked up
    at every request: the `api_key` argument first, then the environment. It is in no
    ``repr``, log, exception, completion or pickle; a pickled client loses its `api_key` argument
    and reads the environment instead. A deep copy keeps the key.

    A failed call raises a `ClientError` with ``retryable`` and ``retry_after``; the caller has the
    only retry loop. Refusals, filtered and truncated answers are completions with that
    `Completion.finish_reason`. An empty answer is a completion with empty text: it was paid for.

    A parameter that the model rejects is dropped from then on, with one warning, and a cap on the
    answer that is too large is lowered: the error is then `adapted`, and the next call may succeed;
    see `llmopt.client.http.refusals`. Every provider counts
    hidden reasoning against the cap, so `reasoning_tokens` are added to `Request.max_tokens`.
    """

    provider: ClassVar[str]
    package: ClassVar[str]
    """The extra of llmopt that installs the SDK."""
    module: ClassVar[str]
    """The SDK's module."""
    home: ClassVar[Server]
    """The provider's own server, unless `_endpoint` resolves another one."""
    default_cap: ClassVar[int | None] = None
    """Cap on an answer's tokens if the request has none and the protocol requires one."""
    fields: ClassVar[Mapping[str, str]] = {}
    """The parameter for each field name that the provider uses in errors."""

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,  # by default from the environment
        base_url: str | None = None,  # another address with the same protocol
        timeout: float = DEFAULT_TIMEOUT,  # seconds without a byte; a call may take five times that
        price: Price | Mapping[str, Any] | None = None,  # before the lists
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
        whole_number("transport_attempts", transport_attempts, 1)
        whole_number("reasoning_tokens", reasoning_tokens or 0, 0)
        for name, value in (("price", price), ("extra_body", extra_body)):
            if not isinstance(value, Mapping | Price | None):
                raise TypeError(f"{name}={short(value)}: expected a mapping, in JSON an object")
        one_of("effort", effort, (None, *get_args(Effort)))
        one_of("cache", cache, get_args(Cache))
        one_of("structured", structured, (True, False, "auto"))
        self.model = model
        self.name = f"{self.provider}:{model}"
        self.base_url = check_url(base_url) if base_url else None
        self.timeout = timeout
        self.price = Price(**price) if isinstance(price, Mapping) else price
        self.effort = effort
        self.cache = cache
        self.reasoning_tokens = reasoning_tokens
        self.transport_attempts = transport_attempts
        self.patience = patience
        self.structured = structured
        self.extra_body = dict(extra_body or {})
        self._key = Secret(api_key)
        self._learned = Learned(self.name)
        self._refusal = ""  # the latest, in the server's words
        self._ready = False
        self._connection: Connection | None = None
        self._lock = Lock()

    # For subclasses.

    def _endpoint(self) -> Endpoint:
        """Return the endpoint, by the current arguments and environment."""
        return self.home.endpoint(self.base_url)

    def _connect(self, key: Secret, endpoint: Endpoint) -> Any:
        """Import the SDK and return its client object, which may have ``close()``."""
        raise NotImplementedError

    def _parameters(self, request: Request) -> dict[str, Any]:
        """Return the optional parameters of one call, by their wire names; ``None`` is dropped."""
        raise NotImplementedError

    def _events(self, sdk: Any, request: Request, parameters: dict[str, Any]) -> Iterator[Any]:
        """Make one call; yield the events of its stream, or its one body, as mappings."""
        raise NotImplementedError

    def _read(self, events: list[Any]) -> Reply:
        """Return the answer in the events of a stream, or in the one body of another answer.

        A `LookupError`, `TypeError`, `ValueError` or `AttributeError` means a malformed answer.
        """
        raise NotImplementedError

    def _missing(self, connection: Connection) -> str:
        """Look the model up, free of charge; return a message if it does not exist, or ``""``.

        Only a rejected key, an unreachable server, and, if the server `LISTS` its models, a
        missing model stop the search.
        """
        return ""

    def _http(self, sdk: Any, url: str) -> dict[str, Any]:
        """Return the arguments of the SDKs of OpenAI and Anthropic that follow our rules."""
        return {
            "base_url": url,
            "max_retries": 0,
            "timeout": sdk.Timeout(self.timeout, connect=min(self.timeout, CONNECT_SECONDS)),
            "http_client": sdk.DefaultHttpxClient(**http_options(url)),
        }

    # Common to all.

    @property
    def where(self) -> Endpoint:
        """Where requests go: the endpoint of the open connection, if there is one."""
        opened = self._connection
        return self._endpoint() if opened is None else opened.endpoint

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
    def default_prompt(self) -> str:
        """The prompt that suits the model."""
        return chat_prompt(size_in_name(self.name))

    def facts(self) -> ModelFacts:
        """Return the facts of the model; its context may be known only after the first answer."""
        schema = not self._learned.without & SCHEMA_FIELDS
        documented = SCHEMAS in self.where.documents
        return ModelFacts(
            name=self.name,
            context_tokens=self.context_tokens,
            default_prompt=self.default_prompt,
            parameters=size_in_name(self.name),
            schema=schema,
            structured=schema and (documented if self.structured == "auto" else self.structured),
            most_cost=self.most_cost,
        )

    @property
    def priced(self) -> bool:
        """Whether the cost of a reply will be known."""
        return self.current_price() is not None

    def current_price(self) -> Price | None:
        """Return the current price of tokens, or ``None`` if it is unknown."""
        return self.price or get_price(self.name)

    def most_cost(self, request: Request) -> float | None:
        """Return the most US dollars that a request can cost; see `llmopt.client.prices`."""
        cap = self._cap(request)
        return self._most_cost(replace(request, max_tokens=cap), self.current_price())

    def _most_cost(self, request: Request, price: Price | None) -> float | None:
        """Return the most that a request with its final cap can cost."""
        if price is None:
            return None
        prompt = most_prompt_tokens(request)
        if price.maximum(prompt, 0) is None:  # a longer prompt has another, unknown price
            return None
        return replace(price, up_to=None).maximum(prompt, request.max_tokens or _MOST_TOKENS)

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
        message = self._guarded(lambda: self._missing(connection))
        if not isinstance(message, Fault):
            return ModelNotFoundError(redact(message, (connection.key,))) if message else None
        failure = self._error(message, connection)
        sure = isinstance(failure, RefusedKeyError) or (
            isinstance(failure, ModelNotFoundError) and LISTS in connection.endpoint.documents
        )
        no_server = message.kind == "connection" and not message.unpriced
        return failure if sure or no_server else None

    def complete(self, request: Request) -> Reply:
        """Answer one request with one call."""
        connection = self._connected()
        # If prices cannot be read, fail before the request is sent.
        price = self.current_price()
        began = time.monotonic()
        learned, least = self._learned, request.max_tokens
        guess = learned.guess
        request = replace(request, max_tokens=self._cap(request))
        parameters = self._parameters(request).items()
        sent = {n: v for n, v in parameters if v is not None and n not in learned.without}
        result = self._attempt(connection, request, sent, price)
        if isinstance(result, Fault):
            failure = self._error(result, connection)
            self._bound(failure, request, price, connection.endpoint.local)
            self._refusal = said = result.said((connection.key,), 200)
            caps = request.max_tokens, least
            wrong = type(failure) is not ClientError  # such as a key that was answered with 400
            if not wrong and learned.change(result, said, guess, sent, caps, self.fields):
                failure.retryable = failure.adapted = True
            raise failure
        learned.accept(guess, self._refusal)
        self._warn_of_room(request, result.completions[0])
        return replace(result, model=result.model or self.model, seconds=time.monotonic() - began)

    def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        with self._lock:
            opened, self._connection = self._connection, None
        if opened is not None and hasattr(opened.sdk, "close"):
            opened.sdk.close()

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
            opened = self._connection
            if opened is None or (opened.process, opened.key, opened.endpoint) != (
                os.getpid(), key, end,
            ):  # fmt: skip
                load(self.module, self.package)
                with usable_environment(not is_local(end.url)):
                    opened = Connection(os.getpid(), key, end, self._connect(key, end))
                self._connection = opened
            return opened

    def _attempt(
        self,
        connection: Connection,
        request: Request,
        parameters: dict[str, Any],
        price: Price | None,
    ) -> Reply | Fault:
        """Send one call, and price its reply."""
        reports_cost = Documented.COST in connection.endpoint.documents

        def call() -> Reply:
            events = []
            try:
                for event in self._events(connection.sdk, request, dict(parameters)):
                    raise_if_error(event)
                    events.append(event)
                if not events:
                    raise Fault("malformed", "the answer is empty")
                answer = self._read(events)
            except Exception as error:
                fault = sdk_fault(error)
                if fault is None or fault.code not in _FILTERED:
                    raise
                answer = Reply((Completion("", "filter"),))
            return priced(answer, request, price, reports_cost, connection.key)

        tokens = _MOST_TOKENS if request.max_tokens is None else request.max_tokens
        seconds = min(DEADLINE * self.timeout, SEARCH_DEADLINE.get().left)
        return self._guarded(call, answer_bytes(tokens), seconds)

    def _guarded(
        self, call: Callable[[], _Answer], size: int = ASIDE_BYTES, seconds: float = _ASIDE_END
    ) -> _Answer | Fault:
        """Return the result of a call within limits, or the fault for what it raises."""
        with bounded(size, seconds) as bound:
            try:
                return call()
            except Exception as error:
                fault = sdk_fault(error)
                if fault is None or (fault.kind == "malformed" and not bound.answered):
                    # Such as an argument that this release of the SDK does not take.
                    fault = Fault("other", f"{type(error).__name__}: {first_line(error)}")
                return fault

    def _error(self, fault: Fault, connection: Connection) -> ClientError:
        """Return the exception to raise for a fault."""
        endpoint = connection.endpoint
        return fault.error(
            name=self.name,
            timeout=self.timeout * (DEADLINE if fault.kind == "deadline" else 1),
            variables=endpoint.variables,
            key=connection.key,
            where="" if endpoint.fixed and not endpoint.local else endpoint.url,
        )

    def _bound(
        self, failure: ClientError, request: Request, price: Price | None, local: bool
    ) -> None:
        """Count the maximum cost for a failed call that may be charged, if its price is known."""
        if local:
            failure.unpriced = 0
        elif failure.unpriced:
            most = self._most_cost(request, price)
            if most is not None:
                failure.unpriced, failure.estimated, failure.cost = 0, 1, most

    def _cap(self, request: Request) -> int | None:
        """Return the maximum tokens of an answer, including hidden ones."""
        cap = self.default_cap
        if request.max_tokens is not None:
            reasons = self.effort not in (None, "none") or not self.where.local
            room = ROOM if reasons else 0
            if self.reasoning_tokens is not None:
                room = self.reasoning_tokens
            cap = request.max_tokens + room
        return self._learned.cap(cap, request)

    def _warn_of_room(self, request: Request, completion: Completion) -> None:
        starved = completion.finish_reason == "length" and not completion.text.strip()
        if starved and request.max_tokens is not None:
            logger.warning(
                "%s used up all %d tokens before it wrote an answer: raise reasoning_tokens=",
                self.name, request.max_tokens,
            )  # fmt: skip

    def __repr__(self) -> str:
        where = f", base_url={self.base_url!r}" if self.base_url else ""
        return f"{type(self).__name__}({self.model!r}{where})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}


def finish(reason: object, table: Mapping[str, FinishReason]) -> FinishReason:
    """Translate a provider's finish reason; ``"stop"`` if it is not in `table`."""
    return table.get(str(reason or "").rsplit(".", 1)[-1].upper(), "stop")


def answer_events(answer: Any) -> Iterator[Any]:
    """Yield the events of a stream of OpenAI's or Anthropic's SDK, or its one body, as mappings."""
    response: Any = getattr(answer, "response", None)
    if response is not None and "json" in response.headers.get("content-type", ""):
        # The server ignored `stream`.
        yield json.loads(response.read())
        return
    for event in (answer,) if response is None else answer:
        yield event.to_dict(warnings=False) if hasattr(event, "to_dict") else event
