"""Corners of ask and tell: bounded retries, warnings, shared costs, cut-off asks, threads."""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
import warnings

import numpy as np
import pytest
from stubs import Gate, in_threads

from llmopt import (
    ClientError,
    Completion,
    FallbackWarning,
    Float,
    LLMOptimizer,
    Message,
    Reply,
    Request,
    ScriptedClient,
)
from llmopt.client.http.retry import complete_with_retries
from llmopt.prompt import Question, Reading

SPACE = {"x": Float(-5.0, 5.0)}


def make(replies, **options) -> LLMOptimizer:
    client = replies if hasattr(replies, "complete") else ScriptedClient(replies)
    return LLMOptimizer(SPACE, client, "props", **{"warmup": 0, "seed": 1, **options})


def seeded(request) -> Reply:
    value = np.random.default_rng(request.seed).uniform(-5, 5)
    return Reply((Completion(f"x: {value:.3f}"),), prompt_tokens=10)


class TestRetries:
    @pytest.mark.parametrize("attempts", [1, 2, 5])
    def test_unusable_answers_are_bounded(self, attempts):
        optimizer = make(lambda request: "no", attempts=attempts, max_fallbacks=None)
        with pytest.warns(FallbackWarning):
            optimizer.ask(4)
        assert len(optimizer.client.requests) == attempts
        assert optimizer.usage.proposals == {"fallback": 4}

    def test_a_bad_answer_among_good_ones_uses_an_attempt(self):
        optimizer = make(["x: 1.5", "no", "x: 2.5", "no"], attempts=2)
        with pytest.warns(FallbackWarning):
            optimizer.ask(6)
        assert len(optimizer.client.requests) == 4
        assert optimizer.usage.proposals == {"llm": 2, "fallback": 4}

    def test_the_complaint_is_gone_once_an_answer_was_good(self):
        client = ScriptedClient(["nonsense", "x: 1", "x: 2"])
        make(client).ask(2)
        assert "nonsense" in str(client.requests[1].messages)
        assert "nonsense" not in str(client.requests[2].messages)


class TestCosts:
    def test_every_token_is_in_exactly_one_trial(self):
        def answer(request):
            texts = (
                ["no idea"]
                if request.seed % 4 == 0
                else [c.text for c in seeded(request).completions]
            )
            return Reply(
                tuple(map(Completion, texts)), prompt_tokens=31, completion_tokens=7, seconds=0.5
            )

        optimizer = make(answer, warmup=2, attempts=6)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            for n in (1, 3, 2, 5, 1, 1, 4):
                for point in optimizer.ask(n):
                    optimizer.tell(point, 0.0)
        usage = optimizer.usage
        assert usage.rejected["unreadable"] > 0
        for name in ("prompt_tokens", "completion_tokens", "seconds"):
            shares = [getattr(t, name) for t in optimizer.trials]
            assert sum(shares) == pytest.approx(getattr(usage, name))
        assert all(t.prompt_tokens == 0 for t in optimizer.trials if t.source == "warmup")


class TestWarnings:
    def test_as_errors_they_lose_no_point(self):
        optimizer = make(lambda request: "no", max_fallbacks=None)
        with warnings.catch_warnings():
            warnings.simplefilter("error", FallbackWarning)
            with pytest.raises(FallbackWarning):
                optimizer.ask(2)
        assert [p.source for p in optimizer.pending_proposals] == ["fallback"] * 2


class TestCutOff:
    """An ask that fails half-way keeps what was paid for."""

    @pytest.mark.parametrize(("interrupted", "counts"), [(False, (3, 2)), (True, (1, 1))])
    def test_failures_before_a_reply_are_in_the_file(
        self, tmp_path, monkeypatch, interrupted, counts
    ):
        def sleep(seconds):
            if interrupted:
                raise KeyboardInterrupt

        at_once = functools.partial(complete_with_retries, sleep=sleep)
        monkeypatch.setattr("llmopt.model_calls.complete_with_retries", at_once)
        busy = ClientError("busy", retryable=True)
        first = make([busy, busy, "x: 1"], storage=tmp_path / "run.jsonl")
        with pytest.raises(KeyboardInterrupt) if interrupted else contextlib.nullcontext():
            first.ask()
        first.close()
        assert (first.usage.requests, first.usage.failed_requests) == counts
        assert make([], storage=tmp_path / "run.jsonl").usage == first.usage

    def test_a_repeated_ask_finds_its_replies_whatever_was_told_meanwhile(self, tmp_path):
        path = tmp_path / "run.jsonl"
        first = make(["x: 1", ClientError("down"), "x: 2", ClientError("down")], storage=path)
        with pytest.raises(ClientError):
            first.ask(2)
        first.tell({"x": 3.0}, 1.0)  # a repeated ask starts from what it knew then
        first.close()
        client = ScriptedClient(["x: 4"])
        again = make(client, storage=path)
        assert [p["x"] for p in again.ask(2)] == [1.0, 4.0]
        assert len(client.requests) == 1
        again.tell({"x": 1.0}, 1.0)


