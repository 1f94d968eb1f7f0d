"""The experiment on asking for a part of the lines."""

from __future__ import annotations

import numpy as np
import pytest

from llmopt.benchmarks.experiments import many_parameters
from llmopt.benchmarks.experiments.many_parameters import ManyCell, prompt_of, run_cell


def test_arms_are_prompts_of_so_many_lines():
    rows = np.random.default_rng(0).integers(26, size=(20, 40))
    assert len(prompt_of("all")._asked(rows, 3, 4)) == 40
    assert len(prompt_of("10")._asked(rows, 3, 4)) == 10
    drawn = prompt_of("10 at random")
    drawn._rng = np.random.default_rng(1)
    first, second = drawn._asked(rows, 3, 4), drawn._asked(rows, 3, 4)
    assert 3 in first
    assert len(first) == len(set(first)) == 10
    assert first != second


def test_a_table_compares_each_arm_with_all_lines():
    lines = [
        {"arm": arm, "problem": problem, "seed": 0, "model": "", "best": best, "seconds": 1.0}
        for problem in ("f1", "f2", "Pusher-v5")
        for arm, best in (("all", -10.0), ("20", -1.0), ("10", -20.0))
    ]
    table = many_parameters.make_table(lines)
    assert "| 20 | small network | BBOB, 40-D | 2 of 2 |" in table
    assert "| 10 | small network | Pusher-v5 | 0 of 1 |" in table


def test_a_search_runs():
    pytest.importorskip("ioh")
    line = run_cell(ManyCell("10 at random", "f3", 0))
    assert line["best"] < 0
    assert line == {**run_cell(ManyCell("10 at random", "f3", 0)), "seconds": line["seconds"]}
