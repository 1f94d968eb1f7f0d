"""The messages of a newcomer's typical mistakes, in ``golden/errors.txt``.

``pytest tests/test_error_messages.py --update-golden`` rewrites the catalogue. Each message says
what was given, what was expected, and what to type instead.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import llmopt
from llmopt import Completion, Float, Int, LLMOptimizer, Reply, ScriptedClient
from llmopt.benchmarks.bench.cells import make_cell
from llmopt.cli import main
from llmopt.code import CodeOptimizer
from llmopt.policies import LinearPolicy, PolicySearch
from llmopt.service.description import read_description
from llmopt.service.mcp_tools import SearchFolder

SPACE = {"lr": Float(0.0, 1.0), "k": Int(0, 9)}
POINT = {"lr": 0.5, "k": 3}
SCHEMA = {"x": {"type": "number", "minimum": 0, "maximum": 1}}


def one(point: Any) -> float:
    return 1.0


def make(space: Any = SPACE, client: Any = None, **options: Any) -> LLMOptimizer:
    return LLMOptimizer(space, client or ScriptedClient([]), **{"warmup": 0, "seed": 1, **options})


def twice(*others: float) -> LLMOptimizer:
    optimizer = make()
    for reward in (1.0, 2.0):
        optimizer.tell(POINT, reward)
    for lr in others:
        optimizer.tell({**POINT, "lr": lr}, 3.0)
    return optimizer


def search(f: Any = one, space: Any = SPACE, trials: Any = 3, **options: Any) -> Any:
    options = {"seed": 1, "warmup": 8, **options}
    return llmopt.minimize(f, space, trials, ScriptedClient([]), **options)


def several(f: Any = one, directions: Any = ("minimize", "minimize"), **options: Any) -> Any:
    return llmopt.optimize(f, SPACE, 3, "network", directions=directions, **options)


def conditional(test: Any) -> llmopt.Space:
    return llmopt.Space({"k": Int(0, 9), "x": Float(0, 1, when={"k": test})})


def policies(env: Any = "CartPole-v1", **options: Any) -> PolicySearch:
    return PolicySearch(env, ScriptedClient([]), starts=1, max_steps=9, **options)


def bound_policy(env: str) -> Any:
    policy = policies(env).policy
    return policy.bind(np.zeros(policy.n_parameters))


def shell(*arguments: str) -> None:
    """Run a command; raise unless it refuses its arguments."""
    assert main(arguments) == 2


def configured(text: str) -> None:
    """Give a configuration file to `llmopt run`."""
    Path("o.toml").write_text(text)
    shell("run", "--config", "o.toml")


def code(*arguments: str) -> None:
    """Run a command over code; raise if it leaves a file."""
    shell(*arguments)
    assert not list(Path().iterdir())


def told(*results: str) -> None:
    """Report results of a search in a shell."""
    Path("search.json").write_text(
        json.dumps({"space": SCHEMA, "direction": "maximize", "warmup": 9})
    )
    shell("tell", "search.json", *results)


def describe(**keys: Any) -> Any:
    return read_description({"space": SCHEMA, "direction": "maximize", **keys})


def cell(**options: Any) -> Any:
    return make_cell(**{"task": "cartpole", "method": "random", "seed": 0, **options})


class Careless:
    def complete(self, request: Any) -> str:
        return "lr: 0.1, k: 2"


class Broken(gym.Env):
    """An environment whose reward is no number."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,))
    action_space = gym.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.low, {}

    def step(self, action: Any) -> Any:
        return self.observation_space.low, float("nan"), False, False, {}


class Unplugged(Broken):
    def step(self, action: Any) -> Any:
        raise RuntimeError("the motor is not connected")


def run_all(search: PolicySearch) -> None:
    with search:
        search.run(8)


def stored(**changes: Any) -> LLMOptimizer:
    """Open the file of another search."""
    with make(storage="s.jsonl") as optimizer:
        optimizer.tell(POINT, 1.0)
    return make(**{"storage": "s.jsonl", **changes})


def altered(change: Callable[[str], str]) -> LLMOptimizer:
    with make(storage="s.jsonl") as optimizer:
        optimizer.tell(POINT, 1.0)
    path = Path("s.jsonl")
    path.write_text(change(path.read_text()))
    return make(storage="s.jsonl")


def in_the_future(text: str) -> str:
    head, _, rest = text.partition("\n")
    return json.dumps({**json.loads(head), "format": 99}) + "\n" + rest


