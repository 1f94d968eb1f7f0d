"""Several methods on one task from one seed, on equal terms: what `run` and `bench` both do.

All methods get the same warm-up points, initial states in every evaluation and problem,
and one loop runs their asks and tells. Each method has a separate random stream, so that it finds
the same points whichever command runs it, and whatever runs beside it. The best few points of each
method are compared on held-out initial states; the winner is evaluated on states that no search
saw.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from llmopt.benchmarks.engine.asking import (
    FEEDBACK_PROMPTS,
    WORDS,
    check_prompt,
    episode_statistics,
    make_problem,
    prompt_name,
)
from llmopt.benchmarks.engine.records import WARMUP, Record, Records
from llmopt.benchmarks.engine.search import FINAL_ROUNDS, Proposed, Result, search
from llmopt.benchmarks.methods.model import ModelMethod
from llmopt.benchmarks.methods.protocol import Method, method_seed
from llmopt.benchmarks.methods.table import Asking, MethodSpec
from llmopt.benchmarks.tasks.fast import FastEvaluator
from llmopt.callbacks import Callbacks
from llmopt.errors import StorageError
from llmopt.history import Usage
from llmopt.policies.episode import Step
from llmopt.policies.episode_seeds import held_out_seeds, selection_seeds, start_seeds
from llmopt.policies.evaluation import Evaluation
from llmopt.policies.finalists import Final, choose
from llmopt.search.evaluation_loop import FailureWatch


@dataclass(frozen=True)
class Entrant:
    """A method that takes part."""

    name: str  # under which its records are kept
    spec: MethodSpec
    seed_name: str = ""  # the name from which it draws its seed
    told: bool | None = None  # what each policy did; `None`: under `FEEDBACK_PROMPTS`

    @property
    def named(self) -> bool:
        """Whether its prompt shows names in place of parameter numbers."""
        return prompt_name(self.spec.prompt) == WORDS

    @property
    def reads(self) -> bool:
        """Whether its prompt shows reports of the policies."""
        if self.told is not None:
            return self.told and self.spec.asks_model
        return self.spec.asks_model and prompt_name(self.spec.prompt) in FEEDBACK_PROMPTS


@dataclass(frozen=True)
class Terms:
    """What is equal for all methods of a contest."""

    seed: int  # of everything random
    evaluations: int  # points of each method after the warm-up
    episodes: int  # starts of one evaluation
    heldout: int  # held-out initial states that score each method's best policy
    finalists: int  # best few policies, compared on other initial states; 0 for none


@dataclass(frozen=True)
class Chosen:
    """A method's policy."""

    place: int  # its place among warm-up and own points
    record: Record
    final: float | None  # its mean return over all starts that chose it
    finals: Sequence[Final]  # the finalists, the best on the selection starts first
    heldout: Record  # what it did on the held-out starts


