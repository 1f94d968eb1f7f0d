"""Files: opened only where they are files, and never met half written."""

from __future__ import annotations

import contextlib
import csv
import difflib
import errno
import io
import itertools
import json
import os
import re
import secrets
import stat
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import IO, Any, BinaryIO

from llmopt.errors import LLMOptError, StorageError
from llmopt.util.text import a_type, clean, short

try:
    import fcntl
except ImportError:  # not on Windows, where two writers are then not distinguished
    fcntl = None  # type: ignore[assignment]

MAX_BYTES = 100_000_000
"""Longest file that is read, where a reader names no other."""
_MOST_NAMES = 1000  # of a folder, among which one may be meant
_KINDS = {
    stat.S_ISDIR: "a folder",
    stat.S_ISFIFO: "a pipe, which may never end",
    stat.S_ISCHR: "a device, which may never end",
    stat.S_ISSOCK: "a socket",
}


# -- reading ----------------------------------------------------------------------------------


def open_file(path: str | os.PathLike[str], *, links: bool = True) -> BinaryIO:
    """Open a regular file to read its bytes; refuse anything else under that name.

    All files that a user, a folder or a configuration names are opened here: a pipe or a device
    in a file's place would let the reader wait or read for ever.

    Args:
        path: The file.
        links: Whether the name itself may be a link; not in a folder that others may write to.

    Raises:
        OSError: It cannot be opened, or is something else; ``strerror`` says what.
    """
    try:
        return open(path, "rb", opener=_open_plain if links else _open_in_place)
    except ValueError as error:  # a null byte in the name
        raise OSError(errno.EINVAL, f"not the name of a file ({error})") from error


def open_to_append(path: str | os.PathLike[str]) -> FileIO:
    """Open a regular file, no link, made where it is missing, to read and to append, unbuffered."""
    return open(path, "a+b", buffering=0, opener=_open_in_place)


def _open_in_place(path: str, flags: int) -> int:
    try:
        return _open_plain(path, flags | getattr(os, "O_NOFOLLOW", 0))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _not_plain(path, "a link, which may lead out of its folder") from error
        raise


def _open_plain(path: str, flags: int) -> int:
    try:
        handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device that is not there
            raise _not_plain(path, "no regular file") from error
        raise
    # Checked on the open file: the name may refer to something else by now.
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        kind = next((name for is_kind, name in _KINDS.items() if is_kind(mode)), "no file")
        raise _not_plain(path, kind)
    return handle


def _not_plain(path: str | os.PathLike[str], kind: str) -> OSError:
    return OSError(errno.EINVAL, f"it is {kind}: give a regular file", os.fspath(path))


def read_bytes(path: str | os.PathLike[str], *, most: int = MAX_BYTES, links: bool = True) -> bytes:
    """Return the whole of a regular file."""
    with open_file(path, links=links) as file:
        # Its size first: what is refused is not read. It may grow meanwhile.
        large = os.fstat(file.fileno()).st_size > most
        data = b"" if large else file.read(most + 1)
    if large or len(data) > most:
        raise OSError(errno.EFBIG, f"it is longer than {most:,} bytes", os.fspath(path))
    return data


def stamp_of(file: Any) -> tuple[int, ...]:
    """Return what changes with a file's content; nothing for what is no path of a file."""
    if isinstance(file, str | os.PathLike):
        with contextlib.suppress(OSError):
            status = os.stat(Path(file).expanduser())
            return status.st_ino, status.st_size, status.st_mtime_ns
    return ()


def read_text(path: str | os.PathLike[str], *, most: int = MAX_BYTES, links: bool = True) -> str:
    """Return the text of a regular file in UTF-8; a `StorageError` says why it cannot be read."""
    try:
        data = read_bytes(path, most=most, links=links)
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise StorageError(
            f"cannot read {path}: it is not text in UTF-8 (byte {error.start + 1})"
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: str | os.PathLike[str], error: OSError) -> StorageError:
    """Return the error to raise if a file cannot be read."""
    missing = isinstance(error, FileNotFoundError)
    remedy = "; give the path of an existing file" if missing else ""
    meant = nearby(path) if missing else ""
    return StorageError(f"cannot read {path}{meant}: {error.strerror or error}{remedy}")


