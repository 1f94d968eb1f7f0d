"""What a model is asked for in a search over points: the question of a prompt, and the checks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from llmopt.client.base import Completion, client_name
from llmopt.client.model_facts import ModelFacts, model_facts
from llmopt.errors import TemplateError
from llmopt.history import History, Proposal, Source
from llmopt.model_calls import Scope
from llmopt.options import AskOptions, Composed
from llmopt.points import left_out, list_of, untried, what_is_known
from llmopt.prompt import Prompt, check_prompt_for, prompt_for
from llmopt.prompt.answer_parts import Reading
from llmopt.prompt.describe import describe_params
from llmopt.prompt.python_block import ToolFacts, data_of
from llmopt.prompt.situation import PromptCapabilities, Question, Situation
from llmopt.propose import Round, Tool, Unusable
from llmopt.space import Space, Value
from llmopt.space.fixed import Fixed
from llmopt.util.text import cut

logger = logging.getLogger(__name__)

NUMBERS_FIRST = 10
"""Random points before the first request of a numeric-only model; in a short search a tenth of all
points, and at least half as many as this."""

WORDS_FIRST = 1
"""The same for a model that reads words, where no description tells it what to design."""

_POINTS = 4  # most points of one answer of a chat model
_OBJECTIVE = (
    "objective(point): the objective itself, also for pmap and jobs; a call costs no evaluation, "
    "but seconds of your blocks"
)
_SHORT = 120  # characters shown of a skipped point
_ONE = "Give one point in this answer."
_AT_ONCE = "{n} points are evaluated at the same time: give {k} in this answer."


@dataclass(frozen=True)
class Asking:
    """How a model is asked for points.

    Attributes:
        prompt: Turns the history into a question.
        capabilities: What the prompt can do.
        facts: Of the model.
        options: See `AskOptions`.
        tool: Runs the model's Python; ``None`` if it may not compute.
        tool_facts: What the prompt states of `tool`.
        tools: Lines for the prompt on functions and arrays that blocks find.
        seeded: Whether a repeated point takes another seed.
        notes: Further lines for the prompt.
        explores: Whether the prompt explores branches itself; not beside an Optuna sampler.
        refusal: Returns why a flat point is not taken, for what the space does not hold; empty if
            it is taken.
    """

    prompt: Prompt
    capabilities: PromptCapabilities
    facts: ModelFacts
    options: AskOptions
    tool: Tool | None = None
    tool_facts: ToolFacts = field(default_factory=lambda: ToolFacts(0))
    tools: tuple[str, ...] = ()
    seeded: bool = False
    notes: tuple[str, ...] = ()
    explores: bool = True
    refusal: Callable[[tuple[Value, ...]], str] | None = None

    def with_tool(self, tool: Tool | None) -> Asking:
        """Return the same for a model that computes with a tool, or not at all."""
        return self if tool is None else replace(self, tool=tool, tool_facts=tool.facts)

    def restored(self, stored: Mapping[str, Any]) -> Asking:
        """Return the same with the facts that a journal holds; see `facts_to_store`."""
        facts = self.facts.restored(stored["model"])
        return replace(self, facts=facts, tool_facts=ToolFacts.from_json(stored["tool"]))

    def facts_to_store(self) -> dict[str, Any]:
        """Return the facts of the model and of the machine that a prompt depends on."""
        return {"model": self.facts.to_json(), "tool": self.tool_facts.to_json()}

    def points_of_answer(self, space: Space, wanted: int) -> int:
        """Return the number of points to ask of one answer, if `wanted` are needed.

        None of these learns from the others. With fewer evaluations than parameters each has to
        teach, unless the caller counts requests closer still.
        """
        points, total, requests = self.options.points, self.options.total, self.options.max_requests
        if points != "auto":
            return points
        if not (self.capabilities.changes and self.facts.chats):
            return 1
        few = wanted == 1 and total is not None and total < len(space)
        few = few and (requests is None or requests >= (total or 0))
        return 1 if few else _POINTS

    def start_up(self, least: int = NUMBERS_FIRST // 2) -> int:
        """Return the default number of random points before the first request.

        A numeric-only model has ``min(10, max(least, total // 10))``, but at most half of all.
        """
        total = self.options.total
        if self.capabilities.changes:
            return 0 if self.options.description.strip() else WORDS_FIRST
        if total is None:
            return NUMBERS_FIRST
        return min(max(min(least, max(1, total // 2)), total // 10), NUMBERS_FIRST)


def asking_of(
    client: Any, prompt: Any, options: AskOptions, *, seeded: bool = False, asks: bool = True
) -> Asking:
    """Return how a client is asked for points, or raise where it cannot be asked so.

    Args:
        client: The model.
        prompt: See `llmopt.prompt.prompt_for`.
        options: See `AskOptions`.
        seeded: Whether a repeated point takes another seed.
        asks: Whether to log what the model will lack.

    Raises:
        TemplateError: The prompt needs a description and there is none, or takes no Python.
        ValueError: The client cannot answer the prompt, or the prompt asks for one point an answer.
    """
    facts = model_facts(client)
    prompt = prompt_for(prompt, facts)
    check_prompt_for(prompt, client)
    capabilities = PromptCapabilities.of(prompt)
    words = options.description.strip()
    if capabilities.needs_description and not words:
        raise TemplateError(
            f"prompt {prompt.name!r} needs the task in words and got no description: give "
            "description=, or take prompt 'props'"
        )
    reads = capabilities.reads_description or isinstance(options.description, Composed)
    if asks and words and not reads and prompt.name not in _warned:
        _warned.add(prompt.name)
        logger.warning(
            "the prompt %r asks for numbers alone: the model reads no description of the task",
            prompt.name,
        )
    if asks and not words and capabilities.changes and facts.chats and "" not in _warned:
        _warned.add("")
        logger.warning(
            "description= says what you know of the task, the parameters and the results in words; "
            "without it %s sees only names and numbers",
            client_name(client),
        )
    if options.compute is True and not capabilities.computes:
        raise TemplateError(
            f"compute=True: the prompt {prompt.name!r} takes no Python for an answer. Take "
            "prompt='words', or leave compute out"
        )
    if options.points != "auto" and options.points > 1 and not capabilities.changes:
        raise ValueError(
            f"points={options.points}: the prompt {prompt.name!r} asks for one point an answer. "
            "Take prompt='words', leave points out, or take batch_size= for several answers of "
            "one request"
        )
    return Asking(prompt, capabilities, facts, options, seeded=seeded)


_warned: set[str] = set()  # prompts that read no description, or "": a process is warned once


@dataclass
class PointTask:
    """The points of one ask; see `llmopt.propose.Task`.

    Attributes:
        asking: How the model is asked.
        space: The search space.
        known: The evaluated and the pending points.
        seen: Keys (`Space.key`) of the points not to propose again; grows.
        fixed: Values that the points keep.
    """

    asking: Asking
    space: Space
    known: History
    seen: set[Hashable]
    fixed: Fixed | None = None
    labels: tuple[str, ...] = field(init=False)  # the parameters' names in the prompt
    _notes: tuple[str, ...] = field(init=False)
    _left: tuple[tuple[Value, ...], ...] = field(init=False, default=())
    _sampled: bool = field(init=False, default=False)
    _inside: Space = field(init=False)  # the part of the space that points may be of

    def __post_init__(self) -> None:
        labels = tuple(self.asking.capabilities.labels)
        self.labels = labels if len(labels) == len(self.space) else self.space.names
        notes = what_is_known(self.space, self.known, self.labels)
        table = self.space.candidates
        if table is not None and self.tool is None and (said := table.descriptors(self.labels)):
            notes += (said,)
        fixed = () if self.fixed is None else (self.fixed.note(self.labels),)
        self._notes = (*notes, *self.asking.notes, *fixed)
        self._inside = self.space if self.fixed is None else self.fixed.inside

    @property
    def options(self) -> AskOptions:
        """See `Asking`."""
        return self.asking.options

    @property
    def tool(self) -> Tool | None:
        """See `Asking`."""
        return self.asking.tool

    @property
    def _rows_left(self) -> int | None:
        """How many candidates are left, if they are whole points and none is repeated."""
        table = None if self.asking.options.noisy else self._inside.rows
        return None if table is None else table.left(self.seen)

    @property
    def exhausted(self) -> bool:
        """Whether every point of the space was tried."""
        if self.asking.options.noisy:
            return False
        if (left := self._rows_left) is not None:
            return left == 0
        seen = self.seen if self.fixed is None else self.fixed.seen(self.seen)
        count = self._inside.cardinality
        return len(seen) >= count and self._inside.tried(seen) >= count

    @property
    def choices_shown(self) -> bool:
        """Whether the last question listed every point that is left."""
        return bool(self._left)

    def question(self, round: Round) -> Question:
        """Return the prompt's question."""
        asking, options = self.asking, self.asking.options
        usual = points = asking.points_of_answer(self.space, round.missing)
        if self.fixed is not None:
            points = min(points, round.missing)  # those of a later ask have other values
        if (rows := self._rows_left) is not None:
            points = max(1, min(points, rows))
        blocks = (*round.before, *round.runs)
        left, cap = round.requests, options.max_requests
        waiting = tuple([p.values for p in round.proposals])
        known = replace(self.known, pending=self.known.pending + waiting)
        made, total = len(known.trials) + len(known.pending), options.total
        total = None if total is None or total <= made else total  # a plan may be exceeded
        situation = Situation.after(
            known,
            self.space,
            asking.facts,
            total=total,
            description=options.description,
            complaint=round.complaint,
            seed=round.seed,
            notes=(
                *self._hints(round.missing, points, total),
                *[_ONE] * (points == 1 < usual),
                *left_out(round.proposals),
            ),
            out_of_range=options.out_of_range,
            noisy=options.noisy,
            may_stop=bool(options.may_stop) and self.fixed is None,
            best_known=options.best_known,
            requests=None if left is None or cap is None else (left, cap),
            points=points,
            compute=asking.tool is not None,
            blocks=round.blocks,
            computed=round.runs,
            compute_seconds=options.compute_seconds,
            compute_blocks=options.compute_blocks,
            seeded=asking.seeded,
            seconds_left=round.seconds,
            compute_total=options.compute_total,
            tool=asking.tool_facts,
            tools=(*[_OBJECTIVE] * (options.compute_objective is not None), *asking.tools),
            variables=blocks[-1].variables if blocks else (),
            kept=blocks[-1].values if blocks else {},
            explores=asking.explores,
        )
        question = asking.prompt.prepare(situation)
        self._sampled = question.sampled
        request = replace(question.request, seed=round.seed)
        return replace(question, request=request)

    def _hints(self, wanted: int, points: int, total: int | None) -> tuple[str, ...]:
        self._left = () if self.asking.options.noisy else untried(self._inside, self.seen)
        hints = self._notes
        imported = sum(trial.imported for trial in self.known.trials)
        if imported and total is not None:
            hints += (f"{imported} of the {total} points were imported.",)
        if self._left:
            hints += (list_of(self.space, self._left),)
        if wanted > 1 and points > 1:
            hints += (_AT_ONCE.format(n=wanted, k=min(wanted, points)),)
        return hints

    def accept(self, reading: Reading, completion: Completion, scope: Scope) -> Proposal:
        """Return a new point of the space."""
        refused, text = self._failed if self.options.noisy else self.seen, completion.text
        point, moved = self._valid_point(reading.values, refused, text)
        if self.space.key(point) in refused and reading.otherwise is not None:
            point, moved = self._valid_point(reading.otherwise, refused, text)
        if (key := self.space.key(point)) in refused:
            raise Unusable("duplicate", "this point was already tried; propose another", text)
        self.seen.add(key)
        source: Source = "drawn" if self._sampled else "llm"
        return Proposal(point, source, reading.explanation, clipped=reading.clipped or moved)

    @property
    def _failed(self) -> set[Hashable]:
        """Keys of the points that have failures and no other result."""
        key, trials = self.space.key, self.known.trials
        failed: set[Hashable] = {key(t.values) for t in trials if t.state == "failed"}
        return failed - {key(t.values) for t in trials if t.state == "complete"}

    def _valid_point(
        self, values: tuple[Value, ...], refused: Set[Hashable], text: str
    ) -> tuple[tuple[Value, ...], bool]:
        """Return a proposed point that the search may evaluate, and whether it is another one.

        A chat model reads that a candidate does not exist or that a value is fixed, and answers
        again; for others the nearest point is taken.

        Args:
            values: The point.
            refused: Keys of the points not to accept.
            text: The answer, for the complaint.

        Raises:
            Unusable: With the complaint.
        """
        reads_complaints = self.asking.facts.chats and not self._sampled
        fixed, table = self.fixed, self._inside.candidates
        if reads_complaints and fixed and (other := fixed.contradiction(values)):
            why = f"the next experiment has {fixed}, and this point has {other}"
            raise Unusable("fixed", why, text)
        point = self.space.conform(values) if fixed is None else fixed.apply(values)
        if point is None:
            why = f"with {fixed} this point lacks the values of other parameters"
            raise Unusable("incomplete", why, text)
        self._check_constraints(point, text)
        if table is None:
            return point, False
        row = table.match(point, refused)
        if row is not None and (reads_complaints or self.space.key(row) not in refused):
            return row, False
        if reads_complaints:
            near = describe_params(table.nearest(point, refused), self.space, self.labels)
            why = f"this point does not exist; the nearest one is {near}"
            raise Unusable("candidate", why, text)
        point = table.nearest(point, refused, equal_first=False)
        self._check_constraints(point, text)
        return point, True

    def _check_constraints(self, values: tuple[Value, ...], text: str) -> None:
        if broken := self._inside.breach(values):
            raise Unusable("constraint", f"this point breaks {broken}", text)
        if self.asking.refusal is not None and (why := self.asking.refusal(values)):
            raise Unusable("constraint", why, text)

    def repeats(self, proposal: Proposal) -> bool:
        """Whether the point of a proposal was evaluated before."""
        key, point = self.space.key, self.space.key(proposal.values)
        return any(key(t.values) == point for t in self.known.complete)

    def describe(self, reading: Reading) -> str:
        """Return a point that is not used in words."""
        return cut(describe_params(reading.values, self.space, self.labels), _SHORT)

    def data(self, trials: int | None = None) -> Mapping[str, Any]:
        """Return the trials, or the first of them, as arrays for a block of Python."""
        return data_of(self.space, self.known, self.labels, trials)
