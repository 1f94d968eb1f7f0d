"""What llmopt costs beside the model: of `ask` and `tell`, of a study, of confined code.

Question and protocol, by part:

- ``ask``: `ask()` and `tell()` with a history of 10 to 10,000 trials of 8 parameters, for each
  shipped prompt with the whole history in it or its default selection; a scripted model answers at
  once, and the median of repeated calls is given;
- ``optuna``: a study of 1,000 trials of 5 floats in memory, whole, beside Optuna's samplers; the
  samplers run by turns, so that a busy moment of the machine does not fall on one alone;
- ``code``: one source in this process and in a worker, in turn: a call of a policy, a rollout, a
  reward over an episode; the least of the repeats is given, since what else the machine does only
  adds to a time.

    python -m llmopt.benchmarks.experiments.overhead ask optuna code

Each part writes ``benchmarks/results/PART_overhead.json``. Runtime: two minutes for ``ask``, five
for ``optuna``, ten seconds for ``code``.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from llmopt import Completion, Float, LLMOptimizer, Reply, Request, ScriptedClient, get_prompt

RESULTS = Path(__file__).parents[1] / "results"
LENGTHS = (10, 100, 1_000, 10_000)
PROMPTS: dict[str, tuple[str, dict[str, Any]]] = {
    "props, whole history": ("props", {"history": "all"}),
    "words, 12 best and 6 latest": ("words", {}),
    "opro, 20 best": ("opro", {}),
}
Row = dict[str, Any]


def scripted(n: int, request: Request) -> Reply:
    """Answer at once with a point of `n` parameters that depends on the request's seed."""
    rng = np.random.default_rng(request.seed)
    values = ", ".join(f"p{i}: {v:.4f}" for i, v in enumerate(rng.uniform(-5, 5, n)))
    text = f"Hypothesis: more of it\nProposal:\n{values}" if "# How to" in request.text else values
    return Reply((Completion(text),) * request.n)


def timed(jobs: dict[str, Callable[[], Any]], repeats: int, inner: int = 1) -> dict[str, Any]:
    """Return the seconds of each run of each job; the jobs run by turns."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, job in jobs.items():
            start = time.perf_counter()
            for _ in range(inner):
                job()
            times[name].append((time.perf_counter() - start) / inner)
    return times


def ask(repeats: int = 30) -> list[Row]:
    """Return the milliseconds of one `ask` and one `tell`, by prompt and length."""
    return [
        {"prompt": label, "trials": length, **_ask(prompt, options, length, repeats)}
        for label, (prompt, options) in PROMPTS.items()
        for length in LENGTHS
    ]


def _ask(prompt: str, options: dict[str, Any], length: int, repeats: int) -> Row:
    rng = np.random.default_rng(0)
    space = {f"p{i}": Float(-6.0, 6.0) for i in range(8)}
    client = ScriptedClient(partial(scripted, 8))
    optimizer = LLMOptimizer(space, client, get_prompt(prompt, **options), warmup=0, seed=0)
    for _ in range(length):
        point = dict(zip(space, rng.uniform(-6, 6, 8).tolist(), strict=True))
        optimizer.tell(point, float(rng.normal()))
    asked: list[Any] = []
    jobs = {
        "ask": lambda: asked.append(optimizer.ask()),
        "tell": lambda: optimizer.tell(asked[-1], float(rng.normal())),
    }
    times = timed(jobs, repeats)
    found = {f"{name}_ms": 1e3 * median(values) for name, values in times.items()}
    return {**found, "fallback_share": optimizer.usage.fallback_share}


def optuna(trials: int = 1_000, repeats: int = 1) -> list[Row]:
    """Return the seconds of a study with each sampler, beside two of Optuna's."""
    import optuna

    from llmopt.adapters.optuna import LLMSampler

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    samplers: dict[str, Callable[[], Any]] = {
        "RandomSampler": lambda: optuna.samplers.RandomSampler(seed=0),
        "TPESampler": lambda: optuna.samplers.TPESampler(seed=0),
    }
    for name in ("props", "opro"):
        client = ScriptedClient(partial(scripted, 5))
        samplers[f"LLMSampler, {name}"] = partial(LLMSampler, client, prompt=name, seed=0)

    def objective(trial: optuna.Trial) -> float:
        return float(sum(trial.suggest_float(f"p{i}", -5, 5) ** 2 for i in range(5)))

    def study(make: Callable[[], Any]) -> None:
        optuna.create_study(sampler=make()).optimize(objective, n_trials=trials)

    times = timed({name: partial(study, make) for name, make in samplers.items()}, repeats)
    least = {f"times_{n[:-7].lower()}": median(times[n]) for n in ("RandomSampler", "TPESampler")}
    return [
        {
            "sampler": name,
            "seconds": [round(t, 3) for t in own],
            **{ratio: round(median(own) / base, 2) for ratio, base in least.items()},
        }
        for name, own in times.items()
    ]


