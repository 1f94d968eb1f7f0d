"""Time of `ask()` and `tell()` apart from the model's own, against the history's length.

Question: what does llmopt itself cost a loop that already has many trials? Protocol: a
scripted model answers at once; the history holds 10 to 10,000 trials of 8 parameters; the
median of repeated calls is given for each shipped prompt with the whole history in it and
with its default selection. Runtime: about two minutes.

    python -m llmopt.benchmarks.experiments.ask_overhead --out benchmarks/results/ask_overhead.json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import numpy as np

from llmopt import Completion, Float, LLMOptimizer, Reply, Request, ScriptedClient, get_prompt

N_PARAMETERS = 8
LENGTHS = (10, 100, 1_000, 10_000)
PROMPTS = {
    "props, whole history": ("props", {"history": "all"}),
    "words, 12 best and 6 latest": ("words", {}),
    "opro, 20 best": ("opro", {}),
}


def scripted(request: Request) -> Reply:
    """Answer at once with a point that depends on the request's seed."""
    rng = np.random.default_rng(request.seed)
    values = ", ".join(f"p{i}: {v:.4f}" for i, v in enumerate(rng.uniform(-6, 6, N_PARAMETERS)))
    text = f"Hypothesis: more of it\nProposal:\n{values}" if "# How to" in request.text else values
    return Reply((Completion(text),) * request.n)


def measure(prompt: str, options: dict[str, str], length: int, repeats: int) -> dict[str, float]:
    """Return the median milliseconds of one `ask` and one `tell` at a history's length."""
    rng = np.random.default_rng(0)
    space = {f"p{i}": Float(-6.0, 6.0) for i in range(N_PARAMETERS)}
    optimizer = LLMOptimizer(
        space, ScriptedClient(scripted), get_prompt(prompt, **options), warmup=0, seed=0
    )
    for _ in range(length):
        point = dict(zip(space, rng.uniform(-6, 6, N_PARAMETERS).tolist(), strict=True))
        optimizer.tell(point, float(rng.normal()))
    asks, tells = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        point = optimizer.ask()
        middle = time.perf_counter()
        optimizer.tell(point, float(rng.normal()))
        asks.append(middle - start)
        tells.append(time.perf_counter() - middle)
    return {
        "ask_ms": 1e3 * statistics.median(asks),
        "tell_ms": 1e3 * statistics.median(tells),
        "fallback_share": optimizer.usage.fallback_share,
    }


def main() -> None:
    """Measure every prompt at every length, print a table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args()
    rows = []
    for label, (prompt, options) in PROMPTS.items():
        for length in LENGTHS:
            row = {"prompt": label, "trials": length}
            rows.append({**row, **measure(prompt, options, length, args.repeats)})
            print(
                f"{label:24} {length:6d} trials: ask {rows[-1]['ask_ms']:8.2f} ms, "
                f"tell {rows[-1]['tell_ms']:6.3f} ms",
                flush=True,
            )
    if args.out:
        record = {"python": platform.python_version(), "repeats": args.repeats, "rows": rows}
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
