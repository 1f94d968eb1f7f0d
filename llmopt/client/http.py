"""What every provider's client shares about HTTP: keys, faults, rate limits."""

from __future__ import annotations

import email.utils
import functools
import importlib
import math
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from llmopt.errors import ClientError, MissingKeyError, ModelNotFoundError, RefusedKeyError

RETRYABLE_STATUS = frozenset({408, 409, 429})
CONNECT_SECONDS = 20.0
"""How long a connection may take to be made."""
MOST_BYTES = 32 * 2**20
"""Longest body of an answer."""
_LONGEST_WAIT = 366 * 86_400.0
_SHOWN_CHARACTERS = 300
# Shapes that keys have, in case a body echoes one that is not ours or is partly masked.
_KEY_SHAPES = re.compile(
    r"\b(?:sk|gsk|xai|pk|rk)-[\w*.…-]{6,}|\bAIza[\w*-]{10,}|\bAQ\.[\w*.-]{10,}"
    r"|(?i:\bbearer\s+)[\w*.~+/=-]{6,}|(?<=[?&]key=)[^&\s\"']+"
)


class Secret:
    """An API key that shows itself to nobody who does not ask by name.

    Its ``repr`` hides the value and pickling drops it; a deep copy, which stays in this
    process, keeps it.
    """

    __slots__ = ("reveal",)

    def __init__(self, value: str | None = None) -> None:
        self.reveal = value

    def __repr__(self) -> str:
        return "Secret(***)" if self.reveal else "Secret(None)"

    def __bool__(self) -> bool:
        return bool(self.reveal)

    @property
    def sendable(self) -> bool:
        """Whether a header can hold it."""
        value = self.reveal or ""
        return value.isascii() and value.isprintable() and " " not in value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.reveal == other.reveal

    __hash__ = None  # type: ignore[assignment]

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        return self

    def __reduce__(self) -> tuple[type[Secret], tuple[()]]:
        return Secret, ()


def find_key(given: Secret, variables: Sequence[str], *, name: str, required: bool) -> Secret:
    """Return the API key to use now, which may be empty if none is required.

    Args:
        given: What the user passed to the client.
        variables: Environment variables to look in, in this order.
        name: The client's name, for the message.
        required: Whether there must be one.

    Raises:
        MissingKeyError: There is none, or it cannot be sent in a header.
    """
    # No local variable holds the bare key: tracebacks with variables would show it.
    key = given or Secret(next(filter(None, map(os.environ.get, variables)), None))
    # A key read from a file often ends in a newline.
    key = Secret((key.reveal or "").strip() or None)
    remedy = (
        f"set the environment variable {' or '.join(variables)}, or give "
        f"llmopt.get_client({name!r}, api_key=...) as the client"
    )
    if not key and required:
        raise MissingKeyError(f"{name} needs an API key and there is none: {remedy}", requests=0)
    if not key.sendable:
        raise MissingKeyError(
            f"the API key for {name} holds characters that no key has (a space, a line break or "
            f"a non-ASCII letter): {remedy}",
            requests=0,
        )
    return key


def hide(text: str, secrets: Iterable[Secret | str | None]) -> str:
    """Return `text` with known keys, bare or URL-quoted, replaced by ``***``."""
    for secret in (s if isinstance(s, Secret) else Secret(s) for s in secrets):
        if secret:
            text = text.replace(secret.reveal or "", "***")
            text = text.replace(quote(secret.reveal or "", safe=""), "***")
    return text


def redact(text: str, secrets: Iterable[Secret | str | None] = ()) -> str:
    """Return `text` with known keys and whatever else looks like one replaced by ``***``.

    Args:
        text: What a server or an SDK said.
        secrets: Known keys.
    """
    return _KEY_SHAPES.sub("***", hide(text, secrets))


