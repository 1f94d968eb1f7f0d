"""The experiment on spaces with numbers and categories."""

from __future__ import annotations

import numpy as np
import pytest

from llmopt.benchmarks.experiments import mixed_spaces
from llmopt.benchmarks.experiments.mixed_spaces import (
    SHAPES,
    VARIANTS,
    MixedCell,
    make_table,
    problem_of,
    run_cell,
)
from llmopt.benchmarks.experiments.strategies import ALL, HELD_OUT, SHIFT
from llmopt.space import Categorical


@pytest.mark.parametrize("function", HELD_OUT)
@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_one_combination_of_choices_holds_the_optimum(function, shape):
    cell = MixedCell("random", function, shape, 3)
    space, value, warmup = problem_of(cell)
    assert problem_of(cell)[2] == warmup
    assert problem_of(MixedCell("random", function, shape, 4))[2] != warmup
    n, counts = SHAPES[shape]
    place = list(ALL).index(function)
    shift = np.random.default_rng([41, place, shape, 3]).uniform(-SHIFT, SHIFT, n)
    usual = np.median([value(params) for params in warmup])
    numbers = {f"x{i}": float(shift[i]) for i in range(n)}
    found = []
    for place in np.ndindex(*counts):
        found.append(value({**numbers, **{f"c{j}": f"k{q}" for j, q in enumerate(place)}}))
    assert 0 < min(found) < 1e-4 * usual
    assert sorted(found)[1] > min(found)
    assert sum(isinstance(d, Categorical) for d in space.dimensions) == len(counts)


def test_every_variant_without_a_model_runs_and_repeats():
    starts = set()
    for name, variant in VARIANTS.items():
        if variant.prompt and not variant.sampler:
            continue
        line = run_cell(MixedCell(name, "sphere", 0, 0))
        assert len(line["values"]) == 100
        assert line["best"] == pytest.approx(min(line["values"]), rel=1e-4)
        assert run_cell(MixedCell(name, "sphere", 0, 0))["values"] == line["values"]
        starts.add(tuple(line["values"][:20]))
    assert len(starts) == 1  # the warm-up points are the same


def test_the_table_counts_wins():
    def line(variant, seed, best, **more):
        made = {"variant": variant, "function": "sphere", "shape": seed % 2, "seed": seed}
        return {**made, "best": best, **more}

    lines = [line("columns", s, 0.1 * (s + 1), fallback_share=0.02) for s in range(8)]
    lines += [line("levels", s, 10.0 * (s + 1), fallback_share=0.0) for s in range(8)]
    lines += [line("random", s, 0.01) for s in range(7)]
    rows = make_table(lines).splitlines()
    cells = {r.split(" | ")[0].strip("| "): r.strip("| ").split(" | ") for r in rows if "|" in r}
    assert cells["columns"][:3] == ["columns", "8", "2.00"]
    assert cells["columns"][-1] == "2.0%"
    assert cells["levels"][2:7] == ["3.00", "8 of 8", "0.0078", "4 of 4", "4 of 4"]
    assert cells["random"][2:4] == ["1.00", "0 of 7"]


def test_finished_cells_are_not_run_again(tmp_path, capsys):
    results = tmp_path / "m.jsonl"
    options = ["--variants", "random", "--seeds", "1", "--results", str(results)]
    mixed_spaces.main([*options, "--set", "choosing"])
    before = results.read_text()
    assert len(before.splitlines()) == 8
    mixed_spaces.main([*options, "--set", "choosing"])
    assert "8 cells, 8 of them done, 0 to run" in capsys.readouterr().err
    assert results.read_text() == before
    assert (tmp_path / "m.md").is_file()
