"""Regrets of searches for hyper-parameters: the lines of ``studies.jsonl`` and ``hpo.jsonl``.

    regret = (value - best) / (median of random settings - best)

A regret of 0 is the best known setting of a task, 1 the median of random settings.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Lines = Sequence[Mapping[str, Any]]
Regrets = dict[str, dict[int, dict[tuple[str, int], float]]]
"""By method, trials, and (task, seed)."""

TRIALS, CHECKPOINTS = 40, (10, 20, 40)
LATER = ("tpe-five", "design-tpe", "compute", "plain", "llambo")
"""Methods of ``studies.jsonl`` that do not determine the best setting; their regret may be < 0."""


def judged_after(line: Mapping[str, Any], trials: int) -> float | None:
    """Return the test loss of the setting with the lowest validation loss of the first trials."""
    pairs = zip(line["values"][:trials], line["tests"], strict=False)
    sound = [(value, test) for value, test in pairs if value is not None]
    return min(sound)[1] if sound else None


def of_studies(lines: Lines) -> Regrets:
    """Return the regret of the test loss in each study, at most 3."""
    regrets: Regrets = {}
    for task, seed in sorted({(line["task"], line["seed"]) for line in lines}):
        own = [line for line in lines if (line["task"], line["seed"]) == (task, seed)]
        chosen = {
            (line["method"], n): judged_after(line, n)
            for line in own
            for n in CHECKPOINTS
            if line["method"] == "default" or len(line["values"]) >= n or line.get("stopped")
        }
        drawn = [t for x in own if x["method"] == "random" for t in x["tests"] if t is not None]
        if not drawn:
            continue
        best = min(v for (m, _), v in chosen.items() if v is not None and m not in LATER)
        scale = max(float(np.median(drawn)) - best, 1e-12)
        for (method, n), value in chosen.items():
            regret = 3.0 if value is None else min((value - best) / scale, 3.0)
            regrets.setdefault(method, {}).setdefault(n, {})[task, seed] = regret
    return regrets


def of_hpo(lines: Lines) -> Regrets:
    """Return the regret of each search in ``hpo.jsonl``, whose values are maximized.

    Its tasks are nine tables of trained networks and three small models. A search has 50 trials,
    the first five of them random. Commit 6aa3eb59 has the code of these searches.
    """
    regrets: Regrets = {}
    for task in dict.fromkeys(line["task"] for line in lines):
        own = [line for line in lines if line["task"] == task]
        drawn = [v for x in own if x["method"] == "random" for v in x["values"]]
        middle = float(np.median(drawn or [v for x in own for v in x["values"][:5]]))
        best = own[0]["best_possible"]
        best = max(v for x in own for v in x["values"]) if best is None else best
        for line, n in itertools.product(own, (5, 10, 20, 50)):
            if n <= line["evaluations"]:
                regret = (best - max(line["values"][:n])) / (best - middle)
                of_method = regrets.setdefault(_label(line), {})
                of_method.setdefault(n, {})[task, line["seed"]] = regret
    return regrets


def _label(line: Mapping[str, Any]) -> str:
    method = str(line["method"])
    name = {"tpe": "TPE", "gp": "GP", "network": "small network"}.get(method, method)
    if method == "model":
        name = f"{line['model']}, {line['told']}"
    return name + (" + default" if line["start"] == "default" else "")
