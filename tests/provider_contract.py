"""What the client of every provider must do, tested against a server on the wire."""

from __future__ import annotations

import copy
import gzip
import json
import logging
import pickle
import re
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from functools import partial, reduce
from typing import Any, ClassVar

import pytest
from wire import Cut, Drip, Hang, Say, Trickle, WireServer

from llmopt import get_client
from llmopt.caps import Limits
from llmopt.client.base import Client, Message, Reply, Request, check_ready
from llmopt.client.http.endpoint import Server
from llmopt.client.http.remote import RemoteClient
from llmopt.client.http.retry import complete_with_retries
from llmopt.client.prices import Price
from llmopt.client.recordings import RecordClient
from llmopt.errors import (
    BudgetExceededError,
    ClientError,
    MissingKeyError,
    RefusedKeyError,
    install_hint,
)
from llmopt.model_calls import MemoryLedger, ModelCalls, Scope
from llmopt.util.threads import SEARCH_DEADLINE, Deadline

# A piece of an Anthropic message that never began; to the others it is no answer at all.
_PIECE = b"""event: content_block_delta
data: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x"}}

"""
KEY = "sk-planted+KEY/0123456789abcdef"

CREDENTIALS = (
    "OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_CUSTOM_HEADERS",
    "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_CUSTOM_HEADERS",
    "GEMINI_API_KEY", "GOOGLE_API_KEY", "AWS_BEARER_TOKEN_BEDROCK", "AZURE_OPENAI_API_KEY",
)  # fmt: skip

ASK = Request(
    (
        Message("system", "You optimize."),
        Message("user", "Try x=1."),
        Message("assistant", "x = 2"),
        Message("user", "And now?"),
    ),
    temperature=0.5,
    max_tokens=40,
    stop=("###",),
    seed=11,
)


def no_wait(seconds: float) -> None:
    """A `sleep` that does not."""


def ask(client: Client, request: Request = ASK) -> Reply:
    """Ask as every search does, without waiting."""
    return complete_with_retries(client, request, sleep=no_wait)


