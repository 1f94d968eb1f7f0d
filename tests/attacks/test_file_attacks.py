"""Changed and cut files: the same data, or an error in llmopt's words that says how to go on.

The tests take some hundred flips of each file. More of them::

    LLMOPT_FLIPS=2000 python -m pytest tests/attacks/test_file_attacks.py
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from llmopt import Float, LLMOptimizer, ScriptedClient
from llmopt.benchmarks.run.config import RunConfig
from llmopt.benchmarks.run.folder import RunFolder, read_config
from llmopt.client.scripted import RecordClient, ReplayClient
from llmopt.code.candidate import CodeTrial
from llmopt.code.journal import CodeState, check_start, replay, start_event
from llmopt.errors import LLMOptError
from llmopt.history import Usage
from llmopt.policies.linear import LinearPolicy
from llmopt.policies.saved import load_policy, save_policy
from llmopt.search.eventlog import EventLog
from llmopt.search.meter import Meter

FLIPS = int(os.environ.get("LLMOPT_FLIPS", "300"))
SPACE = {"x": Float(-5, 5)}


def answer(request):
    return f"x: {np.random.default_rng(request.seed).uniform(-5, 5):.6f}\nCloser."


def run_file(folder, *, save, durable=True):
    path = folder / "run.jsonl"
    with_storage = {"storage": path, "durable": durable}
    optimizer = LLMOptimizer(SPACE, ScriptedClient(answer), "props", seed=1, warmup=1,
                             **with_storage)  # fmt: skip
    for _ in range(5):
        point = optimizer.ask()
        optimizer.tell(point, point["x"], feedback="good")
    optimizer.ask(2)
    optimizer.close()
    if save:
        path = folder / "saved.json"
        optimizer.save(path)

    def read(path):
        again = LLMOptimizer.load(path, ScriptedClient([]))
        state = again._state.rng.bit_generator.state
        return again.trials, again.pending, again.usage, again.directions, again.seed, state

    return path, read


def journal(folder):
    path = folder / "code.jsonl"
    book, state = EventLog(path, durable=True), CodeState()
    book.append(start_event({"a": 1}, 3))
    for number in range(4):
        reply = {"completions": [{"text": f"def f{number}", "finish_reason": "stop"}]}
        book.append({"event": "request", "digest": f"d{number}", "failed": 0})
        book.append({"event": "reply", "digest": f"d{number}", "reply": reply, "failed": 0})
        trial = CodeTrial(number, f"def f(x): return {number}", None, 0.5 + number)
        event = state.tell_event(trial)
        entry = {k: event[k] for k in ("number", "source", "explanation", "parent",
                                       "fingerprint", "params")}  # fmt: skip
        book.append({"event": "ask", "candidates": [entry]})
        book.append(event)
    book.close()

    def read(path):
        state, meter = CodeState(), Meter(ScriptedClient([]))
        with contextlib.closing(EventLog(path, durable=True)) as book:
            if not book.events:  # as where none was begun
                book.append(start_event({"a": 1}, 3))
            else:
                check_start(book.events[0], {"a": 1}, 3, path)
                replay(book.events, state, meter, path)
        return state.trials, state.next, meter.usage

    return path, read


def attack(path: Path, read, *, exact: bool, numbered: bool) -> dict[str, int]:
    """Flip bits and cut; return how often it was read as it was, or refused."""
    whole = path.read_bytes()
    expected = read(path)
    rng = np.random.default_rng(0)
    seen = {"same": 0, "refused": 0, "shorter": 0, "changed": 0}

    def look(data: bytes, cut: bool, where: str) -> None:
        path.write_bytes(data)
        try:
            found = read(path)
        except LLMOptError as error:
            text = str(error)
            assert path.name in text or str(path.parent) in text, (where, text)
            if numbered and not cut:
                assert any(word in text for word in ("line", "event", "format", "not hold")), (
                    where,
                    text,
                )
            seen["refused"] += 1
            return
        same = found == expected
        # What is cut off is gone: the run goes on from there.
        seen["same" if same else "shorter" if cut else "changed"] += 1
        assert same or cut or not exact, f"{where}: other data was read"

    for _ in range(FLIPS):
        data = bytearray(whole)
        at, bit = int(rng.integers(len(data) - 1)), int(rng.integers(8))
        data[at] ^= 1 << bit
        look(bytes(data), False, f"bit {bit} of byte {at}")
    for size in sorted(set(rng.integers(0, len(whole), FLIPS // 3).tolist())):
        look(whole[:size], True, f"cut to {size}")
    path.write_bytes(whole)
    return seen


@pytest.mark.parametrize("kind", ["storage", "saved", "journal", "plain"])
def test_search_files(tmp_path, kind):
    if kind == "journal":
        path, read = journal(tmp_path)
    else:
        path, read = run_file(tmp_path, save=kind == "saved", durable=kind != "plain")
    seen = attack(path, read, exact=kind != "plain", numbered=True)
    assert seen["refused"] > FLIPS // 2
    if kind != "plain":  # a file without checksums is an old one, or was asked for
        assert seen["changed"] == 0


def test_run_folders(tmp_path):
    from llmopt.benchmarks.run import run

    config = RunConfig("cartpole", iterations=2, episodes=1, warmup=1, heldout=1, gif=False,
                       methods=("random",))  # fmt: skip
    run(config, tmp_path / "r")

    def read(path):
        RunConfig.from_dict(read_config(tmp_path / "r")["run"])
        with RunFolder(tmp_path / "r") as folder:
            return folder.records, folder.heldout

    for name in ("config.json", "trials.jsonl", "heldout.jsonl"):
        attack(tmp_path / "r" / name, read, exact=True, numbered=name != "config.json")


def test_recordings(tmp_path):
    path = tmp_path / "r.jsonl"
    client = RecordClient(ScriptedClient(answer), path)
    optimizer = LLMOptimizer(SPACE, client, "props", seed=1, warmup=1)
    for _ in range(4):
        optimizer.tell(optimizer.ask(), 1.0)

    def read(path):
        return [e.reply for e in ReplayClient(path)._read().exchanges]

    attack(path, read, exact=True, numbered=True)


def test_policies(tmp_path):
    env = gym.make("CartPole-v1")
    form = LinearPolicy.for_env(env)
    path = tmp_path / "policy.json"
    save_policy(form.bind(np.linspace(-1, 1, form.n_parameters)), path)
    attack(path, lambda p: load_policy(p).parameters.tolist(), exact=True, numbered=False)


def test_old_files_are_read(tmp_path):
    """Files without checksums and announcements, as llmopt 0.1 wrote them."""
    path, read = run_file(tmp_path, save=False, durable=False)
    events = [json.loads(line) for line in path.read_text().splitlines()]
    expected = read(path)
    path.write_text("".join(json.dumps(e) + "\n" for e in events if e["event"] != "request"))
    assert read(path) == expected
    assert isinstance(expected[2], Usage)
