"""Two objectives at once: a beam that is to be stiff and light.

The function returns a number for each objective and words on what was seen, which a model that
reads words is shown. The model here is written in a few lines; give any other one as the first
argument, such as openai:NAME.

    python pareto.py

Its output:

    12 trials, 11 on the Pareto front
      0.2 kg, bends 4000.00 mm: width 1, height 1
      1.1 kg, bends 11.66 mm: width 1, height 7
      1.3 kg, bends 7.81 mm: width 1, height 8
      1.6 kg, bends 4.00 mm: width 1, height 10
      4.2 kg, bends 0.91 mm: width 2, height 13
      4.5 kg, bends 0.73 mm: width 2, height 14
      4.8 kg, bends 0.59 mm: width 2, height 15
      5.4 kg, bends 0.41 mm: width 2, height 17
      8.6 kg, bends 0.23 mm: width 3, height 18
      16.8 kg, bends 0.17 mm: width 7, height 15
      27.4 kg, bends 0.06 mm: width 9, height 19
"""

import json
import sys

import llmopt

SPACE = {"width": llmopt.Int(1, 10), "height": llmopt.Int(1, 20)}


def beam(point: dict[str, int]) -> tuple[tuple[float, float], str]:
    width, height = point["width"], point["height"]
    mass = 0.16 * width * height  # kg
    bending = 4000 / (width * height**3)  # mm under the load
    return (mass, bending), "it buckles sideways" if height > 8 * width else "it stands"


def engineer(request: llmopt.Request) -> str:
    """A written model: taller beams in turn, each a little wider."""
    height = 4 + request.seed % 15
    return json.dumps({"width": max(1, height // 6), "height": height})


if __name__ == "__main__":
    model = sys.argv[1] if len(sys.argv) > 1 else llmopt.ScriptedClient(engineer)
    result = llmopt.optimize(
        beam, SPACE, 12, model, directions=["minimize", "minimize"], warmup=4, seed=0
    )
    print(f"{len(result.trials)} trials, {len(result.pareto)} on the Pareto front")
    for trial in sorted(result.pareto, key=lambda t: t.reward):
        mass, bending = trial.reward
        at = ", ".join(f"{name} {value}" for name, value in trial.params.items())
        print(f"  {mass:.1f} kg, bends {bending:.2f} mm: {at}")
