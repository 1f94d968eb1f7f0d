"""The asynchronous form of an optimizer."""

from __future__ import annotations

import asyncio
import copy
import random
import threading
import time
import warnings

import numpy as np
import pytest
from stubs import Gate

from llmopt import BudgetExceededError, Completion, Float, LLMOptimizer, Reply
from llmopt.client.scripted import ScriptedClient
from llmopt.errors import warn_user

SPACE = {"x": Float(-5.0, 5.0, step=0.001), "y": Float(-5.0, 5.0, step=0.001)}


def seeded(request) -> Reply:
    """A model whose answer depends on the whole request, so that any difference shows."""
    rng = np.random.default_rng(int(request.digest()[:12], 16))
    x, y = rng.uniform(-5, 5, 2)
    answer = Completion(f"x: {x:.3f}, y: {y:.3f}")
    return Reply((answer,), prompt_tokens=100, completion_tokens=10)


def make(client=seeded, **options) -> LLMOptimizer:
    if callable(client):
        client = ScriptedClient(client)
    return LLMOptimizer(SPACE, client, "props", **{"warmup": 0, "seed": 3, **options})


def test_asks_are_those_of_ask():
    async def main(optimizer):
        first = await optimizer.aask()
        await optimizer.atell(first, 1.0, feedback="fine", stderr=0.1)
        return [first, *await optimizer.aask(3)]

    optimizer, other = make(), make()
    points = asyncio.run(main(optimizer))
    assert points[0] == other.ask()
    other.tell(points[0], 1.0, feedback="fine", stderr=0.1)
    assert points[1:] == other.ask(3)
    assert optimizer.trials == other.trials
    assert len(asyncio.run(copy.deepcopy(optimizer).aask(2))) == 2
    assert len(optimizer.pending) == 3


def test_a_cancelled_ask_ends_in_its_thread_and_its_point_is_pending(tmp_path):
    gate = Gate(seeded)
    optimizer = make(gate, storage=tmp_path / "run.jsonl")

    async def main():
        task = asyncio.create_task(optimizer.aask())
        await asyncio.to_thread(gate.asked.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open.set()
        return await optimizer.aask()

    second = asyncio.run(main())
    first = make().ask()
    assert optimizer.pending == [first, second]
    assert optimizer.usage.requests == 2
    optimizer.close()
    with make(ScriptedClient([]), storage=tmp_path / "run.jsonl") as again:
        assert again.pending == optimizer.pending


def test_cancelled_asks_keep_the_cap(tmp_path):
    calls = 0

    def slow(request):
        nonlocal calls
        calls += 1
        time.sleep(moments.uniform(0, 0.002))
        return seeded(request)

    moments = random.Random(0)
    optimizer = make(slow, storage=tmp_path / "run.jsonl", max_requests=12)

    async def one():
        task = asyncio.create_task(optimizer.aask())
        await asyncio.sleep(moments.uniform(0, 0.004))
        task.cancel()
        try:
            return await task
        except (asyncio.CancelledError, BudgetExceededError):
            return None

    async def main():
        return [p for p in await asyncio.gather(*(one() for _ in range(40))) if p]

    received = asyncio.run(main())
    assert 0 < calls == optimizer.usage.requests <= 12
    for _ in range(calls, 12):
        optimizer.ask()
    with pytest.raises(BudgetExceededError):
        optimizer.ask()
    assert calls == optimizer.usage.requests == 12
    pending = optimizer.pending
    assert len(pending) == 12
    assert all(point in pending for point in received)
    optimizer.close()
    with make(ScriptedClient([]), storage=tmp_path / "run.jsonl") as again:
        assert again.usage == optimizer.usage


def test_a_warning_of_a_thread_without_user_code_shows_no_line_of_threading():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thread = threading.Thread(target=warn_user, args=("a point was sampled",))
        thread.start()
        thread.join()
    assert [w.filename for w in caught] == ["llmopt"]
