"""``llmopt estimate``: what a run will ask for and cost, before anything is sent."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from llmopt.benchmarks.engine.asking import (
    FEEDBACK_PROMPTS,
    WORDS,
    episode_statistics,
    make_problem,
    prompt_name,
    usual_batch,
)
from llmopt.benchmarks.methods.model import parameter_space
from llmopt.benchmarks.run.command import add_config_options, config_of
from llmopt.benchmarks.run.config import RunConfig
from llmopt.benchmarks.tasks.fast import FastEvaluator
from llmopt.benchmarks.tasks.table import Task
from llmopt.client.base import Client
from llmopt.client.model_facts import model_facts
from llmopt.client.model_string import get_client
from llmopt.commands.estimate import Estimate, estimate
from llmopt.errors import PromptTooLongError, SpaceError
from llmopt.lab.blocks import why_not
from llmopt.policies.episode_seeds import selection_seeds
from llmopt.prompt import ColumnsPrompt, get_prompt

_MORE = 0.15  # of the words on a random policy, that there are on a designed one
_MANY_PARAMETERS = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llmopt estimate``: the search options of ``llmopt run``."""
    parser.argument_default = argparse.SUPPRESS
    parser.add_argument("task", metavar="TASK", help="a task of `llmopt run`")
    add_config_options(parser)


def main(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    print(estimate_run(RunConfig(**config_of(vars(args)))).summary())
    return 0


def estimate_run(config: RunConfig, client: Client | None = None) -> Estimate:
    """Estimate what ``llmopt run`` will ask its model for."""
    task = config.get_task()
    with contextlib.closing(task.make_env()) as env:
        policy = task.policy(env)
    asked = get_client(config.model) if client is None else client
    prompt = model_facts(asked).default_prompt if config.prompt == "auto" else config.prompt
    shown = get_prompt(prompt)
    seeds = selection_seeds(config.seed, config.episodes or task.episodes)
    problem = make_problem(task, policy, config.iterations, (), shown, seeds)
    batch = config.batch or usual_batch(shown)
    told = config.statistics
    if told is None:
        told = prompt_name(shown) in FEEDBACK_PROMPTS
    too_many = SpaceError(
        f"{task.env_id}: too many parameters for a linear policy, {policy.n_parameters:,}: no "
        "prompt holds them. Wrap the environment to observe fewer numbers, or leave the model "
        "out (--methods cma random)"
    )
    # Letters would fit, but their axes are the eigenvectors of a matrix of this size: minutes each.
    if policy.n_parameters > _MANY_PARAMETERS and isinstance(shown, ColumnsPrompt):
        raise too_many
    try:
        each = estimate(
            parameter_space(*task.box, policy.n_parameters, problem.names),
            asked,
            prompt,
            iterations=config.iterations,
            # Points from a folder are counted as if they were the usual number.
            warmup=config.warmup if isinstance(config.warmup, int) else 20,
            description=problem.description,
            compute=not why_not(asked, shown) if config.compute == "auto" else config.compute,
            feedback=_feedback(task, config, seeds, prompt_name(shown) == WORDS) if told else "",
        )
        # One request gives several points; the cost stays over-estimated.
        return replace(
            each,
            evaluations=config.iterations,
            requests=-(-each.requests // batch),
            blocks=each.blocks // batch,
            prompt_tokens=-(-each.prompt_tokens // batch),
            cacheable_tokens=each.cacheable_tokens // batch,
        )
    except PromptTooLongError as error:
        if policy.n_parameters < _MANY_PARAMETERS:
            raise
        raise too_many from error


def _feedback(task: Task, config: RunConfig, seeds: Sequence[int], named: bool) -> str:
    """Return the report of a random policy, which is evaluated for it, and other texts.

    Of a policy that a model designed there is more to tell: its oscillation, its peaks.
    """
    with FastEvaluator(task) as evaluator:
        policy = evaluator.policy
        watcher = episode_statistics(task, policy, seeds, named=named)
        params = np.random.default_rng(config.seed).uniform(*task.box, policy.n_parameters)
        text = watcher.text(evaluator.evaluate(params, seeds, watch=watcher))
    return text + "\n" + text[: int(_MORE * len(text))]
