from __future__ import annotations

import contextlib
import json
import re
import socketserver
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from provider_contract import no_proxies, server
from wire import THOUSAND, Say, openai_body, openai_error

from llmopt.cli import main
from llmopt.client.base import Completion, Message, Reply, Request
from llmopt.client.http.endpoint import SERVERS, Server
from llmopt.client.model_string import PROVIDERS, get_client
from llmopt.client.prices import Price
from llmopt.client.providers.openai import OpenAIClient
from llmopt.client.recordings import RecordClient
from llmopt.client.scripted import ScriptedClient
from llmopt.commands.check import check
from llmopt.commands.estimate import price_of
from llmopt.commands.models import _ask_server, survey
from llmopt.errors import ClientError, ModelNotFoundError, install_hint

__all__ = ["no_proxies", "server"]
KEY = "sk-planted-0123456789"


# llmopt models


@pytest.fixture
def nothing(server, monkeypatch):
    """No key, and no server on this machine but one."""
    for name, entry in SERVERS.items():
        if entry.variable:
            monkeypatch.delenv(entry.variable, raising=False)
        if entry.local:
            monkeypatch.setitem(SERVERS, name, Server("http://127.0.0.1:9/v1", "", "closed"))
    monkeypatch.setitem(SERVERS, "ollama", Server(f"{server.url}/v1", "", "open"))
    server.lists = None  # the list of models is what these tests script
    return server


def states(timeout=30.0):
    return {status.model: status for status in survey(timeout)}


def test_every_provider_is_listed(nothing):
    nothing.play(Say({"data": [{"id": "llama3.2"}]}))
    found = states()
    assert len(found) == len(PROVIDERS)
    assert found["openai:MODEL"].ready is False
    assert "OPENAI_API_KEY not set" in found["openai:MODEL"].detail
    assert found["ollama:MODEL"].ready is True
    assert "llama3.2" in found["ollama:MODEL"].detail
    assert [s.path for s in nothing.seen] == ["/v1/models"]
    assert found["vllm:MODEL"].ready is False
    assert "not reachable" in found["vllm:MODEL"].detail


def test_keys_are_named_and_never_shown(nothing, monkeypatch, capsys):
    nothing.play(Say({"data": []}))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("GOOGLE_API_KEY", KEY)
    found = states()
    assert found["openai:MODEL"].ready
    assert "GOOGLE_API_KEY set" in found["gemini:MODEL"].detail
    for options in ([], ["--json"]):
        assert main(["models", *options]) == 0
        shown = capsys.readouterr().out
        assert "OPENAI_API_KEY" in shown
        assert KEY not in shown
    assert len(json.loads(shown)) == len(PROVIDERS)


class Servers(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False


class Raw(socketserver.BaseRequestHandler):
    """Sends what it is told to, which need not be HTTP."""

    pieces: Iterable[bytes] = ()

    def handle(self):
        self.request.recv(65536)
        with contextlib.suppress(OSError):
            for piece in self.pieces:
                self.request.sendall(piece)


def trickle():
    yield b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
    while True:
        time.sleep(0.05)
        yield b" "


def answer(body):
    return [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body), body]


