"""Ranks of trials, by one objective and by several."""

from __future__ import annotations

import copy
import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

from llmopt import Completion, History, Reply, Trial, Usage
from llmopt.repeats import Merged


def history(rewards, directions=None, violations=None) -> History:
    rewards = [tuple(np.atleast_1d(r).astype(float).tolist()) for r in rewards]
    directions = directions or ("maximize",) * len(rewards[0])
    violations = violations or [0.0] * len(rewards)
    trials = [
        Trial(i, None, (float(i),), r, constraint_violation=v)
        for i, (r, v) in enumerate(zip(rewards, violations, strict=True))
    ]
    return History(tuple(trials), directions=tuple(directions))


def numbers(trials) -> list[int]:
    return [t.number for t in trials]


def dominates(a: Trial, b: Trial) -> bool:
    pairs = list(zip(a.rewards, b.rewards, strict=True))
    return all(x >= y for x, y in pairs) and any(x > y for x, y in pairs)


def fronts_by_definition(trials) -> dict[int, int]:
    """Peel front after front, each point against every other (Deb et al. 2002, III.A)."""
    front, left, level = {}, list(trials), 0
    while left:
        members = [t for t in left if not any(dominates(o, t) for o in left)]
        front |= {t.number: level for t in members}
        left = [t for t in left if t.number not in front]
        level += 1
    return front


class TestOneObjective:
    def test_best_first_and_ties_in_the_order_of_telling(self):
        assert numbers(history([1, 3, 2, 3]).ranked) == [1, 3, 2, 0]
        assert numbers(history([1, 3, 2, 1], ["minimize"]).ranked) == [0, 3, 2, 1]

    def test_infeasible_ones_come_last_by_their_violation(self):
        trials = history([9, 1, 8, 7], violations=[2.0, 0.0, 1.0, 1.0])
        assert numbers(trials.ranked) == [1, 2, 3, 0]
        assert numbers(trials.pareto_front) == [1]


class TestSeveralObjectives:
    @examples(30)
    @given(
        st.integers(2, 4).flatmap(
            lambda m: st.lists(st.tuples(*[st.integers(-2, 3)] * m), min_size=1, max_size=25)
        )
    )
    def test_ranks_by_front_as_defined(self, rewards):
        trials = history(rewards)
        front = fronts_by_definition(trials.trials)
        levels = [front[n] for n in numbers(trials.ranked)]
        assert levels == sorted(levels)
        assert numbers(trials.pareto_front) == sorted(n for n in front if front[n] == 0)

    def test_crowding_orders_a_front_as_in_nsga2(self):
        # On the line from (0, 10) to (10, 0): the ends first, then the loneliest. Distances between
        # neighbours over the spread, both objectives: 5 -> 1.6, 2 -> .8, 1 -> .4
        line = [(gain, 10 - gain) for gain in (0, 10, 1, 5, 2)]
        assert numbers(history(line).ranked) == [0, 1, 3, 4, 2]
        units = [(0.0, 1000.0), (0.1, 500.0), (0.5, 400.0), (1.0, 0.0)]
        assert numbers(history(units).ranked) == [0, 3, 2, 1]

    def test_infeasible_points_do_not_push_feasible_ones_back(self):
        trials = history([(1, 1), (5, -5), (2, 2), (0, 0)], violations=[0, 0, 3.0, 0])
        # 2 dominates 0, but breaks a constraint: 0 stays in the first front with 1.
        assert numbers(trials.ranked) == [0, 1, 3, 2]
        assert numbers(trials.pareto_front) == [0, 1]

    @pytest.mark.parametrize("shape", ["random", "chain", "flat"])
    @pytest.mark.parametrize("m", [2, 3])
    def test_memory_grows_with_the_trials_and_not_with_their_square(self, shape, m):
        import tracemalloc

        n = 4000
        steps = np.arange(n, dtype=float)
        rewards = {
            "random": np.random.default_rng(0).normal(size=(n, m)),
            "chain": np.stack([steps] * m, axis=1),
            "flat": np.stack([steps, *[-steps] * (m - 1)], axis=1),
        }[shape]
        trials = history(rewards)
        tracemalloc.start()
        assert len(trials.ranked) == n
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16e6 / 4  # a boolean for each pair would take 16 MB


