"""Answers kept on disk, so that an experiment can be repeated without paying again."""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmopt.client.base import Client, Reply, Request, Wrapper, check_ready
from llmopt.errors import StorageError
from llmopt.files import make_folder, read_bytes, unseal, write_json_atomically
from llmopt.threads import Lock


class CachedClient(Wrapper):
    """A client that answers from a folder where it can, and asks the model where it must.

    An answer is found again by the model's name, the client's settings and the whole
    request. Where one and the same request is sent several times, the second time gets
    the second answer and so on, so that a repeated experiment sees what the first one saw.
    Only answers are kept, never failures, and no key: the folder can be shared.

    An answer from the folder costs nothing: its reply counts 0 requests, 0 tokens and 0
    dollars. What it cost the first time stays in the file.

    Args:
        client: The model to ask.
        folder: Where to keep the answers, one small JSON file each; made if missing.

    Attributes:
        hits: Answers that came from the folder.
        misses: Answers that came from the model.
    """

    def __init__(self, client: Client, folder: str | os.PathLike[str]) -> None:
        super().__init__(client)
        self.folder = Path(folder)
        self.hits = 0
        self.misses = 0
        self._times: Counter[str] = Counter()
        self._lock = Lock()

    def complete(self, request: Request) -> Reply:
        """Answer one request, from the folder or from the model.

        Raises:
            StorageError: A file of the folder cannot be read, or no folder can be made.
        """
        started = time.monotonic()
        digest = self._digest(request)
        with self._lock:
            time_asked = self._times[digest]
            self._times[digest] += 1
        path = self.folder / digest[:2] / f"{digest}-{time_asked}.json"
        reply = _read(path)
        if reply is not None:
            with self._lock:
                self.hits += 1
            return replace(
                reply,
                prompt_tokens=0,
                cached_tokens=0,
                completion_tokens=0,
                seconds=time.monotonic() - started,
                cost=0.0,
                requests=0,
                unpriced=0,
                estimated=0,
            )
        try:
            # Before the model is asked: an answer that is paid for should find its place.
            make_folder(path.parent, "choose another cache folder")
            reply = self.client.complete(request)
        except BaseException:
            # The retry is the same time again.
            with self._lock:
                self._times[digest] -= 1
            raise
        with self._lock:
            self.misses += 1
        _write(path, {"model": self.name, "request": request.to_dict(), "reply": reply.to_dict()})
        return reply

    def check_ready(self) -> None:
        """Look for what the model needs, unless there are answers: they may be all it takes."""
        if next(self.folder.glob("??/*.json"), None) is None:
            check_ready(self.client)

    def _digest(self, request: Request) -> str:
        settings = getattr(self.client, "settings", {})
        canonical = json.dumps(
            [self.name, settings, request.digest()], sort_keys=True, default=repr
        )
        return hashlib.sha256(canonical.encode()).hexdigest()

    def __repr__(self) -> str:
        return f"CachedClient({self.client!r}, {str(self.folder)!r})"


def _read(path: Path) -> Reply | None:
    try:
        data = json.loads(unseal(read_bytes(path, links=False))[0])
        return Reply.from_dict(data["reply"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"cached answer {path} cannot be read ({error}): delete the file, and the model is "
            "asked again"
        ) from error


def _write(path: Path, data: dict[str, Any]) -> None:
    """Write a file so that nobody ever sees half of it."""
    try:
        write_json_atomically(path, data)
    except StorageError as error:
        # The answer is there and paid for: it must reach the caller.
        warnings.warn(
            f"the answer was not kept ({error}): a repeated experiment will pay for it again",
            RuntimeWarning,
            stacklevel=3,
        )
