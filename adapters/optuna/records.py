"""What the sampler writes into a trial: its proposal for other workers, and where it came from."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial

from llmopt.adapters.optuna.space import StudySpace
from llmopt.history import Proposal
from llmopt.optuna_trials import (
    AMOUNTS,
    NAMED,
    PREFIX,
    WAITED,
    amount_of,
    json_of,
    note_of,
    number_of,
    read_named,
    text_of,
)
from llmopt.util.text import first_line

# Optuna's own samplers split what they store at this length, for databases with short columns.
CHUNK = 2045
_PROPOSAL = PREFIX + "proposal"
_FRAMES = 8  # calls between Optuna's loop and a sampler's `after_trial`, at most
_DRAWN = PREFIX + "drawn"
_START = PREFIX + "start"
_SHORT_WAIT = 1.0  # seconds that are worth no write


def current(study: Study, trial: FrozenTrial) -> FrozenTrial:
    """Return a running trial with what was written into it since it began."""
    return study._storage.get_trial(trial._trial_id)


def publish(study: Study, trial: FrozenTrial, space: StudySpace, params: Mapping[str, Any]) -> None:
    """Let other workers see what a running trial will evaluate; nothing withdraws it."""
    own = space.distributions
    known = {n: own[n].to_internal_repr(value) for n, value in params.items() if n in own}
    _write_json(study, trial, _PROPOSAL, known)


def read_proposal(system_attrs: Mapping[str, Any]) -> dict[str, float]:
    """Return what a trial was proposed to evaluate, in Optuna's internal representation."""
    found = json_of(system_attrs, _PROPOSAL)
    return found if isinstance(found, dict) else {}


def note_drawn(study: Study, trial: FrozenTrial, name: str) -> None:
    """Record that a parameter of a running trial was sampled at random, not proposed."""
    _write_json(study, trial, _DRAWN, [*read_drawn(trial), name])


def read_drawn(trial: FrozenTrial) -> list[str]:
    """Return the parameters of a trial that were sampled at random, not proposed."""
    found = json_of(trial.system_attrs, _DRAWN)
    return found if isinstance(found, list) else []


def read_start(trial: FrozenTrial) -> int | None:
    """Return the number of the study's trial that the answer behind a trial starts from, if any."""
    found = json_of(trial.system_attrs, _START)
    return found if type(found) is int else None


def read_fixed(system_attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that a trial was enqueued with."""
    found = system_attrs.get("fixed_params")
    return found if isinstance(found, dict) else {}


def is_stopped(trial: FrozenTrial) -> bool:
    """Whether the model ended the search in place of proposing this trial."""
    source = trial.user_attrs.get(PREFIX + "source")
    return isinstance(source, str) and source == "stopped"


def annotate(
    study: Study,
    trial: FrozenTrial,
    proposal: Proposal,
    start: int | None = None,
    cost: float | None = None,
    model: str = "",
    named: Mapping[str, int | None] | None = None,
) -> None:
    """Show in a trial where its proposal came from; several proposals for one trial add up.

    `start` is the number of the study's trial that the answer starts from, `named` what `named_in`
    gave for its words: they stay as they are, since prompts show them again.
    """
    now = current(study, trial)
    notes: dict[str, Any] = {"source": proposal.source}
    if read_note(now, "source") == "fallback":
        notes["source"] = "fallback"
    if proposal.source == "llm":
        amounts = {name: getattr(proposal, name) for name in AMOUNTS}
        for name, amount in {**amounts, "cost": cost}.items():
            if amount:  # a provider that does not count says 0, which is worth no write
                notes[name] = amount_of(read_note(now, name)) + amount
        notes["model"] = model
        if proposal.clipped:
            notes["clipped"] = True
        told = [text_of(read_note(now, "explanation")), proposal.explanation]
        if proposal.explanation:
            notes["explanation"] = "\n".join(filter(None, told))
    if start is not None:
        _write_json(study, trial, _START, start)
    if named:
        _write_json(study, trial, NAMED, {**read_named(json_of(now.system_attrs, NAMED)), **named})
    write_notes(study, trial, notes)


def write_notes(study: Study, trial: FrozenTrial, notes: Mapping[str, Any]) -> None:
    """Write facts about a trial's proposal into its user attributes, which dashboards show."""
    for name, value in notes.items():
        parts = list(_chunks(value)) if isinstance(value, str) else [value]
        for i, part in enumerate(parts):
            key = f"{PREFIX}{name}:{i}" if i else PREFIX + name
            study._storage.set_trial_user_attr(trial._trial_id, key, part)


def note_wait(study: Study, trial: FrozenTrial, seconds: float) -> None:
    """Record how long a trial waited for its parameters, apart from its evaluation."""
    if seconds >= _SHORT_WAIT:
        waited = number_of(current(study, trial).system_attrs.get(WAITED)) or 0.0
        study._storage.set_trial_system_attr(trial._trial_id, WAITED, round(waited + seconds, 1))


def raised_in_objective() -> str:
    """Return what an objective raised, where ``study.optimize`` is telling that the trial failed.

    Optuna keeps it nowhere but in a variable of its loop. Elsewhere there is nothing to return.
    """
    frame = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame.f_back is None:
            break
        frame = frame.f_back
        if frame.f_code.co_name == "_run_trial":
            error = frame.f_locals.get("func_err")
            if isinstance(error, Exception):
                return f"{type(error).__name__}: {first_line(error)}".removesuffix(": ")
    return ""


def read_note(trial: FrozenTrial, name: str) -> Any:
    """Return one fact that `write_notes` wrote, or ``None``."""
    return note_of(trial.user_attrs, name)


def _write_json(study: Study, trial: FrozenTrial, key: str, value: Any) -> None:
    """Write a value into a trial's system attributes, in parts for short columns; see `json_of`."""
    for i, chunk in enumerate(_chunks(json.dumps(value))):
        study._storage.set_trial_system_attr(trial._trial_id, f"{key}:{i}", chunk)


def _chunks(text: str) -> Iterator[str]:
    for start in range(0, max(len(text), 1), CHUNK):
        yield text[start : start + CHUNK]
