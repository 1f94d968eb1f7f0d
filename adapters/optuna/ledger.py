"""The calls of one study: in memory, and in its storage where caps hold for all of its workers."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Mapping
from typing import Any

from optuna.study import Study

from llmopt.errors import StorageError
from llmopt.history import Usage
from llmopt.journaled import MemoryLedger
from llmopt.optuna_trials import amount_of
from llmopt.state import Called, Event, Failed, Replied, State

_CALL = "llmopt:call:"


class StudyLedger(MemoryLedger):
    """Writes each call into a study, under a key of its own, and reads those of other workers.

    A call is written before it is sent, with the most that it can cost. So one whose worker is
    killed counts until the end of the study.

    Args:
        study: The study.
        capped: Whether a cap holds; without one nothing is written.
    """

    def __init__(self, study: Study, capped: bool) -> None:
        super().__init__()
        self._study, self.capped = study, capped
        self._writer = f"{_CALL}{uuid.uuid4().hex}:"
        self._open: list[str] = []  # keys of the calls under way
        self._unsaved: dict[str, dict[str, Any]] = {}  # ends of calls that the storage refused

    def append(self, event: Event) -> State:
        """Write a call, reduce the event, and write what ended a call as soon as that is possible.

        Raises:
            StorageError: The study's storage did not take a call, which is not sent then.
        """
        before = self.state.usage
        if self.capped and isinstance(event, Called):
            self.check()
            key = f"{self._writer}{os.getpid()}:{uuid.uuid4().hex[:8]}"
            priced = {"cost": event.most} if event.most is not None else {"unpriced": event.doubt}
            self._write(key, {"requests": 1, **priced})
            self._open.append(key)
        state = super().append(event)
        if isinstance(event, (Replied, Failed)) and self._open:
            self._unsaved |= {key: {} for key in self._open}
            self._unsaved[self._open[0]] = _difference(before, state.usage)
            self._open.clear()
            with contextlib.suppress(StorageError):  # then it is written before the next call
                self.check()
        return state

    def check(self) -> None:
        """Write what could not be written before.

        Raises:
            StorageError: The study's storage does not take it yet.
        """
        for key in list(self._unsaved):
            self._write(key, self._unsaved[key])
            del self._unsaved[key]

    @property
    def spent(self) -> Usage:
        """What all workers of the study have spent."""
        usage = self.state.spent
        if not self.capped:
            return usage
        attributes = self._study._storage.get_study_system_attrs(self._study._study_id)
        for key, entry in attributes.items():
            if not key.startswith(_CALL) or key.startswith(self._writer):
                continue
            if not isinstance(entry, Mapping):
                continue
            usage.requests += int(amount_of(entry.get("requests")))
            usage.prompt_tokens += int(amount_of(entry.get("tokens")))
            usage.unpriced += int(amount_of(entry.get("unpriced")))
            cost = entry.get("cost", 0.0)
            known = usage.cost is not None and cost is not None
            usage.cost = usage.cost + amount_of(cost) if known else None  # type: ignore[operator]
        return usage

    def _write(self, key: str, entry: dict[str, Any]) -> None:
        try:
            self._study._storage.set_study_system_attr(self._study._study_id, key, entry)
        except Exception as error:  # storages raise what their databases do
            raise StorageError(
                f"the study's storage did not take what a request costs ({error}): make it "
                "writable; nothing is sent before"
            ) from error


def _difference(before: Usage, after: Usage) -> dict[str, Any]:
    """Return what was spent between two states of one account."""
    known = before.cost is not None and after.cost is not None
    return {
        "requests": after.requests - before.requests,
        "tokens": after.prompt_tokens
        + after.completion_tokens
        - before.prompt_tokens
        - before.completion_tokens,
        "cost": after.cost - before.cost if known else None,  # type: ignore[operator]
        "unpriced": after.unpriced - before.unpriced,
    }
