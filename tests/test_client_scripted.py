from __future__ import annotations

import json
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from llmopt.client import (
    Client,
    Completion,
    Message,
    RecordClient,
    ReplayClient,
    Reply,
    Request,
    ScriptedClient,
    get_client,
    recordings,
)
from llmopt.client.base import Style
from llmopt.client.model_facts import model_facts
from llmopt.errors import ClientError, StorageError


def ask(text: str = "hello", **fields: object) -> Request:
    return Request((Message("user", text),), **fields)  # type: ignore[arg-type]


def texts(reply: Reply) -> list[str]:
    return [c.text for c in reply.completions]


def shout(request: Request) -> str:
    return request.text.upper()


def fail(request: Request) -> ClientError:
    return ClientError("down", retryable=True)


class TestScriptedClient:
    @pytest.mark.parametrize(
        ("script", "given"),
        [
            (["one", "two"], [["one"], ["two"]]),
            ([shout, "x"], [["HELLO"], ["x"]]),
            (shout, [["HELLO"]] * 3),
        ],
    )
    def test_answers(self, script, given):
        client = ScriptedClient(script)
        assert isinstance(client, Client)
        assert [texts(client.complete(ask())) for _ in given] == given

    def test_replies_and_errors_are_given_as_they_are_and_requests_kept(self):
        ready = Reply((Completion("cut", "length"),), model="m", cost=0.5)
        client = ScriptedClient([ready, ValueError("boom"), fail])
        requests = [ask("1"), ask("2"), ask("3")]
        assert client.complete(requests[0]) is ready
        with pytest.raises(ValueError, match="boom"):
            client.complete(requests[1])
        with pytest.raises(ClientError, match="down"):
            client.complete(requests[2])
        assert client.requests == requests

    @pytest.mark.parametrize("answer", [[], [1, 2], 7, None])
    def test_what_is_no_answer(self, answer):
        client = ScriptedClient([answer])  # type: ignore[list-item]
        with pytest.raises(TypeError, match=r"scripted reply 0 is .*expected a str"):
            client.complete(ask())


def recorded(path: Path, *asked: str, **fields: object) -> Path:
    """Record an answer to each text: its capitals."""
    recorder = RecordClient(ScriptedClient(shout), path)
    for text in asked:
        recorder.complete(ask(text, **fields))
    return path


