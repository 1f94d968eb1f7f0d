"""Several methods on one task from one seed, on equal terms: the engine of `run` and `bench`.

All methods get the same warm-up points, initial states in every evaluation and problem. Each method
has a separate random stream, so that it finds the same points whichever command runs it, and
whatever runs beside it. The best few points of each method are compared on held-out initial states;
the winner is evaluated on states that no search saw.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from llmopt.benchmarks.engine.asking import WORDS, episode_statistics, make_problem, prompt_name
from llmopt.benchmarks.engine.records import WARMUP, Record, Records
from llmopt.benchmarks.engine.search import FINAL_ROUNDS, Proposed, Result, search
from llmopt.benchmarks.methods.model import ModelMethod, Unsent, UnsentRequest
from llmopt.benchmarks.methods.protocol import Method, method_seed
from llmopt.benchmarks.methods.table import Asking, MethodSpec
from llmopt.benchmarks.tasks.table import Task
from llmopt.callbacks import Callbacks
from llmopt.errors import HOPELESS, BrokenTaskError, PromptTooLongError, SpaceError, StorageError
from llmopt.history import Usage
from llmopt.policies.episode import Step
from llmopt.policies.episode_seeds import held_out_seeds, selection_seeds, start_seeds
from llmopt.policies.evaluation import Evaluation, Evaluator
from llmopt.policies.finalists import Final, choose
from llmopt.util.text import clean

_MANY_PARAMETERS = 1000  # the prompt `columns` takes minutes for the axes of more


@dataclass(frozen=True)
class Entrant:
    """A method that takes part."""

    name: str  # of its records
    spec: MethodSpec
    seed_name: str = ""  # the name from which its seed is derived

    @property
    def named(self) -> bool:
        """Whether its prompt shows names in place of parameter numbers."""
        return prompt_name(self.spec.prompt) == WORDS

    @property
    def reads(self) -> bool:
        """Whether its prompt shows reports of the policies."""
        return self.spec.asks_model and self.named


@dataclass(frozen=True)
class Terms:
    """The terms of a contest, which are equal for all methods."""

    seed: int  # of everything random
    evaluations: int  # points of each method after the warm-up
    episodes: int  # initial states of one evaluation
    heldout: int  # held-out initial states that score each method's best policy
    finalists: int  # best few policies, compared on other initial states; 0 for none


@dataclass(frozen=True)
class Chosen:
    """A method's policy."""

    place: int  # its place among warm-up and own points
    record: Record
    final: float | None  # its mean return over all initial states that chose it
    finals: Sequence[Final]  # the finalists, the best on the selection states first
    heldout: Record  # its outcome on the held-out states


