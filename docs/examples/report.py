"""The report of a search: one HTML page, made of a file.

A client written here takes the place of a model: it fits a bowl to what was measured. Give a
model's name to ask that one.

    python report.py [MODEL]

The picture in docs/report.md is the top of its page:

    chromium --headless --hide-scrollbars --window-size=1280,1370 --screenshot reactor.html
"""

import re
import sys
from pathlib import Path

import llmopt

SPACE = {
    "temperature": llmopt.Float(20, 95),
    "catalyst": llmopt.Float(1e-4, 1e-1, log=True),
    "stirrer": llmopt.Int(0, 12),
    "solvent": llmopt.Categorical(["water", "ethanol", "toluene"]),
}
BEST = {"temperature": 68.0, "catalyst": 0.008, "stirrer": 7, "solvent": "ethanol"}


def reactor(p: dict) -> tuple[float | None, str]:
    """Return the yield of a made-up reaction in percent, and what was seen."""
    if p["temperature"] > 90 and p["solvent"] == "ethanol":
        return None, "the flask boiled over"
    heat = (p["temperature"] - BEST["temperature"]) / 25
    dose = abs(p["catalyst"] / BEST["catalyst"] - 1) / 3
    loss = heat**2 + min(dose, 2) + 0.02 * (p["stirrer"] - BEST["stirrer"]) ** 2
    loss += {"water": 0.8, "ethanol": 0.0, "toluene": 0.3}[p["solvent"]]
    seen = "dark, it smelled burnt" if heat > 0.5 else "cloudy" if dose > 1 else "clear"
    return 92 / (1 + loss), f"the product was {seen}"


class Chemist(llmopt.ScriptedClient):
    """Answers as a model would: from the best point so far, one change at a time."""

    def __init__(self) -> None:
        self.asked = 0
        super().__init__([self.answer] * 100)

    def answer(self, request: llmopt.client.Request) -> str:
        found = re.search(r"Best first: #(\d+)", request.messages[-1].content)
        names, step = list(SPACE), 0.85**self.asked
        name = names[self.asked % (4 if self.asked < 4 else 2)]
        self.asked += 1
        value = BEST[name]
        if name == "temperature":
            value = round(value + 20 * step, 1)
        elif name == "catalyst":
            value = round(value * (1 + 2 * step), 5)
        return (
            f"Lesson: changes of the {name} are felt most in the last result\n"
            f"Analysis: the best yield so far is limited by the {name}\n"
            f"Hypothesis: {name} {value} raises the yield\n"
            f"Start from: #{found[1] if found else 1}\nProposal:\n{name}: {value}"
        )


if __name__ == "__main__":
    names = [a for a in sys.argv[1:] if not a.startswith("--")]
    Path("reactor.jsonl").unlink(missing_ok=True)
    result = llmopt.maximize(
        reactor,
        SPACE,
        12 if "--quick" in sys.argv else 40,
        names[0] if names else Chemist(),
        prompt="words",
        description="A reaction in a flask. The reward is its yield in percent.",
        warmup=8,
        seed=4,
        storage="reactor.jsonl",
    )
    print(result)
    print(llmopt.report("reactor.jsonl", "reactor.html", title="A reaction in a flask"))
