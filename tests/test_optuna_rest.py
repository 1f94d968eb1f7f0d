"""The points of one answer that no trial has had yet: the study keeps them for the next trials."""

from __future__ import annotations

import threading

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from llmopt import Categorical, Float, ScriptedClient
from llmopt.adapters.optuna import LLMSampler, asking
from llmopt.adapters.optuna.records import read_rest, read_took

pytestmark = pytest.mark.filterwarnings("error::llmopt.FallbackWarning")
STOP = "\n\nAnalysis: flat\nHypothesis: no gain\nStart from: #1\nProposal: stop"
SPACE = {
    "kind": Categorical(["a", ("b", 1)]),
    "x": Float(-5, 5),
    "y": Float(0, 1, when={"kind": "a"}),
}


@pytest.fixture(autouse=True)
def _quiet():
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def answer(*xs: float, name: str = "x") -> str:
    return "\n\n".join(f"Hypothesis: why {x}\nStart from: new\nProposal:\n{name}: {x}" for x in xs)


def make(replies, **options) -> LLMSampler:
    fixed = {"space": {"x": Float(-5, 5)}, "description": "a bowl", "prompt": "words", "seed": 0}
    return LLMSampler(ScriptedClient(replies), **{"compute": False, **fixed, **options})


def study_of(sampler, storage) -> optuna.Study:
    return optuna.create_study(
        study_name="s", storage=storage, sampler=sampler, load_if_exists=True
    )


def value(trial: optuna.Trial) -> float:
    return (trial.suggest_float("x", -5, 5) - 1.3) ** 2


def xs(study: optuna.Study) -> list[float]:
    return [t.params["x"] for t in study.trials if "x" in t.params]


@pytest.fixture(params=["memory", "sqlite", "journal"])
def storage(request, tmp_path):
    from optuna.storages import InMemoryStorage, JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend

    if request.param == "memory":
        return InMemoryStorage()
    if request.param == "sqlite":
        return RDBStorage(f"sqlite:///{tmp_path}/study.db")
    return JournalStorage(JournalFileBackend(f"{tmp_path}/journal.log"))


def test_a_resumed_study_takes_the_points_that_were_paid_for(storage):
    first = make([answer(0, 1, 2)])
    study_of(first, storage).optimize(value, n_trials=1)
    assert first.usage.proposals == {"llm": 1}
    again = make([answer(3, 4)])
    study = study_of(again, storage)
    study.optimize(value, n_trials=2)
    assert xs(study) == [0, 1, 2]
    assert again.usage.requests == 0
    assert again.usage.proposals == {"llm": 2}
    told = [t.user_attrs["llmopt:explanation"] for t in study.trials]
    assert ["why 1" in told[1], "why 2" in told[2]] == [True, True]
    study.optimize(value, n_trials=1)
    assert xs(study) == [0, 1, 2, 3]


def of_the_kiln(trial: optuna.Trial) -> float:
    found = trial.suggest_float("x", -5, 5)
    if trial.suggest_categorical("kind", SPACE["kind"].choices) == "a":
        found += trial.suggest_float("y", 0, 1)
    return found**2


def test_a_resumed_study_equals_an_uninterrupted_one():
    """Cut after each trial, with several points, choices, a condition and the end in an answer."""
    points = [
        "kind: a, x: {}, y: 0.123456789", "kind: ('b', 1), x: {}", "kind: a, x: 0.{}5, y: 0"
    ]  # fmt: skip

    def reply(request):
        asked = request.text.count("why ") // 2
        told = "Hypothesis: why {}\nStart from: {}\nProposal:\n{}"
        start = "new" if not asked else "#2"
        texts = [
            told.format(i, start, point.format(asked + i + 1)) for i, point in enumerate(points)
        ]
        return "\n\n".join(texts) + STOP * (asked > 1)

    def state(study):
        return [
            (t.state, t.params, {k: v for k, v in t.user_attrs.items() if "seconds" not in k})
            for t in study.trials
        ]

    def run(n_trials, times):
        storage, asked = optuna.storages.InMemoryStorage(), []
        for _ in range(times):
            sampler = make(reply, space=SPACE, may_stop=True, intermediate=False)
            study = study_of(sampler, storage)
            study.optimize(of_the_kiln, n_trials=n_trials)
            asked += sampler.client.requests
            if study.trials[-1].state == TrialState.PRUNED:
                break
        return state(study), asked

    whole, requests = run(99, 1)
    assert len(requests) >= 2
    assert whole[-1][0] == TrialState.PRUNED
    assert len(whole) == 3 * len(requests) + 1
    assert run(1, 99) == (whole, requests)


