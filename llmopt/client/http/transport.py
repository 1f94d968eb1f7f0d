"""How servers are connected to: addresses, rules for every HTTP client, the rate of calls."""

from __future__ import annotations

import functools
import importlib
import json
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from llmopt.client.http.api_keys import redact
from llmopt.errors import needs
from llmopt.util.threads import Lock

CONNECT_SECONDS = 20.0
"""How long a connection may take to be made."""
MOST_BYTES = 32 * 2**20
"""Longest body of an answer."""


def load(module: str, package: str) -> Any:
    """Import an SDK."""
    with needs("this model", module, extra=package):
        return importlib.import_module(module)


_ASKING: ContextVar[bool] = ContextVar("asking", default=False)


class _Quiet(logging.Filter):
    """Drops what a library says of the inside of our calls: headers, and bodies with prompts."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.DEBUG or not _ASKING.get()


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


@contextmanager
def unlogged() -> Iterator[None]:
    """Keep headers and bodies of the calls inside out of the libraries' logs at DEBUG."""
    before = _ASKING.set(True)
    try:
        yield
    finally:
        _ASKING.reset(before)


class RateLimiter:
    """At most `per_minute` starts in any 60 seconds, over all threads; ``None`` for no limit."""

    def __init__(self, per_minute: int | None) -> None:
        if per_minute is not None and per_minute < 1:
            raise ValueError(f"requests_per_minute={per_minute}: expected at least 1, or None")
        self.per_minute = per_minute
        self._starts: deque[float] = deque(maxlen=per_minute)
        self._lock = Lock()

    def wait(self) -> None:
        """Return when the next call may start, and book it."""
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
        # The clock of another process has another zero.
        return {**self.__dict__, "_starts": deque(maxlen=self.per_minute)}


def check_url(url: str) -> str:
    """Return `url` without a trailing slash; refuse one whose secrets would end up in logs."""
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


def whole_body(response: Any) -> Any | None:
    """Return a body that is no stream of events, though one was asked for, as objects."""
    if "event-stream" in response.headers.get("content-type", ""):
        return None
    return json.loads(response.read(), object_hook=lambda fields: SimpleNamespace(**fields))


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `over` laid on top, mappings inside mappings merged likewise."""
    result = dict(base)
    for name, value in over.items():
        below = result.get(name)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        result[name] = merged(below, value) if both else value  # type: ignore[arg-type]
    return result
