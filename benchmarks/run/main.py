"""``llmopt run``: a model searches one task's policy, beside CMA-ES and random search.

Every method gets the same warm-up points, the same number of evaluations, and the same
starts in each evaluation. What each found is then judged on starts that no search saw.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from gymnasium import spaces

from llmopt._version import __version__
from llmopt.benchmarks.methods.baselines import BASELINES, make_baseline
from llmopt.benchmarks.run.folder import (
    WARMUP,
    OverallLog,
    Record,
    RunFolder,
    WarmupPoint,
    best_record,
    is_empty,
    load_warmup,
    read_config,
    step_line,
    write_bytes,
    write_text,
)
from llmopt.benchmarks.run.pictures import choose_renderer, learning_curve, policy_gif
from llmopt.benchmarks.tasks.table import TASKS, Task, get_task
from llmopt.client.base import Client, client_name, default_prompt
from llmopt.client.local import LocalClient
from llmopt.client.registry import get_client
from llmopt.errors import LLMOptError, StorageError, did_you_mean
from llmopt.history import Usage
from llmopt.optimizer import LLMOptimizer
from llmopt.policies.linear import LinearPolicy
from llmopt.policies.rollout import (
    Evaluator,
    RolloutStatistics,
    held_out_seeds,
    selection_seeds,
    stream,
)
from llmopt.prompt import PROMPTS, get_prompt
from llmopt.prompt.columns import ColumnsPrompt
from llmopt.prompt.pattern import PatternPrompt
from llmopt.search.eventlog import EventLog
from llmopt.space import Space

METHODS = ("llm", *BASELINES)
# What a resumed run may change: it touches no result.
_MINOR = ("gif", "max_requests", "max_tokens", "max_cost")
# Prompts that search numbers, whatever these mean, or show no description; "auto" is one.
_NUMERIC = ("auto", "props", "props-ab", "opro", "columns", "levels", "pattern")
_VERSIONED = ("gymnasium", "numpy", "mujoco", "cma", "xllamacpp")


class RunConfigError(LLMOptError, ValueError):
    """A run was asked for with options that cannot be."""


@dataclass(frozen=True)
class RunConfig:
    """What a run does; equal configurations give equal runs.

    Attributes:
        task: Alias, task id or Gymnasium id.
        model: Model string (see `llmopt.get_client`).
        prompt: A shipped prompt's name, a template's text or path, or ``"auto"``.
        iterations: Evaluations of each method after the warm-up.
        episodes: Episodes of one evaluation.
        seed: Of everything random.
        warmup: Warm-up points that all methods share: how many to draw, or a folder in the
            published layout.
        bias: Whether the policy has a bias; ``None`` for the task's own choice.
        box: Bounds of every parameter; ``None`` for the task's own.
        methods: Some of `METHODS`, in the order in which they run.
        description: The task in words, for prompts that use it; ``None`` for the task's own.
        statistics: Whether the model is told with each reward what the policy did in its
            episodes, for prompts that show feedback.
        heldout: Fresh starts on which each method's best policy is judged.
        gif: Whether to render the best policy.
        max_requests: Calls to the model after which the run stops, failed ones included.
        max_tokens: Prompt and completion tokens after which it stops.
        max_cost: US dollars after which it stops; needs a model whose price is known.
    """

    task: str
    model: str = "smollm2"
    prompt: str = "auto"
    iterations: int = 100
    episodes: int = 5
    seed: int = 0
    warmup: int | str = 20
    bias: bool | None = None
    box: tuple[float, float] | None = None
    methods: tuple[str, ...] = METHODS
    description: str | None = None
    statistics: bool = False
    heldout: int = 100
    gif: bool = True
    max_requests: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("iterations", 0), ("episodes", 1), ("seed", 0), ("heldout", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise RunConfigError(
                    f"{name}={value!r}: expected a whole number of at least {least}"
                )
        if isinstance(self.warmup, int) and self.warmup < 0:
            raise RunConfigError(
                f"warmup={self.warmup}: expected 0 or more points, or a folder of them"
            )
        for name in ("max_requests", "max_tokens", "max_cost"):
            cap = getattr(self, name)
            if cap is not None and not cap >= 0:  # not a number is refused too
                raise RunConfigError(f"{name}={cap!r}: expected 0 or more")
        if not self.methods or len(set(self.methods)) < len(self.methods):
            raise RunConfigError(
                f"methods={' '.join(self.methods) or '()'}: expected each of some of "
                f"{', '.join(METHODS)} once"
            )
        for method in self.methods:
            if method not in METHODS:
                raise RunConfigError(f"unknown method {method!r}: {did_you_mean(method, METHODS)}")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunConfig:
        """Rebuild a configuration from its JSON form.

        Raises:
            StorageError: It is not one.
        """
        try:
            known = dict(data)
            known["methods"] = tuple(known["methods"])
            known["box"] = known["box"] and (float(known["box"][0]), float(known["box"][1]))
            return cls(**known)
        except (KeyError, TypeError, IndexError) as error:
            raise StorageError(
                f"the run's config.json was written by another version of llmopt, or changed by "
                f"something else ({error!r}): start a new run"
            ) from error


@dataclass(frozen=True)
class MethodResult:
    """One line of the table.

    Attributes:
        method: ``"llm"`` or a baseline's name.
        label: What tables and pictures call it.
        selection: Best mean return on the selection starts; ``None`` if all points failed.
        heldout: Mean return of that policy on the held-out starts; ``None`` if it failed.
        heldout_error: Standard error of `heldout`.
        episodes: Selection episodes, shared warm-up included.
        steps: Environment steps of those.
        requests: Requests sent to the model.
        tokens: Prompt and completion tokens.
        seconds: Wall-clock seconds of proposing and evaluating, warm-up included.
        fallback_share: Share of the model's proposals that were drawn at random instead;
            ``None`` for a baseline.
        failures: Evaluations that gave no score.
        params: The best policy's parameters, or ``None``.
    """

    method: str
    label: str
    selection: float | None
    heldout: float | None
    heldout_error: float | None
    episodes: int
    steps: int
    requests: int
    tokens: int
    seconds: float
    fallback_share: float | None
    failures: int
    params: tuple[float, ...] | None


@dataclass(frozen=True)
class RunResult:
    """What a run found.

    Attributes:
        path: The run folder.
        methods: One result for each method, in the order of `RunConfig.methods`.
        best: The one with the best policy on the selection starts, which the GIF shows;
            ``None`` if every evaluation failed.
        table: The same as text.
    """

    path: Path
    methods: tuple[MethodResult, ...]
    best: MethodResult | None
    table: str = field(repr=False)


def run(
    config: RunConfig,
    out: str | Path | None = None,
    *,
    client: Client | None = None,
    resume: bool = False,
    progress: bool = False,
    announce: Callable[[Path], None] | None = None,
) -> RunResult:
    """Run every method on a task and write everything to a run folder.

    Args:
        config: What to do.
        out: The run folder; ``runs/<task>-<model>-<prompt>-seed<seed>`` (with a number if
            there is one already) if not given.
        client: The model, in place of the one that ``config.model`` names.
        resume: Whether to go on with the run that the folder holds. A missing or empty
            folder starts one.
        progress: Whether to show a progress bar on standard error.
        announce: Called with the folder once the run has begun in it.

    Returns:
        What each method found.

    Raises:
        RunConfigError: The folder's run was asked for with other options.
        LLMOptError: The task, model or prompt does not exist, a package is missing, the
            model failed, or the folder cannot be written. What was done is kept: a call
            with ``resume=True`` goes on from there.

    Note:
        Costs about ``config.iterations`` model requests.
    """
    _check_packages(config, progress)
    choose_renderer()
    task = get_task(config.task, bias=config.bias, box=config.box, description=config.description)
    client, model, prompt = _model_and_prompt(config, client)
    with Evaluator(task) as evaluator:
        points = _warmup_points(config, task, evaluator.policy.n_parameters)
        path = Path(out) if out is not None else _default_folder(config, model, prompt, resume)
        if resume and not is_empty(path):
            _check_same(config, path)
            folder = RunFolder(path)
        else:
            folder = RunFolder.create(path, _describe(config, task, evaluator, model, prompt))
        with folder:
            if announce is not None:
                announce(path)
            label = f"{model} ({prompt})"
            return _Run(config, task, evaluator, folder, client, label).all(points, progress)


class _Run:
    """One run in progress."""

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        evaluator: Evaluator,
        folder: RunFolder,
        client: Client | None,
        model_label: str,
    ) -> None:
        self.config = config
        self.task = task
        self.evaluator = evaluator
        self.folder = folder
        self.client = client
        self.labels = {m: model_label if m == "llm" else m for m in config.methods}
        self.seeds = selection_seeds(config.seed, config.episodes)
        self.heldout_seeds = held_out_seeds(config.seed, config.heldout)
        self.usage = Usage()
        self.feedback = _Feedback(folder.path / "statistics.jsonl", config.statistics)

    def all(self, points: Sequence[WarmupPoint], progress: bool) -> RunResult:
        points = self._kept_points(points)
        total = len(points) + len(self.config.methods) * self.config.iterations
        with self.feedback, _Progress(total, self.labels, progress) as self.progress:
            for records in self.folder.records.values():
                for record in records:
                    self.progress.step(record)
            self._warm_up(points)
            for number, method in enumerate(METHODS):
                if method in self.config.methods:
                    self._method(method, number)
        return self._finish()

    def _kept_points(self, points: Sequence[WarmupPoint]) -> list[WarmupPoint]:
        """Keep the warm-up points with the run, so that a resume needs nothing else."""
        file = self.folder.path / WARMUP / "points.json"
        if not file.exists():
            write_text(file, json.dumps([asdict(p) for p in points]) + "\n")
            return list(points)
        try:
            stored = json.loads(file.read_text())
            return [WarmupPoint(tuple(p["params"]), tuple(p["returns"])) for p in stored]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(f"cannot read {file} ({error!r}): restore it") from error

    def _warm_up(self, points: Sequence[WarmupPoint]) -> None:
        done = self.folder.records.get(WARMUP, [])
        for index in range(len(done), len(points)):
            point = points[index]
            if point.returns:
                record = Record(WARMUP, index, point.params, point.returns, (), source="loaded")
                self.folder.write_warmup(record, ())
                self._keep(record)
            else:
                self._evaluate(WARMUP, index, point.params, source=WARMUP)

    def _evaluate(
        self,
        method: str,
        index: int,
        params: Sequence[float],
        cpu_started: float | None = None,
        **facts: Any,
    ) -> Record:
        started = time.process_time() if cpu_started is None else cpu_started
        steps: list[str] = []
        statistics = RolloutStatistics(self.evaluator.policy) if self.config.statistics else None

        def note(episode: int, observation: Any, action: Any, reward: float) -> None:
            if episode == 0:
                steps.append(step_line(observation, action, reward))
            if statistics is not None:
                statistics(episode, observation, action, reward)

        published = method in (WARMUP, "llm")
        outcome = self.evaluator.evaluate(params, self.seeds, note if published else None)
        record = Record(
            method,
            index,
            tuple(map(float, params)),
            outcome.returns,
            outcome.lengths,
            outcome.failure,
            evaluation_seconds=outcome.seconds,
            cpu_seconds=time.process_time() - started,
            **facts,
        )
        # The other files come first: a kill in between makes them again, and a record is
        # never without its files.
        if statistics is not None and published:
            self.feedback.add(record, statistics.line(outcome, self.evaluator.step_cap))
        if method == WARMUP:
            self.folder.write_warmup(record, steps)
        elif method == "llm":
            self.folder.write_episode(record, self.evaluator.policy, steps)
        self._keep(record)
        return record

    def _keep(self, record: Record) -> None:
        self.folder.add(record)
        self.progress.step(record)

    def _method(self, method: str, number: int) -> None:
        warmup = self.folder.records.get(WARMUP, [])
        done = self.folder.records.setdefault(method, [])
        log = OverallLog(self.folder.log_path(method), warmup, done)
        if method == "llm":
            self._model(log)
        elif len(done) < self.config.iterations:
            self._baseline(method, number, log)
        if method not in self.folder.heldout:
            best = best_record([*warmup, *done])
            if best is not None:
                self.progress.say(f"{self.labels[method]}: held-out starts")
                outcome = self.evaluator.evaluate(best.params, self.heldout_seeds)
                self.folder.add_heldout(
                    Record(
                        method,
                        best.index,
                        best.params,
                        outcome.returns,
                        outcome.lengths,
                        outcome.failure,
                        source=best.source,
                        evaluation_seconds=outcome.seconds,
                    )
                )

    def _model(self, log: OverallLog) -> None:
        warmup = self.folder.records.get(WARMUP, [])
        done = self.folder.records["llm"]
        low, high = self.task.box
        n = self.evaluator.policy.n_parameters
        box = spaces.Box(low, high, (n,), dtype=np.float64)
        optimizer = LLMOptimizer(
            Space.from_gymnasium(box, decimals=shown_decimals(low, high)),
            self.client,
            self.config.prompt,
            seed=int(stream(self.config.seed, "method", 0).generate_state(1)[0]),
            warmup=[np.array(r.params) for r in warmup],
            total=len(warmup) + self.config.iterations or None,
            description=prompt_description(self.task, self.evaluator.policy, self.config.prompt),
            max_requests=self.config.max_requests,
            max_tokens=self.config.max_tokens,
            max_cost=self.config.max_cost,
            storage=self.folder.path / "optimizer.jsonl",
        )
        try:
            self.progress.say(self.labels["llm"])
            while len(optimizer.trials) < len(warmup) + self.config.iterations:
                cpu = time.process_time()
                if not optimizer.pending:
                    optimizer.ask()
                proposal = optimizer.pending[0]
                number = len(optimizer.trials)
                index = number - len(warmup)
                if index < 0:
                    record = warmup[number]
                elif index < len(done):  # it was evaluated, and the kill came before the tell
                    record = done[index]
                else:
                    record = self._evaluate(
                        "llm",
                        index,
                        np.asarray(optimizer.space.unflatten(proposal.values)).tolist(),
                        cpu,
                        source=proposal.source,
                        explanation=proposal.explanation,
                        prompt_tokens=proposal.prompt_tokens,
                        completion_tokens=proposal.completion_tokens,
                        model_seconds=proposal.seconds,
                    )
                    log.add(record)
                params = optimizer.space.unflatten(proposal.values)
                if not np.array_equal(params, record.params):
                    raise StorageError(
                        f"{self.folder.path}: trials.jsonl and optimizer.jsonl do not belong to "
                        f"one run (they differ at point {number}); restore both"
                    )
                if record.mean is None:
                    optimizer.tell_failure(params, record.failure)
                else:
                    optimizer.tell(params, record.mean, feedback=self.feedback.of(record))
            self.usage = optimizer.usage
        finally:
            optimizer.close()

    def _baseline(self, method: str, number: int, log: OverallLog) -> None:
        self.progress.say(method)
        start = best_record(self.folder.records.get(WARMUP, []))
        done = list(self.folder.records[method])
        searcher = make_baseline(
            method,
            *self.task.box,
            self.evaluator.policy.n_parameters,
            stream(self.config.seed, "method", number),
            None if start is None else start.params,
        )
        for index in range(self.config.iterations):
            cpu = time.process_time()
            params = searcher.ask()
            if index < len(done):
                record = done[index]
                if not np.array_equal(params, record.params):
                    raise StorageError(
                        f"{method} does not propose again what it did before the interruption "
                        f"(at point {index}): its package or NumPy has changed since. Go on with "
                        "the versions in config.json, or start a new run"
                    )
            else:
                record = self._evaluate(method, index, params.tolist(), cpu, source=method)
                log.add(record)
            if record.mean is None:
                searcher.tell_failure(params, record.failure)
            else:
                searcher.tell(params, record.mean)

    def _finish(self) -> RunResult:
        results = tuple(self._result(m) for m in self.config.methods)
        table = format_table(results, self.config)
        path = self.folder.path
        write_text(path / "summary.json", json.dumps([asdict(r) for r in results], indent=2) + "\n")
        write_text(path / "summary.txt", table)
        warmup = self.folder.records.get(WARMUP, [])
        write_bytes(
            path / "learning_curve.png",
            learning_curve(
                {
                    r.label: [p.mean for p in [*warmup, *self.folder.records[r.method]]]
                    for r in results
                },
                warmup=len(warmup),
                title=f"{self.task.env_id}, linear policy, seed {self.config.seed}",
                episodes=self.config.episodes,
                heldout={r.label: r.heldout for r in results},
            ),
        )
        scored = [r for r in results if r.selection is not None]
        best = max(scored, key=lambda r: r.selection or 0.0, default=None)
        if self.config.gif and best is not None:
            self._render(best)
        return RunResult(path, results, best, table)

    def _result(self, method: str) -> MethodResult:
        records = [*self.folder.records.get(WARMUP, []), *self.folder.records[method]]
        best = best_record(records)
        heldout = self.folder.heldout.get(method)
        score = None if heldout is None else heldout.mean
        error = None
        if heldout is not None and score is not None and len(heldout.returns) > 1:
            error = float(np.std(heldout.returns, ddof=1) / np.sqrt(len(heldout.returns)))
        usage = self.usage if method == "llm" else Usage()
        return MethodResult(
            method=method,
            label=self.labels[method],
            selection=None if best is None else best.mean,
            heldout=score,
            heldout_error=error,
            episodes=sum(len(r.lengths) for r in records),
            steps=sum(sum(r.lengths) for r in records),
            requests=usage.requests,
            tokens=usage.prompt_tokens + usage.completion_tokens,
            seconds=sum(r.evaluation_seconds for r in records) + usage.seconds,
            fallback_share=usage.fallback_share if method == "llm" else None,
            failures=sum(r.mean is None for r in records),
            params=None if best is None else best.params,
        )

    def _render(self, best: MethodResult) -> None:
        """Draw the best policy; what goes wrong there is a warning, for the results stand."""
        try:
            picture = policy_gif(self.task, best.params, self.heldout_seeds[0])
        except Exception as error:
            warnings.warn(
                f"no GIF of the best policy: {self.task.env_id} could not be rendered "
                f"({type(error).__name__}: {error}). The results are complete; --no-gif leaves "
                "this out",
                stacklevel=2,
            )
            return
        write_bytes(self.folder.path / "best_policy.gif", picture)


class _Feedback:
    """What is told with the rewards, in a file of its own, so that a resumed run tells the same.

    Args:
        path: The file, made where there is feedback to tell.
        wanted: Whether there is.
    """

    def __init__(self, path: Path, wanted: bool) -> None:
        self._path = path if wanted else None
        self._log: EventLog | None = None
        self._texts: dict[tuple[str, int], str] = {}

    def __enter__(self) -> _Feedback:
        if self._path is not None:
            self._log = EventLog(self._path)
            for event in self._log.events:
                self._texts[event.get("method", ""), event.get("index", -1)] = event.get("text", "")
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._log is not None:
            self._log.close()

    def add(self, record: Record, text: str) -> None:
        if self._log is not None:
            event = {"event": "statistics", "method": record.method, "index": record.index}
            self._log.append({**event, "text": text})
            self._texts[record.method, record.index] = text

    def of(self, record: Record) -> str:
        """Return what is told with a record's reward; empty where nothing is known."""
        return self._texts.get((record.method, record.index), "")


