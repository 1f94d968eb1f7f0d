"""Recordings: `RecordClient` writes a model's answers, `ReplayClient` replays them.

A recording is a file of JSON Lines. A recorder's first line is ``{"facts": {...}, "prompts": 2}``,
with the version of the prompts, and ``"tool"``, what they state of the process that runs a model's
Python, if it may compute; every other line is ``{"request": {...}, "reply": {...}}``, or
``{"block": {...}}`` with the result of a model's Python.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from llmopt.client.base import PROMPT_VERSION, Client, Reply, Request, Wrapper
from llmopt.client.model_facts import ModelFacts, model_facts
from llmopt.client.prices import free
from llmopt.errors import ClientError, StorageError
from llmopt.util.arguments import whole_number
from llmopt.util.files import open_to_append, read_bytes, room_for
from llmopt.util.text import difference
from llmopt.util.threads import Lock

logger = logging.getLogger(__name__)

_MOST_BYTES = 500_000_000  # of a recording
_FACTS = b'{"facts":'
_FAULTS = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


class RecordClient(Wrapper):
    """Forwards requests to another client and appends each exchange to a file.

    Only the fields of `Request` and `Reply` and the facts of the client are written: no key,
    header or address. Failed requests are not recorded. A recorder can continue an existing file,
    and several recorders can share one.

    If the file cannot be written (a full disk), the paid reply is still returned, with a warning in
    the log, and the next request is rejected before it is sent.

    Args:
        client: The client that answers.
        path: File to append to; its folder must exist.
    """

    def __init__(self, client: Client, path: str | os.PathLike[str]) -> None:
        super().__init__(client)
        self.path = Path(path)
        self._tool: dict[str, Any] = {}
        self._begun = False
        self._unwritten = b""
        self._lock = Lock()

    def complete(self, request: Request) -> Reply:
        """Answer through the recorded client, then append the exchange to the file.

        Raises:
            StorageError: The file cannot be opened, or an earlier exchange cannot be written.
        """
        self._write()
        reply = self.client.complete(request)
        self._note({"request": request.to_dict(), "reply": reply.to_dict()})
        return reply

    def record_tool(self, facts: Mapping[str, Any]) -> None:
        """Write with the first exchange what prompts state of the process that runs Python."""
        self._tool = dict(facts)

    def record_block(self, block: Mapping[str, Any]) -> None:
        """Append the result of a block of Python, so that a replay need not run it."""
        self._note({"block": dict(block)})

    def close(self) -> None:
        """Write pending exchanges, and close the other client."""
        try:
            if self._unwritten:
                self._write()
        finally:
            super().close()

    def _note(self, entry: dict[str, Any]) -> None:
        with self._lock:
            self._unwritten += _line(entry)
            try:
                self._write()
            except StorageError as error:
                logger.warning("%s. The next request waits for it", error)

    def _write(self) -> None:
        """Append pending lines, behind the facts of the model if the file lacks them."""
        tool = {"tool": self._tool} if self._tool else {}
        facts = model_facts(self.client).to_json()
        head = _line({"facts": facts, "prompts": PROMPT_VERSION, **tool})
        try:
            with self._lock, open_to_append(self.path) as file:
                if not self._unwritten:
                    return  # the file can be opened
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 1))
                torn = file.read(1) not in (b"", b"\n")  # a recorder was killed during a write
                begin = (b"\n" if torn else b"") + (b"" if self._begun and not torn else head)
                lines = begin + self._unwritten
                # One unbuffered write of whole lines, so that recorders sharing a file do not
                # interleave.
                if file.write(lines) < len(lines):
                    file.truncate(size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._begun, self._unwritten = True, b""
        except OSError as error:
            raise StorageError(
                f"cannot write the recording {self.path}: {error.strerror or error}: "
                f"{room_for(error)}, or record to another file"
            ) from error


@dataclass
class _Recording:
    facts: dict[str, Any] = field(default_factory=dict)
    tool: dict[str, Any] = field(default_factory=dict)
    prompts: set[int] = field(default_factory=set)  # versions; 1 if a recording states none
    exchanges: list[tuple[str, Request, Reply]] = field(default_factory=list)  # with digests
    blocks: list[dict[str, Any]] = field(default_factory=list)  # of Python, in order


class ReplayClient:
    """Answers from a file that `RecordClient` wrote, without any model.

    A reply is instant and free, and reports the recorded tokens. Equal requests get their replies
    in the order of recording; the last one is not repeated. `facts` returns the recorded facts of
    the model.

    Args:
        path: The recording, read when it is first needed.
        strict: Reject a request that was not recorded. If false, such a request gets the next
            recorded reply, with one warning. So it does if the recording has another version of
            the shipped prompts and the next recorded request has the same seed.
    """

    name = "replay"
    columns = True
    without_tokens = "answered from the recording; free"

    def __init__(self, path: str | os.PathLike[str], *, strict: bool = True) -> None:
        self.path = Path(path).expanduser()
        self.strict = strict
        self._recording: _Recording | None = None
        self._used: set[int] = set()  # indices of returned replies
        self._blocks: set[int] = set()  # indices of returned blocks
        self._warned = False
        self._lock = Lock()

    def facts(self) -> ModelFacts:
        """Return the facts of the recorded model."""
        facts = {"columns": True, **self._read().facts, "name": self.name}
        return ModelFacts(**facts, most_cost=free)

    @property
    def default_prompt(self) -> str:
        """The meaning of ``prompt="auto"`` for this client."""
        return self.facts().default_prompt

    def check_ready(self) -> None:
        """Raise a `ClientError` if the recording cannot be read, or holds no reply."""
        if not self._read().exchanges:
            raise ClientError(
                f"{self.path} holds no reply: give a recording of a search that asked its model",
                requests=0,
            )

    @property
    def exchanges(self) -> list[tuple[Request, Reply]]:
        """The recorded requests, each with its reply, in order."""
        return [(request, reply) for _, request, reply in self._read().exchanges]

    @property
    def computes(self) -> bool:
        """Whether the recorded model was offered to compute in Python."""
        return bool(self.tool or self._read().blocks)

    @property
    def tool(self) -> dict[str, Any]:
        """What the recorded prompts state of the process that ran the model's Python."""
        return self._read().tool

    def replay_block(self, code: str) -> dict[str, Any] | None:
        """Return the result of the next block with this code; ``None`` if none was recorded."""
        with self._lock:
            for index, block in enumerate(self._read().blocks):
                if index not in self._blocks and block.get("code") == code:
                    self._blocks.add(index)
                    return block
        return None

    def complete(self, request: Request) -> Reply:
        """Return the recorded reply to an equal request.

        Raises:
            ClientError: No recorded reply is left, or the recording cannot be read.
        """
        began = time.monotonic()
        with self._lock:
            exchanges = self._read().exchanges
            digest = request.digest()
            left = [i for i in range(len(exchanges)) if i not in self._used]
            index = next((i for i in left if exchanges[i][0] == digest), None)
            if index is None:
                index = self._next(request, left)
            self._used.add(index)
        # A replay takes no time and is free; the tokens are the recorded ones.
        seconds = time.monotonic() - began
        return replace(exchanges[index][2], seconds=seconds, cost=0.0)

    def _next(self, request: Request, left: list[int]) -> int:
        """Return the next recorded exchange for a request that was not recorded, if allowed."""
        recording, digest = self._read(), request.digest()
        count = sum(recording.exchanges[i][0] == digest for i in self._used)
        problem = (
            f"was recorded {count} time(s), and all of those replies have been given"
            if count
            else f"is not among its {len(recording.exchanges)} recorded ones"
        )
        message = (
            f"{self.path}: this request (digest {digest[:12]}, text starting "
            f"{request.text[:60]!r}) {problem}"
        )
        following = recording.exchanges[left[0]][1] if left else None
        if following is not None:
            pair = following.to_dict(), request.to_dict()
            message += f"; from the next recorded one (exchange {left[0] + 1}) it differs in "
            message += difference(*pair, ("recorded", "asked"))
        # The wording of a prompt may change, but not the search that it belongs to.
        other = recording.prompts != {PROMPT_VERSION}
        reworded = other and following is not None and following.seed == request.seed
        if following is None or (self.strict and not reworded):
            raise ClientError(
                f"{message}; record the run again with RecordClient, or replay it with "
                "the settings (seed, prompt, budget) of the recording",
                requests=0,
            )
        if not self._warned and (self.strict or not reworded):
            self._warned = True
            words = "; it gets the reply recorded there, as will others"
            warnings.warn(message + words, RuntimeWarning, stacklevel=4)
        return left[0]

    def _read(self) -> _Recording:
        if self._recording is None:
            try:
                data = read_bytes(self.path, most=_MOST_BYTES)
            except OSError as error:
                raise ClientError(
                    f"cannot read the recording {self.path}: {error.strerror or error}; make one "
                    "with RecordClient(client, path)",
                    requests=0,
                ) from error
            self._recording = _parse(data, self.path)
        return self._recording


