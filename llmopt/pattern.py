"""The `pattern` prompt: a sequence of integers that a small model only has to continue.

The best trials are listed from worst to best, one a line, as comma-separated integers and
nothing else; the line that the model writes next is the proposal (EvoLLM, Lange et al.
2024, arXiv 2402.18381, section 3, sorts discretized solutions in this way). A grammar holds
clients that have one to exactly that form.
"""

from __future__ import annotations

import math
import re
import zlib
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np

from llmopt.client.base import Message, Request, Style
from llmopt.errors import ParseError
from llmopt.history import Trial
from llmopt.parse import Reading, strip_thinking
from llmopt.rendering import MAX_COMPLAINTS, chat_messages, check_option, check_positive
from llmopt.selection import Keep, Selection, TokenBudget, fit_most, ranked, too_long
from llmopt.situation import Complaint, Query, Situation
from llmopt.space import Categorical, Dimension, Int, Space, Value

_EXACT_LEVELS = 100  # with at most this many values, a dimension is shown by their index
_INTEGER = re.compile(r"(?<![\w.])-?[0-9]{1,9}(?:\.[0-9]{1,9})?(?![\w.]?[0-9])")


@dataclass(frozen=True)
class _Levels:
    """A dimension shown by the index of its value: 0 to ``count - 1``."""

    dimension: Dimension
    count: int

    first = 0

    @property
    def last(self) -> int:
        return self.count - 1


@dataclass(frozen=True)
class _Cells:
    """A dimension shown by the cell that its encoded coordinate falls into.

    Attributes:
        first: Integer of the lowest cell.
        last: Integer of the highest cell.
        low: Lower edge of the lowest cell, in the unit coordinates of `Space.encode`.
        width: Of all cells together, in the same coordinates.
    """

    first: int
    last: int
    low: float
    width: float

    def integer(self, unit: float) -> int:
        cells = self.last - self.first + 1
        cell = math.floor((unit - self.low) / self.width * cells)
        return self.first + min(max(cell, 0), cells - 1)

    def unit(self, integer: int, within: float) -> float:
        cells = self.last - self.first + 1
        return self.low + (integer - self.first + within) / cells * self.width


Frame = tuple[_Levels | _Cells, ...]
# 0 stands for the lower bound and 99 for the upper one, each in the middle of its cell.
_WHOLE_RANGE = _Cells(0, 99, -0.5 / 99, 100 / 99)


