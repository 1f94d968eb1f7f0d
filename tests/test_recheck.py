"""Committed results made again, and the experiment on failures."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from llmopt.benchmarks.experiments import failures, recheck
from llmopt.benchmarks.experiments.failures import ARMS, HALF, FailureCell
from llmopt.benchmarks.experiments.recheck import SOURCES, agrees, draw
from llmopt.benchmarks.experiments.strategies import StrategyCell, run_cell


def line(variant, seconds=1.0, model="", **more):
    cell = StrategyCell(variant, "discus", 3, 0, model)
    return {**asdict(cell), "seconds": seconds, **more}


def test_methods_are_drawn_in_turn_and_slow_lines_and_other_models_not():
    lines = [*[line("random")] * 5, line("CMA-ES"), line("columns", model="smollm2")]
    lines += [line("Optuna TPE", seconds=99), line("levels", model="a chat model")]
    places = draw(lines, SOURCES["strategies"], 3, 30, seed=0)
    assert {lines[i]["variant"] for i in places} == {"random", "CMA-ES", "columns"}
    assert len(draw(lines, SOURCES["strategies"], 99, 30, seed=0)) == 7


def test_traces_agree_value_by_value():
    assert agrees([[1, 5.0], [3, 4.0]], [[1, 5.00001], [3, 4.0]], 1e-4)
    assert not agrees([[1, 5.0], [3, 4.0]], [[1, 5.0], [3, 4.1]], 1e-4)
    assert not agrees([[1, 5.0], [3, 4.0]], [[1, 5.0]], 1e-4)
    assert agrees([None, 1.0], [None, 1.0], 1e-4)
    assert not agrees([None, 1.0], [2.0, 1.0], 1e-4)


def test_a_stale_line_is_named(tmp_path, capsys):
    kept = run_cell(StrategyCell("random", "discus", 3, 0))
    stale = run_cell(StrategyCell("CMA-ES", "discus", 3, 0))
    stale["rewards"][7] += 1
    text = "".join(json.dumps(r) + "\n" for r in (kept, stale))
    (tmp_path / "strategies.jsonl").write_text(text, encoding="utf-8")
    arguments = ["--files", "strategies", "--check", "2", "--results", str(tmp_path)]
    assert recheck.main(arguments) == 1
    row = "| strategies.jsonl | 2 | 2 | 1 | CMA-ES (1) |"
    assert row in (tmp_path / "recheck.md").read_text(encoding="utf-8")
    stale["rewards"][7] -= 1
    text = "".join(json.dumps(r) + "\n" for r in (kept, stale))
    (tmp_path / "strategies.jsonl").write_text(text, encoding="utf-8")
    assert recheck.main(arguments) == 0
    assert "| strategies.jsonl | 2 | 2 | 2 | none |" in capsys.readouterr().out


def test_half_of_the_models_points_fail_and_none_of_cmas():
    pytest.importorskip("ioh")
    found = {arm: failures.run_cell(FailureCell(arm, 1, 1, 5)) for arm in ARMS}
    assert 15 < found[HALF]["failed"] < 85
    assert found["hybrid"]["failed"] == found["CMA-ES"]["failed"] == 0
    again = failures.run_cell(FailureCell(HALF, 1, 1, 5))
    assert again["steps"] == found[HALF]["steps"]
    page = failures.make_table(list(found.values()))
    assert f"| {HALF} | small network | 5-D | 1 | 200 | {found[HALF]['failed']} |" in page
    assert "| CMA-ES |" not in page
