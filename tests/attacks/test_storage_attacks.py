"""A failing disk and a kill at every change of a file: nothing paid is lost, or paid twice.

The tests take a sample of the changes. All of them, for every way to fail::

    python tests/attacks/test_storage_attacks.py [SCENARIO ...]
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from faults import FAILURES, KILLS, Faults, killed

from llmopt import Float, LLMOptimizer
from llmopt.client.base import Completion, Reply
from llmopt.code import CodeOptimizer
from llmopt.errors import StorageError
from llmopt.sandbox.confine import support

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


class Model:
    """Answers equal requests equally, and notes each call where no fault reaches."""

    name, default_prompt = "model", "props"

    def __init__(self, log: Path, text: Callable[[int], str]) -> None:
        self.log, self.text = log, text

    def complete(self, request: Any) -> Reply:
        digest = request.digest()
        number = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(number, digest.encode() + b"\n")
        os.close(number)
        text = self.text(int(digest[:8], 16))
        return Reply((Completion(text),), "model", prompt_tokens=100, completion_tokens=10)

    def calls(self) -> Counter[str]:
        return Counter(self.log.read_text().split() if self.log.exists() else [])


def point(number: int) -> str:
    return f"x: {number % 10_000 / 1000 - 5:.3f}\nCloser."


def weights(number: int) -> str:
    rng = np.random.default_rng(number)
    return ", ".join(f"params[{i}]: {v:.2f}" for i, v in enumerate(rng.uniform(-6, 6, 10)))


def code(number: int) -> str:
    return f"```python\ndef f(x):\n    return {number % 997}.0 * x\n```"


def patient(call: Callable[[], Any]) -> Any:
    """Make a call as somebody does who frees some space and calls again."""
    for _ in range(5):
        with contextlib.suppress(StorageError):
            return call()
    return call()


# Each scenario goes on with what the folder holds, to the end; and returns what was found,
# the requests that it counts, and what of them its caps count.


def numeric(folder: Path, model: Model) -> tuple[Any, int]:
    def made() -> LLMOptimizer:
        space = {"x": Float(-5, 5)}
        return LLMOptimizer(space, model, seed=1, warmup=1, storage=folder / "run.jsonl")

    optimizer = patient(made)
    try:
        for params in optimizer.pending:
            patient(lambda p=params: optimizer.tell(p, p["x"], feedback="so"))
        while len(optimizer.trials) < 4:
            params = patient(optimizer.ask)
            patient(lambda p=params: optimizer.tell(p, p["x"], feedback="so"))
        patient(lambda: optimizer.save(folder / "saved.json"))
        saved = LLMOptimizer.load(folder / "saved.json", model)
        assert saved.trials == optimizer.trials
        assert saved.usage == optimizer.usage
        return [t.params for t in optimizer.trials], optimizer.usage.requests
    finally:
        optimizer.close()


def functions(folder: Path, model: Model) -> tuple[Any, int]:
    def made() -> CodeOptimizer:
        return CodeOptimizer("f(x)", "A number.", model, seed=1, storage=folder / "code.jsonl")

    with patient(made) as optimizer:
        while len(optimizer.trials) < 2:
            candidate = patient(optimizer.ask)
            score = float(candidate(1.0))
            patient(lambda c=candidate, s=score: optimizer.tell(c, s))
        found = [(t.number, t.source, t.reward) for t in optimizer.trials]
        return found, optimizer.usage.requests


def command(folder: Path, model: Model) -> tuple[Any, int]:
    from llmopt.benchmarks.run import RunConfig, run

    config = RunConfig(
        "cartpole", iterations=2, episodes=1, warmup=1, heldout=1, gif=False,
        methods=("llm", "random"),
    )  # fmt: skip
    result = patient(lambda: run(config, folder / "r", client=model, resume=True))
    lines = [json.loads(line) for line in (folder / "r" / "trials.jsonl").open()]
    kept = ("method", "index", "round", "params", "returns", "source", "feedback", "explanation")
    files = {
        str(file.relative_to(folder)): re.sub(r"(, \d+\.\d{6}){2}", "", file.read_text())  # times
        for file in (folder / "r").rglob("*.txt")
        if file.name != "summary.txt"
    }
    judged = [(m.method, m.params, m.selection, m.heldout, m.episodes) for m in result.methods]
    return [[[e[k] for k in kept] for e in lines], files, judged], result.methods[0].requests


def commanded(folder: Path, model: Model, steps: int, args: list[str]) -> tuple[Any, int]:
    """Run a command of the code search to its end, in the folder or in what is left of it."""
    from llmopt.benchmarks.code import common
    from llmopt.cli import main
    from llmopt.code.secret_seeds import Starts

    args = [*args, "--steps", str(steps), "--episodes", "1", "--held-out", "1", "--model", "m"]
    old, common.get_client = common.get_client, lambda name: model
    draw, Starts.draw = Starts.draw, classmethod(lambda cls, seed=0: cls(7, seed))
    try:
        for _ in range(5):
            out = folder / "r"
            resume = ["--resume"] if (out / "config.json").exists() else []
            if main([*args, *resume, "--out", str(out)]) == 0:
                break
        else:
            raise StorageError("the disk stays full")
    finally:
        common.get_client, Starts.draw = old, draw
    held_out = json.loads((out / "held_out.json").read_text())
    files = {file.name: file.read_text() for file in (out / "candidates").glob("*.py")}
    assert len(list((out / "candidates").glob("*.json"))) == len(files) == steps
    with CodeRunUsage(out, model) as requests:
        return [files, held_out["mean return"]], requests


def write_policy(folder: Path, model: Model) -> tuple[Any, int]:
    return commanded(folder, model, 2, ["code", "cartpole"])


def write_reward(folder: Path, model: Model) -> tuple[Any, int]:
    # Of one candidate: how one follows another is as in `write_policy`.
    options = ["--training", "2", "--trainings", "1", "--no-gif"]
    return commanded(folder, model, 1, ["reward", "cartpole", *options])


@contextlib.contextmanager
def CodeRunUsage(out: Path, model: Model) -> Any:
    """Count the requests of a run's journal as a resume does."""
    from llmopt.code.program import ProgramSpace
    from llmopt.journal import Journal
    from llmopt.state import State

    yield Journal.read(out / "search.jsonl", State(ProgramSpace())).state.spent.requests


