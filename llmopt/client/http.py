"""What every provider's client shares about HTTP: keys, faults, rate limits."""

from __future__ import annotations

import email.utils
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from llmopt.errors import ClientError, MissingKeyError, ModelNotFoundError

RETRYABLE_STATUS = frozenset({408, 409, 429})
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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.reveal == other.reveal

    __hash__ = None  # type: ignore[assignment]

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        return self

    def __reduce__(self) -> tuple[type[Secret], tuple[()]]:
        return Secret, ()


def find_key(given: Secret, variables: Sequence[str], *, name: str, required: bool) -> str | None:
    """Return the API key to use now.

    Args:
        given: What the user passed to the client.
        variables: Environment variables to look in, in this order.
        name: The client's name, for the message.
        required: Whether there must be one.

    Raises:
        MissingKeyError: There is none, or it cannot be sent in a header.
    """
    key = given.reveal or next((v for v in map(os.environ.get, variables) if v), None)
    remedy = f"set the environment variable {' or '.join(variables)}, or pass api_key=..."
    # A key read from a file often ends in a newline.
    key = key.strip() if key else None
    if not key:
        if required:
            raise MissingKeyError(
                f"{name} needs an API key and there is none: {remedy}", requests=0
            )
        return None
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise MissingKeyError(
            f"the API key for {name} holds characters that no key has (a space, a line break or "
            f"a non-ASCII letter): {remedy}",
            requests=0,
        )
    return key


def redact(text: str, secrets: Iterable[str | None] = ()) -> str:
    """Return `text` with keys replaced by ``***``.

    Args:
        text: What a server or an SDK said.
        secrets: Known keys; hidden also in their URL-quoted form. Whatever else looks
            like a key is hidden too.
    """
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***").replace(quote(secret, safe=""), "***")
    return _KEY_SHAPES.sub("***", text)


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
    """

    kind: Literal["status", "timeout", "deadline", "connection", "malformed", "other"]
    message: str = ""
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    code: str = ""
    parameter: str = ""
    retry_after: float | None = None

    def error(
        self,
        *,
        name: str,
        timeout: float,
        variables: Sequence[str],
        secrets: Iterable[str | None],
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
            )
        if self.kind == "deadline":
            return ClientError(
                f"{name}{at} did not end its answer within {timeout:g} s. Raise timeout=, of "
                "which this is a multiple, if the model is merely slow",
                retryable=True,
            )
        if self.kind == "connection":
            return ClientError(
                f"{name}{at} cannot be reached or cut the connection ({said or 'no reason given'})",
                retryable=True,
            )
        if self.kind == "malformed":
            return ClientError(
                f"{name}{at} sent an answer that its protocol does not allow: {said}",
                retryable=True,
                status=self.status,
            )
        if self.kind == "other" or self.status is None:
            return ClientError(f"{name}{at}: {said}", status=self.status)
        return self._status_error(name + at, said, variables)

    def _status_error(self, name: str, said: str, variables: Sequence[str]) -> ClientError:
        status = self.status or 0
        keys = " or ".join(variables) or "api_key"
        # Providers that answer a wrong key with 400 say so in the text.
        if status == 401 or (status == 400 and re.search(r"(?i)api[ _]key not valid", said)):
            # The server's words are left out: some echo a part of the key.
            return ClientError(
                f"{name} refused the API key (HTTP {status}): check {keys}", status=status
            )
        if status == 403:
            return ClientError(
                f"{name} does not allow this with the given API key (HTTP 403): {said}. "
                f"Check {keys} and what its account may use",
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
        try:
            return max(0.0, float(value) * scale)
        except ValueError:
            pass
        try:
            return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now())
        except (TypeError, ValueError):
            continue
    return None


# Ways in which servers say that a parameter is not wanted. A complaint about the size of a
# value ("max_tokens is too large") is not among them.
_REFUSAL = re.compile(
    r"(?i)unsupported|(?:not|n't) (?:yet )?(?:be )?(?:support|permit|allow|enabl|accept)"
    r"|unrecogni[sz]ed|unknown (?:name|parameter|field|argument)|extra (?:inputs|fields)"
    r"|deprecated|only the default|must be (?:equal to )?1\b|at most 1\b"
    r"|invalid schema|only one candidate|non-whitespace"
)


def refused_parameter(fault: Fault, sent: Iterable[str]) -> str | None:
    """Return the parameter that a 400 or 422 says the model does not take, if any.

    Args:
        fault: What the server answered.
        sent: Optional parameters that were sent.

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
        words = _spellings(name)
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
