"""The report of any search: one page that needs nothing else, and its study of Optuna."""

from __future__ import annotations

import html
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
from stubs import needs_confinement

import llmopt
from llmopt import Categorical, Float, Int, LLMOptimizer, ScriptedClient, StorageError
from llmopt.cli import main
from llmopt.code import CodeOptimizer
from llmopt.report_page.figures import figures_of
from llmopt.report_page.page import _placed, page
from llmopt.service.search_json import status

optuna = pytest.importorskip("optuna")
pytest.importorskip("plotly")

from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances  # noqa: E402

MARKUP = "</script></textarea>\"'><img src=x onerror=alert(1)><script>a</script>\u27e6Plotly\u27e7"
SPACE = {
    "rate": Float(1e-4, 1, log=True),
    "layers": Int(1, 9),
    "kind": Categorical(["a", None, (1, 2)]),
    "momentum": Float(0, 1, when={"kind": "a"}),
}
POINTS = [
    {"rate": 0.1, "layers": 3, "kind": "a", "momentum": 0.5},
    {"rate": 0.01, "layers": 4, "kind": None},
    {"rate": 0.001, "layers": 5, "kind": (1, 2)},
]


class Marks(HTMLParser):
    """The tags of a page with the names of their attributes, and where it leads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.marks: set[tuple[str, ...]] = set()
        self.leads: list[str | None] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.marks.add((tag, *sorted(name for name, _ in attrs)))
        self.leads += [value for name, value in attrs if name in ("src", "href", "action", "data")]


def words(text: str = "", **options) -> LLMOptimizer:
    """Return a search of which each kind of word holds a text."""
    answer = f"Lesson: low {text}\nAnalysis: so {text}\nHypothesis: try {text}\nProposal:\n"
    client = ScriptedClient(
        [f"{answer}rate: 0.0{i}, layers: 2, kind: a, momentum: 0.25" for i in (2, 3)]
    )
    options = {"warmup": POINTS, "seed": 1, "description": f"A net {text}", **options}
    search = LLMOptimizer(SPACE, client, "words", "minimize", **options)
    for i in range(4):
        point = search.ask()
        if i == 1:
            search.tell_failure(point, f"it diverged {text}")
        else:
            search.tell(
                point, 1.0 + i, feedback=f"it converged {text}", constraint_violation=i // 3
            )
    search.ask()
    return search


def test_a_study_has_all_that_a_search_knows():
    study = words().to_optuna()
    assert [t.state.name for t in study.trials] == [
        "COMPLETE",
        "FAIL",
        *["COMPLETE"] * 2,
        "RUNNING",
    ]
    assert [t.value for t in study.trials] == [1.0, None, 3.0, 4.0, None]
    assert study.trials[0].params == POINTS[0]
    assert study.trials[2].params["kind"] == "(1, 2)"
    assert "momentum" not in study.trials[2].params
    assert study.best_params == POINTS[0]
    last = study.trials[3]
    assert last.constraints == {"total": 1.0}
    names = ("label", "source", "feedback")
    assert [last.user_attrs[f"llmopt:{n}"] for n in names] == ["#4", "llm", "it converged "]
    assert "Hypothesis: try" in last.user_attrs["llmopt:explanation"]
    assert set(optuna.importance.get_param_importances(study)) == {*SPACE}


def noisy() -> LLMOptimizer:
    """Return a search of two objectives whose luckiest measurement is not on the front."""
    directions = {"yield": "maximize", "cost": "minimize"}
    search = LLMOptimizer({"x": Float(0, 9)}, ScriptedClient([]), direction=directions, noisy=True)
    for x, rewards in (
        (1, (92, 3.5)),
        (2, (88, 3.5)),
        (1, (88, 3.5)),
        (3, (80, 2.0)),
        (4, (70, 4)),
    ):
        search.tell({"x": x}, rewards)
    return search


@pytest.mark.defect(31)
def test_the_front_of_study_and_page_is_that_of_the_search():
    search = noisy()
    front = [t.rewards for t in search.pareto]
    assert front == [(90.0, 3.5), (80.0, 2.0)]
    study = search.to_optuna()
    assert study.metric_names == ["yield", "cost"]
    assert [tuple(t.values) for t in study.best_trials] == front
    text = page(search, reference={"cost": 5, "yield": 60})
    rows = re.findall(r'<details class="trial lead".*?</summary>', text, re.DOTALL)
    assert ["90" in rows[0], "80" in rows[1], len(rows)] == [True, True, 2]
    kinds = [f.name for f in figures_of(study, reference=(60, 5))]
    assert kinds[:2] == ["pareto", "hypervolume"]
    with pytest.raises(llmopt.LLMOptError, match="a number for each objective"):
        page(search, reference=(1,))


def test_a_page_needs_nothing_else_and_no_text_in_it_is_markup():
    tame, hostile = page(words("quiet")), page(words(MARKUP), title=MARKUP)
    seen = Marks(hostile)
    assert seen.marks == Marks(tame).marks
    assert seen.leads == []
    assert hostile.count("alert(1)") > 10
    assert re.search(
        r"content=\"default-src 'none'; [^\"]*script-src 'sha256-\S+' 'sha256-\S+'\"", hostile
    )
    assert "prefers-color-scheme: dark" in hostile
    assert '"yaxis' in hostile  # figures are there
    for said in ("it diverged", "it converged", "Hypothesis", "Lesson", "no result", "infeasible"):
        assert said in tame


def test_a_page_shows_the_correction_of_a_measurement_and_not_of_their_mean(tmp_path):
    search = LLMOptimizer({"x": Float(0, 1)}, "network", direction="maximize", noisy=True)
    for old, new in ((7.9, 80.71), (79.2, 79.4)):
        search.tell({"x": 0.5}, old)
        search.tell({"x": 0.5}, new, replaces=search.trials[-1].number)
    text = search.report(tmp_path / "page.html").read_text()
    assert "corrected: 7.9 → 80.71; 79.2 → 79.4<" in text
    assert "old_reward" not in status(search)["best"]


def test_a_page_shows_the_point_that_a_trial_had_before_it_was_corrected(tmp_path):
    search = LLMOptimizer({"T": Int(0, 99), "k": Int(0, 9)}, "network", storage=tmp_path / "s")
    with search:
        search.tell({"T": 59, "k": 1}, 61.0)
        search.tell({"T": 58, "k": 1}, 62.9, replaces=0)
        assert "corrected: 61 → 62.9, T 59 → 58<" in page(search)


def changes(text: str) -> list[tuple[str, str]]:
    """Return the rows of the section of changes."""
    (section,) = re.findall(r'<section id="changes">.*?</section>', text, re.DOTALL)
    return [
        tuple(map(html.unescape, r)) for r in re.findall(r"<td>(.*?)</td><td>(.*?)</td>", section)
    ]


def test_a_page_shows_each_change_from_what_to_what(tmp_path):
    file, table = tmp_path / "s.jsonl", [{"acid": a, "T": t} for a in "abc" for t in (20, 40)]
    space = {"acid": Categorical(["a", "b", "c"]), "T": Int(20, 80, unit="°C")}
    asked = {"direction": {"yield": "maximize"}, "storage": file, "noisy": True}
    limits = ["T <= 40", "T >= 20"]
    with LLMOptimizer(space, "network", candidates=table, constraints=limits, **asked) as search:
        for acid in "abb":
            search.tell({"acid": acid, "T": 20}, 61.0, parts={"T": 9.0}, feedback="brown")
        assert 'id="changes"' not in page(search)
        search.tell({"acid": "a", "T": 40}, 61.0, parts={"T": 7.5}, feedback="dark", replaces=0)
        search.tell({"acid": "a", "T": 40}, 62.5, parts={"T": 7.5}, feedback="dark", replaces=0)
        search.withdraw(trial=2, feedback="wrong\nbottle")
        search.tell({"acid": "b", "T": 20}, math.nan, feedback="it broke", replaces=2)
    limits = ["T <= 30", "T >= 20"]
    with LLMOptimizer(space, "network", candidates=table[:5], constraints=limits, **asked):
        text = llmopt.report(file, tmp_path / "page.html").read_text()
    assert changes(text) == [
        ("#1", "T (°C) 20 → 40, T 9 → 7.5, feedback “brown” → “dark”"),
        ("#1", "yield 61 → 62.5"),
        ("#3", "yield 61 → withdrawn; wrong bottle"),
        ("#3", "yield withdrawn → failed, feedback “brown” → “the reward was nan; it broke”"),
        ("candidates", "6 allowed rows → 3 allowed rows"),
        ("constraints", "removed: T <= 40; added: T <= 30; 1 trial became infeasible"),
    ]
    assert "corrected: yield 61 → 62.5, T 20 → 40, T 9 → 7.5<" in text
    assert re.findall(r"Former feedback</h4><p[^>]*>([^<]*)<", text) == ["brown", "brown"]


def test_changes_of_a_trial_have_one_order_whatever_it_had_before():
    space = {"a": Categorical(["x", "y"]), "k": Int(1, 9, when={"a": "x"})}
    search = LLMOptimizer(space, "network")
    search.tell({"a": "y"}, 1.0, stderr=0.5, feedback="dark")
    point = {"a": "x", "k": 4}
    others = {"stderr": 0.25, "constraint_violation": 2.0, "parts": {"p": 1}, "feedback": "pale"}
    search.tell(point, 1.0, **others, replaces=0)
    fields = "a y → x, k none → 4, p none → 1, standard error 0.5 → 0.25, violation none → 2"
    assert changes(page(search)) == [("#1", f"{fields}, feedback “dark” → “pale”")]
    assert f"corrected: {fields}<" in page(search)


def test_a_page_calls_no_trial_corrected_that_was_only_withdrawn_and_restored():
    search = LLMOptimizer({"x": Float(0, 1)}, "network")
    for x in (0.5, 0.25):
        search.tell({"x": x}, 7.9, feedback="dark")
    for reward, tag in ((7.9, []), (8.0, ["corrected: 7.9 → 8"])):
        search.withdraw(trial=0)
        search.tell({"x": 0.5}, reward, replaces=0)
        assert re.findall(r'class="tag">(corrected[^<]*)<', page(search)) == tag
        assert search.trials[0].corrected == len(tag)


def test_a_page_shows_corrections_what_was_asked_for_and_the_model(tmp_path):
    client = ScriptedClient(["x: 0.1, k: 3", "x: 0.2, k: 3"], name="gpt-6-luna")
    space, file = {"x": Float(0, 1), "k": Int(1, 9)}, tmp_path / "s.jsonl"
    with LLMOptimizer(space, client, "props", warmup=0, storage=file) as search:
        for _ in range(2):
            asked = search.ask()
            words = {"feedback": "brown", "parts": {"ee": 9.0}}
            search.tell({**asked, "x": asked["x"] + 0.5}, 1.0, instead_of=asked, **words)
        search.tell({"x": 0.75, "k": 3}, 2.0, replaces=1)
        search.withdraw(trial=0, feedback="wrong bottle")
    text = llmopt.report(file, tmp_path / "page.html").read_text()
    trials = re.findall(r'<details class="trial.*?</details>', text, re.DOTALL)
    assert ["corrected: 1 → 2" in trial for trial in trials] == [False, True]
    assert re.search(
        r"gone.>1</span>.*\(ee 9\).*>withdrawn</span>.*</summary>.*Reason</h4>.*wrong bottle<"
        r".*Former feedback</h4><p[^>]*>brown<",
        trials[0],
        re.DOTALL,
    )
    instead = [re.search(r"instead of</h4>(.*)", trial)[1] for trial in trials]
    assert [re.findall(r"<i>(\w+)</i> ([\d.]+)", part) for part in instead] == [
        [("x", "0.1")],
        [("x", "0.2")],
    ]
    assert "<td>model</td><td>gpt-6-luna</td>" in text


def test_a_page_marks_rows_outside_of_the_candidates_and_says_words_once():
    client = ScriptedClient(
        ["Analysis: it is hot\nHypothesis: it is hot\nStart from: new\nProposal: x: 3"]
    )
    table = [{"x": 1}, {"x": 3}]
    with LLMOptimizer(None, client, "words", candidates=table, warmup=0) as search:
        search.tell(search.ask(), 1.0)
        search.tell({"x": 2}, 2.0)
        trials = re.findall(r'<details class="trial.*?</details>', page(search), re.DOTALL)
    assert ["not a candidate" in trial for trial in trials] == [False, True]
    assert ["Hypothesis" in trials[0], "Analysis" in trials[0]] == [True, False]


def test_names_and_choices_in_figures_are_text():
    study = optuna.create_study(direction="maximize")
    for i in range(20):
        few = [f.name for f in figures_of(study, numbered=False)] if i == 19 else ["history"]
        assert "history" in few
        assert "importance" not in few
        trial = study.ask()
        trial.suggest_float("<a href='http://evil'>x</a>", 0, 9)
        trial.suggest_categorical(
            MARKUP, [MARKUP, "b", (i % 2 and "c") or "d"] if 0 else [MARKUP, "b"]
        )
        study.tell(trial, i)
    figures = figures_of(study, numbered=False)
    assert [f.name for f in figures] == ["history", "importance", "slice", "parallel"]
    text = "".join(f.json for f in figures)
    assert "<" not in text
    assert "u003ca " not in text
    assert "u003cimg" not in text


def test_each_panel_has_the_infeasible_trials_and_choices_without_quotes():
    search = LLMOptimizer(SPACE, "network", direction="minimize")
    for i, point in enumerate(POINTS):
        search.tell(point, float(i), constraint_violation=float(i < 2))
    (slices,) = (f for f in figures_of(search.to_optuna()) if f.name == "slice")
    drawn = json.loads(slices.json)
    infeasible = [trace for trace in drawn["data"] if trace["name"] == "Infeasible"]
    shown = {trace["xaxis"]: (trace["x"], trace["y"]) for trace in infeasible}
    titles = {drawn["layout"][f"xaxis{n}"]["title"]["text"]: f"x{n}" for n in ("", "2", "3", "4")}
    assert {name: shown.get(axis) for name, axis in titles.items()} == {
        "kind": (["a", "None"], [0, 1]),
        "layers": ([3, 4], [0, 1]),
        "momentum": ([0.5], [0]),
        "rate": ([0.1, 0.01], [0, 1]),
    }
    assert drawn["layout"]["xaxis"]["dtick"] == 1  # each choice is named
    assert [t.get("showlegend") for t in infeasible] == [True, False, False, False]
    assert drawn["layout"]["xaxis"]["categoryarray"] == ["a", "None", "(1, 2)"]


@pytest.mark.defect(37)
@needs_confinement
def test_the_model_s_python_is_on_the_page():
    block = "```python\nprint(6 * 7, '<b>')\n```"
    proposal = "Start from: new\nProposal:\nx: 0.{}"
    replies = [block, proposal.format(1), "```python\n1 / 0\n```", block, proposal.format(2), block]
    options = {"warmup": 1, "compute": True, "seed": 1, "on_error": "raise"}
    with LLMOptimizer({"x": Float(0, 1)}, ScriptedClient(replies), "words", **options) as search:
        for reward in (1.0, 2.0, 3.0):
            search.tell(search.ask(), reward)
        with pytest.raises(llmopt.ClientError):
            search.ask()
        text = page(search)
    order = re.findall(r'(Python of the model|id="t\d")', text)
    python = "Python of the model"
    assert order == ['id="t0"', python, 'id="t1"', python, python, 'id="t2"', python]
    assert "print(6 * 7, &#39;&lt;b&gt;&#39;)" in text
    assert "42 &lt;b&gt;" in text
    assert "ZeroDivisionError" in text


@needs_confinement
@pytest.mark.defect(39)
def test_a_search_over_code_shows_its_sources_also_of_its_file(tmp_path):
    replies = [f"Better.\n```python\ndef f(x):\n    return x + {i}\n```" for i in range(3)]
    options = {"client": ScriptedClient(replies), "storage": tmp_path / "search.jsonl", "seed": 1}
    with CodeOptimizer("f(x)", "A number.", **options) as search:
        for i in range(3):
            candidate = search.ask()
            search.tell(candidate, candidate(1.0), feedback=f"seen {i}")
        pages = [search.report(tmp_path / "code.html")]
    before = (tmp_path / "search.jsonl").read_bytes()
    pages += [
        llmopt.report(tmp_path / "search.jsonl", tmp_path / "file.html"),
        llmopt.report(tmp_path, tmp_path / "folder.html"),
    ]
    for text in map(Path.read_text, pages):
        assert [f"return x + {i}" in text for i in range(3)] == [True] * 3
        assert "The best is #3 with 3 by the model" in text
        assert "seen 2" in text
    assert (tmp_path / "search.jsonl").read_bytes() == before


def test_a_page_has_at_most_6_mb(tmp_path):
    search = LLMOptimizer(
        {f"x{i}": Float(0, 1) for i in range(40)}, ScriptedClient([]), warmup=3000
    )
    for i, point in enumerate(search.ask(500)):
        search.tell(point, float(i == 100), feedback="seen " * 1800)
    for point in search.ask(200):
        search.tell(point, 0.5, feedback="a" * 9000)
    file = search.report(tmp_path / "large.html")
    assert file.stat().st_size < 6_000_000
    assert 'id="t100"' in file.read_text()  # the best, although old


@pytest.mark.filterwarnings("ignore::UserWarning")  # Optuna's, on low values
def test_each_number_stands_beside_what_it_is_of():
    search = LLMOptimizer(
        {"x": Float(0, 10), "y": Float(0, 10)}, ScriptedClient([]), "words",
        {"cost": "minimize", "litres": "maximize"}, warmup=30, seed=0, noisy=True,
        constraints="x + y <= 15",
    )  # fmt: skip
    for i in range(30):
        point = search.ask()
        values = point["x"], 20 * (point["x"] > 8) + point["y"]
        search.tell(point, values, constraint_violation=float(i < 3))
    search.tell(point, (point["x"] + 1, point["y"]))
    text = page(search)
    assert re.search(r"<i>cost</i> \S+</span> <span>± \S+</span> <span class=.value.><i>lit", text)
    assert "31 trials of 30 points: 31 complete (3 infeasible)" in text
    assert "<td>constraints</td><td>x + y &lt;= 15</td>" in text
    figures = {f.title: json.loads(f.json)["data"][0] for f in figures_of(search.to_optuna())}
    drawn = figures["Importance of parameters of litres"]
    high = get_param_importances(
        search.to_optuna(),
        evaluator=PedAnovaImportanceEvaluator(),
        target=lambda trial: -trial.values[1],
    )
    assert dict(zip(drawn["y"], drawn["x"], strict=True)) == pytest.approx(high)


def test_the_page_of_a_file_names_the_prompt_of_the_search(tmp_path, caplog):
    file = tmp_path / "s.jsonl"
    with LLMOptimizer(SPACE, ScriptedClient([]), "props", storage=file, warmup=1) as search:
        search.tell(search.ask(), 1.0)
    caplog.clear()
    text = llmopt.report(file, tmp_path / "s.html").read_text()
    assert "<td>prompt</td><td>props</td>" in text
    assert not caplog.records  # hints for somebody who asks


def test_python_stands_before_the_trial_that_it_led_to_also_beside_imported_rows():
    trials = [SimpleNamespace(kind="search", source=s) for s in ("llm", "user", "user", "llm")]
    block = SimpleNamespace(trials=1, code="1", output="", seconds=0.1, failed=False)
    assert [*_placed([block], SimpleNamespace(trials=trials), 4)] == [3]


def test_units_stand_beside_the_names_of_parameters():
    search = LLMOptimizer({"heat": Float(20, 80, unit="°C"), "n": Int(1, 9)}, ScriptedClient([]))
    for heat in (30, 77.5):
        search.tell({"heat": heat, "n": 2}, heat)
    study, text = search.to_optuna(), page(search)
    assert study.best_params == {"heat": 77.5, "n": 2}
    assert re.search(r"<td>heat \(°C\)</td>\s*<td>20 to 80</td>", text)
    axes = [
        json.loads(f.json)["layout"]["xaxis"]["title"]["text"]
        for f in figures_of(study, labels={"heat": "heat (°C)"})
        if f.name == "slice"
    ]
    assert axes == ["heat (°C)"]
    assert text.count("heat (°C)") == 3  # in the space and of each trial


def test_the_space_shows_steps_scales_conditions_and_each_unit_once():
    space = {
        "heat": Float(20, 80, step=2.5, unit="°C"),
        "base equiv": Float(1, 3, unit="equiv"),
        "time_h": Float(0.5, 24, log=True, unit="h"),
        "shots": Int(10, 50, step=10),
        "n": Int(1, 9, when={"gas": "N2"}),
        "gas": Categorical({"N2": "nitrogen", "Ar": "argon"}),
    }
    search = LLMOptimizer(space, "network")
    point = {"heat": 20, "base equiv": 1, "time_h": 1, "shots": 10, "gas": "argon"}
    pages = [page(search)]
    search.tell(point, 1.0)
    pages += [page(search), page(search.to_optuna())]
    for text in pages[:2]:
        rows = dict(re.findall(r"<td>([^<]*)</td><td>([^<]*)</td>", text))
        assert {name: rows.get(name) for name in ("heat (°C)", *list(space)[1:])} == {
            "heat (°C)": "20 to 80, step 2.5",
            "base equiv": "1 to 3",
            "time_h": "0.5 to 24, log scale",
            "shots": "10 to 50, step 10",
            "n": "1 to 9, whole numbers, only with gas = N2",
            "gas": "one of N2, Ar",
        }
    assert "<td>time_h</td><td>0.5 to 24, log scale</td>" in pages[2]


def test_a_search_without_trials_has_a_page():
    empty = LLMOptimizer(SPACE, ScriptedClient([]))
    assert "0 trials: none yet." in page(empty)
    assert 'class="figure"' not in page(empty)
    empty.tell_failure(POINTS[0], "no power")
    assert "no power" in page(empty)


def test_page_and_status_count_the_same_trials():
    search = LLMOptimizer({"x": Float(0, 1)}, ScriptedClient([]), warmup=3, noisy=True)
    first, second, _ = search.ask(3)
    search.tell(first, 1.0)
    search.tell(first, 2.0)
    search.tell_failure(second, "broke")
    search.tell({"x": 0.5}, 3.0)
    search.withdraw(trial=3)
    text = page(search)
    assert (
        "3 trials of 2 points: 2 complete, 1 failed (not counted: 1 withdrawn, 1 without a result)."
        in text
    )
    assert status(search)["trials"] == 3
    assert "(recorded as trial 1, trial 2)" in text
    assert ">1.5</span> <span>± 0.5</span> <span>mean of 2, error from" in text
    search.tell(first, 1.1)
    assert ">1.37</span> <span>± 0.32</span>" in page(search)  # 1.3667 to the digits of its error
    for violation in (0, 1, 1):
        search.tell({"x": 0.6}, 9.0, constraint_violation=violation)
    assert "complete (2 infeasible)" in page(search)
    assert status(search)["infeasible"] == 2


def test_a_page_names_points_as_ask_does():
    """A pending point had a number that another one got with its result."""
    search = LLMOptimizer({"x": Float(0, 1)}, ScriptedClient([]), warmup=3, noisy=True)
    first, second, third = search.ask(3)

    def heads():
        return re.findall(r"<summary><b>(.*?)</b>", page(search))

    assert heads() == ["p1", "p2", "p3"]
    search.tell(third, 1.0)
    assert heads() == ["#1 (p3)", "p1", "p2"]
    assert "The best is #1 (p3) with 1 " in page(search)
    search.tell({"x": first["x"] / 2}, 2.0, instead_of=first)
    search.tell(third, 3.0)
    search.tell({"x": 0.123}, 0.0)
    search.tell(second, 4.0)
    assert heads() == ["#1 (p3)", "#2 (p1)", "#3", "#4 (p2)"]
    assert page(search).count(">not as asked</span>") == 1
    search.tell(second, 5.0, replaces=4)
    assert "<td>#4 (p2, trial 5)</td>" in page(search)


def test_a_page_shows_queued_and_imported_points_and_no_reason_of_a_withdrawal_in_a_headline():
    space = {"x": Float(0, 1), "gas": Categorical({"N2": "nitrogen", "Ar": "argon"})}
    search = LLMOptimizer(space, "network", direction="maximize", constraints=["x <= 0.5"])
    search.record_trials([{"x": 0.1, "gas": "N2", "reward": 1.0}])
    search.tell({"x": 0.2, "gas": "argon"}, 1.0)
    search.withdraw(trial=1, feedback="wrong bottle")
    search.enqueue({"x": 0.25, "gas": "nitrogen"}, "as in the thesis")
    search.enqueue({"x": 0.3}, "warm & dry")
    text = page(search)
    assert "1 trial (1 imported): 1 complete (not counted: 1 withdrawn, 2 queued)." in text
    heads = re.findall(r"<summary>(<b>.*?)</summary>", text)
    heads = [" ".join(re.sub("<[^>]*>", " ", head).split()) for head in heads]
    assert heads == [
        "#1 1 best imported the user",
        "#2 1 withdrawn the user",
        "queued the user: as in the thesis",
        "queued the user: warm &amp; dry",
    ]
    queued = re.findall(r"<b>queued.*?</details>", text, re.DOTALL)
    named = [re.findall(r"<i>(\w+)</i> ([\w.]+)", each) for each in queued]
    assert named == [[("x", "0.25"), ("gas", "N2")], [("x", "0.3")]]


def test_a_page_shows_the_hypothesis_of_a_queued_point():
    answer = "Hypothesis: warm\nStart from: new\nProposal: x: {}"
    client = ScriptedClient([f"{answer.format(0.1)}\n\n{answer.format(0.2)}"])
    search = LLMOptimizer({"x": Float(0, 1)}, client, "words", warmup=0, compute=False)
    search.ask()
    (queued,) = re.findall(r"<b>queued.*?</details>", page(search), re.DOTALL)
    assert '<p class="words">warm</p>' in queued


def test_figures_end_with_the_last_result_and_name_points_as_ask_does():
    search = LLMOptimizer({"x": Float(0, 1)}, "network", direction=["minimize"] * 2, warmup=9)
    first, second, *_ = search.ask(4)
    search.tell(second, [1.0, 2.0])
    search.tell(first, [2.0, 1.0])
    drawn = {f.name: json.loads(f.json)["data"] for f in figures_of(search.to_optuna())}
    hover = "".join(text for trace in drawn["pareto"] for text in trace["text"])
    assert sorted(re.findall('"trial": "(.*?)"', hover)) == ["#1 (p2)", "#2 (p1)"]
    assert drawn["slice"][0]["marker"]["cmax"] == 2


def test_a_page_shows_the_reasons_of_a_repeat_in_its_line():
    answers = ["Hypothesis: warm\nStart from: new\nProposal: x: 0.5, k: 3"]
    answers += ["So\nit is.\nLesson: l\nHypothesis: noisy.\nStart from: #1\nProposal: no change"]
    space = {"x": Float(0, 1), "k": Int(1, 9)}
    search = LLMOptimizer(space, ScriptedClient(answers), "words", warmup=0, noisy=True)
    for words in ("brown.", "pale"):
        point = search.ask()
        search.tell(point, 1.0, feedback=words)
    search.tell(point, 2.0)
    reasons = "hypothesis: noisy; lesson: l; So it is"
    assert f"trial 1: 1; brown.\ntrial 2: 1; pale; {reasons}.\ntrial 3: 2.<" in page(search)


def test_a_page_shows_corrections_of_failures_and_violations_in_words():
    search = LLMOptimizer({"x": Float(0, 1)}, "network", constraints=["x <= 0.5"])
    for x, first, then in ((0.1, None, 2.0), (0.2, 3.0, None), (0.3, None, None), (0.4, 1.0, 1.0)):
        number = search.tell({"x": x}, first, feedback="a").number
        search.tell({"x": x}, math.nan if then is None else then, feedback="b", replaces=number)
    search.tell({"x": 0.75}, 1.0, feedback="hot")
    text = page(search)
    tags = re.findall(r'class="tag">(corrected[^<]*)<', text)
    assert tags == ["corrected: failed → 2", "corrected: 3 → failed", "corrected", "corrected"]
    assert "hot.\nIt violates the constraints by 0.25.<" in text


def test_a_page_tells_the_user_s_words_from_the_model_s():
    answer = "Analysis: so\nHypothesis: warm\nStart from: new\nProposal: x: 0.5, k: 3"
    search = LLMOptimizer(
        {"x": Float(0, 1), "k": Int(1, 9)}, ScriptedClient([answer]), "words", warmup=1, seed=0
    )
    search.enqueue({"k": 2}, "a  random\none")
    search.enqueue({"k": 3}, "a colleague's wish")
    for _ in range(2):
        search.tell(search.ask(), 1.0)
    parts = re.findall(r"<h4>([^<]*)</h4><p class=.words.>([^<]*)<", page(search))
    assert parts == [
        ("The user&#39;s words", "a random one"),
        ("Hypothesis", "warm"),
        ("The user&#39;s words", "a colleague&#39;s wish"),
        ("Analysis", "so"),
    ]


def test_sources_of_a_report(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words(storage="search.jsonl").close()
    folder = Path("runs/swimmer")
    folder.mkdir(parents=True)
    (folder / "optimizer.jsonl").write_bytes(Path("search.jsonl").read_bytes())
    sources = {"search.jsonl": "search", "runs/swimmer": "swimmer"}
    for source, title in sources.items():
        assert main(["report", source, "--out", "page.html"]) == 0, capsys.readouterr().err
        assert f"<title>{title}</title>" in Path("page.html").read_text()
    llmopt.report("search.jsonl", "page.html", title="Mine")
    assert "<title>Mine</title>" in Path("page.html").read_text()


@pytest.mark.defect(39)
def test_a_description_of_a_search_stands_for_its_storage(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(
        'model = "network"\ndirection = "maximize"\n[space]\n'
        'x = {type = "number", minimum = 0, maximum = 1}\n'
    )
    assert main(["report", "s.toml"]) == 2
    assert "`llmopt ask s.toml` begins it" in capsys.readouterr().err
    assert main(["ask", "s.toml"]) == 0
    assert main(["report", "s.toml"]) == 0
    assert "<title>s</title>" in Path("s.html").read_text()
    assert llmopt.report(tmp_path / "s.jsonl") == tmp_path / "s.html"


@pytest.mark.parametrize("source", ["none.jsonl", "other.txt", ".", "sqlite:///none.db"])
def test_what_is_no_search_is_left_as_it_is(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    Path("other.txt").write_text("hello\n")
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(StorageError):
        llmopt.report(source)
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_page_and_status_show_every_result_before_a_correction(tmp_path):
    with LLMOptimizer({"x": Float(0, 1)}, "network", storage=tmp_path / "s.jsonl") as search:
        search.tell({"x": 0.5}, 1.0)
        for reward in (2.0, 3.0):
            search.tell({"x": 0.5}, reward, replaces=0)
        search.tell({"x": 0.6}, 3.0, replaces=0)  # the point alone was wrong
        assert "corrected: 1 → 2 → 3, x 0.50 → 0.60<" in page(search)
        best = status(search)["best"]
        assert (best["corrected"], best["old_reward"], best["old_rewards"]) == (3, 2, [1, 2])
        search.tell({"x": 0.6}, 4.0, replaces=0)
        assert search.trials[0].old_rewards == ((1.0,), (2.0,), (3.0,))
        search.withdraw(trial=0)
        assert search.trials[0].old_rewards == ((1.0,), (2.0,), (3.0,), (4.0,))
        assert ">4</" in search.report(tmp_path / "page.html").read_text()
