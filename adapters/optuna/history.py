"""A study's trials, as its storage has them, as the history that a prompt is made from."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from optuna.distributions import CategoricalDistribution
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from llmopt import from_optuna as stored
from llmopt.adapters.optuna.records import (
    is_stopped,
    read_drawn,
    read_fixed,
    read_note,
    read_proposal,
)
from llmopt.adapters.optuna.space import StudySpace
from llmopt.history import Direction, History, Source, Trial, is_source
from llmopt.prompt.answer_parts import start_of, with_start
from llmopt.prompt.describe import quoted
from llmopt.repeats import Merged
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


def space_trials(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials that the search space is learned from, by number.

    These are the ones of `learned`, and failed ones that alone have some choice and got to its
    parameters. What a failed trial lacks may be what it did not get to.
    """
    rows = learned(trials)
    failed = [t for t in trials if t.state == TrialState.FAIL]
    if not (rows and failed):
        return rows
    names = {n for t in rows for n in t.params}
    choices = {c for t in rows for c in _choices(t)}
    for trial in sorted(failed, key=lambda t: -len(t.params)):
        if not (_choices(trial) <= choices or trial.params.keys() < names):
            rows.append(trial)
            names |= trial.params.keys()
            choices |= _choices(trial)
    return sorted(rows, key=lambda t: t.number)


def _choices(trial: FrozenTrial) -> set[tuple[str, str]]:
    own = trial.distributions.items()
    return {(n, repr(trial.params[n])) for n, d in own if isinstance(d, CategoricalDistribution)}


def known_params(trial: FrozenTrial, space: StudySpace) -> dict[str, Any]:
    """Return the parameters that a trial has, or is known to get, in Optuna's form."""
    params: dict[str, Any] = {}
    if not trial.state.is_finished():
        for name, value in read_proposal(trial).items():
            if name in space.distributions:
                with contextlib.suppress(*_NO_VALUE):
                    params[name] = space.distributions[name].to_external_repr(value)
        params.update(read_fixed(trial))
    params.update(trial.params)
    return params


def metrics_of(study: Study) -> tuple[str, ...]:
    """Return the names of a study's objectives, if it has them."""
    names = getattr(study, "_study", study).metric_names
    if not isinstance(names, (list, tuple)) or len(names) != len(study.directions):
        return ()
    return tuple(" ".join(stored.text_of(name).split()) for name in names)


def hints_of(
    study: Study, names: Iterable[str] | None, context: Mapping[str, Any]
) -> tuple[str, ...]:
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
    lines += [_attribute(name, stored.text_of(attributes[name], _HINT_LENGTH)) for name in found]
    if context:
        given = ", ".join(f"{name} = {value!r}" for name, value in context.items())
        lines.append(f"already set for this proposal: {given}")
    return tuple(cut(line, _HINT_LENGTH) for line in lines)


def _attribute(name: str, text: str) -> str:
    """Return an attribute of a study, marked so that no line of it reads as a row of the prompt."""
    name = " ".join(stored.text_of(name).split())
    lines = text.strip().splitlines()
    return f"{name}:\n{quoted(text.strip())}" if len(lines) > 1 else f"{name}: {text.strip()}"


@dataclass(frozen=True)
class View:
    """What one proposal is made from."""

    history: History  # finished trials in the order of recording, and points of unfinished ones
    # keys of points that would make this trial the repeat of another: the first that has it
    taken: Mapping[Hashable, int]
    numbers: tuple[int, ...]  # number in the study of each trial of `history`


