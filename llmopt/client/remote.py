"""What the clients of all providers do alike; each provider adds four short methods."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, get_args

from llmopt.client.account import note_paid, take_call
from llmopt.client.base import Completion, FinishReason, Reply, Request, Style, amount, whole
from llmopt.client.facts import ModelFacts, chat_prompt, size_in_name
from llmopt.client.http import (
    CONNECT_SECONDS,
    Fault,
    RateLimiter,
    Secret,
    SmallerCap,
    TooLarge,
    check_url,
    find_key,
    hide,
    http_options,
    redact,
    refused_parameter,
    smaller_cap,
)
from llmopt.client.prices import Price, get_price
from llmopt.client.threads import DeadlineExceeded, at_once, within
from llmopt.errors import (
    BudgetExceededError,
    ClientError,
    LLMOptError,
    ModelNotFoundError,
    RefusedKeyError,
    install_hint,
)
from llmopt.text import clean, estimate_tokens

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 600.0
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Cache = Literal["short", "long", "off"]
Structured = bool | Literal["auto"]
EFFORTS: tuple[str, ...] = get_args(Effort)
_MOST_CHARACTERS = 2**18  # of one sample: some 60,000 tokens
DEADLINE = 5
"""Timeouts that a whole call may take."""
_SCHEMAS = {"schema", "response_format", "response_json_schema"}  # parameters that carry one
ASIDE_SECONDS = 10.0
"""How long a question that costs nothing may wait for a byte; its answer has twice as long."""
_ROOM = 16_384  # tokens for hidden reasoning
_MOST_ROOM = 2**17
_MOST_CAPS = 3  # times that a cap which is too large is lowered in one request
_UNUSED = 8  # answers in a row without need of it after which added room is taken back


class MalformedBody(Exception):
    """A body that is valid JSON but not what the protocol promises."""


@dataclass(frozen=True)
class Answer:
    """What one call to a provider brought.

    Attributes:
        completions: Samples, at least one.
        model: The model that answered, as the provider names it.
        prompt_tokens: All prompt tokens, cached and written ones included; ``None`` if unknown.
        cached_tokens: Those read from a prefix cache.
        written_tokens: Those written to a prefix cache, if the provider charges that apart.
        written_long_tokens: Those of `written_tokens` that are kept for an hour.
        completion_tokens: Over all samples, hidden reasoning included; ``None`` if unknown.
        cost: US dollars, if the provider itself says so.
        calls: Calls made, those included that a refused parameter wasted.
        estimated: Whether the tokens are an estimate.
    """

    completions: tuple[Completion, ...]
    model: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    written_tokens: int = 0
    written_long_tokens: int = 0
    completion_tokens: int | None = None
    cost: float | None = None
    calls: int = 1
    estimated: bool = False


class RemoteClient:
    """A model behind a provider's SDK; use one of its subclasses.

    Nothing is imported, read or sent before the first request. The API key is looked up
    at every request: the `api_key` argument first, then the environment. It is in no
    ``repr``, log, exception, completion or pickle; a client that was pickled with an `api_key`
    argument reads the environment when it is used again. A deep copy keeps the key.

    The SDK's own retries are off: a failed call raises a `ClientError` whose
    ``retryable`` and ``retry_after`` say what to do, and the one retry loop is the caller's.
    Redirections are not followed, and this machine is not asked through a proxy.

    A refusal, a filtered and a truncated answer come back as completions with that
    `Completion.finish_reason`. An empty answer is a completion with empty text and
    ``"stop"``: it was paid for and is counted, and whoever parses it asks again. An answer
    with no completion at all is malformed, hence a retryable error.

    A parameter that the model refuses (reasoning models take no ``temperature``, say) is
    left out from then on, with one warning. A cap on the answer that the model finds too large
    is lowered to what the server names, which is remembered. Hidden reasoning counts against
    the cap at every provider: `Request.max_tokens` is therefore sent with `reasoning_tokens` on
    top, and with more, up to 131,072, once a sample was all reasoning and no text. The added
    room is taken back when eight answers in a row did not need it.

    Args:
        model: The model's name at the provider.
        api_key: API key; by default the environment is asked.
        base_url: Another address that speaks the same protocol.
        timeout: Seconds without a byte from the server after which a call has failed. Answers
            are streamed, so that this means silence; but hidden reasoning is silent, too. A
            server that keeps sending has five times as long for the whole answer.
        requests_per_minute: Most calls in any 60 seconds, or ``None`` for no limit.
        concurrency: Most calls at once, where one call cannot bring all samples.
        price: What tokens cost, instead of the table in `llmopt.client.prices`.
        effort: How much the model is to think: ``"none"``, ``"minimal"``, ``"low"``,
            ``"medium"``, ``"high"``, ``"xhigh"`` or ``"max"``, in the provider's own words where
            it has one for it; ``None`` leaves its default. Not every model takes every one.
        cache: How long the provider keeps a prompt's beginning, where that is ours to say:
            ``"short"`` (5 minutes at Anthropic), ``"long"`` (an hour at Anthropic, for twice the
            price of plain input) or ``"off"`` (nothing is written; OpenAI from GPT-5.6 on, too).
        reasoning_tokens: Room for hidden reasoning beside `Request.max_tokens`; by default
            16,384, and nothing for a model on one's own machine.
        transport_attempts: Times one request is sent before a failure is final.
        patience: Seconds that a provider which answers 429, 503 or 529 is waited for.
        structured: Whether points are asked as JSON that the provider holds the model to.
            ``"auto"`` does so where the provider documents it. A model that refuses is asked for
            text from then on.
        extra_body: Further fields for the request's JSON body, as the provider names them,
            merged into what is sent. Never a key: it is part of the client's state.

    Attributes:
        name: Short model string for tables and files.
        context_tokens: Prompt and completion together, once it is known: a server on one's own
            machine is asked, others say it when a request is too long for them.
    """

    provider: ClassVar[str]
    package: ClassVar[str]
    """The extra of llmopt that brings the SDK."""
    module: ClassVar[str]
    """The SDK's module."""
    samples_per_call: ClassVar[int]
    """Samples that one call can bring."""
    default_cap: ClassVar[int | None] = None
    """Cap on an answer's tokens where the request names none and the protocol wants one."""
    spellings: ClassVar[Mapping[str, str]] = {}
    """Patterns for parameters that servers call by other names, too."""
    style: Style = "chat"
    marks_cache: bool = False
    """Whether the prefix cache is kept up to marks of ours, after `blocks` of a message."""

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        requests_per_minute: int | None = None,
        concurrency: int = 8,
        price: Price | None = None,
        effort: Effort | None = None,
        cache: Cache = "short",
        reasoning_tokens: int | None = None,
        transport_attempts: int = 4,
        patience: float = 300.0,
        structured: Structured = "auto",
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        if not model:
            raise ValueError(f"{type(self).__name__} needs a model name and got {model!r}")
        if not 0 < timeout < math.inf:
            raise ValueError(f"timeout={timeout}: expected a finite number of seconds above 0")
        if not 0 <= patience < math.inf:
            raise ValueError(f"patience={patience}: expected a finite number of seconds, 0 or more")
        for name, value, least in (
            ("concurrency", concurrency, 1),
            ("transport_attempts", transport_attempts, 1),
            ("reasoning_tokens", reasoning_tokens or 0, 0),
        ):
            if value < least:
                raise ValueError(f"{name}={value}: expected at least {least}")
        if effort is not None and effort not in EFFORTS:
            raise ValueError(f"effort={effort!r}: expected one of {', '.join(EFFORTS)}")
        if structured not in (True, False, "auto"):
            raise ValueError(f"structured={structured!r}: expected True, False or 'auto'")
        if cache not in get_args(Cache):
            raise ValueError(f"cache={cache!r}: expected one of {', '.join(get_args(Cache))}")
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
        self.context_tokens: int | None = None
        self._key = Secret(api_key)
        self._limiter = RateLimiter(requests_per_minute)
        self._refused: frozenset[str] = frozenset()
        self._samples_per_call = self.samples_per_call
        self._added_room: int | None = None
        self._unused = 0
        self._most_tokens: int | None = None
        self._ready = False
        self._sdk: tuple[int, Secret, Any] | None = None
        self._lock = threading.Lock()

    # What a provider adds.

    def _connect(self, key: Secret) -> Any:
        """Import the SDK and return its client object."""
        raise NotImplementedError

    def _parameters(self, request: Request) -> dict[str, Any]:
        """Optional parameters of one call, by their name on the wire; none is ``None``."""
        raise NotImplementedError

    def _send(self, sdk: Any, request: Request, parameters: dict[str, Any]) -> Answer:
        """Make one call; any exception goes to `_fault`."""
        raise NotImplementedError

    def _fault(self, error: Exception) -> Fault | None:
        """Say what an exception of the SDK means; ``None`` if it is none of its own."""
        raise NotImplementedError

    def _check_address(self) -> None:
        """Raise a `ClientError` where the environment lacks a part of the address."""

    def _missing(self, sdk: Any) -> str:
        """Ask for the model, at no cost, and return the words for one that is not there.

        Any exception goes to `_fault`: a key that is refused and a server that is not there count,
        and a model that is not found where `_names_models`.
        """
        return ""

    @property
    def _names_models(self) -> bool:
        """Whether the server documents that it says which models it has."""
        return False

    @property
    def key_variables(self) -> tuple[str, ...]:
        """Environment variables that can hold the API key, first one first."""
        raise NotImplementedError

    @property
    def _key_required(self) -> bool:
        return True

    @property
    def _where(self) -> str:
        """The address for messages, if it is not the provider's usual one."""
        return self.base_url or ""

    @property
    def _own_machine(self) -> bool:
        """Whether tokens cost nothing but time."""
        return False

    @property
    def _tells_cost(self) -> bool:
        """Whether the provider documents that its answers say what was charged."""
        return False

    @property
    def _holds_to_schemas(self) -> bool:
        """Whether the provider documents that answers keep to a JSON schema."""
        return True

    # What they share.

    @property
    def settings(self) -> dict[str, Any]:
        """What changes the answers beside `name` and the request; a cache must tell it apart."""
        added = {"effort": self.effort} if self.effort else {}
        return {"extra_body": self.extra_body, **added}

    @property
    def default_prompt(self) -> str:
        """The prompt that suits the model."""
        return chat_prompt(size_in_name(self.name)) if self.style == "chat" else "props"

    def facts(self) -> ModelFacts:
        """What is known of the model; its context length perhaps only after the first answer."""
        style: Style = "completion" if self.style == "completion" else "chat"
        chats = style == "chat"
        schema = chats and not self._refused & _SCHEMAS
        return ModelFacts(
            name=self.name,
            style=style,
            chats=chats,
            context_tokens=self.context_tokens,
            default_prompt=self.default_prompt,
            parameters=size_in_name(self.name),
            schema=schema,
            structured=schema
            and (self._holds_to_schemas if self.structured == "auto" else self.structured),
        )

    @property
    def priced(self) -> bool:
        """Whether the cost of a reply will be known."""
        return self.current_price() is not None

    def current_price(self) -> Price | None:
        """What tokens cost now, or ``None`` if that is not known."""
        return self.price or get_price(self.name)

    def check_ready(self) -> None:
        """Look for the key and the package, and ask once for the model, where this costs nothing.

        A slow or overloaded server, and a key that may not list models, are left to the first
        request.

        Raises:
            MissingKeyError: No API key was given.
            RefusedKeyError: The provider does not take it.
            ModelNotFoundError: The provider does not know the model.
            ClientError: The server cannot be reached.
            PriceError: The file that ``LLMOPT_PRICES`` names cannot be read.
            ImportError: The provider's SDK is not installed.
        """
        self.current_price()
        key = self._find_key()
        self._check_address()
        load(self.module, self.package)
        if not self._ready:
            failure = self._look(key)
            if failure is not None:
                failure.requests = failure.unpriced = 0
                raise failure
            self._ready = True

    def _look(self, key: Secret) -> ClientError | None:
        """Return what is sure to stop the first request, ``None`` if nothing is known to."""
        fault, missing = None, ""
        sdk = self._connected(key)
        try:
            missing = within(2 * ASIDE_SECONDS, partial(self._missing, sdk))
        except DeadlineExceeded:
            return None
        except LLMOptError:
            raise
        except Exception as error:  # the failure is made outside, as in `_call`
            fault = self._fault(error) or transport_fault(error)
        if missing:
            return ModelNotFoundError(redact(missing, (key,)))
        if fault is None:
            return None
        failure = self._failure(fault, key)
        sure = isinstance(failure, RefusedKeyError) or (
            isinstance(failure, ModelNotFoundError) and self._names_models
        )
        no_server = fault.kind == "connection" and not fault.unpriced
        return failure if sure or no_server else None

    def _failure(self, fault: Fault, key: Secret) -> ClientError:
        return fault.error(
            name=self.name,
            timeout=DEADLINE * self.timeout if fault.kind == "deadline" else self.timeout,
            variables=self.key_variables,
            secrets=(key,),
            where=self._where,
        )

    def _find_key(self) -> Secret:
        return find_key(self._key, self.key_variables, name=self.name, required=self._key_required)

    def complete(self, request: Request) -> Reply:
        """Answer one request; see `llmopt.client.base.Client.complete`.

        Makes as many calls as the samples need, at once where possible. If some of them
        fail, the reply holds what the others brought.

        Raises:
            MissingKeyError: No API key was given.
            ModelNotFoundError: The provider does not know the model.
            ClientError: Any other failure.
            PriceError: The file that ``LLMOPT_PRICES`` names cannot be read; nothing was sent.
            ImportError: The provider's SDK is not installed.
        """
        # Prices that cannot be read should cost no request.
        price = self.current_price()
        key = self._find_key()
        sdk = self._connected(key)
        started = time.monotonic()  # importing an SDK takes seconds, which are not the model's
        per_call = self._samples_per_call
        counts = [per_call] * (request.n // per_call) + [request.n % per_call]
        results = self._run(
            sdk, key, request, [c for c in counts if c], first_sample=0, price=price
        )
        short = request.n - sum(len(r.completions) for r in results if isinstance(r, Answer))
        if short > 0 and per_call > 1 and _complied(results):
            # The server ignored (or refused) the wish for several samples: ask one by one.
            self._samples_per_call = 1
            logger.info("%s brings one sample a call; asking for the others apart", self.name)
            first = request.n - short
            results += self._run(sdk, key, request, [1] * short, first_sample=first, price=price)
        answers = [r for r in results if isinstance(r, Answer)]
        failures = [r for r in results if isinstance(r, ClientError)]
        if not answers and failures:
            raise _one_of(failures)
        if not answers:
            raise BudgetExceededError(f"{self.name}: no call may be made: a cap is reached")
        for failure in failures:
            logger.warning("%s: one of %d calls failed: %s", self.name, len(results), failure)
        self._watch_room(request, answers)
        return self._reply(answers, failures, time.monotonic() - started)

    def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        with self._lock:
            connected, self._sdk = self._sdk, None
        if connected is not None and hasattr(connected[2], "close"):
            connected[2].close()

    def _connected(self, key: Secret) -> Any:
        """Return the SDK's client, made anew after a fork or when the key changed."""
        with self._lock:
            if self._sdk is None or self._sdk[:2] != (os.getpid(), key):
                self._sdk = (os.getpid(), key, self._connect(key))
            return self._sdk[2]

    def _http(self, sdk: Any, url: str) -> dict[str, Any]:
        """Arguments that bind an OpenAI-like SDK's HTTP client to our rules."""
        return {
            "max_retries": 0,
            "timeout": sdk.Timeout(self.timeout, connect=min(self.timeout, CONNECT_SECONDS)),
            "http_client": sdk.DefaultHttpxClient(**http_options(url)),
        }

    def _run(
        self,
        sdk: Any,
        key: Secret,
        request: Request,
        counts: list[int],
        *,
        first_sample: int,
        price: Price | None,
    ) -> list[Answer | ClientError | None]:
        """Make one call for each of `counts`; failures are returned, not raised."""

        def one(position: int) -> Answer | ClientError | None:
            sample = first_sample + sum(counts[:position])
            seed = None if request.seed is None else request.seed + sample
            return self._call(sdk, key, replace(request, n=counts[position], seed=seed), price)

        if len(counts) == 1:
            return [one(0)]
        first: list[Answer | ClientError | None] = []
        if self._caches_prefix(request):
            # The others can read what the first one wrote to the cache.
            first = [one(0)]
            if not isinstance(first[0], Answer):
                return first
        return first + at_once(one, range(len(first), len(counts)), self.concurrency)

    def _caches_prefix(self, request: Request) -> bool:
        """Whether the first call writes a cache that the other calls are to read."""
        return False

    def _call(
        self, sdk: Any, key: Secret, request: Request, price: Price | None
    ) -> Answer | ClientError | None:
        """Make one call, again without a parameter or with a smaller cap if the model says so.

        Every time it is sent it is taken off the account.

        Returns:
            The answer, or what went wrong; ``None`` if the account did not let it be sent.
        """
        cap = self._cap(request)
        calls = 0
        smaller_caps = 0
        failure: ClientError | None = None
        while True:
            asked = replace(request, max_tokens=cap)
            parameters = {
                name: value
                for name, value in self._parameters(asked).items()
                if name not in self._refused
            }
            self._limiter.wait()
            try:
                take_call()
            except BudgetExceededError:
                return failure
            calls += 1
            # Errors are returned, and made outside the except block: the SDK's exception,
            # which holds the request's headers, must not hang on ours as its context.
            fault = None
            send = partial(self._send, sdk, asked, dict(parameters))
            try:
                answer = _sound(within(DEADLINE * self.timeout, send), request, key)
            except DeadlineExceeded:
                fault = Fault("deadline")
            except MalformedBody as error:
                fault = Fault("malformed", str(error))
            except Exception as error:
                fault = (
                    self._fault(error)
                    or transport_fault(error)
                    or Fault("other", f"{type(error).__name__}: {error}")
                )
            if fault is None:
                answer = self._priced(answer, asked, price)
                note_paid(
                    (answer.prompt_tokens or 0) + (answer.completion_tokens or 0), answer.cost
                )
                return replace(answer, calls=calls)
            failure = self._failure(fault, key)
            failure.requests = calls
            if self._own_machine:
                failure.unpriced = 0
            elif failure.unpriced and price is not None:
                most = price.cost(estimate_tokens(request.text), (cap or _MOST_ROOM) * request.n)
                if most is not None:
                    failure.unpriced, failure.estimated, failure.cost = 0, 1, most
                    note_paid(0, most)
            smaller = smaller_cap(fault, cap)
            if smaller is not None and smaller_caps < _MOST_CAPS:
                smaller_caps += 1
                cap = smaller.cap
                self._lower_cap(smaller)
                continue
            refused = refused_parameter(fault, parameters, self.spellings)
            if refused is None:
                return failure
            self._refuse(refused, redact(fault.message, (key,)))

    def _priced(self, answer: Answer, request: Request, price: Price | None) -> Answer:
        """Return an answer with its cost, and with estimates where it does not say what it used."""
        prompt, completion = answer.prompt_tokens, answer.completion_tokens
        # No prompt is empty, and no text either.
        texts = [c.text for c in answer.completions]
        if not prompt or completion is None or (not completion and any(texts)):
            answer = replace(
                answer,
                prompt_tokens=prompt or estimate_tokens(request.text),
                completion_tokens=completion or sum(map(estimate_tokens, texts)),
                estimated=True,
            )
        told = answer.cost if self._tells_cost else None
        if price is not None and not told:
            told = price.cost(
                answer.prompt_tokens or 0,
                answer.completion_tokens or 0,
                answer.cached_tokens,
                answer.written_tokens,
                answer.written_long_tokens,
            )
        return replace(answer, cost=told)

    def _refuse(self, parameter: str, said: str) -> None:
        with self._lock:
            new = parameter not in self._refused
            self._refused |= {parameter}
        if parameter in ("n", "candidate_count"):
            self._samples_per_call = 1
        if new:
            logger.warning(
                "%s refuses the parameter `%s`; it is no longer sent (%s)",
                self.name, parameter, said[:200],
            )  # fmt: skip

    # Room for hidden reasoning, and the model's own limits.

    @property
    def _least_room(self) -> int:
        if self.reasoning_tokens is not None:
            return self.reasoning_tokens
        thinks = self.effort not in (None, "none") or not self._own_machine
        return _ROOM if thinks else 0

    def _room(self, request: Request) -> int:
        """Tokens beside those of the answer itself."""
        if request.style == "completion":
            return 0
        return self._least_room if self._added_room is None else self._added_room

    def _cap(self, request: Request) -> int | None:
        """Tokens that one sample may take, hidden ones included."""
        cap = self.default_cap
        if request.max_tokens is not None:
            cap = request.max_tokens + self._room(request)
        elif cap is not None:
            cap += self._added_room or 0
        return cap if cap is None or self._most_tokens is None else min(cap, self._most_tokens)

    def _lower_cap(self, smaller: SmallerCap) -> None:
        if smaller.limit is not None:
            self._most_tokens = smaller.limit
            logger.info("%s answers with at most %d tokens", self.name, smaller.limit)
        if smaller.context is not None:
            self.context_tokens = smaller.context

    def _watch_room(self, request: Request, answers: list[Answer]) -> None:
        """Give hidden reasoning more room once it has left none for the answer, and take it back.

        What a model once needed, it may not need with the next prompt.
        """
        cap = self._cap(request)
        if cap is None or request.style == "completion":
            return
        samples = [c for a in answers for c in a.completions]
        with self._lock:
            room = self._room(request)
            if any(c.finish_reason == "length" and not c.text.strip() for c in samples):
                self._unused = 0
                self._added_room = min(max(4 * room, _ROOM), _MOST_ROOM)
                logger.warning(
                    "%s used up all %d tokens before it wrote an answer; later requests get up "
                    "to %d", self.name, cap,
                    self._cap(request),
                )  # fmt: skip
            elif self._added_room is not None:
                asked = request.max_tokens
                usual = cap - room if asked is None else asked + self._least_room
                spared = all(
                    (a.completion_tokens or 0) <= usual * len(a.completions) for a in answers
                )
                self._unused = self._unused + 1 if spared else 0
                if self._unused >= _UNUSED:
                    self._added_room = None

    def _reply(self, answers: list[Answer], failures: list[ClientError], seconds: float) -> Reply:
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
            requests=sum(a.calls for a in answers) + sum(f.requests for f in failures),
            unpriced=sum(f.unpriced for f in failures),
            estimated=sum(a.estimated for a in answers) + sum(f.estimated for f in failures),
        )

    def __repr__(self) -> str:
        where = f", base_url={self.base_url!r}" if self.base_url else ""
        return f"{type(self).__name__}({self.model!r}{where})"

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["_sdk"] = None
        del state["_lock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


def load(module: str, package: str) -> Any:
    """Import an SDK.

    Raises:
        ImportError: It is not installed; the message says how to install it.
    """
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{module} cannot be imported ({error}): {install_hint(package)}"
        ) from error


