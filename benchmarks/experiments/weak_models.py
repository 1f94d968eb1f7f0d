"""Small chat models: the table of what they make of each prompt, from the committed lines.

Question: which prompt suits a chat model that runs on a processor, and are its points better than
random ones? The searches (10 evaluations, 3 of them random; an answer that cannot be used is
replaced by a random point) were run by ``experiments/weak_models.py`` of commit 6aa3eb59, whose
tasks are gone. The result of a search says little: about half of its points or more are random, and
searches of one seed share these. So the table compares the proposed points with all random points
of the task.

    python -m llmopt.benchmarks.experiments.weak_models  # writes the page

Runtime: a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from llmopt.benchmarks.engine.cell import Row, read_lines
from llmopt.benchmarks.report.table import Table

RESULTS = Path(__file__).parents[1] / "results" / "weak_models.jsonl"
ARMS = {
    "props-json": "`props`, as JSON",
    "words": "`words`, as text",
    "words-json": "`words`, as JSON",
}
TASKS = ("own-svm", "own-ridge", "own-sgd", "heavy-car")


def rows(lines: Sequence[Row]) -> list[list[str]]:
    """Return the rows of the table: one for each model and prompt."""
    drawn = {task: _drawn(lines, task) for task in TASKS}
    models = dict.fromkeys(line["model"] for line in lines if line["method"] in ARMS)
    found = []
    for model in models:
        for arm, title in ARMS.items():
            own = [x for x in lines if (x["model"], x["method"]) == (model, arm)]
            if own:
                found.append([model, title, *_answers(own), *_points(own, drawn)])
    return found


def make_page(lines: Sequence[Row]) -> str:
    """Return the Markdown page."""
    head = ["model", "prompt", "searches", "answers", "usable", "unreadable", "repeated", "other"]
    head += ["tokens an answer", "proposed points better than random", "best point proposed"]
    return "\n".join(
        [
            "# Small chat models",
            "",
            "Models that run on a CPU, on four tasks: three tune scikit-learn models, one searches "
            "a policy with four weights. A search has 10 evaluations, 3 of them random; an answer "
            "that cannot be used is replaced by a random point.",
            "",
            "- **Usable**, **unreadable**, **repeated** (a point that was tried before) and "
            "**other** (a value out of its range, an answer that was cut off at 400 tokens, a "
            "block of Python) are shares of the answers.",
            "- **Proposed points better than random**: each proposed point meets every random "
            "point of its task. The share of these pairs that it wins (ties count half) is "
            "averaged over the tasks that have proposed points; brackets: number of tasks, of "
            "points. Random points reach 50 %. Points of one search are not independent, so small "
            "differences mean nothing.",
            "- **Best point proposed**: the number of searches whose best point the model "
            "proposed, and in round brackets that to expect if its points were random. Searches "
            "of one seed share their random points, so results of searches are not compared.",
            "",
            "The searches were made by `experiments/weak_models.py` of commit 6aa3eb59, whose "
            "tasks are gone. To remake this page:",
            "",
            "```",
            "python -m llmopt.benchmarks.experiments.weak_models",
            "```",
            "",
            *Table.of(head, rows(lines)).markdown(),
            "",
        ]
    )


def _drawn(lines: Sequence[Row], task: str) -> np.ndarray:
    """Return the results of all random points of a task."""
    own = [x for x in lines if (x["task"], x["method"]) == (task, "random")]
    return np.array([v for line in own for v in line["values"] if v is not None])


def _answers(lines: Sequence[Row]) -> list[str]:
    """Return the share of each outcome among the answers of some searches."""
    rejected = {"unreadable": 0, "duplicate": 0}
    for line in lines:
        for reason, count in line["rejected"].items():
            rejected[reason] = rejected.get(reason, 0) + count
    asked = sum(line["requests"] for line in lines)
    usable = sum(line["sources"].count("llm") for line in lines)
    unreadable, repeated = rejected["unreadable"], rejected["duplicate"]
    other = asked - usable - unreadable - repeated
    shares = [f"{100 * part / asked:.0f} %" for part in (usable, unreadable, repeated, other)]
    tokens = sum(line["tokens"][1] for line in lines) / asked
    return [str(len(lines)), str(asked), *shares, f"{tokens:.0f}"]


def _points(lines: Sequence[Row], drawn: dict[str, np.ndarray]) -> list[str]:
    """Return the share of pairs that proposed points win, and how often one was the best."""
    shares, count, best, chance = [], 0, 0, 0.0
    for task, random in drawn.items():
        searches = [x for x in lines if x["task"] == task]
        points = []
        for line in searches:
            told = [(-np.inf if v is None else v) for v in line["values"]]
            points += [v for v, s in zip(told, line["sources"], strict=True) if s == "llm"]
            best += line["sources"][int(np.argmax(told))] == "llm"
            chance += line["sources"].count("llm") / len(told)
        count += len(points)
        if points:
            won = np.sign(np.array(points)[:, None] - random[None, :]) / 2 + 0.5
            shares.append(won.mean())
    share = f"{100 * np.mean(shares):.0f} % ({len(shares)}, {count})" if shares else "–"
    return [share, f"{best} of {len(lines)} ({chance:.1f})"]


def main() -> None:
    """Write the page."""
    page = make_page(read_lines(RESULTS))
    RESULTS.with_suffix(".md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
