"""``llmopt reward``: a model writes a reward function; a policy trained under it is judged."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym

from llmopt.code.commands.code_run import CodeRun
from llmopt.code.commands.common import (
    add_common,
    finish,
    make_optimizer,
    open_run,
    say_step,
    telling_how_to_resume,
    until_a_cap,
)
from llmopt.code.reward.judge import GOAL_TASKS, Judgement, judge
from llmopt.code.reward.reward import (
    Training,
    improve_reward,
    require_linear,
    reward_function,
    train_linear,
)
from llmopt.code.reward.sb3 import ALGORITHMS, require_sb3, train_sb3
from llmopt.code.tasks.table import find_task
from llmopt.errors import LLMOptError

_DEFAULTS = {"episodes": 10, "training": 200, "trainer": "linear"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt reward``."""
    add_common(parser)
    add = parser.add_argument
    add(
        "--episodes", type=int, metavar="K", help="starts that policies are judged on (default: 10)"
    )
    add("--training", type=int, metavar="N", help="episodes of training (default: 200)")
    add(
        "--trainer",
        choices=("linear", *ALGORITHMS),
        help="a linear policy by CMA-ES (default), or an algorithm of stable-baselines3",
    )


def main(args: argparse.Namespace) -> int:
    """Run the subcommand.

    Returns:
        0.

    Raises:
        LLMOptError: The task, the model or the folder is not usable.
    """
    if args.task.startswith("metaworld:"):
        raise LLMOptError("llmopt reward takes Gymnasium ids; Meta-World is for llmopt code")
    run = open_run(args, "reward", _DEFAULTS)
    with telling_how_to_resume(run):
        _search(run, trusted="trainer" in vars(args))
    return 0


def _search(run: CodeRun, trusted: bool) -> None:
    """Search, with `trusted` also where policies of an earlier process are pickles."""
    config = run.config
    made: set[str] = set()  # policies of this process
    task = find_task(config["task"], config["seed"])
    train: Callable[..., Training] = train_linear
    with gym.make(task.env_id) as env:
        # What cannot be trained is found before a model is paid for rewards to train under.
        if config["trainer"] == "linear":
            require_linear(env)
        else:
            require_sb3(config["trainer"], env)
            train = partial(train_sb3, algorithm=config["trainer"], folder=run.path)
        function = reward_function(env, doc=task.doc)
    with make_optimizer(run, task, function) as optimizer:
        run.write_missing(optimizer.trials)

        def on_step(
            number: int, training: Training | None, judgement: Judgement | None, words: str
        ) -> None:
            if number >= 0:
                measures: dict[str, Any] = {}
                if training is not None and judgement is not None:
                    policy: Any = training.policy
                    if isinstance(policy, Path):
                        policy = policy.name  # in the folder, wherever that is moved to
                        made.add(policy)
                    measures = {
                        "policy": policy,
                        "mean_return": judgement.mean_return,
                        "success_rate": judgement.success_rate,
                        "components": training.components,
                    }
                run.write_candidate(optimizer.trials[-1], measures)
            say_step(run, optimizer, number, words)

        with until_a_cap():
            improve_reward(
                optimizer,
                task.env_id,
                config["steps"],
                seeds=[2 * k for k in range(config["episodes"])],
                episodes=config["training"],
                measure="success" if task.env_id in GOAL_TASKS else "return",
                train=train,
                on_step=on_step,
                seed=config["seed"],
            )
        held_out = None
        best = optimizer.best
        if best is not None:
            policy: Any = run.read_candidate(best.number).get("policy")
            if policy is None:  # the run was killed between the score and the file
                with optimizer.candidate(best) as candidate, gym.make(task.env_id) as env:
                    policy = train(
                        candidate, env, episodes=config["training"], seed=config["seed"]
                    ).policy
            starts = [2 * k + 1 for k in range(config["held_out"])]
            if isinstance(policy, Path):
                policy = policy.name
                made.add(policy)
            if isinstance(policy, str):
                if not (policy in made or (trusted and Path(policy).name == policy)):
                    raise LLMOptError(
                        f"the best policy is the file {policy[:100]!r} in {run.path}: such files "
                        "hold code, which runs when they are read. If this run is your own, give "
                        f"--trainer {config['trainer']} again to read it"
                    )
                policy = run.path / policy
            result = judge(task.env_id, policy, starts)
            held_out = {
                "starts": len(starts),
                "mean return": round(result.mean_return, 4),
                "success rate": result.success_rate,
            }
        finish(run, optimizer, held_out)
