"""Prompt tokens that the prefix cache serves in one search, against the layout of the prompt.

Question: the prompt ``props`` repeats its instructions and the whole history in every request.
How many of those tokens are read from the prefix cache of a real server, and how long are its
prompts beside those of the published layout? Protocol: one live search on MountainCar with the
embedded model, 200 trials of which 20 are the warm-up, one request for each proposal (an answer
that cannot be used is replaced by a random point, which costs less time than asking again).
Then each layout is made anew over that very history, one request for each of the model's
proposals, and the model is asked for one token, so that all layouts tell about the same numbers:

- ``props``: as shipped, the history in order of time and the line with the iteration last;
- ``published``: ProPS as published (arXiv 2511.21928, appendix), in our own words: one user
  message, the history in order of time, one ``params[i]`` label for each number, the line with
  the iteration last;
- ``best first``: ``props`` with the whole history sorted by value, as other methods have it;
- ``iteration first``: ``props`` with the line that changes above the history.

The last two are so slow without a cache that only every 20th request is measured, right after
the one before it. Runtime: about 20 minutes on two cores.

    python -m llmopt.benchmarks.experiments.prompt_cache

It writes ``prompt_cache.json`` and the table ``prompt_cache.md``, made from the former alone. A
run that was killed goes on: the search from ``prompt_cache.search.jsonl``, which is removed at
the end, and the layouts from the first one that the former does not hold.

Second question: what do 150 proposals cost under the rules of each hosted provider's cache? No
provider is asked: all requests over a simulated history of MountainCar's parameters are made, and
`llmopt.commands.estimate.prefix_use` says what is read and written (marks and charged writes for
Anthropic and for OpenAI from GPT-5.6 on, any common beginning elsewhere, nothing below 1,024
tokens). Tokens are estimated, an answer is taken to have 131, and hidden reasoning is left out.
The row "words, told all" is `words` as `llmopt run` uses it: the task in words, and with each
value a lesson, a hypothesis and some 1,700 characters of feedback; an answer then has 250 tokens.
The row "one message" is a single message without marks, as llmopt sent it to OpenAI before: with
that model's one implicit mark at its end all is written and nothing read. Runtime: a minute.

    python -m llmopt.benchmarks.experiments.prompt_cache --providers

It writes ``prompt_cache_providers.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from llmopt import LLMOptimizer, Space, get_client, get_prompt
from llmopt._version import __version__
from llmopt.benchmarks.methods.model import parameter_space
from llmopt.benchmarks.tasks.table import get_task
from llmopt.benchmarks.tasks.words import task_words
from llmopt.client.base import Client
from llmopt.client.facts import model_facts
from llmopt.client.prices import price_source
from llmopt.commands.estimate import prefix_use, price_of, simulated_trials
from llmopt.errors import FallbackWarning
from llmopt.history import History, Trial
from llmopt.policies.rollout import Evaluator, selection_seeds
from llmopt.prompt import Prompt, Situation
from llmopt.prompt.budget import estimate_tokens as count
from llmopt.prompt.template import shipped_template

RESULTS = Path(__file__).parents[1] / "results" / "prompt_cache.json"
COMMAND = "python -m llmopt.benchmarks.experiments.prompt_cache"
WARMUP = 20
EVERY = 20
# Three labelled numbers fit; the model's further sentences would only take time.
ANSWER_TOKENS = 40

PUBLISHED = """\
You are an optimizer that looks for the global maximum of a function f(params). At every step \
you are given the evaluations so far and the number of the current iteration. Propose inputs \
that lead to the maximum within the limited number of iterations ({{ total }}).

# The parameters
**params** is an array of {{ n }} float numbers, each in the range of [-6.0, 6.0] with 1 decimal \
place.

# How we interact
1. I give you the number of iterations ({{ total }}) and some evaluated examples.
2. You answer in exactly this format:
    * Line 1: a new input '{{ answer | replace(", ", "; ") }}' that aims to maximize f(params), \
in the range of [-6.0, 6.0], with 1 decimal place.
    * Line 2: a detailed explanation of why you chose it.
3. I give you the value f(params) of that point and the current iteration.
4. We repeat steps 2 and 3 until the iterations are used up.

