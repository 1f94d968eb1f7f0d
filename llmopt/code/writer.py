"""Write new candidates: prompt, request, parsing, checks, bounded repairs.

`Writer` is stateless; `llmopt.code.code_optimizer` keeps the history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from llmopt.client.base import Completion, Message, Reply, Request, client_name
from llmopt.client.model_facts import model_facts
from llmopt.code.answer import CodeAnswer, encodable, read_answer
from llmopt.code.candidate import Candidate, CodeTrial
from llmopt.code.events import CodeState, Refused
from llmopt.code.prompt import MAX_SENT_BACK, CodePrompt, complaint, json_schema
from llmopt.errors import ParameterError, ParseError
from llmopt.prompt.budget import TokenBudget
from llmopt.sandbox.failure import (
    CandidateError,
    NoCandidateError,
    SandboxError,
    SandboxUnavailableError,
)
from llmopt.sandbox.sandbox import Sandbox
from llmopt.search.meter import Meter
from llmopt.space.values import ABSENT
from llmopt.util.arguments import MOST_AT_ONCE, whole_number
from llmopt.util.text import cut

_WITHHELD = {"filter": "it was withheld by a content filter", "refusal": "you declined"}


@dataclass
class Writer:
    """Asks a model for new candidates, given a history.

    Attributes:
        repairs: Maximum repair requests for one answer.
        attempts: Maximum new requests before `write` gives up.
        temperature: Sampling temperature; ``None`` for the provider's default.
        max_output_tokens: Cap on the tokens of one answer.
    """

    meter: Meter
    prompt: CodePrompt
    make_sandbox: Callable[[], Sandbox]
    seed: int = 0
    repairs: int = 2
    attempts: int = 2
    temperature: float | None = None
    max_output_tokens: int | None = 2000

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
        asking = _Asking(self, state, number, current, waiting, refuse)
        budget = TokenBudget.of(
            model_facts(self.meter.client), None, (self.max_output_tokens or 1000) + 64
        )
        names = self.prompt.space.names if self.prompt.space else ()
        asked = Request(
            self.prompt.messages(current, list(state.trials), budget, turn),
            n=n,
            temperature=self.temperature,
            max_tokens=self.max_output_tokens,
            json_schema=json_schema(names) if self.prompt.answer == "json" else None,
        )
        try:
            for attempt in range(self.attempts):
                request = replace(asked, seed=asking.seed(attempt, 0))
                for completion in _completions(self.meter.send(request)):
                    if reason := asking.use(completion):
                        asking.repair(request, attempt, reason, budget)
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

    def build(
        self,
        completion: Completion,
        number: int,
        current: CodeTrial | None,
        taken: Sequence[CodeTrial | Candidate],
    ) -> Candidate:
        """Return the checked candidate of a completion.

        Raises:
            ParseError: The answer contains no code.
            CandidateError: The code does not pass a check.
        """
        if completion.finish_reason in _WITHHELD:
            raise ParseError(_WITHHELD[completion.finish_reason], completion.text)
        functions = self.prompt.functions
        answer = read_answer(encodable(completion.text), [f.name for f in functions])
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
    tries: list[tuple[str, str]] = field(default_factory=list)  # answers, and their faults
    written: list[Candidate] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Copies from before the first answer: `refuse` adds to the state.
        self._known, self._failures = list(self.state.refusals), self.state.failures
        self._trials = list(self.state.trials)

    def seed(self, *keys: int) -> int:
        """Return the seed of a request.

        It depends only on earlier requests: a resumed search sends the same requests as an
        uninterrupted one.
        """
        key = (self.number, self._failures, *keys)
        source = np.random.SeedSequence(self.writer.seed, spawn_key=key)
        return int(source.generate_state(1)[0]) >> 1

    def use(self, completion: Completion) -> str:
        """Make a candidate from a completion; return the fault, or an empty text."""
        mine = self.number + len(self.written)
        text = cut(encodable(completion.text), MAX_SENT_BACK)
        refusal = next((r for r in self._known if (r.number, r.text) == (mine, text)), None)
        if refusal is not None:
            self._known.remove(refusal)
        else:
            try:
                taken: list[CodeTrial | Candidate] = [*self._trials, *self.waiting]
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

    def repair(self, request: Request, attempt: int, reason: str, budget: TokenBudget) -> None:
        """Send an answer back with its fault, until a new answer can be used."""
        meter = self.writer.meter
        for _ in range(self.writer.repairs):
            said = Message("user", complaint(reason, self.writer.prompt.answer))
            answer = Message("assistant", self.tries[-1][0] or "(nothing)")
            messages = (*request.messages, answer, said)
            seed = self.seed(attempt, len(self.tries))
            again = replace(request, messages=messages, n=1, seed=seed)
            if not budget.holds(again.text):
                return
            if not (reason := self.use(_completions(meter.send(again))[0])):
                return


def _completions(reply: Reply) -> tuple[Completion, ...]:
    return reply.completions or (Completion(""),)  # a reply without samples counts as empty


def _words(error: ParseError | CandidateError) -> str:
    return error.feedback() if isinstance(error, CandidateError) else error.reason
