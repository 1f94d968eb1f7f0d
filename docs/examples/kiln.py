"""A firing program for a kiln, designed from words: the first example of the README.

Without an argument the script replays a recorded search of a frontier chat model, which answered
in a conversation. It needs no key and takes seconds.

    python kiln.py                # the recording
    python kiln.py openai:NAME    # your own model
    python kiln.py folder:kiln    # any chat window or agent: llmopt next kiln
    python kiln.py cma            # CMA-ES with 200 evaluations, five seeds
"""

import sys
from pathlib import Path

import llmopt

RECORDING = Path(__file__).with_name("kiln.jsonl")
TARGETS = (250, 450, 570, 620, 850, 1000, 1000, 800)  # °C at the end of each half hour
WORDS = """An electric kiln fires pottery in eight half hours. Parameter p1 to p8 is the heater's
power in kW in each of them. With its load the kiln stores roughly 40 kJ per kelvin; it starts at
the 20 °C of the room and loses about 6 W per kelvin through its walls, and when hot it also
radiates through its lid. Wanted at the end of each half hour: 250, 450, 570, 620, 850, 1000, 1000
and 800 °C. The result is the mean absolute error at these eight moments, in kelvin."""


def fire(program):
    """Return the mean error in kelvin, and the measured temperatures in words."""
    temperature, measured = 20.0, []
    for power in program.values():
        for _ in range(180):  # steps of 10 s
            loss = 6.2 * (temperature - 20) + 1.2e-9 * ((temperature + 273) ** 4 - 293**4)
            temperature += 10 * (1000 * power - loss) / 38_000
        measured.append(temperature)
    errors = [abs(a - b) for a, b in zip(measured, TARGETS, strict=True)]
    return sum(errors) / len(errors), f"measured: {', '.join(f'{t:.1f}' for t in measured)} °C"


def rival(evaluations: int, seeds: int) -> list[float]:
    """Return the best errors of CMA-ES, one for each seed, in kelvin."""
    import cma

    found = []
    for seed in range(1, seeds + 1):
        options = {"bounds": [0, 12], "seed": seed, "maxfevals": evaluations, "verbose": -9}
        best = cma.fmin2(
            lambda x: fire({f"p{k}": power for k, power in enumerate(x, 1)})[0], 8 * [6], 3, options
        )[1].result.fbest
        found.append(best)
    return found


if __name__ == "__main__":
    if sys.argv[1:] == ["cma"]:
        print("CMA-ES after 200 evaluations:", ", ".join(f"{e:.1f} K" for e in rival(200, 5)))
        sys.exit()
    model = sys.argv[1] if len(sys.argv) > 1 else llmopt.ReplayClient(RECORDING, strict=False)
    space = {f"p{k}": llmopt.Float(0, 12) for k in range(1, 9)}
    result = llmopt.minimize(fire, space, n_trials=12, client=model, description=WORDS, seed=0)
    for trial in result.trials:
        print(f"{trial.reward:.3f} K, {trial.feedback}")
    print(result.stopped)
