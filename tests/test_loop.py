"""A search in one call."""

from __future__ import annotations

import importlib
import json
import re

import numpy as np
import pytest
from gymnasium import spaces
from search_contract import Recorder

import llmopt
from llmopt import (
    Evaluation,
    Float,
    Int,
    LLMOptimizer,
    ScriptedClient,
    Usage,
    maximize,
    minimize,
    point_task,
)
from llmopt.caps import Limits
from llmopt.client import ReplayClient
from llmopt.code import CodeOptimizer
from llmopt.errors import (
    BudgetExceededError,
    ClientError,
    MissingKeyError,
    NoTrialsError,
    RewardError,
    SearchStopped,
    StorageError,
    TemplateError,
)
from llmopt.policies import PolicySearch

SPACE = {"x": Float(-5, 5), "k": Int(1, 9)}


def reply(x, k=3):
    return json.dumps({"x": x, "k": k})


def bowl(params):
    return (params["x"] - 1) ** 2 + abs(params["k"] - 3)


def scripted(*xs):
    return ScriptedClient([reply(x) for x in xs])


def test_minimize_finds_the_smallest_and_says_what_it_cost():
    result = minimize(bowl, SPACE, 10, scripted(0.5, 1, 2, 3, 4), seed=0, prompt="props")
    assert len(result.trials) == 10
    assert result.best.params == {"x": 1.0, "k": 3}
    assert result.best.reward == 0
    assert result.usage.proposals == {"warmup": 5, "llm": 5}
    assert result.stopped == ""
    assert "best 0.0 at {'x': 1.0, 'k': 3}" in repr(result)


@pytest.mark.parametrize(
    ("options", "drawn"),
    [
        ({}, 10),
        ({"total": 100}, 10),
        ({"total": 60}, 6),
        ({"total": 30}, 5),
        ({"total": 6}, 3),
        ({"total": 1}, 1),
        ({"description": "a bowl"}, 10),
        ({"prompt": "words"}, 1),
        ({"prompt": "words", "total": 100}, 1),
        ({"prompt": "words", "description": "a bowl"}, 0),
        ({"prompt": "words", "warmup": 3}, 3),
    ],
)
def test_the_warm_up_fits_what_the_model_reads(options, drawn):
    optimizer = LLMOptimizer(SPACE, scripted(1), seed=0, **{"prompt": "props", **options})
    optimizer.ask(drawn + 1)
    assert optimizer.usage.proposals.get("warmup", 0) == drawn
    with pytest.raises(ValueError, match="expected a whole number, 'auto', or a sequence"):
        LLMOptimizer(SPACE, scripted(1), warmup="none")


def test_words_reach_the_model():
    client = scripted(1.0, 2.0)
    space = {"x": Float(-5, 5), "k": Int(3, 3)}
    minimize(lambda p: (p["x"], "it rattled"), space, 2, client, warmup=0, description="a machine")
    assert "it rattled" in str(client.requests[1].messages)
    assert "a machine" in str(client.requests[0].messages)
    assert "of 2" in str(client.requests[0].messages)  # the budget is told


def test_scores_of_folds_are_compared_in_pairs():
    folds = np.array([0.0, 5.0, 1.0, 9.0])

    def f(point):
        scores = folds + point["x"] + np.array([0.0, 0.01, 0.0, -0.01])
        return Evaluation(scores.mean(), samples=scores)

    script = [f"Hypothesis: h.\nStart from: new\nProposal:\nx: {x}" for x in (0.5, 0.25, 0.75)]
    client = ScriptedClient(script)
    result = minimize(f, {"x": Float(0, 1)}, 3, client, prompt="words", warmup=0, points=1)
    assert len(result.trials[0].samples) == 4
    assert result.trials[0].stderr > 1  # the folds differ more than the points
    assert "draw by draw" in client.requests[-1].text
    assert "-0.25" in client.requests[-1].text
    with pytest.raises(RewardError, match="samples="):
        minimize(lambda p: Evaluation(1.0, samples=3), {"x": Float(0, 1)}, 1, warmup=1)


