"""Words: how much description and feedback help a model, arm by arm.

Question: how much do names, the environment's docstring and statistics of the episodes help a
model that searches a linear policy, beside the published prompts and methods without a model?

Protocol: at most 30 evaluations of 10 episodes (5 of them random points before the model is
asked), on the same 10 initial states for every policy; the best one is scored on 100 held-out
initial states. If a model ends its search, that is its recommended point, if it is as good. Earlier
searches first tried this point on 50 other initial states (`check_episodes`), which no method
without a model spent.
Each arm tells the model less or more of the same search (`llmopt.policies.PolicySearch`):

- ``none``: numbered parameters and rewards;
- ``names``: the names of observations and actions, bounds and limits;
- ``docs``: and the environment's own docstring;
- ``words``: and statistics of what the policy did (the default of `PolicySearch`);
- ``shuffled``: as ``words``, but each point gets reward and statistics of a point drawn from all
  so far;
- ``props``, ``props-plus``: the published prompts; the second one with the docstring.

The tables hold a further arm, ``ten``, which an earlier version ran: ten requests, and small random
changes of the best point for the rest.

`BASELINES` search the same box: ``columns`` (the embedded model), ``cma``, ``random``.

Known tasks are known to a large model from its training: what counts as evidence are the
systems of `llmopt.benchmarks.experiments.systems`: two exist nowhere else, two are changed forms of
known ones.

    python -m llmopt.benchmarks.experiments.words --tasks zones --methods words --model openai:MODEL
    python -m llmopt.benchmarks.experiments.words --tasks zones --methods cma random columns \
        --evaluations 100

A recording that is played again evaluates every point for real. The committed ones were made
before the prompt had its present wording.

    python -m llmopt.benchmarks.experiments.words --tasks zones --methods words \
        --model replay:benchmarks/recordings/zones-words-0.jsonl --out /tmp/replayed.jsonl

Runtime: minutes for the methods without a model; a model's answers take the rest.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
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
from llmopt.benchmarks.methods.protocol import Method
from llmopt.benchmarks.report.figures import Panel, best_so_far, panels
from llmopt.benchmarks.report.table import Table
from llmopt.client.base import Client
from llmopt.history import Trial
from llmopt.optimizer import LLMOptimizer
from llmopt.policies import EnvMaker, LinearPolicy, PolicySearch
from llmopt.policies.evaluation import Evaluation
from llmopt.policies.parameters import BOX, Box
from llmopt.search.partners.cma import CMA
from llmopt.space import Space

RESULTS = Path(__file__).parents[1] / "results" / "words.jsonl"
WARMUP, STARTS, HELD_OUT, EVALUATIONS = 5, 10, 100, 30
ARMS = ("words", "none", "names", "docs", "shuffled", "props", "props-plus")
BASELINES = ("columns", "cma", "random")


@dataclass(frozen=True)
class WordsTask:
    """A task: how its environment is made, and what tables call it."""

    env: str | Callable[[], gym.Env[Any, Any]]
    title: str = ""
    # R2PO with a model of 20 billion weights after 4,000 episodes, mean of the best
    published: str = "–"
    options: dict[str, Any] = field(default_factory=dict)  # further ones of its `PolicySearch`


def _scaled_car() -> gym.Env[Any, Any]:
    return RescaleObservation(
        gym.make("MountainCarContinuous-v0"), np.float64(-1.0), np.float64(1.0)
    )


# Place in Swimmer-v5's observation, and its sign here.
_ORDER, _SIGNS = (5, 2, 7, 0, 3, 6, 1, 4), (1, -1, 1, -1, -1, 1, -1, 1)


def _changed_swimmer() -> gym.Env[Any, Any]:
    return ChangedObservation(gym.make("Swimmer-v5"), _ORDER, _SIGNS)


TASKS: dict[str, WordsTask] = {
    "zones": WordsTask(lambda: TimeLimit(TwoZones(), 96), "heating of two zones, 10 parameters"),
    "cascade": WordsTask(lambda: TimeLimit(Cascade(), 120), "three water tanks, 18"),
    "heavy-car": WordsTask(
        lambda: TimeLimit(HeavyMountainCar(), 600), "heavy car, reversed motor, 4"
    ),
    "swimmer-changed": WordsTask(
        _changed_swimmer,
        "Swimmer, observations permuted and sign-flipped, 18",
        options={
            "observations": (
                "tip_turn_rate_a: angular velocity of the front tip",
                "second_joint_reversed: minus the angle of the second rotor",
                "second_joint_rate: angular velocity of the second rotor",
                "tip_angle_reversed: minus the angle of the front tip",
                "tip_x_velocity_reversed: minus the velocity of the tip along x (forward)",
                "first_joint_rate: angular velocity of the first rotor",
                "first_joint_reversed: minus the angle of the first rotor",
                "tip_y_velocity: velocity of the tip along y (sideways)",
            )
        },
    ),
    "mountaincar": WordsTask(_scaled_car, "MountainCarContinuous (scaled)", "98.8"),
    "mountaincar-discrete": WordsTask("MountainCar-v0", "MountainCar", "-111"),
    "swimmer": WordsTask("Swimmer-v5", "Swimmer", "295"),
    "hopper": WordsTask("Hopper-v5", "Hopper"),
    "pendulum-inverted": WordsTask("InvertedPendulum-v5", "InvertedPendulum", "1,000"),
    "pendulum-double": WordsTask("InvertedDoublePendulum-v5", "InvertedDoublePendulum", "254"),
    "reacher": WordsTask("Reacher-v5", "Reacher"),
    "cartpole": WordsTask("CartPole-v1", "CartPole", "500"),
    "acrobot": WordsTask("Acrobot-v1", "Acrobot"),
    "pendulum": WordsTask("Pendulum-v1", "Pendulum"),
    "frozenlake": WordsTask("FrozenLake-v1", "FrozenLake", "0.93"),
    "walker": WordsTask("Walker2d-v5", "Walker2d, 108 parameters"),
    "cheetah": WordsTask("HalfCheetah-v5", "HalfCheetah, 108 parameters"),
}

WRITTEN, CHANGED = ("zones", "cascade"), ("heavy-car", "swimmer-changed")
"""Systems that exist nowhere else, and changed forms of known ones."""

UNKNOWN = (*WRITTEN, CHANGED[0], "spills", "switches", CHANGED[1])
"""These, and two tuning tasks on data made here, whose code is gone."""


def stated_box(make: Callable[[], gym.Env[Any, Any]]) -> Box:
    """Return the ranges of the committed searches, so that their recordings play the same points.

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


