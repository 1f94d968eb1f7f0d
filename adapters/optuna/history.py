"""A study's trials, as its storage has them, as the history that a prompt is made from."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from llmopt.adapters.optuna.records import (
    is_stopped,
    read_drawn,
    read_fixed,
    read_note,
    read_proposal,
    read_start,
)
from llmopt.adapters.optuna.space import StudySpace
from llmopt.history import Direction, History, Source, Trial, is_source
from llmopt.optuna_trials import (
    curve_of,
    data_of,
    duration_of,
    number_of,
    parts_of,
    shares_of,
    stderr_of,
    text_of,
    told_of,
    violated,
    violation_of,
    violations_in_words,
)
from llmopt.prompt.answer import start_of, with_start
from llmopt.prompt.describe import quoted
from llmopt.space.constraints import Limit
from llmopt.util.text import cut

_HINT_LENGTH = 1000  # characters of one hint: a study's attributes may hold anything
_HINTS = 50  # lines of hints
_MOST_OPEN = 200  # points being evaluated that are shown: killed workers leave theirs for ever
_CLOCKS = 600.0  # seconds between two clocks of one zone; zones are 15 minutes apart
_NO_VALUE = (IndexError, KeyError, ValueError, TypeError, OverflowError)
_STATES = (TrialState.COMPLETE, TrialState.PRUNED)


def learned(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials that count for start-up and for the search space."""
    return list(filter(is_learned, trials))


def is_learned(trial: FrozenTrial) -> bool:
    """Whether a trial counts for start-up and for the search space."""
    return trial.state in _STATES and not is_stopped(trial)


def known_params(trial: FrozenTrial, space: StudySpace) -> dict[str, Any]:
    """Return the parameters that a trial has, or is known to get, in Optuna's form."""
    params: dict[str, Any] = {}
    if not trial.state.is_finished():
        for name, value in read_proposal(trial.system_attrs).items():
            if name in space.distributions:
                with contextlib.suppress(*_NO_VALUE):
                    params[name] = space.distributions[name].to_external_repr(value)
        params.update(read_fixed(trial.system_attrs))
    params.update(trial.params)
    return params


def metrics_of(study: Study) -> tuple[str, ...]:
    """Return the names of a study's objectives, if it has them."""
    names = getattr(study, "_study", study).metric_names
    if not isinstance(names, (list, tuple)) or len(names) != len(study.directions):
        return ()
    return tuple(" ".join(text_of(name).split()) for name in names)