POLICY = """
def controller(obs):
    a, b = obs[0], obs[1]
    return [min(1.0, max(-1.0, 40.0 * b + 0.01 * a * 0.0))]
"""
REWARD = """
def reward(obs, action, next_obs, info):
    gain = float(next_obs[1]) ** 2 - float(obs[1]) ** 2
    cost = -0.1 * float(action[0]) ** 2
    return gain + cost, {"gain": gain, "cost": cost}
"""


def code(repeats: int = 40) -> dict[str, dict[str, float]]:
    """Return the least microseconds of each job in this process and in a worker."""
    import gymnasium as gym

    from llmopt.code.candidate import Candidate
    from llmopt.code.policy import policy_function, run_episode
    from llmopt.code.reward.reward import reward_function
    from llmopt.code.sandbox.sandbox import Sandbox

    plain: dict[str, Any] = {"np": np}
    exec(compile(POLICY + REWARD, "<trusted>", "exec"), plain)  # this file's own
    env = gym.make("MountainCarContinuous-v0")
    seen = env.reset(seed=1)[0].astype(np.float64)

    def least(jobs: dict[str, Callable[[], Any]], inner: int = 1) -> dict[str, float]:
        return {name: 1e6 * min(t) for name, t in timed(jobs, repeats, inner).items()}

    def start() -> None:
        with Sandbox() as box:
            box.start()

    rows = {"start of a worker": {"confined": 1e6 * min(timed({"": start}, 5)[""])}}
    with Candidate(POLICY, [policy_function(env)], Sandbox) as candidate:
        candidate.check()
        raw = candidate._ready().call
        calls = {
            "plain": lambda: plain["controller"](seen),
            "confined": lambda: raw("controller", seen),
            "confined, result checked": lambda: candidate(seen),
        }
        rows["one call"] = least(calls, inner=300)
        rollouts = {
            "plain": lambda: run_episode(plain["controller"], env, 1, 200),
            "confined, a message a step": lambda: run_episode(candidate, env, 1, 200),
        }
        rows["rollout of 200 steps"] = least(rollouts)
    states = np.random.default_rng(0).uniform(-0.1, 0.1, (1001, 2))
    columns = (states[:-1], np.zeros((1000, 1)), states[1:], [dict[str, Any]()] * 1000)
    with Candidate(REWARD, [reward_function(env)], Sandbox) as candidate:
        candidate.check()
        rewards: dict[str, Callable[[], Any]] = {
            "plain": lambda: [plain["reward"](*row) for row in zip(*columns, strict=True)],
            "confined, one message": lambda: candidate.call_columns("reward", columns),
        }
        rows["reward over 1,000 steps"] = least(rewards)
    env.close()
    return rows


PARTS: dict[str, Callable[[], Any]] = {"ask": ask, "optuna": optuna, "code": code}


def main() -> None:
    """Measure the parts that the command line names, and write what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder")
    args = parser.parse_args()
    for part in args.parts:
        record = {"python": platform.python_version(), "rows": PARTS[part]()}
        text = json.dumps(record, indent=1)
        print(text)
        (args.out / f"{part}_overhead.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