@dataclass(repr=False)
class PatternPrompt:
    """The best trials as lines of integers, worst first. It can be pickled.

    Failed and pruned trials, feedback, notes, pending points and the task's description
    are not shown: the model only sees a sequence. Several objectives and constraints enter
    through the ranking of `History.ranked`.

    Args:
        history: Which complete trials are shown; see `Selection`.
        best: How many of the best.
        last: How many of the latest.
        frame: What the integers of a continuous dimension stand for. ``"elites"``: 10 to
            99 over the weighted mean of the trials shown ± `spread` weighted standard
            deviations, in encoded coordinates (0 to 1, logarithmic where the dimension
            is), so that the resolution follows the search; clipped to the space on
            reading. ``"space"``: 0 to 99 over the whole range, which is also used as long
            as fewer than two trials are complete. A dimension with at most 100 values, and
            any categorical one, is always shown by the index of its value.
        spread: Half of the elites' frame, in standard deviations.
        min_deviation: Least standard deviation of the elites' frame, as a share of the
            dimension's range. It keeps the frame open when all trials shown agree.
        order: ``"ascending"``, or ``"shuffled"`` by the seed: an ablation that shows
            whether the model uses the order.
        dither: Place a continuous value at random inside the cell of its integer, by the
            situation's seed; without it, in the middle. One text read twice from the same
            query gives two points.
        temperature: Sampling temperature.
        max_tokens: Cap on the answer; ``None`` for what the longest line may need (for
            ``style="chat"``, 1024 + 16 for each dimension).
        max_prompt_tokens: Cap on the prompt, which is never exceeded: the worst trials are
            left out instead.
        style: ``"completion"``, or ``"chat"`` with a system message that says what to do.

    Raises:
        ValueError: An option is not valid.
    """

    history: Keep | Selection = "best"
    best: int = 10
    last: int = 10
    frame: Literal["elites", "space"] = "elites"
    spread: float = 2.5
    min_deviation: float = 1e-3
    order: Literal["ascending", "shuffled"] = "ascending"
    dither: bool = True
    temperature: float | None = 1.0
    max_tokens: int | None = None
    max_prompt_tokens: int | None = None
    style: Style = "completion"
    name: str = field(default="pattern", init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.history, Selection):
            self.history = Selection(self.history, best=self.best, last=self.last)
        self.best, self.last = self.history.best, self.history.last
        check_option("frame", self.frame, ("elites", "space"))
        check_option("order", self.order, ("ascending", "shuffled"))
        check_option("style", self.style, ("completion", "chat"))
        check_positive("max_tokens", self.max_tokens)
        check_positive("max_prompt_tokens", self.max_prompt_tokens)
        for name, value in (("spread", self.spread), ("min_deviation", self.min_deviation)):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}={value!r}: expected a finite number above 0")

    def __repr__(self) -> str:
        given = ", ".join(f"{k}={v!r}" for k, v in self.to_dict().items() if k != "name")
        return f"{type(self).__name__}({given})"

    @property
    def selection(self) -> Selection:
        """Which trials are shown."""
        if isinstance(self.history, Selection):
            return self.history
        return Selection(self.history, best=self.best, last=self.last)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form with what differs from the defaults; `get_prompt` takes it."""
        options: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        options["history"] = self.selection.keep
        usual = {f.name: f.default for f in fields(self)}
        return {"name": self.name, **{k: v for k, v in options.items() if v != usual[k]}}

    def prepare(self, situation: Situation) -> Query:
        """Make the question for one situation; see `Prompt.prepare`."""
        space = situation.space
        picked = self.selection.pick(situation.history, complete_only=True)
        rank = {id(t): i for i, t in enumerate(ranked(situation.history, complete_only=True))}
        complaints = situation.complaints[-MAX_COMPLAINTS:] if self.style == "chat" else ()

        def render(k: int) -> tuple[tuple[Message, ...], Frame]:
            elites = sorted(picked[:k], key=lambda t: rank[id(t)])
            return self._write(elites, situation, complaints)

        max_tokens = self.max_tokens or self._answer_tokens(space)
        budget = TokenBudget.of(situation, self.max_prompt_tokens, max_tokens)

        def size(part: tuple[tuple[Message, ...], Frame]) -> int:
            return budget.size(part[0], self.style)

        if budget.limit is None:
            messages, frame = render(len(picked))
        else:
            found = fit_most(render, size, budget.limit, len(picked))
            if found is None and complaints:
                complaints = ()
                found = fit_most(render, size, budget.limit, len(picked))
            if found is None:
                raise too_long(self.name, size(render(0)), budget)
            messages, frame = found
        request = Request(
            messages=messages,
            n=situation.samples,
            style=self.style,
            temperature=self.temperature,
            max_tokens=max_tokens,
            stop=("\n",) if self.style == "completion" else (),
            seed=situation.seed,
            grammar=_grammar(frame) if self.style == "completion" else None,
        )
        return Query(request, _LineReader(space, frame, situation.seed, self.dither))

    def _answer_tokens(self, space: Space) -> int:
        """Tokens of the longest answer where every character is one, with room for spaces."""
        if self.style == "chat":
            return 1024 + 16 * len(space)
        return 8 + sum(len(str(part.last)) + 2 for part in _whole_frame(space))

    def _write(
        self, elites: list[Trial], situation: Situation, complaints: tuple[Complaint, ...]
    ) -> tuple[tuple[Message, ...], Frame]:
        """Write the trials, given best first, and return what their integers stand for."""
        space = situation.space
        frame = _whole_frame(space)
        if elites:
            units = np.array([space.encode(t.values) for t in elites], dtype=float)
            if self.frame == "elites" and len(elites) > 1:
                frame = self._elites_frame(frame, units)
            rows = [_integers(frame, t.values, unit) for t, unit in zip(elites, units, strict=True)]
        else:
            # With nothing to show, the middle of the space shows the form of a line.
            centre = space.decode(np.full(len(space), 0.5))
            rows = [_integers(frame, centre, space.encode(centre))]
        rows.reverse()
        if self.order == "shuffled":
            rng = np.random.default_rng([situation.seed, situation.iteration])
            rows = [rows[i] for i in rng.permutation(len(rows))]
        text = "".join(",".join(map(str, row)) + "\n" for row in rows)
        if self.style == "completion":
            return (Message("user", text),), frame
        system = (
            f"Each line is one attempt: {len(space)} integers, separated by commas. The lines "
            "go from the worst attempt to the best. Write the next line, an attempt that is "
            "better still. Answer with this one line and nothing else."
        )
        return chat_messages(system, text.strip(), complaints), frame

    def _elites_frame(self, whole: Frame, units: np.ndarray) -> Frame:
        """Fit the frame to elites.

        Args:
            whole: The frame over the whole space; its exact dimensions stay as they are.
            units: ``(n_elites, n_dimensions)`` encoded coordinates, best first.
        """
        mu = len(units)
        # Hansen 2016, The CMA Evolution Strategy: A Tutorial (arXiv 1604.00772), eq. 49,
        # with (lambda + 1) / 2 = mu + 1 / 2.
        weights = np.log(mu + 0.5) - np.log(np.arange(1, mu + 1))
        weights /= weights.sum()
        mean = weights @ units
        deviation = np.sqrt(weights @ (units - mean) ** 2)
        half = self.spread * np.maximum(deviation, self.min_deviation)
        return tuple(
            _Cells(10, 99, float(m - h), float(2 * h)) if isinstance(part, _Cells) else part
            for part, m, h in zip(whole, mean, half, strict=True)
        )


class _LineReader:
    """Reads one line of integers as a point.

    The same integers read again from one query are placed elsewhere in their cells: a
    batch of samples holds the same line now and then, and both can be used.
    """

    def __init__(self, space: Space, frame: Frame, seed: int, dither: bool) -> None:
        self.space = space
        self.frame = frame
        self.seed = seed
        self.dither = dither
        self._times_read: dict[tuple[int, ...], int] = {}

    def __call__(self, text: str) -> Reading:
        integers = self._integers(text)
        clipped = False
        for i, part in enumerate(self.frame):
            inside = min(max(integers[i], part.first), part.last)
            clipped |= inside != integers[i]
            integers[i] = inside
        return Reading(self._point(integers), "", clipped)

    def _integers(self, text: str) -> list[int]:
        n = len(self.frame)
        lines = [_INTEGER.findall(line) for line in strip_thinking(text).splitlines()]
        exact = next((line for line in lines if len(line) == n), None)
        longer = next((line for line in lines if len(line) > n), None)
        joined = [number for line in lines for number in line]
        found = exact or longer or joined
        if len(found) < n:
            raise ParseError(
                f"found {len(found)} integers, expected one line of {n}, separated by commas", text
            )
        return [round(float(number)) for number in found[:n]]

    def _point(self, integers: list[int]) -> tuple[Value, ...]:
        within = np.full(len(integers), 0.5)
        if self.dither:
            key = tuple(integers)
            again = self._times_read[key] = self._times_read.get(key, -1) + 1
            digest = zlib.crc32(",".join(map(str, integers)).encode())
            within = np.random.default_rng([self.seed, digest, again]).random(len(integers))
        units = [
            part.unit(k, float(w)) if isinstance(part, _Cells) else 0.0
            for part, k, w in zip(self.frame, integers, within, strict=True)
        ]
        values = list(self.space.decode(np.clip(units, 0.0, 1.0)))
        for i, part in enumerate(self.frame):
            if isinstance(part, _Levels):
                values[i] = _level_value(part.dimension, integers[i])
        return self.space.clip(values)


def _whole_frame(space: Space) -> Frame:
    parts: list[_Levels | _Cells] = []
    for dimension in space.dimensions:
        count = _level_count(dimension)
        exact = count <= _EXACT_LEVELS or isinstance(dimension, Categorical)
        parts.append(_Levels(dimension, int(count)) if exact else _WHOLE_RANGE)
    return tuple(parts)


def _level_count(dimension: Dimension) -> float:
    if isinstance(dimension, Categorical):
        return len(dimension.choices)
    if dimension.low == dimension.high:
        return 1
    step = dimension.step or (1 if isinstance(dimension, Int) else None)
    return math.inf if step is None else round((dimension.high - dimension.low) / step) + 1


def _level_value(dimension: Dimension, level: int) -> Value:
    if isinstance(dimension, Categorical):
        return dimension.choices[level]
    return dimension.low + level * (dimension.step or 0)


def _integers(frame: Frame, values: tuple[Value, ...], units: np.ndarray) -> list[int]:
    row = []
    for part, value, unit in zip(frame, values, units, strict=True):
        if isinstance(part, _Cells):
            row.append(part.integer(float(unit)))
        elif isinstance(part.dimension, Categorical):
            row.append(round(float(unit) * part.last))
        else:
            step = part.dimension.step or 1
            row.append(round((value - part.dimension.low) / step))
    return row


def _grammar(frame: Frame) -> str:
    """Return the GBNF grammar of one line: integers in their ranges, commas, line break."""
    rules: dict[tuple[int, int], str] = {}
    for part in frame:
        rules.setdefault((part.first, part.last), f"i{len(rules)}")
    line = ' "," '.join(rules[part.first, part.last] for part in frame)
    body = [f"{name} ::= {_integer_range(*bounds)}" for bounds, name in rules.items()]
    return "\n".join([rf'root ::= {line} "\n"', *body])


def _integer_range(first: int, last: int) -> str:
    """Return a GBNF expression for the integers from `first` to `last`, without leading zeros."""
    options: list[str] = []
    for length in range(len(str(first)), len(str(last)) + 1):
        least = 0 if length == 1 else 10 ** (length - 1)
        low, high = max(first, least), min(last, 10**length - 1)
        options += _same_length(str(low), str(high))
    return " | ".join(options)


def _same_length(low: str, high: str) -> list[str]:
    if len(low) == 1:
        return [f"[{low}-{high}]"]
    rest = len(low) - 1
    if low[0] == high[0]:
        return [f'"{low[0]}" {option}' for option in _same_length(low[1:], high[1:])]
    first, last = int(low[0]), int(high[0])
    below: list[str] = []
    above: list[str] = []
    if low[1:] != "0" * rest:
        below = [f'"{first}" {option}' for option in _same_length(low[1:], "9" * rest)]
        first += 1
    if high[1:] != "9" * rest:
        above = [f'"{last}" {option}' for option in _same_length("0" * rest, high[1:])]
        last -= 1
    middle = [f"[{first}-{last}]" + " [0-9]" * rest] if first <= last else []
    return below + middle + above
