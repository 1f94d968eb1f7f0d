"""``llmopt reward``: a model writes a reward function; a policy trained under it is judged."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import gymnasium as gym

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
from llmopt.code.policy import PolicyScore
from llmopt.code.reward.reward import (
    Training,
    improve_reward,
    judge,
    linear_words,
    require_linear,
    reward_function,
    train_all,
    train_linear,
)
from llmopt.errors import LLMOptError
from llmopt.policies.episode import mean_or_none, standard_error
from llmopt.policies.linear import LinearPolicy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt reward``."""
    options.add_arguments(parser, "reward")


def main(args: argparse.Namespace) -> int:
    """Run the subcommand; return 0."""
    if args.task.startswith("metaworld:"):
        raise LLMOptError("llmopt reward takes Gymnasium ids; Meta-World is for llmopt code")
    run = options.open_run(args, "reward")
    with telling_how_to_resume(run):
        _search(run)
    return 0


def _search(run: CodeRun) -> None:
    config = run.config
    trained: dict[int, list[Any]] = {}  # the policies of each candidate of this process
    task = find_task(config["task"], config["seed"])
    with gym.make(task.env_id) as env:
        starts = starts_of(run, task, env)
        seeds = starts.selection(config["episodes"])
        # What cannot be trained is found before a model is paid for rewards to train under.
        require_linear(env)
        training_words = linear_words(env, config["training"], task.cap)
        function = reward_function(env, doc=task.doc)
    scoring = (
        f"A policy is trained under your reward, {config['trainings']} times from different seeds, "
        "and then judged without it: the score is the environment's own mean return (see below) "
        f"of these policies over {len(seeds)} random starts, the same for every reward; success "
        "breaks ties. The value of your reward itself counts for nothing."
        f"{task.ceiling()} The best reward's policies are judged in the end on fresh starts.\n"
        f"{training_words}"
    )
    facts = (
        f"{function.name} is called for each step once the episode is over, in order. The code is "
        "loaded anew before each training. obs and next_obs are the observed numbers, action is "
        "what was done; info is a dict without the environment's own reward and success."
    )
    notes = f"{facts}\n\n{task.notes}".strip()
    optimizer = make_optimizer(run, task, function, scoring, notes, starts)

    def on_step(
        number: int, trainings: Sequence[Training], judged: Sequence[PolicyScore], words: str
    ) -> None:
        if number >= 0:
            measures: dict[str, Any] = {}
            if judged:
                policies = trained[number] = [training.policy for training in trainings]
                measures = {
                    "policies": policies,
                    "mean_return": mean_or_none(j.mean_return for j in judged),
                    "success_rate": statistics.fmean(j.success_rate or 0.0 for j in judged),
                    "curves": [training.returns for training in trainings],
                    "components": [training.components for training in trainings],
                }
            run.write_candidate(optimizer.trials[-1], measures)
        say_step(run, optimizer, number, words)

    def search() -> None:
        improve_reward(
            optimizer,
            task.env_id,
            config["steps"],
            seeds=seeds,
            episodes=config["training"],
            trainings=config["trainings"],
            train=train_linear,
            on_step=on_step,
            done=task.solved,
            seed=config["seed"],
            cap=task.cap,
        )

    def report(best: CodeTrial) -> dict[str, Any]:
        policies = trained.get(best.number)
        if policies is None:  # of an earlier process
            given = {"episodes": config["training"], "cap": task.cap}
            with optimizer.candidate(best) as candidate, gym.make(task.env_id) as env:
                again = train_all(
                    candidate, env, train_linear, config["trainings"], config["seed"], **given
                )
            policies = [training.policy for training in again]
        fresh = starts.held_out(config["held_out"])
        judged = [judge(task.env_id, policy, fresh, task.cap) for policy in policies]
        at = max(range(len(judged)), key=lambda k: judged[k].rank)
        with gym.make(task.env_id) as env:
            act = LinearPolicy.for_env(env, clip=True).bind(policies[at])
            draw(run, task, act, fresh[0])
        return _told_of(judged)

    conduct(run, task, optimizer, search, report)


def _told_of(judged: Sequence[PolicyScore]) -> dict[str, Any]:
    """Return the score of the best reward's policies on held-out initial states."""
    failures = [j.failure for j in judged if j.failure]
    return held_out_of(
        {"starts": len(judged[0].episodes), "trainings": len(judged)},
        mean_or_none(j.mean_return for j in judged),
        standard_error([j.mean_return for j in judged if j.mean_return is not None]),
        statistics.fmean(j.success_rate or 0.0 for j in judged),
        {"failed trainings": len(failures), "failure": failures[0]} if failures else {},
    )
