"""Trace one `ask` and one `tell`: the functions that run, and the files that they are in.

Run it by hand: ``python tests/way_of_a_point.py``. It prints how many functions in how many files
of llmopt run for the second proposal of the prompt ``words`` with a storage, and which.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import llmopt

HOME = Path(llmopt.__file__).parent
ANSWERS = [
    f"Analysis: the larger one scored more.\nHypothesis: it goes on.\nStart from: #{i}\n"
    f"Proposal: x: 0.{i + 3}"
    for i in (1, 2, 3)
]


def traced(call: Callable[[], Any]) -> tuple[Any, Counter[tuple[str, str]], int]:
    """Return what a call gives, the calls of each function of llmopt, and the changes of file."""
    calls: Counter[tuple[str, str]] = Counter()
    files: list[str] = []

    def watch(frame: Any, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(HOME)):
            name = str(Path(file).relative_to(HOME))
            if not frame.f_code.co_name.startswith(
                "<"
            ):  # comprehensions are part of their function
                calls[name, frame.f_code.co_qualname] += 1
                files.append(name)

    sys.setprofile(watch)
    try:
        result = call()
    finally:
        sys.setprofile(None)
    changes = sum(a != b for a, b in pairwise(files))
    return result, calls, changes


def way(folder: str) -> dict[str, tuple[Counter[tuple[str, str]], int]]:
    """Return the functions of an `ask` and a `tell` of a search with a history and a storage."""
    optimizer = llmopt.LLMOptimizer(
        {"x": llmopt.Float(0, 1, step=0.1), "kind": llmopt.Categorical(["a", "b"])},
        llmopt.ScriptedClient([f"{text}, kind: a" for text in ANSWERS]),
        "words",
        warmup=[{"x": 0.2, "kind": "a"}],
        seed=0,
        description="find the best x",
        storage=Path(folder) / "search.jsonl",
    )
    for reward in (0.2, 0.5):
        optimizer.tell(optimizer.ask(), reward, feedback="it went up")
    point, asked, changes = traced(optimizer.ask)
    _, told, others = traced(lambda: optimizer.tell(point, 0.7, feedback="higher"))
    optimizer.close()
    return {"ask": (asked, changes), "tell": (told, others)}


def main() -> None:
    """Print the way of a point."""
    with tempfile.TemporaryDirectory() as folder:
        for name, (calls, changes) in way(folder).items():
            files = Counter(file for file, _ in calls)
            print(
                f"{name}: {calls.total()} calls of {len(calls)} functions in {len(files)} files, "
                f"{changes} changes of file"
            )
            for file, count in sorted(files.items()):
                names = sorted(function for at, function in calls if at == file)
                print(f"  {file} ({count}): {', '.join(names)}")


if __name__ == "__main__":
    main()
