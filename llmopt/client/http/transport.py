"""What every SDK's HTTP client obeys: no redirections, no packed or endless answers, no logs."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from llmopt.client.http.api_keys import redact
from llmopt.client.http.faults import Fault
from llmopt.client.http.urls import is_local
from llmopt.errors import ClientError, needs
from llmopt.util.text import first_line

CONNECT_SECONDS = 20.0
"""Maximum time to connect."""
ASIDE_SECONDS = 10.0
"""Timeout of a free request, such as a list of models; the whole answer has twice as long."""
MOST_BYTES = 32 * 2**20
"""Maximum size of a response body."""
ASIDE_BYTES = 8 * 2**20
"""Maximum size of the longest lists of models."""
_LEAST_BYTES = 2**18
_TOKEN_BYTES = 512  # one token in a separate event, with all names and identifiers
_FILES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_PROXIES = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "all_proxy", "https_proxy", "http_proxy")


def load(module: str, extra: str) -> Any:
    """Import an SDK, the package of an extra."""
    with needs("this model", module, extra=extra):
        return importlib.import_module(module)


def answer_bytes(tokens: int) -> int:
    """Return the maximum size of the body of an answer with at most `tokens`, streamed or not."""
    return min(MOST_BYTES, _LEAST_BYTES + _TOKEN_BYTES * tokens)


@dataclass
class Bound:
    """Limits of the response to one call."""

    size: int = ASIDE_BYTES  # bytes
    ends: float = float("inf")  # by the monotonic clock
    answered: bool = False  # whether a response came


_BOUND: ContextVar[Bound | None] = ContextVar("bound", default=None)


class _Quiet(logging.Filter):
    """Drops the debug lines of libraries during our calls: they show headers and prompts."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.DEBUG or _BOUND.get() is None


_PARTS = ("connection", "http11", "http2", "proxy", "socks")
for _name in (
    *(f"{library}.{part}" for library in ("httpcore", "httpcore2") for part in _PARTS),
    "openai._base_client",
    "anthropic._base_client",
    "google_genai._api_client",
    "urllib3.connectionpool",
):
    logging.getLogger(_name).addFilter(_Quiet())


@contextlib.contextmanager
def bounded(size: int, seconds: float) -> Iterator[Bound]:
    """Limit the responses to the calls inside, and keep them out of the libraries' debug logs."""
    bound = Bound(size, time.monotonic() + seconds)
    token = _BOUND.set(bound)
    try:
        yield bound
    finally:
        _BOUND.reset(token)


def http_options(url: str) -> dict[str, Any]:
    """Return the arguments that make an SDK's HTTP client follow our rules.

    It follows no redirection, which would forward key and prompt, reads uncompressed bodies within
    the limits of `bounded`, and reaches this machine without a proxy, which would see the key.
    """
    # One SDK reads the environment's proxies even with `trust_env=False`.
    direct = {"mounts": dict.fromkeys(("http://", "https://", "all://"))} if is_local(url) else {}
    return {
        **direct,
        "follow_redirects": False,
        "trust_env": not is_local(url),
        # Evaluations take minutes: servers would have closed an idle connection.
        "headers": {"Accept-Encoding": "identity", "Connection": "close"},
        "event_hooks": {"request": [_bound_silence], "response": [_bound_stream]},
    }


def _bound_silence(request: Any) -> None:
    """Let no wait of a call outlast `Bound.ends`."""
    left = max(0.001, (_BOUND.get() or Bound()).ends - time.monotonic())
    waits = request.extensions.get("timeout", {})
    request.extensions["timeout"] = {
        k: left if v is None else min(v, left) for k, v in waits.items()
    }


def _bound_stream(response: Any) -> None:
    module = importlib.import_module(type(response).__module__.partition(".")[0])  # httpx, httpx2
    response.stream = _stream_class(module.SyncByteStream)(response)


@functools.cache
def _stream_class(base: Any) -> Any:
    class Bounded(base):  # type: ignore[misc]
        def __init__(self, response: Any) -> None:
            self.stream = response.stream
            self.chunks = chunks_within(response.headers, self.stream, cut=not response.is_success)

        def __iter__(self) -> Iterator[bytes]:
            return self.chunks

        def close(self) -> None:
            self.stream.close()

    return Bounded


def chunks_within(
    headers: Mapping[str, str], chunks: Iterable[bytes], *, cut: bool
) -> Iterator[bytes]:
    """Yield a body's chunks within the limits of `bounded`; only the start, if `cut`.

    Raises:
        Fault: It is longer, takes longer, or is compressed: a small one can fill all memory.
    """
    bound = _BOUND.get() or Bound()
    bound.answered = True
    packed = headers.get("content-encoding", "identity").strip().lower()
    if packed not in ("", "identity"):
        raise Fault("malformed", f"the body is packed ({packed}), though this was not asked for")
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if time.monotonic() > bound.ends:
            raise Fault("deadline")
        if size > bound.size:
            if cut:  # the status of a failed call is sufficient
                return
            raise Fault("malformed", f"the body is longer than {bound.size / 2**20:.3g} MiB")
        yield chunk


@contextlib.contextmanager
def usable_environment(used: bool) -> Iterator[None]:
    """Turn errors inside, if the environment is `used`, into one that names its variables."""
    for name in _FILES if used else ():
        path = os.environ.get(name)
        if path and not os.path.exists(path):
            raise ClientError(
                f"{name}={path!r} names certificates that do not exist: expected the path of a "
                "file (SSL_CERT_FILE) or folder (SSL_CERT_DIR); correct the variable or unset it",
                requests=0,
            )
    try:
        yield
    except (OSError, ValueError, ImportError) as error:
        names = [name for name in (*_FILES, *_PROXIES) if os.environ.get(name)]
        if not used or not names:
            raise
        said = re.sub(r"//[^/\s@]*@", "//***@", redact(first_line(error)))
        raise ClientError(
            f"the environment variable {' or '.join(names)} cannot be used ({said}): expected an "
            "address such as http://HOST:PORT or socks5://HOST:PORT for a proxy, and a file in PEM "
            "form for certificates; correct the variable or unset it",
            requests=0,
        ) from None
