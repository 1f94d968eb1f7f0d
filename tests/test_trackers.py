"""Callbacks: the protocol, and what each tracker's own library reads back."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time

import pytest
from wire import Hang, Say, WireServer

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
from llmopt.trackers import Callback, Log, MLflow, TensorBoard, WeightsAndBiases
from llmopt.trackers.callback import RunTracker, _Writer

SPACE = {"x": Float(-5.0, 5.0), "kind": Categorical(("a", "b"))}
POINTS = (1.0, 2.0, 3.0)


def reply(x: float) -> Reply:
    return Reply(
        (Completion(f"x: {x}, kind: a\nbecause of {x}"),),
        model="answerer-2",
        prompt_tokens=100,
        completion_tokens=10,
        cost=0.25,
        seconds=0.5,
    )


def searched(callbacks, storage=None, client=None) -> LLMOptimizer:
    client = client or ScriptedClient([reply(x) for x in POINTS])
    optimizer = LLMOptimizer(
        SPACE, client, "props", "minimize", 0, warmup=0, storage=storage, callbacks=callbacks
    )
    for x in POINTS:
        optimizer.tell(optimizer.ask(), (x - 2) ** 2, feedback=f"saw {x}")
    optimizer.tell_failure({"x": 0, "kind": "b"}, "diverged")
    optimizer.close()
    return optimizer


@pytest.fixture(scope="session")
def empty_mlflow(tmp_path_factory):
    """A database of MLflow without runs: to make one takes seconds."""
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def mlflow_uri(empty_mlflow, tmp_path):
    return f"sqlite:///{shutil.copy(empty_mlflow, tmp_path / 'mlflow.db')}"


class Everything(Callback):
    def __init__(self):
        self.events = []

    def asked(self, search, proposal):
        self.events.append(("asked", proposal.values[0]))

    def told(self, search, trial, best, usage):
        reward = None if best is None else best.reward
        self.events.append(("told", trial.number, reward, usage.requests))

    def sent(self, search, spent):
        self.events.append(("sent", spent.client, spent.reply and spent.reply.cost, spent.error))

    def ended(self, search, reason):
        self.events.append(("ended", search.name, reason))


class TestProtocol:
    def test_what_happens_is_told_in_order(self, tmp_path):
        told = Everything()
        searched([told], storage=tmp_path / "mine.jsonl")
        assert told.events[:4] == [
            ("sent", "scripted", 0.25, ""),
            ("asked", 1.0),
            ("told", 0, 1.0, 1),
            ("sent", "scripted", 0.25, ""),
        ]
        assert told.events[-2:] == [("told", 3, 0.0, 3), ("ended", "mine", "")]

    def test_a_request_that_failed_is_told_with_its_error(self):
        told = Everything()

        def broken(request):
            raise ClientError("overloaded", retryable=False)

        optimizer = LLMOptimizer(SPACE, ScriptedClient(broken), warmup=0, callbacks=[told])
        with pytest.raises(ClientError):
            optimizer.ask()
        assert told.events == [("sent", "scripted", None, "ClientError: overloaded")]

    def test_the_end_says_why(self):
        told = Everything()
        client = ScriptedClient(["Analysis: flat.\nProposal: stop"])
        optimizer = LLMOptimizer(SPACE, client, "words", warmup=0, may_stop=True, callbacks=[told])
        optimizer.tell({"x": 1, "kind": "a"}, 1.0)
        with pytest.raises(SearchStopped):
            optimizer.ask()
        optimizer.close()
        optimizer.close()
        assert [e[0] for e in told.events] == ["told", "sent", "ended"]
        assert "flat" in told.events[-1][2]

    def test_a_resumed_search_tells_only_what_is_new(self, tmp_path):
        searched([], storage=tmp_path / "s.jsonl")
        told = Everything()
        again = LLMOptimizer(
            SPACE,
            ScriptedClient([]),
            "props",
            "minimize",
            0,
            warmup=0,
            storage=tmp_path / "s.jsonl",
            callbacks=[told],
        )
        again.tell({"x": 4, "kind": "b"}, 4.0)
        assert told.events == [("told", 4, 0.0, 3)]
        again.close()

    @pytest.mark.parametrize("given", [Log(), ["log"], [print], "log"])
    def test_what_is_none(self, given):
        with pytest.raises(TypeError, match="callbacks"):
            LLMOptimizer(SPACE, ScriptedClient([]), callbacks=given)


def test_logging(caplog):
    caplog.set_level(logging.INFO, "llmopt.search")
    searched([Log()])
    text = "\n".join(r.getMessage() for r in caplog.records)
    assert "search: asked (llm) x=1.0, kind='a'" in text
    assert "trial 1 (llm) x=2.0, kind='a': reward 0.0; saw 2.0; best 0.0" in text
    assert "answerer-2 answered in 0.5 s: 100 + 10 tokens, cost $0.250000" in text
    assert text.endswith("search: ended")


def test_mlflow(tmp_path, mlflow_uri):
    from mlflow.tracking import MlflowClient

    searched([MLflow("mine", tracking_uri=mlflow_uri)], storage=tmp_path / "tuning.jsonl")
    client = MlflowClient(tracking_uri=mlflow_uri)
    experiment = client.get_experiment_by_name("mine")
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = [r for r in runs if r.info.run_name == "tuning"]
    assert parent.info.status == "FINISHED"
    assert parent.data.params["client"] == "scripted"
    assert parent.data.params["seed"] == "0"
    history = client.get_metric_history(parent.info.run_id, "reward")
    assert [(m.step, m.value) for m in history] == [(0, 1.0), (1, 0.0), (2, 1.0)]
    assert parent.data.metrics["best"] == 0.0
    assert parent.data.metrics["usage/cost"] == 0.75
    children = {r.info.run_name: r for r in runs if r is not parent}
    assert len(children) == 4
    second = children["trial 1"]
    assert second.data.params == {"x": "2.0", "kind": "a"}
    assert second.data.tags["llmopt.feedback"] == "saw 2.0"
    assert second.data.tags["llmopt.explanation"] == "because of 2.0"
    assert second.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert children["trial 3"].info.status == "FAILED"


def mlflow_runs(uri):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    return client.search_runs([client.get_experiment_by_name("llmopt").experiment_id])


@pytest.mark.parametrize("behaviour", [Say({}, 503), Hang()])
def test_a_server_that_does_not_answer_holds_no_search_up(monkeypatch, caplog, behaviour):
    pytest.importorskip("mlflow")
    monkeypatch.setattr(_Writer, "SECONDS", 0.2)
    server = WireServer()
    server.play(behaviour)
    try:
        began = time.monotonic()
        searched([MLflow(tracking_uri=server.url)])
        assert time.monotonic() - began < 10
    finally:
        server.close()
    assert caplog.text.count("is switched off") == 1


def test_a_tracker_is_switched_off_after_three_failures(caplog):
    calls = []

    class Broken(RunTracker):
        def _begin(self, search, mark, resumed):
            calls.append(search)
            raise OSError("disk full")

    searched([Broken()])
    assert len(calls) == 3
    assert caplog.text.count("disk full") == 1


def test_no_text_and_no_name_keeps_mlflow_from_its_run(caplog, mlflow_uri):
    names = ["..", "a//b", "a/", "/a", ".", "x" * 300, "x" * 299, "./c", "ü"]
    space = {name: Float(0, 1) for name in names}
    tracker = MLflow(tracking_uri=mlflow_uri, content=True)
    options = {"description": "a lone \udc80 surrogate", "callbacks": [tracker], "seed": 0}
    with LLMOptimizer(space, ScriptedClient([]), "props", warmup=5, **options) as search:
        for number in range(2):
            search.tell(search.ask(), number, feedback="\udc80")
    runs = mlflow_runs(mlflow_uri)
    assert len(runs) == 3
    assert {r.info.status for r in runs} == {"FINISHED"}
    children = [r for r in runs if r.info.run_name.startswith("trial")]
    assert {len(r.data.params) for r in children} == {len(names)}
    assert "failed" not in caplog.text


def objective(point):
    """A planted secret."""
    return 0.0


@pytest.mark.parametrize("content", [False, True])
def test_the_task_is_written_only_if_it_is_asked_for(content, mlflow_uri):
    tracker = MLflow(tracking_uri=mlflow_uri, content=content)
    options = {"description": objective, "callbacks": [tracker], "seed": 0}
    with LLMOptimizer(SPACE, ScriptedClient([]), "props", **options) as search:
        search.tell({"x": 1, "kind": "a"}, 1.0)
    assert ("planted secret" in str(mlflow_runs(mlflow_uri))) == content


def test_mlflow_goes_on_with_the_run_of_a_resumed_search(tmp_path, mlflow_uri):
    from mlflow.tracking import MlflowClient

    def tell(path, *points):
        """Go on with a search as a new process does."""
        with contextlib.closing(
            LLMOptimizer(
                SPACE,
                ScriptedClient([]),
                seed=0,
                storage=path,
                callbacks=[MLflow("mine", tracking_uri=mlflow_uri)],
            )
        ) as search:
            for x in points:
                search.tell({"x": x, "kind": "b"}, x)

    def runs(name):
        client = MlflowClient(tracking_uri=mlflow_uri)
        (place,) = [client.get_experiment_by_name("mine").experiment_id]
        found = [r for r in client.search_runs([place]) if r.info.run_name == name]
        steps = [
            [m.step for m in client.get_metric_history(r.info.run_id, "reward")] for r in found
        ]
        return found, sorted(steps)

    path, other = tmp_path / "tuning.jsonl", tmp_path / "other" / "tuning.jsonl"
    other.parent.mkdir()
    tell(path, 1, 2)
    tell(other, 1)  # of the same name, elsewhere
    tell(path, 3)
    tell(path)  # nothing to tell
    found, steps = runs("tuning")
    assert steps == [[0], [0, 1, 2]]
    assert {r.info.status for r in found} == {"FINISHED"}
    assert len({r.data.tags["llmopt.search"] for r in found}) == 2
    assert str(tmp_path) not in str([r.data.tags for r in found])
    children, _ = runs("trial 2")
    assert children[0].data.tags["mlflow.parentRunId"] in {r.info.run_id for r in found}

    path.unlink()  # a new search in the old one's place
    tell(path, 4)
    tell(path, 5)
    assert runs("tuning")[1] == [[0], [0, 1], [0, 1, 2]]


def test_weights_and_biases(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    tracker = WeightsAndBiases("mine", mode="offline", dir=str(tmp_path))
    searched([tracker], storage=tmp_path / "tuning.jsonl")
    wandb.teardown()
    (file,) = tmp_path.rglob("*.wandb")
    for _ in range(300):  # its service writes in the background
        rows, config, summary = read_wandb(file)
        if len(rows) == 4 and summary:
            break
        time.sleep(0.1)
    assert [r.get("reward") for r in rows] == ["1", "0", "1", None]
    assert [r["params/x"] for r in rows] == ["1", "2", "3", "0"]
    assert rows[1]["feedback"] == '"saw 2.0"'
    assert rows[3]["state"] == '"failed"'
    assert rows[2]["usage/cost"] == "0.75"
    assert config["client"] == '"scripted"'
    assert '"x":2' in summary["best_params"].replace(" ", "")


def read_wandb(file):
    """Read an offline run: protocol buffers in LevelDB's log format, after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = file.read_bytes(), 7, b""
    rows, config, summary = [], {}, {}
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # no header fits before the end of the block
            at += 32768 - at % 32768
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole, at = whole + data[at + 7 : at + 7 + length], at + 7 + length
        if kind not in (1, 4):  # the first or the middle part of a record
            continue
        record = wandb_internal_pb2.Record()
        record.ParseFromString(whole)
        whole = b""
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({i.key or "/".join(i.nested_key): i.value_json for i in items})
        for update in [*record.run.config.update, *record.config.update]:
            config[update.key] = update.value_json
        for update in record.summary.update:
            summary[update.key or update.nested_key[0]] = update.value_json
    return rows, config, summary