def test_the_form_of_the_space_is_kept_and_the_function_may_change_its_copy():
    seen = []

    def f(x):
        assert isinstance(x, np.ndarray)
        seen.append(x.copy())
        x[:] = 0
        return float(np.sum(seen[-1]))

    result = maximize(f, spaces.Box(-1, 1, (2,), dtype=np.float32), 3, ScriptedClient([]), seed=1)
    assert [list(t.params) for t in result.trials] == [list(x) for x in seen]


def test_a_caught_exception_is_a_failed_evaluation():
    def f(params):
        if params["x"] == 1:
            raise ZeroDivisionError("no mass")
        return params["x"]

    result = minimize(f, SPACE, 2, scripted(1, 2), warmup=0, prompt="props", catch=ArithmeticError)
    assert [t.state for t in result.trials] == ["failed", "complete"]
    assert result.trials[0].feedback == "ZeroDivisionError: no mass"
    with pytest.raises(ZeroDivisionError):
        minimize(f, SPACE, 2, scripted(1, 2), warmup=0, prompt="props")


@pytest.mark.parametrize("options", [{}, {"finalists": 1}, {"n_jobs": 2}])
def test_a_callback_sees_each_trial_and_may_end_the_search(options):
    ending = Recorder(at=1, error=SearchStopped)
    result = minimize(bowl, SPACE, 15, ScriptedClient([]), warmup=7, callbacks=[ending], **options)
    assert ending.seen[:2] == [0, 1]
    assert len(result.trials) == len(ending.seen) <= 3
    assert result.stopped == "enough"
    assert "enough" in repr(result)


def test_a_model_that_fails_ends_the_search_loudly_with_what_was_found():
    client = ScriptedClient([reply(1.0), ClientError("the line is dead")])
    with pytest.warns(RuntimeWarning, match="after 1 of 4 trials.*the line is dead") as caught:
        result = minimize(bowl, SPACE, 4, client, warmup=0, prompt="props")
    assert caught[0].filename == __file__
    assert result.best.reward == 0
    assert "the line is dead" in result.stopped


def test_a_search_goes_on_from_its_storage_for_longer(tmp_path, capsys):
    options = {"storage": tmp_path / "s.jsonl", "warmup": 0, "prompt": "props", "seed": 0}
    evaluated = []

    def dies(params):
        evaluated.append(params["x"])
        if len(evaluated) == 2:
            raise KeyboardInterrupt
        return bowl(params)

    result = minimize(dies, SPACE, 3, scripted(3, 2), **options)
    assert (len(result.trials), result.stopped) == (1, "interrupted by Ctrl-C")
    assert result.left == {"evaluations": 2}
    assert str(tmp_path / "s.jsonl") in capsys.readouterr().err
    result = minimize(dies, SPACE, 4, scripted(1, 0), **options)
    assert evaluated == [3, 2, 2, 1, 0]  # the point that was cut off is evaluated first
    assert result.best.params["x"] == 1
    again = minimize(dies, SPACE, 4, scripted(), **options)
    assert len(evaluated) == 5
    assert again.best.reward == result.best.reward
    with pytest.raises(StorageError, match="directions"):
        maximize(dies, SPACE, 4, scripted(), **options)


def test_a_longer_search_keeps_the_warm_up_that_it_began_with(tmp_path):
    options = {"client": "network", "storage": tmp_path / "s.jsonl", "seed": 0}
    for trials in (5, 40):
        result = minimize(bowl, SPACE, trials, **options)
        assert result.usage.proposals["warmup"] == 2
    with pytest.raises(StorageError, match=r"warmup \(there 2, now 7\)"):
        minimize(bowl, SPACE, 50, warmup=7, **options)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_requests": 0}, BudgetExceededError),
        ({"max_tokens": 0}, BudgetExceededError),
        ({"max_cost": 0}, BudgetExceededError),
        ({"prompt": "props-plus"}, TemplateError),
        ({"model": "an empty recording"}, ClientError),
    ],
)
def test_what_is_sure_to_fail_fails_before_the_first_evaluation(options, error, tmp_path):
    evaluated = []
    (tmp_path / "empty.jsonl").write_text("")
    if "model" in options:
        options = {"model": ReplayClient(tmp_path / "empty.jsonl"), "prompt": "props"}
    options = {"model": scripted(1), **options}
    with pytest.raises(error):
        minimize(evaluated.append, SPACE, 9, **options)
    assert not evaluated
    assert not getattr(options["model"], "requests", None)


