"""``llmopt estimate``: what a run will ask for and cost, before anything is sent."""

from __future__ import annotations

import argparse

import numpy as np
from gymnasium import spaces

from llmopt.benchmarks.run.main import RunConfig, prompt_description, shown_decimals
from llmopt.benchmarks.tasks.table import get_task
from llmopt.client.base import Client
from llmopt.client.registry import get_client
from llmopt.commands.estimate import Estimate, estimate
from llmopt.space import Space


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt estimate``."""
    default = RunConfig("mountaincar")
    parser.add_argument("task", metavar="TASK", help="a task of `llmopt run`")
    parser.add_argument("--model", metavar="M", default=default.model, help="model string")
    parser.add_argument("--prompt", metavar="P", default=default.prompt, help="prompt's name")
    parser.add_argument(
        "--iterations", type=int, metavar="N", default=default.iterations, help="proposals"
    )
    parser.add_argument(
        "--warmup", type=int, metavar="N", default=20, help="points before the first proposal"
    )
    parser.add_argument("--bias", action=argparse.BooleanOptionalAction, help="as for `run`")
    parser.add_argument("--box", type=float, nargs=2, metavar=("LOW", "HIGH"), help="as for `run`")


def main(args: argparse.Namespace) -> int:
    """Run the subcommand.

    Returns:
        0.

    Raises:
        LLMOptError: There is no such task, model or prompt.
    """
    config = RunConfig(
        args.task,
        model=args.model,
        prompt=args.prompt,
        iterations=args.iterations,
        warmup=args.warmup,
        bias=args.bias,
        box=tuple(args.box) if args.box else None,
    )
    print(estimate_run(config).summary())
    return 0


def estimate_run(config: RunConfig, client: Client | None = None) -> Estimate:
    """Estimate what ``llmopt run`` will ask its model for.

    Args:
        config: The run.
        client: The model, in place of the one that ``config.model`` names.

    Raises:
        LLMOptError: There is no such task, model or prompt.
    """
    task = get_task(config.task, bias=config.bias, box=config.box, description=config.description)
    env = task.make_env()
    try:
        policy = task.policy(env)
    finally:
        env.close()
    low, high = task.box
    box = spaces.Box(low, high, (policy.n_parameters,), dtype=np.float64)
    return estimate(
        Space.from_gymnasium(box, decimals=shown_decimals(low, high)),
        get_client(config.model) if client is None else client,
        config.prompt,
        iterations=config.iterations,
        # Points from a folder are counted as if they were the usual number.
        warmup=config.warmup if isinstance(config.warmup, int) else 20,
        description=prompt_description(task, policy, config.prompt),
    )
