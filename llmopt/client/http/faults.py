"""Failures of a call: read once, in one form for every SDK."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from llmopt.client.http.api_keys import Secret, redact
from llmopt.errors import ClientError, ModelNotFoundError, RefusedKeyError
from llmopt.util.text import clean, cut

RETRYABLE_STATUS = frozenset({408, 409, 429})
_LONGEST_WAIT = 366 * 86_400.0  # seconds
_SHOWN_CHARACTERS = 300
_READ_CHARACTERS = 20_000
_DEEPEST = 12  # levels of an error's body to read
# The HTTP status of errors in the body of a success or in the middle of a stream.
_STATUS = {
    "overloaded_error": 529,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 402,
    "billing_error": 402,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "timeout_error": 504,
    "invalid_request_error": 400,
}
_MALFORMED = frozenset({
    "ValueError", "LookupError", "TypeError", "AttributeError", "RecursionError", "ParseError",
    "APIResponseValidationError",
})  # fmt: skip
_Kind = Literal["status", "timeout", "deadline", "connection", "malformed", "other"]


@dataclass(eq=False, repr=False)
class Fault(Exception):
    """The failure of one call.

    ``"timeout"`` means silence, ``"deadline"`` an answer that did not end in time, and
    ``"malformed"`` a body that violates the protocol.
    """

    kind: _Kind
    message: str = ""  # the server's own words; may hold a key
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    code: str = ""  # the provider's short code for the error
    parameter: str = ""  # the field of the request that the error names: a name or a path
    retry_after: float | None = None  # seconds to wait, if the body states them
    unpriced: bool = False  # whether the call may be charged although it returned no usage

    def said(self, secrets: Iterable[Secret] = (), most: int = _SHOWN_CHARACTERS) -> str:
        """Return the server's message as one clean line of limited length, without `secrets`."""
        text = self.message
        if len(text) > _READ_CHARACTERS:  # a cut word may be part of a key
            text = text[:_READ_CHARACTERS].rpartition(" ")[0]
        return cut(clean(" ".join(redact(text, secrets).split())), most)

    def error(
        self, *, name: str, timeout: float, variables: Sequence[str], key: Secret, where: str = ""
    ) -> ClientError:
        """Return the exception to raise, without the key; `where` is an unusual address."""
        said = self.said((key,))
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
            parts = urlsplit(clean(redact(self.headers.get("location", ""), (key,))))
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
        if status == 404:
            return ModelNotFoundError(
                f"{name} does not exist there, or the address is wrong (HTTP 404): {said}. "
                "`llmopt models` lists what is configured",
                status=status,
            )
        if status == 402 or self.code in ("insufficient_quota", "billing_hard_limit_reached"):
            return ClientError(
                f"{name}: the account has no credit left (HTTP {status}): {said}", status=402
            )
        seconds = self.retry_after
        return ClientError(
            f"{name} answered HTTP {status}: {said or 'no reason given'}",
            retryable=status in RETRYABLE_STATUS or status >= 500,
            retry_after=parse_retry_after(self.headers) if seconds is None else seconds,
            status=status,
        )


def sdk_fault(error: BaseException) -> Fault | None:
    """Return the fault of an exception of an SDK or its HTTP library; ``None`` for any other."""
    said = f"{type(error).__name__}: {error}"
    link: BaseException | None = error
    while link is not None:
        names = {c.__name__ for c in type(link).__mro__}
        if isinstance(link, Fault):
            return link.with_traceback(None)
        if names & _MALFORMED:
            return Fault("malformed", f"{type(link).__name__}: {link}")
        if names & {"APIStatusError", "APIError"} and "APIConnectionError" not in names:
            return _error_fault(link)
        said = str(link) or said
        if names & {"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError"}:
            return Fault("connection", said)
        if names & {"TimeoutException", "Timeout", "ReadTimeoutError", "RetryError"}:
            return Fault("timeout")
        if names & {"TransportError", "RequestException", "HTTPError", "ConnectionError"}:
            return Fault("connection", said, unpriced=True)
        link = link.__cause__
    return Fault("connection", said) if "APIConnectionError" in type(error).__name__ else None


