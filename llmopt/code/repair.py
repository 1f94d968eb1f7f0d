"""The one repair loop: an answer that cannot be used is sent back with its fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")

MAX_SENT_BACK = 20_000
"""Characters of a bad answer that are sent back and stored; the rest is cut."""


class UnusableError(Exception):
    """An answer cannot be used, for a reason in words for the model."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def use_or_repair(
    answer: A, use: Callable[[A], T], ask_again: Callable[[A, str], A | None], repairs: int
) -> T:
    """Return the result of an answer, or of one of its repairs.

    `use` raises `UnusableError`, and so does this where the last answer cannot be used either.
    `ask_again` sends an answer back with the reason; it returns the next one, or ``None``.
    """
    for turn in range(repairs + 1):
        try:
            return use(answer)
        except UnusableError as error:
            following = ask_again(answer, error.reason) if turn < repairs else None
            if following is None:
                raise
            answer = following
    raise ValueError(f"repairs={repairs}: expected 0 or more")
