"""A search that computes, killed at any moment, as often as wanted: what is lost?

    nice python tests/attacks/lab_kills.py --kills 30 [--points 60] [--seed 0]

A child process runs a search whose scripted model gives two blocks of Python before each point.
The blocks keep a list, a file, functions and a job for each point. The child is killed at random
moments, or at one of `PLACES`, and the next one resumes. At the end the list, the file, the jobs
and the data have to be what an undisturbed search has, and no stored reply was asked for again.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from llmopt import Evaluation, Float, LLMOptimizer, minimize
from llmopt.client.base import Completion, Reply, Request
from llmopt.compute import blocks
from llmopt.search.eventlog import read_events

SPACE = {"x": Float(0.0, 1.0)}
PLACES = ("block", "snapshot", "recording", "evaluation", "telling")
FIRST = """
import time
number = {n}
log = globals().get("log", []) + [number]
jobs = globals().get("jobs", {{}})
def note():
    with open("runs", "a") as file:
        file.write(f"{{number}},")
note()
def slow(k):
    for step in range(30):
        report((step, float(k)))
        time.sleep(0.01)
    return k * k
jobs[number] = submit(slow, number)
time.sleep(0.15)
print("first", log)
"""
SECOND = """
squares = [jobs[k].result for k in sorted(jobs)]
sums = [int(data[k]["path"].sum()) for k in sorted(data)]
print("second", log, open("runs").read(), squares, sums, len(X))
"""


class Notes:
    """Lines that survive a kill."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def add(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{line}\n")

    def lines(self, kind: str = "") -> list[str]:
        found = [line.partition(" ") for line in self.path.read_text().splitlines()]
        return [rest for name, _, rest in found if name == kind]


class Model:
    """Two blocks, then a point: whatever it is asked, and however often."""

    name, transport_attempts, context_tokens, default_prompt = "script", 1, 100_000, "words"
    local = True

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def complete(self, request: Request) -> Reply:
        self.notes.add(f"asked {request.digest()}")
        number = int(re.findall(r"You propose #(\d+)", request.text)[-1])
        text = f"Hypothesis: h.\nStart from: new\nProposal:\nx: {number / 100}"
        if "> second" not in request.text:
            code = SECOND if "> first" in request.text else FIRST.format(n=number)
            text = f"```python\n{code}\n```"
        return Reply((Completion(text),), prompt_tokens=10_000, completion_tokens=100)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def child(home: Path, points: int, place: str, count: int) -> None:
    """Run the search, or end by a kill at the `count`-th time that it is at a place."""
    notes = Notes(home / "notes")
    times: Counter[str] = Counter()

    def at(name: str, after: float = 0.0) -> None:
        times[name] += 1
        if name == place and times[name] == count:
            if not after:
                die()
            threading.Timer(after, die).start()

    def patched(of: Any, name: str, before: str, after: str = "", late: float = 0.0) -> None:
        known = getattr(of, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            at(before, late)
            found = known(*args, **kwargs)
            if after:
                at(after)
            return found

        setattr(of, name, call)

    blocks._SCIPY = blocks._SKLEARN = ()  # type: ignore[assignment]
    patched(blocks.Calculator, "_call", "block", late=0.1)
    keep = blocks.Calculator._keep

    def noted(self: Any, count: int) -> list[str]:
        notes.add(f"worker {self._sandbox.pid}")
        return keep(self, count)

    blocks.Calculator._keep = noted  # type: ignore[method-assign]
    patched(blocks.Calculator, "_keep", "snapshot", "recording")
    patched(LLMOptimizer, "tell_as", "telling")

    def objective(point: dict[str, float]) -> Evaluation:
        number = round(point["x"] * 100)
        at("evaluation", 0.05)
        time.sleep(0.1)  # the job of this point runs
        return Evaluation(point["x"], f"seen {number}", {"path": np.full(4, number)})

    notes.add("ready")
    minimize(
        objective, SPACE, points, Model(notes), prompt="words", storage=home / "s.jsonl", seed=0,
        description="A spring.", warmup=0, points=1, compute=True, compute_workers=2,
        progress=False, may_stop=False,
    )  # fmt: skip
    notes.add("done")


def ended(group: int) -> bool:
    """Whether all processes of a group end within 20 s."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def check(home: Path, points: int) -> dict[str, int]:
    """Raise unless nothing is lost; return what happened."""
    notes, events = Notes(home / "notes"), list(read_events(home / "s.jsonl"))
    computed = [e for e in events if e["event"] == "compute"]
    assert len(computed) == 2 * points, len(computed)
    for number in range(1, points + 1):
        first, second = (block["output"].strip() for block in computed[2 * number - 2 : 2 * number])
        log = list(range(1, number + 1))
        runs = "".join(f"{k}," for k in log)
        squares, sums = [k * k for k in log], [4 * k for k in log[:-1]]
        assert first == f"first {log}", first
        assert second == f"second {log} {runs} {squares} {sums} {number - 1}", second
    told = LLMOptimizer.load(home / "s.jsonl", Model(notes)).trials
    assert [t.data["path"].tolist() for t in told] == [[k] * 4 for k in range(1, points + 1)]
    replies, asked = sum(e["event"] == "reply" for e in events), notes.lines("asked")
    assert replies == 3 * points, replies
    for group in set(map(int, notes.lines("worker"))):
        assert ended(group), f"workers of group {group} outlived their search"
    # A reply that is in the file is not asked for again: only what a kill took in between.
    return {"again": len(asked) - replies, "replies": replies, "blocks": len(computed)}


def run(home: Path, points: int, place: str = "", count: int = 1, after: float = -1.0) -> bool:
    """Run a child, killed `after` seconds of work or at a place; return whether it ended itself."""
    begun = len(Notes(home / "notes").lines("ready"))
    options = [str(home), "--points", str(points), "--place", place, "--count", str(count)]
    process = subprocess.Popen([sys.executable, __file__, "--child", *options])
    while after >= 0 and process.poll() is None:
        if len(Notes(home / "notes").lines("ready")) > begun:
            time.sleep(after)
            process.kill()
            break
        time.sleep(0.01)
    code = process.wait()
    assert code in (0, -signal.SIGKILL), code
    return code == 0


def sweep(home: Path, kills: int, points: int, seed: int) -> dict[str, int]:
    """Kill a search so many times at random moments, and check it."""
    draw, done = random.Random(seed), 0
    for _ in range(kills):
        if run(home, points, after=draw.uniform(0.0, 4.0)):
            break
        done += 1
    while not run(home, points):
        pass
    return {"kills": done, **check(home, points)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", default="")
    parser.add_argument("--place", default="")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--points", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.child:
        child(Path(given.child), given.points, given.place, given.count)
        return
    with tempfile.TemporaryDirectory() as home:
        print(sweep(Path(home), given.kills, given.points, given.seed))


if __name__ == "__main__":
    main()