class Shuffled(PolicySearch):
    """Shows each point with the outcome of a random evaluated point."""

    def _tell(self, params: Any, outcome: Evaluation, text: str) -> Trial:
        if not hasattr(self, "_outcomes"):
            self._outcomes: list[tuple[Any, str]] = []
            self._shuffle = np.random.default_rng([self.seed, 1])
        self._outcomes.append((outcome, text))
        told, text = self._outcomes[self._shuffle.integers(len(self._outcomes))]
        if told.mean is None:
            return self.optimizer.tell_failure(params, told.failure)
        return self.optimizer.tell(params, told.mean, feedback=text, stderr=told.standard_error)


def make_search(task: str, arm: str, client: Client | str | None, seed: int) -> PolicySearch:
    """Return the search of one arm."""
    entry = TASKS[task]
    # As the committed searches and their recordings were made.
    options = {"points": 1, "clip": False, **entry.options}
    options.setdefault("box", stated_box(EnvMaker(entry.env)))
    kind = Shuffled if arm == "shuffled" else PolicySearch
    return kind(
        entry.env,
        client,
        arm if arm.startswith("props") else "words",
        seed=seed,
        starts=STARTS,
        warmup=WARMUP,
        words={"none": "none", "props": "none", "names": "names"}.get(arm, "all"),  # type: ignore[arg-type]
        feedback=arm in ("words", "shuffled"),
        **options,
    )


