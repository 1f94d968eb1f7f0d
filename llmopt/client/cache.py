"""Answers kept on disk, so that an experiment can be repeated without paying again."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from llmopt.client.base import Client, Reply, Request, Wrapper, check_ready
from llmopt.client.record_replay import RecordClient, ReplayClient
from llmopt.util.files import make_folder
from llmopt.util.threads import Lock


class CachedClient(Wrapper):
    """A client that returns cached answers from a folder, and asks the model for new ones.

    The folder has one recording for each combination of model name and settings; answers are
    looked up by the whole request. If the same request is sent several times, the second call gets
    the second answer and so on, so that a repeated experiment sees the same answers. Failures and
    keys are not stored: the folder can be shared.

    A cached answer is free: its reply counts 0 requests, 0 tokens and 0 dollars. Its original
    cost stays in the file.

    Args:
        client: The model to ask.
        folder: Folder of the answers; created if missing.

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

    @cached_property
    def path(self) -> Path:
        """The recording of this model with its settings."""
        settings = [self.name, getattr(self.client, "settings", {})]
        text = json.dumps(settings, sort_keys=True, default=repr)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.jsonl"

    @cached_property
    def _recorder(self) -> RecordClient:
        make_folder(self.folder, "choose another cache folder")
        return RecordClient(self.client, self.path)

    @cached_property
    def _kept(self) -> dict[str, list[Reply]]:
        """Replies that were in the file when it was opened, by the digest of the request."""
        found: dict[str, list[Reply]] = {}
        for request, reply in ReplayClient(self.path).exchanges if self.path.exists() else ():
            found.setdefault(request.digest(), []).append(reply)
        return found

    def complete(self, request: Request) -> Reply:
        """Answer one request, from the folder or from the model.

        Raises:
            StorageError: The folder cannot be created.
            ClientError: The file in the folder cannot be read.
        """
        started = time.monotonic()
        digest = request.digest()
        with self._lock:
            kept, recorder = self._kept.get(digest, []), self._recorder
            time_asked = self._times[digest]
            self._times[digest] += 1
            self.hits += time_asked < len(kept)
        if time_asked < len(kept):
            free = Reply((), prompt_tokens=0, completion_tokens=0, cost=0.0, requests=0)
            found = kept[time_asked]
            seconds = time.monotonic() - started
            return replace(free, completions=found.completions, model=found.model, seconds=seconds)
        try:
            reply = recorder.complete(request)
        except BaseException:
            # A retry counts as the same call.
            with self._lock:
                self._times[digest] -= 1
            raise
        with self._lock:
            self.misses += 1
        return reply

    def check_ready(self) -> None:
        """Check the model, unless there are cached answers: they may be sufficient."""
        if not self._kept:
            check_ready(self.client)

    def __repr__(self) -> str:
        return f"CachedClient({self.client!r}, {str(self.folder)!r})"
