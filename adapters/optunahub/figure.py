"""Draw the figure of the package's README from the benchmark's raw results.

python adapters/optunahub/figure.py
"""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.figure import Figure
import numpy as np


ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "optuna_sklearn.jsonl"
TARGET = Path(__file__).parent / "package" / "samplers" / "llm_sampler" / "images"
TASKS = {
    "svr-diabetes": "support vector regression: R², higher is better",
    "boosting-wine": "gradient boosting: log-loss, lower is better",
}


def main() -> None:
    """Write ``images/benchmark.png``."""
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, (task, title) in zip(figure.subplots(1, 2), TASKS.items()):
        best = np.maximum if task == "svr-diabetes" else np.minimum
        for method in ("LLM", "TPE", "GP", "CMA-ES", "random"):
            runs = [r["values"] for r in rows if r["task"] == task and r["method"] == method]
            curves = best.accumulate(np.array(runs), axis=1)
            low, middle, high = np.quantile(curves, (0.25, 0.5, 0.75), axis=0)
            label = f"{method} ({len(runs)} seeds)"
            (line,) = axes.plot(middle, label=label, linewidth=2.5 if method == "LLM" else 1.2)
            axes.fill_between(range(len(low)), low, high, color=line.get_color(), alpha=0.1)
        axes.set(title=title, xlabel="trial", ylabel="best so far")
        axes.set_ylim(*((0.4, 0.52) if task == "svr-diabetes" else (0.03, 0.2)))
    figure.axes[0].legend()
    TARGET.mkdir(exist_ok=True)
    figure.savefig(TARGET / "benchmark.png", dpi=90)


if __name__ == "__main__":
    main()
