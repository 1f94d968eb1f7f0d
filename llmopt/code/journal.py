"""What a code search stores: events in one JSON Lines file, and how they are read back."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from llmopt.client.base import Reply, Request
from llmopt.code.candidate import Candidate, CodeTrial
from llmopt.errors import StorageError
from llmopt.search.eventlog import Event, EventLog

_FORMAT = 1


@dataclass
class Draft:
    """What one `ask` was paid and told so far, so that one that was cut off goes on from it.

    Attributes:
        replies: Each reply, with the digest of its request.
        refused: For each answer that was not used: the number of the candidate that it was
            to become, its text, and what was wrong.
    """

    replies: list[tuple[str, Reply]] = field(default_factory=list)
    refused: list[tuple[int, str, str]] = field(default_factory=list)

    def copy(self) -> Draft:
        """Return a draft that can be used up without a change to this one."""
        return Draft(list(self.replies), list(self.refused))

    def take_reply(self, request: Request) -> Reply | None:
        """Remove and return the first reply to this very request."""
        digest = request.digest()
        for index, (stored, reply) in enumerate(self.replies):
            if stored == digest:
                del self.replies[index]
                return reply
        return None

    def take_reason(self, number: int, text: str) -> str | None:
        """Remove and return what was wrong with this answer."""
        for index, (for_number, refused, reason) in enumerate(self.refused):
            if (for_number, refused) == (number, text):
                del self.refused[index]
                return reason
        return None


class Journal:
    """The file of one search.

    Events: ``start`` (what was asked for), ``reply`` (paid, with its request's digest),
    ``error`` (requests that ended in one), ``reject`` (an answer that was not used), ``ask``
    (candidates of one request), ``failure`` (it had none), ``tell``.

    Args:
        path: The file; created if it is not there.
        config: What must be the same for a search to go on.
        seed: The seed; ``None`` if it may be any.

    Attributes:
        seed: The stored seed, or ``None`` in a new file without one.
        asked: Candidates as they were handed out, in order.
        trials: What was told, in order.
        replies: Every stored reply, in order.
        failures: Times that no answer could be used.
        failed_requests: Requests that ended in an error.
        rejections: For each answer that was not used, the kind of what was wrong with it.
        draft: What was paid and told after the last candidate or failure.

    Raises:
        StorageError: The file cannot be used, or holds another search.
    """

    def __init__(
        self, path: str | os.PathLike[str], config: Mapping[str, Any], seed: int | None
    ) -> None:
        self._log = EventLog(path, durable=True)
        self.seed = seed
        self.asked: list[Event] = []
        self.trials: list[CodeTrial] = []
        self.replies: list[Reply] = []
        self.rejections: list[str] = []
        self.failures = 0
        self.failed_requests = 0
        self.draft = Draft()
        try:
            events = self._log.events
            if events:
                self._check(events[0], config, seed)
                for event in events[1:]:
                    self._read(event)
            else:
                self._new = {"event": "start", "format": _FORMAT, "config": dict(config)}
        except BaseException:
            self._log.close()
            raise

    def begin(self, seed: int) -> None:
        """Write the first event of a new file; an old one is left alone."""
        if not self._log.events:
            self._log.append({**self._new, "seed": str(seed)})

    def _check(self, start: Event, config: Mapping[str, Any], seed: int | None) -> None:
        if start.get("event") != "start" or start.get("format") != _FORMAT:
            raise StorageError(f"{self._log.path} is no code search: give another file")
        stored = start.get("config", {})
        other = [k for k in (*config, *stored) if stored.get(k) != config.get(k)]
        if seed is not None and str(seed) != start["seed"]:
            other.append("seed")
        if other:
            names = ", ".join(dict.fromkeys(other))
            raise StorageError(
                f"{self._log.path} holds a search with another {names}: resume it with the "
                "arguments that it was made with, or give another file"
            )
        self.seed = int(start["seed"])

    def _read(self, event: Event) -> None:
        kind = event.get("event")
        if kind == "reply":
            reply = Reply.from_dict(event["reply"])
            self.replies.append(reply)
            self.draft.replies.append((event["digest"], reply))
        elif kind == "error":
            self.failed_requests += event["requests"]
        elif kind == "reject":
            self.rejections.append(event.get("kind", "unreadable"))
            self.draft.refused.append((event["number"], event["text"], event["reason"]))
        elif kind == "ask":
            self.asked += event["candidates"]
            self.draft = Draft()  # the replies before it have become this candidate
        elif kind == "failure":
            self.failures += 1
            self.draft = Draft()
        elif kind == "tell":
            names = {f.name for f in fields(CodeTrial)}
            self.trials.append(CodeTrial(**{k: v for k, v in event.items() if k in names}))

    def add_reply(self, request: Request, reply: Reply) -> None:
        """Store a paid reply."""
        self._log.append({"event": "reply", "digest": request.digest(), "reply": reply.to_dict()})

    def add_errors(self, requests: int) -> None:
        """Store how many requests ended in an error."""
        self._log.append({"event": "error", "requests": requests})

    def add_rejection(self, number: int, text: str, reason: str, kind: str) -> None:
        """Store an answer that was not used."""
        entry = {"number": number, "text": text, "reason": reason, "kind": kind}
        self._log.append({"event": "reject", **entry})

    def add_failure(self) -> None:
        """Store that no answer could be used."""
        self._log.append({"event": "failure"})

    def add_candidates(self, candidates: list[Candidate], plain: Callable[[Any], Any]) -> None:
        """Store candidates of one request as one event, so that none is there without the rest.

        Args:
            candidates: What was handed out.
            plain: Makes values beside the code JSON-serializable.
        """
        entries = [
            {
                "number": c.number,
                "source": c.source,
                "params": plain(c.params),
                "explanation": c.explanation,
                "parent": c.parent,
                "fingerprint": c.fingerprint,
            }
            for c in candidates
        ]
        self._log.append({"event": "ask", "candidates": entries})

    def add_trial(self, trial: CodeTrial, plain: Callable[[Any], Any]) -> None:
        """Store a score or a failure."""
        self._log.append({"event": "tell", **asdict(trial), "params": plain(trial.params)})

    def close(self) -> None:
        """Close the file."""
        self._log.close()