# Remember
1. **Do not propose params that were seen before.**
2. **The global optimum is about 100.** Below that you are at a local optimum: explore, do not \
exploit.
3. Search positive and negative values. **While exploring, use a search step of {{ step_size }}**.

Here are pairs of params and f(params):
{% for trial in history %}
{{ trial.params | replace(", ", "; ") }}; f(params): {{ "%.2f" | format(trial.rewards[0]) }}
{% endfor %}

You are at iteration {{ iteration }} out of {{ total }}. Give the result in the format above and \
no other text.
"""


def layouts() -> dict[str, tuple[Prompt, int]]:
    """Return every layout, with how many requests there are for one that is measured."""
    shipped = shipped_template("props.j2") or ""
    history, now = '{% include "llmopt/_history.j2" %}', '{% include "llmopt/_now.j2" %}'
    swapped = shipped.replace(history, "@").replace(now, history).replace("@", now)
    return {
        "props": (get_prompt("props", max_tokens=1), 1),
        "published": (get_prompt(PUBLISHED, name="published", max_tokens=1), 1),
        "best first": (get_prompt("props", max_tokens=1, order="ascending"), EVERY),
        "iteration first": (get_prompt(swapped, name="iteration first", max_tokens=1), EVERY),
    }


def search(client: Client, trials: int, storage: Path) -> tuple[LLMOptimizer, Space]:
    """Run the live search, or go on with it.

    Args:
        client: The model.
        trials: Evaluations in all.
        storage: File that keeps it.
    """
    task = get_task("mountaincar", bias=True)
    with Evaluator(task) as evaluator, warnings.catch_warnings():
        # The share of fallbacks is in the table.
        warnings.simplefilter("ignore", FallbackWarning)
        low, high = task.box
        box = spaces.Box(low, high, (evaluator.policy.n_parameters,), dtype=np.float64)
        space = Space.from_gymnasium(box, decimals=1)
        optimizer = LLMOptimizer(
            space,
            client,
            get_prompt("props", max_tokens=ANSWER_TOKENS),
            seed=0,
            warmup=WARMUP,
            warmup_distribution="normal",
            total=trials,
            attempts=1,
            storage=storage,
        )
        seeds = selection_seeds(0, 1)
        for number in range(len(optimizer.trials), trials):
            params = optimizer.ask()
            optimizer.tell(params, evaluator.evaluate(params.tolist(), seeds).mean)
            if number % 20 == 0:
                print(f"search: {number + 1} of {trials} trials", flush=True)
    return optimizer, space


def replay(
    client: Client, prompt: Prompt, space: Space, trials: Sequence[Trial], every: int
) -> dict[str, Any]:
    """Ask for every proposal of a search again, with another layout.

    Args:
        client: The model.
        prompt: The layout.
        space: The search space.
        trials: The search, warm-up included.
        every: 1 to measure all requests; k for every k-th one alone, for which the one
            before it is sent first and not counted.

    Returns:
        Requests measured, and their tokens.
    """
    close = getattr(client, "close", None)
    if close is not None:
        close()  # with the model goes the cache that the layout before has filled

    def send(number: int) -> tuple[int, int]:
        history = History(tuple(trials[:number]))
        situation = Situation.after(history, space, model_facts(client), total=len(trials))
        query = prompt.prepare(situation)
        reply = client.complete(replace(query.request, seed=0))
        return reply.prompt_tokens, reply.cached_tokens

    tokens = []
    for number in range(WARMUP, len(trials), every):
        if every > 1:
            send(number - 1)
        tokens.append(send(number))
    prompt_tokens, cached = (sum(column) for column in zip(*tokens, strict=True))
    return {
        "requests": len(tokens),
        "prompt_tokens": prompt_tokens,
        "cached_tokens": cached,
        "first": tokens[0],
        "last": tokens[-1],
    }


def make_table(record: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    live, usage = record["live"], record["live"]["usage"]
    sources = ", ".join(f"{n} {s}" for s, n in sorted(usage["proposals"].items()))
    rows: Iterable[dict[str, Any]] = record["layouts"]
    text = [
        "# Prompt tokens and the prefix cache",
        "",
        f"MountainCar with {record['parameters']} parameters, {record['trials']} trials of which "
        f"{record['warmup']} are the warm-up, model {record['model']}, llama.cpp in process.",
        "",
        "```",
        COMMAND,
        "```",
        "",
        "## The live search",
        "",
        f"Prompt `props`, answers cut at {record['answer_tokens']} tokens so that it takes "
        f"minutes; points: {sources}. {usage['requests']} requests: "
        f"{usage['prompt_tokens']:,} prompt tokens, of which {usage['cached_tokens']:,} came from "
        f"the prefix cache: **{usage['cached_tokens'] / usage['prompt_tokens']:.1%}**. "
        f"Best return {live['best']:.2f} (one start; this is no benchmark of the model).",
        "",
        "## The same history in other layouts",
        "",
        "| layout | requests measured | prompt tokens | from the cache | share | a request | "
        "the last one |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        text.append(
            f"| {row['layout']} | {row['requests']} | {row['prompt_tokens']:,} | "
            f"{row['cached_tokens']:,} | {row['cached_tokens'] / row['prompt_tokens']:.1%} | "
            f"{row['prompt_tokens'] / row['requests']:,.0f} | {row['last'][0]:,} |"
        )
    by_name = {row["layout"]: row for row in rows}
    ratio = by_name["props"]["prompt_tokens"] / by_name["published"]["prompt_tokens"]
    text += [
        "",
        f"`props` needs {ratio:.0%} of the prompt tokens of the published layout. Where only some "
        "requests were measured, they are every "
        f"{record['every']}th, each right after the one before it.",
        "",
        "Made with " + ", ".join(f"{k} {v}" for k, v in record["versions"].items()) + ".",
        "",
    ]
    return "\n".join(text)


def measure(model: str, trials: int, results: Path) -> None:
    """Run the search and every layout, keeping each as soon as it is done.

    Args:
        model: Model string.
        trials: Evaluations of the search.
        results: The record's file. Layouts that it holds are not measured again.
    """
    client = get_client(model)
    storage = results.with_suffix(".search.jsonl")
    optimizer, space = search(client, trials, storage)
    best = optimizer.best
    record: dict[str, Any] = {
        "model": model,
        "trials": trials,
        "parameters": len(space),
        "warmup": WARMUP,
        "answer_tokens": ANSWER_TOKENS,
        "every": EVERY,
        "live": {"usage": asdict(optimizer.usage), "best": best.reward if best else None},
        "layouts": [],
        "versions": {
            "llmopt": __version__,
            "xllamacpp": importlib.metadata.version("xllamacpp"),
        },
    }
    if results.exists():
        before = json.loads(results.read_text(encoding="utf-8"))
        if before["live"] == json.loads(json.dumps(record["live"])):
            record["layouts"] = before["layouts"]
    done = {row["layout"] for row in record["layouts"]}
    for name, (prompt, every) in layouts().items():
        if name in done:
            continue
        print(f"layout: {name}", flush=True)
        row = replay(client, prompt, space, optimizer.trials, every)
        record["layouts"].append({"layout": name, **row})
        results.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    optimizer.close()
    storage.unlink()


PROVIDERS_RESULTS = RESULTS.with_name("prompt_cache_providers.json")
MODELS = ("openai:gpt-6-luna", "openai:gpt-4.1-mini", "anthropic:claude-haiku-4-5",
          "gemini:gemini-3.8-flash")  # fmt: skip
PROPOSALS = 150
ANSWER, REASONED = 131, 250


def _told(trial: Trial) -> Trial:
    """Return a trial with a reason and feedback of usual length."""
    rng = np.random.default_rng(trial.number)
    lines = (", ".join(f"value {x:.3g} [{x - 1:.3g}, {x + 1:.3g}]" for x in row)
             for row in rng.normal(0.0, 3.0, (6, 11)))  # fmt: skip
    if trial.number < WARMUP:
        return replace(trial, source="warmup", feedback="\n".join(lines))
    number = rng.integers(max(0, trial.number - 8), trial.number) + 1
    return replace(
        trial,
        explanation=f"Lesson: {'what the latest result has shown ' * 4}.\nHypothesis: "
        f"{'what is changed and expected ' * 4}.\nStart from: #{number}",
        feedback="\n".join(lines),
    )


def simulate() -> dict[str, Any]:
    """Return what each provider's rules make of all requests of a search."""
    task = get_task("mountaincar")
    env = task.make_env()
    try:
        n = task.policy(env).n_parameters
    finally:
        env.close()
    space = parameter_space(*task.box, n)
    bare = simulated_trials(space, WARMUP + PROPOSALS)
    told = tuple(map(_told, bare))
    words = task_words(task, range(10)).text
    prompts = (
        ("props", "props", bare, "", ANSWER),
        ("words", "words", bare, "", ANSWER),
        ("words, told all", "words", told, words, REASONED),
    )
    rows = []
    for model in MODELS:
        client = get_client(model)
        price = price_of(client)
        if price is None:
            raise SystemExit(f"{model} has no price: add it to llmopt.client.prices")
        for title, name, trials, description, answer in prompts:
            prompt, facts = get_prompt(name), replace(model_facts(client), count_tokens=count)
            requests = [
                prompt.prepare(
                    Situation.after(
                        History(trials[:k]),
                        space,
                        facts,
                        total=len(trials),
                        description=description,
                    )
                ).request
                for k in range(WARMUP, len(trials))
            ]
            lengths = [count(r.text) for r in requests]
            pairs = zip([None, *requests], requests, strict=False)
            marked = [prefix_use(before, now, client, count) for before, now in pairs]
            layouts = {"as sent": marked}
            if getattr(client, "marks_cache", False) and model.startswith("openai"):
                layouts["one message"] = [(0, k if k >= 1024 else 0) for k in lengths]
            for layout, use in layouts.items():
                costs = [
                    (price.cost(t, answer), price.cost(t, answer, read, written))
                    for t, (read, written) in zip(lengths, use, strict=True)
                ]
                rows.append({
                    "model": model,
                    "prompt": title,
                    "layout": layout,
                    "prompt_tokens": sum(lengths),
                    "read": sum(read for read, _ in use),
                    "written": sum(written for _, written in use),
                    "cost_without_cache": round(sum(c for c, _ in costs if c), 5),
                    "cost": round(sum(c for _, c in costs if c), 5),
                    "price": asdict(price),
                    "price_source": price_source(model),
                })  # fmt: skip
    return {"proposals": PROPOSALS, "warmup": WARMUP, "llmopt": __version__, "rows": rows}


