"""The append-only event file."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import logging
import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest
from stubs import Gate

from llmopt import Float, LLMOptimizer, ScriptedClient
from llmopt.errors import MissingKeyError, StorageError, StorageInUseError
from llmopt.search.eventlog import EventLog, read_events
from llmopt.util.files import open_to_append, seal


def fill(path, n=3):
    log = EventLog(path)
    for i in range(n):
        log.append({"event": "tell", "i": i})
    log.close()
    return path.read_bytes()


def test_every_torn_end_is_cut_off_and_appending_goes_on(tmp_path, caplog):
    path = tmp_path / "a.jsonl"
    data = fill(path)
    start = data.rindex(b"\n", 0, -1) + 1
    for cut in range(start + 1, len(data) - 1):  # whole without its end, it is kept
        path.write_bytes(data[:cut])
        with caplog.at_level(logging.WARNING):
            log = EventLog(path)
        assert "torn last line" in caplog.text
        assert [e["i"] for e in log.events] == [0, 1]
        log.append({"event": "tell", "i": 9})
        log.close()
        assert [e["i"] for e in read_events(path)] == [0, 1, 9]


def test_a_device_is_refused():
    with pytest.raises(StorageError, match="it is a device"):
        EventLog(os.devnull)


def test_not_a_number_never_reaches_the_file(tmp_path):
    log = EventLog(tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match="JSON"):
        log.append({"x": float("nan")})
    assert (tmp_path / "a.jsonl").read_bytes() == b""
    log.append({"x": 1})
    assert json.loads((tmp_path / "a.jsonl").read_text()) == {"x": 1}


class Stingy:
    """A file that takes a few bytes at a time, and none at all after a while."""

    def __init__(self, file, room=10**9):
        self.file, self.room = file, room

    def write(self, data):
        if not self.room:
            raise OSError(28, "No space left on device")
        written = self.file.write(bytes(data[: min(3, self.room)]))
        self.room -= written
        return written

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.fixture
def stingy(monkeypatch):
    """Files that are opened for appending have little room; the list of them."""
    opened = []

    def stingy_file(path):
        opened.append(Stingy(open_to_append(path)))
        return opened[-1]

    monkeypatch.setattr("llmopt.search.eventlog.open_to_append", stingy_file)
    return opened


def test_writes_that_come_up_short_are_finished(tmp_path, stingy):
    log = EventLog(tmp_path / "a.jsonl")
    for i in range(3):
        log.append({"event": "tell", "i": i})
    assert [e["i"] for e in read_events(tmp_path / "a.jsonl")] == [0, 1, 2]


def test_a_line_that_does_not_fit_is_taken_back(tmp_path, stingy):
    path = tmp_path / "a.jsonl"
    log = EventLog(path)
    log.append({"event": "tell", "i": 0})
    before = path.read_bytes()
    stingy[0].room = 10
    with pytest.raises(StorageError, match="No space left"):
        log.append({"event": "tell", "i": 1})
    assert path.read_bytes() == before
    stingy[0].room = 10**9
    log.append({"event": "tell", "i": 2})
    assert [e["i"] for e in read_events(path)] == [0, 2]


def test_opening_a_torn_file_changes_nothing_until_something_is_written(tmp_path):
    path = tmp_path / "a.jsonl"
    torn = fill(path)[:-4]
    path.write_bytes(torn)
    EventLog(path).close()
    assert path.read_bytes() == torn


@pytest.mark.parametrize("content", [b"notes", b'{"a": 1}', b"\x89PNG", b'{"event"x'])
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(StorageError, match="not empty"):
        EventLog(path)
    assert path.read_bytes() == content


def test_a_first_line_torn_anywhere_is_written_anew(tmp_path):
    path = tmp_path / "a.jsonl"
    line = fill(path, 1)
    for cut in range(len(line)):
        path.write_bytes(line[:cut])
        log = EventLog(path)
        log.append({"event": "tell", "i": 7})
        log.close()
        whole = cut == len(line) - 1  # but for its end: it is kept
        assert [e["i"] for e in read_events(path)] == ([0, 7] if whole else [7])


# -- durable logs ------------------------------------------------------------------------------


def durable(path, n=3):
    log = EventLog(path, durable=True)
    for i in range(n):
        log.append({"event": "tell", "i": i, "text": 'ü,"crc":"00000000"}'})
    return log


def test_a_durable_log_reads_like_any_other_and_can_follow_one(tmp_path):
    path = tmp_path / "a.jsonl"
    fill(path)
    durable(path).close()
    found = list(read_events(path))
    assert [e["i"] for e in found] == [0, 1, 2, 0, 1, 2]
    assert set(found[-1]) == {"event", "i", "text"}


def test_every_line_is_forced_to_the_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(path.read_bytes().count(b"\n")))
    path = tmp_path / "a.jsonl"
    durable(path).close()
    assert synced == [0, 1, 2, 3]  # the first is for the name in the folder
    fill(tmp_path / "b.jsonl")
    assert len(synced) == 4


def test_a_disk_that_refuses_to_sync_is_told_and_the_line_taken_back(tmp_path, monkeypatch):
    def refuse(number):
        raise OSError(5, "Input/output error")

    path = tmp_path / "a.jsonl"
    log = durable(path)
    before = path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuse)
        with pytest.raises(StorageError, match="Input/output error"):
            log.append({"event": "tell", "i": 3})
    assert path.read_bytes() == before
    log.append({"event": "tell", "i": 4})
    assert [e["i"] for e in read_events(path)] == [0, 1, 2, 4]


def test_a_file_of_an_earlier_version_has_checksums_that_are_checked(tmp_path):
    path = tmp_path / "a.jsonl"
    durable(path).close()
    data = b"".join(seal(line) + b"\n" for line in path.read_bytes().splitlines())
    path.write_bytes(data)
    durable(path, 1).close()  # and goes on without checksums
    assert [e["i"] for e in read_events(path)] == [0, 1, 2, 0]
    for at in range(len(data) - 1):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        line = data[:at].count(b"\n") + 1
        with pytest.raises(StorageError, match=rf"line ({line - 1}|{line}|{line + 1}): "):
            list(read_events(path))


def test_a_whole_line_without_its_end_is_kept(tmp_path):
    """As an editor leaves it that takes the last line end away."""
    path = tmp_path / "a.jsonl"
    durable(path).close()
    path.write_bytes(path.read_bytes()[:-1])
    assert len(list(read_events(path))) == 3
    durable(path, 1).close()
    assert [e["i"] for e in read_events(path)] == [0, 1, 2, 0]


def test_a_last_line_with_an_end_is_not_taken_for_a_torn_one(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(fill(path)[:-5] + b"\n")
    with pytest.raises(StorageError, match="line 3"):
        EventLog(path)


@pytest.mark.parametrize("way", ["removed", "replaced", "truncated", "grown", "emptied"])
def test_a_file_that_something_else_changed_is_not_written_to(tmp_path, way):
    path = tmp_path / "a.jsonl"
    log = durable(path)
    data = path.read_bytes()
    if way == "removed":
        path.unlink()
    elif way == "replaced":
        os.replace(path, tmp_path / "old.jsonl")
        path.write_bytes(data)
    else:
        size = {"truncated": len(data) - 5, "grown": len(data) + 1, "emptied": 0}[way]
        os.truncate(path, size)
    before = path.read_bytes() if path.exists() else None
    for call in (log.check, lambda: log.append({"event": "tell", "i": 3})):
        with pytest.raises(StorageError, match=r"removed it|replaced it|changed it"):
            call()
    assert (path.read_bytes() if path.exists() else None) == before


# -- an optimizer over one ---------------------------------------------------------------------


def answer(request):
    return f"x: {np.random.default_rng(request.seed).uniform(-5, 5):.6f}"


def search(path, client=None, **options):
    options.setdefault("warmup", 1)
    client = client or ScriptedClient(answer)
    return LLMOptimizer({"x": Float(-5, 5)}, client, "props", seed=1, storage=path, **options)


def go(optimizer, n):
    for _ in range(n):
        point = optimizer.ask()
        optimizer.tell(point, point["x"], feedback="good, the best so far")


def in_a_child(work):
    """Run something in a forked child; return 0 if it returned true."""
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    for _ in range(1200):  # a minute, as what is tested is that it does not hang
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hung"


def refuses(call, words):
    try:
        call()
    except StorageError as error:
        return words in str(error)
    return False


def test_a_closed_optimizer_refuses_before_it_pays(tmp_path):
    optimizer = search(tmp_path / "a.jsonl")
    go(optimizer, 3)
    optimizer.close()
    paid = len(optimizer.client.requests)
    for _ in range(2):
        with pytest.raises(StorageError, match="closed"):
            optimizer.ask()
    assert len(optimizer.client.requests) == paid == optimizer.usage.requests


def test_a_removed_file_is_noticed_before_anything_is_paid(tmp_path):
    optimizer = search(tmp_path / "a.jsonl")
    go(optimizer, 3)
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(StorageError, match="removed it"):
        optimizer.ask()
    assert optimizer.usage.requests == 2
    optimizer.save(tmp_path / "b.jsonl")
    assert len(search(tmp_path / "b.jsonl").trials) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_refuses_before_it_pays(tmp_path):
    optimizer = search(tmp_path / "a.jsonl")
    go(optimizer, 3)

    def work():
        paid = len(optimizer.client.requests)
        told = refuses(lambda: optimizer.tell({"x": 0.0}, 1.0), "forked")
        return told and refuses(optimizer.ask, "forked") and paid == len(optimizer.client.requests)

    before = (tmp_path / "a.jsonl").read_bytes()
    assert in_a_child(work) == 0
    assert (tmp_path / "a.jsonl").read_bytes() == before


@pytest.mark.skipif(not os.path.isdir("/proc/self/fdinfo"), reason="needs Linux")
def test_a_file_in_use_names_its_process_and_what_several_can_share(tmp_path):
    ready = os.pipe()
    if not (child := os.fork()):
        optimizer = search(tmp_path / "a.jsonl")
        os.write(ready[1], b"." if optimizer.storage else b"")
        signal.pause()
    try:
        os.read(ready[0], 1)
        with pytest.raises(StorageInUseError, match=rf"process {child}\b.*docs/workers\.md"):
            search(tmp_path / "a.jsonl")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with search(tmp_path / "a.jsonl"), pytest.raises(StorageInUseError, match="of this process"):
        search(tmp_path / "a.jsonl")


def test_a_file_in_use_is_refused_where_processes_cannot_be_listed(tmp_path, monkeypatch):
    def refused(path):
        raise PermissionError(13, "Permission denied", path)

    with search(tmp_path / "a.jsonl"):
        monkeypatch.setattr(os, "listdir", refused)
        with pytest.raises(StorageInUseError, match="in use by another process"):
            search(tmp_path / "a.jsonl")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("stored", [True, False])
def test_a_child_forked_during_an_ask_of_another_thread_does_not_hang(tmp_path, stored):
    gate = Gate("x: 1")
    optimizer = search(tmp_path / "a.jsonl" if stored else None, gate, warmup=0)
    thread = threading.Thread(target=optimizer.ask)
    thread.start()
    assert gate.asked.wait(60)

    def work():
        if stored:
            tell = functools.partial(optimizer.tell, {"x": 1.0}, 1.0)
            return refuses(optimizer.ask, "forked") and refuses(tell, "forked")
        gate.open.set()
        optimizer.tell({"x": 2.0}, 1.0)
        return optimizer.ask() == {"x": 1.0} and pickle.dumps(optimizer.history)

    code = in_a_child(work)
    gate.open.set()
    thread.join()
    assert code == 0


def test_a_reply_that_could_not_be_stored_is_used_by_the_next_ask(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    optimizer = search(path, warmup=0)

    calls = itertools.count()

    def full(after):
        def fsync(number):
            if next(calls) >= after:
                raise OSError(28, "No space left on device")

        return fsync

    with monkeypatch.context() as patched:
        for after, requests in ((0, 0), (1, 1), (0, 1)):  # the request's line is the first
            calls = itertools.count()
            patched.setattr(os, "fsync", full(after))
            for _ in range(3):
                with pytest.raises(StorageError, match="No space left"):
                    optimizer.ask()
            assert optimizer.usage.requests == len(optimizer.client.requests) == requests
    point = optimizer.ask()
    assert optimizer.usage.requests == 1
    assert [e["event"] for e in read_events(path)] == ["start", "request", "reply", "ask"]
    optimizer.close()
    again = search(path, warmup=0)
    assert again.usage == optimizer.usage
    assert again.pending_proposals[0].values == (point["x"],)


@pytest.mark.parametrize(
    "clone", [copy.copy, copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))]
)
def test_a_copy_says_that_it_stores_nothing(tmp_path, clone, caplog):
    optimizer = search(tmp_path / "a.jsonl")
    go(optimizer, 3)
    with caplog.at_level(logging.WARNING):
        other = clone(optimizer)
    assert "stores nothing" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        clone(other)
        clone(search(None))
    assert caplog.text == ""


@pytest.mark.parametrize("warmup", [0, [], [{"x": 0.5}]])
def test_a_search_goes_on_whatever_its_warm_up_and_its_planned_end(tmp_path, warmup):
    def go(total):
        optimizer = LLMOptimizer(
            {"x": Float(0, 1)},
            ScriptedClient(['{"x": 0.25}', '{"x": 0.75}']),
            "props",
            warmup=warmup,
            seed=0,
            total=total,
            storage=tmp_path / "run.jsonl",
        )
        optimizer.tell(optimizer.ask(), 1)
        optimizer.close()
        return len(optimizer.trials)

    assert [go(5), go(9)] == [1, 2]


class Keyless(ScriptedClient):
    key = False

    def check_ready(self):
        if not self.key:
            raise MissingKeyError("set the environment variable", requests=0)


def test_an_empty_file_of_somebody_else_is_left(tmp_path):
    path = tmp_path / "run.jsonl"
    path.touch()
    LLMOptimizer({"x": Float(0, 1)}, ScriptedClient([]), storage=path).close()
    assert path.read_bytes() == b""


def test_a_forked_child_leaves_the_empty_file_to_its_parent(tmp_path):
    path, client = tmp_path / "run.jsonl", Keyless([])
    optimizer = LLMOptimizer({"x": Float(0, 1)}, client, seed=0, storage=path)
    with pytest.raises(MissingKeyError):
        optimizer.ask()
    if not (child := os.fork()):
        optimizer.close()
        os._exit(0)
    os.waitpid(child, 0)
    client.key = True
    optimizer.ask()
    optimizer.close()
    assert len(list(read_events(path))) == 2


def test_a_mistyped_path_makes_one_folder_at_most(tmp_path):
    options = {"storage": tmp_path / "new" / "run.jsonl"}
    LLMOptimizer({"x": Float(0, 1)}, ScriptedClient([]), **options).close()
    options = {"storage": tmp_path / "no" / "dir" / "run.jsonl"}
    with pytest.raises(StorageError, match="cannot open"):
        LLMOptimizer({"x": Float(0, 1)}, ScriptedClient([]), **options)
    assert [p.name for p in tmp_path.iterdir()] == ["new"]


def test_missing_file_to_read(tmp_path):
    with pytest.raises(StorageError, match="No such file"):
        list(read_events(tmp_path / "none.jsonl"))


def test_closed_log_refuses(tmp_path):
    log = EventLog(tmp_path / "a.jsonl")
    log.close()
    log.close()
    with pytest.raises(StorageError, match="closed"):
        log.append({})
