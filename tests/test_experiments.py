"""The experiments: their tasks, arms, commands and recordings, and the check of their figures."""

from __future__ import annotations

import functools
import importlib.util
import math
import re
from pathlib import Path

import numpy as np
import pytest

from llmopt import LLMOptError, ReplayClient, ScriptedClient
from llmopt.benchmarks.bench.cells import run_cell as run_policies
from llmopt.benchmarks.engine.cell import Cell
from llmopt.benchmarks.experiments import __main__ as check
from llmopt.benchmarks.experiments import bbob, claims, command, findings, recordings, regret, words
from llmopt.benchmarks.experiments.systems import HeavyMountainCar, TwoZones
from llmopt.benchmarks.tasks.studies import STUDIES

ROOT = Path(__file__).resolve().parents[1]
ARCHIVE = (ROOT / "benchmarks" / "results" / "archive.md").read_text(encoding="utf-8")


# -- the committed figures ------------------------------------------------------------------

questions = functools.cache(findings.questions)


def test_the_check_recomputes_each_figure_of_the_pages(capsys, monkeypatch):
    monkeypatch.setattr(check.findings, "questions", questions)
    assert check.main(["--check"]) == 0
    said = capsys.readouterr().out
    assert said.count("agrees   ") == 3 + len(claims.CLAIMS)
    assert "cannot be made again" in said
    monkeypatch.setattr(check.claims, "CLAIMS", (("README.md", "{}", lambda: [123456]),))
    assert check.main(["--check"]) == 1
    assert "DIFFERS  README.md: 123456" in capsys.readouterr().out


def test_policies_and_hyper_parameters_are_separate_questions():
    for question in questions():
        policies = set(question.scores[question.method]) & set(words.TASKS)
        assert not policies or question.area == "policies"
    assert claims.policies() == (17, 2, 2, 13)


@pytest.mark.parametrize(
    ("name", "package", "run", "trace", "wanted"),
    [
        ("policies", "cma", run_policies, "means",
         {"task": "cartpole", "method": "ars", "seed": 1}),
        ("bbob", "ioh", bbob.run_cell, "steps",
         {"method": "cma", "dimension": 2, "task": "f3", "seed": 1}),
    ],
)  # fmt: skip
def test_a_committed_line_is_still_what_the_code_finds(name, package, run, trace, wanted):
    pytest.importorskip(package)
    lines = findings.lines_of(name)
    line = next(x for x in lines if wanted.items() <= x["cell"].items())
    assert command.agree(line[trace], run(Cell.of(line))[trace])


def test_the_page_for_optunahub_has_the_figures_of_the_studies():
    table = ARCHIVE.partition("## Studies, all tables")[2]
    rows = re.findall(r"^\| (.+?) \|(.+)\|$", table, re.MULTILINE)
    archived = {name: [x.strip() for x in row.split("|")][:4] for name, row in reversed(rows[:30])}
    page = ROOT / "adapters" / "optunahub" / "package" / "samplers" / "llm_sampler" / "README.md"
    shown = re.findall(r"^\| (.+?) \| (\d+) \| ([\d.]+) \| ([\d.]*) *\|$", page.read_text(), re.M)
    labels = ["chat model, words and curves", findings.LLAMBO, "embedded model"]
    labels += ["network, TPE beside it", "TPE", "random search"]
    assert len(shown) == len(labels)
    for (_, count, twenty, forty), label in zip(shown, labels, strict=True):
        assert [count, twenty, forty] == [archived[label][i] for i in (0, 2, 3)]


# -- the command ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "least"), [("--seeds", 0), ("--evaluations", 1), ("--jobs", 1), ("--again", 1)]
)
def test_a_number_out_of_range_is_refused_before_anything_is_run(option, least, capsys):
    with pytest.raises(SystemExit):
        bbob.EXPERIMENT.main("", ["--methods", "random", option, str(least - 1)])
    said = f"{option} {least - 1}: expected a whole number of at least {least}"
    assert said in capsys.readouterr().err


def test_the_command_runs_what_is_missing_and_reruns_what_is_there(tmp_path, capsys):
    pytest.importorskip("ioh")
    options = ["--tasks", "f1", "--methods", "random", "ars", "--dimension", "2"]
    options += ["--evaluations", "5", "--out", str(tmp_path / "r.jsonl"), "--seeds", "1"]
    assert bbob.EXPERIMENT.main("", options) == 0
    assert "2 cells, 0 of them done" in capsys.readouterr().err
    assert bbob.EXPERIMENT.main("", [*options, "2"]) == 0
    assert "2 cells, 0 of them done, 2 to run" in capsys.readouterr().err
    assert bbob.EXPERIMENT.main("", [*options, "--again", "9"]) == 0
    assert capsys.readouterr().out.count("agrees") == 2


@pytest.mark.defect(42)
@pytest.mark.parametrize("script", ["run", "sweeps", "typecheck"])
def test_the_scripts_of_the_gate_call_modules_and_files_that_exist(script):
    text = (ROOT / ".ci" / script).read_text(encoding="utf-8")
    for module in re.findall(r"-m (llmopt[\w.]*)", text):
        assert importlib.util.find_spec(module) is not None, module
    for file in re.findall(r"\btests/[\w./]+\.py", text):
        assert (ROOT / file).is_file(), file


# -- BBOB -------------------------------------------------------------------------------------


