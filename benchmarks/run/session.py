"""``llmopt run`` from Python: every method searches one task, in a run folder.

All methods get the same warm-up points, the same number of evaluations, and the same starts in
each evaluation. The best policy of each is then judged on starts that no search saw.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from llmopt.benchmarks.engine.asking import sample_warmup
from llmopt.benchmarks.engine.contest import Chosen, Contest, Terms
from llmopt.benchmarks.engine.records import WARMUP, Records
from llmopt.benchmarks.extras import package_versions, require_packages
from llmopt.benchmarks.methods.protocol import method_seed
from llmopt.benchmarks.methods.table import METHODS, check_method
from llmopt.benchmarks.report.figures import learning_curve, policy_gif
from llmopt.benchmarks.run.config import RunConfig, check_same
from llmopt.benchmarks.run.contestants import Contestants
from llmopt.benchmarks.run.folder import (
    SUMMARY,
    RunFolder,
    default_folder,
    is_empty,
    read_config,
)
from llmopt.benchmarks.run.outcome import MethodResult, RunResult, format_table
from llmopt.benchmarks.run.progress import Progress
from llmopt.benchmarks.run.published import WarmupPoint, load_warmup
from llmopt.benchmarks.tasks.table import Task
from llmopt.callbacks import Callback, Callbacks, Search
from llmopt.client.base import Client
from llmopt.errors import BudgetExceededError, LLMOptError, SpaceError
from llmopt.history import Usage
from llmopt.policies.episode_seeds import selection_seeds
from llmopt.policies.evaluation import Evaluator
from llmopt.policies.picture import choose_renderer
from llmopt.policies.saved import save_policy
from llmopt.util.files import (
    write_bytes_atomically,
    write_text_atomically,
)


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

    `client` replaces the model of ``config.model``; `announce` is called with the folder once
    the run has begun in it. `resume` resumes the run in `out`, or starts one in a missing or empty
    folder. Results before an error are kept. A cap ends a method's search, and its result says so.
    Each method that asks the model costs about ``config.iterations / config.batch`` requests.
    """
    choose_renderer()
    task = config.get_task()  # a misspelt name is named before a missing package
    require_packages("this run", ["matplotlib", *(["tqdm"] if progress else [])])
    for name in config.methods:
        if name in METHODS:
            check_method(name)
    contestants = Contestants(config, client)
    episodes = config.episodes or task.episodes
    terms = Terms(config.seed, config.iterations, episodes, config.heldout, config.finalists)
    with contestants, task.evaluator() as evaluator:
        names = (config.task, contestants.model, contestants.prompt, f"seed{config.seed}")
        path = default_folder(*names) if out is None else Path(out)
        begun = resume and not is_empty(path)
        stored = read_config(path) if begun else {}
        ended = begun and (path / SUMMARY).exists()
        entrants = list(contestants.entrants.values())
        if not ended or config.iterations > stored["run"].get("iterations", 0):
            contestants.check_ready(Contest(task, evaluator, terms, entrants, Records()), resume)
        if begun:
            check_same(config, stored, path)
            folder = RunFolder(path)
            folder.extend(config.iterations)
        else:
            points = warmup_points(config, task, evaluator.policy.n_parameters)
            folder = RunFolder.create(path, _describe(config, task, evaluator, contestants, points))
        with folder:
            if announce is not None:
                announce(path)
            folder.policy = evaluator.policy
            planned = int(folder.config.get("planned", config.iterations))
            contest = Contest(task, evaluator, terms, entrants, folder, planned)
            return _Session(config, contest, folder, contestants, callbacks).all(progress)


def warmup_points(config: RunConfig, task: Task, n: int) -> list[WarmupPoint]:
    """Sample or load the shared warm-up points."""
    if isinstance(config.warmup, int):
        drawn = sample_warmup(task.box, n, config.warmup, config.seed)
        return [WarmupPoint(tuple(row)) for row in drawn.tolist()]
    low, high = task.box
    points = load_warmup(config.warmup, n)
    inside: list[WarmupPoint] = []
    for point in points:
        clipped = tuple(np.clip(point.params, low, high).tolist())
        # A moved point is another policy: its stored returns are not its own.
        inside.append(point if clipped == point.params else WarmupPoint(clipped))
    moved = sum(a is not b for a, b in zip(points, inside, strict=True))
    if moved:
        warnings.warn(
            f"{moved} of {len(points)} loaded warm-up points lie outside [{low:g}, {high:g}]: "
            "they are moved to its border and re-evaluated; --box LOW HIGH widens it",
            stacklevel=2,
        )
    return inside


