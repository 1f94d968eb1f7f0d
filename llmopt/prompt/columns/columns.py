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
from llmopt.client.model_facts import ModelFacts
from llmopt.history import Trial
from llmopt.prompt.budget import TokenBudget, fit
from llmopt.prompt.columns.frame import (
    Frame,
    covariance_frame,
    share_places,
    slope_frame,
    weigh,
    whole_frame,
)
from llmopt.prompt.columns.letters import (
    LETTERS,
    WHOLE,
    WINDOW,
    RowReader,
    row_grammar,
    row_tokens,
    write_row,
)
from llmopt.prompt.reading import Reading
from llmopt.prompt.situation import Question, Situation, changed_options, check_counts
from llmopt.space import Space, Value
from llmopt.space.dimensions import Categorical
from llmopt.space.values import ABSENT

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

LEAST_SPREAD = 0.01
"""Least standard deviation of a point that is sampled again, as a share of a range."""

OPEN = 0.3
"""Best trials that each choice of a categorical parameter gets in addition to its own."""

EXPLORE = 0.4
"""Share of points with a uniform choice, divided among the categorical parameters: a search that
found one branch or category good early keeps trying the others."""

EXPLORE_BRANCHES = 2 / 3
"""Share of points that explore, in a space where points may lack parameters: what a branch is worth
is not known from the few trials that took it."""

AT_RANDOM = 0.1
"""Share of points whose numbers are drawn evenly, where a sampler beside the model explores."""

FEWEST = 5
"""With fewer complete trials there are no such lines, which were not trained: the prompt is the
trials' own rows of letters, worst first."""

MOST_ROWS = 10
"""Most of these rows."""

_CHOICES = tuple(f" {letter}" for letter in ascii_lowercase)
_DRAWS = 100  # of choices by their shares, until a point is a new one; then as many even ones


