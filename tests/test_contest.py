"""`llmopt run` and `llmopt bench` are one contest: the same points for the same seed."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from llmopt import ScriptedClient
from llmopt.benchmarks.bench import make_cell, run_cell
from llmopt.benchmarks.methods import METHODS
from llmopt.benchmarks.run import RunConfig, run
from llmopt.benchmarks.run import session as run_module
from llmopt.benchmarks.run.folder import RunFolder

N = 10  # parameters of cartpole
BUDGET = {"episodes": 2, "warmup": 4, "heldout": 3, "seed": 3}


@pytest.fixture(autouse=True)
def no_curves(monkeypatch):
    monkeypatch.setattr(run_module, "learning_curve", lambda *_, **__: b"")


def answer(request):
    rng = np.random.default_rng(int(request.digest()[:12], 16))
    if request.grammar:
        letters = rng.choice(list("abcdefghijklmnopqrstuvwxyz"), N)
        return " " + " ".join(letters)
    names = re.findall(r"[a-z_]+<-[a-z_]+(?=: <value>)", request.text)
    names = names or [f"params[{i}]" for i in range(N)]
    values = zip(names, rng.uniform(-6, 6, N), strict=True)
    return "Proposal:\n" + ", ".join(f"{name}: {v:.1f}" for name, v in values)


def compare(path, method, name, batch=1, **options):
    """Run one method both ways; return the two lists of requests."""
    clients = ScriptedClient(answer, name="oracle"), ScriptedClient(answer, name="oracle")
    for client in clients:
        client.columns = True
    config = RunConfig(
        "cartpole", methods=(method,), iterations=9, gif=False, batch=batch, **BUDGET, **options
    )
    result = run(config, path, client=clients[0])
    cell = make_cell(
        task="cartpole", method=name, evaluations=9, model="oracle", batch=batch, **BUDGET
    )
    line = run_cell(cell, clients[1])
    with RunFolder(path) as folder:
        records = [*folder.records["warmup"], *folder.records[method]]
        heldout = folder.heldout[method]
    assert [float(f"{r.mean:.7g}") for r in records] == line["means"]
    assert list(heldout.params) == line["best_params"]
    assert heldout.mean == line["heldout"]
    assert result.methods[0].selection == line["selection"]
    return [[r.digest() for r in client.requests] for client in clients]


METHOD_NAMES = ["llm-props", "columns-gaussian", "cma"]


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_run_and_bench_give_the_same_points(tmp_path, name):
    for package in METHODS[name].needs:
        pytest.importorskip(package)
    ours, theirs = compare(tmp_path / "r", name, name)
    assert ours == theirs
    assert bool(ours) == METHODS[name].asks_model


def test_a_benchmark_asks_with_words_as_a_run_does_but_for_the_offer_to_stop(tmp_path):
    seen: list[list[str]] = []

    def constant(request):
        seen[-1].append(request.text)
        found = re.findall(r"[a-z_]+<-[a-z_]+(?=: <value>)", request.text)
        values = (f"{name}: {len(seen[-1]) / 7:.4f}" for name in dict.fromkeys(found))
        return "Hypothesis: h\nStart from: new\nProposal:\n" + ", ".join(values)

    seen.append([])
    config = RunConfig("cartpole", methods=("llm-words",), iterations=4, gif=False, **BUDGET)
    run(config, tmp_path / "r", client=ScriptedClient(constant, name="oracle"))
    seen.append([])
    cell = make_cell(task="cartpole", method="llm-words", evaluations=4, model="oracle", **BUDGET)
    run_cell(cell, ScriptedClient(constant, name="oracle"))
    ours, theirs = seen
    assert len(ours) == 4
    for a, b in zip(ours, theirs, strict=True):
        more = sorted(set(a.splitlines()) - set(b.splitlines()))
        assert [line[:30] for line in more] == ["Once no experiment is worth it"]
        assert not set(b.splitlines()) - set(a.splitlines())
    assert "Mean return" in theirs[-1]  # the feedback
    assert re.search(r"^#\d+ \| [\d.]+ ± [\d.]+ \|", theirs[-1], re.MULTILINE)


def test_a_method_finds_the_same_whatever_runs_beside_it(tmp_path):
    for methods in (("random",), ("ars", "random")):
        config = RunConfig("cartpole", methods=methods, iterations=4, gif=False, **BUDGET)
        run(config, tmp_path / "-".join(methods))
    alone, beside = (
        [
            x["params"]
            for x in map(json.loads, file.read_text().splitlines())
            if (x["method"], x["round"]) == ("random", "search")
        ]
        for file in sorted(tmp_path.glob("*random/trials.jsonl"), key=lambda f: -len(str(f)))
    )
    assert len(alone) == 4
    assert alone == beside
