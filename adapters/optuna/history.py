"""A study's trials, as its storage has them, as the history that a prompt is made from."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from llmopt.adapters.optuna.records import (
    is_stopped,
    part_of,
    read_fixed,
    read_note,
    read_proposal,
)
from llmopt.adapters.optuna.space import Decomposition, Distributions, ParameterGroup
from llmopt.history import Direction, History, Source, Trial
from llmopt.prompt.answer import start_of, with_start
from llmopt.space import Value
from llmopt.space.constraints import Constraint
from llmopt.study import (
    amount_of,
    number_of,
    stderr_of,
    text_of,
    told_of,
    violated,
    violation_of,
)
from llmopt.text import cut

_HINT_LENGTH = 1000  # characters of one hint: a study's attributes may hold anything
_HINTS = 50  # lines of hints
_MOST_OPEN = 200  # points being evaluated that are shown: killed workers leave theirs for ever
_NO_POINT = (KeyError, ValueError, TypeError, OverflowError)
_SOURCES = ("warmup", "llm", "drawn", "fallback", "cma")
_STATES = (TrialState.COMPLETE, TrialState.PRUNED)


def learned(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials that count for start-up and for the search space."""
    return [t for t in trials if t.state in _STATES and not is_stopped(t)]


def known_params(trial: FrozenTrial, latest: Distributions) -> dict[str, Any]:
    """Return the parameters that a trial has, or is known to get, in Optuna's form."""
    params: dict[str, Any] = {}
    if not trial.state.is_finished():
        for name, value in read_proposal(trial.system_attrs).items():
            if name in latest:
                with contextlib.suppress(IndexError, *_NO_POINT):
                    params[name] = latest[name].to_external_repr(value)
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
    """Return what the user wrote about the study, and what is already set in the trial.

    Args:
        study: The study.
        names: Which of its user attributes to show; ``None`` for all.
        context: The trial's parameters that are not asked for now.
    """
    # HyperbandPruner's bracket study refuses these attributes; the study behind it does not.
    study = getattr(study, "_study", study)
    lines = []
    if len(metrics := metrics_of(study)) == 1:  # several are named where they are shown
        lines.append(f"the objective f is called {metrics[0]}")
    # Not `study.user_attrs`, whose copy fails on deeply nested values.
    attributes = study._storage.get_study_user_attrs(study._study_id)
    shown = attributes if names is None else names
    found = [name for name in shown if name in attributes][:_HINTS]
    lines += [f"{name}: {text_of(attributes[name], _HINT_LENGTH)}" for name in found]
    if context:
        given = ", ".join(f"{name} = {value!r}" for name, value in context.items())
        lines.append(f"already set for this proposal: {given}")
    return tuple(cut(line, _HINT_LENGTH) for line in lines)


@dataclass(frozen=True)
class _Row:
    """A finished trial as one group of parameters sees it.

    Attributes:
        frozen: What the storage returned; as long as it is the same object, so is the row.
        trial: The trial, or ``None`` if it has no place in the group's space.
        key: Its point's `Space.key`.
        rest: Its parameters outside the group, single-valued ones left out.
        text: The model's answer.
        start: Number of the study's trial that the answer starts from.
        shown_start: Position of that trial as `trial` says it.
        told: Sorts by the order of telling.
    """

    frozen: FrozenTrial
    trial: Trial | None
    key: Hashable = None
    rest: tuple[tuple[str, Any], ...] = ()
    text: str = ""
    start: int | None = None
    shown_start: int | None = None
    told: tuple[datetime, int] = (datetime.min, 0)


@dataclass(frozen=True)
class View:
    """What one proposal is made from.

    Attributes:
        history: Finished trials in the order of telling, and the points of unfinished ones.
        taken: Keys of the points that would make this trial the repeat of another.
        numbers: Number in the study of each trial of `history`.
        whole: Whether the trials have no other parameters.
    """

    history: History
    taken: frozenset[Hashable]
    numbers: tuple[int, ...] = ()
    whole: bool = True

    def start_of(self, explanation: str) -> int | None:
        """Return the study's number of the trial that an answer starts from, if it names one."""
        named = start_of(explanation)
        return self.numbers[named - 1] if named and named <= len(self.numbers) else None


