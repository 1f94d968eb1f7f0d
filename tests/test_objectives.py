"""Names of objectives, and evaluations that break constraints."""

from __future__ import annotations

import json
import math

import pytest

from llmopt import (
    Evaluation,
    Float,
    LLMOptimizer,
    RewardError,
    ScriptedClient,
    StorageError,
    minimize,
    optimize,
    report,
)
from llmopt.report_page.page import page
from llmopt.service import search_json as service

SPACE = {"x": Float(0, 1)}
NAMED = {"cost": "minimize", "error": "maximize"}


def model() -> ScriptedClient:
    return ScriptedClient([f"Start from: new\nProposal:\nx: 0.{i}" for i in range(1, 9)])


def both(point):
    return {"error": point["x"], "cost": 1 - point["x"]}


def search(client, directions=NAMED, n=2, f=both, **options):
    options = {"prompt": "words", "description": "a plant", "warmup": 0, "seed": 1, **options}
    return optimize(f, SPACE, n, client, directions=directions, **options)


def test_the_prompt_the_results_and_the_report_have_the_names(tmp_path):
    client, path = model(), tmp_path / "s.jsonl"
    result = search(client, storage=path)
    assert [t.rewards for t in result.trials] == [(0.9, 0.1), (0.8, 0.2)]
    assert "minimize cost, maximize error" in client.requests[1].text
    assert "# | cost | error | x |" in client.requests[1].text
    assert result.to_optuna().metric_names == ["cost", "error"]
    assert "cost (minimized) and error" in report(path, tmp_path / "page.html").read_text()


def test_a_list_leaves_them_without_names():
    client = model()
    search(client, ["minimize", "maximize"], f=lambda point: (point["x"], 1.0))
    assert "# | f1 | f2 | x |" in client.requests[1].text


def test_a_stored_search_keeps_the_order_of_the_names(tmp_path):
    path = tmp_path / "s.jsonl"
    search(model(), storage=path)
    swapped = {"error": "minimize", "cost": "maximize"}
    with pytest.raises(StorageError, match=r"metrics \(there \['cost', 'error'\]"):
        search(model(), swapped, 3, storage=path)
    unnamed = search(model(), ["minimize", "maximize"], 3, storage=path, f=lambda p: (1.0, 2.0))
    assert len(unnamed.trials) == 3


def test_a_reward_has_the_names_as_they_were_given():
    directions = {"cost\nin total": "minimize", "\x1b[1merror": "maximize"}
    optimizer = LLMOptimizer(SPACE, model(), direction=directions, warmup=1)
    rewards = dict(zip(directions, (1.0, 2.0), strict=True))
    assert optimizer.tell(optimizer.ask(), rewards).rewards == (1.0, 2.0)
    with pytest.raises(RewardError, match="for each objective: 'cost in total'"):
        optimizer.tell(optimizer.ask(), {**rewards, "cost in total": 3.0})


@pytest.mark.parametrize(
    "names",
    [
        {1: "minimize", "b": "minimize"},
        {"a": "minimize", " a": "minimize"},
        {"n" * 201: "minimize"},
    ],
)
def test_each_objective_has_its_own_name(names):
    with pytest.raises(ValueError, match=r'for each objective, such as \{"cost"'):
        search(model(), names)


def test_a_function_reports_a_violation_of_a_constraint():
    def f(point):
        return Evaluation(point["x"], constraint_violation=max(0.0, 0.25 - point["x"]))

    result = minimize(f, SPACE, 4, model(), prompt="words", warmup=0, points=1)
    assert [t.constraint_violation for t in result.trials] == pytest.approx([0.15, 0.05, 0, 0])
    assert result.best.params == {"x": 0.3}
    with pytest.raises(RewardError, match=r"^constraint_violation=-1\.0: expected .* 0 or more"):
        minimize(lambda p: Evaluation(1.0, constraint_violation=-1), SPACE, 2, model(), warmup=2)


def test_each_objective_has_its_standard_error(tmp_path):
    """The second one had none, and the first one's stood beside its best value."""
    client = ScriptedClient(["Start from: new\nProposal: x: 0.9"])
    options = {"direction": NAMED, "noisy": True, "warmup": 0, "storage": tmp_path / "s.jsonl"}
    with LLMOptimizer(SPACE, client, "words", **options) as optimizer:
        for x, cost, error in ((0.1, 21, 2.1), (0.1, 23, 2.3), (0.2, 80, 4.0), (0.2, 84, 4.4)):
            optimizer.tell({"x": x}, {"error": error, "cost": cost})
        optimizer.ask()
        cost, error = math.sqrt((1 + 4) / 2), math.sqrt((0.01 + 0.04) / 2)
        assert optimizer.pareto[0].stderr == pytest.approx((cost, error))
        best = service.status(optimizer)["best"]
        assert best["error"]["stderr"] == pytest.approx({"cost": cost, "error": error})
        shown = client.requests[0].text
        assert "| 22 ± 1.6 (2 times) | 2.2 ± 0.16 |" in shown
        assert "a standard deviation of about 2.2 in cost, 0.22 in error." in shown
        pytest.importorskip("optuna")
        assert "<span>± 1.6</span>" in page(optimizer)
        assert "<span>± 0.16</span>" in page(optimizer)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (0.5, (0.5, None)),
        ({"error": 0.1}, (None, 0.1)),
        ({"error": 0.1, "cost": 1}, (1.0, 0.1)),
        ([1, None], (1.0, None)),
        ({}, None),
    ],
)
def test_standard_errors_are_given_in_order_or_by_name(given, read, tmp_path):
    pytest.importorskip("pandas")
    path = tmp_path / "s.jsonl"
    options = {"prompt": "words", "direction": NAMED, "warmup": 0}
    with LLMOptimizer(SPACE, model(), storage=path, **options) as optimizer:
        result = {"params": {"x": 0.1}, "reward": [1, 2], "stderr": given}
        (told,) = service.tell(optimizer, [result])
        known = {n: e for n, e in zip(NAMED, read or (), strict=False) if e is not None}
        assert told.get("stderr", {}) == known
        (trial,) = optimizer.trials
        assert trial.stderr == read
        sources = path, optimizer.to_optuna(), optimizer.trials_dataframe()
        for source in sources:
            with LLMOptimizer(SPACE, model(), **options) as other:
                other.import_trials(source)
                assert other.trials[0].stderr == read
                assert other.import_trials(source).counts == {"known": 1}
        right = optimizer.tell({"x": 0.1}, {"error": 3}, replaces=0)
        assert right.errors == ((read or (None,))[0], None)
    lines = path.read_text().splitlines()
    if given == 0.5:  # as older files have it
        old = [{**e, "stderr": 0.5} if "stderr" in e else e for e in map(json.loads, lines)]
        path.write_text("".join(json.dumps(e) + "\n" for e in old))
    with LLMOptimizer(SPACE, model(), storage=path, **options) as optimizer:
        assert optimizer.trials == [right]


@pytest.mark.parametrize("given", [{"yield": 1}, [1, 2, 3], [-1, 1], "x", {"cost": "x"}])
def test_other_standard_errors_are_refused(given):
    optimizer = LLMOptimizer(SPACE, model(), direction=NAMED, warmup=0)
    with pytest.raises(RewardError, match="stderr"):
        optimizer.tell({"x": 0.1}, (1, 2), stderr=given)
    assert optimizer.trials == []
