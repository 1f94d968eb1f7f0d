"""Steps per second of one simulator: in a block of the laboratory, and on the bare machine.

Question: what does the confinement cost, and what does compiling gain?

Protocol: a pendulum on a cart under a linear policy, semi-implicit Euler, in four forms: a Python
loop over scalars, NumPy with one state as an array, NumPy with 1,000 states at once, and numba.
Each form runs in one block and on the bare machine in turn, five times; the compiling is not
timed. A row holds the median steps per second of both, and their ratio within a repeat.

    python -m llmopt.benchmarks.experiments.lab_speed  # a minute; writes the results
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from llmopt.lab.laboratory import Laboratory

RESULTS = Path(__file__).parents[1] / "results" / "lab_speed.json"
_SCALAR = """
def simulate(steps):
    x, v, a, w = 0.0, 0.0, 0.1, 0.0
    for _ in range(steps):
        u = 0.1 + x + 2.0 * v + 30.0 * a + 6.0 * w
        s, c = math.sin(a), math.cos(a)
        t = (u + 0.05 * w * w * s) / 1.1
        wd = (9.8 * s - c * t) / (0.5 * (4 / 3 - 0.1 * c * c / 1.1))
        v += 0.02 * (t - 0.05 * wd * c / 1.1)
        w += 0.02 * wd
        x += 0.02 * v
        a += 0.02 * w
    return x
"""
_ARRAY = """
def simulate(steps):
    z = np.array([0.0, 0.0, 0.1, 0.0]){many}
    gains = np.array([1.0, 2.0, 30.0, 6.0])
    for _ in range(steps // {count}):
        u = 0.1 + gains @ z
        s, c = np.sin(z[2]), np.cos(z[2])
        t = (u + 0.05 * z[3] ** 2 * s) / 1.1
        wd = (9.8 * s - c * t) / (0.5 * (4 / 3 - 0.1 * c * c / 1.1))
        z[1] += 0.02 * (t - 0.05 * wd * c / 1.1)
        z[3] += 0.02 * wd
        z[0] += 0.02 * z[1]
        z[2] += 0.02 * z[3]
    return z
"""
FORMS: Mapping[str, tuple[str, int]] = {
    "Python loop": (_SCALAR, 200_000),
    "NumPy, one state": (_ARRAY.format(many="", count=1), 20_000),
    "NumPy, 1,000 states at once": (
        _ARRAY.format(many="[:, None] * np.ones(1000)", count=1000),
        2_000_000,
    ),
    "numba": ("import numba\n" + _SCALAR.replace("def", "@numba.njit\ndef", 1), 20_000_000),
}
"""The source of each form, and how many steps one repeat takes."""
_TIME = """
import time
began = time.perf_counter()
simulate({steps})
print({steps} / (time.perf_counter() - began))
"""


def measure(form: str, repeats: int) -> dict[str, Any]:
    """Return the medians of a form in steps per second, and the median ratio."""
    source, steps = FORMS[form]
    prelude = f"import math\nimport numpy as np\n{source}simulate(1000)\n"
    bare: dict[str, Any] = {}
    exec(prelude, bare)
    pairs = []
    with Laboratory() as laboratory:
        blocks = [laboratory.run(prelude, [], dict, 600.0)]
        for _ in range(repeats):
            blocks.append(laboratory.run(_TIME.format(steps=steps), blocks, dict, 600.0))
            printed: list[float] = []
            exec(_TIME.format(steps=steps), {**bare, "print": printed.append})
            pairs.append((float(blocks[-1].output), printed[0]))
    block, machine = (median(side) for side in zip(*pairs, strict=True))
    ratio = median(one / other for one, other in pairs)
    return {"form": form, "block": block, "bare": machine, "ratio": round(ratio, 3)}


def main() -> None:
    """Measure all forms and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, metavar="N", default=5)
    parser.add_argument("--out", type=Path, metavar="FILE", default=RESULTS)
    args = parser.parse_args()
    rows = [measure(form, args.repeats) for form in FORMS]
    args.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        print(f"{row['form']:28} {row['block']:14,.0f} {row['bare']:14,.0f} {row['ratio']:6.2f}")


if __name__ == "__main__":
    main()
