"""Names of objectives, and evaluations that break constraints."""

from __future__ import annotations

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
