"""Every kind of space through ask, tell and a resume, with a model's answers and without."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from llmopt import (
    Categorical,
    Completion,
    Float,
    Int,
    LLMOptimizer,
    Reply,
    ScriptedClient,
    Space,
)
from llmopt.points import sample_new

spaces = gym.spaces

SPACES = {
    "box": spaces.Box(-6.0, 6.0, (3,), dtype=np.float32),
    "box64": spaces.Box(-1.0, 1.0, (2, 2), dtype=np.float64),
    "box16": spaces.Box(-2.0, 2.0, (2,), dtype=np.float16),
    "box3d": spaces.Box(0.0, 1.0, (2, 1, 2), dtype=np.float32),
    "box0d": spaces.Box(-3.0, 3.0, (), dtype=np.float32),
    "uneven box": spaces.Box(np.float32([-1, 0.001]), np.float32([1e4, 0.002])),
    "fixed in part": spaces.Box(np.float32([0.1, 0]), np.float32([0.1, 1])),
    "uint8": spaces.Box(0, 255, (3,), dtype=np.uint8),
    "int64": spaces.Box(-5, 5, (2,), dtype=np.int64),
    "discrete": spaces.Discrete(64, start=-4),
    "multidiscrete": spaces.MultiDiscrete([3, 9, 4]),
    "multidiscrete 2-D": spaces.MultiDiscrete([[3, 4], [5, 6]], start=[[0, 1], [2, 3]]),
    "multibinary": spaces.MultiBinary(8),
    "multibinary 2-D": spaces.MultiBinary((3, 3)),
    "frozen lake": spaces.MultiDiscrete([4] * 16),
    "dict": spaces.Dict(
        {
            "arm": spaces.Box(-1, 1, (2,)),
            "grip": spaces.Discrete(7),
            "on": spaces.MultiBinary(2),
        }
    ),
    "named": Space(
        {
            "lr": Float(1e-5, 0.1, log=True),
            "width": Int(1, 1024, log=True),
            "dropout": Float(0.0, 0.5, step=0.1),
            "act": Categorical(["relu", None, True, 3, 2.5, ("a", 1)]),
        }
    ),
    "decimals": Space.of(spaces.Box(-6, 6, (2,)), decimals=1),
}


def model(space: Space):
    """A model that answers every request with labelled points drawn from its seed."""

    def answer(request):
        values = space.sample(np.random.default_rng([request.seed, 0]))
        pairs = zip(space.names, values, strict=True)
        text = ", ".join(f"{name}: {space.format(j, v)}" for j, (name, v) in enumerate(pairs))
        return Reply((Completion(text + "\nfor no reason"),), prompt_tokens=10)

    return answer


def form(value):
    """The form of a point: types, dtypes, shapes and keys."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape
    if isinstance(value, dict):
        return {key: form(v) for key, v in value.items()}
    if isinstance(value, tuple):
        return tuple(map(form, value))
    return type(value)


def equal(a, b) -> bool:
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else a == b


@pytest.mark.parametrize("name", SPACES)
class TestEverySpace:
    def test_the_models_points_come_back_in_the_spaces_form_and_are_matched(self, name):
        given = SPACES[name]
        client = ScriptedClient(model(Space.of(given)))
        optimizer = LLMOptimizer(given, client, "props", seed=3, warmup=2)
        points = [optimizer.ask(), *optimizer.ask(4), optimizer.ask()]
        if isinstance(given, gym.Space):
            assert all(given.contains(p) for p in points)
            assert {str(form(p)) for p in points} == {str(form(given.sample()))}
        for i in (5, 0, 3, 1, 4, 2):
            optimizer.tell(points[i], float(i))
        assert optimizer.pending == []
        assert optimizer.usage.proposals == {"warmup": 2, "llm": 4}
        assert {t.source for t in optimizer.trials} == {"warmup", "llm"}
        assert equal(optimizer.best.params, points[5])


FINITE = {
    "discrete": spaces.Discrete(5, start=-2),
    "multidiscrete": spaces.MultiDiscrete([3, 2, 4]),
    "multibinary": spaces.MultiBinary(4),
    "integer box": spaces.Box(-1, 1, (2,), dtype=np.int8),
    "fixed in part": spaces.Dict(
        {"a": spaces.Box(np.float32([0.1]), np.float32([0.1])), "b": spaces.Discrete(6)}
    ),
    "steps": {"x": Float(0.0, 1.0, step=0.1), "k": Int(3, 20, step=5)},
    "log": {"k": Int(1, 30, log=True)},
    "skewed": {"k": Int(1, 300, log=True)},
    "choices": {"c": Categorical(["a", None, True, 1.5]), "d": Categorical([0, 1])},
}


@pytest.mark.parametrize("name", FINITE)
def test_no_point_is_repeated_while_there_is_another(name):
    space = Space.of(FINITE[name])
    seen: set = set()
    rng = np.random.default_rng(0)
    total = int(space.cardinality)
    for i in range(total):
        values = sample_new(space, seen, rng)
        assert space.check(values) == values
        assert len(seen) == i + 1
    sample_new(space, seen, rng)
    assert len(seen) == total
