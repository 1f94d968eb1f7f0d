"""Cost of running a model's code confined, against plain Python.

Question: what does confinement add to a call of a policy, to a whole rollout, and to a
reward over an episode? Protocol: the same source runs in this process and in a worker, in
turn; of the repeats the least is given, since what else the machine does only adds to a
time. Runtime: about ten seconds.

    python -m llmopt.benchmarks.experiments.code_overhead --out code_overhead.json
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from llmopt.code.candidate import Candidate
from llmopt.code.policy import policy_function, run_episode
from llmopt.code.reward.reward import reward_function
from llmopt.code.sandbox.sandbox import Sandbox

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
CAR = "MountainCarContinuous-v0"


def plain(source: str) -> dict[str, Any]:
    """Load a source in this process: it is this file's own, and trusted."""
    namespace: dict[str, Any] = {"np": np}
    exec(compile(source, "<trusted>", "exec"), namespace)
    return namespace


def measure(jobs: dict[str, Callable[[], Any]], repeats: int, inner: int = 1) -> dict[str, float]:
    """Return the least microseconds of each job, run in turn."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, job in jobs.items():
            start = time.perf_counter()
            for _ in range(inner):
                job()
            times[name].append((time.perf_counter() - start) / inner * 1e6)
    return {name: min(values) for name, values in times.items()}


def main() -> None:
    """Measure, print a table of microseconds and ratios, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=40)
    args = parser.parse_args()
    env = gym.make(CAR)
    observation = env.reset(seed=1)[0].astype(np.float64)
    controller = plain(POLICY)["controller"]
    rows: dict[str, dict[str, float]] = {}

    starts = []
    for _ in range(5):
        start = time.perf_counter()
        with Sandbox() as box:
            box.start()
            starts.append((time.perf_counter() - start) * 1e6)
    rows["start of a worker"] = {"confined": min(starts)}

    function = policy_function(env)
    with Candidate(POLICY, [function], Sandbox) as candidate:
        candidate.check()
        raw = candidate._ready().call
        rows["one call"] = measure(
            {
                "plain": lambda: controller(observation),
                "confined": lambda: raw("controller", observation),
                "confined, result checked": lambda: candidate(observation),
            },
            args.repeats,
            inner=300,
        )

        rows["rollout of 200 steps"] = measure(
            {
                "plain": lambda: run_episode(controller, env, 1, 200),
                "confined, a message a step": lambda: run_episode(candidate, env, 1, 200),
            },
            args.repeats,
        )

    reward = plain(REWARD)["reward"]
    states = np.random.default_rng(0).uniform(-0.1, 0.1, (1001, 2))
    actions = np.zeros((1000, 1))
    infos: list[dict[str, Any]] = [{}] * 1000
    columns = (states[:-1], actions, states[1:], infos)
    with Candidate(REWARD, [reward_function(env)], Sandbox) as candidate:
        candidate.check()
        rows["reward over 1,000 steps"] = measure(
            {
                "plain": lambda: [reward(*row) for row in zip(*columns, strict=True)],
                "confined, one message": lambda: candidate.call_columns("reward", columns),
            },
            args.repeats,
        )
    env.close()
    for title, row in rows.items():
        base = row.get("plain")
        for name, value in row.items():
            ratio = f"{value / base:7.2f} x plain" if base else ""
            print(f"{title:24} {name:30} {value:10.1f} us {ratio}", flush=True)
    if args.out:
        record = {"python": platform.python_version(), "machine": platform.machine(), "rows": rows}
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
