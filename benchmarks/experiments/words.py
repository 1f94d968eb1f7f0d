"""Words: how much description and feedback help a model, arm by arm.

Question: how much do names, the environment's docstring and statistics of the episodes help a
model that searches a linear policy, beside methods without a model?

Protocol: at most 30 evaluations of 10 episodes (5 of them random points before the model is
asked), on the same 10 initial states for every policy; the best policy is scored on 100 held-out
initial states. If a model ends its search, its recommended point is scored, if that is as good.
Each arm tells the model less or more of the same search (`llmopt.policies.PolicySearch`):

- ``none``: numbered parameters and rewards;
- ``names``: the names of observations and actions, bounds and limits;
- ``docs``: also the environment's own docstring;
- ``words``: also statistics of what the policy did (the default of `PolicySearch`);
- ``shuffled``: as ``words``, but each point gets reward and statistics of a random evaluated point;
- ``props-plus``: the published prompt, with the docstring.

`BASELINES` search the same box: ``columns`` (the embedded model), ``cma``, ``random``. Large models
know the known tasks from their training: `WRITTEN` systems exist nowhere else, `CHANGED` ones are
changed forms of known tasks. The committed searches had version 2 of the prompt ``words``.

    python -m llmopt.benchmarks.experiments.words --tasks zones --methods words --model openai:MODEL
    python -m llmopt.benchmarks.experiments.words --tasks zones --methods cma random columns \
        --evaluations 100
    python -m llmopt.benchmarks.experiments.words --tasks zones --methods words \
        --model replay:zones-words-0 --out /tmp/replayed.jsonl  # evaluates every point again

Runtime: minutes for the methods without a model; a model's answers take the rest.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import RescaleObservation, TimeLimit

from llmopt.benchmarks.engine.cell import Cell, Row
from llmopt.benchmarks.engine.search import Proposed, Result, search
from llmopt.benchmarks.experiments.command import Experiment, answering
from llmopt.benchmarks.experiments.systems import (
    Cascade,
    ChangedObservation,
    HeavyMountainCar,
    TwoZones,
)
from llmopt.benchmarks.methods.baselines import CMA
from llmopt.benchmarks.methods.protocol import Method
from llmopt.client.base import Client
from llmopt.errors import SearchStopped
from llmopt.optimizer import LLMOptimizer
from llmopt.policies import EnvMaker, LinearPolicy, PolicySearch
from llmopt.policies.parameters import BOX, Box
from llmopt.space import Space

RESULTS = Path(__file__).parents[1] / "results" / "words.jsonl"
WARMUP, STARTS, HELD_OUT, EVALUATIONS = 5, 10, 100, 30
ARMS = ("words", "none", "names", "docs", "shuffled", "props-plus")
BASELINES = ("columns", "cma", "random")
PRESENT = 4
"""The first seed of the committed searches under version 2 of the prompt `words`."""


@dataclass(frozen=True)
class WordsTask:
    """A task: how its environment is made, and further options of its `PolicySearch`."""

    env: str | Callable[[], gym.Env[Any, Any]]
    options: dict[str, Any] = field(default_factory=dict)


def _scaled_car() -> gym.Env[Any, Any]:
    return RescaleObservation(
        gym.make("MountainCarContinuous-v0"), np.float64(-1.0), np.float64(1.0)
    )


# Place in Swimmer-v5's observation, and its sign here.
_ORDER, _SIGNS = (5, 2, 7, 0, 3, 6, 1, 4), (1, -1, 1, -1, -1, 1, -1, 1)
_OBSERVED = (
    "tip_turn_rate_a: angular velocity of the front tip",
    "second_joint_reversed: minus the angle of the second rotor",
    "second_joint_rate: angular velocity of the second rotor",
    "tip_angle_reversed: minus the angle of the front tip",
    "tip_x_velocity_reversed: minus the velocity of the tip along x (forward)",
    "first_joint_rate: angular velocity of the first rotor",
    "first_joint_reversed: minus the angle of the first rotor",
    "tip_y_velocity: velocity of the tip along y (sideways)",
)


def _changed_swimmer() -> gym.Env[Any, Any]:
    return ChangedObservation(gym.make("Swimmer-v5"), _ORDER, _SIGNS)


TASKS: dict[str, WordsTask] = {
    "zones": WordsTask(lambda: TimeLimit(TwoZones(), 96)),
    "cascade": WordsTask(lambda: TimeLimit(Cascade(), 120)),
    "heavy-car": WordsTask(lambda: TimeLimit(HeavyMountainCar(), 600)),
    "swimmer-changed": WordsTask(_changed_swimmer, {"observations": _OBSERVED}),
    "mountaincar": WordsTask(_scaled_car),
    "mountaincar-discrete": WordsTask("MountainCar-v0"),
    "swimmer": WordsTask("Swimmer-v5"),
    "hopper": WordsTask("Hopper-v5"),
    "pendulum-inverted": WordsTask("InvertedPendulum-v5"),
    "pendulum-double": WordsTask("InvertedDoublePendulum-v5"),
    "reacher": WordsTask("Reacher-v5"),
    "cartpole": WordsTask("CartPole-v1"),
    "acrobot": WordsTask("Acrobot-v1"),
    "pendulum": WordsTask("Pendulum-v1"),
    "frozenlake": WordsTask("FrozenLake-v1"),
    "walker": WordsTask("Walker2d-v5"),
    "cheetah": WordsTask("HalfCheetah-v5"),
}

WRITTEN, CHANGED = ("zones", "cascade"), ("heavy-car", "swimmer-changed")
"""Systems that exist nowhere else, and changed forms of known ones."""

TUNING = ("spills", "switches")
"""Two tuning tasks on data made for this, in the committed lines; their code is gone."""


def is_present(line: Row) -> bool:
    """Whether a committed search had version 2 of the prompt, or no model."""
    return line["method"] in BASELINES or line["seed"] >= PRESENT


def stated_box(make: Callable[[], gym.Env[Any, Any]]) -> Box:
    """Return the ranges of the committed searches, so that their recordings replay.

    A weight lies within ±6, widened by an action's bound above 1 and an observation's below 1.
    """
    with contextlib.closing(make()) as env:
        policy = LinearPolicy.for_env(env)
    if isinstance(policy.observation_space, spaces.Discrete):
        return BOX  # a table has no weights
    rows = np.append(np.minimum(_bounds(policy.observation_space, policy.n_inputs), 1.0), 1.0)
    columns = np.maximum(_bounds(policy.action_space, policy.n_outputs), 1.0)
    sizes = np.outer(1 / rows, columns).ravel().tolist()
    return [(float(f"{-6 * size:.3g}"), float(f"{6 * size:.3g}")) for size in sizes]


def _bounds(space: spaces.Space[Any], count: int) -> np.ndarray:
    if not isinstance(space, spaces.Box):
        return np.ones(count)
    size = np.maximum(np.abs(space.low.astype(float)), np.abs(space.high.astype(float))).ravel()
    return np.where((size > 0) & (size < 1e30), size, 1.0)


def make_search(task: str, arm: str, client: Client | str | None, seed: int) -> PolicySearch:
    """Return the search of one arm, with the options of the committed searches."""
    entry = TASKS[task]
    options = {"points": 1, "clip": False, **entry.options}
    options.setdefault("box", stated_box(EnvMaker(entry.env)))
    return PolicySearch(
        entry.env,
        client,
        arm if arm == "props-plus" else "words",
        seed=seed,
        starts=STARTS,
        warmup=WARMUP,
        words={"none": "none", "names": "names"}.get(arm, "all"),  # type: ignore[arg-type]
        feedback=arm in ("words", "shuffled"),
        **options,
    )


def run_shuffled(policies: PolicySearch, evaluations: int) -> list[tuple[float | None, Any]]:
    """Tell each point the outcome of a random evaluated point; return the true means and points."""
    optimizer, rng = policies.optimizer, np.random.default_rng([policies.seed, 1])
    outcomes: list[tuple[Any, str]] = []
    points: list[tuple[float | None, Any]] = []
    with contextlib.suppress(SearchStopped):
        while len(points) < evaluations:
            params = optimizer.ask()
            outcomes.append(policies.measure(params))
            points.append((outcomes[-1][0].mean, params))
            told, text = outcomes[rng.integers(len(outcomes))]
            if told.mean is None:
                optimizer.tell_failure(params, told.failure)
            else:
                optimizer.tell(params, told.mean, feedback=text, stderr=told.standard_error)
    return points


def run_model(task: str, arm: str, client: Client, seed: int, evaluations: int) -> dict[str, Any]:
    """Search with a model, and return the result's line."""
    with make_search(task, arm, client, seed) as policies:
        curve: list[Any]
        best: Any
        if arm == "shuffled":
            points = run_shuffled(policies, evaluations)
            curve = [mean for mean, _ in points]
            best, params = max((p for p in points if p[0] is not None), key=lambda p: p[0] or 0.0)
        else:
            policies.run(evaluations)
            curve = [trial.reward for trial in policies.optimizer.trials]
            best, params = policies.best.reward, policies.best.params
        usage = policies.optimizer.usage
        spent = ("requests", "fallbacks", "rejected", "prompt_tokens", "completion_tokens")
        return {
            "curve": curve,
            **_judged(policies, best, params),
            **{name: getattr(usage, name) for name in spent},
            "stopped": policies.stopped,
        }