@dataclass(frozen=True)
class Fault:
    """What went wrong with one call, in the same words for every SDK.

    Attributes:
        kind: ``"status"`` (the server answered with an error), ``"timeout"`` (it sent
            nothing), ``"deadline"`` (it sent, and did not come to an end), ``"connection"``,
            ``"malformed"`` (the body is not what the protocol says) or ``"other"``.
        message: The server's or the SDK's own words; may hold a key.
        status: HTTP status, if there was one.
        headers: Response headers, names in lower case.
        code: The provider's short code for the error.
        parameter: The request parameter that the provider blames.
        retry_after: Seconds to wait, where the body says so.
        unpriced: Whether the call may be charged for although no usage came back.
    """

    kind: Literal["status", "timeout", "deadline", "connection", "malformed", "other"]
    message: str = ""
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    code: str = ""
    parameter: str = ""
    retry_after: float | None = None
    unpriced: bool = False

    def error(
        self,
        *,
        name: str,
        timeout: float,
        variables: Sequence[str],
        secrets: Iterable[Secret],
        where: str = "",
    ) -> ClientError:
        """Return the exception to raise; no key is in it.

        Args:
            name: The client's name.
            timeout: Seconds that a call may take, for the message.
            variables: Environment variables that can hold the key.
            secrets: Keys to hide.
            where: The server's address, if it is not the provider's usual one.
        """
        said = " ".join(redact(self.message, secrets).split())
        if len(said) > _SHOWN_CHARACTERS:
            said = said[:_SHOWN_CHARACTERS] + "…"
        at = f" at {where}" if where else ""
        if self.kind == "timeout":
            return ClientError(
                f"{name}{at} sent nothing for {timeout:g} s. Raise timeout= if the model is "
                "merely slow",
                retryable=True,
                unpriced=1,
            )
        if self.kind == "deadline":
            return ClientError(
                f"{name}{at} did not end its answer within {timeout:g} s. Raise timeout=, of "
                "which this is a multiple, if the model is merely slow",
                retryable=True,
                unpriced=1,
            )
        if self.kind == "connection":
            return ClientError(
                f"{name}{at} cannot be reached or cut the connection ({said or 'no reason given'})",
                retryable=True,
                unpriced=int(self.unpriced),
            )
        if self.kind == "malformed":
            return ClientError(
                f"{name}{at} sent an answer that its protocol does not allow: {said}",
                retryable=True,
                status=self.status,
                unpriced=1,
            )
        if self.kind == "other" or self.status is None:
            return ClientError(f"{name}{at}: {said}", status=self.status)
        return self._status_error(name + at, said, variables)

    def _status_error(self, name: str, said: str, variables: Sequence[str]) -> ClientError:
        status = self.status or 0
        keys = " or ".join(variables) or "api_key"
        if "scope" in self.code:  # a key that may do less: OpenAI answers 401, others 403
            status = 403
        if status == 401 or self.code == "API_KEY_INVALID":
            # The server's words are left out: some echo a part of the key.
            return RefusedKeyError(
                f"{name} refused the API key (HTTP {status}): check {keys}", status=status
            )
        if status == 403:
            return ClientError(
                f"{name} does not allow this with the given API key (HTTP {self.status}): {said}. "
                f"Check {keys} and what its account may use",
                status=status,
            )
        if 300 <= status < 400:
            place = redact(self.headers.get("location", "nowhere"))
            return ClientError(
                f"{name} answered with a redirection (HTTP {status}) to {place!r}, which is never "
                "followed: give the final address as base_url=...",
                status=status,
            )
        if status == 404 and re.search(r"(?i)v1/responses|not a chat model", said):
            return ClientError(
                f"{name} exists there, but does not answer chat requests (HTTP 404): {said}. Take "
                'another model, or endpoint="completions" for one that only continues texts',
                status=status,
            )
        if status == 404:
            return ModelNotFoundError(
                f"{name} does not exist there, or the address is wrong (HTTP 404): {said}. "
                "`llmopt models` lists what is configured",
                status=status,
            )
        if status == 429 and self.code in {"insufficient_quota", "billing_hard_limit_reached"}:
            return ClientError(
                f"{name}: the account has no credit left (HTTP 429): {said}", status=status
            )
        return ClientError(
            f"{name} answered HTTP {status}: {said or 'no reason given'}",
            retryable=status in RETRYABLE_STATUS or status >= 500,
            retry_after=self.retry_after
            if self.retry_after is not None
            else parse_retry_after(self.headers),
            status=status,
        )


def parse_retry_after(
    headers: Mapping[str, str], now: Callable[[], float] = time.time
) -> float | None:
    """Return the seconds that a server asks to wait, or ``None``.

    Args:
        headers: Response headers, names in lower case. ``retry-after-ms`` goes before
            ``retry-after``, which holds seconds or a date (RFC 9110, section 10.2.3).
        now: Clock, seconds since the epoch.
    """
    for header, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(header)
        if value is None:
            continue
        seconds = _seconds(value)
        if seconds is not None:
            return max(0.0, seconds * scale)
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - now()
        except (TypeError, ValueError, OverflowError, IndexError):
            continue
        if seconds <= _LONGEST_WAIT:
            return max(0.0, seconds)
    return None


def _seconds(value: object) -> float | None:
    """Read a number of seconds that somebody may wait; ``None`` if it is none."""
    try:
        seconds = float(str(value))
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds <= _LONGEST_WAIT else None


