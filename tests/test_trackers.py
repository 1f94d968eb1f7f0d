"""Callbacks: what they are told, and what each tracker's own library reads back."""

from __future__ import annotations

import logging
import os
import re
import sys

import pytest

from llmopt import (
    Categorical,
    ClientError,
    Completion,
    Float,
    LLMOptimizer,
    Reply,
    ScriptedClient,
    SearchStopped,
)
from llmopt.errors import install_hint
from llmopt.trackers import Callback, Log, MLflow, TensorBoard, Tracker, WeightsAndBiases

SPACE = {"x": Float(-5.0, 5.0), "kind": Categorical(("a", "b"))}
POINTS = (1.0, 2.0, 3.0)


def reply(x: float) -> Reply:
    text = f"x: {x}, kind: a\nbecause of {x}"
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "cost": 0.25, "seconds": 0.5}
    return Reply((Completion(text),), model="answerer-2", **usage)


def search(callbacks, storage=None, points=POINTS, space=SPACE, **options):
    client = ScriptedClient([reply(x) for x in (points or [0])], cycle=True)
    options = {"warmup": 0, "seed": 0, "direction": "minimize", **options}
    with LLMOptimizer(
        space, client, "props", storage=storage, callbacks=callbacks, **options
    ) as optimizer:
        for x in points:
            optimizer.tell(optimizer.ask(), (x - 2) ** 2, feedback=f"saw {x}")
        optimizer.tell_failure(dict.fromkeys(space, 0) | {"kind": "b"}, "diverged")


class Everything(Callback):
    def __init__(self):
        self.events = []

    def asked(self, search, proposal):
        self.events.append(("asked", proposal.values[0]))

    def told(self, search, trial, best, usage):
        self.events.append(("told", trial.number, best and best.reward, usage.requests))

    def sent(self, search, spent):
        self.events.append("sent")

    def ended(self, search, reason):
        self.events.append(("ended", search.name, reason))


def test_what_happens_is_told_in_order(tmp_path):
    everything = Everything()
    search([everything], storage=tmp_path / "mine.jsonl")
    assert everything.events[:4] == ["sent", ("asked", 1.0), ("told", 0, 1.0, 1), "sent"]
    assert everything.events[-2:] == [("told", 3, 0.0, 3), ("ended", "mine", "")]
    again = Everything()  # of a resumed search only what is new
    search([again], storage=tmp_path / "mine.jsonl", points=())
    assert again.events == [("told", 4, 0.0, 3), ("ended", "mine", "")]


def test_a_request_that_failed_and_the_end_are_told():
    def broken(request):
        raise ClientError("overloaded", retryable=False)

    everything = Everything()
    with pytest.raises(ClientError):
        LLMOptimizer(SPACE, ScriptedClient(broken), warmup=0, callbacks=[everything]).ask()
    assert everything.events == ["sent"]
    client = ScriptedClient(["Analysis: flat.\nProposal: stop"])
    options = {"warmup": 0, "may_stop": True, "callbacks": [everything]}
    with LLMOptimizer(SPACE, client, "words", **options) as optimizer:
        optimizer.tell({"x": 1, "kind": "a"}, 1.0)
        with pytest.raises(SearchStopped):
            optimizer.ask()
    optimizer.close()
    assert "flat" in everything.events[-1][2]
    assert everything.events[-2] == "sent"


@pytest.mark.parametrize("given", [Log(), ["log"], [print], "log"])
def test_what_is_no_list_of_callbacks(given):
    with pytest.raises(TypeError, match="callbacks"):
        LLMOptimizer(SPACE, ScriptedClient([]), callbacks=given)


def test_logging(caplog):
    caplog.set_level(logging.INFO, "llmopt.search")
    search([Log()])
    lines = [r.getMessage() for r in caplog.records]
    assert "search: asked (llm) x=1.0, kind='a'" in lines
    assert "search: trial 1 (llm) x=2.0, kind='a': reward 0.0; saw 2.0; best 0.0" in lines
    assert "search: answerer-2 answered in 0.5 s: 100 + 10 tokens, cost $0.250000" in lines
    assert lines[-1] == "search: ended"


class Rows(Tracker):
    """A tracker whose library is a list."""

    def __init__(self, **options):
        super().__init__(**options)
        self.runs, self.rows = [], []

    def begin(self, search, settings, mark, resumed):
        self.runs.append((search.name, mark, resumed, settings))
        return len(self.runs) - 1

    def write(self, run, trial, row):
        self.rows.append((run, row))

    def end(self, run, reason):
        self.rows.append((run, reason))


def objective(point):
    """A planted secret."""


