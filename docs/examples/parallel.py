"""Your own function, evaluated by eight threads at a time or in processes, resumed from a file.

    python parallel.py               # 40 evaluations of half a second: some seconds
    python parallel.py --processes   # the same in four processes
    python parallel.py --quick

The first run ends at its timeout; the second one goes on from the file. Its output:

    first: 24 evaluations in 1.9 s, timeout=1.5 seconds are over
    second: 40 evaluations, 5 requests for 35 points
    best 0.10 at speed 2.05, angle 34.7
"""

import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import llmopt

SPACE = {"speed": llmopt.Float(0, 5), "angle": llmopt.Float(0, 90)}
WAIT = 0.05 if "--quick" in sys.argv else 0.5


def simulate(point: dict[str, float]) -> float:
    """A simulation that takes a while. Processes need it at the top of a module."""
    time.sleep(WAIT)
    return (point["speed"] - 2) ** 2 + ((point["angle"] - 35) / 10) ** 2 + 0.1


if __name__ == "__main__":
    where = {"n_jobs": 8}
    if "--processes" in sys.argv:
        where = {"executor": ProcessPoolExecutor(4)}
    with tempfile.TemporaryDirectory() as folder:
        options = {"storage": Path(folder) / "search.jsonl", "seed": 0, **where}
        started = time.perf_counter()
        first = llmopt.minimize(simulate, SPACE, 40, "network", timeout=3 * WAIT, **options)
        seconds = time.perf_counter() - started
        print(f"first: {len(first.trials)} evaluations in {seconds:.1f} s, {first.stopped}")
        second = llmopt.minimize(simulate, SPACE, 40, "network", **options)
        requests, points = second.usage.requests, second.usage.proposals["llm"]
        print(f"second: {len(second.trials)} evaluations, {requests} requests for {points} points")
        best = second.best
        at = ", ".join(f"{name} {value:.3g}" for name, value in best.params.items())
        print(f"best {best.reward:.2f} at {at}")
