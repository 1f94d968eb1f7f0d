"""The append-only event file."""

from __future__ import annotations

import copy
import functools
import logging
import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest
from stubs import Gate

from llmopt import Float, LLMOptimizer, ScriptedClient
from llmopt.errors import LLMOptError, StorageError


def answer(request):
    return f"x: {np.random.default_rng(request.seed).uniform(-5, 5):.6f}"


def search(path, client=None, **options):
    options.setdefault("warmup", 1)
    client = client or ScriptedClient(answer)
    return LLMOptimizer({"x": Float(-5, 5)}, client, "props", seed=1, storage=path, **options)


def go(optimizer, n):
    for _ in range(n):
        point = optimizer.ask()
        optimizer.tell(point, point["x"], feedback="good, the best so far")


def in_a_child(work):
    """Run something in a forked child; return 0 if it returned true."""
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    for _ in range(1200):  # a minute, as what is tested is that it does not hang
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hung"


def refuses(call, words):
    try:
        call()
    except StorageError as error:
        return words in str(error)
    return False


def test_a_closed_optimizer_refuses_before_it_pays(tmp_path):
    optimizer = search(tmp_path / "a.jsonl")
    go(optimizer, 3)
    optimizer.close()
    paid = len(optimizer.client.requests)
    for _ in range(2):
        with pytest.raises(StorageError, match="is closed"):
            optimizer.ask()
    assert len(optimizer.client.requests) == paid == optimizer.usage.requests


def test_a_model_that_does_not_suit_the_prompt_of_a_file_is_no_damage(tmp_path):
    with search(tmp_path / "a.jsonl") as optimizer:
        go(optimizer, 1)
    told = "'network' reads numbers alone, .*: give prompt=\"auto\", or another model"
    with pytest.raises(LLMOptError, match=told):
        LLMOptimizer.load(tmp_path / "a.jsonl", "network")
    assert LLMOptimizer.load(tmp_path / "a.jsonl", "network", prompt="auto").trials


def test_a_removed_file_is_noticed_before_anything_is_paid(tmp_path):
    optimizer = search(tmp_path / "a.jsonl")
    go(optimizer, 3)
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(StorageError, match="removed it"):
        optimizer.ask()
    assert optimizer.usage.requests == 2
    optimizer.save(tmp_path / "b.jsonl")
    assert len(search(tmp_path / "b.jsonl").trials) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("stored", [True, False])
def test_a_child_forked_during_an_ask_of_another_thread_does_not_hang(tmp_path, stored):
    gate = Gate("x: 1")
    optimizer = search(tmp_path / "a.jsonl" if stored else None, gate, warmup=0)
    thread = threading.Thread(target=optimizer.ask)
    thread.start()
    assert gate.asked.wait(60)

    def work():
        if stored:
            tell = functools.partial(optimizer.tell, {"x": 1.0}, 1.0)
            return refuses(optimizer.ask, "was forked from") and refuses(tell, "was forked from")
        gate.open.set()
        optimizer.tell({"x": 2.0}, 1.0)
        return optimizer.ask() == {"x": 1.0} and pickle.dumps(optimizer.history)

    code = in_a_child(work)
    gate.open.set()
    thread.join()
    assert code == 0


@pytest.mark.parametrize(
    "clone", [copy.copy, copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))]
)
def test_a_copy_says_that_it_stores_nothing(tmp_path, clone, caplog):
    optimizer = search(tmp_path / "a.jsonl")
    go(optimizer, 3)
    with caplog.at_level(logging.WARNING):
        clone(optimizer)
    assert "stores nothing" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        clone(search(None))
    assert caplog.text == ""


@pytest.mark.parametrize("warmup", [0, [], [{"x": 0.5}]])
def test_a_search_goes_on_whatever_its_warm_up_and_its_planned_end(tmp_path, warmup):
    def go(total):
        optimizer = LLMOptimizer(
            {"x": Float(0, 1)},
            ScriptedClient(['{"x": 0.25}', '{"x": 0.75}']),
            "props",
            warmup=warmup,
            seed=0,
            total=total,
            storage=tmp_path / "run.jsonl",
        )
        optimizer.tell(optimizer.ask(), 1)
        optimizer.close()
        return len(optimizer.trials)

    assert [go(5), go(9)] == [1, 2]


def test_an_empty_file_of_somebody_else_is_left(tmp_path):
    path = tmp_path / "run.jsonl"
    path.touch()
    LLMOptimizer({"x": Float(0, 1)}, ScriptedClient([]), storage=path).close()
    assert path.read_bytes() == b""


def test_a_mistyped_path_makes_one_folder_at_most(tmp_path):
    options = {"storage": tmp_path / "new" / "run.jsonl"}
    LLMOptimizer({"x": Float(0, 1)}, ScriptedClient([]), **options).close()
    options = {"storage": tmp_path / "no" / "dir" / "run.jsonl"}
    with pytest.raises(StorageError, match="cannot open"):
        LLMOptimizer({"x": Float(0, 1)}, ScriptedClient([]), **options)
    assert [p.name for p in tmp_path.iterdir()] == ["new"]
