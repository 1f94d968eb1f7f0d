from __future__ import annotations

import math

import numpy as np
import pytest

from llmopt.benchmarks.report.lines import evaluations_to, group
from llmopt.benchmarks.report.stats import (
    Pairing,
    bootstrap_interval,
    compare,
    duels,
    fewest_tasks,
    holm,
    interquartile_mean,
    pair,
    quartiles,
    sign_flip_test,
)

CMA, RANDOM, DE = "CMA-ES", "random search", "Optuna GP"
MODEL = "smollm2 (opro)"

OPTIONS = {"batch": 0, "heldout": 100, "max_tokens": 0, "wrappers": None, "finalists": 0}


def line(method="cma", seed=0, heldout=1.0, means=(0.0, 1.0), task="CartPole-v1", **more):
    cell = {"method": method, "seed": seed, "evaluations": 1, "episodes": 2, "warmup": 1}
    return {
        "cell": {**OPTIONS, **cell, "task": task, **more.pop("cell", {})},
        "task": f"{task}/linear-v1",
        "env_id": task,
        "box": [-6.0, 6.0],
        "bias": True,
        "model": "smollm2" if method.startswith("llm") else "",
        "means": list(means),
        "selection": max((m for m in means if m is not None), default=None),
        "heldout": heldout,
        "sources": {},
        "usage": None,
        "seconds": {"proposing": 1.0, "evaluating": 2.0},
        "episodes": 4,
        **more,
    }


def runs_of(lines):
    return next(iter(group(lines).values()))


# -- of one run ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("curve", "expected"),
    [([1.0, 5.0, 9.0], 2), ([5.0], 1), ([1.0, 4.9], math.inf), ([np.nan, 7.0], 2)],
)
def test_evaluations_to_a_target(curve, expected):
    assert evaluations_to(np.array(curve), 5.0) == expected


def test_targets_are_counted_by_seed():
    lines = [line(seed=0, means=(475.0, 0.0)), line(seed=1, means=(3.0, 474.0))]
    assert runs_of(lines)[CMA].to_target == [1.0, math.inf]
    unknown = runs_of([line(task="Other-v0")])[CMA].to_target
    assert len(unknown) == 1
    assert math.isnan(unknown[0])


# -- of many ------------------------------------------------------------------------------


def test_groups_hold_what_is_comparable():
    lines = [
        line("random", 1),
        line("random", 0),
        line("llm-opro", 0),
        line("cma", 0, cell={"evaluations": 400}),
        line("cma", 0, task="Swimmer-v5"),
        line("random", 1, heldout=99.0),
    ]
    grouped = group(lines)
    assert [(k.task, k.evaluations, list(r)) for k, r in grouped.items()] == [
        ("Swimmer-v5/linear-v1", 1, [CMA]),
        ("CartPole-v1/linear-v1", 1, [MODEL, RANDOM]),
        ("CartPole-v1/linear-v1", 400, [CMA]),
    ]
    runs = list(grouped.values())[1][RANDOM]
    assert runs.seeds == (0, 1)
    assert runs.heldout.tolist() == [1.0, 1.0]  # the first of equal cells counts


def test_quartiles_and_the_interquartile_mean():
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 3.0, 4.0)
    assert quartiles([-math.inf, 1.0, 2.0]) == (-math.inf, 1.0, 2.0)
    assert interquartile_mean(np.array([-1e9, 1.0, 3.0, 1e9])) == 2.0


def test_the_bootstrap_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(60):
        strata = [rng.normal(0, 1, 20), rng.normal(0, 1, 20)]
        low, high = bootstrap_interval(strata, lambda v: v.mean(axis=-1), resamples=300, seed=trial)
        assert low < high
        hits += low <= 0 <= high
    assert 50 <= hits <= 60
    # The mean of many normal numbers: 95 % lie within 1.96 standard errors.
    low, high = bootstrap_interval([rng.normal(0, 1, 400)], lambda v: v.mean(axis=-1))
    assert high - low == pytest.approx(2 * 1.96 / 20, rel=0.08)  # of 90 % it is 16 % less
    same = bootstrap_interval([np.array([1.0, 2.0, 5.0])], seed=3)
    assert same == bootstrap_interval([np.array([1.0, 2.0, 5.0])], seed=3)


def test_methods_are_compared_on_shared_seeds_alone():
    lines = [
        *[line("cma", s, 10.0 + s) for s in range(4)],
        *[line("random", s, 5.0 + s) for s in range(3)],
        line("cma", 0, 1.0, task="Swimmer-v5"),
        line("random", 0, 2.0, task="Swimmer-v5"),
        line("optuna-gp", 0, 9.0, task="Swimmer-v5"),
    ]
    found = compare(group(lines))
    assert found.labels == (CMA, RANDOM)  # only one problem has the third
    assert found.instances == 4
    assert found.mean_rank == {CMA: 1.25, RANDOM: 1.75}
    assert len(found.problems) == 2


def test_scores_are_normalized_by_random_search_and_the_best():
    lines = [
        *[line("cma", s, 30.0) for s in range(3)],
        *[line("random", s, 10.0) for s in range(3)],
        *[line("optuna-gp", s, 20.0 if s else -1e9) for s in range(3)],
    ]
    found = compare(group(lines))
    assert (found.iqm[CMA], found.iqm[RANDOM]) == (1.0, 0.0)
    assert found.iqm[DE] == pytest.approx((0.5 + 0.5 - 1.0) / 3)  # a bad run counts -1
    lines[0]["heldout"] = 1e9
    assert compare(group(lines)).iqm[CMA] == pytest.approx((1.0 + 1.0 + 2.0) / 3)  # a good one 2
    low, high = found.interval[CMA]
    assert (low, high) == (1.0, 1.0)