@pytest.mark.parametrize(
    ("pieces", "up", "words"),
    [
        (trickle(), False, "without coming to an end"),
        ([b"SSH-2.0-OpenSSH_9.6\r\n"], False, "not as a web server"),
        ([b"HTTP/1.1 200 OK\r\nA: " + b"a" * 100_000], False, "not as a web server"),
        ([b"HTTP/1.1 200 OK\r\n" + b"A: a\r\n" * 200 + b"\r\n"], False, "not as a web server"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{"], False, "not as a"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"], False, "not as a web"),
        ([b"HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\n\r\n"], False, "not as a model"),
        (answer(b"[" * 200_000), False, "not as a model"),
        (answer(b'{"data": [' + b'{"id": "m"},' * 100_000), False, "not as a model"),
        (answer(b'{"data": [{"id": ["m"]}]}'), False, "not as a model"),
        (answer(b'{"data": [{"id": "\\u001b]0;mine\\u0007\\n+ you"}]}'), True, "has \\x1b]0;mine"),
        (answer(b'{"data": [{"id": "%s"}]}' % (b"m" * 5000)), True, "mmm…"),
        ([], False, "not reachable"),
    ],
)
def test_whatever_listens_there(pieces, up, words):
    handler = type("Handler", (Raw,), {"pieces": pieces})
    with Servers(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        seconds = 0.3 if "end" in words else 30.0  # only one of them makes it wait
        found = _ask_server(f"http://127.0.0.1:{server.server_address[1]}/v1", seconds)
        server.shutdown()
    assert (found[0], words in found[1]) == (up, True), found
    assert found[1].isprintable()
    assert len(found[1]) < 200


def test_models_sends_nothing_beyond_this_machine(nothing, monkeypatch, capsys):
    import socket

    nothing.play(Say({"data": []}))
    connect = socket.socket.connect
    asked = []

    def guarded(self, address):
        asked.append(address[0])
        if address[0] != "127.0.0.1":
            raise OSError("network is unreachable")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
    for entry in SERVERS.values():
        if entry.variable:
            monkeypatch.setenv(entry.variable, KEY)
    assert main(["models"]) == 0
    assert set(asked) == {"127.0.0.1"}
    assert "+ openai:MODEL" in capsys.readouterr().out


# Model strings


@pytest.mark.parametrize(
    ("text", "url", "model"),
    [
        ("http://127.0.0.1:8000/v1:m", "http://127.0.0.1:8000/v1", "m"),
        ("http://127.0.0.1:8000/v1:meta/llama:8b", "http://127.0.0.1:8000/v1", "meta/llama:8b"),
        ("https://host.example:m", "https://host.example/v1", "m"),
        ("http://[::1]:8000/api/v2:m", "http://[::1]:8000/api/v2", "m"),
    ],
)
def test_addresses_in_model_strings(text, url, model):
    client = get_client(f"openai+{text}")
    assert isinstance(client, OpenAIClient)
    assert (client.base_url, client.model) == (url, model)


@pytest.mark.parametrize(
    "text",
    [
        "http://user:hunter2@host/v1:m",
        "http://hunter2@host:80/v1:m",
        "http://host/v1?key=hunter2:m",
        "http://[hunter2/v1:m",
        "http://host:99999/v1:m",
    ],
)
def test_addresses_that_are_refused_show_no_password(text):
    with pytest.raises(ModelNotFoundError, match=r"'openai\+\.\.\.'") as caught:
        get_client(f"openai+{text}")
    assert "hunter2@" not in str(caught.value)
    assert "?key=" not in str(caught.value)


@pytest.mark.parametrize("url", ["nonsense", "http://user:hunter2@host/v1"])
def test_a_wrong_address_in_the_environment(monkeypatch, url):
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(ClientError, match="OPENAI_BASE_URL") as caught:
        get_client("openai:m").complete(Request((Message("user", "hi"),)))
    assert "hunter2" not in str(caught.value)
    assert caught.value.requests == 0


# llmopt check


def test_check(server, capsys):
    server.play(Say(openai_body("x: 1.0, y: -2.0", model="served-as", usage=THOUSAND)))
    assert main(["check", f"openai+{server.url}/v1:m"]) == 0
    shown = capsys.readouterr().out
    for words in ("x, y = 1, -2", "served-as", "1000 tokens", "60 of them", "unknown", "stop"):
        assert words in shown
    server.play(Say(openai_body('{"explanation": "", "point": {"x": 1, "y": -2}}')))
    priced = f'openai+{server.url}/v1:m?structured=true&price={{"input": 1, "output": 1}}'
    assert main(["check", priced, "--prompt", "props"]) == 0
    shown = capsys.readouterr().out
    for words in ("as JSON by a schema", "x, y = 1, -2", "$0.000107 (prices: your own)"):
        assert words in shown


def test_check_of_a_model_that_does_not_answer_the_question(server, capsys):
    server.play(Say(openai_body("I like turtles.")))
    assert main(["check", f"openai+{server.url}/v1:m"]) == 1
    shown = capsys.readouterr().out
    assert "turtles" in shown
    assert "not readable" in shown


def test_check_of_a_model_that_cannot_be_asked(server, capsys, monkeypatch):
    server.play(Say(openai_error("no such model"), 404))
    assert main(["check", f"openai+{server.url}/v1:m"]) == 2
    assert "no such model" in capsys.readouterr().err
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    assert main(["check", "anthropic:claude"]) == 2
    assert "ANTHROPIC_API_KEY" in capsys.readouterr().err


def test_check_with_a_wrong_key(server, capsys, monkeypatch):
    monkeypatch.setenv("LLMOPT_API_KEY", KEY)
    server.play(Say(openai_error(f"Incorrect API key provided: {KEY}"), 401))
    assert main(["check", f"openai+{server.url}/v1:m"]) == 2
    shown = "".join(capsys.readouterr())
    assert "refused the API key (HTTP 401): check LLMOPT_API_KEY" in shown
    assert KEY not in shown
    assert "Traceback" not in shown
    assert len(server.seen) == 1


def test_check_takes_every_option_of_the_client(server, capsys):
    server.play(Say(openai_body("x: 1.0, y: -2.0")))
    model = f"openai+{server.url}/v1:m"
    given = ["--option", "effort=high", "--option", 'extra_body={"top_p": 0.5}']
    assert main(["check", model, *given]) == 0
    sent = server.seen[-1].body
    assert (sent["reasoning_effort"], sent["top_p"]) == ("high", 0.5)
    assert main(["check", model, "--option", "efort=high"]) == 2
    assert "did you mean 'effort'" in capsys.readouterr().err


def test_every_command_takes_options(capsys, monkeypatch, tmp_path):
    prices = '{"input": 1000000, "output": 0}'
    command = ["estimate", "--model", "openai:some", "--evaluations", "1"]
    assert main([*command, "--option", f"price={prices}"]) == 0
    assert re.search(r"\$\d{3,}", capsys.readouterr().out)
    monkeypatch.chdir(tmp_path)
    task = "mountaincar"
    for name in (["run", task], ["estimate"], ["code", task], ["reward", task],
                 ["bench", "--tasks", task]):  # fmt: skip
        assert main([*name, "--model", "openai:some", "--option", "timeout=x"]) == 2
        assert "expected a finite number" in capsys.readouterr().err
    for name in ("code", "reward"):
        assert main([name, task, "--option", "timeout=9"]) == 2
        assert "give --model, too" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert main(["bench", "--tasks", task, "--option", "threads=1", "--dry-run"]) == 0
    assert '"smollm2?threads=1"' in capsys.readouterr().out


def test_check_asks_once_more_with_more_room(server):
    client = OpenAIClient("m", base_url=f"{server.url}/v1", local=True)
    for first, said in (("", "an empty one"), ("x: 1", "a truncated one")):
        server.seen.clear()
        cut = openai_body(first, finish="length")
        server.play(Say(cut), Say(openai_body("x: 1.0, y: -2.0")))
        text, readable = check(client, "props")
        assert readable, text
        assert f"after {said}" in text
        assert "2 requests" in text
        caps = [seen.body["max_tokens"] for seen in server.seen if seen.body]
        assert caps[1] - caps[0] >= 7 * 1024


def test_imports_that_fail_are_one_line(capsys, monkeypatch):
    def raising(error):
        def main_of_models(args):
            raise error

        monkeypatch.setattr("llmopt.commands.models.main", main_of_models)

    raising(ModuleNotFoundError("No module named 'tqdm'", name="tqdm"))
    assert main(["models"]) == 2
    said = capsys.readouterr().err
    assert said == f"llmopt: error: No module named 'tqdm': {install_hint('bench')}\n"
    # One of our own is a fault of ours, and should be seen as one.
    raising(ModuleNotFoundError("No module named 'llmopt.lost'", name="llmopt.lost"))
    with pytest.raises(ModuleNotFoundError):
        main(["models"])


def test_prices_of_clients(tmp_path):
    assert price_of(get_client("smollm2")).cost(10, 10) == 0.0
    paid = OpenAIClient("gpt-5", price=Price(1.0, 2.0))
    assert price_of(RecordClient(paid, tmp_path / "r.jsonl")) == Price(1.0, 2.0)
    assert price_of(ScriptedClient([])) is None


def test_nothing_that_moves_the_cursor_is_printed(capsys):
    model = "m\x1b[2J\nread as  x, y = 1, 2"
    client = ScriptedClient([Reply((Completion("what?\x9b1m"),), model=model)])
    text, readable = check(client, "props")
    assert not readable
    assert "m\\x1b[2J read as" in text
    assert all(line.isprintable() for line in text.split("\n"))
    assert text.count("\n") == 6
    assert main(["check", "no\x1b]0;such\x07"]) == 2
    assert capsys.readouterr().err.strip().isprintable()


# docs/models.md


def test_the_documentation_lists_every_model_string_and_variable():
    text = (Path(__file__).parents[1] / "docs" / "models.md").read_text(encoding="utf-8")
    assert [name for name in PROVIDERS if f"`{name}" not in text] == []
    for name, entry in SERVERS.items():  # the page states the rule NAME_API_KEY
        usual = entry.variable in ("", f"{name.upper()}_API_KEY")
        assert usual or f"`{entry.variable}`" in text, name
