"""What several test modules need: a mark, the libraries of blocks, threads that work at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from llmopt import ScriptedClient
from llmopt.lab import laboratory
from llmopt.sandbox.confine import support

LIBRARIES = laboratory.LIBRARIES
"""What a worker of blocks loads. It takes seconds, so `conftest` leaves it to one test."""

needs_confinement = pytest.mark.skipif(
    bool(support().problems), reason="; ".join(support().problems) or "-"
)


def in_threads(work: Callable[[Any], object], values: Iterable[Any]) -> None:
    """Call `work` with each value in a thread of its own, and raise the first error."""
    errors: list[BaseException] = []

    def run(value: Any) -> None:
        try:
            work(value)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(value,)) for value in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class Gate(ScriptedClient):
    """A model that says when it is asked, and answers once it is opened."""

    def __init__(self, answer: Any) -> None:
        self.asked, self.open = threading.Event(), threading.Event()

        def held(request: Any) -> Any:
            self.asked.set()
            assert self.open.wait(60)
            return answer(request) if callable(answer) else answer

        super().__init__(held, name="gate")