class Contest:
    """Runs methods on a task and keeps what they find."""

    def __init__(
        self,
        evaluator: FastEvaluator,
        terms: Terms,
        entrants: Iterable[Entrant],
        kept: Records,
        planned: int | None = None,
    ) -> None:
        self.task, self.policy = evaluator.task, evaluator.policy
        self.terms, self.kept = terms, kept
        self.seeds = selection_seeds(terms.seed, terms.episodes)  # of every evaluation
        self.heldout_seeds = held_out_seeds(terms.seed, terms.heldout)  # of the last judgement
        self.usage: dict[str, Usage] = {}  # what each model's search has cost, by method
        self._evaluator = evaluator
        self._final_seeds = start_seeds(terms.seed, "final", FINAL_ROUNDS * terms.episodes)
        self._entrants = {entrant.name: entrant for entrant in entrants}
        self._planned = terms.evaluations if planned is None else planned
        known = (r for records in kept.records.values() for r in records)
        self._failures = FailureWatch(
            self.task.env_id, any(record.mean is not None for record in known)
        )

    def check(self) -> None:
        """Make each method's first question; see `check_prompt`."""
        for entrant in self._entrants.values():
            check_prompt(entrant.spec, self.task, self.policy, self.terms.evaluations, self.seeds)

    def warm_up(self, points: Sequence[tuple[Sequence[float], Sequence[float]]]) -> None:
        """Evaluate the shared points; each comes with its returns, where these are known."""
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

        What it has found already is looked up; `over` says that the model ended the search before.
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
            [(record.params, self._told(entrant, record)) for record in self.kept.records[WARMUP]],
            spec.prompt,
            self.seeds,
        )
        seed = method_seed(self.terms.seed, entrant.seed_name or name)
        method: Method = spec.make(problem, seed, asking)
        count = len(done) if over else self.terms.evaluations
        try:
            reason = search(
                method, count, partial(self._answer, entrant, done), callbacks, len(done)
            )
            if isinstance(method, ModelMethod):
                self.usage[name] = method.usage
            return reason
        finally:
            if isinstance(method, ModelMethod):
                method.close()
            if callbacks is not None:
                callbacks.end()

    def _answer(self, entrant: Entrant, done: Sequence[Record], asked: Proposed) -> Result:
        """Look a point up among those of an interrupted contest, or evaluate it."""
        name, proposal = entrant.name, asked.proposal
        if asked.index < len(done):
            record = done[asked.index]
            if np.array_equal(asked.params, record.params):
                return self._told(entrant, record)
            if proposal is not None:
                raise StorageError(
                    f"{name}: trials.jsonl and optimizer.jsonl do not belong to one run (they "
                    f"differ at point {asked.index}); restore both"
                )
            raise StorageError(
                f"{name} does not propose again what it did before the interruption "
                f"(at point {asked.index}): its package or NumPy has changed since. Go on with "
                "the versions in config.json, or start a new run"
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
        return self._told(entrant, record)

    def _told(self, entrant: Entrant, record: Record) -> Result:
        said = record.told.get(_form(entrant), "") if entrant.reads else ""
        return Result.of(record.evaluation, said)

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
        statistics = {
            _form(e): episode_statistics(self.task, self.policy, self.seeds, named=e.named)
            for e in readers
        }
        shown = self.kept.keeps_steps and (by_model or method == WARMUP)
        steps: list[str] = []

        def watch(step: Step) -> None:
            if shown and step.episode == 0 and math.isfinite(step.reward):
                steps.append(step_line(step.observation, step.action, step.reward))
            for watcher in statistics.values():
                watcher(step)

        watched = watch if shown or statistics else None
        outcome = self._evaluator.evaluate(params, self.seeds, watched)
        cpu_seconds += time.process_time() - started
        told = {form: watcher.text(outcome) for form, watcher in statistics.items()}
        facts |= {"cpu_seconds": cpu_seconds, "told": told}
        record = Record.of(method, index, params, outcome, **facts)
        self._keep(record, steps)
        return record

    def _keep(self, record: Record, steps: Sequence[str] = ()) -> None:
        self.kept.add(record, steps)
        self._failures.see(record.failure)

    def judge(self, name: str) -> Chosen | None:
        """Choose a method's policy among its finalists, and score it on held-out initial states."""
        records = [*self.kept.records[WARMUP], *self.kept.records[name]]
        known = {r.params: r.evaluation for r in self.kept.finals.get(name, ())}

        def evaluate(index: int) -> Evaluation:
            params = records[index].params
            if params not in known:
                fresh = self.run_on(params, self._final_seeds, name, index, "final", "final")
                known[params] = fresh.evaluation
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
        """Evaluate a policy on starts that the search did not have, and keep the record."""
        outcome = self._evaluator.evaluate(params, seeds)
        record = Record.of(method, index, params, outcome, source=source, round=round)
        self.kept.add(record)
        return record


def _form(entrant: Entrant) -> str:
    """Return the form of the policy report that an entrant's prompt shows."""
    return "names" if entrant.named else "numbers"


def step_line(observation: Any, action: Any, reward: float) -> str:
    """Return one line ``state | action | reward``, as the published rollout files have it."""
    return f"{_vector(observation)} | {_vector(action)} | {reward:.9g}\n"


def _vector(values: Any) -> str:
    flat = np.ravel(values).tolist()
    return "[" + " ".join(f"{v:.9g}" for v in flat) + "]"
