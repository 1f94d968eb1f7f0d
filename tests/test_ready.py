"""A missing or refused key, a missing package, a wrong model or no server.

Each is one error at every entry point, with nothing evaluated, paid for or left behind.
"""

from __future__ import annotations

import json
import re
import sys

import pytest
from provider_contract import KEY, no_proxies, server
from wire import Say, openai_body, openai_error

import llmopt
from llmopt import Float, LLMOptimizer, get_client
from llmopt.cli import main
from llmopt.client.base import check_ready
from llmopt.client.http.endpoint import SERVERS, Documented, Server
from llmopt.errors import (
    ClientError,
    LLMOptError,
    ModelNotFoundError,
    RefusedKeyError,
    install_hint,
)
from llmopt.policies import PolicySearch

__all__ = ["no_proxies", "server"]

SPACE = {"x": Float(-1.0, 1.0)}
MODELS = {"data": [{"id": "qwen3:32b"}, {"id": "llama3.2:latest"}, {"id": "gpt-oss:20b"}]}


@pytest.fixture
def evaluated():
    return []


def _minimize(model, evaluated, **options):
    llmopt.minimize(lambda p: evaluated.append(p) or p["x"], SPACE, 8, model, **options)


def _fall_back(model, evaluated):
    _minimize(model, evaluated, on_error="fallback")


def _optimizer(model, evaluated):
    optimizer = LLMOptimizer(SPACE, model, on_error="fallback")
    try:
        evaluated.append(optimizer.ask())
    finally:
        assert optimizer.pending == []


def _ask(model, evaluated):
    evaluated.append(LLMOptimizer(SPACE, model, warmup=0).ask())


def _policies(model, evaluated):
    search = PolicySearch("CartPole-v1", model)
    try:
        search.run(evaluations=8)
    finally:
        evaluated += search.optimizer.trials


def _optuna(model, evaluated):
    optuna = pytest.importorskip("optuna")
    from llmopt.adapters.optuna import LLMSampler

    def objective(trial):
        evaluated.append(trial)
        return trial.suggest_float("x", 0.0, 1.0)

    study = optuna.create_study(sampler=LLMSampler(model))
    study.enqueue_trial({"x": 0.0})
    study.optimize(objective, n_trials=12)


def _nevergrad(model, evaluated):
    ng = pytest.importorskip("nevergrad")
    from llmopt.adapters.nevergrad import ParametrizedLLM

    space = ng.p.Dict(x=ng.p.Scalar(lower=0, upper=1))
    optimizer = ParametrizedLLM(client=model)(space, budget=9)
    for _ in range(9):
        point = optimizer.ask()
        evaluated.append(point)
        optimizer.tell(point, point.value["x"])


LIBRARY = (_minimize, _fall_back, _optimizer, _ask, _policies, _optuna, _nevergrad)
COMMANDS = (
    "run cartpole --model {model} --iterations 6 --episodes 1 --out out",
    "bench --tasks cartpole --methods llm-words --model {model} --seeds 1 --out o",
    "code cartpole --model {model} --steps 2 --out out --allow-unsandboxed",
    "reward cartpole --model {model} --steps 2 --out out --allow-unsandboxed",
    "ask search.json --model {model}",
    "check {model}",
)


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("entry", LIBRARY)
def test_the_library_evaluates_nothing_with_a_refused_key_or_without_a_server(
    server, evaluated, entry, away
):
    server.play(Say(openai_body("x: 0.5")))
    server.lists = Say(openai_error(f"wrong key {KEY}", code="invalid_api_key"), 401)
    if away:
        server.close()
    expected = ClientError if away else RefusedKeyError
    with pytest.raises(expected, match="cannot be reached" if away else "refused the API key") as e:
        entry(f"openai+{server.url}/v1:m", evaluated)
    assert KEY not in str(e.value)
    assert evaluated == []
    assert server.seen == []


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = {"x": {"type": "number", "minimum": 0, "maximum": 1}}
    (tmp_path / "search.json").write_text(json.dumps({"space": space, "direction": "maximize"}))
    return tmp_path


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_refused_command_ends_with_one_line_and_a_status(server, folder, capsys, command, listed):
    refused = Say(openai_error("wrong key"), 401)
    server.play(refused)
    if listed:
        server.lists = refused
    else:  # the first request is the one that is refused
        search = json.loads((folder / "search.json").read_text())
        (folder / "search.json").write_text(json.dumps({**search, "warmup": 0}))
    assert main(command.format(model=f"openai+{server.url}/v1:m").split())
    said = capsys.readouterr().err.strip().splitlines()
    assert [line for line in said if "refused the API key" in line], said
    if not listed:
        assert len(server.seen) == 1
    elif not command.startswith("check"):
        assert server.seen == []


