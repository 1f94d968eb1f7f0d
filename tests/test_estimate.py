"""``llmopt estimate``: the formula agrees with recorded searches, and says what a cap allows."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

from llmopt import ScriptedClient, get_client
from llmopt.cli import main
from llmopt.client.prices import Price
from llmopt.client.providers.openai import OpenAIClient
from llmopt.commands.estimate import estimate

DESIGN = Path(__file__).parents[1] / "benchmarks" / "results" / "design.jsonl"
SPACES = {"zones": 10, "cascade": 18, "swimmer": 18, "hopper": 36, "walker": 108, "cheetah": 108}


def recorded(arm):
    lines = map(json.loads, DESIGN.read_text(encoding="utf-8").splitlines())
    return [x for x in lines if x["cell"]["method"] == arm and x["cell"]["task"] in SPACES]


@pytest.mark.defect(39)
def test_a_search_that_computes_takes_as_many_requests_as_the_recorded_ones():
    client = get_client("openai:gpt-6-luna")
    lines = [json.loads(x) for x in DESIGN.read_text(encoding="utf-8").splitlines()]
    usual = median(x["requests"] for x in lines if x["cell"]["method"] == "prompt-eight")
    made = estimate(client, evaluations=30, parameters=18)
    assert made.requests == pytest.approx(usual, abs=1)
    assert made.blocks == 17
    assert "17 of them for blocks of Python" in made.summary()


@pytest.mark.parametrize(("arm", "compute"), [("prompt-seven", False), ("prompt-eight", True)])
def test_requests_and_tokens_are_of_the_size_of_the_recorded_ones(arm, compute):
    ratios = []
    for line in recorded(arm):
        made = estimate(
            ScriptedClient([]), "words", evaluations=30, compute=compute,
            parameters=SPACES[line["cell"]["task"]],
        )  # fmt: skip
        each = made.prompt_tokens / made.requests / (line["prompt_tokens"] / line["requests"])
        ratios.append(each)
        if not compute:
            assert 0.5 < made.requests / line["requests"] < 2.1
    assert 0.6 < median(ratios) < 1.6


@pytest.mark.defect(39)
def test_a_cap_on_cost_is_honoured():
    client = OpenAIClient("m", price=Price(10.0, 100.0))
    made = estimate(client, "props", evaluations=100, parameters=4)
    expected = (made.prompt_tokens * 10 + made.completion_tokens * 100) / 1e6
    assert made.cost == pytest.approx(expected)
    assert f"${made.cost:.2f}" in made.summary()
    capped = estimate(client, "props", evaluations=100, parameters=4, max_cost=made.cost / 4)
    assert "is reached after about 25 requests" in capped.summary()
    assert "reached" not in estimate(client, evaluations=9, parameters=4, max_cost=1e9).summary()


def test_points_divide_the_requests_and_nothing_is_sent_for_nothing():
    client = ScriptedClient([])
    assert estimate(client, "props", evaluations=40, parameters=3, points=4).requests == 10
    assert estimate(get_client("network"), evaluations=12, parameters=3, points=4).requests == 12
    nothing = estimate(client, evaluations=0, parameters=3)
    assert (nothing.requests, nothing.prompt_tokens, nothing.completion_tokens) == (0, 0, 0)


def test_local_models_are_free_and_unknown_prices_are_said(capsys):
    for model in ("smollm2", "network"):
        assert "free" in estimate(get_client(model), evaluations=9, parameters=2).summary()
    assert main(["estimate", "--model", "openai:some", "--no-compute"]) == 0
    assert "8 requests to openai:some: " in (said := capsys.readouterr().out)
    assert "cost unknown" in said
    assert main(["estimate", "--evaluations", "-1"]) == 2
    assert "--evaluations -1: expected 0 or more" in capsys.readouterr().err
