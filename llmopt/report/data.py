"""What a report shows of a search, wherever the search was kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from llmopt.errors import LLMOptError
from llmopt.history import Direction, History, Trial, Usage
from llmopt.optuna_trials import for_readers
from llmopt.prompt.answer import Answer, notes_of
from llmopt.report.scales import Scale, number_text, robust_scale
from llmopt.space import Categorical, Space
from llmopt.space.values import ABSENT, identity
from llmopt.util.text import clean, cut, short

_MOST_CHOICES = 60  # that a parameter's axis has
GIVEN = ("user", "warmup")
"""Sources of points whose words are the user's."""

UNFINISHED = "no result"
"""The state of a point without a result."""


@dataclass(frozen=True)
class Parameter:
    """A parameter, with its range or its choices."""

    name: str
    scale: Scale
    codes: Mapping[Any, int] = field(default_factory=dict)  # of choices, by `identity`
    whole: bool = False  # whether it is a whole number
    when: str = ""  # in words, when a point has it; empty if every point does

    def share(self, value: Any) -> float | None:
        """Return where a value is on the parameter's axis, from 0 to 1."""
        if self.scale.choices:
            try:
                code = self.codes.get(identity(value))
            except TypeError:
                return None
            return None if code is None else self.scale.share(code)
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            return None
        return None if number != number else self.scale.share(number)

    @property
    def range(self) -> str:
        """The values that it may have, in words."""
        if self.scale.choices:
            return "one of " + ", ".join(self.scale.choices)
        ends = f"{number_text(self.scale.low)} to {number_text(self.scale.high)}"
        return ends + ", whole" * self.whole + ", logarithmic" * self.scale.log


def number_parameter(
    name: str, low: float, high: float, log: bool, whole: bool, when: str = ""
) -> Parameter:
    """Return a parameter of numbers."""
    scale = Scale(float(low), float(high), log and low > 0, whole=whole)
    return Parameter(clean(name), scale, whole=whole, when=when)


def choice_parameter(
    name: str, choices: Sequence[Any], labels: Sequence[str], when: str = ""
) -> Parameter:
    """Return a parameter of choices; those beyond the first 60 share a place."""
    texts = [cut(clean(label), 40) for label in labels]
    shown = texts[:_MOST_CHOICES] + ["others"] * (len(texts) > _MOST_CHOICES)
    codes = {identity(choice): min(i, _MOST_CHOICES) for i, choice in enumerate(choices)}
    return Parameter(clean(name), Scale(0, 1, choices=tuple(shown)), codes, when=when)


def parameters_of(space: Space) -> tuple[Parameter, ...]:
    """Return the parameters of a space."""
    found = []
    for i, (name, d) in enumerate(zip(space.names, space.dimensions, strict=True)):
        when = space.condition(i)
        if isinstance(d, Categorical):
            found.append(choice_parameter(name, d.choices, d.labels, when))
        else:
            whole = type(d).__name__ == "Int"
            found.append(number_parameter(name, d.low, d.high, d.log, whole, when))
    return tuple(found)


def point_of(space: Space, values: Sequence[Any]) -> dict[str, Any]:
    """Return a flat point as a mapping, without the parameters that it lacks."""
    pairs = zip(space.names, values, strict=True)
    return {clean(name): value for name, value in pairs if value is not ABSENT}


def value_text(value: Any) -> str:
    """Return a parameter's value for readers."""
    if isinstance(value, (float, np.floating)):
        return number_text(float(value))
    return cut(clean(value), 80)


def unfinished_point(number: int, params: Mapping[str, Any], **facts: Any) -> Trial[Any]:
    """Return a point without a result as a row of the report; it is in no history.

    Args:
        number: Its number, which no other trial has.
        params: Its parameters.
        **facts: Further fields of `Trial`; ``feedback`` says what is known about it.
    """
    state: Any = UNFINISHED
    return Trial(number, dict(params), (), None, state, **facts)


