"""From a history to new points: the interface of partners, and the emitter that asks a model.

An emitter keeps no history, so that any owner of one (`LLMOptimizer`, an Optuna
study, a Nevergrad optimizer) gets the same points from the same replies. The words are those
of pyribs (Tjanaka et al. 2023, arXiv 2303.00191).
"""

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Unpack

import numpy as np
from numpy.random import Generator

from llmopt.client.base import Client
from llmopt.client.model_facts import model_facts
from llmopt.errors import TemplateError, warn_user
from llmopt.history import History, Proposal, Source
from llmopt.prompt import Prompt, PromptCapabilities, check_prompt_for, prompt_for
from llmopt.search.meter import Draft, Meter, Metered
from llmopt.search.model_ask import ModelBatch, Taken, Wanted
from llmopt.search.options import AskArguments, AskOptions, Composed
from llmopt.search.points import ShownPoints
from llmopt.space import Space

logger = logging.getLogger(__name__)

_said_of: set[str] = set()  # prompts that omit the task in words: a process is told once

NUMBERS_FIRST = 10
"""Random points first for a numeric-only model: a tenth of a short
search, and at least half as many."""

WORDS_FIRST = 1
"""The same for a model that reads words, where no description tells it what to design."""

_POINTS = 4  # most points of one answer of a chat model


class PartnerEmitter(Protocol):
    """Who proposes points beside a model; `source` is that of its proposals."""

    source: Source

    def propose(
        self, space: Space, history: History, rng: Generator, n: int = 1, *, taken: Taken = None
    ) -> list[Proposal]:
        """Return at most `n` new points, different from each other.

        The history holds the evaluated and the pending points. `rng`, the source of all
        randomness, is advanced; `taken` is left as it is.
        """
        ...


