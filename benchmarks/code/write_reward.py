"""``llmopt reward``: a model writes a reward function; a policy trained under it is judged."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
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
from llmopt.code.reward.sb3 import require_sb3, sb3_words, train_sb3
from llmopt.errors import LLMOptError, StorageError
from llmopt.policies.episode import mean_or_none, standard_error
from llmopt.policies.linear import LinearPolicy
from llmopt.util.text import short


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt reward``."""
    options.add_arguments(parser, "reward")


def main(args: argparse.Namespace) -> int:
    """Run the subcommand; return 0."""
    if args.task.startswith("metaworld:"):
        raise LLMOptError("llmopt reward takes Gymnasium ids; Meta-World is for llmopt code")
    run = options.open_run(args, "reward")
    with telling_how_to_resume(run):
        _search(run, trusted="trainer" in vars(args))
    return 0


def _names_of(trainings: Sequence[Training], made: set[str]) -> list[Any]:
    """Return the policies as they are written: numbers, or a file's name, which `made` gets."""
    found: list[Any] = []
    for training in trainings:
        policy: Any = training.policy
        if isinstance(policy, Path):
            policy = policy.name  # wherever the folder is moved to
            made.add(policy)
        found.append(policy)
    return found


def _search(run: CodeRun, trusted: bool) -> None:
    """Search, with `trusted` also where policies of an earlier process are pickles."""
    config = run.config
    made: set[str] = set()  # policies of this process
    task = find_task(config["task"], config["seed"])
    train: Callable[..., Training] = train_linear
    with gym.make(task.env_id) as env:
        starts = starts_of(run, task, env)
        seeds = starts.selection(config["episodes"])
        # What cannot be trained is found before a model is paid for rewards to train under.
        if config["trainer"] == "linear":
            require_linear(env)
            trained = linear_words(env, config["training"], task.cap)
        else:
            require_sb3(config["trainer"], env)
            trained = sb3_words(config["trainer"], config["training"], task.cap)
            train = partial(train_sb3, algorithm=config["trainer"], folder=run.path)
        function = reward_function(env, doc=task.doc)
    scoring = (
        f"A policy is trained under your reward, {config['trainings']} times from different seeds, "
        "and then judged without it: the score is the environment's own mean return (see below) "
        f"of these policies over {len(seeds)} random starts, the same for every reward; success "
        "breaks ties. The value of your reward itself counts for nothing."
        f"{task.ceiling()} The best reward's policies are judged in the end on fresh starts.\n"
        f"{trained}"
    )
    facts = (
        f"{function.name} is called for each step once the episode is over, in order. The code is "
        "loaded anew before each training. obs and next_obs are the observed numbers, action is "
        "what was done; info is a dict without the environment's own reward and success."
        if config["trainer"] == "linear"
        else f"{function.name} is called at each step."
    )
    notes = f"{facts}\n\n{task.notes}".strip()
    optimizer = make_optimizer(run, task, function, scoring, notes, starts)

    def on_step(
        number: int, trainings: Sequence[Training], judged: Sequence[PolicyScore], words: str
    ) -> None:
        if number >= 0:
            measures: dict[str, Any] = {}
            if judged:
                measures = {
                    "policies": _names_of(trainings, made),
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
            train=train,
            on_step=on_step,
            done=task.solved,
            seed=config["seed"],
            cap=task.cap,
        )

    def report(best: CodeTrial) -> dict[str, Any]:
        stored = run.read_candidate(best.number).get("policies") or []
        policies: list[Any] = stored if isinstance(stored, list) else [stored]
        if not policies:  # the run was killed between the score and the file
            given = {"episodes": config["training"], "cap": task.cap}
            with optimizer.candidate(best) as candidate, gym.make(task.env_id) as env:
                again = train_all(
                    candidate, env, train, config["trainings"], config["seed"], **given
                )
                policies = _names_of(again, made)
        fresh = starts.held_out(config["held_out"])
        judged = [
            judge(task.env_id, _readable(run, policy, made, trusted), fresh, task.cap)
            for policy in policies
        ]
        if config["trainer"] == "linear":
            at = max(range(len(judged)), key=lambda k: judged[k].rank)
            with gym.make(task.env_id) as env:
                act = LinearPolicy.for_env(env, clip=True).bind(policies[at])
                draw(run, task, act, fresh[0])
        return _told_of(judged)

    conduct(run, task, optimizer, search, report)


def _readable(run: CodeRun, policy: Any, made: set[str], trusted: bool) -> Any:
    """Return a policy as `judge` takes it."""
    if isinstance(policy, (list, tuple)) and all(
        isinstance(p, (int, float)) and abs(p) < 1e300 for p in policy
    ):
        return policy
    if not isinstance(policy, str):
        raise StorageError(f"{run.path} holds {short(policy)} as a policy: restore it from a copy")
    if not (policy in made or (trusted and Path(policy).name == policy)):
        raise LLMOptError(
            f"the best policy is the file {policy[:100]!r} in {run.path}: such files hold code, "
            "which runs when they are read. If this run is your own, give --trainer "
            f"{run.config['trainer']} again to read it"
        )
    return run.path / policy


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
