"""The end of a search in which every evaluation fails: one rule for all that search."""

from __future__ import annotations

from llmopt.errors import RewardError
from llmopt.text import clean

HOPELESS = 5
"""Evaluations that fail, and none that does not, after which no more are made."""


class BrokenTaskError(RewardError):
    """A task of which every evaluation fails."""


class FailureWatch:
    """Ends a search of which nothing but failures is known: more would cost and show nothing."""

    def __init__(self, what: str, sound: bool = False) -> None:
        self._what, self._sound = what, sound
        self._failed = 0

    def see(self, failure: str, remedy: str = "Mend the environment or its wrappers") -> None:
        """Take in an evaluation; raise `BrokenTaskError` if it is the last of `HOPELESS` failures.

        `failure` is empty where it did not fail; `remedy` says what to do about such a one.
        """
        self._sound, self._failed = self._sound or not failure, self._failed + 1
        if not self._sound and self._failed >= HOPELESS:
            raise BrokenTaskError(
                f"{self._what}: none of {self._failed} evaluations had a result, so no more are "
                f"made. The last one: {clean(failure).rstrip('.')}. {remedy}"
            )
