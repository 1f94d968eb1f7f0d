"""Committed results made again."""

from __future__ import annotations

import json

from llmopt.benchmarks.experiments import recheck
from llmopt.benchmarks.experiments.hpo import make_cell, run_cell
from llmopt.benchmarks.experiments.recheck import agrees, draw


def line(method, seconds=1.0, model="", **more):
    cell = make_cell("own-sgd", method, 0, 6, model, start="random")
    return cell.line(seconds=seconds, **more)


def test_methods_are_drawn_in_turn_and_slow_lines_and_other_models_not():
    lines = [*[line("random")] * 5, line("tpe"), line("model", model="smollm2")]
    lines += [line("gp", seconds=99), line("model", model="a chat model")]
    places = draw(lines, 3, 30, seed=0)
    assert {lines[i]["cell"]["method"] for i in places} == {"random", "tpe", "model"}
    assert len(draw(lines, 99, 30, seed=0)) == 7


def test_traces_agree_value_by_value():
    assert agrees([[1, 5.0], [3, 4.0]], [[1, 5.00001], [3, 4.0]], 1e-4)
    assert not agrees([[1, 5.0], [3, 4.0]], [[1, 5.0], [3, 4.1]], 1e-4)
    assert not agrees([[1, 5.0], [3, 4.0]], [[1, 5.0]], 1e-4)
    assert agrees([None, 1.0], [None, 1.0], 1e-4)
    assert not agrees([None, 1.0], [2.0, 1.0], 1e-4)


def test_a_stale_line_is_named(tmp_path, capsys):
    kept, stale = (
        run_cell(make_cell("own-sgd", m, 0, 6, start="random")) for m in ("random", "tpe")
    )
    stale["values"][5] += 1
    text = "".join(json.dumps(r) + "\n" for r in (kept, stale))
    (tmp_path / "hpo.jsonl").write_text(text, encoding="utf-8")
    arguments = ["--files", "hpo", "--check", "2", "--results", str(tmp_path)]
    assert recheck.main(arguments) == 1
    row = "| hpo.jsonl | 2 | 2 | 1 | tpe (1) |"
    assert row in (tmp_path / "recheck.md").read_text(encoding="utf-8")
    stale["values"][5] -= 1
    text = "".join(json.dumps(r) + "\n" for r in (kept, stale))
    (tmp_path / "hpo.jsonl").write_text(text, encoding="utf-8")
    assert recheck.main(arguments) == 0
    assert "| hpo.jsonl | 2 | 2 | 2 | none |" in capsys.readouterr().out
