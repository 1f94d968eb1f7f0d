"""Regrets of the searches in ``hpo.jsonl``, for the rows of the page of results.

Nine tables of trained networks and three models on data made for this; a search has 50 trials, the
first five random. ``benchmarks/results/README.md`` says more, and names the commit that has the
code of these searches.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llmopt.benchmarks.experiments.studies import Key, Regrets

STARTUP, CHECKPOINTS = 5, (5, 10, 20, 50)


def label(line: Mapping[str, Any]) -> str:
    """Return what the table calls a search's method."""
    method = str(line["method"])
    name = {"tpe": "TPE", "gp": "GP", "network": "small network"}.get(method, method)
    if line["method"] == "model":
        name = f"{line['model']}, {line['told']}"
    return name + (" + default" if line["start"] == "default" else "")


def regrets(lines: Sequence[Mapping[str, Any]]) -> Regrets:
    """Return the regret of each search: by label, trials, and (task, seed).

    0 is the best value of the table, or of all searches where the best is not known; 1 is the
    median of random points.
    """
    found: dict[str, dict[int, dict[Key, float]]] = {}
    for task in dict.fromkeys(line["task"] for line in lines):
        own = [line for line in lines if line["task"] == task]
        drawn = [v for r in own if r["method"] == "random" for v in r["values"]]
        middle = float(np.median(drawn or [v for r in own for v in r["values"][:STARTUP]]))
        best = own[0]["best_possible"]
        best = max(v for r in own for v in r["values"]) if best is None else best
        for line, n in itertools.product(own, CHECKPOINTS):
            if n <= line["evaluations"]:
                regret = (best - max(line["values"][:n])) / (best - middle)
                found.setdefault(label(line), {}).setdefault(n, {})[task, line["seed"]] = regret
    return found
