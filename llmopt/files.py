"""Files that a reader never meets half written, and in which a changed byte is noticed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmopt.errors import StorageError

_MAX_BYTES = 100_000_000
_END = 200
_SEAL = re.compile(rb',\s*"crc":\s*"([0-9a-f]{8})"\s*\}\s*\Z')
_SHAPE = (b"}", b'"........"', b'"crc":', b",")  # from the end, white space between; . is any byte


def check_new_recording(path: Path, begun: bool = False) -> None:
    """Raise where ``--record`` cannot write, or would mix two runs.

    Args:
        path: Its file.
        begun: The run goes on, and may find its own recording there.

    Raises:
        StorageError: There is no such folder, it is a folder itself, or it is not empty.
    """
    if not path.absolute().parent.is_dir():
        raise StorageError(f"--record: the folder of {path} does not exist: make it first")
    if path.is_dir():
        raise StorageError(f"--record: {path} is a folder: give the name of a file")
    if not begun and path.exists() and path.stat().st_size:
        raise StorageError(
            f"--record: {path} holds a recording already: give another name, as the answers of two "
            "runs in one file cannot be told apart"
        )


def write_text_atomically(path: Path, text: str) -> None:
    """Write a file in UTF-8 in one step, and make its folder.

    Args:
        path: The file; an older one is replaced.
        text: The content.

    Raises:
        StorageError: It could not be written; an older file is left as it was.
    """
    write_bytes_atomically(path, text.encode())


def write_bytes_atomically(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Write a file in one step, as `write_text_atomically` does.

    Args:
        path: The file; an older one is replaced.
        data: The content.
        durable: Whether to wait until it is on the disk.

    Raises:
        StorageError: It could not be written; an older file is left as it was.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(partial, path)
        if durable:
            sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}. What was there before is intact; "
            "free some space, or give a folder that you may write to"
        ) from error


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk, where the system offers that."""
    with contextlib.suppress(OSError):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def refuse_links(folder: Path) -> None:
    """Raise where something in a folder is a link, which may lead out of it.

    Raises:
        StorageError: Something is.
    """
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            if os.path.islink(path):
                raise StorageError(
                    f"{path} is a link, and a run folder may be somebody else's: put what it "
                    "points to in its place to go on with the run"
                )


# -- checksums --------------------------------------------------------------------------------


def seal(text: bytes) -> bytes:
    """Return a JSON object with its checksum as the last entry.

    Args:
        text: The object, with at least one entry.
    """
    text = text.rstrip()
    body = text[:-1].rstrip()
    line = b"" if body == text[:-1] else b"\n"  # as the object itself is laid out
    checksum = zlib.crc32(body + b"}")
    return b'%b,%b"crc":"%08x"%b}' % (body, line, checksum, line)


def unseal(text: bytes) -> tuple[bytes, bool]:
    """Return a JSON object without its checksum, and whether it had one.

    Raises:
        ValueError: It, or its checksum, is not as it was written.
    """
    end = text[-_END:]
    found = _SEAL.search(end)
    if found is None:
        rest, bare = end, b""
        for part in _SHAPE:
            rest = rest.rstrip()
            rest, bare = rest[: -len(part)], rest[-len(part) :] + bare
        shape = b"".join(reversed(_SHAPE))
        differ = sum(a != b for a, b in zip(bare, shape, strict=False) if b != ord("."))
        if len(bare) == len(shape) and differ <= 1:
            raise ValueError("its checksum is damaged")
        return text, False
    body = text[: len(text) - len(end) + found.start()] + b"}"
    if zlib.crc32(body) != int(found[1], 16):
        raise ValueError("its checksum is another one")
    return body, True


def write_json_atomically(path: Path, data: Mapping[str, Any], **options: Any) -> None:
    """Write a JSON object with a checksum in one step, and wait until it is on the disk.

    Args:
        path: The file; an older one is replaced.
        data: The object, with at least one entry.
        **options: As of `json.dumps`.

    Raises:
        StorageError: It could not be written; an older file is left as it was.
        TypeError: `data` holds something that JSON does not.
    """
    text = json.dumps(data, **{"indent": 1, **options}).encode()
    write_bytes_atomically(path, seal(text) + b"\n", durable=True)


def read_json_object(path: Path) -> dict[str, Any]:
    """Read what `write_json_atomically` wrote; a file without a checksum is an older one.

    Raises:
        StorageError: It cannot be read, was changed, or holds no JSON object.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise StorageError(f"{path} is larger than {_MAX_BYTES:,} bytes: restore it")
        text = path.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        text, _ = unseal(text)
    except ValueError as error:
        raise StorageError(
            f"{path} is not as it was written ({error}): restore it from a copy. If you changed "
            'it on purpose, remove its last entry, "crc"'
        ) from error
    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError(f"it holds a {type(data).__name__} and no JSON object")
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path} is not valid JSON ({error}): restore it") from error
    data.pop("crc", None)  # something else sorted the entries
    return data
