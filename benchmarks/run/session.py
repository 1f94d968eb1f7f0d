"""``llmopt run`` from Python: every method searches one task, in a run folder.

All methods get the same warm-up points, the same number of evaluations, and the same starts in
each evaluation. The best policy of each is then judged on starts that no search saw.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from llmopt.benchmarks.extras import require_packages
from llmopt.benchmarks.methods.model import ModelMethod
from llmopt.benchmarks.methods.protocol import method_seed
from llmopt.benchmarks.methods.table import METHODS, Asking, MethodSpec, check_method
from llmopt.benchmarks.report.figures import learning_curve, policy_gif
from llmopt.benchmarks.run.config import RunConfig, check_same, run_versions
from llmopt.benchmarks.run.contestants import Contestants, default_folder, folder_to_resume
from llmopt.benchmarks.run.folder import (
    POINTS,
    SUMMARY,
    RunFolder,
    has_points,
    is_empty,
    read_config,
)
from llmopt.benchmarks.run.published import (
    WARMUP,
    OverallLog,
    Record,
    WarmupPoint,
    step_line,
)
from llmopt.benchmarks.run.results import (
    STANDS_STILL,
    UNSOLVED,
    MethodResult,
    Progress,
    RunResult,
    format_table,
)
from llmopt.benchmarks.run.shared import Feedback, warmup_points
from llmopt.benchmarks.runner import (
    FINAL_ROUNDS,
    Asked,
    Outcome,
    check_prompt,
    choose,
    make_problem,
    search,
    usual_batch,
)
from llmopt.benchmarks.tasks.fast import FastEvaluator
from llmopt.benchmarks.tasks.table import Task
from llmopt.benchmarks.tasks.words import episode_statistics, task_words
from llmopt.client.base import Client
from llmopt.errors import StorageError
from llmopt.files import (
    read_json_object,
    write_bytes_atomically,
    write_json_atomically,
    write_text_atomically,
)
from llmopt.history import Usage
from llmopt.policies.episode import Step
from llmopt.policies.picture import choose_renderer
from llmopt.policies.rollout import (
    Evaluation,
    final_seeds,
    held_out_seeds,
    selection_seeds,
)
from llmopt.policies.statistics import EpisodeStatistics
from llmopt.policies.words import solved_from
from llmopt.sanity import Sanity
from llmopt.trackers.base import Bell, Callback, Search

_ZERO = "zero"  # the policy whose parameters are all zero, in heldout.jsonl
_STILL_STARTS = 20
_STILL_SHARE = 0.01  # of the size of what standing still returns


def run(
    config: RunConfig,
    out: str | Path | None = None,
    *,
    client: Client | None = None,
    resume: bool = False,
    progress: bool = False,
    announce: Callable[[Path], None] | None = None,
    callbacks: Sequence[Callback] = (),
) -> RunResult:
    """Run every method on a task and write everything to a run folder.

    Args:
        config: What to do.
        out: The run folder; ``runs/<task>-<model>-<prompt>-seed<seed>`` (with a number if
            there is one already) if not given.
        client: The model, in place of the one that ``config.model`` names.
        resume: Whether to go on with the run that the folder holds. A missing or empty
            folder starts one. Without `out`, the latest stopped run of this configuration in
            ``runs/`` goes on (the latest, where none was stopped).
        progress: Whether to show a progress bar on standard error.
        announce: Called with the folder once the run has begun in it.
        callbacks: Whom to tell what each method's search does: see `llmopt.trackers`. What was
            done before a resume is not told again.

    Returns:
        What each method found.

    Raises:
        RunConfigError: The folder's run was asked for with other options.
        LLMOptError: The task, model or prompt does not exist, a package is missing, the
            model failed, or the folder cannot be written. What was done is kept: a call
            with ``resume=True`` goes on from there.

    Note:
        Costs about ``config.iterations / config.batch`` model requests for each method that
        asks the model.
    """
    require_packages("this run", ["matplotlib", *(["tqdm"] if progress else [])])
    for name in config.methods:
        if name in METHODS:
            check_method(name)
    choose_renderer()
    task = config.get_task()
    contestants = Contestants(config, client)
    if config.statistics is None and not any(map(contestants.told_unasked, config.methods)):
        config = replace(config, statistics=False)
    with contextlib.closing(contestants), FastEvaluator(task) as evaluator:
        if out is not None:
            path = Path(out)
        elif resume:
            path = folder_to_resume(asdict(config), contestants.model)
        else:
            path = default_folder(config, contestants)
        ended = (path / SUMMARY).exists() and resume
        if not ended or config.iterations > read_config(path)["run"].get("iterations", 0):
            contestants.check_ready(resume)  # else nothing is asked any more
            seeds = selection_seeds(config.seed, config.episodes or task.episodes)
            for spec in contestants.specs.values():
                check_prompt(spec, task, evaluator.policy, config.iterations, seeds)
        points = None  # a run that was begun has its own
        if not (resume and has_points(path)):
            points = warmup_points(config, task, evaluator.policy.n_parameters)
        if resume and not is_empty(path):
            check_same(config, path)
            folder = RunFolder(path)
            folder.extend(config.iterations)
        else:
            folder = RunFolder.create(path, _describe(config, task, evaluator, contestants))
        with folder:
            if announce is not None:
                announce(path)
            session = _Session(config, task, evaluator, folder, contestants, callbacks)
            return session.all(points, progress)


class _Session:
    """One run in progress."""

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        evaluator: FastEvaluator,
        folder: RunFolder,
        contestants: Contestants,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.callbacks = callbacks
        self.config = config
        self.task = task
        self.evaluator = evaluator
        self.folder = folder
        self.contestants = contestants
        self.episodes = config.episodes or task.episodes
        self.seeds = selection_seeds(config.seed, self.episodes)
        self.final_seeds = final_seeds(config.seed, FINAL_ROUNDS * self.episodes)
        self.heldout_seeds = held_out_seeds(config.seed, config.heldout)
        self.chosen: dict[str, tuple[Record, float | None]] = {}
        self.usage: dict[str, Usage] = {}
        asking = [name for name in config.methods if contestants.told(name)]
        self.styles = {contestants.named(name) for name in asking}
        self.feedback = Feedback(folder.path / "statistics.jsonl", bool(asking))
        known = (r for records in folder.records.values() for r in records)
        self.sanity = Sanity(task.env_id, any(record.mean is not None for record in known))
        # Some libraries plan their search by the number of evaluations.
        self.planned = int(folder.config.get("planned", config.iterations))

    def all(self, points: Sequence[WarmupPoint] | None, progress: bool) -> RunResult:
        points = self._kept_points(points)
        methods = self.config.methods
        total = len(points) + len(methods) * self.config.iterations
        labels = {name: self.contestants.labels[name] for name in methods}
        with self.feedback, Progress(total, labels, progress) as self.progress:
            self.progress.resume([r for kept in self.folder.records.values() for r in kept])
            self._warm_up(points)
            for method in methods:
                self._search(method)
                self._judge(method)
        return self._finish()

    def _kept_points(self, points: Sequence[WarmupPoint] | None) -> list[WarmupPoint]:
        """Keep the warm-up points with the run, so that a resume needs nothing else."""
        file = self.folder.path / WARMUP / POINTS
        if points is not None:
            write_json_atomically(file, {"points": [asdict(p) for p in points]}, indent=None)
            return list(points)
        try:
            stored = read_json_object(file)["points"]
            return [WarmupPoint(tuple(p["params"]), tuple(p["returns"])) for p in stored]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(f"cannot read {file} ({error!r}): restore it") from error

    def _warm_up(self, points: Sequence[WarmupPoint]) -> None:
        done = self.folder.records.setdefault(WARMUP, [])
        for index in range(len(done), len(points)):
            point = points[index]
            if point.returns:
                record = Record(WARMUP, index, point.params, point.returns, (), source="loaded")
                self.folder.write_warmup(record, ())
                self._keep(record)
            else:
                self._evaluate(WARMUP, index, point.params, published=True, source=WARMUP)

    def _evaluate(
        self,
        method: str,
        index: int,
        params: Sequence[float],
        published: bool,
        cpu_seconds: float = 0.0,
        **facts: Any,
    ) -> Record:
        started = time.process_time()
        steps: list[str] = []
        styles = self.styles
        if method != WARMUP:
            told = self.contestants.told(method)
            styles = {self.contestants.named(method)} if told else set()
        statistics = {named: self._statistics(named) for named in styles}

        def watch(step: Step) -> None:
            if published and step.episode == 0 and math.isfinite(step.reward):
                steps.append(step_line(step.observation, step.action, step.reward))
            for watcher in statistics.values():
                watcher(step)

        watched = published or bool(statistics)
        outcome = self.evaluator.evaluate(params, self.seeds, watch if watched else None)
        record = Record(
            method,
            index,
            tuple(map(float, params)),
            outcome.returns,
            outcome.lengths,
            outcome.failure,
            evaluation_seconds=outcome.seconds,
            cpu_seconds=cpu_seconds + time.process_time() - started,
            **facts,
        )
        # The other files come first: a kill in between makes them again, and a record is
        # never without its files.
        for named, watcher in statistics.items():
            self.feedback.add(record, watcher.text(outcome), named)
        if method == WARMUP:
            self.folder.write_warmup(record, steps)
        elif published:
            self.folder.write_episode(record, self.evaluator.policy, steps)
        self._keep(record)
        return record

    def _statistics(self, named: bool) -> EpisodeStatistics:
        words = task_words(self.task, self.seeds) if named else None
        return episode_statistics(self.evaluator.policy, words)

    def _keep(self, record: Record) -> None:
        self.folder.add(record)
        self.progress.step(record)
        self.sanity.see(record.failure)

    def _search(self, name: str) -> None:
        spec = self.contestants.specs[name]
        warmup = self.folder.records[WARMUP]
        done = self.folder.records.setdefault(name, [])
        log = OverallLog(self.folder.home(name) / "overall_log.txt", warmup, done)
        if spec.group == "baseline" and len(done) == self.config.iterations:
            return
        label = self.contestants.labels[name]
        self.progress.say(label)
        problem = make_problem(
            self.task,
            self.evaluator.policy,
            self.config.iterations if spec.asks_model else self.planned,
            [(record.params, self._told(name, record)) for record in warmup],
            spec.prompt,
            self.seeds,
        )

        wait = functools.partial(self.progress.wait, label)
        client = self.contestants.client_for(spec, wait)
        batch = self.config.batch or usual_batch(spec.prompt)
        asking = Asking(client, batch, options=self._model_options(name, spec))
        seed = method_seed(self.config.seed, self.contestants.seed_names[name])
        method = spec.make(problem, seed, asking)
        evaluate = functools.partial(self._answer, name, list(done), log)
        bell, known = self._bell(name), len(done)
        try:
            if not isinstance(method, ModelMethod):
                search(method, self.config.iterations, evaluate, bell, known)
                return
            # What the model ended is not asked for further points when the run goes on.
            count = known if name in self.folder.stopped else self.config.iterations
            reason = search(method, count, evaluate, bell, known)
            self.usage[name] = method.usage
        finally:
            if isinstance(method, ModelMethod):
                method.close()
            bell.end()
        if reason:
            self.folder.stop(name, reason)
            self.progress.tell(f"{label}: {reason}")
        if name in self.folder.stopped:
            self.progress.drop(self.config.iterations - len(self.folder.records[name]))

    def _bell(self, name: str) -> Bell:
        names = tuple(f"params[{i}]" for i in range(self.evaluator.policy.n_parameters))
        settings = {**asdict(self.config), "method": name, "model": self.contestants.model}
        title = f"{self.folder.path.name}-{name}"
        place = os.path.abspath(self.folder.path)
        return Bell(self.callbacks, Search(title, names, ("maximize",), settings, place))

    def _answer(self, name: str, done: Sequence[Record], log: OverallLog, asked: Asked) -> Outcome:
        """Look a point up among those of an interrupted run, or evaluate it."""
        proposal = asked.proposal
        if asked.index < len(done):
            record = done[asked.index]
            if np.array_equal(asked.params, record.params):
                return self._told(name, record)
            if proposal is not None:
                raise StorageError(
                    f"{self.folder.path}: trials.jsonl and optimizer.jsonl do not belong to one "
                    f"run (they differ at point {asked.index} of {name}); restore both"
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
        record = self._evaluate(
            name,
            asked.index,
            asked.params.tolist(),
            published=proposal is not None,
            cpu_seconds=asked.cpu_seconds,
            **facts,
        )
        log.add(record)
        return self._told(name, record)

    def _told(self, method: str, record: Record) -> Outcome:
        told = self.contestants.told(method)
        text = self.feedback.of(record, self.contestants.named(method)) if told else ""
        return Outcome.of(record.evaluation, text)

    def _model_options(self, name: str, spec: MethodSpec) -> dict[str, Any]:
        """Return storage and caps of a method that asks a model, or of its stand-in."""
        options: dict[str, Any] = {
            "storage": self.folder.home(name) / "optimizer.jsonl",
            "may_stop": self.contestants.named(name),
            "requests": self.config.requests if name == "llm" else None,
        }
        if spec.asks_model:  # the caps hold for all of the run's methods together
            spent = [self.usage[n] for n in self.usage if self.contestants.specs[n].asks_model]
            caps = {
                "max_requests": sum(u.requests for u in spent),
                "max_tokens": sum(u.prompt_tokens + u.completion_tokens for u in spent),
                "max_cost": sum(u.cost or 0.0 for u in spent),
            }
            for cap, used in caps.items():
                most = getattr(self.config, cap)
                options[cap] = None if most is None else max(most - used, 0)
        return options

    def _judge(self, method: str) -> None:
        """Choose a method's policy on fresh starts, and run it on the held-out ones."""
        records = [*self.folder.records[WARMUP], *self.folder.records[method]]
        known = {r.params: r.evaluation for r in self.folder.finals.get(method, ())}

        def evaluate(index: int) -> Evaluation:
            record = records[index]
            if record.params not in known:
                known[record.params] = self._fresh(method, index, record, self.final_seeds, "final")
            return known[record.params]

        label = self.contestants.labels[method]
        if self.config.finalists:
            self.progress.say(f"{label}: the best {self.config.finalists} on fresh starts")
        chosen, finals = choose(
            [r.params for r in records],
            [r.evaluation for r in records],
            self.config.finalists,
            evaluate,
        )
        if chosen is None:
            return
        best = records[chosen]
        self.chosen[method] = best, next((f.mean for f in finals if f.index == chosen), best.mean)
        heldout = self.folder.heldout.get(method)
        if heldout is None or heldout.params != best.params:
            self.progress.say(f"{label}: held-out starts")
            self._fresh(method, best.index, best, self.heldout_seeds, best.source)

    def _fresh(
        self, method: str, index: int, record: Record, seeds: Sequence[int], source: str
    ) -> Evaluation:
        """Evaluate a policy on starts that the search did not have, and keep the outcome."""
        outcome = self.evaluator.evaluate(record.params, seeds)
        fresh = Record(
            method,
            index,
            record.params,
            outcome.returns,
            outcome.lengths,
            outcome.failure,
            source=source,
            evaluation_seconds=outcome.seconds,
        )
        if source == "final":
            self.folder.add_final(fresh)
        else:
            self.folder.add_heldout(fresh)
        return outcome

    def _stands_still(self, best: MethodResult) -> bool:
        """Whether a policy whose parameters are all zero does as well as the best one."""
        if best.heldout is None or best.params is None:
            return False
        if _ZERO not in self.folder.heldout:
            params = (0.0,) * len(best.params)
            record = Record(_ZERO, 0, params, (), ())
            self._fresh(_ZERO, 0, record, self.heldout_seeds[:_STILL_STARTS], _ZERO)
        zero = self.folder.heldout[_ZERO].mean
        return zero is not None and best.heldout <= zero + _STILL_SHARE * max(abs(zero), 1.0)

    def _unsolved(self, best: MethodResult) -> str:
        """Say so if the best policy is below what Gymnasium takes for solved."""
        env = self.task.make_env()
        try:
            solved = solved_from(env, self.task.step_cap(env))
        finally:
            env.close()
        if solved is None or best.heldout is None or best.heldout >= solved:
            return ""
        return UNSOLVED.format(task=self.task.env_id, solved=solved, best=best)

    def _finish(self) -> RunResult:
        results = tuple(self._result(name) for name in self.config.methods)
        scored = [r for r in results if r.final is not None]
        best = max(scored, key=_final, default=None)
        table = format_table(results, self.config, self.episodes)
        if best is not None and self._stands_still(best):
            table += f"{STANDS_STILL}\n"
        elif best is not None:
            table += self._unsolved(best)
        path = self.folder.path
        rows = json.dumps([asdict(r) for r in results], indent=2)
        write_text_atomically(path / SUMMARY, rows + "\n")
        write_text_atomically(path / "summary.txt", table)
        warmup = self.folder.records[WARMUP]
        write_bytes_atomically(
            path / "learning_curve.png",
            learning_curve(
                {
                    r.label: [p.mean for p in [*warmup, *self.folder.records[r.method]]]
                    for r in results
                },
                warmup=len(warmup),
                title=f"{self.task.id}, seed {self.config.seed}",
                episodes=self.episodes,
                heldout={r.label: r.heldout for r in results},
            ),
        )
        asked = [r for r in scored if self.contestants.specs[r.method].asks_model]
        drawn = max(asked, key=_final, default=best)
        if drawn is not None and not (self.config.gif and self._render(drawn)):
            drawn = None
        return RunResult(path, results, best, drawn, table)

    def _result(self, name: str) -> MethodResult:
        records = [*self.folder.records[WARMUP], *self.folder.records[name]]
        best, final = self.chosen.get(name, (None, None))
        heldout = None if best is None else self.folder.heldout.get(name)
        finals = self.folder.finals.get(name, [])
        score = None if heldout is None else heldout.mean
        error = None
        if heldout is not None and score is not None and len(heldout.returns) > 1:
            error = float(np.std(heldout.returns, ddof=1) / np.sqrt(len(heldout.returns)))
        asks = self.contestants.specs[name].asks_model
        usage = self.usage.get(name, Usage()) if asks else Usage()
        return MethodResult(
            method=name,
            label=self.contestants.labels[name],
            selection=None if best is None else best.mean,
            final=final,
            heldout=score,
            heldout_error=error,
            episodes=sum(len(r.lengths) for r in [*records, *finals]),
            steps=sum(sum(r.lengths) for r in [*records, *finals]),
            requests=usage.requests,
            tokens=usage.prompt_tokens + usage.completion_tokens,
            seconds=sum(r.evaluation_seconds for r in [*records, *finals]) + usage.seconds,
            fallback_share=usage.fallback_share if asks else None,
            failures=sum(r.mean is None for r in records),
            params=None if best is None else best.params,
            stopped=self.folder.stopped.get(name, ""),
        )

    def _render(self, result: MethodResult) -> bool:
        """Draw a policy; what goes wrong there is a warning, for the results stand."""
        score = "failed" if result.heldout is None else f"{result.heldout:.2f}"
        caption = f"{result.label}: {score} on fresh starts"
        try:
            picture = policy_gif(self.task, result.params, self.heldout_seeds[0], caption)
        except Exception as error:
            warnings.warn(
                f"no GIF of the policy: {self.task.env_id} could not be rendered "
                f"({type(error).__name__}: {error}). The results are complete; --no-gif leaves "
                "this out",
                stacklevel=2,
            )
            return False
        write_bytes_atomically(self.folder.path / "policy.gif", picture)
        return True


def _final(result: MethodResult) -> float:
    return result.final or 0.0


def _describe(
    config: RunConfig, task: Task, evaluator: FastEvaluator, contestants: Contestants
) -> dict[str, Any]:
    """Return what ``config.json`` holds."""
    return {
        "run": asdict(config),
        "task": {
            **asdict(task),
            "parameters": evaluator.policy.n_parameters,
            "step_cap": evaluator.step_cap,
        },
        "model": contestants.model,
        "prompt": contestants.prompt,
        "selection_seeds": selection_seeds(config.seed, config.episodes or task.episodes),
        "method_seeds": {
            name: list(method_seed(config.seed, seed_name).spawn_key)
            for name, seed_name in contestants.seed_names.items()
        },
        "versions": run_versions(),
    }
