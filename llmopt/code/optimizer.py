"""Ask/tell over Python functions that a language model writes.

The contract, as a sequence of calls::

    optimizer = CodeOptimizer("controller(obs)", "Return a force in [-1, 1].", client=model)
    candidate = optimizer.ask()              # written, checked and loaded in a worker
    candidate(obs)                           # runs confined; its result is checked
    optimizer.tell(candidate, 93.2, feedback="reached the flag in step 140")
    optimizer.tell_failure(other, error)     # it failed while it was scored
    optimizer.best.source, optimizer.usage

`ask` learns nothing; only `tell` does. With ``storage="run.jsonl"`` every paid reply and
every told score is on disk before the call returns, and an optimizer made with the same
arguments goes on where a killed one stopped.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, overload

import numpy as np

from llmopt.client.base import Client, Reply, Request, client_name
from llmopt.client.registry import get_client
from llmopt.code.candidate import (
    Candidate,
    CodeTrial,
    Strategy,
    failure_of,
    rank,
    trial_of,
)
from llmopt.code.checks import Function, check
from llmopt.code.extract import encodable
from llmopt.code.failure import CandidateError, NoCandidateError
from llmopt.code.journal import Draft, Journal
from llmopt.code.prompting import CodePrompt
from llmopt.code.sandbox.sandbox import Limits, Sandbox, require_confinement
from llmopt.code.writer import Writer
from llmopt.errors import LLMOptError, RewardError
from llmopt.history import Direction, Usage
from llmopt.search.proposer import Limits as Caps
from llmopt.space import Space


class CodeOptimizer:
    """A search over code.

    Args:
        signature: The function to write, such as ``"controller(obs)"``; a `Function`, which
            says more about it; or a sequence of either for several functions at once.
        doc: What it does, its inputs and its result (for a signature given as text).
        client: A model string (see `llmopt.get_client`), a client, or ``None`` for the
            embedded model, which is too small for most of this.
        objective: What the code is for.
        hint: Advice for the model.
        documentation: What the code may call, in words.
        initial: Source to improve; it is not scored before you `tell` it.
        space: Values beside the code; the code finds them as the dict ``params``.
        direction: ``"maximize"`` or ``"minimize"`` the score.
        strategy: A `Strategy`, or the name of one.
        imports: Modules that the code may import; trusted, and loaded before it is confined.
        answer: ``"fenced"`` or ``"json"``, the form asked for; every form is read.
        best: Tries in the memory that scored best.
        latest: Tries in the memory that were made last.
        repairs: Times that one answer is sent back with what was wrong with it.
        attempts: Fresh requests for one `ask` before it gives up.
        temperature: Sampling temperature; ``None`` for the provider's default.
        max_output_tokens: Cap on the tokens of one answer.
        seed: Seed of the requests; ``None`` draws one and records it.
        limits: What a worker may use.
        allow_unsandboxed: Run a model's code even where it cannot be confined.
        rollout_env: See ``env`` of `llmopt.code.sandbox.sandbox.Sandbox`.
        max_requests: Cap on calls to the model, failed ones included.
        max_tokens: Cap on prompt and completion tokens together.
        max_cost: Cap in US dollars; needs a model whose price is known.
        storage: JSON Lines file to append to, and to go on from.
        template: Jinja2 template in place of the shipped one.

    Attributes:
        trials: Everything that was told, in the order of telling.
        seed: The seed in use.

    Note:
        `ask` costs one model request when all goes well, and at most
        ``attempts * (1 + n * repairs)``; `tell` costs none.
    """

    def __init__(
        self,
        signature: str | Function | Sequence[str | Function],
        doc: str = "",
        client: Client | str | None = None,
        *,
        objective: str = "",
        hint: str = "",
        documentation: str = "",
        initial: str = "",
        space: Any = None,
        direction: Direction = "maximize",
        strategy: str | Strategy = "hill-climb",
        imports: Sequence[str] = ("math", "numpy"),
        answer: str = "fenced",
        best: int = 2,
        latest: int = 3,
        repairs: int = 2,
        attempts: int = 2,
        temperature: float | None = None,
        max_output_tokens: int | None = 2000,
        seed: int | None = None,
        limits: Limits | None = None,
        allow_unsandboxed: bool = False,
        rollout_env: tuple[str, Mapping[str, Any]] | None = None,
        max_requests: int | None = None,
        max_tokens: int | None = None,
        max_cost: float | None = None,
        storage: str | os.PathLike[str] | None = None,
        template: str = "",
    ) -> None:
        many = [signature] if isinstance(signature, (str, Function)) else list(signature)
        self.functions = tuple(f if isinstance(f, Function) else Function(f, doc) for f in many)
        names = [f.name for f in self.functions]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"functions {names}: expected one at least, and different names")
        for name, value, least in (("repairs", repairs, 0), ("attempts", attempts, 1)):
            if value < least:
                raise ValueError(f"{name}={value}: expected at least {least}")
        if answer not in ("fenced", "json"):
            raise ValueError(f"answer={answer!r}: expected 'fenced' or 'json'")
        if direction not in ("maximize", "minimize"):
            raise ValueError(f"direction={direction!r}: expected 'maximize' or 'minimize'")
        self.space = None if space is None else Space.of(space)
        self.direction: Direction = direction
        self.strategy = Strategy(strategy) if isinstance(strategy, str) else strategy
        self.initial = initial
        self._allow_unsandboxed = allow_unsandboxed
        prompt = CodePrompt(
            self.functions,
            objective,
            hint,
            documentation,
            tuple(imports),
            self.space,
            direction,
            "json" if answer == "json" else "fenced",
            best,
            latest,
            template=template,
        )

        make_sandbox = partial(
            Sandbox,
            limits,
            imports=tuple(imports),
            allow_unsandboxed=allow_unsandboxed,
            env=rollout_env,
        )
        self._writer = Writer(
            get_client("smollm2" if client is None else client),
            prompt,
            make_sandbox,
            repairs,
            attempts,
            temperature,
            max_output_tokens,
            Caps(max_requests, max_tokens, max_cost),
        )
        self._make_sandbox = make_sandbox
        self.seed = int(np.random.SeedSequence(seed).entropy)  # type: ignore[arg-type]
        self.trials: list[CodeTrial] = []
        self._pending: dict[int, Candidate] = {}
        self._handed: set[int] = set()
        self._next = 0
        self._failures = 0
        self._draft = Draft()
        self._lock = threading.RLock()
        self._journal: Journal | None = None
        if storage is not None:
            self._journal = Journal(storage, self._config(), seed)
            try:
                self._restore(self._journal)
            except BaseException:
                self._journal.close()
                raise

    @property
    def client(self) -> Client:
        """The model that is asked."""
        return self._writer.client

    @property
    def usage(self) -> Usage:
        """What the model has cost."""
        return self._writer.usage

    @property
    def failures(self) -> int:
        """Times that `ask` found no usable code, in a resumed search all of them."""
        return self._failures

    @property
    def best(self) -> CodeTrial | None:
        """The trial with the best score, or ``None`` before the first score."""
        ranked = rank(self.trials, self.direction)
        return ranked[0] if ranked else None

    def candidate(self, trial: CodeTrial) -> Candidate:
        """Return a callable of a trial's code."""
        return Candidate(
            trial.source,
            self.functions,
            self._make_sandbox,
            number=trial.number,
            params=trial.params,
            variables=self._writer.variables(trial.params),
            explanation=trial.explanation,
            parent=trial.parent,
            fingerprint=trial.fingerprint,
        )

    def close(self) -> None:
        """Kill the workers of candidates that were never told, and close the file."""
        for candidate in self._pending.values():
            candidate.close()
        if self._journal is not None:
            self._journal.close()

    def __enter__(self) -> CodeOptimizer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- storage --------------------------------------------------------------------------

    def _config(self) -> dict[str, Any]:
        """What must be the same for a stored search to go on."""
        return {
            "functions": [[f.signature, f.doc, str(f.output)] for f in self.functions],
            "objective": self._writer.prompt.objective,
            "direction": self.direction,
            "space": None if self.space is None else self.space.to_dict(),
            "strategy": asdict(self.strategy),
            "initial": self.initial,
            "model": client_name(self.client),
        }

    def _plain(self, params: Any) -> Any:
        return None if self.space is None else list(self.space.flatten(params))

    def _user_form(self, values: Any) -> Any:
        return None if self.space is None or values is None else self.space.unflatten(values)

    def _restore(self, journal: Journal) -> None:
        if journal.seed is not None:
            self.seed = journal.seed
        journal.begin(self.seed)
        self._failures = journal.failures
        self._draft = journal.draft
        self.usage.add_failure(journal.failed_requests)
        for reply in journal.replies:
            self.usage.add_reply(reply)
        for kind in journal.rejections:
            self.usage.add_rejection(kind)
        for entry in journal.asked:
            fields = {**entry, "params": self._user_form(entry["params"])}
            candidate = self.candidate(CodeTrial(reward=None, **fields))
            self._pending[candidate.number] = candidate
            self._next = candidate.number + 1
            self.usage.add_proposal("llm")
        for trial in journal.trials:
            self._accept(replace(trial, params=self._user_form(trial.params)))

    # -- asking ---------------------------------------------------------------------------

    @overload
    def ask(self) -> Candidate: ...
    @overload
    def ask(self, n: int) -> list[Candidate]: ...
    def ask(self, n: int | None = None) -> Candidate | list[Candidate]:
        """Return the next candidate, or up to `n` that improve the same code.

        Each has passed every check and is loaded in a worker of its own. Code that only
        differs from an earlier one in layout, comments or names is sent back, not returned.
        After an error the next call goes on from the replies that were paid for.

        Args:
            n: Samples of one request; ``None`` for a single candidate, not in a list.

        Returns:
            A candidate, or a list of 1 to `n`.

        Raises:
            NoCandidateError: No answer could be used, repairs included.
            BudgetExceededError: A cap on requests, tokens or cost is reached.
            ClientError: The model could not be asked.
            SandboxUnavailableError: Code cannot be confined here.
        """
        wanted = 1 if n is None else n
        if wanted < 1:
            raise ValueError(f"n={n}: expected at least 1")
        with self._lock:
            found = [c for k, c in self._pending.items() if k not in self._handed][:wanted]
            if not found:
                found = self._ask(wanted)
            self._handed.update(c.number for c in found)
        return found[0] if n is None else found

    def _ask(self, wanted: int) -> list[Candidate]:
        require_confinement(self._allow_unsandboxed)  # pay no model whose code cannot run
        number = self._next
        parent = self.strategy.parent(number, self.trials, self.direction)
        if parent is None and self.initial:
            parent = CodeTrial(-1, self.initial, None, None)
        paid = self._draft.copy()
        try:
            found = self._writer.write(
                number,
                wanted,
                parent,
                self.trials,
                list(self._pending.values()),
                self.seed,
                self._failures,
                partial(self._send, paid),
                self._reject,
                paid.take_reason,
            )
        except NoCandidateError:
            self._failures += 1
            self._draft = Draft()
            if self._journal is not None:
                self._journal.add_failure()
            raise
        if self._journal is not None:
            self._journal.add_candidates(found, self._plain)
        self._draft = Draft()
        for candidate in found:
            self._pending[candidate.number] = candidate
            self._next = candidate.number + 1
            self.usage.add_proposal("llm")
        return found

    def _send(self, paid: Draft, request: Request) -> Reply:
        stored = paid.take_reply(request)
        if stored is not None:
            return stored
        before = self.usage.failed_requests
        try:
            reply = self._writer.send(request)
        finally:
            failed = self.usage.failed_requests - before
            if failed and self._journal is not None:
                self._journal.add_errors(failed)
        if self._journal is not None:
            self._journal.add_reply(request, reply)
        self._draft.replies.append((request.digest(), reply))
        return reply

    def _reject(self, number: int, text: str, reason: str, kind: str) -> None:
        self.usage.add_rejection(kind)
        if self._journal is not None:
            self._journal.add_rejection(number, text, reason, kind)
        self._draft.refused.append((number, text, reason))

    # -- telling --------------------------------------------------------------------------

    def tell(
        self, candidate: Candidate | str, reward: float, feedback: str = "", *, params: Any = None
    ) -> CodeTrial:
        """Report a score.

        Args:
            candidate: What `ask` returned, in any order; or source that was never asked,
                which is checked first.
            reward: The score, a finite number.
            feedback: Words for the model: what happened, what to change.
            params: Values beside the code, for source that was never asked.

        Returns:
            The trial, as it went into the history.

        Raises:
            RewardError: The score is not a finite number; use `tell_failure`.
            CandidateError: The source was never asked and does not pass the checks.
            LLMOptError: The candidate was told before, or is another optimizer's.
        """
        try:
            value = float(reward)
        except (TypeError, ValueError):
            value = float("nan")
        if not np.isfinite(value):
            raise RewardError(
                f"got the score {reward!r}; expected a finite number. Report a run without one "
                "by tell_failure(candidate, reason)"
            )
        return self._tell(candidate, lambda c: trial_of(c, value, encodable(feedback)), params)

    def tell_failure(self, candidate: Candidate, reason: CandidateError | str) -> CodeTrial:
        """Report that a candidate has no score; the model is told why.

        Raises:
            LLMOptError: As `tell`.
        """
        words = reason if isinstance(reason, CandidateError) else encodable(reason)
        return self._tell(candidate, lambda c: failure_of(c, words), None)

    def _tell(
        self, candidate: Candidate | str, make: Callable[[Candidate], CodeTrial], params: Any
    ) -> CodeTrial:
        with self._lock:
            if isinstance(candidate, str):
                mine = self._adopt(encodable(candidate), params)
                trial = replace(make(mine), origin="user")
            else:
                mine = candidate
                if self._pending.get(mine.number) is not mine:
                    raise LLMOptError(
                        f"{mine!r} is not waiting for a score: it was told before, or another "
                        "optimizer asked for it. Tell its source (candidate.source) instead"
                    )
                trial = make(mine)
            if self._journal is not None:
                self._journal.add_trial(trial, self._plain)
            self._accept(trial)
            mine.close()
            return trial

    def _adopt(self, source: str, params: Any) -> Candidate:
        values = None if self.space is None else self.space.validate(params)
        variables = self._writer.variables(values)
        with self._make_sandbox() as sandbox:
            fingerprint = check(sandbox, source, self.functions, variables)
        return Candidate(
            source,
            self.functions,
            self._make_sandbox,
            number=self._next,
            params=values,
            variables=variables,
            fingerprint=fingerprint,
        )

    def _accept(self, trial: CodeTrial) -> None:
        self.trials.append(trial)
        self._pending.pop(trial.number, None)
        self._next = max(self._next, trial.number + 1)
