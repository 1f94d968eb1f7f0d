"""A recorded search of a strong model, evaluated again without a key.

The system is a heating of two zones that was written for this project, so that no model knows it
from its training. The recording holds the model's answers. Each policy is evaluated anew here,
and the best one is judged on 100 fresh starts.

    python replay.py
"""

from pathlib import Path

import gymnasium as gym

import llmopt
from llmopt.benchmarks.experiments.systems import TwoZones
from llmopt.policies import PolicySearch

RECORDING = Path(__file__).parents[2] / "benchmarks" / "recordings" / "zones-words-0.jsonl"


def two_zones() -> gym.Env:
    return gym.wrappers.TimeLimit(TwoZones(), 96)


if __name__ == "__main__":
    client = llmopt.ReplayClient(RECORDING, strict=False)
    ranges = [(-6, 6)] * 10  # as recorded: today they would follow from the sizes of the numbers
    with PolicySearch(two_zones, client, "words", seed=0, total=30, box=ranges) as search:
        search.run(30, progress=True)
        print(f"the model ended the search: {search.stopped}")
        held_out = search.evaluate()
        print(f"best policy: {held_out.mean:.2f} on 100 fresh starts")
        print("its first words on the best point:")
        print(search.best.explanation[:300])
