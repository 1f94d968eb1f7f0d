"""What llmopt costs beside the model: the time of `ask` and `tell`.

Question: how long do `ask()` and `tell()` take with a history of 10 to 10,000 trials of 8
parameters, for shipped prompts with the whole history in it or their default selection? Protocol:
a scripted model answers at once; asks and tells alternate, and the median of repeated calls is
given.

    python -m llmopt.benchmarks.experiments.overhead

It writes ``benchmarks/results/ask_overhead.json``. Runtime: two minutes.
"""

from __future__ import annotations

import json
import platform
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from llmopt import Completion, Float, LLMOptimizer, Reply, Request, ScriptedClient, get_prompt

RESULTS = Path(__file__).parents[1] / "results" / "ask_overhead.json"
LENGTHS = (10, 100, 1_000, 10_000)
REPEATS = 30
PROMPTS: dict[str, tuple[str, dict[str, Any]]] = {
    "props, whole history": ("props", {"history": "all"}),
    "words, 12 best and 6 latest": ("words", {}),
    "opro, 20 best": ("opro", {}),
}
Row = dict[str, Any]


def scripted(n: int, request: Request) -> Reply:
    """Answer at once with a point of `n` parameters that depends on the request's seed."""
    rng = np.random.default_rng(request.seed)
    values = ", ".join(f"p{i}: {v:.4f}" for i, v in enumerate(rng.uniform(-5, 5, n)))
    text = f"Hypothesis: more of it\nProposal:\n{values}" if "# How to" in request.text else values
    return Reply((Completion(text),) * request.n)


def measure(prompt: str, options: dict[str, Any], length: int) -> Row:
    """Return the milliseconds of one `ask` and one `tell` after some trials."""
    rng = np.random.default_rng(0)
    space = {f"p{i}": Float(-6.0, 6.0) for i in range(8)}
    client = ScriptedClient(partial(scripted, 8))
    optimizer = LLMOptimizer(space, client, get_prompt(prompt, **options), warmup=0, seed=0)
    for _ in range(length):
        point = dict(zip(space, rng.uniform(-6, 6, 8).tolist(), strict=True))
        optimizer.tell(point, float(rng.normal()))
    asks, tells = [], []
    for _ in range(REPEATS):
        start = time.perf_counter()
        point = optimizer.ask()
        asked = time.perf_counter()
        optimizer.tell(point, float(rng.normal()))
        asks.append(1e3 * (asked - start))
        tells.append(1e3 * (time.perf_counter() - asked))
    share = optimizer.usage.fallback_share
    return {"ask_ms": median(asks), "tell_ms": median(tells), "fallback_share": share}


def main() -> None:
    """Measure, and write what was found."""
    rows = [
        {"prompt": label, "trials": length, **measure(prompt, options, length)}
        for label, (prompt, options) in PROMPTS.items()
        for length in LENGTHS
    ]
    text = json.dumps({"python": platform.python_version(), "rows": rows}, indent=1)
    print(text)
    RESULTS.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
