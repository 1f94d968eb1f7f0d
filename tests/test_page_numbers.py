"""Every measured number on a page is made from the committed results.

`SHOWN` holds, for each page, what its measured numbers say and what makes them from the committed
results alone. One paragraph of the page must hold all numbers of an entry, in whatever words.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from pathlib import Path
from statistics import mean, median

import pytest

from llmopt.benchmarks.engine.cell import read_lines
from llmopt.benchmarks.experiments import regret, words
from llmopt.benchmarks.experiments.recordings import FOLDER
from llmopt.client.http.remote import RemoteClient
from llmopt.client.prices import get_price, price_list
from llmopt.client.recordings import ReplayClient
from llmopt.prompt import get_prompt
from llmopt.util.text import estimate_tokens

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
_SITE = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "docs" / "examples" / "README.md"]
PAGES = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "README.md", *_SITE)}


def loaded(name):
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


@functools.cache
def lines(name):
    text = (RESULTS / f"{name}.jsonl").read_text(encoding="utf-8")
    found = [json.loads(line) for line in text.splitlines()]
    return [{**line.get("cell", {}), **line} for line in found]


@functools.cache
def normalized(page):
    return " ".join(PAGES[page].read_text(encoding="utf-8").split())


# -- what was measured ----------------------------------------------------------------------


def chat_studies(trials):
    wanted = {"method": "words", "evaluations": trials}.items()
    return [x for x in lines("studies") if wanted <= x["cell"].items()]


@functools.cache
def regrets():
    return regret.of_studies(read_lines(RESULTS / "studies.jsonl"))


def studies_against_tpe():
    def ahead(trials):
        told, rival = (regrets()[method][trials] for method in ("words", "tpe"))
        leads = {}
        for (task, seed), value in told.items():
            leads.setdefault(task, []).append(rival[task, seed] - value)
        return [mean(lead) > 0 for lead in leads.values()]

    return sum(ahead(20)), len(ahead(20)), sum(ahead(40))


def ends_of_studies():
    """Return how many studies of 40 trials the model ended, and after how many trials."""
    ended = [len(x["values"]) - 1 for x in chat_studies(40) if x["stopped"]]
    return len(ended), len(chat_studies(40)), min(ended), max(ended)


def requests_of_studies():
    found = [[x["requests"] for x in chat_studies(trials)] for trials in (20, 40)]
    return *(end(requests) for requests in found for end in (min, max)), *ends_of_studies()


def study_of_the_notebook():
    text = (ROOT / "docs" / "examples" / "studies.ipynb").read_text(encoding="utf-8")
    losses = [re.search(rf"{who}: validation [\d.]+, test ([\d.]+)", text)[1] for who in WHO]
    (line,) = (x for x in chat_studies(20) if x["task"] == "bearing")
    return (*losses, len(line["values"]), line["requests"])


WHO = ("the model", "TPE")


def recorded_study():
    exchanges = ReplayClient(FOLDER / "study-bearing.jsonl").exchanges
    sent = sum(estimate_tokens(request.text) for request, _ in exchanges)
    answered = sum(estimate_tokens(c.text) for _, reply in exchanges for c in reply.completions)
    return f"{round(sent, -2):,}", f"{round(answered, -2):,}"


def search_on_swimmer(computes=False):
    found = [
        x
        for x in lines("design")
        if x["cell"]["task"] == "swimmer" and (x["cell"]["method"] == "prompt-eight") is computes
    ]
    fields = ("requests", "prompt_tokens", "completion_tokens")
    requests, prompt, answers = (max(x[f] for x in found) for f in fields)
    return f"{requests:.0f}", f"{round(prompt, -4):,.0f}", f"{round(answers, -3):,.0f}"


def requests_of_designs():
    found = [x["requests"] for x in lines("design") if x["cell"]["method"] == "prompt-seven"]
    return min(found), max(found)


def code_searches():
    held = [(x["command"], x["task"], (x["held_out"] or {})) for x in lines("code")]
    robots = [h["success rate"] for _, t, h in held if t.startswith("metaworld")]
    assert set(robots) == {1.0}
    swimmer = [f"{h['mean return']:.0f}" for _, t, h in held if t == "swimmer" and h]
    linear = [x["held_out"] for x in lines("words") if x["task"] == "swimmer"
              and x["method"] == "words" and x["seed"] >= words.PRESENT]  # fmt: skip
    return *swimmer, f"{median(linear):.0f}"


def nevergrads():
    text = (RESULTS / "nevergrad_mixed.txt").read_text(encoding="utf-8")
    found = dict(re.findall(r"^(\w+) +([\d.]+)", text, re.MULTILINE))
    order = ("LLM", "OnePlusOne", "CMA", "TwoPointsDE", "RandomSearch", "NGOpt")
    return *re.search(r"after (\d+) evaluations: median of (\d+)", text).groups(), *map(
        found.get, order
    )


def costs_of_the_sandbox():
    found = loaded("code_overhead.json")["rows"]
    return (f"{found['one call']['confined']:.2g}",)


def protocol():
    cells = [x["cell"] for x in lines("policies")]
    assert {c["evaluations"] for c in cells} == {100}
    episodes = {c["task"]: c["episodes"] for c in cells}
    own = (episodes.pop("mountaincar"), episodes.pop("swimmer"))
    return *own, *set(episodes.values())


def searches_of_each_method():
    seeds = {}
    for x in lines("policies"):
        seeds.setdefault((x["cell"]["task"], x["cell"]["method"]), set()).add(x["cell"]["seed"])
    return tuple({len(s) for s in seeds.values()})


def of_every_cell(name):
    return lambda: tuple({x["cell"][name] for x in lines("policies")})


def price_rows():
    """Yield the page's rows of prices: each as it stands, and what it should say."""
    text = PAGES["docs/models.md"].read_text(encoding="utf-8")
    for row in re.findall(r"^\| `\w+:[\w.-]+` \| [\d.]+ \| .*\|$", text, re.MULTILINE):
        name = row.split("`")[1]
        price = get_price(name)
        dollars = [(90 * price.input + k * price.output) / 1000 for k in (5, 85)]
        yield (
            row,
            "| `{}` | {:g} | {:g} | {:.2f} | {:.2f} |".format(
                name, price.input, price.output, *dollars
            ),
        )