class _Session:
    """One run in progress."""

    def __init__(
        self,
        config: RunConfig,
        contest: Contest,
        folder: RunFolder,
        contestants: Contestants,
        callbacks: Sequence[Callback],
    ) -> None:
        self.config, self.contest, self.task = config, contest, contest.task
        self.folder, self.contestants, self.callbacks = folder, contestants, callbacks
        self.chosen: dict[str, Chosen | None] = {}
        self.capped: dict[str, BudgetExceededError] = {}  # by the method whose search it ended

    def all(self, progress: bool) -> RunResult:
        points = self.folder.warmup
        methods = self.config.methods
        total = len(points) + len(methods) * self.config.iterations
        with Progress(total, self.contestants.labels, progress) as self.progress:
            self.progress.resume([r for kept in self.folder.records.values() for r in kept])
            self.folder.added = self.progress.add
            self.progress.tell(self.task.ranges(self.contest.policy))
            expected = self.contestants.estimate(self.contest.policy.n_parameters)
            if expected and not self.folder.records:
                self.progress.tell(expected)
            self.contest.warm_up(points)
            for method in methods:
                self._search(method)
                self._judge(method)
        return self._finish()

    def _search(self, name: str) -> None:
        label = self.contestants.labels[name]
        self.folder.begin(name)
        self.progress.say(label)
        self.progress.line(now=True)
        asking = self.contestants.asking(
            name,
            self.folder.home(name) / "optimizer.jsonl",
            functools.partial(self.progress.wait, label),
            self.contest.usage,
        )
        # A search that the model ended stays ended when the run is resumed.
        over = name in self.folder.stopped
        try:
            reason = self.contest.search(name, asking, self._callbacks_of(name), over=over)
        except BudgetExceededError as cap:  # a resume with a higher one goes on from here
            self.capped[name] = cap
            reason = ""
        if reason:
            self.folder.stop(name, reason)
            self.progress.tell(f"{label}: {reason}")
        if name in self.capped or name in self.folder.stopped:
            self.progress.drop(self.config.iterations - len(self.folder.records[name]))

    def _callbacks_of(self, name: str) -> Callbacks:
        names = tuple(f"params[{i}]" for i in range(self.contest.policy.n_parameters))
        settings = {**asdict(self.config), "method": name, "model": self.contestants.model}
        title = f"{self.folder.path.name}-{name}"
        place = os.path.abspath(self.folder.path)
        return Callbacks(self.callbacks, Search(title, names, ("maximize",), settings, place))

    def _judge(self, name: str) -> None:
        label = self.contestants.labels[name]
        if self.config.finalists:
            self.progress.say(f"{label}: the best {self.config.finalists} on other initial states")
            self.progress.line(now=True)
        self.chosen[name] = self.contest.judge(name)

    def _finish(self) -> RunResult:
        results = tuple(self._result(name) for name in self.config.methods)
        scored = [r for r in results if r.final is not None]
        best = max(scored, key=_final, default=None)
        episodes = self.contest.terms.episodes
        table = format_table(results, self.config, episodes)
        path, warmup = self.folder.path, self.folder.records[WARMUP]
        rows = json.dumps([asdict(r) for r in results], indent=2)
        write_text_atomically(path / SUMMARY, rows + "\n")
        write_text_atomically(path / "summary.txt", table)
        points = {r.label: [*warmup, *self.folder.records[r.method]] for r in results}
        curve = learning_curve(
            {label: [point.mean for point in own] for label, own in points.items()},
            warmup=len(warmup),
            title=f"{self.task.id}, seed {self.config.seed}",
            episodes=episodes,
            heldout={r.label: r.heldout for r in results},
        )
        write_bytes_atomically(path / "learning_curve.png", curve)
        asked = [r for r in scored if self.contestants.entrants[r.method].spec.asks_model]
        drawn = max(asked, key=_final, default=best)
        if drawn is not None and drawn.params is not None:
            policy = self.task.bind(drawn.params)
            about = {"environment": self.task.env_id, "held_out_return": drawn.heldout}
            with contextlib.suppress(SpaceError):  # a space that no file holds, such as a Dict
                save_policy(policy, path / "policy.json", **about)
        if drawn is not None and not (self.config.gif and self._render(drawn)):
            drawn = None
        capped = next(iter(self.capped.values()), None)
        return RunResult(path, results, best, drawn, table, capped)

    def _result(self, name: str) -> MethodResult:
        records = [*self.folder.records[WARMUP], *self.folder.records[name]]
        played = [*records, *self.folder.finals.get(name, [])]
        chosen = self.chosen.get(name)
        heldout = None if chosen is None else chosen.heldout.evaluation
        asks = self.contestants.entrants[name].spec.asks_model
        usage = self.contest.usage.get(name, Usage()) if asks else Usage()
        return MethodResult(
            method=name,
            label=self.contestants.labels[name],
            selection=None if chosen is None else chosen.record.mean,
            final=None if chosen is None else chosen.final,
            heldout=None if heldout is None else heldout.mean,
            heldout_error=None if heldout is None else heldout.standard_error,
            episodes=sum(len(r.lengths) for r in played),
            steps=sum(sum(r.lengths) for r in played),
            requests=usage.requests,
            tokens=usage.prompt_tokens + usage.completion_tokens,
            seconds=sum(r.evaluation_seconds for r in played) + usage.seconds,
            fallback_share=usage.fallback_share if asks else None,
            failures=sum(r.mean is None for r in records),
            params=None if chosen is None else chosen.record.params,
            stopped=self.folder.stopped.get(name) or str(self.capped.get(name, "")),
        )

    def _render(self, result: MethodResult) -> bool:
        """Draw a policy; what goes wrong there is a warning, for the results stand."""
        score = "failed" if result.heldout is None else f"{result.heldout:.2f}"
        caption = f"{result.label}: {score} on held-out initial states"
        try:
            picture = policy_gif(self.task, result.params, self.contest.heldout_seeds[0], caption)
        except Exception as error:
            why = f"{self.task.env_id} could not be rendered ({type(error).__name__}: {error})"
            why = str(error) if isinstance(error, LLMOptError) else why
            warnings.warn(
                f"no GIF of the policy: {why}. The results are complete; --no-gif leaves this out",
                stacklevel=2,
            )
            return False
        write_bytes_atomically(self.folder.path / "policy.gif", picture)
        return True


def _final(result: MethodResult) -> float:
    return result.final or 0.0


def _describe(
    config: RunConfig,
    task: Task,
    evaluator: Evaluator,
    contestants: Contestants,
    points: Sequence[WarmupPoint],
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
            name: list(method_seed(config.seed, entrant.seed_name).spawn_key)
            for name, entrant in contestants.entrants.items()
        },
        "versions": package_versions(),
        "warmup": points,  # so that a resume needs no other folder
    }