class ModelEmitter(Metered):
    """Turns a history into proposals by asking a model: prompt, model, reading, checks.

    Retries are bounded, and points sampled at random take over where the model does not deliver.

    Args:
        client: The model.
        prompt: A prompt object, a shipped prompt's name, a template's text or path, or
            ``"auto"`` for the one that suits the client.
        **options: See `llmopt.search.options.AskOptions`.

    Attributes:
        options: How the model is asked.
        points: Maximum points of one answer; see `AskOptions`.
        calculator: Runs the Python that the model gives; see `llmopt.lab.blocks.let_compute`.
        tools: Lines for the model on functions that its Python finds; see `LLMOptimizer.equip`.
        shown: The points of the history as prompts show them.
        explores: Whether its prompt explores branches; false if an Optuna sampler is a partner.
    """

    def __init__(
        self,
        client: Client,
        prompt: str | Path | Prompt = "auto",
        **options: Unpack[AskArguments],
    ) -> None:
        self.options = AskOptions.of("ModelEmitter", options)
        self.prompt = prompt_for(prompt, model_facts(client))
        check_prompt_for(self.prompt, client)
        words = self.options.description.strip()
        if self.traits.needs_description and not words:
            raise TemplateError(
                f"prompt {self.prompt.name!r} needs the task in words and got no description: give "
                "description=, or take prompt 'props'"
            )
        reads = self.traits.reads_description or isinstance(self.options.description, Composed)
        if words and not reads and self.prompt.name not in _said_of:
            _said_of.add(self.prompt.name)
            logger.warning(
                "the prompt %r asks for numbers alone: the model reads no description of the task",
                self.prompt.name,
            )
        self.calculator: Any = None
        self.tools: tuple[str, ...] = ()
        if self.options.compute is True:
            self.traits.check_computes(self.prompt.name)
        self.points = self._most_points(client)
        self.explores = True
        self.seeded = False  # whether a repeated point takes another seed
        self.shown = ShownPoints()
        self._meter = Meter(client, self.options.limits)

    @cached_property  # what earlier versions pickled lacks it
    def traits(self) -> PromptCapabilities:
        """What the prompt can do."""
        return PromptCapabilities.of(self.prompt)

    def _most_points(self, client: Client) -> int:
        """Return the most points of one answer."""
        if self.options.points == "auto":
            return _POINTS if self.traits.changes and model_facts(client).chats else 1
        if self.options.points > 1 and not self.traits.changes:
            raise ValueError(
                f"points={self.options.points}: the prompt {self.prompt.name!r} asks for one point "
                "an answer. Take prompt='words', leave points out, or take batch_size= for "
                "several answers of one request"
            )
        return self.options.points

    def points_of_answer(self, space: Space, wanted: int) -> int:
        """Return the number of points to ask of one answer, if `wanted` are needed.

        None of these learns from the others. With fewer evaluations than parameters each has to
        teach, unless the caller counts requests closer still.
        """
        total, requests = self.options.total, self.options.max_requests
        if wanted > 1 or self.options.points != "auto" or total is None or total >= len(space):
            return self.points
        return 1 if requests is None or requests >= total else self.points

    def start_up(self, least: int = NUMBERS_FIRST // 2) -> int:
        """Return the default number of random points before the first request.

        A numeric-only model has `least` of them, or half of all.
        """
        if self.traits.changes:
            return 0 if self.options.description.strip() else WORDS_FIRST
        if self.total is None:
            return NUMBERS_FIRST
        least = min(least, max(1, self.total // 2))
        return min(max(least, self.total // 10), NUMBERS_FIRST)

    @property
    def requests_left(self) -> int | None:
        """Requests that the cap leaves, paid replies that wait included; ``None`` for no cap."""
        left = self.left.get("requests")
        return None if left is None else int(left) + len(self._meter.paid)

    @property
    def total(self) -> int | None:
        """Proposals planned in all, as the prompt says it."""
        return self.options.total

    @total.setter
    def total(self, value: int | None) -> None:
        self.options = replace(self.options, total=value)

    def __getstate__(self) -> dict[str, Any]:
        # A copy has its own account.
        return {**self.__dict__, "_meter": copy.copy(self._meter), "shown": ShownPoints()}

    def propose(
        self,
        space: Space,
        history: History,
        rng: np.random.Generator,
        n: int = 1,
        *,
        taken: Taken = None,
        notes: tuple[str, ...] = (),
        most_requests: int | None = None,
    ) -> list[Proposal]:
        """Return at least `n` new points, different from each other and from all that were tried.

        Only in a finite space with fewer than `n` untried points are points repeated.

        Args:
            space: The search space.
            history: The evaluated and the pending points.
            rng: Source of all randomness; advanced.
            n: Points wanted. One request asks for all of them where the client can.
            taken: Keys (`Space.key`) of the points not to propose again; computed from
                `history` if not given.
            notes: Further lines for the prompt.
            most_requests: Requests that may be sent, however many answers cannot be used. Once
                they are used up, the caller fills in the missing points.

        Returns:
            `n` proposals with source ``"llm"``, ``"drawn"`` or ``"fallback"``, more where the last
            answer held more points, in its order, and fewer where one of several answers ends
            the search: the others are not lost (`Draft.stop` then says what the model says, if it
            gave points and ended the search in the same answer). The cost of the requests made is
            divided evenly among them. A fallback raises a `FallbackWarning`;
            inside `Meter.asking` the text goes into the draft instead.

        Raises:
            BudgetExceededError: A cap is reached, unless ``on_error="fallback"``.
            ClientError: The model could not be asked, unless ``on_error="fallback"``.
            SearchStopped: The model ended the search, with `may_stop`.
        """
        if self.options.compute is True and self.calculator is None:
            raise ValueError(
                "compute=True: give the emitter to llmopt.lab.blocks.let_compute first"
            )
        if not self.options.noisy:
            self.shown.read(space, history)

        wanted = Wanted(space, history, rng, n, taken, notes)

        def ask(draft: Draft) -> list[Proposal]:
            batch = ModelBatch(self, draft, wanted, most_requests)
            while batch.goes_on and batch.send():
                batch.take()
            return batch.fill()

        proposals, draft = self._meter.asking(ask)
        if draft.committed:
            for text in draft.warnings:
                warn_user(text)
        return proposals
