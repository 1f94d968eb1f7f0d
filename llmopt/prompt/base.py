"""What a prompt is made from and what it becomes: `Situation` in, `Query` out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from llmopt.client.base import Request, Style
from llmopt.history import History
from llmopt.prompt.parse import OutOfRange, Reading
from llmopt.space import Space


@dataclass(frozen=True)
class Complaint:
    """An earlier answer to this very question that could not be used.

    Attributes:
        raw: The answer as it came.
        reason: What was wrong with it, in words for the model.
    """

    raw: str
    reason: str


@dataclass(frozen=True)
class Situation:
    """Everything a prompt may depend on. Immutable; equal situations give equal prompts.

    Attributes:
        space: The search space.
        history: What was tried, what is being evaluated, and the direction of each
            objective.
        iteration: Number of the proposal being asked, from 1.
        total: Proposals planned in all; ``None`` if not known.
        description: The task in words.
        complaints: Earlier answers to this question, oldest first.
        samples: Independent answers wanted.
        seed: Seed for everything random about the prompt and the reading of its answers.
        count_tokens: The model's own tokenizer; without it, token counts are
            over-estimated.
        context_tokens: What the model can hold, prompt and answer together.
        notes: Further lines for the model.
        client_style: Whether the model answers messages or continues a text.
        out_of_range: What becomes of a number outside its range.
    """

    space: Space
    history: History
    iteration: int
    total: int | None = None
    description: str = ""
    complaints: tuple[Complaint, ...] = ()
    samples: int = 1
    seed: int = 0
    count_tokens: Callable[[str], int] | None = None
    context_tokens: int | None = None
    notes: tuple[str, ...] = ()
    client_style: Style = "chat"
    out_of_range: OutOfRange = "clip"


@dataclass(frozen=True)
class Query:
    """One question to a model.

    Attributes:
        request: What to send.
        read: Turns one answer into a point; raises `ParseError` where there is none.
    """

    request: Request
    read: Callable[[str], Reading]


@runtime_checkable
class Prompt(Protocol):
    """Anything that makes a `Query` of a `Situation`. It holds no history of its own."""

    @property
    def name(self) -> str:
        """Short name for tables and files."""

    def prepare(self, situation: Situation) -> Query:
        """Make the question for one situation.

        Raises:
            PromptTooLongError: It does not fit its token budget even with no history.
            SpaceError: The prompt is not for this space.
            TemplateError: The template cannot be rendered.
        """

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form, which `get_prompt` takes."""
