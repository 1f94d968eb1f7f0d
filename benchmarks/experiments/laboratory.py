"""Policies that a chat model designs with the laboratory, at the library's default settings.

Question: how good is the policy that a chat model recommends if it may compute, and what does the
search cost?

Protocol: at most ten evaluations of ten episodes, five of them random points before the model is
asked. Nothing is set but the seed. The recommended policy, and the first that the model designed,
are judged on 100 initial states that no search sees.

    python -m llmopt.benchmarks.experiments.laboratory --tasks hopper --seeds 31 \
        --model folder:DIR --name "a frontier chat model" --record RECORDINGS
    python -m llmopt.benchmarks.experiments.laboratory --tasks hopper --seeds 31 \
        --model replay:hopper-laboratory-31 --out /tmp/replayed.jsonl  # evaluates each point again

    python -m llmopt.benchmarks.experiments.laboratory --tasks T --methods agent --seeds 31 \
        --model DIR  # an empty folder in which a coding agent works, by TASK.md
    python -m llmopt.benchmarks.experiments.laboratory --tasks ferry dryer --methods cma \
        --evaluations 100 --seeds 1

The method ``agent`` is the rival with a shell (`llmopt.benchmarks.experiments.agent`), ``cma`` the
one without a model. ``code`` and ``code-python`` judge, on the same states, the best program of a
finished run of ``llmopt code``, in whose folder ``--model`` names it, without and with blocks of
Python:

    llmopt code llmopt.benchmarks.experiments.unseen:Dryer-v0 --steps 6 --held-out 30 --no-gif \
        --model replay:code-dryer-0 --out /tmp/dryer
    python -m llmopt.benchmarks.experiments.laboratory --tasks dryer --methods code --seeds 1 \
        --evaluations 6 --model /tmp/dryer

Runtime: the model's answers and its Python take nearly all of it.
"""

from __future__ import annotations

import contextlib
import functools
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import TimeLimit

from llmopt.benchmarks.engine.cell import Cell, Row
from llmopt.benchmarks.engine.lines import read_file
from llmopt.benchmarks.engine.search import Proposed, Result, search
from llmopt.benchmarks.experiments import words
from llmopt.benchmarks.experiments.agent import serve
from llmopt.benchmarks.experiments.command import Experiment, answering
from llmopt.benchmarks.experiments.unseen import Dryer, Ferry, Trawler, ZoneGrower
from llmopt.benchmarks.methods.baselines import CMA
from llmopt.client.scripted import ScriptedClient
from llmopt.code.candidate import Candidate
from llmopt.code.policy import evaluate_policy, policy_function
from llmopt.policies import PolicySearch
from llmopt.policies.episode_seeds import held_out_seeds
from llmopt.policies.evaluation import Evaluation
from llmopt.sandbox.sandbox import Sandbox, WorkerLimits
from llmopt.util.files import read_json_object

RESULTS = Path(__file__).parents[1] / "results" / "laboratory.jsonl"
EVALUATIONS, HELD_OUT = 10, 100
POLICIES = {
    "hopper": words.WordsTask("Hopper-v5"),
    "swimmer": words.WordsTask("Swimmer-v5"),
    "walker": words.WordsTask("Walker2d-v5"),
    "cheetah": words.WordsTask("HalfCheetah-v5"),
    "ferry": words.WordsTask(lambda: TimeLimit(Ferry(), 240)),
    "dryer": words.WordsTask(lambda: TimeLimit(Dryer(), 300)),
    "zone-grower": words.WordsTask(lambda: TimeLimit(ZoneGrower(), 300)),
    "trawler": words.WordsTask(lambda: TimeLimit(Trawler(), 350)),
}
_COUNTED = (
    "requests", "fallbacks", "rejected", "prompt_tokens", "completion_tokens", "blocks",
    "compute_seconds",
)  # fmt: skip


