"""Are the committed results still those of this code? Some of them are made again and compared.

Question: which committed lines does the present code still give? Protocol: of each file of results
a random sample of lines, spread evenly over the methods, is run again from its own seed. A line
agrees if every value of its search does, to the digits that a line keeps. Lines that took longer
than ``--seconds``, or asked another model than the embedded one, are not drawn. Lines that differ
are stale: make them anew or delete them. Floating-point sums differ between processors, and a
search carries a difference on: check on the kind of machine that made the lines.

    python -m llmopt.benchmarks.experiments.recheck --check 20
    python -m llmopt.benchmarks.experiments.recheck --files bbob hpo --check 5 --seconds 60

Each line that was checked is a line of ``recheck.jsonl``, the last run of a file in place of the
one before; the table ``recheck.md`` is made from that file alone (``--table-only``).
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmopt.benchmarks.bench import cells as policies
from llmopt.benchmarks.engine.cell import Cell, Line
from llmopt.benchmarks.experiments import bbob, hpo
from llmopt.benchmarks.report.table import Table
from llmopt.files import write_bytes_atomically
from llmopt.search.eventlog import read_events

RESULTS = Path(__file__).parents[1] / "results"


SOURCES: Mapping[str, tuple[Callable[[Any], Line], str]] = {
    "policies": (policies.run_cell, "means"),
    "bbob": (bbob.run_cell, "steps"),
    "hpo": (hpo.run_cell, "values"),
}
"""File of results -> what runs one of its searches, and the field of a line that it decides."""


def draw(lines: Sequence[Line], count: int, seconds: float, seed: int) -> list[int]:
    """Return the places of the lines to check: random ones, the methods in turn."""
    turns: Counter[str] = Counter()
    order = []
    for place in np.random.default_rng(seed).permutation(len(lines)).tolist():
        cell, taken = Cell.of(lines[place]), lines[place]["seconds"]
        taken = sum(taken.values()) if isinstance(taken, dict) else taken
        if taken <= seconds and cell.model in ("", "smollm2"):
            order.append((turns[cell.method], place))
            turns[cell.method] += 1
    return [place for _, place in sorted(order, key=lambda item: item[0])[:count]]


def agrees(old: Any, new: Any, tolerance: float) -> bool:
    """Return whether two traces hold the same values."""
    if len(old) != len(new):
        return False
    # A failed evaluation is None, which is equal to itself alone.
    one, other = (np.array(each, dtype=float) for each in (new, old))
    return bool(np.allclose(one, other, rtol=tolerance, atol=1e-12, equal_nan=True))


def check(name: str, path: Path, args: argparse.Namespace) -> list[Line]:
    """Run some lines of a file again and return what was found."""
    run, trace = SOURCES[name]
    lines = list(read_events(path))
    found = []
    for place in draw(lines, args.check, args.seconds, args.seed):
        cell = Cell.of(lines[place])
        same = agrees(lines[place][trace], run(cell)[trace], args.tolerance)
        found.append(cell.line(file=path.name, lines=len(lines), agrees=same))
        print(f"{path.name} {cell}: {'agrees' if same else 'DIFFERS'}", flush=True)
    return found


def make_table(found: Sequence[Line]) -> str:
    """Return the Markdown page."""
    text = [
        "# Committed results, made again",
        "",
        "Random lines of each file, spread evenly over its methods, run again by `python -m "
        "llmopt.benchmarks.experiments.recheck`. A line agrees if every value of its search does.",
        "",
    ]
    rows = []
    for file in dict.fromkeys(r["file"] for r in found):
        own = [r for r in found if r["file"] == file]
        differ = Counter(r.get("method", r["cell"].get("method")) for r in own if not r["agrees"])
        named = ", ".join(f"{m} ({n})" for m, n in differ.items()) or "none"
        agree = sum(r["agrees"] for r in own)
        rows.append([file, str(own[0]["lines"]), str(len(own)), str(agree), named])
    table = Table.of(["file", "lines", "checked", "agree", "differ"], rows)
    return "\n".join([*text, *table.markdown(), ""])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--check", type=int, default=10, help="lines of each file")
    parser.add_argument("--seconds", type=float, default=30, help="longest search to run again")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="relative")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder")
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    args = parser.parse_args(argv)
    kept = args.results / "recheck.jsonl"
    found: list[Line] = list(read_events(kept)) if kept.exists() else []
    for name in () if args.table_only else args.files:
        path = args.results / f"{name}.jsonl"
        if path.exists():
            new = check(name, path, args)
            found = [r for r in found if r["file"] != path.name] + new
            write_bytes_atomically(kept, "".join(json.dumps(r) + "\n" for r in found).encode())
    page = make_table(found)
    kept.with_suffix(".md").write_text(page, encoding="utf-8")
    print(page)
    return 0 if all(r["agrees"] for r in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