def test_a_longer_search_holds_the_shorter_one():
    def cell(method, task, evaluations):
        return Cell.make(task, method, 1, evaluations, dimension=2)

    done = [cell("cma", "f1", 400), cell("cma", "f2", 50), cell("random", "f3", 100)]
    wanted = [cell("cma", task, 100) for task in ("f1", "f2", "f3")]
    lines = [each.line(steps=[]) for each in done]
    assert [c.task for c in bbob.missing_cells(wanted, lines)] == ["f2", "f3"]


def test_an_instance_measures_the_distance_to_its_optimum_and_methods_share_its_warmup():
    pytest.importorskip("ioh")
    for function in (1, 8, 24):
        instance = bbob.Instance(function, 2, 3)
        best = np.array(instance._problem.optimum.x)
        assert instance(best) == pytest.approx(0, abs=1e-9)
        assert instance(best + 0.5) > 1e-3
    methods = ("cma", "columns-network", "cma")
    lines = [bbob.run_cell(Cell.make("f8", m, 1, 20, dimension=2)) for m in methods]
    first = [[step for step in line["steps"] if step[0] <= 20] for line in lines]
    assert first[0] == first[1]
    assert lines[0]["steps"] == lines[2]["steps"] != lines[1]["steps"]


# -- recordings and systems ----------------------------------------------------------------------


def test_every_recording_is_in_the_index_and_can_be_read():
    text = (recordings.FOLDER / "INDEX.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`([a-z]+-[a-z0-9-]+)`", text))
    for search, seeds in re.findall(r"^\| ([a-z-]+) \| ([\d, ]+) \|$", text, re.M):
        listed |= {f"{search}-{seed}" for seed in seeds.split(", ")}
    assert listed == set(recordings.names())
    for name in ("hopper-words-3", "code-reach", "hpo-own-svm-names-0"):
        ReplayClient(recordings.recording(name)).check_ready()
    with pytest.raises(LLMOptError, match="hopper-words-3"):
        recordings.recording("hoper-words-3")


@pytest.mark.parametrize("system", [TwoZones, HeavyMountainCar])
def test_a_system_is_a_function_of_its_seed_and_ends(system):
    returns = []
    for _ in range(2):
        env, total, steps, ended = system(), 0.0, 0, False
        env.reset(seed=3)
        while not ended:
            seen, reward, terminated, truncated, _ = env.step(np.full(env.action_space.shape, 0.4))
            assert np.all(np.isfinite(seen))
            total, steps, ended = total + reward, steps + 1, terminated or truncated
        returns.append((total, steps))
    assert returns[0] == returns[1]


# -- tuning studies ---------------------------------------------------------------------------


def study_parts():
    optuna = pytest.importorskip("optuna")
    pytest.importorskip("sklearn")
    from llmopt.benchmarks.experiments import studies

    return optuna, studies


@pytest.mark.parametrize("task", STUDIES)
def test_the_textbooks_setting_is_trained_and_a_seed_repeats_it(task):
    optuna, _ = study_parts()
    for name in STUDIES[task].needs:
        pytest.importorskip(name)
    setting = optuna.trial.FixedTrial(dict(STUDIES[task].default))
    one, again, other = (STUDIES[task].train(setting, seed) for seed in (0, 0, 1))
    assert one == again != other
    assert all(math.isfinite(x) for x in (one.valid, one.test, other.valid, other.test))


@pytest.mark.parametrize("method", ["random", "tpe", "network-tpe"])
def test_a_study_chooses_by_validation_and_is_judged_by_test(method):
    _, studies = study_parts()
    count = 6
    line = studies.run_cell(Cell.make("brewery", method, 0, count))
    assert len(line["values"]) == len(line["tests"]) == count
    best = min((v, i) for i, v in enumerate(line["values"]) if v is not None)[1]
    assert regret.judged_after(line, 40) == line["tests"][best]
    assert ("requests" in line) == (method == "network-tpe")


def test_plain_words_hold_no_period_no_band_and_no_formula():
    _, studies = study_parts()
    plain = {name: task for name, task in STUDIES.items() if task.plain}
    assert set(plain) == {name for name, task in STUDIES.items() if not task.known}
    for fact in ("17 hours", "1,180", "33 to 37", "ring in the plane", "700 readings", "sin("):
        assert sum(fact in task.description for task in plain.values()) == 1
        assert not any(fact in task.plain for task in plain.values())
    client = ScriptedClient(lambda request: "no answer", default_prompt="words")
    studies.run_study(Cell.make("brewery", "plain", 0, 2), client)
    assert "Batches follow each other" in client.requests[0].text
    assert "17 hours" not in client.requests[0].text
    with pytest.raises(LLMOptError, match=r"wine.*no plain words.*bearing"):
        studies.check([Cell.make("wine", "plain", 0, 2)])


def test_a_regret_is_that_of_the_choice_so_far():
    def line(method, values):
        tests = [v if v is None else v + 1 for v in values]
        return {"task": "t", "seed": 0, "method": method, "values": values, "tests": tests}

    regrets = regret.of_studies(
        [
            line("random", [4.0, 3.0, 2.0] + [2.0] * 37),
            line("tpe", [None] * 10 + [1.0] * 30),
            line("default", [5.0]),
        ]
    )
    assert (regrets["tpe"][10]["t", 0], regrets["tpe"][20]["t", 0]) == (3.0, 0.0)
    assert regrets["random"][10]["t", 0] == pytest.approx(1.0)
    assert regrets["default"][40]["t", 0] == 3.0
