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

import numpy as np

from llmopt.benchmarks.experiments.findings import ASKED, ROOT, lines_of, questions
from llmopt.benchmarks.experiments.words import CHANGED, TUNING, WRITTEN, is_present
from llmopt.benchmarks.report.budgets import medians, searches
from llmopt.benchmarks.report.stats import LEVEL, holm
from llmopt.benchmarks.tasks.reactions import REACTIONS
from llmopt.benchmarks.tasks.studies import STUDIES

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


def _held(name: str, task: str, method: str) -> list[float]:
    """Return the held-out returns of a method's searches of a task in a file of results."""
    own = (x for x in lines_of(name) if (x["task"], x["method"]) == (task, method))
    return [x["held_out"] if "held_out" in x else x["heldout"] for x in own]


def policies() -> Sequence[int]:
    """Return how many policies were searched with words: all, written, changed, known."""
    tried = {x["task"] for x in lines_of("words") if x["method"] == "words" and is_present(x)}
    tried -= set(TUNING)
    written, changed = (len(tried.intersection(some)) for some in (WRITTEN, CHANGED))
    return len(tried), written, changed, len(tried) - written - changed


def tuning() -> Sequence[int]:
    """Return how many tuning tasks the chat model had: all, and those on data made here."""
    return len(STUDIES), sum(not task.known for task in STUDIES.values())


def together() -> Sequence[int]:
    """Return the comparisons of the page's questions, the significant ones, and how many fall.

    They fall if Holm's correction is for all comparisons at once.
    """
    met = [pairing for q in questions() if q.core for pairing in q.pairings]
    significant = [p < LEVEL for _, p in met]
    kept = [p < LEVEL for p in holm([each.p for each, _ in met])]
    return len(met), sum(significant), sum(significant) - sum(kept)


def by_origin() -> Numbers:
    """Return pairs won over TPE with 5 start-up trials in percent: on data made here, on public."""
    for title in (
        "of these, the six tasks on data made here",
        "of these, the five tasks on public data",
    ):
        (question,) = (q for q in questions() if q.title == title)
        (share,) = (e.shares.mean() for e, _ in question.pairings if e.rival.endswith("trials"))
        yield f"{100 * share:.0f}"


def tables() -> Sequence[int]:
    """Return the number of tuning tasks without words: all, and the tabular ones."""
    tuned = {x["task"] for x in lines_of("hpo")}
    return len(tuned), sum(not task.startswith("own-") for task in tuned)


def functions() -> Sequence[int]:
    """Return how many functions of BBOB there are, and in which dimensions."""
    lines = lines_of("bbob")
    return len({x["task"] for x in lines}), *sorted({x["dimension"] for x in lines})


def controllers() -> Sequence[int]:
    """Return for how many policies there is a controller tuned by hand, of how many."""
    return len({x["task"] for x in lines_of("rivals") if x["method"] == "controller"}), 17


def first_command() -> Numbers:
    """Return the returns of ``llmopt run swimmer``."""
    return [f"{_loaded('first_command.json')['returns'][m]:.0f}" for m in ("llm", "cma", "random")]


def swimmer() -> Numbers:
    """Return the median returns of the suite on Swimmer."""
    methods, task = ("llm-columns", "cma", "random"), "Swimmer-v5/linear-v1"
    return [f"{median(_held('policies', task, method)):.0f}" for method in methods]


def replayed() -> Numbers:
    """Return where the replayed search of Swimmer ends."""
    return [_loaded("first_command.json")["replayed"]["return"]]


def computing(task: str) -> list[Any]:
    """Return the searches of a policy in which the model computed, by seed."""
    own = [x for x in lines_of("design") if (x["task"], x["method"]) == (task, "prompt-eight")]
    return sorted(own, key=lambda x: int(x["seed"]))


def hoppers() -> Numbers:
    """Return the searches of Hopper: how many, evaluations, returns, and those interrupted."""
    lines = computing("hopper")
    returns, counts = [x["held_out"] for x in lines], [len(x["curve"]) for x in lines]
    yield from (len(lines), min(counts), max(counts))
    yield from (f"{value:,.0f}" for value in (median(returns), min(returns), max(returns)))
    yield sum(x["stopped"].startswith("interrupted") for x in lines)


def hopper_rival() -> Numbers:
    """Return the searches of Hopper by CMA-ES: how many, median, minimum and maximum return."""
    lines = [x["cell"] | x for x in lines_of("laboratory")]
    own = [x["held_out"] for x in lines if (x["task"], x["method"]) == ("hopper", "cma")]
    yield len(own)
    yield from (f"{value:,.0f}" for value in (median(own), min(own), max(own)))


def hopper_costs() -> Numbers:
    """Return the medians per search of Hopper: requests, tokens, minutes."""
    lines = computing("hopper")
    yield f"{median(x['requests'] for x in lines):.0f}"
    yield f"{median(x['prompt_tokens'] + x['completion_tokens'] for x in lines):,.0f}"
    yield f"{median(x['seconds'] for x in lines) / 60:.0f}"


def others() -> Numbers:
    """Return the returns of the two searches of HalfCheetah and of Walker2d, and evaluations."""
    lines = [x for task in ("cheetah", "walker") for x in computing(task)]
    yield from (f"{x['held_out']:,.0f}" for x in lines)
    yield from (end(len(x["curve"]) for x in lines) for end in (min, max))


def llambo_requests() -> Numbers:
    """Return the requests of a study of 20 trials, fewest and most: of LLAMBO, of `LLMSampler`."""
    for method in ("llambo", "words"):
        asked = [
            x["requests"]
            for x in lines_of("studies")
            if (x["method"], x["evaluations"]) == (method, 20) and x["task"] in ASKED
        ]
        yield from (min(asked), max(asked))


