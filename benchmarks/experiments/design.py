"""Design, then tune: what a search with default settings costs, and how it ends.

Question: a strong chat model finds nearly all of a gain with its first answers. How many requests
and tokens does a search need that may end, takes several points from an answer, and lets numbers
finish; and is what it finds as good as before?

Protocol: one search a line, with default settings and 30 evaluations. A policy is scored on 10
starts, and the one that the search recommends on 100 fresh ones (`llmopt.policies.PolicySearch`); a
function (`llmopt.benchmarks.experiments.functions`) is minimized with numbered parameters and
without a description, and judged by its value without noise. Nobody who worked on the prompt had
seen the systems of `llmopt.benchmarks.experiments.unseen`. Arms:

- ``default``: nothing is set but the seed;
- ``python``: the same, answered by a model that has Python beside the prompt;
- ``before``: 5 random points first, one point an answer, no finish by numbers, and for functions no
  offer to stop. Of the policies of `BEFORE` such searches stand in ``words.jsonl``.

A value counts as reached within one percent. Tokens are estimated from the texts of the recording,
for searches of before, too. All searches that were made count.

    python -m llmopt.benchmarks.experiments.design --task zones --seed 4 --model folder:DIR \
        --answered-by "a frontier chat model" --record RECORDINGS --out FILE
    python -m llmopt.benchmarks.experiments.design --table

Searches that run at the same time each need a file of their own; join their lines in
``design.jsonl``. The page ``design.md`` is made from that file alone (``--table``). A search that
was cut off goes on if its command is given again: the folder still holds its answers.

Runtime: the model's answers take nearly all of it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from gymnasium.wrappers import TimeLimit

import llmopt
from llmopt.benchmarks.engine.cell import Cell, Line, read_lines
from llmopt.benchmarks.engine.pool import run_pool
from llmopt.benchmarks.experiments import words
from llmopt.benchmarks.experiments.functions import SHAPES, Function
from llmopt.benchmarks.experiments.recordings import spent
from llmopt.benchmarks.experiments.unseen import BusLine, Fermenter
from llmopt.benchmarks.experiments.words_page import is_present
from llmopt.benchmarks.report.table import Table
from llmopt.client.base import Client
from llmopt.client.recording import RecordClient
from llmopt.history import Trial, Usage
from llmopt.policies import PolicySearch
from llmopt.trackers import Callback

RESULTS = Path(__file__).parents[1] / "results" / "design.jsonl"
EVALUATIONS = 30
HELD_OUT = 100
ARMS = ("default", "python", "before")
BEFORE = ("zones", "cascade", "heavy-car", "swimmer-changed", "hopper", "swimmer")
"""Policies that were searched before, with ``words``."""

POLICIES: dict[str, words.WordsTask] = {
    **{name: words.TASKS[name] for name in BEFORE},
    "fermenter": words.WordsTask(lambda: TimeLimit(Fermenter(), 150)),
    "bus-line": words.WordsTask(lambda: TimeLimit(BusLine(), 500)),
}
TASKS = (*POLICIES, *SHAPES)
_OFF: dict[str, Any] = {"points": 1, "finish": "off", "warmup": words.WARMUP}


class Watch(Callback):
    """Keeps each trial of a search with the requests that were made until it was evaluated."""

    def __init__(self) -> None:
        self.trials: list[tuple[Trial, int]] = []

    def told(self, search: Any, trial: Trial, best: Trial | None, usage: Usage) -> None:
        """Keep a trial."""
        self.trials.append((trial, usage.requests))


def search_policy(cell: Cell, client: Client) -> Line:
    """Search a policy and return what was found."""
    task, watch = POLICIES[cell.task], Watch()
    off = _OFF if cell.method == "before" else {}
    with PolicySearch(
        task.env, client, seed=cell.seed, callbacks=[watch], **task.options, **off
    ) as search:
        search.run(cell.evaluations)
        best = search.best
        held = search.evaluate(HELD_OUT)
        return {
            **_trials(watch, [t.reward for t, _ in watch.trials]),
            "best": best.reward,
            "params": best.params,
            "held_out": held.mean,
            "held_out_stderr": held.standard_error,
            **_usage(search.optimizer.usage, search.stopped),
        }


def search_function(cell: Cell, client: Client) -> Line:
    """Minimize a function and return what was found, without noise."""
    function, watch = Function(cell.task, cell.seed), Watch()
    off = {**_OFF, "finish": None, "finalists": None, "may_stop": False}
    result = llmopt.minimize(
        function,
        function.space,
        cell.evaluations,
        client,
        seed=cell.seed,
        noisy=function.shape.noise > 0,
        callbacks=[watch],
        progress=False,
        **(off if cell.method == "before" else {}),
    )
    params = result.best.params
    return {
        **_trials(watch, [function.true(t.params) for t, _ in watch.trials]),
        "best": function.true(params),
        "params": params,
        "optimum": function.best,
        **_usage(result.usage, result.stopped),
    }


def _trials(watch: Watch, values: Sequence[Any]) -> Line:
    return {
        "curve": list(values),
        "asked": [requests for _, requests in watch.trials],
        "sources": [t.source if t.kind == "search" else t.kind for t, _ in watch.trials],
    }


def _usage(usage: Usage, stopped: str) -> Line:
    return {
        "requests": usage.requests,
        "fallbacks": usage.fallbacks,
        "rejected": usage.rejected,
        "stopped": stopped,
    }


def run_cell(cell: Cell, model: str, record: Path) -> Line:
    """Run one search and return its line."""
    began = time.monotonic()
    record.mkdir(parents=True, exist_ok=True)
    path = record / f"{cell.task}-{cell.method}-{cell.seed}.jsonl"
    path.unlink(missing_ok=True)
    search = search_function if cell.task in SHAPES else search_policy
    with contextlib.ExitStack() as opened:
        client = words.load(model)
        opened.callback(getattr(client, "close", lambda: None))
        found = search(cell, RecordClient(client, path))
    prompt, completion = spent(path) if path.exists() else (0, 0)
    seconds = round(time.monotonic() - began, 1)
    return cell.line(**found, prompt_tokens=prompt, completion_tokens=completion, seconds=seconds)


# -- the table ----------------------------------------------------------------------------


def earlier(lines: Iterable[Line]) -> list[Line]:
    """Return the searches of before, in the form of this experiment's lines.

    Of those in ``words.jsonl`` one request made one point after the warm-up.
    """
    found = []
    for line in read_lines(words.RESULTS):
        if line["task"] in BEFORE and line["method"] == "words" and is_present(line):
            asked = [max(0, i + 1 - words.WARMUP) for i in range(len(line["curve"]))]
            found.append({**line, "asked": asked})
    return [*found, *(line for line in lines if line["method"] == "before")]


def requests_until(line: Line, target: float) -> float:
    """Return the requests until a value is within one percent of another, or better; else ∞."""
    sign = -1 if "optimum" in line else 1
    kinds = line.get("sources", [""] * len(line["curve"]))
    for value, asked, kind in zip(line["curve"], line["asked"], kinds, strict=True):
        if (
            value is not None
            and kind != "check"
            and sign * value >= sign * target - 0.01 * abs(target)
        ):
            return int(asked)
    return math.inf


def make_page(lines: Sequence[Line]) -> str:
    """Return the Markdown page: a row for each task and arm, beside the searches of before."""
    before = earlier(lines)
    rows, shares = [], []
    for task in TASKS:
        old = [line for line in before if line["task"] == task]
        best = {line["seed"]: line["best"] for line in old}
        for arm in ("default", "python"):
            new = [line for line in lines if (line["task"], line["method"]) == (task, arm)]
            if not new:
                continue
            cells = ["–"] * 3
            if old:
                middle = median(best.values())
                first = median(requests_until(x, best[x["seed"]]) for x in old)
                now = median(requests_until(x, best.get(x["seed"], middle)) for x in new)
                cells = [
                    _count(first),
                    _count(now),
                    f"{now / first:.2f}" if now < math.inf else "–",
                ]
                shares += [now / first] if arm == "default" else []
            rows.append(
                [
                    task,
                    arm,
                    *cells,
                    *(_count(_middle(group, "requests")) for group in (old, new)),
                    *(_results(group) for group in (old, new)),
                    *(_thousands(_middle(group, "prompt_tokens")) for group in (old, new)),
                ]
            )
    head = [
        "task", "arm", "requests to 1 %, before", "now", "share", "requests in all, before", "now",
        "results before (seed)", "now", "prompt tokens before", "now",
    ]  # fmt: skip
    text = [
        "# Design, then tune",
        "",
        "Requests until a value is within 1 % of the best of the search of before (of the same "
        "seed, else the median); medians over searches. Results are mean returns on 100 fresh "
        "starts, of functions the distance to the optimum. Tokens are estimated from the texts. "
        "Made by `python -m llmopt.benchmarks.experiments.design --table` from the committed lines "
        "alone.",
        "",
        *Table.of(head, rows).markdown(),
    ]
    if shares:
        text += ["", f"Median share of the requests to within 1 %: {median(shares):.2f}."]
    return "\n".join([*text, ""])


def _middle(lines: Sequence[Line], name: str) -> float:
    return median(line[name] for line in lines) if lines else math.nan


def _count(value: float) -> str:
    return "–" if math.isnan(value) else "not reached" if math.isinf(value) else f"{value:g}"


def _thousands(value: float) -> str:
    return "–" if math.isnan(value) else f"{value / 1000:.0f}k"


def _results(lines: Sequence[Line]) -> str:
    """Return held-out returns, or distances to the optimum, by seed."""
    shown = []
    for line in sorted(lines, key=lambda line: int(line["seed"])):
        value = line["best"] - line["optimum"] if "optimum" in line else line["held_out"]
        shown.append(f"{value:.4g} ({line['seed']})")
    return ", ".join(shown) or "–"


def main() -> None:
    """Run the search that the command line names, or print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--task", choices=TASKS, default="zones")
    parser.add_argument("--arm", choices=ARMS, default="default")
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--evaluations", type=int, default=EVALUATIONS)
    parser.add_argument("--model", default="smollm2", help="model string")
    parser.add_argument("--answered-by", default="", help="who answered, for folder: and replay:")
    parser.add_argument("--record", type=Path, help="folder for the recording")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="make the page of what was measured")
    args = parser.parse_args()
    if args.table:
        page = make_page(read_lines(args.out))
        args.out.with_suffix(".md").write_text(page, encoding="utf-8")
        print(page)
        return
    again = args.model.startswith("replay:")  # what is played is not recorded over
    record = None if again else args.record
    record = record or Path(tempfile.mkdtemp(prefix="llmopt-recording-"))
    cell = Cell(args.task, args.arm, args.seed, args.evaluations, args.answered_by or args.model)
    run = functools.partial(run_cell, model=args.model, record=record)
    run_pool([cell], run, args.out, summary=lambda line: f"best {line['best']:.6g}")


if __name__ == "__main__":
    main()
