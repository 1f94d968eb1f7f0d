"""The tuning tasks, and the experiment that searches them."""

from __future__ import annotations

import asyncio
import importlib.util
import math
import sys
import types

import pytest

from llmopt.benchmarks.engine.cell import Cell

optuna = pytest.importorskip("optuna")
pytest.importorskip("sklearn")

from llmopt.benchmarks import extras  # noqa: E402
from llmopt.benchmarks.experiments import command, llambo, studies  # noqa: E402
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


@pytest.fixture
def registry(monkeypatch):
    """Stand in for OptunaHub: a package with LLAMBO's seams, which asks for one point a trial."""

    class Interface:
        def ask(self, messages):
            raise AssertionError("a request went to the vendor's server")

    class Acquisition:
        OpenAI_instance = None

    class Judge(Acquisition):
        pass

    class Sampler(optuna.samplers.RandomSampler):
        def __init__(self, description, *, seed, max_requests_per_minute):
            super().__init__(seed)
            self.description = description

        def infer_relative_search_space(self, study, trial):
            return {"x": optuna.distributions.FloatDistribution(0.0, 1.0)}

        def sample_relative(self, study, trial, search_space):
            return self._sample_parameters()

        def _sample_parameters(self):
            for kind in (Acquisition, Judge):
                kind.OpenAI_instance = Interface()
            text, _ = asyncio.run(Acquisition()._async_generate(f"{self.description} Propose."))
            judged = asyncio.run(
                Judge()._async_generate(types.SimpleNamespace(format="{Q}?".format), {"Q": text}, 0)
            )
            try:
                return {"x": float(judged[1].strip("# "))}
            except ValueError as error:
                print(f"Error in LLAMBO.sample_configurations: {error}")
                return {}

    inner = types.SimpleNamespace(
        llm=types.SimpleNamespace(OpenAI_interface=Interface),
        acquisition_function=types.SimpleNamespace(LLM_ACQ=Acquisition),
        generative_sm=types.SimpleNamespace(LLMGenerativeSM=Judge),
    )
    asked = []

    def load_module(name, ref):
        asked.append((name, ref))
        return types.SimpleNamespace(LLAMBOSampler=Sampler, llambo=inner)

    monkeypatch.setitem(sys.modules, "optunahub", types.SimpleNamespace(load_module=load_module))
    return asked


def test_llambo_asks_the_client_and_says_where_it_drew_at_random(registry, monkeypatch):
    answers = ["## x: 0.5 ##", "## 0.25 ##", "## x: 0.1 ##", "no number"]
    client = ScriptedClient(answers)
    monkeypatch.setattr(llambo.metadata, "version", lambda name: "0.9")
    spent = studies.search(
        lambda: llambo.llambo_sampler(client, "A valley.", 3),
        lambda trial: trial.suggest_float("x", 0.0, 1.0),
        2,
    )
    assert registry == [("samplers/llambo", llambo.COMMIT)]
    assert (spent["requests"], spent["proposals"]) == (4, {"llm": 1, "fallback": 1})
    assert [r.messages[0].role for r in client.requests] == ["system"] * 4
    assert client.requests[0].messages[1].content == "A valley. Propose."
    assert client.requests[1].messages[1].content == "## x: 0.5 ##?"
    assert "could not convert" in next(iter(spent["rejected"]))


def test_llambo_says_which_packages_it_needs(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(LLMOptError, match=r"optunahub.*pip install .*llambo"):
        studies.check([Cell.make("brewery", "llambo", 0, 20, "m")])


def test_llambo_refuses_a_version_with_which_it_would_sample_at_random(registry, monkeypatch):
    versions = {"langchain": "0.3.30", "pandas": "3.0.1"}
    monkeypatch.setattr(llambo.metadata, "version", lambda name: versions[name])
    with pytest.raises(LLMOptError, match=r'pandas 3\.0\.1: pip install "pandas<3"'):
        llambo.llambo_sampler(ScriptedClient([]), "", 0)
    assert registry == []
