"""The `pattern` and `levels` prompts: rows that a small model only has to continue.

The best trials are listed from worst to best, one a line, as integers or letters and nothing
else; the line that the model writes next is the proposal (EvoLLM, Lange et al. 2024, arXiv
2402.18381, section 3, sorts discretized solutions in this way). A grammar holds clients that
have one to exactly that form.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np

from llmopt.client.base import Message, Request, Style
from llmopt.errors import ParseError
from llmopt.history import Trial
from llmopt.prompt.base import Complaint, Query, Situation
from llmopt.prompt.frame import Frame, Levels, covariance_frame, elites_frame, whole_frame
from llmopt.prompt.notation import Integers, Letters, Notation
from llmopt.prompt.parse import Reading, strip_thinking
from llmopt.prompt.selection import Keep, Selection, TokenBudget, fit_most, ranked, too_long
from llmopt.prompt.template import MAX_COMPLAINTS, chat_messages, check_option, check_positive
from llmopt.space import Space, Value
from llmopt.space.dimensions import Categorical

_NOTATIONS: dict[str, Notation] = {"integers": Integers(), "letters": Letters()}


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
        frame: What the levels of a continuous dimension stand for. ``"elites"``: all of
            them (10 to 99, or a to z) over the weighted mean of the trials shown ± `spread`
            weighted standard deviations, in encoded coordinates (0 to 1, logarithmic where
            the dimension is), so that the resolution follows the search; clipped to the
            space on reading. ``"covariance"``: the same along axes that take half of the
            correlation of the trials shown into account. ``"space"``: 0 to 99, or a to z,
            over the whole range, which is also used as long as fewer than two trials are
            complete. A dimension with at most 100 values (26 for letters), and any
            categorical one, is always shown by the index of its value.
        notation: ``"integers"``, or ``"letters"``, a third to a half of their tokens. A space
            with a categorical dimension of more than 26 choices is written in integers always.
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
    frame: Literal["elites", "covariance", "space"] = "elites"
    notation: Literal["integers", "letters"] = "integers"
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
        check_option("frame", self.frame, ("elites", "covariance", "space"))
        check_option("notation", self.notation, tuple(_NOTATIONS))
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
        notation = self._notation(situation.space)
        picked = self.selection.pick(situation.history, complete_only=True)
        rank = {id(t): i for i, t in enumerate(ranked(situation.history, complete_only=True))}
        complaints = situation.complaints[-MAX_COMPLAINTS:] if self.style == "chat" else ()

        def render(k: int) -> tuple[tuple[Message, ...], Frame]:
            elites = sorted(picked[:k], key=lambda t: rank[id(t)])
            return self._write(elites, situation, complaints)

        max_tokens = self.max_tokens or self._answer_tokens(situation.space)
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
            grammar=notation.grammar(frame.parts) if self.style == "completion" else None,
        )
        return Query(request, self._reader(frame, situation))

    def _reader(self, frame: Frame, situation: Situation) -> LineReader:
        reject = situation.out_of_range == "reject"
        return LineReader(
            self._notation(situation.space), frame, situation.seed, self.dither, reject
        )

    def _answer_tokens(self, space: Space) -> int:
        if self.style == "chat":
            return 1024 + 16 * len(space)
        return self._notation(space).tokens(self._whole_frame(space).parts)

    def _notation(self, space: Space) -> Notation:
        notation = _NOTATIONS[self.notation]
        choices = (len(d.choices) for d in space.dimensions if isinstance(d, Categorical))
        return notation if max(choices, default=0) <= notation.exact else _NOTATIONS["integers"]

    def _whole_frame(self, space: Space) -> Frame:
        notation = self._notation(space)
        return whole_frame(space, notation.whole, notation.exact)

    def _frame(self, elites: list[Trial], space: Space) -> Frame:
        """Return what levels stand for beside some trials, given best first."""
        frame = self._whole_frame(space)
        if self.frame == "space" or len(elites) < 2:
            return frame
        fit = elites_frame if self.frame == "elites" else covariance_frame
        window = self._notation(space).window
        least = self._least(space, elites[0])
        return fit(frame, encode_trials(elites, space), *window, self.spread, least)

    def _least(self, space: Space, best: Trial) -> np.ndarray:
        return np.full(len(space), self.min_deviation)

    def _write(
        self, elites: list[Trial], situation: Situation, complaints: tuple[Complaint, ...]
    ) -> tuple[tuple[Message, ...], Frame]:
        """Write the trials, given best first, and return what their levels stand for."""
        space = situation.space
        notation = self._notation(space)
        frame = self._frame(elites, space)
        rows = frame.rows(shown_points(elites, space))
        rows.reverse()
        if self.order == "shuffled":
            rows = shuffled(rows, situation)
        text = "".join(notation.line(row) + "\n" for row in rows)
        if self.style == "completion":
            return (Message("user", text),), frame
        limits = "; ".join(
            f"in place {i} from {notation.line([0]).strip()} to {notation.line([p.last]).strip()}"
            for i, p in enumerate(frame.parts, start=1)
            if isinstance(p, Levels)
        )
        system = (
            f"Each line is one attempt: {notation.words.format(n=len(situation.space))}"
            f"{f' ({limits})' if limits else ''}. The lines go from the worst attempt to the "
            "best. Write the next line, an attempt that is better still. Answer with this one line "
            "and nothing else."
        )
        return chat_messages(system, text.strip("\n"), complaints), frame


@dataclass(repr=False)
class LevelsPrompt(PatternPrompt):
    """`PatternPrompt` in letters, along the elites' own axes: one token for each parameter.

    The options are those of `PatternPrompt`, with other defaults.
    """

    frame: Literal["elites", "covariance", "space"] = "covariance"
    notation: Literal["integers", "letters"] = "letters"
    min_deviation: float = 1e-4
    name: str = field(default="levels", init=False)


def shown_points(elites: Sequence[Trial], space: Space) -> list[tuple[Value, ...]]:
    """Return the points of trials; with none, the middle of the space shows a line's form."""
    return [t.values for t in elites] or [space.decode(np.full(len(space), 0.5))]


