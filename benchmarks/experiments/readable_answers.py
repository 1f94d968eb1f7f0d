"""The share of first answers that can be read: free text beside answers held to a JSON schema.

Question: what does a grammar in process change for a small model that is asked in words? Protocol:
the embedded model (SmolLM2-135M-Instruct, Q4_1) with its chat template; the prompt ``props``,
the one in words for models of its size; two spaces (2 numbers; 2 numbers with an integer and a
category), each with 4 histories of 8 random trials; 8 samples a request, hence 32 first answers for
each space and way. An answer may have 256 tokens. Both ways get the same histories
and seeds; no answer is asked again. ``usable`` is readable and not a point that was tried before.
Runtime: 23 minutes on two cores that others kept busy.

    python -m llmopt.benchmarks.experiments.readable_answers

It writes ``readable_answers.jsonl`` (each request once; a run that was killed goes on) and
``readable_answers.md``, made from the former alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from llmopt._version import __version__
from llmopt.client.embedded import HEADER, embedded_client
from llmopt.client.facts import model_facts
from llmopt.errors import ParseError
from llmopt.history import History, Trial
from llmopt.prompt import get_prompt
from llmopt.prompt.base import Situation
from llmopt.space import Categorical, Float, Int, Space

RESULTS = Path(__file__).parents[1] / "results"
COMMAND = "python -m llmopt.benchmarks.experiments.readable_answers"
PROMPTS = ("props",)
WAYS = {"text": False, "schema": True}
SPACES: dict[str, dict[str, Any]] = {
    "2 numbers": {"x": Float(-5.0, 5.0), "y": Float(-5.0, 5.0)},
    "mixed": {
        "rate": Float(1e-4, 1.0, log=True),
        "depth": Int(1, 12),
        "decay": Float(0.0, 1.0),
        "kind": Categorical(("sgd", "adam", "rmsprop")),
    },
}
HISTORIES = 4
SAMPLES = 8
MAX_TOKENS = 256


def situation(space: Space, number: int) -> Situation:
    """Return the situation after 8 random trials, for a model whose facts are filled in later."""
    rng = np.random.default_rng(number)
    trials = []
    for k in range(8):
        values = space.round(space.sample(rng))
        reward = round(-float(np.sum((space.encode(values) - 0.4) ** 2)), 4)
        trials.append(Trial(k, space.unflatten(values), values, (reward,)))
    return Situation(space, History(tuple(trials)), 9, total=20, samples=SAMPLES, seed=number)


def measure(client: Any, prompt: str, name: str, way: str, number: int) -> dict[str, Any]:
    """Ask once, and return what came of the samples."""
    space = Space(SPACES[name], decimals=3)
    facts = replace(model_facts(client), structured=WAYS[way])
    asked = replace(situation(space, number), model=facts)
    query = get_prompt(prompt, max_tokens=MAX_TOKENS).prepare(asked)
    reply = client.complete(query.request)
    seen = {space.key(trial.values) for trial in asked.history.trials}
    readable = usable = cut = 0
    for completion in reply.completions:
        cut += completion.finish_reason == "length"
        try:
            reading = query.read(completion.text)
        except ParseError:
            continue
        readable += 1
        usable += space.key(reading.values) not in seen
    return {
        "prompt": prompt, "space": name, "way": way, "history": number,
        "samples": len(reply.completions), "readable": readable, "usable": usable, "cut": cut,
        "tokens": reply.completion_tokens, "seconds": round(reply.seconds, 2),
        "version": __version__,
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """Return the results as Markdown."""
    lines = [
        f"Made by `{COMMAND}`, with the embedded model ({HEADER.parameters / 1e6:.0f} million "
        "weights, chat template).",
        "",
        "| prompt | space | way | answers | readable | usable | cut off | tokens an answer |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for prompt, name in [(p, s) for p in PROMPTS for s in (*SPACES, "all")]:
        for way in WAYS:
            found = [
                r
                for r in rows
                if r["way"] == way
                and prompt in (r["prompt"], "all")
                and name in (r["space"], "all")
            ]
            count = sum(r["samples"] for r in found)
            if not count:
                continue
            shares = [
                f"{100 * sum(r[k] for r in found) / count:.0f} %"
                for k in ("readable", "usable", "cut")
            ]
            tokens = statistics.mean(r["tokens"] / r["samples"] for r in found)
            cells = [prompt, name, way, str(count), *shares, f"{tokens:.0f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure what is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    args = parser.parse_args()
    raw = args.out / "readable_answers.jsonl"
    rows = [json.loads(line) for line in raw.read_text().splitlines()] if raw.is_file() else []
    done = {(r["prompt"], r["space"], r["way"], r["history"]) for r in rows}
    client = embedded_client()
    for number in range(HISTORIES):
        for prompt in PROMPTS:
            for name in SPACES:
                for way in WAYS:
                    if (prompt, name, way, number) in done:
                        continue
                    rows.append(measure(client, prompt, name, way, number))
                    with raw.open("a") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
    client.close()
    (args.out / "readable_answers.md").write_text(table(rows))


if __name__ == "__main__":
    main()
