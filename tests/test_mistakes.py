"""A newcomer's mistakes at four entry points: one error, nothing paid for, nothing lost.

The messages are in ``golden/errors.txt``; mistakes in a key or a model's name in ``test_ready.py``.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from wire import Say, WireServer, openai_body

import llmopt
from llmopt import Float, LLMOptimizer, ScriptedClient
from llmopt.cli import main
from llmopt.code import CodeOptimizer
from llmopt.policies import PolicySearch

SPACE = {"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)}
ANSWER = "Analysis: none.\nHypothesis: one.\nStart from: new\nProposal:\nx: 0.5, y: 0.5"


@pytest.fixture
def server() -> Iterator[WireServer]:
    wire = WireServer()
    wire.play(Say(openai_body(ANSWER)))
    listed = Say({"data": [{"id": "m"}]})
    wire.lists = lambda path: listed if path.endswith("/models") else Say({}, 404)
    yield wire
    wire.close()


def minimize(model: Any, space: Any = SPACE, **options: Any) -> None:
    llmopt.minimize(lambda p: p["x"], space, 8, model, **options)


def study(model: Any, **options: Any) -> None:
    optuna = pytest.importorskip("optuna")
    from llmopt.adapters.optuna import LLMSampler

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental
        sampler = LLMSampler(model, **options)
        optuna.create_study(sampler=sampler).optimize(lambda t: t.suggest_float("x", 0, 1), 14)


def policies(model: Any, env: str = "CartPole-v1", **options: Any) -> None:
    with PolicySearch(env, model, starts=1, max_steps=9, **options) as search:
        search.run(8)


def run(model: str, *more: str, task: str = "cartpole") -> None:
    small = ["--iterations", "3", "--warmup", "2", "--episodes", "1", "--heldout", "1"]
    if main(["run", task, *small, "--model", model, "--no-gif", *more]):
        raise ValueError("refused")


MISTAKES = {
    "minimize, a misspelt option": lambda model: minimize(model, warm_up=3),
    "minimize, a misspelt parameter": lambda model: minimize(model, start=[{"xx": 0.1, "y": 0.2}]),
    "minimize, another space": lambda model: minimize(model, {"x": SPACE["x"]}, storage="s.jsonl"),
    "minimize, a folder that is a file": lambda model: minimize(model, storage="file/s.jsonl"),
    "Optuna, a misspelt option": lambda model: study(model, n_startup=3),
    "Optuna, a seed as a text": lambda model: study(model, seed="a"),
    "policies, a misspelt environment": lambda model: policies(model, env="CartPol-v1"),
    "policies, a misspelt option": lambda model: policies(model, warm_up=3),
    "policies, a misspelt wrapper": lambda model: policies(model, wrappers="ususal"),
    "policies, the file of another task": lambda model: policies(model, storage="s.jsonl"),
    "policies, a folder that is a file": lambda model: policies(model, storage="file/s.jsonl"),
    "run, a misspelt task": lambda model: run(model, task="cartpol"),
    "run, a misspelt method": lambda model: run(model, "--methods", "rndom"),
    "run, a folder that is a file": lambda model: run(model, "--out", "file/out"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_an_error_and_costs_nothing(mistake, server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    with LLMOptimizer(SPACE, ScriptedClient([]), warmup=3, storage="s.jsonl") as optimizer:
        optimizer.tell(optimizer.ask(), 1.0)
    before = {path: path.read_bytes() for path in Path().iterdir()}
    with pytest.raises((llmopt.LLMOptError, TypeError, ValueError)):
        MISTAKES[mistake](f"openai+{server.url}/v1:m")
    assert server.seen == []  # no request that costs
    assert {path: path.read_bytes() for path in Path().iterdir()} == before


def test_a_url_makes_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    client = ScriptedClient([])
    for url in ("sqlite:///b.db", "postgresql://u:p@host/db"):
        for call in (
            lambda url=url: minimize(client, storage=url),
            lambda url=url: policies(client, storage=url),
            lambda url=url: CodeOptimizer("def f(x)", client=client, storage=url),
        ):
            with pytest.raises(llmopt.StorageError, match="LLMSampler"):
                call()
    assert not list(tmp_path.iterdir())


def test_saving_over_the_own_storage_or_loading_with_one_is_refused(tmp_path):
    path = tmp_path / "run.jsonl"
    with LLMOptimizer(SPACE, ScriptedClient([]), warmup=1, storage=path) as optimizer:
        with pytest.raises(llmopt.StorageError, match="another path"):
            optimizer.save(path)
        optimizer.tell({"x": 0.5, "y": 0.5}, 1.0)
    with pytest.raises(TypeError, match=r"storage=path\)"):
        LLMOptimizer.load(path, ScriptedClient([]), storage=path)
    assert len(LLMOptimizer.load(path, ScriptedClient([])).trials) == 1


@pytest.mark.parametrize("options", [{}, {"n_jobs": 2}])
def test_what_an_objective_raises_names_the_trial_and_its_point(options):
    def fails(point):
        raise ZeroDivisionError("division by zero")

    with pytest.raises(ZeroDivisionError) as caught:
        llmopt.minimize(fails, {"x": Float(0.25, 0.25)}, 3, "network", **options)
    (note,) = caught.value.__notes__
    assert "trial 0, at {'x': 0.25}" in note


def test_an_async_objective_is_refused_before_it_is_called():
    async def later(point):
        return 1.0

    class Later:
        __call__ = staticmethod(later)

    for objective in (later, Later()):
        with pytest.raises(TypeError, match=r"asyncio\.run.*aask"):
            llmopt.minimize(objective, SPACE, 3, "network")


# -- warnings -------------------------------------------------------------------------------


def test_a_search_that_never_asks_its_model_says_so_when_it_is_made(caplog):
    LLMOptimizer(SPACE, ScriptedClient([]), total=9, warmup=8)
    LLMOptimizer(SPACE, "network", total=12)
    assert "never asked" not in caplog.text
    LLMOptimizer(SPACE, ScriptedClient([]), total=8, warmup=20)
    assert "never asked" in caplog.text


def test_a_sampler_says_how_many_trials_are_random_at_the_first_one(caplog):
    optuna = pytest.importorskip("optuna")
    optuna.logging.enable_propagation()
    optuna.logging.set_verbosity(logging.INFO)  # another test may have changed it
    with caplog.at_level(logging.INFO):
        study("network", seed=0)
    optuna.logging.disable_propagation()
    assert sum("The first 10 trials" in record.getMessage() for record in caplog.records) >= 1


def test_few_policies_leave_one_for_the_model():
    client = ScriptedClient(lambda request: "no point")
    options = {"starts": 1, "max_steps": 9, "max_fallbacks": None}
    with PolicySearch("CartPole-v1", client, "words", **options) as search:
        with pytest.warns(llmopt.FallbackWarning) as warned:
            search.run(6)
        random = [t.source for t in search.optimizer.trials].count("warmup")
    assert random == 5
    # It names the line of the user's code.
    assert {w.filename for w in warned if w.category is llmopt.FallbackWarning} == {__file__}


def test_warnings_of_the_log_say_whose_they_are(tmp_path):
    code = (
        "import llmopt; f = lambda p: 1.0\n"
        "llmopt.minimize(f, {'x': llmopt.Float(0, 1)}, 2, 'network', description='words')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert done.stderr.startswith("llmopt: ")
