"""``llmopt estimate``: what a run will ask for and cost, before anything is sent."""

from __future__ import annotations

import argparse
from dataclasses import replace

from llmopt.benchmarks.methods.model import parameter_space
from llmopt.benchmarks.run.config import RunConfig
from llmopt.benchmarks.runner import make_problem, usual_batch
from llmopt.client.base import Client
from llmopt.client.facts import model_facts
from llmopt.client.registry import get_client
from llmopt.commands.estimate import Estimate, estimate
from llmopt.commands.options import add_option_argument, take_options
from llmopt.errors import PromptTooLongError, SpaceError
from llmopt.policies.rollout import selection_seeds
from llmopt.prompt import ColumnsPrompt, PatternPrompt, get_prompt

_MANY_PARAMETERS = 1000


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
    add_option_argument(parser)


def main(args: argparse.Namespace) -> int:
    """Run the subcommand.

    Returns:
        0.

    Raises:
        LLMOptError: There is no such task, model or prompt.
        SpaceError: The policy has more parameters than a prompt can hold.
    """
    take_options(vars(args))
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
        SpaceError: The policy has more parameters than a prompt can hold.
    """
    task = config.get_task()
    env = task.make_env()
    try:
        policy = task.policy(env)
    finally:
        env.close()
    asked = get_client(config.model) if client is None else client
    prompt = model_facts(asked).default_prompt if config.prompt == "auto" else config.prompt
    shown = get_prompt(prompt)
    problem = make_problem(
        task,
        policy,
        config.iterations,
        (),
        shown,
        selection_seeds(config.seed, config.episodes or task.episodes),
    )
    batch = config.batch or usual_batch(shown)
    too_many = SpaceError(
        f"{task.env_id}: too many parameters for a linear policy, {policy.n_parameters:,}: no "
        "prompt holds them. Wrap the environment to observe fewer numbers, or leave the model "
        "out (--methods cma random)"
    )
    # Letters would fit, but their axes are the eigenvectors of a matrix of this size: minutes each.
    if policy.n_parameters > _MANY_PARAMETERS and isinstance(shown, PatternPrompt | ColumnsPrompt):
        raise too_many
    try:
        each = estimate(
            parameter_space(*task.box, policy.n_parameters, problem.names),
            asked,
            prompt,
            iterations=min(config.requests or config.iterations, config.iterations),
            # Points from a folder are counted as if they were the usual number.
            warmup=config.warmup if isinstance(config.warmup, int) else 20,
            description=problem.description,
        )
        # One request gives several points; the cost stays over-estimated.
        return replace(
            each,
            requests=-(-each.requests // batch),
            prompt_tokens=-(-each.prompt_tokens // batch),
            cacheable_tokens=each.cacheable_tokens // batch,
        )
    except PromptTooLongError as error:
        if policy.n_parameters < _MANY_PARAMETERS:
            raise
        raise too_many from error
