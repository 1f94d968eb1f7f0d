"""A refused key, a wrong model or no server: one error at every entry point, nothing paid for."""

from __future__ import annotations

import json

import pytest
from provider_contract import KEY, no_proxies, server
from wire import Say, openai_body, openai_error

import llmopt
from llmopt import Float, LLMOptimizer, get_client
from llmopt.cli import main
from llmopt.client.endpoint import SERVERS, Server
from llmopt.client.ready import check_ready
from llmopt.errors import ClientError, ModelNotFoundError, RefusedKeyError
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


LIBRARY = (_minimize, _fall_back, _optimizer, _policies, _optuna, _nevergrad)
COMMANDS = (
    "run cartpole --model {model} --iterations 6 --episodes 1 --out out",
    "bench --tasks cartpole --methods llm-words --model {model} --seeds 1 --out o",
    "code cartpole --model {model} --steps 2 --out out --allow-unsandboxed",
    "reward cartpole --model {model} --steps 2 --out out --allow-unsandboxed",
    "ask search.json --model {model}",
    "check {model}",
)


@pytest.mark.defect(2)
@pytest.mark.parametrize("entry", LIBRARY)
def test_the_library_evaluates_nothing_with_a_refused_key(server, evaluated, entry):
    server.play(Say(openai_body("x: 0.5")))
    server.lists = Say(openai_error(f"wrong key {KEY}", code="invalid_api_key"), 401)
    with pytest.raises(RefusedKeyError, match="refused the API key") as caught:
        entry(f"openai+{server.url}/v1:m", evaluated)
    assert KEY not in str(caught.value)
    assert evaluated == []
    assert server.seen == []


@pytest.mark.defect(2)
@pytest.mark.parametrize("entry", LIBRARY)
def test_the_library_evaluates_nothing_without_a_server(server, evaluated, entry):
    server.close()
    with pytest.raises(ClientError, match="cannot be reached"):
        entry(f"openai+{server.url}/v1:m", evaluated)
    assert evaluated == []


@pytest.mark.defect(2)
@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_end_with_one_line_and_a_status(
    server, tmp_path, monkeypatch, capsys, command
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "search.json").write_text(
        json.dumps({"space": {"x": {"type": "number", "minimum": 0, "maximum": 1}}})
    )
    refused = Say(openai_error("wrong key"), 401)
    server.play(refused)
    server.lists = refused
    status = main(command.format(model=f"openai+{server.url}/v1:m").split())
    assert status not in (0, None)
    said = capsys.readouterr().err.strip().splitlines()
    assert [line for line in said if "refused the API key" in line], said
    if not command.startswith("check"):
        assert server.seen == []


@pytest.fixture
def ollama(server, monkeypatch):
    monkeypatch.setitem(
        SERVERS, "ollama", Server(f"{server.url}/v1", "", "test", schemas=True, lists=True)
    )
    server.play(Say(openai_body("x: 0.5")))
    server.lists = lambda path: Say(MODELS) if path.endswith("/models") else Say({}, 404)
    return server


@pytest.mark.defect(2)
@pytest.mark.parametrize("entry", LIBRARY)
def test_a_model_that_is_not_in_the_list_is_named_with_the_nearest(ollama, evaluated, entry):
    with pytest.raises(ModelNotFoundError, match=r"did you mean 'llama3\.2:latest'\?") as caught:
        entry("ollama:llama3.3", evaluated)
    assert "`ollama pull llama3.3` fetches it" in str(caught.value)
    assert evaluated == ollama.seen == []


@pytest.mark.parametrize("model", ["llama3.2", "gpt-oss:20b", "kimi-k2.5:cloud"])
def test_models_that_are_there_are_ready(ollama, model):
    check_ready(get_client(f"ollama:{model}"))


def test_a_model_behind_an_alias_is_asked_for_by_its_name(ollama):
    ollama.lists = lambda path: Say(MODELS if path.endswith("/models") else {"id": "x"})
    check_ready(get_client("ollama:alias"))


@pytest.mark.defect(2)
@pytest.mark.parametrize("status", [401, 403, 404])
@pytest.mark.parametrize("entry", LIBRARY[:1] + LIBRARY[3:])
def test_a_refusal_of_the_first_request_is_no_result(server, evaluated, status, entry):
    server.play(Say(openai_error("no"), status))
    with pytest.raises(ClientError) as caught:
        entry(f"openai+{server.url}/v1:m", evaluated)
    assert caught.value.status == status
    assert len(server.seen) == 1


@pytest.mark.defect(2)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_does_not_end_well_after_a_refusal(
    server, tmp_path, monkeypatch, capsys, command
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "search.json").write_text(
        json.dumps({"space": {"x": {"type": "number", "minimum": 0, "maximum": 1}}, "warmup": 0})
    )
    server.play(Say(openai_error("wrong key"), 401))
    assert main(command.format(model=f"openai+{server.url}/v1:m").split())
    assert "refused the API key" in capsys.readouterr().err
    assert len(server.seen) == 1