def encode_trials(trials: Sequence[Trial], space: Space) -> np.ndarray:
    """Return the ``(len(trials), n)`` encoded coordinates of trials."""
    return np.array([space.encode(t.values) for t in trials], dtype=float)


def shuffled(rows: list[list[int]], situation: Situation) -> list[list[int]]:
    """Return rows in an order that the situation's seed decides."""
    rng = np.random.default_rng([situation.seed, situation.iteration])
    return [rows[i] for i in rng.permutation(len(rows))]


class LineReader:
    """Reads one line as a point.

    The same line read again from one query is placed elsewhere in its cells: a batch of
    samples holds the same line now and then, and both can be used.
    """

    def __init__(
        self, notation: Notation, frame: Frame, seed: int, dither: bool, reject: bool
    ) -> None:
        self.notation = notation
        self.frame = frame
        self.seed = seed
        self.dither = dither
        self.reject = reject
        self._times_read: dict[tuple[int, ...], int] = {}

    def __call__(self, text: str) -> Reading:
        """Return the point of a line.

        Raises:
            ParseError: It is not a line of this notation.
        """
        return self.read(text, self.frame)

    def read(self, text: str, frame: Frame) -> Reading:
        """Return the point that a line is in a frame of the same parts; see `__call__`."""
        integers = self.notation.numbers(strip_thinking(text), len(self.frame.parts))
        clipped = False
        for i, part in enumerate(self.frame.parts):
            inside = min(max(integers[i], part.first), part.last)
            if part.first == part.last:  # a fixed dimension: any answer means its one value
                integers[i] = inside
            if self.reject and inside != integers[i] and isinstance(part, Levels):
                line = self.notation.line([integers[i]]).strip()
                top = self.notation.line([part.last]).strip()
                raise ParseError(f"place {i + 1} is {line}, expected at most {top}", text)
            clipped |= inside != integers[i]
            integers[i] = inside
        return Reading(frame.values(integers, self._within(integers)), "", clipped)

    def _within(self, integers: list[int]) -> np.ndarray:
        if not self.dither:
            return np.full(len(integers), 0.5)
        key = tuple(integers)
        again = self._times_read[key] = self._times_read.get(key, -1) + 1
        digest = zlib.crc32(",".join(map(str, integers)).encode())
        return np.random.default_rng([self.seed, digest, again]).random(len(integers))
