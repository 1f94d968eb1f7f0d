"""The one asking loop: question, reply, reading, checks, complaint, blocks of Python.

    outcome = propose(task, scope, rng, n=1)

A `Task` says what is asked for: `llmopt.point_task.PointTask` points of a space,
`llmopt.code.program_task.ProgramTask` programs. The loop is a function of the task, the replies and
the results of code that was run. All three are in the journal, so that a repeated ask gives the
same points.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from llmopt.client.base import Completion, client_name
from llmopt.errors import (
    BudgetExceededError,
    ClientError,
    LLMOptError,
    ParseError,
    is_permanent,
)
from llmopt.history import Proposal
from llmopt.model_calls import Scope
from llmopt.options import AskOptions
from llmopt.prompt.answer_parts import Reading, ToolCall, is_nothing, notes_of, with_dropped
from llmopt.prompt.python_block import Computed as Block
from llmopt.prompt.python_block import ToolFacts, blocks_left
from llmopt.prompt.situation import Complaint, Question
from llmopt.util.text import cut, ended

logger = logging.getLogger(__name__)

_WITHHELD = {
    "filter": "the answer was withheld by the provider's content filter",
    "refusal": "the model declined to answer",
}


class Unusable(ParseError):
    """A sample that is not used.

    Attributes:
        kind: The key under which `Usage.rejected` counts it.
    """

    def __init__(self, kind: str, reason: str, raw: str, reasons: Sequence[str] = ()) -> None:
        super().__init__(reason, raw, reasons)
        self.kind = kind


class Tool(Protocol):
    """Runs a model's Python; `llmopt.lab` implements it.

    Attributes:
        folder: Where it keeps the variables of blocks; ``None`` for memory.
    """

    folder: Path | None

    @property
    def facts(self) -> ToolFacts:
        """What a prompt states of it."""

    def check(self) -> None:
        """Raise if it cannot load what its user named; called before a request is paid for."""

    def equip(self, source: str, values: Mapping[str, Any]) -> None:
        """Have blocks find the functions of a source, in which `values` are variables."""

    def read_from(self, folder: Path) -> None:
        """Take the variables of a saved search from its folder, in which nothing is written."""

    def export(self, folder: Path, blocks: int) -> None:
        """Write the variables after a number of blocks, if there are any, into another folder."""

    def run(
        self,
        code: str,
        before: Sequence[Block],
        data: Callable[[], Mapping[str, Any]],
        seconds: float,
    ) -> Block:
        """Run a block after all blocks before it.

        Args:
            code: The block.
            before: Earlier blocks; their variables are there, whatever happened to the process.
            data: Returns what a block finds of the search.
            seconds: What all further blocks of the search may take.
        """

    def close(self) -> None:
        """End its processes."""


@dataclass(frozen=True)
class Round:
    """What a task needs to know to ask its question.

    Attributes:
        proposals: The points of this ask so far.
        missing: How many more are wanted.
        seed: Of everything random about the question.
        complaint: Why the last answer could not be used, if it could not.
        runs: The blocks of this ask.
        before: The blocks of earlier asks.
        blocks: How many more blocks may follow.
        seconds: What all further blocks may take.
        requests: What `max_requests` leaves; ``None`` without it.
    """

    proposals: tuple[Proposal, ...]
    missing: int
    seed: int
    complaint: Complaint | None
    runs: tuple[Block, ...]
    before: tuple[Block, ...]
    blocks: int
    seconds: float
    requests: int | None = None


class Task(Protocol):
    """What a model is asked for."""

    @property
    def options(self) -> AskOptions:
        """Those of the loop: `attempts`, `on_error`, `compute_blocks` and `compute_total`."""

    @property
    def tool(self) -> Tool | None:
        """What runs blocks of Python; ``None`` if an answer may not be one."""

    @property
    def exhausted(self) -> bool:
        """Whether there is nothing left to propose."""

    @property
    def choices_shown(self) -> bool:
        """Whether the last question listed all that may be answered: repeating it is useless."""

    def question(self, round: Round) -> Question:
        """Return the question of a round."""

    def accept(self, reading: Reading, completion: Completion, scope: Scope) -> Proposal:
        """Return a new proposal, or raise `Unusable`."""

    def repeats(self, proposal: Proposal) -> bool:
        """Whether its point was evaluated before, so that the prompt shows the words of then."""

    def describe(self, reading: Reading) -> str:
        """Return a point that is not used in words, for the model."""

    def data(self, trials: int | None = None) -> Mapping[str, Any]:
        """Return what a block of Python finds, or found when there were this number of trials."""


@dataclass
class Outcome:
    """What one asking gave.

    Attributes:
        proposals: The points, in the order of the answers.
        rejected: Samples that were not used, by reason.
        stop: Why the model ends the search, and the number of the point it recommends.
        trouble: Why points are missing, in words; empty if none are.
        capped: Whether a cap ended the asking.
        failed: Whether the model gave no point: it failed, could not be read, or a cap is reached.
        error: What is to be raised once the points that were paid for before it are kept.
        outdated: Whether points are missing since results were recorded meanwhile: the next request
            must state them.
        refused: The last answer, and why it cannot be used, if the next request must say so.
        unread: The last answers that could not be used, each with the reason.
        warnings: Texts for the user.
    """

    proposals: list[Proposal] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    stop: tuple[str, int | None] | None = None
    trouble: str = ""
    capped: bool = False
    failed: bool = False
    error: LLMOptError | None = None
    outdated: bool = False
    refused: tuple[str, ...] = ()
    unread: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def propose(
    task: Task,
    scope: Scope,
    rng: np.random.Generator,
    n: int,
    *,
    on_cap: Literal["raise", "return"] = "raise",
) -> Outcome:
    """Ask a model for `n` new proposals.

    Args:
        task: What is asked for.
        scope: The calls of this ask.
        rng: Source of all randomness; advanced.
        n: Proposals wanted. There may be more, if the last answer has several, and fewer.
        on_cap: Whether `max_requests`, `max_tokens` and `max_cost` raise as `AskOptions.on_error`
            says, or end the asking; the last request is then for a point: no block may follow it.

    Raises:
        BudgetExceededError: A cap is reached, and there is no point; else it is `Outcome.error`.
        ClientError: The model could not be asked, and there is no point.
        Stale: See `Scope.complete`.
    """
    if task.tool is not None:
        task.tool.check()
    loop, on_error = _Loop(task, scope, rng, n, on_cap == "return"), task.options.on_error
    while loop.continues:
        try:
            question, completion = loop.ask()
        except (BudgetExceededError, ClientError) as error:
            outcome, capped = loop.outcome, isinstance(error, BudgetExceededError)
            outcome.trouble, outcome.capped = str(error), capped
            if is_permanent(error) or (on_error == "raise" and not (capped and on_cap == "return")):
                if not outcome.proposals:
                    raise
                outcome.error = error
            break
        loop.read(question, completion)
        loop.check_results()
    return loop.result()


class _Loop:
    """The requests of one `propose`."""

    def __init__(
        self,
        task: Task,
        scope: Scope,
        rng: np.random.Generator,
        n: int,
        keep_last: bool,
    ) -> None:
        self._task, self._scope, self._rng, self._n = task, scope, rng, n
        self._keep_last = keep_last  # of `max_requests`, for points
        # The blocks of earlier asks, and of this one.
        state, first = scope.state, not scope.replies
        blocks = tuple([Block.read(run.event.result) for run in state.runs])
        begin = len(blocks) - state.since * first
        self._before, self._runs = blocks[:begin], blocks[begin:]
        self._complaint = Complaint(*state.refused) if first and state.refused else None
        self._useless = False  # no further answer can help
        self._began = ""  # how the last answer began, if it could not be read
        self._why = ""  # the last unusable answer is unusable
        self._misses = 0  # answers without a point
        self.outcome = Outcome()

    @property
    def continues(self) -> bool:
        """Whether a further request is to be sent."""
        outcome = self.outcome
        return (
            len(outcome.proposals) < self._n
            and outcome.stop is None
            and not outcome.outdated
            and self._misses < self._task.options.attempts
            and not self._useless
            and not self._task.exhausted
        )

    def check_results(self) -> None:
        """End the requests if the next one has to state results that were recorded meanwhile."""
        outcome, complaint = self.outcome, self._complaint
        if self.continues and (outcome.proposals or complaint) and self._scope.outdated:
            outcome.outdated = True
            outcome.refused = (complaint.raw, complaint.reason) if complaint else ()

    @property
    def _seconds(self) -> float:
        """What all further blocks may take."""
        total = self._task.options.compute_total
        return total - sum(b.seconds for b in (*self._before, *self._runs))

    @property
    def _blocks(self) -> int:
        """How many blocks may follow."""
        if self._task.tool is None or self._seconds <= 0:
            return 0
        left = blocks_left(self._runs, self._task.options.compute_blocks)
        requests = self._scope.requests_left
        if self._keep_last and requests is not None:
            return min(left, max(0, requests - 1))
        return left

    def ask(self) -> tuple[Question, Completion]:
        """Send a question, and return it with the answer."""
        proposals = self.outcome.proposals
        round = Round(
            proposals=tuple(proposals),
            missing=self._n - len(proposals),
            seed=int(self._rng.integers(2**31)),
            complaint=self._complaint,
            runs=self._runs,
            before=self._before,
            blocks=self._blocks,
            seconds=self._seconds,
            requests=self._scope.requests_left,
        )
        question = self._task.question(round)
        if question.sampled:  # by the prompt, without a model
            return question, Completion("")
        reply = self._scope.complete(question.request)
        # A reply without a completion counts as an empty answer.
        return question, next(iter(reply.completions), Completion(""))

    def read(self, question: Question, completion: Completion) -> None:
        """Read an answer: points, the end of the search, or Python to run."""
        earlier_complaint, self._complaint = self._complaint, None
        before = len(self.outcome.proposals)
        try:
            if call := self._read(question, completion):
                self._complaint = earlier_complaint  # the block may look into it
                self._run(call)
                return
        except ParseError as error:
            kind = error.kind if isinstance(error, Unusable) else "unreadable"
            self._began = cut(" ".join(error.raw.split()), 200) * (kind == "unreadable")
            self.outcome.rejected[kind] += 1
            self.outcome.unread.append((error.raw, error.reason))
            self._why = error.brief
            self._complaint = Complaint(error.raw, error.reason)
        self._misses += len(self.outcome.proposals) == before
        self._useless = self._task.choices_shown and self._complaint is not None

    def _read(self, question: Question, completion: Completion) -> ToolCall | None:
        """Add the points of an answer; return the call if it is one."""
        reason = completion.finish_reason
        withheld = _WITHHELD.get(reason)
        try:
            answer = question.read(completion.text)
        except ParseError as error:
            if withheld:
                raise Unusable(reason, withheld, completion.text) from error
            if reason == "length":
                why = f"the answer was cut off at the token limit ({error.reason})"
                raise Unusable("truncated", why, completion.text) from error
            raise
        if isinstance(answer, ToolCall):
            if self._blocks <= 0:
                why = "no further block of Python is possible here"
                raise Unusable("unreadable", why, completion.text)
            return answer
        if answer.unterminated and reason == "length":
            why = "the answer was cut off at the token limit inside its values"
            raise Unusable("truncated", why, completion.text)
        self._accept_all(answer, completion)
        return None

    def _accept_all(self, answer: Reading, completion: Completion) -> None:
        """Add the points of an answer; raise if none of them can be used."""
        outcome, faults = self.outcome, list[Unusable]()
        dropped, reasons = list(answer.dropped), list(answer.dropped)
        for why in answer.dropped:
            outcome.rejected["unreadable"] += 1
            logger.warning("one of several points of an answer is skipped: %s", why)
        proposals: list[Proposal] = []
        for reading in answer.each:
            if reading.stop:
                outcome.stop = self._reason(reading), reading.start
                break
            try:
                proposals.append(self._task.accept(reading, completion, self._scope))
            except Unusable as error:
                faults.append(error)
                point = self._task.describe(reading)
                dropped.append(f"{point}: {error.reason.partition('; ')[0]}")
                reasons.append(f"{point}: {error.reason}")
        first = faults[0] if faults and not proposals and outcome.stop is None else None
        for fault in faults:
            if fault is not first:  # which is counted where it is caught
                outcome.rejected[fault.kind] += 1
        if first is not None:
            if len(reasons) == 1:
                raise first
            each = *answer.dropped, *(fault.reason for fault in faults)
            raise Unusable(first.kind, "; ".join(reasons), first.raw, each)  # all, for the model
        if dropped and proposals:  # the model reads it beside the last new point
            news = [i for i, p in enumerate(proposals) if not self._task.repeats(p)]
            last = news[-1] if news else -1
            words = with_dropped(proposals[last].explanation, dropped)
            proposals[last] = replace(proposals[last], explanation=words)
        outcome.proposals += proposals

    def _reason(self, reading: Reading) -> str:
        """Return in words why the model ends the search."""
        notes = notes_of(reading.explanation)
        why = " ".join(notes.analysis.split()).strip(",;: ")
        if not is_nothing(notes.hypothesis):
            why = f"{ended(why)} Hypothesis: {notes.hypothesis}".strip()
        point = f", and recommends #{reading.start}" if reading.start else ""
        return (
            f"{client_name(self._scope.client)} expects no further gain and ended the search"
            f"{point}{': ' if why else ''}{cut(why, 300)}"
        )

    def _run(self, call: ToolCall) -> None:
        """Run a block, or find what it printed when an interrupted ask ran it."""
        tool, seconds, before = self._task.tool, self._seconds, (*self._before, *self._runs)
        assert tool is not None
        tokens = self._scope.replies[-1].tokens

        def run() -> dict[str, Any]:
            block = tool.run(call.code, before, self._task.data, seconds)
            return replace(block, tokens=tokens).line()

        self._runs += (Block.read(self._scope.run(call.code, run, tokens=tokens)),)

    def result(self) -> Outcome:
        """Return the outcome; the cost of the requests is divided evenly among the points."""
        outcome, replies = self.outcome, self._scope.replies
        ended = outcome.stop is not None or outcome.outdated
        if len(outcome.proposals) < self._n and not ended and not outcome.trouble:
            outcome.trouble = "too few usable answers"
            if outcome.unread:
                count = self._misses
                outcome.trouble = f"{count} of its answers could not be used, the last: {self._why}"
                if self._began:
                    outcome.trouble += f"; it began {self._began!r}"
            if self._task.exhausted:
                outcome.trouble = "every point of the space was already tried"
        outcome.failed = bool(outcome.trouble) and not (outcome.proposals or self._task.exhausted)
        parts = max(1, len(outcome.proposals))
        prompt = sum(r.prompt_tokens or 0 for r in replies) / parts
        completion = sum(r.completion_tokens or 0 for r in replies) / parts
        seconds = sum(r.seconds for r in replies) / parts
        outcome.proposals = [
            replace(p, prompt_tokens=prompt, completion_tokens=completion, seconds=seconds)
            for p in outcome.proposals
        ]
        return outcome