def hints(study: Study, names: Iterable[str] | None, context: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the user's words about the study from the named attributes, and the set values."""
    # HyperbandPruner's bracket study refuses these attributes; the study behind it does not.
    study = getattr(study, "_study", study)
    lines = []
    if len(metrics := metrics_of(study)) == 1:  # several are named where they are shown
        lines.append(f"the objective f is called {metrics[0]}")
    # Not `study.user_attrs`, whose copy fails on deeply nested values.
    attributes = study._storage.get_study_user_attrs(study._study_id)
    shown = attributes if names is None else names
    found = [name for name in shown if name in attributes][:_HINTS]
    lines += [_attribute(name, text_of(attributes[name], _HINT_LENGTH)) for name in found]
    if context:
        given = ", ".join(f"{name} = {value!r}" for name, value in context.items())
        lines.append(f"already set for this proposal: {given}")
    return tuple(cut(line, _HINT_LENGTH) for line in lines)


def _attribute(name: str, text: str) -> str:
    """Return an attribute of a study, marked so that no line of it reads as a row of the prompt."""
    name = " ".join(text_of(name).split())
    lines = text.strip().splitlines()
    return f"{name}:\n{quoted(text.strip())}" if len(lines) > 1 else f"{name}: {text.strip()}"


@dataclass(frozen=True)
class View:
    """What one proposal is made from."""

    history: History  # finished trials in the order of recording, and points of unfinished ones
    taken: frozenset[Hashable]  # keys of points that would make this trial the repeat of another
    numbers: tuple[int, ...]  # number in the study of each trial of `history`

    def start_of(self, explanation: str) -> int | None:
        """Return the study's number of the trial that an answer starts from, if it names one."""
        named = start_of(explanation)
        return self.numbers[named - 1] if named and named <= len(self.numbers) else None


@dataclass
class _Row:
    """A finished trial as the latest prompt shows it."""

    frozen: FrozenTrial
    trial: Trial | None  # ``None`` if it has no place in the space
    key: Hashable
    named: int | None  # number in the study of the trial that the answer starts from
    start: int | None = None  # the place of that trial, as `trial` names it


class StudyHistory:
    """Reads a study's trials as a history.

    The trials are read from the storage at every call. Finished ones never change: as long as the
    storage returns the same object for one, its row is the same object, too, which is what
    incremental readers of a `History` look at.
    """

    def __init__(
        self, space: StudySpace, constraints: Sequence[Limit], noisy: bool, curves: bool
    ) -> None:
        self.space = space
        self._constraints, self._noisy, self._curves = constraints, noisy, curves
        self._rows: dict[int, _Row] = {}

    def view(self, study: Study, trials: Sequence[FrozenTrial], number: int) -> View:
        """Return the history for the proposal of one trial, by its number."""
        directions: tuple[Direction, ...] = tuple(
            "maximize" if d.name == "MAXIMIZE" else "minimize" for d in study.directions
        )
        key, rows, points = self.space.space.key, [], []
        for frozen in trials:
            if frozen.state.is_finished():
                row = self._rows.get(frozen.number)
                if row is None or row.frozen is not frozen:
                    trial = self._trial(frozen, directions)
                    row = _Row(frozen, trial, trial and key(trial.values), read_start(frozen))
                    self._rows[frozen.number] = row
                if row.trial is not None:
                    rows.append(row)
            elif frozen.number != number:
                values = self.space.flatten(known_params(frozen, self.space))
                points += [] if values is None else [values]
        rows.sort(key=_recorded([row.frozen for row in rows]))
        places, told = self._numbered(rows)
        history = History(told, tuple(points[-_MOST_OPEN:]), directions, metrics=metrics_of(study))
        if self._noisy:
            history = history.merged(key)
        numbers = {place: number for number, place in reversed(places.items())}
        taken = frozenset([*(row.key for row in rows), *map(key, points)])
        return View(history, taken, tuple(numbers[place] for place in range(len(numbers))))

    def _numbered(self, rows: Sequence[_Row]) -> tuple[dict[int, int], tuple[Trial, ...]]:
        """Return the place at which a prompt shows each trial, and the trials with these numbers.

        The start that an explanation names is such a place, too.
        """
        firsts: dict[Hashable, int] = {}
        places, told = {}, []
        for row in rows:
            merges = self._noisy and row.trial is not None and row.trial.state == "complete"
            one = row.key if merges else ("", row.frozen.number)
            places[row.frozen.number] = firsts.setdefault(one, len(firsts))
        for position, row in enumerate(rows):
            trial, start = row.trial, None if row.named is None else places.get(row.named)
            assert trial is not None
            if trial.number != position or start != row.start:
                words = trial.explanation
                if trial.source == "llm":
                    words = with_start(words, None if start is None else start + 1)
                trial = row.trial = replace(trial, number=position, explanation=words)
                row.start = start
            told.append(trial)
        return places, tuple(told)

    def _trial(self, frozen: FrozenTrial, directions: Sequence[Direction]) -> Trial | None:
        """Return a finished trial; ``None`` if it has no place in the space."""
        values = None if is_stopped(frozen) else self.space.flatten(frozen.params)
        if values is None:
            return None
        rewards, state, reason = _outcome(frozen, len(directions))
        broken = violated(frozen)
        remarks = [
            reason,
            self._drawn(frozen),
            *((curve_of(frozen, directions[0]), duration_of(frozen)) if self._curves else ()),
            *(text_of(words) for words in told_of(frozen.user_attrs, "feedback")),
            violations_in_words(broken),
        ]
        linear = [c for c in self._constraints if c.names <= frozen.params.keys()]
        words = read_fixed(frozen.system_attrs) and "; ".join(
            map(text_of, told_of(frozen.user_attrs, "words"))
        )
        return Trial(
            number=frozen.number,
            params=dict(frozen.params),
            values=values,
            rewards=rewards,
            state=state,
            feedback="; ".join(r for r in remarks if r),
            source="user" if words else source_of(read_note(frozen, "source")),
            explanation=words or with_start(text_of(read_note(frozen, "explanation")), None),
            constraint_violation=violation_of(broken)
            + sum(c.amount(frozen.params) for c in linear),
            stderr=stderr_of(frozen.user_attrs) if rewards and state == "complete" else None,
            data=data_of(frozen, self._curves),
            parts=parts_of(frozen.user_attrs),
            **shares_of(partial(read_note, frozen)),
        )

    def _drawn(self, frozen: FrozenTrial) -> str:
        """Name the parameters of a model's point that were sampled at random in its trial."""
        drawn = read_drawn(frozen) if source_of(read_note(frozen, "source")) == "llm" else []
        shown = [n for n in self.space.distributions if n in drawn and n in frozen.params]
        text = ", ".join(f"{name} = {frozen.params[name]!r}" for name in shown)
        return f"drawn at random, as the answer could not give it: {text}" if shown else ""


def _recorded(trials: Sequence[FrozenTrial]) -> Callable[[_Row], Any]:
    """Return what sorts trials by the order in which they were recorded.

    Before Optuna 5 a storage holds each worker's local time without its zone. Trials are numbered
    as they begin. So if one began well before another of a smaller number, the clocks differ, and
    the numbers are all that is sure.
    """
    latest = -math.inf
    for trial in sorted(trials, key=lambda t: t.number):
        began = _seconds(trial.datetime_start)
        if began < latest - _CLOCKS:
            return lambda row: row.frozen.number
        latest = max(latest, began)
    return lambda row: (_seconds(row.frozen.datetime_complete), row.frozen.number)


def _seconds(when: datetime | None) -> float:
    return when.timestamp() if when else -math.inf


def source_of(source: Any) -> Source:
    """Return the source of a point that a storage holds; ``"user"`` for an unknown one."""
    return source if is_source(source) else "user"


def _outcome(frozen: FrozenTrial, objectives: int) -> tuple[tuple[float, ...] | None, Any, str]:
    """Return a finished trial's rewards, its llmopt state, and what to say about it."""
    if frozen.state == TrialState.COMPLETE and frozen.values:
        rewards = [number_of(v) for v in frozen.values]
        finite = tuple(r for r in rewards if r is not None)
        if len(finite) == len(rewards) == objectives:
            return finite, "complete", ""
        return None, "failed", f"the value was {', '.join(map(str, frozen.values))}"
    if frozen.state == TrialState.PRUNED:
        step = frozen.last_step
        value = None if step is None else number_of(frozen.intermediate_values[step])
        if value is not None:
            return (value,), "pruned", f"stopped at step {step}"
        return None, "pruned", ""
    return None, "failed", text_of(read_note(frozen, "error"))


def recommended(trials: Iterable[FrozenTrial], direction: Direction) -> FrozenTrial:
    """Return the trial to keep of a study with noisy values; see `LLMSampler.recommend`."""
    done: list[tuple[FrozenTrial, Trial]] = []
    for frozen in trials:
        rewards, state, _ = _outcome(frozen, 1)
        if state == "complete":
            point = (repr(sorted(frozen.params.items())),)
            violation = violation_of(violated(frozen))
            trial = Trial(
                len(done), None, point, rewards, constraint_violation=violation,
                stderr=stderr_of(frozen.user_attrs),
            )  # fmt: skip

            done.append((frozen, trial))
    history = History(tuple(trial for _, trial in done), directions=(direction,))
    best = history.merged(lambda values: values).best
    if best is None:
        raise ValueError("no trial of the study is complete: there is nothing to recommend")
    return next(frozen for frozen, trial in done if trial.values == best.values)
