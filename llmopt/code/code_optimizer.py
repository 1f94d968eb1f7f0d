"""Ask/tell over Python functions that a language model writes.

The contract, as a sequence of calls::

    optimizer = CodeOptimizer("controller(obs)", "Return a force in [-1, 1].", client=model)
    candidate = optimizer.ask()              # written, checked and loaded in a worker
    candidate(obs)                           # runs confined; its result is checked
    optimizer.tell(candidate, 93.2, feedback="reached the flag in step 140")
    optimizer.tell_failure(other, error)     # it failed while it was scored
    optimizer.best.source, optimizer.usage

Only `tell` changes what the optimizer knows. With ``storage="run.jsonl"`` every paid reply and
every recorded score is on disk before the call returns, and an optimizer with the same arguments
resumes a killed search.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from llmopt.client.base import Client, client_name
from llmopt.client.model_string import get_client, one_model
from llmopt.code.answer import encodable
from llmopt.code.candidate import Candidate, CodeTrial, Strategy, candidate_of, rank, trial_of
from llmopt.code.checks import Function, check
from llmopt.code.computing import CANDIDATE
from llmopt.code.events import FORMAT, CodeState, GaveUp, Scored, Written, check_start
from llmopt.code.prompt import CodePrompt, mentions_computing
from llmopt.code.writer import Writer
from llmopt.data import Evaluation, TrialData
from llmopt.errors import LLMOptError, NoTrialsError, RewardError
from llmopt.history import Direction, Usage, why_no_best
from llmopt.lab.blocks import calculator_for
from llmopt.sandbox.failure import CandidateError, NoCandidateError
from llmopt.sandbox.sandbox import Sandbox, WorkerLimits, require_confinement
from llmopt.search.eventlog import Event
from llmopt.search.limits import Limits
from llmopt.search.meter import Draft, Meter
from llmopt.search.options import AskOptions, ComputeArguments
from llmopt.search.session import StoredSession
from llmopt.space import Space
from llmopt.util.arguments import check_names, seed_or_fresh, whole_number
from llmopt.util.text import cut
from llmopt.util.threads import uninterrupted

if TYPE_CHECKING:
    from typing_extensions import Unpack


class CodeOptions(ComputeArguments, total=False):
    """Options of the parts of a `CodeOptimizer`, each documented and checked there."""

    model: Client | str | None
    objective: str
    scoring: str
    hint: str
    documentation: str
    answer: str
    best: int
    latest: int
    template: str
    repairs: int
    attempts: int
    temperature: float | None
    max_output_tokens: int | None
    limits: WorkerLimits | None
    allow_unsandboxed: bool
    max_requests: int | None
    max_tokens: int | None
    max_cost: float | None


class CodeOptimizer(StoredSession):
    """A search over code.

    Args:
        signature: The function to write, such as ``"controller(obs)"``; a `Function`, which
            says more about it; or a sequence of either for several functions at once.
        doc: What it does, its inputs and its result (for a signature given as text).
        client: A model string (see `llmopt.get_client`), a client, or ``None`` for the
            embedded model, which is too small for most code. ``model=`` is an alias.
        initial: Source to improve. `ask_initial` returns it as a candidate to score.
        space: Further values to choose; the code reads them from the dict ``params``.
        direction: ``"maximize"`` or ``"minimize"`` the score.
        strategy: A `Strategy`, or the name of one.
        imports: Modules that the code may import; trusted, and loaded before confinement.
        seed: Seed of the requests; ``None`` samples one and records it.
        storage: JSON Lines file to append to, or to resume from.
        **options: Options of the parts. Of the prompt (`CodePrompt`): ``objective``, ``scoring``,
            ``hint``, ``documentation``, ``answer``, ``best``, ``latest``, ``template``. Of the
            writer (`llmopt.code.writer.Writer`): ``repairs``, ``attempts``, ``temperature``,
            ``max_output_tokens``. Of computing (`AskOptions`): ``compute`` (here ``False`` by
            default), ``compute_seconds``, ``compute_blocks``, ``compute_total``,
            ``compute_workers``. Of the workers (`Sandbox`): ``limits``,
            ``allow_unsandboxed``. Of the budget (`llmopt.search.limits.Limits`):
            ``max_requests``, ``max_tokens``, ``max_cost``.

    Attributes:
        functions: The functions to write.
        seed: The seed in use.
        steps: Planned number of candidates, so that the prompt can state how many remain; ``None``
            if unknown. Not stored.

    Note:
        `ask` makes one model request if the first answer is usable, and at most
        ``attempts * (1 + n * repairs)``, and one more for each block of Python; `tell` makes none.
    """

    space: Space | None
    _state: CodeState

    def __init__(
        self,
        signature: str | Function | Sequence[str | Function],
        doc: str = "",
        client: Client | str | None = None,
        *,
        initial: str = "",
        space: Any = None,
        direction: Direction = "maximize",
        strategy: str | Strategy = "hill-climb",
        imports: Sequence[str] = ("math", "numpy"),
        seed: int | None = None,
        storage: str | os.PathLike[str] | None = None,
        **options: Unpack[CodeOptions],
    ) -> None:
        check_names("CodeOptimizer", options, CodeOptions.__annotations__)

        def given(*names: str) -> dict[str, Any]:
            return {name: value for name, value in options.items() if name in names}

        def given_of(part: type) -> dict[str, Any]:
            return given(*part.__annotations__)

        many = [signature] if isinstance(signature, (str, Function)) else list(signature)
        self.functions = tuple(f if isinstance(f, Function) else Function(f, doc) for f in many)
        self.space = None if space is None else Space.of(space)
        self.direction: Direction = direction
        self.strategy = Strategy(strategy) if isinstance(strategy, str) else strategy
        self.initial = initial
        self._allow_unsandboxed = options.get("allow_unsandboxed", False)
        self._make_sandbox = partial(
            Sandbox, imports=tuple(imports), **given("limits", "allow_unsandboxed")
        )
        model = get_client(one_model(client, options.get("model")))
        blocks = AskOptions(**{"compute": False, **given_of(ComputeArguments)})
        if not mentions_computing(options.get("template", "")) and blocks.compute == "auto":
            blocks = replace(blocks, compute=False)
        self._calculator = calculator_for(blocks, model)
        if self._calculator is not None:
            known = {"NAMES": [f.name for f in self.functions], "IMPORTS": list(imports)}
            self._calculator.imports = tuple(imports)
            self._calculator.equip(CANDIDATE, known)
        prompt = CodePrompt(
            self.functions,
            imports=tuple(imports),
            space=self.space,
            direction=direction,
            computes=self.computes,
            **given_of(CodePrompt),
        )
        self._meter = Meter(model, Limits(**given_of(Limits)))
        self.seed = seed_or_fresh(seed)
        self._writer = Writer(
            self.meter,
            prompt,
            self._make_sandbox,
            self.seed,
            computing=blocks,
            calculator=self._calculator,
            **given_of(Writer),
        )
        self.steps: int | None = None
        self._state = CodeState(self.space)
        self._pending: dict[int, Candidate] = {}
        self._handed: set[int] = set()
        if storage is not None:
            self._seed_given = seed
            self._attach(storage, True)
            if self._calculator is not None:
                self._calculator.folder = self._state.folder

    @property
    def computes(self) -> bool:
        """Whether the model may run Python before it writes code."""
        return self._calculator is not None

    @property
    def tools(self) -> tuple[str, ...]:
        """Further lines of the prompt on what the model's Python finds, each once; not stored.

        For example one for each entry of the tries' data.
        """
        return self._writer.tools

    @tools.setter
    def tools(self, lines: Sequence[str]) -> None:
        self._writer.tools = tuple(dict.fromkeys(lines))

    @property
    def trials(self) -> list[CodeTrial]:
        """All recorded candidates, in the order of `tell`."""
        return self._state.trials

    @property
    def usage(self) -> Usage:
        """Requests, tokens and cost so far, including rejected answers."""
        usage = self.meter.usage
        usage.rejected = dict(self._state.rejected)
        return usage

    @property
    def failures(self) -> int:
        """Calls of `ask` that found no usable code, including those before a resume."""
        return self._state.failures

    @property
    def tried(self) -> int:
        """Recorded candidates of the model, plus calls of `ask` that found none."""
        return sum(t.origin == "llm" for t in self.trials) + self.failures

    @property
    def best(self) -> CodeTrial:
        """The trial with the best score.

        Raises:
            NoTrialsError: There is no score yet.
        """
        ranked = rank(self.trials, self.direction)
        if not ranked:
            raise NoTrialsError(why_no_best(self.trials))
        return ranked[0]

    def candidate(self, trial: CodeTrial) -> Candidate:
        """Return a callable of a trial's code."""
        variables = self._writer.variables(trial.params)
        return candidate_of(trial, self.functions, self._make_sandbox, variables)

    def close(self) -> None:
        """Kill the workers of candidates without a result, and close the file."""
        for candidate in self._pending.values():
            candidate.close()
        super().close()
        if self._calculator is not None:
            self._calculator.close()

    def _outcome(self, recommended: int | None = None) -> str:
        if not self.trials:
            return ""
        ranked, latest = rank(self.trials, self.direction), self.trials[-1]
        words = f"The latest: {_scored(latest)}: {cut(latest.feedback, 1000)}\n"
        return words + f"Best first: {', '.join(map(_scored, ranked[:8])) or 'no score yet'}\n"

    def _planned_end(self) -> str:
        if self.steps is not None and self.tried >= self.steps:
            return f"all {self.steps} tries were made"
        return f"the program closed the search after {len(self.trials)} scored candidates"

    # -- storage --------------------------------------------------------------------------

    def start_event(self) -> Event:
        """The arguments that must be the same to resume a stored search."""
        config = {
            "functions": [[f.signature, f.doc, str(f.output)] for f in self.functions],
            "objective": self._writer.prompt.objective,
            "direction": self.direction,
            "space": None if self.space is None else self.space.to_dict(),
            "strategy": asdict(self.strategy),
            "initial": self.initial,
            "model": client_name(self.client),
        }
        return {"event": "start", "format": FORMAT, "config": config, "seed": str(self.seed)}

    def _begin(self, start: Event, path: Path) -> None:
        self.seed = self._writer.seed = check_start(
            start, self.start_event(), self._seed_given, path
        )

    def resume(self, events: Sequence[Event], path: str | os.PathLike[str]) -> None:  # noqa: D102
        super().resume(events, path)
        self._pending = {n: self.candidate(trial) for n, trial in self._state.asked.items()}

    # -- asking ---------------------------------------------------------------------------

    @overload
    def ask(self) -> Candidate: ...
    @overload
    def ask(self, n: int) -> list[Candidate]: ...
    def ask(self, n: int | None = None) -> Candidate | list[Candidate]:
        """Return the next candidate, or up to `n` that improve the same code.

        Each has passed every check and is loaded in its own worker. Code that differs from an
        earlier candidate only in layout, comments or names is rejected. After an error the next
        call continues from the replies that were paid for.

        Args:
            n: Samples of one request; ``None`` for a single candidate without a list.

        Returns:
            A candidate, or a list of 1 to `n`.

        Raises:
            NoCandidateError: No answer could be used, repairs included.
            BudgetExceededError: A cap on requests, tokens or cost is reached.
            ClientError: The request failed, for example for lack of an API key.
            ImportError: The model's package is not installed.
            SandboxUnavailableError: Code cannot be confined here.
        """
        wanted = 1 if n is None else whole_number("n", n, 1)
        with self.meter.lock:
            candidates = [c for k, c in self._pending.items() if k not in self._handed][:wanted]
            if not candidates:
                candidates, _ = self.meter.asking(lambda draft: self._ask(wanted, draft))
            self._handed.update(c.number for c in candidates)
        return candidates[0] if n is None else candidates

    def ask_initial(self) -> Candidate | None:
        """Return the initial code as a candidate to score, without a request.

        Returns:
            A candidate; ``None`` without `initial`, with a `space` (its values are missing), or
            after any other `ask` or `tell`.

        Raises:
            CandidateError: The code does not pass the checks.
        """
        with self.meter.lock:
            if not self.initial or self.space is not None or self._next:
                return None
            try:
                candidate = self._adopt(encodable(self.initial), None)
            except CandidateError as error:
                words = f"the code to begin from cannot be used: {error}"
                raise CandidateError(words, error.kind, line=error.line) from error
            self._pending[candidate.number] = candidate
            self._handed.add(candidate.number)
            return candidate

    def _ask(self, wanted: int, draft: Draft) -> list[Candidate]:
        require_confinement(self._allow_unsandboxed)  # do not pay for code that cannot run
        self.meter.check_ready()
        number = self._next
        turn = None if self.steps is None else (self.tried + 1, self.steps)
        try:
            candidates = self._writer.write(
                self._state,
                number,
                self._parent(number),
                list(self._pending.values()),
                wanted,
                self._record,
                turn,
            )
        except NoCandidateError:
            with uninterrupted():
                self._record(GaveUp())
                self.meter.commit(draft)
            raise
        try:
            with uninterrupted():
                self._record(Written(tuple(trial_of(c) for c in candidates)))
                self.meter.count_proposal("llm", len(candidates))
                self.meter.commit(draft)
                self._pending.update({c.number: c for c in candidates})
        except BaseException:
            if not draft.committed:
                for candidate in candidates:
                    candidate.close()
            raise
        return candidates

    @property
    def _next(self) -> int:
        return max(self._state.next, *(k + 1 for k in self._pending), 0)

    def _parent(self, number: int) -> CodeTrial | None:
        parent = self.strategy.parent(number, self.trials, self.direction)
        if parent is not None or not self.initial:
            return parent
        told = (t for t in self.trials if t.origin == "user" and t.source == self.initial)
        return next(told, CodeTrial(-1, self.initial, None, None))

    # -- telling --------------------------------------------------------------------------

    def tell(
        self,
        candidate: Candidate | str,
        reward: float | Evaluation,
        feedback: str = "",
        *,
        params: Any = None,
        ties: Sequence[float] = (),
        samples: Sequence[float] = (),
        data: Mapping[str, Any] | None = None,
    ) -> CodeTrial:
        """Report a score.

        Args:
            candidate: A candidate from `ask`, in any order; or your own source, which is checked
                first.
            reward: The score, a finite number, or an `llmopt.Evaluation`.
            feedback: Words for the model: what happened, what to change.
            params: Values of the space, for your own source.
            ties: Numbers that break ties between equal scores, the first one first; larger is
                better, even if the score is minimized. Give every candidate equally many.
            samples: The numbers whose mean is the score, if every candidate is evaluated on the
                same initial states in the same order. The prompt then states the uncertainty of
                differences.
            data: Named arrays, lists of arrays, or mappings of these, such as the steps of the
                episodes. They are stored on this machine. With ``compute=True`` the model sees
                names, shapes, and what its Python prints of the arrays (see docs/compute.md).

        Returns:
            The recorded trial.

        Raises:
            RewardError: The score, or one of `ties` or `samples`, is not a finite number; use
                `tell_failure`.
            CandidateError: Your own source does not pass the checks.
            LLMOptError: The candidate has a result already, or is another optimizer's.
            DataError: An entry of `data` has an unsupported type, or the data are too large.
            StorageError: The storage file could not be written. Nothing was recorded.
        """
        if isinstance(reward, Evaluation):
            given = reward.told_with({"feedback": feedback, "samples": samples, "data": data})
            if given.pop("constraint_violation", 0.0):
                raise RewardError(
                    f"got constraint_violation={reward.constraint_violation}; a search over code "
                    "has no constraints. Subtract a penalty from the score, or add it to minimize"
                )
            return self.tell(candidate, reward.value, params=params, ties=ties, **given)
        try:
            value = float(reward)
        except (TypeError, ValueError):
            value = float("nan")
        if not np.isfinite(value):
            raise RewardError(
                f"got the score {reward!r}; expected a finite number. Report a run without one "
                "by tell_failure(candidate, reason)"
            )
        rest = [tuple(float(v) for v in values) for values in (ties, samples)]
        if not all(np.isfinite(values).all() for values in rest):
            raise RewardError(f"got ties={ties!r}, samples={samples!r}; expected finite numbers")
        words = encodable(feedback)
        told = {"reward": value, "feedback": words, "ties": rest[0], "samples": rest[1]}
        return self._tell(candidate, params, **told, data=TrialData.of(data))

    def tell_failure(self, candidate: Candidate | str, reason: CandidateError | str) -> CodeTrial:
        """Report that a candidate has no score, and why; raises as `tell`."""
        words = reason.feedback() if isinstance(reason, CandidateError) else encodable(reason)
        return self._tell(candidate, None, feedback=words)

    def _tell(self, candidate: Candidate | str, params: Any, **told: Any) -> CodeTrial:
        with self.meter.lock:
            if isinstance(candidate, str):
                mine = self._adopt(encodable(candidate), params)
            else:
                mine = candidate
                if self._pending.get(mine.number) is not mine:
                    raise LLMOptError(
                        f"{mine!r} is not waiting for a score: its result was recorded before, or "
                        "another optimizer returned it. Tell its source (candidate.source)"
                    )
            with uninterrupted():
                if told.get("data"):
                    told["data"] = self._stored(told["data"], mine.number)
                self._record(Scored(trial_of(mine, **told)))
                self._pending.pop(mine.number, None)
            mine.close()
            self._inform()
            return self.trials[-1]

    def _adopt(self, source: str, params: Any) -> Candidate:
        """Check the user's own source and return it as a candidate."""
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
            origin="user",
        )


def _scored(trial: CodeTrial) -> str:
    score = "no score" if trial.reward is None else f"{trial.reward:.6g}"
    return f"candidate {trial.number} ({score})"