def _judged(policies: PolicySearch, best: float | None, params: Any) -> dict[str, Any]:
    """Return the best policy, and its held-out return."""
    held = policies.evaluate(HELD_OUT, params=params)
    judged = {"held_out": held.mean, "held_out_stderr": held.standard_error}
    return {"best": best, "params": params, **judged}


class InSpace:
    """A method of the unit cube, or random sampling, in the form of a space's points."""

    def __init__(self, space: Space, cma: CMA | None, seed: int) -> None:
        self._space, self._cma = space, cma
        self._rng = np.random.default_rng([seed, 2])

    def ask(self) -> Any:
        """Return the next point."""
        if self._cma is None:
            return self._space.unflatten(self._space.sample(self._rng))
        self._point = self._cma.ask()
        return self._space.unflatten(self._space.decode(np.clip(self._point, 0.0, 1.0)))

    def tell(self, params: Any, reward: float) -> None:
        """Report the value."""
        if self._cma is not None:
            self._cma.tell(self._point, reward)

    def tell_failure(self, params: Any, reason: str) -> None:
        """Report that there is none."""
        if self._cma is not None:
            self._cma.tell_failure(self._point, reason)


def run_baseline(task: str, arm: str, seed: int, evaluations: int) -> dict[str, Any]:
    """Search the same box without words, and return the result's line."""
    with make_search(task, "none", "smollm2", seed) as policies:
        space = policies.optimizer.space
        points: list[tuple[float | None, Any]] = []

        def evaluate(asked: Proposed) -> Result:
            outcome, _ = policies.measure(asked.params)
            points.append((outcome.mean, asked.params))
            return Result(outcome.mean, "failed")

        optimizer = LLMOptimizer(space, "smollm2", "columns", seed=seed, warmup=WARMUP)
        search(optimizer, min(WARMUP, evaluations), evaluate)
        method: Method = optimizer
        if arm == "cma":
            best = optimizer.history.best
            start = None if best is None else space.encode(best.values)
            method = InSpace(space, CMA(0.0, 1.0, len(space), seed, start), seed)
        elif arm == "random":
            method = InSpace(space, None, seed)
        search(method, evaluations - len(points), evaluate)
        top = max((p for p in points if p[0] is not None), key=lambda p: p[0] or 0.0)
        return {
            "curve": [mean for mean, _ in points],
            **_judged(policies, *top),
            "requests": optimizer.usage.requests,
            "fallbacks": optimizer.usage.fallbacks,
        }


def run_cell(cell: Cell, source: str = "", record: Path | None = None) -> Row:
    """Run one search and return its line."""
    began = time.monotonic()
    if cell.method in BASELINES:
        outcome = run_baseline(cell.task, cell.method, cell.seed, cell.evaluations)
    else:
        with answering(cell, source, record) as client:
            outcome = run_model(cell.task, cell.method, client, cell.seed, cell.evaluations)
    seconds = round(time.monotonic() - began, 1)
    return cell.line(known=cell.task not in (*WRITTEN, *CHANGED), **outcome, seconds=seconds)


def make_cell(task: str, method: str, seed: int, evaluations: int, model: str) -> Cell:
    """Return the cell of a search; `model` is the method if none is asked."""
    return Cell(task, method, seed, evaluations, model or method)


EXPERIMENT = Experiment(
    list(TASKS),
    (*ARMS, *BASELINES),
    RESULTS,
    run_cell,
    ARMS.__contains__,
    "curve",
    {"tasks": ["zones"], "methods": ["words"], "evaluations": EVALUATIONS, "model": "smollm2"},
    cell=make_cell,
    summary=lambda line: f"best {line['best']:.5g}, held-out {line['held_out']:.5g}",
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main(__doc__))
