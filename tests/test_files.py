from __future__ import annotations

import os
import socket
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from llmopt.client.base import Message, Request
from llmopt.client.recordings import RecordClient
from llmopt.client.scripted import ScriptedClient
from llmopt.errors import ClientError, StorageError
from llmopt.util.files import (
    check_new_recording,
    open_file,
    read_bytes,
    read_json_object,
    read_text,
    write_bytes_atomically,
)
from llmopt.util.text import clean


def test_writers_of_one_name_leave_one_whole_file(tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"mine")
    texts = [bytes([65 + i]) * 100_000 for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: write_bytes_atomically(tmp_path / "f", text), texts))
    assert (tmp_path / "f").read_bytes() in texts
    for name in ("a", "b"):  # with and without `anew`, nothing is written through a link
        (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    write_bytes_atomically(tmp_path / "a", b"new")
    with pytest.raises(FileExistsError):
        write_bytes_atomically(tmp_path / "b", b"new", anew=True)
    write_bytes_atomically(tmp_path / "c", b"new", anew=True)
    assert (tmp_path / "elsewhere").read_bytes() == b"mine"
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c", "elsewhere", "f"]


def test_only_regular_files_are_opened(tmp_path):
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfa\r\nb")
    (tmp_path / "link").symlink_to(tmp_path / "f")
    (tmp_path / "latin").write_bytes(b"ab\xe4")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    assert read_text(tmp_path / "f") == read_text(tmp_path / "link") == "a\nb"
    assert read_bytes(tmp_path / "f", most=7) == b"\xef\xbb\xbfa\r\nb"
    for path, options, words in [
        (tmp_path / "pipe", {}, "it is a pipe"),
        (tmp_path / "socket", {}, "regular file"),
        (tmp_path, {}, "it is a folder"),
        ("/dev/zero", {}, "it is a device"),
        ("a\0b", {}, "not the name of a file"),
        (tmp_path / "link", {"links": False}, "it is a link"),
        (tmp_path / "f", {"most": 6}, "longer than 6 bytes"),
        (tmp_path / "latin", {}, r"it is not text in UTF-8 \(byte 3\)"),
        (tmp_path / "none", {}, "none: No such file"),
        (tmp_path / "latn", {}, r"latn \(did you mean .*latin\?\): No such file"),
    ]:
        with pytest.raises(OSError, match=words):
            read_text(path, **options)
    with pytest.raises(StorageError, match="it is a link"):
        read_json_object(tmp_path / "link")
    with open_file(tmp_path / "f") as file:
        assert file.read(1) == b"\xef"


def test_a_file_that_is_too_large_is_not_read_first(tmp_path):
    with open(tmp_path / "large", "wb") as file:
        file.truncate(60_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(OSError, match="longer than 50,000,000 bytes"):
            read_bytes(tmp_path / "large", most=50_000_000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_text_from_outside_is_clean():
    plain = "naïve Größe\t5\u00a0°C\nيوم 日 👩\u200d💻"
    assert clean(plain) == plain
    assert clean("a\r\nb") == "a\nb"
    assert clean("\ud800 \x00user\x00 \x1b[2J \x9b \r \u2028 \u202e") == (
        r"\ud800 \x00user\x00 \x1b[2J \x9b \r \u2028 \u202e"
    )
    assert clean(clean("\ud800")) == clean("\ud800")


def test_what_a_server_says_is_clean_in_an_error():
    error = ClientError("HTTP 500: \x1b[2J\x07 busy \ud800")
    assert str(error) == r"HTTP 500: \x1b[2J\x07 busy \ud800"


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe"])
def test_a_recording_goes_to_a_regular_file_alone(tmp_path, kind):
    path, outside = tmp_path / "r.jsonl", tmp_path / "outside"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(outside)
        if kind == "link":
            outside.write_text("")
    with pytest.raises(StorageError, match="no regular file"):
        check_new_recording(path)
    client = RecordClient(ScriptedClient(["x: 1"]), path)
    with pytest.raises(StorageError, match="cannot write the recording"):
        client.complete(Request((Message("user", "x?"),)))
    assert client.client.requests == []  # nothing is paid
    assert kind != "dangling link" or not outside.exists()
    assert kind != "link" or not outside.read_text()
