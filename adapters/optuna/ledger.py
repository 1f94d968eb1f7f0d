"""The calls of one study: in memory, and in its storage where caps hold for all of its workers."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
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

    Args:
        study: The study.
        capped: Whether a cap holds; without one nothing is written.
    """

    def __init__(self, study: Study, capped: bool) -> None:
        super().__init__()
        self._study, self.capped = study, capped
        self._writer, self._process = uuid.uuid4().hex, os.getpid()
        self._keys: list[str] = []  # of the calls under way

    def append(self, event: Event) -> State:
        """Write a call, or what ended it, then reduce the event.

        Raises:
            StorageError: The study's storage did not take it.
        """
        before = self.state
        if self.capped and isinstance(event, Called):
            key = f"{_CALL}{self._writer}:{before.calls}:{len(before.under_way)}:{uuid.uuid4().hex[:8]}"
            priced = {"cost": event.most} if event.most is not None else {"unpriced": event.doubt}
            self._write(key, {"requests": 1, **priced})
            self._keys.append(key)
        state = super().append(event)
        if isinstance(event, (Replied, Failed)) and self._keys:
            self._write(self._keys[0], _difference(before.usage, state.usage))
            for key in self._keys[1:]:
                self._write(key, {})
            self._keys.clear()
        return state

    @property
    def spent(self) -> Usage:
        """What all workers of the study have spent."""
        usage = self.state.spent
        if not self.capped:
            return usage
        for entry in self._others():
            usage.requests += int(amount_of(entry.get("requests")))
            usage.prompt_tokens += int(amount_of(entry.get("tokens")))
            usage.unpriced += int(amount_of(entry.get("unpriced")))
            cost = entry.get("cost", 0.0)
            usage.cost = (
                None if usage.cost is None or cost is None else usage.cost + amount_of(cost)
            )
        return usage

    def _others(self) -> Iterator[Mapping[str, Any]]:
        attributes = self._study._storage.get_study_system_attrs(self._study._study_id)
        for key, entry in attributes.items():
            mine = key.startswith(f"{_CALL}{self._writer}:")
            if key.startswith(_CALL) and not mine and isinstance(entry, Mapping):
                yield entry

    def _write(self, key: str, entry: dict[str, Any]) -> None:
        try:
            self._study._storage.set_study_system_attr(self._study._study_id, key, entry)
        except Exception as error:  # storages raise what their databases do
            raise StorageError(
                f"the study's storage did not take what a request cost ({error}): make it "
                "writable; it is tried again before the next request"
            ) from error


def _difference(before: Usage, after: Usage) -> dict[str, Any]:
    """Return what was spent between two states of one account."""
    cost = None
    if before.cost is not None and after.cost is not None:
        cost = after.cost - before.cost
    tokens = after.prompt_tokens + after.completion_tokens
    return {
        "requests": after.requests - before.requests,
        "tokens": tokens - before.prompt_tokens - before.completion_tokens,
        "cost": cost,
        "unpriced": after.unpriced - before.unpriced,
    }
