"""The main job from ten seeds: is one lucky run being shown?

Question: how does `llmopt run mountaincar` come out over seeds? Protocol: exactly that
command, seeds 0 to 9, all methods with the same warm-up points, episodes and held-out
starts; medians and quartiles of the chosen policy's return. Runtime: about six minutes on two
idle cores.

    python -m llmopt.benchmarks.experiments.mountaincar_seeds --runs runs/mountaincar-seeds

Run folders that are finished are not run again. The raw figures go to
``mountaincar_seeds.jsonl``, one line for each seed and method, and the table beside it is
made from that file alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmopt.benchmarks.run import RunConfig, run

RESULTS = Path(__file__).parents[1] / "results" / "mountaincar_seeds.jsonl"
SEEDS = range(10)  # the command's own is 0
SOLVED = 90.0  # what the environment's registration counts as solved, as a mean return


def rows_of(seed: int, folder: Path) -> list[dict[str, Any]]:
    """Return one seed's results, running it first if its folder is not finished."""
    summary = folder / "summary.json"
    if not summary.exists():
        config = RunConfig(task="mountaincar", seed=seed, gif=False)
        run(config, folder, resume=folder.exists(), progress=True)
    return [{"seed": seed, **row} for row in json.loads(summary.read_text(encoding="utf-8"))]


def make_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the Markdown table: medians and quartiles over the seeds, one line a method."""
    lines = [
        "| method | chosen on 60 | held-out 100 | worst seed | "
        f"seeds of {len({r['seed'] for r in rows})} "
        f"above {SOLVED:.0f} held-out | model tokens | fallback |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for label in dict.fromkeys(r["label"] for r in rows):
        own = [r for r in rows if r["label"] == label]
        share = [r["fallback_share"] for r in own]
        asks = None not in share
        lines.append(
            f"| {label} | {_spread([r['final'] for r in own])} "
            f"| {_spread([r['heldout'] for r in own])} "
            f"| {min(r['heldout'] for r in own):.1f} "
            f"| {sum(r['heldout'] >= SOLVED for r in own)} "
            f"| {np.median([r['tokens'] for r in own]):,.0f} "
            f"| {f'{100 * float(np.mean(share)):.1f} %' if asks else '-'} |"
        )
    return "\n".join(lines) + "\n"


def _spread(values: Sequence[float]) -> str:
    low, middle, high = np.percentile(values, [25, 50, 75])
    return f"{middle:.1f} [{low:.1f}, {high:.1f}]"


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, write the raw figures, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=Path, default=Path("runs/mountaincar-seeds"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    rows = [row for seed in SEEDS for row in rows_of(seed, args.runs / f"seed{seed}")]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    args.results.write_text(text, encoding="utf-8")
    table = make_table(rows)
    args.results.with_suffix(".md").write_text(table, encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main()
