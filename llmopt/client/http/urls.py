"""Addresses of servers: their form, and whether they are this machine."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from llmopt.client.http.api_keys import redact


def check_url(url: str) -> str:
    """Return `url` without a trailing slash; reject one with secrets, which logs would show."""
    shown = "(hidden)" if "@" in url else redact(url)
    try:
        parts = urlsplit(url)
        has_port = parts.port is None or parts.port > 0
    except ValueError as error:  # an incomplete IPv6 address, an invalid port
        raise ValueError(f"base_url={shown!r}: {error}") from None
    if not has_port or parts.scheme not in ("http", "https") or not parts.hostname:
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
        return host in ("localhost", "0.0.0.0") or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name, such as 127.example.com