class _Progress:
    """The progress bar, with each method's best so far."""

    def __init__(self, total: int, labels: Mapping[str, str], shown: bool) -> None:
        self._labels = labels
        self._best: dict[str, float] = {}
        self._bar: Any = None
        if shown:
            from tqdm import tqdm

            # Where no terminal rewrites the line, a line now and then is enough.
            quiet = 0.2 if sys.stderr.isatty() else 10
            self._bar = tqdm(
                total=total, unit="eval", desc="warm-up", mininterval=quiet, file=sys.stderr
            )

    def __enter__(self) -> _Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def say(self, what: str) -> None:
        if self._bar is not None:
            self._bar.set_description(what)

    def step(self, record: Record) -> None:
        mean = record.mean
        if mean is not None:
            self._best[record.method] = max(mean, self._best.get(record.method, mean))
        if self._bar is None:
            return
        warm = self._best.get(WARMUP)
        shown = []
        for method in self._labels:
            own = [b for b in (self._best.get(method), warm) if b is not None]
            if method in self._best or (method == record.method and own):
                shown.append(f"{method} {max(own):.1f}")
        if not shown and warm is not None:
            shown = [f"warm-up {warm:.1f}"]
        self._bar.set_postfix_str("best " + ", ".join(shown) if shown else "", refresh=False)
        self._bar.update()


