"""Environment steps per second: the fast rollouts against Gymnasium's own ways, and the limit.

Question: how much faster are `llmopt.benchmarks.tasks.fast`'s rollouts than plain Gymnasium, its
vector environments and envpool, and how near are they to the physics alone? Protocol: 20
linear policies on 20 starts each for MountainCarContinuous-v0, and 10 on 4 for Swimmer-v5, the
policies drawn from N(0, 3) in the published box; every way runs the same policies; the ways
take turns, so that whatever else the machine does meets them all, and each way's ratio to
plain Gymnasium is the median over the rounds. Plain Gymnasium is `Evaluator`, which makes its
environment without the passive checker, so that it is the fastest of its kind. Runtime: about
five minutes.

    python -m llmopt.benchmarks.experiments.rollout_speed --out rollout_speed.json

envpool takes part if it is installed; it needs no other package of this project. It draws its
own starts, and its physics are its own builds.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from llmopt.benchmarks.tasks.fast import FastEvaluator
from llmopt.benchmarks.tasks.table import Task, get_task
from llmopt.policies.linear import LinearPolicy
from llmopt.policies.rollout import Evaluator

TASKS = {"mountaincar": (20, 20), "swimmer": (10, 4)}
PACKAGES = ("gymnasium", "mujoco", "numpy", "envpool")

Way = Callable[[], int]
"""Runs the work once, or a share of it, and returns the steps made."""


def vector_env(vector: Any, policy: LinearPolicy, params: np.ndarray, steps: int) -> int:
    """Step every lane of a vector environment; those that end start again."""
    observed, _ = vector.reset()
    for _ in range(steps):
        observed = vector.step(policy.act_batch(params, observed))[0]
    return steps * len(params)


def fast(evaluator: FastEvaluator, params: np.ndarray, seeds: range) -> int:
    """Run all the work in one call."""
    return sum(sum(e.lengths) for e in evaluator.evaluate_batch(params, seeds))


def physics_alone(task: Task, params: np.ndarray) -> int:
    """Step MuJoCo with constant controls: no observation, no reward, no policy."""
    import mujoco

    env = task.make_env()
    env.reset(seed=0)
    inner: Any = env.unwrapped
    rng = np.random.default_rng(0)
    controls = rng.uniform(-1, 1, (1000, inner.model.nu))
    for control in controls:
        inner.data.ctrl[:] = control
        mujoco.mj_step(inner.model, inner.data, nstep=inner.frame_skip)
    return len(controls)


def rollout_with_zeros(task: Task, params: np.ndarray, seeds: range, threads: int) -> np.ndarray:
    """Swimmer in `mujoco.rollout`, with zeros for the solver's warm start.

    Returns:
        ``(n, k)`` returns.
    """
    import mujoco
    from mujoco import rollout

    env = task.make_env()
    inner: Any = env.unwrapped
    model, substeps, dt = inner.model, inner.frame_skip, inner.dt
    kind = mujoco.mjtState.mjSTATE_FULLPHYSICS
    size = mujoco.mj_stateSize(model, kind)
    starts = np.empty((len(seeds), size))
    for start, seed in zip(starts, seeds, strict=True):
        env.reset(seed=seed)
        mujoco.mj_getState(model, inner.data, start, kind)
    n = len(params) * len(seeds)
    state = np.tile(starts, (len(params), 1))
    weights, bias = (a.repeat(len(seeds), 0) for a in task.policy(env).unpack(params))
    models, data = [model] * n, [mujoco.MjData(model) for _ in range(threads)]
    warm, control = np.zeros((n, model.nv)), np.empty((n, substeps, model.nu))
    out, sensors = np.empty((n, substeps, size)), np.empty((n, substeps, 0))
    totals = np.zeros(n)
    with rollout.Rollout(nthread=threads) as pool:
        for _ in range(task.step_cap(env)):
            action = ((state[:, None, 3:] @ weights)[:, 0] + bias).astype(np.float32)
            control[:] = action[:, None]
            pool.rollout(
                models,
                data,
                state,
                control,
                nstep=substeps,
                skip_checks=True,
                initial_warmstart=warm,
                state=out,
                sensordata=sensors,
            )
            after = out[:, -1].copy()
            cost = np.float32(1e-4) * np.sum(np.square(action), axis=1)
            totals += (after[:, 1] - state[:, 1]) / dt - cost
            state = after
    return totals.reshape(len(params), len(seeds))


def ways(name: str, cores: int) -> Iterator[tuple[str, Way]]:
    """Yield every way to run a task, by name; plain Gymnasium first."""
    task = get_task(name)
    n, k = TASKS[name]
    seeds = range(k)
    plain = Evaluator(task)
    policy = plain.policy
    params = np.random.default_rng(0).normal(0, 3, (n, policy.n_parameters)).clip(-6, 6)
    few = params[: max(1, n // 10)]  # slow ways run a share of the work

    yield (
        "plain Gymnasium",
        lambda: sum(sum(plain.evaluate(p, seeds).lengths) for p in few),
    )
    lanes = params.repeat(k, 0)[:20]
    makers = [task.make_env] * len(lanes)
    sync = gym.vector.SyncVectorEnv(makers)
    yield "SyncVectorEnv, 20 environments", lambda: vector_env(sync, policy, lanes, 250)
    two = gym.vector.AsyncVectorEnv(makers[:cores])
    yield (
        f"AsyncVectorEnv, {cores} environments",
        lambda: vector_env(two, policy, lanes[:cores], 250),
    )
    twenty = gym.vector.AsyncVectorEnv(makers)
    yield "AsyncVectorEnv, 20 environments", lambda: vector_env(twenty, policy, lanes, 100)
    if find_spec("envpool") is not None:
        envpool: Any = importlib.import_module("envpool")
        for count, width in ((20, lanes), (n * k, params.repeat(k, 0))):
            pool = envpool.make_gymnasium(task.env_id, num_envs=count, num_threads=cores)
            rounds = max(20, 20_000 // count)
            yield (
                f"envpool, {count} environments, {cores} threads",
                partial(vector_env, pool, policy, width, rounds),
            )
    for workers in dict.fromkeys((1, cores)):
        evaluator = FastEvaluator(task, workers)
        yield (
            f"llmopt fast ({evaluator.engine})",
            partial(fast, evaluator, params, seeds),
        )
        if evaluator.engine == "numpy":
            break
    if name == "swimmer":
        yield "physics alone (mj_step), 1 core", lambda: physics_alone(task, params)
        yield (
            f"mujoco.rollout with a zero warm start (not exact), {cores} cores",
            lambda: (rollout_with_zeros(task, params, seeds, cores), 1000 * n * k)[1],
        )


def measure(name: str, cores: int, rounds: int) -> dict[str, Any]:
    """Time every way of one task in turns."""
    runs = dict(ways(name, cores))
    speeds: dict[str, list[float]] = {way: [] for way in runs}
    for number in range(rounds + 1):
        for way, run in runs.items():
            started = time.perf_counter()
            steps = run()
            if number:  # the first round only warms up
                speeds[way].append(steps / (time.perf_counter() - started))
    reference = speeds["plain Gymnasium"]
    rows = []
    for way, found in speeds.items():
        ratios = [s / r for s, r in zip(found, reference, strict=True)]
        rows.append(
            {
                "way": way,
                "steps_per_second": round(statistics.median(found)),
                "best": round(max(found)),
                "ratio": round(statistics.median(ratios), 2),
                "ratio_quartiles": np.quantile(ratios, [0.25, 0.75]).round(2).tolist(),
            }
        )
        print(
            f"{name:12} {way:62} {rows[-1]['steps_per_second']:>10,} steps/s, "
            f"{rows[-1]['ratio']:>6.2f} x [{rows[-1]['ratio_quartiles'][0]:.2f}, "
            f"{rows[-1]['ratio_quartiles'][1]:.2f}], best {rows[-1]['best']:>10,}",
            flush=True,
        )
    return {"task": get_task(name).env_id, "policies_x_starts": TASKS[name], "rows": rows}


def exactness(policies: int = 40) -> dict[str, Any]:
    """Count the Swimmer-v5 returns that `mujoco.rollout` with a zero warm start gets exactly."""
    task = get_task("swimmer")
    with FastEvaluator(task) as evaluator:
        n = evaluator.policy.n_parameters
        params = np.random.default_rng(1).normal(0, 3, (policies, n)).clip(-6, 6)
        exact = np.array([e.returns for e in evaluator.evaluate_batch(params, range(2))])
    other = rollout_with_zeros(task, params, range(2), 1)
    found = {
        "episodes": exact.size,
        "equal": int((exact == other).sum()),
        "largest_difference": float(np.abs(exact - other).max()),
    }
    print(f"mujoco.rollout with a zero warm start on Swimmer-v5: {found}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    before = os.getloadavg()[0]
    tasks = [measure(name, cores, args.rounds) for name in args.tasks]
    record = {
        "cores": cores,
        "load_before": round(before, 1),
        "load_after": round(os.getloadavg()[0], 1),
        "rounds": args.rounds,
        "python": platform.python_version(),
        "packages": {p: metadata.version(p) for p in PACKAGES if find_spec(p) is not None},
        "tasks": tasks,
        "mujoco_rollout_with_zero_warm_start": exactness(),
    }
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
