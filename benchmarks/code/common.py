"""Set-up, messages and final evaluation, shared by ``llmopt code`` and ``llmopt reward``."""

from __future__ import annotations

import contextlib
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import gymnasium as gym

from llmopt.benchmarks.code.folder import STARTS, CodeRun, read_starts
from llmopt.benchmarks.code.tasks import CodeTask
from llmopt.benchmarks.engine.asking import Announced
from llmopt.benchmarks.engine.folder_settings import resume_command
from llmopt.client.base import Client, Request, check_ready, client_name
from llmopt.client.model_facts import model_facts
from llmopt.client.model_string import get_client, split_options
from llmopt.client.recordings import RecordClient
from llmopt.code.candidate import CodeTrial, rank
from llmopt.code.checks import Function
from llmopt.code.code_optimizer import CodeOptimizer
from llmopt.code.secret_seeds import Starts
from llmopt.errors import BudgetExceededError, LLMOptError
from llmopt.policies.picture import policy_gif
from llmopt.sandbox.sandbox import WorkerLimits, require_confinement
from llmopt.util.files import (
    check_new_recording,
    make_folder,
    write_bytes_atomically,
    write_json_atomically,
)
from llmopt.util.text import clean, cut, first_line

_OF_THE_SEARCH = (
    *("description", "initial", "attempts", "temperature", "max_output_tokens", "seed"),
    *("compute", "allow_unsandboxed", "max_requests", "max_tokens", "max_cost"),
)
"""Settings that are arguments of `CodeOptimizer`, too."""
_LEAST_PARAMETERS = 1_000_000_000
"""A model with fewer weights is warned of."""


