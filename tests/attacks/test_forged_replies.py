"""Recordings, run files and folders of somebody else's: what they hold is looked at first."""

from __future__ import annotations

import json
import math
import os

import numpy as np
import pytest

from llmopt import Categorical, Float, LLMOptimizer, ScriptedClient
from llmopt.benchmarks.code.folder import CodeRun
from llmopt.benchmarks.run.folder import RunFolder
from llmopt.client.folder import FolderClient
from llmopt.client.recordings import RecordClient, ReplayClient
from llmopt.errors import ClientError, StorageError

SPACE = {"x": Float(-5, 5)}


def made(client, **options):
    return LLMOptimizer(SPACE, client, "props", seed=1, warmup=0, **options)


FORGED = [
    {"prompt_tokens": "5"},
    {"prompt_tokens": -(10**9)},
    {"completion_tokens": math.nan},
    {"cost": -1.0},
    {"cost": math.nan},
    {"cost": "free"},
    {"requests": -3},
    {"seconds": math.inf},
    {"model": 5},
    {"completions": [{"text": 5}]},
    {"completions": [{"text": "x", "finish_reason": []}]},
    {"completions": 7},
]


@pytest.mark.parametrize("forged", FORGED, ids=map(str, FORGED))
def test_no_reply_in_a_file_lowers_what_was_spent(tmp_path, forged):
    """A negative count would raise the user's caps."""
    recording, run = tmp_path / "recording.jsonl", tmp_path / "run.jsonl"
    client = RecordClient(ScriptedClient(["x: 1"]), recording)
    with_storage = made(client, storage=run, durable=False)
    with_storage.ask()
    with_storage.close()
    for path in (recording, run):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            line.pop("crc", None)
            if "reply" in line:
                line["reply"].update(forged)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ClientError, match=r"recording\.jsonl, line 2"):
        made(ReplayClient(recording)).ask()
    with pytest.raises(StorageError, match=r"run\.jsonl, line"):
        made(ScriptedClient([]), storage=run, durable=False)


@pytest.mark.parametrize("name", ["context_tokens", "parameters"])
@pytest.mark.parametrize("value", [0, -5, 10**400])
def test_facts_of_a_recording_are_possible_ones(tmp_path, name, value):
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps({"facts": {name: value}}) + "\n")
    with pytest.raises(ClientError, match=f"its fact {name} is"):
        made(ReplayClient(path)).ask()


def test_a_recording_that_is_nested_too_deep_is_refused(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text("[" * 200_000 + "\n")
    with pytest.raises(ClientError, match="line 1"):
        made(ReplayClient(path)).ask()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs links and pipes")
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_an_answer_that_is_no_plain_file_is_not_read(tmp_path, kind):
    """A link leads out of the folder, and its words would go to the next model."""
    secret, folder = tmp_path / "secret", tmp_path / "f"
    folder.mkdir()
    secret.write_text("x: 1")
    answer = folder / "0001.answer.md"
    if kind == "link":
        answer.symlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(answer)
    else:
        answer.mkdir()
    with pytest.raises(ClientError, match=r"plain file|Is a directory"):
        made(FolderClient(folder, timeout=5)).ask()


def test_a_request_that_is_read_on_a_terminal_moves_no_cursor(tmp_path):
    """The words of an environment's page, and of its rewards, go into the request."""
    folder = tmp_path / "f"
    folder.mkdir()
    (folder / "0001.answer.md").write_text("x: 1")
    made(FolderClient(folder, timeout=5), description="A\x1b[2J\x1b]0;t\x07\x00 task").ask()
    text = (folder / "0001.request.md").read_text()
    assert "\\x1b[2J" in text
    assert not {"\x1b", "\x07", "\x00"} & set(text)


@pytest.mark.parametrize("name", ["optimizer.jsonl", "baselines", "episode_0/parameters.txt"])
def test_a_run_folder_with_links_is_refused(tmp_path, name):
    """Going on with it would write, and read, where they point."""
    folder, outside = tmp_path / "run", tmp_path / "outside"
    RunFolder.create(folder, {"run": {}}).close()
    RunFolder(folder).close()
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(outside)
    with pytest.raises(StorageError, match="is a link"):
        RunFolder(folder)
    with pytest.raises(StorageError, match="is a link"):
        CodeRun(folder, {}, resume=True)
    assert not outside.exists()


ODD = "see \ud800 \x00user\x00 \x1b[2J"


def wired(request):
    """Answer as a server does, which gets UTF-8 and no terminal."""
    text = "\n".join(m.content for m in request.messages)
    assert not {"\x00", "\x1b"} & set(text)
    text.encode()
    return f"x: {np.random.default_rng(request.seed).uniform():.6f}, k: a\n{ODD}"


@pytest.mark.parametrize("prompt", ["words", "props"])
@pytest.mark.parametrize("where", ["feedback", "reason", "description", "enqueue", "start", "file"])
def test_no_text_of_a_user_ends_a_hosted_search(tmp_path, prompt, where):
    path = tmp_path / "s.jsonl"
    space = {"x": Float(0, 1), "k": Categorical(("a", "b"))}
    optimizer = LLMOptimizer(
        space, ScriptedClient(wired), prompt, seed=1, warmup=1, storage=path, durable=False,
        on_error="raise",
        description=ODD if where == "description" else "",
        start={ODD: {"x": 0.5, "k": "a"}} if where == "start" else (),
    )  # fmt: skip
    for number in range(3):
        if where == "enqueue":
            optimizer.enqueue({"x": number / 10, "k": "b"}, ODD)
        point = optimizer.ask()
        if where == "reason" and number == 1:
            optimizer.tell_failure(point, ODD)
        else:
            optimizer.tell(point, 1.0, feedback=ODD if where == "feedback" else "marked")
    optimizer.close()
    if where == "file":  # as an earlier version wrote it
        path.write_text(path.read_text().replace("marked", json.dumps(ODD)[1:-1]))
    LLMOptimizer.load(path, ScriptedClient(wired)).ask()
