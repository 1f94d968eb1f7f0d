"""Every committed table of results equals what the code makes of the committed lines."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from llmopt.benchmarks.bench import cells as policies
from llmopt.benchmarks.bench.cells import read_results
from llmopt.benchmarks.engine.cell import Cell, read_lines
from llmopt.benchmarks.experiments import __main__ as check
from llmopt.benchmarks.experiments import (
    bbob,
    command,
    findings,
    hpo,
    weak_models,
    words,
)
from llmopt.benchmarks.experiments import claims as numbers
from llmopt.benchmarks.report.markdown import BEGIN, END, markdown

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = (RESULTS / "README.md").read_text(encoding="utf-8")
PROTOCOL = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


questions = functools.cache(findings.questions)  # the same in all tests


def lines_of(name):
    return read_lines(RESULTS / f"{name}.jsonl")


def committed(name):
    return (RESULTS / f"{name}.md").read_text(encoding="utf-8")


def tables(text):
    """Return the Markdown tables of a text, each as its lines."""
    return re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)


def section(head, page=PAGE):
    """Return a section of a page, without what comes before and after it."""
    return re.split(r"^## ", page.partition(f"\n## {head}\n")[2], flags=re.MULTILINE)[0]


def rows(table):
    """Return the cells of each row of a table below its head."""
    return [[c.strip() for c in row[1:-1].split("|")] for row in table.splitlines()[2:]]


RUN = {
    "policies": (policies.run_cell, "means"),
    "bbob": (bbob.run_cell, "steps"),
}
SECTIONS = {"bbob": "Functions: BBOB", "hpo": "Hyper-parameters", "recheck": "Checked"}


@pytest.mark.parametrize("name", SECTIONS)
def test_the_documentation_shows_the_tables_of_the_page_of_results(name):
    here = [t for t in tables(section(SECTIONS[name])) if not t.startswith("| task, seed 0")]
    assert here
    for table in here:
        assert table in committed(name)


def test_the_documentation_has_the_tables_of_the_suites_of_policies():
    paths = [f"benchmarks/results/{name}.jsonl" for name in ("policies", "more-policies")]
    made = markdown(read_results(*(ROOT / p for p in paths)), ", ".join(f"`{p}`" for p in paths))
    assert PAGE.partition(f"{BEGIN}\n")[2].partition(END)[0] == made


def test_the_documentation_has_the_tables_of_the_experiment_on_words():
    made = words.table(lines_of("words")).split("\n\n")
    assert len(made) == 4
    for table in made:
        assert f"\n{table}\n" in PAGE


def test_the_documentation_shows_the_own_tasks_of_the_hyper_parameters():
    (shown,) = (t for t in tables(section("Hyper-parameters")) if t.startswith("| task, seed 0"))
    names = ["frontier-chat, names", "frontier-chat, anonymous", "frontier-chat, shuffled"]
    names += ["TPE", "GP", "small network", "smollm2, names", "random"]
    found = hpo.regrets(lines_of("hpo"))
    for task, *cells in rows(shown):
        assert cells == [f"{found[name][20][task, 0]:.3f}" for name in names]


@pytest.mark.parametrize(
    ("name", "package", "wanted"),
    [
        ("policies", "cma", {"task": "cartpole", "method": "ars", "seed": 1}),
        ("bbob", "ioh", {"method": "cma", "dimension": 2, "task": "f3", "seed": 1}),
    ],
)
def test_a_committed_line_is_still_what_the_code_finds(name, package, wanted):
    """One line of each file; `--again` of an experiment draws more."""
    pytest.importorskip(package)
    run, trace = RUN[name]
    line = next(x for x in lines_of(name) if wanted.items() <= x.get("cell", x).items())
    assert command.agree(line[trace], run(Cell.of(line))[trace])


# -- the README ---------------------------------------------------------------------------


def test_the_readme_shows_rows_of_the_page_of_results():
    assert findings.readme(questions(), README) == README
    assert len(tables(README)[0].splitlines()) > 10


# -- sentences ----------------------------------------------------------------------------


def test_the_page_says_how_often_a_shuffled_point_draws_itself():
    (share,) = re.findall(r"about (\d+) of 30 on average", " ".join(PAGE.split()))
    assert int(share) == round(sum(1 / k for k in range(1, 31)))


def test_the_page_of_small_chat_models_is_what_its_lines_give():
    assert weak_models.make_page(lines_of("weak_models")) == committed("weak_models")


def test_a_proposed_point_is_compared_with_random_points_of_its_task():
    cells = [Cell.make("own-svm", m, 0, 4, "m" * (m != "random")) for m in ("random", "words")]
    drawn = cells[0].line(values=[1.0, 2.0, 3.0, 4.0], sources=["warmup"] * 4)
    sources = ["warmup", "llm", "fallback", "llm"]
    own = cells[1].line(
        values=[1.0, 5.0, None, 2.0], sources=sources, requests=3, tokens=[9, 30],
        rejected={"duplicate": 1},
    )  # fmt: skip
    page = weak_models.make_page([{**line["cell"], **line} for line in (drawn, own)])
    assert "| m | `words`, as text | 1 | 3 | 67 % | 0 % | 33 % | 0 % | 10 |" in page
    assert "| 69 % (1, 2) | 1 of 1 (0.5) |" in page  # 5 wins all four, 2 wins one and ties with one


def test_the_p_values_of_the_section_on_studies_are_those_of_its_page():
    head = "Chat model, words and curves, against each"
    (duels,) = tables(section(head, committed("studies")))
    p = {(trials, rival): row[-1] for trials, rival, *row in rows(duels)}
    text = " ".join(section("Studies").split())
    for trials, told in (
        ("20", {"TPE": "33 paired studies,", "GP": "and the GP", "CMA-ES": "ahead of CMA-ES"}),
        ("20", {"random search": "and of random search"}),
        ("40", {"TPE": "25 studies,", "GP": "The GP: 9 and 1", "CMA-ES": "CMA-ES: 10 and 1"}),
        ("40", {"random search": "random search: 10 and 1"}),
        ("20", {"chat model, names": "6 : 3,", "chat model, anonymous": "8 : 2,"}),
    ):
        for rival, said in told.items():
            (found,) = re.findall(re.escape(said) + r",? \(?p = ([\d.]+)", text)
            assert found == p[trials, rival], (trials, rival)


def test_no_task_is_called_unreported_that_has_reported_results():
    reported = {f"{x['task']}" for x in lines_of("words")} | {"MountainCarContinuous-v0"}
    assert "zones" in reported
    assert "tasks that are not reported" not in PROTOCOL


def test_the_page_of_results_is_what_all_lines_give():
    text = findings.PAGE.read_text(encoding="utf-8")
    assert len([line for line in text.splitlines() if not line.startswith("|")]) <= 80
    assert findings.page(questions(), text) == text
    assert findings.FIGURE.read_bytes().startswith(b"\x89PNG")


def test_policies_and_hyper_parameters_are_questions_of_their_own():
    for question in questions():
        tasks = set(question.scores[question.method])
        policies = tasks & (set(words.TASKS) | {x["cell"]["task"] for x in lines_of("policies")})
        assert not policies or question.area == "policies"
    rivals = {r for q in questions() if q.area == "policies" for r in q.rivals}
    assert {"columns-gaussian", "design-near", "controller", "shuffled"} <= rivals


def test_changed_forms_of_known_tasks_are_called_so():
    assert set(words.WRITTEN) | set(words.CHANGED) < set(words.UNKNOWN)
    assert numbers.policies() == (17, 2, 2, 13)
    for text in (README, findings.PAGE.read_text(encoding="utf-8"), PAGE):
        assert "no model can know" not in text


@pytest.mark.parametrize(
    ("page", "text", "made"), numbers.CLAIMS, ids=[f"{p}: {t[:30]}" for p, t, _ in numbers.CLAIMS]
)
def test_a_claim_of_the_pages_is_what_the_lines_give(page, text, made):
    assert not numbers.lacking(ROOT / page, made()), text.format(*made())


def test_the_check_recomputes_each_page_and_names_what_cannot_be(capsys, monkeypatch):
    monkeypatch.setattr(check.findings, "questions", questions)
    assert check.main(["--check"]) == 0
    said = capsys.readouterr().out
    assert "DIFFERS" not in said
    for name in ("design", "rivals", "studies", "words"):
        assert f"agrees   benchmarks/results/{name}.md" in said
    for name in ("docs/results.md", "README.md", "cannot be made again"):
        assert name in said
    monkeypatch.setattr(check, "PAGES", ())
    monkeypatch.setattr(check.claims, "CLAIMS", (("README.md", "{}", lambda: [123456]),))
    assert check.main(["--check"]) == 1
    assert "DIFFERS  README.md: 123456" in capsys.readouterr().out


def test_the_page_for_optunahub_has_the_figures_of_the_studies():
    found = {row[0]: row[1:5] for row in rows(tables(committed("studies"))[0])}
    page = ROOT / "adapters" / "optunahub" / "package" / "samplers" / "llm_sampler" / "README.md"
    ours = rows(tables(page.read_text(encoding="utf-8"))[0])
    labels = ["chat model, words and curves", findings.LLAMBO, "embedded model"]
    labels += ["network, TPE beside it", "TPE", "random search"]
    for (_, count, *shown), label in zip(ours, labels, strict=True):
        studied, _, *regrets = found[label]
        assert [count, *shown] == [studied, *regrets]