@pytest.mark.parametrize("at_once", [1, 9])
def test_points_that_lack_what_was_found_since_are_asked_for_anew(at_once):
    """After them the end of the same answer does not hold."""

    def reply(request):
        points = ("d: 1, k: b", "d: 1, k: a, u: 4", "d: 2, k: b")
        points = ("d: 2, k: b, v: 4",) if "not measured" in request.text else points
        return "\n\n".join(f"Start from: new\nProposal:\n{p}" for p in points) + STOP

    def objective(trial):
        kind = trial.suggest_categorical("k", ["a", "b"])
        return trial.suggest_int("d", 1, 9) + trial.suggest_float({"a": "u", "b": "v"}[kind], 0, 9)

    storage, requests = optuna.storages.InMemoryStorage(), []
    for _ in range(9 // at_once):
        sampler = make(reply, space=None, may_stop=True, intermediate=False)
        study = study_of(sampler, storage)
        if not study.trials:
            study.enqueue_trial({"d": 1, "k": "a", "u": 9})
        study.optimize(objective, n_trials=at_once)
        requests += sampler.client.requests
        if study.trials[-1].state == TrialState.PRUNED:
            break
    found = [(t.state.name, t.params) for t in study.trials]
    assert [params.get("k") for _, params in found] == ["a", "b", "a", "b", None]
    assert found[3:] == [("COMPLETE", {"d": 2, "k": "b", "v": 4}), ("PRUNED", {})]
    said = "1 of the points that you gave before: not measured"
    assert [said in r.text for r in requests] == [False, True]


def test_points_that_have_no_place_any_more_are_dropped(storage):
    study_of(make([answer(0, 1, 2, 3)]), storage).optimize(value, n_trials=1)
    study = study_of(make([]), storage)
    study.add_trial(
        create_trial(params={"x": 1.0}, distributions=study.trials[0].distributions, value=1.0)
    )
    wide = optuna.distributions.FloatDistribution(2.5, 9)
    study.add_trial(create_trial(params={"x": 8.0}, distributions={"x": wide}, value=1.0))
    sampler = make([answer(7)])
    study = study_of(sampler, storage)
    for expected in (3, 7):  # 1 repeats a trial, and 2 is out of range
        assert study.ask({"x": wide}).params["x"] == expected
    assert sampler.usage.rejected == {"taken meanwhile": 2}
    assert sampler.usage.proposals == {"llm": 2}


@pytest.mark.parametrize("noisy", [False, True])
def test_workers_that_take_at_once_take_different_points_and_lose_none(noisy, monkeypatch):
    storage, workers = optuna.storages.InMemoryStorage(), 4
    study_of(make([answer(0, 1, 2, 3)], noisy=noisy), storage).optimize(value, n_trials=1)
    barrier = threading.Barrier(workers - 1)
    real, chosen = asking.Asker._next, []

    def together(*arguments):
        found = real(*arguments)
        chosen.append(found[0].params["x"])
        if len(chosen) < workers:
            barrier.wait(60)
        return found

    monkeypatch.setattr(asking.Asker, "_next", together)
    samplers = [make([], noisy=noisy) for _ in range(workers - 1)]
    threads = [
        threading.Thread(target=study_of(sampler, storage).optimize, args=(value, 1))
        for sampler in samplers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert chosen[:3] == [1, 1, 1]
    assert sorted(xs(study_of(make([]), storage))) == [0, 1, 2, 3]
    assert [s.usage.proposals for s in samplers] == [{"llm": 1}] * 3


def test_a_trial_that_is_run_again_after_a_kill_does_not_double_the_points():
    storage = optuna.storages.InMemoryStorage()
    study = study_of(make([answer(0, 1, 2)], noisy=True), storage)
    study.optimize(value, n_trials=1)
    # As `RetryHeartbeatStaleTrialCallback` does it.
    (first,) = study.trials
    attributes = {**first.system_attrs, "fixed_params": first.params}
    study.add_trial(create_trial(state=TrialState.WAITING, system_attrs=attributes))
    sampler = make([answer(4)], noisy=True)
    study = study_of(sampler, storage)
    study.optimize(value, n_trials=4)
    assert xs(study) == [0, 0, 1, 2, 4]


@pytest.mark.parametrize("broken", [["keep_rest"], ["annotate"] * 3])
def test_an_error_of_the_storage_loses_no_point(broken, monkeypatch):
    storage = optuna.storages.InMemoryStorage()
    sampler = make([answer(0, 1, 2)])
    study = study_of(sampler, storage)
    for name in broken:
        with monkeypatch.context() as patched:
            patched.setattr(asking, name, lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                study.optimize(value, n_trials=1)
        study.optimize(value, n_trials=1)
    study.optimize(value, n_trials=3 - len(broken))
    assert xs(study) == [0, 1, 2]
    assert sampler.usage.requests == 1
    assert sampler.usage.proposals == {"llm": 3}


def test_what_a_storage_holds_may_be_anything():
    storage = optuna.storages.InMemoryStorage()
    study = study_of(make([answer(0)]), storage)
    study.optimize(value, n_trials=1)
    odd = ["[3", "7", '[{"ref": 3}, {"ref": "a"}, {"ref": "b", "params": {"x": "x", "z": 1}}]']
    for text in odd:
        attributes = {"llmopt:rest:0": text, "llmopt:took:0": text}
        study.add_trial(
            create_trial(
                params={"x": 4.0},
                distributions=study.trials[0].distributions,
                value=1.0,
                system_attrs=attributes,
            )
        )
    sampler = make([answer(2)])
    study = study_of(sampler, storage)
    study.optimize(value, n_trials=1)
    assert xs(study)[-1] == 2


def test_long_answers_are_cut_for_storages():
    storage = optuna.storages.InMemoryStorage()
    text = answer(0, 1, 2).replace("why", "w" * 1500)
    study = study_of(make([text]), storage)
    study.optimize(value, n_trials=2)
    written = [v for t in study.trials for v in t.system_attrs.values()]
    assert all(len(v) <= 2045 for v in written if isinstance(v, str))
    assert [p["ref"] for p in read_rest(study.trials[0])] == ["0:0", "0:1"]
    assert read_took(study.trials[1]) == ["0:0"]
