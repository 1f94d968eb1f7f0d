"""Clients without a model: answers from a script, and recordings of real ones.

They are public, so that code built on llmopt can be tested offline as llmopt itself is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

from llmopt.client.base import Client, Completion, Reply, Request, client_name
from llmopt.errors import ClientError

Answer: TypeAlias = str | list[str] | Reply | Exception
Script: TypeAlias = Iterable[Answer | Callable[[Request], Answer]] | Callable[[Request], Answer]


class ScriptedClient:
    """Gives prepared answers in order, and keeps the requests that it saw.

    Args:
        replies: The answers, one for each request: a text, a list of texts (several samples
            of one request, of which at most ``request.n`` are given), a `Reply`, an exception
            to raise, or a function from the `Request` to any of these. A single function
            in place of the sequence answers every request.
        name: Short name for tables and files.
        default_prompt: What ``prompt="auto"`` means for this client.
        cycle: Start again when the answers run out, instead of raising.

    Attributes:
        requests: The requests seen, in order, those answered with an exception included.
    """

    def __init__(
        self,
        replies: Script,
        *,
        name: str = "scripted",
        default_prompt: str = "props",
        cycle: bool = False,
    ) -> None:
        self.name = name
        self.default_prompt = default_prompt
        self.requests: list[Request] = []
        if callable(replies):
            self._replies: list[Answer | Callable[[Request], Answer]] = [replies]
            self._cycle = True
        else:
            self._replies = [replies] if isinstance(replies, str) else list(replies)
            self._cycle = cycle

    def complete(self, request: Request) -> Reply:
        """Give the next answer of the script.

        Raises:
            ClientError: The script has no answer left.
            Exception: Whatever the script says to raise.
            TypeError: The script holds something that is no answer.
        """
        index = len(self.requests)
        self.requests.append(request)
        if self._cycle and self._replies:
            index %= len(self._replies)
        if index >= len(self._replies):
            raise ClientError(
                f"the script of {self.name!r} has {len(self._replies)} replies and this is "
                f"request {len(self.requests)}; give more replies, or cycle=True"
            )
        answer = self._replies[index]
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Reply):
            return answer
        texts = [answer] if isinstance(answer, str) else answer
        if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
            raise TypeError(
                f"scripted reply {index} is {answer!r}; expected a str, a non-empty list of str, "
                "a Reply, an exception, or a function from the Request to one of these"
            )
        return Reply(tuple(Completion(t) for t in texts[: request.n]), model=self.name)


class RecordClient:
    """Passes requests on to another client and appends each exchange to a JSON Lines file.

    Only the fields of `Request` and `Reply` are written: no key, header or address of the
    client behind it. Failed requests are not recorded.

    Args:
        client: The client that answers.
        path: File to append to; its folder must exist.
    """

    def __init__(self, client: Client, path: str | os.PathLike[str]) -> None:
        self.client = client
        self.path = Path(path)
        self.name = client_name(client)

    def __getattr__(self, name: str) -> Any:
        # The optional attributes of a client (`default_prompt`, `count_tokens`, ...) show
        # through. While unpickling there is no `client` yet to ask.
        if name.startswith("__") or "client" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.client, name)

    def complete(self, request: Request) -> Reply:
        """Answer through the recorded client, then append the exchange to the file.

        Raises:
            ClientError: As the recorded client raises it.
            OSError: The file cannot be written.
        """
        reply = self.client.complete(request)
        line = json.dumps({"request": request.to_dict(), "reply": reply.to_dict()})
        # One write of one whole line, so that recorders sharing a file do not interleave.
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        return reply


class ReplayClient:
    """Answers from a file that `RecordClient` wrote, without any model.

    A reply is found by the digest of its request. Equal requests get their replies in the
    order of recording; the last one is not repeated.

    Args:
        path: The recording. It is read at the first request.
        name: Short name for tables and files.
        default_prompt: What ``prompt="auto"`` means for this client; give that of the
            recorded client.
    """

    columns = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str = "replay",
        default_prompt: str = "props",
    ) -> None:
        self.path = Path(path)
        self.name = name
        self.default_prompt = default_prompt
        self._replies: dict[str, list[Reply]] | None = None
        self._given: dict[str, int] = {}

    def complete(self, request: Request) -> Reply:
        """Give the recorded reply to an equal request.

        Raises:
            ClientError: The recording has no (further) reply to this request, or cannot
                be read.
        """
        if self._replies is None:
            self._replies = self._read()
        digest = request.digest()
        replies = self._replies.get(digest, [])
        given = self._given.get(digest, 0)
        if given >= len(replies):
            total = sum(len(r) for r in self._replies.values())
            found = (
                f"was recorded {given} time(s), and all of those replies have been given"
                if given
                else f"is not among its {total} recorded ones"
            )
            raise ClientError(
                f"{self.path}: this request (digest {digest[:12]}, text starting "
                f"{request.text[:60]!r}) {found}; record the run again with RecordClient, or "
                "replay it with the settings (seed, prompt, budget) of the recording"
            )
        self._given[digest] = given + 1
        return replies[given]

    def _read(self) -> dict[str, list[Reply]]:
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise ClientError(
                f"cannot read the recording {self.path}: {error.strerror}; make one with "
                "RecordClient(client, path)"
            ) from error
        replies: dict[str, list[Reply]] = {}
        for number, line in enumerate(lines, start=1):
            try:
                exchange = json.loads(line)
                request = Request.from_dict(exchange["request"])
                reply = Reply.from_dict(exchange["reply"])
            except (ValueError, KeyError, TypeError) as error:
                raise ClientError(
                    f"{self.path}, line {number}: not an exchange written by RecordClient "
                    f"({error}); remove the line or record again"
                ) from error
            replies.setdefault(request.digest(), []).append(reply)
        return replies
