"""The `columns` prompt: one line for each parameter, continued by one letter.

A line holds one coordinate of the best trials, best first, as letters a to z over the frame of
`covariance_frame`, behind a letter that says how many parameters there are. One of
the frame's axes is turned to where the trials get better (`slope_frame`); its line
begins with a small letter, the others with a capital. The model's probabilities of the next
letter are where the coordinate is drawn from. Categorical parameters have no line.

For the embedded model an adapter comes with the package that was trained on such lines
(`llmopt.benchmarks.experiments.train_columns`); without one a model of that size does not read
them (docs/strategies.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import numpy as np

from llmopt.client.base import Message
from llmopt.history import Trial
from llmopt.prompt.base import Complaint, Query, Situation
from llmopt.prompt.frame import Axes, Frame, share_places, slope_frame, weigh, whole_frame
from llmopt.prompt.parse import Reading
from llmopt.prompt.pattern import LevelsPrompt, LineReader, encode_trials, shown_points, shuffled
from llmopt.prompt.selection import Keep, Selection
from llmopt.prompt.template import check_positive
from llmopt.space import Space, Value
from llmopt.space.dimensions import Categorical, level_count
from llmopt.space.space import step_lengths

ELITES = 20
"""Trials of a line, as the adapter was trained."""

SPREAD = 2.5
"""Half of the frame, in standard deviations of the elites."""

LEAST = 1e-4
"""Least standard deviation of the frame, as a share of a dimension's range."""

LEAST_STEPS = 0.8
"""The same for a dimension of discrete values, in steps: two to each side stay in reach."""

REGRESSION = 60
"""How many of the best trials tell the slope."""

WIDEN_AFTER = 120
"""Complete trials from which on half of the answers are read in a wider frame."""

WIDEST = 0.4
"""Standard deviation of the widest of these frames, as a share of a range: the mean over the
continuous dimensions, and the most for each discrete one."""

OPEN = 0.3
"""Best trials that each choice of a categorical parameter counts for beside those it is in."""

FEWEST = 5
"""With fewer complete trials the prompt is that of `LevelsPrompt`: such lines are not trained."""