class Contest:
    """Runs methods on a task and keeps their records."""

    def __init__(
        self,
        task: Task,
        evaluator: Evaluator,
        terms: Terms,
        entrants: Iterable[Entrant],
        kept: Records,
        planned: int | None = None,
    ) -> None:
        self.task, self.policy = task, evaluator.policy
        self.terms, self.kept = terms, kept
        self.seeds = selection_seeds(terms.seed, terms.episodes)  # of every evaluation
        self.heldout_seeds = held_out_seeds(terms.seed, terms.heldout)
        self.usage: dict[str, Usage] = {}  # of each model's search, by method
        self._evaluator = evaluator
        self._final_seeds = start_seeds(terms.seed, "final", FINAL_ROUNDS * terms.episodes)
        self._entrants = {entrant.name: entrant for entrant in entrants}
        self._planned = terms.evaluations if planned is None else planned
        self._failed = 0  # evaluations in this process, while none was sound
        records = (r for of_method in kept.records.values() for r in of_method)
        self._sound = any(record.mean is not None for record in records)

    def check(self, name: str, asking: Asking) -> None:
        """Make a method's first request without sending it, so that errors come before any cost.

        Raises:
            LLMOptError: The model or the prompt cannot be used for the task.
        """
        spec = self._entrants[name].spec
        if not spec.asks_model or asking.client is None:
            return
        n = self.policy.n_parameters
        too_many = SpaceError(
            f"{self.task.env_id}: too many parameters for a linear policy, {n:,}: no prompt holds "
            "them. Wrap the environment to observe fewer numbers, or omit the model (--methods cma "
            "random)"
        )
        if n > _MANY_PARAMETERS and prompt_name(spec.prompt) == "columns":
            raise too_many
        options = {k: v for k, v in asking.options.items() if k != "storage"}
        asking = replace(asking, client=Unsent(asking.client), options=options)
        problem = make_problem(
            self.task, self.policy, max(self.terms.evaluations, 1), (), spec.prompt, self.seeds
        )
        method = spec.make(problem, method_seed(self.terms.seed, name), asking)
        try:
            with contextlib.suppress(UnsentRequest):
                method.ask()
        except PromptTooLongError as error:
            raise too_many if n > _MANY_PARAMETERS else error from error
        finally:
            if isinstance(method, ModelMethod):
                method.close()

    def warm_up(self, points: Sequence[tuple[Sequence[float], Sequence[float]]]) -> None:
        """Evaluate the shared points; each comes with its returns, if these are known."""
        done = self.kept.records.setdefault(WARMUP, [])
        for index in range(len(done), len(points)):
            params, returns = points[index]
            if returns:
                known = Evaluation(tuple(returns), ())
                self._keep(Record.of(WARMUP, index, params, known, source="loaded"))
            else:
                self._evaluate(WARMUP, index, params, by_model=False, source=WARMUP)

    def search(
        self, name: str, asking: Asking, callbacks: Callbacks | None = None, *, over: bool = False
    ) -> str:
        """Search with one method, and return why the model ended the search, if it did.

        Points of an interrupted contest are looked up; `over` says that the model ended the search
        before the interruption.

        Raises:
            BudgetExceededError: A cap is reached; every point that was paid for has its record.
        """
        entrant = self._entrants[name]
        spec, done = entrant.spec, list(self.kept.records.setdefault(name, []))
        if spec.group == "baseline" and len(done) == self.terms.evaluations:
            return ""
        problem = make_problem(
            self.task,
            self.policy,
            # Some libraries plan their search by the number of evaluations.
            self.terms.evaluations if spec.asks_model else self._planned,
            [(record.params, _result(entrant, record)) for record in self.kept.records[WARMUP]],
            spec.prompt,
            self.seeds,
        )
        seed = method_seed(self.terms.seed, entrant.seed_name or name)
        method: Method = spec.make(problem, seed, asking)
        count = len(done) if over else self.terms.evaluations
        try:
            evaluate = partial(self._answer, entrant, done)
            return search(method, count, evaluate, callbacks, len(done))
        finally:
            if isinstance(method, ModelMethod):
                self.usage[name] = method.usage
                method.close()
            if callbacks is not None:
                callbacks.end()

    def _answer(self, entrant: Entrant, done: Sequence[Record], asked: Proposed) -> Result:
        """Look a point up among those of an interrupted contest, or evaluate it."""
        name, proposal = entrant.name, asked.proposal
        if asked.index < len(done):
            record = done[asked.index]
            if np.array_equal(asked.params, record.params):
                return _result(entrant, record)
            if proposal is not None:
                raise StorageError(
                    f"{name}: trials.jsonl and optimizer.jsonl do not belong to one run (they "
                    f"differ at point {asked.index}); restore both"
                )
            raise StorageError(
                f"{name} does not repeat its points from before the interruption (at point "
                f"{asked.index}): its package or NumPy has changed since. Resume with the versions "
                "in config.json, or start a new run"
            )
        facts: dict[str, Any] = {"source": name}
        if proposal is not None:
            facts = {
                "source": proposal.source,
                "explanation": proposal.explanation,
                "prompt_tokens": proposal.prompt_tokens,
                "completion_tokens": proposal.completion_tokens,
                "model_seconds": proposal.seconds,
            }
        facts["cpu_seconds"] = asked.cpu_seconds
        params, by_model = asked.params.tolist(), proposal is not None
        record = self._evaluate(name, asked.index, params, by_model=by_model, **facts)
        return _result(entrant, record)

    def _evaluate(
        self,
        method: str,
        index: int,
        params: Sequence[float],
        *,
        by_model: bool,
        cpu_seconds: float = 0.0,
        **facts: Any,
    ) -> Record:
        started = time.process_time()
        readers = [e for e in self._entrants.values() if method in (WARMUP, e.name) and e.reads]
        report = episode_statistics(self.task, self.policy, self.seeds) if readers else None
        shown = self.kept.keeps_steps and (by_model or method == WARMUP)
        steps: list[str] = []

        def watch(step: Step) -> None:
            if shown and step.episode == 0 and math.isfinite(step.reward):
                steps.append(step_line(step.observation, step.action, step.reward))
            if report is not None:
                report(step)

        outcome = self._evaluator.evaluate(
            params, self.seeds, watch if shown or report is not None else None
        )
        cpu_seconds += time.process_time() - started
        feedback = "" if report is None else report.text(outcome)
        facts |= {"cpu_seconds": cpu_seconds, "feedback": feedback}
        record = Record.of(method, index, params, outcome, **facts)
        self._keep(record, steps)
        return record

    def _keep(self, record: Record, steps: Sequence[str] = ()) -> None:
        self.kept.add(record, steps)
        self._sound, self._failed = self._sound or not record.failure, self._failed + 1
        if not self._sound and self._failed >= HOPELESS:
            raise BrokenTaskError(
                f"{self.task.env_id}: none of {self._failed} evaluations had a result, so no more "
                f"are made. The last one: {clean(record.failure).rstrip('.')}. Fix the environment "
                "or its wrappers"
            )

    def judge(self, name: str) -> Chosen | None:
        """Choose a method's policy among its finalists, and score it on held-out initial states."""
        records = [*self.kept.records[WARMUP], *self.kept.records[name]]
        known = {r.params: r.evaluation for r in self.kept.finals.get(name, ())}

        def evaluate(index: int) -> Evaluation:
            params = records[index].params
            if params not in known:
                final = self.run_on(params, self._final_seeds, name, index, "final", "final")
                known[params] = final.evaluation
            return known[params]

        points, outcomes = [r.params for r in records], [r.evaluation for r in records]
        place, finals = choose(points, outcomes, self.terms.finalists, evaluate)
        if place is None:
            return None
        best = records[place]
        heldout = self.kept.heldout.get(name)
        if heldout is None or heldout.params != best.params:
            at = best.index, best.source
            heldout = self.run_on(best.params, self.heldout_seeds, name, *at, "heldout")
        final = next((f.mean for f in finals if f.index == place), best.mean)
        return Chosen(place, best, final, finals, heldout)

    def run_on(
        self,
        params: Sequence[float],
        seeds: Sequence[int],
        method: str,
        index: int,
        source: str,
        round: str,
    ) -> Record:
        """Evaluate a policy on initial states that the search did not have; keep the record."""
        outcome = self._evaluator.evaluate(params, seeds)
        record = Record.of(method, index, params, outcome, source=source, round=round)
        self.kept.add(record)
        return record


def _result(entrant: Entrant, record: Record) -> Result:
    return Result.of(record.evaluation, record.feedback if entrant.reads else "")


def step_line(observation: Any, action: Any, reward: float) -> str:
    """Return one line ``state | action | reward``, as the published rollout files have it."""
    return f"{_vector(observation)} | {_vector(action)} | {reward:.9g}\n"


def _vector(values: Any) -> str:
    flat = np.ravel(values).tolist()
    return "[" + " ".join(f"{v:.9g}" for v in flat) + "]"
