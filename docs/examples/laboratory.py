"""A recipe in a laboratory: a person at the bench measures what `llmopt ask` proposes.

Each round is two commands, so that a round may take a day: `llmopt ask` prints the next recipe, and
`llmopt tell` takes the yield and what was seen. The search lies in `recipe.jsonl`: if the script is
started again, it goes on with the recipe that has no yield yet.

    python laboratory.py                # asks you for each yield
    python laboratory.py --simulate     # a formula stands in for the bench
    python laboratory.py --simulate --quick
"""

import json
import math
import subprocess
import sys
from pathlib import Path

ROUNDS = 3 if "--quick" in sys.argv else 25
RECIPE = {
    "direction": "maximize",
    "model": "network",  # or a chat model, which reads a "description" and your words, too
    "noisy": True,
    "warmup": 8,
    "seed": 0,
    "space": {
        "temperature": {"type": "number", "minimum": 20, "maximum": 120, "unit": "°C"},
        "minutes": {"type": "integer", "minimum": 10, "maximum": 240},
        "catalyst": {"enum": ["none", "acid", "enzyme"]},
    },
}


def llmopt(*words: str) -> dict:
    command = [sys.executable, "-m", "llmopt", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def simulated(point: dict) -> tuple[float, str]:
    """Return a yield and a remark: enzymes fail when they are hot."""
    heat, minutes = point["temperature"], point["minutes"]
    best = {"none": 110.0, "acid": 80.0, "enzyme": 45.0}[point["catalyst"]]
    top = {"none": 30.0, "acid": 75.0, "enzyme": 90.0}[point["catalyst"]]
    value = top * math.exp(-(((heat - best) / 25) ** 2)) * (1 - math.exp(-minutes / 60))
    return round(value, 1), "brown and cloudy" if heat > best + 30 else "clear"


def measured(point: dict) -> tuple[float, str]:
    print(f"mix and heat: {point}")
    return float(input("yield in per cent: ")), input("what did you see? ")


if __name__ == "__main__":
    file = Path("recipe.json")
    file.write_text(json.dumps(RECIPE))
    look = simulated if "--simulate" in sys.argv else measured
    for _ in range(ROUNDS):
        point = llmopt("ask", str(file), "--again")["params"]
        value, seen = look(point)
        llmopt("tell", str(file), json.dumps({"params": point, "reward": value, "feedback": seen}))
    best = llmopt("status", str(file))["best"]
    print(f"best yield {best['reward']} with {best['params']}")