def _one_of(failures: list[ClientError]) -> ClientError:
    """Return the error to raise for calls that all failed."""
    # Where one of them is final, asking again is in vain.
    error = next((f for f in failures if not f.retryable), failures[0])
    waits = [f.retry_after for f in failures if f.retry_after is not None]
    error.retry_after = max(waits, default=None)
    error.requests = sum(f.requests for f in failures)
    error.unpriced = sum(f.unpriced for f in failures)
    error.cost = sum(f.cost for f in failures)
    error.estimated = sum(f.estimated for f in failures)
    return error


def _complied(results: list[Answer | ClientError | None]) -> bool:
    """Whether all calls brought samples that nothing was wrong with, only too few."""
    return all(
        isinstance(r, Answer) and all(c.finish_reason in ("stop", "length") for c in r.completions)
        for r in results
    )


def _sound(answer: Answer, request: Request, key: Secret) -> Answer:
    """Return an answer whose fields are what their types say, whatever the server sent.

    The SDKs pass on what they get. A number that cannot be one is taken as unknown, samples
    beyond those asked for are left out, and so is the key, should the server say it.

    Raises:
        MalformedBody: A sample is no text.
    """
    prompt_tokens = whole(answer.prompt_tokens)
    most = prompt_tokens or 0
    return replace(
        answer,
        completions=tuple(_cut(c, request.stop, key) for c in answer.completions[: request.n]),
        model=hide(clean(answer.model), (key,)) if isinstance(answer.model, str) else "",
        prompt_tokens=prompt_tokens,
        cached_tokens=min(whole(answer.cached_tokens) or 0, most),
        written_tokens=min(whole(answer.written_tokens) or 0, most),
        completion_tokens=whole(answer.completion_tokens),
        cost=amount(answer.cost),
    )


