"""What users overlook, in words: what nothing reads, and trials that nobody ends."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from llmopt.adapters.optuna.space import Known
from llmopt.data import TrialData
from llmopt.packing import DataError
from llmopt.search.optuna_trials import PREFIX, stderr_of, text_of, told_of
from llmopt.space.constraints import Limit
from llmopt.space.values import ABSENT
from llmopt.util.text import short

_READ = ("feedback", "stderr", "data")
_MOST_NAMED = 10  # trials of killed workers
_NEAR = 0.85  # how like a name has to be, from 0 to 1, to be meant


def unread(attributes: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the user attributes of a trial that are not read although they seem meant, and why."""
    for name in _READ:
        for value in told_of(attributes, name)[:1]:
            if trouble := _trouble(name, value):
                yield name, f"the user attribute {name!r} is ignored: {trouble}"
    for name in attributes.keys() - {*_READ}:
        near = difflib.get_close_matches(name.lower(), _READ, 1, _NEAR)
        if near and near[0] not in attributes and not name.startswith(PREFIX):
            yield name, f"the user attribute {name!r} is not read; you may mean {near[0]!r}"


def _trouble(name: str, value: Any) -> str:
    if name == "stderr" and stderr_of({name: value}) is None:
        return f"got {short(value)}, expected a finite number of 0 or more, the standard error"
    if name == "feedback" and not text_of(value) and value != "":
        return f"got {short(value)}, expected a text"
    if name == "data":
        try:
            TrialData.of(value)
        except DataError as error:
            return f"got {short(value)}, expected a dict of numbers, lists or arrays ({error})"
    return ""


def misplaced(known: Known, params: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the parameters that a trial has and that its conditions in `space=` exclude."""
    for name, rule in known.when.items():
        if name in params and rule.active(lambda parent: params.get(parent, ABSENT)) is False:
            yield (
                name,
                f"the objective suggests `{name}` in a trial in which its condition in `space=` of "
                "the sampler does not hold, so that the model does not give it there. Suggest it "
                "under the condition only, or remove its `when=`",
            )


def unknown_names(limits: Iterable[Limit], params: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names in constraints that are no parameters of a trial."""
    for limit in limits:
        for name in sorted(limit.names - params.keys()):
            near = difflib.get_close_matches(name, params, 1, 0.6)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            yield (
                name,
                f"the constraint {limit.text!r} names `{name}`{meant}, which the objective did not "
                f"suggest. It suggested {', '.join(map(repr, sorted(params))) or 'nothing'}. The "
                "constraint holds in trials with all of its parameters only",
            )


def left_running(study: Study, trials: Iterable[FrozenTrial], number: int, since: datetime) -> str:
    """Say which trials run since before a time and may be those of killed workers; ``""`` if none.

    Args:
        study: The study; one with a heartbeat ends such trials by itself.
        trials: Its trials.
        number: Number of the current trial, which is not counted.
        since: When this sampler was made, in local time.
    """
    if getattr(study._storage, "get_heartbeat_interval", lambda: None)() is not None:
        return ""
    found = [
        (t.number, t.datetime_start.replace(tzinfo=None))
        for t in trials
        if t.state == TrialState.RUNNING and t.number != number and t.datetime_start is not None
    ]
    old = [(n, began) for n, began in found if began < since]
    if not old:
        return ""
    shown = ", ".join(f"{n} (since {began:%Y-%m-%d %H:%M:%S})" for n, began in old[:_MOST_NAMED])
    more = f" and {len(old) - _MOST_NAMED} more" if len(old) > _MOST_NAMED else ""
    return (
        f"RUNNING since before this sampler was made: trial {shown}{more}. Prompts show such a "
        "point as being evaluated. If its process is dead, "
        f"study.tell({old[0][0]}, state=optuna.trial.TrialState.FAIL) ends the trial; with a "
        "heartbeat the study does it by itself (docs/workers.md)."
    )
