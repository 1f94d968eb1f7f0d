"""Defects of searches, reproduced through the public API; who fixes one removes its `xfail`.

``python tests/defects.py N`` runs those of point N.
"""

from __future__ import annotations

import datetime
import io
import json
import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from stubs import in_threads
from wire import Say, WireServer, openai_body

import llmopt
from llmopt import BudgetExceededError, LLMOptimizer, ScriptedClient
from llmopt.cli import main


def proposal(*lines: str, start: str = "new") -> str:
    points = [f"Hypothesis: it helps\nStart from: {start}\nProposal:\n{line}" for line in lines]
    return "Lesson: none\nAnalysis: a guess\n" + "\n".join(points)


def evaluate(optimizer: LLMOptimizer[Any], points: int) -> None:
    for _ in range(points):
        optimizer.tell(optimizer.ask(), 1.0)


@pytest.fixture
def server(monkeypatch, tmp_path) -> Iterator[WireServer]:
    """A server in OpenAI's place, whose model `m` costs 1 and 4 dollars per million tokens."""
    pytest.importorskip("openai")
    wire = WireServer()
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"openai:m": {"input": 1.0, "output": 4.0}}))
    monkeypatch.setenv("LLMOPT_PRICES", str(prices))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{wire.url}/v1")
    yield wire
    wire.close()


# -- failures -----------------------------------------------------------------------------------


@pytest.mark.defect(29)
def test_the_reason_of_a_late_failure_reaches_the_model():
    client = ScriptedClient([proposal(f"x: 0.{i}") for i in range(1, 5)])
    optimizer = LLMOptimizer({"x": llmopt.Float(0, 1)}, client, "words", warmup=2, seed=0)
    early, late = optimizer.ask(2)
    optimizer.tell(early, 1.0)
    point = optimizer.ask()  # the first request goes out
    optimizer.tell_failure(late, "the solvent boiled away")
    optimizer.tell(point, 2.0)
    optimizer.tell(optimizer.ask(), 3.0)
    assert "the solvent boiled away" in client.requests[1].text
    optimizer.ask()
    assert "the solvent boiled away" in client.requests[2].text


# -- caps ---------------------------------------------------------------------------------------


@pytest.mark.defect(32)
def test_a_sequential_search_keeps_max_cost(server):
    def answer(body: Any) -> Say:
        """Answer at the cap: at 4 dollars a million tokens a third answer exceeds the budget."""
        most = body.get("max_completion_tokens") or body["max_tokens"]
        usage = {"prompt_tokens": 1000, "completion_tokens": most, "total_tokens": 1000 + most}
        return Say(openai_body(proposal(f"x: 0.{len(server.seen)}"), usage=usage))

    server.play(answer)
    options = {"warmup": 0, "max_cost": 0.2, "seed": 0}
    optimizer = LLMOptimizer({"x": llmopt.Float(0, 1)}, "openai:m", "words", **options)
    with pytest.raises(BudgetExceededError, match=r"max_cost=0\.2"):
        evaluate(optimizer, 9)
    assert 0.1 < optimizer.usage.cost <= 0.2


# -- the end of a search ------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["cap", "stop"])
@pytest.mark.defect(34)
def test_progress_says_why_a_search_ended(end, capsys):
    stop = "Analysis: flat\nHypothesis: done\nStart from: #1\nProposal: stop"
    client = ScriptedClient([proposal("x: 0.5"), stop if end == "stop" else proposal("x: 0.2")])
    caps = {"max_requests": 1} if end == "cap" else {}
    result = llmopt.minimize(
        lambda p: p["x"],
        {"x": llmopt.Float(0, 1)},
        10,
        client,
        prompt="words",
        warmup=0,
        progress=True,
        **caps,
    )
    assert result.stopped
    assert result.stopped[:40] in capsys.readouterr().err


@pytest.mark.defect(34)
def test_progress_says_why_a_policy_search_ended(capsys):
    from llmopt.policies import PolicySearch

    client = ScriptedClient(["Analysis: flat\nHypothesis: done\nStart from: #1\nProposal: stop"])
    options = {"starts": 1, "max_steps": 9, "warmup": 2}
    with PolicySearch("CartPole-v1", client, "words", **options) as search:
        search.run(9, progress=True)
    said = capsys.readouterr().err
    assert "ended after 2 of 9 policies: " in said
    assert "flat" in said


