"""Which open requests of a folder a search still uses.

A killed ask leaves its request open. The next ask of its search repeats it, unless it asks for
something else (other ``-n`` or ``--fixed``, another model): then nothing uses an answer any more.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

from llmopt.client.folder import (
    FolderError,
    OpenRequest,
    newest,
    number_of,
    open_request,
    open_requests,
)
from llmopt.errors import StorageError
from llmopt.events import Asked, Called, Failed, Replied, Told
from llmopt.journal import read_events


def live_request(folder: Path) -> OpenRequest | None:
    """Return the first open request whose answer a search uses; better one that is awaited."""
    return next((found for found in open_requests(folder) if not abandoned(folder, found)), None)


def check_live(folder: Path, number: int) -> None:
    """Raise a `FolderError` if no search uses an answer to a request."""
    found = open_request(folder, number)
    if found is None or not abandoned(folder, found):
        return
    live = live_request(folder)
    remedy = (
        f"No other request is open; `llmopt next {folder}` waits for one"
        if live is None
        else f"Answer request {live.number}; `llmopt next {folder}` prints it"
    )
    raise FolderError(
        f"request {number} in {folder} was abandoned: its program was ended, and the search has "
        f"moved on without the answer, which nothing would use. {remedy}"
    )


def abandoned(folder: Path, found: OpenRequest) -> bool:
    """Whether no program waits for the answer, and a repeated ask does not send the request."""
    if found.awaited:
        return False
    last = newest(folder)
    if not found.storage:  # a script that is started again sends its requests in the same order
        return found.number < last
    try:
        status = os.stat(found.storage)
        stamp = status.st_ino, status.st_size, status.st_mtime_ns, last
        return _passed_over(folder, found.number, found.storage, found.request.digest(), stamp)
    except (OSError, StorageError):  # moved away, or on another machine
        return False


@functools.lru_cache(maxsize=256)  # a folder is looked at several times a second
def _passed_over(folder: Path, number: int, storage: str, digest: str, stamp: object) -> bool:
    """Whether a search has done what a repeat of the ask that sent a request does not do."""
    events = list(read_events(storage, links=False))
    sent = [k for k, e in enumerate(events) if isinstance(e, Called) and e.digest == digest]
    failed = False  # an ask whose call failed begins anew, with the results that came meanwhile
    for event in events[sent[-1] + 1 :] if sent else ():
        match event:
            case Called():
                # A request that is repeated with another seed keeps its file and its number.
                if event.digest != digest and number_of(folder, event.digest) not in (None, number):
                    return True
                failed = False
            case Replied():
                return True
            case Failed():
                failed = True
            case Told() if failed:
                return True
            case Asked():
                if any(point.get("source") != "warmup" for point in event.new):
                    return True
    return not sent
