"""``llmopt models``: which models can be asked from here, and what the others lack."""

from __future__ import annotations

import argparse
import http.client
import importlib.metadata
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from llmopt.client.command import COMMANDS
from llmopt.client.http.api_keys import redact
from llmopt.client.http.remote import RemoteClient
from llmopt.client.model_string import PROVIDERS, get_client
from llmopt.client.prices import PRICES_VARIABLE, price_list
from llmopt.client.providers.openai import OpenAIClient
from llmopt.errors import install_hint
from llmopt.util.text import clean, cut
from llmopt.util.threads import DeadlineExceeded, within

_DISTRIBUTIONS = {
    "local": "xllamacpp",
    "openai": "openai",
    "gemini": "google-genai",
    "gemini-legacy": "google-generativeai",
    "anthropic": "anthropic",
}
_SHOWN_MODELS = 5
_SHOWN_CHARACTERS = 80
_MOST_BYTES = 1_000_000
_STEPS = 4


@dataclass(frozen=True)
class Status:
    """Whether one kind of model can be asked."""

    model: str  # how its model string is written
    ready: bool  # as far as can be seen from here; ``llmopt check`` asks a hosted model
    detail: str  # present or missing; names of variables, never their values


def survey(timeout: float = 0.5) -> list[Status]:
    """Look at every kind of model, at local ports for `timeout` seconds; nothing is sent out."""
    with ThreadPoolExecutor(len(PROVIDERS)) as pool:
        return list(pool.map(lambda prefix: _status(prefix, timeout), PROVIDERS))


def _status(prefix: str, timeout: float) -> Status:
    written = PROVIDERS[prefix].about.partition(": ")[0]
    if prefix in ("smollm2", "gguf:"):
        ready, detail = _package("local")
        if prefix == "smollm2":
            from llmopt.client.local.embedded import MODEL_BYTES, MODEL_NAME, model_folder

            path = model_folder() / MODEL_NAME
            fetched = path.is_file() and path.stat().st_size == MODEL_BYTES
            later = f"not fetched yet ({MODEL_BYTES / 1e6:.0f} MB, at first use)"
            detail = f"{detail}; model {'fetched' if fetched else later}"
        return Status(written, ready, detail)
    if prefix == "command:":
        there = [c.model for name, c in COMMANDS.items() if shutil.which(name)]
        return Status(written, bool(there), "; ".join(there) or f"no {', '.join(COMMANDS)} on PATH")
    own = prefix == "openai+"  # an address that is written out
    client = get_client(prefix + ("http://HOST/v1:MODEL" if own else "MODEL" * (prefix[-1] == ":")))
    if not isinstance(client, RemoteClient):
        return Status(written, True, "needs no package and no key")
    ready, detail = _package(client.package)
    if isinstance(client, OpenAIClient) and client.base_url is None and client.local:
        up, models = _ask_server(client.url, timeout)
        return Status(written, ready and up, f"{detail}; {client.url} {models}")
    variables = client.key_variables
    found = next((v for v in variables if os.environ.get(v)), None)
    if own:
        return Status(written, ready, f"{detail}; {variables[0]} {'set' if found else 'not set'}")
    if found is None:
        return Status(written, False, f"{detail}; {' or '.join(variables)} not set")
    return Status(written, ready, f"{detail}; {found} set")


def _package(extra: str) -> tuple[bool, str]:
    name = _DISTRIBUTIONS[extra]
    try:
        return True, f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return False, f"{name} missing: {install_hint(extra)}"


def _ask_server(url: str, timeout: float) -> tuple[bool, str]:
    """Ask a server on this machine for its models. Whatever listens there may answer."""
    try:
        status, body = within(_STEPS * timeout, lambda: _get(f"{url}/models", timeout))
    except DeadlineExceeded:
        return False, "sends without coming to an end"
    except OSError:
        return False, "not reachable"
    except http.client.HTTPException:
        return False, "answers, but not as a web server does"
    if status >= 400:
        return True, f"answers with HTTP {status}"
    try:
        if status != 200 or len(body) > _MOST_BYTES:
            raise ValueError("a redirection, or too much")
        names = [m["id"] for m in json.loads(body)["data"] or ()]
        if not all(isinstance(name, str) for name in names):
            raise TypeError("a name that is none")
    except (ValueError, KeyError, TypeError, RecursionError):
        return False, "answers, but not as a model server does"
    shown = ", ".join(cut(n, _SHOWN_CHARACTERS) for n in names[:_SHOWN_MODELS]) or "no model loaded"
    more = f" and {len(names) - _SHOWN_MODELS} more" if len(names) > _SHOWN_MODELS else ""
    return True, clean(" ".join(redact(f"has {shown}{more}").split()))


def _get(url: str, timeout: float) -> tuple[int, bytes]:
    """Return the status and the start of the body; no proxy is used, no redirection followed."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout)
    try:
        connection.request("GET", parts.path)
        response = connection.getresponse()
        return response.status, response.read(_MOST_BYTES + 1)
    finally:
        connection.close()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt models``."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    found = survey()
    if args.json:
        print(json.dumps([asdict(status) for status in found], indent=2))
        return 0
    width = max(len(status.model) for status in found)
    for status in found:
        print(f"{'+' if status.ready else '-'} {status.model:<{width}}  {status.detail}")
    print(f"\nList prices: {price_list()}; {PRICES_VARIABLE} can name your own file.")
    print("+ ready, - something is missing; `llmopt check MODEL` sends one small request, and says")
    print("whether a program is logged in.")
    return 0