@pytest.mark.embedded
def test_without_a_model_the_embedded_one_is_asked(embedded_client):
    result = minimize(bowl, SPACE, 6, seed=0, warmup=5)
    assert result.usage.proposals["llm"] > 0
    assert llmopt.minimize is minimize


CLIENTS = {
    "optuna": lambda adapter, **model: adapter.LLMSampler(**model).client,
    "nevergrad": lambda adapter, **model: adapter.ParametrizedLLM(**model)(2, 10)._model.client,
    "code": lambda _, **model: CodeOptimizer("f(x)", **model).client,
    "policies": lambda _, **model: PolicySearch("CartPole-v1", **model).optimizer.client,
    "optimizer": lambda _, **model: LLMOptimizer(SPACE, **model).client,
}


@pytest.mark.parametrize("entry", CLIENTS)
def test_the_model_has_both_names_everywhere(entry):
    adapter, client = None, ScriptedClient([])
    if entry in ("optuna", "nevergrad"):
        pytest.importorskip(entry)
        adapter = importlib.import_module(f"llmopt.adapters.{entry}")
    assert CLIENTS[entry](adapter, model=client) is client
    assert CLIENTS[entry](adapter, client=client) is client
    with pytest.raises(TypeError, match="two names of one argument"):
        CLIENTS[entry](adapter, client=client, model=client)


def test_a_fallback_is_announced_at_the_callers_line():
    options = {"warmup": 0, "prompt": "props", "max_fallbacks": None}
    with pytest.warns(llmopt.FallbackWarning) as caught:
        minimize(bowl, SPACE, 1, ScriptedClient(["?"] * 3), **options)
    assert caught[0].filename == __file__


_IDS = ("2762dbbb", "0c1e77a94f", "4f6e1c1e-99aa-4c3d-8e2f-0123456789ab")
_NOTICES = [f"come back tomorrow (17:0{n}:59, id {name})" for n, name in enumerate(_IDS)]


@pytest.mark.parametrize("notices", [["come back tomorrow"] * 9, _NOTICES * 3])
def test_a_text_that_a_model_repeats_ends_a_search_before_a_random_point(notices, tmp_path):
    model = ScriptedClient(["x: 1", "?", "x: 2", *notices])
    options = {"warmup": 0, "prompt": "props", "storage": tmp_path / "s.jsonl"}
    with pytest.warns(RuntimeWarning, match="come back tomorrow.*Run the same again"):
        result = minimize(lambda p: p["x"], {"x": Float(-5, 5)}, 9, model, **options)
    assert [t.source for t in result.trials] == ["llm", "llm"]
    assert len(model.requests) == 6
    assert "repeats what cannot be read" in result.stopped


def test_the_warnings_of_random_points_count_them():
    model = ScriptedClient([f"hm {number}" for number in range(9)])
    options = {"warmup": 0, "prompt": "props", "max_fallbacks": None}
    with pytest.warns(llmopt.FallbackWarning) as caught:
        minimize(lambda p: p["x"], {"x": Float(-5, 5)}, 3, model, **options)
    assert [re.search(r"(\d) so far", str(w.message))[1] for w in caught] == ["1", "2", "3"]


def test_a_result_says_how_many_evaluations_failed():
    scores = iter([1.0, None, 0.5, None])
    result = minimize(lambda p: next(scores), SPACE, 4, ScriptedClient([]), warmup=4, seed=0)
    assert repr(result).startswith("SearchResult(4 trials, 2 failed, best 0.5 at ")
    result = minimize(lambda p: 1.0, SPACE, 2, ScriptedClient([]), warmup=2, seed=0)
    assert repr(result).startswith("SearchResult(2 trials, best 1.0 at ")


@pytest.mark.parametrize("stored", [False, True])
def test_a_function_that_always_raises_ends_the_search_with_the_reason(stored, tmp_path):
    def broken(params):
        raise OSError("no such rig")

    options = {"storage": tmp_path / "s.jsonl"} if stored else {}
    with pytest.raises(RewardError, match=r"broken: none of 5 .*OSError: no such rig") as caught:
        minimize(broken, SPACE, 20, ScriptedClient([]), catch=OSError, **options)
    assert "Fix the cause of the OSError in the function" in str(caught.value)
    assert "return" not in str(caught.value)
    assert (str(tmp_path / "s.jsonl") in str(caught.value)) == stored


