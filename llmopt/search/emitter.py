"""From a history to new points: the interface of partners, and the emitter that asks a model.

An emitter keeps no history of its own, so that whoever has one (`LLMOptimizer`, an Optuna
study, a Nevergrad optimizer) gets the same points from the same replies. The words are those
of pyribs (Tjanaka et al. 2023, arXiv 2303.00191).
"""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Hashable, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias, Unpack

import numpy as np
from numpy.random import Generator

from llmopt.client.base import Client, Completion, Reply, client_name
from llmopt.client.model_facts import model_facts
from llmopt.errors import (
    BudgetExceededError,
    ClientError,
    FallbackWarning,
    ParseError,
    SearchStopped,
    TemplateError,
    is_permanent,
)
from llmopt.history import History, Proposal, Source
from llmopt.prompt import Complaint, Prompt, Query, Situation, check_prompt_for, prompt_for
from llmopt.prompt.answer import notes_of, with_dropped
from llmopt.prompt.describe import describe_params
from llmopt.prompt.parse import Reading
from llmopt.prompt.python_block import IN_A_ROW, Computed, blocks_left, check_computes, data_of
from llmopt.search.ask_options import AskArguments, AskOptions
from llmopt.search.meter import Draft, Meter, Metered
from llmopt.search.points import ShownPoints, draw_fallbacks, list_of, untried, what_is_known
from llmopt.space import Space, Value
from llmopt.util.text import cut

logger = logging.getLogger(__name__)

NUMBERS_FIRST = 10
"""Points that are drawn at random first for a model that sees numbers only: a tenth of a short
search, and at least half as many."""

WORDS_FIRST = 1
"""The same for a model that reads words, where no description tells it what to design."""

_POINTS = 4  # most points of one answer of a chat model
_AT_ONCE = "{n} points are evaluated at the same time: give {k} in this answer."
_SHORT = 120  # characters of a point that was left out
_UNUSABLE = {
    "filter": "the answer was withheld by the provider's content filter",
    "refusal": "the model declined to answer",
}


Taken: TypeAlias = Set[Hashable] | None
"""Keys (`Space.key`) of the points not to propose again; ``None`` for those of the history."""


class PartnerEmitter(Protocol):
    """Who proposes points beside a model; `source` is that of its proposals."""

    source: Source

    def propose(
        self, space: Space, history: History, rng: Generator, n: int = 1, *, taken: Taken = None
    ) -> list[Proposal]:
        """Return at most `n` new points, different from each other.

        The history holds what was tried and what is being evaluated. `rng`, the source of all
        randomness, is advanced; `taken` is left as it is.
        """
        ...


def keys_of(space: Space, history: History) -> set[Hashable]:
    """Return the keys (`Space.key`) of all points that a history holds."""
    told = (t.values for t in history.trials)
    return {space.key(values) for values in (*told, *history.pending)}


