"""What a model is asked for in a search over code; see `llmopt.propose.Task`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llmopt.client.base import Completion, Message, Request
from llmopt.client.model_facts import ModelFacts
from llmopt.code.answer import CodeAnswer, encodable, read_answer
from llmopt.code.candidate import Candidate, CodeTrial
from llmopt.code.computing import data_of, variables_of, words_after
from llmopt.code.program import Program, ProgramSpace
from llmopt.code.prompt import MAX_SENT_BACK, CodePrompt, complaint, shorten
from llmopt.history import Proposal
from llmopt.model_calls import Scope
from llmopt.options import AskOptions
from llmopt.prompt.answer_parts import Reading, ToolCall
from llmopt.prompt.python_block import ToolFacts
from llmopt.prompt.shown_trials import TokenBudget
from llmopt.prompt.situation import Question
from llmopt.propose import Round, Tool, Unusable
from llmopt.sandbox.failure import CandidateError, SandboxError, SandboxUnavailableError
from llmopt.sandbox.sandbox import Sandbox
from llmopt.util.text import cut

_ROOM = 4000  # tokens of a short context that stay for what blocks print, at most an eighth


@dataclass(frozen=True)
class Writing:
    """How a model is asked for programs.

    Attributes:
        prompt: Turns the tries into a question.
        facts: Of the model.
        make_sandbox: Makes a worker that is not started yet.
        temperature: Sampling temperature; ``None`` for the provider's default.
        max_output_tokens: Cap on the tokens of one answer.
        options: Attempts, and limits of the blocks of Python.
        tool: Runs the blocks; ``None`` if the model may not compute.
        tool_facts: What the prompt states of the process that runs blocks.
        tools: Further lines of the prompt on what blocks find.
    """

    prompt: CodePrompt
    facts: ModelFacts
    make_sandbox: Callable[[], Sandbox]
    temperature: float | None = None
    max_output_tokens: int | None = 2000
    options: AskOptions = field(default_factory=AskOptions)
    tool: Tool | None = None
    tool_facts: ToolFacts = field(default_factory=lambda: ToolFacts(0))
    tools: tuple[str, ...] = ()


@dataclass
class ProgramTask:
    """The program of one ask.

    Attributes:
        writing: How the model is asked.
        space: The programs.
        trials: The recorded tries.
        programs: All programs so far, each with its score, if it has one.
        current: The try to improve, if any.
        number: Of the new candidate.
        left: Tries that follow this one, if known.
        candidate: The checked candidate; its worker is running.
    """

    writing: Writing
    space: ProgramSpace
    trials: Sequence[CodeTrial]
    programs: Sequence[tuple[Program, float | None]]
    current: CodeTrial | None
    number: int
    left: int | None = None
    candidate: Candidate | None = None
    _first: Round | None = None  # what its blocks do is shown behind the task, which stays

    @property
    def options(self) -> AskOptions:
        """See `Writing`."""
        return self.writing.options

    @property
    def tool(self) -> Tool | None:
        """See `Writing`."""
        return self.writing.tool

    @property
    def exhausted(self) -> bool:
        """There are always further programs."""
        return False

    @property
    def choices_shown(self) -> bool:
        """A question never lists all programs."""
        return False

    @property
    def _may_stop(self) -> bool:
        """Whether the model may end the search: there is a score."""
        return any(trial.reward is not None for trial in self.trials)

    # -- the question ---------------------------------------------------------------------

    def question(self, round: Round) -> Question:
        """Return the request for a program, for a repair, or for what follows a block."""
        writing, prompt = self.writing, self.writing.prompt
        self._first = self._first or round
        budget = TokenBudget.of(writing.facts, None, (writing.max_output_tokens or 1000) + 64)
        room, computing = budget, None
        if prompt.computes:
            computing = variables_of(
                self._first,
                writing.options,
                writing.tool_facts,
                self.trials,
                writing.tools,
            )
            if budget.limit is not None:
                room = replace(budget, limit=budget.limit - min(_ROOM, budget.limit // 8))
        turn = None if self.left is None else (self.number, self.left)
        messages = prompt.messages(self.current, self.trials, room, turn, computing)
        request = Request(
            messages,
            temperature=writing.temperature,
            max_tokens=writing.max_output_tokens,
            seed=round.seed,
        )
        request = self._with_complaint(request, round, budget)
        return Question(self._with_blocks(request, round, budget), self._read)

    def _with_complaint(self, request: Request, round: Round, budget: TokenBudget) -> Request:
        """Return a request that sends the refused answer back, if it fits."""
        if round.complaint is None:
            return request
        words = complaint(round.complaint.reason, round.blocks)
        raw = cut(encodable(round.complaint.raw), MAX_SENT_BACK) or "(nothing)"
        messages = (*request.messages, Message("assistant", raw), Message("user", words))
        repair = replace(request, messages=messages)
        return repair if budget.holds(repair.text) else request

    def _with_blocks(self, request: Request, round: Round, budget: TokenBudget) -> Request:
        """Return a request that shows the blocks of this ask, cut if they do not fit."""
        if not round.runs:
            return request
        *before, last = request.messages
        shown, ending = words_after(round)
        latest = shown[-1]
        for text in ("\n\n".join(shown), *(shorten(latest, len(latest) >> k) for k in range(7))):
            said = Message(last.role, f"{last.content}\n\n{text}\n\n{ending}")
            longer = replace(request, messages=(*before, said))
            if budget.holds(longer.text):
                break
        return longer

    # -- the answer -----------------------------------------------------------------------

    def _read(self, text: str) -> Reading | ToolCall:
        """Return the program of an answer, or the block to run."""
        computes = self.writing.prompt.computes
        answer = read_answer(encodable(text), computes=computes, may_stop=self._may_stop)
        if answer.source:
            open_ended = answer.unterminated
            return Reading((answer,), answer.explanation, False, unterminated=open_ended)
        if answer.run:
            return ToolCall(answer.run)
        return Reading((), answer.explanation, False, stop=True)

    def accept(self, reading: Reading, completion: Completion, scope: Scope) -> Proposal:
        """Check a program in its worker, and return it."""
        answer: CodeAnswer = reading.values[0]
        candidate = self._candidate(answer)
        try:
            verdict = scope.run(answer.source, lambda: self._check(candidate), block=False)
            if reason := str(verdict.get("error", "")):
                if completion.finish_reason == "length":
                    reason = f"it was cut off; be shorter: {reason}"
                raise Unusable(str(verdict.get("kind", "unreadable")), reason, completion.text)
            fingerprint = str(verdict["fingerprint"])
            program = Program(self.number, answer.source, fingerprint, candidate.parent)
            self._refuse_duplicate(program, completion)
        except BaseException:
            candidate.close()
            raise
        candidate.fingerprint = program.fingerprint
        self.candidate = candidate
        return Proposal(program.values, "llm", answer.explanation)

    def _candidate(self, answer: CodeAnswer) -> Candidate:
        return Candidate(
            answer.source,
            self.writing.prompt.functions,
            self.writing.make_sandbox,
            number=self.number,
            explanation=answer.explanation,
            parent=None if self.current is None or self.current.number < 0 else self.current.number,
        )

    def _check(self, candidate: Candidate) -> dict[str, Any]:
        """Return the verdict of the checks as JSON."""
        try:
            candidate.check()
        except CandidateError as error:
            return {"error": encodable(error.feedback()), "kind": error.kind}
        except (SandboxError, SandboxUnavailableError):
            candidate.close()
            # The answer is paid for, and every resume would repeat it: if a worker starts
            # without its code, the answer is at fault.
            with self.writing.make_sandbox() as empty:
                empty.start()
            return {"error": "its process broke down", "kind": "crash"}
        return {"fingerprint": candidate.fingerprint}

    def _refuse_duplicate(self, program: Program, completion: Completion) -> None:
        for other, score in self.programs:
            if self.space.same(program, other):
                scored = "" if score is None else f", which scored {score:.6g}"
                why = f"this is the same program as try {other.number}{scored}: write another one"
                raise Unusable("duplicate", why, completion.text)

    def close(self) -> None:
        """Kill the worker of its candidate."""
        if self.candidate is not None:
            self.candidate.close()

    def repeats(self, proposal: Proposal) -> bool:
        """A program is never evaluated again."""
        return False

    def describe(self, reading: Reading) -> str:
        """Return the first line of a program that is not used."""
        answer: CodeAnswer = reading.values[0]
        return cut(answer.source.strip().partition("\n")[0], 120)

    def data(self, trials: int | None = None) -> Mapping[str, Any]:
        """Return the tries, or the first of them, for a block of Python."""
        return data_of(self.trials[:trials])
