"""The experiment that strategies are chosen by."""

from __future__ import annotations

import json

import numpy as np
import pytest

from llmopt.benchmarks.experiments import strategies
from llmopt.benchmarks.experiments.strategies import (
    ALL,
    FUNCTIONS,
    VARIANTS,
    StrategyCell,
    problem_of,
    run_cell,
)


@pytest.mark.parametrize("function", ALL)
@pytest.mark.parametrize("dimension", [3, 10])
def test_the_optimum_is_zero_inside_the_box(function, dimension):
    problem, reward = problem_of(StrategyCell("random", function, dimension, 4))
    place = list(ALL).index(function)
    shift = np.random.default_rng([place, dimension, 4]).uniform(-3, 3, dimension)
    assert reward(shift) == pytest.approx(0.0, abs=1e-4)
    assert np.abs(shift).max() < problem.high
    rng = np.random.default_rng(0)
    assert max(reward(rng.uniform(-5, 5, dimension)) for _ in range(50)) < 0
    assert [r for _, r in problem.warmup] == [reward(np.array(p)) for p, _ in problem.warmup]


def test_seeds_are_other_instances_and_methods_share_them():
    one, _ = problem_of(StrategyCell("random", "discus", 3, 0))
    same, _ = problem_of(StrategyCell("levels, uniform", "discus", 3, 0))
    other, _ = problem_of(StrategyCell("random", "discus", 3, 1))
    assert one == same
    assert one.warmup != other.warmup


def test_every_variant_without_a_model_runs_and_repeats():
    for name, variant in VARIANTS.items():
        if variant.prompt and not variant.sampler:
            continue
        line = run_cell(StrategyCell(name, "powers", 3, 0))
        assert len(line["rewards"]) == 100
        assert line["best"] >= max(line["rewards"]) - 1e-3
        assert run_cell(StrategyCell(name, "powers", 3, 0))["rewards"] == line["rewards"]


def line(variant, seed, best, model=""):
    made = {"variant": variant, "function": "discus", "dimension": 3, "seed": seed}
    return {**made, "model": model, "best": best, "seconds": 50.0, "tokens": [900, 100]}


def test_table_compares_ablations_with_their_model():
    lines = [line("levels", s, -0.1 * (s + 1), "smollm2") for s in range(8)]
    lines += [line("levels, uniform", s, -10.0 * (s + 1)) for s in range(8)]
    lines += [line("random", s, -0.01) for s in range(7)]
    rows = strategies.make_table(lines, "command").splitlines()
    cells = {r.split(" | ")[0].strip("| "): r.strip("| ").split(" | ") for r in rows if "|" in r}
    assert "over the 7 instances that every variant has finished" in "\n".join(rows)
    assert cells["levels"][1:4] == ["8", "2.00", "-0.45"]
    assert cells["levels"][4:6] == ["0.50", "10"]
    assert cells["random"][2] == "1.00"
    assert cells["levels, uniform"][2] == "3.00"
    assert cells["levels, uniform"][-2:] == ["8 of 8", "0.0078"]


def test_finished_cells_are_not_run_again(tmp_path, capsys):
    results = tmp_path / "s.jsonl"
    options = ["--variants", "random", "--dimensions", "3", "--results", str(results)]
    strategies.main([*options, "--seeds", "1"])
    before = results.read_text()
    assert len(before.splitlines()) == len(FUNCTIONS)
    strategies.main([*options, "--seeds", "1"])
    assert "4 cells, 4 of them done, 0 to run" in capsys.readouterr().err
    assert results.read_text() == before
    assert {json.loads(text)["variant"] for text in before.splitlines()} == {"random"}
    assert (tmp_path / "s.md").is_file()


def test_the_table_goes_function_by_function_too():
    lines = [line("columns", s, -0.1 * (s + 1), "smollm2") for s in range(8)]
    lines += [line("columns, uniform", s, -10.0 * (s + 1)) for s in range(8)]
    text = strategies.make_table(lines, "command")
    assert "| discus | 8 of 8, 0.0078 |" in text
