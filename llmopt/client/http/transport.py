"""One HTTP exchange: which addresses are allowed, how long it may take, how much may come back."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from llmopt.client.http.api_keys import Secret, redact
from llmopt.client.http.endpoint import Endpoint
from llmopt.client.http.faults import Fault, status_fault
from llmopt.client.http.urls import is_local
from llmopt.errors import ClientError, needs
from llmopt.util.text import first_line
from llmopt.util.threads import Lock

CONNECT_SECONDS = 20.0
"""Maximum time to connect."""
ASIDE_SECONDS = 10.0
"""Timeout of a free request, such as a list of models; the whole answer has twice as long."""
MOST_BYTES = 32 * 2**20
"""Maximum size of a response body."""
_ASIDE_BYTES = 8 * 2**20  # enough for the longest lists of models
_LEAST_BYTES = 2**18
_TOKEN_BYTES = 512  # one token in a separate event, with all names and identifiers
_FILES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_PROXIES = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "all_proxy", "https_proxy", "http_proxy")


def load(module: str, extra: str) -> Any:
    """Import a package of an extra."""
    with needs("this model", module, extra=extra):
        return importlib.import_module(module)


def answer_bytes(tokens: int) -> int:
    """Return the maximum size of the body of an answer with at most `tokens`, streamed or not."""
    return min(MOST_BYTES, _LEAST_BYTES + _TOKEN_BYTES * tokens)


class Connection:
    """The HTTP client for one key, address and process.

    It follows no redirection, which would forward key and prompt, reads uncompressed bodies of
    limited length, and reaches this machine without a proxy, which would see the key.

    Raises:
        ClientError: The environment names a proxy or certificates that cannot be used.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        key: Secret,
        extra: str,
        timeout: float,
        headers: Callable[[], dict[str, str]],  # no variable holds them: they hold the key
    ) -> None:
        self.endpoint = endpoint
        self.key = key
        self.httpx = load("httpx", extra)
        environment = not is_local(endpoint.url)
        with usable_environment(environment):
            self.http = self.httpx.Client(
                headers={"Accept-Encoding": "identity", **headers()},
                timeout=self.httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
                trust_env=environment,
                # Evaluations take minutes: servers would have closed an idle connection.
                limits=self.httpx.Limits(max_keepalive_connections=0),
            )

    def post(
        self, path: str, body: Any, most: int, seconds: float, silence: float | None = None
    ) -> list[Any]:
        """Return the events of a streamed answer, or the one body of another answer.

        Args:
            path: Path behind the endpoint's address.
            body: What to send, as JSON.
            most: Maximum bytes of the answer.
            seconds: Maximum duration of the whole answer.
            silence: Maximum seconds without a byte; by default the client's timeout.

        Raises:
            Fault: The call failed.
        """
        options = {} if silence is None else {"timeout": silence}
        sent = {"content": json.dumps(body), "headers": {"Content-Type": "application/json"}}
        return self._exchange("POST", self.endpoint.url + path, most, seconds, **sent, **options)

    def get(self, path: str, seconds: float = ASIDE_SECONDS) -> Any:
        """Return the body at a path or an address, without charge, within twice `seconds`.

        Raises:
            Fault: The call failed.
        """
        url = path if "://" in path else self.endpoint.url + path
        return self._exchange("GET", url, _ASIDE_BYTES, 2 * seconds, timeout=seconds)[0]

    def _exchange(
        self, method: str, url: str, most: int, seconds: float, **options: Any
    ) -> list[Any]:
        ends = time.monotonic() + seconds
        with quiet(), self.http.stream(method, url, **options) as response:
            headers = {name.lower(): value for name, value in response.headers.items()}
            failed = response.status_code >= 300
            data = read_body(headers, response.iter_raw(), most, ends, cut=failed)
        if failed:
            raise status_fault(response.status_code, headers, _parsed(data))
        return events(data)

    def fault(self, error: Exception) -> Fault | None:
        """Return the fault of an exception of the HTTP library; ``None`` for any other."""
        httpx = self.httpx
        said = f"{type(error).__name__}: {error}"
        unsent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
        if isinstance(error, unsent):
            return Fault("connection", said)
        if isinstance(error, httpx.TimeoutException):
            return Fault("timeout")
        if isinstance(error, httpx.TransportError):
            return Fault("connection", said, unpriced=True)
        return None

    def close(self) -> None:
        """Close the connection."""
        self.http.close()


def read_body(
    headers: Mapping[str, str], chunks: Iterable[bytes], most: int, ends: float, *, cut: bool
) -> bytes:
    """Return a body of at most `most` bytes, read until the time `ends`; or the start, if `cut`.

    Raises:
        Fault: It is longer, takes longer, or is compressed: a small one can fill all memory.
    """
    packed = headers.get("content-encoding", "identity").strip().lower()
    if packed not in ("", "identity"):
        raise Fault("malformed", f"the body is packed ({packed}), though this was not asked for")
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if time.monotonic() > ends:
            raise Fault("deadline")
        if len(data) > most:
            if cut:
                break
            raise Fault("malformed", f"the body is longer than {most / 2**20:.3g} MiB")
    return bytes(data)


def events(data: bytes) -> list[Any]:
    """Return the JSON of each server-sent event, or of the one body of another answer.

    Raises:
        Fault: An event is an error, although the status is that of a success.
    """
    pieces = [data]
    if data.lstrip().startswith((b"data:", b"event:", b"id:", b":")):
        lines = (line.strip() for line in data.split(b"\n"))
        pieces = [line[5:].strip() for line in lines if line.startswith(b"data:")]
    parsed = [json.loads(piece) for piece in pieces if piece not in (b"", b"[DONE]")]
    for event in parsed:
        if isinstance(event, Mapping) and (event.get("error") or event.get("object") == "error"):
            raise status_fault(200, {}, event)
    if not parsed:
        raise Fault("malformed", "the answer is empty")
    return parsed


def _parsed(data: bytes) -> Any:
    """Return an error's body: JSON, or else its text."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data.decode(errors="replace")


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


_ASKING: ContextVar[bool] = ContextVar("asking", default=False)


class _Quiet(logging.Filter):
    """Drops the debug lines of libraries during our calls: they show headers and prompts."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.DEBUG or not _ASKING.get()


for _part in ("connection", "http11", "http2", "proxy", "socks"):
    logging.getLogger(f"httpcore.{_part}").addFilter(_Quiet())
logging.getLogger("urllib3.connectionpool").addFilter(_Quiet())


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the calls inside out of the libraries' debug logs."""
    token = _ASKING.set(True)
    try:
        yield
    finally:
        _ASKING.reset(token)


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
            start = now = time.monotonic()
            if len(self._starts) == self.per_minute:
                start = max(now, self._starts[0] + 60.0)
            self._starts.append(start)
        if start > now:
            time.sleep(start - now)

    def __getstate__(self) -> dict[str, Any]:
        # Another process's clock has another origin.
        return {**self.__dict__, "_starts": deque(maxlen=self.per_minute)}
