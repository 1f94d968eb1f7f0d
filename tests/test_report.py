from __future__ import annotations

import html.parser
import json
import math
import re
import shutil
import subprocess

import numpy as np
import pytest
from test_stats import line

from llmopt.benchmarks.report.lines import ReportError
from llmopt.benchmarks.report.markdown import BEGIN, END, between_markers, markdown
from llmopt.benchmarks.report.page import page
from llmopt.benchmarks.report.table import plain_number
from llmopt.cli import main

MODEL = "smollm2 (columns)"
NO_MODEL = "no model (columns, Gaussian)"
VOID = {"meta", "img", "br", "wbr"}


class Reader(html.parser.HTMLParser):
    """Checks that tags are closed in order, and collects what the page holds."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.links, self.sources, self.tables = [], [], [], [], []
        self.text = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        known = dict(attributes)
        self.ids += [known["id"]] if "id" in known else []
        self.links += [known["href"]] if "href" in known else []
        self.sources += [known["src"]] if "src" in known else []
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)
        if (self.open and "td" in self.open) or "th" in self.open:
            self.tables[-1][-1][-1] += data


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    # Drawing takes most of the time, and one test is about it.
    monkeypatch.setattr("llmopt.benchmarks.report.page.comparison", lambda *_: b"\x89PNG\r\n")


def results(tasks=("MountainCarContinuous-v0", "CartPole-v1"), seeds=3):
    rng = np.random.default_rng(0)
    lines = []
    for task in tasks:
        for s in range(seeds):
            for place, method in enumerate(("llm-columns", "columns-gaussian", "cma", "random")):
                model = method == "llm-columns"
                lines.append(
                    line(
                        method,
                        s,
                        heldout=50.0 - 10 * place + s,
                        means=[float(x) for x in rng.normal(0, 30, 12)],
                        task=task,
                        parameters=3,
                        best_params=[0.0, 11.5, 0.0],
                        usage={
                            "requests": 3,
                            "prompt_tokens": 400,
                            "completion_tokens": 30,
                            "cost": 0.0,
                        }
                        if model
                        else None,
                        sources={"llm": 9, "fallback": 1} if model else {},
                        explanations=[[0, "<b>up</b> & away"], [7, "faster"]] if model else [],
                        versions={"numpy": "2.0", "llmopt": "0.1"},
                        cell={"evaluations": 11, "warmup": 1, "heldout": 100},
                    )
                )
    return lines


def test_the_page_holds_every_method_with_its_numbers():
    read = Reader(page(results()))
    overall, first, second = read.tables
    assert [row[0] for row in first[1:]] == [MODEL, NO_MODEL, "CMA-ES", "random search"]
    head = first[0]
    model = dict(zip(head, first[1], strict=True))
    assert model["held-out return"] == "51 [50.5, 51.5]"
    assert (model["requests a run"], model["tokens"]) == ("3", "400 + 30")
    assert (model["cost a run"], model["fallback"]) == ("free", "10.0 %")
    cma = dict(zip(head, first[3], strict=True))
    assert (cma["requests a run"], cma["cost a run"], cma["fallback"]) == ("–", "–", "–")
    assert [row[:2] for row in overall[1:]] == [
        [name, "100 % [–]"] for name in (NO_MODEL, "CMA-ES", "random search")
    ]
    assert len(second) == 5


def test_the_page_needs_nothing_else_and_its_links_lead_somewhere():
    text = page(results(), gif=lambda line: b"GIF89a")
    read = Reader(text)
    assert not re.search(r"https?://(?!www\.w3\.org)", text)
    films = [s for s in read.sources if s.startswith("data:image/gif;base64,R0lGODlh")]
    figures = [s for s in read.sources if s.startswith("data:image/png;base64,iVBO")]
    assert len(films) == 2  # the model's best is the best of all here
    assert len(figures) == len(read.sources) - 2 == 2
    assert set(read.links) == {f"#{i}" for i in read.ids if not i.startswith("clip")}
    assert len(set(read.ids)) == len(read.ids)


def test_a_target_that_half_of_the_seeds_reach():
    lines = results(("CartPole-v1",), seeds=2)
    for one in lines:
        one["means"] = [0.0] * 11 + [480.0 if one["cell"]["seed"] else 0.0]
    table = Reader(page(lines)).tables[0]
    row = dict(zip(table[0], table[1], strict=True))
    assert (row["target reached"], row["evaluations to target"]) == ("1 of 2", "> 12")


# -- Markdown -----------------------------------------------------------------------------


def markdown_tables(text):
    """Each table as a list of rows, each a mapping of the head's names to cells."""
    tables = []
    for block in re.findall(r"(?:^\|.*\n)+", text.replace("\u00a0", " "), flags=re.M):
        head, _, *rows = [r.strip("| ").split(" | ") for r in block.splitlines()]
        tables.append([dict(zip(head, row, strict=True)) for row in rows])
    return tables