def test_a_stored_search_checks_the_model_before_the_point_that_was_cut_off(tmp_path):
    class Gone(ScriptedClient):
        def check_ready(self):
            raise MissingKeyError("no key")

    def dies(params):
        raise KeyboardInterrupt

    evaluated = []
    minimize(dies, SPACE, 4, ScriptedClient([]), storage=tmp_path / "s.jsonl", seed=1)
    with pytest.raises(MissingKeyError):
        minimize(evaluated.append, SPACE, 4, Gone([]), storage=tmp_path / "s.jsonl", seed=1)
    assert not evaluated


def test_a_resumed_search_says_where_it_goes_on(tmp_path, capsys):
    options = {"storage": tmp_path / "s.jsonl", "seed": 1, "warmup": 6}
    minimize(bowl, SPACE, 2, ScriptedClient([]), **options)
    assert "going on" not in capsys.readouterr().err
    result = minimize(bowl, SPACE, 3, ScriptedClient([]), **options)
    best = min(t.reward for t in result.trials[:2])
    said = capsys.readouterr().err
    assert all(part in said for part in (str(tmp_path / "s.jsonl"), "2 of 3", str(best)))
    minimize(bowl, SPACE, 4, ScriptedClient([]), progress=False, **options)
    assert capsys.readouterr().err == ""
    assert len(result.trials_dataframe()) == 3


def test_a_description_that_is_not_read_gets_a_word_once(caplog):
    point_task._warned.clear()
    client = ScriptedClient([])
    client.columns = True
    for description in ("", "find the bottom of the bowl", "find it"):
        LLMOptimizer(SPACE, client, "columns", description=description)
    (said,) = [r.message for r in caplog.records]
    assert "'columns' asks for numbers alone: the model reads no description" in said


@pytest.mark.parametrize("low", [0, -1])
def test_a_best_point_on_the_edge_is_named_so(low):
    client, start = ScriptedClient([]), [{"x": 0.0}]
    result = minimize(lambda p: p["x"], {"x": Float(low, 1)}, 1, client, start=start)
    assert ("x = 0.00, the lowest value allowed" in repr(result)) == (low == 0)
    assert ("allowed" in repr(result)) == (low == 0)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_seconds", "timeout"),
        ("time_limit", "timeout"),
        ("max_duration", "timeout"),
        ("evaluation_time_out", "evaluation_timeout"),
        ("max_request", "max_requests"),
    ],
)
def test_a_misspelt_limit_is_named_with_what_was_meant(name, meant):
    with pytest.raises(TypeError, match=f"no argument '{name}'; did you mean '{meant}'"):
        minimize(bowl, SPACE, 3, ScriptedClient([]), **{name: 10})


def test_without_a_trial_the_best_one_is_missed_for_the_reason_that_ended_the_search():
    client = ScriptedClient(["no idea"] * 9)
    result = minimize(bowl, SPACE, 20, client, max_requests=2, warmup=0, prompt="props")
    with pytest.raises(NoTrialsError, match=r"before the first one: 2 requests .* raise the cap"):
        _ = result.best


@pytest.mark.parametrize(
    ("limits", "spent", "most", "raised"),
    [
        ({"max_requests": 10}, {"requests": 10}, None, ("max_requests", 20)),
        ({"max_requests": 3}, {"requests": 10}, None, ("max_requests", 22)),  # lowered since
        ({"max_tokens": 3000}, {"prompt_tokens": 3021}, None, ("max_tokens", 6000)),
        ({"max_cost": 0.1}, {"cost": 0.09}, 0.02, ("max_cost", 0.2)),
        ({"max_cost": 0.001}, {"cost": 0.0}, 0.0314159, ("max_cost", 0.0628)),
        ({"max_cost": 1.0}, {"cost": 0.5, "unpriced": 1}, 0.1, None),  # no higher cap helps
    ],
)
def test_an_error_of_a_cap_holds_a_value_with_which_the_search_continues(
    limits, spent, most, raised
):
    with pytest.raises(BudgetExceededError) as caught:
        Limits(**limits).check(Usage(**spent), most)
    assert caught.value.raised == raised
    if raised is not None:
        assert type(raised[1]) is type(caught.value.raised[1])
        Limits(**dict([raised])).check(Usage(**spent), most)