@dataclass(repr=False)
class ColumnsPrompt(LevelsPrompt):
    """One line for each parameter: its levels in the best trials, best first.

    The request holds the lines in `Request.columns`, for clients that give the probabilities of
    the next letter (`LocalClient`). Parameters are drawn each by itself, along the axes of the
    covariance frame. The prompt's length is the number of trials shown times that of parameters;
    each line is a text of its own to the model. With fewer than `FEWEST` complete trials, or with
    categorical parameters alone, it asks as `LevelsPrompt` does.

    A categorical parameter's choices have no order and no line: they are drawn, with no model,
    as often as the best trials have them, the better ones weighing more (`weigh`,
    and `OPEN` for every choice).

    A long search would converge too early: from `widen_after` complete trials on, whoever proposed
    them, half of the answers are read in the frame widened, by a factor between 1 and what makes it
    as wide as `WIDEST`, drawn evenly on a logarithmic scale; ``None`` never widens. What leaves the
    space is moved to its bound, whatever `out_of_range` says. In a search of 100 evaluations this
    costs more than it gives, in one of 400 it pays (docs/strategies.md, round 13).

    The other options are those of `PatternPrompt`; the notation is always letters and the style a
    completion. The adapter knows the frame ``"covariance"`` alone; in the others no line follows
    the slope, and none is widened. ``order="shuffled"`` leaves the slope as it is.

    Raises:
        ValueError: An option is not valid.
    """

    history: Keep | Selection = "best"
    best: int = ELITES
    temperature: float | None = 0.7
    min_deviation: float = LEAST
    spread: float = SPREAD
    widen_after: int | None = WIDEN_AFTER
    name: str = field(default="columns", init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("widen_after", self.widen_after, "trials")
        if self.notation != "letters" or self.style != "completion":
            raise ValueError(
                f"notation={self.notation!r}, style={self.style!r}: the prompt 'columns' has only "
                "letters and 'completion'; take 'levels' or 'pattern' for others"
            )

    def prepare(self, situation: Situation) -> Query:
        """Make the question for one situation; see `Prompt.prepare`."""
        dimensions = situation.space.dimensions
        numeric = [i for i, d in enumerate(dimensions) if not isinstance(d, Categorical)]
        if len(situation.history.complete) < FEWEST or not numeric:
            same = ("order", "dither", "max_prompt_tokens", "max_tokens")
            other = LevelsPrompt(**{name: getattr(self, name) for name in same})
            return other.prepare(situation)
        if len(numeric) < len(dimensions):
            query = self.prepare(_part(situation, numeric))
            return replace(query, read=_MixedReader(query.read, situation, numeric))
        # A line alone always fits the model's context; `max_prompt_tokens` is for all of them.
        query = super().prepare(replace(situation, context_tokens=None))
        lines = tuple(query.request.messages[0].content.split("\n"))
        choices = tuple(f" {letter}" for letter in ascii_lowercase)
        return replace(query, request=replace(query.request, columns=lines, choices=choices))

    def _reader(self, frame: Frame, situation: Situation) -> LineReader:
        reader = super()._reader(frame, situation)
        told = len(situation.history.complete)
        if frame.axes is None or self.widen_after is None or told < self.widen_after:
            return reader
        return _WideningReader(reader, frame.axes, situation)

    def _whole_frame(self, space: Space) -> Frame:
        # Discrete values are read off the cells, so that all lines are alike.
        return whole_frame(space, self._notation(space).whole, 1)

    def _least(self, space: Space, best: Trial) -> np.ndarray:
        # On a logarithmic scale a step is as wide as it is where the best trial lies.
        steps = step_lengths(space, best.values)
        least: np.ndarray = np.maximum(self.min_deviation, LEAST_STEPS * steps)
        return least

    def _write(
        self, elites: list[Trial], situation: Situation, complaints: tuple[Complaint, ...]
    ) -> tuple[tuple[Message, ...], Frame]:
        """Write the trials, given best first, and return what their levels stand for."""
        space = situation.space
        frame, leading = self._frame(elites, space), None
        if frame.axes is not None:
            known = situation.history.ranked[:REGRESSION]
            frame, leading = slope_frame(frame, encode_trials(known, space), rank_places(known))
        rows = frame.rows(shown_points(elites, space))
        if self.order == "shuffled":
            rows = shuffled(rows, situation)
        columns = enumerate(zip(*rows, strict=True))
        lines = (write_line(len(space), i == leading, levels) for i, levels in columns)
        return (Message("user", "\n".join(lines)),), frame


def _part(situation: Situation, chosen: Sequence[int]) -> Situation:
    """Return the situation of some dimensions alone."""
    space, history = situation.space, situation.history

    def part(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(values[i] for i in chosen)

    trials = tuple(replace(t, values=part(t.values)) for t in history.trials)
    pending = tuple(part(values) for values in history.pending)
    return replace(
        situation,
        space=Space({space.names[i]: space.dimensions[i] for i in chosen}),
        history=replace(history, trials=trials, pending=pending),
    )


class _MixedReader:
    """Reads the numeric parameters of a line, and draws the categorical ones."""

    def __init__(
        self, read: Callable[[str], Reading], situation: Situation, numeric: Sequence[int]
    ) -> None:
        self._read = read
        self._numeric = numeric
        self._rng = np.random.default_rng([situation.seed, situation.iteration])
        best = situation.history.ranked[:ELITES]
        units = encode_trials(best, situation.space)
        self._choices: dict[int, tuple[tuple[Any, ...], np.ndarray]] = {}
        for i, dimension in enumerate(situation.space.dimensions):
            if isinstance(dimension, Categorical):
                count = len(dimension.choices)
                indices = (units[:, i] * (count - 1)).round().astype(int)
                weights = np.bincount(indices, len(best) * weigh(len(best)), count) + OPEN
                self._choices[i] = dimension.choices, weights / weights.sum()

    def __call__(self, text: str) -> Reading:
        reading = self._read(text)
        values = dict(zip(self._numeric, reading.values, strict=True))
        for i, (choices, shares) in self._choices.items():
            values[i] = choices[self._rng.choice(len(choices), p=shares)]
        return replace(reading, values=tuple(values[i] for i in range(len(values))))


class _WideningReader(LineReader):
    """Reads half of the answers in a wider frame: every second one of a request.

    With an odd number of samples the seed says whether the first is one of them.
    """

    def __init__(self, reader: LineReader, axes: Axes, situation: Situation) -> None:
        super().__init__(reader.notation, reader.frame, reader.seed, reader.dither, reader.reject)
        dimensions = [situation.space.dimensions[i] for i in reader.frame.continuous]
        discrete = np.array([level_count(d) < math.inf for d in dimensions])
        deviations = np.maximum(np.sqrt((axes.matrix**2).sum(axis=1)), 1e-12)
        # Discrete values have a frame of some steps at least: it says nothing about the others.
        counted = deviations if discrete.all() else deviations[~discrete]
        self._room = max(math.log(WIDEST / counted.mean()), 0.0)
        self._most = np.where(discrete, np.maximum(WIDEST / deviations, 1.0), math.inf)
        self._number = situation.iteration
        self._wide = situation.samples % 2 == 0 or situation.seed % 2 == 0

    def __call__(self, text: str) -> Reading:
        wide, number = self._wide, self._number
        self._wide = not wide
        self._number += 1
        if not wide:
            return super().__call__(text)
        share = np.random.default_rng([self.seed, number]).random()
        scales = np.minimum(math.exp(share * self._room), self._most)
        return self.read(text, self.frame.widened(scales))


def write_line(n: int, leading: bool, levels: Sequence[int]) -> str:
    """Return the line of one parameter.

    Args:
        n: Parameters of the space; from 26 on they are written alike.
        leading: Whether its axis is the slope (`slope_frame`): the line's first letter is small.
        levels: Its levels in the best trials, best first.
    """
    head = ascii_uppercase[min(n, len(ascii_uppercase)) - 1]
    return " ".join([head.lower() if leading else head, *(ascii_lowercase[k] for k in levels)])


def read_line(line: str) -> tuple[int, bool, list[int]]:
    """Return what `write_line` was given."""
    head, *letters = line.split(" ")
    n = ascii_uppercase.index(head.upper()) + 1
    return n, head.islower(), [ascii_lowercase.index(letter) for letter in letters]


def rank_places(ranked: Sequence[Trial]) -> np.ndarray:
    """Return the places of trials, given best first; equals share their mean place."""
    return share_places([(t.rewards, t.constraint_violation) for t in ranked])
