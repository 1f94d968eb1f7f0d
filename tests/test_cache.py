from __future__ import annotations

import io

import pytest
from stubs import in_threads

from llmopt.client import record_replay
from llmopt.client.base import Completion, Message, Reply, Request
from llmopt.client.cache import CachedClient
from llmopt.client.providers.openai import OpenAIClient
from llmopt.client.scripted import ScriptedClient
from llmopt.errors import ClientError, StorageError

ASK = Request((Message("user", "one"),), temperature=1.0, seed=3)
OTHER = Request((Message("user", "one"),), temperature=1.0, seed=4)
PAID = Reply((Completion("x = 1"),), "m", 100, 60, 7, 2.5, 0.25, 2)


def texts(client, *requests):
    return [client.complete(r).completions[0].text for r in requests]


def test_a_repeated_experiment_asks_nothing(tmp_path):
    first = CachedClient(ScriptedClient(["a", "b", "c"]), tmp_path)
    assert texts(first, ASK, OTHER, ASK) == ["a", "b", "c"]
    silent = ScriptedClient([])
    again = CachedClient(silent, tmp_path)
    assert texts(again, ASK, OTHER, ASK) == ["a", "b", "c"]
    assert silent.requests == []
    assert (again.hits, again.misses) == (3, 0)
    assert (first.hits, first.misses) == (0, 3)


def test_an_answer_from_the_folder_costs_nothing(tmp_path):
    CachedClient(ScriptedClient([PAID]), tmp_path).complete(ASK)
    reply = CachedClient(ScriptedClient([]), tmp_path).complete(ASK)
    assert reply.completions == PAID.completions
    assert (reply.requests, reply.prompt_tokens, reply.completion_tokens) == (0, 0, 0)
    assert reply.cost == 0.0
    assert "0.25" in next(tmp_path.iterdir()).read_text()


def test_failures_are_not_kept_and_the_retry_gets_the_same_place(tmp_path):
    client = CachedClient(ScriptedClient([ClientError("busy", retryable=True), "a"]), tmp_path)
    with pytest.raises(ClientError):
        client.complete(ASK)
    assert texts(client, ASK) == ["a"]
    assert texts(CachedClient(ScriptedClient([]), tmp_path), ASK) == ["a"]


@pytest.mark.parametrize(
    "other",
    [
        OpenAIClient("m2"),
        OpenAIClient("m", server="ollama"),
        OpenAIClient("m", endpoint="completions"),
        OpenAIClient("m", extra_body={"reasoning_effort": "low"}),
    ],
    ids=repr,
)
def test_other_models_and_settings_have_answers_of_their_own(tmp_path, other):
    one = CachedClient(OpenAIClient("m"), tmp_path)
    assert one.path != CachedClient(other, tmp_path).path
    same = OpenAIClient("m", api_key="another", timeout=3)
    assert one.path == CachedClient(same, tmp_path).path


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    inner = ScriptedClient(["a"])
    with pytest.raises(StorageError, match="another cache folder"):
        CachedClient(inner, tmp_path / "file").complete(ASK)
    assert inner.requests == []


def test_a_paid_answer_survives_a_full_disk(tmp_path, monkeypatch):
    class Full(io.FileIO):
        def write(self, data):
            raise OSError(28, "No space left on device")

    def full(path):
        return Full(path, "a+")

    monkeypatch.setattr(record_replay, "open_to_append", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        assert texts(CachedClient(ScriptedClient(["a"]), tmp_path), ASK) == ["a"]


def test_threads_leave_whole_files_and_one_answer_each(tmp_path):
    client = CachedClient(ScriptedClient([f"{i}" for i in range(40)]), tmp_path)
    got: list[str] = []

    def work() -> None:
        got.extend(texts(client, *([ASK] * 5)))

    in_threads(lambda _: work(), range(8))
    assert sorted(got, key=int) == [f"{i}" for i in range(40)]
    again = CachedClient(ScriptedClient([]), tmp_path)
    assert sorted(texts(again, *([ASK] * 40)), key=int) == [f"{i}" for i in range(40)]
    assert [p.name for p in tmp_path.iterdir()] == [client.path.name]


def test_a_hit_holds_nothing_in_doubt(tmp_path):
    lost = Reply((Completion("x: 1"),), cost=0.5, requests=3, unpriced=1, estimated=1)
    asked = Request((Message("user", "hello"),))
    CachedClient(ScriptedClient([lost]), tmp_path).complete(asked)
    hit = CachedClient(ScriptedClient([]), tmp_path).complete(asked)
    assert (hit.requests, hit.cost, hit.unpriced, hit.estimated, hit.tokens) == (0, 0.0, 0, 0, 0)