@pytest.mark.parametrize("n_jobs", [1, 2, 4])
@pytest.mark.parametrize("left", ["cap", "none"])
def test_the_points_of_a_request_that_a_cap_cut_short_are_evaluated(n_jobs, left, tmp_path):
    made = {"seed": 0, "warmup": 6, "prompt": "props", "batch_size": 4, "n_jobs": n_jobs}
    made |= {"max_requests": 3, "storage": tmp_path / "s.jsonl"}
    n_trials = 24 if left == "cap" else 9
    result = minimize(bowl, SPACE, n_trials, scripted(1.5, 2.5, 3.5), **made)
    assert (len(result.trials), result.usage.requests) == (9, 3)
    assert result.usage.proposals == {"warmup": 6, "llm": 3}
    assert ("raise the cap" in result.stopped) == (left == "cap")
    assert not result.optimizer.queued
    again = minimize(bowl, SPACE, n_trials, scripted(), **made)  # the same cap: nothing is left
    assert (len(again.trials), again.stopped) == (9, result.stopped)


def test_a_policy_search_evaluates_the_points_of_a_request_that_a_cap_cut_short():
    search = PolicySearch("CartPole-v1", "network", batch_size=4, max_requests=3, warmup=2)
    search.run(24)
    assert "raise the cap" in search.stopped
    counts = search.optimizer.usage.proposals
    assert counts["llm"] == 3
    assert len(search.optimizer.trials) == sum(counts.values())
    assert not search.optimizer.queued


def word(x):
    return f"Analysis: steep.\nHypothesis: it falls.\nStart from: new\nProposal: x: {x}, k: 3"


STOP = "Analysis: it is flat here.\nStart from: #1\nProposal: stop"


def test_the_model_may_end_a_whole_search_and_the_result_says_what_is_left():
    made = {"warmup": 0, "prompt": "words", "description": "a bowl"}
    client = ScriptedClient([word(1.5), STOP])
    result = minimize(bowl, SPACE, 20, client, max_requests=9, max_tokens=10**6, **made)
    assert "it is flat here" in result.stopped
    tokens = result.usage.prompt_tokens + result.usage.completion_tokens
    assert result.left == {"evaluations": 19, "requests": 7, "tokens": 10**6 - tokens}
    assert "stopped: scripted expects no further gain" in repr(result)
    assert "left: 19 evaluations, left: 7 requests" in repr(result)
    result = minimize(bowl, SPACE, 1, ScriptedClient([word(1.5)]), may_stop=False, **made)
    assert (result.left, result.stopped) == ({"evaluations": 0}, "")
    assert "left" not in repr(result)


class Noisy:
    """A function whose first measurement of x = 2 is the best of all, by luck."""

    def __init__(self):
        self.calls = []

    def __call__(self, params):
        x = params["x"]
        self.calls.append(x)
        lucky = x == 2.0 and self.calls.count(x) == 1
        return -1.0 if lucky else (x - 1) ** 2 + 0.1 * (len(self.calls) % 2)


XS = [2.0, 0.9, *[round(3.0 + 0.1 * k, 1) for k in range(20)]]
LINE = {"x": Float(-5, 5), "k": Int(3, 3)}


def test_the_best_few_of_a_noisy_search_are_measured_again_within_its_evaluations():
    f = Noisy()
    result = minimize(f, LINE, 20, scripted(*XS), warmup=0, noisy=True, prompt="props")
    assert f.calls == [*XS[:16], 2.0, 0.9, 2.0, 0.9]
    finals = [t for t in result.trials if t.kind == "finalist"]
    assert [t.source for t in finals] == ["llm"] * result.finals == ["llm"] * 4
    assert (result.best.params["x"], result.best.evaluations) == (0.9, 3)
    assert result.optimizer.recommend() == result.best.params
    assert "finals: 4 evaluations measured the best points again" in repr(result)


