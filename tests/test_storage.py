"""The append-only event file."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from llmopt.errors import StorageError
from llmopt.search.eventlog import EventLog, read_events


def fill(path, n=3):
    log = EventLog(path)
    for i in range(n):
        log.append({"event": "tell", "i": i})
    log.close()
    return path.read_bytes()


def test_events_come_back_in_order(tmp_path):
    fill(tmp_path / "a.jsonl")
    assert [e["i"] for e in read_events(tmp_path / "a.jsonl")] == [0, 1, 2]


def test_every_torn_end_is_cut_off_and_appending_goes_on(tmp_path, caplog):
    path = tmp_path / "a.jsonl"
    data = fill(path)
    start = data.rindex(b"\n", 0, -1) + 1
    for cut in range(start + 1, len(data)):
        path.write_bytes(data[:cut])
        with caplog.at_level(logging.WARNING):
            log = EventLog(path)
        assert "torn last line" in caplog.text
        assert [e["i"] for e in log.events] == [0, 1]
        log.append({"event": "tell", "i": 9})
        log.close()
        assert [e["i"] for e in read_events(path)] == [0, 1, 9]


def test_damage_in_the_middle_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = fill(path).splitlines(keepends=True)
    lines[1] = b'{"event": "te\n'
    path.write_bytes(b"".join(lines))
    before = path.read_bytes()
    with pytest.raises(StorageError, match="line 2"):
        EventLog(path)
    assert path.read_bytes() == before


def test_missing_file_to_read(tmp_path):
    with pytest.raises(StorageError, match="No such file"):
        list(read_events(tmp_path / "none.jsonl"))


def test_folder_is_made(tmp_path):
    fill(tmp_path / "deep" / "er" / "a.jsonl")
    assert len(list(read_events(tmp_path / "deep" / "er" / "a.jsonl"))) == 3


def test_closed_log_refuses(tmp_path):
    log = EventLog(tmp_path / "a.jsonl")
    log.close()
    log.close()
    with pytest.raises(StorageError, match="closed"):
        log.append({})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_full_disk_is_told_and_tried_again(tmp_path):
    path = tmp_path / "a.jsonl"
    log = EventLog(path)
    log.append({"i": 0})
    file = log._file
    with open("/dev/full", "wb", buffering=0) as full:
        log._file = full
        with pytest.raises(StorageError, match="No space left"):
            log.append({"i": 1})
    log._file = file
    log.append({"i": 1})
    assert [e["i"] for e in read_events(path)] == [0, 1]


def test_a_device_is_refused():
    with pytest.raises(StorageError, match="not a regular file"):
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


def test_writes_that_come_up_short_are_finished(tmp_path):
    log = EventLog(tmp_path / "a.jsonl")
    log._file = Stingy(log._file)
    for i in range(3):
        log.append({"event": "tell", "i": i})
    assert [e["i"] for e in read_events(tmp_path / "a.jsonl")] == [0, 1, 2]


def test_a_line_that_does_not_fit_is_taken_back(tmp_path):
    path = tmp_path / "a.jsonl"
    log = EventLog(path)
    log.append({"event": "tell", "i": 0})
    before = path.read_bytes()
    log._file = Stingy(log._file, room=10)
    with pytest.raises(StorageError, match="No space left"):
        log.append({"event": "tell", "i": 1})
    assert path.read_bytes() == before
    log._file.room = 10**9
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
        assert [e["i"] for e in read_events(path)] == [7]