def run_cell(cell: Cell, source: str = "", record: Path | None = None) -> Row:
    """Run one search and return its line."""
    began, task = time.monotonic(), POLICIES[cell.task]
    if cell.method == "agent":
        return _run_agent(cell, source)
    if cell.method == "cma":
        return _run_cma(cell)
    if cell.method.startswith("code"):
        return _judge_code(cell, Path(source))
    with (
        answering(cell, source, record) as client,
        PolicySearch(task.env, client, seed=cell.seed, **task.options) as policies,
    ):
        policies.run(cell.evaluations)
        seconds = round(time.monotonic() - began, 1)
        trials, usage = policies.optimizer.trials, policies.optimizer.usage
        designs = [trial.params for trial in trials if trial.source == "llm"]
        held = policies.evaluate(HELD_OUT)
        first = policies.evaluate(HELD_OUT, designs[0]).mean if designs else None
        return cell.line(
            curve=[trial.reward for trial in trials],
            sources=[trial.source for trial in trials],
            best=policies.best.reward,
            params=policies.best.params,
            **_judged(held),
            held_out_first=first,
            **{name: getattr(usage, name) for name in _COUNTED},
            stopped=policies.stopped,
            seconds=seconds,
        )


def _run_agent(cell: Cell, folder: str) -> Row:
    """Serve a coding agent and judge its policy on the states that judge the search."""
    task = POLICIES[cell.task]
    with PolicySearch(
        task.env, ScriptedClient([]), "words", seed=cell.seed, **task.options
    ) as policies:
        curve, params, seconds = serve(policies, Path(folder), cell.evaluations)
        held = policies.evaluate(HELD_OUT, params)
        return cell.line(
            curve=curve,
            params=params,
            **_judged(held),
            seconds=round(seconds, 1),
        )


def _run_cma(cell: Cell) -> Row:
    """Search with CMA-ES, on the same initial states and in the same ranges."""
    began, task = time.monotonic(), POLICIES[cell.task]
    with PolicySearch(
        task.env, ScriptedClient([]), "words", seed=cell.seed, **task.options
    ) as policies:
        space = policies.optimizer.space
        points: list[tuple[float | None, Any]] = []

        def evaluate(asked: Proposed) -> Result:
            outcome, _ = policies.measure(asked.params)
            points.append((outcome.mean, asked.params))
            return Result(outcome.mean, "failed")

        method = words.InSpace(space, CMA(0.0, 1.0, len(space), cell.seed))
        search(method, cell.evaluations, evaluate)
        best, params = max((p for p in points if p[0] is not None), key=lambda p: p[0] or 0.0)
        return cell.line(
            curve=[value for value, _ in points],
            best=best,
            params=params,
            **_judged(policies.evaluate(HELD_OUT, params)),
            seconds=round(time.monotonic() - began, 1),
        )


def _judge_code(cell: Cell, folder: Path) -> Row:
    """Judge the best program of a run of ``llmopt code`` on the states that judge the others."""
    config = read_json_object(folder / "config.json")
    files = sorted((folder / "candidates").glob("*.json"))
    scores = [read_json_object(file)["score"] for file in files]
    best = max(range(len(files)), key=lambda i: (scores[i] is not None, scores[i]))
    source = files[best].with_suffix(".py").read_text(encoding="utf-8")
    with contextlib.closing(gym.make(config["task"])) as env:
        limits = WorkerLimits(call_seconds=config["call_seconds"])
        sandbox = functools.partial(Sandbox, limits)
        with Candidate(source, [policy_function(env)], sandbox) as candidate:
            seeds = held_out_seeds(cell.seed, HELD_OUT)
            score = evaluate_policy(candidate, env, seeds, every=True)
    lengths = tuple(episode.length for episode in score.episodes)
    events = read_file(folder / "search.jsonl")
    return cell.line(
        curve=scores,
        best=scores[best],
        **_judged(Evaluation(tuple(score.returns), lengths, score.failure)),
        requests=sum(event["event"] == "replied" for event in events),
        seconds=round(files[-1].stat().st_mtime - (folder / "starts.json").stat().st_mtime, 1),
    )


def _judged(held: Evaluation) -> Row:
    """Return the fields of a policy on the held-out states; those of two lines are paired."""
    returns = [float(f"{value:.7g}") for value in held.returns]
    return {
        "held_out": held.mean,
        "held_out_stderr": held.standard_error,
        "held_out_returns": returns,
    }


EXPERIMENT = Experiment(
    list(POLICIES),
    ("laboratory", "agent", "cma", "code", "code-python"),
    RESULTS,
    run_cell,
    lambda method: method != "cma",
    "curve",
    {"tasks": ["hopper"], "methods": ["laboratory"], "evaluations": EVALUATIONS},
    summary=lambda line: f"held-out {line['held_out']:.5g}",
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main(__doc__))
