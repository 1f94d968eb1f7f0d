"""Connections to servers: addresses, rules for every HTTP client, the rate of calls."""

from __future__ import annotations

import contextlib
import functools
import importlib
import ipaddress
import json
import logging
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from llmopt.client.http.api_keys import redact
from llmopt.errors import needs
from llmopt.util.threads import Lock

CONNECT_SECONDS = 20.0
"""Maximum time to connect."""
MOST_BYTES = 32 * 2**20
"""Maximum size of a response body."""
_TOKEN_BYTES = 512  # one token in a separate event, with all names and identifiers
_TOKEN_MARKS = 24
_LEAST_BYTES = 2**18
_MOST_MARKS = 2**13  # of one event, or of a body that is not streamed
_STRING = re.compile(rb'"(?:[^"\\]+|\\.)*("|\\?\Z)', re.DOTALL)
_MARKS = re.compile(rb"[\[{,]")
_BRACKETS = re.compile(rb"[\[{}\]]")
_DEEPEST = 100  # levels


def load(module: str, package: str) -> Any:
    """Import an SDK."""
    with needs("this model", module, extra=package):
        return importlib.import_module(module)


class TooLarge(Exception):
    """A body is longer than allowed, or compressed without being asked for."""


@dataclass(frozen=True)
class Bound:
    """Limits of a response. `marks` are the ``[``, ``{`` and ``,`` outside its strings.

    A small body can create many objects that take a thousand times its memory: ``[{},{},{}...``.
    """

    size: int = 8 * 2**20  # enough for the longest lists of models
    marks: int = 2**19
    at_once: int = 2**19  # marks of one line, which is parsed at once

    @classmethod
    def of_answer(cls, tokens: int) -> Bound:
        """Return the bound of a response with at most `tokens`, streamed or not."""
        size = min(MOST_BYTES, _LEAST_BYTES + _TOKEN_BYTES * tokens)
        return cls(size, _MOST_MARKS + _TOKEN_MARKS * tokens, _MOST_MARKS)

    def checked(self, chunks: Iterable[bytes], in_events: bool) -> Iterator[bytes]:
        """Yield a body's chunks; raise `TooLarge` if it exceeds a limit."""
        size = marks = in_line = depth = 0
        begun = b""  # start of a string in the previous chunk; no string spans lines
        for chunk in chunks:
            size += len(chunk)
            if size > self.size:
                raise TooLarge(f"the body is longer than {self.size / 2**20:.3g} MiB")
            for number, line in enumerate(chunk.split(b"\n")):
                if number:
                    begun, in_line = b"", 0
                    depth = 0 if in_events else depth
                rest, quote, escape = _STRING.sub(_unended, begun + line).partition(b'"')
                begun = quote + escape
                found = len(_MARKS.findall(rest))
                marks, in_line = marks + found, in_line + found
                if marks > self.marks or (in_line if in_events else marks) > self.at_once:
                    raise TooLarge("the body holds more objects than an answer has")
                for bracket in _BRACKETS.findall(rest):
                    depth += 1 if bracket in b"[{" else -1
                    if depth > _DEEPEST:
                        raise TooLarge("the body is nested deeper than an answer")
            yield chunk


def _unended(string: re.Match[bytes]) -> bytes:
    """Return nothing for a complete string, or the state to resume an incomplete one."""
    return b"" if string[1] == b'"' else b'"' + string[1]


_ASKING: ContextVar[Bound | None] = ContextVar("asking", default=None)


class _Quiet(logging.Filter):
    """Drops the debug lines of libraries during our calls: they show headers and prompts."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.DEBUG or _ASKING.get() is None


_LIBRARIES = (
    *(
        f"{library}.{part}"
        for library in ("httpcore", "httpcore2")
        for part in ("connection", "http11", "http2", "proxy", "socks")
    ),
    "openai._base_client",
    "anthropic._base_client",
    "google_genai._api_client",
    "urllib3.connectionpool",
)
for _name in _LIBRARIES:
    logging.getLogger(_name).addFilter(_Quiet())


@contextlib.contextmanager
def unlogged(bound: Bound) -> Iterator[None]:
    """Limit responses to the calls inside, and keep them out of the libraries' debug logs."""
    before = _ASKING.set(bound)
    try:
        yield
    finally:
        _ASKING.reset(before)


