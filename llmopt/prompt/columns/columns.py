"""The `columns` prompt: one line for each parameter, continued by one letter.

A line holds one coordinate of the best trials, best first, as letters a to z over the frame of
`covariance_frame`, behind a letter that says how many parameters there are. One of
the frame's axes is turned to where the trials get better (`slope_frame`); its line
begins with a small letter, the others with a capital. The model's probabilities of the next
letter are where the coordinate is drawn from. Categorical parameters have no line.

For the embedded model an adapter comes with the package that was trained on such lines
(`llmopt.benchmarks.experiments.train_columns`); without one a model of that size does not read
them (benchmarks/results/archive.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from string import ascii_lowercase, ascii_uppercase
from typing import Any, ClassVar, TypeAlias

import numpy as np

from llmopt.client.base import Message, Request
from llmopt.history import Trial, without_withdrawn
from llmopt.prompt.answer_parts import Point, Reading
from llmopt.prompt.columns.frame import (
    Frame,
    covariance_frame,
    share_places,
    slope_frame,
    weigh,
)
from llmopt.prompt.columns.letters import RowReader, row_grammar
from llmopt.prompt.situation import Question, Situation, changed_options, check_counts
from llmopt.space import Space, Value
from llmopt.space.dimensions import Categorical
from llmopt.space.values import ABSENT

ELITES = 20  # trials of a line, as the adapter was trained
SPREAD = 2.5  # half of the frame, in standard deviations of the elites
LEAST = 1e-4  # minimum standard deviation of the frame, as a share of a dimension's range
LEAST_STEPS = 0.8  # the same for discrete values, in steps: two to each side stay in reach
LEAST_SPREAD = 0.01  # the same for a point that is sampled again, as a share of a range
REGRESSION = 60  # how many of the best trials the slope is fitted to
OPEN = 0.3  # best trials that each choice of a categorical parameter gets in addition to its own
# Share of points with a uniform choice, divided among the categorical parameters: a search whose
# first good branch or category came early keeps trying the others.
EXPLORE = 0.4
# Share of points that explore, in a space where points may lack parameters: the few trials that
# took a branch do not show what it is worth.
EXPLORE_BRANCHES = 2 / 3
AT_RANDOM = 0.1  # share of points whose numbers are uniform, where a sampler beside it explores
FEWEST = 5  # with fewer complete trials numbers are uniform: no model was trained on such lines

_CHOICES = tuple(f" {letter}" for letter in ascii_lowercase)
_DRAWS = 100  # of choices by their shares, until a point is a new one; then as many even ones


@dataclass(repr=False)
class ColumnsPrompt:
    """One line for each parameter: its levels in the best trials, best first.

    The request holds the lines in `Request.columns`, for clients that give the probabilities of
    the next letter (`LocalClient`). Parameters are sampled independently, along the axes of the
    covariance frame. A value that leaves the space is moved to its bound.

    A categorical parameter has no line: its choices are sampled, without a model, with their
    weighted frequency in the best trials (`weigh`, plus `OPEN` for every choice). With categorical
    parameters alone no model is asked (`Question.sampled`).

    In a conditional space the choices are sampled first. The lines then show the numbers of that
    branch, in the better half of its trials. Two of three points explore (`EXPLORE_BRANCHES`):
    their choices and numbers are uniform. If a partner explores (`Situation.explores`), only one
    point of ten does (`AT_RANDOM`).

    Args:
        best: How many of the best trials are shown.
        dither: Place a continuous value at random inside the cell of its letter, by the
            situation's seed; without it, in the middle. A line that one reply holds twice
            gives two points.
        temperature: Sampling temperature.

    Raises:
        ValueError: An option is not valid.
    """

    reads_description: ClassVar[bool] = False

    best: int = ELITES
    dither: bool = True
    temperature: float | None = 0.7
    name: str = field(default="columns", init=False)

    def __post_init__(self) -> None:
        check_counts(self, best=1)

    def __repr__(self) -> str:
        given = ", ".join(f"{k}={v!r}" for k, v in changed_options(self).items())
        return f"{type(self).__name__}({given})"

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form with the options that are not the default, for `get_prompt`."""
        return {"name": self.name, **changed_options(self)}

    def prepare(self, situation: Situation) -> Question:
        """Make the question for one situation; see `Prompt.prepare`."""
        question = self._prepared(situation)
        if not situation.space.limits:
            return question
        return replace(question, read=_resampled(situation, question.read))

    def _prepared(self, situation: Situation) -> Question:
        space, history, shares = situation.space, situation.history, _shares(situation)
        lacking = any(ABSENT in trial.values for trial in history.trials)
        if lacking or space.conditional:
            return self._ask_branch(situation, shares)
        numeric = [i for i in range(len(space)) if i not in shares]
        if not numeric or len(history.complete) < FEWEST:
            return _sampled(_new_point(situation, shares, _generator(situation)))
        if not shares:
            return self._ask_lines(situation)

        choices = _draw(shares, _generator(situation))
        question = self._ask_lines(_part(situation, numeric))
        return _whole(question, numeric, choices, lambda values: values)

    def _ask_branch(self, situation: Situation, shares: _Shares) -> Question:
        """Choose a branch, and draw or ask for its numbers, by its trials alone.

        The model is asked by the better half of them, so that a branch is not given up after a few
        bad points.
        """
        space, rng = situation.space, _generator(situation)
        explores = situation.explores and rng.random() < EXPLORE_BRANCHES
        point = _new_point(situation, shares, rng, even=explores)
        there = [value is not ABSENT for value in point]
        chosen = [i for i, present in enumerate(there) if present and i not in shares]
        part = _part(situation, chosen, there) if chosen and not explores else None
        count = 0 if part is None else len(part.history.complete)
        if part is None or count < FEWEST or (not situation.explores and rng.random() < AT_RANDOM):
            return _sampled(point)
        best = min(self.best, max(math.ceil(count / 2), FEWEST + 1))

        def complete(values: Point) -> Point:
            # New numbers may meet other conditions.
            values = space.conform(values)
            if space.missing(dict(enumerate(values))):
                rng = np.random.default_rng((situation.seed, situation.iteration, 0))
                return space.conform(_filled(space, values, rng))
            return values

        asked = replace(self, best=best).prepare(part)
        return _whole(asked, chosen, dict(enumerate(point)), complete)

    def _ask_lines(self, situation: Situation) -> Question:
        """Ask for one letter after each line."""
        space, history = situation.space, situation.history
        elites = (history.ranked + history.failed)[: self.best]  # failed trials are the worst
        # On a logarithmic scale a step is as wide as it is where the best trial lies.
        steps = space.steps(elites[0].values)
        least = np.maximum(np.full(len(space), LEAST), LEAST_STEPS * steps)
        frame, leading = Frame(space), None
        if len(elites) > 1:
            frame = covariance_frame(space, encode_trials(elites, space), SPREAD, least)
        if frame.axes is not None:
            ranked = history.ranked[:REGRESSION] + history.failed  # which share the last place
            units = encode_trials(ranked, space)
            frame, leading = slope_frame(frame, units, rank_places(ranked))
        levels = frame.levels([t.values for t in elites]).T
        lines = [write_line(len(space), i == leading, row) for i, row in enumerate(levels)]
        request = Request(
            messages=(Message("user", "\n".join(lines)),),
            style="completion",
            temperature=self.temperature,
            max_tokens=8 + 2 * len(space),  # one a character, with room
            stop=("\n",),
            seed=situation.seed,
            grammar=row_grammar(frame.varying),
            columns=tuple(lines),
            choices=_CHOICES,
        )
        return Question(request, RowReader(frame, situation.seed, self.dither))


