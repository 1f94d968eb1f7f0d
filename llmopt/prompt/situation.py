"""The frame of every prompt: it turns a `Situation` into a `Question`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, runtime_checkable

from llmopt.client.base import Message, Request
from llmopt.client.model_facts import ModelFacts
from llmopt.history import History
from llmopt.prompt.answer_parts import OutOfRange, Reading, ToolCall
from llmopt.prompt.kept_variables import Plain
from llmopt.prompt.python_block import IN_A_ROW, Computed, ToolFacts
from llmopt.space import Space
from llmopt.util.arguments import whole_number
from llmopt.util.text import clean

UNKNOWN_MODEL = ModelFacts("unknown")
_LOW = 5  # the part of a budget whose rest is said to be low
_MAX_RAW = 600  # characters of a refused answer that are sent back


@dataclass(frozen=True)
class Complaint:
    """An earlier answer to this very question that could not be used."""

    raw: str  # the answer as it came
    reason: str  # what was wrong with it, in words for the model


@dataclass(frozen=True)
class Situation:
    """Everything a prompt may depend on. Immutable; equal situations give equal prompts."""

    space: Space  # the search space
    history: History  # the trials, the points being evaluated, and the direction of each objective
    iteration: int  # number of the proposal being asked, from 1
    total: int | None = None  # all points, with imported and withdrawn ones; `None` if not known
    description: str = ""  # the task in words
    # the earlier answer to this question that is sent back, if any
    complaint: Complaint | None = None
    seed: int = 0  # seed for everything random about the prompt and the reading of its answers
    model: ModelFacts = UNKNOWN_MODEL  # facts of the model that is asked: style, context, tokenizer
    notes: tuple[str, ...] = ()  # further lines for the model
    out_of_range: OutOfRange = "auto"  # what happens to a number outside its range
    noisy: bool = False  # whether a point may be measured again
    seeded: bool = False  # whether it then takes the next seed
    may_stop: bool = False  # whether an answer may end the search
    best_known: float | None = None  # the best value of f that the user knows of
    requests: tuple[int, int] | None = None  # how many more may be sent, and their cap
    explores: bool = True  # whether points for this prompt explore; a sampler beside it may, too
    points: int = 1  # the most points that one answer may give; the same through a whole search
    compute: bool = False  # whether an answer may be a block of Python
    blocks: int = IN_A_ROW  # how many more answers may be one
    computed: tuple[Computed, ...] = ()  # the blocks since the last point, and what they printed
    variables: tuple[str, ...] = ()  # what earlier blocks left for later ones
    compute_seconds: float = 120.0  # what a block may take
    compute_blocks: int = IN_A_ROW  # how many blocks may follow each other
    seconds_left: float = 14_400.0  # what all further blocks may take
    compute_total: float = 14_400.0  # what all blocks of the search may take
    tool: ToolFacts = field(default_factory=ToolFacts)  # of the process that runs blocks
    tools: tuple[str, ...] = ()  # lines on further functions that a block finds
    # values of the variables that an answer may name; see `llmopt.prompt.kept_variables`
    kept: Mapping[str, Plain] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "description", clean(self.description))
        object.__setattr__(self, "notes", tuple(map(clean, self.notes)))

    @property
    def unplanned(self) -> int:
        """Number of points beside the plan: imported or withdrawn."""
        return sum(trial.unplanned for trial in self.history.trials)

    @property
    def low(self) -> str:
        """The budgets of which a fifth or less is left, in words."""
        left: list[tuple[float, float, str]] = []
        if self.total is not None:
            planned = self.total - self.unplanned
            left.append((self.total - self.iteration + 1, planned, "experiments"))
        if self.requests is not None:
            left.append((*self.requests, "requests"))
        if self.compute:
            left.append((self.blocks, self.compute_blocks, "blocks before the next point"))
            left.append((self.seconds_left, self.compute_total, "seconds of Python"))
        low = [f"{a:.0f} of {b:.0f} {of}" for a, b, of in left if 0 <= a <= b / _LOW and b >= _LOW]
        return ", ".join(low)

    @classmethod
    def after(cls, history: History, space: Space, model: ModelFacts, **others: Any) -> Situation:
        """Return the situation of the next proposal, with `others` for what is not told here."""
        iteration = len(history.trials) + len(history.pending) + 1
        return cls(space, history, iteration, model=model, **others)


class ReadAnswer(Protocol):
    """Reads an answer. It keeps no state: an answer may be read twice."""

    def __call__(self, text: str) -> Reading | ToolCall:
        """Return the points of an answer, or its Python.

        Raises:
            ParseError: It holds no point that can be used, and no Python where it may.
        """


@dataclass(frozen=True)
class Question:
    """One question to a model.

    Attributes:
        request: The request to send.
        read: Reads the answer: a `Reading`, or a `ToolCall` if the situation says that
            an answer may be Python. If the answer was cut at its token limit, a reading with
            `Reading.unterminated` is not to be used: digits or values may be missing.
        sampled: Whether the prompt samples its points itself: nothing is sent, and they are read
            from empty texts.
    """

    request: Request
    read: ReadAnswer
    sampled: bool = False


@dataclass(frozen=True)
class PromptCapabilities:
    """What a search asks of a prompt beside the members of `Prompt`.

    Attributes:
        labels: What it calls the parameters, if not by the names of the space.
        changes: Whether an answer may give several points, each as what differs from an earlier
            one, with the reasons of each.
        computes: Whether an answer may be a block of Python.
        needs_description: Whether it refuses to work without the task in words.
        reads_description: Whether it shows the task in words.
    """

    labels: tuple[str, ...] = ()
    changes: bool = False
    computes: bool = False
    needs_description: bool = False
    reads_description: bool = True

    @classmethod
    def of(cls, prompt: Prompt) -> PromptCapabilities:
        """Return the attributes of a prompt; a missing one, or ``None``, has its default here."""
        values = {f.name: getattr(prompt, f.name, None) for f in fields(cls)}
        return cls(**{name: value for name, value in values.items() if value is not None})


@runtime_checkable
class Prompt(Protocol):
    """Anything that makes a `Question` of a `Situation`. It keeps no history.

    Only these members are required. A prompt may also have the attributes of
    `PromptCapabilities`.
    """

    @property
    def name(self) -> str:
        """Short name for tables and files."""

    def prepare(self, situation: Situation) -> Question:
        """Make the question for one situation.

        Raises:
            PromptTooLongError: It does not fit its token budget even with no history.
            SpaceError: The prompt is not for this space.
            TemplateError: The template cannot be rendered.
        """

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form, which `get_prompt` takes."""