@pytest.mark.parametrize("entry", [*LIBRARY, *COMMANDS[:5]])
@pytest.mark.parametrize("lacking", ["key", "package", "key and package", "model"])
def test_what_is_missing_is_told_before_all_and_leaves_nothing(
    entry, lacking, evaluated, folder, monkeypatch, capsys
):
    model = "nobody:m" if lacking == "model" else "groq:m"
    monkeypatch.delenv("GROQ_API_KEY", raising=False)
    if lacking == "package":
        monkeypatch.setenv("GROQ_API_KEY", "k")
    if "package" in lacking:
        monkeypatch.setitem(sys.modules, "openai", None)
    if isinstance(entry, str):
        # The random arm of a benchmark would be evaluated before the model's.
        command = entry.replace("llm-words", "random llm-words")
        assert main(command.format(model=model).split()) == 2
        shown = capsys.readouterr().err
    else:
        with pytest.raises((LLMOptError, ImportError)) as caught:
            entry(model, evaluated)
        shown = str(caught.value)
    words = {"key": "GROQ_API_KEY", "package": install_hint("openai"), "model": "unknown model"}
    assert all(words[what] in shown for what in lacking.split(" and "))
    assert "key" not in lacking or re.search("set|give", shown)
    assert "Traceback" not in shown
    assert evaluated == []
    left = {p.name for p in folder.iterdir() if not p.name.endswith(".lock")}
    assert left == {"search.json"}


@pytest.fixture
def ollama(server, monkeypatch):
    monkeypatch.setitem(
        SERVERS,
        "ollama",
        Server(f"{server.url}/v1", "", "test", Documented.SCHEMAS | Documented.LISTS),
    )
    server.play(Say(openai_body("x: 0.5")))
    server.lists = lambda path: Say(MODELS) if path.endswith("/models") else Say({}, 404)
    return server


@pytest.mark.parametrize("entry", LIBRARY)
def test_a_model_that_is_not_in_the_list_is_named_with_the_nearest(ollama, evaluated, entry):
    with pytest.raises(ModelNotFoundError, match=r"did you mean 'llama3\.2:latest'\?") as caught:
        entry("ollama:llama3.3", evaluated)
    assert "`ollama pull llama3.3` fetches it" in str(caught.value)
    assert evaluated == ollama.seen == []


def test_a_command_names_the_nearest_model_too(ollama, folder, capsys):
    assert main(COMMANDS[0].format(model="ollama:llama3.3").split()) == 2
    assert "did you mean 'llama3.2:latest'?" in capsys.readouterr().err
    assert ollama.seen == []


@pytest.mark.parametrize("model", ["llama3.2", "gpt-oss:20b", "kimi-k2.5:cloud"])
def test_models_that_are_there_are_ready(ollama, model):
    check_ready(get_client(f"ollama:{model}"))


def test_a_model_behind_an_alias_is_asked_for_by_its_name(ollama):
    ollama.lists = lambda path: Say(MODELS if path.endswith("/models") else {"id": "x"})
    check_ready(get_client("ollama:alias"))
