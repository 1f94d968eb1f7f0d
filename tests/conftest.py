"""Fixtures shared by the tests."""

from __future__ import annotations

import gc
import signal
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import stubs

from llmopt.client.http.remote import Connection, RemoteClient
from llmopt.client.local.local import LocalClient
from llmopt.errors import ClientError
from llmopt.point_task import _warned
from llmopt.sandbox.sandbox import WorkerLimits

_warned.add("")  # that there is no description: one test asks for it


@pytest.fixture(scope="session")
def embedded_client() -> Iterator[LocalClient]:
    """The embedded model, fetched once and loaded once for all tests."""
    pytest.importorskip("xllamacpp")
    from llmopt.client.local.embedded import embedded_client, fetch_model

    try:
        fetch_model()
    except ClientError as error:
        pytest.skip(f"the embedded model could not be fetched: {error}")
    # One thread: tests share the cores with other work.
    client = embedded_client(threads=1)
    yield client
    client.close()


@pytest.fixture(autouse=True)
def _no_provider_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients ask whether they are ready of the tests' own servers alone."""
    # Those speak plain HTTP: no client has to read all certificates, which takes 20 ms.
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **__: None)
    look = RemoteClient._look

    def at_home(client: Any, connection: Connection) -> ClientError | None:
        return look(client, connection) if "127.0.0.1" in connection.endpoint.url else None

    monkeypatch.setattr(RemoteClient, "_look", at_home)


def pytest_configure() -> None:
    gc.disable()  # until the tests are collected, which makes hardly any garbage
    # On a busy machine a worker may wait for seconds until it runs.
    seconds = WorkerLimits.__init__.__defaults__ or ()
    WorkerLimits.__init__.__defaults__ = (60.0, 600.0, *seconds[2:])
    stubs.laboratory.LIBRARIES = {}
    # A shell starts its background jobs with Ctrl-C ignored, which children inherit.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let neighbours share a worker, with its fixtures and imports; idle workers take the rest."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


def pytest_collection_finish() -> None:
    # What it leaves behind stays to the end: no collection of garbage looks at it again.
    gc.enable()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the prompts in tests/golden with what the code renders now",
    )
    parser.addoption(
        "--update-frozen",
        action="store_true",
        help="rewrite tests/data/frozen.json with what the recordings replay to now",
    )
    parser.addoption(
        "--sweeps", action="store_true", help="run the slow sweeps, too: once before a release"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--sweeps"):
        return
    sweeps = [item for item in items if item.get_closest_marker("sweep")]
    config.hook.pytest_deselected(items=sweeps)
    items[:] = [item for item in items if item not in set(sweeps)]


@pytest.fixture
def check_golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with ``tests/golden/NAME.txt``, or rewrite that under the flag."""
    folder = Path(__file__).parent / "golden"

    def check(name: str, text: str) -> None:
        path = folder / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            folder.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.is_file(), f"no {path}: run pytest with --update-golden, and read the result"
        assert text == path.read_text(encoding="utf-8")

    return check