def small_chat_models() -> Numbers:
    """Return shares of small chat models in percent.

    Under ``props`` as JSON: the usable answers, minimum and maximum, and the pairs with random
    points that proposed points win (a tie counts half), minimum and maximum; under ``words``: the
    usable answers, maximum.
    """
    usable: dict[str, list[float]] = {}
    won = []
    random: dict[str, list[float]] = {}
    searches: dict[tuple[str, str], list[Any]] = {}
    for line in lines_of("weak_models"):
        if line["method"] == "random":
            sound = [value for value in line["values"] if value is not None]
            random.setdefault(line["task"], []).extend(sound)
        elif line["method"] in ("props-json", "words", "words-json"):
            searches.setdefault((line["method"], line["model"]), []).append(line)
    for (arm, _), lines in searches.items():
        proposed = sum(line["sources"].count("llm") for line in lines)
        usable.setdefault(arm, []).append(100 * proposed / sum(line["requests"] for line in lines))
        if arm == "props-json":
            shares = [_share(lines, task, values) for task, values in random.items()]
            won.append(100 * np.nanmean(shares))
    yield from (f"{end(usable['props-json']):.0f}" for end in (min, max))
    yield from (f"{end(won):.0f}" for end in (min, max))
    yield f"{max(*usable['words'], *usable['words-json']):.0f}"


def _share(lines: Sequence[Any], task: str, random: Sequence[float]) -> float:
    """Return the share of pairs with random points that the proposed points of a task win."""
    pairs = [
        pair
        for line in lines
        if line["task"] == task
        for pair in zip(line["values"], line["sources"], strict=True)
    ]
    proposed = np.array([-np.inf if v is None else v for v, source in pairs if source == "llm"])
    if not proposed.size:
        return np.nan
    return float(np.mean(np.sign(proposed[:, None] - np.array(random)) / 2 + 0.5))


def reactions() -> Numbers:
    """Return the number of tables, the evaluations of a search, the searches of a rival."""
    lines = lines_of("reactions")
    yield from (len({x["task"] for x in lines}), lines[0]["evaluations"])
    yield min(len({x["seed"] for x in lines if x["method"] == m}) for m in ("random", "baybe"))


def reactions_of_the_model() -> Numbers:
    """Return the tables, experiments, and on how many the model leads, is level, and is last."""
    rows = lines_of("reactions")
    after = {key: medians(own)[-1] for key, own in searches(rows).items()}
    rivals = {method for _, method in after} - {"llm-words"}
    leads = [after[task, "llm-words"] - max(after[task, r] for r in rivals) for task in REACTIONS]
    last = [after[t, "llm-words"] < min(after[t, r] for r in rivals) for t in REACTIONS]
    yield from (len(leads), rows[0]["evaluations"])
    yield from (sum(x > 0 for x in leads), sum(x == 0 for x in leads), sum(last))


def _first_searches(task: str) -> list[Any]:
    """Return the searches of a system with seed 1, on the same initial states."""
    return [x for x in lines_of("laboratory") if (x["task"], x["seed"]) == (task, 1)]


def python_in_code() -> Numbers:
    """Return of code searches, without and with Python, returns, tries and requests, by system."""
    for task in ("dryer", "ferry"):
        rows = _first_searches(task)
        both = [x for x in rows if x["method"].startswith("code")]
        yield from (f"{x['held_out']:.4g}" for x in both)
        yield from (count for x in both for count in (len(x["curve"]), x["requests"]))


CLAIMS: Sequence[tuple[str, str, Callable[[], Numbers]]] = (
    ("README.md", "{} searches of Hopper, {} to {} evaluations: {} ({} to {}); {} cut", hoppers),
    ("README.md", "{} searches of Hopper by CMA-ES: {} ({} to {})", hopper_rival),
    ("README.md", "medians of {} requests, {} tokens and {} minutes on Hopper", hopper_costs),
    (
        "benchmarks/results/archive.md",
        "returns of {} and {} (HalfCheetah), {} and {} (Walker2d), {} to {} evaluations",
        others,
    ),
    (
        "README.md",
        "{} screens of reactions, {} experiments: ahead on {}, level on {}, behind on {}",
        reactions_of_the_model,
    ),
    ("README.md", "{} policies: {} written, {} changed, {} known", policies),
    ("README.md", "{} tuning tasks, {} of them on data made here", tuning),
    (
        "docs/examples/README.md",
        "returns of {} (model), {} (CMA-ES) and {} (random search)",
        first_command,
    ),
    (
        "docs/examples/README.md",
        "medians of {} (model), {} (CMA-ES) and {} (random search)",
        swimmer,
    ),
    ("docs/examples/README.md", "ends at a return of {}", replayed),
    ("docs/results.md", "{} policies: {} written, {} changed, {} known", policies),
    ("docs/results.md", "a controller for {} of {} tasks", controllers),
    ("docs/results.md", "{} tuning tasks with words, {} of them on data made here", tuning),
    ("docs/results.md", "{} comparisons, {} verdicts, {} of which fall together", together),
    ("docs/results.md", "{} % over TPE on data made here, {} % on public data", by_origin),
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
    (
        "docs/results.md",
        "{} tables of reactions, {} evaluations, {} searches of each rival",
        reactions,
    ),
    (
        "docs/results.md",
        "code: dryer {}, with Python {}, {} tries and {} requests, {} and {}; "
        "ferry {}, {}, {} and {}, {} and {}",
        python_in_code,
    ),
    ("docs/results.md", "{} functions of BBOB in {}, {}, {} and {} dimensions", functions),
)