@pytest.fixture
def no_proxies(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


@pytest.fixture
def server(monkeypatch, no_proxies):
    for name in (
        "OPENAI_API_KEY", "OPENAI_BASE_URL", "LLMOPT_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY",
        "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL",
        "GOOGLE_VERTEX_BASE_URL",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    wire = WireServer()
    yield wire
    wire.close()


def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the loopback server count as the provider's own host."""
    monkeypatch.setattr(Server, "owns", lambda self, url: bool(self.variable))


def need_key(monkeypatch: pytest.MonkeyPatch, kind: type[RemoteClient]) -> None:
    """Let an address of one's own need a key, too."""
    resolve = kind._endpoint
    monkeypatch.setattr(kind, "_endpoint", lambda client: replace(resolve(client), needs_key=True))


class ProviderContract:
    """Subclass it, with the names below, in a provider's test module."""

    variable: ClassVar[str] = "LLMOPT_API_KEY"
    """The variable whose key goes to any address but the provider's own."""
    own_variable: ClassVar[str]
    """The variable whose key goes to the provider alone."""
    own_address: ClassVar[str]
    length: ClassVar[dict[str, Any]]
    filtered: ClassVar[dict[str, Any]]

    def client(self, server: WireServer, **options: Any) -> RemoteClient:
        """A client of the provider that talks to `server`."""
        raise NotImplementedError

    def body(self, *texts: str) -> dict[str, Any]:
        """A success."""
        raise NotImplementedError

    def error(self, message: str) -> dict[str, Any]:
        """An error's body."""
        raise NotImplementedError

    def sent_key(self, headers: dict[str, str]) -> str:
        """The key that a request carried."""
        raise NotImplementedError

    @pytest.fixture
    def connected(self, server):
        client = self.client(server, api_key=KEY)
        yield client
        client.close()

    def failure(self, client: RemoteClient, request: Request = ASK) -> ClientError:
        with pytest.raises(ClientError) as caught:
            client.complete(request)
        return caught.value

    # Success.

    @pytest.mark.parametrize(
        ("said", "text"),
        [
            ("x = 3", "x = 3"),
            ("", ""),  # it is counted, and told apart from one that was cut
            ("x = 3### and then some", "x = 3"),  # even if the server knows no stop string
            (f"x = 3, by the way: {KEY}", "x = 3, by the way: ***"),
        ],
    )
    def test_success(self, server, connected, said, text):
        assert isinstance(connected, Client)
        assert connected.name.endswith(f":{connected.model}")
        server.play(Say(self.body(said)))
        reply = connected.complete(ASK)
        assert [(c.text, c.finish_reason) for c in reply.completions] == [(text, "stop")]
        assert (reply.prompt_tokens, reply.cached_tokens, reply.completion_tokens) == (100, 60, 7)
        assert reply.requests == 1
        assert reply.seconds > 0
        assert self.sent_key(server.seen[0].headers) == KEY

    extra: ClassVar[dict[str, Any]] = {"top_p": 0.123}

    # Failures.

    @pytest.mark.parametrize("status", [400, 403, 413, 422])
    def test_other_client_errors_are_final(self, server, connected, status):
        server.play(Say(self.error("the moon is full"), status))
        with pytest.raises(ClientError, match="the moon is full") as caught:
            ask(connected)
        assert not caught.value.retryable
        assert caught.value.status == status

    @pytest.mark.parametrize(
        "body",
        [
            Say(b'{"choices": [', content_type="application/json"),
            Say(b"\xff\xfe", content_type="application/json"),
            Say({"something": "else"}),
            Say(b"<html>gateway</html>", content_type="text/html"),
            Say(b"", content_type="text/event-stream"),
            Say(_PIECE, content_type="text/event-stream"),
        ],
        ids=["half", "bytes", "other", "html", "no events", "no beginning"],
    )
    def test_malformed_bodies_are_retryable(self, server, connected, body):
        server.play(body)
        error = self.failure(connected)
        assert error.retryable, error

    def test_whatever_a_body_holds_the_reply_is_sound_or_an_error(self, server, connected):
        good = self.body("x = 3")
        replies = 0
        for path in _paths(good):
            for value in (None, -5, "12", [{}], {"a": 1}, "\ud800"):
                server.play(Say(json.dumps(_replaced(good, path, value)).encode()))
                try:
                    reply = connected.complete(ASK)
                except ClientError:
                    continue
                replies += 1
                assert len(reply.completions) == 1
                assert isinstance(reply.completions[0].text, str)
                assert isinstance(reply.model, str)
                for count in (reply.prompt_tokens, reply.completion_tokens):
                    assert isinstance(count, int)
                    assert 0 <= count < 10**12
                assert 0 <= reply.cached_tokens <= reply.prompt_tokens
                assert reply.cost is None or 0 <= reply.cost < 10**6
                json.dumps(reply.to_dict(), ensure_ascii=False).encode()
        assert replies > 10

    # Answers that are none.

    filter_reason: ClassVar[str] = "filter"

    def test_an_answer_that_was_cut_or_withheld(self, server, connected):
        for said, reason in ((self.length, "length"), (self.filtered, self.filter_reason)):
            server.play(Say(said))
            assert connected.complete(ASK).completions[0].finish_reason == reason

    # Room for hidden reasoning.

    def empty(self) -> Say:
        """An answer that was all hidden reasoning."""
        text = json.dumps(self.length)
        assert "cut off" in text
        return Say(json.loads(text.replace("cut off", "")))

    def test_reasoning_has_room(self, server, connected, caplog):
        server.play(self.empty(), Say(self.body("x")))
        assert connected.complete(ASK).completions[0].text == ""
        assert _cap(server.seen[0].body) == 40 + 16_384
        assert "all 16424 tokens before it wrote an answer" in caplog.text
        assert "reasoning_tokens=" in caplog.text

    efforts: ClassVar[dict[str, Any]]
    """What the body holds for each effort that is tried."""

    def test_effort_in_the_provider_s_words(self, server):
        server.play(Say(self.body("x")))
        for effort, expected in self.efforts.items():
            client = self.client(server, api_key=KEY, effort=effort, extra_body=self.extra)
            client.complete(Request(ASK.messages))
            body = server.seen[-1].body
            for path, value in expected.items():
                found = body
                for name in path.split("."):
                    found = found[name]
                assert found == value
            assert "0.123" in json.dumps(body)

    # Streams.

    streams: ClassVar[bool] = True

    def test_an_answer_that_ends_too_early_may_be_charged(self, server, connected):
        if not self.streams:
            pytest.skip("it does not stream")
        server.play(Drip(self.body("x = 3, y = 4"), ends=False))
        error = self.failure(connected)
        assert error.retryable
        assert _in_doubt(error) == 1

    # What calls use.

    @pytest.mark.parametrize("usage", [None, "missing", 0, -5, 10**15])
    @pytest.mark.parametrize("ends", [True, False])
    def test_what_nobody_tells_is_estimated(self, server, usage, ends):
        client = self.client(server, api_key=KEY, price=Price(10.0, 20.0))
        body = self.body("x: 0.5, y: 1.5, and some more words")
        name = next(n for n in body if n.startswith("usage"))
        if usage == "missing":
            del body[name]
        else:
            body[name] = json.loads(json.dumps(_all_numbers(body[name], usage)))
        server.play(Say(json.dumps(body).encode()) if ends else Say(body))
        try:
            reply = client.complete(ASK)
        except ClientError as error:  # a body that its protocol does not allow
            reply = error
        if isinstance(reply, ClientError):
            assert reply.retryable
            assert _in_doubt(reply)
            return
        assert reply.estimated == 1
        assert 5 < reply.prompt_tokens < 60
        assert 5 < reply.completion_tokens < 30
        assert reply.cost == pytest.approx(
            (10 * reply.prompt_tokens + 20 * reply.completion_tokens) / 1e6
        )

    # Before the first request.

    def test_what_is_missing_is_said_before_anything_is_sent(self, server, monkeypatch):
        self.client(server, api_key=KEY).check_ready()
        need_key(monkeypatch, type(self.client(server)))
        with pytest.raises(MissingKeyError, match=self.variable):
            self.client(server).check_ready()
        client = self.client(server, api_key=KEY)
        monkeypatch.setitem(sys.modules, client.module, None)
        with pytest.raises(ImportError, match=re.escape(install_hint(client.package))):
            client.check_ready()
        assert server.seen == []

    has_list: ClassVar[bool] = True
    """Whether the provider says, at no cost, which models it has."""

    def key_error(self) -> Say:
        """What a wrong key is answered with."""
        return Say(self.error(f"Incorrect API key provided: {KEY}"), 401)

    def test_a_wrong_key_is_found_out_at_no_cost(self, server, connected):
        server.lists = self.key_error()
        if not self.has_list:
            return check_ready(connected)
        for _ in range(2):
            with pytest.raises(RefusedKeyError, match=self.variable) as caught:
                check_ready(connected)
            assert KEY not in _everything(caught.value)
            assert caught.value.requests == 0
        assert server.seen == []

    # Parameters that a model refuses.

    def test_refused_temperature_is_dropped_for_good(self, server, connected, caplog):
        said = "Unsupported value: 'temperature' does not support 0.5 with this model."
        server.play(Say(self.error(said), 400), Say(self.body("x")))
        ask(connected)
        assert len(server.seen) == 2
        assert "temperature" in json.dumps(server.seen[0].body)
        assert "temperature" not in json.dumps(server.seen[1].body)
        assert caplog.text.count("`temperature`") == 1
        connected.complete(ASK)
        assert len(server.seen) == 3
        assert "temperature" not in json.dumps(server.seen[2].body)

    def test_words_alone_drop_nothing(self, server, connected):
        server.play(Say(self.error("Please stop sending temperature requests; at most 100"), 400))
        for sent in (3, 4):  # without the parameters, then with a lower cap; then no more
            with pytest.raises(ClientError, match="Please stop"):
                ask(connected)
            assert len(server.seen) == sent
        server.play(Say(self.body("x ### y")))
        connected.complete(ASK)
        for word in ("###", "temperature", "16424"):
            assert word in json.dumps(server.seen[-1].body)

    # Structured answers.

    schema_refusal: ClassVar[str] = ""
    """How the provider says that a model takes no schema; its words are not read."""

    def test_a_schema_is_sent_until_the_model_refuses(self, server):
        client = self.client(server, api_key=KEY, structured=True)
        if not self.schema_refusal:
            return
        assert client.facts().structured
        schema = {"type": "object", "properties": {"x": {"type": "string", "maxLength": 9}}}
        server.play(Say(self.error(self.schema_refusal), 400), Say(self.body("x")))
        ask(client, replace(ASK, json_schema=schema))
        first, second = (json.dumps(seen.body) for seen in server.seen)
        assert '"additionalProperties": false' in first
        assert "maxLength" not in first
        assert "additionalProperties" not in second
        assert "temperature" in second
        assert not client.facts().structured

    # Keys.

    def test_no_key(self, server, monkeypatch):
        at_home(monkeypatch)
        client = self.client(server)
        server.play(Say(self.body("x")))
        with pytest.raises(MissingKeyError, match=self.own_variable) as caught:
            client.complete(ASK)
        assert server.seen == []
        assert caught.value.requests == 0
        assert f"get_client({client.name!r}, api_key=...)" in str(caught.value)
        given = get_client(client.name, api_key=KEY)  # what the message says
        assert type(given) is type(client)

    def test_no_credential_of_the_environment_goes_to_a_named_address(self, server, monkeypatch):
        for name in CREDENTIALS:
            monkeypatch.setenv(name, f"X-Planted: {KEY}" if name.endswith("HEADERS") else KEY)
        server.play(Say(self.body("x")))
        client = self.client(server)
        bare = f"{client.provider}:{client.model}"
        get_client(f"{bare}?base_url={client.base_url}").complete(ASK)
        if self.address_variable:
            monkeypatch.setenv(self.address_variable, str(client.base_url))
            get_client(bare).complete(ASK)
        assert server.seen
        for seen in server.seen:  # an address of one's own may need no key
            assert self.sent_key(seen.headers) in ("", "none")
            assert KEY not in str(seen)
        monkeypatch.setenv("LLMOPT_API_KEY", "own-key-0123")
        client.complete(ASK)
        assert self.sent_key(server.seen[-1].headers) == "own-key-0123"

    def test_the_provider_s_key_goes_to_its_own_host_over_https(self, server, monkeypatch):
        kind, model = type(self.client(server)), self.client(server).model
        own, clear = self.own_address, self.own_address.replace("https:", "http:")
        host = own.removeprefix("https://")
        for address in (None, own, own.replace("https://", "HTTPS://"), own + ":443"):
            assert self.own_variable in kind(model, base_url=address).key_variables
        lookalikes = (
            own + ".evil.example",
            own.replace(".", "-", 1),
            f"https://evil.example/{host}",
        )
        for address in (clear, *lookalikes):
            assert kind(model, base_url=address).key_variables == ("LLMOPT_API_KEY",)
            if self.address_variable:
                monkeypatch.setenv(self.address_variable, address)
                assert kind(model).key_variables == ("LLMOPT_API_KEY",)

    def test_key_from_the_environment(self, server, monkeypatch):
        client = self.client(server)
        monkeypatch.setenv(self.variable, KEY + "\n")
        server.play(Say(self.body("x")))
        client.complete(ASK)
        monkeypatch.setenv(self.variable, "another-key-0123")
        client.complete(ASK)
        assert [self.sent_key(s.headers) for s in server.seen] == [KEY, "another-key-0123"]

    def test_pickling_drops_the_key_and_copying_keeps_it(self, server, connected, monkeypatch):
        need_key(monkeypatch, type(connected))
        server.play(Say(self.body("x")))
        connected.complete(ASK)
        copy.deepcopy(connected).complete(ASK)
        assert self.sent_key(server.seen[1].headers) == KEY
        revived = pickle.loads(pickle.dumps(connected))
        with pytest.raises(MissingKeyError):
            revived.complete(ASK)
        monkeypatch.setenv(self.variable, "another-key-0123")
        revived.complete(ASK)
        assert self.sent_key(server.seen[2].headers) == "another-key-0123"

    @pytest.mark.parametrize(
        "behaviour",
        [
            *(partial(Say, status=status) for status in (400, 401, 403, 404, 429, 500)),
            lambda echo: Say(json.dumps(echo).encode(), 502, content_type="text/html"),
            lambda echo: Say(json.dumps(echo).encode()[:-3]),
            Say,
            lambda echo: Cut(),
            lambda echo: Hang(),
        ],
    )
    def test_planted_key_is_nowhere(self, server, tmp_path, caplog, behaviour):
        caplog.set_level(logging.DEBUG, logger="llmopt")
        client = self.client(server, api_key=KEY, timeout=0.3)
        echo = self.error(f"unsupported temperature: your key {KEY} has Bearer {KEY}")
        recorded = RecordClient(client, tmp_path / "record.jsonl")
        cached = recorded
        server.play(behaviour(echo))
        places = []
        for asked in (client, cached):
            with pytest.raises(ClientError) as caught:
                asked.complete(ASK)
            places.append(_everything(caught.value))
        server.play(Say(self.body("fine")))
        ask(cached)
        places += [repr(client), repr(cached), str(vars(client)), caplog.text]
        places += [pickle.dumps(c).decode("latin-1") for c in (client, recorded, cached)]
        places += [p.read_text() for p in tmp_path.rglob("*") if p.is_file()]
        assert "fine" in "".join(places)
        for place in places:
            assert KEY not in place
            assert KEY[3:] not in place

    address_variable: ClassVar[str] = ""
    """Environment variable that can hold another address."""

    def test_a_password_in_an_address_is_nowhere(self, server, monkeypatch):
        if not self.address_variable:
            return
        monkeypatch.setenv(self.address_variable, "http://me:planted@127.0.0.1/v1")
        client = type(self.client(server))("m", api_key=KEY)
        for call in (client.check_ready, lambda: client.complete(ASK)):
            with pytest.raises(ClientError, match=self.address_variable) as caught:
                call()
            frames = traceback.walk_tb(caught.value.__traceback__)
            held = [f.f_locals for f, _ in frames if "llmopt" in f.f_code.co_filename]
            assert "planted" not in _everything(caught.value) + repr(held)

    def test_a_wrong_key_is_final_and_in_no_message_and_no_variable_of_a_traceback(
        self, server, connected
    ):
        server.play(Say(self.error(f"Incorrect API key provided: {KEY}"), 401))
        error = self.failure(connected)
        assert (error.retryable, error.status) == (False, 401)
        assert error.requests == len(server.seen) == 1
        assert self.variable in str(error)
        assert KEY not in _everything(error)
        server.play(Say(self.error("no"), 401))
        errors, held = {KEY: self.failure(connected)}, []
        for broken in ("sk-with a space", "sk-line\nbreak", "sk-ümlaut"):
            errors[broken] = self.failure(self.client(server, api_key=broken))
        for key, error in errors.items():
            assert key not in _everything(error)
            for frame, _ in traceback.walk_tb(error.__traceback__):
                if frame.f_code.co_filename != __file__:
                    held += [str(v) for v in frame.f_locals.values() if v is not server.seen]
        assert not any("sk-" in text for text in held)

    # The transport.

    @pytest.mark.parametrize("status", [408, 409, 500, 503])
    def test_server_errors_then_success(self, server, connected, status):
        server.play(Say(self.error("oops"), status), Say(self.body("x")))
        error = self.failure(connected)
        assert error.retryable
        assert error.status == status
        assert len(server.seen) == 1
        reply = ask(connected)
        assert reply.completions[0].text == "x"

    @pytest.mark.parametrize(("behaviour", "waited"), [(Hang(), "0.3 s"), (Trickle(), "1.5 s")])
    def test_an_answer_that_never_comes_or_ends(self, server, behaviour, waited):
        client = self.client(server, api_key=KEY, timeout=0.3)
        server.play(behaviour)
        error = self.failure(client)
        assert error.retryable
        assert waited in str(error)
        assert len(server.seen) == 1
        server.play(Say(self.body("x")))
        assert ask(client).completions[0].text == "x"

    @pytest.mark.parametrize("behaviour", [Hang(), Trickle()])
    def test_a_request_ends_with_the_time_of_its_search(self, server, behaviour):
        client = self.client(server, api_key=KEY, timeout=30)
        server.play(behaviour)
        began = time.monotonic()
        before = SEARCH_DEADLINE.set(Deadline(began + 0.5, "over"))
        try:
            self.failure(client)
        finally:
            SEARCH_DEADLINE.reset(before)
        assert time.monotonic() - began < 5

    def test_nobody_listens(self, server, connected):
        server.close()
        if self.has_list:  # then it is found out at no cost
            with pytest.raises(ClientError, match="cannot be reached") as caught:
                check_ready(connected)
            assert caught.value.requests == 0
        error = self.failure(connected)
        assert error.retryable
        assert server.url in str(error)

    def test_an_answer_may_take_longer_than_the_timeout(self, server):
        if not self.streams:
            pytest.skip("it does not stream")
        hasty = self.client(server, api_key=KEY, timeout=1.2)
        server.play(Drip(self.body("a long answer"), pause=0.45))
        reply = hasty.complete(ASK)
        assert reply.seconds > hasty.timeout
        assert reply.completions[0].text == "a long answer"
        assert (reply.prompt_tokens, reply.cached_tokens, reply.completion_tokens) == (100, 60, 7)

    def test_a_call_that_was_given_up_counts_with_the_most_that_it_may_cost(self, server):
        client = self.client(server, api_key=KEY, timeout=0.8, price=Price(1.0, 2.0))
        server.play(Hang(), Say(self.body("x: 0.5")))
        model = ModelCalls(client, MemoryLedger(), Limits(max_cost=5.0))
        assert Scope(model, model.journal.state).complete(ASK).completions[0].text == "x: 0.5"
        usage = model.usage
        assert (usage.requests, usage.unpriced, usage.estimated) == (2, 0, 1)
        # All of the cap may have been used up.
        assert 2.0 * 40 / 1e6 < usage.cost < 0.04
        spent = usage.cost
        server.play(Hang())
        model.limits = Limits(max_cost=spent + 1e-9)
        with pytest.raises(BudgetExceededError):  # the most that the next call can cost counts
            Scope(model, model.journal.state).complete(replace(ASK, seed=12))
        assert server.seen == []

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_redirections_are_not_followed(self, server, connected, status):
        other = WireServer()
        other.play(Say(self.body("stolen")))
        server.play(Say({}, status, {"Location": f"{other.url}/v1/chat/completions"}))
        try:
            error = self.failure(connected)
        finally:
            other.close()
        assert other.seen == []
        assert not error.retryable or not self.streams
        assert KEY not in str(error)

    def test_bodies_that_are_packed_or_too_long_are_not_read(self, server, connected, monkeypatch):
        packed = gzip.compress(json.dumps(self.body("x" * 5_000_000)).encode())
        server.play(Say(packed, headers={"Content-Encoding": "gzip"}))
        assert "packed" in str(self.failure(connected))
        assert server.seen[0].headers["accept-encoding"] == "identity"
        monkeypatch.setattr("llmopt.client.http.transport.MOST_BYTES", 2**20)
        server.play(Say(self.body("x" * 2**21)))
        assert "longer than 1 MiB" in str(self.failure(connected))
        server.play(Say(self.body("x")))
        assert connected.complete(ASK).completions[0].text == "x"

    def test_a_server_s_words_are_one_clean_line(self, server, connected, caplog):
        said = "temperature\x1b[2J is bad\nERROR forged \u202e line"
        server.play(Say(self.error(said), 400), Say(self.body("x")))
        ask(connected)
        server.play(Say(self.error(said), 403))
        for text in (*(r.getMessage() for r in caplog.records), str(self.failure(connected))):
            assert text.isprintable()

    def test_a_very_long_answer_is_cut(self, server, connected):
        server.play(Say(self.body("{}" * 400_000)))
        completion = connected.complete(ASK).completions[0]
        assert completion.finish_reason == "length"
        assert len(completion.text) < 300_000

    def test_this_machine_is_not_asked_through_a_proxy(self, server, connected, monkeypatch):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        server.play(Say(self.body("x")))
        assert connected.complete(ASK).completions[0].text == "x"

    @pytest.mark.parametrize(
        "answer", [Say({}, 403), Say({}, 503), Say(b"<html>"), Say([1]), Cut(), Hang()]
    )
    def test_what_tells_nothing_sure_is_left_to_the_first_request(
        self, server, connected, monkeypatch, answer
    ):
        for name in ("http.remote", "providers.gemini"):
            monkeypatch.setattr(f"llmopt.client.{name}.ASIDE_SECONDS", 0.1)
        server.lists = answer
        check_ready(connected)

    def test_headers_and_bodies_are_not_logged_at_debug(self, server, connected, caplog):
        caplog.set_level(logging.DEBUG)
        secret = {"Set-Cookie": "planted=header", "X-Request": "planted"}
        server.lists = Say({"data": [{"id": "planted"}]}, 200, secret)
        server.play(Say(self.error("planted"), 500, secret), Say(self.body("x"), headers=secret))
        check_ready(connected)
        self.failure(connected, replace(ASK, messages=(Message("user", "planted"),)))
        connected.complete(replace(ASK, messages=(Message("user", "planted"),)))
        assert "planted" not in caplog.text
        logging.getLogger("httpcore.http11").debug("a call of somebody else's")
        assert "somebody else's" in caplog.text


def _in_doubt(found: Any) -> int:
    """Calls that were given up: at a cost that is bounded, or at one that nobody knows."""
    return int(found.unpriced + found.estimated)


def _all_numbers(node: Any, value: Any) -> Any:
    if isinstance(node, dict):
        return {name: _all_numbers(inner, value) for name, inner in node.items()}
    return value


def _cap(body: Any) -> int:
    """The cap on the answer's tokens, wherever the provider has it."""
    found = [
        value
        for path in _paths(body)
        if path and str(path[-1]).lower().startswith("max")
        for value in [reduce(lambda node, name: node[name], path, body)]
    ]
    assert len(found) == 1
    return int(found[0])


def _paths(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(node, dict | list):
        for key in node if isinstance(node, dict) else range(len(node)):
            yield from _paths(node[key], (*path, key))


def _replaced(node: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copied = copy.copy(node)
    copied[path[0]] = _replaced(node[path[0]], path[1:], value)
    return copied


def _everything(error: BaseException) -> str:
    """All that a user, a log or a crash reporter would see of an exception."""
    seen = [repr(error), str(error.args), *traceback.format_exception(error)]
    seen.append(pickle.dumps(error).decode("latin-1"))
    chain, link = [], error
    while link is not None:
        chain.append(link)
        link = link.__cause__ or link.__context__
    seen += [str(vars(link)) + str(link) for link in chain]
    return "".join(seen)