@pytest.mark.parametrize("content", [False, True])
def test_rows_of_a_tracker(tmp_path, content):
    rows = Rows(content=content)
    for points in (POINTS, (4.0, 5.0)):
        search([rows], tmp_path / "s.jsonl", points, description=objective)
    (first, second) = rows.runs
    assert first[:3] == ("s", second[1], False)
    assert second[:3] == ("s", first[1], True)
    assert ("planted secret" in str(rows.runs)) == content
    assert rows.rows[1][1] == {
        "params/x": 2.0, "params/kind": "a", "reward": 0.0, "best": 0.0, "usage/requests": 2,
        "usage/fallbacks": 0, "usage/tokens": 220, "usage/cost": 0.5, "state": "complete",
        "source": "llm", "explanation": "because of 2.0", "feedback": "saw 2.0",
    }  # fmt: skip
    assert [run for run, _ in rows.rows] == [0] * 5 + [1] * 4


def test_a_tracker_that_fails_delays_nothing(caplog):
    class Broken(Rows):
        def begin(self, *_):
            raise OSError("disk full")

    rows = Rows()
    search([Broken(), rows])
    assert len(rows.rows) == 5
    assert caplog.text.count("disk full") == 1


ODD = {
    "..": Float(0, 1),
    "a//b": Float(0, 1),
    "x!": Float(0, 1),
    "x?": Float(0, 1),
    "ü" * 300: Float(0, 1),
}


def test_mlflow(tmp_path):
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    for points in ((1, 2), (3, 4)):  # the second one resumes it
        search([MLflow("mine", tracking_uri=uri)], tmp_path / "tuning.jsonl", points)
    with LLMOptimizer(ODD, ScriptedClient([]), callbacks=[MLflow("odd", tracking_uri=uri)]) as odd:
        odd.tell(dict.fromkeys(ODD, 0.5), 1.0, feedback="\x1b[2J\udc80")
    client = MlflowClient(tracking_uri=uri)
    place = client.get_experiment_by_name("mine").experiment_id
    runs = client.search_runs([place])
    (parent,) = [r for r in runs if r.info.run_name == "tuning"]
    assert parent.info.status == "FINISHED"
    assert parent.data.params["client"] == "scripted"
    history = client.get_metric_history(parent.info.run_id, "reward")
    assert [(m.step, m.value) for m in history] == [(0, 1.0), (1, 0.0), (3, 1.0), (4, 4.0)]
    children = {r.info.run_name: r for r in runs if r is not parent}
    assert len(children) == 6
    second = children["trial 1"]
    assert second.data.params == {"x": "2.0", "kind": "a"}
    assert second.data.tags["llmopt.feedback"] == "saw 2"
    assert second.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert children["trial 2"].info.status == "FAILED"
    place = client.get_experiment_by_name("odd").experiment_id
    assert (
        max(len(r.data.params) for r in client.search_runs([place]) if "trial" in r.info.run_name)
        == 5
    )


def test_weights_and_biases(monkeypatch):
    class Fake:
        def __init__(self):
            self.rows, self.summary, self.finished = [], {}, 0

        def init(self, **options):
            self.options = options
            return self

        def log(self, row, step):
            self.rows.append((step, row["state"], row.get("reward")))

        def finish(self):
            self.finished += 1

    wandb = Fake()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    search([WeightsAndBiases("mine", mode="offline")])
    assert wandb.options.items() >= {"project": "mine", "mode": "offline", "name": "search"}.items()
    states = ("complete", "complete", "complete", "failed")
    assert wandb.rows == list(zip(range(4), states, (1.0, 0.0, 1.0, None), strict=True))
    assert wandb.finished == 1


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for points in ((1, 2), (3, 4)):  # the second one resumes it
        search([TensorBoard(tmp_path / "tb")], tmp_path / "a\nb\x1b.jsonl", points)
    search([TensorBoard(tmp_path / "tb")])
    search([TensorBoard(tmp_path / "tb")])
    folders = sorted(p.name for p in (tmp_path / "tb").iterdir())
    assert [name.rpartition("-")[0] for name in folders] == ["a b_x1b", "search", "search"]
    read = EventAccumulator(os.fspath(tmp_path / "tb" / folders[0])).Reload()
    rewards = [(e.step, e.tensor_proto.float_val[0]) for e in read.Tensors("reward")]
    assert rewards == [(0, 1), (1, 0), (3, 1), (4, 4)]


@pytest.mark.parametrize(
    ("module", "make"),
    [("mlflow", MLflow), ("wandb", WeightsAndBiases), ("tensorboard.summary", TensorBoard)],
)
def test_a_missing_package_is_named(monkeypatch, module, make):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=re.escape(install_hint("trackers"))):
        make()
