"""Files that earlier versions wrote (format 1) go on: nothing of them is lost or paid again.

`tests/data/format1` holds searches that were stopped: amid a batch, in an ask whose reply was paid
for, after a failure, with CMA-ES beside the model; and two files that `save` wrote.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest

from llmopt import Categorical, Float, LLMOptimizer, ScriptedClient
from llmopt.code import CodeOptimizer, Function, Output

FILES = Path(__file__).parent / "data" / "format1"
# Trials, points without a result, points that are ready, replies that are paid for and not
# used, requests, the best rewards.
HELD = {
    "columns": (11, 2, 3, 0, 6, (-3475.776021,)),
    "failure-last": (9, 0, 0, 1, 6, (-4.448825,)),
    "gymnasium": (9, 0, 0, 0, 12, (-6.019643,)),
    "objectives": (7, 1, 0, 0, 5, (-6.893333, -7.0975)),
    "paid": (9, 0, 0, 1, 5, (-4.448825,)),
    "paid-batch": (7, 1, 0, 1, 3, (-736.206386,)),
    "paid-saved": (9, 0, 0, 1, 5, (-4.448825,)),
    "partner": (11, 2, 3, 0, 3, (-9.137486,)),
    "pending": (8, 0, 2, 0, 4, (-736.206386,)),
    "pending-saved": (8, 0, 2, 0, 4, (-736.206386,)),
}


def numbers(request):
    """Answer with the bounds' middle, a little moved by the length of what was asked."""
    return ", ".join(f"{name}: 0.{len(request.text) % 997}" for name in "xyz")


@pytest.mark.parametrize("name", HELD)
def test_a_stored_search_goes_on(name, tmp_path):
    if name == "partner":
        pytest.importorskip("cma")
    client = ScriptedClient(numbers)
    client.columns, client.style = name in ("columns", "partner"), "completion"
    optimizer = LLMOptimizer.load(FILES / f"{name}.jsonl", client)
    trials, pending, ready, paid, requests, best = HELD[name]
    assert len(optimizer.trials) == trials
    assert len(optimizer.pending) == pending
    assert len(optimizer.meter.paid) == paid
    assert optimizer.usage.requests == requests
    assert optimizer.history.best.rewards == pytest.approx(best)
    for waiting in optimizer.pending_proposals:
        optimizer.tell_failure(optimizer.space.unflatten(waiting.values), "cut off")
    for _ in range(ready):
        optimizer.ask()
    assert client.requests == []  # they were paid for
    optimizer.save(tmp_path / "copy.jsonl")
    again = LLMOptimizer.load(tmp_path / "copy.jsonl", client)
    assert again.trials == optimizer.trials
    assert again.usage == optimizer.usage


@pytest.mark.parametrize("name", ["paid", "paid-saved"])
def test_a_reply_that_was_paid_for_is_used(name):
    client = ScriptedClient(["x: 0.5, y: 0.5, z: 0.5"])  # for the fourth point
    optimizer = LLMOptimizer.load(FILES / f"{name}.jsonl", client)
    assert [p["x"] for p in optimizer.ask(4)] == [-0.3184, -0.1474, -1.4028, 0.5]
    assert optimizer.usage.requests == 5 + len(client.requests) == 6
    assert optimizer.meter.paid == ()


def test_a_stored_search_for_code_goes_on(tmp_path):
    path = tmp_path / "code.jsonl"
    shutil.copy(FILES / "code.jsonl", path)
    samples = ((np.array([1.0, 2.0]),), (np.array([0.0, -1.0]),))
    function = Function("f(x)", "Return one number.", Output(), samples)
    made = {"client": ScriptedClient([]), "seed": 4, "objective": "Be large."}
    with CodeOptimizer(function, storage=path, **made) as optimizer:
        assert len(optimizer.trials) == 3
        assert optimizer.usage.requests == 4
        assert len(optimizer.meter.paid) == 1


def test_a_pickle_of_an_earlier_version_lacks_attributes_and_goes_on():
    """A study's sampler and a Nevergrad optimizer are kept as pickles."""
    space = {"x": Float(0, 1), "kind": Categorical(["a", "b"])}
    replies = ["x: 0.25, kind: a", "x: 0.5, kind: b"]
    optimizer = LLMOptimizer(space, ScriptedClient(replies), "props", warmup=0)
    optimizer.tell(optimizer.ask(), 1.0)
    old = optimizer.__getstate__()
    emitter, activity = old["_emitter"], old["space"]._activity
    for part, name in ((emitter, "traits"), (activity, "settles")):
        vars(part).pop(name)
    again = LLMOptimizer.__new__(LLMOptimizer)
    again.__setstate__(old)
    assert again.ask() == {"x": 0.5, "kind": "b"}
