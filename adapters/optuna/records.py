"""What the sampler writes into a study: points, where they came from, and each call."""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial

from llmopt import from_optuna as stored
from llmopt.errors import StorageError
from llmopt.events import Called, Event, Failed, Replied
from llmopt.history import Proposal, Usage
from llmopt.model_calls import AnyPoints, MemoryLedger
from llmopt.state import State, reduce
from llmopt.util.text import cut, first_line

_DRAWN = stored.PREFIX + "drawn"
_LONGEST = 10_000  # characters of a note: MySQL keeps 64 KiB, and JSON takes 6 bytes for each
_SHORT_WAIT = 1.0  # seconds that are worth no write


def current(study: Study, trial: FrozenTrial) -> FrozenTrial:
    """Return a running trial with what was written into it since it began."""
    return study._storage.get_trial(trial._trial_id)


def publish(study: Study, trial: FrozenTrial, params: Mapping[str, float]) -> None:
    """Let other workers see what a trial will evaluate, in Optuna's internal representation."""
    study._storage.set_trial_system_attr(trial._trial_id, stored.PROPOSAL, dict(params))


def read_proposal(trial: FrozenTrial) -> Mapping[str, Any]:
    """Return what `publish` wrote."""
    return stored.mapping_of(trial.system_attrs.get(stored.PROPOSAL))


def read_fixed(trial: FrozenTrial) -> Mapping[str, Any]:
    """Return the parameters that a trial was enqueued with."""
    return stored.mapping_of(trial.system_attrs.get("fixed_params"))


def note_drawn(study: Study, trial: FrozenTrial, *names: str) -> None:
    """Record that parameters of a running trial are sampled at random, not proposed."""
    drawn = list(dict.fromkeys([*read_drawn(current(study, trial)), *names]))
    study._storage.set_trial_system_attr(trial._trial_id, _DRAWN, drawn)


def read_drawn(trial: FrozenTrial) -> list[Any]:
    """Return the parameters of a trial that are sampled at random, not proposed."""
    drawn = trial.system_attrs.get(_DRAWN)
    return drawn if isinstance(drawn, list) else []


def is_stopped(trial: FrozenTrial) -> bool:
    """Whether the model ended the search in place of proposing this trial."""
    source = read_note(trial, "source")
    return isinstance(source, str) and source == "stopped"


def annotate(
    study: Study,
    trial: FrozenTrial,
    proposal: Proposal,
    cost: float | None,
    model: str,
    named: Mapping[str, int | None],
    waited: float,
) -> None:
    """Show in a trial where its proposal came from; several proposals for one trial add up.

    `named` is what `named_in` gave for the explanation, which stays as it is, since prompts show it
    again; `waited` are the seconds that the trial waited for its parameters.
    """
    now, write = current(study, trial), study._storage.set_trial_system_attr
    notes: dict[str, Any] = {"source": proposal.source}
    if read_note(now, "source") == "fallback":
        notes["source"] = "fallback"
    if proposal.source == "llm":
        amounts = {name: getattr(proposal, name) for name in stored.AMOUNTS}
        for name, amount in {**amounts, "cost": cost}.items():
            if amount:  # a provider that does not count says 0, which is worth no write
                notes[name] = stored.amount_of(read_note(now, name)) + amount
        notes["model"] = model
        if proposal.clipped:
            notes["clipped"] = True
        words = [stored.text_of(read_note(now, "explanation")), proposal.explanation]
        if proposal.explanation:
            notes["explanation"] = "\n".join(filter(None, words))
    if named:
        write(trial._trial_id, stored.NAMED, {**stored.read_named(now.system_attrs), **named})
    write_notes(study, trial, notes)
    if waited >= _SHORT_WAIT:
        waited += stored.number_of(now.system_attrs.get(stored.WAITED)) or 0.0
        write(trial._trial_id, stored.WAITED, round(waited, 1))


def write_notes(study: Study, trial: FrozenTrial, notes: Mapping[str, Any]) -> None:
    """Write facts about a trial's proposal into its user attributes, which dashboards show."""
    for name, value in notes.items():
        value = cut(value, _LONGEST) if isinstance(value, str) else value
        study._storage.set_trial_user_attr(trial._trial_id, stored.PREFIX + name, value)


def read_note(trial: FrozenTrial, name: str) -> Any:
    """Return one fact that `write_notes` wrote, or ``None``."""
    return stored.note_of(trial.user_attrs, name)


def raised_in_objective() -> str:
    """Return what an objective raised, where ``study.optimize`` is telling that the trial failed.

    Optuna keeps it nowhere but in a variable of its loop. Elsewhere there is nothing to return.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_name != "_run_trial":
        frame = frame.f_back
    error = frame.f_locals.get("func_err")
    if not isinstance(error, Exception):
        return ""
    return f"{type(error).__name__}: {first_line(error)}".removesuffix(": ")


class StudyLedger(MemoryLedger):
    """The calls for one study: in memory, and in the study, where caps hold for all workers.

    Each call has a key of its own. It is written before it is sent, with the most that it can cost;
    this counts until its end is written, also if its worker is killed.
    """

    def __init__(self, study: Study) -> None:
        super().__init__()
        self._study, self._writer = study, f"{stored.CALL}{uuid.uuid4().hex}:"
        self._call = ""  # key of the call under way

    def append(self, event: Event) -> State:
        """Write a call, reduce the event, and write the end of a call if the storage takes it.

        Raises:
            StorageError: The study's storage did not take a call, which is not sent then.
        """
        if isinstance(event, Called):
            self._call = f"{self._writer}{self.state.count}"
            spent = State(AnyPoints(), under_way=(event,)).spent
            self._write_usage(replace(spent, failed_requests=0))
        state = super().append(event)
        if isinstance(event, Replied | Failed) and self._call:
            with contextlib.suppress(StorageError):  # for others it counts as before, then
                self._write_usage(reduce(State(AnyPoints()), event).usage)
            self._call = ""
        return state

    def settle(
        self, sources: Sequence[str], rejected: Mapping[str, int], blocks: Sequence[int] = ()
    ) -> None:
        """Count the points of an ask by their sources, for reports also the unused answers."""
        super().settle(sources, rejected, blocks)
        if counts := {reason: n for reason, n in rejected.items() if n > 0}:
            with contextlib.suppress(StorageError):
                self._write(f"{self._writer}{self.state.count}:unused", {"rejected": counts})

    def describe(self, about: Mapping[str, str]) -> None:
        """Write for reports what a study is about and who proposes."""
        with contextlib.suppress(StorageError):
            self._write(stored.ABOUT, {n: cut(text, _LONGEST) for n, text in about.items()})

    @property
    def spent(self) -> Usage:
        """What all workers of the study have spent."""
        usage = self.state.spent
        attributes = self._study._storage.get_study_system_attrs(self._study._study_id)
        others = {k: v for k, v in attributes.items() if not k.startswith(self._writer)}
        usage.add(stored.calls_of(others))
        return usage

    def _write_usage(self, usage: Usage) -> None:
        self._write(self._call, {k: v for k, v in vars(usage).items() if v or v is None})

    def _write(self, key: str, entry: Mapping[str, Any]) -> None:
        try:
            self._study._storage.set_study_system_attr(self._study._study_id, key, entry)
        except Exception as error:  # storages raise what their databases do
            raise StorageError(
                f"the study's storage did not take what a request costs ({error}): make it "
                "writable; nothing is sent before"
            ) from error