def controller(number: int) -> str:
    return f"```python\ndef controller(obs):\n    return int({number % 97}.0 * obs[1] > 0)\n```"


def shaped(number: int) -> str:
    head = "def reward(obs, action, next_obs, info):"
    return f"```python\n{head}\n    return {number % 97}.0 * obs[1], {{}}\n```"


SCENARIOS: dict[str, tuple[Callable[[Path, Model], Any], Callable[[int], str]]] = {
    "optimizer": (numeric, point),
    "functions": (functions, code),
    "run": (command, weights),
    "code": (write_policy, controller),
    "reward": (write_reward, shaped),
}


@contextlib.contextmanager
def quiet() -> Any:
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def fresh(name: str, home: Path) -> tuple[Callable[[], Any], Path, Model]:
    play, text = SCENARIOS[name]
    folder = home / "files"
    folder.mkdir(parents=True)
    model = Model(home / "calls", text)
    return (lambda: play(folder, model)), folder, model


def attack(name: str, home: Path, at: int, how: str, expected: Any) -> bool:
    """Hit one change; return whether there were so many."""
    play, folder, model = fresh(name, home)
    where = f"{name}, {how} at change {at}"
    with quiet():
        if how in KILLS:
            hit = killed(play, folder, at, how)
        else:
            with Faults(folder, at, how) as faults, contextlib.suppress(StorageError):
                play()
            hit = bool(faults.hit)
        found, requests = play()
    calls = model.calls()
    assert found == expected, where
    again = calls.total() - len(calls)
    if how in KILLS or how == "full":  # one reply, at most, that could be stored nowhere
        assert again <= 1, f"{where}: {again} requests were paid again"
        assert calls.total() <= requests <= calls.total() + 1, where
    else:
        assert again == 0, f"{where}: {again} requests were paid again"
        assert requests == calls.total(), where
    return hit


def whole(name: str, home: Path) -> tuple[Any, int]:
    """Return what an uninterrupted run finds, and how many changes it makes."""
    play, folder, model = fresh(name, home)
    with quiet(), Faults(folder, 0, "once") as faults:
        found, requests = play()
    assert requests == model.calls().total() == len(model.calls())
    lines = sum(file.read_bytes().count(b"\n") for file in folder.rglob("*.jsonl"))
    assert faults.names["fsync"] >= lines > 4, "a line was not forced to the disk"
    return found, faults.count


NEEDS = pytest.mark.skipif(bool(support().problems), reason="; ".join(support().problems) or "-")


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("optimizer", 2),
        pytest.param("functions", 5, marks=NEEDS),
        ("run", 9),
        pytest.param("code", 17, marks=NEEDS),
        pytest.param("reward", 9, marks=NEEDS),
    ],
)
def test_nothing_paid_is_lost_or_paid_twice(tmp_path, monkeypatch, name, step):
    # To draw it takes most of a run's time; what is written is one file either way.
    drawn = "llmopt.benchmarks.run.session.learning_curve"
    monkeypatch.setattr(drawn, lambda *_, **__: b"a picture")
    expected, changes = whole(name, tmp_path / "whole")
    assert changes > 8
    ways = (*KILLS, *FAILURES)
    hits = 0
    for k, at in enumerate(range(1, changes + 1, step)):
        for how in ways if step == 1 else [ways[k % len(ways)]]:
            hits += attack(name, tmp_path / f"{at}-{how}", at, how, expected)
    assert hits > 2


def main(names: list[str]) -> None:
    for name in names or SCENARIOS:
        with tempfile.TemporaryDirectory() as home:
            expected, changes = whole(name, Path(home) / "whole")
            print(f"{name}: {changes} changes", flush=True)
            hits, wrong = Counter[str](), []
            for at in range(1, changes + 1):
                for how in (*KILLS, *FAILURES):
                    try:
                        place = Path(home) / f"{at}-{how}"
                        hits[how] += attack(name, place, at, how, expected)
                    except Exception as error:
                        wrong.append(f"{how} at {at}: {type(error).__name__}: {error}")
                        print("  ", wrong[-1][:600], flush=True)
            print(f"{name}: {hits.total()} hit {dict(hits)}, {len(wrong)} wrong", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
