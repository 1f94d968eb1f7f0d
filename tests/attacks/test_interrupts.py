"""Ctrl-C at every line: nothing is lost, told or stored twice, and nothing is paid twice.

The test takes a sample of the lines. All of them::

    python tests/attacks/test_interrupts.py
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import tempfile
import threading
from collections import Counter
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
_FILES = {str(_HERE / "optimizer.py"), *(str(p) for p in (_HERE / "search").glob("*.py"))}


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
                point = {"x": pending[0].values[0]} if pending else optimizer.ask()
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
    assert again._state.rng.bit_generator.state == optimizer._state.rng.bit_generator.state
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


if __name__ == "__main__":
    main()