@dataclass(repr=False)
class ColumnsPrompt:
    """One line for each parameter: its levels in the best trials, best first.

    The request holds the lines in `Request.columns`, for clients that give the probabilities of
    the next letter (`LocalClient`). Parameters are sampled independently, along the axes of the
    covariance frame. The prompt's length is the number of trials shown times that of parameters;
    the model reads each line as a separate text. With fewer than `FEWEST` complete trials the
    model continues rows of letters, one for each trial.

    A categorical parameter's choices have no order and no line: they are sampled, without a model,
    with their weighted frequency in the best trials (`weigh`, plus `OPEN` for every choice). With
    categorical parameters alone no model is asked (`Question.sampled`).

    In a conditional space the choices are sampled first. The lines then show the numbers of that
    branch, in the better half of its trials. Two of three points explore (`EXPLORE_BRANCHES`):
    their choices and numbers are uniform; so are the numbers in a branch of few trials (`FEWEST`).
    If a partner explores (`Situation.explores`), only one point of ten does (`AT_RANDOM`).

    Pruned trials, feedback, notes, pending points and the task's description are not shown. Failed
    trials are the worst of the lines and of the slope. Several objectives and constraints enter
    through the ranking of `History.ranked`. A value that leaves the space is moved to its bound.

    Args:
        best: How many of the best trials are shown.
        dither: Place a continuous value at random inside the cell of its letter, by the
            situation's seed; without it, in the middle. A line that one reply holds twice
            gives two points.
        temperature: Sampling temperature.
        max_tokens: Cap on the answer; ``None`` for the needs of the longest row.
        max_prompt_tokens: Cap on the prompt, which is never exceeded: the worst trials are
            dropped instead.

    Raises:
        ValueError: An option is not valid.
    """

    reads_description: ClassVar[bool] = False

    best: int = ELITES
    dither: bool = True
    temperature: float | None = 0.7
    max_tokens: int | None = None
    max_prompt_tokens: int | None = None
    name: str = field(default="columns", init=False)

    def __post_init__(self) -> None:
        check_counts(self, best=0, max_tokens=1, max_prompt_tokens=1)

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
        lacking = any(ABSENT in trial.values for trial in situation.history.trials)
        if lacking or situation.space.conditional:
            return self._ask_branch(situation)
        dimensions = situation.space.dimensions
        numeric = [i for i, d in enumerate(dimensions) if not isinstance(d, Categorical)]
        if not numeric:
            draw = _reader_of_choices(situation)
            return Question(Request(messages=()), draw, sampled=True)
        few = len(situation.history.complete) < FEWEST
        choices = [d.count for d in dimensions if isinstance(d, Categorical)]
        # Rows of letters hold choices, too, where there is a letter for each.
        whole = not choices or (few and max(choices) <= LETTERS)
        part = situation if whole else _part(situation, numeric)
        query = self._ask_rows(part) if few else self._ask_lines(part)
        if part is situation:
            return query
        shares = _shares(situation)
        read_numbers: Any = query.read

        def read(text: str, index: int = 0, earlier: Sequence[str] = ()) -> Reading:
            reading: Reading = read_numbers(text, index, earlier)
            rng = np.random.default_rng((situation.seed, situation.iteration))
            rng.random(index * len(shares))  # the draws of the samples before
            choices = _draw(shares, rng)

            def whole(numbers: tuple[Value, ...]) -> tuple[Value, ...]:
                values = dict(zip(numeric, numbers, strict=True)) | choices
                return tuple(values[i] for i in range(len(values)))

            return reading.moved(whole)

        return replace(query, read=read)

    def _ask_branch(self, situation: Situation) -> Question:
        """Choose a branch, and draw or ask for its numbers, by its trials alone.

        The model is asked by the better half of them, so that a branch is not given up after a few
        bad points.
        """
        shares, now = _shares(situation), situation
        rng = np.random.default_rng((situation.seed, situation.iteration))
        explores = situation.explores and rng.random() < EXPLORE_BRANCHES
        points: list[tuple[Value, ...]] = []
        for _ in range(situation.samples):
            point = _draw_branch(now, shares, rng, even=explores)
            there = [value is not ABSENT for value in point]
            chosen = [i for i, own in enumerate(there) if own and i not in shares]
            if not chosen:  # choices alone
                points.append(point)
                pending = (*now.history.pending, point)
                now = replace(now, history=replace(now.history, pending=pending))
                continue
            part = _part(now, chosen, there)
            count = len(part.history.complete)
            asks = not explores and not points and count >= FEWEST
            if asks and (situation.explores or rng.random() >= AT_RANDOM):
                own = replace(self, best=min(self.best, max(math.ceil(count / 2), FEWEST + 1)))
                return _at(situation, point, chosen, own.prepare(part))
            points.append(point)
            now = replace(now, history=replace(now.history, pending=(*now.history.pending, point)))

        def read(text: str, index: int = 0, earlier: Sequence[str] = ()) -> Reading:
            return Reading(points[index], "", clipped=False)

        return Question(Request(messages=()), read, sampled=True)

    def _ask_rows(self, situation: Situation) -> Question:
        """Ask for the next of some rows of letters, as long as there are too few for lines."""
        space = situation.space
        whole = whole_frame(space, WHOLE, LETTERS)
        best = situation.history.ranked[:MOST_ROWS]

        def render(k: int, _: object) -> _Lines:
            frame = _fitted(whole, best[:k], np.full(len(space), LEAST))
            rows = frame.rows(_shown_points(best[:k], space))[::-1]
            return _Lines((*map(write_row, rows), ""), frame)

        _, request, read = self._ask(situation, situation.model, whole, render, len(best), 1.0)
        return Question(request, read)

    def _ask_lines(self, situation: Situation) -> Question:
        """Ask for one letter after each line."""
        space, history = situation.space, situation.history
        # Discrete values are read off the cells, so that all lines are alike.
        whole = whole_frame(space, WHOLE, 1)
        best = (history.ranked + history.failed)[: self.best]  # failed trials are the worst

        def render(k: int, _: object) -> _Lines:
            elites = best[:k]
            least = np.full(len(space), LEAST)
            if elites:
                # On a logarithmic scale a step is as wide as it is where the best trial lies.
                steps = space.steps(elites[0].values)
                least = np.maximum(least, LEAST_STEPS * steps)
            frame = _fitted(whole, elites, least)
            leading = None
            if frame.axes is not None:
                known = history.ranked[:REGRESSION] + history.failed  # which share the last place
                frame, leading = slope_frame(frame, encode_trials(known, space), rank_places(known))
            rows = frame.rows(_shown_points(elites, space))
            lines = (
                write_line(len(space), i == leading, [row[i] for row in rows])
                for i in range(len(space))
            )
            return _Lines(tuple(lines), frame)

        # A line alone always fits the model's context; `max_prompt_tokens` is for all of them.
        model = replace(situation.model, context_tokens=None)
        shown, request, line = self._ask(
            situation, model, whole, render, len(best), self.temperature
        )
        request = replace(request, columns=shown.lines, choices=_CHOICES)
        return Question(request, line)

    def _ask(
        self,
        situation: Situation,
        model: ModelFacts,
        whole: Frame,
        render: Callable[[int, object], _Lines],
        most: int,
        temperature: float | None,
    ) -> tuple[_Lines, Request, RowReader]:
        """Return the lines of the most trials that fit, the request for them, and its reader."""
        max_tokens = self.max_tokens or row_tokens(whole.parts)
        budget = TokenBudget.of(model, self.max_prompt_tokens, max_tokens)

        def messages(shown: _Lines) -> tuple[Message, ...]:
            return (Message("user", "\n".join(shown.lines)),)

        def size(shown: _Lines) -> int:
            return budget.size(messages(shown), "completion")

        shown = fit(self.name, render, size, budget, most)
        request = Request(
            messages=messages(shown),
            n=situation.samples,
            style="completion",
            temperature=temperature,
            max_tokens=max_tokens,
            stop=("\n",),
            seed=situation.seed,
            grammar=row_grammar(shown.frame.parts),
        )
        reject = situation.out_of_range == "reject"
        return shown, request, RowReader(shown.frame, situation.seed, self.dither, reject)