def _parse(data: bytes, path: Path) -> _Recording:
    """Return the content of a recording."""
    recording = _Recording()
    version = 1
    lines = data.splitlines()
    # After a line that a kill cut off, a recorder continues with its facts.
    after = [*lines[1:], b"" if data.endswith(b"\n") else _FACTS][: len(lines)]
    for number, (line, following) in enumerate(zip(lines, after, strict=True), start=1):
        if following.startswith(_FACTS) and not _is_json(line):
            logger.warning("%s, line %d is cut off: its recorder was killed", path, number)
            continue
        try:
            entry = json.loads(line)
            if "facts" in entry:
                facts = _checked_facts(entry["facts"])
                recording.facts = recording.facts or facts
                recording.tool = recording.tool or dict(entry.get("tool", {}))
                version = whole_number("prompts", entry.get("prompts", 1), 1)
            elif "block" in entry:
                recording.blocks.append(dict(entry["block"]))
            else:
                request = Request.from_dict(entry["request"])
                reply = Reply.from_dict(entry["reply"])
                recording.exchanges.append((request.digest(), request, reply))
                recording.prompts.add(version)
        except (*_FAULTS, StorageError) as error:
            raise ClientError(
                f"{path}, line {number}: not an exchange as RecordClient wrote it "
                f"({error}). Restore the file from a copy, remove the line, or record again",
                requests=0,
            ) from error
    return recording


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry).encode() + b"\n"


def _checked_facts(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded facts that this version knows, checked."""
    names = {f.name for f in fields(ModelFacts)} - {"name", "most_cost"}
    facts = {name: data[name] for name in names if name in data}
    checked = ModelFacts("").restored(facts | {"name": ""})
    # A prompt's name could be the path of a template, which a recording must not choose.
    if not re.fullmatch(r"[\w-]+", checked.default_prompt):
        raise ValueError(f"its fact default_prompt is {checked.default_prompt!r}")
    return facts
