"""Design, then tune: what a search with default settings costs, and how it ends.

Question: a strong chat model finds nearly all of a gain with its first answers. How many requests
and tokens does a search need that may end, takes several points from an answer, and lets numbers
finish; and is what it finds as good as before?

Protocol: one search a line, with default settings and 30 evaluations. A policy is scored on 10
initial states, and the recommended one on 100 held-out ones (`llmopt.policies.PolicySearch`); a
function (`llmopt.benchmarks.experiments.functions`) is minimized with numbered parameters and
without a description, and judged by its value without noise. A problem with a description
(`PROBLEMS` of `llmopt.benchmarks.experiments.unseen_more`) is judged beside its reference value.
Nobody who worked on the prompt had seen the systems of `unseen` and `unseen_more`. Arms:

- ``prompt-eight``: nothing is set but the seed; the committed searches used versions 8 to 12
  of the prompt, which let the model compute in Python on the recorded episodes
  (``compute="auto"``), for as many blocks as it wants within the limits of the library;
- ``prompt-seven``: nothing was set but the seed, version 7 of the prompt, and one point an answer
  where evaluations are fewer than parameters; ``prompt-six``: version 6, and always up to four
  points; ``prompt-five``: version 5, which showed in full only some points of the latest answer;
  ``default``: version 4, which kept no line of what was seen of older points;
- ``compute``: as ``prompt-five``, with ``compute=True``: an answer may be Python that is run;
- ``python``: as ``default``, answered by a model that has Python beside the prompt;
- ``before``: 5 random points first, one point an answer, no finish by numbers, and for functions no
  offer to stop. For the policies of `BEFORE` such searches are in ``words.jsonl``.

A value counts as reached within one percent. Tokens are estimated from the texts of the recording,
for searches of before, too. All searches that were made count.

    python -m llmopt.benchmarks.experiments.design --tasks zones --seeds 4 --model folder:DIR \
        --name "a frontier chat model" --record RECORDINGS --out FILE
    python -m llmopt.benchmarks.experiments.design --table

Searches that run at the same time need separate files; join their lines in
``design.jsonl``. The page ``design.md`` is made from that file alone (``--table``). A search that
was interrupted resumes if its command is run again: the folder still holds its answers.

Runtime: the model's answers take nearly all of it.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from gymnasium.wrappers import TimeLimit

import llmopt
from llmopt.benchmarks.engine.cell import Cell, Row, read_lines
from llmopt.benchmarks.experiments import words
from llmopt.benchmarks.experiments.command import Experiment, answering, kept_in
from llmopt.benchmarks.experiments.functions import SHAPES, Function
from llmopt.benchmarks.experiments.recordings import spent
from llmopt.benchmarks.experiments.unseen import BusLine, Fermenter
from llmopt.benchmarks.experiments.unseen_more import (
    BASELINES,
    PROBLEMS,
    REFERENCES,
    Balloon,
    Unknown,
)
from llmopt.benchmarks.experiments.words import is_present
from llmopt.benchmarks.report.table import Table
from llmopt.client.base import Client
from llmopt.history import Params, Trial, Usage
from llmopt.policies import PolicySearch
from llmopt.policies.parameters import BOX
from llmopt.trackers import Callback

RESULTS = Path(__file__).parents[1] / "results" / "design.jsonl"
HELD_OUT = 100
_COUNTED = ("requests", "fallbacks", "rejected", "blocks", "compute_seconds")
LABELS = {
    "prompt-eight": "prompt 8, compute",
    "prompt-seven": "prompt 7",
    "prompt-six": "prompt 6",
    "prompt-five": "prompt 5",
    "compute": "prompt 5, compute",
    "default": "prompt 4",
    "python": "prompt 4, with Python",
}
ARMS = (*LABELS, "before")
BEFORE = ("zones", "cascade", "heavy-car", "swimmer-changed", "hopper", "swimmer")
"""Policies that were searched before, with ``words``."""

POLICIES: dict[str, words.WordsTask] = {
    **{name: words.TASKS[name] for name in BEFORE},
    "fermenter": words.WordsTask(lambda: TimeLimit(Fermenter(), 150)),
    "bus-line": words.WordsTask(lambda: TimeLimit(BusLine(), 500)),
    "walker": words.TASKS["walker"],
    "cheetah": words.TASKS["cheetah"],
    "alder": words.WordsTask(Balloon),
    "fir": words.WordsTask(Unknown),
}
TASKS = (*POLICIES, *SHAPES, *PROBLEMS)
_SET: dict[str, dict[str, Any]] = {
    "before": {"points": 1, "warmup": words.WARMUP},
    "compute": {"compute": True},
}
"""Options of the arms that are not those of everybody."""


def interrupted(line: Row) -> bool:
    """Whether a search had to end while its model was still computing."""
    stopped: str = line["stopped"]
    return stopped.startswith("interrupted")


def set_in(cell: Cell, source: str = "") -> dict[str, Any]:
    """Return the options of a search; a replay of an interrupted one ends with its last answer."""
    found = dict(_SET.get(cell.method, {}))
    if source.startswith("replay:"):
        for line in read_lines(RESULTS):
            same = (line["task"], line["method"], line["seed"])
            if same == (cell.task, cell.method, cell.seed) and interrupted(line):
                found["max_requests"] = line["requests"]
    return found


class Watch(Callback):
    """Keeps each trial of a search with the requests that were made until it was evaluated."""

    def __init__(self) -> None:
        self.trials: list[tuple[Trial, int]] = []

    def told(self, search: Any, trial: Trial, best: Trial | None, usage: Usage) -> None:
        """Keep a trial."""
        self.trials.append((trial, usage.requests))

    def designs(self) -> list[Params]:
        """Return the first two points that the model proposed."""
        return [trial.params for trial, _ in self.trials if trial.source == "llm"][:2]

    def line(self, value: Callable[[Trial], Any], usage: Usage, stopped: str) -> Row:
        """Return what was seen, with a value for each trial."""
        return {
            "curve": [value(trial) for trial, _ in self.trials],
            "asked": [requests for _, requests in self.trials],
            "sources": [t.source if t.kind == "search" else t.kind for t, _ in self.trials],
            "first": self.designs(),
            **{name: getattr(usage, name) for name in _COUNTED},
            "stopped": stopped,
        }


def search_policy(cell: Cell, client: Client, options: Mapping[str, Any]) -> Row:
    """Search a policy and return what was found."""
    task, watch = POLICIES[cell.task], Watch()
    # As the committed searches and their recordings were made.
    options = {"box": BOX, **task.options, **options}
    with PolicySearch(task.env, client, seed=cell.seed, callbacks=[watch], **options) as search:
        search.run(cell.evaluations)
        best, held = search.best, search.evaluate(HELD_OUT)
        return {
            **watch.line(lambda trial: trial.reward, search.optimizer.usage, search.stopped),
            "best": best.reward,
            "params": best.params,
            "held_out": held.mean,
            "held_out_stderr": held.standard_error,
            "judged_first": [search.evaluate(HELD_OUT, p).mean for p in watch.designs()],
            "judged_seven": [search.evaluate(HELD_OUT, p).mean for p in of_seven(cell)],
        }


def of_seven(cell: Cell) -> list[Params]:
    """Return what version 7 recommended, to be judged on the same initial states."""
    if cell.method != "prompt-eight":
        return []
    lines = [x for x in read_lines(RESULTS) if x["task"] == cell.task]
    return [x["params"] for x in lines if x["method"] == "prompt-seven"]


def search_function(cell: Cell, client: Client, options: Mapping[str, Any]) -> Row:
    """Minimize a function and return what was found, without noise."""
    function, watch = Function(cell.task, cell.seed), Watch()
    if cell.method == "before":
        options = {**options, "finalists": None, "may_stop": False}
    result = llmopt.minimize(
        function,
        function.space,
        cell.evaluations,
        client,
        seed=cell.seed,
        noisy=function.shape.noise > 0,
        callbacks=[watch],
        progress=False,
        **options,
    )
    return {
        **watch.line(lambda trial: function.true(trial.params), result.usage, result.stopped),
        "best": function.true(result.best.params),
        "judged_first": [function.true(point) for point in watch.designs()],
        "params": result.best.params,
        "optimum": function.best,
    }


def search_problem(cell: Cell, client: Client, options: Mapping[str, Any]) -> Row:
    """Minimize a described objective and return what was found, beside its reference value."""
    problem, watch = PROBLEMS[cell.task], Watch()
    result = llmopt.minimize(
        problem.objective,
        problem.space,
        cell.evaluations,
        client,
        seed=cell.seed,
        description=problem.description,
        callbacks=[watch],
        progress=False,
        **options,
    )
    return {
        **watch.line(lambda trial: trial.reward, result.usage, result.stopped),
        "best": problem.judge(result.best.params),
        "judged_first": [problem.judge(point) for point in watch.designs()],
        "params": result.best.params,
        "optimum": REFERENCES[cell.task][1],
    }


def run_cell(cell: Cell, source: str = "", record: Path | None = None) -> Row:
    """Run one search and return its line, with the tokens of its recording."""
    began = time.monotonic()
    if record is None or source.startswith(
        "replay:"
    ):  # do not overwrite the recording that is replayed
        record = Path(tempfile.mkdtemp(prefix="llmopt-recording-"))
    path = kept_in(record, cell)
    path.unlink(missing_ok=True)
    with answering(cell, source, record) as client:
        kinds = {
            **dict.fromkeys(SHAPES, search_function),
            **dict.fromkeys(PROBLEMS, search_problem),
        }
        search = kinds.get(cell.task, search_policy)
        found = search(cell, client, set_in(cell, source))
    prompt, completion = spent(path) if path.exists() else (0, 0)
    seconds = round(time.monotonic() - began, 1)
    return cell.line(**found, prompt_tokens=prompt, completion_tokens=completion, seconds=seconds)


# -- the table ----------------------------------------------------------------------------


def earlier(lines: Iterable[Row]) -> list[Row]:
    """Return the searches of before, in the form of this experiment's lines.

    Of those in ``words.jsonl`` one request made one point after the warm-up.
    """
    found = []
    for line in read_lines(words.RESULTS):
        if line["task"] in BEFORE and line["method"] == "words" and is_present(line):
            asked = [max(0, i + 1 - words.WARMUP) for i in range(len(line["curve"]))]
            found.append({**line, "asked": asked})
    return [*found, *(line for line in lines if line["method"] == "before")]


def best_measured(line: Row) -> float:
    """Return the best value of an evaluation that is no check."""
    kinds = line.get("sources", [""] * len(line["curve"]))
    pairs = zip(line["curve"], kinds, strict=True)
    values = [value for value, kind in pairs if value is not None and kind != "check"]
    return float(min(values) if "optimum" in line else max(values))


def requests_until(line: Row, target: float) -> float:
    """Return the requests until a value is within one percent of another, or better; else ∞."""
    sign, slack = -1 if "optimum" in line else 1, 0.01 * abs(target)
    kinds = line.get("sources", [""] * len(line["curve"]))
    for value, asked, kind in zip(line["curve"], line["asked"], kinds, strict=True):
        if value is not None and kind != "check" and sign * value >= sign * target - slack:
            return int(asked)
    return math.inf


def make_page(lines: Sequence[Row]) -> str:
    """Return the Markdown page: a row for each task and arm, beside the searches of before."""
    before = earlier(lines)
    rows: list[list[str]] = []
    shares: dict[str, list[float]] = {}
    for task in TASKS:
        old = [line for line in before if line["task"] == task]
        best = {line["seed"]: best_measured(line) for line in old}
        for arm in LABELS:
            new = [line for line in lines if (line["task"], line["method"]) == (task, arm)]
            if not new:
                continue
            first = now = share = math.nan
            if old:
                middle = median(best.values())
                first = median(requests_until(x, best[x["seed"]]) for x in old)
                now = median(requests_until(x, best.get(x["seed"], middle)) for x in new)
                share = now / first
                shares.setdefault(arm, []).append(share)
            row = [task, LABELS[arm], _count(first), _count(now)]
            row.append(f"{share:.2f}" if share < math.inf else "–")
            row += [_count(_middle(group, "requests")) for group in (old, new)]
            row += [_results(group) for group in (old, new)]
            tokens = [_middle(group, "prompt_tokens") / 1000 for group in (old, new)]
            rows.append([*row, *("–" if math.isnan(n) else f"{n:.0f}k" for n in tokens)])
    head = [
        "task", "arm", "requests to 1 %, before", "now", "share", "requests in all, before", "now",
        "results before (seed)", "now", "prompt tokens before", "now",
    ]  # fmt: skip
    text = [
        "# Design, then tune",
        "",
        "Requests until a value is within 1 % of the best that the search of before measured (of "
        "the same seed, else the median); medians over searches. Results are mean returns on 100 "
        "fresh starts, of functions the distance to the optimum. Tokens are estimated from the "
        "texts. Made by `python -m llmopt.benchmarks.experiments.design --table` from the "
        "committed lines "
        "alone.",
        "",
        *Table.of(head, rows).markdown(),
    ]
    for arm, known in shares.items():
        known = [share for share in known if not math.isnan(share)]
        if known:
            text += [
                "",
                f"{LABELS[arm]}: median share of the requests to within 1 % "
                f"{_count(median(known))} (tasks: {len(known)}).",
            ]
    return "\n".join([*text, "", *_computing(lines), ""])


def _computing(lines: Sequence[Row]) -> list[str]:
    """Return the Markdown section on searches that compute: a row for each search."""
    rows = []
    for task in TASKS:
        own = [x for x in lines if (x["task"], x["method"]) == (task, "prompt-eight")]
        for x in sorted(own, key=lambda x: int(x["seed"])):
            spent = f"{x['compute_seconds']:.0f} of {x['seconds']:.0f}"
            tokens = f"{x['prompt_tokens'] / 1000:.0f}k + {x['completion_tokens'] / 1000:.0f}k"
            ended = " (interrupted)" if interrupted(x) else ""
            counts = [f"{len(x['curve'])}{ended}", x["requests"], x["blocks"], spent, tokens]
            row = [task, str(x["seed"]), *_designs(x), *map(str, counts)]
            rivals = _rivals(lines, task)
            if seven := x.get("judged_seven"):
                rivals[0] = _value(median(seven))
            rows.append([*row, *rivals])
    head = [
        "task", "seed", "first design", "second", "recommended", "evaluations", "requests",
        "blocks", "seconds of Python, in all", "tokens", "prompt 7, median", "prompt 2, median",
        "CMA-ES, 100, median", "reference",
    ]  # fmt: skip
    return [
        "## Searches that compute",
        "",
        "Each search with version 8 to 12 of the prompt, which differ in a few sentences. Since "
        "version 10 (Hopper 25, Walker2d 21, HalfCheetah 21, the changed Swimmer, fermenter, bus "
        "line and noisy) waiting for a job does not count towards the seconds of a block. "
        "Version 12 (the changed Swimmer 22) lets an answer name a variable of a block in place "
        "of values. Policies: mean return on the 100 held-out initial states, on which the "
        "policies that version 7 recommended were judged, too. Functions: the distance to the "
        "optimum. Others: the value that judges a point, which is minimized. Version 2 and CMA-ES "
        "had other boxes and initial states. References are from CMA-ES with BIPOP restarts and "
        "3,000 to 20,000 evaluations, for `elder` on the rows that judge. `cedar` is a "
        "least-squares problem whose data are in the prompt. An interrupted search was still "
        "computing when the experiment had to end.",
        "",
        *Table.of(head, rows).markdown(),
    ]


def _designs(line: Row) -> list[str]:
    """Return how good the first two designs and the recommended point are."""
    zero = line["optimum"] if line["task"] in SHAPES else 0.0
    values = [*(value - zero for value in line["judged_first"]), math.nan, math.nan][:2]
    end = f"{line['held_out']:.5g} ± {line['held_out_stderr']:.2g}" if "held_out" in line else ""
    return [*map(_value, values), end or _value(line["best"] - zero)]


def _judged(line: Row) -> float:
    value: float = line["held_out" if "held_out" in line else "best"]
    return value - line["optimum"] if line["task"] in SHAPES else value


def _rivals(lines: Sequence[Row], task: str) -> list[str]:
    """Return the medians of earlier prompts and of CMA-ES, and the reference value."""
    earlier = [x for x in read_lines(words.RESULTS) if x["task"] == task]
    groups = (
        [x for x in lines if (x["task"], x["method"]) == (task, "prompt-seven")],
        [x for x in earlier if x["method"] == "words" and is_present(x)],
        [x for x in earlier if x["method"] == "cma"],
    )
    judged = [[_judged(x) for x in group] for group in groups]
    values = [median(group) if group else math.nan for group in judged]
    best, cma = BASELINES.get(task, (math.nan, values.pop()))
    return [_value(value) for value in (*values[:2], cma, best)]


def _value(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.5g}"


def _middle(lines: Sequence[Row], name: str) -> float:
    return median(line[name] for line in lines) if lines else math.nan


def _count(value: float) -> str:
    return "–" if math.isnan(value) else "not reached" if math.isinf(value) else f"{value:.3g}"


def _results(lines: Sequence[Row]) -> str:
    """Return held-out returns, or distances to the optimum, by seed."""
    shown = []
    for line in sorted(lines, key=lambda line: int(line["seed"])):
        value = line["best"] - line["optimum"] if "optimum" in line else line["held_out"]
        shown.append(f"{value:.4g} ({line['seed']})")
    return ", ".join(shown) or "–"


EXPERIMENT = Experiment(
    TASKS,
    ARMS,
    RESULTS,
    run_cell,
    make_page,
    lambda arm: True,
    "curve",
    {"tasks": ["zones"], "methods": ARMS[:1], "evaluations": 30, "model": "smollm2"},
    summary=lambda line: f"best {line['best']:.6g}",
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main(__doc__))
