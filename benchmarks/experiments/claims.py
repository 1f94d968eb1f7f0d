"""What README and the page of results say in numbers beside their tables, made from the lines.

`CLAIMS` holds a page, its words with a hole for each number, and what fills the holes. The page may
say it in other words, as long as one of its paragraphs holds all of the numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from llmopt.benchmarks.experiments import weak_models
from llmopt.benchmarks.experiments.design import interrupted
from llmopt.benchmarks.experiments.findings import ASKED, ROOT, lines_of

Numbers = Iterable[Any]
_FIGURE = re.compile(r"(?<![\w.])[-−]?\d[\d,]*(?:\.\d+)?")


def figures(text: str) -> set[str]:
    """Return the numbers in a text."""
    return {found.rstrip(",") for found in _FIGURE.findall(text)}


def lacking(page: Path, made: Numbers) -> set[str]:
    """Return what the paragraph of a page lacks that holds the most of some numbers."""
    wanted = figures(" ".join(map(str, made)))
    parts = re.split(r"\n\s*\n", page.read_text(encoding="utf-8"))
    return min((wanted - figures(part) for part in parts), key=len)


def _loaded(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / name).read_text(encoding="utf-8"))


def policies() -> Sequence[int]:
    """Return how many policies were searched with words: all, written, changed, known."""
    from llmopt.benchmarks.experiments.words import CHANGED, WRITTEN, is_present

    tried = {x["task"] for x in lines_of("words") if x["method"] == "words" and is_present(x)}
    tried -= {"spills", "switches"}
    written, changed = (len(tried.intersection(some)) for some in (WRITTEN, CHANGED))
    return len(tried), written, changed, len(tried) - written - changed


def tuning() -> Sequence[int]:
    """Return how many tuning tasks the chat model had: all, and those on data made here."""
    from llmopt.benchmarks.tasks.studies import STUDIES

    return len(STUDIES), sum(not task.known for task in STUDIES.values())


def tables() -> Sequence[int]:
    """Return the number of tuning tasks without words: all, and the tabular ones."""
    tuned = {x["task"] for x in lines_of("hpo")}
    return len(tuned), sum(not task.startswith("own-") for task in tuned)


def functions() -> Sequence[int]:
    """Return how many functions of BBOB there are, and in which dimensions."""
    found = lines_of("bbob")
    return len({x["task"] for x in found}), *sorted({x["dimension"] for x in found})


def controllers() -> Sequence[int]:
    """Return for how many policies there is a controller tuned by hand, and for how many none."""
    return len({x["task"] for x in lines_of("rivals") if x["method"] == "controller"}), 17


def first_command() -> Numbers:
    """Return the returns of the README's first command."""
    return [f"{_loaded('first_command.json')['returns'][m]:.0f}" for m in ("llm", "cma", "random")]


def swimmer() -> Numbers:
    """Return the median returns of the suite on Swimmer."""
    for method in ("llm-columns", "cma", "random"):
        own = [x for x in lines_of("policies") if (x["task"], x["method"]) == (_SWIMMER, method)]
        yield f"{median(x['heldout'] for x in own):.0f}"


_SWIMMER = "Swimmer-v5/linear-v1"


def replayed() -> Numbers:
    """Return where the README's replayed search ends."""
    return [_loaded("first_command.json")["replayed"]["return"]]


def computing(task: str) -> list[Any]:
    """Return the searches of a policy in which the model computed, by seed."""
    own = [x for x in lines_of("design") if (x["task"], x["method"]) == (task, "prompt-eight")]
    return sorted(own, key=lambda x: int(x["seed"]))


def hoppers() -> Numbers:
    """Return the searches of Hopper: how many, evaluations, returns, and those interrupted."""
    found = computing("hopper")
    returns = [x["held_out"] for x in found]
    counts = [len(x["curve"]) for x in found]
    yield len(found)
    yield from (min(counts), max(counts))
    yield from (f"{value:,.0f}" for value in (median(returns), min(returns), max(returns)))
    yield sum(map(interrupted, found))