def begun_twice(make):
    """Follow two unstored searches of one name, both open, with one tracker."""
    tracker = make()
    both = [
        LLMOptimizer(SPACE, ScriptedClient([]), "props", seed=i, callbacks=[tracker])
        for i in range(2)
    ]
    for number in range(3):
        for which, search in enumerate(both):
            search.tell({"x": number, "kind": "a"}, 10.0 * which + number, feedback="\x1b[2Jhm")
    for search in both:
        search.close()


class TestTwoSearchesOfOneName:
    def test_mlflow(self, mlflow_uri):
        from mlflow.tracking import MlflowClient

        begun_twice(lambda: MLflow("mine", tracking_uri=mlflow_uri, children=False))
        client = MlflowClient(tracking_uri=mlflow_uri)
        runs = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
        rewards = [client.get_metric_history(r.info.run_id, "reward") for r in runs]
        assert sorted([m.value for m in one] for one in rewards) == [[0, 1, 2], [10, 11, 12]]
        assert {r.info.status for r in runs} == {"FINISHED"}

    def test_tensorboard(self, tmp_path):
        pytest.importorskip("tensorboard")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        begun_twice(lambda: TensorBoard(tmp_path))
        begun_twice(lambda: TensorBoard(tmp_path))  # another process
        folders = sorted(p.name for p in tmp_path.iterdir())
        assert folders == ["search", "search-2", "search-3", "search-4"]
        read = [EventAccumulator(os.fspath(tmp_path / name)).Reload() for name in folders]
        assert [[e.value for e in one.Scalars("reward")] for one in read] == [
            [0, 1, 2],
            [10, 11, 12],
        ] * 2
        path = tmp_path / "storage" / "search.jsonl"
        for _ in range(2):  # a stored one goes on in its own folder
            tracker = TensorBoard(tmp_path)
            options = {"seed": 0, "storage": path, "callbacks": [tracker]}
            search = LLMOptimizer(SPACE, ScriptedClient([]), "props", **options)
            search.tell({"x": len(search.trials), "kind": "a"}, 1.0)
            search.close()
        steps = EventAccumulator(os.fspath(tmp_path / "search-5")).Reload().Scalars("reward")
        assert [e.step for e in steps] == [0, 1]
        path.unlink()  # a search begun anew in its place has a folder of its own
        begun = LLMOptimizer(SPACE, ScriptedClient([]), "props", **options)
        begun.tell({"x": 0, "kind": "a"}, 1.0)
        begun.close()
        assert (tmp_path / "search-6").is_dir()


