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

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmopt.caps import Limits
from llmopt.client.base import PROMPT_VERSION, Client, client_name
from llmopt.client.model_facts import model_facts
from llmopt.client.model_string import get_client, one_model
from llmopt.code.answer import encodable
from llmopt.code.candidate import Candidate, CodeTrial, candidate_of, parent_of, rank
from llmopt.code.checks import Function, check
from llmopt.code.computing import CANDIDATE
from llmopt.code.program import Program, ProgramSpace
from llmopt.code.program_task import ProgramTask, Writing
from llmopt.code.prompt import CodePrompt
from llmopt.code.views import CodeViews
from llmopt.data import Evaluation, TrialData
from llmopt.errors import (
    BudgetExceededError,
    LLMOptError,
    NoTrialsError,
    RewardError,
    SearchStopped,
    described,
)
from llmopt.events import Asked, Started, Told
from llmopt.history import Direction, why_no_best
from llmopt.journal import FORMAT, Journal, read_started
from llmopt.lab.blocks import calculator_for
from llmopt.model_calls import Account, ModelCalls, Scope, Stale
from llmopt.options import AskOptions, ComputeArguments
from llmopt.prompt.python_block import ToolFacts
from llmopt.propose import Outcome, propose
from llmopt.resume_check import check_same
from llmopt.sandbox.failure import CandidateError, NoCandidateError
from llmopt.sandbox.sandbox import Sandbox, WorkerLimits, require_confinement
from llmopt.state import State, proposal_to_json
from llmopt.util.arguments import MOST_SEED, check_names, seed_or_fresh, whole_number
from llmopt.util.closing import Closing
from llmopt.util.text import clean, cut
from llmopt.util.threads import Lock

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = logging.getLogger(__name__)

_REASON = 1000  # characters of why a search ended


class CodeOptions(ComputeArguments, total=False):
    """Options of the parts of a `CodeOptimizer`, each documented and checked there."""

    model: Client | str | None
    objective: str
    scoring: str
    description: str
    documentation: str
    attempts: int
    temperature: float | None
    max_output_tokens: int | None
    limits: WorkerLimits | None
    allow_unsandboxed: bool
    max_requests: int | None
    max_tokens: int | None
    max_cost: float | None


