"""One ask: how a model is asked for the missing points, and how its answers are checked.

`ModelBatch` prepares the prompt, sends it, reads the answer and checks its points against the space
and the tried points. `SearchBatch` holds the points of `LLMOptimizer.ask`, queued and warm-up ones
included.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Sequence, Set
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from llmopt.client.base import Completion, Reply, client_name
from llmopt.client.model_facts import ModelFacts, model_facts
from llmopt.errors import BudgetExceededError, ClientError, ParseError, SearchStopped, is_permanent
from llmopt.history import History, Proposal, Source
from llmopt.prompt import Complaint, Question, Reading, Situation, ToolCall
from llmopt.prompt.answer import notes_of, with_dropped
from llmopt.prompt.describe import describe_params
from llmopt.prompt.python_block import IN_A_ROW, data_of
from llmopt.search.computing import Blocks
from llmopt.search.points import draw_fallbacks, draw_new, list_of, untried, what_is_known
from llmopt.space import Space, Value
from llmopt.util.text import cut, ended

if TYPE_CHECKING:
    from llmopt.search.emitter import ModelEmitter
    from llmopt.search.meter import Draft
    from llmopt.search.state import SearchState

logger = logging.getLogger(__name__)

_AT_ONCE = "{n} points are evaluated at the same time: give {k} in this answer."
_SHORT = 120  # characters shown of a skipped point
_UNUSABLE = {
    "filter": "the answer was withheld by the provider's content filter",
    "refusal": "the model declined to answer",
}

Taken: TypeAlias = Set[Hashable] | None
"""Keys (`Space.key`) of the points not to propose again; ``None`` for those of the history."""


def keys_of(space: Space, history: History) -> set[Hashable]:
    """Return the keys (`Space.key`) of all points that a history holds."""
    told = (t.values for t in history.trials)
    return {space.key(values) for values in (*told, *history.pending)}


@dataclass(frozen=True)
class Wanted:
    """What an emitter is asked for: see `PartnerEmitter.propose`; `notes` are for the prompt."""

    space: Space
    history: History
    rng: np.random.Generator
    n: int
    taken: Taken = None
    notes: tuple[str, ...] = ()


class Batch:
    """The points of one ask: `n` that are wanted, and those `found` so far.

    Attributes:
        history: What was tried and is being evaluated.
        rng: Source of all randomness; advanced.
        seen: Keys of the points not to propose again, the found ones included.
    """

    def __init__(self, wanted: Wanted) -> None:
        self.space, self.history, self.rng = wanted.space, wanted.history, wanted.rng
        self.n, self.notes, taken = wanted.n, wanted.notes, wanted.taken
        self.seen = keys_of(self.space, self.history) if taken is None else set(taken)
        self.found: list[Proposal] = []

    @property
    def missing(self) -> int:
        """How many points are still wanted."""
        return max(0, self.n - len(self.found))

    @property
    def known(self) -> History:
        """The history, with the points that were found as being evaluated."""
        if not self.found:
            return self.history
        points = tuple([p.values for p in self.found])
        return replace(self.history, pending=self.history.pending + points)

    def add(self, new: Sequence[Proposal]) -> None:
        """Add points."""
        self.seen.update([self.space.key(p.values) for p in new])
        self.found.extend(new)

    def draw_missing(self) -> list[Proposal]:
        """Add random points for the missing ones, and return them."""
        drawn = draw_fallbacks(self.space, self.seen, self.rng, self.missing)
        self.found += drawn
        return drawn


class SearchBatch(Batch):
    """The points of one `LLMOptimizer.ask`: `n` with those that wait in the queue.

    Only an ask that succeeds moves the generator of the search. After an interrupted one, the next
    one samples the same numbers, and so finds the replies that were already paid for.
    """

    def __init__(self, state: SearchState, history: History, n: int) -> None:
        self._state, self._known, self._wanted = state, set(state.keys), n
        new, rng = n - len(state.queue), deepcopy(state.rng)
        super().__init__(Wanted(state.space, history, rng, new, self._known))

    def warm_up(self, fixed: Sequence[tuple[Value, ...]] | None, most: int) -> None:
        """Add warm-up points: the next ones of a list, or random ones, up to `most` in all."""
        state = self._state
        begun = len(state.trials) + len(state.pending) + len(state.queue)
        begun = begun if fixed is None else state.warmed
        for place in range(begun, min(most, begun + self.missing)):
            if fixed is None:
                values = draw_new(self.space, self.seen, self.rng)
            else:
                self.seen.add(self.space.key(values := fixed[place]))
            self.found.append(Proposal(values, "warmup"))

    def settle(self, fixed: str, *, repeats: bool) -> list[Proposal]:
        """Drop and return the points that were recorded since, but for those of a source `fixed`.

        With `repeats` none is dropped.
        """
        keys, key = self._state.keys, self.space.key
        dropped = []
        if not repeats and len(keys) > len(self._known):  # keys never go
            meanwhile = keys - self._known
            dropped = [p for p in self.found if p.source != fixed and key(p.values) in meanwhile]
            self.found = [p for p in self.found if p not in dropped]
        self.n = self._wanted - len(self._state.queue)
        if self.missing:
            self.seen = {*keys, *(key(p.values) for p in self.found)}
        return dropped


class ModelBatch(Batch):
    """The points of one `ModelEmitter.propose`, as they come in from one request after another.

    `send` asks the model once, `take` reads its answer, and `fill` samples the missing points.
    """

    def __init__(
        self, model: ModelEmitter, draft: Draft, wanted: Wanted, most_requests: int | None
    ) -> None:
        super().__init__(wanted)
        labels = tuple(model.traits.labels)
        self.labels = labels if len(labels) == len(self.space) else self.space.names
        self.notes = (*what_is_known(self.space, self.history, self.labels), *self.notes)
        self._model, self._draft, self._capped = model, draft, most_requests is not None
        self._most = math.inf if most_requests is None else most_requests
        self._replies: list[Reply] = []
        self._complaint: Complaint | None = None
        self._trouble = ""
        self._misses = 0
        self._ran = Blocks(model.meter, model.options, model.calculator)
        self._over = False  # whether no further answer would help
        # Of the latest request.
        self._left: tuple[tuple[Value, ...], ...] = ()  # points to choose from, if few are left
        self._samples = 0
        self._blocks: float = IN_A_ROW
        self._query: Question
        self._completions: Sequence[Completion] = ()

    @property
    def goes_on(self) -> bool:
        """Whether a further request is to be sent."""
        options = self._model.options
        return (
            len(self.found) < self.n
            and self._misses < options.attempts
            and len(self._replies) < self._most
            and not self._over
            and (options.noisy or len(self.seen) < self.space.cardinality)
        )

    # -- asking ---------------------------------------------------------------------------

    def send(self) -> bool:
        """Ask the model; return whether there is an answer to read."""
        model, facts = self._model, model_facts(self._model.client)
        wanted = self.n - len(self.found)
        several = model.points_of_answer(self.space, wanted)
        samples = math.ceil(wanted / several)
        self._samples = min(samples, facts.max_samples or samples)
        # The last request is for a point: nothing could follow a block.
        self._blocks = min(self._ran.left, self._most - len(self._replies) - 1)
        self._query = query = self._prepare(facts, several, self._hints(wanted, several))
        self._completions = (Completion(""),) * self._samples
        if query.sampled:
            return True
        try:
            reply = model.meter.send(query.request)
        except BudgetExceededError:
            if self._capped and not model.requests_left:
                self._most = 0
                return False
            if model.options.on_error == "raise":
                raise
            self._trouble = "the request budget is used up"
            return False
        except ClientError as error:
            if model.options.on_error == "raise" or is_permanent(error):
                raise
            self._trouble = str(error)
            return False
        self._replies.append(reply)
        self._completions = reply.completions
        return True

    def _hints(self, wanted: int, several: int) -> tuple[str, ...]:
        self._left = () if self._model.options.noisy else untried(self.space, self.seen)
        hints = self.notes
        if self._left:
            hints += (list_of(self.space, self._left),)
        if wanted > 1 and several > 1:
            hints += (_AT_ONCE.format(n=wanted, k=min(wanted, several)),)
        return hints

    def _prepare(self, facts: ModelFacts, points: int, notes: tuple[str, ...]) -> Question:
        model, seed = self._model, int(self.rng.integers(2**31))
        ran, options, samples = self._ran, model.options, self._samples
        situation = Situation.after(
            self.known,
            self.space,
            facts,
            total=options.total,
            description=options.description,
            complaint=self._complaint,
            samples=samples,
            seed=seed,
            notes=notes,
            out_of_range=options.out_of_range,
            noisy=options.noisy,
            may_stop=bool(options.may_stop),
            points=points,
            compute=model.calculator is not None,
            blocks=int(self._blocks),
            computed=ran.done,
            compute_seconds=options.compute_seconds,
            compute_blocks=options.compute_blocks,
            seeded=model.seeded,
            seconds_left=ran.seconds_left,
            workers=ran.workers,
            tools=model.tools,
            variables=ran.variables,
            kept=ran.values,
            explores=model.explores,
        )
        query = model.prompt.prepare(situation)
        if (query.request.n, query.request.seed) == (samples, seed):
            return query
        return replace(query, request=replace(query.request, n=samples, seed=seed))

    # -- reading --------------------------------------------------------------------------

    def take(self) -> None:
        """Read an answer: points, the end of the search, or Python to run."""
        self._complaint = None
        before = len(self.found)
        stop, code = self._read_all()
        if stop is not None:
            if not self.found:
                raise stop
            self.n = len(self.found)
            self._draft.stop = stop if self._samples == 1 else None
        if code and len(self.found) == before:  # of several samples, points go first
            self._compute(code)
            return
        # A client that gives fewer samples than asked for is asked again at no charge.
        self._misses += self._complaint is not None or len(self.found) == before
        # It was shown every point that is left, and named another.
        self._over = bool(self._left and self._complaint is not None)

    def _read_all(self) -> tuple[SearchStopped | None, str]:
        """Add the points of all samples; return the stop and the Python that they hold."""
        stop, code = None, ""
        texts = [completion.text for completion in self._completions]
        for k, completion in enumerate(self._completions[: self._samples]):
            try:
                answer = self._answer(completion, texts[:k])
                if isinstance(answer, ToolCall):
                    code = code or answer.code
                else:
                    stop = self._add(answer, completion) or stop
            except ParseError as error:
                said = error.reason.partition("; ")[0]  # then follows what it is to do
                self._trouble = (
                    f"{self._misses + 1} of its answers could not be used, the last because {said}"
                )
                self._complaint = self._complaint or Complaint(error.raw, error.reason)
        return stop, code

    def _unusable(self, kind: str, reason: str, completion: Completion) -> ParseError:
        """Count a sample that is not used, and return the error that says why."""
        self._model.meter.count_rejection(kind)
        return ParseError(reason, completion.text)

    def _answer(self, completion: Completion, earlier: Sequence[str]) -> Reading | ToolCall:
        """Read one sample; count and raise one that cannot be used."""
        withheld = _UNUSABLE.get(completion.finish_reason)
        if withheld and not completion.text.strip():
            raise self._unusable(completion.finish_reason, withheld, completion)
        try:
            answer = self._query.read(completion.text, len(earlier), earlier)
        except ParseError as error:
            kind, reason = "unreadable", error.reason
            if withheld:
                kind, reason = completion.finish_reason, withheld
            elif completion.finish_reason == "length":
                kind = "truncated"
                reason = f"the answer was cut off at the token limit ({error.reason})"
            raise self._unusable(kind, reason, completion) from error
        if isinstance(answer, ToolCall) and self._blocks <= 0:
            why = "no further block of Python is possible here; now propose a point"
            raise self._unusable("unreadable", why, completion)
        if isinstance(answer, Reading) and answer.unterminated:
            if completion.finish_reason == "length":
                why = "the answer was cut off at the token limit inside its values"
                raise self._unusable("truncated", why, completion)
        return answer

    def _add(self, first: Reading, completion: Completion) -> SearchStopped | None:
        """Add the new points of one sample; return its stop, if it gave one."""
        for why in first.dropped:
            self._model.meter.count_rejection("unreadable")
            logger.warning("one of several points of an answer is skipped: %s", why)
        points: list[Proposal] = []
        dropped, trouble = [*first.dropped], None
        for reading in first.each:
            if reading.stop:
                self.found += points
                return self._end(reading)
            try:
                points.append(self._point(reading, completion))
            except ParseError as error:
                trouble = trouble or error
                shown = describe_params(reading.values, self.space, self.labels)
                dropped.append(f"{cut(shown, _SHORT)}: {error.reason.partition('; ')[0]}")
        if trouble is not None and not points:
            raise trouble
        if dropped:  # the model reads it beside the last point
            words = with_dropped(points[-1].explanation, dropped)
            points[-1] = replace(points[-1], explanation=words)
        self.found += points
        return None

    def _end(self, reading: Reading) -> SearchStopped:
        named, said = reading.start, notes_of(reading.explanation)
        why = " ".join(said.analysis.split()).strip(",;: ")
        if said.hypothesis:
            why = f"{ended(why)} Hypothesis: {said.hypothesis}".strip()
        return SearchStopped(
            f"{client_name(self._model.client)} expects no further gain and ended the search"
            f"{f', and recommends point {named}' if named else ''}"
            f"{': ' if why else ''}{cut(why, 300)}",
            named,
        )

    def _point(self, reading: Reading, completion: Completion) -> Proposal:
        """Return a new point, which joins `seen`; count and raise any other."""
        space, options = self.space, self._model.options
        values, clipped = space.conform(reading.values), reading.clipped
        if broken := space.broken(values):
            if options.out_of_range == "reject":
                amounts = ", ".join(f"{text} (by {a:.3g})" for text, a in broken.items())
                raise self._unusable("constraint", f"this point breaks {amounts}", completion)
            values, clipped = space.mend(values), True
        key = space.key(values)
        if (key in self.seen or self._model.shown.holds(values)) and not options.noisy:
            if reading.otherwise is not None:
                inside = replace(reading, values=reading.otherwise, otherwise=None)
                return self._point(inside, completion)
            why = "this point was already tried; propose another"
            raise self._unusable("duplicate", why, completion)
        self.seen.add(key)
        source: Source = "drawn" if self._query.sampled else "llm"
        return Proposal(values, source, reading.explanation, clipped=clipped)

    def _compute(self, code: str) -> None:
        data = partial(data_of, self.space, self.history, self.labels)
        self._ran.run(code, data, self._replies[-1])
        self._complaint = None

    # -- the end --------------------------------------------------------------------------

    def fill(self) -> list[Proposal]:
        """Return the points, with random ones for the missing; count them."""
        model, n = self._model, self.n - len(self.found)
        if n > 0 and len(self._replies) < self._most:
            trouble = self._trouble or "too few usable samples"
            if self.space.cardinality <= len(self.seen) and not model.options.noisy:
                trouble = "every point of the space was already tried"
            self._draft.warnings.append(
                f"{n} of the points asked for {'was' if n == 1 else 'were'} sampled at random, "
                f"not proposed by {client_name(model.client)}: {trouble}. "
                "They are counted in usage.fallbacks"
            )
            self.draw_missing()
        self._draft.points = self.found
        # The cost of the requests is divided evenly among their points.
        replies, parts = self._replies, max(1, len(self.found))
        prompt = sum(r.prompt_tokens or 0 for r in replies) / parts
        completion = sum(r.completion_tokens or 0 for r in replies) / parts
        seconds = sum(r.seconds for r in replies) / parts
        return [
            replace(p, prompt_tokens=prompt, completion_tokens=completion, seconds=seconds)
            for p in self.found
        ]
