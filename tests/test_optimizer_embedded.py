"""The embedded model searches for real: fetched once, run in this process."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest

from llmopt import LLMOptimizer

pytestmark = pytest.mark.embedded

BOX = gym.spaces.Box(-6.0, 6.0, (3,), dtype=np.float32)


def sphere(point: np.ndarray) -> float:
    return -float(((point - 1.0) ** 2).sum())


def test_the_points_of_a_search_are_the_models(embedded_client):
    optimizer = LLMOptimizer(BOX, embedded_client, seed=0)
    assert optimizer.prompt.name == "columns"
    for _ in range(14):
        point = optimizer.ask()
        assert BOX.contains(point)
        optimizer.tell(point, sphere(point))
    usage = optimizer.usage
    assert usage.proposals["warmup"] == 10
    assert usage.fallback_share < 0.05
    assert len({t.values for t in optimizer.trials}) == 14
    assert usage.prompt_tokens > 0
    assert sum(t.completion_tokens for t in optimizer.trials) == pytest.approx(
        usage.completion_tokens
    )


def test_the_optimizer_can_be_copied_while_the_model_is_loaded(embedded_client):
    optimizer = LLMOptimizer(BOX, embedded_client, seed=3, warmup=1)
    optimizer.tell(optimizer.ask(), 0.5)
    optimizer.ask()
    copied = copy.deepcopy(optimizer)
    np.testing.assert_array_equal(copied.ask(), optimizer.ask())
    copied.client.close()
