"""Ctrl-C at every line: nothing is lost, told or stored twice, and nothing is paid twice.

And 1,000 interrupts at random moments of a search with 16 threads: no lock stays taken, no result
that `tell` returned is lost, and every thread returns. The same with exceptions that another thread
raises in the workers (`PyThreadState_SetAsyncExc`), as some notebooks and debuggers do.

The tests take a sample. All of them::

    python tests/attacks/test_interrupts.py
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import llmopt
from llmopt import Float, LLMOptimizer
from llmopt.client.base import Completion, Reply
from llmopt.errors import ClientError

_HERE = Path(llmopt.__file__).parent
_CORE = ("optimizer", "journal", "model_calls", "state", "propose", "point_task")
_FILES = {str(_HERE / f"{name}.py") for name in _CORE}


class Interrupting:
    """Sends the signal of Ctrl-C at the n-th line of the optimizer; counts the lines."""

    def __init__(self, at: int) -> None:
        self.at, self.count, self.where = at, 0, ""

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename not in _FILES:
            return None
        if event == "line":
            self.count += 1
            if self.count == self.at:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                signal.raise_signal(signal.SIGINT)
        return self._trace

    def __enter__(self) -> Interrupting:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *exc_info: object) -> None:
        sys.settrace(None)


class Model:
    """Answers equal requests equally; its second call of each five fails."""

    name, default_prompt, transport_attempts = "model", "props", 2

    def __init__(self) -> None:
        self.answered: list[str] = []
        self.calls = 0

    def complete(self, request: Any) -> Reply:
        self.calls += 1
        if self.calls % 5 == 2:
            raise ClientError("busy", retryable=False)
        digest = request.digest()
        self.answered.append(digest)
        return Reply((Completion(f"x: {int(digest[:6], 16) / 16**6 * 10 - 5:.6f}"),), cost=0.1)


def play(path: Path, model: Model, at: int) -> tuple[Any, int, str]:
    """Ask and tell to the end, as somebody does who presses Ctrl-C once and goes on."""

    space = {"x": Float(-5, 5)}
    optimizer = LLMOptimizer(space, model, "props", seed=1, warmup=1, storage=path, durable=False)
    with Interrupting(at) as trace:
        for _ in range(20):
            with contextlib.suppress(KeyboardInterrupt, ClientError):
                if len(optimizer.trials) == 5:
                    break
                # An ask that was interrupted at its very end leaves its point pending.
                pending = optimizer.pending
                point = pending[0] if pending else optimizer.ask()
                optimizer.tell(point, point["x"])
    usage, told = optimizer.usage, [t.values[0] for t in optimizer.trials]
    assert optimizer.pending == [], trace.where
    optimizer.close()
    again = LLMOptimizer(space, model, "props", seed=1, warmup=1, storage=path, durable=False)
    again.close()
    assert again.trials == optimizer.trials, trace.where
    assert again.pending == [], trace.where
    # A call that failed right before counts as one in doubt.
    assert again.usage.unpriced - usage.unpriced in (0, 1), trace.where
    assert replace(again.usage, unpriced=usage.unpriced) == usage, trace.where
    assert again._journal.state.rng == optimizer._journal.state.rng
    assert model.calls <= usage.requests <= model.calls + 1, trace.where
    twice = sum(Counter(model.answered).values()) - len(set(model.answered))
    # A reply is lost only where the signal came before it was in anybody's hands.
    assert twice <= usage.unpriced <= 1, trace.where
    return told, trace.count, trace.where


def attack(home: Path, at: int, expected: Any) -> str:
    told, _, where = play(home / f"{at}.jsonl", Model(), at)
    assert told == expected, where
    return where


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals come to the main one"
)
def test_ctrl_c_at_a_sample_of_lines(tmp_path):
    logging.disable(logging.CRITICAL)
    try:
        expected, lines, _ = play(tmp_path / "whole.jsonl", Model(), 0)
        assert lines > 1000
        hit = {attack(tmp_path, at, expected) for at in range(1, lines, 71)}
    finally:
        logging.disable(logging.NOTSET)
    assert len(hit) > 20


class Struck(BaseException):
    """What another thread raises."""


class Storm:
    """A search of 16 threads in which some are interrupted at random moments."""

    def __init__(self, path: Path, seed: int, ask: bool = True) -> None:
        space = {"x": Float(-5, 5)}
        self.path, self.ask, self.random = path, ask, random.Random(seed)
        self.optimizer = LLMOptimizer(
            space, Model(), "props", seed=1, warmup=1, storage=path, durable=False,
            on_error="fallback",
        )  # fmt: skip
        search = self.optimizer
        self.locks = [search._journal.lock, search._ask_lock, search._merging]
        self.told: dict[int, float] = {}  # what `tell` has returned
        self.armed: set[int] = set()  # threads that may be interrupted now
        self.struck = 0
        self.leaks: list[str] = []
        self.over = False

    def turn(self, number: int) -> None:
        """Ask and tell once."""
        if self.ask:
            point = self.optimizer.ask()
        else:
            point = {"x": random.uniform(-5, 5)}
        trial = self.optimizer.tell(point, point["x"])
        self.told[trial.number] = point["x"]

    def work(self, number: int) -> None:
        """Ask and tell until the storm is over, whatever strikes."""
        me = threading.get_ident()
        while not self.over:
            try:
                self.armed.add(me)
                while not self.over:
                    self.turn(number)
                self.armed.discard(me)
            except (KeyboardInterrupt, Struck):
                self.armed.discard(me)
                self.struck += 1
                # From this thread a leak shows at once: nobody has to wait for the lock.
                for i, lock in enumerate(self.locks):
                    while lock._is_owned():
                        self.leaks.append(f"lock {i}")
                        self.over = True
                        lock.release()

    def run(self, strikes: int, by_signal: bool) -> None:
        """Let it rage until that many interrupts have struck; check what is left."""
        main = threading.get_ident()

        def interrupted(*_: Any) -> None:
            if main in self.armed:
                self.armed.discard(main)
                raise KeyboardInterrupt

        def strike() -> None:
            while self.struck < strikes and not self.over:
                time.sleep(self.random.uniform(0, 0.004))
                if by_signal:
                    signal.pthread_kill(main, signal.SIGINT)
                elif victims := [i for i in list(self.armed) if i != main]:
                    victim = self.random.choice(victims)
                    self.armed.discard(victim)
                    raised = ctypes.py_object(Struck)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(victim), raised)
            self.over = True

        before, interval = signal.getsignal(signal.SIGINT), sys.getswitchinterval()
        sys.setswitchinterval(1e-4)
        signal.signal(signal.SIGINT, interrupted)
        workers = [threading.Thread(target=self.work, args=(i,), daemon=True) for i in range(1, 16)]
        striker = threading.Thread(target=strike, daemon=True)
        try:
            for thread in [*workers, striker]:
                thread.start()
            self.work(0)
            for thread in [*workers, striker]:
                thread.join()
            assert self.leaks == []
            assert signal.getsignal(signal.SIGINT) is interrupted
        finally:
            self.over = True
            signal.signal(signal.SIGINT, before)
            sys.setswitchinterval(interval)
        self.check(by_signal)

    def check(self, by_signal: bool) -> None:
        """Compare what `tell` returned with what is known, in memory and in the file."""
        trials = {t.number: t.values[0] for t in self.optimizer.trials}
        told = Counter(self.told.values())
        assert not told - Counter(trials.values())
        usage = self.optimizer.usage
        self.optimizer.close()
        again = LLMOptimizer.load(self.path, Model())
        assert not told - Counter(t.values[0] for t in again.trials)
        if by_signal:  # an event that a thread raises cuts off is in the file alone
            assert {t.number: t.values[0] for t in again.trials} == trials
            assert self.told.items() <= trials.items()
            assert again.usage.requests in (usage.requests, usage.requests + 1)


def storms(home: Path, strikes: int, by_signal: bool) -> Iterator[Storm]:
    """Let storms of up to 100 interrupts rage, so that no history grows long."""
    for seed, first in enumerate(range(0, strikes, 100)):
        storm = Storm(home / f"{by_signal}-{seed}.jsonl", seed, ask=seed % 2 == 0)
        storm.run(min(100, strikes - first), by_signal)
        yield storm


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals come to the main one"
)
@pytest.mark.parametrize("by_signal", [True, False])
def test_interrupts_at_random_moments_leave_no_lock_taken(tmp_path, by_signal):
    logging.disable(logging.CRITICAL)
    try:
        for storm in storms(tmp_path, 140, by_signal):
            assert len(storm.told) > 10
    finally:
        logging.disable(logging.NOTSET)


def main() -> None:
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as home:
        expected, lines, _ = play(Path(home) / "whole.jsonl", Model(), 0)
        wrong, places = [], set()
        for at in range(1, lines + 1):
            try:
                places.add(attack(Path(home), at, expected))
            except Exception as error:
                wrong.append(f"{at}: {type(error).__name__}: {error}"[:300])
        print(f"{lines} lines run, {len(places)} places, {len(wrong)} wrong")
        print("\n".join(wrong[:30]))
        for by_signal in (True, False):
            struck = told = 0
            for storm in storms(Path(home), 1000, by_signal):
                struck, told = struck + storm.struck, told + len(storm.told)
            kind = "signals" if by_signal else "exceptions of another thread"
            print(f"{struck} {kind} in 16 threads: {told} results, none lost, no lock left taken")


if __name__ == "__main__":
    main()
