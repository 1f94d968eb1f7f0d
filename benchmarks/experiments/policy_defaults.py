"""Which defaults of `PolicySearch` suit a numeric-only model.

Question: with which range of the weights, how many random policies first, sampled how, and with
scaled observations or raw ones, does the small network find better policies than random search?

Protocol: 60 evaluations a search; the best policy by its own initial states is scored on 10
held-out ones, and medians over the seeds are compared. The defaults were chosen on `CHOOSING`
(systems of this project, and Gymnasium's with other physics); the table is of `REPORTED`
(Gymnasium's classic-control and MuJoCo tasks as they are). An evaluation has two initial states (in
the choosing three, and 20 held-out ones), and an episode of some tasks fewer steps than usual
(`STEPS`), the same for all arms. Arms:

- ``before``: the former default: raw observations, ten random policies from the inner part of the
  ranges; ``advice``: what the documentation recommended instead, ``wrappers="usual", box=2``;
- ``after``: `PolicySearch` with nothing set; ``random``: 60 random policies of ``before``;
  ``random-after``: 60 of ``after``;
- ``inner-N``, ``mixed-N``: N random policies first, from the inner part of the ranges, or each from
  a part whose reach is itself random, log-uniform between the inner part and the whole range;
  ``scaled-N``: as ``advice``, with N random policies first.

    python -m llmopt.benchmarks.experiments.policy_defaults --methods inner-20 --seeds 0 1 2
    python -m llmopt.benchmarks.experiments.policy_defaults --tasks CartPole-v1 --methods after
    python -m llmopt.benchmarks.experiments.policy_defaults --table

The committed lines hold 15 seeds of a reported task (Ant 8, the humanoids none).

Runtime: two seconds to two minutes a search.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np

from llmopt.benchmarks.engine.cell import Cell, Line
from llmopt.benchmarks.experiments.command import Experiment
from llmopt.benchmarks.experiments.design import POLICIES
from llmopt.benchmarks.report.table import Table
from llmopt.policies import PolicySearch
from llmopt.space import Float

RESULTS = Path(__file__).parents[1] / "results" / "policy_defaults.jsonl"
STARTS, HELD_OUT, EVALUATIONS = 2, 10, 60
LABELS = ("before", "advice", "after", "random", "random-after")
CANDIDATES = tuple(f"{how}-{n}" for how in ("inner", "mixed", "scaled") for n in (10, 20, 30, 60))
ARMS = (*LABELS, *CANDIDATES)
_OLD: dict[str, Any] = {"wrappers": (), "box": 10.0}


def changed(name: str, **physics: float) -> gym.Env[Any, Any]:
    """Make an environment with other physics: attributes of it, or factors of its MuJoCo model."""
    env = gym.make(name, disable_env_checker=True)
    bare: Any = env.unwrapped
    for attribute, value in physics.items():
        if hasattr(bare, "model"):
            holder = bare.model.opt if hasattr(bare.model.opt, attribute) else bare.model
            setattr(holder, attribute, getattr(holder, attribute) * value)
        else:
            setattr(bare, attribute, value)
    return env


_CHANGED: dict[str, tuple[str, dict[str, float]]] = {
    "heavy-pole": ("CartPole-v1", {"masspole": 0.5, "length": 1.0, "force_mag": 6.0}),
    "weak-pendulum": ("Pendulum-v1", {"g": 5.0, "max_torque": 1.5}),
    "thick-swimmer": ("Swimmer-v5", {"viscosity": 3.0, "body_mass": 2.0}),
    "moon-hopper": ("Hopper-v5", {"gravity": 0.4, "body_mass": 1.5}),
    "weak-cheetah": ("HalfCheetah-v5", {"actuator_gear": 0.6, "gravity": 0.7}),
    "slow-reacher": ("Reacher-v5", {"dof_damping": 3.0, "actuator_gear": 0.5}),
    "light-walker": ("Walker2d-v5", {"gravity": 0.6, "body_mass": 0.7}),
}
CHOOSING: dict[str, str | Callable[[], gym.Env[Any, Any]]] = {
    **{name: POLICIES[name].env for name in ("zones", "cascade", "heavy-car", "fermenter")},
    **{name: partial(changed, env, **physics) for name, (env, physics) in _CHANGED.items()},
}
REPORTED = (
    *("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"),
    *("InvertedPendulum-v5", "InvertedDoublePendulum-v5", "Reacher-v5", "Swimmer-v5", "Hopper-v5"),
    *("Walker2d-v5", "HalfCheetah-v5", "Ant-v5", "Pusher-v5", "Humanoid-v5", "HumanoidStandup-v5"),
)
STEPS = {
    **{name: 300 for name in ("thick-swimmer", "moon-hopper", "weak-cheetah", "light-walker")},
    **{name: 100 for name in REPORTED if name.endswith("-v5")},
    "Acrobot-v1": 300,
}


def sampled(space: Any, how: str, count: int, seed: int) -> list[dict[str, float]]:
    """Return random policies of a space whose ranges reach ten times the inner part."""
    rng = np.random.default_rng([zlib.crc32(b"policies"), seed])
    low, high = (np.array([getattr(d, end) for d in space.dimensions]) for end in ("low", "high"))
    inner = min(1.0, np.sqrt(3 / max(1, _inputs(space))) / 10)
    points = []
    for _ in range(count):
        reach = inner if how == "inner" else float(np.exp(rng.uniform(np.log(inner), 0)))
        values = rng.uniform(low * reach, high * reach)
        points.append(dict(zip(space.names, map(float, values), strict=True)))
    return points


def _inputs(space: Any) -> int:
    outputs = {name.partition("<-")[0] for name in space.names}
    return len(space.names) // len(outputs)


def run_cell(cell: Cell, source: str = "", record: Path | None = None) -> Line:
    """Run one search and return its line."""
    common: dict[str, Any] = {
        "seed": cell.seed, "starts": STARTS, "feedback": False,
        "max_steps": STEPS.get(cell.task),
    }  # fmt: skip
    options: dict[str, Any] = {
        "before": {**_OLD, "warmup": 10},
        "random": {**_OLD, "warmup": cell.evaluations},
        "advice": {"wrappers": "usual", "box": 2, "warmup": 10},
        "after": {},
        "random-after": {"warmup": cell.evaluations},
    }.get(cell.method, {})
    env = CHOOSING.get(cell.task, cell.task)
    how, _, count = cell.method.partition("-")
    if how == "scaled":
        options = {"wrappers": "usual", "box": 2, "warmup": int(count)}
    elif cell.method in CANDIDATES:
        with PolicySearch(env, "network", **_OLD, **common) as first:
            space = first.optimizer.space
        box = [(d.low, d.high) for d in space.dimensions if isinstance(d, Float)]
        options = {"box": box, "warmup": sampled(space, how, int(count), cell.seed)}
    with PolicySearch(env, "network", **common, **options) as search:
        search.run(cell.evaluations)
        held = search.evaluate(HELD_OUT)
        trials = search.optimizer.trials
        return cell.line(
            curve=[None if t.reward is None else float(f"{t.reward:.6g}") for t in trials],
            best=search.best.reward,
            held_out=held.mean,
        )


def make_page(lines: Sequence[Line]) -> str:
    """Return the page: medians of the held-out means, with the number of seeds."""
    text = "# Defaults of PolicySearch for numeric-only models\n\n"
    text += "Medians of the mean return on held-out initial states (number of searches).\n"
    for title, tasks in (("Reported", REPORTED), ("Chosen on", tuple(CHOOSING))):
        shown = [line for line in lines if line["task"] in tasks]
        arms = [arm for arm in ARMS if any(line["method"] == arm for line in shown)]
        rows, beaten = [], []
        for task in tasks:
            values = {arm: _held_out(shown, task, arm) for arm in arms}
            if any(values.values()):
                cells = [f"{median(v):.4g} ({len(v)})" if v else "–" for v in values.values()]
                rows.append([task, *cells])
            if values.get("after") and values.get("random"):
                beaten.append(median(values["after"]) >= median(values["random"]))
        table = "\n".join(Table.of(("task", *arms), rows).markdown())
        text += f"\n## {title}\n\n{table}\n" if rows else ""
        if beaten:
            text += (
                f"\n`after` is no worse than `random` on {sum(beaten)} of {len(beaten)} tasks.\n"
            )
    return text


def _held_out(lines: Sequence[Line], task: str, arm: str) -> list[float]:
    """Return the results of the searches of an arm on a task; of a failed policy minus infinity."""
    found = [line["held_out"] for line in lines if (line["task"], line["method"]) == (task, arm)]
    return [-math.inf if value is None else float(value) for value in found]


EXPERIMENT = Experiment(
    tasks=(*CHOOSING, *REPORTED),
    methods=ARMS,
    results=RESULTS,
    run=run_cell,
    page=make_page,
    asks=lambda method: False,
    trace="curve",
    defaults={"evaluations": EVALUATIONS},
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main(__doc__))