def test_the_markdown_shows_losses_too():
    lines = results()
    for one in lines:
        if one["cell"]["method"] == "cma" and one["env_id"] == "CartPole-v1":
            one["heldout"] += 100
    text = markdown(lines, "`x.jsonl`")
    problems, rivals, _ = markdown_tables(text)
    won, lost = problems
    assert (lost["problem"], lost["budget"]) == ("CartPole-v1", "11 × 3")
    assert lost["random search"] == "21.0 [20.5, 21.5]"
    assert lost["CMA-ES"] == "**131 [130, 132]**"
    assert lost[MODEL] == "51.0 [50.5, 51.5]"
    assert won["problem"] == "MountainCarContinuous-v0"
    assert won[MODEL] == "**51.0 [50.5, 51.5]**"
    assert [row[NO_MODEL] for row in problems] == ["41.0 [40.5, 41.5]"] * 2
    assert {row["rival"]: row["pairs won [95 %]"] for row in rivals}["CMA-ES"] == "50 % [–]"
    assert "`x.jsonl`" in text


def test_an_unfinished_grid_says_so_everywhere(tmp_path, capsys):
    lines = results()
    gone = lines.pop(5)
    assert (gone["cell"]["method"], gone["cell"]["seed"]) == ("columns-gaussian", 1)
    said = f"box ±6, 11 evaluations: seed 1 of {NO_MODEL}."
    assert "Unfinished: 1 runs" in markdown(lines)
    assert said in markdown(lines)
    assert markdown_tables(markdown(lines))[0][0]["budget"] == "11 × 2–3"
    assert said in " ".join(Reader(page(lines)).text)
    for one in lines:
        one["cell"].update(box=None, bias=None, model="smollm2")
    raw = tmp_path / "r.jsonl"
    raw.write_text("".join(json.dumps(one) + "\n" for one in lines))
    assert main(["report", str(raw), "--out", str(tmp_path / "r.html"), "--no-gif"]) == 0
    assert said in capsys.readouterr().err
    assert "Unfinished" not in page(results())


def test_the_table_goes_between_its_markers():
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert between_markers(text, "new\n") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    assert between_markers(between_markers(text, "a\n"), "new\n") == between_markers(text, "new\n")
    for broken in ("none", f"{BEGIN} only", f"{END}\n{BEGIN}", text + text):
        with pytest.raises(ReportError, match="each once"):
            between_markers(broken, "new\n")


# -- charts -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.001, "0"),
        (-0.5, "−0.5"),
        (93.126, "93.13"),
        (355.04, "355"),
        (355.06, "355.1"),
        (-12345.6, "−12,346"),
        (100.0, "100"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (math.nan, "–"),
    ],
)
def test_numbers_are_short(value, text):
    assert plain_number(value) == text


