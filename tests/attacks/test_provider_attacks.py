"""What is missing is an error before the first evaluation, at every door, and leaves nothing.

Each door is opened with no key, with no package, and with a model that nobody knows; and with a
key that the server refuses, which no search may answer by going on at random.
"""

from __future__ import annotations

import sys

import pytest
from provider_contract import no_proxies, server

from llmopt import Float, LLMOptimizer
from llmopt.cli import main
from llmopt.errors import LLMOptError, install_hint

__all__ = ["no_proxies", "server"]

SPACE = {"x": Float(-5.0, 5.0), "y": Float(-5.0, 5.0)}
TASK = "mountaincar"
QUICK = ["--iterations", "4", "--episodes", "1", "--warmup", "2", "--heldout", "2"]
COMMANDS = {
    "run": ["run", TASK, *QUICK, "--no-gif"],
    "bench": ["bench", "--tasks", TASK, "--evaluations", "4", "--episodes", "1", "--warmup", "2"],
    "code": ["code", TASK, "--steps", "1"],
    "reward": ["reward", TASK, "--steps", "1"],
}


def command(name, model, evaluated):
    # The random arm of a benchmark would be evaluated before the model's.
    assert main([*COMMANDS[name], "--model", model]) == 2


def ask(model, evaluated):
    LLMOptimizer(SPACE, model, warmup=0).ask()


def minimize(model, evaluated):
    optimizer = LLMOptimizer(SPACE, model)
    for _ in range(10):
        point = optimizer.ask()
        optimizer.tell(point, evaluated(point))


def study(model, evaluated):
    optuna = pytest.importorskip("optuna")
    from llmopt.adapters.optuna import LLMSampler

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    made = optuna.create_study(sampler=LLMSampler(model=model, n_startup_trials=0))

    def objective(trial):
        return evaluated({n: trial.suggest_float(n, -5, 5) for n in "xy"})

    made.enqueue_trial({"x": 0.0, "y": 0.0})
    made.optimize(objective, n_trials=10)


def nevergrad(model, evaluated):
    ng = pytest.importorskip("nevergrad")
    from llmopt.adapters.nevergrad import ParametrizedLLM

    space = ng.p.Dict(x=ng.p.Scalar(lower=-5, upper=5))
    ParametrizedLLM(model=model)(parametrization=space, budget=10).minimize(evaluated)


def policy(model, evaluated):
    pytest.importorskip("gymnasium")
    from llmopt.policies import PolicySearch

    search = PolicySearch("CartPole-v1", model)
    search.evaluate = evaluated
    search.run(4)


DOORS = {
    **{
        name: (lambda model, evaluated, name=name: command(name, model, evaluated))
        for name in COMMANDS
    },
    **{door.__name__: door for door in (ask, minimize, study, nevergrad, policy)},
}


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GROQ_API_KEY", raising=False)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("lacking", ["key", "package", "model"])
def test_nothing_is_evaluated_and_nothing_left(door, lacking, tmp_path, monkeypatch, capsys):
    model = "nobody:m" if lacking == "model" else "groq:m"
    if lacking == "package":
        monkeypatch.setenv("GROQ_API_KEY", "k")
        monkeypatch.setitem(sys.modules, "openai", None)
    install = install_hint("openai")
    words = {"key": "GROQ_API_KEY", "package": install, "model": "unknown model"}[lacking]
    evaluated = []

    def evaluate(point):
        evaluated.append(point)
        return 0.0

    if door in COMMANDS:
        DOORS[door](model, evaluate)
        shown = capsys.readouterr().err
    else:
        with pytest.raises((LLMOptError, ImportError)) as caught:
            DOORS[door](model, evaluate)
        shown = str(caught.value)
    assert words in shown
    assert "Traceback" not in shown
    assert evaluated == []
    assert [p.name for p in tmp_path.iterdir() if not p.name.endswith(".lock")] == []
