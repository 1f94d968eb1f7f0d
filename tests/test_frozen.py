"""Recorded searches replay to the values of tests/data/frozen.json, whatever the code becomes.

The file was written by the code before its core was replaced. Nothing but public entry points is
called here. Long replays freeze a prefix of their requests (``--max-requests``); the whole of them
runs with ``--sweeps``. ``pytest -n 0 --update-frozen`` rewrites the cases that it runs: only for a
new recording, never to make a test pass.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stubs import needs_confinement

import llmopt

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "docs" / "examples"
RECORDINGS = ROOT / "benchmarks" / "recordings"
FROZEN = Path(__file__).parent / "data" / "frozen.json"
Outcome = dict[str, Any]


def replay(path: Path) -> llmopt.ReplayClient:
    """Return a client that takes the replies in order, however the prompts are worded."""
    return llmopt.ReplayClient(path, strict=False)


def numbers(values: Iterable[Any]) -> list[Any]:
    return [v.item() if isinstance(v, np.generic) else v for v in values]


def outcome(trials: Iterable[Any], usage: Any, **more: Any) -> Outcome:
    """Return what is frozen of a search: values, reward and source of each trial, and its usage."""
    trials = list(trials)
    return {
        "values": [numbers(t.values) for t in trials],
        "rewards": [t.reward for t in trials],
        "sources": [t.source for t in trials],
        "requests": usage.requests,
        "proposals": dict(usage.proposals),
        **more,
    }


# -- functions ----------------------------------------------------------------------------------


def kiln(_: Path) -> Outcome:
    from kiln import RECORDING, WORDS, fire

    space = {f"p{k}": llmopt.Float(0, 12) for k in range(1, 9)}
    model = replay(RECORDING)
    result = llmopt.minimize(fire, space, n_trials=12, client=model, description=WORDS, seed=0)
    return outcome(result.trials, result.usage, ended=bool(result.stopped))


def packing(_: Path) -> Outcome:
    from packing import RECORDING, SPACE, WORDS, is_packing, pack

    result = llmopt.maximize(
        pack, SPACE, n_trials=12, client=replay(RECORDING), description=WORDS, seed=0
    )
    assert [t.constraint_violation for t in result.trials] == [0.0]
    assert is_packing(result.best.params)
    return outcome(result.trials, result.usage, ended=bool(result.stopped))


def study_bearing(_: Path) -> Outcome:
    optuna = pytest.importorskip("optuna")
    pytest.importorskip("sklearn")
    from llmopt.adapters.optuna import LLMSampler
    from llmopt.benchmarks.tasks.studies import STUDIES

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    task = STUDIES["bearing"]

    def objective(trial: Any) -> float:
        judged = task.train(trial, 0)
        trial.set_user_attr("feedback", judged.said)
        return judged.valid

    model = replay(RECORDINGS / "study-bearing.jsonl")
    options = {"prompt": "words", "seed": 0, "total": 20, "hints": []}
    sampler = LLMSampler(model, description=task.description, **options)
    study = optuna.create_study(sampler=sampler)
    study.optimize(objective, n_trials=20, catch=(Exception,))
    return {
        "values": [t.params for t in study.trials],
        "rewards": [t.value for t in study.trials],
        "requests": sampler.usage.requests,
        "proposals": dict(sampler.usage.proposals),
    }


# -- linear policies ----------------------------------------------------------------------------


def policies(make: Callable[[], gym.Env[Any, Any]], recording: str, weights: int) -> Outcome:
    from llmopt.policies import PolicySearch

    model = replay(RECORDINGS / recording)
    box = [(-6, 6)] * weights
    with closing(PolicySearch(make, model, "words", seed=0, total=30, box=box)) as search:
        search.run(30)
        return outcome(
            search.optimizer.trials,
            search.optimizer.usage,
            best=numbers(search.best.values),
            held_out=search.evaluate().mean,
        )


def zones(_: Path) -> Outcome:
    from llmopt.benchmarks.experiments.systems import TwoZones

    return policies(lambda: gym.wrappers.TimeLimit(TwoZones(), 96), "zones-words-0.jsonl", 10)


def mountaincar(_: Path) -> Outcome:
    def scaled() -> gym.Env[Any, Any]:
        car = gym.make("MountainCarContinuous-v0")
        return gym.wrappers.RescaleObservation(car, np.float64(-1.0), np.float64(1.0))

    return policies(scaled, "mountaincar-words-0.jsonl", 3)


# -- commands -----------------------------------------------------------------------------------


def command(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llmopt", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )


def run(task: str, options: str) -> Callable[[Path], Outcome]:
    """Return a call of ``llmopt run TASK`` on its recording.

    With ``--max-requests`` the command may end with an error: its trials are on file, no summary.
    """

    def play(folder: Path) -> Outcome:
        out = folder / "run"
        model = f"replay:benchmarks/recordings/run-{task}.jsonl"
        fixed = ("--methods", "llm", "--no-gif", "--model", model, "--out", out)
        done = command("run", task, *options.split(), *fixed)
        text = (out / "trials.jsonl").read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines()]
        searched = [x for x in lines if x["round"] == "search" and x["method"] != "zero"]
        trials = {
            "values": [x["params"] for x in searched],
            "rewards": [float(np.mean(x["returns"])) for x in searched],
            "sources": [x["source"] for x in searched],
        }
        if "--max-requests" in options:
            return trials
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        (summary,) = json.loads((out / "summary.json").read_text(encoding="utf-8"))
        wanted = ("selection", "final", "heldout", "requests", "fallback_share", "params")
        return trials | {name: summary[name] for name in wanted}

    return play


def code(verb: str, task: str, recording: str, options: str) -> Callable[[Path], Outcome]:
    """Return a call of ``llmopt code TASK`` or ``llmopt reward TASK`` on a recording."""

    def play(folder: Path) -> Outcome:
        out = folder / "run"
        model = f"replay:benchmarks/recordings/{recording}.jsonl?strict=false"
        fixed = ("--held-out", 2, "--no-gif", "--model", model, "--out", out)
        done = command(verb, task, *options.split(), *fixed)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        files = sorted((out / "candidates").glob("*.json"))
        scores = [json.loads(file.read_text(encoding="utf-8"))["score"] for file in files]
        judged = json.loads((out / "held_out.json").read_text(encoding="utf-8"))
        return {"scores": scores, "held_out": judged["mean return"]}

    return play


def reaction(name: str) -> Callable[[Path], Outcome]:
    """Return a call of ``llmopt bench --suite reactions`` on a recorded search."""

    def play(folder: Path) -> Outcome:
        out = folder / "rows.jsonl"
        model = f"replay:benchmarks/recordings/{name}-llm-words-0.jsonl"
        fixed = ("--methods", "llm-words", "--seeds", 1, "--model", model, "--out", out)
        done = command("bench", "--suite", "reactions", "--tasks", name, *fixed)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        (row,) = map(json.loads, out.read_text(encoding="utf-8").splitlines())
        return {"values": row["points"], "rewards": row["means"], "sources": row["sources"]}

    return play


# -- cases --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """How a recording is replayed, and the relative tolerance of its rewards."""

    play: Callable[[Path], Outcome]
    rel: float = 1e-6
    packages: tuple[str, ...] = ()
    marks: tuple[pytest.MarkDecorator, ...] = ()


CODE, REWARD = "--steps 10 --episodes 5", "--steps 5"
REACTIONS = (
    "alkylation",
    "buchwald-hartwig",
    "chan-lam",
    "reductive-amination",
    "suzuki",
    "suzuki-informer",
)
SWIMMER = "--iterations 25 --warmup 5 --episodes 10"
MUJOCO: Any = {"rel": 1e-4, "packages": ("mujoco",)}  # sums are rounded by processor
CONFINED: Any = MUJOCO | {"marks": (needs_confinement,)}
LONG: Any = MUJOCO | {"marks": (needs_confinement, pytest.mark.sweep)}
CASES = {
    "kiln": Case(kiln, rel=1e-9),
    "packing": Case(packing, rel=0.0),
    "study-bearing": Case(study_bearing, rel=1e-3, packages=("optuna", "sklearn")),
    "zones-words-0": Case(zones),
    "mountaincar-words-0": Case(mountaincar),
    "run-mountaincar": Case(run("mountaincar", "--iterations 20 --warmup 5 --episodes 5")),
    "run-swimmer": Case(run("swimmer", SWIMMER), **LONG),
    "reward-mountaincar, 1 request": Case(
        code("reward", "mountaincar", "reward-mountaincar", f"{REWARD} --max-requests 1"),
        **CONFINED,
    ),
    "reward-mountaincar": Case(code("reward", "mountaincar", "reward-mountaincar", REWARD), **LONG),
    # The second program read the clock, and was sent back with what it printed.
    "code-swimmer, 3 requests": Case(
        code("code", "swimmer", "code-swimmer", f"{CODE} --max-requests 3"), **LONG
    ),
    **{
        f"{name}, 1 request": Case(code("code", "swimmer", name, f"{CODE} --max-requests 1"), **how)
        for name, how in {
            "code-swimmer": CONFINED,
            "code-swimmer-first": LONG,
            "code-swimmer-second": LONG,
        }.items()
    },
    **{
        f"code-{name}": Case(
            code("code", f"metaworld:{name}-v3", f"code-{name}", "--steps 6"),
            **CONFINED | {"packages": ("metaworld",)},
        )
        for name in ("door-open", "pick-place", "push")
    },
    **{f"{name}-llm-words-0": Case(reaction(name), rel=0.0) for name in REACTIONS},
}


MEASURED = {"rewards", "scores", "held_out", "selection", "final", "heldout"}


def assert_same(now: Any, then: Any, rel: float, where: str) -> None:
    """Compare two outcomes: what is measured with a tolerance, points to 1e-9, all else exactly."""
    if isinstance(then, dict):
        assert sorted(now) == sorted(then), where
        for key in then:
            assert_same(
                now[key], then[key], rel if key in MEASURED else min(rel, 1e-9), f"{where}, {key}"
            )
    elif isinstance(then, list):
        assert len(now) == len(then), where
        for index, (a, b) in enumerate(zip(now, then, strict=True)):
            assert_same(a, b, rel, f"{where}[{index}]")
    elif isinstance(then, float):
        # 1e-9: the kiln's last error is a difference of temperatures near 1000 °C.
        assert now == pytest.approx(then, rel=rel, abs=1e-9 if rel else 0.0), where
    else:
        assert now == then, where


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # "with other prompts than recorded"
@pytest.mark.parametrize("name", [pytest.param(n, marks=c.marks) for n, c in CASES.items()])
def test_a_recording_replays_to_its_frozen_values(name, tmp_path, request, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    case = CASES[name]
    for package in case.packages:
        pytest.importorskip(package)
    now = json.loads(json.dumps(case.play(tmp_path)))
    frozen = json.loads(FROZEN.read_text(encoding="utf-8")) if FROZEN.exists() else {}
    if request.config.getoption("--update-frozen"):
        frozen[name] = now
        lines = (f"{json.dumps(key)}: {json.dumps(frozen[key])}" for key in sorted(frozen))
        FROZEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        return
    assert_same(now, frozen[name], case.rel, name)


def test_every_recording_that_stands_as_a_file_is_frozen():
    files = {path.stem for path in [*RECORDINGS.glob("*.jsonl"), *EXAMPLES.glob("*.jsonl")]}
    frozen = {name.partition(",")[0] for name in json.loads(FROZEN.read_text(encoding="utf-8"))}
    assert frozen == files


def test_the_recorded_packing_has_the_published_value():
    frozen = json.loads(FROZEN.read_text(encoding="utf-8"))["packing"]
    assert frozen["rewards"] == [2.635983084917582]
    assert len(frozen["values"][0]) == 78