def parse_duration(value: object) -> float | None:
    """Return the seconds of a duration such as ``"13.5s"``, or ``None`` if it is none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)s", str(value), re.ASCII)
    return _seconds(found[1]) if found else None


_TOO_LARGE = re.compile(
    r"(?i)too (?:large|high|big|long|many)|at most|maximum|less than or equal|exceed|greater than"
    r"|valid range|supported range|can only afford|(?<=\d) > \d|<="
)
_CAP_NAMES = re.compile(r"(?i)max[_ ]?(?:completion|output|new)?[_ ]?tokens|completion|credits")
# A cap counts against what an account may ask for in a minute, whether it is used or not.
_PER_MINUTE = re.compile(r"(?i)request too large.*Limit (\d+), (?:Used \d+, )?Requested (\d+)")
_CONTEXT = re.compile(r"(?i)(?:maximum )?context (?:length|window)\D{0,40}?(\d[\d,]*)")
_PROMPT = re.compile(
    r"(?i)(\d[\d,]*) (?:input tokens|tokens? from the input|(?:tokens )?in the (?:messages|prompt)"
    r"|(?:tokens )?of text input)|input_tokens\D{0,10}(\d+)"
)
_LEAST_CAP = 16


@dataclass(frozen=True)
class SmallerCap:
    """What is left of a cap on the answer's tokens that a server finds too large.

    Attributes:
        cap: The cap to send next.
        limit: The model's own largest cap, for whatever prompt; ``None`` if that is not said.
        context: The model's context in tokens, if that was what the cap ran into.
    """

    cap: int
    limit: int | None = None
    context: int | None = None


def smaller_cap(fault: Fault, cap: int | None) -> SmallerCap | None:
    """Return the cap to send instead of one that a server calls too large, if it does.

    Args:
        fault: What the server answered.
        cap: The cap that was sent.
    """
    said = fault.message
    if cap is None or cap <= _LEAST_CAP or fault.status not in (400, 402, 413, 422, 429):
        return None
    per_minute = _PER_MINUTE.search(said)
    if per_minute:
        left = cap - int(per_minute[2]) + int(per_minute[1])
        return SmallerCap(left, limit=left) if _LEAST_CAP <= left < cap else None
    if fault.status == 429:
        return None
    context, prompt = _CONTEXT.search(said), _PROMPT.search(said)
    of_cap = _CAP_NAMES.search(said) or (context and prompt)
    if not (_TOO_LARGE.search(said) and of_cap):
        return None
    if context:
        whole = int(context[1].replace(",", ""))
        used = int((prompt[1] or prompt[2]).replace(",", "")) if prompt else 0
        left = whole - used if prompt else min(whole, cap) // 2
        # Without room for an answer, only a shorter prompt helps.
        return SmallerCap(left, context=whole) if _LEAST_CAP <= left < cap else None
    numbers = [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*", said)]
    fitting = [n for n in numbers if _LEAST_CAP <= n < cap]
    if not fitting and fault.status == 402:
        return None
    if not fitting:
        return SmallerCap(max(_LEAST_CAP, cap // 2)) if cap in numbers or not numbers else None
    left = max(fitting) - ("exclusive" in said)
    return SmallerCap(left, limit=None if fault.status == 402 else left)


# Ways in which servers say that a parameter is not wanted. A complaint about the size of a
# value ("max_tokens is too large") is not among them.
_REFUSAL = re.compile(
    r"(?i)unsupported|(?:not|n't) (?:yet )?(?:be )?(?:support|permit|allow|enabl|accept)"
    r"|unrecogni[sz]ed|unknown (?:name|parameter|field|argument)|extra (?:inputs|fields)"
    r"|deprecated|only the default|must be (?:equal to )?1\b|at most 1\b|unavailable"
    r"|not available|may only be|unknown variant|must be verified|must be one of|must be explicitly"
    r"|invalid schema|only one candidate|non-whitespace|incompatible with"
    r"|(?:schema|grammar)\b.{0,60}\btoo (?:complex|large|many)"
    r"|failed to \w+ (?:json schema|grammar)"
)


def refused_parameter(
    fault: Fault, sent: Iterable[str], spellings: Mapping[str, str] | None = None
) -> str | None:
    """Return the parameter that a 400 or 422 says the model does not take, if any.

    Args:
        fault: What the server answered.
        sent: Optional parameters that were sent.
        spellings: Patterns for parameters that servers call by other names, too.

    Returns:
        One of `sent`, or ``None`` if the server blames something else.
    """
    if fault.status not in (400, 422):
        return None
    unsupported = fault.code in {"unsupported_parameter", "unsupported_value"}
    if not unsupported and not _REFUSAL.search(fault.message):
        return None
    names = sorted(sent, key=len, reverse=True)
    blamed = fault.parameter.split(".")[0]
    if blamed in names:
        return blamed
    text = fault.message
    places = {}
    for name in names:
        words = (spellings or {}).get(name) or _spellings(name)
        found = re.search(rf"(?<![\w]){words}(?![\w])", text, re.IGNORECASE)
        if found:
            places[name] = found.start()
    # "'max_tokens' is not supported, use 'max_completion_tokens'": the first one is blamed.
    return min(places, key=lambda name: places[name]) if places else None


def _spellings(name: str) -> str:
    """Pattern for a parameter's name as servers write it: snake case, camel case, words."""
    if name == "n":
        # A lone letter is a parameter only in quotes or before a verb.
        return r"(?:['\"`]n['\"`]|n (?:must|is|should|>))"
    words = name.split("_")
    if name == "candidate_count":
        return r"(?:candidate_?count|(?:multiple|only one) candidates?)"
    return "[_ -]?".join(map(re.escape, words))


