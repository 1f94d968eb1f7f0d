from __future__ import annotations

import os

import pytest

from llmopt.errors import StorageError
from llmopt.files import write_bytes_atomically, write_text_atomically


def test_a_file_and_its_folder_are_made(tmp_path):
    write_text_atomically(tmp_path / "a" / "b.txt", "ü\n")
    assert (tmp_path / "a" / "b.txt").read_bytes() == "ü\n".encode()
    assert os.listdir(tmp_path / "a") == ["b.txt"]


def test_what_cannot_be_written_leaves_the_old_file(tmp_path, monkeypatch):
    write_bytes_atomically(tmp_path / "f", b"old")

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(StorageError, match="No space left on device"):
        write_bytes_atomically(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]
