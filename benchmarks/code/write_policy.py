"""``llmopt code``: a model writes a policy and improves it from feedback."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

from llmopt.benchmarks.code import options
from llmopt.benchmarks.code.common import (
    conduct,
    draw,
    held_out_of,
    make_optimizer,
    say_step,
    starts_of,
    telling_how_to_resume,
)
from llmopt.benchmarks.code.folder import CodeRun
from llmopt.benchmarks.code.tasks import find_task
from llmopt.code.candidate import CodeTrial
from llmopt.code.policy import PolicyScore, evaluate_policy, improve, policy_function
from llmopt.policies.episode import standard_error

_FURTHER = 5  # initial states on which the best program must not fail before it is recommended


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt code``."""
    options.add_arguments(parser, "code")


def main(args: argparse.Namespace) -> int:
    """Run the subcommand; return 0."""
    run = options.open_run(args, "code")
    with telling_how_to_resume(run):
        _search(run)
    return 0


def _search(run: CodeRun) -> None:
    config = run.config
    task = find_task(config["task"], config["seed"])
    env = task.make(False)
    starts = starts_of(run, task, env)
    seeds = starts.selection(config["episodes"])
    function = policy_function(env, doc=task.doc)
    facts = (
        f"{function.name} is called once a step. Global names keep their values from call to call "
        "within an episode; the code is loaded anew before each episode. A returned number outside "
        "its bounds is moved to the bound before it acts and is charged."
    )
    notes = f"{facts}\n\n{task.notes}".strip()
    optimizer = make_optimizer(run, task, function, task.scoring(len(seeds)), notes, starts)

    def on_step(number: int, score: PolicyScore | None, words: str) -> None:
        if score is not None:
            measures = {"mean_return": score.mean_return, "success_rate": score.success_rate}
            measures["episodes"] = len(score.episodes)
            run.write_candidate(optimizer.trials[-1], measures)
        say_step(run, optimizer, number, words)

    def search() -> None:
        improve(
            optimizer,
            env,
            seeds,
            config["steps"],
            measure=task.score,
            samples=task.samples,
            done=lambda score: task.solved(task.score(score)[0]),
            on_step=on_step,
            cap=task.cap,
            success=task.success,
            statistics=task.statistics,
        )

    def fault(trial: CodeTrial) -> str:
        further = starts.selection(len(seeds) + _FURTHER)[len(seeds) :]
        with contextlib.closing(task.make(False)) as env, optimizer.candidate(trial) as candidate:
            return evaluate_policy(candidate, env, further, cap=task.cap).failure

    def report(best: CodeTrial) -> dict[str, Any]:
        again = starts.held_out(config["held_out"])
        with contextlib.closing(task.make(True)) as fresh, optimizer.candidate(best) as candidate:
            score = evaluate_policy(
                candidate, fresh, again, cap=task.cap, success=task.success, every=True
            )
            draw(run, task, candidate, again[0], candidate.reset)
        return told_of(score)

    with contextlib.closing(env):
        conduct(run, task, optimizer, search, report, fault)


def told_of(score: PolicyScore) -> dict[str, Any]:
    """Return a policy's score on held-out initial states."""
    failed = {"failed starts": len(score.failed), "failure": score.failure} if score.failed else {}
    return held_out_of(
        {"starts": len(score.episodes)},
        score.mean_return,
        standard_error(score.returns),
        score.success_rate,
        failed,
    )
