"""The tuning tasks, and the experiment that searches them."""

from __future__ import annotations

import importlib.util
import math

import pytest

from llmopt.benchmarks.engine.cell import Cell

optuna = pytest.importorskip("optuna")
pytest.importorskip("sklearn")

from llmopt.benchmarks.experiments import command, studies  # noqa: E402
from llmopt.benchmarks.tasks.studies import STUDIES  # noqa: E402
from llmopt.client.scripted import ScriptedClient  # noqa: E402
from llmopt.errors import LLMOptError  # noqa: E402


def needs(task):
    for name in STUDIES[task].needs:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


@pytest.mark.parametrize("task", STUDIES)
def test_the_textbooks_setting_is_trained_and_a_seed_repeats_it(task):
    needs(task)
    found = [
        STUDIES[task].train(optuna.trial.FixedTrial(dict(STUDIES[task].default)), seed)
        for seed in (0, 0, 1)
    ]
    assert found[0] == found[1] != found[2]
    assert all(math.isfinite(x) for j in found for x in (j.valid, j.test))
    assert found[0].valid != found[0].test


@pytest.mark.parametrize("method", ["random", "tpe", "network", "anonymous", "default"])
def test_a_study_chooses_by_validation_and_is_judged_by_test(method, monkeypatch):
    answers = llmopt_client()
    monkeypatch.setattr(command, "load", lambda model: answers)
    line = studies.run_cell(Cell.make("brewery", method, 3, 6, "m" * (method == "anonymous")))
    count = 1 if method == "default" else 6
    assert len(line["values"]) == len(line["tests"]) == count
    best = min((v, i) for i, v in enumerate(line["values"]) if v is not None)[1]
    assert studies.judged_after(line, 40) == line["tests"][best]
    assert ("requests" in line) == (method in ("network", "anonymous"))


def test_the_command_runs_what_is_missing_and_prints_its_table(tmp_path, capsys):
    methods = ["--methods", "random", "default"]
    arguments = ["--tasks", "drift", *methods, "--out", str(tmp_path / "s.jsonl")]
    assert studies.EXPERIMENT.main(studies.__doc__, arguments) == 0
    shown = capsys.readouterr()
    assert "| random search | 1 |" in shown.out
    assert "2 cells, 0 of them done" in shown.err
    assert studies.EXPERIMENT.main(studies.__doc__, [*arguments, "--seeds", "0", "1"]) == 0
    assert "4 cells, 2 of them done" in capsys.readouterr().err


def llmopt_client():
    from llmopt import ScriptedClient

    return ScriptedClient(["p1: 0.5, p2: 0.5"] * 50)


def made(method, task, seed, values):
    cell = Cell.make(task, method, seed, len(values))
    line = cell.line(values=values, tests=[v if v is None else v + 1 for v in values])
    return {**line["cell"], **line, "sampler_seconds": 1.0}


def test_a_regret_is_of_the_choice_so_far_and_the_table_shows_it():
    lines = [
        made("random", "drift", 0, [4.0, 3.0, 2.0] + [2.0] * 37),
        made("tpe", "drift", 0, [None] * 10 + [1.0] * 30),
        made("default", "drift", 0, [5.0]),
    ]
    found = studies.regrets(lines)
    assert found["tpe"][10]["drift", 0] == 3.0  # nothing yet
    assert found["tpe"][20]["drift", 0] == 0.0
    assert found["random"][10]["drift", 0] == pytest.approx(1.0)
    assert found["default"][40]["drift", 0] == 3.0
    page = studies.make_table(lines)
    assert "| TPE | 1 | 3.000 | 0.000 | 0.000 |" in page
    assert "drift *" in page


@pytest.mark.defect(83)
def test_plain_words_hold_no_period_no_band_and_no_formula():
    told = {name: task for name, task in STUDIES.items() if task.plain}
    assert set(told) == {name for name, task in STUDIES.items() if not task.known}
    facts = ("17 hours", "1,180", "33 to 37", "ring in the plane", "700 readings", "sin(")
    for given_away in facts:
        assert sum(given_away in task.description for task in told.values()) == 1
        assert not any(given_away in task.plain for task in told.values())
    client = ScriptedClient(lambda request: "no answer", default_prompt="words")
    studies._run(Cell.make("brewery", "plain", 0, 2), client)
    asked = client.requests[0].text
    assert "Batches follow each other" in asked
    assert "17 hours" not in asked
    with pytest.raises(LLMOptError, match=r"wine.*no plain words.*bearing"):
        studies.check([Cell.make("wine", "plain", 0, 2)])


def test_hidden_parameters_say_nothing_and_come_back():
    fixed = optuna.trial.FixedTrial({"p1": 0.5, "p2": "B"})
    hidden = studies.Hidden(fixed, {})
    assert hidden.suggest_float("rate", 1e-4, 1.0, log=True) == pytest.approx(1e-2)
    assert hidden.suggest_categorical("kind", ["relu", "tanh"]) == "tanh"


@pytest.mark.parametrize(
    ("option", "least"), [("--seeds", 0), ("--evaluations", 1), ("--jobs", 1), ("--again", 1)]
)
def test_a_number_that_cannot_be_is_refused_before_anything_is_run(option, least, capsys):
    given = str(least - 1)
    with pytest.raises(SystemExit):
        studies.EXPERIMENT.main("", ["--methods", "random", option, given])
    said = f"{option} {given}: expected a whole number of at least {least}"
    assert said in capsys.readouterr().err


def test_a_method_that_asks_a_model_needs_one(capsys):
    with pytest.raises(SystemExit):
        studies.EXPERIMENT.main("", ["--methods", "words"])
    assert "--model MODEL is missing: words asks one" in capsys.readouterr().err
