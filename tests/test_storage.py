"""The append-only event file."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from llmopt.errors import StorageError
from llmopt.storage import EventLog, read_events


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
