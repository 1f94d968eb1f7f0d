"""The report of a search: what it holds, what it escapes, and every odd search that it survives."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import sys
from html.parser import HTMLParser

import pytest

import llmopt
from llmopt import Categorical, Float, Int, LLMOptError, LLMOptimizer, ScriptedClient, Space
from llmopt.cli import main
from llmopt.report import charts, read_search, report_page
from llmopt.report.charts import thinned
from llmopt.report.data import parameters_of
from llmopt.report.importance import importance
from llmopt.report.scales import Scale, robust_scale

SPACE = {
    "x": Float(-5, 5),
    "lr": Float(1e-6, 1, log=True),
    "layers": Int(1, 4),
    "kind": Categorical(["round", "square", None]),
}
HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"' {{ 7*7 }} \x1b[31m&amp;"
)
ANSWER = """Lesson: small x is good
Analysis: the bowl is round
Hypothesis: a smaller x lowers the reward
Start from: #1
Proposal:
x: 0.5"""


class Page(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.handlers, self.fetched, self.words = [], set(), [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                assert value not in self.ids
                self.ids.add(value)
            self.handlers += [name] if name.startswith("on") else []
            self.fetched += [value] if name in ("src", "href", "data", "xlink:href") else []

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def checked(source, **options):
    """Return the page of a search that fetches nothing, runs one script, and is valid."""
    html = report_page(source, **options)
    page = Page(html)
    assert page.tags.count("script") == 1
    assert not page.handlers
    assert all(target.startswith("#") and target[1:] in page.ids for target in page.fetched)
    assert "default-src 'none'" in html
    assert "NaN" not in html.split("<script>")[0]
    return page


def point(i):
    kinds = ["round", "square", None]
    return {"x": (i % 11) - 5.0, "lr": 10.0 ** -(i % 6), "layers": 1 + i % 4, "kind": kinds[i % 3]}


def searched(n, reward=lambda i: float(i % 7), direction="maximize", space=SPACE, **options):
    optimizer = LLMOptimizer(space, ScriptedClient([]), direction=direction, **options)
    for i in range(n):
        value = reward(i)
        if value is None:
            optimizer.tell_failure(point(i), f"it broke at {i}")
        else:
            optimizer.tell(point(i), value, feedback=f"seen at {i}")
    return optimizer


def test_the_model_s_thoughts_stand_beside_their_outcome():
    client = ScriptedClient([ANSWER])
    optimizer = LLMOptimizer({"x": Float(-5, 5)}, client, "words", "minimize", warmup=1, seed=0)
    optimizer.tell(optimizer.ask(), 9.0, feedback="it hummed")
    optimizer.tell(optimizer.ask(), 1.0, feedback="it was quiet")
    page = checked(optimizer, title="My search")
    for words in (
        "My search", "small x is good", "the bowl is round", "a smaller x lowers the reward",
        "it hummed", "it was quiet", "8 better than #1", "best is 1 of #2", "the model", "warm-up",
        "best 1",
        "Why the search ended", "requests",
    ):  # fmt: skip
        assert words in page.text, words


@pytest.mark.parametrize(("n", "said"), [(1, "1 point is being"), (2, "2 points are being")])
def test_points_that_are_being_evaluated_are_counted(n, said):
    optimizer = LLMOptimizer({"x": Float(-5, 5)}, ScriptedClient([]), warmup=2)
    optimizer.ask(n)
    assert f"It has not: {said} evaluated." in checked(optimizer).text


@pytest.mark.parametrize("n", [0, 1, 2, 25])
@pytest.mark.parametrize("direction", ["minimize", ["maximize", "minimize"], ["minimize"] * 3])
def test_any_number_of_trials_and_objectives(n, direction):
    several = not isinstance(direction, str)

    def reward(i):
        if i % 5 == 4:
            return None
        return tuple(float((i * k) % 7) for k in range(1, len(direction) + 1)) if several else i

    page = checked(searched(n, reward, direction))
    assert f"{n} trial" in page.text
    if several and n:
        assert "Pareto front" in page.text
        assert "front" in page.ids
    if n == 25:
        assert page.text.count("Reason it broke at") == 5
        assert {"progress", "parameters", "trials", "setup"} <= page.ids


@pytest.mark.parametrize("value", [0.0, 1e300, -1e-300, 5e-324])
def test_equal_and_extreme_rewards(value):
    checked(searched(30, lambda i: value, "minimize"))
    checked(searched(30, lambda i: value if i % 2 else -value))
    checked(searched(30, lambda i: 1.7e308 if i % 2 else -1.7e308))


def test_more_trials_than_a_page_lists_keep_the_best():
    space = {"x": Float(0, 1)}
    optimizer = LLMOptimizer(space, ScriptedClient([]))
    for i in range(1300):
        optimizer.tell({"x": i / 1300}, 1e6 if i == 1234 else float(i % 10))
    page = checked(optimizer)
    assert "of 1,300 trials are listed" in page.text
    assert "t1234" in page.ids
    assert len([name for name in page.ids if re.fullmatch(r"t\d+", name)]) <= 1001
    assert {1234, 7} <= thinned(range(2300), [1234, 7], 100)


def test_hostile_texts_are_texts(tmp_path):
    pytest.importorskip("optuna")
    space = {f"p {HOSTILE[:40]}": Float(0, 1), "kind": Categorical([HOSTILE, "b"])}
    optimizer = LLMOptimizer(
        space, ScriptedClient([]), description=HOSTILE * 3, task={"of": HOSTILE}
    )
    first, second = space
    for i in range(30):
        optimizer.tell({first: i / 30, second: [HOSTILE, "b"][i % 2]}, i, feedback=HOSTILE)
    optimizer.tell_failure({first: 0.999, second: "b"}, HOSTILE)
    optimizer.enqueue({first: 0.5, second: "b"}, HOSTILE)
    optimizer.tell(optimizer.ask(), 3.0, feedback=HOSTILE)
    page = checked(optimizer, title=HOSTILE)
    assert "img" not in page.tags
    assert "<script>alert(1)</script>" in page.text
    assert "\x1b" not in page.text
    assert "{{ 7*7 }}" in page.text


# -- what is read ---------------------------------------------------------------------------


def result_of(tmp_path):
    def f(params):
        return params["x"] ** 2, "heard"

    path = tmp_path / "search.jsonl"
    options = {"warmup": 4, "storage": path, "seed": 0, "progress": False}
    return llmopt.minimize(f, {"x": Float(-5, 5)}, 4, ScriptedClient([]), **options), path


def test_a_storage_file_says_the_same_as_the_search(tmp_path):
    result, path = result_of(tmp_path)
    before = path.read_bytes()
    live, stored = read_search(result), read_search(path)
    assert [t.rewards for t in live.trials] == [t.rewards for t in stored.trials]
    assert live.best.values == stored.best.values
    assert (stored.title, stored.description) == ("search", live.description)
    assert dict(stored.facts)["model"] == dict(live.facts)["model"] == "scripted"
    assert path.read_bytes() == before
    checked(path)
    assert result.report(tmp_path / "r.html") == tmp_path / "r.html"
    assert "heard" in (tmp_path / "r.html").read_text()


def test_a_run_folder_shows_the_other_methods(tmp_path, capsys):
    folder = tmp_path / "run"
    command = "run mountaincar --methods llm cma random --iterations 2 --warmup 2 --episodes 1"
    assert main([*command.split(), "--model", "network", "--no-gif", "--out", str(folder)]) == 0
    page = checked(folder)
    assert "Beside other methods" in page.text
    assert "cma" in page.text
    assert read_search(folder).trials[0].source == "warmup"
    assert set(read_search(folder).rivals) == {"cma", "random"}


def study_of(storage=None, name="tuning", n=40):
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        study_name=name, storage=storage, sampler=optuna.samplers.RandomSampler(seed=0)
    )

    def objective(trial):
        kind = trial.suggest_categorical("kind", ["a", None, 3])
        x = trial.suggest_float("x", 1e-3, 1, log=True)
        deep = trial.suggest_int("deep", 1, 9) if kind == "a" else 0
        for step in range(3):
            trial.report(x + step, step)
        trial.set_user_attr("feedback", f"heard <b>{kind}</b>")
        if trial.number % 7 == 3:
            raise optuna.TrialPruned
        if trial.number % 7 == 5:
            raise ValueError("no")
        return x + deep

    study.optimize(objective, n, catch=ValueError)
    return study


def test_an_optuna_study_has_curves_and_conditional_parameters():
    study = study_of()
    data = read_search(study)
    assert [p.name for p in data.parameters] == ["kind", "x", "deep"]
    assert {t.state for t in data.trials} == {"complete", "pruned", "failed"}
    assert data.best.number == study.best_trial.number
    assert len(data.curves) == 40
    page = checked(data)
    assert "Learning curves" in page.text
    assert f"#{study.best_trial.number}" in page.text
    assert "heard <b>a</b>" in page.text


def test_an_optuna_storage_names_its_studies(tmp_path, capsys):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    study_of(url, n=3)
    for source in (url, str(tmp_path / "study.db")):
        out = tmp_path / "r.html"
        assert main(["report", source, "--out", str(out), "--title", "Mine"]) == 0
        assert "<h1>Mine</h1>" in out.read_text()
    study_of(url, "another", 1)
    assert main(["report", url]) == 2
    assert "holds 2 studies" in capsys.readouterr().err
    assert main(["report", url, "--study", "tuning", "--out", str(tmp_path / "b.html")]) == 0
    assert main(["report", url, "--study", "absent"]) == 2
    assert "no study 'absent'" in capsys.readouterr().err
    assert main(["report", "sqlite:////nowhere/at/all.db"]) == 2


def test_a_database_that_is_not_there_or_another_stays_as_it_is(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("sqlalchemy")
    for url in ("sqlite:///typo.db", "sqlite://"):
        assert main(["report", url]) == 2
        assert "no such file" in capsys.readouterr().err
    with contextlib.closing(sqlite3.connect("other.db")) as other:
        other.execute("CREATE TABLE mine (a)")
        assert main(["report", "sqlite:///other.db"]) == 2
        assert main(["report", "other.db"]) == 2
        assert [name for (name,) in other.execute("SELECT name FROM sqlite_master")] == ["mine"]
    assert [file.name for file in tmp_path.iterdir()] == ["other.db"]


def test_what_is_no_search_is_named(tmp_path, capsys):
    with pytest.raises(TypeError, match="got a list"):
        read_search([])
    with pytest.raises(LLMOptError, match="no such file"):
        read_search(tmp_path / "absent.jsonl")
    with pytest.raises(LLMOptError, match=r"config\.json"):
        read_search(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"event": "odd"}\n')
    assert main(["report", str(tmp_path / "a.jsonl")]) == 2
    assert "does not hold an llmopt run" in capsys.readouterr().err
    _, path = result_of(tmp_path)
    assert main(["report", str(path), str(path)]) == 2
    assert main(["report", str(path), "--markdown", "x.md"]) == 2


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("s.toml", "[space]\nx = {enum = [1]}\n", "s.jsonl (`llmopt ask"),
        ("s.json", '{"space": {"x": {"enum": [1]}}}', "s.jsonl (`llmopt ask"),
        ("s.json", "{\n", "s.json is not valid JSON"),
    ],
)
def test_a_description_is_no_search(tmp_path, capsys, name, text, said):
    (tmp_path / name).write_text(text)
    assert main(["report", str(tmp_path / name)]) == 2
    assert said in capsys.readouterr().err


# -- axes and pictures ----------------------------------------------------------------------


def test_an_axis_of_whole_numbers_has_no_halves():
    (parameter,) = parameters_of(Space({"layers": Int(1, 4)}))
    assert [text for _, text in parameter.scale.ticks(7)] == ["1", "2", "3", "4"]


def test_bad_warm_up_results_do_not_flatten_the_axis():
    core = [-27.2, -27.1, -26.9, -27.0, -27.05]
    scale = robust_scale([-2239.0, -954.0, -4077.0, *core], "maximize", core)
    assert -28 < scale.low < -27.2
    assert scale.high > -26.9
    everything = robust_scale([1.0, 2.0, 3.0, 4.0], "maximize")
    assert everything.low < 1
    assert everything.high > 4
    best = robust_scale([1.0, 1.1, 1.2, 1.3, 1.1, 1.2, 900.0], "maximize")
    assert best.high > 900
    losses = robust_scale([10.0**-k for k in range(8)], "minimize")
    assert losses.log


def test_importance_finds_what_matters(monkeypatch):
    pytest.importorskip("optuna")
    optimizer = LLMOptimizer({"x": Float(-5, 5), "y": Float(-5, 5)}, ScriptedClient([]), warmup=60)
    for _ in range(60):
        params = optimizer.ask()
        optimizer.tell(params, -(params["x"] ** 2))
    found = importance(read_search(optimizer))
    for values in found.values():
        assert list(values) == ["x", "y"]
        assert values["x"] > 3 * values["y"]
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "pip install" in checked(optimizer).text


def test_the_pictures_of_matplotlib(monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    pytest.importorskip("optuna")
    matplotlib.use("Agg")
    optimizer = searched(40, lambda i: -1000.0 if i == 2 else float(i % 7))
    low, high = optimizer.plot_history().get_ylim()
    assert -2 < low < high < 8
    assert len(optimizer.plot_slices().axes) == 4
    with pytest.raises(LLMOptError, match="20"):
        searched(3, float).plot_importance()
    names = [t.get_text() for t in optimizer.plot_importance().get_yticklabels()]
    assert sorted(names) == sorted(SPACE)
    with pytest.raises(LLMOptError, match="plot_history"):
        optimizer.plot_pareto()
    both = searched(20, lambda i: (float(i), float(-i)), ["maximize", "maximize"])
    axes = both.plot_pareto()
    assert "objective 2" in axes.get_ylabel()
    with pytest.raises(LLMOptError, match="plot_pareto"):
        both.plot_history()
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    for draw in (optimizer.plot_slices, optimizer.plot_importance, both.plot_pareto):
        with pytest.raises(ImportError, match="pip install matplotlib"):
            draw()


def test_the_page_says_who_proposed_the_best_and_names_the_objectives():
    page = checked(searched(3, float)).text
    who = "a warm-up point|proposed by the model|given by the user"
    assert re.search(rf"The best is .*, ({who})\.", page)
    assert "proposed by sampled" not in page
    optimizer = LLMOptimizer(
        {"x": Float(0, 1)}, ScriptedClient([]), direction={"cost": "minimize", "gain": "maximize"}
    )
    optimizer.tell({"x": 0.5}, (1.5, 2.5))
    assert "cost: 1.5 gain: 2.5" in checked(optimizer).text


def test_parallel_coordinates_mark_single_values_and_bridge_gaps():
    space = {
        "kind": Categorical(["a", "b"]),
        "a1": Float(0, 1, when={"kind": "a"}),
        "b1": Float(0, 1, when={"kind": "b"}),
        "size": Float(0, 1),
    }
    optimizer = LLMOptimizer(space, ScriptedClient([]), direction="minimize")
    for k in range(4):
        branch = {"kind": "a", "a1": 0.3} if k % 2 else {"kind": "b", "b1": 0.7}
        optimizer.tell({**branch, "size": k / 4}, float(k))
    page = report_page(optimizer)
    bridges = re.findall(r'class="line gap q\d" d="([^"]*)"', page)
    assert sum(path.count("M") for path in bridges) == 4  # one for each trial
    # With b1 between two values that its trials lack, it has a mark of its own.
    runs = charts._runs([(0.0, 0.2), (0.25, None), (0.5, 0.7), (0.75, None), (1.0, 0.1)])
    assert [len(run) for run in runs] == [2, 2, 2]
    assert runs[1][0][0] < 0.5 < runs[1][1][0]


def test_a_front_is_drawn_whole_and_what_is_infeasible_apart():
    optimizer = LLMOptimizer(
        {"x": Float(0.01, 10)}, ScriptedClient([]), direction=["minimize", "minimize"]
    )
    for k in range(17):
        x = 0.01 * 10 ** (3 * k / 16)
        optimizer.tell({"x": x}, (x, 1 / x))
    optimizer.tell({"x": 0.5}, (0.001, 0.001), constraint_violation=2.0)
    data = read_search(optimizer)
    for k in (0, 1):
        scale = data.scale(k)
        assert scale.log
        assert all(scale.low <= t.rewards[k] <= scale.high for t in data.front)
    text = checked(optimizer).text
    assert "no other feasible trial is better" in text
    assert "infeasible, a constraint is violated (1)" in text
    assert re.search(r'class="dot a2 broken" data-t="[^"]*" d="[^"]+"', report_page(optimizer))
    pytest.importorskip("matplotlib").use("Agg")
    axes = optimizer.plot_pareto()
    (low, high), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    for points in axes.collections:
        for x, y in points.get_offsets():
            assert low <= x <= high
            assert bottom <= y <= top


# -- the signs of trials --------------------------------------------------------------------


def beam(**options):
    """A search with a front (trials 0 and 1), an infeasible trial 2, and far results."""
    optimizer = LLMOptimizer(
        {"x": Float(0, 40), "y": Float(0, 1)},
        ScriptedClient([]),
        direction=["minimize", "maximize"],
        **options,
    )
    optimizer.tell({"x": 0, "y": 0.5}, (-1.0, 1.0))
    optimizer.tell({"x": 1, "y": 0.5}, (2.0, 9.0))
    optimizer.tell({"x": 2, "y": 0.5}, (1.5, 3.0), constraint_violation=1.0)
    for k in range(3, 30):
        optimizer.tell({"x": k, "y": 0.5}, (3.0 + k % 5, k % 3))
    for k in (30, 31):
        optimizer.tell({"x": k, "y": 0.5}, (1000.0 * k, 1.0), constraint_violation=k % 2)
    return optimizer


def marks_in(figure, kind):
    """Return the trials that a chart draws with dots of a class."""
    found = re.findall(r'<path class="([^"]*)" data-t="([^"]*)"', figure)
    return {int(n) for name, numbers in found if kind in name.split() for n in numbers.split()}


def test_every_chart_has_the_same_signs():
    data = read_search(beam())
    figures = {
        "progress": charts.history_chart(data, 0)[0],
        "pareto": charts.pareto_chart(data, 0, 1)[0],
        "slice": charts.slice_chart(data, 0, 0),
        "parallel": charts.parallel_chart(data, [0, 1]),
    }
    for name, figure in figures.items():
        assert marks_in(figure, "ring") == {0, 1}, name
        assert (
            marks_in(figure, "broken")
            == marks_in(figure, "hole")
            == {2}
            | (
                {31} if name == "parallel" else set()  # its second objective is within the axis
            )
        ), name
        triangles = re.findall(r'<use href="#(\w+)" class="([^"]*)" data-t="(\d+)"', figure)
        edge = "right" if name == "pareto" else "up"
        assert [(e, int(n), "hollow" in kind) for e, kind, n in triangles] == [
            (edge, 30, False),
            (edge, 31, True),
        ], name


def test_results_beyond_an_axis_are_counted_with_their_range():
    page = checked(beam())
    assert "2 results are beyond the axis of objective 1: 30000 to 31000." in page.text
    assert {"up", "down", "left", "right"} <= page.ids
    one = searched(40, lambda i: -1000.0 if i == 2 else float(i % 7))
    assert "1 result is beyond the axis of reward: \u22121000." in checked(one).text


def test_a_legend_has_the_signs_of_the_search_only():
    def legend(source):
        section = report_page(source).partition('id="progress"')[2].partition("</section>")[0]
        return re.findall(r'<i class="sign (\w+)"', section)

    assert legend(beam()) == ["ring", "broken", "beyond"]
    assert legend(searched(5, lambda i: None if i == 2 else float(i))) == ["ring", "failed"]


def test_rows_of_trials_have_the_signs_of_the_charts():
    html = report_page(beam())
    rows = re.findall(
        r'<details class="([^"]*)" id="t(\d+)".*?<summary>(.*?)</summary>', html, re.S
    )
    signs = {int(n): re.findall(r'class="sign (\w+)"', row) for _, n, row in rows}
    assert {n for n, found in signs.items() if found == ["ring"]} == {0, 1}
    assert {n for n, found in signs.items() if found == ["broken"]} == {2, 31}
    assert {int(n) for kind, n, _ in rows if "infeasible" in kind.split()} == {2, 31}
    assert 'data-show="infeasible"' in html


def test_the_pictures_have_the_signs_of_the_page():
    pytest.importorskip("matplotlib").use("Agg")
    optimizer = beam()
    said = "2 results are beyond the axis of objective 1: 30000 to 31000"
    for figure in (optimizer.plot_pareto().figure, optimizer.plot_slices()):
        (legend,) = [*figure.legends, *(ax.get_legend() for ax in figure.axes if ax.get_legend())]
        texts = {text.get_text() for text in legend.get_texts()} - {"trials"}
        assert texts == {said, "infeasible", "Pareto front"}
    groups = {c.get_label(): c for c in optimizer.plot_pareto().collections}
    assert len(groups["infeasible"].get_offsets()) == 1
    assert len(groups["infeasible"].get_facecolors()) == 0
    assert groups["Pareto front"].get_offsets()[:, 0].tolist() == [-1.0, 2.0]
    axes = searched(40, lambda i: -1000.0 if i == 2 else float(i % 7)).plot_history()
    (beyond,) = [c for c in axes.collections if "beyond" in c.get_label()]
    (tip,) = beyond.get_offsets()
    assert tip[1] == axes.get_ylim()[0]
    shape = beyond.get_paths()[0].vertices  # from its tip upwards, into the frame
    assert shape[:, 1].min() == 0 < shape[:, 1].max()


# -- titles, numbers, ends ------------------------------------------------------------------


def test_a_report_is_called_what_its_search_is(tmp_path):
    space = {"x": Float(0, 1)}
    with LLMOptimizer(space, ScriptedClient([]), storage=tmp_path / "kiln.jsonl") as optimizer:
        optimizer.tell({"x": 0.5}, 1.0)
        assert read_search(optimizer).title == "kiln"
    assert read_search(optimizer).title == read_search(tmp_path / "kiln.jsonl").title == "kiln"
    assert read_search(LLMOptimizer(space, ScriptedClient([]))).title == "Search"
    result, _ = result_of(tmp_path)
    assert read_search(result).title == "search"
    run = tmp_path / "swimmer"
    run.mkdir()
    (run / "config.json").write_text("{}")
    with LLMOptimizer(space, ScriptedClient([]), storage=run / "optimizer.jsonl") as optimizer:
        optimizer.tell({"x": 0.5}, 1.0)
        assert read_search(optimizer).title == read_search(run).title == "swimmer"


def test_a_page_says_from_where_its_numbers_count():
    assert "Trials count from 1 here" in checked(searched(2)).text
    assert "Trials have the numbers of Optuna, from 0." in checked(study_of(n=2)).text


def test_a_point_without_a_result_is_a_row():
    client = ScriptedClient([ANSWER, "Stop: yes\nAnalysis: nothing left to gain"])
    optimizer = LLMOptimizer({"x": Float(-5, 5)}, client, "words", "minimize", warmup=1, seed=0)
    optimizer.tell(optimizer.ask(), 9.0)
    optimizer.ask()
    html = report_page(optimizer)
    (row,) = re.findall(r'<details class="trial unfinished[^"]*" id="t1".*?</details>', html, re.S)
    assert "a smaller x lowers the reward" in row
    assert "No result: the evaluation is running, was killed, or was never reported." in row
    assert "1 no result" in Page(html).text
    assert "#2" not in row


def test_parallel_coordinates_say_that_they_scroll():
    html = report_page(searched(5))
    assert re.search(
        r'<p class="note hint" hidden>Scroll sideways[^<]*</p><div class="scroll">', html
    )


# -- what a first reader missed -------------------------------------------------------------


def words_of(html):
    return Page(html).text


def test_a_search_without_a_feasible_trial_shows_its_results():
    optimizer = LLMOptimizer(
        {"x": Float(0, 1)}, ScriptedClient([]), direction=["minimize", "maximize"]
    )
    for k in range(5):
        optimizer.tell({"x": k / 5}, (1.0 + k, 2.0 * k), constraint_violation=1.0 + k)
    html = report_page(optimizer)
    text = words_of(html)
    assert "No trial is feasible yet." in text
    assert "No trial gave a result" not in text
    assert "new best" not in text
    front = html.partition('id="front"')[2].partition("</section>")[0]
    assert marks_in(front, "broken") == {0, 1, 2, 3, 4}
    assert re.search(r"source points on the front user .*? 5 0 ", text)
    single = LLMOptimizer({"x": Float(0, 1)}, ScriptedClient([]))
    single.tell({"x": 0.5}, 1.0, constraint_violation=1.0)
    text = checked(single).text
    assert "No trial is feasible yet." in text
    assert "least violation" in text
    assert "the best (" not in text


def test_each_objective_has_a_column_in_the_list():
    html = report_page(beam())
    row = re.search(r"<summary><span>#2</span>(.*?)</summary>", html, re.S)[1]
    assert re.findall(r'<span class="value"><i>(.*?): </i>(.*?)</span>', row) == [
        ("objective 1", "2"),
        ("objective 2", "9"),
    ]
    assert 'class="several" style="--k:2"' in html


def test_the_hypervolume_is_drawn_with_its_reference():
    data = read_search(beam())
    figure, note = charts.volume_chart(data)
    assert "The reference is objective 1 3.3e4, objective 2 \u22120.9:" in note
    assert "Of feasible trials only" in note
    assert "hypervolume (larger is better)" in report_page(beam())
    assert "hypervolume" not in report_page(searched(5))
    assert figure.count('class="line best"') == 1


@pytest.mark.parametrize(
    ("directions", "corner"),
    [
        (("minimize", "minimize"), (0.5, 0.9)),
        (("maximize", "maximize"), (0.1, 0.2)),
        (("minimize", "maximize"), (0.5, 0.2)),
        (("maximize", "minimize"), (0.1, 0.9)),
    ],
)
def test_a_front_is_a_staircase_over_what_it_dominates(directions, corner):
    falls = directions[0] == directions[1]  # of such objectives, a better one costs the other
    ends = [(0.1, 0.9), (0.5, 0.2)] if falls else [(0.1, 0.2), (0.5, 0.9)]
    assert charts.stairs(ends, *directions) == [ends[0], corner, ends[1]]
    figure, _ = charts.pareto_chart(read_search(beam()), 0, 1)
    assert figure.partition('class="line front" d="')[2].partition('"')[0].count("L") == 2


def test_a_failed_trial_is_marked_in_the_slices_and_says_why():
    optimizer = searched(8, lambda i: None if i in (2, 5) else float(i))
    data = read_search(optimizer)
    assert marks_in(charts.slice_chart(data, 0), "failed") == {2, 5}
    html = report_page(optimizer)
    legends = html.partition('id="parameters"')[2].partition("</section>")[0]
    assert 'class="sign failed"' in legends
    (row,) = re.findall(r'id="t2".*?<summary>.*?<span class="line">(.*?)</span>', html, re.S)
    assert row.startswith("it broke at 2 – ")


def test_a_value_that_is_no_number_is_a_reason():
    optuna = pytest.importorskip("optuna")
    study = optuna.create_study()
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1) * float("nan"), 1)
    assert "The value was nan" in checked(study).text


def test_a_killed_search_says_how_to_resume(tmp_path):
    file = tmp_path / "oven.jsonl"
    with LLMOptimizer({"x": Float(-5, 5)}, ScriptedClient([]), warmup=4, storage=file) as optimizer:
        optimizer.tell(optimizer.ask(), 1.0)
        optimizer.tell_failure(optimizer.ask(), "no")
        optimizer.ask()
        pages = [checked(optimizer), checked(file)]
    for page in pages:
        assert "1 point is being evaluated, or its process was killed." in page.text
        assert "run the same program again with the same storage" in page.text
        assert "trials 3 1 complete, 1 failed, 1 no result" in page.text
        assert "3 trials of 1 parameter" in page.text
        assert re.search(r"before the first request 3 1 1 ", page.text)  # as many in the table
        assert f"storage file {file}" in page.text


def test_an_unnamed_study_and_its_dead_trial(tmp_path):
    optuna = pytest.importorskip("optuna")
    study = optuna.create_study(storage=f"sqlite:///{tmp_path / 's.db'}")
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), 2)
    study.ask()
    page = checked(study)
    assert read_search(study).title == "Optuna study"
    assert "no-name" not in page.text
    assert "or its process was killed. To resume" in page.text


def test_one_vocabulary_names_the_sources():
    client = ScriptedClient([ANSWER])
    optimizer = LLMOptimizer({"x": Float(-5, 5)}, client, "words", "minimize", warmup=1, seed=0)
    for value in (9.0, 1.0):
        optimizer.tell(optimizer.ask(), value)
    text = checked(optimizer).text
    for name, explained in (("warmup", "warm-up"), ("llm", "the model")):
        assert text.count(f"{name} {explained}") == 1


def test_words_of_the_user_are_not_the_model_s():
    optimizer = LLMOptimizer({"x": Float(-5, 5)}, ScriptedClient([]))
    optimizer.enqueue({"x": 1.0}, "What we use today.")
    optimizer.tell(optimizer.ask(), 1.0)
    text = checked(optimizer).text
    assert "Words of the user What we use today." in text
    assert "Analysis" not in text
    assert "What the model thought" not in text


def test_the_page_says_which_importance_is_left_out():
    pytest.importorskip("optuna")
    text = checked(study_of()).text
    assert "Left out: deep (only some trials have it)." in text
    assert "reward (larger is better)" in checked(searched(3)).text


def test_the_best_so_far_is_not_drawn_while_it_is_beyond_the_axis():
    values = [1000.0, 990.0, *[1.0 + 0.1 * (k % 7) for k in range(20)]]
    optimizer = LLMOptimizer({"x": Float(0, 1)}, ScriptedClient([]), direction="minimize")
    for k, value in enumerate(values):
        optimizer.tell({"x": k / 30}, value)
    data = read_search(optimizer)
    assert data.scale().side(990.0) == 1
    figure, _ = charts.history_chart(data)
    line = figure.partition('class="line best" d="M')[2].partition('"')[0]
    first = charts.trial_axis(data).place(3)
    assert int(line.split()[0]) == first  # trial 3, the first within the axis


@pytest.mark.parametrize(("low", "high"), [(8, 256), (1e-3, 1e-1), (2e-8, 3e-3), (2, 9)])
def test_a_logarithmic_axis_has_three_ticks(low, high):
    assert len(Scale(low, high, log=True).ticks(4)) >= 3


def test_a_constraint_of_a_study_is_named():
    optuna = pytest.importorskip("optuna", minversion="5")
    study = optuna.create_study()
    for memory in (25.4, -1.0):
        trial = study.ask({"x": optuna.distributions.FloatDistribution(0, 1)})
        trial.set_constraint("memory", memory)
        study.tell(trial, 1.0)
    text = checked(study).text
    assert text.count("constraints above 0: memory = 25.4") >= 1
    assert "memory = -1" not in text
