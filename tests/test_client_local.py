from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_gguf import CONTEXT_TOKENS, TEMPLATE, write_tiny_gguf

from llmopt.client import LocalClient, Message, RecordClient, Reply, Request
from llmopt.client.local.gguf import read_header
from llmopt.client.model_facts import model_facts
from llmopt.errors import ClientError, ModelNotFoundError, install_hint

DIGITS = 'root ::= [0-9] [0-9] ", " [0-9] [0-9]'


def ask(
    text: str = "1, 2, 3, ",
    *,
    style: str = "completion",
    max_tokens: int | None = 8,
    seed: int | None = 1,
    **fields: object,
) -> Request:
    return Request(
        (Message("user", text),),
        style=style,  # type: ignore[arg-type]
        max_tokens=max_tokens,
        seed=seed,
        **fields,  # type: ignore[arg-type]
    )


def texts(reply: Reply) -> list[str]:
    return [c.text for c in reply.completions]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module")
def client(model: Path) -> Iterator[LocalClient]:
    pytest.importorskip("xllamacpp")
    # One thread: tests share the cores with other work.
    client = LocalClient(model, threads=1)
    yield client
    client.close()


class TestHeader:
    def test_says_what_the_file_holds(self, model):
        header = read_header(model)
        assert header.architecture == "llama"
        assert header.context_tokens == CONTEXT_TOKENS
        assert header.chat
        assert header.parameters == 2 * 354 * 32 + 3 * 32 + 4 * 32 * 32 + 3 * 64 * 32

    @pytest.mark.parametrize(
        ("content", "error", "said"),
        [
            (None, ModelNotFoundError, r"no model file .*model\.gguf"),
            ("a folder", ModelNotFoundError, "cannot read"),
            (b"", ClientError, "is not a GGUF file"),
            (b"PK\x03\x04 a zip file", ClientError, "is not a GGUF file"),
            (b"<html>not found</html>", ClientError, "is not a GGUF file"),
            ({4: b"\x63"}, ClientError, "GGUF version 99"),
            # Absurd lengths (of tensors, entries, the first key) neither hang nor fill memory.
            *(({at: b"\xff" * 8}, ClientError, "truncated or corrupt") for at in (8, 16, 24)),
        ],
    )
    def test_what_is_no_model(self, model, tmp_path, content, error, said):
        path = tmp_path / "model.gguf"
        if content == "a folder":
            path.mkdir()
        elif isinstance(content, bytes):
            path.write_bytes(content)
        elif content is not None:
            ((at, change),) = content.items()
            data = bytearray(model.read_bytes())
            data[at : at + len(change)] = change
            path.write_bytes(data)
        with pytest.raises(error, match=said):
            read_header(path)


class TestConstruction:
    def test_defaults_follow_the_file(self, model):
        client = LocalClient(model)
        assert client.default_prompt == "props"
        assert client.context_tokens == CONTEXT_TOKENS
        assert LocalClient(model, context_tokens=100).context_tokens == 100
        assert LocalClient(model, default_prompt="opro").default_prompt == "opro"

    @pytest.mark.parametrize(
        ("chat", "style", "expected"),
        [
            (True, "auto", "chat"),
            (False, "auto", "completion"),
            (True, "completion", "completion"),
            (False, "chat", "chat"),
        ],
    )
    def test_facts_come_from_the_header(self, tmp_path, monkeypatch, chat, style, expected):
        monkeypatch.setattr(LocalClient, "_load", lambda self: pytest.fail("loaded"))
        path = write_tiny_gguf(tmp_path / "m.gguf", chat=chat)
        client = LocalClient(path, style=style)
        facts = model_facts(client)
        assert (facts.name, facts.style, facts.chats) == ("gguf:m", expected, expected == "chat")
        assert (facts.context_tokens, facts.default_prompt) == (CONTEXT_TOKENS, "props")
        assert (facts.columns, facts.grammar, facts.schema) == (True, True, True)
        assert facts.parameters == read_header(path).parameters
        assert model_facts(RecordClient(client, tmp_path / "r.jsonl")) == facts

    def test_missing_package(self, model, monkeypatch):
        monkeypatch.setitem(sys.modules, "xllamacpp", None)
        with pytest.raises(ImportError, match=re.escape(install_hint("local"))):
            LocalClient(model).complete(ask())


