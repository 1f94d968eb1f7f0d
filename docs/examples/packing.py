"""Twenty-six circles in a unit square: make the sum of their radii as large as you can.

Without an argument the script replays a recorded search, without a key and in a second: no block of
Python runs again, since the recording holds the outputs. The model was a frontier chat model,
answering in conversations, which remembered its earlier answers. It knows the problem and its best
value from its training; it recalled no coordinates. It wrote two blocks of Python, which computed
for 12 minutes on two cores, proposed one packing and ended the search.

    python packing.py                   # the recording
    python packing.py draw circles.png  # the recording, and its best packing as a picture
    python packing.py openai:NAME       # your own model
    python packing.py folder:packing    # any chat window or agent: llmopt next packing
"""

import sys
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import numpy as np

import llmopt

RECORDING = Path(__file__).with_name("packing.jsonl")
N = 26
SPACE = {
    f"{name}{i}": llmopt.Float(0, high)
    for i in range(N)
    for name, high in (("x", 1), ("y", 1), ("r", 0.5))
}
WORDS = (
    "Twenty-six circles with centres (x_i, y_i) and radii r_i lie inside the unit square and do "
    "not overlap (touching is allowed; a violation below 1e-9 in all is not counted). Make the sum "
    "of the 26 radii as large as you can. A violated point counts as infeasible."
)


def pack(point):
    """Return the sum of the radii, and by how much the circles overlap or leave the square."""
    x, y, r = (np.array([point[f"{name}{i}"] for i in range(N)]) for name in "xyr")
    outside = np.maximum(0, np.concatenate([r - x, r - y, x + r - 1, y + r - 1])).sum()
    distance = np.hypot(x[:, None] - x, y[:, None] - y)
    overlaps = np.maximum(0, r[:, None] + r - distance)[np.triu_indices(N, 1)].sum()
    violation = float(outside + overlaps)
    return llmopt.Evaluation(
        float(r.sum()),
        f"sum of overlaps {overlaps:.3g}, outside the square {outside:.3g}",
        constraint_violation=violation if violation >= 1e-9 else 0.0,
    )


def is_packing(point):
    """Return whether all circles lie in the square and none overlap, in exact arithmetic."""
    circles = [tuple(Fraction(point[f"{name}{i}"]) for name in "xyr") for i in range(N)]
    inside = all(r <= x <= 1 - r and r <= y <= 1 - r for x, y, r in circles)
    apart = all(
        (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2 >= (a[2] + b[2]) ** 2
        for a, b in combinations(circles, 2)
    )
    return inside and apart


def draw(point, path):
    """Write a picture of a packing, each circle coloured by its radius."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.patches import Circle

    figure = Figure(figsize=(4, 4))
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.98), aspect="equal", xticks=[], yticks=[])
    axes.set(xlim=(0, 1), ylim=(0, 1))
    largest = max(point[f"r{i}"] for i in range(N))
    for i in range(N):
        x, y, r = (point[f"{name}{i}"] for name in "xyr")
        colour = colormaps["Blues"](0.1 + 0.35 * r / largest)
        axes.add_artist(Circle((x, y), r, facecolor=colour, edgecolor="#1f3b57"))
        axes.text(x, y, f"{r:.3f}", ha="center", va="center", fontsize=6)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    picture = sys.argv[2] if sys.argv[1:2] == ["draw"] else None
    named = len(sys.argv) > 1 and not picture
    model = sys.argv[1] if named else llmopt.ReplayClient(RECORDING, strict=False)
    result = llmopt.maximize(pack, SPACE, n_trials=12, client=model, description=WORDS, seed=0)
    for trial in result.trials:
        exact = "exactly feasible" if is_packing(trial.params) else "infeasible in exact arithmetic"
        print(f"{trial.reward!r}, {exact}")
    print(result.stopped)
    if picture:
        draw(result.best.params, picture)