class TestRecordAndReplay:
    def test_round_trip_in_any_order(self, tmp_path):
        path = tmp_path / "run.jsonl"
        exact = Reply(
            (Completion("a", "length"), Completion("ü☃")),
            model="m",
            prompt_tokens=9,
            cached_tokens=3,
            completion_tokens=2,
            seconds=0.25,
            cost=0.001,
        )
        recorder = RecordClient(ScriptedClient([exact, "second", "third"]), path)
        schema = {"type": "object"}
        first = ask("1", stop=("x",), json_schema=schema, temperature=0.5, seed=3)
        for request in (first, ask("2"), ask("2")):
            recorder.complete(request)
        replay = ReplayClient(path)
        assert texts(replay.complete(ask("2"))) == ["second"]
        again = replay.complete(first)
        assert replace(again, seconds=0.25, cost=0.001) == exact
        assert texts(replay.complete(ask("2"))) == ["third"]

    def test_unrecorded_request(self, tmp_path):
        replay = ReplayClient(recorded(tmp_path / "run.jsonl", "1", seed=1))
        with pytest.raises(ClientError, match="is not among its 1 recorded ones") as caught:
            replay.complete(ask("1", seed=2))
        assert not caught.value.retryable
        replay.complete(ask("1", seed=1))
        with pytest.raises(ClientError, match=r"was recorded 1 time\(s\)"):
            replay.complete(ask("1", seed=1))

    def test_failures_pass_and_are_not_recorded(self, tmp_path):
        path = tmp_path / "run.jsonl"
        recorder = RecordClient(ScriptedClient([ClientError("down"), "up"]), path)
        with pytest.raises(ClientError, match="down"):
            recorder.complete(ask())
        recorder.complete(ask())
        # The facts of the model, and one exchange.
        assert len(path.read_text().splitlines()) == 2

    @pytest.mark.parametrize(
        "line",
        [
            "not json",
            "[]",
            '{"request": {}}',
            '{"request": 3}',
            '{"facts": {"default_prompt": "a/b"}}',
            '{"like": "0123", "request": {"messages": [{"role": "user", "content": [[0, 9]]}]}}',
        ],
    )
    def test_damaged_recording(self, tmp_path, line):
        path = recorded(tmp_path / "run.jsonl", "hello")
        with path.open("a") as file:
            file.write(line + "\n")
        with pytest.raises(ClientError, match="line 3: not an exchange"):
            ReplayClient(path).complete(ask())

    def test_grows_by_what_is_new_and_loses_nothing(self, tmp_path):
        path = tmp_path / "run.jsonl"
        rows = [f"{i} | {i * 0.1:.3f} | {'word ' * 10}" for i in range(60)]
        requests = [
            Request(
                (
                    Message("system", "the task\r\nin words\n"),
                    Message("user", "\n".join(["table", *rows[i % 7 : i + 20], f"now {i}", ""])),
                ),
                seed=i,
            )
            for i in range(40)
        ]
        for start in (0, 20):  # a second recorder goes on with the file
            recorder = RecordClient(ScriptedClient(shout), path)
            for request in requests[start : start + 20]:
                recorder.complete(request)
        replay = ReplayClient(path)
        for request in requests:
            assert texts(replay.complete(request)) == [request.text.upper()]
        text = path.read_text()
        assert text.count("now 37") == 1

    def test_goes_on_after_a_recorder_that_was_killed(self, tmp_path):
        path = tmp_path / "run.jsonl"
        recorder = RecordClient(ScriptedClient(shout), path)
        recorder.complete(ask("a"))
        whole = path.read_bytes()
        line = whole.splitlines(keepends=True)[1]
        for size in (1, 10, len(line) - 20, len(line) - 2):
            path.write_bytes(whole + line[:size])
            assert len(ReplayClient(path).exchanges) == 1
            recorder.complete(ask("b"))  # one that shares the file
            path.write_bytes(path.read_bytes() + line[:size])
            recorded(path, "c")  # one that goes on with it
            replay = ReplayClient(path)
            assert [texts(replay.complete(ask(t)))[0] for t in "cba"] == ["C", "B", "A"]

    def test_not_strict_gives_the_next_answer_and_says_so_once(self, tmp_path):
        replay = ReplayClient(recorded(tmp_path / "run.jsonl", *"abc"), strict=False)
        with pytest.warns(RuntimeWarning, match=r"recorded 'a', asked 'new'"):
            assert texts(replay.complete(ask("new"))) == ["A"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert texts(replay.complete(ask("c"))) == ["C"]
            assert texts(replay.complete(ask("newer"))) == ["B"]
        with pytest.raises(ClientError, match="is not among its 3"):
            replay.complete(ask("newest"))

    def test_a_replay_has_the_facts_of_the_recorded_model(self, tmp_path):
        class Small(ScriptedClient):
            style: Style = "completion"
            context_tokens = 512

        client = Small(["x"], default_prompt="props")
        path = tmp_path / "run.jsonl"
        recorder = RecordClient(client, path)
        assert model_facts(recorder) == model_facts(client)
        recorder.complete(ask())
        replay = get_client(f"replay:{path}")
        facts = model_facts(replay)
        assert (facts.name, facts.default_prompt, facts.style) == ("replay", "props", "completion")
        assert (facts.context_tokens, facts.chats, facts.columns) == (512, False, False)
        assert ReplayClient(path).default_prompt == "props"

    def test_a_recording_of_other_prompts_is_played_in_order(self, tmp_path):
        path = recorded(tmp_path / "run.jsonl", *"ab")
        with pytest.raises(ClientError, match="is not among its 2"):
            ReplayClient(path).complete(ask("new"))
        stamp, *lines = path.read_text().splitlines()
        for head in ([], [json.dumps({**json.loads(stamp), "prompts": 1})]):
            path.write_text("\n".join([*head, *lines]) + "\n")
            replay = ReplayClient(path)
            with pytest.warns(RuntimeWarning, match="not among its 2") as caught:
                assert [texts(replay.complete(ask(t)))[0] for t in ("new", "newer")] == ["A", "B"]
            assert len(caught) == 1

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
    def test_a_full_disk_loses_no_reply(self, tmp_path, monkeypatch, caplog):
        path = tmp_path / "run.jsonl"
        opened = recordings.open_to_append
        full = partial(open, "/dev/full", "r+b", buffering=0)
        monkeypatch.setattr(recordings, "open_to_append", lambda _: full())
        client = ScriptedClient(["a", "b"])
        recorder = RecordClient(client, path)
        assert texts(recorder.complete(ask("1"))) == ["a"]
        assert "No space left" in caplog.text
        with pytest.raises(StorageError, match=r"No space left.*another file"):
            recorder.complete(ask("2"))
        assert len(client.requests) == 1  # nothing more was paid for
        monkeypatch.setattr(recordings, "open_to_append", opened)
        recorder.complete(ask("2"))
        replay = ReplayClient(path)
        assert [texts(replay.complete(ask(t)))[0] for t in "12"] == ["a", "b"]
