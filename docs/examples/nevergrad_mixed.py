"""Nevergrad: optimizers on a space of numbers, whole numbers and categories.

Each optimizer has the same budget and the same seeds; the table shows the loss of what each one
recommends: median, best and worst of the seeds. `LLM` is the embedded model, which needs no key.

    python nevergrad_mixed.py             # 60 evaluations, 5 seeds: some minutes
    python nevergrad_mixed.py --quick     # 8 evaluations, 1 seed
"""

import statistics
import sys
import warnings

import nevergrad as ng
import numpy as np

import llmopt.adapters.nevergrad  # noqa: F401  (registers "LLM")

OPTIMIZERS = ("LLM", "OnePlusOne", "TwoPointsDE", "NGOpt", "CMA", "RandomSearch")


def make_space() -> ng.p.Instrumentation:
    return ng.p.Instrumentation(
        rate=ng.p.Log(lower=1e-5, upper=1e-1),
        layers=ng.p.TransitionChoice(range(1, 9)),
        activation=ng.p.Choice(["relu", "tanh", "gelu", "sigmoid"]),
        mix=ng.p.Array(shape=(2,)).set_bounds(-1, 1),
    )


def loss(rate: float, layers: int, activation: str, mix: np.ndarray) -> float:
    """Return a loss that is 0 at a rate of 0.003, 3 layers, gelu and a mix of (0.5, -0.25)."""
    of_activation = {"relu": 0.2, "tanh": 0.5, "gelu": 0.0, "sigmoid": 1.0}
    return (
        np.log10(rate / 0.003) ** 2
        + 0.3 * abs(layers - 3)
        + of_activation[activation]
        + float(np.sum((mix - [0.5, -0.25]) ** 2))
    )


def best_of(name: str, budget: int, seed: int) -> float:
    space = make_space()
    space.random_state.seed(seed)
    found = ng.optimizers.registry[name](space, budget=budget).minimize(loss)
    return float(loss(**found.kwargs))


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # Nevergrad's own, on its defaults
    budget, seeds = (8, 1) if "--quick" in sys.argv else (60, 5)
    print(f"loss after {budget} evaluations: median of {seeds} seeds [best, worst]")
    for name in OPTIMIZERS:
        ends = [best_of(name, budget, seed) for seed in range(seeds)]
        print(f"{name:14s}{statistics.median(ends):6.3f}  [{min(ends):.3f}, {max(ends):.3f}]")