def provider_table(record: dict[str, Any]) -> str:
    """Return the simulation as Markdown."""
    text = [
        "# What 150 proposals cost under each provider's cache rules",
        "",
        "A simulation: no provider was asked, tokens are estimated, hidden reasoning is left out.",
        f"{record['proposals']} proposals after {record['warmup']} trials, MountainCar.",
        "",
        "```",
        f"{COMMAND} --providers",
        "```",
        "",
        "| model | prompt | layout | prompt tokens | read | written | no cache | with it |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in record["rows"]:
        total = row["prompt_tokens"]
        text.append(
            f"| `{row['model']}` | {row['prompt']} | {row['layout']} | {total:,} | "
            f"{row['read'] / total:.1%} | {row['written'] / total:.1%} | "
            f"${row['cost_without_cache']:.3f} | ${row['cost']:.3f} |"
        )
    sources = ", ".join(sorted({row["price_source"] for row in record["rows"]}))
    text += ["", f"Prices: {sources}. Made with llmopt {record['llmopt']}.", ""]
    return "\n".join(text)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="model string (default: smollm2)")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    parser.add_argument("--providers", action="store_true", help="simulate the hosted ones")
    args = parser.parse_args(argv)
    if args.providers:
        record = simulate()
        PROVIDERS_RESULTS.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        PROVIDERS_RESULTS.with_suffix(".md").write_text(provider_table(record), encoding="utf-8")
        return
    if not args.table_only:
        args.results.parent.mkdir(parents=True, exist_ok=True)
        measure(args.model, args.trials, args.results)
    table = args.results.with_suffix(".md")
    table.write_text(make_table(json.loads(args.results.read_text())), encoding="utf-8")
    print(f"wrote {table}")


if __name__ == "__main__":
    main()