def make_optimizer(
    run: CodeRun,
    task: CodeTask,
    function: Function,
    scoring: str,
    documentation: str,
    starts: Starts,
) -> CodeOptimizer:
    """Make the search of a run, or resume it.

    The folder is made when all that can be wrong with the arguments was looked for. `scoring` says
    what the score is and is not, `documentation` what else there is to know.
    """
    config = run.config
    if not config.get("model"):
        raise LLMOptError(
            f"llmopt {config['command']} needs a model that can write code, which the embedded "
            "one cannot: give --model, such as openai:gpt-6-luna or ollama:qwen2.5-coder "
            "(`llmopt models` lists those within reach)"
        )
    client = get_client(config["model"])
    check_ready(client)
    client = _recorded(client, config["record"], begun=run.search.exists())
    facts = model_facts(client)
    if not facts.reads_text:
        raise LLMOptError(
            f"{config['model']} is numeric-only and writes no code: give --model a chat model, "
            "such as openai:gpt-6-luna or ollama:qwen2.5-coder"
        )
    search: dict[str, Any] = {name: config[name] for name in _OF_THE_SEARCH} | {
        "objective": task.objective,
        "scoring": scoring,
        "documentation": documentation,
        "limits": WorkerLimits(call_seconds=config["call_seconds"]),
    }
    if facts.parameters is not None and facts.parameters < _LEAST_PARAMETERS:
        warnings.warn(
            f"{facts.name} has {facts.parameters / 1e6:,.0f} million weights, too few to write "
            "code: expect answers that cannot be used",
            stacklevel=2,
        )
    if search["max_output_tokens"] is None:
        context = facts.context_tokens
        search["max_output_tokens"] = min(16_000, (context or 64_000) // 4)
    require_confinement(config["allow_unsandboxed"])
    if config["initial"] and not run.search.exists():
        with CodeOptimizer(function, client=client, **search) as trial:
            trial.ask_initial()
    client = Announced(client, partial(_announce, client_name(client)))
    say(f"run folder: {run.path}")
    make_folder(run.path, "give another --out")
    optimizer = CodeOptimizer(function, client=client, storage=run.search, **search)
    run.begin(starts)
    if config["record"] is not None:  # what plays it again needs the same starts
        write_json_atomically(beside_recording(config["record"]), starts.to_dict())
    return optimizer


def starts_of(run: CodeRun, task: CodeTask, env: gym.Env[Any, Any]) -> Starts:
    """Return the starts of a run: its own, those it was given, or new ones that `env` takes."""
    if run.resumed:
        starts = run.read_starts()
        if starts.secret is None and not task.numbered:
            warnings.warn(
                f"{run.path} was begun on the numbered starts 0, 2, 4, ...: code that its sender "
                "wrote may plan on them. Begin another run for scores to rely on",
                stacklevel=2,
            )
        return starts
    if run.given_starts is not None:
        return run.given_starts
    model, _ = split_options(str(run.config.get("model") or ""))
    if model.lower().startswith("replay:"):
        file = beside_recording(model.partition(":")[2])
        return read_starts(file) if file.exists() else Starts(None)
    return Starts(None) if task.numbered else Starts.draw(run.config["seed"]).fit(env)


def beside_recording(path: str) -> Path:
    """Return the file beside a recording that holds the starts that it was made on."""
    return Path(f"{path}.{STARTS}")


def _announce(name: str, number: int, request: Request) -> None:
    """Say before a request that it is sent: an answer may take minutes."""
    if number:
        again = ", a repair" if len(request.messages) > 1 else ""
        say(f"request {number}{again}: {name} is asked")


def _recorded(client: Client, record: str | None, begun: bool) -> Client:
    """Return a client that writes down what it says, if that was asked for."""
    if record is None:
        return client
    path = Path(record)
    check_new_recording(path, begun)
    return RecordClient(client, path)


@contextlib.contextmanager
def telling_how_to_resume(run: CodeRun) -> Iterator[None]:
    """Name the command that resumes a run after an error or Ctrl-C."""
    try:
        yield
    except (KeyboardInterrupt, LLMOptError) as error:
        if (run.path / "config.json").exists():
            say_how_to_resume(run, error)
        raise


def say_how_to_resume(run: CodeRun, error: BaseException) -> None:
    """Print the command that resumes a run, which the error ended."""
    command = resume_command(run.config["command"], run.config, run.path, error)
    say(f"llmopt: to go on: {command}", sys.stderr)


def conduct(
    run: CodeRun,
    task: CodeTask,
    optimizer: CodeOptimizer,
    improve: Callable[[], object],
    report: Callable[[CodeTrial], Mapping[str, Any]],
    fault: Callable[[CodeTrial], str] = lambda trial: "",
) -> None:
    """Search until the budget is used up, score the best on held-out initial states, and finish.

    `fault` says why a candidate fails on further initial states, empty if it does not: such a
    candidate is not recommended, and the next best takes its place.
    """
    capped: BudgetExceededError | None = None
    with optimizer:
        run.write_missing(optimizer.trials)
        best = best_of(optimizer)
        # A run that was resumed may have found it before it was stopped.
        if best is None or not task.solved(best.reward):
            try:
                improve()
            except BudgetExceededError as stop:
                say(f"stopped: {stop}")
                capped = stop
            if optimizer.stop_reason:
                say(f"stopped: {optimizer.stop_reason}")
        held_out = None
        passed_over = False
        for best in rank(optimizer.trials, optimizer.direction):
            if why := fault(best):
                say(f"try {best.number} fails on further initial states: {first_line(why)}")
                passed_over = True
                continue
            say_solved(task, optimizer, run.config["steps"])
            held_out = dict(report(best))
            if passed_over:
                held_out["try"] = best.number
            break
        finish(run, optimizer, held_out)
    if capped is not None:
        say_how_to_resume(run, capped)


def held_out_of(
    counts: Mapping[str, int],
    mean: float | None,
    error: float | None,
    rate: float | None,
    failed: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the score of the best on held-out initial states, for the folder and the last line.

    A failed episode has no return, so that a policy with one has no mean return.
    """
    return {
        **counts,
        "mean return": None if mean is None else round(mean, 4),
        "standard error": None if mean is None or error is None else round(error, 4),
        "success rate": rate,
        **failed,
    }


def best_of(optimizer: CodeOptimizer) -> CodeTrial | None:
    """Return the best trial, or ``None`` before the first score."""
    return next(iter(rank(optimizer.trials, optimizer.direction)), None)


def say_step(run: CodeRun, optimizer: CodeOptimizer, number: int, words: str) -> None:
    """Print one line on a step."""
    done, total = optimizer.tried, run.config["steps"]
    first = cut((words.splitlines() or [""])[0], 120)
    if number < 0:
        say(f"[{done}/{total}] no usable code: {first}")
        return
    trial = optimizer.trials[-1]
    best = best_of(optimizer)
    score = "failed" if trial.reward is None else f"{trial.reward:.4g}"
    leader = f", best {best.reward:.4g}" if best is not None else ""
    name = f"try {number}" if trial.origin == "llm" else "the code to begin from"
    say(f"[{done}/{total}] {name}: {score}{leader}; {first}")


def say_solved(task: CodeTask, optimizer: CodeOptimizer, steps: int) -> None:
    """Say so where the best score is the highest there can be."""
    best = best_of(optimizer)
    if best is not None and task.solved(best.reward):
        left = steps - optimizer.tried
        say(
            f"solved: try {best.number} has the highest possible score, {task.highest:g}; "
            f"{left} tries are left over"
        )


class _Begun(gym.Wrapper[Any, Any, Any, Any]):
    """Calls a function before each episode."""

    def __init__(self, env: gym.Env[Any, Any], begin: Callable[[], None]) -> None:
        super().__init__(env)
        self._begin = begin

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self._begin()
        return self.env.reset(**options)


def draw(
    run: CodeRun,
    task: CodeTask,
    act: Callable[[Any], Any],
    seed: int,
    begin: Callable[[], None] = lambda: None,
) -> None:
    """Write ``best.gif``, one episode of a policy; a line says why where that cannot be."""
    if not run.config["gif"] or task.draw is None:
        return
    try:
        with contextlib.closing(task.draw()) as env:
            picture = policy_gif(_Begun(env, begin), act, seed, task.cap)
    except Exception as error:  # of graphics drivers: a picture must not cost a finished run
        say(f"no picture of the best policy ({type(error).__name__}: {first_line(error)})")
        return
    write_bytes_atomically(run.path / "best.gif", picture)


def finish(run: CodeRun, optimizer: CodeOptimizer, held_out: Mapping[str, Any] | None) -> None:
    """Write the held-out score, and print a summary."""
    if held_out is not None:
        run.write_held_out(held_out)
    usage = optimizer.usage
    blocks = f", {usage.blocks} blocks of Python in {usage.compute_seconds:.0f} s"
    say(
        f"{len(optimizer.trials)} candidates, {usage.requests} requests, "
        f"{usage.prompt_tokens} + {usage.completion_tokens} tokens, "
        f"{sum(usage.rejected.values())} answers sent back{blocks * (usage.blocks > 0)}"
    )
    if held_out is not None:
        told = {k: v for k, v in held_out.items() if v is not None}  # no rate where none is known
        if "mean return" not in told:
            told = {"no mean return": "as it failed", **told}
        say("held out: " + ", ".join(f"{k} {v}" for k, v in told.items()))
    else:
        say("no candidate was scored")
    say(f"report: {shlex.join(['llmopt', 'report', str(run.path)])}")


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a text: what a model, its code or an environment says in it may be anything."""
    print(clean(text), file=stream or sys.stdout, flush=True)
