"""What numbers say of a search, in lines beside the words: `numeric=True`."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from llmopt import Categorical, Float, Int, LLMOptimizer, ScriptedClient, Space
from llmopt.history import History, Trial
from llmopt.search.numeric import fitted
from llmopt.space.branches import BranchedSpace, Condition
from llmopt.space.values import ABSENT

SPACE = Space(
    {
        "x": Float(-5, 5),
        "rate": Float(1e-4, 1, log=True),
        "n": Int(1, 9),
        "idle": Float(0, 1),
        "kind": Categorical(["good", "bad"]),
    }
)


def bowl(values) -> float:
    x, rate, n, _, kind = values
    return (x - 2) ** 2 + math.log10(rate / 0.01) ** 2 + 0.1 * abs(n - 5) + 3 * (kind == "bad")


def history(f=bowl, n=60, space=SPACE, direction="minimize", seed=0) -> History:
    rng = np.random.default_rng(seed)
    points = [space.sample(rng) for _ in range(n)]
    trials = [Trial(i, None, p, (f(p),)) for i, p in enumerate(points)]
    return History(tuple(trials), directions=(direction,))


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_it_finds_what_matters_and_where_the_best_point_is(direction):
    sign = 1 if direction == "minimize" else -1
    line = fitted(SPACE, history(lambda p: sign * bowl(p), direction=direction), SPACE.names)
    assert re.search(r"explains (9\d|100)% .*: x \d\d%, ", line)
    assert "idle" not in line.partition("By it")[0]
    found = re.search(
        r"x: (\S+), rate: (\S+), n: (\d), .*kind: (\w+), with f = (\S+) ± (\S+)\.", line
    )
    x, rate, _, kind, f, error = found.groups()
    assert abs(float(x) - 2) < 0.6
    assert 0.003 < float(rate) < 0.03
    assert kind == "good"
    assert abs(float(f)) < 5 * float(error) < 1


@pytest.mark.parametrize(
    "f",
    [
        lambda p: 1.0,
        lambda p: float(hash(p) % 97),  # noise
        lambda p: 1e300 * p[0],
        lambda p: 1e-300 * p[0],
    ],
)
@pytest.mark.parametrize("n", [0, 1, 7, 8, 30])
def test_it_says_nothing_where_there_is_nothing_to_say_and_never_fails(f, n):
    with np.errstate(all="raise", under="ignore"):
        line = fitted(SPACE, history(f, n), SPACE.names)
    assert line == "" or ("explains" in line and "nan" not in line)


def test_one_bad_value_does_not_hide_the_rest():
    told = history()
    burst = Trial(60, None, told.trials[0].values, (1e9,))
    line = fitted(SPACE, History((*told.trials, burst), directions=("minimize",)), SPACE.names)
    assert "x: " in line
    assert "explains" in line


def test_a_branch_that_a_point_lacks_counts_for_nothing():
    dimensions = {"k": Categorical(["a", "b"]), "u": Float(0, 1), "v": Float(0, 1)}
    when = {"u": Condition("k", frozenset("a"), frozenset("b"))}
    when["v"] = Condition("k", frozenset("b"), frozenset("a"))
    space = BranchedSpace(dimensions, when)
    told = history(lambda p: (p[1] - 0.3) ** 2 if p[0] == "a" else 1 + p[2], n=80, space=space)
    assert any(ABSENT in t.values for t in told.trials)
    line = fitted(space, told, space.names)
    assert re.search(r"best point is k: a, u: 0\.[234]\d?, with", line)


@pytest.mark.parametrize("partner", [None, "cma", "network"])
def test_the_line_is_shown_where_it_is_asked_for_and_changes_no_point(partner):
    if partner == "cma":
        pytest.importorskip("cma")
    points, texts = [], []
    for numeric in (True, False):
        client = ScriptedClient([f"Start from: new\nProposal:\nx: {x / 100}" for x in range(60)])
        optimizer = LLMOptimizer(
            {"x": Float(-5, 5)}, client, "words", "minimize", 0, warmup=12, partner=partner,
            points=1, numeric=numeric,
        )  # fmt: skip
        for _ in range(48):
            point = optimizer.ask()
            optimizer.tell(point, (point["x"] - 1) ** 2)
        points.append([t.values for t in optimizer.trials])
        texts.append(client.requests[-1].text)
    assert points[0] == points[1]
    assert "A fit by a quadratic" in texts[0]
    assert ("would try x: " in texts[0]) is (partner is not None)
    assert "A fit by" not in texts[1]
    assert "would try" not in texts[1]


def test_a_prompt_of_numbers_refuses_it():
    with pytest.raises(ValueError, match="numeric=True: the prompt 'columns' shows numbers alone"):
        LLMOptimizer({"x": Float(0, 1)}, "network", numeric=True)