def foreign(text: str) -> LLMOptimizer:
    path = Path("mine.txt")
    path.write_text(text)
    try:
        return make(storage=path)
    finally:
        assert path.read_text() == text


def served(call: Callable[[SearchFolder], Any]) -> Any:
    searches = SearchFolder("searches", wait=0.1)
    searches.create_search("mine", SCHEMA, "maximize", options={"warmup": 1, "seed": 0})
    return call(searches)


MISTAKES: dict[str, dict[str, Callable[[], Any]]] = {
    "spaces": {
        "the space and the model swapped": lambda: LLMOptimizer("network", SPACE),
        "a list of bounds": lambda: make([(-5, 5)]),
        "an empty space": lambda: make({}),
        "bounds swapped": lambda: Float(2, 1),
        "a constraint that is none": lambda: search(constraints=3),
        "a constraint of an unknown parameter": lambda: make(constraints=["lr + kk <= 3"]),
        "an equality with one sign": lambda: make(constraints=["lr = 0.3"]),
        "a step larger than the range": lambda: Float(0, 1, step=5),
        "a forbidden point without a list": lambda: llmopt.Space(SPACE, forbidden={"k": 1}),
        "a condition as a text": lambda: conditional(">2"),
        "a condition with an unknown sign": lambda: conditional(("=>", 2)),
    },
    "points": {
        "a misspelt parameter": lambda: make().tell({"lrr": 0.1, "k": 1}, 1.0),
        "a missing parameter": lambda: make().tell({"lr": 0.1}, 1.0),
        "a value out of range": lambda: make().tell({"lr": 4.2, "k": 1}, 1.0),
        "a number as a text": lambda: make().tell({"lr": "0.1", "k": 1}, 1.0),
        "a choice as a text": lambda: make({"c": llmopt.Categorical([1, 2])}).tell({"c": "1"}, 1),
        "a list": lambda: make().tell([0.1, 1], 1.0),
        "a start point without a list": lambda: make(start=POINT),
        "a warm-up point out of range": lambda: make(warmup=[POINT, {"lr": 4.2, "k": 1}]),
    },
    "results": {
        "a reward as a text": lambda: make().tell(POINT, "2"),
        "a reward beyond a float": lambda: make().tell(POINT, 10**400),
        "two rewards for one objective": lambda: make().tell(POINT, (1.0, 2.0)),
        "one reward for two objectives": lambda: make(direction=["maximize"] * 2).tell(POINT, 1.0),
        "a missing reward of two": lambda: make(direction=["minimize"] * 2).tell(POINT, (1, None)),
        "a negative violation": lambda: make().tell(POINT, 1.0, constraint_violation=-1.0),
        "a partial point out of range": lambda: make().enqueue({"lr": 4.2}),
        "a part as a text": lambda: make().tell(POINT, 1.0, parts={"yield": "x"}),
        "parts without names": lambda: make().tell(POINT, 1.0, parts=[1.0, 2.0]),
        "words in a reward": lambda: make().tell(POINT, (0.3, "noisy")),
        "a trial withdrawn by its number from 1": lambda: twice().withdraw(trial=2),
        "functions that are no Python": lambda: make().equip("def f(:"),
        "a correction of no trial": lambda: make().tell(POINT, 1.0, replaces=3),
        "a correction of another trial": lambda: twice(0.75).tell(POINT, 1.0, replaces=2),
        "a point in place of one never asked": lambda: make().tell(POINT, 1.0, instead_of=POINT),
        "both at once": lambda: twice(0.75).tell(POINT, 1.0, instead_of=POINT, replaces=0),
        "an unknown name of a fixed value": lambda: make().ask(fixed={"lrr": 0.5}),
        "a fixed value out of range": lambda: make().ask(fixed={"lr": 4.2}),
        "fixed values that break a constraint": lambda: make(constraints="10 * lr + k <= 3").ask(
            fixed={"lr": 0.5}
        ),
        "a fixed value without its condition": lambda: make(conditional(1)).ask(
            fixed={"k": 2, "x": 0.5}
        ),
        "a point withdrawn twice": lambda: make().withdraw(POINT),
        "a trial withdrawn twice": lambda: [o := twice(), *(o.withdraw(trial=0) for _ in "ab")],
        "a standard error as a text": lambda: make().tell(POINT, 1.0, stderr="x"),
        "the best of no trials": lambda: make().best,
    },
    "functions": {
        "the space before the function": lambda: search(SPACE, one),
        "a function of two arguments": lambda: search(lambda x, y: x),
        "a function that computes with the point": lambda: search(lambda x: (x - 1) ** 2),
        "a function that returns nothing": lambda: search(lambda p: None, trials=8),
        "a function that returns a dict": lambda: search(lambda p: {"loss": 1.0}),
        "a function that returns words and a number": lambda: search(lambda p: ("w", 1.0)),
        "a function that returns two numbers": lambda: search(lambda p: (1.0, 2.0)),
        "a function that returns an array": lambda: search(lambda p: np.ones(1)),
        "one number for two objectives": several,
    },
    "arguments": {
        "a misspelt argument": lambda: search(warm_up=3),
        "a misspelt cap": lambda: make(max_request=3),
        "no number of trials": lambda: search(trials=None),
        "no trials": lambda: search(trials=0),
        "a negative number of finalists": lambda: search(trials=20, finalists=-1),
        "too many finalists": lambda: search(trials=20, finalists=6),
        "a number of trials as a text": lambda: search(trials="10"),
        "a misspelt direction": lambda: make(direction="min"),
        "misspelt directions": lambda: several(directions=["min", "max"]),
        "a direction of minimize": lambda: search(direction="minimize"),
        "a negative cap": lambda: search(max_cost=-1),
        "a seed that is no whole number": lambda: search(seed=0.5),
        "a callback that is a function": lambda: search(callbacks=[print]),
        "exceptions in a list": lambda: search(catch=[ValueError]),
        "a misspelt prompt": lambda: make(prompt="wrds"),
        "a missing template": lambda: make(prompt="nowhere.j2"),
        "caps that are a number": lambda: setattr(make(), "limits", 3),
    },
    "models": {
        "an address alone": lambda: llmopt.get_client("http://a:8000/v1"),
        "a word that is no model": lambda: llmopt.get_client("qqq:x"),
        "a prefix alone": lambda: llmopt.get_client("gguf:"),
        "a misspelt option of a model": lambda: llmopt.get_client("openai:m?timeot=3"),
        "seconds as a word": lambda: llmopt.get_client("openai:m?timeout=soon"),
        "seconds below 0": lambda: llmopt.get_client("openai:m?timeout=-1"),
        "an unknown effort": lambda: llmopt.get_client("openai:m?effort=much"),
        "a number of tokens with a fraction": lambda: llmopt.get_client(
            "openai:m?reasoning_tokens=1.5"
        ),
        "a switch that is neither": lambda: llmopt.get_client("openai:m?local=maybe"),
        "a body that is a number": lambda: llmopt.get_client("openai:m?extra_body=3"),
        "a price that is a number": lambda: llmopt.get_client("openai:m?price=3"),
        "a misspelt provider": lambda: llmopt.get_client("opnai:gpt-6-luna"),
        "an option of a model without any": lambda: llmopt.get_client("network?x=1"),
        "a key in a model string": lambda: llmopt.get_client("openai:m?api_key=x"),
        "a client that returns a text": lambda: make(client=Careless()).ask(),
        "one reply as a text": lambda: ScriptedClient("abc"),
        "too few replies": lambda: make(
            client=ScriptedClient([Reply((Completion("lr: 0.5, k: 3"),))]), on_error="raise"
        ).ask(2),
    },
    "policies": {
        "a misspelt environment": lambda: policies("CartPol-v1"),
        "an environment of an unknown module": lambda: policies("Motor-v0"),
        "a misspelt wrapper": lambda: policies(wrappers="ususal"),
        "too few names": lambda: policies(observations=["a"]),
        "too few weights": lambda: policies().policy_of([1, 2]),
        "an observation of another size": lambda: bound_policy("CartPole-v1").act([1, 2]),
        "an observation that is NaN": lambda: bound_policy("CartPole-v1").act([np.nan] * 4),
        "the base class of environments": lambda: policies(gym.Env),
        "a state out of range": lambda: bound_policy("FrozenLake-v1").act(16),
        "an environment that is none": lambda: LinearPolicy.for_env(5),
        "the choice before the run": lambda: policies().choose(),
        "a reward that is no number": lambda: run_all(policies(Broken)),
        "an environment that fails": lambda: run_all(policies(Unplugged)),
    },
    "files": {
        "another direction": lambda: stored(direction="minimize"),
        "another range": lambda: stored(space={**SPACE, "lr": Float(0.0, 2.0)}),
        "other parameters": lambda: stored(space={"rate": Float(0.0, 1.0)}),
        "a file of something else": lambda: foreign("a line\n"),
        "a file of other JSON": lambda: foreign('{"a": 1}\n'),
        "an altered line": lambda: altered(lambda text: text + '{"event":"told"}\n'),
        "an event of a newer version": lambda: altered(lambda text: text + '{"event":"new"}\n'),
        "a format of a newer version": lambda: altered(in_the_future),
        "a folder": lambda: make(storage="."),
        "a folder that is missing": lambda: make().save("no/ne/x.jsonl"),
        "a database": lambda: make(storage="sqlite:///b.db"),
        "a database for a search over code": lambda: CodeOptimizer(
            "def f(x)", client=ScriptedClient([]), storage="sqlite:///b.db"
        ),
        "a report as PDF": lambda: make().report("x.pdf"),
        "a page that is a number": lambda: make().report(3),
        "the report of a number": lambda: llmopt.report(3),
        "the report of a missing file": lambda: llmopt.report("none.jsonl"),
        "the report of a database": lambda: llmopt.report("sqlite:///none.db"),
        "the report of a text": lambda: (Path("a.txt").write_text("hello"), llmopt.report("a.txt")),
        "a missing table": lambda: make(import_trials="none.csv"),
        "trials of a number": lambda: make(import_trials=3),
        "trials of a database": lambda: make(import_trials="sqlite:///a:pw@b.db"),
    },
    "the shell": {
        "a misspelt command": lambda: shell("rnu"),
        "an option alone": lambda: shell("--fast"),
        "an option of other commands": lambda: shell("status", "x.jsonl", "--model", "m"),
        "no task": lambda: shell("run"),
        "a misspelt task": lambda: shell("run", "cartpol"),
        "a task far from all": lambda: shell("bench", "--tasks", "nope"),
        "a misspelt task of a suite": lambda: shell(
            "bench", "--suite", "smoke", "--tasks", "cartpol"
        ),
        "a run that is missing": lambda: shell("run", "--resume", "nowhere"),
        "a run that is missing, and its task": lambda: shell(
            "run", "cartpole", "--resume", "--out", "nowhere"
        ),
        "a misspelt option": lambda: shell("run", "cartpole", "--metods", "cma"),
        "an option without a near one": lambda: shell("check", "smollm2", "--zzz"),
        "an argument too many": lambda: shell("check", "smollm2", "b"),
        "a number as a word": lambda: shell("run", "cartpole", "--iterations", "many"),
        "a misspelt method": lambda: shell("run", "cartpole", "--methods", "rndom"),
        "a misspelt tracker": lambda: shell("run", "cartpole", "--track", "wanbd"),
        "a missing configuration": lambda: shell("run", "--config", "none.toml"),
        "a missing description": lambda: shell("ask", "none.toml"),
        "a missing storage": lambda: shell("status", "none.jsonl"),
        "a point that is no JSON": lambda: told("{"),
        "a result without a reward": lambda: told('{"params": {"x": 0.5}}'),
        "a misspelt key of a result": lambda: told('{"params": {"x": 0.5}, "rewards": 1}'),
        "samples that are a number": lambda: told(
            '{"params": {"x": 0.5}, "reward": 1, "samples": 3}'
        ),
        "feedback that is a number": lambda: told(
            '{"params": {"x": 0.5}, "reward": 1, "feedback": 3}'
        ),
        "one wrong result of two": lambda: told(
            '{"params": {"x": 0.5}, "reward": 1}', '{"params": {"x": 9}, "reward": 1}'
        ),
        "an answer without a request": lambda: shell("next", ".", "--answer", "99"),
        "the report of a folder that holds no run": lambda: shell("report", "."),
    },
    "cells of a benchmark": {
        "a misspelt method": lambda: cell(method="cmaa"),
        "a seed below 0": lambda: cell(seed=-1),
        "no evaluations": lambda: cell(evaluations=0),
        "half an episode": lambda: cell(episodes=1.5),
    },
    "configuration files": {
        "a word as a cap": lambda: configured('max-cost = "much"'),
        "a misspelt option": lambda: configured("giff = 1"),
        "a switch that is a number": lambda: configured("gif = 1"),
        "a number as a text": lambda: configured('iterations = "many"'),
        "a number with a fraction": lambda: configured("iterations = 1.5"),
        "a number that is a switch": lambda: configured("iterations = true"),
        "a list that is a text": lambda: configured('methods = "cma"'),
        "a box of three numbers": lambda: configured("box = [1, 2, 3]"),
        "a model that is a number": lambda: configured("model = 3"),
        "a command as the model": lambda: configured('model = "command:touch trap"'),
        "another configuration": lambda: configured('config = "other.toml"'),
        "no TOML": lambda: configured("x = "),
        "a list that is nested too deep": lambda: configured("x = " + "[" * 100_000),
    },
    "searches over code": {
        "no attempts": lambda: code("code", "mountaincar", "--attempts", "0"),
        "seconds that are no number": lambda: code("code", "mountaincar", "--call-seconds", "nan"),
        "an infinite temperature": lambda: code("code", "mountaincar", "--temperature", "inf"),
        "a seed below 0": lambda: code("reward", "mountaincar", "--seed", "-1"),
        "a cap of nothing": lambda: code("code", "mountaincar", "--max-requests", "0"),
        "no steps": lambda: code("code", "mountaincar", "--steps", "0"),
        "an unknown environment": lambda: code("code", "NoSuch-v0"),
        "a misspelt task": lambda: code("code", "swimer"),
        "an environment of a missing module": lambda: code("code", "no_such_module:Env-v0"),
        "no folder to resume": lambda: code("code", "mountaincar", "--resume"),
        "a missing folder to resume": lambda: code(
            "code", "mountaincar", "--out", "none", "--resume"
        ),
        "a missing recording": lambda: code("code", "mountaincar", "--model", "replay:none.jsonl"),
        "a recording in no folder": lambda: code(
            "code", "mountaincar", "--model", "smollm2", "--record", "no/x"
        ),
        "a reward for Meta-World": lambda: code("reward", "metaworld:reach-v3"),
        "no model for code": lambda: code("code", "mountaincar"),
        "no model for a reward": lambda: code("reward", "mountaincar"),
        "no key": lambda: code("code", "mountaincar", "--model", "openai:gpt-5-mini"),
        "an unknown provider": lambda: code("code", "mountaincar", "--model", "nobody:x"),
    },
    "descriptions and agents": {
        "a Python name in a schema": lambda: describe(space={"x": {"type": "number", "low": 0}}),
        "a kind that cannot be searched": lambda: describe(space={"x": {"type": "string"}}),
        "a range without an end": lambda: describe(space={"x": {"type": "number", "minimum": 0}}),
        "a list without choices": lambda: describe(space={"x": {"enum": []}}),
        "an unknown key": lambda: describe(spaces=1),
        "a start point without params": lambda: describe(start=[{"x": 1}]),
        "a template as the prompt": lambda: describe(prompt="{{ 1 }}"),
        "start points as warm-up": lambda: describe(warmup=[{"x": 1}]),
        "a name that is a path": lambda: served(lambda s: s.status("../x")),
        "an unknown search": lambda: served(lambda s: s.status("mien")),
        "a model that is not allowed": lambda: served(
            lambda s: s.create_search("a", SCHEMA, "maximize", model="openai:gpt-6-luna")
        ),
        "a result and a failure": lambda: served(
            lambda s: s.tell("mine", {"x": 0.5}, 3, failed="no power")
        ),
        "neither a result nor a failure": lambda: served(lambda s: s.tell("mine", {"x": 0.5})),
    },
}