class CodeOptimizer(CodeViews, Account, Closing):
    """A search over code.

    Args:
        signature: The function to write, such as ``"controller(obs)"``; a `Function`, which
            says more about it; or a sequence of either for several functions at once.
        doc: What it does, its inputs and its result (for a signature given as text).
        client: A model string (see `llmopt.get_client`), a client, or ``None`` for the
            embedded model, which is too small for most code. ``model=`` is an alias.
        initial: Source to improve. `ask_initial` returns it as a candidate to score.
        direction: ``"maximize"`` or ``"minimize"`` the score.
        imports: Modules that the code may import; trusted, and loaded before confinement.
        seed: Seed of the requests; ``None`` samples one and records it.
        storage: JSON Lines file to append to, or to resume from.
        **options: Options of the parts. Of the prompt (`CodePrompt`): ``objective``, ``scoring``,
            ``description``, ``documentation``. Of the asking
            (`llmopt.code.program_task.Writing`): ``temperature``, ``max_output_tokens``. Of
            attempts and computing (`AskOptions`): ``attempts`` (here 6 by default), ``compute``
            (here ``False`` by default), ``compute_seconds``, ``compute_blocks``, ``compute_total``,
            ``compute_workers``, ``compute_packages``. Of the workers (`Sandbox`): ``limits``,
            ``allow_unsandboxed``. Of the budget (`llmopt.caps.Limits`):
            ``max_requests``, ``max_tokens``, ``max_cost``.

    Attributes:
        functions: The functions to write.
        seed: The seed in use.
        steps: Planned number of candidates, so that the prompt can state how many remain; ``None``
            if unknown. Not stored.

    Note:
        `ask` makes one model request if the first answer is usable, at most ``attempts``, and one
        more for each block of Python; `tell` makes none.
    """

    def __init__(
        self,
        signature: str | Function | Sequence[str | Function],
        doc: str = "",
        client: Client | str | None = None,
        *,
        initial: str = "",
        direction: Direction = "maximize",
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
        self.direction: Direction = direction
        self.initial = initial
        self._allow_unsandboxed = options.get("allow_unsandboxed", False)
        self._make_sandbox = partial(
            Sandbox, imports=tuple(imports), **given("limits", "allow_unsandboxed")
        )
        model = get_client(one_model(client, options.get("model")))
        asking = {**given_of(ComputeArguments), **given("attempts")}
        ask_options = AskOptions(**{"compute": False, "attempts": 6, **asking})
        tool = self._tool = calculator_for(ask_options, model)
        if tool is not None:
            known = {"NAMES": [f.name for f in self.functions], "IMPORTS": list(imports)}
            tool.packages = (*imports, *tool.packages)
            tool.equip(CANDIDATE, known)
        prompt = CodePrompt(
            self.functions,
            imports=tuple(imports),
            direction=direction,
            computes=self.computes,
            worker=options.get("limits") or WorkerLimits(),
            **given_of(CodePrompt),
        )
        self._writing = Writing(
            prompt,
            model_facts(model),
            self._make_sandbox,
            options=ask_options,
            tool=tool,
            tool_facts=ToolFacts(0) if tool is None else tool.facts,
            **given("temperature", "max_output_tokens"),
        )
        self.seed, self.steps = seed_or_fresh(seed), None
        self._programs = ProgramSpace()
        names = ", ".join(function.name for function in self.functions)
        self._about = {"model": client_name(model), "functions": names}
        self._ask_lock, self._concluded = Lock(), False
        self._journal = self._open(storage, model, seed is not None)
        self._model = ModelCalls(model, self._journal, Limits(**given_of(Limits)))
        if tool is not None:
            tool.folder = self._journal.arrays.folder
        self._pending = {
            p.values[0]: self.candidate(Program(*p.values).trial(explanation=p.explanation))
            for p in self._journal.state.pending
        }
        self._handed: set[int] = set()

    steps: int | None

    def _open(
        self, storage: str | os.PathLike[str] | None, model: Client, seed_given: bool
    ) -> Journal:
        """Return the journal: of a stored search that resumes, or of a new one."""
        path, there = None if storage is None else Path(storage).expanduser(), None
        changes = ""
        if path is not None and path.is_file() and path.stat().st_size > 0:
            there = read_started(path)
            now = self._started(model, seed_given)
            changes = check_same(there, now, path, seed_given=seed_given)
            self.seed = whole_number("seed", there.identity.get("seed"), 0, MOST_SEED)
        journal = Journal(path, State(self._programs, (self.direction,), self.seed), durable=True)
        if changes:
            logger.warning("%s: resumes with %s", path, changes)
        now = self._started(model, True)
        if there is None or (there.options, there.facts) != (now.options, now.facts):
            journal.begin(now)
        return journal

    def _started(self, model: Client, seed_given: bool) -> Started:
        """Return the first event of a storage file."""
        identity = {
            "functions": [[f.signature, f.doc, str(f.output)] for f in self.functions],
            "directions": [self.direction],
            "initial": self.initial,
        }
        if seed_given:
            identity["seed"] = self.seed
        about = {
            "prompts": PROMPT_VERSION,
            "model": self._writing.facts.to_json(),
            "tool": self._writing.tool_facts.to_json(),
        }
        options = {"client": client_name(model), "objective": self._writing.prompt.objective}
        return Started(FORMAT, identity, options, about)

    @property
    def computes(self) -> bool:
        """Whether the model may run Python before it writes code."""
        return self._tool is not None

    @property
    def tools(self) -> tuple[str, ...]:
        """Further lines of the prompt on what the model's Python finds, each once; not stored.

        For example one for each entry of the tries' data.
        """
        return self._writing.tools

    @tools.setter
    def tools(self, lines: Sequence[str]) -> None:
        self._writing = replace(self._writing, tools=tuple(dict.fromkeys(lines)))

    # -- results --------------------------------------------------------------------------

    @property
    def storage(self) -> Path | None:
        """The search's storage file, if it has one."""
        return self._journal.path

    @property
    def failures(self) -> int:
        """Calls of `ask` that found no usable code, including those before a resume."""
        return self._journal.state.barren

    @property
    def stop_reason(self) -> str:
        """Why the model ended the search; empty if it did not."""
        stop = self._journal.state.stop
        return "" if stop is None else stop[0]

    @property
    def tried(self) -> int:
        """Recorded candidates of the model, plus calls of `ask` that found none."""
        return sum(t.source == "llm" for t in self._journal.state.trials) + self.failures

    @property
    def best(self) -> CodeTrial:
        """The trial with the best score.

        Raises:
            NoTrialsError: There is no score yet.
        """
        trials = self.trials
        ranked = rank(trials, self.direction)
        if not ranked:
            raise NoTrialsError(why_no_best(trials))
        return ranked[0]

    def candidate(self, trial: CodeTrial) -> Candidate:
        """Return a callable of a trial's code."""
        return candidate_of(trial, self.functions, self._make_sandbox)

    # -- asking ---------------------------------------------------------------------------

    def ask(self) -> Candidate:
        """Return the next candidate, an improvement of the best one.

        It has passed every check and is loaded in its own worker. Code that differs from an
        earlier candidate only in layout, comments or names is rejected. After an error the next
        call continues from the replies that were paid for.

        Raises:
            NoCandidateError: No answer could be used.
            SearchStopped: The model ended the search, which it may once there is a score.
            BudgetExceededError: A cap on requests, tokens or cost is reached.
            ClientError: The request failed, for example for lack of an API key.
            ImportError: The model's package is not installed.
            SandboxUnavailableError: Code cannot be confined here.
        """
        with self._ask_lock:
            waiting = (c for number, c in self._pending.items() if number not in self._handed)
            candidate = next(waiting, None) or self._ask()
            self._handed.add(candidate.number)
        return candidate

    def ask_initial(self) -> Candidate | None:
        """Return the initial code as a candidate to score, without a request.

        Returns:
            A candidate; ``None`` without `initial`, or after any other `ask` or `tell`.

        Raises:
            CandidateError: The code does not pass the checks.
        """
        with self._ask_lock:
            state = self._journal.state
            if not self.initial or state.trials or state.pending or self._pending:
                return None
            try:
                candidate = self._adopt(encodable(self.initial), 0)
            except CandidateError as error:
                words = f"the code to begin from cannot be used: {error}"
                raise CandidateError(words, error.kind, line=error.line) from error
            self._pending[candidate.number] = candidate
            self._handed.add(candidate.number)
            return candidate

    def check_ready(self) -> None:
        """Check that the first request can succeed; see `ModelCalls.check_ready`."""
        self._model.check_ready()

    def _ask(self) -> Candidate:
        """Make a candidate from the present state, or from that of an interrupted ask."""
        require_confinement(self._allow_unsandboxed)  # do not pay for code that cannot run
        self._journal.check()
        self.check_ready()
        self._journal.write_start()
        now = self._journal.state
        if now.stop is not None:
            raise SearchStopped(*now.stop)
        interrupted = now.interrupted
        base = now.count if interrupted is None else interrupted
        try:
            return self._settle(*self._write(base, repeats=interrupted is not None))
        except Stale:
            base = self._journal.state.count
            return self._settle(*self._write(base, repeats=False))
        except BudgetExceededError as error:
            self.conclude(str(error))
            raise

    def _write(self, base: int, *, repeats: bool) -> tuple[Outcome, ProgramTask, Scope, Any]:
        """Return the new program of an ask that has seen `base` events."""
        state = self._journal.state_at(base)
        scope, rng = Scope(self._model, state, repeats), state.generator
        writing = self._writing
        if repeats and state.started is not None:  # on another machine it states the same
            there = state.started.facts
            facts = writing.facts.restored(there["model"])
            tool_facts = ToolFacts.from_json(there["tool"])
            writing = replace(writing, facts=facts, tool_facts=tool_facts)
        trials = [self._programs.trial(trial) for trial in state.trials]
        programs = [(t.params, None if t.rewards is None else t.rewards[0]) for t in state.trials]
        programs += [(Program(*p.values), None) for p in state.pending]
        begin = CodeTrial(-1, self.initial, None) if self.initial else None
        number = self._next(state)
        tried = sum(t.source == "llm" for t in state.trials) + state.barren
        task = ProgramTask(
            writing,
            self._programs,
            trials,
            programs,
            parent_of(trials, self.direction) or begin,
            number,
            None if self.steps is None else max(0, self.steps - tried - 1),
        )
        try:
            outcome = propose(task, scope, rng, 1)
        except BaseException:
            task.close()
            raise
        return outcome, task, scope, rng

    def _settle(self, outcome: Outcome, task: ProgramTask, scope: Scope, rng: Any) -> Candidate:
        """Record an ask, and return its candidate."""
        new = [proposal_to_json(p, self._programs) for p in outcome.proposals]
        drawn: dict[str, Any] = rng.bit_generator.state
        try:
            event = Asked(new, len(new), scope.blocks, dict(+outcome.rejected), outcome.stop, drawn)
            self._journal.append(replace(event, refused=outcome.refused))
        except BaseException:
            task.close()
            raise
        if outcome.outdated:
            task.close()
            return self._ask()  # by a prompt that states the new results
        if outcome.stop is not None and not new:
            self.conclude(outcome.stop[0])
            raise SearchStopped(*outcome.stop)
        if task.candidate is None:
            reasons = "; ".join(dict.fromkeys(reason for _, reason in outcome.unread))
            raise NoCandidateError(
                f"the model {client_name(self.client)} gave no usable code in "
                f"{self._writing.options.attempts} requests: {reasons}",
                outcome.unread,
            )
        self._pending[task.candidate.number] = task.candidate
        return task.candidate

    def _next(self, state: State) -> int:
        """Return the number of the next candidate, from 1; the code to begin from is 0."""
        numbers = [t.params.number for t in state.trials]
        numbers += [p.values[0] for p in state.pending]
        waiting = getattr(self, "_pending", {})
        return max((k + 1 for k in (*numbers, *waiting)), default=1)

    # -- telling --------------------------------------------------------------------------

    def tell(
        self,
        candidate: Candidate | str,
        reward: float | Evaluation,
        feedback: str = "",
        *,
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
            if parts := given.pop("parts", {}):  # the model reads them in words
                words = "; ".join(f"{name} {value:.5g}" for name, value in parts.items())
                given["feedback"] = "; ".join(filter(None, [words, given["feedback"]]))
            if given.pop("constraint_violation", 0.0):
                raise RewardError(
                    f"got constraint_violation={reward.constraint_violation}; a search over code "
                    "has no constraints. Subtract a penalty from the score, or add it to minimize"
                )
            return self.tell(candidate, reward.value, ties=ties, **given)
        try:
            value = float(reward)
        except (TypeError, ValueError):
            value = float("nan")
        if not np.isfinite(value):
            raise RewardError(
                f"got the score {reward!r}; expected a finite number. Report a run without one "
                "by tell_failure(candidate, reason)"
            )
        numbers = [float(v) for v in (*ties, *samples)]
        if not np.isfinite(numbers).all():
            raise RewardError(f"got ties={ties!r}, samples={samples!r}; expected finite numbers")
        count, words = len(ties), encodable(feedback)
        return self._tell(
            candidate, value, words, numbers[:count], numbers[count:], TrialData.of(data)
        )

    def tell_failure(self, candidate: Candidate | str, reason: CandidateError | str) -> CodeTrial:
        """Report that a candidate has no score, and why; raises as `tell`."""
        words = reason.feedback() if isinstance(reason, CandidateError) else encodable(reason)
        return self._tell(candidate, None, words)

    def _tell(
        self,
        candidate: Candidate | str,
        reward: float | None,
        feedback: str,
        ties: Sequence[float] = (),
        samples: Sequence[float] = (),
        data: TrialData | None = None,
    ) -> CodeTrial:
        with self._journal.lock:
            if isinstance(candidate, str):
                mine = self._adopt(encodable(candidate), self._next(self._journal.state))
            else:
                mine = candidate
                if self._pending.get(mine.number) is not mine:
                    raise LLMOptError(
                        f"{mine!r} is not waiting for a score: its result was recorded before, or "
                        "another optimizer returned it. Tell its source (candidate.source)"
                    )
            self._journal.write_start()
            program = Program(mine.number, mine.source, mine.fingerprint, mine.parent)
            kept = None if data is None else self._journal.arrays.keep(data, mine.number)
            state = self._journal.append(
                Told(
                    self._programs.to_json_values(program.values),
                    None if reward is None else [reward],
                    clean(feedback),
                    samples=list(samples),
                    data=kept,
                    ties=list(ties),
                )
            )
            self._pending.pop(mine.number, None)
        mine.close()
        if callable(inform := getattr(self.client, "inform", None)):
            inform(self._outcome())
        return self._programs.trial(state.trials[-1])

    def _adopt(self, source: str, number: int) -> Candidate:
        """Check the user's own source and return it as a candidate."""
        with self._make_sandbox() as sandbox:
            fingerprint = check(sandbox, source, self.functions)
        return Candidate(
            source,
            self.functions,
            self._make_sandbox,
            number=number,
            fingerprint=fingerprint,
            origin="user",
        )

    # -- the end --------------------------------------------------------------------------

    def conclude(self, reason: str = "") -> None:
        """Inform the client of the outcome of the search, and why it ended.

        Args:
            reason: Why it ended; empty for the search's own reason.
        """
        self._concluded = True
        if callable(end := getattr(self.client, "conclude", None)):
            why = cut(" ".join(clean(reason or self._why_it_ended()).split()), _REASON)
            end((f"Why it ended: {why}\n" if why else "") + self._outcome())

    def _outcome(self) -> str:
        trials = self.trials
        if not trials:
            return ""
        ranked, latest = rank(trials, self.direction), trials[-1]
        words = f"The latest: {_scored(latest)}: {cut(latest.feedback, 1000)}\n"
        return words + f"Best first: {', '.join(map(_scored, ranked[:8])) or 'no score yet'}\n"

    def _why_it_ended(self) -> str:
        if self.left_by is not None:
            return described(self.left_by)
        if self._journal.state.stop is not None:
            return self._journal.state.stop[0]
        if self.steps is not None and self.tried >= self.steps:
            return f"all {self.steps} tries were made"
        return f"the program ended after {len(self.trials)} scored candidates"

    def close(self) -> None:
        """Kill the workers of candidates without a result, and close the file."""
        for candidate in self._pending.values():
            candidate.close()
        if not self._concluded:
            self.conclude()
        self._journal.close()
        if self._tool is not None:
            self._tool.close()


def _scored(trial: CodeTrial) -> str:
    score = "no score" if trial.reward is None else f"{trial.reward:.6g}"
    return f"try {trial.number} ({score})"
