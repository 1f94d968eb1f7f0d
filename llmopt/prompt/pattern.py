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
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from llmopt.client.base import Message, Request, Style
from llmopt.client.facts import ModelFacts
from llmopt.errors import ParseError
from llmopt.history import Trial
from llmopt.prompt.base import Complaint, Query, Situation, chat_messages
from llmopt.prompt.budget import TokenBudget, fit
from llmopt.prompt.frame import Frame, Levels, covariance_frame, elites_frame, whole_frame
from llmopt.prompt.notation import Integers, Letters, Notation
from llmopt.prompt.options import changed_options, check_option, check_positive
from llmopt.prompt.parse import Reading, strip_thinking
from llmopt.prompt.selection import Keep, Selection, ranked
from llmopt.space import Space, Value
from llmopt.space.dimensions import Categorical

FrameKind = Literal["elites", "covariance", "space"]
_NOTATIONS: dict[str, Notation] = {"integers": Integers(), "letters": Letters()}


class RowPrompt:
    """Options of a prompt that shows trials as levels of a frame, and their checks."""

    name: str
    history: Keep | Selection
    best: int
    last: int
    frame: FrameKind
    spread: float
    min_deviation: float
    order: Literal["ascending", "shuffled"]
    max_tokens: int | None
    max_prompt_tokens: int | None

    def __post_init__(self) -> None:
        self.history = self.selection
        self.best, self.last = self.history.best, self.history.last
        check_option("frame", self.frame, ("elites", "covariance", "space"))
        check_option("order", self.order, ("ascending", "shuffled"))
        check_positive("max_tokens", self.max_tokens)
        check_positive("max_prompt_tokens", self.max_prompt_tokens)
        for name in ("spread", "min_deviation"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}={value!r}: expected a finite number above 0")

    def __repr__(self) -> str:
        given = ", ".join(f"{k}={v!r}" for k, v in changed_options(self).items())
        return f"{type(self).__name__}({given})"

    @property
    def selection(self) -> Selection:
        """Which trials are shown."""
        return Selection.of(self.history, self.best, self.last)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form with the options that are not the default, for `get_prompt`."""
        return {"name": self.name, **changed_options(self)}


@dataclass(repr=False)
class PatternPrompt(RowPrompt):
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
            situation's seed; without it, in the middle. A line that one reply holds twice
            gives two points.
        temperature: Sampling temperature.
        max_tokens: Cap on the answer; ``None`` for the needs of the longest line (in a chat,
            1024 + 16 for each dimension).
        max_prompt_tokens: Cap on the prompt, which is never exceeded: the worst trials are
            left out instead.
        style: ``"completion"``, or ``"chat"`` with a system message that gives the task.
            ``None`` is a chat where the model is known to chat and to keep no grammar.

    Raises:
        ValueError: An option is not valid.
    """

    history: Keep | Selection = "best"
    best: int = 10
    last: int = 10
    frame: FrameKind = "elites"
    notation: Literal["integers", "letters"] = "integers"
    spread: float = 2.5
    min_deviation: float = 1e-3
    order: Literal["ascending", "shuffled"] = "ascending"
    dither: bool = True
    temperature: float | None = 1.0
    max_tokens: int | None = None
    max_prompt_tokens: int | None = None
    style: Style | None = None
    name: str = field(default="pattern", init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_option("notation", self.notation, tuple(_NOTATIONS))
        check_option("style", self.style, (None, "completion", "chat"))

    def prepare(self, situation: Situation) -> Query:
        """Make the question for one situation; see `Prompt.prepare`."""
        space = situation.space
        style = self.style or _style(situation.model)
        chat = style == "chat"
        notation = _notation(self.notation, space)
        whole = whole_frame(space, notation.whole, notation.exact)
        least = np.full(len(space), self.min_deviation)
        picked = picked_trials(self.selection, situation)

        def render(k: int, complaint: Complaint | None) -> tuple[tuple[Message, ...], Frame]:
            elites = best_first(picked[:k])
            frame = fit_frame(self.frame, whole, elites, notation.window, self.spread, least)
            rows = frame.rows(shown_points(elites, space))
            rows.reverse()
            if self.order == "shuffled":
                rows = shuffled(rows, situation)
            text = "".join(notation.line(row) + "\n" for row in rows)
            if not chat:
                return (Message("user", text),), frame
            return chat_messages(_task(notation, frame), text.strip("\n"), complaint), frame

        usual_tokens = 1024 + 16 * len(space) if chat else notation.tokens(whole.parts)
        max_tokens = self.max_tokens or usual_tokens
        budget = TokenBudget.of(situation.model, self.max_prompt_tokens, max_tokens)
        messages, frame = fit(
            self.name,
            render,
            lambda part: budget.size(part[0], style),
            budget,
            len(picked),
            situation.complaint if chat and situation.model.chats else None,
        )
        request = Request(
            messages=messages,
            n=situation.samples,
            style=style,
            temperature=self.temperature,
            max_tokens=max_tokens,
            stop=() if chat else ("\n",),
            seed=situation.seed,
            grammar=None if chat else notation.grammar(frame.parts),
        )
        reject = situation.out_of_range == "reject"
        return Query(request, LineReader(notation, frame, situation.seed, self.dither, reject))


@dataclass(repr=False)
class LevelsPrompt(PatternPrompt):
    """`PatternPrompt` in letters, along the elites' own axes: one token for each parameter.

    The options are those of `PatternPrompt`, with other defaults.
    """

    frame: FrameKind = "covariance"
    notation: Literal["integers", "letters"] = "letters"
    min_deviation: float = 1e-4
    name: str = field(default="levels", init=False)


def _style(model: ModelFacts) -> Style:
    return "chat" if model.style == "chat" and model.grammar is False else "completion"


def _notation(name: str, space: Space) -> Notation:
    notation = _NOTATIONS[name]
    choices = (len(d.choices) for d in space.dimensions if isinstance(d, Categorical))
    return notation if max(choices, default=0) <= notation.exact else _NOTATIONS["integers"]


def _task(notation: Notation, frame: Frame) -> str:
    """Return the system message of a chat."""
    limits = "; ".join(
        f"in place {i} from {notation.line([0]).strip()} to {notation.line([p.last]).strip()}"
        for i, p in enumerate(frame.parts, start=1)
        if isinstance(p, Levels)
    )
    return (
        f"Each line is one attempt: {notation.words.format(n=len(frame.parts))}"
        f"{f' ({limits})' if limits else ''}. The lines go from the worst attempt to the "
        "best. Write the next line, an attempt that is better still. Answer with this one line "
        "and nothing else."
    )


# Rows of levels, which the prompt `columns` shows, too --------------------------------------


def picked_trials(selection: Selection, situation: Situation) -> list[tuple[int, Trial]]:
    """Return the trials to show with their ranks, the first to keep first."""
    order = ranked(situation.history, complete_only=True)
    rank = {id(t): i for i, t in enumerate(order)}
    picked = selection.pick(situation.history, complete_only=True)
    return [(rank[id(t)], t) for t in picked]


def best_first(picked: Sequence[tuple[int, Trial]]) -> list[Trial]:
    """Return trials by their ranks."""
    return [trial for _, trial in sorted(picked, key=lambda pair: pair[0])]


def fit_frame(
    kind: FrameKind,
    whole: Frame,
    elites: Sequence[Trial],
    window: tuple[int, int],
    spread: float,
    least: np.ndarray,
) -> Frame:
    """Return the frame of some trials, given best first.

    Args:
        kind: Which frame.
        whole: The frame over the whole space, which fewer than two trials leave as it is.
        elites: The trials.
        window: Lowest and highest integer of its cells.
        spread: Half of the cells, in standard deviations.
        least: ``(n_dimensions,)`` least standard deviations.
    """
    if kind == "space" or len(elites) < 2:
        return whole
    fitted = elites_frame if kind == "elites" else covariance_frame
    return fitted(whole, encode_trials(elites, whole.space), *window, spread, least)


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


@dataclass(frozen=True)
class LineReader:
    """Reads one line as a point; see `Query.read`.

    A batch of samples holds the same line now and then. Each time it is placed elsewhere in
    its cells, so that all of these points can be used.

    Attributes:
        notation: How the line is written.
        frame: Its levels and cells.
        seed: Seed of the places in the cells.
        dither: Whether places are drawn; the middle of each cell otherwise.
        reject: Whether a level beyond the last one is an error.
    """

    notation: Notation
    frame: Frame
    seed: int
    dither: bool
    reject: bool

    def __call__(self, text: str, sample_index: int = 0, earlier: Sequence[str] = ()) -> Reading:
        """Return the point of a line.

        Raises:
            ParseError: It is not a line of this notation.
        """
        return self.read(text, earlier, self.frame)

    def read(self, text: str, earlier: Sequence[str], frame: Frame) -> Reading:
        """Return the point of a line in a frame of the same parts; see `__call__`."""
        integers, clipped = self._integers(text)
        within = np.full(len(integers), 0.5)
        if self.dither:
            again = sum(t == text or self._holds(t, integers) for t in earlier)
            digest = zlib.crc32(",".join(map(str, integers)).encode())
            within = np.random.default_rng([self.seed, digest, again]).random(len(integers))
        return Reading(frame.values(integers, within), "", clipped)

    def _holds(self, text: str, integers: list[int]) -> bool:
        try:
            return self._integers(text)[0] == integers
        except ParseError:
            return False

    def _integers(self, text: str) -> tuple[list[int], bool]:
        """Return the integers of a line, moved into their ranges, and whether one was moved."""
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
        return integers, clipped