def _part(
    situation: Situation, chosen: Sequence[int], there: Sequence[bool] | None = None
) -> Situation:
    """Return the situation of the dimensions `chosen` alone, and of the points of one branch.

    `there` says which values a point of the branch has; ``None`` where all have all.
    """
    space, history = situation.space, situation.history

    def part(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(values[i] for i in chosen)

    def belongs(values: tuple[Value, ...]) -> bool:
        pairs = zip(values, there or (), strict=there is not None)
        return all((value is not ABSENT) == wanted for value, wanted in pairs)

    trials = tuple(replace(t, values=part(t.values)) for t in history.trials if belongs(t.values))
    pending = tuple(part(values) for values in history.pending if belongs(values))
    return replace(
        situation,
        space=space.part(chosen),
        history=replace(history, trials=trials, pending=pending),
    )


@dataclass(frozen=True)
class _Lines:
    """The lines of a request, and what their letters stand for."""

    lines: tuple[str, ...]
    frame: Frame


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


def _draw(
    shares: _Shares,
    rng: np.random.Generator,
    *,
    even: bool = False,
) -> dict[int, Value]:
    """Draw a choice for each categorical position, by the shares or each as likely."""
    drawn = {}
    for i, (choices, part) in shares.items():
        drawn[i] = choices[rng.choice(len(choices), p=None if even else part)]
    return drawn


def _draw_branch(
    situation: Situation,
    shares: _Shares,
    rng: np.random.Generator,
    *,
    even: bool,
) -> tuple[Value, ...]:
    """Return a new point with choices as `_draw` gives them, and evenly drawn numbers."""
    space, history = situation.space, situation.history
    tried = {space.key(p) for p in (*(t.values for t in history.trials), *history.pending)}
    for _ in range(_DRAWS):
        drawn = _draw(shares, rng, even=even)
        whole = _filled(space, space.sample(rng), rng)
        point = space.conform(_with(whole, list(drawn), list(drawn.values())))
        if situation.noisy or space.key(point) not in tried:
            break
    return point


def _resampled(situation: Situation, read: Callable[..., Any]) -> Callable[..., Reading]:
    """Return `read` with a new point near the best ones in place of one that breaks a constraint.

    Its numbers come from normal distributions around trials with the same parameters, as wide as
    these are spread. If none of 100 points keeps the constraints, the search complains.
    """
    space, best = situation.space, situation.history.ranked[:ELITES]

    def whole(text: str, sample_index: int = 0, earlier: Sequence[str] = ()) -> Reading:
        rng = np.random.default_rng((situation.seed, situation.iteration, sample_index))

        def sample(values: tuple[Value, ...]) -> tuple[Value, ...]:
            there = [value is not ABSENT for value in values]
            alike = [t for t in best if [v is not ABSENT for v in t.values] == there]
            if space.admits(values) or not alike:
                return values
            units = encode_trials(alike, space)
            spread = np.maximum(units.std(axis=0), LEAST_SPREAD)
            for _ in range(_DRAWS):
                drawn = space.decode(rng.normal(units[rng.integers(len(units))], spread))
                pairs = zip(space.dimensions, values, drawn, strict=True)
                point = tuple([v if isinstance(d, Categorical) else new for d, v, new in pairs])
                point = space.conform(point)
                if space.admits(point) and [v is not ABSENT for v in point] == there:
                    return point
            return values

        reading: Reading = read(text, sample_index, earlier)
        return reading.moved(sample)

    return whole


def _filled(space: Space, values: Sequence[Value], rng: np.random.Generator) -> tuple[Value, ...]:
    """Return a flat point with a random value for each that it lacks."""
    if ABSENT not in values:
        return tuple(values)
    pairs = zip(space.dimensions, values, rng.random(len(values)).tolist(), strict=True)
    return tuple([d.draw(u) if v is ABSENT else v for d, v, u in pairs])


def _with(
    point: Sequence[Value], places: Sequence[int], values: Sequence[Value]
) -> tuple[Value, ...]:
    """Return a point with other values at some places."""
    return tuple((dict(enumerate(point)) | dict(zip(places, values, strict=False))).values())


def _whole(space: Space, values: tuple[Value, ...], rng: np.random.Generator) -> tuple[Value, ...]:
    """Return a point with what its numbers need: new ones may meet other conditions."""
    values = space.conform(values)
    if space.missing(dict(enumerate(values))):
        return space.conform(_filled(space, values, rng))
    return values


def _at(
    situation: Situation, point: Sequence[Value], chosen: Sequence[int], query: Question
) -> Question:
    """Return a question for the values of a point at some places as one for the whole point."""
    seed = (situation.seed, situation.iteration)
    read_numbers: Any = query.read

    def read(text: str, index: int = 0, earlier: Sequence[str] = ()) -> Reading:
        reading: Reading = read_numbers(text, index, earlier)

        def whole(numbers: tuple[Value, ...]) -> tuple[Value, ...]:
            rng = np.random.default_rng((*seed, index))
            return _whole(situation.space, _with(point, chosen, numbers), rng)

        return reading.moved(whole)

    return replace(query, read=read)


def _reader_of_choices(situation: Situation) -> Callable[..., Reading]:
    """Return what draws points of choices alone, whatever the text, but none that was tried."""
    space, history, shares = situation.space, situation.history, _shares(situation)
    known = {space.key(p) for p in (*(t.values for t in history.trials), *history.pending)}

    def read(text: str, index: int = 0, earlier: Sequence[str] = ()) -> Reading:
        rng, tried = np.random.default_rng((situation.seed, situation.iteration)), set(known)
        for _ in range(index + 1):
            for k in range(2 * _DRAWS):
                values = tuple(_draw(shares, rng, even=k >= _DRAWS).values())
                if situation.noisy or space.key(values) not in tried:
                    break
            tried.add(space.key(values))
        return Reading(values, "", clipped=False)

    return read


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


def _fitted(whole: Frame, elites: Sequence[Trial], least: np.ndarray) -> Frame:
    """Return the frame of some trials, given best first; of fewer than two the whole one."""
    if len(elites) < 2:
        return whole
    units = encode_trials(elites, whole.space)
    return covariance_frame(whole, units, *WINDOW, SPREAD, least)


def _shown_points(elites: Sequence[Trial], space: Space) -> list[tuple[Value, ...]]:
    """Return the points of trials; with none, the middle of the space shows a line's form."""
    return [t.values for t in elites] or [space.decode(np.full(len(space), 0.5))]