def _cut(completion: Completion, stop: tuple[str, ...], key: Secret) -> Completion:
    """End a sample at the first stop string, for servers that do not take them."""
    if not isinstance(completion.text, str):
        raise MalformedBody(f"a sample is a {type(completion.text).__name__}, not a text")
    text = hide(clean(completion.text), (key,))
    ends = [at for at in map(text.find, stop) if at >= 0]
    reason: FinishReason = "stop" if ends else completion.finish_reason
    text = text[: min(ends, default=None)]
    return Completion(text[:_MOST_CHARACTERS], "length" if text[_MOST_CHARACTERS:] else reason)


def finish(reason: object, table: Mapping[str, FinishReason]) -> FinishReason:
    """Translate a provider's finish reason; one that is not in `table` means ``"stop"``."""
    return table.get(str(reason or "").rsplit(".", 1)[-1].upper(), "stop")


# How Anthropic and OpenRouter name what an error in the middle of a stream would be in HTTP.
_STREAM_STATUS = {
    "overloaded_error": 529,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "api_error": 500,
    "server_error": 500,
    "invalid_request_error": 400,
}


def status_fault(error: Any) -> Fault:
    """Read status, headers, words and code off an exception of an OpenAI-like SDK.

    Args:
        error: Exception with ``body`` and ``message``, and with ``status_code`` and
            ``response`` unless it came in the middle of a stream.
    """
    body = error.body
    inner = body.get("error", body) if isinstance(body, Mapping) else {}
    inner = inner if isinstance(inner, Mapping) else {}
    code = inner.get("code")
    status = getattr(error, "status_code", None)
    if status is None or status < 300:  # the answer had begun
        kind = str(inner.get("type") or code)
        is_status = isinstance(code, int) and 400 <= code < 600
        status = code if is_status else _STREAM_STATUS.get(kind, 500)
    response = getattr(error, "response", None)
    return Fault(
        "status",
        words(body) or str(error.message),
        status=status,
        headers={str(k).lower(): str(v) for k, v in getattr(response, "headers", {}).items()},
        code=str(code or ""),
        parameter=str(inner.get("param") or ""),
    )