def test_a_figure_is_drawn_of_whatever_there_is():
    from llmopt.benchmarks.report.figures import comparison, learning_curve

    curves = {"a <b> $x$": np.linspace([0, 1], [90, 100], 21).T, "far": np.full((2, 21), np.nan)}
    scores = {"a <b> $x$": np.array([1.0, 9.0]), "far": np.array([-np.inf, -1e6])}
    drawn = comparison(curves, scores, {"a <b> $x$": 0}, 5, ["a <b> $x$"])
    assert drawn.startswith(b"\x89PNG")
    assert drawn == comparison(curves, scores, {"a <b> $x$": 0}, 5, ["a <b> $x$"])
    assert comparison({"a": np.zeros((1, 3))}, {"a": np.array([-np.inf])}, {}, 0)
    for label in ("$x$", "\\frac{", "\x1b[2J", "\ud800", "a" * 3000, "_x_"):
        assert comparison({label: np.ones((1, 2))}, {label: np.ones(1)}, {label: 0}, 1, [label])
        assert learning_curve({label: [1.0, -1e308]}, warmup=0, title=label, episodes=1)


@pytest.mark.defect(37)
def test_a_score_far_below_the_others_is_an_arrow_inside_the_chart():
    from llmopt.benchmarks.report.figures import draw_scores, new_figure

    axes = new_figure(4, 4).add_subplot()
    scores = {"a": np.array([0.9, 1.0, 1.1]), "b": np.array([8.0, 9.0]), "c": np.array([-1e6, 1])}
    draw_scores(axes, scores, {})
    low, high = axes.get_xlim()
    assert -100 < low < 0.9 < 9 < high < 20  # one very bad run does not flatten the others
    shown = np.concatenate([line.get_xdata() for line in axes.lines])
    assert low <= shown.min() <= shown.max() <= high
    assert [text.get_text() for text in axes.texts] == [" 1 below"]


@pytest.mark.defect(37)
def test_the_last_column_is_on_a_page_of_1280_pixels(tmp_path):
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no chromium")
    lines = results(("CartPole-v1",))
    for one in lines:
        one["model"] = one["model"] and "openai:some-chat-model"
        one["usage"] = {"requests": 1234, "prompt_tokens": 9_123_456, "completion_tokens": 345_678,
                        "cost": 12.3456}  # fmt: skip
        one |= {"heldout": one["heldout"] - 12_345, "failures": 12, "episodes": 123_456}
        one["seconds"]["proposing"] = 12_345.6
    text = re.sub(r'<meta http-equiv="Content-Security[^>]*>', "", page(lines))
    script = (
        "<script>document.body.dataset.fits = [...document.querySelectorAll('.wide')]"
        ".every(e => e.scrollWidth <= e.clientWidth)</script>"
    )
    path = tmp_path / "page.html"
    path.write_text(text.replace("</body>", f"{script}</body>"))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,900"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert re.search(r'data-fits="(\w+)"', shown.stdout)[1] == "true"


# -- command line -------------------------------------------------------------------------


def test_the_command_line_makes_page_table_and_readme(tmp_path, capsys):
    raw = tmp_path / "r.jsonl"
    command = "bench --tasks mountaincar --methods cma random --seeds 2 --iterations 3"
    command += " --episodes 1 --warmup 2 --heldout 2"
    assert main([*command.split(), "--out", str(raw)]) == 0
    readme = tmp_path / "README.md"
    readme.write_text(f"# x\n{BEGIN}\n{END}\n")
    out, table = tmp_path / "r.html", tmp_path / "t.md"
    capsys.readouterr()
    arguments = ["report", str(raw), "--out", str(out), "--markdown", str(table)]
    assert main([*arguments, "--readme", str(readme)]) == 0
    assert capsys.readouterr().out.split() == [str(out), str(table), str(readme)]
    read = Reader(out.read_text())
    assert [s[:15] for s in read.sources] == ["data:image/png;", "data:image/gif;"]
    assert table.read_text() in readme.read_text()
    assert main([*arguments, "--no-gif"]) == 0
    assert [s[:15] for s in Reader(out.read_text()).sources] == ["data:image/png;"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.jsonl", None, "No such file"),
        ("", None, "not the folder of an llmopt run"),
        ("empty.jsonl", "", "no finished cells"),
        ("other.jsonl", '{"a": 1}\n', "not a benchmark's"),
    ],
)
def test_files_that_hold_no_results(tmp_path, capsys, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    assert main(["report", str(path), "--out", str(tmp_path / "r.html")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()