class GroupHistory:
    """Reads a study's trials as the history of one group of parameters.

    Finished trials never change, so each is converted once; which trials there are is
    read from the storage at every call.

    Args:
        group: The parameters.
        constraints: Linear inequalities over the study's parameters.
        noisy: Whether repeated measurements of a point are one trial.
    """

    def __init__(
        self,
        group: ParameterGroup,
        constraints: Sequence[Constraint] = (),
        noisy: bool = False,
    ) -> None:
        self.group = group
        self._constraints = constraints
        self._noisy = noisy
        self._rows: dict[int, _Row] = {}

    def view(
        self,
        study: Study,
        trials: Sequence[FrozenTrial],
        number: int,
        context: Mapping[str, Any],
        parameters: Decomposition,
    ) -> View:
        """Return the history for the proposal of one trial.

        Args:
            study: The study, for its directions.
            trials: All its trials.
            number: The trial that the proposal is for.
            context: That trial's parameters outside the group, as far as they are set.
            parameters: The study's parameters.
        """
        finished = []
        for trial in trials:
            if trial.state.is_finished():
                row = self._rows.get(trial.number)
                if row is None or row.frozen is not trial:
                    objectives = len(study.directions)
                    row = self._row(trial, parameters, objectives)
                    self._rows[trial.number] = row
                if row.trial is not None:
                    finished.append(row)
        finished.sort(key=lambda row: row.told)
        open_points, running = self._unfinished(trials, number, context, parameters)
        taken = {row.key for row in finished if _could_repeat(row.rest, context)} | running
        directions: tuple[Direction, ...] = tuple(
            "maximize" if d.name == "MAXIMIZE" else "minimize" for d in study.directions
        )
        places = self._places(finished)
        told = self._told(finished, places)
        history = History(
            told,
            open_points,
            directions,
            metrics=metrics_of(study),
            partial=any(
                row.key not in taken
                for row, trial in zip(finished, told, strict=True)
                if trial.state == "complete"
            ),
        )
        if self._noisy:
            history = history.merged(self.group.space.key)
        numbers = {place: number for number, place in reversed(places.items())}
        shown = tuple(numbers[place] for place in range(len(numbers)))
        whole = not any(row.rest for row in finished)
        return View(history, frozenset(taken), shown, whole)

    def _places(self, finished: Sequence[_Row]) -> dict[int, int]:
        """Return the position at which each trial of the study is shown, by its number."""
        firsts: dict[Hashable, int] = {}
        places = {}
        for row in finished:
            merges = self._noisy and row.trial is not None and row.trial.state == "complete"
            key = row.key if merges else ("", row.frozen.number)
            places[row.frozen.number] = firsts.setdefault(key, len(firsts))
        return places

    def _told(self, finished: Sequence[_Row], places: Mapping[int, int]) -> tuple[Trial, ...]:
        """Return the trials, numbered by their position and with the starts that they name so."""
        told = []
        for position, row in enumerate(finished):
            trial = row.trial
            assert trial is not None
            start = None if row.start is None else places.get(row.start)
            if trial.number != position or start != row.shown_start:
                words = trial.explanation
                if row.text:
                    words = with_start(row.text, None if start is None else start + 1)
                trial = replace(trial, number=position, explanation=words)
                row = replace(row, trial=trial, shown_start=start)
                self._rows[row.frozen.number] = row
            told.append(trial)
        return tuple(told)

    def _unfinished(
        self,
        trials: Sequence[FrozenTrial],
        number: int,
        context: Mapping[str, Any],
        parameters: Decomposition,
    ) -> tuple[tuple[tuple[Value, ...], ...], set[Hashable]]:
        points: list[tuple[Value, ...]] = []
        keys: set[Hashable] = set()
        for trial in trials:
            if trial.state.is_finished() or trial.number == number:
                continue
            params = known_params(trial, parameters.latest)
            try:
                values = self.group.flatten(params)
            except _NO_POINT:
                continue
            points.append(values)
            # A trial that will get further parameters is not a repeat yet.
            whole = frozenset(params.keys() & parameters.latest.keys()) in parameters.shapes
            rest = self._rest(params, parameters.latest)
            if whole and _could_repeat(rest, context):
                keys.add(self.group.space.key(values))
        return tuple(points[-_MOST_OPEN:]), keys

    def _rest(
        self, params: Mapping[str, Any], latest: Distributions
    ) -> tuple[tuple[str, Any], ...]:
        own = self.group.distributions
        return tuple((n, v) for n, v in params.items() if n in latest and n not in own)

    def _row(self, frozen: FrozenTrial, parameters: Decomposition, objectives: int) -> _Row:
        try:
            values = self.group.flatten(frozen.params)
        except _NO_POINT:
            return _Row(frozen, None)
        if is_stopped(frozen):
            return _Row(frozen, None)
        rewards, state, reason = _outcome(frozen, objectives)
        remarks = [reason, *(text_of(words) for words in told_of(frozen.user_attrs, "feedback"))]
        broken = violated(frozen)
        if broken:
            shown = ", ".join(f"{n} = {c:g}" for n, c in broken.items())
            remarks.append(f"constraints above 0: {shown}")
        linear = [c for c in self._constraints if c.names <= frozen.params.keys()]
        words = read_fixed(frozen.system_attrs) and "; ".join(
            map(text_of, told_of(frozen.user_attrs, "words"))
        )
        rest = self._rest(frozen.params, parameters.latest)
        if rest:  # what the value and the user's words are about, too
            others = ", ".join(f"{name} = {value!r}" for name, value in rest)
            remarks.append(f"together with {others}" + (f" it is {words}" if words else ""))
        part = part_of(frozen, self.group.distributions)
        text = "" if words else part.text if part else text_of(read_note(frozen, "explanation"))
        trial = Trial(
            number=frozen.number,
            params=dict(frozen.params),
            values=values,
            rewards=rewards,
            state=state,
            feedback="; ".join(r for r in remarks if r),
            source="user"
            if words
            else _source(part.source if part else read_note(frozen, "source")),
            explanation=with_start(text, None) if text else "" if rest else words or "",
            prompt_tokens=amount_of(read_note(frozen, "prompt_tokens")),
            completion_tokens=amount_of(read_note(frozen, "completion_tokens")),
            seconds=amount_of(read_note(frozen, "seconds")),
            constraint_violation=violation_of(broken)
            + sum(c.amount(frozen.params) for c in linear),
            stderr=stderr_of(frozen.user_attrs) if rewards and state == "complete" else None,
        )
        when = frozen.datetime_complete or datetime.min
        told = (when.replace(tzinfo=None), frozen.number)
        key = self.group.space.key(values)
        return _Row(frozen, trial, key, rest, text, part.start if part else None, told=told)


