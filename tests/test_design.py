"""The experiment on the cost of a design: its functions, what its arms ask, its table."""

from __future__ import annotations

import numpy as np
import pytest

from llmopt import ScriptedClient
from llmopt.benchmarks.engine.cell import Cell, read_lines
from llmopt.benchmarks.experiments import command, design
from llmopt.benchmarks.experiments.functions import SHAPES, Function


@pytest.mark.parametrize("name", SHAPES)
def test_a_function_is_the_same_for_the_same_seed_and_least_at_its_optimum(name):
    one, again, other = Function(name, 4), Function(name, 4), Function(name, 5)
    best = dict(zip(one.space, one._optimum, strict=True))
    assert one.true(best) == pytest.approx(one.best)
    rng = np.random.default_rng(0)
    points = [{x: float(rng.uniform(-5, 5)) for x in one.space} for _ in range(50)]
    values = [one(p) for p in points]
    assert values == [again(p) for p in points]
    assert values != [other(p) for p in points]
    assert min(one.true(p) for p in points) > one.best
    noise = [v - one.true(p) for v, p in zip(values, points, strict=True)]
    assert np.std(noise) == pytest.approx(SHAPES[name].noise, rel=0.4, abs=1e-9)


def run(monkeypatch, tmp_path, task, arm, answers, evaluations=12):
    client = ScriptedClient(answers)
    client.default_prompt = "words"
    monkeypatch.setattr(command, "load", lambda model: client)
    line = design.run_cell(Cell(task, arm, 4, evaluations, "folder:x"), "folder:x", tmp_path)
    return line, [request.text for request in client.requests]


POINTS = "\n".join(
    f"Hypothesis: h\nStart from: new\nProposal:\n{', '.join([str(x)] * 6)}" for x in (0.5, 1, 1.5)
)


def line_of(task, method, seed, curve, asked, **more):
    found = {"curve": curve, "asked": asked, "requests": asked[-1], "prompt_tokens": 1000 * seed}
    cell = Cell(task, method, seed, 30).line(**found, **more)
    return {**cell["cell"], **cell}


def test_the_table_compares_with_the_searches_of_before():
    common = {"optimum": 4.0, "stopped": ""}
    lines = [
        line_of("ridge", "before", 4, [9, 8, 7, 5], [0, 1, 2, 9], best=5.0, **common),
        line_of("ridge", "before", 5, [9, 6], [0, 6], best=6.0, **common),
        line_of("ridge", "default", 4, [9, 4.5], [0, 3], best=4.5, **common),
        line_of("ridge", "default", 5, [9, 5.9], [0, 2], best=5.9, **common),
    ]
    row = "| ridge | prompt 4 | 7.5 | 2.5 | 0.33 | 7.5 | 2.5 | 1 (4), 2 (5) | 0.5 (4), 1.9 (5) |"
    assert row in design.make_page(lines)
    assert (
        "prompt 4: median share of the requests to within 1 % 0.333 (tasks: 1)."
        in design.make_page(lines)
    )


def test_a_recorded_search_plays_again(monkeypatch, tmp_path):
    line, _ = run(monkeypatch, tmp_path, "ripples", "prompt-seven", [POINTS, "Proposal: stop"])
    monkeypatch.undo()
    recording, out = tmp_path / "ripples-prompt-seven-4.jsonl", tmp_path / "out.jsonl"
    kept = recording.read_bytes()
    arguments = [*"--tasks ripples --seeds 4 --evaluations 12 --methods prompt-seven --out".split()]
    arguments += [str(out), "--model", f"replay:{recording}", "--record", str(tmp_path)]
    design.EXPERIMENT.main("", arguments)
    (again,) = read_lines(out)
    same = ("curve", "asked", "sources", "best", "requests", "prompt_tokens")
    assert [again[name] for name in same] == [line[name] for name in same]
    assert recording.read_bytes() == kept
    assert "| ripples | prompt 7 |" in out.with_suffix(".md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("source", "limit"), [("replay:x", {"max_requests": 10}), ("", {})])
def test_the_replay_of_an_interrupted_search_ends_with_its_last_answer(source, limit):
    cell = Cell("bus-line", "prompt-eight", 20, 30)
    assert design.set_in(cell, source) == limit
