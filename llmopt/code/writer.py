"""From a history of code to new candidates: prompt, model, reading, checks, bounded repairs.

`Writer` keeps no history of its own; `llmopt.code.optimizer` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from llmopt.client.base import Client, Completion, Message, Reply, Request, client_name
from llmopt.client.retry import complete_with_retries
from llmopt.code.candidate import Candidate, CodeTrial
from llmopt.code.extract import Answer, encodable, read_answer
from llmopt.code.failure import CandidateError, NoCandidateError
from llmopt.code.prompting import CodePrompt, complaint, count_roughly, json_schema
from llmopt.code.sandbox.sandbox import Sandbox
from llmopt.errors import ParameterError, ParseError
from llmopt.history import Usage
from llmopt.search.proposer import Limits

_ATTEMPTS = 4
"""Times that one request is sent while its errors say that this may help."""
_WITHHELD = {"filter": "it was withheld by a content filter", "refusal": "you declined"}

Send = Callable[[Request], Reply]
Reject = Callable[[int, str, str, str], None]
"""Told the number of the candidate to be, the answer, what was wrong, and the kind of that."""
Recall = Callable[[int, str], "str | None"]
"""Says what was wrong with an answer, if that was found before this search was cut off."""


@dataclass
class Writer:
    """Turns a history into candidates by asking a model.

    Attributes:
        client: The model.
        prompt: What it is asked; it holds the functions and the space.
        make_sandbox: Makes a worker that is not started yet.
        repairs: Times that one answer is sent back with what was wrong with it.
        attempts: Fresh requests before it gives up.
        temperature: Sampling temperature; ``None`` for the provider's default.
        max_output_tokens: Cap on the tokens of one answer.
        limits: Caps on requests, tokens and cost.
        usage: What was spent so far.
    """

    client: Client
    prompt: CodePrompt
    make_sandbox: Callable[[], Sandbox]
    repairs: int = 2
    attempts: int = 2
    temperature: float | None = None
    max_output_tokens: int | None = 2000
    limits: Limits = field(default_factory=Limits)
    usage: Usage = field(default_factory=Usage)

    def send(self, request: Request) -> Reply:
        """Ask the model and count what it costs.

        Raises:
            BudgetExceededError: A cap is reached.
            ClientError: The model could not be asked.
        """
        self.limits.check(self.usage)
        attempts = _ATTEMPTS
        if self.limits.max_requests is not None:
            attempts = min(attempts, self.limits.max_requests - self.usage.requests)
        reply = complete_with_retries(
            self.client,
            request,
            attempts=attempts,
            on_failure=lambda error, _: self.usage.add_failure(error.requests),
        )
        self.usage.add_reply(reply)
        return reply

    def write(
        self,
        number: int,
        n: int,
        current: CodeTrial | None,
        trials: Sequence[CodeTrial],
        waiting: Sequence[Candidate],
        seed: int,
        failures: int,
        send: Send,
        reject: Reject,
        recall: Recall,
    ) -> list[Candidate]:
        """Return up to `n` candidates that have passed every check.

        Args:
            number: Number of the first of them.
            n: Samples to ask for.
            current: The code to improve.
            trials: Everything that was told.
            waiting: Candidates that were handed out and not told.
            seed: Seed of the search.
            failures: Times that this gave up before, so that the next requests differ.
            send: Answers a request, from the model or from what was paid before.
            reject: Told of each answer that was not used, unless `recall` knew it.
            recall: Knows answers that were refused before; they are not checked again.

        Raises:
            NoCandidateError: No answer could be used.
        """
        tries: list[tuple[str, str]] = []
        found: list[Candidate] = []

        def seed_of(*keys: int) -> int:
            # From what was asked before and not from time: a resumed search sends the very
            # requests of an uninterrupted one.
            source = np.random.SeedSequence(seed, spawn_key=(number, failures, *keys))
            return int(source.generate_state(1)[0]) >> 1

        def improve(attempt: int, request: Request, completion: Completion) -> None:
            for turn in range(self.repairs + 1):
                text, mine = encodable(completion.text), number + len(found)
                reason = recall(mine, text)
                if reason is None:
                    taken: list[CodeTrial | Candidate] = [*trials, *waiting, *found]
                    try:
                        found.append(self._build(completion, mine, current, taken))
                        return
                    except (ParseError, CandidateError) as error:
                        reason = encodable(_words(error))
                        if completion.finish_reason == "length":
                            reason = f"it was cut off; be shorter: {reason}"
                        reject(mine, text, reason, getattr(error, "kind", "unreadable"))
                tries.append((text, reason))
                repair = self._repair(request, text, reason)
                repair = replace(repair, seed=seed_of(attempt, len(tries)))
                if turn == self.repairs or not self._has_room(repair):
                    return
                completion = _completions(send(repair))[0]

        try:
            for attempt in range(self.attempts):
                request = self._request(current, trials, n, seed_of(attempt, 0))
                for completion in _completions(send(request)):
                    improve(attempt, request, completion)
                if found:
                    return found
        except BaseException:
            for candidate in found:
                candidate.close()
            raise
        reasons = "; ".join(dict.fromkeys(reason for _, reason in tries))
        raise NoCandidateError(
            f"the model {client_name(self.client)} gave no usable code in {self.attempts} "
            f"requests with {self.repairs} repairs each: {reasons}",
            tries,
        )

    def _request(
        self, current: CodeTrial | None, trials: Sequence[CodeTrial], n: int, seed: int
    ) -> Request:
        space = self.prompt.space
        count = getattr(self.client, "count_tokens", None)
        return Request(
            self.prompt.messages(current, trials, self._room(), count),
            n=n,
            temperature=self.temperature,
            max_tokens=self.max_output_tokens,
            seed=seed,
            json_schema=(
                json_schema(space.names if space else ()) if self.prompt.answer == "json" else None
            ),
        )

    def _room(self) -> int | None:
        """Tokens that a prompt may take; ``None`` where the model does not say."""
        context = getattr(self.client, "context_tokens", None)
        return None if context is None else context - (self.max_output_tokens or 1000) - 64

    def _has_room(self, request: Request) -> bool:
        room = self._room()
        count = getattr(self.client, "count_tokens", count_roughly)
        return room is None or count(request.text) <= room

    def _repair(self, request: Request, text: str, reason: str) -> Request:
        """Return the request of a repair turn.

        It holds the latest answer alone: what was wrong before it is mended or lost.
        """
        return replace(
            request,
            messages=(
                *request.messages,
                Message("assistant", text or "(nothing)"),
                Message("user", complaint(reason, self.prompt.answer)),
            ),
            n=1,
        )

    def _build(
        self,
        completion: Completion,
        number: int,
        current: CodeTrial | None,
        taken: Sequence[CodeTrial | Candidate],
    ) -> Candidate:
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
                what = "" if score is None else f", which scored {score:.6g}"
                raise CandidateError(
                    f"this is the same program as try {other.number}{what}: write another one",
                    "check",
                )

    def _same_params(self, a: Any, b: Any) -> bool:
        space = self.prompt.space
        if space is None or a is None or b is None:
            return True
        return space.key(space.flatten(a)) == space.key(space.flatten(b))

    def _read_params(self, answer: Answer) -> Any:
        space = self.prompt.space
        if space is None:
            return None
        values = []
        try:
            for index, name in enumerate(space.names):
                if name not in answer.values:
                    raise ParseError(f'the value of {name!r} is missing; expected it in "values"')
                value = answer.values[name]
                values.append(space.parse_value(index, value) if isinstance(value, str) else value)
            return space.unflatten(space.clip(values))
        except ParameterError as error:
            raise ParseError(str(error)) from error

    def variables(self, params: Any) -> dict[str, Any]:
        """Return the names that a candidate with these values finds bound."""
        space = self.prompt.space
        if space is None or params is None:
            return {}
        return {"params": dict(zip(space.names, space.flatten(params), strict=True))}


def _completions(reply: Reply) -> tuple[Completion, ...]:
    return reply.completions or (Completion(""),)  # one without a sample says nothing


def _words(error: ParseError | CandidateError) -> str:
    return error.feedback() if isinstance(error, CandidateError) else error.reason