def test_duels_count_pairs():
    rng = np.random.default_rng(1)
    ours, theirs = rng.normal(1, 1, 10), rng.normal(0, 1, 10)
    theirs[0] = ours[0]
    lines = [line("llm-opro", s, float(v)) for s, v in enumerate(ours)]
    lines += [line("cma", s, float(v)) for s, v in enumerate(theirs)]
    lines += [line("random", s, -50.0) for s in range(10)]
    lines += [line("optuna-gp", 77, 0.0)]
    by_label = {d.label: d for d in duels(group(lines), MODEL)}
    assert set(by_label) == {CMA, RANDOM}  # no seed in common with the third
    duel = by_label[CMA]
    assert (duel.wins, duel.ties, duel.losses) == (
        int((ours > theirs).sum()),
        1,
        int((ours < theirs).sum()),
    )
    # Of the nine differences but the tie the smallest alone is a loss: 2 of 2^9 signs at each end.
    assert duel.p == pytest.approx(4 / 2**9)
    assert by_label[RANDOM].wins == 10
    assert duel.adjusted >= duel.p


def test_holm_corrects_for_several_tests():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_no_run_is_lost_where_a_model_is_asked_in_several_ways():
    lines = [
        line("llm-opro", 0, cell={"max_tokens": cap, "model": model, "batch": 4})
        for cap in (0, 160)
        for model in ("smollm2", "gguf:a.gguf")
    ]
    runs = runs_of(lines)
    assert len(runs) == 4
    assert f"{MODEL}, gguf:a.gguf, answers up to 160 tokens" in runs
    assert sum(len(own.lines) for own in runs.values()) == len(lines)


def test_what_the_ranks_leave_out_is_named():
    lines = [
        line(m, s, task=t) for m in ("cma", "random") for s in (0, 1) for t in ("A-v0", "B-v0")
    ]
    lines += [line("llm-props", 0, 9.0, task="A-v0"), line("llm-props", 5, 9.0, task="C-v0")]
    lines += [line("cma", 0, task="C-v0"), line("random", 0, task="C-v0")]
    lines += [line("llm-opro", 0, task="A-v0")]
    found = compare(group(lines))
    assert found.labels == ("smollm2 (props)", CMA, RANDOM)
    assert [key.task for key in found.problems] == ["A-v0/linear-v1"]
    assert [key.task for key in found.dropped] == ["B-v0/linear-v1", "C-v0/linear-v1"]
    assert found.absent == ("smollm2 (opro)",)
    assert found.instances == 1
    nothing = compare(group([line("cma", 0), line("random", 1)]))
    assert (nothing.labels, nothing.instances) == ((), 0)


def won(*shares):
    """Return a pairing with the given share of each task, of one pair or two."""
    tasks = {f"t{i}": [np.array([[s]])] for i, s in enumerate(shares)}
    return Pairing("rival", tasks)


def test_all_runs_meet_all_runs_of_the_rival_and_ties_are_named():
    scores = {
        "a": {"t": {0: 3.0, 1: 1.0}, "u in 2-D": {5: 2.0}, "u in 5-D": {0: 1.0}, "own": {0: 1.0}},
        "b": {"t": {0: 2.0, 1: 1.0, 2: 0.0}, "u in 2-D": {7: 9.0}, "u in 5-D": {3: 0.0}},
    }
    found = pair(scores, "a", "b", "B")
    assert (found.tasks, found.pairs) == (2, 6 + 1 + 1)
    assert found.shares.tolist() == [pytest.approx((3 + 1.5) / 6), 0.5]
    assert found.effect == pytest.approx((0.75 + 0.5) / 2)
    assert found.ties == 1 / 8
    low, high = found.interval
    assert 0 <= low < found.effect < high <= 1
    assert pair(scores, "b", "a", "A").effect == pytest.approx(1 - found.effect)
    assert pair(scores, "a", "nobody", "N").tasks == 0


def test_level_is_said_only_where_the_interval_is_narrow():
    assert won(*[1.0] * 9).verdict(0.004) == "win"
    assert won(*[0.0] * 9).verdict(0.004) == "lose"
    assert won(*[0.5] * 9).verdict(1.0) == "level"
    assert won(*[0.0, 1.0] * 5).verdict(1.0) == "inconclusive"
    # Six tasks and five rivals: no outcome has a corrected p below 5 * 2 / 64.
    assert won(*[1.0] * 6).verdict(5 * won(*[1.0] * 6).p, 5) == "inconclusive: 8 tasks needed"
    assert won(*[1.0] * 6).verdict(won(*[1.0] * 6).p) == "win"
    assert [fewest_tasks(rivals) for rivals in (1, 2, 5, 9)] == [6, 7, 8, 9]


def test_the_sign_flip_test_is_exact_for_few_tasks():
    assert sign_flip_test(np.array([0.5] * 6)) == 2 / 64
    assert sign_flip_test(np.array([0.1, -0.1])) == 1.0
    assert sign_flip_test(np.array([3.0, 1.0, -1.0])) == 0.75  # six of eight sums
    many = sign_flip_test(np.array([0.5] * 30))
    assert many == pytest.approx(1e-5, rel=0.01)
    rng = np.random.default_rng(0)
    ps = [sign_flip_test(rng.normal(size=20), draws=199) for _ in range(300)]
    assert 0.02 < np.mean(np.array(ps) <= 0.05) < 0.09
