"""The asynchronous form of an optimizer: side by side, and nothing lost by a cancelled ask."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import typing
import warnings

import numpy as np
import pytest
from provider_contract import no_proxies, server
from stubs import Gate
from wire import Say, anthropic_body

from llmopt import ClientError, Completion, Float, LLMOptimizer, Reply, ScriptedClient
from llmopt.client.providers.anthropic import AnthropicClient
from llmopt.errors import FallbackWarning, StorageError
from llmopt.search.events import TellArguments

__all__ = ["no_proxies", "server"]

SPACE = {"x": Float(-5.0, 5.0, step=0.001), "y": Float(-5.0, 5.0, step=0.001)}


def seeded(request) -> Reply:
    """A model whose answer depends on the whole request, so that any difference shows."""
    rng = np.random.default_rng(int(request.digest()[:12], 16))
    texts = [f"x: {x:.3f}, y: {y:.3f}" for x, y in rng.uniform(-5, 5, (request.n, 2))]
    return Reply(tuple(map(Completion, texts)), prompt_tokens=100, completion_tokens=10)


def make(client=seeded, **options) -> LLMOptimizer:
    if callable(client):
        client = ScriptedClient(client)
    return LLMOptimizer(SPACE, client, "props", **{"warmup": 0, "seed": 3, **options})


async def until(true) -> None:
    while not true():
        await asyncio.sleep(0.001)


def waiting(optimizer: LLMOptimizer) -> int:
    return len(optimizer._joiner._waiting)


class TestSideBySide:
    def test_eight_asks_at_once_are_one_request(self):
        optimizer = make()

        async def main():
            return await asyncio.gather(*(optimizer.aask() for _ in range(8)))

        points = asyncio.run(main())
        assert [r.n for r in optimizer.client.requests] == [8]
        assert points == make().ask(8)
        assert len(optimizer.pending) == 8

    def test_eight_asks_at_once_are_at_work_at_the_same_time(self, server):
        # Each call is answered only when all eight have come in.
        together = threading.Barrier(8)
        count = iter(range(8))

        def answer(body):
            together.wait(60)
            return Say(anthropic_body(f"x: {next(count) / 2}, y: 1.0"))

        server.play(answer)
        client = AnthropicClient("m", api_key="k", base_url=server.url)
        optimizer = make(client)

        async def main():
            return await asyncio.gather(*(optimizer.aask() for _ in range(8)))

        assert sorted(p["x"] for p in asyncio.run(main())) == [k / 2 for k in range(8)]
        assert optimizer.usage.requests == 8

    def test_asks_that_come_meanwhile_share_the_next_request(self):
        gate = Gate(seeded)
        optimizer = make(gate)

        async def main():
            first = asyncio.create_task(optimizer.aask())
            await until(gate.asked.is_set)
            others = [asyncio.create_task(optimizer.aask(n)) for n in (None, 3, 1)]
            await until(lambda: waiting(optimizer) == 3)
            gate.open.set()
            return await first, await asyncio.gather(*others)

        first, (one, three, single) = asyncio.run(main())
        assert [r.n for r in gate.requests] == [1, 5]
        assert (type(one), len(three), len(single)) == (dict, 3, 1)
        told = [first, one, *three, *single]
        assert optimizer.pending == told

    def test_an_ask_of_another_thread_and_one_of_a_loop_follow_one_another(self):
        gate = Gate(seeded)
        optimizer = make(gate)
        points = []

        async def main():
            thread = threading.Thread(target=lambda: points.append(optimizer.ask()))
            thread.start()
            await until(gate.asked.is_set)
            task = asyncio.create_task(optimizer.aask())
            await until(lambda: waiting(optimizer) == 1)
            gate.open.set()
            points.append(await task)
            thread.join()

        asyncio.run(main())
        assert len(gate.requests) == 2
        assert len({tuple(p.values()) for p in points}) == 2

    def test_several_loops_and_copies(self):
        optimizer = make()
        for _ in range(2):
            asyncio.run(optimizer.aask())
        for copied in (copy.copy(optimizer), copy.deepcopy(optimizer)):
            assert copied._joiner is not optimizer._joiner
            asyncio.run(copied.aask())
            assert len(copied.pending) == 3
        pickled = pickle.dumps(LLMOptimizer(SPACE, ScriptedClient(["x: 1, y: 1"]), warmup=0))
        assert asyncio.run(pickle.loads(pickled).aask()) == {"x": 1.0, "y": 1.0}
        assert len(optimizer.pending) == 2

    def test_asks_at_once_stay_together_while_the_last_ones_end(self):
        optimizer = make()

        async def main():
            for _ in range(60):
                await asyncio.gather(*(optimizer.aask() for _ in range(3)))

        asyncio.run(main())
        assert {r.n for r in optimizer.client.requests} <= {3, 1, 2}
        assert [p.source for p in optimizer.pending_proposals] == ["llm"] * 180
        assert [r.n for r in optimizer.client.requests].count(3) == 60

    def test_a_failure_reaches_all_and_the_next_ask_goes_on(self):
        optimizer = make(ScriptedClient([ClientError("down"), "x: 1, y: 1"]))

        async def main():
            return await asyncio.gather(
                *(optimizer.aask() for _ in range(3)), return_exceptions=True
            )

        assert [str(e) for e in asyncio.run(main())] == ["down"] * 3
        assert optimizer.pending == []
        assert asyncio.run(optimizer.aask()) == {"x": 1.0, "y": 1.0}

    def test_fallbacks_are_told_once(self):
        optimizer = make(lambda request: "no")

        async def main():
            await asyncio.gather(*(optimizer.aask() for _ in range(4)))

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            asyncio.run(main())
        assert [w.category for w in caught] == [FallbackWarning]
        assert optimizer.usage.fallbacks == 4


class TestCancelled:
    def test_before_its_request_it_costs_nothing(self):
        gate = Gate(seeded)
        optimizer = make(gate)

        async def main():
            first = asyncio.create_task(optimizer.aask())
            await until(gate.asked.is_set)
            second = asyncio.create_task(optimizer.aask())
            await until(lambda: waiting(optimizer) == 1)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            gate.open.set()
            await first

        asyncio.run(main())
        assert len(gate.requests) == 1
        assert len(optimizer.pending) == 1

    def test_while_the_model_is_asked_its_point_waits_for_the_next_ask(self, tmp_path):
        gate = Gate(seeded)
        path = tmp_path / "run.jsonl"
        optimizer = make(gate, storage=path)

        async def main():
            tasks = [asyncio.create_task(optimizer.aask()) for _ in range(3)]
            await until(gate.asked.is_set)
            tasks[1].cancel()
            with pytest.raises(asyncio.CancelledError):
                await tasks[1]
            gate.open.set()
            return [await tasks[0], await tasks[2]]

        points = asyncio.run(main())
        whole = make().ask(3)
        assert points == whole[:2]
        assert len(optimizer.pending) == 2
        optimizer.close()
        resumed = make(ScriptedClient([]), storage=path)
        assert resumed.ask() == whole[2]  # paid for, and not asked again
        assert len(resumed.pending) == 3

    def test_all_of_them_leave_nothing_pending(self):
        gate = Gate(seeded)
        optimizer = make(gate)

        async def main():
            both = asyncio.gather(optimizer.aask(), optimizer.aask(2))
            await until(gate.asked.is_set)
            both.cancel()
            with pytest.raises(asyncio.CancelledError):
                await both

        asyncio.run(main())
        gate.open.set()
        assert optimizer.ask(3) == make().ask(3)  # waits for the request that was under way
        assert len(gate.requests) == 1
        assert len(optimizer.pending) == 3

    @pytest.mark.parametrize("turns", range(6))
    def test_just_when_its_point_was_recorded(self, turns, tmp_path):
        path = tmp_path / "run.jsonl"
        optimizer = make(storage=path)

        async def main():
            task = asyncio.create_task(optimizer.aask(2))
            while not optimizer.pending:
                await asyncio.sleep(0)
            for _ in range(turns):
                await asyncio.sleep(0)
            if task.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await task
                await until(lambda: not optimizer.pending)
                return True
            return False

        cancelled = asyncio.run(main())
        optimizer.close()
        resumed = make(ScriptedClient([]), storage=path)
        assert len(resumed.pending) == (0 if cancelled else 2)
        if cancelled:
            assert resumed.ask(2) == make().ask(2)

    @pytest.mark.parametrize("full", [False, True])
    def test_after_its_point_came_and_before_it_could_go_on(
        self, full, tmp_path, caplog, monkeypatch
    ):
        path = tmp_path / "run.jsonl"
        optimizer = make(storage=path)
        if full:

            def refuse(proposals):
                raise StorageError("the disk is full")

            monkeypatch.setattr(optimizer, "_give_back", refuse)

        async def main():
            task = asyncio.create_task(optimizer.aask())
            await asyncio.sleep(0)  # it is queued, and its thread begins after this
            (waiter,) = optimizer._joiner._coming

            def wake_and_cancel(served, error=None):
                def both():
                    waiter.future.set_result(served)
                    task.cancel()

                waiter.loop.call_soon_threadsafe(both)
                return True

            waiter.wake = wake_and_cancel
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        assert len(optimizer.pending) == full  # what cannot be stored is not lost either
        assert ("leaves 1 points pending: the disk is full" in caplog.text) == full
        assert ('"return"' in path.read_text()) != full

    def test_ctrl_c_waits_for_no_model(self, tmp_path):
        path = tmp_path / "run.jsonl"
        script = textwrap.dedent(
            f"""
            import asyncio, sys, threading
            from llmopt import Float, LLMOptimizer
            class Silent:
                default_prompt = "props"
                def complete(self, request):
                    print("asked", flush=True)
                    threading.Event().wait()
            space, path = {{"x": Float(0, 1)}}, {str(path)!r}
            optimizer = LLMOptimizer(space, Silent(), warmup=0, storage=path)
            async def main():
                await asyncio.gather(*(optimizer.aask() for _ in range(8)))
            asyncio.run(main())
            """
        )
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=300)  # the model would never answer
        assert "KeyboardInterrupt" in said
        assert process.returncode != 0
        assert '"ask"' not in path.read_text()


class TestResume:
    def test_a_run_of_joint_asks_goes_on_exactly(self, tmp_path):
        async def rounds(optimizer, number):
            for _ in range(number):
                points = await asyncio.gather(*(optimizer.aask() for _ in range(4)))
                for point in points:
                    await optimizer.atell(point, -(point["x"] ** 2), constraint_violation=0.5)

        whole = make(storage=tmp_path / "whole.jsonl", warmup=6)
        asyncio.run(rounds(whole, 5))
        path = tmp_path / "cut.jsonl"
        for _ in range(5):
            optimizer = make(storage=path, warmup=6)
            asyncio.run(rounds(optimizer, 1))
            optimizer.close()
        assert optimizer.trials == whole.trials
        assert optimizer.usage == whole.usage

    def test_a_point_given_back_is_handed_out_first_after_a_resume(self, tmp_path):
        path = tmp_path / "run.jsonl"
        optimizer = make(storage=path)
        points = optimizer.ask(4)
        optimizer._give_back(optimizer.pending_proposals[1:3])
        left = [points[0], points[3]]
        optimizer.close()
        resumed = make(ScriptedClient([]), storage=path)
        assert resumed.pending == left
        assert resumed.ask(2) == points[1:3]


def test_atell_takes_what_tell_takes():
    told = inspect.signature(LLMOptimizer.tell).parameters.values()
    types = typing.get_type_hints(LLMOptimizer.tell)
    named = {p.name: types[p.name] for p in told if p.kind is p.KEYWORD_ONLY}
    assert named == typing.get_type_hints(TellArguments)
