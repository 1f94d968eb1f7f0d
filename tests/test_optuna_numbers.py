"""What people read of a study: which trials a model means, and which a killed worker left."""

from __future__ import annotations

import re

import optuna
import pytest
from optuna.trial import TrialState
from test_optuna_feedback import XY, bowl, new, study_of

from llmopt import FallbackWarning, ScriptedClient
from llmopt.adapters.optuna import LLMSampler, asking
from llmopt.from_optuna import for_readers
from llmopt.report_page.page import page as page_of


@pytest.fixture(autouse=True)
def _quiet():
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def make(replies, **options) -> LLMSampler:
    fixed = {"n_startup_trials": 0, "seed": 1, "prompt": "words", "compute": False}
    return LLMSampler(ScriptedClient(replies), **{**fixed, **options})


LESSON = "Analysis: #2 is worse than point #1.\nHypothesis: Beyond #2.\nStart from: #1\n"


def test_people_read_the_numbers_of_the_study_and_prompts_those_of_the_model(monkeypatch):
    logged = []
    monkeypatch.setattr(asking.logger, "info", logged.append)
    stop = "Analysis: #3 is worse than #1.\nStart from: #1\nProposal: stop"
    sampler = make([new(1.5, 1), f"{LESSON}Proposal:\nx: 2.5", stop], may_stop=True)
    study = study_of(sampler)
    study.optimize(bowl, n_trials=9)
    (said,) = [text for text in logged if "ended the search" in text]
    assert "and recommends trial 0: trial 2 is worse than trial 0." in said
    assert "#" not in said
    assert ".. " not in said
    assert said.endswith(" worse than trial 0. The study was stopped.")
    assert "trial 2 is worse" in study.trials[-1].user_attrs["llmopt:explanation"]
    kept = study.trials[2].user_attrs["llmopt:explanation"]
    assert kept.startswith("Analysis: #2 is worse than point #1.")
    assert 'hypothesis: "Beyond #2."' in sampler.client.requests[2].text

    page = page_of(study)
    assert "trial 1 is worse than trial 0." in page
    assert "recommends trial 0: trial 2 is worse" in page
    assert not re.search(r"#\d+ is worse", page)


def test_a_trial_that_runs_shifts_the_points_of_the_prompt():
    sampler = make(["Hypothesis: Beyond #2, as #3.\nStart from: #2\nProposal:\nx: 2.5, y: 1"])
    study = study_of(sampler)
    study.add_trial(optuna.create_trial(state=TrialState.WAITING))
    study._storage.set_trial_state_values(study.trials[1]._trial_id, TrialState.RUNNING)
    study.add_trial(optuna.create_trial(params={"x": 1, "y": 0}, distributions=XY, value=2.0))
    study.tell(study.ask(XY), 1.0)
    page = page_of(study)
    assert "Beyond trial 2, as point 3 of the prompt." in page
    assert "Started from trial 2." in page


def test_a_page_counts_each_call_once_and_each_point_by_who_chose_it():
    study = study_of(make([new(1.5, 1), new(2.5, 2)], max_requests=2, on_error="fallback"))
    study.enqueue_trial({"x": 0.5, "y": 1})
    study.optimize(bowl, n_trials=3)
    retried = study.trials[-1]
    study.enqueue_trial(retried.params, user_attrs=retried.user_attrs)  # as after a lost heartbeat
    with pytest.warns(FallbackWarning, match="from here on"):
        study.optimize(bowl, n_trials=2)
    study.add_trial(optuna.create_trial(state=TrialState.RUNNING))  # the model thinks
    page = page_of(study).partition('id="usage"')[2]
    rows = dict(re.findall("<tr><td>([^<]*)</td><td>([^<]*)</td></tr>", page))
    calls = study._storage.get_study_system_attrs(study._study_id)
    tokens = sum(v.get("prompt_tokens", 0) for k, v in calls.items() if "call:" in k)
    assert rows["requests"] == "2"
    assert rows.get("prompt tokens", "0") == f"{tokens:,}"
    assert rows["the user"] == "1"
    assert rows["the model"] == "3"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("As #1, #02 and point #3's.", "As trial 0, trial 1 and trial 2's."),
        ("#4.", "trial 9."),
        ("#5 follows", "point 5 of the prompt follows"),
        ("#0", "point 0 of the prompt"),
        ("a page#1, &#39;, C#2, #1.5, #123456, ##1", ...),
    ],
)
def test_what_is_a_number_of_a_point(words, shown):
    named = {"4": 9, "5": None}
    assert for_readers(words, named) == (words if shown is ... else shown)


def test_a_report_lists_a_trial_without_a_result_after_the_model_ended_the_study():
    study = study_of(make([new(1.5, 1), "Analysis: enough\nProposal: stop"], may_stop=True))
    study.optimize(bowl, n_trials=1)
    left = len(study.trials)  # the number of the next one, whose worker is killed
    study.add_trial(optuna.trial.create_trial(state=TrialState.RUNNING))
    study.optimize(bowl, n_trials=5)
    page = page_of(study)
    assert "ended the search: enough" in page
    row = page.partition(f'id="t{left}"')[2].partition("</details>")[0]
    assert "no result" in row
    assert "Running since 20" in row
    assert f"<b>trial {left}</b>" in row
