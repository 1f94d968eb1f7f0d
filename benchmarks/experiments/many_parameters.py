"""Many parameters: what is lost by asking for a part of the lines of `columns`?

Question: with more than 20 parameters the prompt asks for at most 20 lines (8 where one point is
asked for) and draws the other parameters from its frame. What does that cost or give, beside asking
for all lines, and beside as many lines picked at random? Protocol: the 24 functions of BBOB in 40
dimensions, and two linear policies (HalfCheetah-v5 of 200 steps, 108 parameters; Pusher-v5, 161;
actions clipped, box [-1, 1], the mean of three starts, which are equal for all of a seed); 20
uniform warm-up points, then 100 evaluations, four points a request. The small network stands in the
model's place (``--model smollm2`` asks the model). An arm is named by its most lines.

    python -m llmopt.benchmarks.experiments.many_parameters --seeds 2
    python -m llmopt.benchmarks.experiments.many_parameters --time smollm2

Each search is a line of ``many_parameters.jsonl`` and is not run again. The second command says how
long the model takes for a proposal of 20, 40 and 200 parameters, asked for a part of the lines and
for all, on one thread.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import flatdim

from llmopt.benchmarks.experiments.bbob import BATCH, FUNCTIONS, Instance, model_client
from llmopt.benchmarks.experiments.bbob_page import WARMUP
from llmopt.benchmarks.methods.grammar_clients import GaussianGrammarClient, NetworkClient
from llmopt.benchmarks.methods.model import ModelMethod
from llmopt.benchmarks.methods.protocol import Problem
from llmopt.benchmarks.pool import cell_reader, run_pool
from llmopt.benchmarks.report.stats import paired_test
from llmopt.prompt import Query, Situation
from llmopt.prompt.columns import ColumnsPrompt
from llmopt.search.eventlog import EventLog, read_events

RESULTS = Path(__file__).parents[1] / "results" / "many_parameters.jsonl"
BUDGET, DIMENSION = 100, 40
POLICIES = {"HalfCheetah-v5": 200, "Pusher-v5": 100}
PROBLEMS = (*(f"f{number}" for number in FUNCTIONS), *POLICIES)
FUNCTION_NAMES = frozenset(PROBLEMS[: len(FUNCTIONS)])
ARMS = ("all", "20", "10", "20 at random", "10 at random", "Gaussian")


@dataclass(frozen=True)
class ManyCell:
    """One search."""

    arm: str
    problem: str
    seed: int
    model: str = ""


class AtRandom(ColumnsPrompt):
    """The slope's line, and others at random: is the choice of lines worth anything?"""

    def prepare(self, situation: Situation) -> Query:
        self._rng = np.random.default_rng([situation.seed, situation.iteration])
        return super().prepare(situation)

    def _asked(self, rows: np.ndarray, leading: int | None, samples: int) -> list[int]:
        order = self._rng.permutation(rows.shape[1])
        first = [] if leading is None else [leading]
        others = [int(i) for i in order if i != leading]
        return sorted([*first, *others][: self.most_lines])


def prompt_of(arm: str) -> ColumnsPrompt:
    """Return the prompt of an arm."""
    if arm in ("all", "Gaussian"):
        return ColumnsPrompt(most_lines=None)
    kind = AtRandom if arm.endswith("random") else ColumnsPrompt
    return kind(most_lines=int(arm.split()[0]))


def problem_of(name: str, seed: int) -> tuple[Callable[[np.ndarray], float], int, float]:
    """Return a problem's reward, its number of parameters, and the half of its box."""
    if name in POLICIES:
        env = gymnasium.wrappers.ClipAction(gymnasium.make(name, max_episode_steps=POLICIES[name]))
        inputs, outputs = (flatdim(s) for s in (env.observation_space, env.action_space))
        return functools.partial(_mean_return, env, seed), (inputs + 1) * outputs, 1.0
    function = Instance(int(name[1:]), 101 + seed, DIMENSION)
    return lambda x: -function(x), DIMENSION, 5.0


def _mean_return(env: Any, seed: int, x: np.ndarray) -> float:
    weights = np.asarray(x).reshape(-1, env.action_space.shape[0])
    total = 0.0
    for start in range(3):
        seen, ended = env.reset(seed=1000 * seed + start)[0], False
        while not ended:
            seen, reward, over, cut, _ = env.step(seen @ weights[:-1] + weights[-1])
            total, ended = total + float(reward), over or cut
    return total / 3


