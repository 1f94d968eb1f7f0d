"""A search with a subscription: a command-line agent answers, without an API key.

    llmopt check 'command:claude -p --tools "" --strict-mcp-config'  # is it logged in?
    python docs/examples/subscription.py 'command:claude -p --tools "" --strict-mcp-config'

Without an argument, a stand-in answers with random guesses.
"""

import shlex
import sys

import llmopt

GUESS = """
from random import uniform
print(f"Proposal:\\ntemperature: {uniform(80, 98):.1f}\\ngrind: {uniform(200, 900):.0f}")
"""
WORDS = """Filter coffee, 15 g on 250 g of water. temperature: of the water. grind: size of
the particles. Hot water and a fine grind extract more. The aim is an extraction of 20 %."""


def brew(point):
    extracted = 20 + (point["temperature"] - 92) / 4 - (point["grind"] - 550) / 60
    taste = "sour" if extracted < 19 else "bitter" if extracted > 21 else "balanced"
    return abs(extracted - 20), f"extracted {extracted:.1f} %, {taste}"


agent = sys.argv[1] if sys.argv[1:] else "command:" + shlex.join([sys.executable, "-c", GUESS])
result = llmopt.minimize(
    brew,
    {
        "temperature": llmopt.Float(80, 98, unit="°C"),
        "grind": llmopt.Float(200, 900, unit="µm"),
    },
    8,
    agent,
    description=WORDS,
    max_requests=24,  # of the subscription: a program reports neither tokens nor a price
    compute=False,  # True: it may run Python before it proposes, for more requests
    storage="coffee.jsonl" if sys.argv[1:] else None,  # rerun to resume, as after its limit
)
print(f"best cup: {result.best.feedback} at {result.best.params}")
print(f"{len(result.trials)} cups, {result.usage.requests} requests {result.stopped}")
