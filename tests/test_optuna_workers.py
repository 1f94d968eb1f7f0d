"""Four worker processes on one study, one of them killed with SIGKILL in the middle of a trial.

The model is the worst case for duplicates: it always gives the same answer to the same
prompt, so that workers which see the same history propose the same point.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import MaxTrialsCallback
from optuna.trial import TrialState

from llmopt import ScriptedClient, get_client
from llmopt.adapters.optuna import LLMSampler
from llmopt.adapters.optuna.records import read_note
from llmopt.client.base import Request

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are started and killed as on Linux"
)

WORKERS = 4
STARTUP = 6
WAIT = 300  # seconds; only a failure takes that long

# One process that has all the imports done, from which the workers are forked.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload([__name__])


def answer(request: Request) -> str:
    """Propose a point that depends on the words of the request alone."""
    rng = np.random.default_rng(list(request.text.encode()))
    return f"x: {rng.integers(0, 100) / 10}, y: {rng.integers(0, 100)}"


def trials_at(address: str) -> int:
    """Return how many trials a study has: fewer where a trial takes a quarter of a second."""
    return 60 if address.startswith("journal") else 30


def storage_at(address: str) -> BaseStorage:
    kind, _, place = address.partition("=")
    if kind == "journal":
        return JournalStorage(JournalFileBackend(place))
    if kind == "grpc":
        return optuna.storages.GrpcStorageProxy(host="127.0.0.1", port=int(place))
    waits = {"connect_args": {"timeout": WAIT}} if place.startswith("sqlite") else {}
    return RDBStorage(place, engine_kwargs=waits)


def work(address: str, log: Path, all_ready: Barrier) -> None:
    """Evaluate trials until the study has enough, noting in a file where each one stands."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # Equal seeds, as when one script is started several times.
    sampler = LLMSampler(ScriptedClient(answer), n_startup_trials=STARTUP, seed=0)
    study = optuna.load_study(study_name="s", storage=storage_at(address), sampler=sampler)
    all_ready.wait(WAIT)
    with log.open("a", buffering=1) as file:

        def objective(trial: optuna.Trial) -> float:
            x = trial.suggest_float("x", 0, 10, step=0.1)
            y = trial.suggest_int("y", 0, 99)
            file.write(f"begin {trial.number}\n")
            time.sleep(0.05)
            file.write(f"value {trial.number}\n")
            return x + y

        def note(_: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
            file.write(f"end {trial.number} {trial.value}\n")

        enough = MaxTrialsCallback(trials_at(address), states=(TrialState.COMPLETE,))
        study.optimize(objective, callbacks=[note, enough])


def serve(port: int) -> None:
    """Run the gRPC proxy over a storage in this process's memory."""
    storage = optuna.storages.InMemoryStorage()
    optuna.storages.run_grpc_proxy_server(storage, host="127.0.0.1", port=port)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(params=["journal", "sqlite", "grpc"])
def address(request, tmp_path) -> Iterator[str]:
    if request.param == "journal":
        yield f"journal={tmp_path / 'journal.log'}"
    elif request.param == "sqlite":
        yield f"rdb=sqlite:///{tmp_path / 'study.db'}"
    else:
        pytest.importorskip("grpc", reason="the gRPC proxy needs grpcio")
        port = free_port()
        server = processes.Process(target=serve, args=(port,), daemon=True)
        server.start()
        optuna.storages.GrpcStorageProxy(host="127.0.0.1", port=port).wait_server_ready(WAIT)
        yield f"grpc={port}"
        server.terminate()
        server.join()


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_no_trial_is_lost_and_none_repeated_when_a_worker_is_killed(address, tmp_path):
    storage = storage_at(address)
    study = optuna.create_study(study_name="s", storage=storage)
    logs = [tmp_path / f"worker-{i}" for i in range(WORKERS)]
    ready = processes.Barrier(WORKERS)
    workers = [processes.Process(target=work, args=(address, log, ready)) for log in logs]
    for worker in workers:
        worker.start()
    try:
        killed = _kill_in_a_trial(workers[0], logs[0])
        for worker in workers[1:]:
            worker.join(WAIT)
    finally:
        for worker in workers:
            worker.kill()
            worker.join()

    assert [w.exitcode for w in workers] == [-signal.SIGKILL, 0, 0, 0]
    trials = study.get_trials(deepcopy=False)
    assert [t.number for t in trials] == list(range(len(trials)))
    complete = {t.number: t.value for t in trials if t.state == TrialState.COMPLETE}
    # Workers that were busy when the last trial was told finish what they have begun.
    wanted = trials_at(address)
    assert wanted <= len(complete) < wanted + WORKERS
    begun: dict[int, int] = {}
    for i, log in enumerate(logs):
        for line in log.read_text().splitlines():
            event, number, *value = line.split()
            if event == "end":
                assert complete[int(number)] == float(value[0])
            elif event == "begin":
                assert begun.setdefault(int(number), i) == i
    assert begun.keys() == {t.number for t in trials}
    # The trial that was cut off stands in the storage, and no other does.
    assert {t.number for t in trials} - complete.keys() == {killed}
    assert sorted(set(begun.values())) == list(range(WORKERS))

    proposed = [t for t in trials if t.user_attrs.get("llmopt:source") == "llm"]
    assert len(proposed) > wanted - STARTUP - WORKERS
    repeats = sum(n - 1 for n in Counter(tuple(t.params.values()) for t in trials).values())
    assert repeats == 0


def _kill_in_a_trial(worker, log: Path) -> int:
    """Kill a worker that has told some trials, while it evaluates one; return that trial."""
    until = time.monotonic() + WAIT
    while time.monotonic() < until:
        lines = log.read_text().splitlines() if log.exists() else []
        if len(lines) >= 9 and lines[-1].startswith("begin "):
            # It may have gone on since that look: it is stopped for another one.
            os.kill(worker.pid, signal.SIGSTOP)
            while Path(f"/proc/{worker.pid}/stat").read_text().rpartition(") ")[2][0] not in "TZ":
                time.sleep(0.001)
            event, number, *_ = log.read_text().splitlines()[-1].split()
            if event == "begin":
                os.kill(worker.pid, signal.SIGKILL)
                worker.join()
                return int(number)
            os.kill(worker.pid, signal.SIGCONT)
        time.sleep(0.001)
    pytest.fail(f"worker 0 did not get through three trials in {WAIT} s")


def test_each_worker_keeps_the_threads_of_its_embedded_model():
    sampler = LLMSampler(get_client("smollm2", threads=1))
    assert pickle.loads(pickle.dumps(sampler)).client.threads == 1
    page = (Path(__file__).parents[1] / "docs" / "workers.md").read_text()
    assert 'get_client("smollm2", threads=1)' in page
    assert "optuna create-study" in page  # before workers make it at the same time


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_what_no_file_or_request_holds_ends_no_study(address):
    storage = storage_at(address)
    replies = [f"x: {i}\nwhy \x00 and \ud800 and {'é' * 2100}" for i in (1, 2)]
    client = ScriptedClient(replies)
    sampler = LLMSampler(client, prompt="props", n_startup_trials=1, on_error="raise", seed=0)
    study = optuna.create_study(study_name="s", storage=storage, sampler=sampler)
    study.set_user_attr("expert", "a \x00 and a \udfff")

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", 0, 10)
        trial.set_user_attr("feedback", f"saw \x00 and \ud800 at {x:.0f}")
        return x

    study.optimize(objective, n_trials=3)
    assert [t.params["x"] for t in study.trials[1:]] == [1, 2]
    text = client.requests[1].text
    assert "saw \\x00 and \\ud800 at 1" in text
    assert "a \\x00 and a \\udfff" in text
    text.encode()
    for trial in study.trials[1:]:
        assert read_note(trial, "explanation").endswith("é" * 2100)
