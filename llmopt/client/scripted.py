"""A client without a model: answers from a script.

It is public, so that code built on llmopt can be tested offline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from llmopt.client.base import Completion, Reply, Request
from llmopt.errors import ClientError
from llmopt.util.text import counted, short

Answer: TypeAlias = str | Reply | Exception
Script: TypeAlias = Iterable[Answer | Callable[[Request], Answer]] | Callable[[Request], Answer]


class ScriptedClient:
    """Returns prepared answers in order, and stores the requests.

    Args:
        replies: The answers, one for each request: a text, a `Reply`, an exception to raise, or a
            function from the `Request` to any of these. A single function instead of a sequence
            answers every request.
        name: Short name for tables and files.
        default_prompt: The meaning of ``prompt="auto"`` for this client.
        cycle: Start again when the answers run out, instead of raising.

    Attributes:
        requests: All requests in order, including those answered with an exception.

    Raises:
        TypeError: `replies` is neither a list of answers nor a function.
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
        self._cycle = cycle or callable(replies)
        if callable(replies):
            self._replies: list[Answer | Callable[[Request], Answer]] = [replies]
        elif isinstance(replies, Iterable) and not isinstance(replies, (str, bytes, Mapping)):
            self._replies = list(replies)
        else:
            raise TypeError(
                f"replies={short(replies)}: expected a list with an answer for each request, such "
                "as ['x: 0.5'], or a function from the Request to an answer"
            )

    @classmethod
    def nobody(cls, name: str = "none") -> ScriptedClient:
        """Return what stands for the model of a search that is only read; it reads no hints."""
        client = cls([], name=name)
        vars(client).update(style="completion", asked=False)
        return client

    def complete(self, request: Request) -> Reply:
        """Return the next answer of the script.

        Raises:
            ClientError: The script has no answer left.
            Exception: An exception of the script.
            TypeError: An entry of the script is not an answer.
        """
        index, count = len(self.requests), len(self._replies)
        self.requests.append(request)
        if self._cycle and count:
            index %= count
        if index >= count:
            raise ClientError(
                f"the script of {self.name!r} has {counted(count, 'reply', 'replies')} and this is "
                f"request {len(self.requests)}; give more replies, or cycle=True"
            )
        answer = self._replies[index]
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Reply):
            return answer
        if not isinstance(answer, str):
            raise TypeError(
                f"scripted reply {index} is {answer!r}; expected a str, a Reply, an exception, or "
                "a function from the Request to one of these"
            )
        return Reply((Completion(answer),), model=self.name, prompt_tokens=0, completion_tokens=0)