def run_model(task: str, arm: str, client: Client, seed: int, evaluations: int) -> dict[str, Any]:
    """Search with a model, and return the result's line."""
    curve: list[float | None] = []
    means: dict[str, float] = {}  # of each point

    with make_search(task, arm, client, seed) as policies:
        measure = policies.measure

        def kept(params: Any, seeds: Sequence[int] | None = None) -> Any:
            outcome, text = measure(params, seeds)
            curve.append(outcome.mean)
            if outcome.mean is not None:
                means[json.dumps(params)] = outcome.mean
            return outcome, text

        policies.measure = kept  # type: ignore[method-assign]
        policies.run(evaluations)
        usage = policies.optimizer.usage
        top = max(means, key=lambda point: means[point])
        if policies.stopped and not isinstance(policies, Shuffled):
            # Chosen by the model, of points as good as the best.
            top = json.dumps(policies.best.params)
        spent = ("requests", "fallbacks", "rejected", "prompt_tokens", "completion_tokens")
        return {
            "curve": curve,
            **_judged(policies, means.get(top, max(means.values())), json.loads(top)),
            **{name: getattr(usage, name) for name in spent},
            "stopped": policies.stopped,
        }


def _judged(policies: PolicySearch, best: float, params: Any) -> dict[str, Any]:
    """Return the best policy, and its held-out return."""
    held = policies.evaluate(HELD_OUT, params=params)
    judged = {"held_out": held.mean, "held_out_stderr": held.standard_error}
    return {"best": best, "params": params, **judged}


class InSpace:
    """A method of the unit cube, or random draws, in the form of a space's points."""

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
    """Search the same box with no words, and return the result's line."""
    with make_search(task, "none", "smollm2", seed) as policies:
        space = policies.optimizer.space
        curve: list[float | None] = []
        sound: list[tuple[float, Any]] = []

        def evaluate(asked: Proposed) -> Result:
            outcome, _ = policies.measure(asked.params)
            curve.append(outcome.mean)
            if outcome.mean is not None:
                sound.append((outcome.mean, asked.params))
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
        search(method, evaluations - len(curve), evaluate)
        usage = optimizer.usage
        return {
            "curve": curve,
            **_judged(policies, *max(sound, key=lambda pair: pair[0])),
            "requests": usage.requests,
            "fallbacks": usage.fallbacks,
        }


def run_cell(cell: Cell, source: str = "", record: Path | None = None) -> Row:
    """Run one search and return its line."""
    began = time.monotonic()
    if cell.method in BASELINES:
        found = run_baseline(cell.task, cell.method, cell.seed, cell.evaluations)
    else:
        with answering(cell, source, record) as client:
            found = run_model(cell.task, cell.method, client, cell.seed, cell.evaluations)
    seconds = round(time.monotonic() - began, 1)
    return cell.line(known=cell.task not in UNKNOWN, **found, seconds=seconds)


def _summary_of(line: dict[str, Any]) -> str:
    error = line["held_out_stderr"]
    return f"best {line['best']:.5g}, held-out {line['held_out']:.5g} ± {error:.2g}"


def make_cell(task: str, method: str, seed: int, evaluations: int, model: str) -> Cell:
    """Return the cell of a search; `model` is the method if none is asked."""
    return Cell(task, method, seed, evaluations, model or method)


# -- the tables and the picture ---------------------------------------------------------

COLUMNS = {
    "words": "words and feedback",
    "ten": "the same, ten requests",
    "shuffled": "results shuffled",
    "docs": "words, no feedback",
    "names": "names alone",
    "none": "numbers alone",
    "props-plus": "ProPS+",
    "props": "ProPS",
    "columns": "embedded model, 100",
    "cma": "CMA-ES, 100",
    "random": "random search, 100",
}

TITLES = {name: task.title for name, task in TASKS.items()}
TITLES |= {name: f"data `{name}`, hyper-parameters" for name in ("spills", "switches")}

PRESENT = 4
"""The first seed that was searched under version 2 of the prompt `words`, in the main table."""

Cells = dict[tuple[str, str], list[Row]]


def table(lines: Sequence[Row]) -> str:
    """Return the held-out returns as Markdown tables.

    They are of unknown systems, of known ones, of unknown ones seed by seed, and of earlier forms
    of the prompt. A cell is the median over searches, [least, largest], and for a chat model (the
    evaluations of each search).
    """
    now: Cells = {}
    earlier: Cells = {}
    for line in lines:
        where = now if is_present(line) else earlier
        where.setdefault((line["task"], line["method"]), []).append(line)
    unknown = [task for task in TITLES if task in UNKNOWN]
    known = [task for task in TITLES if task not in UNKNOWN]
    parts = [
        _summary("system written or changed for this", unknown, now),
        _summary("task known to every model", known, now, published=True),
        _by_seed(now),
        _summary("earlier forms of the prompt", [*unknown, *known], earlier),
    ]
    return "\n\n".join(parts)


