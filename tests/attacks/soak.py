"""A week's load in small: many tells and asks, faults, and kills at any moment.

    nice python tests/attacks/soak.py [--tells N] [--asks N] [--between N] [--points K]
        [--home FOLDER]

A child process tells and asks until it is killed, at a random moment after about so many asks;
the next one goes on. Beside the run, and out of its reach, is noted what the model was sent and
which results were acknowledged. With ``--points 4`` each answer holds up to four points: all of
each answer that is in the file have to be handed out. With ``--home`` the load itself can be
stopped and gone on with.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import re
import resource
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from llmopt import Float, LLMOptimizer
from llmopt.client.base import Completion, Reply
from llmopt.errors import ClientError
from llmopt.search.eventlog import read_events

FAULTS = 0.1
POINT = re.compile(r"x: (\S+), y: (\S+)")
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

    name, transport_attempts, context_tokens = "bad", 1, 32768

    def __init__(self, notes: Notes, points: int) -> None:
        self.notes, self.random, self.points = notes, random.Random(os.getpid()), points
        self.default_prompt = "props" if points == 1 else "words"

    def complete(self, request: Any) -> Reply:
        self.notes.add("sent")
        if self.random.random() < FAULTS:
            kind = self.random.choice(["error", "timeout", "nonsense"])
            if kind != "nonsense":
                raise ClientError(kind, retryable=False)
            return Reply((Completion("I would rather not."),))
        lines = []
        for _ in range(self.random.randint(1, self.points)):
            x, y = (self.random.uniform(-5, 5) for _ in "xy")
            lines.append(f"x: {x:.9f}, y: {y:.9f}")
        if self.points > 1:
            lines = [f"Hypothesis: h\nStart from: new\nProposal: {line}" for line in lines]
        return Reply((Completion("\n\n".join(lines)),), prompt_tokens=100)


def resident() -> float:
    """Return the memory in use, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def opened(home: Path, notes: Notes, points: int) -> LLMOptimizer[dict[str, Any]]:
    return LLMOptimizer(
        SPACE,
        BadModel(notes, points),
        seed=1,
        warmup=0,
        storage=home / "run.jsonl",
        total=10**6,
        points=points,
    )


def lost_points(file: Path) -> int:
    """Return how many points of answers in a file were neither handed out nor are ready to be."""
    paid, made, repeated = set(), set(), 0
    for event in read_events(file):
        for completion in event.get("reply", {}).get("completions", ()):
            found = POINT.findall(completion["text"])
            repeated += len(found) - len(set(found) - paid)
            paid.update(found)
        made.update(tuple(f"{v:.9f}" for v in p["values"]) for p in event.get("new", ()))
    assert repeated == 0
    return len(paid - made)


def result(trial: Any) -> str:
    return f"{trial.params['x']!r} {trial.params['y']!r} {trial.reward!r}"


def stint(
    home: Path, tells: int, asks: int, kill_after: int, points: int, told: Notes, sent: Notes
) -> None:
    """Go on with the run until the end, or the kill."""
    empty, started, worked = resident(), time.perf_counter(), time.process_time()
    optimizer = opened(home, sent, points)
    opening, work = time.perf_counter() - started, time.process_time() - worked
    rng = random.Random()
    known = told.lines()
    found = [result(t) for t in optimizer.trials]
    # What was acknowledged is there. One more may be: the kill came before it was noted.
    assert found[: len(known)] == known, "a result was lost"
    assert len(found) <= len(known) + 1
    for line in found[len(known) :]:
        told.add(line)
    before = len(found)
    after_opening, done, lasting = resident(), 0, 0.0
    del known, found

    def tell(point: dict[str, Any]) -> None:
        told.add(result(optimizer.tell(point, -(point["x"] ** 2) - point["y"] ** 2)))

    for params in optimizer.pending:
        tell(params)
    number = len(optimizer.trials)
    while number < tells:
        # Most results are the user's own; an ask comes between them.
        if (number * asks) % tells < asks:
            began = time.perf_counter()
            while True:
                try:
                    point = optimizer.ask()
                    break
                except ClientError:
                    pass
            lasting += time.perf_counter() - began
            done += 1
            if done == kill_after:
                facts = {
                    "trials": number,
                    "told here": number - before,
                    "resume_s": round(opening, 2),
                    "resume_cpu_s": round(work, 2),
                    "ask_ms": round(1e3 * lasting / done, 1),
                    "memory_mb": [round(m, 1) for m in (empty, after_opening, resident())],
                }
                Notes(home / "stints").add(json.dumps(facts))
                # The plain way of an alarm is to end the process, wherever it is.
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 8 * lasting / done))
            if done == kill_after + 8:  # where slow asks before made the wait a long one
                os.kill(os.getpid(), signal.SIGALRM)
            tell(point)
        else:
            tell({"x": rng.uniform(-5, 5), "y": rng.uniform(-5, 5)})
        number += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    optimizer.close()


def soak(home: Path, tells: int, asks: int, kill_after: int, points: int = 1) -> dict[str, Any]:
    """Run the load, or go on with it; return what it came to, having checked it.

    Raises:
        AssertionError: Something was lost, or paid without being counted.
    """
    told, sent, starts = (Notes(home / name) for name in ("told", "sent", "starts"))
    while True:
        starts.add("start")
        child = os.fork()
        if not child:
            code = 1
            try:
                logging.disable(logging.CRITICAL)
                stint(home, tells, asks, kill_after, points, told, sent)
                code = 0
            finally:
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0
            break
    kills = len(starts.lines()) - 1
    started, worked = time.perf_counter(), time.process_time()
    optimizer = opened(home, sent, points)
    opening, work = time.perf_counter() - started, time.process_time() - worked
    assert len(optimizer.trials) == tells
    assert [result(t) for t in optimizer.trials] == told.lines(), "a result was lost or changed"
    usage, calls = optimizer.usage, len(sent.lines())
    assert calls <= usage.requests <= calls + kills
    assert optimizer.pending == []
    optimizer.close()
    assert lost_points(home / "run.jsonl") == 0, "a point that was paid for was lost"
    return {
        "tells": tells,
        "asks": sum(usage.proposals.values()),
        "requests": calls,
        "counted": usage.requests,
        "failed": usage.failed_requests,
        "refused answers": sum(usage.rejected.values()),
        "kills": kills,
        "resume": f"{opening:.1f} s, {work:.1f} s of processor time",
        "file": f"{(home / 'run.jsonl').stat().st_size / 1e6:.1f} MB",
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tells", type=int, default=100_000)
    parser.add_argument("--asks", type=int, default=10_000)
    parser.add_argument("--between", type=int, default=400, help="asks before a kill")
    parser.add_argument("--points", type=int, default=1, help="most points of one answer")
    parser.add_argument("--home", type=Path, help="a folder to keep, and to go on in")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = args.home or Path(folder)
        home.mkdir(parents=True, exist_ok=True)
        print(json.dumps(soak(home, args.tells, args.asks, args.between, args.points)))
        print((home / "stints").read_text())
