"""Failures of a call, in the same form for every SDK."""

from __future__ import annotations

import email.utils
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from llmopt.client.http.api_keys import Secret, redact
from llmopt.client.http.transport import TooLarge
from llmopt.errors import ClientError, ModelNotFoundError, RefusedKeyError
from llmopt.util.text import clean, cut

RETRYABLE_STATUS = frozenset({408, 409, 429})
_LONGEST_WAIT = 366 * 86_400.0
_SHOWN_CHARACTERS = 300
_READ_CHARACTERS = 20_000
_DEEPEST = 12  # levels of an error's body to read


class MalformedBody(Exception):
    """A body is valid JSON, but violates the protocol."""


@dataclass(frozen=True)
class Fault:
    """The failure of one call, in the same form for every SDK.

    ``"timeout"`` means silence, ``"deadline"`` an answer that did not end in time, and
    ``"malformed"`` a body that violates the protocol.
    """

    kind: Literal["status", "timeout", "deadline", "connection", "malformed", "other"]
    message: str = ""  # the server's or the SDK's own words; may hold a key
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    code: str = ""  # the provider's short code for the error
    parameter: str = ""  # the field of the request that the error names: a name or a path
    retry_after: float | None = None  # seconds to wait, if the body states them
    unpriced: bool = False  # whether the call may be charged although no usage was returned

    def said(self, secrets: Iterable[Secret] = (), most: int = _SHOWN_CHARACTERS) -> str:
        """Return the server's message as one clean line of limited length, without `secrets`."""
        text = self.message
        if len(text) > _READ_CHARACTERS:  # a cut word may be part of a key
            text = text[:_READ_CHARACTERS].rpartition(" ")[0]
        return cut(clean(" ".join(redact(text, secrets).split())), most)

    def error(
        self,
        *,
        name: str,
        timeout: float,
        variables: Sequence[str],
        secrets: Iterable[Secret],
        where: str = "",
    ) -> ClientError:
        """Return the exception to raise, without `secrets`; `where` is an unusual address."""
        said = self.said(secrets)
        name += f" at {where}" if where else ""
        trouble = {
            "timeout": f"sent nothing for {timeout:g} s. Raise timeout= if the model is merely "
            "slow",
            "deadline": f"did not end its answer within {timeout:g} s, a multiple of timeout=. "
            "Raise timeout= if the model is merely slow",
            "connection": "cannot be reached or cut the connection "
            f"({said or 'no reason given'}): check the address and the network, or start the "
            "server",
            "malformed": f"sent an answer that its protocol does not allow: {said}",
        }.get(self.kind)
        if trouble:
            unpriced = self.unpriced if self.kind == "connection" else True
            return ClientError(
                f"{name} {trouble}", retryable=True, status=self.status, unpriced=int(unpriced)
            )
        if self.kind == "other" or self.status is None:
            return ClientError(f"{name}: {said}", status=self.status)
        if 300 <= self.status < 400:
            # A path may echo the request, including its headers.
            parts = urlsplit(clean(redact(self.headers.get("location", ""), secrets)))
            place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else ""
            return ClientError(
                f"{name} answered with a redirection (HTTP {self.status}) to "
                f"{cut(place, 100) or 'another place'!r}, which is never followed: give the final "
                "address as base_url=...",
                status=self.status,
            )
        return self._status_error(name, said, variables)

    def _status_error(self, name: str, said: str, variables: Sequence[str]) -> ClientError:
        status = self.status or 0
        keys = " or ".join(variables) or "api_key"
        if "scope" in self.code:  # a key with fewer rights: OpenAI answers 401, others 403
            status = 403
        if status == 401 or self.code == "API_KEY_INVALID":
            # The server's message is omitted: some echo a part of the key.
            return RefusedKeyError(
                f"{name} refused the API key (HTTP {status}): check {keys}", status=status
            )
        if status == 403:
            return ClientError(
                f"{name} does not allow this with the given API key (HTTP {self.status}): {said}. "
                f"Check {keys} and what its account may use",
                status=status,
            )
        if status == 404 and self.parameter == "model" and self.code != "model_not_found":
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
        if status == 402 or self.code in {"insufficient_quota", "billing_hard_limit_reached"}:
            return ClientError(
                f"{name}: the account has no credit left (HTTP {status}): {said}", status=402
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
    """Return the seconds in ``retry-after-ms``, or in ``retry-after`` (RFC 9110, 10.2.3)."""
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
    """Return a plausible number of seconds to wait, or ``None``."""
    try:
        seconds = float(str(value))
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds <= _LONGEST_WAIT else None


def parse_duration(value: object) -> float | None:
    """Return the seconds of a duration such as ``"13.5s"``, or ``None``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)s", str(value), re.ASCII)
    return _seconds(found[1]) if found else None


def joined(failures: list[ClientError]) -> ClientError:
    """Return the error to raise if all calls failed."""
    # If one of them is final, a retry is useless.
    error = next((f for f in failures if not f.retryable), failures[0])
    waits = [f.retry_after for f in failures if f.retry_after is not None]
    error.retry_after = max(waits, default=None)
    for count in ("requests", "unpriced", "cost", "estimated"):
        setattr(error, count, sum(getattr(f, count) for f in failures))
    return error


# The HTTP status of errors that Anthropic and OpenRouter send in the middle of a stream.
_STREAM_STATUS = {
    "overloaded_error": 529,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "api_error": 500,
    "server_error": 500,
    "invalid_request_error": 400,
}


def status_fault(error: Any) -> Fault:
    """Return the status, headers, message and code of an exception of an OpenAI-like SDK."""
    body = error.body
    inner = body.get("error", body) if isinstance(body, Mapping) else {}
    inner = inner if isinstance(inner, Mapping) else {}
    code = inner.get("code")
    status = getattr(error, "status_code", None)
    if status is None or status < 300:  # the answer had begun
        kind = str(inner.get("type") or code)
        is_status = isinstance(code, int) and 400 <= code < 600
        status = code if is_status else _STREAM_STATUS.get(kind, 500)
    return Fault(
        "status",
        words(body) or str(error.message),
        status=status,
        headers=headers_of(getattr(error, "response", None)),
        code=str(code or ""),
        parameter=str(inner.get("param") or _place(body)),
    )


def headers_of(response: Any) -> dict[str, str]:
    """Return the headers of a response, with names in lower case; empty without a response."""
    found = getattr(response, "headers", None) or {}
    return {str(k).lower(): str(v) for k, v in found.items()}


def _place(body: object) -> str:
    """Return the ``loc`` of a server that checks with pydantic: ``detail: [{loc: [...]}]``."""
    found = body.get("detail") if isinstance(body, Mapping) else None
    first = found[0] if isinstance(found, list) and found else None
    place = first.get("loc") if isinstance(first, Mapping) else None
    return ".".join(map(str, place)) if isinstance(place, list) else ""


def words(body: object, deepest: int = _DEEPEST) -> str:
    """Return the message in an error's body, wherever the server put it."""
    if isinstance(body, str) or not deepest:
        return body if isinstance(body, str) else ""
    if isinstance(body, Mapping):
        for name in ("message", "error", "detail", "msg", "errors"):
            said = words(body.get(name), deepest - 1)
            if said:
                place = body.get("loc")
                return f"{'.'.join(map(str, place))}: {said}" if isinstance(place, list) else said
    if isinstance(body, list):
        return "; ".join(filter(None, (words(item, deepest - 1) for item in body[:_DEEPEST])))
    return ""


def sdk_fault(sdk: Any, error: Exception) -> Fault | None:
    """Return the fault of an exception of an OpenAI-like SDK; ``None`` for other exceptions."""
    if isinstance(error, sdk.APIResponseValidationError):
        return Fault("malformed", f"{type(error).__name__}: {error}")
    if isinstance(error, sdk.APIConnectionError):
        return transport_fault(error) or Fault("connection", str(error.__cause__ or error))
    if isinstance(error, sdk.APIError):
        return status_fault(error)
    return None


def transport_fault(error: BaseException) -> Fault | None:
    """Return the fault of an exception of an HTTP library, or of one that it caused."""
    said = f"{type(error).__name__}: {error}"
    link: BaseException | None = error
    while link is not None:
        lineage = {c.__name__ for c in type(link).__mro__}
        said = str(link) or said
        if isinstance(link, TooLarge | json.JSONDecodeError | UnicodeDecodeError | RecursionError):
            return Fault("malformed", f"{type(link).__name__}: {link}")
        if lineage & {"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError"}:
            return Fault("connection", said)
        if "TimeoutException" in lineage:
            return Fault("timeout")
        if lineage & {"TransportError", "ConnectionError"}:
            return Fault("connection", said, unpriced=True)
        link = link.__cause__
    return None