@dataclass(frozen=True)
class SearchData:
    """A search as a report shows it."""

    title: str
    origin: str  # what it was read from, in words
    parameters: tuple[Parameter, ...]
    directions: tuple[Direction, ...]
    trials: tuple[Trial[Any], ...]  # `params` is a mapping from the names of parameters
    merged: tuple[Trial[Any], ...] = ()  # of a noisy search: a point's measurements as one
    best: Trial[Any] | None = None  # of one objective
    usage: Usage | None = None
    ended: str = ""  # why the search ended; empty if nothing says so
    description: str = ""  # of the task, as in the prompt
    facts: tuple[tuple[str, str], ...] = ()  # how the search was set up
    metrics: tuple[str, ...] = ()  # names of the objectives
    # What trials reported on their way, as pairs of a step and a value, by number.
    curves: Mapping[int, Sequence[tuple[float, float]]] = field(default_factory=dict)
    # Rewards of further methods on the same task, in their order, by label.
    rivals: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    unfinished: tuple[Trial[Any], ...] = ()  # points without a result, by `unfinished_point`
    planned: int | None = None  # trials that the search may take
    resume: str = ""  # how a killed search goes on, in a sentence; empty if nothing stored it
    numbered: bool = True  # whether "Start from: #3" names a trial, which models count from 1
    # Where not, which trials the model named, by the number of the trial; see `named_in`.
    named: Mapping[int, Mapping[str, int | None]] = field(default_factory=dict)

    @cached_property
    def history(self) -> History:
        """The trials as a `History`, repeated measurements as one."""
        trials, noisy = self.merged or self.trials, bool(self.merged)
        return History(trials, directions=self.directions, noisy=noisy, metrics=self.objectives)

    def with_best(self) -> SearchData:
        """Return the same with the best trial of one objective."""
        best = None if self.several else self.history.best
        return replace(self, best=best)

    @cached_property
    def objectives(self) -> tuple[str, ...]:
        """What the objectives are called."""
        named = History(directions=self.directions, metrics=self.metrics)
        return tuple(clean(name) for name in named.objectives)

    @property
    def several(self) -> bool:
        """Whether there are several objectives."""
        return len(self.directions) > 1

    @property
    def count(self) -> int:
        """How many points there are, those without a result among them."""
        return len(self.trials) + len(self.unfinished)

    @property
    def none_feasible(self) -> bool:
        """Whether there are results, and each violates a constraint."""
        return bool(self.done) and len(self.infeasible) == len(self.done)

    def goal(self, objective: int, name: str = "") -> str:
        """Return the label of an objective's axis, with the direction that is better."""
        larger = self.directions[objective] == "maximize"
        return (
            f"{name or self.objectives[objective]} ({'larger' if larger else 'smaller'} is better)"
        )

    def objective(self, which: int | str, argument: str = "objective") -> int:
        """Return the place of an objective that is given by its name or its place."""
        names = self.objectives
        if which in names:
            return names.index(str(which))
        if isinstance(which, int) and not isinstance(which, bool) and 0 <= which < len(names):
            return which
        raise LLMOptError(
            f"{argument}={short(which)}: expected a number from 0 to {len(names) - 1}, or one of "
            f"{', '.join(map(repr, names))}"
        )

    def shown_number(self, number: int) -> int:
        """Return the number of a trial for readers: from 1, as its model counts, if it does."""
        return number + self.numbered

    @cached_property
    def done(self) -> tuple[Trial[Any], ...]:
        """Complete trials, each measurement as it came."""
        return tuple(t for t in self.trials if t.state == "complete" and t.rewards)

    @property
    def best_so_far(self) -> list[tuple[int, float]]:
        """The best reward of one objective after each feasible trial, with its number."""
        feasible = [t for t in self.history.complete if t.constraint_violation <= 0]
        pairs = zip(feasible, self.history.best_so_far, strict=True)
        return [(t.number, best.rewards[0]) for t, best in pairs if best.rewards]

    @cached_property
    def front(self) -> tuple[Trial[Any], ...]:
        """The Pareto front of several objectives."""
        return self.history.pareto_front if self.several else ()

    @cached_property
    def ringed(self) -> frozenset[int]:
        """Numbers of the trials that charts mark: the Pareto front, or the best trial."""
        if self.several:
            return frozenset(t.number for t in self.front)
        return frozenset(() if self.best is None else (self.best.number,))

    @cached_property
    def infeasible(self) -> frozenset[int]:
        """Numbers of the complete trials that violate a constraint."""
        return frozenset(t.number for t in self.done if t.constraint_violation > 0)

    @cached_property
    def leading(self) -> frozenset[int]:
        """Numbers of the trials that were the best so far, or are on the Pareto front."""
        return (
            self.ringed if self.several else frozenset(t.number for t in self.history.best_so_far)
        )

    def values(self, objective: int = 0) -> list[float]:
        """Return the complete trials' values of an objective."""
        return [t.rewards[objective] for t in self.done if t.rewards]

    def scale(self, objective: int = 0) -> Scale:
        """Return the axis of an objective, on which the warm-up does not flatten the search."""
        return self._scales[objective]

    @cached_property
    def _scales(self) -> tuple[Scale, ...]:
        scales = []
        for k, direction in enumerate(self.directions):
            core = [t.rewards[k] for t in self.done if t.rewards and t.source != "warmup"]
            kept = [t.rewards[k] for t in self.front if t.rewards]
            scales.append(robust_scale(self.values(k), direction, core, kept=kept))
        return tuple(scales)

    def start_of(self, notes: Answer) -> Trial[Any] | None:
        """Return the trial that a model says it started from, if it is known."""
        if not (self.numbered and isinstance(notes.start, int)):
            return None
        number = notes.start - 1
        return self.trials[number] if 0 <= number < len(self.trials) else None

    @cached_property
    def thoughts(self) -> bool:
        """Whether a model explained any of its points."""
        return any(t.explanation and t.source not in GIVEN for t in self.trials)

    def notes(self, trial: Trial[Any]) -> Answer:
        """Return the parts of what a model said about a trial, with the numbers of `words`."""
        notes = notes_of(trial.explanation)
        return replace(
            notes,
            lesson=self.words(trial, notes.lesson),
            analysis=self.words(trial, notes.analysis),
            hypothesis=self.words(trial, notes.hypothesis),
            dropped=self.words(trial, notes.dropped),
        )

    def words(self, trial: Trial[Any], text: str) -> str:
        """Return a model's words about a trial with the numbers that the page gives trials."""
        return text if self.numbered else for_readers(text, self.named.get(trial.number, {}))

    @cached_property
    def shares(self) -> dict[int, list[float | None]]:
        """Where the values of a trial are on the axes of the parameters, by its number."""
        return {
            t.number: [
                p.share(t.params[p.name]) if p.name in t.params else None for p in self.parameters
            ]
            for t in self.trials
        }