@dataclass
class _Row:
    """A finished trial as the latest prompt shows it."""

    frozen: FrozenTrial
    trial: Trial
    key: Hashable
    named: int | None  # number in the study of the trial that the answer starts from
    start: int | None = None  # the place of that trial, as `trial` names it

    def at(self, place: int, start: int | None) -> Trial:
        """Return the trial at a place of a prompt, where its start has a place, too."""
        if (self.trial.number, self.start) != (place, start):
            words = self.trial.explanation
            if self.trial.source == "llm":
                words = with_start(words, None if start is None else start + 1)
            self.trial, self.start = replace(self.trial, number=place, explanation=words), start
        return self.trial


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
        self._rows: dict[int, tuple[FrozenTrial, _Row | None]] = {}

    def view(self, study: Study, trials: Iterable[FrozenTrial], number: int = -1) -> View:
        """Return the history for the proposal of one trial, by its number."""
        directions: tuple[Direction, ...] = tuple(
            "maximize" if d == StudyDirection.MAXIMIZE else "minimize" for d in study.directions
        )
        key, rows, points = self.space.space.key, [], []
        taken: dict[Hashable, int] = {}
        for frozen in trials:
            if frozen.state.is_finished():
                known, row = self._rows.get(frozen.number, (None, None))
                if known is not frozen:
                    row = self._row(frozen, directions)
                    self._rows[frozen.number] = frozen, row
                if row is not None:
                    rows.append(row)
                    if not self.space.is_open(row.trial.values):
                        taken.setdefault(row.key, frozen.number)
            elif frozen.number != number:
                values = self.space.flatten(known_params(frozen, self.space))
                if values is not None:
                    points.append(values)
                    taken.setdefault(key(values), frozen.number)
        rows = _in_order(rows)
        firsts: dict[Hashable, tuple[int, int]] = {}  # place and number of each point shown
        places: dict[int | None, int] = {}
        for row in rows:
            merges, n = self._noisy and row.trial.state == "complete", row.frozen.number
            places[n], _ = firsts.setdefault(row.key if merges else ("", n), (len(firsts), n))
        shown = tuple(row.at(i, places.get(row.named)) for i, row in enumerate(rows))
        history = History(shown, tuple(points[-_MOST_OPEN:]), directions, metrics=metrics_of(study))
        if self._noisy:
            history = Merged(key).of(history)
        return View(history, taken, tuple(n for _, n in firsts.values()))

    def _row(self, frozen: FrozenTrial, directions: Sequence[Direction]) -> _Row | None:
        """Return a finished trial; ``None`` if it has no place in the space."""
        values = None if is_stopped(frozen) else self.space.flatten(frozen.params)
        if values is None:
            return None
        start = start_of(stored.text_of(read_note(frozen, "explanation")))
        named = stored.read_named(frozen.system_attrs)
        start = None if start is None else named.get(str(start), start - 1)
        rewards, state, reason = _outcome(frozen, len(directions))
        broken = stored.violated(frozen)
        remarks = [
            reason,
            self._drawn(frozen),
            *(
                (stored.curve_of(frozen, directions[0]), stored.duration_of(frozen))
                if self._curves
                else ()
            ),
            *(stored.text_of(words) for words in stored.told_of(frozen.user_attrs, "feedback")),
            stored.violations_in_words(broken),
        ]
        linear = [c for c in self._constraints if c.names <= frozen.params.keys()]
        words = read_fixed(frozen) and "; ".join(
            map(stored.text_of, stored.told_of(frozen.user_attrs, "words"))
        )
        trial = Trial(
            number=frozen.number,
            params=dict(frozen.params),
            values=values,
            rewards=rewards,
            state=state,
            feedback="; ".join(r for r in remarks if r),
            source="user" if words else _source(frozen),
            explanation=words or with_start(stored.text_of(read_note(frozen, "explanation")), None),
            constraint_violation=stored.violation_of(broken)
            + sum(c.amount(frozen.params) for c in linear),
            stderr=stored.stderr_of(frozen.user_attrs, len(rewards))
            if rewards and state == "complete"
            else None,
            data=stored.data_of(frozen, self._curves),
            parts=stored.parts_of(frozen.user_attrs),
            **stored.shares_of(partial(read_note, frozen)),
        )
        return _Row(frozen, trial, self.space.space.key(values), start)

    def _drawn(self, frozen: FrozenTrial) -> str:
        """Name the parameters of a model's point that were sampled at random in its trial."""
        drawn = read_drawn(frozen) if _source(frozen) == "llm" else []
        shown = [n for n in self.space.distributions if n in drawn and n in frozen.params]
        text = ", ".join(f"{name} = {frozen.params[name]!r}" for name in shown)
        return f"drawn at random, as the answer could not give it: {text}" if shown else ""


def _in_order(rows: Iterable[_Row]) -> list[_Row]:
    """Return trials in the order in which they were recorded.

    Before Optuna 5 a storage holds each worker's local time without its zone. Trials are numbered
    as they begin. So if one began well before another of a smaller number, the clocks differ, and
    the numbers are all that is sure.
    """
    rows, latest = sorted(rows, key=lambda row: row.frozen.number), -math.inf
    for row in rows:
        began = _seconds(row.frozen.datetime_start)
        if began < latest - _CLOCKS:
            return rows
        latest = max(latest, began)
    return sorted(rows, key=lambda row: _seconds(row.frozen.datetime_complete))


def _seconds(when: datetime | None) -> float:
    return when.timestamp() if when else -math.inf


def _source(frozen: FrozenTrial) -> Source:
    source = read_note(frozen, "source")
    return source if is_source(source) else "user"


def _outcome(frozen: FrozenTrial, objectives: int) -> tuple[tuple[float, ...] | None, Any, str]:
    """Return a finished trial's rewards, its llmopt state, and what to say about it."""
    if frozen.state == TrialState.COMPLETE and frozen.values:
        rewards = [stored.number_of(v) for v in frozen.values]
        finite = tuple(r for r in rewards if r is not None)
        if len(finite) == len(rewards) == objectives:
            return finite, "complete", ""
        return None, "failed", f"the value was {', '.join(map(str, frozen.values))}"
    if frozen.state == TrialState.PRUNED:
        step = frozen.last_step
        value = None if step is None else stored.number_of(frozen.intermediate_values[step])
        if value is not None:
            return (value,), "pruned", f"stopped at step {step}"
        return None, "pruned", ""
    return None, "failed", stored.text_of(read_note(frozen, "error"))


def recommended(trials: Iterable[FrozenTrial], direction: Direction) -> FrozenTrial:
    """Return the trial to keep of a study with noisy values; see `LLMSampler.recommend`."""
    done: list[Trial[FrozenTrial]] = []
    for frozen in trials:
        rewards, state, _ = _outcome(frozen, 1)
        if state == "complete":
            point = (repr(sorted(frozen.params.items())),)
            broken, error = (
                stored.violation_of(stored.violated(frozen)),
                stored.stderr_of(frozen.user_attrs, 1),
            )
            done.append(
                Trial(len(done), frozen, point, rewards, constraint_violation=broken, stderr=error)
            )
    best = Merged(lambda values: values).of(History(tuple(done), directions=(direction,))).best
    if best is None:
        raise ValueError("no trial of the study is complete: there is nothing to recommend")
    return next(trial.params for trial in done if trial.values == best.values)
