"""`llmopt next DIR` and `folder:DIR` in a folder that somebody else writes to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest

from llmopt.cli import main
from llmopt.client import folder as exchange
from llmopt.client.base import Message, Request
from llmopt.client.folder import ANSWER_BYTES, FolderClient, FolderError, hand_in
from llmopt.errors import ClientError

ASK = Request((Message("user", "hi"),))
FILES = ("0001.request.md", "0001.request.json", "done")


@pytest.fixture
def folder(tmp_path):
    """A folder with an open request."""
    place = tmp_path / "exchange"
    with pytest.raises(ClientError):
        FolderClient(place, timeout=0.01).complete(ASK)
    assert (place / FILES[0]).exists()
    return place


def look(folder, capsys):
    """Return the exit status of one look, and all that was said."""
    status = main(["next", str(folder), "--timeout", "0"])
    said = capsys.readouterr()
    return status, said.out + said.err


@pytest.mark.parametrize("name", FILES)
def test_no_link_out_of_the_folder_is_read(folder, tmp_path, name, capsys):
    secret = tmp_path / "secret"
    secret.write_text('{"a": "the secret"}')
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(secret)
    status, said = look(folder, capsys)
    assert status in (2, 3)
    assert "secret" not in said


@pytest.mark.parametrize("name", FILES)
def test_no_pipe_is_waited_for(folder, name):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    code = "import sys; from llmopt.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "next", str(folder), "--timeout", "0"]
    done = subprocess.run(command, timeout=120, check=False)
    assert done.returncode in (2, 3)


def test_a_search_waits_for_no_pipe_in_place_of_a_request(folder):
    (folder / FILES[1]).unlink()
    os.mkfifo(folder / FILES[1])
    with pytest.raises(ClientError, match="got no answer"):
        FolderClient(folder, timeout=0.01).complete(ASK)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b"[" * 100_000, b"\x1b[2J\x00\x07", b"{}", b'{"sample": "\\u001b[2J"}', b""],
)
def test_files_of_any_content_are_said_to_be_so(folder, name, content, capsys):
    (folder / name).write_bytes(content)
    status, said = look(folder, capsys)
    assert status in (0, 2, 3)
    assert all(c.isprintable() or c == "\n" for c in said)


def test_a_huge_request_is_not_read(folder, capsys):
    with (folder / FILES[0]).open("wb") as file:
        file.truncate(20_000_000_000)
    status, said = look(folder, capsys)
    assert (status, "longer than" in said) == (2, True)


def test_names_that_are_no_numbers_are_passed_over(folder, capsys):
    for name in ("²³", "x", "9" * 200, "-1", "\x1b[2J"):
        (folder / f"{name}.request.md").write_text("no")
    status, said = look(folder, capsys)
    assert status == 0
    assert "request 1;" in said


def test_a_huge_answer_is_not_read_to_its_end(folder, monkeypatch):
    class Endless:
        taken = 0

        def read(self, most=-1):
            assert 0 < most < 2 * ANSWER_BYTES
            self.taken += most
            return b"a" * most

    class Standard:
        buffer = Endless()

        def isatty(self):
            return False

    monkeypatch.setattr("sys.stdin", Standard())
    assert main(["next", str(folder), "--answer", "1"]) == 2
    assert not (folder / "0001.answer.md").exists()


def test_of_answers_at_the_same_time_one_is_taken(folder, monkeypatch):
    """All have looked before the first one writes."""
    together = threading.Barrier(4)
    write = exchange.write_bytes_atomically

    def late(*args, **options):
        together.wait(60)
        write(*args, **options)

    monkeypatch.setattr(exchange, "write_bytes_atomically", late)
    taken = []

    def answer(text):
        try:
            hand_in(folder, 1, text)
            taken.append(text)
        except FolderError:
            pass

    threads = [threading.Thread(target=answer, args=(b"x: %d" % i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(folder / "0001.answer.md").read_bytes()] == taken
    assert sorted(p.name for p in folder.iterdir() if p.suffix == ".tmp") == []


def test_an_answer_replaces_no_link(folder, tmp_path):
    target = tmp_path / "target"
    (folder / "0001.answer.md").symlink_to(target)
    with pytest.raises(FolderError, match="not replaced"):
        hand_in(folder, 1, b"x: 1")
    assert not target.exists()


def test_a_file_system_without_hard_links_takes_answers(folder, monkeypatch):
    def link(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    hand_in(folder, 1, b"x: 1")
    assert (folder / "0001.answer.md").read_text() == "x: 1"
    assert json.loads((folder / FILES[1]).read_text())["number"] == 1