def format_table(results: Sequence[MethodResult], config: RunConfig) -> str:
    """Return the results as a table of plain text."""
    head = (
        "method",
        f"best of {config.episodes}",
        f"held-out {config.heldout}",
        "episodes",
        "requests",
        "tokens",
        "seconds",
        "fallback",
    )
    rows = [head]
    for r in results:
        heldout = "failed" if r.heldout is None else f"{r.heldout:.2f}"
        if r.heldout is not None and r.heldout_error is not None:
            heldout += f" ± {r.heldout_error:.2f}"
        rows.append(
            (
                r.label,
                "all failed" if r.selection is None else f"{r.selection:.2f}",
                "-" if r.selection is None else heldout,
                f"{r.episodes:,}",
                f"{r.requests:,}" if r.fallback_share is not None else "-",
                f"{r.tokens:,}" if r.fallback_share is not None else "-",
                f"{r.seconds:.1f}",
                "-" if r.fallback_share is None else f"{100 * r.fallback_share:.1f} %",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = [
        "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "-" * max(map(len, lines)))
    lines.append("")
    lines.append(
        f"best of {config.episodes}: best mean return on the selection starts. "
        f"held-out {config.heldout}: mean return of that policy"
    )
    lines.append("on fresh starts, ± its standard error. Episodes and seconds include the warm-up.")
    failed = [f"{r.failures} of {r.label}" for r in results if r.failures]
    if failed:
        lines.append(f"Failed evaluations: {', '.join(failed)} (the reasons are in trials.jsonl).")
    return "\n".join(lines) + "\n"


def shown_decimals(low: float, high: float) -> int:
    """Decimals shown to the model: one for the published box, more for a narrower one."""
    return max(1, 2 - int(np.floor(np.log10(high - low))))


def prompt_description(task: Task, policy: LinearPolicy, prompt: str) -> str:
    """Return the task in words for a prompt, with the meaning of the policy's parameters.

    The prompts `_NUMERIC` do without the meaning, as published ProPS does.

    Args:
        task: What is searched.
        policy: Whose parameters are searched.
        prompt: The prompt's name or template.
    """
    if prompt in _NUMERIC or (prompt == "props-plus" and not task.description):
        return task.description
    return task.words(policy)


def _warmup_points(config: RunConfig, task: Task, n: int) -> list[WarmupPoint]:
    """Draw or load the shared warm-up points.

    Drawn points are normal with half the box's half-width as standard deviation, so N(0, 3)
    for the published box, clipped to it and rounded to the decimals that a prompt shows.
    """
    low, high = task.box
    if isinstance(config.warmup, int):
        rng = np.random.default_rng(stream(config.seed, "warmup"))
        drawn = rng.normal((low + high) / 2, (high - low) / 4, (config.warmup, n))
        rounded = np.clip(drawn.round(shown_decimals(low, high)), low, high)
        return [WarmupPoint(tuple(row)) for row in rounded.tolist()]
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
            "they are moved to its border and evaluated anew; --box LOW HIGH widens it",
            stacklevel=2,
        )
    return inside


def _model_and_prompt(
    config: RunConfig, client: Client | None = None
) -> tuple[Client | None, str, str]:
    """Return the client (none is needed for baselines alone), its name and the prompt's.

    Raises:
        LLMOptError: There is no such model or prompt.
    """
    if "llm" not in config.methods:
        return None, "baselines", "none"
    made = client is None
    client = get_client(config.model) if client is None else client
    name = config.prompt
    if name == "auto":
        name = default_prompt(client)
    prompt = get_prompt(name)
    if (
        made
        and isinstance(prompt, ColumnsPrompt | PatternPrompt)
        and isinstance(client, LocalClient)
    ):
        # What is left in the cache changes llama.cpp's rounding, so that a resumed run would
        # part from a whole one. Such a prompt changes near its beginning with every new elite:
        # the cache would serve next to nothing.
        client.sampling.update(cache_prompt=False, id_slot=0)
    return client, client_name(client), prompt.name


def _check_packages(config: RunConfig, progress: bool) -> None:
    needed = ["matplotlib", *(["tqdm"] if progress else [])]
    needed += ["cma"] if "cma" in config.methods else []
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise LLMOptError(
            f"this run needs {' and '.join(missing)}, not installed here: "
            'pip install "llmopt[bench]"'
        )


def _describe(
    config: RunConfig, task: Task, evaluator: Evaluator, model: str, prompt: str
) -> dict[str, Any]:
    """Return what ``config.json`` holds."""
    return {
        "run": asdict(config),
        "task": {
            **asdict(task),
            "parameters": evaluator.policy.n_parameters,
            "step_cap": evaluator.step_cap,
        },
        "model": model,
        "prompt": prompt,
        "selection_seeds": selection_seeds(config.seed, config.episodes),
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "llmopt": __version__}
    for name in _VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _check_same(config: RunConfig, path: Path) -> None:
    """Compare a configuration with that of the run in a folder.

    Raises:
        RunConfigError: They differ; the message says in what.
    """
    stored = read_config(path)
    before = RunConfig.from_dict(stored["run"])
    changed = [
        f"{f.name} (there {getattr(before, f.name)!r}, now {getattr(config, f.name)!r})"
        for f in fields(RunConfig)
        if f.name not in _MINOR and getattr(before, f.name) != getattr(config, f.name)
    ]
    if changed:
        raise RunConfigError(
            f"{path} holds a run with another configuration: {', '.join(changed)}. Give the same "
            "options to go on with it, or another folder to start a new run"
        )
    old, new = stored.get("versions", {}), _versions()
    moved = [f"{k} {old[k]} -> {new.get(k, 'none')}" for k in old if old[k] != new.get(k)]
    if moved:
        warnings.warn(
            f"{path} was begun with other versions ({', '.join(moved)}): what follows may not be "
            "what an uninterrupted run would have given",
            stacklevel=2,
        )


def _default_folder(config: RunConfig, model: str, prompt: str, resume: bool) -> Path:
    """Name the folder; with `resume`, the newest of that name if there is one."""
    parts = (config.task, model, prompt, f"seed{config.seed}")
    name = "-".join(re.sub(r"[^A-Za-z0-9._]+", "-", p).strip("-.") for p in parts)
    number = 1
    while not is_empty(_numbered(name, number)):
        number += 1
    return _numbered(name, number - 1 if resume and number > 1 else number)


def _numbered(name: str, number: int) -> Path:
    return Path("runs") / (name if number == 1 else f"{name}-{number}")


# -- command line -------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt run``. One that is not given is not in the namespace."""
    names = ", ".join(t.alias for t in TASKS)
    parser.argument_default = argparse.SUPPRESS
    parser.add_argument("task", metavar="TASK", help=f"{names}, or any Gymnasium id")
    add = parser.add_argument
    add("--model", metavar="M", help="model to ask (default: smollm2, the embedded one)")
    add(
        "--prompt",
        metavar="P",
        help=f"{', '.join(PROMPTS)}, or a template's path (default: auto, what suits the model)",
    )
    add("--iterations", type=int, metavar="N", help="evaluations of each method (default: 100)")
    add("--episodes", type=int, metavar="K", help="episodes of one evaluation (default: 5)")
    add("--seed", type=int, metavar="S", help="seed of everything random (default: 0)")
    add("--out", metavar="DIR", help="run folder (default: a new one in runs/)")
    add("--resume", action="store_true", help="go on with the run in the folder")
    add(
        "--warmup",
        type=_count_or_folder,
        metavar="N|DIR",
        help="points shared by all methods before the search, drawn or loaded (default: 20)",
    )
    add(
        "--bias",
        action=argparse.BooleanOptionalAction,
        help="policy with or without a bias (default: the task's)",
    )
    add(
        "--box",
        type=float,
        nargs=2,
        metavar=("LOW", "HIGH"),
        help="bounds of every parameter (default: -6 6)",
    )
    add(
        "--methods",
        nargs="+",
        metavar="METHOD",
        help=f"which to run (default: {' '.join(METHODS)})",
    )
    add("--description", metavar="TEXT", help="the task in words, for prompts that use it")
    add(
        "--statistics",
        action="store_true",
        help="tell the model what each policy did in its episodes; props, props-plus, props-critic "
        "and opro show it",
    )
    add("--heldout", type=int, metavar="H", help="fresh starts for the final score (default: 100)")
    add("--max-requests", type=int, metavar="N", help="stop after so many requests to the model")
    add("--max-tokens", type=int, metavar="N", help="stop after so many tokens")
    add("--max-cost", type=float, metavar="USD", help="stop after so many US dollars")
    add("--no-gif", dest="gif", action="store_false", help="do not render the best policy")


def _count_or_folder(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text


def main(args: argparse.Namespace) -> int:
    """Run the subcommand.

    Returns:
        0, or 130 after Ctrl-C.

    Raises:
        LLMOptError: See `run`.
    """
    given = dict(vars(args))
    out, resume = given.pop("out", None), given.pop("resume", False)
    for name in ("methods", "box"):
        if name in given:
            given[name] = tuple(given[name])
    config = RunConfig(**given)
    if resume:
        _, model, prompt = _model_and_prompt(config)
        if out is not None and is_empty(Path(out)):
            raise StorageError(
                f"--resume: {out} holds no run; give the folder of one, or leave --resume out to "
                "begin a run there"
            )
        out = Path(out) if out is not None else _default_folder(config, model, prompt, True)
        if not is_empty(out):  # what was not given is as it was
            stored = RunConfig.from_dict(read_config(out)["run"])
            config = replace(stored, **given)
    if not resume and "llm" in config.methods:
        from llmopt.benchmarks.run.estimate import estimate_run

        print(f"llmopt: {estimate_run(config).summary()}", file=sys.stderr)
    begun: list[Path] = []

    def announce(path: Path) -> None:
        begun.append(path)
        print(f"llmopt: writing to {path}", file=sys.stderr)

    def advice() -> str:
        command = ["llmopt", "run", config.task, "--resume", "--out", str(begun[0])]
        return f"everything so far is kept; go on with: {shlex.join(command)}"

    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            result = run(config, out, resume=resume, progress=True, announce=announce)
        except KeyboardInterrupt:
            if not begun:
                raise
            print(f"\nllmopt: stopped; {advice()}", file=sys.stderr)
            return 130
        except (LLMOptError, ImportError) as error:
            if not begun:
                raise
            raise LLMOptError(f"{error}; {advice()}") from error
    print(f"\n{config.task}, seed {config.seed}\n\n{result.table}")
    shown = "" if result.best is None else f"  (of {result.best.label})"
    for name, note in (
        ("learning_curve.png", ""),
        ("best_policy.gif", shown),
        ("trials.jsonl", ""),
    ):
        if (result.path / name).exists():
            print(f"  {result.path / name}{note}")
    return 0


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    from tqdm import tqdm

    tqdm.write(f"llmopt: warning: {' '.join(str(message).split())}", file=sys.stderr)