_FIGURE = re.compile(r"(?<![\w.])[-−]?\d[\d,]*(?:\.\d+)?")
SHOWN = [
    ("docs/tuning.md", "ahead of TPE on {} of {} tasks after 20 trials, on {} after 40",
     studies_against_tpe),
    ("docs/tuning.md", "A study of 20 trials took {} to {} requests and one of 40 took {} to {}, "
     "since one answer may give up to four trials, and the model may end the study: of 40 trials "
     "it ended {} of {}, after {} to {}.", requests_of_studies),
    ("docs/tuning.md", "sent {} prompt tokens in all, and its answers have {}", recorded_study),
    ("docs/tuning.md", "a test loss of {} against {} after {} trials and {} requests",
     study_of_the_notebook),
    ("docs/models.md", "asks it {} to {} times", requests_of_designs),
    ("docs/models.md", "computes: {} requests, {} prompt tokens, {} in the answers",
     functools.partial(search_on_swimmer, computes=True)),
    ("docs/models.md", "takes {} requests, some {} prompt tokens and {} in the answers",
     search_on_swimmer),
    ("docs/code.md", "two finished Swimmer searches end at {} and {} on fresh starts, where its "
     "linear policies return {}", code_searches),
    ("docs/prompts.md", "When the log reaches `log_tokens` ({} in llmopt's own count",
     lambda: [f"{get_prompt('words').log_tokens:,}"]),
    ("docs/nevergrad.md", "({} evaluations, {} seeds) the median loss is {} for `LLM` with the "
     "embedded model, {} for OnePlusOne, {} for CMA, {} for TwoPointsDE, {} for random search and "
     "{} for NGOpt", nevergrads),
    ("docs/sandbox.md", "one call of a trivial policy takes {} µs", costs_of_the_sandbox),
    ("docs/benchmarks.md", "MountainCarContinuous has {} episodes, as published, of Swimmer {}, of "
     "most others {}", protocol),
    ("docs/benchmarks.md", "The first {} policies are drawn", of_every_cell("warmup")),
    ("docs/benchmarks.md", "is judged on {} fresh starts", of_every_cell("heldout")),
    ("docs/benchmarks.md", "**Seeds.** {} of each task and method", searches_of_each_method),
]  # fmt: skip


def paragraphs(page):
    """Return the paragraphs and tables of a page, each with the numbers in it."""
    text = PAGES[page].read_text(encoding="utf-8")
    return [figures(part) for part in re.split(r"\n\s*\n", text)]


def figures(text):
    return {found.rstrip(",") for found in _FIGURE.findall(text)}


@pytest.mark.parametrize(
    ("page", "text", "made"),
    SHOWN,
    ids=lambda x: x[:40] if isinstance(x, str) else getattr(x, "__name__", "made"),
)
def test_a_number_on_a_page_is_what_the_committed_results_give(page, text, made):
    """`text` says what the figures are; the page may say it in other words, in one paragraph."""
    wanted = figures(" ".join(map(str, made())))
    missing = min((wanted - found for found in paragraphs(page)), key=len)
    assert not missing, f"{page} lacks {missing}: {text.format(*made())}"


def test_the_prices_on_the_page_are_those_of_its_date():
    (date,) = re.findall(r"the list prices of (20\d\d-\d\d-\d\d)", normalized("docs/models.md"))
    if date not in price_list():
        pytest.skip(f"the page has prices of {date}, and here are {price_list()}")
    rows = list(price_rows())
    assert len(rows) >= 5
    for shown, made in rows:
        assert shown == made


# -- defaults --------------------------------------------------------------------------------

DEFAULTS = {"docs/model-options.md": [RemoteClient]}


def defaults(page):
    """Return the rows of a page's table of options whose default is a number, as they should be."""
    known = {n: p for o in DEFAULTS[page] for n, p in inspect.signature(o).parameters.items()}
    shown = re.findall(r"^\| `(\w+)` \| [\d,]+ \|", PAGES[page].read_text("utf-8"), re.MULTILINE)
    rows = {name: known[name].default for name in shown}
    return [f"| `{name}` | {value:g} |" for name, value in rows.items() if value is not None]


@pytest.mark.parametrize("page", DEFAULTS)
def test_a_default_on_a_page_is_that_of_the_code(page):
    assert defaults(page)
    for row in defaults(page):
        assert row in normalized(page)
