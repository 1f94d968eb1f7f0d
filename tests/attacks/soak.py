"""A week's load in small: many tells and asks, faults, and a kill every few hundred asks.

    nice python tests/attacks/soak.py [TELLS] [ASKS] [ASKS BETWEEN KILLS]

A child process tells and asks until it is killed; the next one goes on. Beside the run, and
out of its reach, is noted what the model was sent and which results were acknowledged.
"""

from __future__ import annotations

import logging
import os
import random
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from llmopt import Float, LLMOptimizer
from llmopt.client.base import Completion, Reply
from llmopt.errors import ClientError

FAULTS = 0.1
SPACE = {"x": Float(-5.0, 5.0), "y": Float(-5.0, 5.0)}


class Notes:
    """Lines that survive a kill."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def add(self, line: str) -> None:
        os.write(self._file, line.encode() + b"\n")

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines()


class BadModel:
    """Answers, and in a tenth of all calls fails, times out or answers nonsense."""

    name, default_prompt, transport_attempts = "bad", "props", 1
    context_tokens = 8192

    def __init__(self, notes: Notes) -> None:
        self.notes, self.random = notes, random.Random(os.getpid())

    def complete(self, request: Any) -> Reply:
        self.notes.add("sent")
        if self.random.random() < FAULTS:
            kind = self.random.choice(["error", "timeout", "nonsense"])
            if kind != "nonsense":
                raise ClientError(kind, retryable=False)
            return Reply((Completion("I would rather not."),))
        x, y = (self.random.uniform(-5, 5) for _ in "xy")
        return Reply((Completion(f"x: {x:.9f}, y: {y:.9f}"),), prompt_tokens=100)


def resident() -> float:
    """Return the memory in use, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def opened(home: Path, notes: Notes) -> LLMOptimizer[dict[str, Any]]:
    file = home / "run.jsonl"
    return LLMOptimizer(SPACE, BadModel(notes), seed=1, warmup=0, storage=file, total=10**6)


def stint(home: Path, tells: int, asks: int, kill_after: int, told: Notes, sent: Notes) -> None:
    """Go on with the run until the end, or the kill."""
    started = time.perf_counter()
    optimizer = opened(home, sent)
    opening = time.perf_counter() - started
    rng = random.Random(len(optimizer.trials))
    before, done = resident(), 0
    lasting: list[float] = []
    for pending in optimizer.pending:
        tell(optimizer, optimizer.space.unflatten(pending.values), told)
    while len(optimizer.trials) < tells:
        # Most results are the user's own; an ask comes between them.
        if (len(optimizer.trials) * asks) % tells < asks:
            began = time.perf_counter()
            while True:
                try:
                    point = optimizer.ask()
                    break
                except ClientError:
                    pass
            lasting.append(time.perf_counter() - began)
            done += 1
            if done == kill_after:
                line = f"open {opening:.2f} s, ask {1e3 * sum(lasting) / done:.1f} ms"
                memory = f"{before:.0f} to {resident():.0f} MB"
                Notes(home / "stints").add(f"{len(optimizer.trials)} tells: {line}, {memory}")
                os.kill(os.getpid(), signal.SIGKILL)
            tell(optimizer, point, told)
        else:
            tell(optimizer, {"x": rng.uniform(-5, 5), "y": rng.uniform(-5, 5)}, told)
    optimizer.close()


def tell(optimizer: LLMOptimizer[Any], point: dict[str, Any], told: Notes) -> None:
    reward = -(point["x"] ** 2) - point["y"] ** 2
    optimizer.tell(point, reward)
    told.add(f"{point['x']!r} {point['y']!r} {reward!r}")


def soak(home: Path, tells: int, asks: int, kill_after: int) -> dict[str, Any]:
    """Run the load; return what it came to, having checked it.

    Raises:
        AssertionError: Something was lost, or paid without being counted.
    """
    told, sent = Notes(home / "told"), Notes(home / "sent")
    kills = 0
    started = time.perf_counter()
    while True:
        child = os.fork()
        if not child:
            code = 1
            try:
                logging.disable(logging.CRITICAL)
                stint(home, tells, asks, kill_after, told, sent)
                code = 0
            finally:
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        kills += 1
    lasted = time.perf_counter() - started
    started = time.perf_counter()
    optimizer = opened(home, sent)
    opening = time.perf_counter() - started
    found = [f"{t.params['x']!r} {t.params['y']!r} {t.reward!r}" for t in optimizer.trials]
    noted = told.lines()
    assert len(found) == tells
    assert found == noted, "a result was lost, changed or told twice"
    usage, calls = optimizer.usage, len(sent.lines())
    assert calls <= usage.requests <= calls + kills
    assert optimizer.pending == []
    optimizer.close()
    return {
        "tells": tells,
        "asks": sum(usage.proposals.values()),
        "requests": calls,
        "counted": usage.requests,
        "failed": usage.failed_requests,
        "refused answers": sum(usage.rejected.values()),
        "kills": kills,
        "resume": f"{opening:.1f} s",
        "file": f"{(home / 'run.jsonl').stat().st_size / 1e6:.1f} MB",
        "lasted": f"{lasted:.0f} s",
    }


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]]
    numbers += [100_000, 10_000, 400][len(numbers) :]
    with tempfile.TemporaryDirectory() as folder:
        print(soak(Path(folder), *numbers))
        print((Path(folder) / "stints").read_text())
