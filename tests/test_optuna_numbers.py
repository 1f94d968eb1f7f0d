"""What people read of a study: which trials a model means, and which a killed worker left."""

from __future__ import annotations

import re

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState
from test_optuna_feedback import XY, bowl, new, study_of

from llmopt import ClientError, FallbackWarning, ScriptedClient
from llmopt.adapters.optuna import LLMSampler, asking
from llmopt.from_optuna import for_readers
from llmopt.model_calls import Scope
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


def test_the_page_of_a_study_has_its_setup_task_and_unused_answers():
    sampler = make([new(1.5, 1), "no point", new(2.5, 1)], description="the cost of a bowl")
    study = study_of(sampler)
    study.optimize(bowl, n_trials=2)
    page = page_of(study)
    for text in ("the cost of a bowl", "unreadable", "<td>scripted</td>", "<td>words</td>"):
        assert text in page
    assert "<tr><td>seed</td><td>1</td></tr>" in page
    assert "the cost of a bowl" in sampler.client.requests[0].text
    assert "llmopt:about" not in sampler.client.requests[1].text


def test_a_trial_that_ended_before_its_first_suggestion_shows_its_proposal_or_nobody():
    study = study_of(make([new(1.5, 1)]))
    study.optimize(bowl, n_trials=1)
    fallback = {"llmopt:source": "fallback"}
    point = {"llmopt:proposal": {"x": 2.25, "y": 7.0}}
    for system, user in ((point, {"llmopt:source": "llm"}), ({}, fallback)):
        study.add_trial(
            optuna.create_trial(state=TrialState.FAIL, system_attrs=system, user_attrs=user)
        )
    rows = [r.partition("</details>")[0] for r in page_of(study).split('id="t')[1:]]
    assert "2.25" in rows[-2]
    assert "the model" in rows[-2]
    assert not re.search("the model|random|2.25", rows[-1])


def test_a_request_that_fails_within_a_trial_leaves_the_model_its_part():
    def objective(trial):
        kind, _ = trial.suggest_categorical("kind", ["a", "b"]), trial.suggest_float("q", 0, 1)
        branch = kind == "a" or trial.number == 2  # which the model cannot know
        return trial.suggest_float("p", 0, 1) if branch else 1.0

    model = ScriptedClient(["kind: b, q: 0.7", ClientError("down")])
    study = optuna.create_study(
        sampler=LLMSampler(model, n_startup_trials=0, on_error="raise", compute=False)
    )
    kinds = {"kind": CategoricalDistribution(["a", "b"]), "q": FloatDistribution(0, 1)}
    both = {**kinds, "p": FloatDistribution(0, 1)}
    for params, own in (({"kind": "a", "q": 0, "p": 1}, both), ({"kind": "b", "q": 0}, kinds)):
        study.add_trial(optuna.create_trial(value=1.0, params=params, distributions=own))
    study.optimize(objective, n_trials=1, catch=ClientError)
    assert len(model.requests) == 2
    assert study.trials[2].params == {"kind": "b", "q": 0.7}
    assert study.trials[2].user_attrs["llmopt:source"] == "llm"


def test_an_ask_has_what_all_workers_of_the_study_leave_of_the_requests():
    first, second = make([new(1.5, 1), new(2.5, 1)]), make([new(3.5, 1)], max_requests=5)
    study = study_of(first)
    study.optimize(bowl, n_trials=2)
    model = second._model(study)
    assert Scope(model, model.journal.state).requests_left == 3
