"""The small network as a model: the model string ``"network"`` wherever one goes."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys

import pytest

import llmopt
from llmopt import Categorical, Float, Int, get_client
from llmopt.client.local.embedded import embedded_client
from llmopt.client.model_facts import model_facts
from llmopt.commands.estimate import FREE, price_of
from llmopt.commands.models import survey
from llmopt.errors import install_hint

SPACE = {"x": Float(-5, 5), "y": Float(-5, 5), "k": Int(1, 4), "c": Categorical(["a", "b"])}


def loss(p):
    return (p["x"] - 2) ** 2 + (p["y"] + 1) ** 2 + abs(p["k"] - 2) + (p["c"] == "a")


def test_a_search_by_numbers_needs_one_word():
    found = llmopt.minimize(loss, SPACE, 80, "network", seed=0)
    assert found.best.reward < 0.2
    usage = found.usage
    assert (usage.cost, usage.prompt_tokens, usage.fallbacks) == (0.0, 0, 0)
    assert usage.proposals == {"warmup": 8, "llm": 72}


def test_the_optuna_sampler_and_the_nevergrad_optimizer_take_it():
    optuna = pytest.importorskip("optuna")
    ng = pytest.importorskip("nevergrad")
    from llmopt.adapters.nevergrad import ParametrizedLLM
    from llmopt.adapters.optuna import LLMSampler

    study = optuna.create_study(sampler=LLMSampler("network", seed=0))
    study.optimize(lambda t: (t.suggest_float("x", -5, 5) - 2) ** 2, n_trials=30)
    assert study.best_value < 0.1
    x = ng.p.Scalar(lower=-5, upper=5)
    found = ParametrizedLLM(model="network")(x, budget=30).minimize(lambda x: (x - 2) ** 2)
    assert abs(found.value - 2) < 0.5


def test_a_free_model_may_be_asked_for_nothing(tmp_path, capsys):
    made = {"seed": 0, "max_cost": 0, "storage": tmp_path / "s.jsonl", "progress": True}
    space = {"x": llmopt.Float(0, 1)}
    found = llmopt.minimize(lambda p: p["x"], space, 6, "network", warmup=2, **made)
    assert (len(found.trials), found.usage.fallbacks) == (6, 0)
    llmopt.minimize(lambda p: p["x"], space, 3, "network", warmup=2, **made)
    assert "holds 6 of 6 trials" in (said := capsys.readouterr().err)
    assert "3 includes these; ask for more to resume" in said


def test_as_a_partner_it_costs_no_request_and_searches_choices_too():
    from llmopt import ScriptedClient

    script = ["x: 4, y: 4, k: 4, c: a"] * 9
    found = llmopt.minimize(
        loss, SPACE, 60, ScriptedClient(script, cycle=True), prompt="props", partner="network",
        max_requests=2, seed=0,
    )  # fmt: skip
    told = found.usage.proposals
    assert found.usage.requests == 2
    assert told["network"] > 50
    assert found.best.source == "network"
    assert found.best.reward < 2 < loss(found.trials[5].params)


def test_what_is_known_of_it():
    client = get_client("network")
    assert model_facts(client).default_prompt == "columns"
    assert price_of(client) == FREE
    assert next(s for s in survey(0.1) if s.model == "network").ready


def test_where_the_language_model_cannot_run_the_error_names_both_ways(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    both = re.escape(install_hint("local")) + ".*'network'"
    with pytest.raises(ImportError, match=both):
        embedded_client().check_ready()


def test_it_needs_numpy_alone():
    code = (
        "import json, sys, llmopt\n"
        "llmopt.minimize(lambda p: p['x'] ** 2, {'x': llmopt.Float(-1, 1)}, 20, 'network')\n"
        "print(json.dumps([m for m in ('xllamacpp', 'torch', 'scipy') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
