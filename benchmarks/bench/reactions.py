"""The cells of ``llmopt bench --suite reactions``: a search of a table of real reactions.

All methods have the same evaluations and no shared warm-up. A combination that was never run costs
its evaluation and has no value. A model reads the words of the task and may end its search.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict
from importlib.util import find_spec

from llmopt.benchmarks.engine.cell import Cell, Row
from llmopt.benchmarks.engine.search import Proposed, Result, search
from llmopt.benchmarks.extras import package_versions
from llmopt.benchmarks.methods.model import ModelMethod
from llmopt.benchmarks.methods.protocol import Problem, method_seed
from llmopt.benchmarks.methods.table import METHODS, Asking
from llmopt.benchmarks.tasks.reactions import get_reaction
from llmopt.client.base import Client, client_name

EVALUATIONS, SEEDS = 20, 20
RIVALS = ("columns-network", "optuna-tpe", "optuna-tpe-tuned", "optuna-gp", "baybe", "random")
CHAT = "llm-words"


def methods(model: str) -> list[str]:
    """Return the methods that are installed, and the model, if it is a chat model."""
    there = [m for m in RIVALS if all(map(find_spec, METHODS[m].needs))]
    return there if model == "smollm2" else [CHAT, *there]


def run_reaction(cell: Cell, client: Client | None = None) -> Row:
    """Search a reaction with one method, and return the cell's line."""
    reaction, spec = get_reaction(cell.task), METHODS[cell.method]
    size = len(reaction.space.names)
    problem = Problem(
        0, 1, size, cell.evaluations, description=reaction.description, space=reaction.space
    )
    asking = Asking(client, options={"may_stop": True} if spec.asks_model else {})
    method = spec.make(problem, method_seed(cell.seed, cell.method), asking)
    points: list[list[int]] = []
    values: list[float | None] = []
    sources: Counter[str] = Counter()
    explanations: list[list[object]] = []

    def evaluate(asked: Proposed) -> Result:
        point = reaction.space.flatten(asked.params)
        value, note = reaction.measure(point)
        points.append(
            [int(code) for code in reaction.space.to_json_values(point) if code is not None]
        )
        values.append(None if value is None else float(f"{value:.7g}"))
        if asked.proposal is not None:
            sources[asked.proposal.source] += 1
            explanations.append([asked.index, asked.proposal.explanation.strip()])
        return Result(value, note)

    started = time.perf_counter()
    try:
        stopped = search(method, cell.evaluations, evaluate)
        usage = (
            asdict(method.usage) if spec.asks_model and isinstance(method, ModelMethod) else None
        )
    finally:
        if isinstance(method, ModelMethod):
            method.close()
    sound = [value for value in values if value is not None]
    best = max(sound, default=None)
    place = None if best is None else values.index(best)
    return {
        **cell.line(),
        "task": cell.task,
        "env_id": cell.task,
        "box": None,
        "bias": None,
        "parameters": size,
        "model": client_name(client) if client is not None and spec.asks_model else "",
        "means": values,
        "points": points,
        "failures": len(values) - len(sound),
        "best_index": place,
        "best_params": None if place is None else points[place],
        "selection": best,
        "finals": [],
        "heldout": best,
        "heldout_returns": [] if best is None else [best],
        "episodes": len(values),
        "steps": len(values),
        "seconds": {"proposing": round(time.perf_counter() - started, 3), "evaluating": 0.0},
        "sources": sources,
        "usage": usage,
        "stopped": stopped,
        "explanations": [pair for pair in explanations if pair[1]] if spec.asks_model else [],
        "versions": package_versions(),
    }