class RateLimiter:
    """Allows at most `per_minute` calls in any 60 seconds, over all threads (``None``: any)."""

    def __init__(self, per_minute: int | None) -> None:
        if per_minute is not None and per_minute < 1:
            raise ValueError(f"requests_per_minute={per_minute}: expected at least 1, or None")
        self.per_minute = per_minute
        self._starts: deque[float] = deque(maxlen=per_minute)
        self._lock = Lock()

    def wait(self) -> None:
        """Wait until the next call may start, and count it."""
        if self.per_minute is None:
            return
        with self._lock:
            now = time.monotonic()
            start = now
            if len(self._starts) == self.per_minute:
                start = max(now, self._starts[0] + 60.0)
            self._starts.append(start)
        if start > now:
            time.sleep(start - now)

    def __getstate__(self) -> dict[str, Any]:
        # Another process's clock has another origin.
        return {**self.__dict__, "_starts": deque(maxlen=self.per_minute)}


def check_url(url: str) -> str:
    """Return `url` without a trailing slash; reject one with secrets, which logs would show."""
    shown = "(hidden)" if "@" in url else redact(url)
    try:
        parts = urlsplit(url)
        port_known = parts.port is None or parts.port > 0
    except ValueError as error:  # an incomplete IPv6 address, an invalid port
        raise ValueError(f"base_url={shown!r}: {error}") from None
    if not port_known or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"base_url={shown!r}: expected http://host:port/path or https://...")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError(
            f"the base_url for {parts.hostname!r} contains a user name, a query or a fragment: "
            "give only the address, and a key as api_key=... or in the environment"
        )
    return url.rstrip("/")


def is_local(url: str) -> bool:
    """Whether an address is this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or host == "0.0.0.0" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name, such as 127.example.com


def http_options(url: str) -> dict[str, Any]:
    """Return the arguments that make an SDK's HTTP client follow our rules.

    It follows no redirection, which would forward key and prompt; responses are uncompressed and
    within the `Bound` of `unlogged`; no proxy, which would see the key, is used for this machine.
    """
    # One SDK reads the environment's proxies even with `trust_env=False`.
    direct = {"mounts": dict.fromkeys(("http://", "https://", "all://"))} if is_local(url) else {}
    return {
        **direct,
        "follow_redirects": False,
        "trust_env": not is_local(url),
        "headers": {"Accept-Encoding": "identity"},
        "event_hooks": {"response": [_bound_reply]},
    }


def bounded(
    headers: Mapping[str, str], chunks: Iterable[bytes], failed: bool = False
) -> Iterator[bytes]:
    """Yield a body's chunks; raise `TooLarge` if it is compressed or exceeds a limit.

    The body of a failed call is cut instead: its status is sufficient.
    """
    packed = headers.get("content-encoding", "identity").strip().lower()
    if packed not in ("", "identity"):
        # A small compressed body can fill all memory.
        raise TooLarge(f"the body is packed ({packed}), though this was not asked for")
    bound = _ASKING.get() or Bound()
    checked = bound.checked(chunks, "event-stream" in headers.get("content-type", ""))
    return _cut_short(checked) if failed else checked


def _cut_short(chunks: Iterator[bytes]) -> Iterator[bytes]:
    with contextlib.suppress(TooLarge):
        yield from chunks


def _bound_reply(response: Any) -> None:
    module = importlib.import_module(type(response).__module__.partition(".")[0])  # httpx, httpx2
    kind = _bounded_stream(module.SyncByteStream)
    response.stream = kind(
        response.stream, bounded(response.headers, response.stream, response.is_error)
    )


@functools.cache
def _bounded_stream(base: Any) -> Any:
    """Return a stream class that reads through `bounded`."""

    class Bounded(base):  # type: ignore[misc]
        def __init__(self, stream: Any, chunks: Iterator[bytes]) -> None:
            self.stream, self.chunks = stream, chunks

        def __iter__(self) -> Iterator[bytes]:
            return self.chunks

        def close(self) -> None:
            self.stream.close()

    return Bounded


def whole_body(response: Any) -> Any | None:
    """Return the parsed body of a server that did not stream, or ``None`` if it streams."""
    if "event-stream" in response.headers.get("content-type", ""):
        return None
    return json.loads(response.read(), object_hook=lambda fields: SimpleNamespace(**fields))


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` updated with `over`; nested mappings are merged recursively."""
    result = dict(base)
    for name, value in over.items():
        below = result.get(name)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        result[name] = merged(below, value) if both else value  # type: ignore[arg-type]
    return result
