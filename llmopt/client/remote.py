"""What the clients of all providers do alike; each provider adds four short methods."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from llmopt.client.base import Completion, FinishReason, Reply, Request
from llmopt.client.http import (
    Fault,
    RateLimiter,
    Secret,
    check_url,
    find_key,
    redact,
    refused_parameter,
)
from llmopt.client.prices import Price, get_price
from llmopt.client.threads import DeadlineExceeded, at_once, within
from llmopt.errors import ClientError

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 120.0
_MOST_TOKENS = 10**12  # of one call; more is no count
_DEADLINE = 5  # timeouts that a whole call may take


class MalformedBody(Exception):
    """A body that is valid JSON but not what the protocol promises."""


@dataclass(frozen=True)
class Answer:
    """What one call to a provider brought.

    Attributes:
        completions: Samples, at least one.
        model: The model that answered, as the provider names it.
        prompt_tokens: All prompt tokens, cached and written ones included.
        cached_tokens: Those read from a prefix cache.
        written_tokens: Those written to a prefix cache, if the provider charges that apart.
        completion_tokens: Over all samples, hidden reasoning included.
        cost: US dollars, if the provider itself says so.
        calls: Calls made, those included that a refused parameter wasted.
    """

    completions: tuple[Completion, ...]
    model: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    written_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    calls: int = 1


class RemoteClient:
    """A model behind a provider's SDK; use one of its subclasses.

    Nothing is imported, read or sent before the first request. The API key is looked up
    at every request: the `api_key` argument first, then the environment. It is in no
    ``repr``, log, exception or pickle; a client that was pickled with an `api_key`
    argument reads the environment when it is used again. A deep copy keeps the key.

    The SDK's own retries are off: a failed call raises a `ClientError` whose
    ``retryable`` and ``retry_after`` say what to do, and the one retry loop is the caller's.

    A refusal, a filtered and a truncated answer come back as completions with that
    `Completion.finish_reason`. An empty answer is a completion with empty text and
    ``"stop"``: it was paid for and is counted, and whoever parses it asks again. An answer
    with no completion at all is malformed, hence a retryable error.

    A parameter that the model refuses (reasoning models take no ``temperature``, say) is
    left out from then on, with one warning. Where hidden reasoning uses up
    `Request.max_tokens` and leaves no text, later requests of this client get four times the
    room, with a warning too.

    Args:
        model: The model's name at the provider.
        api_key: API key; by default the environment is asked.
        base_url: Another address that speaks the same protocol.
        timeout: Seconds without a byte from the server after which a call has failed. A
            server that keeps sending a little has five times as long for the whole answer.
        requests_per_minute: Most calls in any 60 seconds, or ``None`` for no limit.
        concurrency: Most calls at once, where one call cannot bring all samples.
        price: What tokens cost, instead of the table in `llmopt.client.prices`.
        extra_body: Further fields for the request's JSON body, as the provider names them
            (``{"reasoning_effort": "low"}``). Never a key: it is part of the client's state.

    Attributes:
        name: Short model string for tables and files.
    """

    provider: ClassVar[str]
    package: ClassVar[str]
    """The extra to install: ``pip install "llmopt[<package>]"``."""
    samples_per_call: ClassVar[int]
    """Samples that one call can bring."""
    default_prompt = "props"

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
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        if not model:
            raise ValueError(f"{type(self).__name__} needs a model name and got {model!r}")
        if not 0 < timeout < math.inf:
            raise ValueError(f"timeout={timeout}: expected a finite number of seconds above 0")
        if concurrency < 1:
            raise ValueError(f"concurrency={concurrency}: expected at least 1")
        self.model = model
        self.name = f"{self.provider}:{model}"
        self.base_url = check_url(base_url) if base_url else None
        self.timeout = timeout
        self.concurrency = concurrency
        self.price = price
        self.extra_body = dict(extra_body or {})
        self._key = Secret(api_key)
        self._limiter = RateLimiter(requests_per_minute)
        self._refused: frozenset[str] = frozenset()
        self._samples_per_call = self.samples_per_call
        self._room = 1
        self._sdk: tuple[int, Secret, Any] | None = None
        self._lock = threading.Lock()

    # What a provider adds.

    def _connect(self, key: str) -> Any:
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

    # What they share.

    @property
    def settings(self) -> dict[str, Any]:
        """What changes the answers beside `name` and the request; a cache must tell it apart."""
        return {"extra_body": self.extra_body}

    def current_price(self) -> Price | None:
        """What tokens cost now, or ``None`` if that is not known."""
        return self.price or get_price(self.name)

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
        key = find_key(self._key, self.key_variables, name=self.name, required=self._key_required)
        sdk = self._connected(key)
        started = time.monotonic()  # importing an SDK takes seconds, which are not the model's
        per_call = self._samples_per_call
        counts = [per_call] * (request.n // per_call) + [request.n % per_call]
        results = self._run(sdk, key, request, [c for c in counts if c], first_sample=0)
        short = request.n - sum(len(r.completions) for r in results if isinstance(r, Answer))
        if short > 0 and per_call > 1 and _complied(results):
            # The server ignored (or refused) the wish for several samples: ask one by one.
            self._samples_per_call = 1
            logger.info("%s brings one sample a call; asking for the others apart", self.name)
            results += self._run(sdk, key, request, [1] * short, first_sample=request.n - short)
        answers = [r for r in results if isinstance(r, Answer)]
        failures = [r for r in results if isinstance(r, ClientError)]
        if not answers:
            raise _one_of(failures)
        for failure in failures:
            logger.warning("%s: one of %d calls failed: %s", self.name, len(results), failure)
        self._watch_room(request, answers)
        failed = sum(f.requests for f in failures)
        return self._reply(answers, failed, time.monotonic() - started, price)

    def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        with self._lock:
            connected, self._sdk = self._sdk, None
        if connected is not None and hasattr(connected[2], "close"):
            connected[2].close()

    def _connected(self, key: str | None) -> Any:
        """Return the SDK's client, made anew after a fork or when the key changed."""
        with self._lock:
            if self._sdk is None or self._sdk[:2] != (os.getpid(), Secret(key)):
                self._sdk = (os.getpid(), Secret(key), self._connect(key or ""))
            return self._sdk[2]

    def _run(
        self, sdk: Any, key: str | None, request: Request, counts: list[int], first_sample: int
    ) -> list[Answer | ClientError]:
        """Make one call for each of `counts`; failures are returned, not raised."""

        def one(position: int) -> Answer | ClientError:
            sample = first_sample + sum(counts[:position])
            seed = None if request.seed is None else request.seed + sample
            return self._call(sdk, key, replace(request, n=counts[position], seed=seed))

        if len(counts) == 1:
            return [one(0)]
        first: list[Answer | ClientError] = []
        if self._caches_prefix(request):
            # The others can read what the first one wrote to the cache.
            first = [one(0)]
            if isinstance(first[0], ClientError):
                return first
        return first + at_once(one, range(len(first), len(counts)), self.concurrency)

    def _caches_prefix(self, request: Request) -> bool:
        """Whether the first call writes a cache that the other calls are to read."""
        return False

    def _call(self, sdk: Any, key: str | None, request: Request) -> Answer | ClientError:
        """Make one call, again without the parameter if the model refuses one."""
        if request.max_tokens is not None and self._room > 1:
            request = replace(request, max_tokens=request.max_tokens * self._room)
        calls = 0
        while True:
            parameters = {
                name: value
                for name, value in self._parameters(request).items()
                if name not in self._refused
            }
            self._limiter.wait()
            calls += 1
            # Errors are returned, and made outside the except block: the SDK's exception,
            # which holds the request's headers, must not hang on ours as its context.
            fault = None
            send = partial(self._send, sdk, request, parameters)
            try:
                answer = _sound(within(_DEADLINE * self.timeout, send), request)
            except DeadlineExceeded:
                fault = Fault("deadline")
            except MalformedBody as error:
                fault = Fault("malformed", str(error))
            except Exception as error:
                fault = self._fault(error) or Fault("other", f"{type(error).__name__}: {error}")
            if fault is None:
                return replace(answer, calls=calls)
            refused = refused_parameter(fault, parameters)
            if refused is None:
                failure = fault.error(
                    name=self.name,
                    timeout=_DEADLINE * self.timeout if fault.kind == "deadline" else self.timeout,
                    variables=self.key_variables,
                    secrets=(key,),
                    where=self._where,
                )
                failure.requests = calls
                return failure
            self._refuse(refused, redact(fault.message, (key,)))

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

    def _watch_room(self, request: Request, answers: list[Answer]) -> None:
        """Give hidden reasoning more room once it has left none for the answer."""
        if request.max_tokens is None:
            return
        samples = [c for a in answers for c in a.completions]
        if all(c.finish_reason == "length" and not c.text.strip() for c in samples):
            with self._lock:
                self._room = min(self._room * 4, 64)
            logger.warning(
                "%s used up all %d tokens before it wrote an answer; later requests get up to "
                "%d times as many", self.name, request.max_tokens, self._room,
            )  # fmt: skip

    def _reply(
        self, answers: list[Answer], failures: int, seconds: float, price: Price | None
    ) -> Reply:
        costs = [
            a.cost
            if a.cost is not None
            else price.cost(a.prompt_tokens, a.completion_tokens, a.cached_tokens, a.written_tokens)
            if price is not None
            else None
            for a in answers
        ]
        known = [c for c in costs if c is not None]
        return Reply(
            completions=tuple(c for a in answers for c in a.completions),
            model=answers[0].model or self.model,
            prompt_tokens=sum(a.prompt_tokens for a in answers),
            cached_tokens=sum(a.cached_tokens for a in answers),
            completion_tokens=sum(a.completion_tokens for a in answers),
            seconds=seconds,
            cost=sum(known) if len(known) == len(costs) else None,
            requests=sum(a.calls for a in answers) + failures,
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
            f'{module} cannot be imported ({error}): pip install "llmopt[{package}]"'
        ) from error