def chat_messages(system: str, user: str, complaint: Complaint | None) -> tuple[Message, ...]:
    """Return a conversation: instructions, question, and the answer that was refused, if any."""
    messages = [Message("system", system)] if system else []
    messages.append(Message("user", user))
    if complaint is not None:
        raw = complaint.raw.strip() or "(no answer)"
        again = (
            f"This answer cannot be used: {complaint.reason.strip().rstrip('.')}.\n"
            "Answer the same question again, in the format that was asked for."
        )
        raw = raw if len(raw) <= _MAX_RAW else raw[:_MAX_RAW] + " […]"
        messages += [Message("assistant", raw), Message("user", again)]
    return tuple(messages)


def changed_options(prompt: Any, **usual: Any) -> dict[str, Any]:
    """Return the options of a prompt, a dataclass, that are not `usual` nor its defaults."""
    defaults = {f.name: f.default for f in fields(prompt) if f.init and f.compare} | usual
    defaults.pop("name", None)
    options = {name: getattr(prompt, name) for name in defaults}
    return {name: value for name, value in options.items() if value != defaults[name]}


def check_counts(prompt: Any, **least: int) -> None:
    """Raise unless each option that is given is a whole number of at least so much."""
    for name, minimum in least.items():
        if getattr(prompt, name) is not None:
            whole_number(name, getattr(prompt, name), minimum)