def _part(
    situation: Situation, chosen: Sequence[int], there: Sequence[bool] | None = None
) -> Situation:
    """Return the situation of the dimensions `chosen` alone, and of the points of one branch.

    `there` says which values a point of the branch has; ``None`` where all have all.
    """
    space, history = situation.space, situation.history

    def part(values: Point) -> Point:
        return tuple(values[i] for i in chosen)

    def belongs(values: Point) -> bool:
        pairs = zip(values, there or (), strict=there is not None)
        return all((value is not ABSENT) == wanted for value, wanted in pairs)

    trials = tuple(replace(t, values=part(t.values)) for t in history.trials if belongs(t.values))
    pending = tuple(part(values) for values in history.pending if belongs(values))
    return replace(
        situation,
        space=space.part(chosen),
        history=replace(history, trials=trials, pending=pending),
    )


# The choices of each categorical position, with their ``(n_choices,)`` shares.
_Shares: TypeAlias = Mapping[int, tuple[tuple[Any, ...], np.ndarray]]


def _shares(situation: Situation) -> _Shares:
    """Return the choices of each categorical position, and their shares."""
    best = situation.history.ranked[:ELITES]
    dimensions = situation.space.dimensions
    chosen = {i: d for i, d in enumerate(dimensions) if isinstance(d, Categorical)}
    even = EXPLORE / max(1, sum(len(d.choices) > 1 for d in chosen.values()))
    shares = {}
    for i, dimension in chosen.items():
        count = len(dimension.choices)
        having = [t for t in best if t.values[i] is not ABSENT]
        indices = np.array([dimension.place(t.values[i]) for t in having], dtype=int)
        weights = np.bincount(indices, len(having) * weigh(len(having)), count) + OPEN
        part = (1 - even) * weights / weights.sum() + even / count
        shares[i] = dimension.choices, part
    return shares


