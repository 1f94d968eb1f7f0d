"""Real reactions: the tables, a search that is recorded, and the committed lines."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from llmopt import ReplayClient, ScriptedClient
from llmopt.benchmarks.bench.cells import make_cell, read_results, run_cell
from llmopt.benchmarks.bench.suites import SUITES
from llmopt.benchmarks.engine.cell import Cell
from llmopt.benchmarks.report.budgets import best_after
from llmopt.benchmarks.tasks.reactions import REACTIONS, get_reaction

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "reactions.jsonl"


def test_the_tables_are_those_of_the_papers():
    sizes = {name: len(get_reaction(name).table) for name in REACTIONS}
    assert list(sizes.values()) == [3696, 4599, 1920, 768, 960, 96]
    for name in REACTIONS:
        reaction = get_reaction(name)
        assert set(reaction.table) <= set(reaction.space.points())
        assert reaction.best == pytest.approx(92.24 if name == "chan-lam" else 100, abs=0.01)


def test_repeats_are_averaged_and_weighed_by_selectivity():
    reaction = get_reaction("chan-lam")
    point = next(p for p, repeats in reaction.table.items() if len(repeats) == 3)
    value, words = reaction.measure(point)
    repeats = reaction.table[point]
    assert value == pytest.approx(sum(d * d / (d + u) if d else 0 for d, u in repeats) / 3)
    means = (sum(x) / 3 for x in zip(*repeats, strict=True))
    assert words == "d {:.1f} %, u {:.1f} %".format(*means)


def test_a_combination_that_was_never_run_has_no_value():
    reaction = get_reaction("buchwald-hartwig")
    missing = set(reaction.space.points()) - set(reaction.table)
    assert len(missing) == 9
    value, words = reaction.measure(missing.pop())
    assert value is None
    assert "never run" in words


def cell(method, task="chan-lam", seed=0):
    options = {"episodes": 1, "warmup": 0, "heldout": 1, "finalists": 0}
    return make_cell(task, method, seed, 8, "smollm2", **options)


def test_a_recorded_search_replays_to_the_same_results(tmp_path):
    space = get_reaction("chan-lam").space
    rng = random.Random(0)

    def answer(request):
        assert "Chan-Lam" in request.text
        pairs = zip(space.names, space.dimensions, strict=True)
        values = ", ".join(f"{name}: {rng.choice(d.labels)}" for name, d in pairs)
        words = "Lesson: none\nAnalysis: none\nHypothesis: a guess.\nStart from: new\nProposal:\n"
        return words + values

    first = run_cell(cell("llm-words"), ScriptedClient(answer), record=tmp_path)
    assert first["sources"] == {"llm": 8}
    again = run_cell(cell("llm-words"), ReplayClient(tmp_path / "chan-lam-llm-words-0.jsonl"))
    assert (again["means"], again["points"]) == (first["means"], first["points"])


@pytest.mark.parametrize("method", ["random", "columns-network"])
def test_a_committed_line_is_still_what_the_code_finds(method):
    wanted = {c for c in SUITES["reactions"]("smollm2", 4) if (c.method, c.seed) == (method, 3)}
    lines = [line for line in read_results(RESULTS) if Cell.of(line) in wanted]
    assert len(lines) == len(REACTIONS)
    for line in lines:
        assert run_cell(Cell.of(line))["means"] == line["means"]


def test_the_best_after_a_budget_counts_failures_and_ends():
    assert best_after([None, 3.0, 5.0], 1) == float("-inf")
    assert best_after([None, 3.0, 5.0], 2) == 3.0
    assert best_after([4.0], 20) == 4.0


def test_no_description_gives_a_result_away():
    for name in REACTIONS:
        assert not re.search(r"\byields? of \d|\d % yield|best", get_reaction(name).description)