def run_cell(cell: ManyCell) -> dict[str, Any]:
    """Run one search and return its line."""
    reward, n, half = problem_of(cell.problem, cell.seed)
    key = [PROBLEMS.index(cell.problem), cell.seed]
    points = np.random.default_rng(key).uniform(-half, half, (WARMUP, n))
    warmup = tuple((tuple(x.tolist()), reward(x)) for x in points)
    client: Any = model_client(cell.model) if cell.model else NetworkClient()
    if cell.arm == "Gaussian":
        client = GaussianGrammarClient()
    problem = Problem(-half, half, n, BUDGET, warmup)
    start, rewards = time.perf_counter(), [r for _, r in warmup if r is not None]
    method = ModelMethod(problem, client, prompt_of(cell.arm), np.random.SeedSequence(key), BATCH)
    for _ in range(BUDGET):
        point = method.ask()
        rewards.append(reward(point))
        method.tell(point, rewards[-1])
    seconds = round(time.perf_counter() - start, 1)
    return {**asdict(cell), "best": float(f"{max(rewards):.6g}"), "seconds": seconds}


def make_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the Markdown table: each arm beside asking for all lines."""
    best = {(r["problem"], r["seed"], r["model"], r["arm"]): r["best"] for r in lines}
    rows = ["| arm | model | problems | better than all lines in | p |", "|" + " --- |" * 5]
    groups = {"BBOB, 40-D": PROBLEMS[: len(FUNCTIONS)], **{p: (p,) for p in POLICIES}}
    for model, arm, (name, members) in itertools.product(
        sorted({r["model"] for r in lines}), ARMS[1:], groups.items()
    ):
        gains = []
        for problem, seed, of, this in best:
            rival = best.get((problem, seed, of, "all"))
            if problem in members and (of, this) == (model, arm) and rival is not None:
                own = best[problem, seed, of, this]
                # Functions differ by orders of magnitude: their logarithms are compared.
                gains.append(np.log(-rival / -own) if problem in FUNCTION_NAMES else own - rival)
        if gains:
            won = f"{sum(g > 0 for g in gains)} of {len(gains)}"
            p = f"{paired_test(gains):.2g}"
            rows.append(f"| {arm} | {model or 'small network'} | {name} | {won} | {p} |")
    return "\n".join(rows)


def seconds_of_a_proposal(model: str, n: int, batch: int, arm: str) -> tuple[float, float]:
    """Return the seconds and CPU seconds of one of `batch` proposals of `n` parameters.

    Args:
        model: Model string.
        n: Parameters.
        batch: Points of a request.
        arm: ``"all"`` for all lines, ``""`` for as many as the prompt asks for by itself.
    """
    prompt = prompt_of(arm) if arm else ColumnsPrompt()
    points = np.random.default_rng(0).uniform(-1, 1, (60, n))
    warmup = tuple((tuple(x.tolist()), -float(x @ x)) for x in points)
    problem = Problem(-1, 1, n, 2 * batch, warmup)
    client = model_client(model)
    method = ModelMethod(problem, client, prompt, np.random.SeedSequence(0), batch)
    for _ in range(2):  # the first request loads the model
        start, used = time.perf_counter(), time.process_time()
        for _ in range(batch):
            point = method.ask()
            method.tell(point, -float(point @ point))
    return (time.perf_counter() - start) / batch, (time.process_time() - used) / batch


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=PROBLEMS)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--model", default="", help="model string; the small network without")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--time", metavar="MODEL", help="only say how long a proposal takes")
    parser.add_argument("--table-only", action="store_true")
    args = parser.parse_args(argv)
    if args.time:
        for n, (batch, arm) in itertools.product((20, 40, 200), ((4, ""), (1, ""), (4, "all"))):
            seconds, cpu = seconds_of_a_proposal(args.time, n, batch, arm)
            text = f"{seconds:.2f} s, {cpu:.2f} s of CPU a proposal"
            print(f"{n} parameters, {batch} a request, {arm or 'a part'}: {text}", flush=True)
        return
    if not args.table_only:
        grid = itertools.product(range(args.seeds), args.problems, args.arms)
        cells = [ManyCell(arm, problem, seed, args.model) for seed, problem, arm in grid]
        run_pool(cells, run_cell, EventLog(args.results), cell_reader(ManyCell), jobs=args.jobs)
    print(make_table(list(read_events(args.results))))


if __name__ == "__main__":
    main()
