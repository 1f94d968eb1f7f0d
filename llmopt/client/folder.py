"""A model behind a folder: each request is a file, and so is its answer.

A person, an agent or a batch system can be the model. Request 1 is

- ``0001.request.md``: the text to answer. If there are several messages, each follows a line
  ``### system``, ``### user`` or ``### assistant``.
- ``0001.request.json``: ``number``, ``digest``, the whole ``request``, and the ``storage`` of the
  search.
- ``0001.answer.md``: the answer, written by ``llmopt next DIR --answer 1``, or by a program that
  writes it under another name and renames it.

``llmopt next DIR`` prints of a request what it adds to the one that was answered last; with
``--all``, or without an earlier one, all of it.

``latest.md`` has the results of the last answer and the best point so far. ``done`` marks the end
of the search or of its process and says why it ended, or that it may go on; a search that is opened
with the folder removes it. A client locks the JSON file of a request while it waits for the answer.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from llmopt.client.base import Completion, Reply, Request
from llmopt.errors import ClientError, LLMOptError
from llmopt.util.files import (
    open_file,
    open_to_append,
    read_bytes,
    read_text,
    try_lock,
    write_bytes_atomically,
    write_text_atomically,
)
from llmopt.util.text import a_type, clean
from llmopt.util.threads import SEARCH_DEADLINE, Lock

ANSWER_BYTES = 1_000_000
"""Maximum size of an answer; a longer one is cut."""

_REQUEST_BYTES, _NOTE_BYTES = 10_000_000, 100_000
_POLL_SECONDS, _REMIND_SECONDS = 0.2, 600.0
_REQUEST, _JSON, _ANSWER = ".request.md", ".request.json", ".answer.md"
_WORTH = 500  # characters of an earlier request that are worth a note in their place
_DONE, _LATEST = "done", "latest.md"
NO_REQUEST = "no request waits"
"""The beginning of ``done`` if the search may go on."""
_GOES_ON = re.compile("The search in .* may go on: ")  # in a text for `conclude`
_outcomes: dict[tuple[int, Path], str] = {}
"""The outcome so far of each running search, by process and folder."""


class FolderError(LLMOptError, ValueError):
    """An answer is not accepted: it is empty, too long, or its request is not open."""


@dataclass(frozen=True)
class OpenRequest:
    """A request that waits for its answer."""

    number: int  # in the folder, from 1 on
    text: str  # the text to answer
    new: str  # what it adds to the request that was answered last
    request: Request
    storage: str = ""  # the storage file of its search, if it has one
    awaited: bool = True  # whether a program waits for the answer, as far as locks can tell


class FolderClient:
    """Writes each request to a file and waits for the answer in another file.

    A restarted search finds the answers to its requests by their texts, whatever their seeds: each
    answer is used once per client, and a request that somebody waits for belongs to nobody else.
    Give each search its own folder.

    Args:
        folder: Folder of requests and answers; created at the first request.
        timeout: Seconds to wait for an answer; no limit by default.
    """

    local = priced = True  # its answers are free
    storage: Path | None = None  # of the search

    def __init__(self, folder: str | os.PathLike[str], *, timeout: float | None = None) -> None:
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout={timeout}: expected seconds above 0, or None")
        self.folder = Path(folder).expanduser()
        self.timeout = timeout
        self.name = f"folder:{self.folder.resolve().name}"
        self._taken: set[int] = set()
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"FolderClient({str(self.folder)!r})"

    def check_ready(self) -> None:
        """Raise a `ClientError` if the path exists and is not a folder."""
        if self.folder.exists() and not self.folder.is_dir():
            raise ClientError(
                f"{self.name}: {self.folder} is not a folder; give a folder, new or existing",
                requests=0,
            )

    def complete(self, request: Request) -> Reply:
        """Write the request and wait for its answer."""
        start = time.monotonic()
        limit = min(math.inf if self.timeout is None else self.timeout, SEARCH_DEADLINE.get().left)
        number: int | None = None
        try:
            with contextlib.ExitStack() as claims:
                with self._lock:
                    self.folder.mkdir(exist_ok=True)
                    (self.folder / _DONE).unlink(missing_ok=True)
                    _outcomes.setdefault((os.getpid(), self.folder.absolute()), "")
                    number = self._earlier(request, claims) or self._write(request, claims)
                    self._taken.add(number)
                completion = self._wait(number, start, limit)
        except BaseException as error:
            self._taken.discard(number or 0)  # a repeated request finds it again
            if isinstance(error, OSError):
                raise ClientError(
                    f"{self.name}: cannot exchange files in {self.folder} "
                    f"({error.strerror or error}); choose another folder",
                    requests=0,
                ) from error
            raise
        return Reply((completion,), self.name, 0, 0, 0, seconds=time.monotonic() - start, cost=0.0)

    def kept(self, digest: str) -> tuple[int, bool] | None:
        """Return the number of the latest request with a digest, and whether it has an answer."""
        number = number_of(self.folder, digest)
        return None if number is None else (number, is_answered(self.folder, number))

    def begin(self, storage: Path | None) -> None:
        """Remove the mark that an earlier search of the folder left at its end.

        Args:
            storage: Storage file of the search that begins or resumes, if it has one.
        """
        self.storage = storage
        with contextlib.suppress(OSError):  # the first request reports it
            (self.folder / _DONE).unlink()
            _outcomes.setdefault((os.getpid(), self.folder.absolute()), "")

    def close(self) -> None:
        """Mark the end of the search in the folder; the end of the process does so too."""
        self.conclude("")

    def inform(self, text: str) -> None:
        """Write the outcome so far to the folder, if it exists; a full disk is no error."""
        search = os.getpid(), self.folder.absolute()
        if search in _outcomes:
            _outcomes[search] = text
        if self.folder.is_dir():
            with contextlib.suppress(OSError):
                write_text_atomically(self.folder / _LATEST, clean(text))

    def conclude(self, text: str) -> None:
        """Mark the end of the search in the folder, with its outcome.

        A search that sent no request, and removed no mark of an earlier one, leaves none.
        """
        outcome = _outcomes.pop((os.getpid(), self.folder.absolute()), None)
        if outcome is not None:
            _mark_end(self.folder, text or outcome)

    def _earlier(self, request: Request, claims: contextlib.ExitStack) -> int | None:
        """Return the number of a request with the same text that is free, if there is one."""
        for number in _numbers(self.folder):
            if number not in self._taken:
                with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                    stored = Request.from_dict(_read_json(self.folder, number)["request"])
                    if replace(stored, seed=request.seed).digest() == request.digest():
                        file = claims.enter_context(open_to_append(self._path(number, _JSON)))
                        if _claim(file):
                            return number
        return None

    def _write(self, request: Request, claims: contextlib.ExitStack) -> int:
        """Write a new request and return its number."""
        number = newest(self.folder) + 1
        while True:
            try:
                # Mode "x": another process may have created it first.
                file = self._path(number, _JSON).open("x", encoding="utf-8")
                break
            except FileExistsError:
                number += 1
        _claim(claims.enter_context(file))  # before others can read it
        data = {"number": number, "digest": request.digest(), "request": request.to_dict()}
        data["storage"] = "" if self.storage is None else str(self.storage.absolute())
        json.dump(data, file, indent=1)
        file.flush()
        # It may be shown on a terminal; the JSON file has the exact request.
        write_text_atomically(self._path(number, _REQUEST), clean(request.transcript))
        return number

    def _wait(self, number: int, start: float, limit: float) -> Completion:
        remind = time.monotonic()
        most = "without a time limit" if limit == math.inf else f"for at most {round(limit, 1):g} s"
        while (answer := _read_answer(self._path(number, _ANSWER))) is None:
            now = time.monotonic()
            if now >= start + limit:
                raise ClientError(
                    f"{self.name}: request {number} in {self.folder} got no answer within "
                    f"{round(limit, 1):g} s. It can still be answered (llmopt next {self.folder} "
                    f"--answer {number}), and the search started again takes that answer"
                )
            if now >= remind:
                print(
                    f"llmopt: request {number} waits for its answer, {most}: "
                    f"llmopt next {self.folder}",
                    file=sys.stderr,
                )
                remind = now + _REMIND_SECONDS
            time.sleep(_POLL_SECONDS)
        return answer

    def _path(self, number: int, kind: str) -> Path:
        return _path(self.folder, number, kind)


def open_requests(folder: Path) -> Iterator[OpenRequest]:
    """Return the requests of a folder without an answer, those that are awaited first."""
    awaited = {number: _awaited(folder, number) for number in _open_numbers(folder)}
    for number in sorted(awaited, key=lambda number: not awaited[number]):
        yield _load(folder, number, awaited[number])


def next_request(folder: Path) -> OpenRequest | None:
    """Return the first open request of a folder, if there is one; better one that is awaited."""
    return next(open_requests(folder), None)


def last_request(folder: Path) -> OpenRequest | None:
    """Return the latest request of a folder, open or answered, if there is one."""
    number = newest(folder)
    return _load(folder, number, _awaited(folder, number)) if number else None


def open_request(folder: Path, number: int) -> OpenRequest | None:
    """Return a request by its number, if it is open."""
    is_open = number in _open_numbers(folder)
    return _load(folder, number, _awaited(folder, number)) if is_open else None


def newest(folder: Path) -> int:
    """Return the number of the latest request of a folder, or 0."""
    return max(_numbers(folder), default=0)


def number_of(folder: Path, digest: str) -> int | None:
    """Return the number of the latest request with a digest, if there is one."""
    for number in reversed(_numbers(folder)):
        with contextlib.suppress(OSError, ValueError):
            if _read_json(folder, number).get("digest") == digest:
                return number
    return None


def is_answered(folder: Path, number: int) -> bool:
    """Whether a request has an answer."""
    return _path(folder, number, _ANSWER).exists()


def _load(folder: Path, number: int, awaited: bool) -> OpenRequest:
    try:
        data = _read_json(folder, number)
        text = _read_request(folder, number)
        return OpenRequest(
            number=number,
            text=text,
            new=_new_in(folder, number, text),
            request=Request.from_dict(data["request"]),
            storage=str(data.get("storage", "")),
            awaited=awaited,
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise FolderError(
            f"{_path(folder, number, _JSON)} cannot be read ({error}): remove the files of "
            f"request {number}, and restart the search that waits for it"
        ) from error


def _read_request(folder: Path, number: int) -> str:
    return read_text(_path(folder, number, _REQUEST), most=_REQUEST_BYTES, links=False)


def _new_in(folder: Path, number: int, text: str) -> str:
    """Return a request without its beginning that the latest answered one had, in whole parts."""
    answered = sorted({*_numbers(folder)} - {*_open_numbers(folder)})
    earlier = [k for k in answered if k < number]
    if not earlier:
        return text
    same = os.path.commonprefix([_read_request(folder, earlier[-1]), text])  # noqa: RUF071
    start = max(same.rfind("\n\n"), same.rfind("\n#"))
    if start < _WORTH:
        return text
    return (
        f"[The first {start:,} characters are those of request {earlier[-1]}. "
        f"`llmopt next {folder} --all` prints the whole request.]\n\n{text[start:].lstrip()}"
    )


def hand_in(folder: Path, number: int, answer: bytes) -> None:
    """Write the answer to a request, UTF-8 text, into its folder atomically."""
    path = _path(folder, number, _ANSWER)
    answered = f"{folder} has an answer to request {number} already; it is not replaced"
    if path.exists() or path.is_symlink():
        raise FolderError(answered)
    if number not in _open_numbers(folder):
        raise FolderError(
            f"there is no request {number} in {folder}; `llmopt next {folder}` shows the open one"
        )
    if not answer.strip():
        raise FolderError(f"the answer to request {number} is empty: give it on standard input")
    if len(answer) > ANSWER_BYTES:
        raise FolderError(
            f"the answer to request {number} has more than {ANSWER_BYTES:,} bytes: shorten it"
        )
    try:
        text = answer.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FolderError(f"the answer to request {number} is not UTF-8 text: {error}") from error
    try:
        write_bytes_atomically(path, text.encode(), anew=True)
    except FileExistsError:  # another process was faster
        raise FolderError(answered) from None


def ended(folder: Path) -> str | None:
    """Return the text that the search left at its end, or ``None`` while it runs."""
    return _read_note(folder / _DONE)


def latest(folder: Path) -> str | None:
    """Return the outcome of the search so far, or ``None`` if it has none."""
    return _read_note(folder / _LATEST)


@atexit.register
def _mark_all_ends() -> None:
    for (process, folder), text in _outcomes.items():
        if process == os.getpid():  # a forked process inherits its parent's searches
            with contextlib.suppress(OSError):
                _mark_end(folder, text)


def _mark_end(folder: Path, text: str) -> None:
    if folder.is_dir():
        begin = f"{NO_REQUEST} since" if _GOES_ON.match(text) else "the search ended at"
        text = f"{begin} {time.strftime('%Y-%m-%d %H:%M:%S')}\n{text}"
        write_text_atomically(folder / _DONE, clean(text))


def _read_note(path: Path) -> str | None:
    try:
        return read_bytes(path, most=_NOTE_BYTES, links=False).decode(errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{path} exists, but cannot be read ({error.strerror})"


def _claim(file: IO[Any]) -> bool:
    """Lock a file until it is closed; return whether no other client has locked it."""
    with contextlib.suppress(OSError):  # a file system without locks
        return try_lock(file)
    return True


def _awaited(folder: Path, number: int) -> bool:
    """Whether a program waits for the answer to a request, or cannot be told not to."""
    try:
        with open_to_append(_path(folder, number, _JSON)) as file:
            return not try_lock(file)
    except OSError:
        return True


def _path(folder: Path, number: int, kind: str) -> Path:
    return folder / f"{number:04d}{kind}"


def _numbers(folder: Path) -> list[int]:
    names = (path.name[: -len(_REQUEST)] for path in folder.glob(f"*{_REQUEST}"))
    return sorted(int(name) for name in names if name.isdecimal() and len(name) < 10)


def _open_numbers(folder: Path) -> list[int]:
    return [n for n in _numbers(folder) if not is_answered(folder, n)]


def _read_json(folder: Path, number: int) -> dict[str, Any]:
    data = json.loads(read_bytes(_path(folder, number, _JSON), most=_REQUEST_BYTES, links=False))
    if not isinstance(data, dict):
        raise ValueError(f"it contains {a_type(data)}, expected an object")
    return data


def _read_answer(path: Path) -> Completion | None:
    """Return an answer, or ``None`` if the file is missing or still empty."""
    try:
        with open_file(path, links=False) as file:
            data = file.read(ANSWER_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ClientError(
            f"cannot read the answer {path}: {error.strerror or error}. Answers are plain files, "
            "not links; write it again",
            requests=0,
        ) from error
    if not data.strip():
        return None
    text = data[:ANSWER_BYTES].decode("utf-8-sig", errors="replace")
    return Completion(text, "length" if len(data) > ANSWER_BYTES else "stop")