def words(body: object) -> str:
    """Return what an error's body says, wherever servers put it.

    ``{"error": {"message": ...}}``, ``{"error": "..."}``, ``{"detail": [{"loc": ..., "msg":
    ...}]}``, a bare text: servers differ.
    """
    if isinstance(body, str):
        return body
    if isinstance(body, Mapping):
        for name in ("message", "error", "detail", "msg", "errors"):
            said = words(body.get(name))
            if said:
                place = body.get("loc")
                return f"{'.'.join(map(str, place))}: {said}" if isinstance(place, list) else said
    if isinstance(body, list):
        return "; ".join(filter(None, map(words, body)))
    return ""


def sdk_fault(sdk: Any, error: Exception) -> Fault | None:
    """Say what an exception of an OpenAI-like SDK means; ``None`` if it is none of its own."""
    if isinstance(error, sdk.APIResponseValidationError):
        return Fault("malformed", f"{type(error).__name__}: {error}")
    if isinstance(error, sdk.APIConnectionError):
        return transport_fault(error) or Fault("connection", str(error.__cause__ or error))
    if isinstance(error, sdk.APIError):
        return status_fault(error)
    return None


def transport_fault(error: BaseException) -> Fault | None:
    """Say what an exception of an HTTP library means, or of one that came of it."""
    said = f"{type(error).__name__}: {error}"
    link: BaseException | None = error
    while link is not None:
        lineage = {c.__name__ for c in type(link).__mro__}
        said = str(link) or said
        if isinstance(link, TooLarge | json.JSONDecodeError | UnicodeDecodeError):
            return Fault("malformed", f"{type(link).__name__}: {link}")
        if lineage & {"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError"}:
            return Fault("connection", said)
        if "TimeoutException" in lineage:
            return Fault("timeout")
        if lineage & {"TransportError", "ConnectionError"}:
            return Fault("connection", said, unpriced=True)
        link = link.__cause__
    return None


def whole_body(response: Any) -> Any | None:
    """Return the body of a response that is no stream of events, though one was asked for.

    Mappings in it become objects with attributes, as the SDKs have them.

    Raises:
        ValueError: It is not JSON.
    """
    if "event-stream" in response.headers.get("content-type", ""):
        return None
    return json.loads(response.read(), object_hook=lambda fields: SimpleNamespace(**fields))


_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
_DATA = ("enum", "const", "default", "examples", "required")


def closed(schema: object) -> Any:
    """Return a JSON schema whose objects take no other fields and lack none.

    Strict modes of several providers insist on that, and take no limits of length. Names of
    fields are kept, also where they are words of JSON schemas.
    """
    if isinstance(schema, list | tuple):
        return [closed(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    result: dict[str, Any] = {}
    for word, value in schema.items():
        if word in _NAMED_SCHEMAS and isinstance(value, Mapping):
            result[word] = {name: closed(inner) for name, inner in value.items()}
        elif word != "maxLength":
            result[word] = value if word in _DATA else closed(value)
    if result.get("type") == "object" and isinstance(result.get("properties", {}), dict):
        result.setdefault("additionalProperties", False)
        if result.get("properties"):
            result["required"] = list(result["properties"])
    return result