class RateLimiter:
    """At most `per_minute` starts in any 60 seconds, over all threads of one client.

    Args:
        per_minute: The cap, or ``None`` for no cap.
        clock: Monotonic seconds.
        sleep: Waits for the given seconds.
    """

    def __init__(
        self,
        per_minute: int | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if per_minute is not None and per_minute < 1:
            raise ValueError(f"requests_per_minute={per_minute}: expected at least 1, or None")
        self.per_minute = per_minute
        self._clock = clock
        self._sleep = sleep
        self._starts: deque[float] = deque(maxlen=per_minute)
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Return when the next call may start, and book it."""
        if self.per_minute is None:
            return
        with self._lock:
            now = self._clock()
            start = now
            if len(self._starts) == self.per_minute:
                start = max(now, self._starts[0] + 60.0)
            self._starts.append(start)
        if start > now:
            self._sleep(start - now)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_lock"]
        # The clock of another process has another zero.
        state["_starts"] = deque(maxlen=self.per_minute)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


def check_url(url: str) -> str:
    """Return `url` without a trailing slash.

    Raises:
        ValueError: It is not http(s), or it holds a password or a query, which would end
            up in file names and logs.
    """
    shown = "(hidden)" if "@" in url else redact(url)
    try:
        parts = urlsplit(url)
        port_known = parts.port is None or parts.port > 0
    except ValueError as error:  # half an IPv6 address, a port that is none
        raise ValueError(f"base_url={shown!r}: {error}") from None
    if not port_known or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"base_url={shown!r}: expected http://host:port/path or https://...")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError(
            f"the base_url for {parts.hostname!r} holds a user name, a query or a fragment: give "
            "the address alone, and a key as api_key=... or in the environment"
        )
    return url.rstrip("/")


def is_local(url: str) -> bool:
    """Whether an address is this very machine."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1", "0.0.0.0") or host.startswith("127.")


class TooLarge(Exception):
    """A body is longer, or packed in another way, than was asked for."""


def http_options(url: str) -> dict[str, Any]:
    """Return the arguments with which an SDK's HTTP client keeps to our rules.

    No redirection is followed, which would hand key and prompt on; bodies come unpacked and at
    most `MOST_BYTES` long; this machine is not asked through a proxy, which would see the key.

    Args:
        url: The address that is asked.
    """
    # One of the SDKs reads the environment's proxies whatever `trust_env` says.
    direct = {"mounts": dict.fromkeys(("http://", "https://", "all://"))} if is_local(url) else {}
    return {
        **direct,
        "follow_redirects": False,
        "trust_env": not is_local(url),
        "headers": {"Accept-Encoding": "identity"},
        "event_hooks": {"response": [_bound_reply]},
    }


def _bound_reply(response: Any) -> None:
    packed = response.headers.get("content-encoding", "identity").strip().lower()
    if packed not in ("", "identity"):
        # A small packed body can fill all memory.
        raise TooLarge(f"the body is packed ({packed}), though this was not asked for")
    module = importlib.import_module(type(response).__module__.partition(".")[0])  # httpx, httpx2
    response.stream = _bounded_stream(module.SyncByteStream)(response.stream)


@functools.cache
def _bounded_stream(base: Any) -> Any:
    """Return the class of a stream that ends with an error after `MOST_BYTES`."""

    class Bounded(base):  # type: ignore[misc]
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def __iter__(self) -> Iterator[bytes]:
            size = 0
            for chunk in self.stream:
                size += len(chunk)
                if size > MOST_BYTES:
                    raise TooLarge(f"the body is longer than {MOST_BYTES >> 20} MiB")
                yield chunk

        def close(self) -> None:
            self.stream.close()

    return Bounded


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `over` laid on top, mappings inside mappings merged likewise."""
    result = dict(base)
    for name, value in over.items():
        below = result.get(name)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        result[name] = merged(below, value) if both else value  # type: ignore[arg-type]
    return result