def message(call: Callable[[], Any], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the message of a mistake, with its notes, behind the kind of its error."""
    capsys.readouterr()
    try:
        call()
    except SystemExit:
        pass
    except Exception as error:
        texts = [str(error), *getattr(error, "__notes__", ())]
        return f"{type(error).__name__}: " + "\n  ".join(texts)
    text = capsys.readouterr().err.strip()
    assert text.count("error:") == 1, f"no error, or several: {text!r}"
    return text


def neutral(text: str, folder: Path) -> str:
    """Return a message without what differs between machines and versions of Python."""
    text = text.replace(str(folder), "FOLDER")
    return re.sub(r"0x[0-9a-f]+|(?<=process )\d+", "N", text)


def test_the_messages_of_typical_mistakes(tmp_path, monkeypatch, capsys, check_golden):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    lines = []
    for kind, mistakes in MISTAKES.items():
        lines.append(f"# {kind}\n")
        for number, (name, call) in enumerate(mistakes.items()):
            folder = tmp_path / kind / str(number)
            folder.mkdir(parents=True)
            monkeypatch.chdir(folder)
            text = neutral(message(call, capsys), folder)
            assert "Traceback" not in text
            lines.append(f"{name}\n  {text}\n")
    check_golden("errors", "\n".join(lines))
