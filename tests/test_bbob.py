"""The experiment on BBOB: its searches, which of them are missing, and what is made of them."""

from __future__ import annotations

import numpy as np
import pytest

from llmopt.benchmarks.engine.cell import Cell
from llmopt.benchmarks.experiments import bbob
from llmopt.benchmarks.experiments.bbob import (
    Instance,
    missing_cells,
)


def make_cell(method, function, instance, dimension, budget, model=""):
    return Cell.make(f"f{function}", method, instance, budget, model, dimension=dimension)


def line(method, function, steps, *, dimension=2, instance=1, budget=100):
    model = "smollm2" if method == "llm-columns" else ""
    found = make_cell(method, function, instance, dimension, budget, model).line(steps=steps)
    return {**found["cell"], **found, "seconds": 1.0}


def test_a_longer_search_holds_the_shorter_one():
    wanted = [make_cell("cma", f, 1, 2, 100) for f in (1, 2, 3)]
    lines = [line("cma", 1, [], budget=400), line("cma", 2, [], budget=50)]
    assert [cell.task for cell in missing_cells(wanted, lines)] == ["f2", "f3"]
    lines.append(line("random", 3, []))
    assert len(missing_cells(wanted, lines)) == 2


class TestSearches:
    @pytest.fixture(autouse=True)
    def _package(self):
        pytest.importorskip("ioh")

    def test_an_instance_measures_the_distance_to_its_optimum(self):
        for function in (1, 8, 24):
            instance = Instance(function, 2, 3)
            best = np.array(instance._problem.optimum.x)
            assert instance(best) == pytest.approx(0, abs=1e-9)
            assert instance(best + 0.5) > 1e-3
        assert Instance(1, 1, 2).name == "Sphere"

    def test_methods_share_the_warmup_and_repeat(self):
        cells = [make_cell(m, 8, 1, 2, 20) for m in ("cma", "columns-network", "cma")]
        lines = [bbob.run_cell(cell) for cell in cells]
        first = [[s for s in found["steps"] if s[0] <= 20] for found in lines]
        assert first[0] == first[1]
        assert lines[0]["steps"] == lines[2]["steps"]
        assert lines[0]["steps"] != lines[1]["steps"]