class TestComplete:
    def test_usage_adds_up(self, client):
        prompt = "17, 4, 99, " * 8
        first = client.complete(ask(prompt))
        # A token of this model is one character or one byte, so bytes bound the count.
        assert len(prompt) <= first.prompt_tokens <= len(prompt) + 2
        assert 1 <= first.completion_tokens <= 8
        assert (first.requests, first.cost) == (1, 0.0)
        assert first.seconds > 0

    def test_a_common_prefix_is_processed_once(self, client):
        prefix = "a stable beginning of the prompt. " * 6
        first = client.complete(ask(prefix + "one"))
        second = client.complete(ask(prefix + "two"))
        assert first.cached_tokens < len(prefix) / 2
        assert second.cached_tokens >= len(prefix)
        assert second.prompt_tokens - second.cached_tokens < 8

    def test_seed_repeats(self, client):
        request = ask(temperature=1.0)
        once, again = client.complete(request), client.complete(request)
        assert texts(once) == texts(again)
        assert texts(client.complete(ask(temperature=1.0, seed=2))) != texts(once)

    def test_grammar(self, client):
        for style in ("chat", "completion"):
            reply = client.complete(ask(style=style, grammar=DIGITS, max_tokens=20))
            assert all(re.fullmatch(r"\d\d, \d\d", t) for t in texts(reply))
            assert {c.finish_reason for c in reply.completions} == {"stop"}

    def test_json_schema(self, client):
        schema = {
            "type": "object",
            "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["x"],
            "additionalProperties": False,
        }
        for style in ("chat", "completion"):
            reply = client.complete(ask(style=style, json_schema=schema, max_tokens=60))
            assert 0 <= json.loads(reply.completions[0].text)["x"] <= 9

    def test_max_tokens_and_stop(self, client):
        grammar = 'root ::= "abcdef"'
        cut = client.complete(ask(grammar=grammar, max_tokens=3)).completions[0]
        assert (cut.text, cut.finish_reason) == ("abc", "length")
        stopped = client.complete(ask(grammar=grammar, stop=("d",))).completions[0]
        assert (stopped.text, stopped.finish_reason) == ("abc", "stop")

    def test_prompt_too_long(self, client):
        with pytest.raises(ClientError, match=r"the prompt has \d+ tokens and the context is 512"):
            client.complete(ask("9" * 3000))

    def test_template_and_style(self, client, model, tmp_path):
        plain = client.complete(ask("hello")).prompt_tokens
        templated = client.complete(ask("hello", style="chat")).prompt_tokens
        assert templated == plain + len("[user]") + len("[assistant]")
        always_raw = LocalClient(model, style="completion")
        assert always_raw.complete(ask("hello", style="chat")).prompt_tokens == plain
        always_raw.close()
        always_chat = LocalClient(model, style="chat")
        assert always_chat.complete(ask("hello")).prompt_tokens == templated
        always_chat.close()
        base = LocalClient(write_tiny_gguf(tmp_path / "base.gguf", chat=False))
        assert base.complete(ask("hello", style="chat")).prompt_tokens == plain
        base.close()

    def test_a_thinking_model_is_told_not_to(self, model, tmp_path):
        template = TEMPLATE + "{% if not enable_thinking %}<think></think>{% endif %}"
        path = write_tiny_gguf(tmp_path / "thinking.gguf", template=template)
        used = {}
        for thinking in (False, True):
            client = LocalClient(path, thinking=thinking)
            used[thinking] = client.complete(ask("hello", style="chat")).prompt_tokens
            client.close()
        assert used[False] - used[True] == len("<think></think>")
        assert "chat_template_kwargs" not in LocalClient(model)._body(ask(style="chat"))[0]


class TestLife:
    def test_close_and_go_on(self, model):
        client = LocalClient(model)
        before = texts(client.complete(ask()))
        client.close()
        client.close()
        assert texts(client.complete(ask())) == before
        client.close()

    def test_corrupt_file_is_refused_without_a_crash(self, model, tmp_path):
        pytest.importorskip("xllamacpp")
        whole = model.read_bytes()
        path = tmp_path / "cut.gguf"
        path.write_bytes(whole[:-100])
        with pytest.raises(ClientError, match="could not load"):
            LocalClient(path).complete(ask())
        path.write_bytes(whole.replace(b"blk.0.attn_q", b"blk.0.attn_X"))
        with pytest.raises(ClientError, match="could not load"):
            LocalClient(path).complete(ask())

    def test_the_address_needs_a_key(self, model):
        client = LocalClient(model)
        client.complete(ask())
        request = urllib.request.Request(
            f"{client._loaded().listening_address}/v1/completions",
            b'{"prompt": "1"}',
            {"Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with pytest.raises(urllib.error.HTTPError, match="401"):
            opener.open(request)
        client.close()


def run_script(model: Path, body: str) -> subprocess.CompletedProcess[str]:
    script = f"""
import os, sys, threading, time
from llmopt.client import LocalClient, Message, Request
client = LocalClient({str(model)!r}, threads=1)
request = Request((Message("user", "1, 2"),), style="completion", max_tokens=4, seed=1)
{textwrap.dedent(body)}
"""
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )


class TestProcess:
    @pytest.fixture(autouse=True)
    def _needs_llama_cpp(self) -> None:
        pytest.importorskip("xllamacpp")

    def test_exit_is_quiet_with_a_request_under_way(self, model):
        done = run_script(
            model,
            """
            endless = Request(
                (Message("user", "1"),), style="completion", max_tokens=400,
                grammar='root ::= "7" root',
            )
            def work():
                while True:
                    client.complete(endless)
            client.complete(request)
            threading.Thread(target=work, daemon=True).start()
            time.sleep(0.2)
            print("leaving")
            """,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "leaving\n", "")

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
    def test_a_fork_loads_its_own(self, model):
        done = run_script(
            model,
            """
            import multiprocessing
            before = client.complete(request).completions
            def work():
                assert client._server is None
                assert client.complete(request).completions == before
                raise SystemExit(7)
            child = multiprocessing.get_context("fork").Process(target=work)
            child.start()
            child.join()
            assert child.exitcode == 7, child.exitcode
            assert client.complete(request).completions == before
            print("both")
            """,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "both\n", "")


@pytest.mark.embedded
class TestEmbeddedModel:
    def test_continues_a_pattern_off_one_cached_prefix(self, embedded_client):
        rows = "".join(f"{i}, {2 * i}, {3 * i}\n" for i in range(10, 25))
        request = ask(rows, grammar=r'root ::= [0-9]+ ", " [0-9]+ ", " [0-9]+ "\n"')
        request = Request(**{**request.__dict__, "max_tokens": 24, "temperature": 0.5})
        first = embedded_client.complete(request)
        again = embedded_client.complete(ask(rows + "25, ", max_tokens=4))
        assert all(re.fullmatch(r"\d+, \d+, \d+\n", t) for t in texts(first))
        assert again.cached_tokens >= first.prompt_tokens - 1
