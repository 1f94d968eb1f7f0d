"""Requests that are counted: the model proposes first, small changes of the best go on."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from llmopt import Categorical, FallbackWarning, Float, Int, LLMOptimizer, ScriptedClient, Space
from llmopt.history import History, Trial
from llmopt.search.partners.refine import RefineEmitter
from llmopt.search.partners.scheduler import Turns

SPACE = {"x": Float(-6, 6), "y": Float(-6, 6)}


def value(params):
    return -((params["x"] - 3.1) ** 2) - (params["y"] + 1.7) ** 2


def answers(*points):
    return [f"Hypothesis: h\nStart from: new\nProposal:\nx: {x}, y: {y}" for x, y in points]


def run(optimizer, n):
    for _ in range(n):
        params = optimizer.ask()
        optimizer.tell(params, value(params))
    return [t.source for t in optimizer.trials]


def made(script, **options):
    options = {"prompt": "words", "seed": 0, "warmup": 4, "requests": 3, **options}
    return LLMOptimizer(SPACE, ScriptedClient(script), **options)


def test_the_model_goes_first_and_small_changes_refine_its_point():
    optimizer = made(answers((2, -1), (5, 5), (-5, 5)))
    sources = run(optimizer, 60)
    assert sources[:7] == ["warmup"] * 4 + ["llm"] * 3
    assert set(sources[7:]) == {"refine"}
    assert optimizer.usage.requests == 3
    assert optimizer.best.reward > -0.01 > value({"x": 2, "y": -1})


def test_the_first_half_of_the_requests_is_spent_in_a_row():
    """A design takes several answers; that they do not gain yet does not end them."""
    bad = [(-5 + 0.1 * k, 5) for k in range(8)]
    optimizer = made(answers(*bad), requests=8)
    sources = run(optimizer, 12)
    assert sources[4:9] == ["llm"] * 4 + ["refine"]
    assert "The first 4 of 8 answers" in optimizer.client.requests[0].text


def test_a_request_is_spent_once_nothing_free_gains():
    """Two misses end the model's turn; then the changes go on as long as they gain."""
    optimizer = made(answers((2, -1), (5, 5), (-5, 5), (4, 4), (3.1, -1.7)), requests=5)
    sources = run(optimizer, 120)
    first = sources.index("refine")
    assert sources[4:first] == ["llm"] * 3
    again = sources.index("llm", first)
    assert again - first > 8
    assert sources.count("llm") == 5
    text = optimizer.client.requests[3].text
    assert "a small random change of the best" in text
    assert "You are asked about 2 more times" in text


@pytest.mark.parametrize("total", [12, 20, 30])
def test_no_request_stays_unspent_where_the_end_is_known(total):
    points = [(5 - 0.5 * k, 5) for k in range(8)]
    optimizer = made(answers(*points), requests=8, total=total)
    sources = run(optimizer, total)
    assert sources.count("llm") == 8
    spread = [k for k, source in enumerate(sources) if source == "llm"]
    assert spread[-1] >= total - 1 - total // 8


def test_answers_that_cannot_be_used_take_no_further_requests():
    optimizer = made(answers((2, -1)) * 9, requests=4, total=30)
    with pytest.warns(FallbackWarning):
        run(optimizer, 30)
    assert optimizer.usage.requests == len(optimizer.client.requests) == 4


def test_a_model_that_gains_keeps_its_turn():
    steps = [(0.6 + 0.4 * k, -1.7) for k in range(7)]
    optimizer = made(answers(*steps), requests=7, warmup=[{"x": -3.0, "y": 3.0}])
    assert run(optimizer, 8)[1:] == ["llm"] * 7


def test_the_turn_of_the_changes_doubles_where_the_model_does_not_gain():
    turns, lengths = Turns(), []
    turns.take(None, (0.0, 10.0))
    turns.take(None, (0.0, 5.0))
    for _ in range(5):
        while turns.model:
            turns.take("model", (0.0, 9.0))
        quiet = 0
        while not turns.model:
            turns.take("partner", (0.0, 9.0))
            quiet += 1
        lengths.append(quiet)
    assert lengths == [8, 16, 32, 64, 64]
    turns.take("model", (0.0, 1.0))
    turns.take("model", (0.0, 9.0))
    turns.take("model", (0.0, 9.0))
    assert not turns.model
    for _ in range(8):
        turns.take("partner", (0.0, 1.0 - 1e-9))  # better by too little to count
    assert turns.model