def _error_fault(error: Any) -> Fault:
    """Return the fault of an SDK's exception for an error of the server."""
    response: Any = getattr(error, "response", None)
    status = getattr(response, "status_code", None) or 200  # an answer that had begun
    body = getattr(error, "body", None) or getattr(error, "details", None)
    if status >= 300:
        # The SDKs differ in the part of the body that they keep.
        with contextlib.suppress(Exception):
            body = parsed(response.content)
    headers = {name.lower(): value for name, value in getattr(response, "headers", {}).items()}
    fault = status_fault(status, headers, body)
    fault.message = fault.message or str(getattr(error, "message", ""))
    return fault


def parsed(data: bytes) -> Any:
    """Return an error's body: JSON, or else its text."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data.decode(errors="replace")


def raise_if_error(event: Any) -> None:
    """Raise the fault that an event of an answer or its one body holds, in spite of its status."""
    if isinstance(event, Mapping) and (event.get("error") or event.get("object") == "error"):
        raise status_fault(200, {}, event)


def status_fault(status: int, headers: Mapping[str, str], body: Any) -> Fault:
    """Return the fault of an error's body; with a status of success, the body names its own."""
    if isinstance(body, list):  # some Google servers send a list with one error
        body = body[0] if body else {}
    inner = body.get("error", body) if isinstance(body, Mapping) else body
    error = inner if isinstance(inner, Mapping) else {}
    code, details = error.get("code"), error.get("details")
    if status < 300:
        codes = map(str, (code, error.get("status")))
        numbers = [int(c) for c in codes if re.fullmatch("[45][0-9]{2}", c)]
        kinds = [
            _STATUS[k] for k in (code, error.get("type")) if isinstance(k, str) and k in _STATUS
        ]
        status = next(iter(numbers + kinds), 500)
    named = error.get("param") or _text_at(details, "field") or _place(body)
    return Fault(
        "status",
        words(body),
        status=status,
        headers=headers,
        code=_text_at(details, "reason") or str(code or error.get("status") or ""),
        parameter=str(named or ""),
        retry_after=parse_duration(_text_at(details, "retryDelay")),
    )


def _place(body: object) -> str:
    """Return the ``loc`` of a server that checks with pydantic: ``detail: [{loc: [...]}]``."""
    detail = body.get("detail") if isinstance(body, Mapping) else None
    first = detail[0] if isinstance(detail, list) and detail else None
    place = first.get("loc") if isinstance(first, Mapping) else None
    return ".".join(map(str, place)) if isinstance(place, list) else ""


def _text_at(details: object, name: str, deepest: int = _DEEPEST) -> str:
    """Return a text field of the details of a Google error, such as ``reason`` of ErrorInfo."""
    if isinstance(details, Mapping):
        if isinstance(details.get(name), str):
            return str(details[name])
        details = list(details.values())
    if isinstance(details, list) and deepest:
        return next(filter(None, (_text_at(item, name, deepest - 1) for item in details)), "")
    return ""


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


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds in ``retry-after-ms`` or ``retry-after``; a date is not read."""
    for value, scale in (headers.get("retry-after-ms"), 1e-3), (headers.get("retry-after"), 1.0):
        with contextlib.suppress(TypeError, ValueError):
            seconds = float(value) * scale  # type: ignore[arg-type]
            if seconds <= _LONGEST_WAIT:
                return max(0.0, seconds)
    return None


def parse_duration(value: str) -> float | None:
    """Return the seconds of a duration such as ``"13.5s"``, or ``None``."""
    duration = re.fullmatch(r"(\d+(?:\.\d+)?)s", value, re.ASCII)
    seconds = float(duration[1]) if duration else math.inf
    return seconds if seconds <= _LONGEST_WAIT else None
