"""The account that every call to a model is paid from, in whatever thread it is made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Account(Protocol):
    """Whoever says whether one more call may be made."""

    def take(self) -> None:
        """Take one call off, or raise `BudgetExceededError` where a cap is reached."""
        ...

    def paid(self, tokens: int, cost: float | None) -> None:
        """Take note of what a call has used: tokens, and dollars or ``None`` for unknown."""
        ...


_ACCOUNT: ContextVar[Account | None] = ContextVar("account", default=None)


@contextmanager
def paying(account: Account) -> Iterator[None]:
    """Let all calls inside be paid from an account, those in threads of `within` included."""
    before = _ACCOUNT.set(account)
    try:
        yield
    finally:
        _ACCOUNT.reset(before)


def take_call() -> None:
    """Take one call off the account, if there is one; call it right before each request is sent."""
    account = _ACCOUNT.get()
    if account is not None:
        account.take()


def note_paid(tokens: int, cost: float | None) -> None:
    """Tell the account, if there is one, what the call has used."""
    account = _ACCOUNT.get()
    if account is not None:
        account.paid(tokens, cost)