def nearby(path: str | os.PathLike[str]) -> str:
    """Return a question for the file of a similar name beside a missing one, if there is one."""
    path, names = Path(path), list[str]()
    with contextlib.suppress(OSError):
        names = [found.name for found in itertools.islice(path.parent.iterdir(), _MOST_NAMES)]
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.8)
    return f" (did you mean {path.with_name(near[0])}?)" if near else ""


def read_mapping(path: Path, *, most: int = MAX_BYTES, links: bool = True) -> dict[str, Any]:
    """Read a file of JSON, or of TOML by its suffix, that holds an object.

    Raises:
        StorageError: It cannot be read.
        LLMOptError: It is not valid, or holds something else.
    """
    text = read_text(path, most=most, links=links)
    kind = "TOML" if path.suffix == ".toml" else "JSON"
    try:
        data = read_toml(text) if kind == "TOML" else read_json(text)
    except ValueError as error:
        comma = re.search(r"[=:]\s*([+-]?\d+),(\d+)", text)
        remedy = f". A number has a decimal point: write {comma[1]}.{comma[2]}" if comma else ""
        raise LLMOptError(f"{path} is not valid {kind}: {error}{remedy}") from error
    if not isinstance(data, dict):
        raise LLMOptError(f"{path} holds {a_type(data)}: expected an object")
    return data


def read_table(
    path: str | os.PathLike[str], *, most: int = MAX_BYTES, links: bool = True
) -> dict[str, list[str]]:
    """Return the columns of a CSV file by the names in its first line; empty rows are skipped.

    Raises:
        StorageError: It cannot be read, two columns have one name, or a row is too short or long.
    """
    text = read_text(path, most=most, links=links)
    reader = csv.reader(io.StringIO(text, newline=None))
    try:
        names = [clean(name).strip() for name in next(reader, [])]
        rows = [row for row in reader if any(map(str.strip, row))]
    except csv.Error as error:
        raise StorageError(
            f"{path}, line {reader.line_num}: it cannot be read as CSV ({error})"
        ) from error
    if len(names) == 1 and (other := re.search(r"[;\t]", text.partition("\n")[0])):
        raise StorageError(
            f"{path}: the separator is {other[0]!r}; expected a comma: save it with commas, and "
            "its numbers with a decimal point"
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    uneven = next((i for i, row in enumerate(rows, start=1) if len(row) != len(names)), 0)
    if uneven or twice is not None:
        what = f"row {uneven} with {len(rows[uneven - 1])} cells" if uneven else ""
        raise StorageError(
            f"{path}: got {what or f'two columns {short(twice)}'}; expected a line of {len(names)} "
            "different names, and a cell for each in every row"
        )
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


def read_toml(text: str) -> dict[str, Any]:
    """Return what TOML of somebody else says."""
    import tomllib

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def read_json(text: str | bytes) -> Any:
    """Return what JSON of somebody else says, which may say it once only."""
    try:
        return json.loads(text, object_pairs_hook=_each_key_once)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is there twice")
    return found


# -- writing ----------------------------------------------------------------------------------


def check_new_recording(path: Path, begun: bool = False) -> None:
    """Raise where ``--record`` cannot write, or would mix two runs; a begun one may be resumed."""
    if not path.absolute().parent.is_dir():
        raise StorageError(f"--record: the folder of {path} does not exist: make it first")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        kind = "a folder" if path.is_dir() else "no regular file"
        raise StorageError(f"--record: {path} is {kind}: give the name of a new file")
    if not begun and path.exists() and path.stat().st_size:
        raise StorageError(
            f"--record: {path} holds a recording already: give another name, as the answers of two "
            "runs in one file cannot be told apart"
        )


def write_text_atomically(path: Path, text: str) -> None:
    """Write a file in UTF-8 in one step, and make its folder; see `write_bytes_atomically`."""
    write_bytes_atomically(path, text.encode())


def write_bytes_atomically(
    path: Path, data: bytes, *, durable: bool = False, anew: bool = False
) -> None:
    """Write a file in one step, and make its folder; an older file, or a link there, is replaced.

    Args:
        path: The file.
        data: The content.
        durable: Whether to wait until it is on the disk.
        anew: Whether an existing file raises `FileExistsError`.

    Raises:
        StorageError: It could not be written; an older file is left as it was.
    """
    # A name that nobody can guess, and no link at its place: two writers do not meet.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "xb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        _put(partial, path, anew)
        if durable:
            sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        there = anew and isinstance(error, FileExistsError) and path.parent.is_dir()
        if there or not isinstance(error, OSError):
            raise
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}. What was there before is intact; "
            f"{room_for(error)}, or give another folder"
        ) from error