class TestUsage:
    def test_one_unknown_price_makes_the_cost_unknown(self):
        usage = Usage()
        for cost, total in ((0.5, 0.5), (0.25, 0.75), (None, None), (0.5, None)):
            usage.add_reply(Reply((Completion("x"),), cost=cost))
            assert usage.cost == total

    def test_replies_and_failures_add_up(self):
        usage = Usage()
        usage.add_reply(
            Reply(
                (), prompt_tokens=7, cached_tokens=3, completion_tokens=2, seconds=0.5, requests=2
            )
        )
        usage.add_failure(3)
        assert (usage.requests, usage.failed_requests, usage.seconds) == (5, 3, 0.5)
        assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (7, 3, 2)


def test_only_complete_trials_are_ranked():
    states = ("complete", "failed", "pruned")
    trials = tuple(
        Trial(i, None, (), (1.0,) if state != "failed" else None, state=state)
        for i, (state, _) in enumerate(product(states, range(2)))
    )
    told = History(trials)
    assert numbers(told.ranked) == [0, 1]
    assert numbers(told.failed) == [2, 3]
    assert not math.isnan(told.best.reward)


def test_measurements_of_a_point_merge_to_their_mean_and_its_standard_error():
    def merged(rows):
        trials = [
            Trial(i, None, values, None if r is None else (r,), stderr=e,
                  state="failed" if r is None else "complete", feedback=f"f{i}" * (i != 2))
            for i, (values, r, e) in enumerate(rows)
        ]  # fmt: skip
        return Merged(lambda values: values).of(History(tuple(trials))).trials

    (one,) = merged([((0.0,), r, None) for r in (1.0, 2.0, 6.0)])
    assert one.rewards == (3.0,)
    assert one.stderr == pytest.approx(math.sqrt(7.0 / 3.0))  # sample variance 7, three values
    assert (one.evaluations, one.feedback, one.number) == (
        3,
        "measurement 1: f0\nmeasurement 2: f1",
        0,
    )
    # Errors that were told for each of them go into that of the mean.
    (told,) = merged([((0.0,), 1.0, 3.0), ((0.0,), 2.0, 4.0)])
    assert told.stderr == pytest.approx(2.5)
    # If one has none, the spread of the rewards says it.
    (partly,) = merged([((0.0,), 1.0, 3.0), ((0.0,), 2.0, None)])
    assert partly.stderr == pytest.approx(0.5)
    rows = [((0.0,), 1.0, None), ((1.0,), None, None), ((0.0,), 3.0, None), ((1.0,), None, None)]
    assert [(t.number, t.state, t.evaluations) for t in merged(rows)] == [
        (0, "complete", 2),
        (1, "failed", 1),
        (2, "failed", 1),
    ]


def test_a_growing_history_is_merged_as_a_whole_one():
    rng = np.random.default_rng(0)
    merged, trials = Merged(lambda values: values), []
    for number in range(60):
        values, reward = (float(rng.integers(12)),), float(rng.normal())
        state = "failed" if rng.random() < 0.1 else "complete"
        trials.append(Trial(number, {}, values, None if state == "failed" else (reward,), state))
        history = History(tuple(trials))
        assert merged.of(history) == Merged(lambda values: values).of(history)
    assert merged.of(History(tuple(trials[:5]))).trials == tuple(
        Merged(lambda values: values).of(History(tuple(trials[:5]))).trials
    )
    assert merged.of(history) == copy.copy(merged).of(history)


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_either_end_of_an_objective_counts_with_three_of_them(direction):
    # The first point is an end of the first objective alone, and lies close to the last one.
    rewards = [(5, 2, 2), (1, 5, 1), (2, 1, 5), (0, 3, 3), (2.5, 2.5, 2.5)]
    ranked = numbers(history(rewards, [direction] * 3).ranked)
    assert ranked[-1] == 4
