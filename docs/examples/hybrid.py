"""A model and CMA-ES as partners.

They take turns, and each learns from all points. The function is Rosenbrock's valley in five
dimensions; the same search also runs without the partner.

    python hybrid.py             # 120 evaluations, three seeds: some minutes
    python hybrid.py --quick     # 12 evaluations, one seed
"""

import itertools
import statistics
import sys

import llmopt

SPACE = {f"x{i}": llmopt.Float(-2, 2) for i in range(5)}


def valley(params: dict[str, float]) -> float:
    x = list(params.values())
    return sum(100 * (b - a**2) ** 2 + (1 - a) ** 2 for a, b in itertools.pairwise(x))


if __name__ == "__main__":
    evaluations, seeds = (12, 1) if "--quick" in sys.argv else (120, 3)
    for partner in (None, "cma"):
        ends, sources = [], {}
        for seed in range(seeds):
            result = llmopt.minimize(
                valley, SPACE, evaluations, partner=partner, warmup=10, seed=seed
            )
            ends.append(result.best.reward)
            sources = result.usage.proposals
        name = "model alone" if partner is None else "model and CMA-ES"
        print(
            f"{name:18s} best of {evaluations}: median {statistics.median(ends):.3f} of {seeds} "
            f"seeds [{min(ends):.3f}, {max(ends):.3f}], points of the last: {sources}"
        )
