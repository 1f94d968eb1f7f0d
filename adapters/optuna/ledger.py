"""What all workers of a study have spent, kept in its storage, so that caps hold for all."""

from __future__ import annotations

import os
import uuid
from typing import Any

from optuna.study import Study

from llmopt.errors import StorageError
from llmopt.history import Usage
from llmopt.search.meter import Meter
from llmopt.search.optuna_trials import amount_of
from llmopt.search.spend_log import SpendLog, Spent

_SPENT = "llmopt:spent:"


class StudySpending(SpendLog):
    """Writes what one sampler object spends, and reads what the others did.

    Each object, and each process that it is forked into, has a separate entry, which only
    it writes: concurrent spending is not lost. An entry that cannot be read counts
    as nothing, a cost that is not known as one.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._key, self._process = _SPENT + uuid.uuid4().hex, os.getpid()
        self._own: dict[int, Usage] = {}
        self._study: Study | None = None
        self._capped = False  # without caps nothing is stored, but counted: caps may be set later

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._begin()

    def attach(self, meter: Meter, study: Study) -> None:
        """Let a meter count the spending of a whole study against its caps, if it has any."""
        if os.getpid() != self._process:
            self._begin()
        self._study, self._capped = study, bool(meter.limits.left(Usage()))
        meter.journal = self

    def total(self, own: Usage | None = None) -> Usage:
        """Return what was spent on the study by all whose caps are counted."""
        total = Usage()
        if self._study is None or not self._capped:
            return own or total
        storage, study_id = self._study._storage, self._study._study_id
        for key, entry in storage.get_study_system_attrs(study_id).items():
            if key.startswith(_SPENT) and key != self._key and isinstance(entry, dict):
                _add(total, entry)
        _add(total, _entry(self._own.get(study_id, Usage())))
        return total

    def announce(self, spent: Spent) -> None:
        """Count a request that is about to be sent: its worker may be killed before it ends."""
        self._store(self._with(spent, calls=spent.failed + 1))

    def record(self, spent: Spent) -> None:
        """Store what one request cost; as `announce` it raises a `StorageError` if it cannot."""
        usage = self._with(spent, calls=spent.failed)
        self._own[self._store(usage)] = usage

    def _with(self, spent: Spent, calls: int) -> Usage:
        assert self._study is not None
        usage = self._own.get(self._study._study_id, Usage()).copy()
        usage.add_failure(calls, spent.unpriced, spent.cost, spent.estimated)
        if spent.reply is not None:
            usage.add_reply(spent.reply)
        return usage

    def _store(self, usage: Usage) -> int:
        """Store what this object has spent, and return the study that it was spent on."""
        assert self._study is not None
        storage, study_id = self._study._storage, self._study._study_id
        if not self._capped:
            return int(study_id)
        try:
            storage.set_study_system_attr(study_id, self._key, _entry(usage))
        except Exception as error:  # storages raise what their databases do
            raise StorageError(
                f"the study's storage did not take what a request cost ({error}): make it "
                "writable; it is tried again before the next request"
            ) from error
        return int(study_id)


def _entry(usage: Usage) -> dict[str, float | None]:
    return {
        "requests": usage.requests,
        "tokens": usage.prompt_tokens + usage.completion_tokens,
        "cost": usage.cost,
        **({"unpriced": usage.unpriced} if usage.unpriced else {}),
    }


def _add(total: Usage, entry: dict[str, Any]) -> None:
    total.requests += int(amount_of(entry.get("requests")))
    total.prompt_tokens += int(amount_of(entry.get("tokens")))
    total.unpriced += int(amount_of(entry.get("unpriced")))
    cost = entry.get("cost", 0.0)
    if total.cost is not None:
        total.cost = None if cost is None else total.cost + amount_of(cost)