class TestWarmup:
    def test_failed_points_count_too(self):
        optimizer = make(seeded, warmup=2)
        optimizer.tell_failure({"x": 0.0}, "crashed")
        optimizer.ask(2)
        assert optimizer.usage.proposals == {"warmup": 1, "llm": 1}

    def test_batches_do_not_wait_in_the_warmup(self):
        optimizer = make(seeded, warmup=2, batch_size=4)
        optimizer.ask()
        assert optimizer.client.requests == []
        optimizer.ask(2)
        assert len(optimizer.client.requests) == 4
        assert len(optimizer.pending) == 3

    def test_drawn_points_never_repeat_told_ones(self):
        optimizer = LLMOptimizer({"x": Float(0, 1, step=0.5)}, ScriptedClient([]), warmup=3, seed=0)
        optimizer.tell({"x": 0.5}, 1.0)
        assert {p["x"] for p in optimizer.ask(2)} == {0.0, 1.0}


class TestState:
    def test_the_default_prompt_of_a_client_that_names_none(self):
        class Bare:
            complete = staticmethod(seeded)

        assert LLMOptimizer(SPACE, Bare()).prompt.name == "words"

    def test_a_prompt_of_the_users_own_needs_to_know_of_no_seed_or_number(self):
        class Plain:
            name = "plain"

            def prepare(self, situation):
                def read(text):
                    return Reading((float(text),), "", False)

                return Question(Request((Message("user", "a number?"),)), read)

            def to_dict(self):
                return {"name": "plain"}

        client = ScriptedClient(["1.0", "2.0", "3.0"])
        optimizer = LLMOptimizer(SPACE, client, Plain(), warmup=0, seed=1)
        assert [p["x"] for p in [*optimizer.ask(2), optimizer.ask()]] == [1.0, 2.0, 3.0]
        seeds = [r.seed for r in client.requests]
        assert None not in seeds
        assert len(set(seeds)) == 3

    def test_numpy_options_can_be_stored(self, tmp_path):
        path = tmp_path / "run.jsonl"
        options = {
            "batch_size": np.int64(2), "total": np.int32(9), "warmup": np.int64(1),
            "attempts": np.int8(2), "seed": np.uint32(7),
        }  # fmt: skip
        with make([], storage=path, **options) as begun:
            begun.ask()
        again = make([], storage=path, **{k: int(v) for k, v in options.items()})
        assert again.seed == 7

    def test_a_shallow_copy_shares_no_state(self):
        first = make(["x: 1"])
        second = copy.copy(first)
        second.tell({"x": 1.0}, 5.0)
        assert first.trials == []

    def test_reason_of_a_failure_keeps_the_users_words(self):
        optimizer = make([])
        assert optimizer.tell({"x": 1.0}, float("nan"), feedback="fell over").feedback == (
            "the reward was nan; fell over"
        )
        assert optimizer.tell({"x": 2.0}, None).feedback == "no reward"


class TestThreads:
    def test_asks_tells_and_a_storage_from_many_threads(self, tmp_path):
        path = tmp_path / "run.jsonl"
        optimizer = make(seeded, warmup=5, batch_size=3, storage=path)

        def work(index):
            requests = 0
            for i in range(8):
                for point in optimizer.ask(1 + i % 2):
                    optimizer.tell(point, point["x"])
                    assert optimizer.best.reward >= point["x"]
                before, requests = requests, optimizer.usage.requests
                assert requests >= before
            assert requests > 0

        in_threads(work, range(6))
        assert len(optimizer.trials) == 6 * 12
        assert len({t.values for t in optimizer.trials}) == 6 * 12
        assert optimizer.pending == []
        optimizer.close()
        again = make(seeded, warmup=5, batch_size=3, storage=path)
        assert again.trials == optimizer.trials
        assert again.usage == optimizer.usage

    def test_saving_and_copying_wait_for_an_ask(self, tmp_path):
        gate = Gate("x: 1")
        optimizer = make(gate)
        asking = threading.Thread(target=optimizer.ask)
        saving = threading.Thread(target=optimizer.save, args=(tmp_path / "a.jsonl",))
        asking.start()
        assert gate.asked.wait(60)
        saving.start()
        saving.join(0.05)
        assert saving.is_alive()
        gate.open.set()
        asking.join()
        saving.join()
        assert len(LLMOptimizer.load(tmp_path / "a.jsonl", ScriptedClient([])).pending) == 1
