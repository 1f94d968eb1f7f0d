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


class Interrupted(Exception):
    pass


class Counting:
    """The embedded model, its calls counted, that a test can take away."""

    def __init__(self, client) -> None:
        self.client, self.calls, self.left = client, 0, None

    def __getattr__(self, name):
        if name.startswith("__") or "client" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.client, name)

    def complete(self, request):
        if self.left == 0:
            raise Interrupted
        self.left = None if self.left is None else self.left - 1
        self.calls += 1
        return self.client.complete(request)


def test_the_points_of_a_search_are_the_models(embedded_client):
    optimizer = LLMOptimizer(BOX, embedded_client, seed=0)
    assert optimizer.prompt.name == "columns"
    for _ in range(18):
        point = optimizer.ask()
        assert BOX.contains(point)
        optimizer.tell(point, sphere(point))
    usage = optimizer.usage
    assert usage.proposals["warmup"] == 10
    assert usage.fallback_share < 0.05
    assert len({t.values for t in optimizer.trials}) == 18
    assert usage.prompt_tokens > 0
    assert sum(t.completion_tokens for t in optimizer.trials) == pytest.approx(
        usage.completion_tokens
    )


def test_the_points_of_a_batch_differ(embedded_client):
    client = Counting(embedded_client)
    optimizer = LLMOptimizer(BOX, client, seed=1, warmup=5, batch_size=4)
    for point in optimizer.ask(5):
        optimizer.tell(point, sphere(point))
    points = [optimizer.ask() for _ in range(4)]
    assert optimizer.usage.proposals.get("llm", 0) + optimizer.usage.fallbacks == 4
    assert client.calls == optimizer.usage.requests
    assert len({p.tobytes() for p in points}) == 4


def test_a_resume_keeps_paid_replies(embedded_client, tmp_path):
    def search(path, client, trials):
        optimizer = LLMOptimizer(BOX, client, seed=2, warmup=5, storage=path)
        try:
            while len(optimizer.trials) < trials:
                point = optimizer.ask()
                optimizer.tell(point, sphere(point))
        finally:
            optimizer.close()
        return optimizer

    client = Counting(embedded_client)
    client.left = 3
    with pytest.raises(Interrupted):
        search(tmp_path / "a.jsonl", client, 10)
    before = LLMOptimizer.load(tmp_path / "a.jsonl", client)
    # Killed after the model's last answer and before its point was handed out.
    lines = (tmp_path / "a.jsonl").read_bytes().splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if b'"event":"replied"' in line)
    (tmp_path / "b.jsonl").write_bytes(b"".join(lines[: last + 1]))
    client.left = 0
    with pytest.raises(Interrupted):
        search(tmp_path / "b.jsonl", client, 10)
    after = LLMOptimizer.load(tmp_path / "b.jsonl", client)
    assert client.calls == 3
    assert after.trials == before.trials
    assert len(after.trials) > 5
    assert after.usage == before.usage
    client.left = None
    resumed = search(tmp_path / "b.jsonl", client, 10)
    assert [t.values for t in resumed.trials[: len(before.trials)]] == [
        t.values for t in before.trials
    ]
    # A call that was cut off may have been paid for: it counts, as a failed one.
    assert resumed.usage.failed_requests == 1
    assert resumed.usage.requests == client.calls + 1


def test_the_optimizer_can_be_copied_while_the_model_is_loaded(embedded_client):
    optimizer = LLMOptimizer(BOX, embedded_client, seed=3, warmup=1)
    optimizer.tell(optimizer.ask(), 0.5)
    optimizer.ask()
    copied = copy.deepcopy(optimizer)
    np.testing.assert_array_equal(copied.ask(), optimizer.ask())
    copied.client.close()
