"""What the tables of a benchmark read of a raw line: its score and its method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llmopt.benchmarks.methods.table import METHODS


def score(line: Mapping[str, Any]) -> float:
    """Return the score of one run: its best point's mean return on held-out initial states.

    Where a run has none (all of its points failed, or the best one did on the held-out states) it
    is the worst return that the run has seen, or minus infinity.
    """
    if line["heldout"] is not None:
        return float(line["heldout"])
    return min((m for m in line["means"] if m is not None), default=-math.inf)


def label_of(line: Mapping[str, Any]) -> str:
    """Return a line's method as tables call it."""
    method = str(line["cell"]["method"])
    model = line.get("model") or line["cell"].get("model") or "model"
    return METHODS[method].label.format(model=model) if method in METHODS else method