def _generator(situation: Situation) -> np.random.Generator:
    return np.random.default_rng((situation.seed, situation.iteration))


def _draw(shares: _Shares, rng: np.random.Generator, *, even: bool = False) -> dict[int, Value]:
    """Draw a choice for each categorical position, by the shares or each as likely."""
    return {
        i: choices[rng.choice(len(choices), p=None if even else part)]
        for i, (choices, part) in shares.items()
    }


def _new_point(
    situation: Situation, shares: _Shares, rng: np.random.Generator, *, even: bool = False
) -> Point:
    """Return a new point.

    The choices are as `_draw` gives them, the numbers uniform.
    """
    space, history = situation.space, situation.history
    trials = without_withdrawn(history.trials)
    tried = {space.key(p) for p in (*(t.values for t in trials), *history.pending)}
    for k in range(2 * _DRAWS):
        drawn = _draw(shares, rng, even=even or k >= _DRAWS)
        point = _filled(space, space.sample(rng), rng)
        point = space.conform([drawn.get(i, value) for i, value in enumerate(point)])
        if situation.noisy or space.key(point) not in tried:
            break
    return point


def _sampled(point: Point) -> Question:
    """Return a question for a point that is there already."""

    def read(text: str) -> Reading:
        return Reading(point, "", clipped=False)

    return Question(Request(messages=()), read, sampled=True)


def _whole(
    question: Question,
    chosen: Sequence[int],
    others: Mapping[int, Value],
    complete: Callable[[Point], Point],
) -> Question:
    """Return a question for the values at some places as one for whole points.

    Args:
        question: For the values at the places `chosen`.
        chosen: The places.
        others: The values at the other places.
        complete: Makes a point of all values.
    """
    read_numbers: Any = question.read

    def read(text: str) -> Reading:
        def whole(numbers: Point) -> Point:
            values = {**others, **dict(zip(chosen, numbers, strict=False))}
            return complete(tuple(values[i] for i in sorted(values)))

        reading: Reading = read_numbers(text)
        return reading.moved(whole)

    return replace(question, read=read)


def _resampled(situation: Situation, read: Callable[..., Any]) -> Callable[..., Reading]:
    """Return `read` with a new point near the best ones in place of one that breaks a constraint.

    Its numbers come from normal distributions around trials with the same parameters, as wide as
    these are spread. If none of 100 points keeps the constraints, the search complains.
    """
    space, best = situation.space, situation.history.ranked[:ELITES]

    def whole(text: str) -> Reading:
        rng = np.random.default_rng((situation.seed, situation.iteration, 0))

        def sample(values: Point) -> Point:
            there = [value is not ABSENT for value in values]
            alike = [t for t in best if [v is not ABSENT for v in t.values] == there]
            if space.admits(values) or not alike:
                return values
            units = encode_trials(alike, space)
            spread = np.maximum(units.std(axis=0), LEAST_SPREAD)
            for _ in range(_DRAWS):
                drawn = space.decode(rng.normal(units[rng.integers(len(units))], spread))
                pairs = zip(space.dimensions, values, drawn, strict=True)
                point = [v if isinstance(d, Categorical) else new for d, v, new in pairs]
                near = space.conform(point)
                if space.admits(near) and [v is not ABSENT for v in near] == there:
                    return near
            return values

        reading: Reading = read(text)
        return reading.moved(sample)

    return whole


def _filled(space: Space, values: Sequence[Value], rng: np.random.Generator) -> Point:
    """Return a flat point with a random value for each that it lacks."""
    if ABSENT not in values:
        return tuple(values)
    pairs = zip(space.dimensions, values, rng.random(len(values)).tolist(), strict=True)
    return tuple([d.draw(u) if v is ABSENT else v for d, v, u in pairs])


def write_line(n: int, leading: bool, levels: Sequence[int]) -> str:
    """Return the line of one parameter: the letter of their number `n`, and its levels.

    The first letter is small where its axis is the slope (`slope_frame`).
    """
    head = ascii_uppercase[min(n, len(ascii_uppercase)) - 1]
    return " ".join([head.lower() if leading else head, *(ascii_lowercase[k] for k in levels)])


def rank_places(ranked: Sequence[Trial]) -> np.ndarray:
    """Return the places of trials, given best first; equals share their mean place."""
    return share_places([(t.rewards, t.constraint_violation) for t in ranked])


def encode_trials(trials: Sequence[Trial], space: Space) -> np.ndarray:
    """Return the ``(len(trials), n)`` encoded coordinates of trials."""
    return np.array([space.encode(t.values) for t in trials], dtype=float)