def _one_of(failures: list[ClientError]) -> ClientError:
    """Return the error to raise for calls that all failed."""
    # Where one of them is final, asking again is in vain.
    error = next((f for f in failures if not f.retryable), failures[0])
    waits = [f.retry_after for f in failures if f.retry_after is not None]
    error.retry_after = max(waits, default=None)
    error.requests = sum(f.requests for f in failures)
    return error


def _complied(results: list[Answer | ClientError]) -> bool:
    """Whether all calls brought samples that nothing was wrong with, only too few."""
    return all(
        isinstance(r, Answer) and all(c.finish_reason in ("stop", "length") for c in r.completions)
        for r in results
    )


def _sound(answer: Answer, request: Request) -> Answer:
    """Return an answer whose fields are what their types say, whatever the server sent.

    The SDKs pass on what they get. A number that cannot be one is taken as unknown, and
    samples beyond those asked for are left out.

    Raises:
        MalformedBody: A sample is no text.
    """
    prompt_tokens = tokens(answer.prompt_tokens)
    cost = answer.cost
    known = _is_number(cost) and 0 <= cost < math.inf  # type: ignore[operator]
    return replace(
        answer,
        completions=tuple(_cut(c, request.stop) for c in answer.completions[: request.n]),
        model=_text(answer.model) if isinstance(answer.model, str) else "",
        prompt_tokens=prompt_tokens,
        cached_tokens=min(tokens(answer.cached_tokens), prompt_tokens),
        written_tokens=min(tokens(answer.written_tokens), prompt_tokens),
        completion_tokens=tokens(answer.completion_tokens),
        cost=float(cost) if known else None,  # type: ignore[arg-type]
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def tokens(value: object) -> int:
    """Return a number of tokens; 0, for unknown, if it cannot be one."""
    return int(value) if _is_number(value) and 0 <= value < _MOST_TOKENS else 0  # type: ignore


def _text(text: str) -> str:
    """Replace lone surrogates, which no file can hold."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def _cut(completion: Completion, stop: tuple[str, ...]) -> Completion:
    """End a sample at the first stop string, for servers that do not take them."""
    if not isinstance(completion.text, str):
        raise MalformedBody(f"a sample is a {type(completion.text).__name__}, not a text")
    text = _text(completion.text)
    ends = [at for at in map(text.find, stop) if at >= 0]
    if not ends:
        return Completion(text, completion.finish_reason)
    return Completion(text[: min(ends)], "stop")


def finish(reason: object, table: Mapping[str, FinishReason]) -> FinishReason:
    """Translate a provider's finish reason; one that is not in `table` means ``"stop"``."""
    return table.get(str(reason or "").rsplit(".", 1)[-1].upper(), "stop")


def status_fault(error: Any, body: object, message: str) -> Fault:
    """Read status, headers and code off an SDK exception that holds an HTTP response.

    Args:
        error: Exception with ``status_code`` and ``response``.
        body: The decoded error object, if the SDK found one.
        message: Words to show.
    """
    inner = body.get("error", body) if isinstance(body, Mapping) else {}
    inner = inner if isinstance(inner, Mapping) else {}
    headers = {str(k).lower(): str(v) for k, v in error.response.headers.items()}
    return Fault(
        "status",
        str(inner.get("message") or message),
        status=error.status_code,
        headers=headers,
        code=str(inner.get("code") or ""),
        parameter=str(inner.get("param") or ""),
    )