def _could_repeat(rest: Sequence[tuple[str, Any]], context: Mapping[str, Any]) -> bool:
    """Whether a trial agrees with this one in everything outside the group."""
    if len(rest) != len(context):
        return False
    return all(name in context and context[name] == value for name, value in rest)


def _source(source: Any) -> Source:
    return source if isinstance(source, str) and source in _SOURCES else "user"  # type: ignore[return-value]


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
    return None, "failed", ""


def recommended(trials: Iterable[FrozenTrial], direction: Direction) -> FrozenTrial:
    """Return the trial to keep of a study with noisy values; see `LLMSampler.recommend`.

    Raises:
        ValueError: No trial is complete.
    """
    done: list[tuple[FrozenTrial, Trial]] = []
    for frozen in trials:
        rewards, state, _ = _outcome(frozen, 1)
        if state == "complete":
            point = (repr(sorted(frozen.params.items())),)
            violation = violation_of(violated(frozen))
            trial = Trial(len(done), None, point, rewards, constraint_violation=violation)
            done.append((frozen, trial))
    history = History(tuple(trial for _, trial in done), directions=(direction,))
    best = history.merged(lambda values: values).best
    if best is None:
        raise ValueError("no trial of the study is complete: there is nothing to recommend")
    return next(frozen for frozen, trial in done if trial.values == best.values)
