"""A conditional space, searched by the small network: no key, under a minute.

Each kernel has parameters that the others lack. Every point has the active ones alone.
"""

import numpy as np

from llmopt import Categorical, Float, Int, minimize

X = np.linspace(-3, 3, 60)
Y = np.sin(2 * X) + 0.3 * X


def error(point):
    """Return the leave-one-out error of kernel ridge regression."""
    product, distance = np.outer(X, X), np.abs(X[:, None] - X)
    if point["kernel"] == "rbf":
        gram = np.exp(-((distance / point["length"]) ** 2))
    elif point["kernel"] == "poly":
        gram = (1 + product) ** point["degree"]
    else:
        gram = product
    hat = gram @ np.linalg.inv(gram + point["ridge"] * np.eye(len(X)))
    return float(np.mean(((Y - hat @ Y) / (1 - np.diag(hat))) ** 2))


space = {
    "kernel": Categorical(["linear", "poly", "rbf"]),
    "length": Float(0.05, 20, log=True, when={"kernel": "rbf"}),
    "degree": Int(2, 6, when={"kernel": "poly"}),
    "ridge": Float(1e-4, 10, log=True),
}

result = minimize(error, space, 40, "network", seed=0, progress=False)
for trial in result.trials[:3]:
    print(trial.params)
print("best:", result.best.params, f"error {result.best.reward:.2g}")
