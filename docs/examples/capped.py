"""A search that ends at its cap on cost, and goes on under a higher one.

A written client stands in for a hosted model: each of its answers says what it cost. With a real
one, only the client's name changes: `"openai:NAME"`.

    python capped.py
"""

import tempfile
from pathlib import Path

import llmopt
from llmopt import Completion, Float, Reply, Request


class PricedClient:
    """Answers with a point that moves to the middle; each answer costs 0.4 cents."""

    name = "written"
    priced = True

    def __init__(self) -> None:
        self.asked = 0

    def complete(self, request: Request) -> Reply:
        self.asked += 1
        x = 0.5 + 0.4 / (1 + self.asked)
        text = f"x: {x:.3f}\nA smaller x was better."
        return Reply((Completion(text),), self.name, prompt_tokens=700, cost=0.004)


def loss(params: dict[str, float]) -> float:
    return abs(params["x"] - 0.5)


if __name__ == "__main__":
    client = PricedClient()
    with tempfile.TemporaryDirectory() as folder:
        for cap in (0.02, 0.04):
            result = llmopt.minimize(
                loss,
                {"x": Float(0, 1)},
                n_trials=40,
                client=client,
                prompt="props",
                max_cost=cap,
                storage=Path(folder) / "search.jsonl",  # the second search goes on there
                seed=0,
            )
            cost = result.usage.cost
            print(f"cap {cap} dollars: {len(result.trials)} trials, {cost:.3f} dollars spent")
            print(f"  best loss {result.best.reward:.3f}")
            print(f"  stopped: {result.stopped}")