@pytest.mark.parametrize(
    ("options", "finals"),
    [
        ({}, 0),  # nothing is noisy
        ({"noisy": True, "finalists": None}, 0),
        ({"noisy": True, "finalists": 0}, 0),
        ({"noisy": True, "finalists": 1}, 2),
        ({"finalists": 3}, 6),
    ],
)
def test_when_finalists_are_measured_again(options, finals):
    made = {"warmup": 0, "prompt": "props"}
    result = minimize(Noisy(), LINE, 20, scripted(*XS), **made, **options)
    assert len(result.trials) == 20
    assert result.finals == sum(t.kind == "finalist" for t in result.trials) == finals
    assert result.usage.proposals == {"llm": 20 - finals}


@pytest.mark.parametrize("own", [False, True], ids=["minimize", "ask and tell"])
def test_the_prompt_counts_a_repeated_point_of_a_noisy_search_once(own):
    made = {"warmup": 0, "prompt": "words", "noisy": True, "compute": False, "points": 1}
    new = "Hypothesis: h\nStart from: new\nProposal: x: {}, k: 3"
    again = "Hypothesis: h\nStart from: #1\nProposal: x: 2"
    client = ScriptedClient([new.format(2), again, again, new.format(1), new.format(3)])
    if own:
        optimizer = LLMOptimizer(LINE, client, direction="minimize", total=5, **made)
        for _ in range(5):
            point = optimizer.ask()
            optimizer.tell(point, point["x"] ** 2)
    else:
        minimize(lambda p: p["x"] ** 2, LINE, 7, client, finalists=1, **made)
    planned = [re.findall(r"propose (#\d+) of at most (\d+)", r.text)[0] for r in client.requests]
    assert planned == [("#1", "5"), ("#2", "5"), ("#2", "4"), ("#2", "3"), ("#3", "3")]


def test_a_plan_may_be_exceeded_with_a_warning_and_no_prompt_counts_beyond_it():
    client = ScriptedClient([f"Hypothesis: h\nProposal: x: {n}, k: 3" for n in (-1, 0, 1, 2)])
    made = {"warmup": 0, "prompt": "words", "total": 2, "points": 1}
    rows = [{"x": 3, "k": 3, "reward": 1.0}]
    with LLMOptimizer(LINE, client, direction="minimize", import_trials=rows, **made) as search:
        with pytest.warns(UserWarning, match="asked for 3 points, and 2 of the planned 2 are left"):
            search.ask(3)
        with pytest.warns(UserWarning, match="for 1 point, and 0 of the planned 2 are left: raise"):
            search.ask()
    texts = [request.messages[-1].content for request in client.requests]
    counts = re.findall(r"You propose ([^.]*)\.", "\n".join(texts))
    assert counts == ["#2 of at most 3", "#3 of at most 3", "#4", "#5"]
    assert ["1 of the 3 points" in text for text in texts] == [True, True, False, False]


def test_finalists_are_measured_where_the_model_ends_a_noisy_search():
    made = {"warmup": 0, "prompt": "words", "noisy": True}
    f = Noisy()
    result = minimize(f, LINE, 20, ScriptedClient([word(2.0), word(0.9), STOP]), **made)
    assert f.calls == [2.0, 0.9, 2.0, 0.9, 2.0, 0.9]
    assert result.left == {"evaluations": 14}
    assert "ended the search" in result.stopped
    assert result.best.params["x"] == 0.9


def test_a_value_that_cannot_be_shown_is_named_by_its_class():
    class Shy:
        def __repr__(self):
            raise RuntimeError("not today")

    with pytest.raises(TypeError, match="f=<Shy>"):
        minimize(Shy(), {"x": Float(0, 1)}, n_trials=1)
    with pytest.raises(TypeError, match="model is <Shy>"):
        LLMOptimizer({"x": Float(0, 1)}, Shy())


def test_a_model_that_never_answered_is_an_error():
    client = ScriptedClient([ClientError("the line is dead")])
    with pytest.raises(ClientError, match="the line is dead"):
        minimize(bowl, SPACE, 4, client, warmup=0, prompt="props")


def test_the_text_of_a_result_stays_short():
    space = {f"x{i}": Float(0, 1) for i in range(600)}
    result = minimize(lambda p: p["x0"], space, 2, warmup=2, client=ScriptedClient([]), seed=1)
    assert len(repr(result)) < 1200 < len(str(result.best.params))