ODD_SPACE = {"x!": Float(0, 1), "x?": Float(0, 1), "größe/a b": Float(0, 1)}


def test_names_and_words_of_any_kind_stay_data(tmp_path, caplog, mlflow_uri):
    pytest.importorskip("tensorboard")
    from mlflow.tracking import MlflowClient

    folder = tmp_path / "tb"
    caplog.set_level(logging.INFO, "llmopt.search")
    storage = tmp_path / "..\x1b[2J" / "a\nb.jsonl"
    followed = [MLflow("mine", tracking_uri=mlflow_uri), TensorBoard(folder), Log()]
    options = {"seed": 0, "storage": storage, "callbacks": followed}
    search = LLMOptimizer(ODD_SPACE, ScriptedClient([]), "props", **options)
    words = "\x1b[2J<script>" + "ü\n" * 100_000
    for value in (0.25, 0.5):
        search.tell(dict.fromkeys(ODD_SPACE, value), 1e300 * value, feedback=words)
    search.close()
    assert [r.getMessage() for r in caplog.records if "failed" in r.getMessage()] == []
    assert all(r.getMessage().isprintable() for r in caplog.records)
    client = MlflowClient(tracking_uri=mlflow_uri)
    runs = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    (child,) = [r for r in runs if r.info.run_name == "trial 1"]
    assert sorted(child.data.params.values()) == ["0.5"] * 3
    assert {p.parent for p in tmp_path.rglob("events.*")} == {folder / "a b"}


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    searched([TensorBoard(tmp_path / "tb")], storage=tmp_path / "tuning.jsonl")
    read = EventAccumulator(os.fspath(tmp_path / "tb" / "tuning")).Reload()
    assert [(e.step, e.value) for e in read.Scalars("reward")] == [(0, 1.0), (1, 0.0), (2, 1.0)]
    assert [e.value for e in read.Scalars("params/x")] == [1.0, 2.0, 3.0, 0.0]
    assert read.Scalars("usage/tokens")[-1].value == 330
    texts = [e.tensor_proto.string_val[0] for e in read.Tensors("feedback/text_summary")]
    assert texts == [b"saw 1.0", b"saw 2.0", b"saw 3.0", b"diverged"]


@pytest.mark.parametrize(
    ("module", "make"),
    [
        ("mlflow.entities", MLflow),
        ("wandb", WeightsAndBiases),
        ("tensorboard.compat.proto", TensorBoard),
    ],
)
def test_a_missing_package_is_named(monkeypatch, module, make):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(ImportError, match="pip install"):
        make()