class ModelEmitter(Metered):
    """Turns a history into proposals by asking a model: prompt, model, reading, checks.

    Retries are bounded, and points drawn at random take over where the model does not deliver.

    Args:
        client: The model.
        prompt: A prompt object, a shipped prompt's name, a template's text or path, or
            ``"auto"`` for the one that suits the client.
        **options: See `llmopt.search.ask_options.AskOptions`.

    Attributes:
        options: How the model is asked.
        points: Most points of one answer; see `AskOptions`.
        calculator: Runs the Python that the model gives; see `llmopt.compute.blocks.let_compute`.
        tools: Lines for the model on functions that its Python finds; see `LLMOptimizer.equip`.
        explores: Whether its prompt explores branches; not where a partner does.
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
        if getattr(self.prompt, "needs_description", False) and not words:
            raise TemplateError(
                f"prompt {self.prompt.name!r} needs the task in words and got no description: give "
                "description=, or take prompt 'props'"
            )
        _say_what_is_not_read(self.prompt, words)
        self.calculator: Any = None
        self.tools: tuple[str, ...] = ()
        if self.options.compute is True:
            check_computes(self.prompt)
        self.points = self._most_points(client)
        self.explores = True
        self.seeded = False  # whether a repeated point takes another seed
        self._shown = ShownPoints()
        self._meter = Meter(client, self.options.limits)

    def _most_points(self, client: Client) -> int:
        """Return the most points of one answer."""
        several = getattr(self.prompt, "changes", False)
        if self.options.points == "auto":
            return _POINTS if several and model_facts(client).chats else 1
        if self.options.points > 1 and not several:
            raise ValueError(
                f"points={self.options.points}: the prompt {self.prompt.name!r} asks for one point "
                "an answer. Take prompt='words', leave points out, or take batch_size= for "
                "several answers of one request"
            )
        return self.options.points

    def _scarce(self, space: Space) -> bool:
        """Return whether evaluations are too few for several points of one answer.

        None of these learns from the others. With fewer evaluations than parameters each has to
        teach, unless the caller counts requests closer still.
        """
        if self.options.points != "auto" or self.total is None or self.total >= len(space):
            return False
        requests = self.options.max_requests
        return requests is None or requests >= self.total

    def start_up(self, least: int = NUMBERS_FIRST // 2) -> int:
        """Return how many points are drawn before the model is asked, where nobody says.

        A model that sees numbers only has `least` of them, or half of all.
        """
        if getattr(self.prompt, "changes", False):
            return 0 if self.options.description.strip() else WORDS_FIRST
        if self.total is None:
            return NUMBERS_FIRST
        least = min(least, max(1, self.total // 2))
        return min(max(least, self.total // 10), NUMBERS_FIRST)

    @property
    def meter(self) -> Meter:
        """Sends the requests and counts what they cost."""
        return self._meter

    @property
    def requests_left(self) -> int | None:
        """Requests that the cap leaves, paid replies that wait included; ``None`` for no cap."""
        meter, cap = self._meter, self._meter.limits.max_requests
        if cap is None:
            return None
        return max(0, cap - meter.journal.total(meter.usage).requests) + len(meter.paid)

    @property
    def total(self) -> int | None:
        """Proposals planned in all, as the prompt says it."""
        return self.options.total

    @total.setter
    def total(self, value: int | None) -> None:
        self.options = replace(self.options, total=value)

    def __getstate__(self) -> dict[str, Any]:
        # A copy has its own account.
        return {**self.__dict__, "_meter": copy.copy(self._meter), "_shown": ShownPoints()}

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
            history: What was tried and what is being evaluated.
            rng: Source of all randomness; advanced.
            n: Points wanted. One request asks for all of them where the client can.
            taken: Keys (`Space.key`) of the points not to propose again; computed from
                `history` if not given.
            notes: Further lines for the prompt.
            most_requests: Requests that may be sent, however many answers cannot be used. Once
                they are spent, what is missing of the points is left to the caller.

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
        labels = self.labels(space)
        notes = (*what_is_known(space, history, labels), *notes)
        seen = keys_of(space, history) if taken is None else set(taken)
        if not self.options.noisy:
            self._shown.read(space, history)

        def ask(draft: Draft) -> tuple[list[Proposal], Draft]:
            found = self._propose(space, history, rng, n, seen, notes, draft, most_requests)
            return found, draft

        proposals, draft = self._meter.asking(ask)
        if draft.committed:
            for text in draft.warnings:
                warnings.warn(text, FallbackWarning, stacklevel=2)
        return proposals

    def labels(self, space: Space) -> tuple[str, ...]:
        """Return what the prompt calls the parameters."""
        labels = getattr(self.prompt, "labels", None) or ()
        return tuple(labels) if len(labels) == len(space) else space.names

    def _propose(
        self,
        space: Space,
        history: History,
        rng: np.random.Generator,
        n: int,
        seen: set[Hashable],
        notes: tuple[str, ...],
        draft: Draft,
        most_requests: int | None,
    ) -> list[Proposal]:
        if self.options.compute is True and self.calculator is None:
            raise ValueError(
                "compute=True: give the emitter to llmopt.compute.blocks.let_compute first"
            )
        batch = _Batch(self, space, history, rng, n, seen, notes, draft, most_requests)
        while batch.goes_on and batch.send():
            batch.take()
        return batch.fill()

    def _seconds_left(self) -> float:
        return self.options.compute_total - self._meter.usage.compute_seconds

    def _blocks_left(self, computed: Sequence[Computed]) -> int:
        """Return how many blocks of Python may still be given before a point."""
        if self.calculator is None or self._seconds_left() <= 0:
            return 0
        return blocks_left(computed, self.options.compute_blocks)

    def _prepare(
        self,
        space: Space,
        history: History,
        rng: np.random.Generator,
        samples: int,
        points: int,
        complaint: Complaint | None,
        notes: tuple[str, ...],
        computed: tuple[Computed, ...] = (),
        blocks: float = IN_A_ROW,
    ) -> Query:
        seed = int(rng.integers(2**31))
        situation = Situation.after(
            history,
            space,
            model_facts(self.client),
            total=self.total,
            description=self.options.description,
            complaint=complaint,
            samples=samples,
            seed=seed,
            notes=notes,
            out_of_range=self.options.out_of_range,
            noisy=self.options.noisy,
            may_stop=bool(self.options.may_stop),
            points=points,
            compute=self.calculator is not None,
            blocks=int(blocks),
            computed=computed,
            compute_seconds=self.options.compute_seconds,
            compute_blocks=self.options.compute_blocks,
            seeded=self.seeded,
            seconds_left=self._seconds_left(),
            workers=getattr(self.calculator, "workers", 0),
            tools=self.tools,
            variables=computed[-1].variables if computed else self._meter.variables,
            explores=self.explores,
        )
        query = self.prompt.prepare(situation)
        if (query.request.n, query.request.seed) == (samples, seed):
            return query
        return replace(query, request=replace(query.request, n=samples, seed=seed))

    def _read(
        self,
        space: Space,
        query: Query,
        completion: Completion,
        seen: set[Hashable],
        earlier: Sequence[str],
    ) -> tuple[list[Proposal], SearchStopped | None]:
        """Return the new points of one sample, and its stop, if it gave one; add them to `seen`."""
        withheld = _UNUSABLE.get(completion.finish_reason)
        if withheld and not completion.text.strip():
            self._meter.count_rejection(completion.finish_reason)
            raise ParseError(withheld, completion.text)
        try:
            place = (len(earlier), earlier) if query.placed else ()
            first = query.read(completion.text, *place)
        except ParseError as error:
            kind, reason = "unreadable", error.reason
            if withheld:
                kind, reason = completion.finish_reason, withheld
            elif completion.finish_reason == "length":
                kind = "truncated"
                reason = f"the answer was cut off at the token limit ({error.reason})"
            self._meter.count_rejection(kind)
            raise ParseError(reason, completion.text) from error
        for why in first.dropped:
            self._meter.count_rejection("unreadable")
            logger.warning("one of several points of an answer is left out: %s", why)
        found: list[Proposal] = []
        dropped, trouble = [*first.dropped], None
        for reading in first.each:
            if reading.stop:
                return found, self._end(reading)
            try:
                found.append(self._point(space, query, reading, completion, seen))
            except ParseError as error:
                trouble = trouble or error
                shown = describe_params(reading.values, space, self.labels(space))
                dropped.append(f"{cut(shown, _SHORT)}: {error.reason.partition('; ')[0]}")
        if trouble is not None and not found:
            raise trouble
        if dropped:  # the model reads it beside the last point
            found[-1] = replace(found[-1], explanation=with_dropped(found[-1].explanation, dropped))
        return found, None

    def _end(self, reading: Reading) -> SearchStopped:
        named, said = reading.start, notes_of(reading.explanation)
        hypothesis = f" Hypothesis: {said.hypothesis}" if said.hypothesis else ""
        why = f"{said.analysis}{hypothesis}"
        return SearchStopped(
            f"{client_name(self.client)} expects no further gain and ended the search"
            f"{f', and recommends point {named}' if named else ''}: "
            f"{cut(' '.join(why.split()), 300)}",
            named,
        )

    def _point(
        self,
        space: Space,
        query: Query,
        reading: Reading,
        completion: Completion,
        seen: set[Hashable],
    ) -> Proposal:
        """Return a point that was read, which joins `seen`; count and raise what is no new one."""
        values, clipped = space.conform(reading.values), reading.clipped
        if broken := space.broken(values):
            if self.options.out_of_range == "reject":
                self._meter.count_rejection("constraint")
                amounts = ", ".join(f"{text} (by {a:.3g})" for text, a in broken.items())
                raise ParseError(f"this point breaks {amounts}", completion.text)
            values, clipped = space.mend(values), True
        key = space.key(values)
        if (key in seen or self._shown.holds(values)) and not self.options.noisy:
            if reading.otherwise is not None:
                inside = replace(reading, values=reading.otherwise, otherwise=None)
                return self._point(space, query, inside, completion, seen)
            self._meter.count_rejection("duplicate")
            raise ParseError("this point was already tried; propose another", completion.text)
        seen.add(key)
        source: Source = "drawn" if query.drawn else "llm"
        return Proposal(values, source, reading.explanation, clipped=clipped)

    def _trouble(self, space: Space, n: int, seen: set[Hashable], trouble: str) -> str:
        if space.cardinality <= len(seen) and not self.options.noisy:
            trouble = "every point of the space was already tried"
        return (
            f"{n} of the points asked for {'was' if n == 1 else 'were'} drawn at random, "
            f"not proposed by {client_name(self.client)}: {trouble or 'too few usable samples'}. "
            "They are counted in usage.fallbacks"
        )


class _Batch:
    """The points of one `ModelEmitter.propose`, as they come in from one request after another.

    `send` asks the model once, `take` reads its answer, and `fill` draws what is missing.
    """

    def __init__(
        self,
        emitter: ModelEmitter,
        space: Space,
        history: History,
        rng: np.random.Generator,
        n: int,
        seen: set[Hashable],
        notes: tuple[str, ...],
        draft: Draft,
        most_requests: int | None,
    ) -> None:
        self._emitter, self._space, self._history, self._rng = emitter, space, history, rng
        self._n, self._seen, self._notes, self._draft = n, seen, notes, draft
        self._capped = most_requests is not None
        self._most = math.inf if most_requests is None else most_requests
        self._found: list[Proposal] = []
        self._replies: list[Reply] = []
        self._complaint: Complaint | None = None
        self._trouble = ""
        self._misses = 0
        self._computed: tuple[Computed, ...] = ()
        self._over = False  # whether no further answer would help
        # Of the latest request.
        self._left: tuple[tuple[Value, ...], ...] = ()  # points to choose from, if few are left
        self._samples = 0
        self._blocks = 0.0
        self._query: Query | None = None
        self._completions: Sequence[Completion] = ()

    @property
    def goes_on(self) -> bool:
        """Whether a further request is to be sent."""
        options = self._emitter.options
        return (
            len(self._found) < self._n
            and self._misses < options.attempts
            and len(self._replies) < self._most
            and not self._over
            and (options.noisy or len(self._seen) < self._space.cardinality)
        )

    def _hints(self, wanted: int, several: int) -> tuple[str, ...]:
        noisy = self._emitter.options.noisy
        self._left = () if noisy else untried(self._space, self._seen)
        hints = self._notes
        if self._left:
            hints += (list_of(self._space, self._left),)
        if wanted > 1 and several > 1:
            hints += (_AT_ONCE.format(n=wanted, k=min(wanted, several)),)
        return hints

    def send(self) -> bool:
        """Ask the model; return whether there is an answer to read."""
        emitter, found = self._emitter, self._found
        wanted = self._n - len(found)
        several = 1 if wanted == 1 and emitter._scarce(self._space) else emitter.points
        samples = math.ceil(wanted / several)
        self._samples = min(samples, model_facts(emitter.client).max_samples or samples)
        points = tuple(p.values for p in found)
        view = self._history
        if points:
            view = replace(view, pending=view.pending + points)
        # The last request is for a point: nothing could follow a block.
        left = self._most - len(self._replies) - 1
        self._blocks = min(emitter._blocks_left(self._computed), left)
        hints = self._hints(wanted, several)
        self._query = query = emitter._prepare(
            self._space, view, self._rng, self._samples, several, self._complaint, hints,
            self._computed, self._blocks,
        )  # fmt: skip
        self._completions = (Completion(""),) * self._samples
        if query.drawn:
            return True
        try:
            reply = emitter.meter.send(query.request)
        except BudgetExceededError:
            if self._capped and not emitter.requests_left:
                self._most = 0
                return False
            if emitter.options.on_error == "raise":
                raise
            self._trouble = "the request budget is used up"
            return False
        except ClientError as error:
            if emitter.options.on_error == "raise" or is_permanent(error):
                raise
            self._trouble = str(error)
            return False
        self._replies.append(reply)
        self._completions = reply.completions
        return True

    def take(self) -> None:
        """Read an answer: points, the end of the search, or Python to run."""
        self._complaint = None
        before = len(self._found)
        stop, code = self._read()
        if stop is not None:
            if not self._found:
                raise stop
            self._n = len(self._found)
            self._draft.stop = stop if self._samples == 1 else None
        if code and len(self._found) == before:  # of several samples, points go first
            self._compute(code)
            return
        # A client that gives fewer samples than asked for is asked again at no charge.
        self._misses += self._complaint is not None or len(self._found) == before
        # It was shown every point that is left, and named another.
        self._over = bool(self._left and self._complaint is not None)

    def _read(self) -> tuple[SearchStopped | None, str]:
        """Add the points of all samples; return the stop and the Python that they hold."""
        query, stop, code = self._query, None, ""
        assert query is not None
        texts = [completion.text for completion in self._completions]
        for k, completion in enumerate(self._completions[: self._samples]):
            try:
                if query.code is not None and (block := query.code(completion.text)):
                    self._check_block(completion)
                    code = code or block
                    continue
                points, end = self._emitter._read(
                    self._space, query, completion, self._seen, texts[:k]
                )
            except ParseError as error:
                said = error.reason.partition("; ")[0]  # then follows what it is to do
                self._trouble = (
                    f"{self._misses + 1} of its answers could not be used, the last because {said}"
                )
                self._complaint = self._complaint or Complaint(error.raw, error.reason)
                continue
            stop = end or stop
            self._found += points
        return stop, code

    def _check_block(self, completion: Completion) -> None:
        if self._blocks <= 0:
            self._emitter.meter.count_rejection("unreadable")
            why = "no further block of Python is possible here; now propose a point"
            raise ParseError(why, completion.text)

    def _compute(self, code: str) -> None:
        emitter = self._emitter
        data = partial(data_of, self._space, self._history, emitter.labels(self._space))
        seconds = emitter._seconds_left()
        run = partial(emitter.calculator.run, code, data=data, seconds=seconds)
        self._computed += (emitter.meter.compute(code, run),)
        self._complaint = None

    def fill(self) -> list[Proposal]:
        """Return the points, with drawn ones for what is missing; count them."""
        emitter, found = self._emitter, self._found
        if len(found) < self._n and len(self._replies) < self._most:
            missing = self._n - len(found)
            text = emitter._trouble(self._space, missing, self._seen, self._trouble)
            self._draft.warnings.append(text)
            found += draw_fallbacks(self._space, self._seen, self._rng, missing)
        for proposal in found:
            emitter.meter.count_proposal(proposal.source)
        return _share(found, self._replies)


_said_of: set[str] = set()  # prompts


def _say_what_is_not_read(prompt: Prompt, description: str) -> None:
    """Say once in a process that a prompt leaves out the task in words."""
    if description and not getattr(prompt, "reads_description", True):
        if prompt.name not in _said_of:
            _said_of.add(prompt.name)
            logger.warning(
                "the prompt %r asks for numbers alone: the model reads no description of the task",
                prompt.name,
            )


def _share(proposals: list[Proposal], replies: list[Reply]) -> list[Proposal]:
    """Divide the cost of requests evenly among the points that came of them."""
    parts = len(proposals)
    return [
        replace(
            p,
            prompt_tokens=sum(r.prompt_tokens or 0 for r in replies) / parts,
            completion_tokens=sum(r.completion_tokens or 0 for r in replies) / parts,
            seconds=sum(r.seconds for r in replies) / parts,
        )
        for p in proposals
    ]