@pytest.mark.defect(34)
def test_next_says_why_a_search_ended_that_was_not_closed(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "chat"
    space = {"x": llmopt.Float(0, 1)}
    options = {"warmup": 0, "max_requests": 1}
    optimizer = LLMOptimizer(space, f"folder:{folder}", "words", **options)

    def model(_: Any) -> None:
        assert main(["next", str(folder), "--timeout", "30"]) == 0
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(proposal("x: 0.5").encode())))
        assert main(["next", str(folder), "--answer", "1"]) == 0

    in_threads(lambda f: f(None), [model, lambda _: optimizer.tell(optimizer.ask(), 1.0)])
    with pytest.raises(BudgetExceededError):
        optimizer.ask()
    capsys.readouterr()
    assert main(["next", str(folder), "--timeout", "0"]) == 3
    assert "max_requests=1" in capsys.readouterr().err


# -- Optuna -------------------------------------------------------------------------------------


@pytest.fixture
def optuna() -> Any:
    module = pytest.importorskip("optuna")
    module.logging.set_verbosity(module.logging.ERROR)
    return module


def make_sampler(client: Any, *names: str, **options: Any) -> Any:
    from optuna.distributions import FloatDistribution

    from llmopt.adapters.optuna import LLMSampler

    space = {name: FloatDistribution(0, 1) for name in names}
    return LLMSampler(client, prompt="words", space=space, seed=0, **options)


@pytest.mark.defect(6)
def test_caps_belong_to_a_study(optuna):
    client = ScriptedClient([proposal(f"x: 0.{i}") for i in range(1, 5)])
    sampler = make_sampler(client, "x", max_requests=2)
    for proposed in ([0.1, 0.2], [0.3, 0.4]):
        study = optuna.create_study(sampler=sampler)
        study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
        assert [trial.params["x"] for trial in study.trials[1:]] == proposed


@pytest.mark.defect(7)
def test_a_partial_fixed_sampler_gets_different_points(optuna):
    def answer(request: llmopt.Request) -> str:
        count = len(client.requests)
        line = f"x: 0.{count // 2 + 1}"  # each value twice
        return proposal(f"{line}, y: 0.{count}" if "y: <value>" in request.text else line)

    client = ScriptedClient(answer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental
        partial = optuna.samplers.PartialFixedSampler({"y": 0.25}, make_sampler(client, "x", "y"))
    study = optuna.create_study(sampler=partial)
    study.optimize(lambda t: t.suggest_float("x", 0, 1) + t.suggest_float("y", 0, 1), n_trials=6)
    assert len({trial.params["x"] for trial in study.trials}) == 6
    assert "y: <value>" not in client.requests[-1].text
    assert "0.25" in client.requests[-1].text


@pytest.mark.defect(9)
def test_the_latest_trial_of_workers_in_two_time_zones_is_the_latest(optuna):
    from optuna.distributions import FloatDistribution

    client = ScriptedClient([proposal("x: 0.9")])
    study = optuna.create_study(sampler=make_sampler(client, "x"))
    noon = datetime.datetime(2026, 1, 1, 12)
    for number, (x, hours) in enumerate([(0.1, 9), (0.2, 0)]):  # Tokyo, then UTC
        made = {"params": {"x": x}, "distributions": {"x": FloatDistribution(0, 1)}, "value": x}
        trial = optuna.create_trial(**made)
        trial.datetime_start = noon + datetime.timedelta(hours=hours, minutes=10 * number)
        trial.datetime_complete = trial.datetime_start + datetime.timedelta(minutes=5)
        study.add_trial(trial)
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    (request,) = client.requests
    assert re.search(r"^#1 \| 0\.1 \|.*^#2 \| 0\.2 \|", request.text, re.MULTILINE | re.DOTALL)


@pytest.mark.defect(36)
def test_a_trial_that_waits_for_the_model_is_shown_as_the_models(optuna, tmp_path):
    pages = []

    def answer(_: llmopt.Request) -> str:
        pages.append(page_of(study, tmp_path / "page.html"))
        return proposal("x: 0.5")

    study = optuna.create_study(sampler=make_sampler(ScriptedClient(answer), "x"))
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    (page,) = pages
    assert "a sampler of Optuna" not in page


def page_of(study: Any, path: Any) -> str:
    """Return the report of a study."""
    llmopt.report(study, path)
    return path.read_text(encoding="utf-8")


@pytest.mark.defect(41)
def test_a_point_of_an_answer_counts_as_a_proposal_once_a_trial_takes_it(optuna):
    """The class that lost the count inside an ask goes; this is what its users rely on."""
    client = ScriptedClient([proposal("x: 0.1", "x: 0.2", "x: 0.3")])
    sampler = make_sampler(client, "x")
    study = optuna.create_study(sampler=sampler)
    for count in range(4):
        study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
        assert sampler.usage.proposals == {"warmup": 1} | ({"llm": count} if count else {})