def is_present(line: Row) -> bool:
    """Whether a search was made with the present form of the prompt, or without a model."""
    return line["method"] in BASELINES or line["seed"] >= PRESENT


def _summary(head: str, tasks: Sequence[str], cells: Cells, *, published: bool = False) -> str:
    tasks = [t for t in tasks if any(t == c[0] for c in cells)]
    arms = [a for a in COLUMNS if any((t, a) in cells for t in tasks)]
    heads = [head, *(COLUMNS[a] for a in arms)]
    if published:
        heads.append("R2PO, 20 billion weights, 4,000 episodes (mean best)")
    rows = []
    for task in tasks:
        found = [_cell(cells.get((task, arm), []), arm not in BASELINES) for arm in arms]
        rows.append([TITLES[task], *found, *([TASKS[task].published] if published else [])])
    return "\n".join(Table.of(heads, rows).markdown())


def _by_seed(cells: Cells) -> str:
    """Return the searches of unknown systems by seed: each has its own held-out states."""
    tasks = [t for t in TITLES if t in UNKNOWN]
    arms = [a for a in COLUMNS if a not in BASELINES and any((t, a) in cells for t in tasks)]
    rows = []
    for task in tasks:
        found = {(a, line["seed"]): line for a in arms for line in cells.get((task, a), [])}
        for seed in sorted({s for _, s in found}):
            row = [_cell([found[a, seed]] if (a, seed) in found else [], True) for a in arms]
            rows.append([TITLES[task].split(",")[0], str(seed), *row])
    return "\n".join(Table.of(["system", "seed", *(COLUMNS[a] for a in arms)], rows).markdown())


def _cell(group: Sequence[Row], chat: bool) -> str:
    held = [line["held_out"] for line in group]
    if not held:
        return "–"
    text = f"{median(held):.4g}"
    if len(held) > 1 and max(held) > min(held):
        text += f" [{min(held):.4g}, {max(held):.4g}]"
    return text + (f" ({', '.join(str(len(g['curve'])) for g in group)})" if chat else "")


def picture(lines: Sequence[Row]) -> bytes:
    """Draw the best value so far of each search on systems written or changed for this.

    Systems without a search without words, and earlier prompts, are skipped.
    """
    looks = {
        "words": ("chat model, words and feedback", "C3", 2.0),
        "shuffled": ("chat model, results shuffled", "C4", 0.8),
        "none": ("chat model, numbers alone", "C1", 2.0),
        "cma": ("CMA-ES", "C0", 0.8),
        "random": ("random search", "C7", 0.8),
    }
    lines = [line for line in lines if is_present(line)]
    compared = {line["task"] for line in lines if line["method"] == "none"}
    drawn = []
    for task in (t for t in UNKNOWN if t in compared):
        own = [line for line in lines if line["task"] == task]
        curves = []
        for line in own:
            if line["method"] in looks:
                best = best_so_far(line["curve"])
                curves.append((line["method"], np.arange(1, len(best) + 1), best))
        top, low = (f(line["best"] for line in own) for f in (max, min))
        title = TITLES[task].rpartition(",")[0].replace("`", "")
        drawn.append(Panel(title, curves, (low - 0.4 * (top - low), top + 0.05 * (top - low))))
    styles = {arm: {"color": c, "linewidth": w} for arm, (_, c, w) in looks.items()}
    labels = {arm: name for arm, (name, _, _) in looks.items()}
    grid = [drawn[i : i + 3] for i in range(0, len(drawn), 3)]
    return panels(grid, styles, labels)


EXPERIMENT = Experiment(
    list(TASKS),
    (*ARMS, *BASELINES),
    RESULTS,
    run_cell,
    table,
    ARMS.__contains__,
    "curve",
    {"tasks": ["zones"], "methods": ["words"], "evaluations": EVALUATIONS, "model": "smollm2"},
    cell=make_cell,
    summary=_summary_of,
    draw=picture,
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main(__doc__))
