"""Write new candidates: prompt, request, parsing, checks, bounded repairs.

`Writer` is stateless; `llmopt.code.code_optimizer` keeps the history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from llmopt.client.base import Completion, Message, Reply, Request, client_name
from llmopt.client.model_facts import model_facts
from llmopt.code.answer import CodeAnswer, block_to_run, encodable, read_answer
from llmopt.code.candidate import Candidate, CodeTrial
from llmopt.code.computing import data_of, variables_of, words_after
from llmopt.code.events import CodeState, Refused
from llmopt.code.prompt import MAX_SENT_BACK, CodePrompt, complaint, json_schema, shorten
from llmopt.errors import ParameterError, ParseError
from llmopt.prompt.budget import TokenBudget
from llmopt.sandbox.failure import (
    CandidateError,
    NoCandidateError,
    SandboxError,
    SandboxUnavailableError,
)
from llmopt.sandbox.sandbox import Sandbox
from llmopt.search.computing import Blocks
from llmopt.search.meter import Meter
from llmopt.search.options import AskOptions
from llmopt.space.values import ABSENT
from llmopt.util.arguments import MOST_AT_ONCE, whole_number
from llmopt.util.text import cut

_ROOM = 4000  # tokens of a short context that stay for what blocks print, at most an eighth
_WITHHELD = {"filter": "it was withheld by a content filter", "refusal": "you declined"}


@dataclass
class Writer:
    """Asks a model for new candidates, given a history.

    Attributes:
        repairs: Maximum repair requests for one answer.
        attempts: Maximum new requests before `write` gives up.
        temperature: Sampling temperature; ``None`` for the provider's default.
        max_output_tokens: Cap on the tokens of one answer.
        computing: The limits of blocks of Python that the model runs before it writes code.
        calculator: Runs the blocks; ``None`` if there may be none.
        tools: Further lines of the prompt on what blocks find.
    """

    meter: Meter
    prompt: CodePrompt
    make_sandbox: Callable[[], Sandbox]
    seed: int = 0
    repairs: int = 2
    attempts: int = 2
    temperature: float | None = None
    max_output_tokens: int | None = 2000
    computing: AskOptions = field(default_factory=AskOptions)
    calculator: Any = None
    tools: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        whole_number("repairs", self.repairs, 0, MOST_AT_ONCE)
        whole_number("attempts", self.attempts, 1, MOST_AT_ONCE)

    def write(
        self,
        state: CodeState,
        number: int,
        current: CodeTrial | None,
        waiting: Sequence[Candidate],
        n: int,
        refuse: Callable[[Refused], None],
        turn: tuple[int, int] | None = None,
    ) -> list[Candidate]:
        """Return up to `n` candidates, numbered from `number`, that have passed every check.

        `state` holds the refusals of an interrupted call, which are reused: the same code might now
        fail in another way, which would change the next request. `refuse` records new refusals.
        `waiting` are the candidates without a result; `turn` is the number of this candidate and
        their total, if known.

        Raises:
            NoCandidateError: No answer could be used.
            BudgetExceededError: A cap is reached.
            ClientError: The request failed.
            SandboxError: A worker cannot start, not even without code.
        """
        budget = TokenBudget.of(
            model_facts(self.meter.client), None, (self.max_output_tokens or 1000) + 64
        )
        asking = _Asking(self, state, number, current, waiting, refuse, budget)
        asked = self._request(asking, turn, n)
        try:
            for attempt in range(self.attempts):
                request, completions = asking.send(asked, 0, attempt, 0)
                for completion in completions:
                    if reason := asking.use(completion):
                        asking.repair(request, attempt, reason)
                if asking.written:
                    return asking.written
        except BaseException:
            for candidate in asking.written:
                candidate.close()
            raise
        reasons = "; ".join(dict.fromkeys(reason for _, reason in asking.tries))
        raise NoCandidateError(
            f"the model {client_name(self.meter.client)} gave no usable code in {self.attempts} "
            f"requests with {self.repairs} repairs each: {reasons}",
            asking.tries,
        )

    def _request(self, asking: _Asking, turn: tuple[int, int] | None, n: int) -> Request:
        """Return the first request of an ask, without its seed."""
        prompt, budget, trials = self.prompt, asking.budget, asking.trials
        names, computing = prompt.space.names if prompt.space else (), None
        if prompt.computes:
            computing = variables_of(asking.blocks, self.computing, trials, self.tools)
            if budget.limit is not None:
                budget = replace(budget, limit=budget.limit - min(_ROOM, budget.limit // 8))
        return Request(
            prompt.messages(asking.current, trials, budget, turn, computing),
            n=n,
            temperature=self.temperature,
            max_tokens=self.max_output_tokens,
            json_schema=json_schema(names, prompt.computes) if prompt.answer == "json" else None,
        )

    def block(self, completion: Completion) -> str:
        """Return the Python to run of a completion; nothing if it is to be read as code."""
        if not self.prompt.computes or completion.finish_reason in _WITHHELD:
            return ""
        return block_to_run(encodable(completion.text), [f.name for f in self.prompt.functions])

    def build(
        self,
        completion: Completion,
        number: int,
        current: CodeTrial | None,
        taken: Sequence[CodeTrial | Candidate],
    ) -> Candidate:
        """Return the checked candidate of a completion.

        Raises:
            ParseError: The answer contains no code, or a block of Python where none may follow.
            CandidateError: The code does not pass a check.
        """
        if completion.finish_reason in _WITHHELD:
            raise ParseError(_WITHHELD[completion.finish_reason], completion.text)
        if self.block(completion):
            raise ParseError("no further block of Python is run here", completion.text)
        functions, computes = self.prompt.functions, self.prompt.computes
        names = [f.name for f in functions]
        answer = read_answer(encodable(completion.text), names, computes=computes)
        params = self._read_params(answer)
        candidate = Candidate(
            answer.source,
            functions,
            self.make_sandbox,
            number=number,
            params=params,
            variables=self.variables(params),
            explanation=answer.explanation,
            parent=None if current is None or current.number < 0 else current.number,
        )
        try:
            candidate.check()
            self._refuse_duplicate(candidate, taken)
        except (SandboxError, SandboxUnavailableError) as error:
            candidate.close()
            # The answer is paid for, and every resume would repeat it: if a worker starts
            # without its code, the answer is at fault.
            with self.make_sandbox() as empty:
                empty.start()
            raise CandidateError("its process broke down", "crash") from error
        except BaseException:
            candidate.close()
            raise
        return candidate

    def _refuse_duplicate(
        self, candidate: Candidate, taken: Sequence[CodeTrial | Candidate]
    ) -> None:
        for other in taken:
            if other.fingerprint == candidate.fingerprint and self._same_params(
                other.params, candidate.params
            ):
                score = other.reward if isinstance(other, CodeTrial) else None
                scored = "" if score is None else f", which scored {score:.6g}"
                raise CandidateError(
                    f"this is the same program as try {other.number}{scored}: write another one"
                )

    def _same_params(self, a: Any, b: Any) -> bool:
        space = self.prompt.space
        if space is None or a is None or b is None:
            return True
        return space.key(space.flatten(a)) == space.key(space.flatten(b))

    def _read_params(self, answer: CodeAnswer) -> Any:
        space = self.prompt.space
        if space is None:
            return None
        values = []
        try:
            for index, name in enumerate(space.names):
                if name not in answer.values and space.condition(index):
                    values.append(ABSENT)  # `unflatten` raises if it is needed
                    continue
                if name not in answer.values:
                    raise ParseError(f'the value of {name!r} is missing; expected it in "values"')
                value = answer.values[name]
                values.append(space.parse_value(index, value) if isinstance(value, str) else value)
            return space.unflatten(space.clip(values))
        except ParameterError as error:
            raise ParseError(str(error)) from error

    def variables(self, params: Any) -> dict[str, Any]:
        """Return the global names that are bound for a candidate with these values."""
        space = self.prompt.space
        if space is None or params is None:
            return {}
        return {"params": space.named(space.flatten(params))}


@dataclass
class _Asking:
    """The answers of one `Writer.write`, and the resulting candidates."""

    writer: Writer
    state: CodeState
    number: int
    current: CodeTrial | None
    waiting: Sequence[Candidate]
    refuse: Callable[[Refused], None]
    budget: TokenBudget
    tries: list[tuple[str, str]] = field(default_factory=list)  # answers, and their faults
    written: list[Candidate] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Copies from before the first answer: `refuse` adds to the state.
        self._known, self._failures = list(self.state.refusals), self.state.failures
        self.trials = list(self.state.trials)
        writer = self.writer
        self.blocks = Blocks(writer.meter, writer.computing, writer.calculator)

    def seed(self, *keys: int) -> int:
        """Return the seed of a request.

        It depends only on earlier requests: a resumed search sends the same requests as an
        uninterrupted one.
        """
        key = (self.number, self._failures, *keys)
        source = np.random.SeedSequence(self.writer.seed, spawn_key=key)
        return int(source.generate_state(1)[0]) >> 1

    def send(self, begun: Request, since: int, *keys: int) -> tuple[Request, list[Completion]]:
        """Send a request, and run the block that answers it, until code comes or no block may.

        Args:
            begun: The request without its seed.
            since: Number of blocks of this ask that the request already shows.
            *keys: What its seed is made from.

        Returns:
            The last request, and its answers: those that are no blocks, or all if all are blocks
            and none may be run.
        """
        writer, data = self.writer, partial(data_of, self.trials, self.writer.prompt.space)
        while True:
            request = self._showing_blocks(begun, since, *keys)
            reply = writer.meter.send(request)
            completions = _completions(reply)
            blocks = [writer.block(completion) for completion in completions]
            others = [c for c, block in zip(completions, blocks, strict=True) if not block]
            if others or not self.blocks.left:
                return request, others or list(completions)
            self.blocks.run(blocks[0], lambda _: data(), reply)

    def _showing_blocks(self, begun: Request, since: int, *keys: int) -> Request:
        """Return a request that shows the further blocks of this ask, cut if they do not fit."""
        done = len(self.blocks.done)
        if done == since:
            return replace(begun, seed=self.seed(*keys))
        *before, last = begun.messages
        shown, ending = words_after(self.blocks, since)
        latest = shown[-1]
        for text in ("\n\n".join(shown), *(shorten(latest, len(latest) >> k) for k in range(7))):
            said = Message(last.role, f"{last.content}\n\n{text}\n\n{ending}")
            request = replace(begun, messages=(*before, said), seed=self.seed(*keys, done))
            if self.budget.holds(request.text):
                break
        return request

    def use(self, completion: Completion) -> str:
        """Make a candidate from a completion; return the fault, or an empty text."""
        mine = self.number + len(self.written)
        text = cut(encodable(completion.text), MAX_SENT_BACK)
        refusal = next((r for r in self._known if (r.number, r.text) == (mine, text)), None)
        if refusal is not None:
            self._known.remove(refusal)
        else:
            try:
                taken: list[CodeTrial | Candidate] = [*self.trials, *self.waiting]
                taken += self.written
                self.written.append(self.writer.build(completion, mine, self.current, taken))
                return ""
            except (ParseError, CandidateError) as error:
                reason = encodable(_words(error))
                if completion.finish_reason == "length":
                    reason = f"it was cut off; be shorter: {reason}"
                refusal = Refused(mine, text, reason, getattr(error, "kind", "unreadable"))
            self.refuse(refusal)
        self.tries.append((text, refusal.reason))
        return refusal.reason

    def repair(self, request: Request, attempt: int, reason: str) -> None:
        """Send an answer back with its fault, until a new answer can be used."""
        shown = len(self.blocks.done)
        for _ in range(self.writer.repairs):
            words = complaint(reason, self.writer.prompt.answer, self.blocks.left)
            said = Message("user", words)
            answer = Message("assistant", self.tries[-1][0] or "(nothing)")
            messages = (*request.messages, answer, said)
            again = replace(request, messages=messages, n=1)
            if not self.budget.holds(again.text):
                return
            _, completions = self.send(again, shown, attempt, len(self.tries))
            if not (reason := self.use(completions[0])):
                return


def _completions(reply: Reply) -> tuple[Completion, ...]:
    return reply.completions or (Completion(""),)  # a reply without samples counts as empty


def _words(error: ParseError | CandidateError) -> str:
    return error.feedback() if isinstance(error, CandidateError) else error.reason
