"""``llmopt code``: a model writes a policy and improves it from feedback."""

from __future__ import annotations

import argparse
from typing import Any

from llmopt.benchmarks.code.common import (
    best_of,
    draw,
    finish,
    make_optimizer,
    say_solved,
    say_step,
    starts_of,
    telling_how_to_resume,
    until_a_cap,
)
from llmopt.benchmarks.code.folder import CodeRun
from llmopt.benchmarks.code.options import add_common, open_run
from llmopt.benchmarks.code.tasks import find_task
from llmopt.code.candidate import standard_error
from llmopt.code.language import FEEDBACK_KINDS
from llmopt.code.policy import PolicyScore, evaluate_policy, improve, policy_function

_DEFAULTS = {"episodes": 10, "feedback": list(FEEDBACK_KINDS)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt code``."""
    add_common(parser)
    parser.add_argument(
        "--episodes",
        type=int,
        metavar="K",
        help="starts that candidates are compared on (default: 10)",
    )
    parser.add_argument(
        "--feedback",
        nargs="*",
        choices=FEEDBACK_KINDS,
        metavar="KIND",
        help="language feedback on the steps that are told: r (reward), hp (good moves), hn (bad "
        "moves), fp (what the expert would do); for tasks that have it (default: all)",
    )


def main(args: argparse.Namespace) -> int:
    """Run the subcommand.

    Returns:
        0.

    Raises:
        LLMOptError: The task, the model or the folder is not usable.
    """
    run = open_run(args, "code", _DEFAULTS)
    with telling_how_to_resume(run):
        _search(run)
    return 0


def _search(run: CodeRun) -> None:
    config = run.config
    task = find_task(config["task"], config["seed"], config["feedback"])
    env = task.make(False)
    starts = starts_of(run, task, env)
    seeds = starts.selection(config["episodes"])
    function = policy_function(env, doc=task.doc)
    facts = (
        f"{function.name} is called once a step. Global names keep their values from call to call "
        "within an episode; the code is loaded anew before each episode. A returned number outside "
        "its bounds is moved to the bound before it acts and is charged. One call may take at most "
        f"{config['call_seconds']:g} s."
    )
    notes = f"{facts}\n\n{task.notes}".strip()
    with make_optimizer(run, task, function, task.scoring(len(seeds)), notes, starts) as optimizer:
        run.write_missing(optimizer.trials)

        def on_step(number: int, score: PolicyScore | None, words: str) -> None:
            if score is not None:
                run.write_candidate(
                    optimizer.trials[-1],
                    {
                        "mean_return": score.mean_return,
                        "success_rate": score.success_rate,
                        "episodes": len(score.episodes),
                    },
                )
            say_step(run, optimizer, number, words)

        best = best_of(optimizer)
        try:
            # A run that was resumed may have found it before it was stopped.
            if best is None or not task.solved(best.reward):
                with until_a_cap():
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
        finally:
            env.close()
        held_out = None
        best = best_of(optimizer)
        if best is not None:
            say_solved(task, optimizer, config["steps"])
            fresh = task.make(True)
            again = starts.held_out(config["held_out"])
            with optimizer.candidate(best) as candidate:
                score = evaluate_policy(
                    candidate, fresh, again, cap=task.cap, success=task.success, every=True
                )
                draw(run, task, candidate, again[0], candidate.reset)
            fresh.close()
            held_out = told_of(score)
        finish(run, optimizer, held_out)


def told_of(score: PolicyScore) -> dict[str, Any]:
    """Return what a policy is worth on fresh starts, for the folder and the last line.

    A failed episode has no return, so that a policy with one has no mean return.
    """
    mean, error = score.mean_return, standard_error(score.returns)
    told: dict[str, Any] = {
        "starts": len(score.episodes),
        "mean return": None if mean is None else round(mean, 4),
        "standard error": None if mean is None or error is None else round(error, 4),
        "success rate": score.success_rate,
    }
    if score.failed:
        told |= {"failed starts": len(score.failed), "failure": score.failure}
    return told