def hopper_rivals() -> Numbers:
    """Return the medians of CMA-ES on Hopper: beside the model's searches, and in the suite."""
    own = [x for x in lines_of("words") if (x["task"], x["method"]) == ("hopper", "cma")]
    suite = [x for x in lines_of("policies") if x["env_id"] == "Hopper-v5" and x["method"] == "cma"]
    yield f"{median(x['held_out'] for x in own):.0f}"
    yield f"{median(x['heldout'] for x in suite):.0f}"


def hopper_costs() -> Numbers:
    """Return the medians of what a search of Hopper took: requests, tokens, minutes."""
    found = computing("hopper")
    yield f"{median(x['requests'] for x in found):.0f}"
    yield f"{median(x['prompt_tokens'] + x['completion_tokens'] for x in found):,.0f}"
    yield f"{median(x['seconds'] for x in found) / 60:.0f}"


def others() -> Numbers:
    """Return the returns of the two searches of HalfCheetah and of Walker2d, and evaluations."""
    for task in ("cheetah", "walker"):
        yield from (f"{x['held_out']:,.0f}" for x in computing(task))
    counts = [len(x["curve"]) for task in ("cheetah", "walker") for x in computing(task)]
    yield from (min(counts), max(counts))


def llambo_requests() -> Numbers:
    """Return the requests of a study of 20 trials, least and most: of LLAMBO, of `LLMSampler`."""
    for method in ("llambo", "words"):
        asked = [
            x["requests"]
            for x in lines_of("studies")
            if (x["method"], x["evaluations"]) == (method, 20) and x["task"] in ASKED
        ]
        yield from (min(asked), max(asked))


def small_chat_models() -> Numbers:
    """Return shares of small chat models in percent.

    Under ``props`` as JSON: the usable answers, least and most, and the pairs that proposed points
    win, least and most; under ``words``: the usable answers, most.
    """
    found = weak_models.rows(lines_of("weak_models"))
    props = [row for row in found if row[1] == weak_models.ARMS["props-json"]]
    for place in (4, 9):
        shares = [int(row[place].split()[0]) for row in props]
        yield from (min(shares), max(shares))
    yield max(int(row[4].split()[0]) for row in found if row not in props)


CLAIMS: Sequence[tuple[str, str, Callable[[], Numbers]]] = (
    ("README.md", "{} searches of Hopper, {} to {} evaluations: {} ({} to {}); {} cut", hoppers),
    ("README.md", "medians of {} (CMA-ES) and {} (CMA-ES of the suite) on Hopper", hopper_rivals),
    ("README.md", "medians of {} requests, {} tokens and {} minutes on Hopper", hopper_costs),
    (
        "README.md",
        "returns of {} and {} (HalfCheetah), {} and {} (Walker2d), {} to {} evaluations",
        others,
    ),
    ("README.md", "{} policies: {} written, {} changed, {} known", policies),
    ("README.md", "{} tuning tasks, {} of them on data made here", tuning),
    ("README.md", "returns of {} (model), {} (CMA-ES) and {} (random search)", first_command),
    ("README.md", "medians of {} (model), {} (CMA-ES) and {} (random search)", swimmer),
    ("README.md", "ends at a return of {}", replayed),
    ("docs/results.md", "{} policies: {} written, {} changed, {} known", policies),
    ("docs/results.md", "a controller for {} of {} tasks", controllers),
    ("docs/results.md", "{} tuning tasks with words, {} of them on data made here", tuning),
    ("docs/results.md", "{} tuning tasks without words, {} of them tables", tables),
    (
        "docs/results.md",
        "{} to {} requests of LLAMBO for 20 trials, {} or {} of LLMSampler",
        llambo_requests,
    ),
    (
        "docs/results.md",
        "{} to {} % usable, {} to {} % of pairs won; under words at most {} %",
        small_chat_models,
    ),
    ("docs/results.md", "{} functions of BBOB in {}, {}, {} and {} dimensions", functions),
)
