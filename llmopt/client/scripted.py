"""A client without a model: answers from a script.

It is public, so that code built on llmopt can be tested offline as llmopt itself is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from llmopt.client.base import Completion, Reply, Request
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
        completions = tuple(Completion(t) for t in texts[: request.n])
        return Reply(completions, model=self.name, prompt_tokens=0, completion_tokens=0)