def test_a_killed_search_goes_on_with_the_same_points(tmp_path):
    script = answers((2, -1), (5, 5), (-5, 5))
    whole = made(script)
    run(whole, 25)
    path = tmp_path / "run.jsonl"
    for n in (6, 2, 9, 8):
        cut = made(script, storage=path)
        cut.client.requests[:] = [None] * cut.usage.requests  # the script goes on as well
        run(cut, n)
        cut.close()
    assert [t.values for t in cut.trials] == [t.values for t in whole.trials]
    assert cut.usage.requests == 3
    with pytest.raises(Exception, match="requests"):
        made(script, storage=path, requests=4)


def test_a_reply_that_was_paid_for_is_used_after_a_crash(tmp_path, monkeypatch):
    path = tmp_path / "run.jsonl"
    script = answers((2, -1), (5, 5), (-5, 5))
    optimizer = made(script, storage=path, requests=1, warmup=1)
    run(optimizer, 1)

    def fail(event):
        raise KeyboardInterrupt

    monkeypatch.setattr(optimizer, "_record", fail)
    with pytest.raises(KeyboardInterrupt):
        optimizer.ask()
    optimizer.close()
    again = made([], storage=path, requests=1, warmup=1)
    assert again.usage.requests == 1
    assert again.ask() == {"x": 2.0, "y": -1.0}
    again.close()


def test_cma_es_may_be_the_one_that_costs_nothing():
    optimizer = made(answers((2, -1), (5, 5), (-5, 5)), partner="cma")
    assert set(run(optimizer, 40)[7:]) == {"cma"}


def test_wrong_numbers_and_several_objectives_are_refused():
    with pytest.raises(ValueError, match="requests=0"):
        made([], requests=0)
    with pytest.raises(ValueError, match="one objective"):
        made([], direction=["maximize", "minimize"])


def history(space, values, rewards, source="llm"):
    return History(
        tuple(
            Trial(i, space.unflatten(v), v, (r,), source=source)
            for i, (v, r) in enumerate(zip(values, rewards, strict=True))
        )
    )


def test_changes_stay_in_any_space_and_are_new():
    space = Space(
        {"lr": Float(1e-5, 1, log=True), "n": Int(1, 4), "kind": Categorical(["a", "b", "c"])}
    )
    told = history(space, [(1e-3, 2, "b"), (1e-2, 2, "b")], [1.0, 2.0])
    found = RefineEmitter().propose(space, told, np.random.default_rng(0), 30)
    assert len({space.key(p.values) for p in found}) == len(found) > 20
    for proposal in found:
        space.check(proposal.values)
        assert proposal.source == "refine"
    assert {p.values[2] for p in found} == {"a", "b", "c"}
    few = Space({"n": Int(1, 3)})
    told = history(few, [(1,), (2,), (3,)], [1.0, 2.0, 3.0])
    assert RefineEmitter().propose(few, told, np.random.default_rng(0)) == []
    assert RefineEmitter().propose(few, History(), np.random.default_rng(0)) == []


def test_steps_grow_where_they_help_and_a_new_best_of_the_model_begins_anew():
    space = Space(SPACE)
    emitter = RefineEmitter()
    better = history(space, [(float(i), 0.0) for i in range(6)], range(6), "refine")
    emitter.propose(space, better, np.random.default_rng(0))
    assert emitter._size == 10.0  # and not 1.5**6
    worse = history(space, [(float(i), 0.0) for i in range(6)], range(6, 0, -1), "refine")
    emitter.propose(space, worse, np.random.default_rng(0))
    assert emitter._size == pytest.approx(1.5 ** (1 - 5 / 4))
    more = (*worse.trials, Trial(6, {}, (5.5, 1.0), (9.0,), source="llm"))
    emitter.propose(space, History(more), np.random.default_rng(0))
    assert emitter._size == 1.0
    assert copy.copy(emitter) is not emitter


def test_random_points_do_not_widen_the_steps():
    """The spread of a warm-up says nothing about how far apart good points lie."""
    space = Space(SPACE)
    near = history(space, [(2.0, 1.0), (2.1, 1.0)], [5.0, 4.0])
    wild = tuple(
        Trial(2 + i, {}, (x, -x), (3.0 - i,), source="warmup") for i, x in enumerate((-6.0, 6.0))
    )
    first, second = (
        RefineEmitter().propose(space, told, np.random.default_rng(0), 5)
        for told in (near, History((*near.trials, *wild)))
    )
    assert first == second
    assert all(abs(p.values[0] - 2.0) < 1.5 for p in first)
