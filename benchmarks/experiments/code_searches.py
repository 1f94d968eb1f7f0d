"""Code as the thing searched: candidates needed, and the same tasks as linear policies.

Question: how many candidates does a strong chat model need until its code does a task on starts
that it never saw, and is code better than a linear policy after as many episodes?

Protocol: one search for each task, with every candidate that was made. All candidates meet the
same starts; the best one of them is scored on fresh ones. The linear policies were searched with
10 episodes for each evaluation (`llmopt.benchmarks.experiments.words`, which made the rows of
``benchmarks/results/words.jsonl``; the first 5 points of those searches are random). Code is
compared with the best of them after as many episodes as its own search took.

The searches are runs of ``llmopt code`` and ``llmopt reward``. A recorded one is run again
without a model's key:

    llmopt code swimmer --model replay:benchmarks/recordings/code-swimmer.jsonl --steps 10 --out DIR

Each folder named here is one line of ``benchmarks/results/code.jsonl``; ``--table`` prints both
tables from those lines:

    python -m llmopt.benchmarks.experiments.code_searches DIR ... --answered-by "a chat model"
    python -m llmopt.benchmarks.experiments.code_searches --table

Runtime: seconds, beside the searches (a minute each).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from llmopt.benchmarks.code.folder import read_config
from llmopt.files import read_json_object
from llmopt.search.eventlog import read_events
from llmopt.search.resume import names_a_place

_HOME = Path(__file__).parents[1] / "results"
RESULTS = _HOME / "code.jsonl"
LINEAR = (_HOME / "words.jsonl", _HOME / "code_linear.jsonl")
STARTS = 10
"""Episodes of one evaluation of a linear policy."""

ARMS = {"words": "linear, a chat model", "cma": "linear, CMA-ES", "random": "linear, random"}


def read_run(folder: Path, answered_by: str = "") -> dict[str, Any]:
    """Return what came of a run as one line of the results.

    Of a run that was broken off there is no score on fresh starts.

    Args:
        folder: A run folder of ``llmopt code`` or ``llmopt reward``.
        answered_by: Who answered, for the models ``folder:`` and ``replay:``.

    Raises:
        LLMOptError: The folder holds no run.
    """
    config = read_config(folder)
    judged = folder / "held_out.json"
    files = sorted((folder / "candidates").glob("*.json"))
    found = [read_json_object(file) for file in files]
    events = list(read_events(folder / "search.jsonl"))
    kinds = [event.get("event") for event in events]
    names = ("score", "mean_return", "success_rate")
    return {
        "command": config["command"],
        "task": config["task"],
        "model": answered_by or config["model"],
        "seed": config["seed"],
        "episodes": config["episodes"],
        "candidates": [{name: c.get(name) for name in names} for c in found],
        "requests": kinds.count("reply"),
        "sent_back": kinds.count("reject"),
        "held_out": read_json_object(judged) if judged.is_file() else None,
    }


def needed(line: dict[str, Any]) -> int:
    """Return how many candidates were made until the best one was there."""
    scores = [-float("inf") if c["score"] is None else c["score"] for c in line["candidates"]]
    return scores.index(max(scores)) + 1


def searches_table(lines: Sequence[dict[str, Any]]) -> str:
    """Return candidates needed and held-out scores as a Markdown table."""
    rows = [
        "| task | candidates | the best one | requests | first score | best score | "
        "held-out success | held-out return |",
        "| --- |" + " ---: |" * 7,
    ]
    for line in lines:
        held = line["held_out"] or {}
        scores = [c["score"] for c in line["candidates"]]
        success, error = held.get("success rate"), held.get("standard error")
        trained = f", {held['trainings']} trainings" if "trainings" in held else ""
        cells = [
            ("reward for " if line["command"] == "reward" else "") + line["task"],
            str(len(scores)),
            f"number {needed(line)}",
            f"{line['requests']} ({line['sent_back']} sent back)",
            "failed" if scores[0] is None else f"{scores[0]:.4g}",
            f"{max(s for s in scores if s is not None):.4g}",
            "" if success is None else f"{success:.0%} of {held['starts']}",
            f"{held['mean return']:.5g}" + (f" ± {error:.2g}" if error else "") + trained
            if held
            else "broken off",
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def beside_table(lines: Sequence[dict[str, Any]], linear: Sequence[dict[str, Any]]) -> str:
    """Return code beside linear policies, after equal episodes and at the end of each search.

    Args:
        lines: Searches over code.
        linear: Searches over linear policies.
    """
    rows = [
        "| task | episodes | code | " + " | ".join(ARMS.values()) + " |",
        "| --- | ---: |" + " ---: |" * (1 + len(ARMS)),
    ]
    for line in lines:
        task = line["task"]
        if line["command"] != "code" or not any(found["task"] == task for found in linear):
            continue
        made = line["candidates"]
        total = len(made) * line["episodes"]
        for episodes in sorted({min(5 * line["episodes"], total), total}):
            scores = [c["score"] for c in made[: episodes // line["episodes"]]]
            cells = [_best(scores)]
            for arm in ARMS:
                group = [f for f in linear if f["task"] == task and f["arm"] == arm]
                curves = [f["curve"][: episodes // STARTS] for f in group]
                bests = [max(v for v in curve if v is not None) for curve in curves if curve]
                cells.append(_middle(bests))
            rows.append(f"| {task} | {episodes} | " + " | ".join(cells) + " |")
        if line["held_out"] is None:
            continue
        ends = [f"{line['held_out']['mean return']:.5g} after {total}"]
        for arm in ARMS:
            group = [f for f in linear if f["task"] == task and f["arm"] == arm]
            spent = median(len(f["curve"]) for f in group) * STARTS if group else 0
            held = _middle([f["held_out"] for f in group])
            ends.append(f"{held} after {spent:g}" if group else "")
        rows.append(f"| {task}, fresh starts | all | " + " | ".join(ends) + " |")
    return "\n".join(rows)


def _best(scores: Sequence[float | None]) -> str:
    sound = [score for score in scores if score is not None]
    return f"{max(sound):.5g}" if sound else "failed"


def _middle(values: Sequence[float]) -> str:
    if not values:
        return ""
    text = f"{median(values):.4g}"
    if len(values) > 1:
        text += f" [{min(values):.4g}, {max(values):.4g}]"
    return text


def _read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    """Take in run folders, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path, metavar="DIR", help="run folders")
    parser.add_argument("--answered-by", default="", help="who answered, for folder: and replay:")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="print what was measured")
    args = parser.parse_args()
    lines = [read_run(folder, args.answered_by) for folder in args.runs]
    for line in lines:
        if names_a_place(line["model"]):
            parser.error(f"the model {line['model']} is a place: say who answered, --answered-by")
    if lines:
        with args.out.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    if args.table:
        lines = _read_lines(args.out)
        print(searches_table(lines))
        print()
        print(beside_table(lines, [row for path in LINEAR for row in _read_lines(path)]))


if __name__ == "__main__":
    main()