def room_for(error: OSError) -> str:
    """Return what to do where a file cannot be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "free some space" if full else "see to it that you may write there"


def _put(partial: Path, path: Path, anew: bool) -> None:
    if anew:
        try:
            os.link(partial, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links: two at once are not distinguished
            pass
        else:
            partial.unlink()
            return
    os.replace(partial, path)


def try_lock(file: IO[Any]) -> bool:
    """Lock a file until it is closed; return whether nobody else has locked it.

    Raises:
        OSError: The file system has no locks.
    """
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def lock(file: IO[Any]) -> None:
    """Lock a file until it is closed, once nobody else has locked it."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX)


def unlock(file: IO[Any]) -> None:
    """Release a lock that a forked child may hold, too."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_UN)


def check_folder(path: Path) -> None:
    """Raise if more than the last folder of a new file is missing: the path may be mistyped."""
    above = path.absolute().parent.parent
    if not above.is_dir():
        raise StorageError(f"cannot write {path}: there is no folder {above}; make it first")


def make_folder(path: Path, remedy: str, *, links: bool = True) -> None:
    """Make a folder where there is none; `remedy` is for the message, `links` as in `open_file`."""
    if not links:
        refuse_link(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {path} ({error.strerror or error}): {remedy}") from error


def refuse_link(path: Path) -> None:
    """Raise where a folder that belongs to a file is a link, which may lead anywhere."""
    if path.is_symlink():
        raise StorageError(
            f"{path} is a link, and a search may be somebody else's: put the folder that it points "
            "to in its place"
        )


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk, where the system offers that."""
    with contextlib.suppress(OSError):
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def refuse_links(folder: Path) -> None:
    """Raise if an entry of a folder is a link, which may lead out of it, a pipe or a device."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            if os.path.islink(path):
                raise StorageError(
                    f"{path} is a link, and a run folder may be somebody else's: put what it "
                    "points to in its place to resume the run"
                )
            if name in files and not os.path.isfile(path) and os.path.lexists(path):
                raise StorageError(
                    f"{path} is no regular file: remove it, or restore it from a copy, to resume "
                    "the run"
                )


def write_json_atomically(path: Path, data: Mapping[str, Any], **options: Any) -> None:
    """Write a JSON object in one step and durably; options go to `json.dumps`."""
    text = json.dumps(data, **{"indent": 1, **options}).encode()
    write_bytes_atomically(path, text + b"\n", durable=True)


def read_json_object(path: Path, *, links: bool = False) -> dict[str, Any]:
    """Read what `write_json_atomically` wrote."""
    try:
        text = read_bytes(path, links=links)
    except OSError as error:
        raise unreadable(path, error) from error
    if b"}\n{" in text:
        raise StorageError(
            f"{path} is another kind of file: each line of it is a JSON object, as in a storage "
            "file or a recording. Give a file that holds one JSON object"
        )
    try:
        data = read_json(text)
        if not isinstance(data, dict):
            raise ValueError(f"it holds {a_type(data)} and no JSON object")
    except ValueError as error:
        raise StorageError(f"{path} is not valid JSON ({error}): restore it") from error
    return data
