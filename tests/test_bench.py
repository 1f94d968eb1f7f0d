from __future__ import annotations

import json
import os
from string import ascii_lowercase

import numpy as np
import pytest

from llmopt import Completion, Reply, ScriptedClient
from llmopt.benchmarks.bench import cells as bench
from llmopt.benchmarks.bench.cells import (
    make_cell,
    read_results,
    run_bench,
    run_cell,
)
from llmopt.benchmarks.engine.cell import Cell
from llmopt.benchmarks.tasks.table import get_task
from llmopt.cli import main
from llmopt.errors import ClientError
from llmopt.policies.episode_seeds import held_out_seeds, selection_seeds

SMALL = {"evaluations": 5, "episodes": 2, "warmup": 3, "heldout": 4}


def cell(method="random", seed=0, task="cartpole", **more):
    return make_cell(task, method, seed, **{**SMALL, **more})


def answering(*, fail_at=None):
    calls = []

    def answer(request):
        calls.append(request)
        if fail_at is not None and len(calls) > fail_at:
            raise ClientError("the model went away")
        rng = np.random.default_rng(request.seed)
        n = len(request.columns) or len(request.text.splitlines()[0].split())
        row = Completion(" " + " ".join(rng.choice(list(ascii_lowercase), n)))
        return Reply((row,), prompt_tokens=30, completion_tokens=9)

    client = ScriptedClient(answer)
    client.calls, client.columns = calls, True
    return client


# -- one cell -----------------------------------------------------------------------------


def test_a_line_holds_what_happened():
    line = run_cell(cell("cma", 3))
    assert line["cell"] == {
        "task": "cartpole",
        "method": "cma",
        "seed": 3,
        **SMALL,
        "box": None,
        "bias": None,
        "model": "",
        "batch": 0,
        "max_tokens": 0,
        "wrappers": None,
        "finalists": 5,
    }
    assert (line["task"], line["parameters"]) == ("CartPole-v1/linear-v1", 10)
    assert len(line["means"]) == 8
    assert line["episodes"] == 16 + 5 * 4  # five finalists on twice as many fresh starts
    best = int(np.argmax(line["means"]))
    assert line["best_index"] == best
    assert line["selection"] == pytest.approx(line["means"][best])
    # Judged again from the line alone, by the plain evaluator.
    task = get_task("cartpole")
    with task.evaluator() as plain:
        again = plain.evaluate(line["best_params"], selection_seeds(3, 2))
    assert again.mean == pytest.approx(line["selection"])
    with task.evaluator() as plain:
        judged = plain.evaluate(line["best_params"], held_out_seeds(3, 4))
    assert line["heldout_returns"] == list(judged.returns)
    assert line["heldout"] == pytest.approx(judged.mean)
    assert (line["usage"], line["sources"], line["explanations"]) == (None, {}, [])
    json.dumps(line)


def test_all_methods_of_a_seed_share_their_warmup_and_starts():
    lines = [run_cell(cell(m, 1)) for m in ("random", "cma", "ars", "columns-gaussian")]
    assert len({tuple(line["means"][:3]) for line in lines}) == 1
    assert len({tuple(line["means"]) for line in lines}) == 4
    assert run_cell(cell("random", 2))["means"][:3] != lines[0]["means"][:3]
    again = run_cell(cell("cma", 1))
    assert again["means"] == lines[1]["means"]


# -- many cells ---------------------------------------------------------------------------


def test_finished_cells_are_never_run_again_also_after_a_kill(tmp_path, monkeypatch):
    out = tmp_path / "r.jsonl"
    cells = [cell("random", s) for s in range(3)]
    assert run_bench(cells[:2], out) == []
    before = out.read_bytes()
    out.write_bytes(before + before[:40])  # as a kill leaves it
    ran = []
    real = bench.run_cell
    monkeypatch.setattr(bench, "run_cell", lambda c, **more: ran.append(c) or real(c, **more))
    assert run_bench([*cells, cells[2]], out) == []
    assert ran == [cells[2]]
    assert out.read_bytes().startswith(before)
    assert [Cell.of(line) for line in read_results(out)] == cells


def test_a_cell_that_fails_is_told_and_tried_again(tmp_path):
    out = tmp_path / "r.jsonl"
    cells = [cell("llm-columns", evaluations=8), cell("random")]
    failed = run_bench(cells, out, client=answering(fail_at=1))
    assert [(c.method, reason) for c, reason in failed] == [("llm-columns", "the model went away")]
    assert [line["cell"]["method"] for line in read_results(out)] == ["random"]
    assert run_bench(cells, out, client=answering()) == []
    assert len(read_results(out)) == 2


def test_parallel_workers_give_the_same_lines(tmp_path):
    cells = [cell(m, s) for s in (0, 1) for m in ("random", "ars")]
    run_bench(cells, tmp_path / "one.jsonl")
    run_bench(cells, tmp_path / "two.jsonl", jobs=2)

    def results(name):
        lines = {Cell.of(x): x for x in read_results(tmp_path / name)}
        return [{k: v for k, v in lines[c].items() if k != "seconds"} for c in cells]

    assert results("one.jsonl") == results("two.jsonl")
    assert "OPENBLAS_NUM_THREADS" not in os.environ


# -- command line and suites --------------------------------------------------------------


def test_the_command_line_runs_and_goes_on(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = "bench --tasks cartpole --methods random ars --seeds 2 --iterations 3 --warmup 2"
    assert main([*command.split(), "--heldout", "2", "--episodes", "1"]) == 0
    assert len(read_results("bench.jsonl")) == 4
    capsys.readouterr()
    assert main([*command.split(), "--heldout", "2", "--episodes", "1", "--seeds", "3"]) == 0
    told = capsys.readouterr()
    assert "6 cells, 4 of them done, 2 to run" in told.err
    # The table at the end: of these cells alone, the best median first.
    head, _, *rows = [line.split() for line in told.out.splitlines() if line][1:]
    assert head == ["method", "held-out", "median", "least", "largest", "seeds"]
    assert [row[-1] for row in rows] == ["3", "3"]
    assert float(rows[0][-4].replace(",", "")) >= float(rows[1][-4].replace(",", ""))
    assert main([*command.split(), "--dry-run"]) == 0
    listed = [json.loads(x) for x in capsys.readouterr().out.splitlines()]
    assert [(c["method"], c["heldout"]) for c in listed] == [("random", 100), ("ars", 100)] * 2


# -- options of run and bench -----------------------------------------------------------------


@pytest.mark.defect(35)
def test_a_prompt_that_the_model_cannot_read_is_refused_before_any_evaluation(tmp_path, capsys):
    out = tmp_path / "run"
    command = ["run", "cartpole", "--model", "network", "--prompt", "words", "--out", str(out)]
    assert main(command) == 2
    assert "reads numbers alone, and the prompt 'words' is in words" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.defect(39)
def test_an_option_means_the_same_in_run_and_bench(capsys):
    shown = {}
    for command in ("run", "bench"):
        assert main([command, "--help"]) == 0
        text = " ".join(capsys.readouterr().out.split())
        shown[command] = text.partition("--iterations N ")[2][:26]
    assert shown["run"] == shown["bench"] == "evaluations of each method"
    for option in ("--max-tokens", "--evaluations"):
        assert main(["bench", "--tasks", "cartpole", option, "9"]) == 2
        assert f"unknown option '{option}'" in capsys.readouterr().err
